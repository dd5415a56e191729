//! MULTI, EXEC, DISCARD, WATCH, UNWATCH. The effects of a transaction go into one entry, so every replica has either all of them or none.

use super::client::Transaction;
use super::context::Ctx;
use super::dispatch::{call, is_primarys};
use super::table::{Command, flag};
use super::{bound, errors};
use crate::resp::{Args, QueuedRequests, Reply};
use crate::store::Entry;

pub(super) fn multi(ctx: &mut Ctx<'_>, _: Args<'_>, reply: &mut Reply<'_>) {
    if ctx.client().transaction.is_some() {
        return reply.error("ERR MULTI calls can not be nested");
    }
    ctx.client().transaction = Some(Transaction::default());
    reply.ok();
}

/// Keeps a command for EXEC.
pub(super) fn queue(ctx: &mut Ctx<'_>, command: &'static Command, args: Args<'_>, reply: &mut Reply<'_>) {
    let limit = ctx.env().config.limits.max_request_bytes;
    let primarys = command.is_data() && is_primarys(ctx, command);
    let record = ctx.shared.limit;
    let Some(transaction) = &mut ctx.shared.clients.get_mut(ctx.slot).transaction else { return };
    let bytes = QueuedRequests::size_of(args);
    if transaction.bytes + bytes > limit {
        transaction.broken = true;
        transaction.queue.clear();
        return reply.error(&format!("ERR the transaction has more than {limit} bytes, the most that is allowed: send less at once"));
    }
    // The effects of the whole transaction go into one entry.
    let effect_bytes = transaction.effect_bytes + bound::of(command, args);
    if effect_bytes > record {
        transaction.broken = true;
        transaction.queue.clear();
        return reply.error(&errors::too_large(effect_bytes, record));
    }
    // What EXEC will refuse anyway need not be kept.
    if !transaction.broken {
        transaction.bytes += bytes;
        transaction.effect_bytes = effect_bytes;
        transaction.has_data |= command.is_data();
        transaction.is_primarys |= primarys;
        transaction.deny_oom |= command.has(flag::DENY_OOM);
        transaction.queue.push(command, args, &ctx.shared.pulse);
    }
    reply.simple("QUEUED");
}

/// Bounds what the open transaction adds to the log, apart from copies.
pub(super) fn bound(ctx: &mut Ctx<'_>) -> usize {
    ctx.client().transaction.as_ref().map_or(0, |transaction| transaction.effect_bytes)
}

pub(super) fn exec(ctx: &mut Ctx<'_>, _: Args<'_>, reply: &mut Reply<'_>) {
    if ctx.client().transaction.is_none() {
        return reply.error("ERR EXEC without MULTI");
    }
    let watch_broken = is_watch_broken(ctx);
    let Some(transaction) = give_up(ctx) else { return };
    if transaction.broken {
        return reply.error("EXECABORT Transaction discarded because of previous errors.");
    }
    if watch_broken {
        return reply.null_array();
    }
    reply.array(transaction.queue.len());
    for (command, args) in transaction.queue.iter() {
        ctx.shared.pulse.stepped();
        if reply.position() > ctx.shared.reply_end && !command.has(flag::WRITE) {
            reply.error(errors::REPLY_TOO_LONG);
            continue;
        }
        ctx.shared.may_add = command.has(flag::WRITE);
        call(ctx, command, args, reply);
    }
}

/// Whether something that the client watches has changed. A watched key that has become due counts as changed, no matter what deletes it.
fn is_watch_broken(ctx: &mut Ctx<'_>) -> bool {
    let now_ms = ctx.now_ms();
    let client = ctx.shared.clients.get(ctx.slot);
    let is_due = |key: &[u8]| {
        ctx.shared.pulse.stepped();
        ctx.machine.get(ctx.machine.keyed(key)).and_then(Entry::expiry).is_some_and(|at| at <= now_ms)
    };
    client.watch_broken || ctx.shared.env.is_primary && ctx.machine.expiring() > 0 && client.watched.iter().any(is_due)
}

pub(super) fn discard(ctx: &mut Ctx<'_>, _: Args<'_>, reply: &mut Reply<'_>) {
    match give_up(ctx) {
        Some(_) => reply.ok(),
        None => reply.error("ERR DISCARD without MULTI"),
    }
}

/// Ends the transaction and all watches.
pub(super) fn give_up(ctx: &mut Ctx<'_>) -> Option<Transaction> {
    let transaction = ctx.client().transaction.take()?;
    ctx.shared.clients.unwatch(ctx.slot, &ctx.shared.pulse);
    Some(transaction)
}

pub(super) fn watch(ctx: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
    if ctx.client().transaction.is_some() {
        return reply.error("ERR WATCH inside MULTI is not allowed");
    }
    for key in args.from(1) {
        // A due key is deleted before the watch starts, so that its deletion breaks no watch. That is done as far as the log has room; if it has none, the
        // client's next transaction fails, and it tries again.
        let k = ctx.key(key);
        let _ = ctx.live(k);
        ctx.shared.clients.watch(ctx.slot, key);
    }
    reply.ok();
}

pub(super) fn unwatch(ctx: &mut Ctx<'_>, _: Args<'_>, reply: &mut Reply<'_>) {
    ctx.shared.clients.unwatch(ctx.slot, &ctx.shared.pulse);
    reply.ok();
}
