//! The background plane (Mu section 5.1): who lives, whether our own heart may beat, and so who leads.

use martlet_fabric::pulse::beat;
use martlet_fabric::{Fabric, LocalRegion, PeerId, Region, Remote};

use crate::basics::layout::{LIFE, MAX_ACTING_THREADS, life};
use crate::basics::{LogIndex, Mark, ProcessId, Time};
use crate::detector::certain::{self, Sign};
use crate::detector::heartbeat::Score;
use crate::detector::stall::StallMeter;

use super::config::Config;
use super::layout::{Op, Status, WORDS, words};
use super::{Event, Mu};
use crate::replica::patience::{Patience, discounted};

/// What is known of the life of one peer.
#[derive(Debug)]
pub(super) struct Watch {
    score: Score,
    /// Its score fell below the failure threshold and has not recovered.
    presumed: bool,
    /// Its kernel says that it is gone, or it cannot be reached over this connection any more.
    pub dead: bool,
    /// With one who is dead: until it will not come back as the process that it is, for certain or since too much time has gone by without another connection.
    pub patience: Patience,
    /// Since when its counter is being read.
    reading: Option<Time>,
    threads: usize,
    words: [u64; MAX_ACTING_THREADS],
    asked: u8,
    /// What it says that it is; `None` until it was first read.
    pub status: Option<Status>,
}

impl Watch {
    pub fn new(config: &Config) -> Watch {
        Watch {
            score: Score::new(config.thresholds),
            presumed: false,
            dead: false,
            patience: Patience::default(),
            reading: None,
            threads: 0,
            words: [life::TID_MASK; MAX_ACTING_THREADS],
            asked: 0,
            status: None,
        }
    }

    /// It asks for the permission, as only those do who hold the state and know that they belong: what it said that it is may be as old as the last
    /// heartbeat. Whether it was presumed dead since its heart stood still, and is not for that: whoever wants to lead goes on.
    pub fn hear(&mut self) -> bool {
        if matches!(self.status, None | Some(Status::Incomplete | Status::Taught | Status::Unkept)) {
            self.status = Some(Status::Follower);
        }
        let back = self.presumed && self.score.is_failed();
        if back {
            self.score.take_back();
            self.presumed = false;
            Mark::MuRecovered.reach();
        }
        back
    }

    /// Whether it is taken to be alive.
    pub fn is_alive(&self) -> bool {
        !self.dead && !self.presumed
    }
}

/// Our own heart. It stops when the replication plane makes no progress (fate sharing).
#[derive(Debug)]
pub(super) struct Heart {
    next: Time,
    beats: u32,
    /// What was committed at the last check.
    checked: LogIndex,
    /// The replication plane was found stuck.
    pub stopped: bool,
}

impl Heart {
    pub fn new() -> Heart {
        Heart { next: Time(0), beats: 0, checked: LogIndex(0), stopped: false }
    }

    /// Beats if it is due. `waiting` says whether the replication plane is inside a call to propose, `committed` how far it has come: every
    /// `every` beats that is checked. Returns whether it beats.
    fn tick(&mut self, now: Time, interval_ns: u64, every: u32, waiting: bool, committed: LogIndex) -> bool {
        if now < self.next {
            return false;
        }
        self.next = now.after(interval_ns / 2);
        if !waiting || committed != self.checked {
            (self.stopped, self.beats, self.checked) = (false, 0, committed);
        } else {
            self.beats = self.beats.saturating_add(1);
            if self.beats >= every && !self.stopped {
                Mark::MuHeartStopped.reach();
                self.stopped = true;
            }
        }
        !self.stopped
    }
}

/// When the background plane has to do something next.
#[derive(Debug)]
pub(super) struct Schedule {
    pub stall: StallMeter,
    read: Time,
    look: Time,
}

impl Schedule {
    pub fn new() -> Schedule {
        Schedule { stall: StallMeter::new(Time(0)), read: Time(0), look: Time(0) }
    }

    /// The earliest moment at which there is something to do.
    pub fn next(&self, heart: &Heart) -> Time {
        self.read.min(heart.next)
    }
}

fn word(peer: PeerId, index: usize) -> Remote {
    Remote { peer, region: Region::Public(LIFE), offset: index * 8 }
}

