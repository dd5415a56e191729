//! A node's disk: what the node's lives have written to it, and what of that is left when the power goes or a process ends.
//!
//! As in a real node, what is handed over while a sync is under way waits for the next sync, which makes all of it stable at once. When the power goes,
//! whatever is not stable is lost, except for the frame that is being written: that one may be there as a whole or not at all, since half a frame does not
//! count.

use std::collections::BTreeMap;

use fastrand::Rng;
use martlet_fabric::Fabric;
use martlet_fabric::sim::Span;
use martlet_protocol::basics::{ProcessId, RETURN_BITS};
use martlet_protocol::founding::life_to_come_back_as;
use martlet_protocol::replica::journal::SnapshotStep;

use crate::cluster::engine::Engine;
use crate::cluster::node::machine::Machine;

/// Properties of the disks in a life.
#[derive(Clone, Copy, Debug)]
pub struct Disks {
    /// How long a sync takes, in nanoseconds.
    pub sync: Span,
    /// When a log has grown by this many bytes, another snapshot begins.
    pub segment_bytes: usize,
    /// Roughly how many bytes of the state go into a snapshot in one turn.
    pub part_bytes: usize,
    /// The time from a loss of power to a node's next start, in nanoseconds,
    pub dark: Span,
    /// and how many nodes in 8 take ten times as long.
    pub late: u8,
}

/// A snapshot, and the journal since its base.
#[derive(Clone, Debug, Default)]
pub struct Stored {
    /// The state.
    pub parts: Vec<Vec<u8>>,
    /// What ends the snapshot.
    pub last: Vec<u8>,
    journal: Vec<(u64, Vec<u8>)>,
}

impl Stored {
    /// The whole journal.
    pub fn journal(&self) -> Vec<u8> {
        self.journal.iter().flat_map(|(_, bytes)| bytes.iter().copied()).collect()
    }
}

/// What one life has left on the disk.
#[derive(Clone, Debug, Default)]
struct Log {
    /// The newest complete snapshot.
    whole: Option<Stored>,
    /// The snapshot that is being written.
    next: Option<Stored>,
    /// The last number with which a process has come back as this life.
    returns: u64,
}

/// The life that is writing.
#[derive(Clone, Copy, Debug, Default)]
struct Writer {
    life: u64,
    /// The last ticket handed over, and the last stable one.
    ticket: u64,
    stable: u64,
    /// The sync that is under way: what it makes stable, and when.
    sync: Option<(u64, u64)>,
    /// The ticket at which the snapshot being written is complete.
    finished: Option<u64>,
    /// The ticket after which the logs of other lives are removed.
    settled: Option<u64>,
    /// Bytes since the last snapshot began.
    since: usize,
}

/// How a life's writing ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Everything handed over is written first.
    Clean,
    /// By a signal, or when the power goes.
    Sudden,
}

/// A disk.
#[derive(Debug)]
pub struct Disk {
    chance: Rng,
    like: Disks,
    lives: BTreeMap<u64, Log>,
    writer: Option<Writer>,
}

impl Disk {
    /// An empty disk.
    pub fn new(chance: Rng, like: Disks) -> Disk {
        Disk { chance, like, lives: BTreeMap::new(), writer: None }
    }

    /// The lives that a process could come back as, oldest first.
    pub fn lives(&self) -> Vec<u64> {
        self.lives.iter().filter(|(_, log)| log.whole.is_some()).map(|(life, _)| *life).collect()
    }

    /// As which life a process comes back, and with what; `None` when there is nothing. `known_as`: the life that the others have named.
    pub fn origin<E: Engine>(&self, node: ProcessId, config: &E::Config, known_as: Option<u64>) -> Option<(ProcessId, &Stored)> {
        let born = |life: u64| ProcessId { incarnation: martlet_fabric::Incarnation(life), ..node };
        let whole = |life: u64| self.lives[&life].whole.as_ref();
        let belongs = |life: u64| {
            let stored = whole(life).expect("it can be come back as");
            E::belonged(born(life), config, &stored.last, &stored.journal())
        };
        let life = known_as.or(life_to_come_back_as(&self.lives(), belongs).expect("what it has written"))?;
        Some((born(life + self.lives[&life].returns + 1), whole(life)?))
    }

    /// That process begins to write: as one that has come back, or as one with nothing.
    pub fn begin(&mut self, me: ProcessId) {
        let life = me.birth().incarnation.0;
        let log = self.lives.entry(life).or_default();
        log.returns = me.incarnation.0 & ((1 << RETURN_BITS) - 1);
        let since = log.whole.iter().flat_map(|stored| &stored.journal).map(|(_, bytes)| bytes.len()).sum();
        self.writer = Some(Writer { life, since, ..Writer::default() });
    }

