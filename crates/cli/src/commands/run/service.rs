//! What the replicas of a server are to each other: a cluster, whose nodes this command does not start.

use martlet_cluster::directory::{Directory, Lock};
use martlet_cluster::fail::{Context as _, Outcome};
use martlet_node::config::{ClusterConfig, ElectionConfig, EngineKind, Key, NodeEntry};
use martlet_protocol::basics::layout::MAX_MEMBERS;
use martlet_protocol::replica::Execution;

/// The cluster. A replica that stands still is taken for gone only after seconds: a server may take that long over one request, and a death is seen by the kernel's word
/// anyhow. One that leads stays the leader, since a replica that has led can't follow.
pub fn config(name: &str) -> Outcome<ClusterConfig> {
    let nodes = (0..MAX_MEMBERS as u16).map(NodeEntry::new).collect();
    let mut config = ClusterConfig::new(format!("run-{name}"), nodes);
    config.key = Some(Key::generate().context("cannot draw a key")?.to_hex().into());
    config.engine =
        EngineKind::ALL.into_iter().find(|engine| engine.traits().executes_on_commit).expect("an engine that executes on commit");
    config.execution = Execution::Committed;
    config.election = Some(ElectionConfig { heartbeat_us: 20_000, cap: 250, failure: 1, recovery: 2, leader_stays: true });
    config.detector.broadcast_timeout_us = 10_000_000;
    Ok(config)
}

/// A directory by which `martlet status` and `martlet top` find the replicas. It is emptied when this goes.
#[derive(Debug)]
pub struct Shown {
    directory: Directory,
    _lock: Lock,
}

impl Shown {
    /// Writes it.
    pub fn write(path: &std::path::Path, config: &ClusterConfig, server: &str) -> Outcome<Shown> {
        std::fs::create_dir_all(path).context(format_args!("cannot make {}", path.display()))?;
        let directory = Directory::new(path);
        let lock = directory.lock()?;
        directory.create_run(config, server)?;
        Ok(Shown { directory, _lock: lock })
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        // What is left shows a service that does not run, and is replaced by the next.
        let _ = self.directory.purge();
    }
}
