//! The world of the exploration: two cores, three memories, the operations under way, and every step that may come next.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;

use martlet_fabric::primitive::Ordering;
use martlet_fabric::{Completion, Identity, Incarnation, NodeId, PeerEvent, PeerId, PeerKind, Token};
use martlet_protocol::basics::layout::{LIFE, MAX_WATCHERS, SLOT_WORDS, VIEW_RECORD_BYTES, life, token_rest};
use martlet_protocol::basics::{ProcessId, Time, ViewNumber};
use martlet_protocol::membership::message::Message;
use martlet_protocol::membership::{Config, Core, Event, Evidence, Leases, Member, Roles, Source, View};

use crate::fabric::{Endpoint, Order, Outbox, Owned, PROCESSES, Posted, copied, is_immediate};

pub const RUNNING: usize = 2;
pub const OLD: usize = 0;
pub const NEW: usize = 1;
/// The view in which the old primary leads.
pub const FIRST: ViewNumber = ViewNumber(5);
/// The unit of time. A lease lasts two units, so a process that waits one out waits for three.
pub const UNIT_NS: u64 = 1_000_000;
pub const LEASE_NS: u64 = 2 * UNIT_NS;
/// When the exploration begins.
pub const START: u64 = 10;
/// The number that the tokens of these reads begin with.
pub const READ_OF_A_SLOT: u64 = 21;
/// Longer than any schedule here.
pub const NEVER_NS: u64 = 1 << 40;

/// What may happen to the old primary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// It gets SIGKILL: its kernel sets its death words.
    pub killed: bool,
    /// Another process presumes it dead, whether or not it lives.
    pub presumed: bool,
    /// It leaves of its own will.
    pub leaves: bool,
}

/// The assumption that does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    Nothing,
    /// A kernel reports the death of a process that lives.
    FalseCertainty,
    /// The store of the lease word takes effect after the read of the slot: the fence between them is missing.
    LateLeaseWord,
    /// The old primary's clock runs at half speed.
    SlowClock,
}

#[derive(Clone)]
pub struct World {
    pub memories: [Owned; PROCESSES],
    pub cores: [Core; RUNNING],
    pub outboxes: [Outbox; RUNNING],
    /// Completions on their way: per process, per target, in order.
    pub done: [[VecDeque<Completion>; PROCESSES]; RUNNING],
    /// True time, in units.
    pub now: u64,
    /// The unit in which each had its last turn. One turn a unit is enough, since completions act by themselves.
    pub turns: [u64; RUNNING],
    /// How many more turns each may have. A completion has its effect without a turn.
    pub turns_left: [u8; RUNNING],
    pub alive: bool,
    /// The faults that may still happen.
    pub faults: Faults,
    pub broken: Broken,
    pub order: Order,
    pub newest_active: ViewNumber,
    pub decided: BTreeMap<u64, View>,
}

pub fn process(index: usize) -> ProcessId {
    ProcessId { node: NodeId(index as u16), incarnation: Incarnation(1) }
}

impl World {
    /// Both know the first view. The old primary has prepared the next slot, and is about to ask for its first lease.
    pub fn new(faults: Faults, broken: Broken, order: Order) -> World {
        let roles = Roles::COORDINATOR.with(Roles::REPLICA);
        let core = |index| {
            let config = Config {
                leases: Leases::Primary,
                lease_ns: LEASE_NS,
                heartbeat_interval_ns: NEVER_NS,
                broadcast_interval_ns: NEVER_NS,
                broadcast_timeout_ns: NEVER_NS,
                pull_interval_ns: NEVER_NS,
                resend_interval_ns: NEVER_NS,
                seed: 1,
                ..Config::new(process(index), roles)
            };
            Core::new(Time(START * UNIT_NS), config)
        };
        let mut world = World {
            memories: std::array::from_fn(|_| Owned::new()),
            cores: std::array::from_fn(core),
            outboxes: Default::default(),
            done: Default::default(),
            now: START,
            turns: [START; RUNNING],
            turns_left: [u8::MAX; RUNNING],
            alive: true,
            faults,
            broken,
            order,
            newest_active: ViewNumber(0),
            decided: BTreeMap::new(),
        };
        let members = (0..PROCESSES).map(|p| Member::new(process(p), roles)).collect();
        let first =
            View { number: FIRST, lease_ns: LEASE_NS, fence_ns: LEASE_NS, compatible: false, level: 1, members, departed: Vec::new() };
        let mut datagram = Vec::new();
        Message::View(first).encode(&mut datagram);
        for p in 0..RUNNING {
            // The first turn sends the periodic messages.
            world.act(p, |core, now, fabric| core.tick(now, fabric, true));
            for peer in (0..PROCESSES).filter(|q| *q != p) {
                let identity = Identity { node: NodeId(peer as u16), incarnation: Incarnation(1), kind: PeerKind::Member };
                let up = PeerEvent::Up { peer: PeerId(peer as u32 + 1), identity };
                world.act(p, |core, now, fabric| core.handle_peer(now, fabric, up));
            }
            world.act(p, |core, now, fabric| core.handle_datagram(now, fabric, PeerId(PROCESSES as u32), &datagram));
            world.outboxes[p].sent.clear();
            // The swaps that prepare the slot ahead.
            while let Some(q) = (0..PROCESSES).find(|&q| matches!(world.outboxes[p].queues[q].front(), Some((.., Posted::Swap(..))))) {
                world.take_effect(p, q);
                if !world.done[p][q].is_empty() {
                    world.complete(p, q);
                }
            }
        }
        assert_eq!(world.outboxes[OLD].queues.iter().flatten().count(), 2, "the first lease is being asked for");
        world
    }

