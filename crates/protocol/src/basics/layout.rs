//! The words in shared memory: which regions a process offers, which process writes a word, and in which direction its value may change.

use martlet_fabric::{RegionName, RegionSpec, Token, ring};

/// The most processes that one view can list, coordinators and others together.
pub const MAX_MEMBERS: usize = 16;
/// The most threads of one process that may act for it.
pub const MAX_ACTING_THREADS: usize = 64;
/// The most processes that watch one thread's death. Each has a word of its own, since the kernel wakes one waiter per word.
pub const MAX_WATCHERS: usize = MAX_MEMBERS;
/// Consensus slots kept per acceptor. View `v` uses slot `v % SLOTS`; the generation in the word tells the uses of a slot apart.
pub const SLOTS: usize = 32;
/// The last view number: what the 24 bits of a slot word's generation can count up to. At one view per second it lasts for seventeen years.
pub const LAST_VIEW: u64 = ((SLOTS as u64) << 24) - 2;
/// The longest encoded view, header and seal included.
pub const VIEW_RECORD_BYTES: usize = 2048;

/// Signs of life of a process. Written by its owner (and, when a thread dies, by its kernel); read by all.
pub const LIFE: RegionName = RegionName(1);
/// Consensus words of an acceptor: `SLOTS` words, accessed by all processes, only by CAS.
pub const SLOT_WORDS: RegionName = RegionName(2);
/// Values proposed to an acceptor: `[proposer position][slot][2]` records; each proposer writes only its own (uKharon section 5.3.1).
pub const PROPOSALS: RegionName = RegionName(3);
/// The latest decided view that its owner knows: a word with the view's number, then two sealed records that are written in turn.
pub const BOARD: RegionName = RegionName(4);
/// Where our own bulk reads land: two records for each acceptor, then two for each board. No other process writes it.
pub const SCRATCH: RegionName = RegionName(5);
/// Counters and events for outside readers, [`COUNTERS_BYTES`] long. Written by its owner only; the node's `counters` module defines the contents.
pub const COUNTERS: RegionName = RegionName(6);
/// The length of [`COUNTERS`].
pub const COUNTERS_BYTES: usize = 16 << 10;
/// What its owner has come back with from its disk, for the process that founds the cluster again; see [`returned`]. Offered if disks are used.
/// Written by its owner only, and completely before the owner lets any peer in.
pub const RETURNED: RegionName = RegionName(7);
/// Lane for a member: carries the replicated log from the peer to us. A [`ring`].
pub const LOG_LANE: RegionName = RegionName(16);
/// Lane for a client: carries its requests to us or our replies to it (each side keeps one for the other). A [`ring`].
pub const CLIENT_LANE: RegionName = RegionName(17);

/// Words of the [`LIFE`] region, by index.
pub mod life {
    use super::{MAX_ACTING_THREADS, MAX_WATCHERS};

    /// Heartbeat counter (uKharon section 4.2, kernel failures). Written by its owner; only grows; stops when the owner's replication thread makes no
    /// progress (fate sharing). That thread counts each duty cycle here, and each stretch of long work between two of them
    /// ([`Pulse`](martlet_fabric::Pulse)).
    pub const HEARTBEAT: usize = 0;
    /// Lease word: the newest view on which the owner may hold a lease; 0 for none. Stored, and fenced, before the owner asks for a lease; raised or
    /// cleared only after it has stopped acting in older views. Written by its owner.
    pub const LEASE: usize = 1;
    /// How many of the threads below there may be, in the low 8 bits; above them, a number that changes with every thread that begins to act. Never 0
    /// once the owner is connected with a peer. Written by its owner; only grows. A thread stores its death words and then this word, and acts only
    /// if it then finds alive a thread that acted before it. So if this word, read after the death words of all threads, has not changed, those were
    /// all the threads ([`certain`](crate::detector::certain)).
    pub const THREADS: usize = 2;
    /// How many threads a value of [`THREADS`] stands for. A number outside the possible range is taken as the nearest possible one.
    pub const fn threads(count: u64) -> usize {
        let threads = (count & 0xff) as usize;
        if threads < 1 {
            1
        } else if threads > MAX_ACTING_THREADS {
            MAX_ACTING_THREADS
        } else {
            threads
        }
    }
    /// The value of [`THREADS`] that follows `count` when the thread at place `thread` begins.
    pub const fn counting(count: u64, thread: usize) -> u64 {
        let threads = if thread as u64 >= (count & 0xff) { thread as u64 + 1 } else { count & 0xff };
        ((count >> 8) + 1) << 8 | threads
    }
    /// 1 once the owner has begun to leave of its own will. Written by its owner.
    pub const LEFT: usize = 3;
    /// What the owner shows as a lease cache: a [`CacheWord`](crate::membership::cache::CacheWord); 0 if it is not a cache. Written by its owner;
    /// only grows.
    pub const CACHE: usize = 4;
    /// First of two words with the owner's pledge: a digest of the secret that its host's warden reveals when the owner is gone
    /// ([`certificate`](crate::detector::certificate)); 0 if it has pledged nothing. Written by its owner, both before it lets any peer in.
    pub const PLEDGE: usize = 5;
    /// First of the death words: `[thread][watcher]`, robust futex words in the low 32 bits. The owner stores its thread id and the waiters bit; the
    /// kernel sets [`OWNER_DIED`] when that thread dies; a clean end of the thread stores 0. The high 32 bits mean nothing. Of the words between two
    /// death words, the last counts how many threads have held the word.
    pub const DEATH: usize = 8;
    /// The distance between two death words: each is the first word of a mutex of the owner's C library, by which the kernel knows of it.
    pub const DEATH_STRIDE: usize = 8;
    /// The word that one thread holds for one watcher. `watcher` is the watcher's node number, modulo [`MAX_WATCHERS`].
    pub const fn death(thread: usize, watcher: usize) -> usize {
        DEATH + (thread * MAX_WATCHERS + watcher % MAX_WATCHERS) * DEATH_STRIDE
    }
    /// Words in the region.
    pub const WORDS: usize = death(MAX_ACTING_THREADS, 0);
    /// What the kernel sets in a robust futex word when its owner dies: FUTEX_OWNER_DIED.
    pub const OWNER_DIED: u64 = 0x4000_0000;
    /// FUTEX_WAITERS: makes the kernel wake a waiter when it sets [`OWNER_DIED`].
    pub const WAITERS: u64 = 0x8000_0000;
    /// The thread id in a robust futex word: FUTEX_TID_MASK.
    pub const TID_MASK: u64 = 0x3fff_ffff;
}

