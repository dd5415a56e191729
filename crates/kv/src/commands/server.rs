//! Commands on the server itself.

use martlet_protocol::membership::Roles;

use super::connection::REDIS_VERSION;
use super::context::Ctx;
use super::errors;
use super::glob;
use super::table::{self, Command, flag};
use crate::resp::{Args, Reply};

pub(super) fn time(ctx: &mut Ctx<'_>, _: Args<'_>, reply: &mut Reply<'_>) {
    let now_ms = ctx.now_ms;
    reply.array(2);
    reply.bulk(itoa::Buffer::new().format(now_ms / 1000).as_bytes());
    reply.bulk(itoa::Buffer::new().format(now_ms % 1000 * 1000).as_bytes());
}

pub(super) fn lolwut(_: &mut Ctx<'_>, _: Args<'_>, reply: &mut Reply<'_>) {
    reply.verbatim(&format!("Martlet {}, as Redis {REDIS_VERSION}\n", env!("CARGO_PKG_VERSION")));
}

pub(super) fn shutdown(ctx: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
    let known = ["NOSAVE", "SAVE", "NOW", "FORCE"];
    let right = (1..args.len()).all(|i| known.iter().any(|word| args.is(i, word)));
    if !right || ((1..args.len()).any(|i| args.is(i, "SAVE")) && (1..args.len()).any(|i| args.is(i, "NOSAVE"))) {
        return reply.error(errors::SYNTAX);
    }
    // As in Redis there is no reply: the connection ends when the node does. Nothing is saved either way; the others hold the state.
    ctx.shared.shutdown = true;
}

/// `FAILOVER [TO host port]`. As in Redis the reply says that it has begun; INFO or CLUSTER SLOTS tell when another leads, and the node's log what came of it.
pub(super) fn failover(ctx: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
    let named = args.len() == 4 && args.is(1, "TO");
    if args.len() != 1 && !named {
        return reply.error(errors::SYNTAX);
    }
    let env = ctx.env();
    if !env.is_primary {
        return reply.error("ERR FAILOVER is not valid when server is a replica.");
    }
    if !env.hands_over {
        return reply.error("ERR with this engine a leader hands over by leaving: restart it");
    }
    let me = env.me();
    let others: Vec<_> = env.view.iter().flat_map(|view| view.with_roles(Roles::REPLICA)).filter(|m| m.id.node != me).collect();
    if others.is_empty() {
        return reply.error("ERR FAILOVER requires connected replicas.");
    }
    let to = match named {
        false => None,
        true => {
            let address = [args.at(2), b":", args.at(3)].concat();
            match others.iter().find(|m| m.address.as_bytes() == address) {
                Some(member) => Some(member.id.node),
                None => return reply.error("ERR FAILOVER target HOST and PORT is not a replica."),
            }
        }
    };
    ctx.shared.hand_over = Some(to);
    reply.ok();
}

/// The settings that CONFIG GET shows, under Redis's names where Redis has them.
fn settings(ctx: &Ctx<'_>) -> Vec<(&'static str, String)> {
    let config = &ctx.env().config;
    let yes = |b: bool| if b { "yes" } else { "no" }.to_owned();
    vec![
        ("appendonly", "no".to_owned()),
        ("bind", config.listen.map_or(String::new(), |a| a.ip().to_string())),
        ("cluster-enabled", yes(config.cluster_mode)),
        ("databases", "1".to_owned()),
        ("maxclients", config.max_clients.to_string()),
        ("maxmemory", config.max_memory_bytes.to_string()),
        ("maxmemory-policy", "noeviction".to_owned()),
        ("port", config.listen.map_or(0, |a| a.port()).to_string()),
        ("proto-max-bulk-len", config.limits.max_bulk_bytes.to_string()),
        ("save", String::new()),
        ("unixsocket", config.unix_socket.as_ref().map_or(String::new(), |p| p.display().to_string())),
    ]
}

