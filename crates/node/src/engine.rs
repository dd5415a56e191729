//! The engines that a node can run, and what each of them, and membership, takes from the cluster's configuration.

use martlet_fabric::{Fabric, RegionSpec};
use martlet_protocol::basics::layout::{self, Sizes};
use martlet_protocol::basics::{LogIndex, ProcessId};
use martlet_protocol::detector::heartbeat::Thresholds;
use martlet_protocol::engine::mu::{RecoverError, SnapshotStep};
use martlet_protocol::engine::{Engine, Mu, PrimaryBackup, mu, primary_backup};
use martlet_protocol::founding::Returned;
use martlet_protocol::membership::{self, Authority, ClockBounds, Roles};
use martlet_protocol::replica::StateMachine;

use crate::wal::Snapshot;

use crate::config::{Cluster, ElectionConfig, EngineKind, FabricKind};

/// An engine that can be configured from a cluster's file.
pub(crate) trait NodeEngine: Engine {
    /// Its settings, for rings of these sizes. `secret` is chance of which nobody outside the cluster knows.
    fn config(cluster: &Cluster, sizes: Sizes, secret: u64) -> Self::Config;

    // What goes to a disk (`docs/durability.md`). An engine without a journal writes nothing and comes back with nothing.

    /// The same settings for an engine that writes nothing: on a stage there is no disk.
    fn without_disk(config: Self::Config) -> Self::Config {
        config
    }

    /// What has to be written and has not been taken.
    fn journal(&self) -> &[u8] {
        &[]
    }

    /// That has been taken as a whole.
    fn note_taken(&mut self, _ticket: u64) {}

    /// What was taken with tickets up to this one is stable.
    fn handle_stable(&mut self, _ticket: u64) {}

    /// Whether too much waits for the disk.
    fn hold_back(&mut self, _holds: bool) {}

    /// Up to which entry the log is stable here, with a state that it goes on from.
    fn stable(&self) -> Option<LogIndex> {
        None
    }

    /// Whether a snapshot is wanted, since what is on disk can't be come back with.
    fn lacks_snapshot(&self) -> bool {
        false
    }

    /// Begins a snapshot. `false`: there is no whole state.
    fn begin_snapshot<F: Fabric>(&mut self, _fabric: &F) -> bool {
        false
    }

    /// The next part of the snapshot, or its last words.
    fn snapshot_step<S: StateMachine>(&mut self, _machine: &S, _budget: usize, _out: &mut Vec<u8>) -> SnapshotStep {
        SnapshotStep::Void
    }

    /// The last snapshot is stable.
    fn handle_snapshot_stable(&mut self) {}

    /// Whether its own disk says that it belongs to the group, so that what its node had there before counts no more.
    fn is_settled(&self) -> bool {
        false
    }

    /// What it has come back with, for whoever founds the cluster again.
    fn returned(&self) -> Option<Returned> {
        None
    }

    /// Whether what the process `me` has written down says that it belongs to its group.
    ///
    /// # Errors
    /// When something else was written there.
    fn belonged(_me: ProcessId, _config: Self::Config, _snapshot: &Snapshot, _journal: &[u8]) -> Result<bool, RecoverError> {
        Ok(false)
    }

    /// The engine of the process `me` as what was written down says. `None`: engines of this kind write nothing down.
    ///
    /// # Errors
    /// When something else was written there.
    fn recover<F: Fabric, S: StateMachine>(
        _me: ProcessId,
        _config: Self::Config,
        _snapshot: &Snapshot,
        _journal: &[u8],
        _fabric: &F,
        _machine: &mut S,
    ) -> Result<Option<Self>, RecoverError> {
        Ok(None)
    }
}

impl NodeEngine for PrimaryBackup {
    fn config(_: &Cluster, sizes: Sizes, secret: u64) -> primary_backup::Config {
        primary_backup::Config { log_ring_bytes: sizes.log_ring_bytes, secret, ..primary_backup::Config::default() }
    }
}

