//! What a node writes while it runs. The node's thread copies what it hands over, and never waits for the disk.

use std::sync::Arc;

use martlet_fabric::Fabric;
use martlet_protocol::basics::{ProcessId, Time};
use martlet_protocol::duty::{Host, Member};
use martlet_protocol::engine::REST_NS;
use martlet_protocol::replica::journal::SnapshotStep;
use martlet_protocol::replica::{MAX_PART_BYTES, StateMachine};

use super::{DiskError, Store};
use crate::counters::{Counter, Counters};
use crate::engine::NodeEngine;
use crate::wal::{Directory, Log, Pace, Recovered, Snapshot, Wal, WalError, disk::SystemDisk};

/// About so many bytes of the state are taken in one turn.
const PART_BYTES: usize = 64 << 10;
/// No further part is taken while so many are on their way to the disk.
const PARTS_UNDER_WAY: u64 = 16;

/// How far a snapshot has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// No snapshot is on its way.
    None,
    /// Parts of so many bytes in all have been handed over.
    Parts(u64),
    /// All of it has been handed over; it is not stable yet.
    Whole(u64),
}

/// The writing side of one life's log.
#[derive(Debug)]
pub(crate) struct Keeper {
    wal: Wal,
    life: u64,
    directory: Arc<Directory>,
    segment_bytes: u64,
    max_pending_bytes: u64,
    /// How far the engine has been told that the log is stable.
    told: u64,
    snapshot: Progress,
    /// How many snapshots were stable at the last look, and the bytes of the last one.
    snapshots: u64,
    snapshot_bytes: u64,
    /// How many bytes of the log there are since the last snapshot began.
    since: u64,
    /// When the last snapshot was abandoned because a part of the state was too long, if it was. For [`REST_NS`] after that, the next snapshot is begun only
    /// when the log's length requires it.
    sprawled: Option<Time>,
    /// The logs of other lives have been removed.
    settled: bool,
    part: Vec<u8>,
}

impl Keeper {
    /// The log of a life that begins with nothing.
    pub fn begin(store: &Store, me: ProcessId, bell: Box<dyn Fn() + Send>) -> Result<Keeper, DiskError> {
        let log = store.directory.begin(Store::life_of(me), store.generation)?;
        Keeper::start(store, me, log, bell)
    }

    /// What a life has left, for the process that returns as it.
    pub fn recover(store: &Store, me: ProcessId, bell: Box<dyn Fn() + Send>) -> Result<(Recovered, Keeper), DiskError> {
        let life = Store::life_of(me);
        let (recovered, log) = store.recover(life)?;
        let mut keeper = Keeper::start(store, me, log, bell)?;
        // What this start had to read counts: otherwise a node that keeps losing power would have more to read each time.
        keeper.since = recovered.frames.iter().map(|frame| frame.len() as u64).sum();
        keeper.snapshot_bytes = recovered.snapshot.as_ref().map_or(0, Snapshot::bytes);
        Ok((recovered, keeper))
    }

    fn start(store: &Store, me: ProcessId, log: Log<SystemDisk>, bell: Box<dyn Fn() + Send>) -> Result<Keeper, DiskError> {
        let life = Store::life_of(me);
        let wal = Wal::start(log, &store.directory.life_path(life), Pace::new(store.snapshot_bytes_per_s), bell)?;
        Ok(Keeper {
            wal,
            life,
            directory: Arc::clone(&store.directory),
            segment_bytes: store.segment_bytes,
            max_pending_bytes: store.max_pending_bytes,
            told: 0,
            snapshot: Progress::None,
            snapshots: 0,
            snapshot_bytes: 0,
            since: 0,
            sprawled: None,
            settled: false,
            part: Vec::with_capacity(2 * PART_BYTES),
        })
    }

    /// Before a turn: tells the engine what has become stable. Returns whether there was news.
    pub fn before_turn<F: Fabric, E: NodeEngine, S>(&mut self, host: &mut Host<F, E, S>) -> bool {
        let Host { engine, congested, .. } = host;
        *congested = self.wal.unstable_bytes() >= self.max_pending_bytes;
        engine.hold_back(*congested);
        let (stable, snapshots) = (self.wal.stable(), self.wal.snapshots());
        let news = stable > self.told || snapshots > self.snapshots;
        if stable > self.told {
            self.told = stable;
            engine.handle_stable(stable);
        }
        if snapshots > self.snapshots {
            self.snapshots = snapshots;
            if let Progress::Whole(bytes) = std::mem::replace(&mut self.snapshot, Progress::None) {
                self.snapshot_bytes = bytes;
            }
            engine.handle_snapshot_stable();
        }
        news
    }

