//! Values that are numbers.

use super::context::Ctx;
use super::errors;
use super::float::Extended;
use crate::resp::{Args, Reply, parse_i64};

pub(super) fn incr(ctx: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
    add(ctx, args, 1, reply);
}

pub(super) fn decr(ctx: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
    add(ctx, args, -1, reply);
}

pub(super) fn incrby(ctx: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
    match parse_i64(args.at(2)) {
        Some(n) => add(ctx, args, n, reply),
        None => reply.error(errors::NOT_AN_INTEGER),
    }
}

pub(super) fn decrby(ctx: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
    match parse_i64(args.at(2)) {
        Some(i64::MIN) => reply.error("ERR decrement would overflow"),
        Some(n) => add(ctx, args, -n, reply),
        None => reply.error(errors::NOT_AN_INTEGER),
    }
}

fn add(ctx: &mut Ctx<'_>, args: Args<'_>, by: i64, reply: &mut Reply<'_>) {
    let k = ctx.key(args.at(1));
    let (old, expiry) = match ctx.live(k) {
        Some(entry) => (parse_i64(entry.value()), entry.expiry()),
        None => (Some(0), None),
    };
    let Some(old) = old else { return reply.error(errors::NOT_AN_INTEGER) };
    let Some(new) = old.checked_add(by) else { return reply.error(errors::OVERFLOW) };
    ctx.put(k, itoa::Buffer::new().format(new).as_bytes(), expiry);
    reply.int(new);
}

pub(super) fn incrbyfloat(ctx: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
    let k = ctx.key(args.at(1));
    let (old, expiry) = match ctx.live(k) {
        Some(entry) => (Extended::parse(entry.value()), entry.expiry()),
        None => (Some(Extended::ZERO), None),
    };
    let (Some(old), Some(by)) = (old, Extended::parse(args.at(2))) else { return reply.error(errors::NOT_A_FLOAT) };
    let Some(new) = old.add(by) else { return reply.error(errors::NAN_OR_INFINITY) };
    let text = new.format();
    ctx.put(k, text.as_bytes(), expiry);
    reply.bulk(text.as_bytes());
}
