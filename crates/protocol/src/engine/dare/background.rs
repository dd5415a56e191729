//! Signs of life (DARE section 4.2.2): whether others live, and whether our own heart may beat.
//!
//! The paper's leader writes heartbeats into the others' memory. Here each server reads a counter in the others' memory instead, so that a heartbeat that was
//! written once does not count for ever, and a delay of the network is not taken for silence. [`BEAT`](super::layout::control::BEAT) says whose counter
//! matters.

use martlet_fabric::{Fabric, OpError, PeerId};

use super::layout::{Op, Status, WORDS, words};
use super::leading::Reign;
use super::peers::watches;
use super::{Dare, Ending};
use crate::basics::{Mark, Time};
use crate::replica::signs::{Layout, News};

/// Where the signs of life are, and how they are read.
pub(super) static SIGNS: Layout = Layout {
    words: WORDS,
    heartbeat: words::HEARTBEAT,
    status: words::STATUS,
    reads_heartbeat: Op::Heartbeat as u8,
    reads_status: Op::Status as u8,
    reads_threads: Op::Threads as u8,
    reads_death: Op::Death as u8,
    stopped: Mark::DareHeartStopped,
    recovered: Mark::DareRecovered,
    given_up: Mark::DareGivenUp,
};

impl Dare {
    /// Beats, reads the others' counters, and looks for certain death.
    pub(super) fn tick<F: Fabric>(&mut self, now: Time, fabric: &mut F) {
        if let Some(gap) = self.signs.stall(now, &self.config) {
            self.roster.discount(gap, now);
            self.hand_over.discount(gap, now);
            self.election.discount(gap, now);
            self.peers.iter_mut().for_each(|peer| peer.watch.discount(gap, now));
            self.reading.iter_mut().for_each(|reading| reading.learning.discount(gap, now));
        }
        let waiting = self.reign.as_ref().is_some_and(Reign::is_waiting);
        if self.signs.beat(now, &self.config, waiting, self.log.committed().index, fabric) {
            // It makes no progress as leader; another server might.
            self.end_reign(Ending::Stuck, fabric);
        }
        if self.signs.read_counters(now, &self.config, watches(&mut self.peers), fabric) {
            for at in 0..self.peers.len() {
                if self.peers[at].watch.is_silent(now, self.config.silence_ns) {
                    self.presume(at);
                }
            }
        }
        let leads = self.is_leading();
        self.signs.look_for_death(now, &self.config, leads, watches(&mut self.peers), fabric);
        self.signs.give_up_lost(now, &self.config, watches(&mut self.peers));
        let Dare { me, config, peers, roster, .. } = self;
        roster.mind_unmet(now, config.patience_ns(), Mark::DareGivenUp, |id| id == *me || peers.iter().any(|p| p.process == id));
    }

    /// Takes what has been read of a peer's signs of life.
    pub(super) fn handle_sign(&mut self, op: Op, round: u64, peer: PeerId, result: Result<u64, OpError>) {
        let Some(at) = self.peers.iter().position(|p| p.id == peer) else { return };
        match self.signs.take(op as u8, round, result, &mut self.peers[at].watch, Status::of) {
            Some(News::Still) => self.presume(at),
            Some(News::Unreachable) => self.note_death(at, false),
            Some(News::Dead) => self.note_death(at, true),
            Some(News::Back) | None => {}
        }
    }

    fn presume(&mut self, at: usize) {
        if self.peers[at].watch.presume() {
            Mark::DarePresumed.reach();
            self.suspects_anew = true;
        }
    }

    /// A peer is gone, for good if that is `certain`; otherwise perhaps only its connection.
    pub(super) fn note_death(&mut self, at: usize, certain: bool) {
        let peer = &mut self.peers[at];
        let (id, was_dead) = (peer.id, peer.watch.dead);
        self.suspects_anew |= peer.watch.note_end(certain);
        if was_dead {
            return;
        }
        Mark::DareDead.reach();
        if let Some(reign) = &mut self.reign {
            if certain {
                reign.note_death(id, self.now, self.config.zombies_ns);
            } else {
                reign.lose(id);
            }
        }
    }
}
