//! What each key of a file may be: the ranges of numbers that do not depend on other keys, and a description for every key. The description is for values that
//! are not even of the key's type, for which the parser would only say what the type may be.

use std::fmt;
use std::ops::Range;
use std::path::Path;

use martlet_fabric::FabricKind;
use martlet_protocol::basics::layout::MAX_MEMBERS;
use martlet_protocol::engine::EngineKind;
use martlet_protocol::replica::Execution;
use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::ConfigError;
use super::{ClusterConfig, DurabilityKind, GroupConfig, NodeConfig, RecoveryConfig, fabric};
use crate::sched::MAX_CORE;

/// What a key may be.
#[derive(Clone, Copy, Debug)]
pub(super) enum Allowed {
    /// A whole number in this range, whatever the other keys are.
    Number(u64, u64),
    /// `true` or `false`.
    Truth,
    /// What these words describe.
    Words(&'static str),
    /// One of these names.
    Names(&'static [&'static str]),
    /// What words describe that are put together on request.
    Made(fn() -> String),
    /// What these words describe; the value is not shown, since messages end up in logs.
    Hidden(&'static str),
    /// A table of that name.
    Table(&'static str),
}

use Allowed::{Hidden, Made, Names, Number, Table, Truth, Words};

impl fmt::Display for Allowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Number(from, to) => write!(f, "a whole number from {from} to {to}"),
            Truth => f.write_str("true or false"),
            Words(words) | Hidden(words) => f.write_str(words),
            Names(names) => f.write_str(&quoted(names.iter().copied())),
            Made(make) => f.write_str(&make()),
            Table(name) => write!(f, "a table, which begins with {name}"),
        }
    }
}

/// Names as they are in a file, one of which is to be chosen.
fn quoted<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<String> = names.map(|name| format!("{name:?}")).collect();
    match names.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => names.concat(),
    }
}

/// The most that a number in a TOML file can be.
const MOST: u64 = i64::MAX as u64;
const PATH: Allowed = Words("a path, as a text in quotes");
const SOCKET: Allowed = Words("a path of 1 to 107 bytes, as a text in quotes");
const RING: &str = "a power of two from";

/// The key of a setting, and what it may be.
pub(super) type Setting = (&'static str, Allowed);

/// A file whose keys are known. The keys of a list of tables have `[..]` after the list's name.
pub(super) trait Keys {
    /// All keys, except those of fabrics.
    const KEYS: &'static [Setting];
    /// The keys of fabrics.
    const OF_FABRICS: &'static [Setting];

    /// All keys.
    fn keys() -> impl Iterator<Item = &'static Setting> {
        Self::KEYS.iter().chain(Self::OF_FABRICS)
    }
}

impl Keys for ClusterConfig {
    const OF_FABRICS: &'static [Setting] = fabric::CLUSTER_KEYS;
    const KEYS: &'static [Setting] = &[
        ("name", Words("a text of 1 to 48 letters, digits, '-', '_' or '.'")),
        ("key", Hidden("64 hexadecimal digits, as a text in quotes")),
        ("key_file", PATH),
        ("fabric", Made(|| quoted(FabricKind::ALL.into_iter().map(FabricKind::name)))),
        ("rendezvous", Words("the path of a directory, as a text in quotes")),
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
        ("durability.directory", Words("the path of a directory, as a text in quotes")),
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
        ("node[..]", Words("a table, which begins with [[node]]")),
        ("node[..].number", Words("a whole number from 0 to 15, each number once in the cluster")),
        ("node[..].redis", Words("host:port with a port from 1 to 65535, as a text in quotes such as \"127.0.0.1:7711\"")),
        ("node[..].address", Words("an IP address and a port from 1 to 65535, as a text in quotes such as \"10.0.0.1:7600\"")),
        (
            "node[..].roles",
            Words("a list of \"coordinator\", \"replica\" and \"lease-cache\" in brackets, at least one of them, each once"),
        ),
    ];
}

impl Keys for NodeConfig {
    const OF_FABRICS: &'static [Setting] = fabric::NODE_KEYS;
    const KEYS: &'static [Setting] = &[
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
        ("redis.requirepass", Hidden("1 to 512 bytes, as a text in quotes; leave it out for none")),
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
}

/// What is wrong with a text.
pub(super) enum Wrong {
    /// It is not TOML, lacks a key, or has one too many: the parser's message, with the line.
    Text(String),
    /// A key has a value that it cannot have.
    Value { key: String, value: String, allowed: String },
}

