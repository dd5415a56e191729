//! The state of a world, and how it goes on.

use fastrand::Rng;

use super::agenda::{Agenda, Due};
use super::faults::{Counts, Faults, happens};
use super::link::{Link, Op};
use super::process::Process;
use super::slab::Slab;
use super::trace::Trace;
use crate::contract::{MAX_DATAGRAM_BYTES, PeerId};
use crate::invariant;

/// A datagram on its way or in an inbox.
#[derive(Debug, Default)]
pub(super) struct Datagram {
    /// Its number among all datagrams sent by its sender.
    pub(super) number: u64,
    pub(super) from: u32,
    pub(super) to: u32,
    pub(super) bytes: Vec<u8>,
}

/// The most datagrams that wait at a process. Further ones are lost.
const INBOX: usize = 1024;

/// Everything in a world. The modules `lifecycle` and `transfer` hold the rest of its methods.
#[derive(Debug)]
pub(super) struct State {
    /// Whether this is a host, with memory that outlives its process, or a network.
    pub(super) host: bool,
    pub(super) now: u64,
    pub(super) faults: Faults,
    pub(super) chance: Rng,
    pub(super) agenda: Agenda,
    pub(super) trace: Trace,
    pub(super) processes: Vec<Process>,
    pub(super) links: Vec<Link>,
    pub(super) ops: Slab<Op>,
    pub(super) datagrams: Slab<Datagram>,
    /// Ordered pairs of processes: nothing travels from the first to the second.
    pub(super) blocked: Vec<(u32, u32)>,
    /// Whether a store into a process's memory gives it a turn.
    pub(super) stores_wake: bool,
    /// Operations posted so far, of all processes.
    pub(super) operations: u64,
    /// How many entries of the agenda have happened so far, void ones included.
    pub(super) events: u64,
    pub(super) counts: Counts,
    /// Datagrams sent so far.
    pub(super) sent: u64,
}

impl State {
    pub(super) fn new(seed: u64, faults: Faults, host: bool) -> State {
        State {
            host,
            now: 0,
            faults,
            chance: Rng::with_seed(seed),
            agenda: Agenda::default(),
            trace: Trace::default(),
            processes: Vec::new(),
            links: Vec::new(),
            ops: Slab::new(),
            datagrams: Slab::new(),
            blocked: Vec::new(),
            stores_wake: true,
            operations: 0,
            events: 0,
            counts: Counts::default(),
            sent: 0,
        }
    }

    /// Whether at present nothing can travel from one process to the other.
    pub(super) fn cut_off(&self, from: u32, to: u32) -> bool {
        let nic_dead = |p: u32| self.processes[p as usize].nic_dead;
        nic_dead(from) || nic_dead(to) || self.blocked.contains(&(from, to))
    }

    /// Lets the next thing on the agenda happen. Returns the process whose turn it is, if that was it.
    pub(super) fn step(&mut self) -> Option<u32> {
        let (at, due) = self.agenda.pop()?;
        invariant!(at >= self.now, "time goes backwards, from {} to {at}", self.now);
        self.now = at;
        self.events += 1;
        match due {
            Due::Effect { link, plan } => {
                if self.links[link as usize].plan == plan {
                    self.effect(link);
                }
            }
            Due::Completion { link } => self.bring_home(link),
            Due::Cut { link } => self.cut(link),
            Due::Datagram { slot } => self.deliver(slot),
            Due::Connect { one, other } => self.connect(one, other),
            Due::Part { link } => self.part(link),
            Due::Gone { at, peer, certain } => self.report_gone(at, PeerId(peer), certain),
            Due::Death { process, thread } => self.set_death_words(process, thread),
            Due::Wake { process } => {
                let woken = &mut self.processes[process as usize];
                if woken.timer_at <= at {
                    woken.timer_at = u64::MAX;
                }
                self.wake(process);
            }
            Due::Turn { process } => {
                let due = &mut self.processes[process as usize];
                due.turn_entered = false;
                if due.paused {
                    due.missed = true;
                } else if due.alive {
                    self.trace.note(at, b'T', u64::from(process), 0);
                    return Some(process);
                }
            }
        }
        None
    }

    /// Something happened at a process: it gets a turn soon, unless one is already coming.
    pub(super) fn wake(&mut self, process: u32) {
        let woken = &mut self.processes[process as usize];
        if woken.paused {
            woken.missed = true;
        } else if woken.alive && !woken.turn_entered {
            woken.turn_entered = true;
            let at = self.now + self.faults.until_turn(&mut self.chance, &mut self.counts);
            self.agenda.enter(at, Due::Turn { process });
        }
    }

    /// Others have changed a process's memory. A process that polls sees this soon; one that sleeps does not.
    pub(super) fn touch(&mut self, process: u32) {
        if self.stores_wake {
            self.wake(process);
        }
    }

    pub(super) fn wake_at(&mut self, process: u32, at: u64) {
        let woken = &mut self.processes[process as usize];
        if at < woken.timer_at {
            woken.timer_at = at;
            self.agenda.enter(at.max(self.now), Due::Wake { process });
        }
    }

    /// Sends a datagram towards a process.
    pub(super) fn send(&mut self, from: u32, to: u32, bytes: &[u8]) {
        invariant!(bytes.len() <= MAX_DATAGRAM_BYTES, "a datagram of {} bytes; {MAX_DATAGRAM_BYTES} are allowed", bytes.len());
        if self.cut_off(from, to) {
            return;
        }
        if happens(&mut self.chance, self.faults.drops) {
            self.counts.drops += 1;
            return;
        }
        loop {
            let slot = self.datagrams.take();
            let datagram = &mut self.datagrams[slot];
            self.sent += 1;
            (datagram.number, datagram.from, datagram.to) = (self.sent, from, to);
            datagram.bytes.clear();
            datagram.bytes.extend_from_slice(bytes);
            let at = self.now + self.faults.datagram.draw(&mut self.chance);
            self.agenda.enter(at, Due::Datagram { slot });
            if !happens(&mut self.chance, self.faults.repeats) {
                return;
            }
            self.counts.repeats += 1;
        }
    }

    fn deliver(&mut self, slot: u32) {
        let (from, to) = (self.datagrams[slot].from, self.datagrams[slot].to);
        let receiver = &self.processes[to as usize];
        // Only from peers: a process that is not connected here, or no longer is, is a stranger.
        let known = receiver.peer_of(from).is_some_and(|peer| !receiver.slots[peer.0 as usize].forgotten);
        if receiver.alive && known && receiver.inbox.len() < INBOX && !self.cut_off(from, to) {
            self.trace.note(self.now, b'D', u64::from(from) << 32 | u64::from(to), self.datagrams[slot].bytes.len() as u64);
            let number = self.datagrams[slot].number;
            if let Some(peer) = self.processes[to as usize].peer_of(from) {
                let newest = &mut self.processes[to as usize].slots[peer.0 as usize].newest_datagram;
                self.counts.overtaken += u64::from(number < *newest);
                *newest = number.max(*newest);
            }
            self.processes[to as usize].inbox.push_back(slot);
            self.wake(to);
        } else {
            self.datagrams.give_back(slot);
        }
    }
}