/// Words of the [`RETURNED`] region, by index.
pub mod returned {
    use super::MAX_MEMBERS;

    /// [`NOTHING`] or [`LOG`]; 0 means that it has not been written yet.
    pub const STATE: usize = 0;
    /// The owner has found nothing on its disk that it could come back with.
    pub const NOTHING: u64 = 1;
    /// The owner has come back with a log, which the other words describe.
    pub const LOG: u64 = 2;
    /// The number under which the log was accepted.
    pub const BALLOT: usize = 1;
    /// The log's last entry.
    pub const LAST: usize = 2;
    /// The newest view that the log's group reflects.
    pub const VIEW: usize = 3;
    /// The number of processes in that group.
    pub const MEMBERS: usize = 4;
    /// The node and the incarnation of the first of them; then those of the next.
    pub const FIRST: usize = 8;
    /// Words in the region.
    pub const WORDS: usize = FIRST + 2 * MAX_MEMBERS;
}

/// The sizes of the rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Data bytes of each log lane; a power of two.
    pub log_ring_bytes: usize,
    /// Data bytes of each client lane; a power of two.
    pub client_ring_bytes: usize,
}

impl Default for Sizes {
    fn default() -> Self {
        Sizes { log_ring_bytes: 4 << 20, client_ring_bytes: 256 << 10 }
    }
}

/// The regions that every process of a cluster offers.
pub fn regions(sizes: Sizes) -> RegionSpec {
    RegionSpec {
        public: vec![
            (LIFE, life::WORDS * 8),
            (SLOT_WORDS, SLOTS * 8),
            (PROPOSALS, MAX_MEMBERS * SLOTS * 2 * VIEW_RECORD_BYTES),
            (BOARD, 64 + 2 * VIEW_RECORD_BYTES),
            (SCRATCH, 4 * MAX_MEMBERS * VIEW_RECORD_BYTES),
            (COUNTERS, COUNTERS_BYTES),
        ],
        owned: vec![LIFE, BOARD, SCRATCH, COUNTERS],
        member_lanes: vec![(LOG_LANE, ring::lane_bytes(sizes.log_ring_bytes))],
        client_lanes: vec![(CLIENT_LANE, ring::lane_bytes(sizes.client_ring_bytes))],
    }
}

/// The regions that a client offers to the nodes that it connects to: the lane for their replies. It keeps public memory only to read into.
pub fn client_regions(sizes: Sizes) -> RegionSpec {
    RegionSpec {
        public: vec![(SCRATCH, COUNTERS_BYTES.next_multiple_of(VIEW_RECORD_BYTES))],
        owned: vec![SCRATCH],
        member_lanes: vec![(CLIENT_LANE, ring::lane_bytes(sizes.client_ring_bytes))],
        client_lanes: Vec::new(),
    }
}

/// The part of a process that posted an operation: the top byte of the operation's token, by which its completion finds its way back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Component {
    /// Detectors, consensus, membership.
    Membership = 1,
    /// The replication engine.
    Engine = 2,
    /// The application: replies to clients.
    Application = 3,
    /// The choice of the process that founds the cluster.
    Founding = 4,
}

impl Component {
    /// A token of this component. The low 56 bits are its own.
    pub const fn token(self, rest: u64) -> Token {
        Token(((self as u64) << 56) | (rest & ((1 << 56) - 1)))
    }

    /// Whether this component posted the operation.
    pub const fn owns(self, token: Token) -> bool {
        token.0 >> 56 == self as u64
    }
}

/// The component's own part of a token.
pub const fn token_rest(token: Token) -> u64 {
    token.0 & ((1 << 56) - 1)
}
