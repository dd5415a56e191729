//! Configurations for tests.

use martlet::config::{ClusterConfig, Key, NodeEntry};

/// A cluster of `count` nodes. Its detectors are patient: the processes that these tests end are known to be dead for certain, and a busy machine must not
/// cause further failovers.
pub fn config(name: &str, count: u16) -> ClusterConfig {
    let nodes = (0..count).map(NodeEntry::new).collect();
    let name = format!("embed-{name}-{}", std::process::id());
    let key = Key::generate().expect("randomness").to_hex();
    let mut config = ClusterConfig { key: Some(key.into()), ..ClusterConfig::new(name, nodes) };
    config.detector.heartbeat_us = 10_000_000;
    config.detector.broadcast_timeout_us = 600_000_000;
    config
}