const CONFIG_HELP: &[(&str, &str)] = &[
    ("GET <pattern> [<pattern> ...]", "The settings that match a pattern. They are fixed while the node runs."),
    ("RESETSTAT", "Sets the counters of INFO to 0."),
];

pub(super) fn config(ctx: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
    if args.is(1, "GET") {
        if args.len() < 3 {
            return reply.error("ERR wrong number of arguments for 'config|get' command");
        }
        let mut found = settings(ctx);
        found.retain(|(name, _)| args.from(2).any(|pattern| glob::matches(&pattern.to_ascii_lowercase(), name.as_bytes())));
        reply.map(found.len());
        for (name, value) in found {
            reply.bulk(name.as_bytes());
            reply.bulk(value.as_bytes());
        }
    } else if args.is(1, "SET") {
        reply.error("ERR settings are fixed while the node runs; change its configuration file and restart it");
    } else if args.is(1, "RESETSTAT") {
        let gauges = ctx.shared.stats;
        ctx.shared.stats = crate::stats::KvStats {
            connections: gauges.connections,
            fabric_clients: gauges.fabric_clients,
            ..crate::stats::KvStats::default()
        };
        reply.ok();
    } else if args.is(1, "HELP") {
        help("CONFIG", CONFIG_HELP, reply);
    } else {
        unknown_subcommand(args, "CONFIG", reply);
    }
}

/// What HELP answers: of each subcommand how it is written, and what it does.
pub(super) fn help(command: &str, subcommands: &[(&str, &str)], reply: &mut Reply<'_>) {
    reply.array(1 + 2 * subcommands.len());
    reply.simple(&format!("{command} <subcommand> [<arg> ...]. Subcommands are:"));
    for (usage, what) in subcommands {
        reply.simple(usage);
        reply.simple(&format!("    {what}"));
    }
}

pub(super) fn unknown_subcommand(args: Args<'_>, command: &str, reply: &mut Reply<'_>) {
    let name = String::from_utf8_lossy(args.at(1));
    reply.error(&format!("ERR unknown subcommand '{name:.128}'. Try {command} HELP."));
}

/// The categories of Redis's access lists that a command belongs to.
fn categories(command: &Command) -> Vec<&'static str> {
    let mut categories = Vec::new();
    if command.has(flag::WRITE) {
        categories.push("@write");
    } else if command.has(flag::READ) {
        categories.push("@read");
    }
    categories.push(match command.group {
        "generic" => "@keyspace",
        "string" => "@string",
        "connection" => "@connection",
        "transactions" => "@transaction",
        _ => "@admin",
    });
    categories.push(if command.has(flag::FAST) { "@fast" } else { "@slow" });
    categories
}

fn describe(command: &Command, reply: &mut Reply<'_>) {
    let flags = [
        (flag::WRITE, "write"),
        (flag::DENY_OOM, "denyoom"),
        (flag::ADMIN, "admin"),
        (flag::NO_MULTI, "no_multi"),
        (flag::NO_AUTH, "no_auth"),
        (flag::FAST, "fast"),
    ];
    let mut names: Vec<&str> = flags.iter().filter(|(bit, _)| command.has(*bit)).map(|(_, name)| *name).collect();
    if command.has(flag::READ) && !command.has(flag::WRITE) {
        names.insert(0, "readonly");
    }
    reply.array(10);
    reply.bulk(command.name.as_bytes());
    reply.int(i64::from(command.arity));
    reply.set(names.len());
    for name in names {
        reply.simple(name);
    }
    for n in [command.keys.0, command.keys.1, command.keys.2] {
        reply.int(i64::from(n));
    }
    let categories = categories(command);
    reply.set(categories.len());
    for category in categories {
        reply.simple(category);
    }
    // Tips, key specifications and subcommands: none that a client needs, as keys stand at fixed positions.
    reply.array(0);
    reply.array(0);
    reply.array(0);
}

