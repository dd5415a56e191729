//! The engines that a node can run, and what each engine, and membership, takes from the cluster's configuration.

use martlet_fabric::RegionSpec;
use martlet_protocol::basics::ProcessId;
use martlet_protocol::basics::layout::{self, Sizes};
use martlet_protocol::detector::heartbeat::Thresholds;
use martlet_protocol::engine::view_log::{self, Holds, Rule, ViewLog};
use martlet_protocol::engine::{Apus, Dare, Durable, Engine as _, Mu, apus, dare, mu};
use martlet_protocol::membership::{self, ClockBounds, Roles};
use martlet_protocol::replica::{Durability, Settings};
use martlet_protocol::with_engine;

use crate::config::Cluster;
use crate::version;

/// An engine that can be configured from a cluster's file.
pub(crate) trait NodeEngine: Durable {
    /// Its settings, for rings of these sizes. `secret` is random, and no process outside the cluster knows it.
    fn config(cluster: &Cluster, sizes: Sizes, secret: u64) -> Self::Config;

    /// The same settings for an engine that writes nothing: a rehearsal's stage has no disk.
    fn without_disk(config: Self::Config) -> Self::Config {
        config
    }
}

impl<R: Rule> NodeEngine for ViewLog<R> {
    fn config(cluster: &Cluster, sizes: Sizes, secret: u64) -> view_log::Config {
        let config = cluster.config();
        // One host has one clock, and a failover there waits for no lane. It waits for none either if replicas have to acknowledge: then no clock matters.
        let fences_departed = R::HOLDS == Holds::Written && config.fabric.traits().spans_hosts;
        let execution = config.execution;
        view_log::Config { log_ring_bytes: sizes.log_ring_bytes, fences_departed, execution, secret, ..view_log::Config::default() }
    }
}

/// What engines that have a log and choose their own leader share.
fn shared(cluster: &Cluster, sizes: Sizes) -> Settings {
    let config = cluster.config();
    let election = cluster.election();
    let (beat_ns, timeout_ns) = (election.heartbeat_us * 1_000, config.detector.broadcast_timeout_us * 1_000);
    Settings {
        log_ring_bytes: sizes.log_ring_bytes,
        // What can be proposed has to fit here too.
        state_ring_bytes: sizes.log_ring_bytes,
        execution: config.execution,
        heartbeat_interval_ns: beat_ns,
        thresholds: Thresholds { cap: election.cap, failure: election.failure, recovery: election.recovery },
        // A leader that makes no progress for as long as a silence may last does not consider itself alive.
        fate_beats: u32::try_from(timeout_ns / (beat_ns / 2)).unwrap_or(u32::MAX).max(1),
        silence_ns: timeout_ns,
        // A node wakes up for its own heartbeat four times as often as this, so a node that is later than this was kept from running. Twice as often would not
        // be enough: an idle virtual machine may take half a beat to wake up, and a node that takes every one of its looks for a stall never sees anything.
        stall_ns: 2 * beat_ns,
        // If a death word proves little, and a look at it is a request, there is no use in asking all the time.
        death_interval_ns: if config.fabric.traits().certain_deaths { 0 } else { beat_ns },
        teach_patience_ns: timeout_ns,
        ..Settings::default()
    }
}

impl NodeEngine for Mu {
    fn config(cluster: &Cluster, sizes: Sizes, secret: u64) -> mu::Config {
        mu::Config {
            shared: shared(cluster, sizes),
            secret,
            durability: cluster.config().durability.mode.meaning(),
            leader_stays: cluster.election().leader_stays,
            ..mu::Config::default()
        }
    }

    fn without_disk(config: mu::Config) -> mu::Config {
        mu::Config { durability: Durability::Memory, ..config }
    }
}

/// For how long a candidate waits for votes, and how much later a candidate stands for each one that is preferred to it, in nanoseconds. A vote takes a wake-up
/// or two of each voter, and a candidate that waits for less gets in its own way.
fn election(shared: &Settings, usual: (u64, u64)) -> (u64, u64) {
    let beat_ns = shared.heartbeat_interval_ns;
    ((4 * beat_ns).max(usual.0), beat_ns.max(usual.1))
}

