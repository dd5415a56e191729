//! What each key of the two files may be: the ranges of numbers that do not depend on other keys, and a description for every key.

use martlet_fabric::FabricKind;
use martlet_protocol::basics::layout::MAX_MEMBERS;
use martlet_protocol::engine::EngineKind;
use martlet_protocol::replica::Execution;
use martlet_settings::Allowed::{self, Hidden, Made, Names, Number, Table, Truth, Words};
use martlet_settings::{Keys, MOST, Setting, quoted};

use super::{ClusterConfig, DurabilityKind, GroupConfig, NodeConfig, RecoveryConfig, fabric};
use crate::sched::MAX_CORE;

const PATH: Allowed = Words("a path in quotes");
const SOCKET: Allowed = Words("a path of 1 to 107 bytes in quotes");
const RING: &str = "a power of two from";

impl Keys for ClusterConfig {
    const PARTS: &'static [&'static [Setting]] = &[CLUSTER_KEYS, fabric::CLUSTER_KEYS];
}

impl Keys for NodeConfig {
    const PARTS: &'static [&'static [Setting]] = &[NODE_KEYS, fabric::NODE_KEYS];
}

const CLUSTER_KEYS: &[Setting] = &[
    ("name", Words("1 to 48 letters, digits, '-', '_' or '.'")),
    ("key", Hidden("64 hexadecimal digits in quotes")),
    ("key_file", PATH),
    ("fabric", Made(|| quoted(FabricKind::ALL.into_iter().map(FabricKind::name)))),
    ("rendezvous", Words("the path of a directory in quotes")),
    ("lease_us", Number(50, 60_000_000)),
    ("clock_drift_ppm", Words("a whole number from 0 to 500000, and at least 50 where fabric spans hosts")),
    ("detector", Table("[detector]")),
    ("detector.heartbeat_us", Number(100, 60_000_000)),
    ("detector.cap", Number(2, 255)),
    ("detector.failure", Words("a whole number from 0 to detector.cap - 2")),
    ("detector.recovery", Words("a whole number from detector.failure + 1 to detector.cap")),
    ("detector.broadcast_us", Number(100, 60_000_000)),
    ("detector.broadcast_timeout_us", Words("a whole number from 3 * detector.broadcast_us to 600000000")),
    ("election", Table("[election]")),
    ("election.heartbeat_us", Number(10, 60_000_000)),
    ("election.cap", Number(2, 255)),
    ("election.failure", Words("a whole number from 0 to election.cap - 2")),
    ("election.recovery", Words("a whole number from election.failure + 1 to election.cap")),
    ("election.leader_stays", Truth),
    ("sizes", Table("[sizes]")),
    ("sizes.log_ring_bytes", Made(|| format!("{RING} {} to {}", 64 << 10, 1 << 30))),
    ("sizes.client_ring_bytes", Made(|| format!("{RING} {} to {}", 4 << 10, 64 << 20))),
    ("engine", Made(|| quoted(EngineKind::ALL.into_iter().map(EngineKind::name)))),
    ("execution", Made(|| quoted(Execution::ALL.into_iter().map(Execution::name)))),
    ("service", Words("an IP address and a port from 1 to 65535, such as \"127.0.0.1:7700\"")),
    ("durability", Table("[durability]")),
    ("durability.mode", Made(|| quoted(DurabilityKind::ALL.into_iter().map(DurabilityKind::name)))),
    ("durability.directory", Words("the path of a directory in quotes")),
    ("durability.segment_bytes", Number(64 << 10, 64 << 30)),
    ("durability.max_pending_bytes", Number(64 << 10, 64 << 30)),
    ("durability.snapshot_bytes_per_s", Number(1 << 20, 64 << 30)),
    ("group", Table("[group]")),
    ("group.places", Number(0, MAX_MEMBERS as u64)),
    ("group.zombies_us", Number(0, GroupConfig::MAX_ZOMBIES_US)),
    ("recovery", Table("[recovery]")),
    ("recovery.generation", Number(1, RecoveryConfig::MAX_GENERATION)),
    ("recovery.from", Number(0, MAX_MEMBERS as u64 - 1)),
    ("list", Table("[list]")),
    ("list.reign", Number(0, MOST)),
    ("list.change", Number(0, MOST)),
    ("node", Words("1 to 16 [[node]] tables")),
    ("node[..]", Words("a table that begins with [[node]]")),
    ("node[..].number", Words("a whole number from 0 to 15, each number once in the cluster")),
    ("node[..].redis", Words("host:port with a port from 1 to 65535 in quotes, such as \"127.0.0.1:7711\"")),
    ("node[..].address", Words("an IP address and a port from 1 to 65535 in quotes, such as \"10.0.0.1:7600\"")),
    ("node[..].roles", Words("a list of \"coordinator\", \"replica\" and \"lease-cache\" in brackets, at least one of them, each once")),
];

const NODE_KEYS: &[Setting] = &[
    ("number", Words("the number of a node in the cluster's file, from 0 to 15")),
    ("cluster", PATH),
    ("directory", PATH),
    ("answers_hosts", Truth),
    ("redis", Table("[redis]")),
    ("redis.listen", Words("an IPv4 or IPv6 address, such as \"127.0.0.1\"")),
    ("redis.port", Number(0, 65_535)),
    ("redis.unix_socket", SOCKET),
    ("redis.cluster", Truth),
    ("redis.reads", Names(&["auto", "lease", "quorum"])),
    ("redis.requirepass", Hidden("1 to 512 bytes in quotes; leave the key out for no password")),
    ("redis.protected_mode", Truth),
    ("redis.maxmemory", Words(NodeConfig::ALLOWED_MEMORY)),
    ("redis.maxclients", Number(1, 1_000_000)),
    ("threads", Table("[threads]")),
    ("threads.plan", Words(NodeConfig::ALLOWED_PLAN)),
    ("threads.pin", Made(|| format!("\"none\", \"auto\", or a list of at least one core from 0 to {MAX_CORE}, such as [0, 1]"))),
    ("threads.idle", Names(&["spin", "yield", "park", "adaptive"])),
    ("threads.spin_us", Number(0, 1_000_000)),
    ("threads.priority", Names(&["auto", "fifo", "slice", "normal"])),
    ("threads.rehearse_every_us", Words(NodeConfig::ALLOWED_REHEARSALS)),
    ("threads.wake_latency_us", Number(0, 1_000_000)),
    ("warden", Table("[warden]")),
    ("warden.use", Names(&["auto", "on", "off"])),
    ("warden.socket", SOCKET),
];

#[cfg(test)]
mod tests;
