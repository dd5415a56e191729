//! The file that says which other hosts a warden listens to, and over which paths.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use martlet_protocol::detector::planned::PathBounds;
use martlet_protocol::detector::wardens::{HostId, MAX_PATHS};
use serde::Deserialize;

use crate::canary::Canary;

/// The least interval between heartbeats.
pub const LEAST_INTERVAL_US: u64 = 100;
/// The longest interval between heartbeats.
pub const MOST_INTERVAL_US: u64 = 10_000_000;
/// The most other hosts that a warden listens to.
pub const MAX_HOSTS: usize = 64;

/// Why the file is refused.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It cannot be read.
    #[error("cannot read {path}: {error}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// It is not TOML, or has an unknown key.
    #[error("{path}: {error}")]
    Syntax {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        error: toml::de::Error,
    },
    /// A key has a value that is not allowed.
    #[error("{path}: {key} is {value}; allowed are {allowed}")]
    Value {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// Its value.
        value: String,
        /// The allowed values.
        allowed: String,
    },
}

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
    /// When the file cannot be read, or has a value that is not allowed: the error names the key and the value.
    pub fn read(path: &Path) -> Result<Neighbours, FileError> {
        let text = std::fs::read_to_string(path).map_err(|error| FileError::Read { path: path.into(), error })?;
        Neighbours::parse(path, &text)
    }

    pub(crate) fn parse(path: &Path, text: &str) -> Result<Neighbours, FileError> {
        let file: File = toml::from_str(text).map_err(|error| FileError::Syntax { path: path.into(), error })?;
        let wrong = |key: &str, value: String, allowed: &str| FileError::Value {
            path: path.into(),
            key: key.into(),
            value,
            allowed: allowed.into(),
        };
        if !(LEAST_INTERVAL_US..=MOST_INTERVAL_US).contains(&file.interval_us) {
            let allowed = format!("{LEAST_INTERVAL_US} to {MOST_INTERVAL_US}");
            return Err(wrong("interval_us", file.interval_us.to_string(), &allowed));
        }
        if !(1..=MAX_PATHS).contains(&file.path.len()) {
            return Err(wrong("the number of [[path]]", file.path.len().to_string(), "1 and 2"));
        }
        for own in &file.path {
            for (key, value) in [("path.latency_us", own.latency_us), ("path.jitter_us", own.jitter_us)] {
                if value > MOST_INTERVAL_US {
                    return Err(wrong(key, value.to_string(), &format!("0 to {MOST_INTERVAL_US}")));
                }
            }
            if file.path.iter().filter(|other| other.listen == own.listen).count() > 1 {
                return Err(wrong("path.listen", own.listen.to_string(), "addresses that no other path has"));
            }
        }
        if file.host == 0 {
            return Err(wrong("host", "0".into(), "1 to 65535"));
        }
        if file.peer.len() > MAX_HOSTS {
            return Err(wrong("the number of [[peer]]", file.peer.len().to_string(), &format!("0 to {MAX_HOSTS}")));
        }
        for peer in &file.peer {
            let is_twice = file.peer.iter().filter(|other| other.host == peer.host).count() > 1 && !Canary::HostTwice.is_planted();
            if peer.host == 0 || peer.host == file.host || is_twice {
                return Err(wrong("peer.host", peer.host.to_string(), "1 to 65535, each once, and not this host's own"));
            }
            if peer.addresses.len() != file.path.len() {
                let allowed = format!("{}, one a path", file.path.len());
                return Err(wrong("the number of peer.addresses", peer.addresses.len().to_string(), &allowed));
            }
        }
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

    const FILE: &str = r#"
        host = 1
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
    fn what_the_file_cannot_say_is_named() {
        for (from, to, why) in [
            ("interval_us = 1000", "interval_us = 10", "interval_us is 10; allowed are 100 to 10000000"),
            ("host = 1\n", "host = 0\n", "host is 0; allowed are 1 to 65535"),
            ("host = 2", "host = 1", "peer.host is 1; allowed are 1 to 65535, each once, and not this host's own"),
            (", \"10.2.0.2:7100\"]", "]", "the number of peer.addresses is 1; allowed are 2, one a path"),
            ("10.2.0.1:7100", "10.1.0.1:7100", "path.listen is 10.1.0.1:7100; allowed are addresses that no other path has"),
            ("jitter_us = 400", "jitter_us = 99999999", "path.jitter_us is 99999999; allowed are 0 to 10000000"),
        ] {
            let error = parse(&FILE.replacen(from, to, 1)).expect_err(to);
            assert_eq!(error, format!("/etc/martlet/warden.toml: {why}"));
        }
        assert!(parse("host = 1\nhots = 2").expect_err("unknown").contains("hots"));
    }
}
