//! COMMAND: describes the commands to clients that ask before they use them.

use super::context::Ctx;
use super::errors;
use super::glob::Pattern;
use super::server::write_help;
use super::table::{self, Command, Keys, flag, key_use};
use crate::resp::{Args, Reply};

/// Flags in the order in which Redis lists them.
const FLAGS: &[(u32, &str)] = &[
    (flag::WRITE, "write"),
    (flag::READ, "readonly"),
    (flag::DENY_OOM, "denyoom"),
    (flag::ADMIN, "admin"),
    (flag::NO_SCRIPT, "noscript"),
    (flag::LOADING, "loading"),
    (flag::STALE, "stale"),
    (flag::SKIP_SLOWLOG, "skip_slowlog"),
    (flag::FAST, "fast"),
    (flag::NO_AUTH, "no_auth"),
    (flag::NO_ASYNC_LOADING, "no_async_loading"),
    (flag::NO_MULTI, "no_multi"),
    (flag::BUSY, "allow_busy"),
];

const KEY_USES: &[(u16, &str)] = &[
    (key_use::RO, "RO"),
    (key_use::RW, "RW"),
    (key_use::OW, "OW"),
    (key_use::RM, "RM"),
    (key_use::ACCESS, "access"),
    (key_use::UPDATE, "update"),
    (key_use::INSERT, "insert"),
    (key_use::DELETE, "delete"),
    (key_use::VARIES, "variable_flags"),
];

/// The flags that are reported for a command, as in Redis. Transactions use some flags here that Redis does not have.
fn told(command: &Command) -> u32 {
    // In Redis, DISCARD's own code refuses it within a transaction, as it does here.
    if command.has(flag::UNQUEUED) { command.flags & !flag::NO_MULTI } else { command.flags }
}

/// The categories of Redis's access lists that a command belongs to.
fn categories(command: &Command) -> Vec<&'static str> {
    let all = [
        (flag::IN_KEYSPACE, "@keyspace"),
        (flag::READ, "@read"),
        (flag::WRITE, "@write"),
        (flag::IN_STRING, "@string"),
        (flag::IN_BITMAP, "@bitmap"),
        (flag::ADMIN | flag::IN_ADMIN, "@admin"),
        (flag::FAST, "@fast"),
    ];
    let last =
        [(flag::ADMIN | flag::IN_DANGEROUS, "@dangerous"), (flag::IN_CONNECTION, "@connection"), (flag::IN_TRANSACTION, "@transaction")];
    let named =
        |list: &[(u32, &'static str)]| list.iter().filter(|(bits, _)| command.has(*bits)).map(|(_, name)| *name).collect::<Vec<_>>();
    let slow = (!command.has(flag::FAST)).then_some("@slow");
    named(&all).into_iter().chain(slow).chain(named(&last)).collect()
}

fn names<'a>(reply: &mut Reply<'_>, names: impl IntoIterator<Item = &'a str>) {
    let names: Vec<&str> = names.into_iter().collect();
    reply.set(names.len());
    names.iter().for_each(|name| reply.simple(name));
}

fn uses(reply: &mut Reply<'_>, uses: u16) {
    names(reply, KEY_USES.iter().filter(|(bit, _)| uses & bit != 0).map(|(_, name)| *name));
}

/// A map in which every value but the first is a number.
fn spec(reply: &mut Reply<'_>, kind: &str, fields: &[(&str, i32)]) {
    reply.map(2);
    reply.bulk(b"type");
    reply.bulk(kind.as_bytes());
    reply.bulk(b"spec");
    reply.map(fields.len());
    for (field, value) in fields {
        reply.bulk(field.as_bytes());
        reply.int(i64::from(*value));
    }
}

fn key_spec(reply: &mut Reply<'_>, keys: &Keys) {
    reply.map(if keys.note.is_empty() { 3 } else { 4 });
    if !keys.note.is_empty() {
        reply.bulk(b"notes");
        reply.bulk(keys.note.as_bytes());
    }
    reply.bulk(b"flags");
    uses(reply, keys.uses);
    reply.bulk(b"begin_search");
    spec(reply, "index", &[("index", keys.first)]);
    reply.bulk(b"find_keys");
    // The last key is given relative to the first, unless it counts from the end.
    let last = if keys.last < 0 { keys.last } else { keys.last - keys.first };
    spec(reply, "range", &[("lastkey", last), ("keystep", keys.step), ("limit", 0)]);
}

fn describe(command: &Command, reply: &mut Reply<'_>) {
    reply.array(10);
    reply.bulk(command.name.as_bytes());
    reply.int(i64::from(command.arity));
    names(reply, FLAGS.iter().filter(|(bit, _)| told(command) & bit != 0).map(|(_, name)| *name));
    let (first, last, step) = command.key_range();
    [first, last, step].iter().for_each(|n| reply.int(i64::from(*n)));
    names(reply, categories(command));
    reply.set(command.tips.len());
    command.tips.iter().for_each(|tip| reply.bulk(tip.as_bytes()));
    reply.set(command.keys.len());
    command.keys.iter().for_each(|keys| key_spec(reply, keys));
    match command.subcommands() {
        // As in Redis: a set of none, or an array.
        [] => reply.set(0),
        subcommands => {
            reply.array(subcommands.len());
            subcommands.iter().for_each(|sub| describe(sub, reply));
        }
    }
}

