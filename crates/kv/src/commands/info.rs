//! INFO: facts and counters, in Redis's sections and one of our own.

use std::fmt::Write;

use martlet_protocol::membership::Roles;

use super::address;
use super::connection::REDIS_VERSION;
use super::context::Ctx;
use crate::resp::{Args, Reply};

type Section = (&'static str, When, fn(&mut Ctx<'_>, &mut String) -> std::fmt::Result);

/// When a section is included.
#[derive(Clone, Copy, PartialEq, Eq)]
enum When {
    /// Always, even unasked.
    Always,
    /// Only when the client asks for it, or for all sections.
    Asked,
}

const SECTIONS: &[Section] = &[
    ("Server", When::Always, server),
    ("Clients", When::Always, clients),
    ("Memory", When::Always, memory),
    ("Persistence", When::Always, persistence),
    ("Stats", When::Always, stats),
    ("Replication", When::Always, replication),
    ("CPU", When::Always, cpu),
    ("Commandstats", When::Asked, |ctx, out| ctx.shared.calls.write_commands(out)),
    ("Errorstats", When::Always, |ctx, out| ctx.shared.calls.write_errors(out)),
    ("Latencystats", When::Asked, |ctx, out| ctx.shared.calls.write_latencies(out)),
    ("Cluster", When::Always, cluster),
    ("Keyspace", When::Always, keyspace),
    ("Martlet", When::Always, martlet),
];

pub(super) fn info(ctx: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
    let says = |word: &str| (1..args.len()).any(|i| args.is(i, word));
    let everything = says("all") || says("everything");
    let default = args.len() == 1 || says("default");
    let mut text = String::new();
    for (name, when, write) in SECTIONS {
        if everything || default && *when == When::Always || says(name) {
            if !text.is_empty() {
                text.push_str("\r\n");
            }
            // Writing to a string cannot fail.
            let _ = write!(text, "# {name}\r\n");
            let _ = write(ctx, &mut text);
        }
    }
    reply.verbatim(&text);
}

fn server(ctx: &mut Ctx<'_>, out: &mut String) -> std::fmt::Result {
    let (now_ms, now_us) = (ctx.now_ms(), ctx.clock.now_ns() / 1000);
    let env = ctx.env();
    let up_s = now_ms.saturating_sub(env.started_ms) / 1000;
    write!(
        out,
        "redis_version:{REDIS_VERSION}\r\nmartlet_version:{}\r\nredis_mode:{}\r\nos:{} {}\r\narch_bits:{}\r\nprocess_id:{}\r\n\
         tcp_port:{}\r\nserver_time_usec:{}\r\nuptime_in_seconds:{up_s}\r\nuptime_in_days:{}\r\n",
        env!("CARGO_PKG_VERSION"),
        if env.config.cluster_mode { "cluster" } else { "standalone" },
        std::env::consts::OS,
        std::env::consts::ARCH,
        usize::BITS,
        std::process::id(),
        env.config.listen.map_or(0, |a| a.port()),
        now_us,
        up_s / 86400,
    )
}

fn clients(ctx: &mut Ctx<'_>, out: &mut String) -> std::fmt::Result {
    let (s, env) = (&ctx.shared.stats, ctx.env());
    write!(
        out,
        "connected_clients:{}\r\nmaxclients:{}\r\nblocked_clients:0\r\nfabric_clients:{}\r\n",
        s.connections, env.config.max_clients, s.fabric_clients
    )
}

fn human(bytes: usize) -> String {
    let mut n = bytes as f64;
    for unit in ["B", "K", "M", "G"] {
        if n < 1024.0 {
            return format!("{n:.2}{unit}");
        }
        n /= 1024.0;
    }
    format!("{n:.2}T")
}

fn memory(ctx: &mut Ctx<'_>, out: &mut String) -> std::fmt::Result {
    let (used, max) = (ctx.machine.used_bytes(), ctx.env().config.max_memory_bytes);
    write!(
        out,
        "used_memory:{used}\r\nused_memory_human:{}\r\nused_memory_sessions:{}\r\nmaxmemory:{max}\r\nmaxmemory_human:{}\r\n\
         maxmemory_policy:noeviction\r\n",
        human(used),
        ctx.machine.sessions().heap_bytes(),
        human(max)
    )
}

/// Some client libraries send nothing else until they have seen these.
fn persistence(ctx: &mut Ctx<'_>, out: &mut String) -> std::fmt::Result {
    write!(out, "loading:{}\r\n", u8::from(!ctx.env().is_primary && !ctx.env().shows_committed))
}

fn stats(ctx: &mut Ctx<'_>, out: &mut String) -> std::fmt::Result {
    let s = &ctx.shared.stats;
    write!(
        out,
        "total_connections_received:{}\r\ntotal_commands_processed:{}\r\ntotal_net_input_bytes:{}\r\ntotal_net_output_bytes:{}\r\n\
         rejected_connections:{}\r\nexpired_keys:{}\r\nevicted_keys:0\r\nkeyspace_hits:{}\r\nkeyspace_misses:{}\r\n\
         total_error_replies:{}\r\nclient_output_buffer_limit_disconnections:{}\r\nprotocol_errors:{}\r\nredirects:{}\r\n\
         fabric_requests:{}\r\nfabric_repeats:{}\r\nproposals:{}\r\nproposed_bytes:{}\r\nvoided_connections:{}\r\n\
         connections_taken_over:{}\r\nconnections_lost:{}\r\n",
        s.connections_received,
        s.commands,
        s.input_bytes,
        s.output_bytes,
        s.connections_rejected,
        s.expired_keys,
        s.keyspace_hits,
        s.keyspace_misses,
        s.errors,
        s.output_limit_disconnections,
        s.protocol_errors,
        s.redirects,
        s.fabric_requests,
        s.fabric_repeats,
        s.proposals,
        s.proposed_bytes,
        s.voided_connections,
        s.connections_taken_over,
        s.connections_lost,
    )
}