    /// The same, after the old primary has got its first lease.
    pub fn leased(faults: Faults, broken: Broken, order: Order) -> World {
        let mut world = World::new(faults, broken, order);
        while let Some(q) = (0..PROCESSES).find(|&q| !world.outboxes[OLD].queues[q].is_empty()) {
            world.take_effect(OLD, q);
            if !world.done[OLD][q].is_empty() {
                world.complete(OLD, q);
            }
        }
        assert!(world.is_active(OLD));
        world
    }

    /// The same, with so many turns for each process, however long it lasts.
    pub fn with_turns(self, turns: u8) -> World {
        World { turns_left: [turns; RUNNING], ..self }
    }

    /// A process's own clock.
    pub fn clock(&self, p: usize) -> Time {
        match (self.broken, p) {
            (Broken::SlowClock, OLD) => Time(START * UNIT_NS + (self.now - START) * UNIT_NS / 2),
            _ => Time(self.now * UNIT_NS),
        }
    }

    /// Makes one call of a core, and what follows from it at once.
    pub fn act(&mut self, p: usize, call: impl FnOnce(&mut Core, Time, &mut Endpoint<'_>)) {
        let now = self.clock(p);
        call(&mut self.cores[p], now, &mut Endpoint { me: p, order: self.order, own: &self.memories[p], out: &mut self.outboxes[p] });
        // What the core does to its own memory follows at once, too.
        while let Some((q, at)) = (0..PROCESSES).find_map(|q| {
            let at = self.outboxes[p].queues[q].iter().position(|(target, _, posted)| *target == p || is_immediate(posted))?;
            Some((q, at))
        }) {
            let (target, token, posted) = self.outboxes[p].queues[q].remove(at).expect("found");
            let result = Ok(self.perform(p, target, posted));
            let fabric = &mut Endpoint { me: p, order: self.order, own: &self.memories[p], out: &mut self.outboxes[p] };
            self.cores[p].handle_completion(now, fabric, Completion { token, result });
        }
        self.drop_late_answers(p);
        while let Some(event) = self.cores[p].poll_event() {
            if let Event::View(view) = event {
                let known = self.decided.entry(view.number.0).or_insert_with(|| view.clone());
                assert_eq!(*known, view, "two views of one number");
            }
        }
    }

    /// Drops reads of slot words whose round is over. Their answers would change nothing, and only multiply the states.
    pub fn drop_late_answers(&mut self, p: usize) {
        let text = format!("{:?}", self.cores[p]);
        let renewal = text.split("renewal: Renewal { inquiry: Inquiry { serial: ").nth(1).expect("a field of the core");
        let serial: u64 = renewal.split(',').next().and_then(|n| n.parse().ok()).expect("a number");
        let counts = |token: Token| {
            let rest = token_rest(token);
            rest >> 48 != READ_OF_A_SLOT || rest & 0xff_ffff_ffff == serial
        };
        self.outboxes[p].queues.iter_mut().for_each(|queue| queue.retain(|(_, token, _)| counts(*token)));
        self.done[p].iter_mut().for_each(|done| done.retain(|completion| counts(completion.token)));
    }

    /// Lets an operation take effect; returns what it found.
    pub fn perform(&mut self, p: usize, q: usize, posted: Posted) -> u64 {
        match posted {
            Posted::Write(offset, bytes) => {
                self.memories[q].proposals.insert(offset, bytes);
                0
            }
            Posted::Swap(word, expected, new) => {
                let word = &self.memories[q].slots[word];
                let found = word.load(Ordering::Relaxed);
                if found == expected {
                    word.store(new, Ordering::Relaxed);
                }
                found
            }
            Posted::Word(LIFE, life::LEASE) if self.broken == Broken::LateLeaseWord => 0,
            Posted::Word(name, word) => {
                let memory = &self.memories[q];
                let words = match name {
                    LIFE => &memory.life,
                    SLOT_WORDS => &memory.slots,
                    _ => &memory.board,
                };
                words[word].load(Ordering::Relaxed)
            }
            Posted::Fetch(from, into) => {
                let records = [0, 1].map(|half| self.memories[q].proposals.get(&(from + half * VIEW_RECORD_BYTES)).cloned());
                self.land(p, into, &records);
                0
            }
            Posted::Board(into) => {
                let bytes: Vec<u8> = self.memories[q].board[8..].iter().flat_map(|w| w.load(Ordering::Relaxed).to_le_bytes()).collect();
                let records = bytes.chunks(VIEW_RECORD_BYTES).map(|half| Some(half.to_vec())).collect::<Vec<_>>();
                self.land(p, into, &records);
                0
            }
        }
    }

    /// Puts what was read into the reader's scratch memory.
    pub fn land(&mut self, p: usize, into: usize, records: &[Option<Vec<u8>>]) {
        let scratch = copied(&self.memories[p].scratch);
        for (half, record) in records.iter().enumerate() {
            let at = (into + half * VIEW_RECORD_BYTES) / 8;
            scratch[at..at + VIEW_RECORD_BYTES / 8].iter().for_each(|w| w.store(0, Ordering::Relaxed));
            for (word, bytes) in scratch[at..].iter().zip(record.iter().flat_map(|r| r.chunks_exact(8))) {
                word.store(u64::from_le_bytes(bytes.try_into().expect("8 bytes")), Ordering::Relaxed);
            }
        }
        self.memories[p].scratch = Rc::new(scratch);
    }

    pub fn take_effect(&mut self, p: usize, q: usize) {
        // Only the proposer's own record is written, and what matters is the swap after it. So the writes need no schedule of their own.
        loop {
            let (target, token, posted) = self.outboxes[p].queues[q].pop_front().expect("not empty");
            let is_write = matches!(posted, Posted::Write(..));
            let heard_late = self.order == Order::Contract || p == OLD || matches!(posted, Posted::Word(LIFE, _));
            let result = Ok(self.perform(p, target, posted));
            if !is_write {
                self.done[p][q].push_back(Completion { token, result });
                if !heard_late {
                    self.complete(p, q);
                }
                return;
            }
        }
    }

    pub fn complete(&mut self, p: usize, q: usize) {
        let completion = self.done[p][q].pop_front().expect("not empty");
        self.act(p, |core, now, fabric| core.handle_completion(now, fabric, completion));
    }

    pub fn runs(&self, p: usize) -> bool {
        p != OLD || self.alive
    }

    pub fn is_active(&self, p: usize) -> bool {
        let lease = self.cores[p].lease();
        self.runs(p) && lease.active(lease.view(), self.clock(p))
    }

    /// Theorem B.1. `Err` when an older view is active after a newer one.
    pub fn check(&mut self) -> Result<(), String> {
        let active = (0..RUNNING).filter(|&p| self.is_active(p)).map(|p| self.cores[p].lease().view()).max();
        self.newest_active = self.newest_active.max(active.unwrap_or_default());
        match (0..RUNNING).find(|&p| self.is_active(p) && self.cores[p].lease().view() < self.newest_active) {
            Some(p) => Err(format!("{} is active in view {} after view {}", process(p), self.cores[p].lease().view(), self.newest_active)),
            None => Ok(()),
        }
    }

    /// The states that one step leads to.
    pub fn successors(&self, until: u64) -> Vec<World> {
        let mut next = Vec::new();
        let mut step = |change: &dyn Fn(&mut World)| {
            let mut world = self.clone();
            change(&mut world);
            next.push(world);
        };
        if self.now < until {
            step(&|w| w.now += 1);
        }
        for p in (0..RUNNING).filter(|&p| self.runs(p)) {
            if self.turns[p] < self.now && self.turns_left[p] > 0 {
                step(&|w| {
                    w.turns[p] = w.now;
                    w.turns_left[p] -= 1;
                    w.act(p, |core, now, fabric| core.tick(now, fabric, true));
                });
            }
            for q in 0..PROCESSES {
                if !self.outboxes[p].queues[q].is_empty() {
                    step(&|w| w.take_effect(p, q));
                }
                if !self.done[p][q].is_empty() {
                    step(&|w| w.complete(p, q));
                }
            }
            // A datagram arrives, or else the next one does: a datagram that never arrives is lost.
            if !self.outboxes[p].sent.is_empty() && self.runs(1 - p) {
                step(&|w| {
                    let datagram = w.outboxes[p].sent.pop_front().expect("checked");
                    let from = PeerId(p as u32 + 1);
                    w.act(1 - p, |core, now, fabric| core.handle_datagram(now, fabric, from, &datagram));
                });
            }
        }
        if self.faults.killed && self.alive {
            step(&|w| {
                w.alive = false;
                w.outboxes[OLD] = Outbox::default();
                w.done[OLD] = Default::default();
                for watcher in 0..MAX_WATCHERS {
                    w.memories[OLD].life[life::death(0, watcher)].store(life::OWNER_DIED | life::WAITERS, Ordering::Relaxed);
                }
            });
        }
        if self.faults.presumed {
            step(&|w| {
                w.faults.presumed = false;
                if w.broken == Broken::FalseCertainty {
                    w.act(NEW, |core, now, fabric| {
                        core.handle_evidence(now, fabric, process(OLD), Source::Kernel).expect("no certificate")
                    });
                    return;
                }
                let mut notice = Vec::new();
                Message::Notice { process: process(OLD), evidence: Evidence::Presumed }.encode(&mut notice);
                w.act(NEW, |core, now, fabric| core.handle_datagram(now, fabric, PeerId(PROCESSES as u32), &notice));
            });
        }
        if self.faults.leaves && self.alive {
            step(&|w| {
                w.faults.leaves = false;
                w.act(OLD, |core, now, fabric| core.leave(now, fabric));
            });
        }
        next
    }

    /// Leaves out boards and scratch memory, which hold nothing that the cores and queues do not show as well.
    pub fn digest(&self) -> u64 {
        let mut h = DefaultHasher::new();
        for memory in &self.memories {
            let life = memory.life.iter().enumerate().filter(|(word, _)| *word != life::HEARTBEAT).map(|(_, w)| w);
            life.chain(&memory.slots).for_each(|w| w.load(Ordering::Relaxed).hash(&mut h));
            memory.proposals.hash(&mut h);
        }
        let mut text = String::with_capacity(16 << 10);
        for p in (0..RUNNING).filter(|&p| self.runs(p)) {
            text.clear();
            write!(text, "{:?}", self.cores[p]).expect("a string takes everything");
            // Leaves out what has no consequences here: when a core last had a turn, what it last encoded, and how many rounds of questions there were and were
            // won.
            let idle = [(" stalls: ", " next_monitor: "), (" message: ", " malformed: "), (" serial: ", " asked: "), (" won: ", " }")];
            for (from, to) in idle {
                let start = text.find(from).expect("a field of the core");
                let end = text[start..].find(to).expect("the field after it") + start;
                text.replace_range(start..end, "");
            }
            text.hash(&mut h);
            let without_serial = |token: Token| match token_rest(token) >> 48 {
                READ_OF_A_SLOT => token_rest(token) >> 40,
                _ => token_rest(token),
            };
            for (q, queue) in self.outboxes[p].queues.iter().enumerate() {
                queue.iter().for_each(|(target, token, posted)| (q, target, without_serial(*token), posted).hash(&mut h));
                self.done[p][q].iter().for_each(|c| (q, without_serial(c.token), c.result.unwrap_or(u64::MAX)).hash(&mut h));
            }
            (&self.outboxes[p].sent, self.turns[p] < self.now, self.turns_left[p]).hash(&mut h);
        }
        let faults = (self.faults.killed, self.faults.presumed, self.faults.leaves);
        (self.now, self.alive, faults, self.newest_active).hash(&mut h);
        h.finish()
    }
}
