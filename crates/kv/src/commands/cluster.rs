//! CLUSTER: this cluster as clients of Redis Cluster see it, one shard that serves every slot.

use martlet_protocol::membership::{Member, Roles};

use super::address;
use super::context::Ctx;
use super::env::Env;
use super::errors;
use super::keyspace::{is_live, too_many};
use super::server::write_help;
use super::slots::{SLOTS, key_slot};
use crate::resp::{Args, Reply, parse_i64};

const DISABLED: &str = "ERR This instance has cluster support disabled";

/// A node's name: 40 hexadecimal digits, made from its number and its incarnation.
fn name(member: &Member) -> String {
    format!("{:08x}{:032x}", member.id.node.0, member.id.incarnation.0)
}

/// The replicas that clients can reach, the primary first.
fn shard(env: &Env) -> Vec<&Member> {
    let primary = env.primary;
    let mut members: Vec<&Member> =
        env.view.iter().flat_map(|v| &v.members).filter(|m| m.roles.has(Roles::REPLICA) && !m.address.is_empty()).collect();
    members.sort_by_key(|m| Some(m.id) != primary);
    members
}

/// This node, if it is a member.
fn myself(env: &Env) -> Option<&Member> {
    env.view.iter().flat_map(|v| &v.members).find(|m| m.id.node == env.me())
}

/// Whether clients may use CLUSTER commands; if not, an error has been written.
fn is_enabled(ctx: &Ctx<'_>, reply: &mut Reply<'_>) -> bool {
    let enabled = ctx.env().config.cluster_mode;
    if !enabled {
        reply.error(DISABLED);
    }
    enabled
}

pub(super) fn my_id(ctx: &mut Ctx<'_>, _: Args<'_>, reply: &mut Reply<'_>) {
    if is_enabled(ctx, reply) {
        match myself(ctx.env()) {
            Some(me) => reply.bulk(name(me).as_bytes()),
            None => reply.error("ERR this node is not in the cluster at the moment: ask another one"),
        }
    }
}

pub(super) fn key_slot_of(ctx: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
    if is_enabled(ctx, reply) {
        reply.int(i64::from(key_slot(args.at(2))));
    }
}

pub(super) fn help(ctx: &mut Ctx<'_>, _: Args<'_>, reply: &mut Reply<'_>) {
    if is_enabled(ctx, reply) {
        write_help("CLUSTER", HELP, reply);
    }
}

/// `CLUSTER FORGET name` removes a member that hangs. It is for operators, so it works outside the cluster mode too. The reply says that the removal has begun;
/// CLUSTER NODES shows when the member is gone.
pub(super) fn forget(ctx: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
    let wanted = args.at(2);
    let env = ctx.env();
    let me = env.me();
    let member = env.view.iter().flat_map(|view| &view.members).find(|member| name(member).as_bytes().eq_ignore_ascii_case(wanted));
    match member.map(|member| member.id) {
        None => reply.error(&errors::quoting("ERR Unknown node ", wanted, "")),
        Some(id) if id.node == me => reply.error("ERR I tried hard but I can't forget myself..."),
        Some(id) => {
            ctx.shared.evict = Some(id);
            reply.ok();
        }
    }
}

const HELP: &[(&str, &str)] = &[
    ("COUNTKEYSINSLOT <slot>", "How many keys lie in a slot."),
    ("FORGET <name>", "Remove a node that hangs."),
    ("GETKEYSINSLOT <slot> <count>", "Some keys of a slot."),
    ("INFO", "The cluster's state."),
    ("KEYSLOT <key>", "The slot of a key."),
    ("MYID", "This node's name."),
    ("NODES", "The nodes, a line each."),
    ("REPLICAS <name>", "The nodes that follow a primary, a line each."),
    ("SHARDS", "The one shard: its slots and its nodes."),
    ("SLOTS", "Which nodes serve which slots."),
];

pub(super) fn count_keys_in_slot(ctx: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
    keys_in_slot(ctx, args, reply);
}

pub(super) fn get_keys_in_slot(ctx: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
    keys_in_slot(ctx, args, reply);
}

fn keys_in_slot(ctx: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
    if !is_enabled(ctx, reply) {
        return;
    }
    let (Some(slot), Some(most)) = (parse_i64(args.at(2)), args.get(3).map_or(Some(None), |most| parse_i64(most).map(Some))) else {
        return reply.error(errors::NOT_AN_INTEGER);
    };
    if !(0..i64::from(SLOTS)).contains(&slot) || most.is_some_and(|most| most < 0) {
        return reply.error(if most.is_some() { "ERR Invalid slot or number of keys" } else { "ERR Invalid slot" });
    }
    let most = most.map(|most| most as usize);
    let len = ctx.machine.len();
    if let Some(error) = too_many(ctx, &format!("CLUSTER {}", String::from_utf8_lossy(args.at(1)).to_ascii_uppercase()), len) {
        return reply.error(&error);
    }
    let now_ms = ctx.now_ms();
    let pulse = &ctx.shared.pulse;
    let of_slot = ctx.machine.iter().filter(|e| {
        pulse.stepped();
        pulse.worked(e.key().len());
        is_live(e, now_ms) && i64::from(key_slot(e.key())) == slot
    });
    match most {
        None => reply.count(of_slot.count()),
        Some(most) => {
            let keys: Vec<&[u8]> = of_slot.take(most).map(|e| e.key()).collect();
            if keys.iter().map(|key| key.len()).sum::<usize>() > ctx.shared.reply_end.saturating_sub(reply.position()) {
                return reply.error(errors::REPLY_TOO_LONG);
            }
            reply.array(keys.len());
            keys.into_iter().for_each(|key| reply.long_bulk(key, pulse));
        }
    }
}