const COMMAND_HELP: &[(&str, &str)] = &[
    ("(no subcommand)", "What there is to know of every command."),
    ("COUNT", "How many commands there are."),
    ("DOCS [<command> ...]", "What commands do."),
    ("GETKEYS <command> <arg> ...", "The keys of a request."),
    ("INFO [<command> ...]", "What there is to know of commands."),
    ("LIST [FILTERBY (MODULE <name> | ACLCAT <category> | PATTERN <pattern>)]", "The names of commands."),
];

pub(super) fn command(_: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
    if args.len() == 1 {
        reply.array(table::all().len());
        table::all().iter().for_each(|c| describe(c, reply));
    } else if args.is(1, "COUNT") {
        if args.len() != 2 {
            return reply.error("ERR wrong number of arguments for 'command|count' command");
        }
        reply.count(table::all().len());
    } else if args.is(1, "LIST") {
        list(args, reply);
    } else if args.is(1, "INFO") {
        let all_names: Vec<&[u8]> = table::all().iter().map(|c| c.name.as_bytes()).collect();
        let names = if args.len() == 2 { all_names } else { args.from(2).collect() };
        reply.array(names.len());
        for name in names {
            match table::find(name) {
                Some(c) => describe(c, reply),
                None => reply.null(),
            }
        }
    } else if args.is(1, "DOCS") {
        let known: Vec<&Command> =
            if args.len() == 2 { table::all().iter().collect() } else { args.from(2).filter_map(table::find).collect() };
        reply.map(known.len());
        for c in known {
            reply.bulk(c.name.as_bytes());
            reply.map(2);
            reply.bulk(b"summary");
            reply.bulk(c.summary.as_bytes());
            reply.bulk(b"group");
            reply.bulk(c.group.as_bytes());
        }
    } else if args.is(1, "GETKEYS") {
        get_keys(args, reply);
    } else if args.is(1, "HELP") {
        help("COMMAND", COMMAND_HELP, reply);
    } else {
        unknown_subcommand(args, "COMMAND", reply);
    }
}

fn list(args: Args<'_>, reply: &mut Reply<'_>) {
    let wanted: Box<dyn Fn(&Command) -> bool + '_> = match args.len() {
        2 => Box::new(|_| true),
        // There are no modules.
        5 if args.is(2, "FILTERBY") && args.is(3, "MODULE") => Box::new(|_| false),
        5 if args.is(2, "FILTERBY") && args.is(3, "ACLCAT") => {
            Box::new(move |c| categories(c).iter().any(|name| args.at(4).eq_ignore_ascii_case(&name.as_bytes()[1..])))
        }
        5 if args.is(2, "FILTERBY") && args.is(3, "PATTERN") => {
            let pattern = args.at(4).to_ascii_lowercase();
            Box::new(move |c| glob::matches(&pattern, c.name.as_bytes()))
        }
        _ => return reply.error(errors::SYNTAX),
    };
    let names: Vec<&str> = table::all().iter().filter(|c| wanted(c)).map(|c| c.name).collect();
    reply.array(names.len());
    names.iter().for_each(|name| reply.bulk(name.as_bytes()));
}

fn get_keys(args: Args<'_>, reply: &mut Reply<'_>) {
    if args.len() < 4 {
        return reply.error("ERR wrong number of arguments for 'command|getkeys' command");
    }
    let Some(c) = table::find(args.at(2)) else { return reply.error("ERR Invalid command specified") };
    let arguments = args.len() - 2;
    if c.keys.0 == 0 {
        return reply.error("ERR The command has no key arguments");
    }
    if !c.takes(arguments) {
        return reply.error("ERR Invalid number of arguments specified for command");
    }
    let positions: Vec<usize> = c.key_positions(arguments).collect();
    reply.array(positions.len());
    for i in positions {
        reply.bulk(args.at(2 + i));
    }
}
