//! Commands about the server itself.

use martlet_protocol::basics::layout::MAX_MEMBERS;
use martlet_protocol::membership::{Member, Roles};

use super::address;
use super::connection::REDIS_VERSION;
use super::context::Ctx;
use super::errors;
use super::glob::Pattern;
use crate::resp::{Args, Reply, parse_i64};

pub(super) fn time(ctx: &mut Ctx<'_>, _: Args<'_>, reply: &mut Reply<'_>) {
    let now_us = ctx.clock.now_ns() / 1000;
    reply.array(2);
    reply.bulk(itoa::Buffer::new().format(now_us / 1_000_000).as_bytes());
    reply.bulk(itoa::Buffer::new().format(now_us % 1_000_000).as_bytes());
}

pub(super) fn lolwut(_: &mut Ctx<'_>, _: Args<'_>, reply: &mut Reply<'_>) {
    reply.verbatim(&format!("Martlet {}, as Redis {REDIS_VERSION}\n", env!("CARGO_PKG_VERSION")));
}

pub(super) fn shutdown(ctx: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
    let known = ["NOSAVE", "SAVE", "NOW", "FORCE", "ABORT"];
    let right = (1..args.len()).all(|i| known.iter().any(|word| args.is(i, word)));
    let [no_save, save, now, force, abort] = known.map(|word| (1..args.len()).any(|i| args.is(i, word)));
    if !right || save && no_save || abort && (save || no_save || now || force) {
        return reply.error(errors::SYNTAX);
    }
    if abort {
        // A node that has been told to end serves nobody any more.
        return reply.error("ERR No shutdown in progress.");
    }
    // As in Redis there is no reply: the connection ends when the node does. Nothing is saved in any case; the other nodes hold the state.
    ctx.shared.shutdown = true;
}

/// `FAILOVER [TO host port]`. As in Redis the reply says that it has begun. INFO or CLUSTER SLOTS shows when another node leads, and the node's log says how it
/// ended.
pub(super) fn failover(ctx: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
    let named = args.len() == 4 && args.is(1, "TO");
    if args.len() == 2 && args.is(1, "ABORT") {
        // One that has begun ends by itself, soon, and cannot be called off.
        return reply.error("ERR No failover in progress.");
    }
    if args.len() != 1 && !named {
        return reply.error(errors::SYNTAX);
    }
    if named && parse_i64(args.at(3)).is_none() {
        return reply.error(errors::NOT_AN_INTEGER);
    }
    let env = ctx.env();
    if !env.is_primary {
        return reply.error("ERR FAILOVER is not valid when server is a replica.");
    }
    if !env.hands_over {
        return reply.error("ERR FAILOVER does not work with this engine: restart the leader instead");
    }
    let me = env.me();
    let others: Vec<_> = env.view.iter().flat_map(|view| view.with_roles(Roles::REPLICA)).filter(|m| m.id.node != me).collect();
    if others.is_empty() {
        return reply.error("ERR FAILOVER requires connected replicas.");
    }
    let to = match named {
        false => None,
        true => {
            // The address as clients are told it, or as it is configured.
            let bare = args.at(2).strip_prefix(b"[").and_then(|host| host.strip_suffix(b"]")).unwrap_or(args.at(2));
            let wanted = |m: &&&Member| {
                let (host, port) = address::split(&m.address);
                host.as_bytes() == bare && parse_i64(args.at(3)) == Some(port.into())
            };
            match others.iter().find(wanted) {
                Some(member) => Some(member.id.node),
                None => return reply.error("ERR FAILOVER target HOST and PORT is not a replica."),
            }
        }
    };
    ctx.shared.hand_over = Some(to);
    reply.ok();
}