/// Allows the client to ask for a slot that is being moved. None ever is.
pub(super) fn asking(ctx: &mut Ctx<'_>, _: Args<'_>, reply: &mut Reply<'_>) {
    if is_enabled(ctx, reply) {
        reply.ok();
    }
}

/// The client accepts a backup's answers, which may lag behind what was acknowledged.
pub(super) fn read_only(ctx: &mut Ctx<'_>, _: Args<'_>, reply: &mut Reply<'_>) {
    if is_enabled(ctx, reply) {
        ctx.client().readonly = true;
        reply.ok();
    }
}

pub(super) fn read_write(ctx: &mut Ctx<'_>, _: Args<'_>, reply: &mut Reply<'_>) {
    if is_enabled(ctx, reply) {
        ctx.client().readonly = false;
        reply.ok();
    }
}

pub(super) fn info(ctx: &mut Ctx<'_>, _: Args<'_>, reply: &mut Reply<'_>) {
    if !is_enabled(ctx, reply) {
        return;
    }
    let env = ctx.env();
    let up = env.primary_address.is_some();
    let (state, slots) = if up { ("ok", SLOTS) } else { ("fail", 0) };
    let (known, view) = (shard(env).len(), env.view_number);
    reply.verbatim(&format!(
        "cluster_state:{state}\r\ncluster_slots_assigned:{SLOTS}\r\ncluster_slots_ok:{slots}\r\ncluster_slots_pfail:0\r\n\
         cluster_slots_fail:{}\r\ncluster_known_nodes:{known}\r\ncluster_size:1\r\ncluster_current_epoch:{view}\r\n\
         cluster_my_epoch:{view}\r\n",
        SLOTS - slots
    ));
}

pub(super) fn nodes(ctx: &mut Ctx<'_>, _: Args<'_>, reply: &mut Reply<'_>) {
    if !is_enabled(ctx, reply) {
        return;
    }
    let env = ctx.env();
    let lines: String = shard(env).iter().map(|m| line(env, m)).collect();
    reply.verbatim(&lines);
}

/// A node's line in CLUSTER NODES.
fn line(env: &Env, m: &Member) -> String {
    let primary = shard(env).first().copied();
    let myself = if m.id.node == env.me() { "myself," } else { "" };
    let bus = u32::from(address::split(&m.address).1) + 10_000;
    let of = primary.map_or_else(|| "-".to_owned(), name);
    let (role, of, slots) = if primary.is_some_and(|p| p.id == m.id) { ("master", "-", " 0-16383") } else { ("slave", of.as_str(), "") };
    format!("{} {}@{bus} {myself}{role} {of} 0 0 {} connected{slots}\n", name(m), address::told(&m.address), env.view_number)
}

/// REPLICAS, and SLAVES, its older name.
pub(super) fn replicas(ctx: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
    if !is_enabled(ctx, reply) {
        return;
    }
    let env = ctx.env();
    let members = shard(env);
    match members.iter().position(|m| name(m).as_bytes() == args.at(2)) {
        None => reply.error(&errors::quoting("ERR Unknown node ", args.at(2), "")),
        Some(0) => {
            reply.array(members.len() - 1);
            members[1..].iter().for_each(|m| reply.bulk(line(env, m).trim_end().as_bytes()));
        }
        Some(_) => reply.error("ERR The specified node is not a master"),
    }
}

pub(super) fn slots(ctx: &mut Ctx<'_>, _: Args<'_>, reply: &mut Reply<'_>) {
    if !is_enabled(ctx, reply) {
        return;
    }
    let env = ctx.env();
    let members = shard(env);
    if members.is_empty() {
        return reply.array(0);
    }
    reply.array(1);
    reply.array(2 + members.len());
    reply.int(0);
    reply.int(i64::from(SLOTS) - 1);
    for m in members {
        let (host, port) = address::split(&m.address);
        reply.array(4);
        reply.bulk(host.as_bytes());
        reply.int(i64::from(port));
        reply.bulk(name(m).as_bytes());
        reply.array(0);
    }
}

pub(super) fn shards(ctx: &mut Ctx<'_>, _: Args<'_>, reply: &mut Reply<'_>) {
    if !is_enabled(ctx, reply) {
        return;
    }
    let env = ctx.env();
    let members = shard(env);
    reply.array(usize::from(!members.is_empty()));
    if members.is_empty() {
        return;
    }
    reply.map(2);
    reply.bulk(b"slots");
    reply.array(2);
    reply.int(0);
    reply.int(i64::from(SLOTS) - 1);
    reply.bulk(b"nodes");
    reply.array(members.len());
    for (i, m) in members.iter().enumerate() {
        let (host, port) = address::split(&m.address);
        reply.map(7);
        for (field, value) in [("id", name(m).as_str()), ("ip", host), ("endpoint", host)] {
            reply.bulk(field.as_bytes());
            reply.bulk(value.as_bytes());
        }
        reply.bulk(b"port");
        reply.int(i64::from(port));
        reply.bulk(b"role");
        reply.bulk(if i == 0 { b"master" } else { b"replica" });
        reply.bulk(b"replication-offset");
        reply.int(0);
        reply.bulk(b"health");
        reply.bulk(b"online");
    }
}
