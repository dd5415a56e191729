//! Clusters for tests in this process, and a machine to replicate.

use martlet::config::{Cluster, ClusterConfig, ElectionConfig, EngineKind, Execution, ThreadsConfig};
use martlet::{LogIndex, StateMachine, UnreadablePart};

use crate::config::config;

/// A cluster of `count` nodes. Its name distinguishes it from the clusters of other tests and engines.
pub fn cluster(name: &str, engine: EngineKind, count: u16) -> Cluster {
    cluster_that(name, Way { engine, execution: Execution::Speculative }, count)
}

/// The same, with a given way of replication.
pub fn cluster_that(name: &str, way: Way, count: u16) -> Cluster {
    let Way { engine, execution } = way;
    // Elections that soon learn which nodes are there, and are slow to take a node for dead.
    let election = ElectionConfig { heartbeat_us: 10_000, cap: 250, failure: 1, recovery: 2, leader_stays: false };
    let election = engine.traits().elects().then_some(election);
    let suffix = if execution == Execution::Committed { "-on-commit" } else { "" };
    let name = format!("{name}-{engine}{suffix}");
    Cluster::new(ClusterConfig { engine, execution, election, ..config(&name, count) }).expect("a good configuration")
}

/// How commands are replicated, and when a leader executes them.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    pub engine: EngineKind,
    pub execution: Execution,
}

/// Runs each of these tests in every way, as a test of its own.
macro_rules! in_every_way {
    ($($test:ident),+ $(,)?) => {
        in_every_way!(@ primary_backup, PrimaryBackup, Speculative: $($test),+);
        in_every_way!(@ mu, Mu, Speculative: $($test),+);
        in_every_way!(@ mu_on_commit, Mu, Committed: $($test),+);
        in_every_way!(@ dare, Dare, Committed: $($test),+);
        in_every_way!(@ apus, Apus, Speculative: $($test),+);
        in_every_way!(@ apus_on_commit, Apus, Committed: $($test),+);
        in_every_way!(@ hsuc, Hsuc, Speculative: $($test),+);
        in_every_way!(@ hsuc_on_commit, Hsuc, Committed: $($test),+);
        in_every_way!(@ huc, Huc, Committed: $($test),+);
    };
    (@ $name:ident, $engine:ident, $execution:ident: $($test:ident),+) => {
        mod $name {
            use martlet::config::{EngineKind, Execution};
            use crate::cluster::Way;
            $(#[test] fn $test() { super::$test(Way { engine: EngineKind::$engine, execution: Execution::$execution }); })+
        }
    };
}
pub(crate) use in_every_way;

/// Runs each of these tests with every engine, as a test of its own. `hsuc` and `huc` read by quorum as `primary-backup` does, and simulated lives cover them
/// all.
macro_rules! with_every_engine {
    ($($test:ident),+ $(,)?) => {
        mod primary_backup {
            $(#[test] fn $test() { super::$test(martlet::config::EngineKind::PrimaryBackup); })+
        }
        mod mu {
            $(#[test] fn $test() { super::$test(martlet::config::EngineKind::Mu); })+
        }
        mod dare {
            $(#[test] fn $test() { super::$test(martlet::config::EngineKind::Dare); })+
        }
        mod apus {
            $(#[test] fn $test() { super::$test(martlet::config::EngineKind::Apus); })+
        }
    };
}
pub(crate) use with_every_engine;

/// Thread settings for replicas that share this process and its cores with other tests.
pub fn threads() -> ThreadsConfig {
    ThreadsConfig { pin: martlet::config::Pin::None, ..ThreadsConfig::default() }
}

/// Appends each command, and replies with the length of the whole.
#[derive(Default)]
pub struct Text(pub Vec<u8>);

impl StateMachine for Text {
    fn apply(&mut self, _: LogIndex, command: &[u8], reply: &mut Vec<u8>) {
        assert_ne!(command, b"panic", "as it was told");
        self.0.extend_from_slice(command);
        reply.extend_from_slice(self.0.len().to_string().as_bytes());
    }
    fn query(&self, query: &[u8], reply: &mut Vec<u8>) {
        reply.extend_from_slice(query);
        reply.extend_from_slice(&self.0);
    }
    fn snapshot(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0);
    }
    fn restore(&mut self, snapshot: &[u8]) -> Result<(), UnreadablePart> {
        self.0 = snapshot.to_vec();
        Ok(())
    }
    fn clear(&mut self) {
        self.0.clear();
    }
}
