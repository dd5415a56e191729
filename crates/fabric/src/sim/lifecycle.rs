//! Processes start and end, connect, and lose each other.

use super::agenda::Due;
use super::faults::{Faults, Span, happens};
use super::link::Link;
use super::memory::Block;
use super::process::{DeathWords, Lane, Process, Slot, Target};
use super::state::State;
use crate::canary::Canary;
use crate::contract::{Identity, NodeId, PeerEvent, PeerId, PeerKind, Region, RegionName, RegionSpec};
use crate::invariant;
use crate::primitive::Ordering;

/// FUTEX_OWNER_DIED, FUTEX_WAITERS and FUTEX_TID_MASK. What the kernel does to a robust futex word is the kernel's contract, not ours.
const OWNER_DIED: u64 = 0x4000_0000;
const WAITERS: u64 = 0x8000_0000;
const TID_MASK: u64 = 0x3fff_ffff;

/// A connection on which nothing is posted is found to be dead after this many times the duration for which an operation is retried.
const KEEPALIVE: u64 = 20;

impl State {
    pub(super) fn spawn(&mut self, identity: Identity, spec: RegionSpec) -> u32 {
        invariant!(
            self.processes.iter().all(|p| p.identity != identity),
            "two processes are {identity:?}; a restarted one needs a new incarnation"
        );
        let process = self.processes.len() as u32;
        self.processes.push(Process::new(identity, spec));
        let slot = self.introduce(process, process);
        invariant!(slot == PeerId::SELF, "a process is its own first peer");
        for other in 0..process {
            let peer = &self.processes[other as usize];
            if peer.alive && !(peer.identity.kind == PeerKind::Client && identity.kind == PeerKind::Client) {
                let at = self.now + self.faults.connect.draw(&mut self.chance);
                self.agenda.enter(at, Due::Connect { one: other, other: process });
            }
        }
        self.trace.note(self.now, b'B', u64::from(process), u64::from(identity.node.0));
        process
    }

    pub(super) fn connect(&mut self, one: u32, other: u32) {
        if !self.processes[one as usize].alive || !self.processes[other as usize].alive {
            return;
        }
        if self.cut_off(one, other) || self.cut_off(other, one) {
            let again = self.now + self.faults.peer_lost_after_ns;
            self.agenda.enter(again, Due::Connect { one, other });
            return;
        }
        // There is no new connection before both ends have given up the earlier one. The end that does so last makes the new one.
        if self.holds(one, other) || self.holds(other, one) {
            return;
        }
        self.counts.reconnections += u64::from(self.processes[one as usize].peer_of(other).is_some());
        let numbers = [self.introduce(one, other), self.introduce(other, one)];
        for (of, number, back) in [(one, numbers[0], numbers[1]), (other, numbers[1], numbers[0])] {
            self.processes[of as usize].slots[number.0 as usize].back = back;
        }
        for (of, peer, writer) in [(one, other, numbers[0]), (other, one, numbers[1])] {
            let Identity { kind, node, .. } = self.processes[peer as usize].identity;
            let earlier = if Canary::ReusedLane.is_planted() { self.earlier_life(of, writer, node) } else { None };
            let owner = &mut self.processes[of as usize];
            let lanes = if kind == PeerKind::Member { &owner.spec.member_lanes } else { &owner.spec.client_lanes };
            for (name, bytes) in lanes {
                let reused =
                    owner.lanes.iter().find(|lane| Some(lane.writer) == earlier && lane.name == *name).map(|lane| lane.memory.clone());
                let memory = reused.filter(|memory| !memory.words().is_empty()).unwrap_or_else(|| Block::zeroed(*bytes));
                owner.lanes.push(Lane { writer, name: *name, memory, granted: true, epoch: 1 });
            }
        }
        self.map(one, numbers[0], other, numbers[1]);
        self.map(other, numbers[1], one, numbers[0]);
        for (of, peer, number) in [(one, other, numbers[0]), (other, one, numbers[1])] {
            let identity = self.processes[peer as usize].identity;
            self.processes[of as usize].events.push_back(PeerEvent::Up { peer: number, identity });
            self.trace.note(self.now, b'U', u64::from(of), u64::from(peer));
            self.wake(of);
        }
    }

    /// Whether a process has a connection to another that it has not given up.
    fn holds(&self, of: u32, peer: u32) -> bool {
        let process = &self.processes[of as usize];
        let slot = process.peer_of(peer).map(|number| &process.slots[number.0 as usize]);
        slot.is_some_and(|slot| !slot.gone && !slot.forgotten && !self.links[slot.link as usize].broken)
    }

