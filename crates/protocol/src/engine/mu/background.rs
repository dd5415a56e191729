//! The background plane (Mu section 5.1): who lives, whether our own heart may beat, and so who leads.

use martlet_fabric::pulse::beat;
use martlet_fabric::{Fabric, LocalRegion, PeerId, Region, Remote};

use crate::basics::{Mark, ProcessId, Time};
use crate::replica::watch::{self, Counter, Heard};

use super::layout::{Op, Status, WORDS, words};
use super::{Event, Mu};
use crate::replica::patience::discounted;

/// What is known of the life of one peer, and what it says that it is.
pub(super) type Watch = watch::Watch<Status>;

/// It asks for the permission, as only those do who hold the state and know that they belong: what it said that it is may be as old as the last
/// heartbeat. Whether it was presumed dead since its heart stood still, and is not for that: whoever wants to lead goes on.
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
        let gap = self.schedule.gap(now);
        if gap > self.config.stall_ns {
            // Whatever seemed to stand still may have been ourselves.
            self.hand_over.discount(gap, now);
            self.roster.discount(gap, now);
            self.overrun_since = self.overrun_since.map(|since| discounted(since, gap, now));
            self.peers.iter_mut().for_each(|peer| peer.watch.discount(gap, now));
        }
        let (waiting, committed, stopped) = (self.is_inside_propose(), self.log.committed().index, self.heart.stopped);
        if self.heart.tick(now, self.config.heartbeat_interval_ns, self.config.fate_beats, waiting, committed)
            && let Some(own) = fabric.memory(LocalRegion::Public(WORDS))
        {
            beat(&own[words::HEARTBEAT]);
        }
        if self.heart.stopped && !stopped {
            Mark::MuHeartStopped.reach();
        }
        if self.schedule.is_reading_due(now, self.config.heartbeat_interval_ns) {
            self.read_counters(now, fabric);
        }
        let steady = self.reign.as_ref().is_some_and(|r| r.is_leading());
        // A leader has better things to do in each turn; what it misses by waiting are followers that count for nothing.
        let gap = if steady { self.config.heartbeat_interval_ns } else { self.config.death_interval_ns };
        if self.schedule.is_look_due(now, gap) {
            self.look_for_death(fabric);
        }
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
                    let number = |at| Remote { peer: peer.id, region: Region::Public(WORDS), offset: at * 8 };
                    fabric.read_word(number(words::HEARTBEAT), Op::Heartbeat.token(0, peer.id));
                    fabric.read_word(number(words::STATUS), Op::Status.token(0, peer.id));
                }
            }
        }
    }

    fn look_for_death<F: Fabric>(&mut self, fabric: &mut F) {
        let watcher = usize::from(self.me.node.0);
        for peer in &mut self.peers {
            let id = peer.id;
            peer.watch.look_for_death(id, watcher, fabric, Op::Threads.token(0, id), |thread| Op::Death.token(thread as u64, id));
        }
    }

    /// Takes what has been read of a peer's signs of life.
    pub(super) fn handle_sign(&mut self, op: Op, round: u64, peer: PeerId, result: Result<u64, martlet_fabric::OpError>) {
        let Some(at) = self.peers.iter().position(|p| p.id == peer) else { return };
        let watch = &mut self.peers[at].watch;
        let Ok(value) = result else {
            // The connection itself timed out (Mu section 5.1, the longer timeout).
            self.note_death(at, false);
            return;
        };
        match op {
            Op::Heartbeat => match watch.note_counter(value) {
                Heard::Still => self.presume(at),
                Heard::Back => {
                    Mark::MuRecovered.reach();
                    let process = self.peers[at].process;
                    self.events.push_back(Event::Recovered(process));
                }
                Heard::Nothing => {}
            },
            Op::Status => watch.status = Some(Status::of(value)),
            Op::Threads if watch.note_threads(value) => self.note_death(at, true),
            Op::Death => watch.note_death_word(round as usize, value),
            _ => {}
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

    /// Somebody is about to be taken for gone. If that is the leader, nothing of what this process has tried before says how this will go: whoever has been in
    /// its leader's way waits for long until it tries again, and would now.
    fn begin_contest(&mut self, at: usize) {
        if self.leader() == Some(self.peers[at].process) {
            (self.failures, self.retry) = (0, Time(0));
        }
    }

    /// A connection can be lost while both processes live, and then they meet anew as soon as they reach each other. Meanwhile the peer counts for nothing,
    /// but keeps its place in the group for as long as one can hope.
    pub(super) fn mind_lost(&mut self, now: Time) {
        let Mu { me, config, peers, roster, .. } = self;
        for peer in peers.iter_mut().filter(|p| p.watch.dead) {
            if peer.watch.patience.try_on(now, config.patience_ns()) {
                Mark::MuGivenUp.reach();
            }
        }
        roster.mind_unmet(now, config.patience_ns(), Mark::MuGivenUp, |id| id == *me || peers.iter().any(|p| p.process == id));
    }

    /// A peer is gone, for good if that is `certain`; or its connection is.
    pub(super) fn note_death(&mut self, at: usize, certain: bool) {
        if certain {
            self.peers[at].watch.patience.end();
        }
        if self.peers[at].watch.dead {
            return;
        }
        self.begin_contest(at);
        let peer = &mut self.peers[at];
        peer.watch.dead = true;
        Mark::MuDead.reach();
        let (id, process) = (peer.id, peer.process);
        self.suspects_anew = true;
        self.events.push_back(Event::Suspected { process, certain });
        if let Some(reign) = &mut self.reign {
            // Its memory may still take what is written, and counts for nothing (TRAPS 20).
            reign.lose(id);
        }
    }

    /// Whom this process takes to be the leader: whom leadership was handed to, or else the lowest id among those that it considers to be alive (Mu section
    /// 5.1). A member joins or leaves for this purpose when the change is committed; one that lacks the state cannot lead.
    pub fn leader(&self) -> Option<ProcessId> {
        let (_, group) = self.log.committed_group()?;
        let mut ranked = group.first().into_iter().chain(group.members().iter().copied());
        ranked.find(|id| self.could_lead(*id)).or_else(|| self.leader_in_force())
    }

    /// Nobody is left of the group that is known to be committed. The changes behind it may be committed all the same, and who would have told of it is gone:
    /// so whoever belongs to the group in force may lead, unless somebody does, who will tell (docs/mu.md).
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
            return self.log.is_complete() && !self.heart.stopped;
        }
        self.seen_alive(id).is_some_and(|status| !matches!(status, Some(Status::Incomplete | Status::Taught | Status::Unkept)))
    }

    /// What another process was last seen to be, if anything, while it is taken to be alive.
    pub(super) fn seen_alive(&self, id: ProcessId) -> Option<Option<Status>> {
        // The latest connection: an earlier one is lost, or of a life that has come back from its disk since.
        let peer = self.peers.iter().rev().find(|p| p.process == id)?;
        peer.watch.is_alive().then_some(peer.watch.status)
    }
}