impl Mu {
    /// Beats, reads the others' counters, and looks for certain death.
    pub(super) fn tick<F: Fabric>(&mut self, now: Time, fabric: &mut F) {
        let gap = self.schedule.stall.tick(now);
        if gap > self.config.stall_ns {
            // Whatever seemed to stand still may have been ourselves.
            self.hand_over.discount(gap, now);
            self.roster.discount(gap, now);
            self.overrun_since = self.overrun_since.map(|since| discounted(since, gap, now));
            for peer in &mut self.peers {
                peer.watch.score.forget_last();
                // Discounted, not begun anew: who is stalled every now and then would wait for ever.
                peer.watch.reading = peer.watch.reading.map(|since| discounted(since, gap, now));
                peer.watch.patience.discount(gap, now);
            }
        }
        let (waiting, committed) = (self.is_inside_propose(), self.log.committed().index);
        if self.heart.tick(now, self.config.heartbeat_interval_ns, self.config.fate_beats, waiting, committed)
            && let Some(own) = fabric.memory(LocalRegion::Public(WORDS))
        {
            beat(&own[words::HEARTBEAT]);
        }
        if now >= self.schedule.read {
            self.schedule.read = now.after(self.config.heartbeat_interval_ns);
            self.read_counters(now, fabric);
        }
        let steady = self.reign.as_ref().is_some_and(|r| r.is_leading());
        if now >= self.schedule.look {
            // A leader has better things to do in each turn; what it misses by waiting are followers that count for nothing.
            let gap = if steady { self.config.heartbeat_interval_ns } else { self.config.death_interval_ns };
            self.schedule.look = now.after(gap);
            self.look_for_death(fabric);
        }
    }

    fn read_counters<F: Fabric>(&mut self, now: Time, fabric: &mut F) {
        for at in 0..self.peers.len() {
            let peer = &mut self.peers[at];
            if peer.watch.dead {
                continue;
            }
            match peer.watch.reading {
                Some(since) if now.since(since) > self.config.silence_ns => self.presume(at),
                Some(_) => {}
                None => {
                    peer.watch.reading = Some(now);
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
            if peer.watch.threads == 0 && !peer.watch.dead && peer.watch.asked == 0 {
                peer.watch.asked = u8::MAX;
                fabric.read_word(word(peer.id, life::THREADS), Op::Threads.token(0, peer.id));
            }
            for thread in 0..peer.watch.threads {
                if !peer.watch.dead && peer.watch.asked & 1 << thread == 0 {
                    peer.watch.asked |= 1 << thread;
                    fabric.read_word(word(peer.id, life::death(thread, watcher)), Op::Death.token(thread as u64, peer.id));
                }
            }
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
            Op::Heartbeat => {
                watch.reading = None;
                if watch.score.observe(value) {
                    self.presume(at);
                } else if watch.presumed {
                    watch.presumed = false;
                    Mark::MuRecovered.reach();
                    let process = self.peers[at].process;
                    self.events.push_back(Event::Recovered(process));
                }
            }
            Op::Status => watch.status = Some(Status::of(value)),
            // A peer's word: what it can't be is taken as the nearest that it can.
            Op::Threads => (watch.threads, watch.asked) = ((value as usize).min(MAX_ACTING_THREADS), 0),
            Op::Death => {
                let thread = round as usize % MAX_ACTING_THREADS;
                watch.asked &= !(1 << thread);
                watch.words[thread] = value;
                if thread < watch.threads && certain::judge(&watch.words[..watch.threads]) != Sign::Alive {
                    self.note_death(at, true);
                }
            }
            _ => {}
        }
    }

    fn presume(&mut self, at: usize) {
        if self.peers[at].watch.presumed {
            return;
        }
        self.begin_contest(at);
        self.peers[at].watch.presumed = true;
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
        roster.mind_unmet(now, config, |id| id == *me || peers.iter().any(|p| p.process == id));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mu_5_1_fate_sharing_the_heart_stops_when_replication_is_stuck_inside_propose() {
        let mut heart = Heart::new();
        let mut now = Time(0);
        let mut beat = |heart: &mut Heart, waiting, committed| {
            now = now.after(50);
            heart.tick(now, 100, 3, waiting, LogIndex(committed))
        };
        assert!(beat(&mut heart, false, 7));
        assert!(beat(&mut heart, true, 7));
        assert!(beat(&mut heart, true, 7));
        assert!(!beat(&mut heart, true, 7), "three beats without progress");
        assert!(heart.stopped);
        assert!(beat(&mut heart, true, 8), "progress starts it again");
        assert!(!heart.stopped);
        for _ in 0..10 {
            assert!(beat(&mut heart, false, 8), "who has nothing to propose is not stuck");
        }
    }
}