    /// When the poster of a link has given it up, the other end gives it up too, as soon as it can be told. Then the two connect anew. On a host, a
    /// living process is given up only by a process that forgets it.
    pub(super) fn part(&mut self, link: u32) {
        let Link { from, to, peer, .. } = self.links[link as usize];
        if !self.processes[from as usize].alive || !self.processes[to as usize].alive {
            return; // of a death others tell
        }
        if self.cut_off(from, to) {
            let again = self.now + self.faults.peer_lost_after_ns;
            self.agenda.enter(again, Due::Part { link });
            return;
        }
        let back = self.processes[from as usize].slots[peer as usize].back;
        let slot = &self.processes[to as usize].slots[back.0 as usize];
        let theirs = slot.link;
        if !self.links[theirs as usize].broken {
            self.links[theirs as usize].broken = true;
            self.lose_posted(theirs);
        }
        self.report_gone(to, back, false);
        let at = self.now + self.faults.connect.draw(&mut self.chance);
        self.agenda.enter(at, Due::Connect { one: from.min(to), other: from.max(to) });
    }

    /// The number by which `of` knew the life of that node before the one that it now knows as `writer`: for a canary.
    fn earlier_life(&self, of: u32, writer: PeerId, node: NodeId) -> Option<PeerId> {
        let slots = &self.processes[of as usize].slots;
        let before = (1..writer.0 as usize).rev().find(|at| self.processes[slots[*at].process as usize].identity.node == node);
        before.map(|at| PeerId(at as u32))
    }

    /// Creates a number and a queue for `peer` at `of`.
    fn introduce(&mut self, of: u32, peer: u32) -> PeerId {
        let number = self.processes[of as usize].slots.len() as u32;
        let link = self.links.len() as u32;
        self.links.push(Link::new(of, peer, number));
        let is_member = self.processes[peer as usize].identity.kind == PeerKind::Member;
        let slot = Slot {
            process: peer,
            link,
            targets: Vec::new(),
            back: PeerId::SELF,
            is_member,
            newest_datagram: 0,
            gone: false,
            forgotten: false,
        };
        self.processes[of as usize].slots.push(slot);
        if of == peer {
            self.map(of, PeerId::SELF, of, PeerId::SELF);
        }
        PeerId(number)
    }

    /// Tells `of` what it may address at `peer`, which knows it as `back`.
    fn map(&mut self, of: u32, number: PeerId, peer: u32, back: PeerId) {
        let writable = self.processes[of as usize].identity.kind == PeerKind::Member || of == peer;
        let owner = &self.processes[peer as usize];
        let public = owner.public.iter().map(|(name, memory)| Target {
            region: Region::Public(*name),
            memory: memory.clone(),
            lane: None,
            writable: writable && (of == peer || !owner.spec.is_owned(*name)),
        });
        let lanes = owner.lanes.iter().enumerate().filter(|(_, lane)| of != peer && lane.writer == back).map(|(at, lane)| Target {
            region: Region::Lane(lane.name),
            memory: lane.memory.clone(),
            lane: Some(at as u32),
            writable: true,
        });
        let targets = public.chain(lanes).collect();
        self.processes[of as usize].slots[number.0 as usize].targets = targets;
    }

    /// A whole host stops, and its process with it. Nothing that was on its way out leaves any more, and no kernel is left to tell the others: they
    /// have to find out.
    pub(super) fn crash(&mut self, process: u32) {
        let (gasp, lost_notices) = (self.faults.last_gasp, self.faults.lost_notices);
        (self.faults.last_gasp, self.faults.lost_notices) = (Span(0, 0), 1000);
        self.kill(process, None);
        (self.faults.last_gasp, self.faults.lost_notices) = (gasp, lost_notices);
    }

    pub(super) fn kill(&mut self, process: u32, death: Option<DeathWords>) {
        let victim = &mut self.processes[process as usize];
        if !victim.alive {
            return;
        }
        victim.alive = false;
        let stopped = std::mem::take(&mut victim.paused);
        victim.completions.clear();
        victim.events.clear();
        let inbox = std::mem::take(&mut victim.inbox);
        self.trace.note(self.now, b'K', u64::from(process), 0);
        for slot in inbox {
            self.datagrams.give_back(slot);
        }
        // Its last stores land in the order in which they were posted, up to some point. A stopped CPU makes no more stores.
        let gasp = if stopped && self.host { 0 } else { self.faults.last_gasp.draw(&mut self.chance) };
        let mut heard = Vec::new();
        for (number, slot) in self.processes[process as usize].slots.iter().enumerate() {
            let cut = if gasp == 0 { 0 } else { self.chance.u64(0..=gasp) };
            self.agenda.enter(self.now + cut, Due::Cut { link: slot.link });
            if number > 0 {
                heard.push(slot.process);
            }
        }
        let end = self.now + gasp;
        for other in heard {
            if let Some(peer) = self.processes[other as usize].peer_of(process) {
                let mut at = end + self.faults.gone.draw(&mut self.chance);
                if !self.host && happens(&mut self.chance, self.faults.lost_notices) {
                    // In the end the connection is found to be dead, as the contract promises.
                    self.counts.lost_notices += 1;
                    at += KEEPALIVE * self.faults.peer_lost_after_ns;
                }
                self.agenda.enter(at, Due::Gone { at: other, peer: peer.0, certain: self.host });
            }
        }
        if let Some(death) = death.filter(|_| self.host) {
            for thread in 0..death.threads.len() as u32 {
                let after = self.faults.death_words.draw(&mut self.chance);
                self.counts.late_deaths += u64::from(after > Faults::calm().death_words.1);
                let at = end + after;
                self.agenda.enter(at, Due::Death { process, thread });
            }
            self.processes[process as usize].death = Some(death);
        }
    }

