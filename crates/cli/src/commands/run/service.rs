//! What the replicas of a server are to each other: a cluster, whose nodes this command does not start.

use martlet_cluster::directory::{Directory, Lock};
use martlet_cluster::fail::{Context as _, Outcome};
use martlet_node::config::{ClusterConfig, DetectorConfig, ElectionConfig, EngineKind, Key, NodeEntry};
use martlet_protocol::basics::layout::MAX_MEMBERS;
use martlet_protocol::replica::Execution;

/// The engine that is asked for, or else the first that can.
pub fn engine(asked: Option<EngineKind>) -> EngineKind {
    asked.unwrap_or_else(|| EngineKind::first_with(|traits| traits.executes_on_commit))
}

/// The cluster. A replica that stands still is taken for gone only after seconds: on a busy host it may have no processor for that long, and a death is seen by the kernel's word
/// anyhow. One that leads stays the leader, since a replica that has led can't follow.
pub fn config(name: &str, engine: EngineKind) -> Outcome<ClusterConfig> {
    let nodes = (0..MAX_MEMBERS as u16).map(NodeEntry::new).collect();
    let mut config = ClusterConfig::new(format!("run-{name}"), nodes);
    config.key = Some(Key::generate().context("cannot draw a key")?.to_hex().into());
    config.engine = engine;
    config.execution = Execution::Committed;
    // A death ends a lease at once. The lease of a replica that stands still is waited for behind those seconds, so that it may last; and each renewal wakes a replica that has nothing to do.
    config.lease_us = 100_000;
    config.election = Some(ElectionConfig { heartbeat_us: 20_000, cap: 250, failure: 1, recovery: 2, leader_stays: true });
    config.detector.broadcast_timeout_us = 10_000_000;
    if !engine.traits().commits_by_majority() {
        // Views say who leads, and who counts, and are as patient. A monitor that is late by half the time between two of its looks begins anew. With many short looks it would do so
        // again and again on a busy host, and never take a stopped replica for dead; so looks are few and long. By silence several that have stopped are noticed at once, where
        // hearts are looked at one after the other.
        let (heartbeat_us, cap, failure, recovery) = (500_000, 11, 1, 2);
        config.detector = DetectorConfig { heartbeat_us, cap, failure, recovery, broadcast_timeout_us: 5_000_000, ..config.detector };
    }
    Ok(config)
}

/// A directory by which `martlet status` and `martlet top` find the replicas. It is emptied when this goes, and removed with those above it that were made for it.
#[derive(Debug)]
pub struct Shown {
    directory: Directory,
    _lock: Lock,
}

impl Shown {
    /// Writes it.
    pub fn write(path: &std::path::Path, config: &ClusterConfig, server: &str) -> Outcome<Shown> {
        let directory = Directory::new(path);
        let lock = directory.make()?;
        if let Err(fail) = directory.create_run(config, server) {
            // What is in a directory that was there before may be another one's.
            if lock.is_new() {
                let _ = directory.purge();
            }
            return Err(fail);
        }
        Ok(Shown { directory, _lock: lock })
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        // What is left shows a service that does not run, and is replaced by the next.
        let _ = self.directory.purge();
    }
}

/// The words of a command, as they can be typed into a shell.
pub fn as_typed(words: &[String]) -> String {
    let is_plain = |word: &str| !word.is_empty() && word.chars().all(|c| c.is_alphanumeric() || "%+,-./:=@_".contains(c));
    let typed = words.iter().map(|word| if is_plain(word) { word.clone() } else { format!("'{}'", word.replace('\'', r"'\''")) });
    typed.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use martlet_cluster::directory::engine_of_a_server;
    use martlet_node::config::Cluster;

    use super::*;

    #[test]
    fn a_command_is_shown_as_it_can_be_typed() {
        let words = ["redis-server", "--save", "", "--dir", "/var/lib/a b", "--requirepass", "it's $1"].map(str::to_owned);
        assert_eq!(super::as_typed(&words), r"redis-server --save '' --dir '/var/lib/a b' --requirepass 'it'\''s $1'");
    }

    #[test]
    fn a_server_is_replicated_by_engines_that_can_and_others_are_refused_with_those() {
        for engine in EngineKind::ALL {
            match service_of(engine) {
                Ok(config) => assert!(config.engine == engine && config.execution == Execution::Committed, "{engine}"),
                Err(why) => assert_eq!(
                    why, "its leader executes what is not committed yet; allowed for a server are mu, dare, apus, hsuc, huc",
                    "{engine}"
                ),
            }
        }
        assert_eq!(engine(None), EngineKind::Mu);
        let unknown = engine_of_a_server("foo").expect_err("there is none");
        assert_eq!(
            unknown, "there is no engine \"foo\"; allowed for a server are mu, dare, apus, hsuc, huc",
            "only those that are not refused then"
        );
    }

    #[test]
    fn stopped_replicas_are_taken_for_dead_after_five_seconds_by_views_too_also_where_their_monitor_is_late_by_a_tenth_of_a_second() {
        for engine in EngineKind::ALL {
            let Ok(config) = service_of(engine) else { continue };
            let DetectorConfig { heartbeat_us, cap, failure, broadcast_timeout_us, .. } = config.detector;
            if !engine.traits().commits_by_majority() {
                assert_eq!(heartbeat_us * u64::from(cap - failure), 5_000_000, "{engine}");
                assert_eq!(broadcast_timeout_us, 5_000_000, "{engine}");
                assert!(heartbeat_us / 2 > 100_000, "{engine}: what makes a monitor begin anew");
            }
            let ElectionConfig { heartbeat_us, cap, failure, .. } = config.election.expect("every service has one");
            assert!((4_900_000..=5_000_000).contains(&(heartbeat_us * u64::from(cap - failure))), "{engine}");
        }
    }

    /// The cluster, as a node reads it.
    fn service_of(asked: EngineKind) -> Result<ClusterConfig, String> {
        let config = config("test", engine_of_a_server(asked.name())?).map_err(|fail| fail.to_string())?;
        Cluster::new(config.clone()).map_err(|error| error.to_string())?;
        Ok(config)
    }
}
