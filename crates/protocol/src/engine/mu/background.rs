//! The background plane (Mu section 5.1): which processes live, whether our own heart may beat, and so which process leads.

use martlet_fabric::{Fabric, OpError, PeerId};

use crate::basics::{Mark, ProcessId, Time};
use crate::replica::signs::{Layout, News};
use crate::replica::watch;

use super::layout::{Op, Status, WORDS, words};
use super::peers::{Peer, watches};
use super::{Event, Mu};
use crate::replica::patience::discounted;

/// Where the signs of life are, and how they are read.
pub(super) static SIGNS: Layout = Layout {
    words: WORDS,
    heartbeat: words::HEARTBEAT,
    status: words::STATUS,
    reads_heartbeat: Op::Heartbeat as u8,
    reads_status: Op::Status as u8,
    reads_threads: Op::Threads as u8,
    reads_death: Op::Death as u8,
    stopped: Mark::MuHeartStopped,
    recovered: Mark::MuRecovered,
    given_up: Mark::MuGivenUp,
};

/// What is known about one peer being alive, and its published status.
pub(super) type Watch = watch::Watch<Status>;

/// The peer asks for permission. Only processes that hold the state and know that they belong to the group do so, and its published status may be as old as the
/// last heartbeat. Returns whether it was presumed dead because its heart stood still; that is taken back, because a process that wants to lead is running.
pub(super) fn hear(watch: &mut Watch) -> bool {
    if matches!(watch.status, None | Some(Status::Incomplete | Status::Taught | Status::Unkept)) {
        watch.status = Some(Status::Follower);
    }
    let back = watch.take_back();
    if back {
        Mark::MuRecovered.reach();
    }
    back
}

impl Mu {
    /// Beats, reads the others' counters, and looks for certain death.
    pub(super) fn tick<F: Fabric>(&mut self, now: Time, fabric: &mut F) {
        if let Some(gap) = self.signs.stall(now, &self.config) {
            self.hand_over.discount(gap, now);
            self.roster.discount(gap, now);
            self.overrun_since = self.overrun_since.map(|since| discounted(since, gap, now));
            self.peers.iter_mut().for_each(|peer| peer.watch.discount(gap, now));
            self.learning.iter_mut().for_each(|learning| learning.discount(gap, now));
        }
        let waiting = self.is_inside_propose();
        self.signs.beat(now, &self.config, waiting, self.log.committed().index, fabric);
        if self.signs.read_counters(now, &self.config, watches(&mut self.peers), fabric) {
            for at in 0..self.peers.len() {
                if self.peers[at].watch.is_silent(now, self.config.silence_ns) {
                    self.presume(at);
                }
            }
        }
        let leads = self.is_leading();
        self.signs.look_for_death(now, &self.config, leads, watches(&mut self.peers), fabric);
    }

    /// Takes what has been read of a peer's signs of life.
    pub(super) fn handle_sign(&mut self, op: Op, round: u64, peer: PeerId, result: Result<u64, OpError>) {
        let Some(at) = self.peers.iter().position(|p| p.id == peer) else { return };
        match self.signs.take(op as u8, round, result, &mut self.peers[at].watch, Status::of) {
            Some(News::Still) => self.presume(at),
            Some(News::Back) => self.events.push_back(Event::Recovered(self.peers[at].process)),
            Some(News::Unreachable) => self.note_death(at, false),
            Some(News::Dead) => self.note_death(at, true),
            None => {}
        }
    }

    fn presume(&mut self, at: usize) {
        if self.peers[at].watch.is_presumed() {
            return;
        }
        self.begin_contest(at);
        self.peers[at].watch.presume();
        Mark::MuPresumed.reach();
        self.suspects_anew = true;
        self.events.push_back(Event::Suspected { process: self.peers[at].process, certain: false });
    }

    /// A peer is about to be taken for gone. If it is the leader, this process's earlier failed attempts are forgotten: a process that has been in its leader's
    /// way waits long before it tries again, and should not wait now.
    fn begin_contest(&mut self, at: usize) {
        if self.leader() == Some(self.peers[at].process) {
            (self.failures, self.retry) = (0, Time(0));
        }
    }

    /// Gives up those that have been out of reach for too long.
    pub(super) fn mind_lost(&mut self, now: Time) {
        self.signs.give_up_lost(now, &self.config, watches(&mut self.peers));
        let Mu { me, config, peers, roster, .. } = self;
        roster.mind_unmet(now, config.patience_ns(), Mark::MuGivenUp, |id| id == *me || peers.iter().any(|p| p.process == id));
    }

    /// The peer is gone, for good if that is `certain`; otherwise perhaps only its connection.
    pub(super) fn note_death(&mut self, at: usize, certain: bool) {
        let Peer { id, process, watch, .. } = &self.peers[at];
        let (id, process, was_dead) = (*id, *process, watch.dead);
        if !was_dead {
            self.begin_contest(at);
        }
        self.peers[at].watch.note_end(certain);
        if was_dead {
            return;
        }
        Mark::MuDead.reach();
        self.suspects_anew = true;
        self.events.push_back(Event::Suspected { process, certain });
        if let Some(reign) = &mut self.reign {
            // Its memory may still accept writes, but they do not count (TRAPS 20).
            reign.lose(id);
        }
    }

    /// The process that this one takes for the leader: the one to which leadership was handed, or else the one with the lowest id among those that it considers
    /// alive (Mu section 5.1). For this purpose a member joins or leaves when the change is committed. A member that lacks the state cannot lead.
    pub fn leader(&self) -> Option<ProcessId> {
        let (_, group) = self.log.committed_group()?;
        let mut ranked = group.first().into_iter().chain(group.members().iter().copied());
        ranked.find(|id| self.could_lead(*id)).or_else(|| self.leader_in_force())
    }

    /// The leader when no member is left of the group that is known to be committed. Later changes may be committed all the same, and the processes that could
    /// have said so are gone. So a member of the group in force may lead, unless some process already leads; that one will tell (docs/mu.md).
    fn leader_in_force(&self) -> Option<ProcessId> {
        let group = self.log.group().filter(|_| self.log.is_group_changing())?;
        if self.peers.iter().any(|p| p.watch.is_alive() && p.watch.status == Some(Status::Leader)) {
            return None;
        }
        group.members().iter().copied().find(|id| self.could_lead(*id))
    }

    /// Whether a process is taken to be alive, and to hold the state.
    pub(super) fn could_lead(&self, id: ProcessId) -> bool {
        if id == self.me {
            return self.log.is_complete() && !self.signs.has_stopped();
        }
        self.seen_alive(id).is_some_and(|status| !matches!(status, Some(Status::Incomplete | Status::Taught | Status::Unkept)))
    }

    /// The last seen status, if any, of another process that is taken to be alive; `None` if it is not.
    pub(super) fn seen_alive(&self, id: ProcessId) -> Option<Option<Status>> {
        // The latest connection: an earlier one is lost, or belongs to a life that has since recovered from its disk.
        let peer = self.peers.iter().rev().find(|p| p.process == id)?;
        peer.watch.is_alive().then_some(peer.watch.status)
    }
}
