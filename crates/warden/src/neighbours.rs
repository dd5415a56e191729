//! The file that says which other hosts a warden listens to, and over which paths.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use martlet_protocol::detector::planned::PathBounds;
use martlet_protocol::detector::wardens::{HostId, MAX_PATHS};
use martlet_settings::Allowed::{Made, Number, Words};
use martlet_settings::{Checker, ConfigError, Keys, MAX_FILE_BYTES, Setting, read, read_text};
use serde::Deserialize;

use crate::canary::Canary;

/// The least interval between heartbeats.
pub const LEAST_INTERVAL_US: u64 = 100;
/// The longest interval between heartbeats.
pub const MOST_INTERVAL_US: u64 = 10_000_000;
/// The most other hosts that a warden listens to.
pub const MAX_HOSTS: usize = 64;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    host: u16,
    key_file: PathBuf,
    interval_us: u64,
    path: Vec<OwnPath>,
    #[serde(default)]
    peer: Vec<FilePeer>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct OwnPath {
    listen: SocketAddr,
    latency_us: u64,
    jitter_us: u64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FilePeer {
    host: u16,
    addresses: Vec<SocketAddr>,
}

/// Where a warden listens.
const ADDRESS: &str = "an IP address and a port from 1 to 65535 in quotes, such as \"10.1.0.1:7100\"";

impl Keys for File {
    const PARTS: &'static [&'static [Setting]] = &[&[
        ("host", Number(1, 65_535)),
        ("key_file", Words("a path in quotes")),
        ("interval_us", Number(LEAST_INTERVAL_US, MOST_INTERVAL_US)),
        ("path", Made(|| format!("1 to {MAX_PATHS} [[path]] tables"))),
        ("path[..]", Words("a table that begins with [[path]]")),
        ("path[..].listen", Words(ADDRESS)),
        ("path[..].latency_us", Number(0, MOST_INTERVAL_US)),
        ("path[..].jitter_us", Number(0, MOST_INTERVAL_US)),
        ("peer", Made(|| format!("0 to {MAX_HOSTS} [[peer]] tables"))),
        ("peer[..]", Words("a table that begins with [[peer]]")),
        ("peer[..].host", Number(1, 65_535)),
        ("peer[..].addresses", Words("a list with an address for each [[path]], such as [\"10.1.0.2:7100\"]")),
    ]];
}

impl File {
    /// Refuses what the types of its keys do not rule out.
    fn validate(&self, check: &Checker<'_>) -> Result<(), ConfigError> {
        check.number("host", self.host)?;
        check.number("interval_us", self.interval_us)?;
        if !(1..=MAX_PATHS).contains(&self.path.len()) {
            return Err(check.refuse_known("path", format_args!("a list of {}", self.path.len())));
        }
        let mut addresses = BTreeSet::new();
        for (at, own) in self.path.iter().enumerate() {
            check.number(&format!("path[{at}].latency_us"), own.latency_us)?;
            check.number(&format!("path[{at}].jitter_us"), own.jitter_us)?;
            let key = format!("path[{at}].listen");
            if own.listen.port() == 0 {
                return Err(check.refuse_known(&key, format_args!("\"{}\"", own.listen)));
            }
            if !addresses.insert(own.listen) {
                return Err(check.refuse(key, format_args!("\"{}\"", own.listen), "an address that no other [[path]] has"));
            }
        }
        if self.peer.len() > MAX_HOSTS {
            return Err(check.refuse_known("peer", format_args!("a list of {}", self.peer.len())));
        }
        // The planted bug takes the same [[peer]] twice.
        let takes_twice = Canary::HostTwice.is_planted();
        let mut hosts = BTreeSet::from([self.host]);
        for (at, peer) in self.peer.iter().enumerate() {
            let key = format!("peer[{at}].host");
            check.number(&key, peer.host)?;
            if peer.host == self.host || !hosts.insert(peer.host) && !takes_twice {
                let allowed = format_args!("1 to 65535, each host once, and not {}, which is this host", self.host);
                return Err(check.refuse(key, peer.host, allowed));
            }
            let key = format!("peer[{at}].addresses");
            let shown = || match peer.addresses.len() {
                few if few <= MAX_PATHS => format!("{:?}", peer.addresses.iter().map(ToString::to_string).collect::<Vec<_>>()),
                many => format!("a list of {many}"),
            };
            if peer.addresses.len() != self.path.len() {
                let allowed = format_args!("a list of {}: one address for each [[path]], in the same order", self.path.len());
                return Err(check.refuse(key, shown(), allowed));
            }
            if peer.addresses.iter().any(|address| address.port() == 0) {
                return Err(check.refuse(key, shown(), "addresses with a port from 1 to 65535"));
            }
            if !peer.addresses.iter().all(|address| addresses.insert(*address)) && !takes_twice {
                return Err(check.refuse(key, shown(), "addresses that stand nowhere else in this file"));
            }
        }
        Ok(())
    }
}