/// `RESIZE [places]`. Without a number, the reply says how many places the group has, and how many it is to have; nil where it has as many places as members.
/// With a number, the reply says that the leader has been asked; use the first form to see when it is done.
pub(super) fn resize(ctx: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
    let env = ctx.env();
    if args.len() > 2 {
        return reply.error(errors::SYNTAX);
    }
    if !env.resizes {
        return reply.error("ERR RESIZE does not work with this engine: add or remove nodes instead");
    }
    if !env.is_primary {
        return reply.error("ERR only the leader takes RESIZE: send it there");
    }
    if args.len() == 1 {
        match env.places {
            None => reply.null_array(),
            Some((places, wanted)) => {
                reply.array(2);
                reply.int(places as i64);
                reply.int(wanted as i64);
            }
        }
        return;
    }
    let Some(places) = parse_i64(args.at(1)).and_then(|places| usize::try_from(places).ok()).filter(|places| *places <= MAX_MEMBERS) else {
        return reply.error("ERR RESIZE takes 1 to 16 places, or 0 for as many as there are members");
    };
    ctx.shared.resize = Some(places);
    reply.ok();
}

/// `RAISELEVEL level`. The reply says that the node has asked for it; the view shows when the level has been raised.
pub(super) fn raise_level(ctx: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
    let Some(level) = parse_i64(args.at(1)).and_then(|level| u8::try_from(level).ok()).filter(|level| *level > 0) else {
        return reply.error("ERR RAISELEVEL takes a level from 1 to 255");
    };
    let Some(view) = &ctx.env().view else { return reply.error("ERR this node has not joined the cluster yet: ask another one") };
    if level < view.level {
        return reply.error(&format!("ERR the feature level is {} and cannot be lowered", view.level));
    }
    if let Some(member) = view.members.iter().find(|m| !m.levels.has(level)) {
        return reply.error(&format!("ERR node {} works at the feature levels {}, not at {level}", member.id.node.0, member.levels));
    }
    ctx.shared.raise_level = Some(level);
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

pub(super) fn config_get(ctx: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
    let mut found: Vec<_> = settings(ctx).into_iter().map(|(name, value)| (name, value, false)).collect();
    for pattern in args.from(2) {
        let pattern = pattern.to_ascii_lowercase();
        let mut pattern = Pattern::new(&pattern, &ctx.shared.pulse);
        found.iter_mut().for_each(|(name, _, wanted)| *wanted |= pattern.matches(name.as_bytes()));
        if let Some(error) = pattern.exhausted() {
            return reply.error(&error);
        }
    }
    found.retain(|(.., wanted)| *wanted);
    reply.map(found.len());
    for (name, value, _) in found {
        reply.bulk(name.as_bytes());
        reply.bulk(value.as_bytes());
    }
}

pub(super) fn config_set(_: &mut Ctx<'_>, _: Args<'_>, reply: &mut Reply<'_>) {
    reply.error("ERR settings cannot be changed while the node runs: change its configuration file and restart it");
}

pub(super) fn config_resetstat(ctx: &mut Ctx<'_>, _: Args<'_>, reply: &mut Reply<'_>) {
    let gauges = ctx.shared.stats;
    ctx.shared.stats = crate::stats::KvStats {
        connections: gauges.connections,
        fabric_clients: gauges.fabric_clients,
        ..crate::stats::KvStats::default()
    };
    ctx.shared.calls.reset();
    reply.ok();
}

pub(super) fn config_help(_: &mut Ctx<'_>, _: Args<'_>, reply: &mut Reply<'_>) {
    write_help("CONFIG", CONFIG_HELP, reply);
}

/// HELP's reply: the syntax of each subcommand, and what it does.
pub(super) fn write_help(command: &str, subcommands: &[(&str, &str)], reply: &mut Reply<'_>) {
    reply.array(1 + 2 * subcommands.len());
    reply.simple(&format!("{command} <subcommand> [<arg> ...]. Subcommands are:"));
    for (usage, what) in subcommands {
        reply.simple(usage);
        reply.simple(&format!("    {what}"));
    }
}
