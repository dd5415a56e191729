//! The fabric under the exploration: what is posted waits until the world lets it take effect.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use martlet_fabric::primitive::{AtomicU64, Ordering};
use martlet_fabric::{Fabric, Local, LocalRegion, Memory, PeerId, Region, RegionName, Remote, Token};
use martlet_protocol::basics::layout::{BOARD, LIFE, MAX_MEMBERS, MAX_WATCHERS, SCRATCH, SLOT_WORDS, SLOTS, VIEW_RECORD_BYTES, life};
use martlet_protocol::membership::Evidence;
use martlet_protocol::membership::message::Message;

/// How many coordinators there are; the first two run.
pub const PROCESSES: usize = 3;

/// The order in which the operations of one process take effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// In the order in which they were posted, as on shared memory. The new primary's own operations complete at once, except for reads of leases: if a
    /// completion came late, the primary could as well have posted late.
    Posted,
    /// Operations on one target in the order in which they were posted, and those on different targets in any order: the contract's order.
    Contract,
}

impl Order {
    pub fn queue(self, target: usize) -> usize {
        match self {
            Order::Posted => 0,
            Order::Contract => target,
        }
    }
}

#[derive(Clone, Debug, Hash)]
pub enum Posted {
    Write(usize, Vec<u8>),
    Swap(usize, u64, u64),
    Word(RegionName, usize),
    /// A fetch of two records of a proposal.
    Fetch(usize, usize),
    /// A fetch of a board's records.
    Board(usize),
}

/// The memory of one process.
#[derive(Debug)]
pub struct Owned {
    pub life: Vec<AtomicU64>,
    pub slots: Vec<AtomicU64>,
    pub board: Vec<AtomicU64>,
    /// Only the fabric writes it, so copies share it until it does.
    pub scratch: Rc<Vec<AtomicU64>>,
    pub proposals: BTreeMap<usize, Vec<u8>>,
}

pub fn zeroed(words: usize) -> Vec<AtomicU64> {
    (0..words).map(|_| AtomicU64::new(0)).collect()
}

pub fn copied(words: &[AtomicU64]) -> Vec<AtomicU64> {
    words.iter().map(|w| AtomicU64::new(w.load(Ordering::Relaxed))).collect()
}

impl Owned {
    pub fn new() -> Owned {
        // The one thread of the process has the first death word. The rest would only be copied with every state.
        let life = zeroed(life::death(1, 0));
        life[life::THREADS].store(1, Ordering::Relaxed);
        for watcher in 0..MAX_WATCHERS {
            life[life::death(0, watcher)].store(life::WAITERS | 1000, Ordering::Relaxed);
        }
        let scratch = Rc::new(zeroed(4 * MAX_MEMBERS * VIEW_RECORD_BYTES / 8));
        Owned { life, slots: zeroed(SLOTS), board: zeroed(8 + 2 * VIEW_RECORD_BYTES / 8), scratch, proposals: BTreeMap::new() }
    }
}

impl Clone for Owned {
    fn clone(&self) -> Owned {
        Owned {
            life: copied(&self.life),
            slots: copied(&self.slots),
            board: copied(&self.board),
            scratch: self.scratch.clone(),
            proposals: self.proposals.clone(),
        }
    }
}

/// What a process has posted, with the targets, and the datagrams that it has sent.
#[derive(Clone, Debug, Default)]
pub struct Outbox {
    pub queues: [VecDeque<(usize, Token, Posted)>; PROCESSES],
    pub sent: VecDeque<Vec<u8>>,
}

/// A process's access to the others, for the length of one call.
pub struct Endpoint<'a> {
    pub me: usize,
    pub order: Order,
    pub own: &'a Owned,
    pub out: &'a mut Outbox,
}

impl Endpoint<'_> {
    pub fn post(&mut self, peer: PeerId, token: Token, posted: Posted) {
        let target = if peer == PeerId::SELF { self.me } else { peer.0 as usize - 1 };
        self.out.queues[self.order.queue(target)].push_back((target, token, posted));
    }
}

impl Fabric for Endpoint<'_> {
    const ZOMBIES_REACHABLE: bool = true;

    fn memory(&self, region: LocalRegion) -> Option<&Memory> {
        match region {
            LocalRegion::Public(LIFE) => Some(&self.own.life),
            LocalRegion::Public(SLOT_WORDS) => Some(&self.own.slots),
            LocalRegion::Public(BOARD) => Some(&self.own.board),
            LocalRegion::Public(SCRATCH) => Some(&self.own.scratch),
            _ => None,
        }
    }
    fn write(&mut self, at: Remote, bytes: &[u8], token: Token) {
        self.post(at.peer, token, Posted::Write(at.offset, bytes.to_vec()));
    }
    fn read(&mut self, from: Remote, into: Local, len: usize, token: Token) {
        assert_eq!(len, 2 * VIEW_RECORD_BYTES);
        let posted = match from.region {
            Region::Public(BOARD) => Posted::Board(into.offset),
            _ => Posted::Fetch(from.offset, into.offset),
        };
        self.post(from.peer, token, posted);
    }
    fn read_word(&mut self, from: Remote, token: Token) {
        let Region::Public(name) = from.region else { unreachable!("membership reads public words") };
        self.post(from.peer, token, Posted::Word(name, from.offset / 8));
    }
    fn compare_and_swap(&mut self, at: Remote, expected: u64, new: u64, token: Token) {
        self.post(at.peer, token, Posted::Swap(at.offset / 8, expected, new));
    }
    fn send(&mut self, _: PeerId, datagram: &[u8]) {
        self.multicast(datagram);
    }
    fn multicast(&mut self, datagram: &[u8]) {
        // Other messages say nothing about leases.
        if matches!(Message::decode(datagram), Some(Message::View(_) | Message::Notice { evidence: Evidence::Left, .. })) {
            self.out.sent.push_back(datagram.to_vec());
        }
    }
    martlet_fabric::idle!(poll, receive, event, grant, revoke, nudge, forget);
}

/// Whether it is a read that says nothing about leases. Such a read takes effect and completes at once, or there would be too many states.
pub fn is_immediate(posted: &Posted) -> bool {
    match posted {
        Posted::Word(LIFE, word) => *word != life::LEASE,
        Posted::Word(BOARD, _) | Posted::Board(_) => true,
        Posted::Word(..) | Posted::Write(..) | Posted::Swap(..) | Posted::Fetch(..) => false,
    }
}