impl NodeEngine for Dare {
    fn config(cluster: &Cluster, sizes: Sizes, _: u64) -> dare::Config {
        let (shared, usual) = (shared(cluster, sizes), dare::Config::default());
        let (election_ns, rank_ns) = election(&shared, (usual.election_ns, usual.rank_ns));
        let group = &cluster.config().group;
        // No longer than stated, whatever the leader's clock does within its bounds.
        let clocks = ClockBounds { drift_ppm: cluster.config().clock_drift_ppm(), ..ClockBounds::default() };
        let zombies_ns = clocks.shortened(group.zombies_us * 1_000);
        dare::Config { shared, election_ns, rank_ns, places: group.places.into(), zombies_ns }
    }
}

impl NodeEngine for Apus {
    fn config(cluster: &Cluster, sizes: Sizes, secret: u64) -> apus::Config {
        let (shared, usual) = (shared(cluster, sizes), apus::Config::default());
        let (election_ns, rank_ns) = election(&shared, (usual.election_ns, usual.rank_ns));
        apus::Config { shared, secret, durability: cluster.config().durability.mode.meaning(), election_ns, rank_ns }
    }

    fn without_disk(config: apus::Config) -> apus::Config {
        apus::Config { durability: Durability::Memory, ..config }
    }
}

/// What a process of this cluster offers to the others, with rings of these sizes.
pub(crate) fn regions(cluster: &Cluster, sizes: Sizes) -> RegionSpec {
    let mut spec = layout::regions(sizes);
    if cluster.config().durability.writes() {
        spec.own([(layout::RETURNED, layout::returned::WORDS * 8)]);
    }
    with_engine!(cluster.config().engine, E => E::add_regions(&mut spec, &E::config(cluster, sizes, 0)));
    spec
}

/// How a process takes part in this cluster's membership.
pub(crate) fn membership(cluster: &Cluster, me: ProcessId, roles: Roles, clocks: ClockBounds) -> membership::Config {
    let detector = &cluster.config().detector;
    // Both serve for notices that were lost, and wake a node that has nothing to do: as often as its lease does.
    let again_ns = (cluster.lease_ns() / 2).clamp(5_000_000, 25_000_000);
    membership::Config {
        lease_ns: cluster.lease_ns(),
        pull_interval_ns: again_ns,
        resend_interval_ns: again_ns,
        clocks,
        authority: cluster.config().engine.traits().authority(),
        levels: version::protocol().levels,
        heartbeat_interval_ns: detector.heartbeat_us * 1_000,
        death_interval_ns: if cluster.config().fabric.traits().answers_in_turns { detector.heartbeat_us * 1_000 } else { 0 },
        thresholds: Thresholds { cap: detector.cap, failure: detector.failure, recovery: detector.recovery },
        broadcast_interval_ns: detector.broadcast_us * 1_000,
        broadcast_timeout_ns: detector.broadcast_timeout_us * 1_000,
        ..membership::Config::new(me, roles)
    }
}

#[cfg(test)]
mod tests {
    use martlet_fabric::{Incarnation, NodeId};

    use super::*;
    use crate::config::{ClusterConfig, Key, NodeEntry};

    #[test]
    fn a_node_with_nothing_to_do_looks_for_lost_notices_no_more_often_than_it_renews_its_lease() {
        for (lease_us, again_ns) in [(1_000, 5_000_000), (10_000, 5_000_000), (30_000, 15_000_000), (1_000_000, 25_000_000)] {
            let mut config = ClusterConfig::new("idle", vec![NodeEntry::new(0)]);
            config.key = Some(Key::generate().expect("random numbers").to_hex().into());
            config.lease_us = lease_us;
            let me = ProcessId { node: NodeId(0), incarnation: Incarnation(1) };
            let of = membership(&Cluster::new(config).expect("a valid configuration"), me, Roles::default(), ClockBounds::default());
            assert_eq!((of.pull_interval_ns, of.resend_interval_ns), (again_ns, again_ns), "{lease_us} us");
        }
    }
}