impl NodeEngine for Mu {
    fn config(cluster: &Cluster, sizes: Sizes, secret: u64) -> mu::Config {
        let config = cluster.config();
        let election = config.election.clone().unwrap_or_else(|| ElectionConfig::of(&config.detector));
        let (beat_ns, timeout_ns) = (election.heartbeat_us * 1_000, config.detector.broadcast_timeout_us * 1_000);
        let log_ring_bytes = sizes.log_ring_bytes;
        mu::Config {
            log_ring_bytes,
            // What can be proposed has to fit here too.
            state_ring_bytes: log_ring_bytes,
            secret,
            execution: mu::Execution::Speculative,
            durability: config.durability.mode.of_engine(),
            heartbeat_interval_ns: beat_ns,
            thresholds: Thresholds { cap: election.cap, failure: election.failure, recovery: election.recovery },
            // A leader that gets nowhere for as long as a silence may last does not take itself for alive.
            fate_beats: u32::try_from(timeout_ns / (beat_ns / 2)).unwrap_or(u32::MAX).max(1),
            silence_ns: timeout_ns,
            // It wakes up for its own heart, twice as often: whoever is later than this was kept from running.
            stall_ns: beat_ns,
            // Over RDMA a look at a death word is a READ, and proves little (module `backend`): it is no use to ask all the time.
            death_interval_ns: if cluster.config().fabric == FabricKind::Verbs { beat_ns } else { 0 },
            teach_patience_ns: timeout_ns,
            ..mu::Config::default()
        }
    }

    fn without_disk(config: mu::Config) -> mu::Config {
        mu::Config { durability: mu::Durability::Memory, ..config }
    }

    fn journal(&self) -> &[u8] {
        self.journal()
    }

    fn note_taken(&mut self, ticket: u64) {
        self.note_taken(ticket);
    }

    fn handle_stable(&mut self, ticket: u64) {
        self.handle_stable(ticket);
    }

    fn hold_back(&mut self, holds: bool) {
        self.hold_back(holds);
    }

    fn stable(&self) -> Option<LogIndex> {
        self.stable()
    }

    fn lacks_snapshot(&self) -> bool {
        self.lacks_snapshot()
    }

    fn begin_snapshot<F: Fabric>(&mut self, fabric: &F) -> bool {
        self.begin_snapshot(fabric)
    }

    fn snapshot_step<S: StateMachine>(&mut self, machine: &S, budget: usize, out: &mut Vec<u8>) -> SnapshotStep {
        self.snapshot_step(machine, budget, out)
    }

    fn handle_snapshot_stable(&mut self) {
        self.handle_snapshot_stable();
    }

    fn is_settled(&self) -> bool {
        self.is_settled()
    }

    fn returned(&self) -> Option<Returned> {
        let group = self.group()?;
        Some(Returned { ballot: self.ballot(), last: self.last(), view: group.view(), members: group.members().to_vec() })
    }

    fn belonged(me: ProcessId, config: mu::Config, snapshot: &Snapshot, journal: &[u8]) -> Result<bool, RecoverError> {
        Mu::belonged(me, &config, &snapshot.last, journal)
    }

    fn recover<F: Fabric, S: StateMachine>(
        me: ProcessId,
        config: mu::Config,
        snapshot: &Snapshot,
        journal: &[u8],
        fabric: &F,
        machine: &mut S,
    ) -> Result<Option<Mu>, RecoverError> {
        Mu::recover(me, config, &snapshot.parts, &snapshot.last, journal, fabric, machine).map(Some)
    }
}

/// What a process of this cluster offers to the others, with rings of these sizes.
pub(crate) fn regions(cluster: &Cluster, sizes: Sizes) -> RegionSpec {
    let mut spec = layout::regions(sizes);
    if cluster.config().durability.writes() {
        spec.public.push((layout::RETURNED, layout::returned::WORDS * 8));
    }
    match cluster.config().engine {
        EngineKind::PrimaryBackup => PrimaryBackup::add_regions(&mut spec, &PrimaryBackup::config(cluster, sizes, 0)),
        EngineKind::Mu => Mu::add_regions(&mut spec, &Mu::config(cluster, sizes, 0)),
    }
    spec
}

/// How a process takes part in this cluster's membership.
pub(crate) fn membership(cluster: &Cluster, me: ProcessId, roles: Roles, clocks: ClockBounds, authority: Authority) -> membership::Config {
    let detector = &cluster.config().detector;
    membership::Config {
        lease_ns: cluster.lease_ns(),
        clocks,
        authority,
        heartbeat_interval_ns: detector.heartbeat_us * 1_000,
        thresholds: Thresholds { cap: detector.cap, failure: detector.failure, recovery: detector.recovery },
        broadcast_interval_ns: detector.broadcast_us * 1_000,
        broadcast_timeout_ns: detector.broadcast_timeout_us * 1_000,
        ..membership::Config::new(me, roles)
    }
}