const HELP: &[(&str, &str)] = &[
    ("(no subcommand)", "What there is to know of every command."),
    ("COUNT", "How many commands there are."),
    ("DOCS [<command> ...]", "What commands do."),
    ("GETKEYS <command> <arg> ...", "The keys of a request."),
    ("GETKEYSANDFLAGS <command> <arg> ...", "The keys of a request, and what it does with them."),
    ("INFO [<command> ...]", "What there is to know of commands."),
    ("LIST [FILTERBY (MODULE <name> | ACLCAT <category> | PATTERN <pattern>)]", "The names of commands."),
];

pub(super) fn help(_: &mut Ctx<'_>, _: Args<'_>, reply: &mut Reply<'_>) {
    write_help("COMMAND", HELP, reply);
}

pub(super) fn all(_: &mut Ctx<'_>, _: Args<'_>, reply: &mut Reply<'_>) {
    reply.array(table::all().len());
    table::all().iter().for_each(|command| describe(command, reply));
}

pub(super) fn count(_: &mut Ctx<'_>, _: Args<'_>, reply: &mut Reply<'_>) {
    reply.count(table::all().len());
}

/// How many commands one request may have described: a few bytes ask for a kilobyte each.
const NAMES_MOST: usize = 1024;

/// Whether a request names more commands than that; if so, an error has been written.
fn names_too_many(args: Args<'_>, reply: &mut Reply<'_>) -> bool {
    let too_many = args.len() > 2 + NAMES_MOST;
    if too_many {
        reply.error(&format!("ERR COMMAND describes up to {NAMES_MOST} commands at once, not {}", args.len() - 2));
    }
    too_many
}

pub(super) fn info(ctx: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
    if args.len() == 2 {
        return all(ctx, args, reply);
    }
    if names_too_many(args, reply) {
        return;
    }
    reply.array(args.len() - 2);
    for name in args.from(2) {
        match table::find_named(name) {
            Some(command) => describe(command, reply),
            None => reply.null(),
        }
    }
}

pub(super) fn docs(_: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
    if names_too_many(args, reply) {
        return;
    }
    let known: Vec<&Command> =
        if args.len() == 2 { table::all().iter().collect() } else { args.from(2).filter_map(table::find_named).collect() };
    document(&known, reply);
}

fn document(commands: &[&Command], reply: &mut Reply<'_>) {
    reply.map(commands.len());
    for command in commands {
        let subcommands: Vec<&Command> = command.subcommands().iter().collect();
        reply.bulk(command.name.as_bytes());
        reply.map(if subcommands.is_empty() { 2 } else { 3 });
        reply.bulk(b"summary");
        reply.bulk(command.summary.as_bytes());
        reply.bulk(b"group");
        reply.bulk(command.group.as_bytes());
        if !subcommands.is_empty() {
            reply.bulk(b"subcommands");
            document(&subcommands, reply);
        }
    }
}

pub(super) fn list(ctx: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
    let wanted: Box<dyn Fn(&Command) -> bool + '_> = match args.len() {
        2 => Box::new(|_| true),
        // There are no modules.
        5 if args.is(2, "FILTERBY") && args.is(3, "MODULE") => Box::new(|_| false),
        5 if args.is(2, "FILTERBY") && args.is(3, "ACLCAT") => {
            Box::new(move |c| categories(c).iter().any(|name| args.at(4).eq_ignore_ascii_case(&name.as_bytes()[1..])))
        }
        5 if args.is(2, "FILTERBY") && args.is(3, "PATTERN") => {
            let (pattern, pulse) = (args.at(4).to_ascii_lowercase(), &ctx.shared.pulse);
            Box::new(move |c| Pattern::new(&pattern, pulse).matches(c.name.as_bytes()))
        }
        _ => return reply.error(errors::SYNTAX),
    };
    let every = table::all().iter().flat_map(|command| std::iter::once(command).chain(command.subcommands()));
    let names: Vec<&str> = every.filter(|command| wanted(command)).map(|command| command.name).collect();
    reply.array(names.len());
    names.iter().for_each(|name| reply.bulk(name.as_bytes()));
}

/// The keys of the request that follows, and what it does with each; if there are none, an error has been written.
fn keys_of<'a>(args: Args<'a>, reply: &mut Reply<'_>) -> Option<Vec<(&'a [u8], u16)>> {
    let request = args.without(2);
    let Ok(command) = table::find_request(request) else {
        reply.error("ERR Invalid command specified");
        return None;
    };
    if command.keys.is_empty() {
        reply.error("ERR The command has no key arguments");
        return None;
    }
    if !command.takes(request.len()) {
        reply.error("ERR Invalid number of arguments specified for command");
        return None;
    }
    let of = |keys: &Keys| {
        let uses = if keys.uses & key_use::VARIES == 0 { keys.uses } else { varying_use(command, request, keys.uses) };
        keys.positions(request.len()).map(move |i| (request.at(i), uses)).collect::<Vec<_>>()
    };
    Some(command.keys.iter().flat_map(of).collect())
}

/// What this particular request does with its key.
fn varying_use(command: &Command, request: Args<'_>, uses: u16) -> u16 {
    let gets = (3..request.len()).any(|i| request.is(i, "GET"));
    match command.name {
        "set" if !gets => key_use::OW | key_use::UPDATE,
        _ => uses & !key_use::VARIES,
    }
}

pub(super) fn get_keys(_: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
    let Some(keys) = keys_of(args, reply) else { return };
    reply.array(keys.len());
    keys.iter().for_each(|(key, _)| reply.bulk(key));
}

pub(super) fn get_keys_and_flags(_: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
    let Some(keys) = keys_of(args, reply) else { return };
    reply.array(keys.len());
    for (key, used) in keys {
        reply.array(2);
        reply.bulk(key);
        uses(reply, used);
    }
}
