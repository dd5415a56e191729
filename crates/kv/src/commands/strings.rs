//! Commands on values.

use super::context::Ctx;
use super::errors;
use super::expiry::{Unit, deadline};
use crate::resp::{Args, Reply, parse_i64};
use crate::store::{Entry, Keyed};

pub(super) fn get(ctx: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
    let k = ctx.key(args.at(1));
    ctx.show(k, reply);
}

/// The options of SET and GETEX.
#[derive(Default)]
struct Options {
    only_absent: bool,
    only_present: bool,
    get: bool,
    keep_ttl: bool,
    persist: bool,
    expiry: Option<(Unit, bool, usize)>,
}

impl Options {
    fn parse(args: Args<'_>, from: usize, is_set: bool) -> Option<Options> {
        let mut o = Options::default();
        let mut i = from;
        while i < args.len() {
            let timing = o.expiry.is_some() || o.keep_ttl || o.persist;
            if is_set && args.is(i, "NX") && !o.only_present {
                o.only_absent = true;
            } else if is_set && args.is(i, "XX") && !o.only_absent {
                o.only_present = true;
            } else if is_set && args.is(i, "GET") {
                o.get = true;
            } else if is_set && args.is(i, "KEEPTTL") && o.expiry.is_none() {
                o.keep_ttl = true;
            } else if !is_set && args.is(i, "PERSIST") && o.expiry.is_none() {
                o.persist = true;
            } else {
                let (unit, absolute) = if args.is(i, "EX") {
                    (Unit::Seconds, false)
                } else if args.is(i, "PX") {
                    (Unit::Milliseconds, false)
                } else if args.is(i, "EXAT") {
                    (Unit::Seconds, true)
                } else if args.is(i, "PXAT") {
                    (Unit::Milliseconds, true)
                } else {
                    return None;
                };
                i += 1;
                // An option may be repeated, as in Redis; the last one counts.
                let again = o.expiry.is_some_and(|(was_unit, was_absolute, _)| (was_unit, was_absolute) == (unit, absolute));
                if timing && !again || i >= args.len() {
                    return None;
                }
                o.expiry = Some((unit, absolute, i));
            }
            i += 1;
        }
        Some(o)
    }
}

/// The time that an option or argument states; if it states none, an error has been written.
fn stated_expiry(ctx: &mut Ctx<'_>, text: &[u8], unit: Unit, absolute: bool, command: &str, reply: &mut Reply<'_>) -> Option<u64> {
    let Some(n) = parse_i64(text) else {
        reply.error(errors::NOT_AN_INTEGER);
        return None;
    };
    let base = if absolute { 0 } else { ctx.now_ms() };
    match deadline(n, unit, base).filter(|_| n > 0) {
        Some(at) => Some(at as u64),
        None => {
            reply.error(&format!("ERR invalid expire time in '{command}' command"));
            None
        }
    }
}

pub(super) fn set(ctx: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
    let k = ctx.key(args.at(1));
    if args.len() == 3 {
        ctx.put(k, args.at(2), None);
        return reply.ok();
    }
    let Some(options) = Options::parse(args, 3, true) else { return reply.error(errors::SYNTAX) };
    let mut expiry = None;
    if let Some((unit, absolute, at)) = options.expiry {
        match stated_expiry(ctx, args.at(at), unit, absolute, "set", reply) {
            Some(at) => expiry = Some(at),
            None => return,
        }
    }
    if options.get && !ctx.show(k, reply) {
        return;
    }
    let old = ctx.live(k);
    let (present, old_expiry) = (old.is_some(), old.and_then(Entry::expiry));
    if (options.only_absent && present) || (options.only_present && !present) {
        if !options.get {
            reply.null();
        }
        return;
    }
    ctx.put(k, args.at(2), if options.keep_ttl { old_expiry } else { expiry });
    if !options.get {
        reply.ok();
    }
}

pub(super) fn setex(ctx: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
    set_expiring(ctx, args, Unit::Seconds, "setex", reply);
}

pub(super) fn psetex(ctx: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
    set_expiring(ctx, args, Unit::Milliseconds, "psetex", reply);
}

fn set_expiring(ctx: &mut Ctx<'_>, args: Args<'_>, unit: Unit, command: &str, reply: &mut Reply<'_>) {
    if let Some(at) = stated_expiry(ctx, args.at(2), unit, false, command, reply) {
        let k = ctx.key(args.at(1));
        ctx.put(k, args.at(3), Some(at));
        reply.ok();
    }
}

pub(super) fn setnx(ctx: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
    let k = ctx.key(args.at(1));
    let absent = ctx.live(k).is_none();
    if absent {
        ctx.put(k, args.at(2), None);
    }
    reply.int(i64::from(absent));
}

/// `CAS key expected new` sets the key if it holds `expected`; `CAS key NX new` sets it if it does not exist. Returns 1 if it was set. The expiry stays.
pub(super) fn cas(ctx: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
    // `NX` is a keyword here; a client that expects the value `NX` says `CAS key = NX new`.
    let (expected, new) = match args.len() {
        4 if args.is(2, "NX") => (None, args.at(3)),
        4 => (Some(args.at(2)), args.at(3)),
        5 if args.is(2, "=") => (Some(args.at(3)), args.at(4)),
        _ => return reply.error(errors::SYNTAX),
    };
    let k = ctx.key(args.at(1));
    let found = ctx.live(k);
    let (hit, expiry) = (found.map(Entry::value) == expected, found.and_then(Entry::expiry));
    if hit {
        ctx.put(k, new, expiry);
    }
    reply.int(i64::from(hit));
}

