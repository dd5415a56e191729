//! Signs of life: whether others live, and whether our own heart may beat.
//!
//! The paper's leader writes heartbeats into the others' memory (APUS section 4.4). Here each process reads a counter in the others' instead, so that a heartbeat that was written
//! once does not count for ever, and delays of the network are no silence; and looks at their death words, which their kernel writes. Whose life matters is said by
//! [`REIGN`](super::layout::control::REIGN).

use martlet_fabric::pulse::beat;
use martlet_fabric::{Fabric, LocalRegion, OpError, PeerId, Region, Remote};

use super::layout::{Op, Status, WORDS, words};
use super::leading::Reign;
use super::{Apus, Ending};
use crate::basics::{Mark, Time};
use crate::replica::watch::{Counter, Heard};

impl Apus {
    /// Beats, reads the others' counters, and looks for certain death.
    pub(super) fn tick<F: Fabric>(&mut self, now: Time, fabric: &mut F) {
        let gap = self.schedule.gap(now);
        if gap > self.config.stall_ns {
            // Whatever seemed to stand still may have been ourselves.
            self.roster.discount(gap, now);
            self.hand_over.discount(gap, now);
            self.election.discount(gap, now);
            self.peers.iter_mut().for_each(|peer| peer.watch.discount(gap, now));
        }
        let waiting = self.reign.as_ref().is_some_and(Reign::is_waiting);
        let (committed, stopped) = (self.log.committed().index, self.heart.stopped);
        if self.heart.tick(now, self.config.heartbeat_interval_ns, self.config.fate_beats, waiting, committed)
            && let Some(own) = fabric.memory(LocalRegion::Public(WORDS))
        {
            beat(&own[words::HEARTBEAT]);
        }
        if self.heart.stopped && !stopped {
            Mark::ApusHeartStopped.reach();
            // It gets nowhere as leader: somebody else might.
            self.end_reign(Ending::Stuck, fabric);
        }
        if self.schedule.is_reading_due(now, self.config.heartbeat_interval_ns) {
            self.read_counters(now, fabric);
        }
        let gap = if self.is_leading() { self.config.heartbeat_interval_ns } else { self.config.death_interval_ns };
        if self.schedule.is_look_due(now, gap) {
            let watcher = usize::from(self.me.node.0);
            for peer in &mut self.peers {
                let id = peer.id;
                peer.watch.look_for_death(id, watcher, fabric, Op::Threads.token(0, id), |thread| Op::Death.token(thread as u64, id));
            }
        }
        for peer in self.peers.iter_mut().filter(|p| p.watch.dead) {
            if peer.watch.patience.try_on(now, self.config.patience_ns()) {
                Mark::ApusGivenUp.reach();
            }
        }
        let Apus { me, config, peers, roster, .. } = self;
        roster.mind_unmet(now, config.patience_ns(), Mark::ApusGivenUp, |id| id == *me || peers.iter().any(|p| p.process == id));
    }

    fn read_counters<F: Fabric>(&mut self, now: Time, fabric: &mut F) {
        for at in 0..self.peers.len() {
            let peer = &mut self.peers[at];
            if peer.watch.dead {
                continue;
            }
            match peer.watch.counter(now, self.config.silence_ns) {
                Counter::Silent => self.presume(at),
                Counter::UnderWay => {}
                Counter::Due => {
                    let word = |at| Remote { peer: peer.id, region: Region::Public(WORDS), offset: at * 8 };
                    fabric.read_word(word(words::HEARTBEAT), Op::Heartbeat.token(0, peer.id));
                    fabric.read_word(word(words::STATUS), Op::Status.token(0, peer.id));
                }
            }
        }
    }

    /// Takes what has been read of a peer's signs of life.
    pub(super) fn handle_sign(&mut self, op: Op, round: u64, peer: PeerId, result: Result<u64, OpError>) {
        let Some(at) = self.peers.iter().position(|p| p.id == peer) else { return };
        let watch = &mut self.peers[at].watch;
        let Ok(value) = result else {
            self.note_death(at, false);
            return;
        };
        match op {
            Op::Heartbeat => match watch.note_counter(value) {
                Heard::Still => self.presume(at),
                Heard::Back => Mark::ApusRecovered.reach(),
                Heard::Nothing => {}
            },
            Op::Status => watch.status = Some(Status::of(value)),
            Op::Threads if watch.note_threads(value) => self.note_death(at, true),
            Op::Death => watch.note_death_word(round as usize, value),
            _ => {}
        }
    }

    fn presume(&mut self, at: usize) {
        let watch = &mut self.peers[at].watch;
        if !watch.is_presumed() {
            Mark::ApusPresumed.reach();
            watch.presume();
            self.suspects_anew = true;
        }
    }

    /// A peer is gone, for good if that is `certain`; or its connection is.
    pub(super) fn note_death(&mut self, at: usize, certain: bool) {
        let peer = &mut self.peers[at];
        if certain {
            peer.watch.patience.end();
            self.suspects_anew |= !peer.certain;
            peer.certain = true;
        }
        if peer.watch.dead {
            return;
        }
        peer.watch.dead = true;
        Mark::ApusDead.reach();
        self.suspects_anew = true;
        let id = peer.id;
        if let Some(reign) = &mut self.reign {
            reign.lose(id);
        }
    }
}