    /// Before a turn: tells the engine what has become stable.
    pub fn before_turn<E: Engine>(&mut self, now: u64, engine: &mut E) {
        let Some(writer) = &mut self.writer else { return };
        if let Some((covers, _)) = writer.sync.filter(|(_, done)| *done <= now) {
            (writer.stable, writer.sync) = (covers, None);
            engine.handle_stable(covers);
            if writer.finished.is_some_and(|at| at <= covers) {
                writer.finished = None;
                let log = self.lives.get_mut(&writer.life).expect("it writes");
                log.whole = log.next.take();
                engine.handle_snapshot_stable();
            }
            if writer.settled.is_some_and(|at| at <= covers) {
                let life = writer.life;
                self.lives.retain(|other, _| *other == life);
            }
        }
        self.sync(now);
    }

    fn sync(&mut self, now: u64) {
        let Some(writer) = &mut self.writer else { return };
        if writer.sync.is_none() && writer.ticket > writer.stable {
            let Span(least, most) = self.like.sync;
            writer.sync = Some((writer.ticket, now + self.chance.u64(least..=most.max(least))));
        }
    }

    /// After a turn: takes over what the turn has produced, and continues a snapshot.
    pub fn after_turn<E: Engine, F: Fabric>(&mut self, now: u64, engine: &mut E, machine: &Machine, fabric: &F, is_member: bool) {
        self.take(engine);
        let Some(writer) = &mut self.writer else { return };
        let log = self.lives.get_mut(&writer.life).expect("it writes");
        if log.next.is_none() {
            let due = engine.lacks_snapshot() || writer.since >= self.like.segment_bytes;
            if due && engine.is_complete() && engine.begin_snapshot(fabric) {
                (log.next, writer.finished, writer.since) = (Some(Stored::default()), None, 0);
                self.take(engine);
            }
        } else if writer.finished.is_none() {
            let mut out = Vec::new();
            let step = engine.snapshot_step(machine, self.like.part_bytes, &mut out);
            let next = log.next.as_mut().expect("just seen");
            match step {
                SnapshotStep::Part => next.parts.push(out),
                SnapshotStep::Wait => {}
                SnapshotStep::Whole => {
                    // The end of a snapshot is a frame of its own.
                    writer.ticket += 1;
                    (next.last, writer.finished) = (out, Some(writer.ticket));
                }
                SnapshotStep::Void | SnapshotStep::TooLong(_) => log.next = None,
            }
        }
        if let Some(writer) = &mut self.writer
            && writer.settled.is_none()
            && is_member
            && engine.is_settled()
        {
            writer.ticket += 1;
            writer.settled = Some(writer.ticket);
        }
        self.sync(now);
    }

    fn take<E: Engine>(&mut self, engine: &mut E) {
        let bytes = engine.journal();
        let Some(writer) = self.writer.as_mut().filter(|_| !bytes.is_empty()) else { return };
        writer.ticket += 1;
        writer.since += bytes.len();
        let log = self.lives.get_mut(&writer.life).expect("it writes");
        for stored in [&mut log.whole, &mut log.next].into_iter().flatten() {
            stored.journal.push((writer.ticket, bytes.to_vec()));
        }
        engine.note_taken(writer.ticket);
    }

    /// When it will next have something to report.
    pub fn deadline(&self) -> u64 {
        self.writer.and_then(|writer| writer.sync).map_or(u64::MAX, |(_, done)| done)
    }

    /// The life that is writing ends. What is stable is left, and perhaps the frame that was being written.
    pub fn end(&mut self, how: End) {
        let Some(writer) = self.writer.take() else { return };
        let cut = match (how, writer.sync) {
            (End::Clean, _) => writer.ticket,
            (End::Sudden, Some((covers, _))) if self.chance.bool() => covers,
            (End::Sudden, _) => writer.stable,
        };
        // The work that follows a frame may have been done too.
        let done = |at: Option<u64>, chance: &mut Rng| at.is_some_and(|at| at <= writer.stable || (at <= cut && chance.bool()));
        let log = self.lives.get_mut(&writer.life).expect("it writes");
        let next = log.next.take();
        if done(writer.finished, &mut self.chance) {
            log.whole = next;
        }
        if let Some(stored) = &mut log.whole {
            stored.journal.retain(|(ticket, _)| *ticket <= cut);
            // The entries left are stable, whichever tickets the next life hands out.
            stored.journal.iter_mut().for_each(|(ticket, _)| *ticket = 0);
        }
        if done(writer.settled, &mut self.chance) {
            self.lives.retain(|life, _| *life == writer.life);
        }
    }
}