pub(super) fn getset(ctx: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
    let k = ctx.key(args.at(1));
    if ctx.show(k, reply) {
        ctx.put(k, args.at(2), None);
    }
}

pub(super) fn getdel(ctx: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
    let k = ctx.key(args.at(1));
    if ctx.show(k, reply) {
        ctx.delete(k);
    }
}

pub(super) fn getex(ctx: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
    let Some(options) = Options::parse(args, 2, false) else { return reply.error(errors::SYNTAX) };
    let k = ctx.key(args.at(1));
    if ctx.live(k).is_none() {
        return get(ctx, args, reply);
    }
    let mut expiry = None;
    if let Some((unit, absolute, at)) = options.expiry {
        match stated_expiry(ctx, args.at(at), unit, absolute, "getex", reply) {
            Some(at) => expiry = Some(at),
            None => return,
        }
    }
    if !ctx.show(k, reply) {
        return;
    }
    let old = ctx.live(k).and_then(Entry::expiry);
    if expiry.is_some() || (options.persist && old.is_some()) {
        ctx.set_expiry(k, expiry);
    }
}

pub(super) fn mget(ctx: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
    let start = reply.position();
    reply.array(args.len() - 1);
    for key in args.from(1) {
        let k = ctx.key(key);
        if !ctx.show(k, reply) {
            reply.take_back(start);
            return reply.error(errors::REPLY_TOO_LONG);
        }
    }
}

pub(super) fn mset(ctx: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
    if args.len().is_multiple_of(2) {
        return reply.error("ERR wrong number of arguments for 'mset' command");
    }
    put_all(ctx, args);
    reply.ok();
}

pub(super) fn msetnx(ctx: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
    if args.len().is_multiple_of(2) {
        return reply.error("ERR wrong number of arguments for 'msetnx' command");
    }
    for key in args.from(1).step_by(2) {
        let k = ctx.key(key);
        if ctx.live(k).is_some() {
            return reply.int(0);
        }
    }
    put_all(ctx, args);
    reply.int(1);
}

fn put_all(ctx: &mut Ctx<'_>, args: Args<'_>) {
    for i in (1..args.len()).step_by(2) {
        let k = ctx.key(args.at(i));
        ctx.put(k, args.at(i + 1), None);
    }
}

/// Whether a value may become this long; if not, an error has been written.
fn fits(ctx: &Ctx<'_>, len: usize, reply: &mut Reply<'_>) -> bool {
    let fits = len <= ctx.env().config.limits.max_bulk_bytes;
    if !fits {
        reply.error(errors::STRING_TOO_LONG);
    }
    fits
}

fn length(ctx: &mut Ctx<'_>, k: Keyed<'_>) -> usize {
    ctx.live(k).map_or(0, |e| e.value().len())
}

pub(super) fn append(ctx: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
    let k = ctx.key(args.at(1));
    let len = length(ctx, k);
    if fits(ctx, len + args.at(2).len(), reply) {
        let len = ctx.append(k, args.at(2));
        reply.count(len);
    }
}

pub(super) fn strlen(ctx: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
    let k = ctx.key(args.at(1));
    let len = ctx.look_up(k).map_or(0, |e| e.value().len());
    reply.count(len);
}

pub(super) fn getrange(ctx: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
    let (Some(start), Some(end)) = (parse_i64(args.at(2)), parse_i64(args.at(3))) else {
        return reply.error(errors::NOT_AN_INTEGER);
    };
    let k = ctx.key(args.at(1));
    let most = ctx.shared.reply_end.saturating_sub(reply.position());
    let there = ctx.look_up(k).is_some();
    let value = ctx.machine.get(k).filter(|_| there).map_or(&b""[..], Entry::value);
    let len = value.len() as i64;
    // Negative positions count from the end; one that lies before the start means the start.
    let from_end = |n: i64| if n < 0 { n.saturating_add(len).max(0) } else { n };
    let backwards = start < 0 && end < 0 && start > end;
    let (start, end) = (from_end(start), from_end(end).min(len - 1));
    if backwards || start > end || len == 0 {
        return reply.bulk(b"");
    }
    let part = &value[start as usize..=end as usize];
    if part.len() <= most { reply.long_bulk(part, &ctx.shared.pulse) } else { reply.error(errors::REPLY_TOO_LONG) }
}

pub(super) fn setrange(ctx: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
    let Some(offset) = parse_i64(args.at(2)) else { return reply.error(errors::NOT_AN_INTEGER) };
    let Ok(offset) = usize::try_from(offset) else { return reply.error("ERR offset is out of range") };
    let bytes = args.at(3);
    let k = ctx.key(args.at(1));
    let len = length(ctx, k);
    if bytes.is_empty() {
        return reply.count(len);
    }
    if fits(ctx, offset.saturating_add(bytes.len()), reply) {
        let len = ctx.write_at(k, offset, bytes);
        reply.count(len);
    }
}
