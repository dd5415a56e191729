//! From a request to its reply.

use super::bound;
use super::client::ReplyMode;
use super::context::Ctx;
use super::errors;
use super::slots::key_slot;
use super::table::{self, Command, NoCommand, flag};
use super::transactions;
use crate::resp::{Args, Protocol, Reply};

/// What kind of request was executed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Executed {
    /// The reply says something about keys, so it must wait for its ticket.
    pub data: bool,
    /// It was refused because another node leads.
    pub redirected: bool,
}

/// How many bytes a reply may have besides values: their lengths, the head of their array.
const REPLY_HEADS: usize = 4096;

/// Executes one request of `ctx`'s client and appends its reply to `out`.
pub fn execute(ctx: &mut Ctx<'_>, args: Args<'_>, out: &mut Vec<u8>) -> Executed {
    ctx.clock.begin();
    let client = ctx.client();
    let (protocol, mode) = (client.protocol, client.reply_mode);
    match mode {
        ReplyMode::On => run(ctx, args, &mut Reply::new(out, protocol)),
        _ => run_silently(ctx, args, out, protocol, mode),
    }
}

/// The same for a client that wants no reply, or at least none to this request.
fn run_silently(ctx: &mut Ctx<'_>, args: Args<'_>, out: &mut Vec<u8>, protocol: Protocol, mode: ReplyMode) -> Executed {
    let before = out.len();
    if mode == ReplyMode::SkipNext {
        ctx.client().reply_mode = ReplyMode::Skip;
    }
    let executed = run(ctx, args, &mut Reply::new(out, protocol));
    // CLIENT REPLY ON, and RESET after CLIENT REPLY OFF, end the silence with their own reply.
    if ctx.client().reply_mode != ReplyMode::On {
        out.truncate(before);
    }
    if ctx.client().reply_mode == ReplyMode::Skip {
        ctx.client().reply_mode = ReplyMode::On;
    }
    executed
}