    /// Does what the kernel does when a thread that holds robust futexes dies.
    pub(super) fn set_death_words(&mut self, process: u32, thread: u32) {
        let victim = &self.processes[process as usize];
        let Some(death) = &victim.death else { return };
        let (_, memory) =
            victim.public.iter().find(|(name, _)| *name == death.region).expect("the process offers the region of its death words");
        for word in &death.threads[thread as usize] {
            let word = &memory.words()[*word];
            let before = word.load(Ordering::Relaxed);
            if before & TID_MASK != 0 {
                word.store((before & WAITERS) | OWNER_DIED, Ordering::Release);
            }
        }
        self.trace.note(self.now, b'X', u64::from(process), u64::from(thread));
        let watchers: Vec<u32> = self.processes[process as usize].slots[1..].iter().map(|slot| slot.process).collect();
        for watcher in watchers {
            self.wake(watcher);
        }
    }

    pub(super) fn pause(&mut self, process: u32) {
        let stopped = &mut self.processes[process as usize];
        stopped.paused = stopped.alive;
        self.trace.note(self.now, b'P', u64::from(process), 0);
    }

    pub(super) fn resume(&mut self, process: u32) {
        let going = &mut self.processes[process as usize];
        if !going.paused {
            return;
        }
        going.paused = false;
        let missed = std::mem::take(&mut going.missed);
        self.trace.note(self.now, b'R', u64::from(process), 0);
        for slot in 0..self.processes[process as usize].slots.len() {
            let link = self.processes[process as usize].slots[slot].link;
            self.plan(link);
        }
        if missed {
            self.wake(process);
        }
    }

    /// Stops everything that travels from one process to the other, or lets it pass again.
    pub(super) fn block(&mut self, from: u32, to: u32, blocked: bool) {
        self.trace.note(self.now, b'N', u64::from(from) << 32 | u64::from(to), u64::from(blocked));
        self.blocked.retain(|pair| *pair != (from, to));
        if blocked {
            self.blocked.push((from, to));
            return;
        }
        for (poster, peer) in [(from, to), (to, from)] {
            for slot in 0..self.processes[poster as usize].slots.len() {
                let slot = &self.processes[poster as usize].slots[slot];
                if slot.process == peer {
                    let link = slot.link;
                    self.plan(link);
                    if !self.links[link as usize].done.is_empty() {
                        self.agenda.enter(self.now, Due::Completion { link });
                    }
                }
            }
        }
    }

    pub(super) fn forget(&mut self, process: u32, peer: PeerId) {
        invariant!(peer != PeerId::SELF, "a process cannot forget itself");
        let owner = &mut self.processes[process as usize];
        let slot = &mut owner.slots[peer.0 as usize];
        slot.forgotten = true;
        slot.targets.clear();
        let link = slot.link;
        for lane in &mut owner.lanes {
            if lane.writer == peer {
                // The lane has no reader any more. A writer that still writes it learns that it has lost it.
                lane.granted = false;
                lane.epoch += 1;
                lane.memory = Block::zeroed(0);
            }
        }
        self.trace.note(self.now, b'F', u64::from(process), u64::from(peer.0));
        self.links[link as usize].broken = true;
        self.lose_posted(link);
    }

    pub(super) fn grant(&mut self, process: u32, writer: PeerId, name: RegionName) {
        let owner = &mut self.processes[process as usize];
        invariant!(!owner.slots[writer.0 as usize].forgotten, "{writer:?} has been forgotten and has no lane to grant");
        let at = owner.lane_of(writer, name);
        invariant!(at.is_some(), "{writer:?} has no lane {name:?}");
        let lane = &mut owner.lanes[at.expect("checked") as usize];
        lane.granted = true;
        lane.epoch += 1;
    }
}