    /// After a turn: hands over what the turn has produced, and continues a snapshot. Returns whether there is more to do.
    pub fn after_turn<F: Fabric, E: NodeEngine, S: StateMachine>(&mut self, host: &mut Host<F, E, S>, counters: &mut Counters) -> bool {
        let Host { engine, machine, member: Member { fabric, core, now, .. }, .. } = host;
        self.take(engine);
        let moved = match self.snapshot {
            Progress::None => self.begin_snapshot(*now, engine, fabric),
            Progress::Parts(bytes) => self.step(*now, bytes, engine, machine),
            Progress::Whole(_) => false,
        };
        // Its own log alone does not tell a node that it still belongs to the group: the others may count a newer life of it.
        if !self.settled && core.is_member() && engine.is_settled() {
            self.settled = true;
            let (directory, life) = (Arc::clone(&self.directory), self.life);
            self.wal.run(move || directory.keep_only(life));
        }
        self.count(engine, counters);
        // A node that has not handed over everything must not sleep.
        moved | !self.wal.hand_over()
    }

    fn take<E: NodeEngine>(&mut self, engine: &mut E) {
        let bytes = engine.journal();
        if !bytes.is_empty() {
            self.since += bytes.len() as u64;
            let ticket = self.wal.append(bytes);
            engine.note_taken(ticket);
        }
    }

    fn begin_snapshot<F: Fabric, E: NodeEngine>(&mut self, now: Time, engine: &mut E, fabric: &F) -> bool {
        // A large state is not written again for a few commands.
        let rests = self.sprawled.is_some_and(|since| now.since(since) <= REST_NS);
        let due = (engine.lacks_snapshot() && !rests) || self.since >= self.segment_bytes.max(self.snapshot_bytes);
        if !due || !engine.is_complete() {
            return false;
        }
        self.wal.begin_snapshot();
        if !engine.begin_snapshot(fabric) {
            self.wal.abandon_snapshot();
            return false;
        }
        (self.snapshot, self.since) = (Progress::Parts(0), 0);
        self.take(engine);
        true
    }

    fn step<E: NodeEngine, S: StateMachine>(&mut self, now: Time, bytes: u64, engine: &mut E, machine: &S) -> bool {
        // The disk's thread rings when it has written a part.
        if self.wal.unwritten_parts() >= PARTS_UNDER_WAY {
            return false;
        }
        self.part.clear();
        let step = engine.snapshot_step(machine, PART_BYTES, &mut self.part);
        let bytes = bytes + self.part.len() as u64;
        match step {
            SnapshotStep::Part => {
                self.wal.add_part(&mut self.part);
                self.snapshot = Progress::Parts(bytes);
            }
            SnapshotStep::Wait => return false,
            SnapshotStep::Whole => {
                self.wal.finish_snapshot(self.part.clone());
                (self.snapshot, self.sprawled) = (Progress::Whole(bytes), None);
            }
            SnapshotStep::TooLong(bytes) => {
                tracing::error!(
                    bytes,
                    "cannot write a snapshot: one part of the state, such as a key with its value, is longer than {MAX_PART_BYTES} bytes. The log is kept instead"
                );
                self.wal.abandon_snapshot();
                (self.snapshot, self.sprawled) = (Progress::None, Some(now));
            }
            SnapshotStep::Void => {
                self.wal.abandon_snapshot();
                self.snapshot = Progress::None;
            }
        }
        true
    }

    /// Whether something waits for the disk.
    pub fn is_waiting(&self) -> bool {
        self.told < self.wal.appends()
    }

    /// Writes what has been handed over, and ends.
    ///
    /// # Errors
    /// When the disk has failed, and that has not been reported yet.
    pub fn close(self) -> Result<(), WalError> {
        self.wal.close()
    }

    /// Why the disk has failed, if it has. Nothing becomes stable after that.
    pub fn failure(&mut self) -> Option<WalError> {
        if self.wal.has_failed() { self.wal.take_error() } else { None }
    }

    /// Counts the state of the log and the snapshots.
    fn count<E: NodeEngine>(&self, engine: &E, counters: &mut Counters) {
        counters.set(Counter::DiskPendingBytes, self.wal.unstable_bytes());
        counters.set(Counter::DiskSyncs, self.wal.syncs());
        counters.set(Counter::DiskSnapshots, self.snapshots);
        counters.set(Counter::StableIndex, engine.stable().map_or(0, |index| index.0));
    }
}