fn run(ctx: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) -> Executed {
    let command = match table::find_request(args) {
        Ok(command) => command,
        Err(NoCommand::Unknown) if is_http(args.at(0)) && !ctx.client().stateless => {
            ctx.shared.stats.protocol_errors += 1;
            ctx.client().quit = true;
            reject(ctx, reply, None, HTTP);
            return Executed::default();
        }
        Err(no_command) => {
            let error = match no_command {
                NoCommand::Unknown => unknown(args),
                NoCommand::Subcommand(container) => unknown_subcommand(args, container),
            };
            reject(ctx, reply, None, &error);
            return Executed::default();
        }
    };
    if !command.takes(args.len()) {
        reject(ctx, reply, Some(command), &format!("ERR wrong number of arguments for '{}' command", command.name));
        return Executed::default();
    }
    let client = ctx.client();
    client.last_command = command.name;
    let in_transaction = client.transaction.is_some();
    if !client.authenticated && !command.has(flag::NO_AUTH) {
        reject(ctx, reply, Some(command), errors::NOAUTH);
        return Executed::default();
    }
    if client.stateless && command.has(flag::CONNECTION) {
        let why = format!("ERR '{}' works on a socket only, and not over the fabric", command.name);
        reject(ctx, reply, Some(command), &why);
        return Executed::default();
    }
    // They would leave gaps in the array that answers EXEC.
    let punches_holes = command.name == "client|reply" && (args.is(2, "OFF") || args.is(2, "SKIP"));
    if in_transaction && (command.has(flag::NO_MULTI) && !command.has(flag::UNQUEUED) || punches_holes) {
        reject(ctx, reply, Some(command), "ERR Command not allowed inside a transaction");
        return Executed::default();
    }
    let is_exec = in_transaction && command.name == "exec";
    let client = ctx.client();
    let watches = client.watch_broken || !client.watched.is_empty();
    let (data, deny_oom) = match (&client.transaction, is_exec) {
        // Watches are data too: neither a former primary nor a backup can say whether a watched key has changed.
        (Some(t), true) => (t.has_data || watches, t.deny_oom),
        _ => (command.is_data(), command.has(flag::DENY_OOM)),
    };
    if data && !ctx.env().is_primary {
        let primarys = match &ctx.client().transaction {
            Some(t) if is_exec => t.is_primarys || watches,
            _ => is_primarys(ctx, command),
        };
        let known = ctx.env().primary_address.is_some();
        if primarys || !known {
            ctx.shared.stats.redirects += 1;
            redirect(ctx, args, command, reply);
            return Executed { redirected: true, ..Executed::default() };
        }
        if !ctx.env().shows_committed {
            reject(ctx, reply, Some(command), errors::LOADING);
            return Executed::default();
        }
    }
    let limit = ctx.env().config.max_memory_bytes;
    // A queued command takes memory, whatever it does at EXEC.
    let grows = deny_oom || in_transaction && !command.has(flag::UNQUEUED);
    if grows && limit > 0 && ctx.machine.used_bytes() > limit {
        reject(ctx, reply, Some(command), errors::OUT_OF_MEMORY);
        return Executed::default();
    }
    let room = ctx.shared.limit.saturating_sub(ctx.shared.effects.bytes().len());
    let queued = if is_exec { transactions::bound(ctx) } else { 0 };
    let may_add = command.has(flag::WRITE);
    let mut most = if may_add { queued + bound::roughly(args) } else { queued };
    if most > room {
        most = queued + bound::of(command, args);
        if most > room {
            reject(ctx, reply, Some(command), &errors::too_large(most, ctx.shared.limit));
            return Executed::default();
        }
    }
    if in_transaction && !command.has(flag::UNQUEUED) {
        transactions::queue(ctx, command, args, reply);
        return Executed::default();
    }
    (ctx.shared.spare, ctx.shared.may_add, ctx.shared.visited) = (room - most, may_add, 0);
    ctx.shared.pulse.stepped();
    ctx.shared.reply_end = reply.position().saturating_add(ctx.env().config.limits.max_bulk_bytes).saturating_add(REPLY_HEADS);
    call(ctx, command, args, reply);
    Executed { data, redirected: false }
}

/// Runs a command, and counts it.
pub(super) fn call(ctx: &mut Ctx<'_>, command: &Command, args: Args<'_>, reply: &mut Reply<'_>) {
    ctx.shared.stats.commands += 1;
    if ctx.client().stateless {
        // Reading the clock twice would take a twentieth of the time of such a request.
        return (command.handler)(ctx, args, reply);
    }
    let at = reply.position();
    let error = if command.has(flag::UNQUEUED) {
        // EXEC has other commands executed, so it is not counted as part of a run.
        ctx.shared.calls.settle(ctx.clock);
        let began = ctx.clock.latest();
        (command.handler)(ctx, args, reply);
        let error = reply.error_at(at);
        ctx.shared.calls.executed_others(command, began, error.is_some(), ctx.clock);
        error
    } else {
        ctx.shared.calls.begin(command, ctx.clock);
        (command.handler)(ctx, args, reply);
        let error = reply.error_at(at);
        ctx.shared.calls.ended(error.is_some());
        error
    };
    if let Some(error) = error {
        ctx.shared.stats.errors += 1;
        ctx.shared.calls.told(error);
    }
}

/// Whether only the primary may execute a command for this client. Like a replica of Redis, a backup answers commands that name no key and change nothing. In a
/// Redis Cluster it also answers any read of a client that has accepted a backup's answers with READONLY.
pub(super) fn is_primarys(ctx: &mut Ctx<'_>, command: &Command) -> bool {
    let cluster_mode = ctx.env().config.cluster_mode;
    let client = ctx.client();
    // WATCH reads nothing, but says something about what is to come.
    let reads = command.has(flag::READ | flag::TELLS) && !command.has(flag::WRITE);
    !reads || client.stateless || client.wants_quorum == Some(true) || !(command.keys.is_empty() || cluster_mode && client.readonly)
}