/// Another host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// The host.
    pub host: HostId,
    /// Where its warden listens, for each path.
    pub addresses: Vec<SocketAddr>,
}

/// Which other hosts a warden listens to, and over which paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbours {
    /// This host.
    pub host: HostId,
    /// Where its warden listens, for each path.
    pub listen: Vec<SocketAddr>,
    /// The interval between heartbeats, in nanoseconds.
    pub interval_ns: u64,
    /// How long any other host may be silent, in nanoseconds: `TO = HB + lambda + 2 delta`, over all paths together.
    pub timeout_ns: u64,
    /// The other hosts.
    pub hosts: Vec<Neighbour>,
    /// The file with the key that all wardens share.
    pub key_file: PathBuf,
}

impl Neighbours {
    /// Reads the file. A relative path of the key's file is relative to this file.
    ///
    /// # Errors
    /// When the file cannot be read, or has a value that is not allowed: the error names the file, the line, the key, the value and what is allowed.
    pub fn read(path: &Path) -> Result<Neighbours, ConfigError> {
        Neighbours::parse(path, &read_text(path, MAX_FILE_BYTES)?)
    }

    pub(crate) fn parse(path: &Path, text: &str) -> Result<Neighbours, ConfigError> {
        let file: File = read(path, text)?;
        file.validate(&Checker::of::<File>(path)).map_err(|error| error.in_text(text))?;
        let paths = if Canary::FirstPathOnly.is_planted() { 1 } else { file.path.len() };
        let bounds: Vec<PathBounds> = file.path[..paths]
            .iter()
            .map(|own| PathBounds { latency_ns: own.latency_us * 1_000, jitter_ns: own.jitter_us * 1_000 })
            .collect();
        let interval_ns = file.interval_us * 1_000;
        let bounds = PathBounds::of_redundant(&bounds).expect("one path at least");
        Ok(Neighbours {
            host: HostId(file.host),
            listen: file.path.iter().map(|own| own.listen).collect(),
            interval_ns,
            timeout_ns: bounds.timeout_ns(interval_ns),
            hosts: file.peer.into_iter().map(|peer| Neighbour { host: HostId(peer.host), addresses: peer.addresses }).collect(),
            key_file: path.parent().unwrap_or(Path::new("")).join(file.key_file),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"host = 1
key_file = "warden.key"
interval_us = 1000
[[path]]
listen = "10.1.0.1:7100"
latency_us = 10
jitter_us = 500
[[path]]
listen = "10.2.0.1:7100"
latency_us = 20
jitter_us = 400
[[peer]]
host = 2
addresses = ["10.1.0.2:7100", "10.2.0.2:7100"]
"#;

    fn parse(text: &str) -> Result<Neighbours, String> {
        Neighbours::parse(Path::new("/etc/martlet/warden.toml"), text).map_err(|error| error.to_string())
    }

    #[test]
    fn the_timeout_follows_from_the_paths() {
        let neighbours = parse(FILE).expect("as it should be");
        // lambda 10, delta 500 over both paths.
        assert_eq!(neighbours.timeout_ns, 1_000_000 + 10_000 + 2 * 500_000);
        assert_eq!(neighbours.key_file, Path::new("/etc/martlet/warden.key"));
        assert_eq!(neighbours.hosts[0].addresses.len(), 2);
    }

    #[test]
    fn each_mistake_is_named_with_its_line_its_value_and_what_is_allowed() {
        let address = "an IP address and a port from 1 to 65535 in quotes, such as \"10.1.0.1:7100\"";
        let list = "a list with an address for each [[path]], such as [\"10.1.0.2:7100\"]";
        let number = "a whole number from";
        let both = "[\"10.1.0.2:7100\", \"10.2.0.2:7100\"]";
        let other = format!("[[peer]]\nhost = 2\naddresses = {both}\n");
        let more = |host: u16| FILE.to_owned() + &other.replace("host = 2", &format!("host = {host}"));
        let many: String = (2..67).map(|host| format!("[[peer]]\nhost = {host}\naddresses = []\n")).collect();
        let with = |from: &str, to: &str| {
            assert!(FILE.contains(from), "{from}");
            FILE.replacen(from, to, 1)
        };
        for (text, line, why) in [
            // Numbers outside of their ranges.
            (with("host = 1\n", "host = 0\n"), 1, "host is 0; allowed: 1 to 65535".into()),
            (with("host = 1\n", "host = 65536\n"), 1, format!("host is 65536; allowed: {number} 1 to 65535")),
            (with("host = 1\n", "host = -1\n"), 1, format!("host is -1; allowed: {number} 1 to 65535")),
            (with("interval_us = 1000", "interval_us = 10"), 3, "interval_us is 10; allowed: 100 to 10000000".into()),
            (with("interval_us = 1000", "interval_us = 10000001"), 3, "interval_us is 10000001; allowed: 100 to 10000000".into()),
            (with("latency_us = 20", "latency_us = 10000001"), 10, "path[1].latency_us is 10000001; allowed: 0 to 10000000".into()),
            (with("jitter_us = 400", "jitter_us = 99999999"), 11, "path[1].jitter_us is 99999999; allowed: 0 to 10000000".into()),
            (with("host = 2", "host = 0"), 13, "peer[0].host is 0; allowed: 1 to 65535".into()),
            // Values of a wrong type.
            (with("host = 1\n", "host = \"one\"\n"), 1, format!("host is \"one\"; allowed: {number} 1 to 65535")),
            (with("\"warden.key\"", "7"), 2, "key_file is 7; allowed: a path in quotes".into()),
            (with("interval_us = 1000", "interval_us = 1.5"), 3, format!("interval_us is 1.5; allowed: {number} 100 to 10000000")),
            (with("latency_us = 10\n", "latency_us = true\n"), 6, format!("path[0].latency_us is true; allowed: {number} 0 to 10000000")),
            (with("jitter_us = 500", "jitter_us = []"), 7, format!("path[0].jitter_us is []; allowed: {number} 0 to 10000000")),
            (with("[[peer]]", "[peer]"), 12, "peer is a table; allowed: 0 to 64 [[peer]] tables".into()),
            (with(both, "\"10.1.0.2:7100\""), 14, format!("peer[0].addresses is \"10.1.0.2:7100\"; allowed: {list}")),
            // Addresses that are none.
            (with("\"10.1.0.1:7100\"", "\"10.1.0.1\""), 5, format!("path[0].listen is \"10.1.0.1\"; allowed: {address}")),
            (with("\"10.1.0.1:7100\"", "\"here:7100\""), 5, format!("path[0].listen is \"here:7100\"; allowed: {address}")),
            (with("\"10.1.0.1:7100\"", "7100"), 5, format!("path[0].listen is 7100; allowed: {address}")),
            (with("10.1.0.1:7100", "10.1.0.1:0"), 5, format!("path[0].listen is \"10.1.0.1:0\"; allowed: {address}")),
            (with("10.2.0.2:7100", "there"), 14, format!("peer[0].addresses is [\"10.1.0.2:7100\", \"there\"]; allowed: {list}")),
            (
                with("10.2.0.2:7100", "10.2.0.2:0"),
                14,
                "peer[0].addresses is [\"10.1.0.2:7100\", \"10.2.0.2:0\"]; allowed: addresses with a port from 1 to 65535".into(),
            ),
            // What is there twice.
            (
                with("10.2.0.1:7100", "10.1.0.1:7100"),
                9,
                "path[1].listen is \"10.1.0.1:7100\"; allowed: an address that no other [[path]] has".into(),
            ),
            (
                with("host = 2", "host = 1"),
                13,
                "peer[0].host is 1; allowed: 1 to 65535, each host once, and not 1, which is this host".into(),
            ),
            (more(2), 16, "peer[1].host is 2; allowed: 1 to 65535, each host once, and not 1, which is this host".into()),
            (more(3), 17, format!("peer[1].addresses is {both}; allowed: addresses that stand nowhere else in this file")),
            (
                with("10.2.0.2:7100", "10.2.0.1:7100"),
                14,
                "peer[0].addresses is [\"10.1.0.2:7100\", \"10.2.0.1:7100\"]; allowed: addresses that stand nowhere else in this file"
                    .into(),
            ),
            (with("host = 1\n", "host = 1\nhost = 2\n"), 2, "host is given twice; allowed: once".into()),
            // Too many or too few.
            (
                with(", \"10.2.0.2:7100\"]", "]"),
                14,
                "peer[0].addresses is [\"10.1.0.2:7100\"]; allowed: a list of 2: one address for each [[path]], in the same order".into(),
            ),
            (
                "path = []\nhost = 1\nkey_file = \"k\"\ninterval_us = 1000\n".into(),
                1,
                "path is a list of 0; allowed: 1 to 2 [[path]] tables".into(),
            ),
            (
                FILE.to_owned() + "[[path]]\nlisten = \"10.3.0.1:7100\"\nlatency_us = 1\njitter_us = 1\n",
                4,
                "path is a list of 3; allowed: 1 to 2 [[path]] tables".into(),
            ),
            (FILE.to_owned() + &many, 12, "peer is a list of 66; allowed: 0 to 64 [[peer]] tables".into()),
            // Keys that are unknown or missing.
            (
                with("host = 1\n", "host = 1\nhots = 2\n"),
                2,
                "hots is an unknown key; allowed: host, key_file, interval_us, path, peer".into(),
            ),
            (with("listen", "lisen"), 5, "path[0].lisen is an unknown key; allowed: listen, latency_us, jitter_us".into()),
            (with("addresses", "adresses"), 14, "peer[0].adresses is an unknown key; allowed: host, addresses".into()),
            (with("latency_us = 20\n", "\n"), 8, format!("path[1].latency_us is missing; allowed: {number} 0 to 10000000")),
            (with("host = 2\n", "\n"), 12, format!("peer[0].host is missing; allowed: {number} 1 to 65535")),
            (with("interval_us = 1000\n", "\n"), 0, format!("interval_us is missing; allowed: {number} 100 to 10000000")),
            ("host = 1\nkey_file = \"k\"\ninterval_us = 1000\n".into(), 0, "path is missing; allowed: 1 to 2 [[path]] tables".into()),
            // No TOML.
            (with("host = 2", "host 2"), 13, "\"host 2\" is not TOML: key with no value, expected `=`".into()),
        ] {
            let at = if line == 0 { String::new() } else { format!(", line {line}") };
            assert_eq!(parse(&text).expect_err(&why), format!("/etc/martlet/warden.toml{at}: {why}"));
        }
    }
}
