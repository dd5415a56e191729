//! What a node has written down, and what a loss of power leaves of it.

use fastrand::Rng;
use martlet_fabric::Fabric;

use super::machine::Machine;
use crate::engine::Durable;
use crate::replica::journal::SnapshotStep;

/// A snapshot, and the journal from its base on.
#[derive(Clone, Debug, Default)]
pub struct Stored {
    pub parts: Vec<Vec<u8>>,
    pub last: Vec<u8>,
    journal: Vec<(u64, Vec<u8>)>,
}

/// A disk that is slow, and reports late what is stable.
#[derive(Debug)]
pub struct Disk {
    rng: Rng,
    /// The newest whole snapshot.
    whole: Option<Stored>,
    next: Option<Stored>,
    /// As of which ticket the one on its way is whole.
    finished: Option<u64>,
    ticket: u64,
    stable: u64,
    pub snapshots: usize,
    /// Whether it is stuck: what is handed over never becomes stable.
    pub stuck: bool,
}

impl Disk {
    pub fn new(seed: u64, whole: Option<Stored>) -> Disk {
        let rng = Rng::with_seed(seed);
        Disk { rng, whole, next: None, finished: None, ticket: 0, stable: 0, snapshots: 0, stuck: false }
    }

    /// Whether there is something to recover.
    pub fn is_good(&self) -> bool {
        self.whole.is_some()
    }

    /// Whether all that was handed over is stable.
    pub fn is_idle(&self) -> bool {
        self.stable == self.ticket
    }

    /// What a recovering process would find if nothing were lost.
    pub fn stored(&self) -> Option<&Stored> {
        self.whole.as_ref()
    }

    /// Takes what the engine has to write down, makes progress with it, and reports what is stable.
    pub fn turn<E: Durable, F: Fabric>(&mut self, engine: &mut E, machine: &Machine, fabric: &F) {
        self.take(engine);
        if self.next.is_none() && (self.whole.is_none() || self.rng.u8(..) == 0) && engine.begin_snapshot(fabric) {
            (self.next, self.finished) = (Some(Stored::default()), None);
            self.take(engine);
        }
        if let Some(next) = self.next.as_mut().filter(|_| self.finished.is_none() && self.rng.u8(0..3) == 0) {
            let mut out = Vec::new();
            match engine.snapshot_step(machine, 200, &mut out) {
                SnapshotStep::Part => next.parts.push(out),
                SnapshotStep::Wait => {}
                SnapshotStep::Whole => (next.last, self.finished) = (out, Some(self.ticket)),
                SnapshotStep::Void | SnapshotStep::TooLong(_) => self.next = None,
            }
        }
        if self.rng.u8(0..4) == 0 && !self.stuck {
            self.stable = self.rng.u64(self.stable..=self.ticket);
            engine.handle_stable(self.stable);
            if self.finished.is_some_and(|at| at <= self.stable) {
                (self.whole, self.finished) = (self.next.take(), None);
                self.snapshots += 1;
                engine.handle_snapshot_stable();
            }
        }
    }

    fn take<E: Durable>(&mut self, engine: &mut E) {
        let bytes = engine.journal().to_vec();
        if bytes.is_empty() {
            return;
        }
        self.ticket += 1;
        engine.note_taken(self.ticket);
        for stored in [&mut self.whole, &mut self.next].into_iter().flatten() {
            stored.journal.push((self.ticket, bytes.clone()));
        }
    }

    /// What is left after a loss of power: everything stable, and perhaps some of what came next.
    pub fn lose_power(mut self) -> Option<Stored> {
        let cut = if self.stuck { self.stable } else { self.rng.u64(self.stable..=self.ticket) };
        if self.finished.is_some_and(|at| at <= cut) && self.rng.bool() {
            self.whole = self.next;
        }
        let mut left = self.whole?;
        left.journal.retain(|(ticket, _)| *ticket <= cut);
        // They are on disk now, whatever this process will call the next ones.
        left.journal.iter_mut().for_each(|(ticket, _)| *ticket = 0);
        Some(left)
    }
}

impl Stored {
    pub fn journal(&self) -> Vec<u8> {
        self.journal.iter().flat_map(|(_, bytes)| bytes.iter().copied()).collect()
    }
}
