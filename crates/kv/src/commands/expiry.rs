//! When keys expire. The primary's clock decides once, and every replica learns the resulting time.

use super::context::Ctx;
use super::errors;
use crate::resp::{Args, Reply, parse_i64};
use crate::store::Entry;

/// The unit of a time.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    /// Seconds.
    Seconds,
    /// Milliseconds.
    Milliseconds,
}

/// The time `n` units after `base_ms`, in milliseconds, unless it cannot be represented.
pub(super) fn deadline(n: i64, unit: Unit, base_ms: u64) -> Option<i64> {
    let ms = if unit == Unit::Seconds { n.checked_mul(1000)? } else { n };
    ms.checked_add(base_ms as i64)
}

/// The conditions of EXPIRE and similar commands.
#[derive(Default)]
struct Conditions {
    nx: bool,
    xx: bool,
    gt: bool,
    lt: bool,
}

impl Conditions {
    fn parse(args: Args<'_>) -> Result<Conditions, Vec<u8>> {
        let mut c = Conditions::default();
        for i in 3..args.len() {
            if args.is(i, "NX") {
                c.nx = true;
            } else if args.is(i, "XX") {
                c.xx = true;
            } else if args.is(i, "GT") {
                c.gt = true;
            } else if args.is(i, "LT") {
                c.lt = true;
            } else {
                return Err(errors::quoting("ERR Unsupported option ", args.at(i), ""));
            }
        }
        if c.nx && (c.xx || c.gt || c.lt) {
            return Err("ERR NX and XX, GT or LT options at the same time are not compatible".into());
        }
        if c.gt && c.lt {
            return Err("ERR GT and LT options at the same time are not compatible".into());
        }
        Ok(c)
    }

    /// Whether an expiry may become `new`. A key without expiry counts as expiring last of all.
    fn allow(&self, old: Option<u64>, new: i64) -> bool {
        let old = old.map(|o| o as i64);
        !(self.nx && old.is_some()
            || self.xx && old.is_none()
            || self.gt && old.is_none_or(|old| new <= old)
            || self.lt && old.is_some_and(|old| new >= old))
    }
}

fn expire_generic(ctx: &mut Ctx<'_>, args: Args<'_>, unit: Unit, absolute: bool, command: &str, reply: &mut Reply<'_>) {
    let conditions = match Conditions::parse(args) {
        Ok(c) => c,
        Err(error) => return reply.error(&error),
    };
    let Some(n) = parse_i64(args.at(2)) else { return reply.error(errors::NOT_AN_INTEGER) };
    let Some(at) = deadline(n, unit, if absolute { 0 } else { ctx.now_ms() }) else {
        return reply.error(&format!("ERR invalid expire time in '{command}' command"));
    };
    let k = ctx.key(args.at(1));
    let Some(old) = ctx.live(k).map(Entry::expiry) else { return reply.int(0) };
    if !conditions.allow(old, at) {
        return reply.int(0);
    }
    // A time before 1970 is as due as 1970.
    ctx.set_expiry(k, Some(at.max(0) as u64));
    reply.int(1);
}

pub(super) fn expire(ctx: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
    expire_generic(ctx, args, Unit::Seconds, false, "expire", reply);
}

pub(super) fn pexpire(ctx: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
    expire_generic(ctx, args, Unit::Milliseconds, false, "pexpire", reply);
}

pub(super) fn expireat(ctx: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
    expire_generic(ctx, args, Unit::Seconds, true, "expireat", reply);
}

pub(super) fn pexpireat(ctx: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
    expire_generic(ctx, args, Unit::Milliseconds, true, "pexpireat", reply);
}

/// -2 if there is no key, -1 if it has no expiry, otherwise the result of `of`.
fn report(ctx: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>, of: impl FnOnce(u64, u64) -> u64) {
    let (k, now_ms) = (ctx.key(args.at(1)), ctx.now_ms());
    match ctx.look_up(k).map(Entry::expiry) {
        None => reply.int(-2),
        Some(None) => reply.int(-1),
        Some(Some(at)) => reply.int(of(at, now_ms) as i64),
    }
}

pub(super) fn ttl(ctx: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
    report(ctx, args, reply, |at, now| (at - now + 500) / 1000);
}

pub(super) fn pttl(ctx: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
    report(ctx, args, reply, |at, now| at - now);
}

pub(super) fn expiretime(ctx: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
    report(ctx, args, reply, |at, _| (at + 500) / 1000);
}

pub(super) fn pexpiretime(ctx: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
    report(ctx, args, reply, |at, _| at);
}

pub(super) fn persist(ctx: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
    let k = ctx.key(args.at(1));
    let expires = ctx.live(k).is_some_and(|e| e.expiry().is_some());
    if expires {
        ctx.set_expiry(k, None);
    }
    reply.int(i64::from(expires));
}