/// `ROLE`: what INFO's section on replication says, for programs such as load balancers.
pub(super) fn role(ctx: &mut Ctx<'_>, _: Args<'_>, reply: &mut Reply<'_>) {
    let env = ctx.env();
    if !env.is_primary {
        let (host, port) = env.primary_address.as_deref().map_or(("", 0), address::split);
        reply.array(5);
        reply.bulk(b"slave");
        reply.bulk(host.as_bytes());
        reply.int(i64::from(port));
        reply.bulk(if env.primary_address.is_some() { b"connected" } else { b"connect" });
        return reply.int(0);
    }
    let others: Vec<_> = env.others().filter(|m| m.roles.has(Roles::REPLICA)).collect();
    reply.array(3);
    reply.bulk(b"master");
    reply.int(0);
    reply.array(others.len());
    for m in others {
        let (host, port) = address::split(&m.address);
        reply.array(3);
        reply.bulk(host.as_bytes());
        reply.bulk(itoa::Buffer::new().format(port).as_bytes());
        reply.bulk(b"0");
    }
}

fn replication(ctx: &mut Ctx<'_>, out: &mut String) -> std::fmt::Result {
    let env = ctx.env();
    if env.is_primary {
        let others: Vec<_> = env.others().filter(|m| m.roles.has(Roles::REPLICA) || m.roles.has(Roles::LEARNER)).collect();
        write!(out, "role:master\r\nconnected_slaves:{}\r\n", others.len())?;
        for (i, m) in others.iter().enumerate() {
            let (host, port) = address::split(&m.address);
            let state = if m.roles.has(Roles::REPLICA) { "online" } else { "send_bulk" };
            write!(out, "slave{i}:ip={host},port={port},state={state},offset=0,lag=0\r\n")?;
        }
    } else {
        let (host, port) = address::split(env.primary_address.as_deref().unwrap_or("?:0"));
        let status = if env.primary_address.is_some() { "up" } else { "down" };
        write!(
            out,
            "role:slave\r\nmaster_host:{host}\r\nmaster_port:{port}\r\nmaster_link_status:{status}\r\nmaster_sync_in_progress:{}\r\n\
             slave_read_only:1\r\nconnected_slaves:0\r\n",
            u8::from(!env.shows_committed)
        )?;
    }
    write!(out, "master_failover_state:no-failover\r\n")
}

fn cpu(ctx: &mut Ctx<'_>, out: &mut String) -> std::fmt::Result {
    let Some(times) = ctx.shared.cpu.as_ref().map(|read| read()) else { return Ok(()) };
    for (name, us) in [
        ("sys", times.system_us),
        ("user", times.user_us),
        ("sys_children", times.children_us.1),
        ("user_children", times.children_us.0),
        ("sys_main_thread", times.thread_us.1),
        ("user_main_thread", times.thread_us.0),
    ] {
        write!(out, "used_cpu_{name}:{}.{:06}\r\n", us / 1_000_000, us % 1_000_000)?;
    }
    Ok(())
}

fn cluster(ctx: &mut Ctx<'_>, out: &mut String) -> std::fmt::Result {
    write!(out, "cluster_enabled:{}\r\n", u8::from(ctx.env().config.cluster_mode))
}

fn keyspace(ctx: &mut Ctx<'_>, out: &mut String) -> std::fmt::Result {
    if ctx.machine.is_empty() {
        return Ok(());
    }
    let now_ms = ctx.now_ms();
    let ttl = ctx.machine.mean_ttl_ms(now_ms);
    write!(out, "db0:keys={},expires={},avg_ttl={ttl}\r\n", ctx.machine.len(), ctx.machine.expiring())
}

fn martlet(ctx: &mut Ctx<'_>, out: &mut String) -> std::fmt::Result {
    let env = ctx.env();
    write!(out, "node:{}\r\nview:{}\r\n", env.me(), env.view_number)?;
    match env.primary {
        Some(primary) => write!(out, "primary:{primary}\r\n")?,
        None => write!(out, "primary:none\r\n")?,
    }
    write!(out, "primary_address:{}\r\n", env.primary_address.as_deref().unwrap_or(""))?;
    if let Some(view) = &env.view {
        write!(out, "members:{}\r\n", view.members.len())?;
        for (i, m) in view.members.iter().enumerate() {
            write!(out, "member{i}:id={},roles={},address={}\r\n", m.id, m.roles, m.address)?;
        }
    }
    write!(out, "alone:{}\r\nreign:{}\r\nsessions:{}\r\n", u8::from(env.is_alone()), env.reign, ctx.machine.sessions().len())
}