impl Wrong {
    /// As an error about that file.
    pub(super) fn of(self, file: &Path) -> ConfigError {
        let file = file.to_owned();
        match self {
            Wrong::Text(message) => ConfigError::Parse { file, message },
            Wrong::Value { key, value, allowed } => ConfigError::Value { file, key, value, allowed },
        }
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wrong::Text(message) => f.write_str(message),
            Wrong::Value { key, value, allowed } => write!(f, "{key} is {value}; allowed: {allowed}"),
        }
    }
}

/// Reads a file's text.
pub(super) fn read<T: DeserializeOwned + Keys>(text: &str) -> Result<T, Wrong> {
    toml::from_str(text).map_err(|error| {
        let at = error.span().and_then(|span| wrong_value::<T>(text, &span));
        at.unwrap_or_else(|| Wrong::Text(error.to_string().trim_end().to_owned()))
    })
}

/// The value at that place, if its key is known: the innermost such value.
fn wrong_value<T: Keys>(text: &str, at: &Range<usize>) -> Option<Wrong> {
    let whole = DeTable::parse(text).ok()?;
    let mut found = None;
    find(whole.get_ref(), "", at, &mut |key, value| {
        // A value in a list, or in a table where there should be none, is reported under the key that holds the list or table.
        if let Some((_, allowed)) = T::keys().find(|(known, _)| is_named(known, key)) {
            found = Some((key.to_owned(), *allowed, shown(text, value, matches!(allowed, Hidden(_))), value.get_ref().is_table()));
        }
    });
    match found? {
        // Something inside it is wrong or missing, and the parser has more to say about that.
        (_, Table(_), _, true) => None,
        (key, _, _, true) if key.ends_with(']') => None,
        (key, allowed, value, _) => Some(Wrong::Value { key, value, allowed: allowed.to_string() }),
    }
}

/// Calls `visit` with each value that encloses that place, from the outermost inwards, and with the value's key.
fn find<'t>(table: &'t DeTable<'_>, path: &str, at: &Range<usize>, visit: &mut dyn FnMut(&str, &'t Spanned<DeValue<'t>>)) {
    for (name, value) in table {
        let key = if path.is_empty() { name.get_ref().to_string() } else { format!("{path}.{}", name.get_ref()) };
        descend(value, &key, at, visit);
    }
}

fn descend<'t>(value: &'t Spanned<DeValue<'_>>, key: &str, at: &Range<usize>, visit: &mut dyn FnMut(&str, &'t Spanned<DeValue<'t>>)) {
    let span = value.span();
    if span.start <= at.start && at.end <= span.end {
        visit(key, value);
    }
    // A table's own place is that of its heading, so its content is looked at in any case.
    match value.get_ref() {
        DeValue::Table(table) => find(table, key, at, visit),
        DeValue::Array(list) => list.iter().enumerate().for_each(|(i, value)| descend(value, &format!("{key}[{i}]"), at, visit)),
        _ => {}
    }
}

/// Whether a key is the one known by that name: any place in a list is `[..]`.
fn is_named(known: &str, key: &str) -> bool {
    match known.split_once("[..]") {
        None => known == key,
        Some((list, rest)) => key
            .strip_prefix(list)
            .and_then(|key| key.strip_prefix('['))
            .and_then(|key| key.split_once(']'))
            .is_some_and(|(_, key)| key == rest),
    }
}

/// The longest value that is repeated as it is, in bytes.
const MAX_SHOWN_BYTES: usize = 120;

/// A value as it is in the file, or a description of it.
fn shown(text: &str, value: &Spanned<DeValue<'_>>, secret: bool) -> String {
    let what = match value.get_ref() {
        DeValue::String(_) => "a text",
        DeValue::Integer(_) | DeValue::Float(_) => "a number",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    };
    let written = text.get(value.span()).unwrap_or_default();
    let is_short = !written.is_empty() && written.len() <= MAX_SHOWN_BYTES && !written.contains('\n');
    // If a table has a heading, the text at its place is only that heading.
    let has_heading = match value.get_ref() {
        DeValue::Table(_) => true,
        DeValue::Array(list) => list.iter().any(|value| value.get_ref().is_table()),
        _ => false,
    };
    let is_whole = is_short && !has_heading;
    if is_whole && !secret { written.to_owned() } else { what.to_owned() }
}

#[cfg(test)]
mod tests;