const HTTP: &str = "ERR Protocol error: this is HTTP, but this server speaks the Redis protocol";

/// Whether a request is a line of HTTP. A web page can make a browser send anything to any port of its user's host as the body of a POST. The header lines
/// before the body end such a connection, as in Redis.
fn is_http(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b"POST") || name.eq_ignore_ascii_case(b"Host:")
}

/// Answers with an error a command that was not even started; an open transaction is then not executed.
fn reject(ctx: &mut Ctx<'_>, reply: &mut Reply<'_>, command: Option<&Command>, error: &(impl AsRef<[u8]> + ?Sized)) {
    let error = error.as_ref();
    ctx.shared.stats.errors += 1;
    if let Some(command) = command {
        ctx.shared.calls.rejected(command);
    }
    if command.is_some_and(|c| c.name == "exec") {
        ctx.shared.calls.told(b"EXECABORT");
        transactions::give_up(ctx);
        reply.error(&[b"EXECABORT Transaction discarded because of: ", error.strip_prefix(b"ERR ").unwrap_or(error)].concat());
        return;
    }
    if let Some(transaction) = &mut ctx.client().transaction {
        transaction.broken = true;
    }
    ctx.shared.calls.told(error);
    reply.error(error);
}

fn redirect(ctx: &mut Ctx<'_>, args: Args<'_>, command: &Command, reply: &mut Reply<'_>) {
    let slot = match &ctx.client().transaction {
        Some(t) if command.name == "exec" => t.queue.iter().find_map(|(command, args)| first_slot(command, args)),
        _ => first_slot(command, args),
    };
    let error = ctx.env().redirection(slot.unwrap_or(0));
    if command.name == "exec" && error.starts_with("MOVED") {
        transactions::give_up(ctx);
        ctx.shared.calls.told(error.as_bytes());
        reply.error(&error);
    } else {
        reject(ctx, reply, Some(command), &error);
    }
}

fn first_slot(command: &Command, args: Args<'_>) -> Option<u16> {
    command.key_positions(args.len()).next().map(|i| key_slot(args.at(i)))
}

/// Redis cuts the name and the arguments at 128 bytes.
const SHOWN: usize = 128;

fn unknown_subcommand(args: Args<'_>, container: &Command) -> Vec<u8> {
    let name = args.at(1);
    errors::quoting("ERR unknown subcommand '", &name[..name.len().min(SHOWN)], &format!("'. Try {} HELP.", container.name.to_uppercase()))
}

fn unknown(args: Args<'_>) -> Vec<u8> {
    let cut = |arg: &'_ [u8], most: usize| errors::up_to_zero(&arg[..arg.len().min(most)]).to_vec();
    let mut list = Vec::new();
    for arg in args.from(1) {
        if list.len() >= SHOWN {
            break;
        }
        list.extend([b"'", &cut(arg, SHOWN - list.len())[..], b"' "].concat());
    }
    [&errors::quoting("ERR unknown command '", &cut(args.at(0), SHOWN), "', with args beginning with: ")[..], &list].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resp::Span;

    #[test]
    fn an_unknown_command_is_quoted_as_redis_does() {
        let of = |words: &[&[u8]]| {
            let (mut bytes, mut spans) = (Vec::new(), Vec::new());
            for word in words {
                spans.push(Span::new(bytes.len(), word.len()));
                bytes.extend_from_slice(word);
            }
            unknown(Args::new(&bytes, &spans))
        };
        // What Redis 7.0.15 answers.
        assert_eq!(of(&[b"\xff\0foo", b"a\xff\0b", b"c"]), b"ERR unknown command '\xff', with args beginning with: 'a\xff' 'c' ");
        let long = of(&[&[0xff; 200]]);
        assert_eq!(long, [&b"ERR unknown command '"[..], &[0xff; 128], b"', with args beginning with: "].concat());
    }
}
