//! The store's settings.

use std::net::SocketAddr;
use std::path::PathBuf;

use martlet_fabric::NodeId;
use martlet_protocol::basics::layout::Sizes;

use crate::resp::Limits;

/// The store's and its front ends' configuration. [`KvConfig::default`] suits a node on one host; [`KvConfig::check`] says what is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvConfig {
    /// This node's number.
    pub node: NodeId,
    /// Where to listen for Redis clients.
    pub listen: Option<SocketAddr>,
    /// Where to listen for Redis clients on this host: the path of a Unix socket.
    pub unix_socket: Option<PathBuf>,
    /// The password that Redis clients must give, if any.
    pub password: Option<String>,
    /// Whether replies that say something about keys wait for a majority when a Redis client has not chosen.
    pub reads_by_quorum: bool,
    /// Whether redirections are Redis Cluster's `-MOVED`, with this cluster as a single shard that has all slots.
    pub cluster_mode: bool,
    /// Above this many bytes of state, commands that add to it are refused; 0: no limit.
    pub max_memory_bytes: usize,
    /// The most Redis clients at a time.
    pub max_clients: usize,
    /// What one client may send.
    pub limits: Limits,
    /// While this many bytes of replies wait for a client, its connection is not read.
    pub output_pause_bytes: usize,
    /// Once this many bytes of replies wait for a client, its connection is closed.
    pub output_limit_bytes: usize,
    /// The most commands executed in one turn. The rest waits for the next turn, so that leases and heartbeats are attended to.
    pub commands_per_turn: usize,
    /// The effects of one turn's requests are handed to the engine together, once they reach this many bytes and at the end of the turn. The effects of one
    /// request are never divided.
    pub batch_bytes: usize,
    /// After a look at the sockets that found nothing, how long not to look again, in nanoseconds. Meanwhile the fabric's clients are served without the cost
    /// of a system call.
    pub socket_poll_ns: u64,
    /// The most due keys that one turn deletes.
    pub expire_per_turn: usize,
    /// How long a client's session is kept after a change of primary if the client does not claim it, in nanoseconds.
    pub session_grace_ns: u64,
    /// How large the rings are; the same at all nodes.
    pub sizes: Sizes,
}

impl Default for KvConfig {
    fn default() -> KvConfig {
        KvConfig {
            node: NodeId(0),
            listen: None,
            unix_socket: None,
            password: None,
            reads_by_quorum: false,
            cluster_mode: false,
            max_memory_bytes: 0,
            max_clients: 10_000,
            limits: Limits::default(),
            output_pause_bytes: 1 << 20,
            output_limit_bytes: 512 << 20,
            commands_per_turn: 2048,
            batch_bytes: 4096,
            socket_poll_ns: 5_000,
            expire_per_turn: 32,
            session_grace_ns: 10_000_000_000,
            sizes: Sizes::default(),
        }
    }
}

/// What is wrong with a configuration.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{key} is {value}; allowed: {allowed}")]
pub struct ConfigError {
    /// The setting.
    pub key: &'static str,
    /// What it is set to.
    pub value: String,
    /// What it may be.
    pub allowed: &'static str,
}

impl KvConfig {
    /// Returns an error if anything is wrong with the configuration.
    pub fn check(&self) -> Result<(), ConfigError> {
        let rules: [(&'static str, usize, bool, &'static str); 8] = [
            (
                "limits.max_bulk_bytes",
                self.limits.max_bulk_bytes,
                (1024..=512 << 20).contains(&self.limits.max_bulk_bytes),
                "1 KiB to 512 MiB",
            ),
            ("limits.max_args", self.limits.max_args, (1..=1 << 20).contains(&self.limits.max_args), "1 to 1048576"),
            (
                "limits.max_inline_bytes",
                self.limits.max_inline_bytes,
                (64..=1 << 20).contains(&self.limits.max_inline_bytes),
                "64 bytes to 1 MiB",
            ),
            (
                "limits.max_request_bytes",
                self.limits.max_request_bytes,
                (self.limits.max_bulk_bytes..=2 << 30).contains(&self.limits.max_request_bytes),
                "limits.max_bulk_bytes to 2 GiB",
            ),
            ("max_clients", self.max_clients, (1..=1_000_000).contains(&self.max_clients), "1 to 1000000"),
            (
                "output_limit_bytes",
                self.output_limit_bytes,
                self.output_limit_bytes >= self.output_pause_bytes.max(1024),
                "at least output_pause_bytes and 1024",
            ),
            ("commands_per_turn", self.commands_per_turn, self.commands_per_turn >= 1, "at least 1"),
            ("expire_per_turn", self.expire_per_turn, self.expire_per_turn >= 1, "at least 1"),
        ];
        for (key, value, good, allowed) in rules {
            if !good {
                return Err(ConfigError { key, value: value.to_string(), allowed });
            }
        }
        if self.password.as_deref() == Some("") {
            return Err(ConfigError {
                key: "password",
                value: "empty".to_owned(),
                allowed: "1 byte or more; leave the password out for none",
            });
        }
        let ring = self.sizes.client_ring_bytes;
        if !ring.is_power_of_two() || ring < 4096 {
            return Err(ConfigError { key: "sizes.client_ring_bytes", value: ring.to_string(), allowed: "powers of two from 4096 on" });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_good_and_mistakes_are_named() {
        assert_eq!(KvConfig::default().check(), Ok(()));
        let bad = KvConfig { limits: Limits { max_bulk_bytes: 1 << 30, ..Limits::default() }, ..KvConfig::default() };
        assert_eq!(bad.check().unwrap_err().to_string(), "limits.max_bulk_bytes is 1073741824; allowed: 1 KiB to 512 MiB");
        let bad = KvConfig { sizes: Sizes { client_ring_bytes: 5000, ..Sizes::default() }, ..KvConfig::default() };
        assert!(bad.check().unwrap_err().to_string().starts_with("sizes.client_ring_bytes is 5000; allowed: powers of two"));
    }
}
