//! The words in shared memory: which regions a process offers, who writes what there, and which way it may move.

use martlet_fabric::{RegionName, RegionSpec, Token, ring};

/// The most processes that one view can list, coordinators and others together.
pub const MAX_MEMBERS: usize = 16;
/// The most threads of one process that may act for it.
pub const MAX_ACTING_THREADS: usize = 64;
/// The most processes that watch one thread's death, each with a word of its own, since the kernel wakes one waiter a word.
pub const MAX_WATCHERS: usize = MAX_MEMBERS;
/// Consensus slots kept per acceptor; view `v` uses slot `v % SLOTS`, told apart by the generation in the word.
pub const SLOTS: usize = 32;
/// The last view number: what the 24 bits of a slot word's generation can count up to. Seventeen years of a view a second.
pub const LAST_VIEW: u64 = ((SLOTS as u64) << 24) - 2;
/// The longest encoded view, header and seal included.
pub const VIEW_RECORD_BYTES: usize = 2048;

/// Signs of life of a process. Written by its owner (and, when a thread dies, by its kernel); read by all.
pub const LIFE: RegionName = RegionName(1);
/// Consensus words of an acceptor: `SLOTS` words, reached by CAS only, from everybody.
pub const SLOT_WORDS: RegionName = RegionName(2);
/// Values proposed to an acceptor: `[proposer position][slot][2]` records; each proposer writes only its own (uKharon section 5.3.1).
pub const PROPOSALS: RegionName = RegionName(3);
/// The latest decided view that its owner knows: a word with its number, then two sealed records written in turn.
pub const BOARD: RegionName = RegionName(4);
/// Where our own bulk reads land: two records for each acceptor, then two for each board. Nobody else writes it.
pub const SCRATCH: RegionName = RegionName(5);
/// Counters and events for outside readers, of [`COUNTERS_BYTES`]. Owner only; the node's `counters` module says what stands there.
pub const COUNTERS: RegionName = RegionName(6);
/// The length of [`COUNTERS`].
pub const COUNTERS_BYTES: usize = 16 << 10;
/// What its owner has come back with from its disk, for whoever founds the cluster again; see [`returned`]. Offered where disks are used. Owner; all of it
/// stands there before the owner lets anybody in.
pub const RETURNED: RegionName = RegionName(7);
/// Lane for a member: the replicated log, from the peer to us. A [`ring`].
pub const LOG_LANE: RegionName = RegionName(16);
/// Lane for a client: its requests to us, and its replies from us (each side keeps one for the other). A [`ring`].
pub const CLIENT_LANE: RegionName = RegionName(17);

/// Words of the [`LIFE`] region, by index.
pub mod life {
    use super::{MAX_ACTING_THREADS, MAX_WATCHERS};

    /// Heartbeat counter (uKharon section 4.2, kernel failures). Owner; only upwards; stops when the owner's replication thread makes no
    /// progress (fate sharing). That thread counts each duty cycle here, and each stretch of long work between two of them
    /// ([`Pulse`](martlet_fabric::Pulse)).
    pub const HEARTBEAT: usize = 0;
    /// Lease word: the newest view on which the owner may hold a lease; 0 for none. Stored, and fenced, before the owner asks for a lease;
    /// raised or cleared only after it has stopped acting in older views. Owner.
    pub const LEASE: usize = 1;
    /// How many of the threads below there may be, in the low 8 bits, and above them a number that changes with every thread that begins to act; never 0 once the owner is
    /// connected with anybody. Owner; only upwards. A thread stores its death words, then this, and acts if one that acted already is still alive then: so this word,
    /// read after the death words of all threads and found to be what it was before, says that those were all ([`certain`](crate::detector::certain)).
    pub const THREADS: usize = 2;
    /// How many threads a value of [`THREADS`] speaks of. What it can't say is taken as the nearest that it can.
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
    /// 1 once the owner leaves of its own will. Owner.
    pub const LEFT: usize = 3;
    /// What the owner shows as a lease cache: a [`CacheWord`](crate::membership::cache::CacheWord); 0 where it is none. Owner; only upwards.
    pub const CACHE: usize = 4;
    /// First of two words with the owner's pledge: a digest of the secret that its host's warden reveals when it is gone
    /// ([`certificate`](crate::detector::certificate)); 0 where it has pledged nothing. Owner; both stand there before it lets anybody in.
    pub const PLEDGE: usize = 5;
    /// First of the death words: `[thread][watcher]`, robust futex words in the low 32 bits. The owner stores its thread id and the waiters
    /// bit; the kernel sets [`OWNER_DIED`] when that thread dies; a clean end of the thread stores 0. The high 32 bits mean nothing. Of the words between two of them the last
    /// says how many threads have held the word.
    pub const DEATH: usize = 8;
    /// How far apart they lie: each is the first word of a mutex of the owner's C library, by which the kernel knows of it.
    pub const DEATH_STRIDE: usize = 8;
    /// The word of one thread for one watcher. `watcher` is the watcher's node number, modulo [`MAX_WATCHERS`].
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

    /// [`NOTHING`] or [`LOG`]; 0 says nothing.
    pub const STATE: usize = 0;
    /// There is nothing on its disk that it could come back with.
    pub const NOTHING: u64 = 1;
    /// It has come back with a log, of which the other words tell.
    pub const LOG: u64 = 2;
    /// The number under which the log was accepted.
    pub const BALLOT: usize = 1;
    /// The log's last entry.
    pub const LAST: usize = 2;
    /// The newest view that the log's group was made as of.
    pub const VIEW: usize = 3;
    /// How many processes belong to that group.
    pub const MEMBERS: usize = 4;
    /// Of the first of them, the node and the incarnation; then the next.
    pub const FIRST: usize = 8;
    /// Words in the region.
    pub const WORDS: usize = FIRST + 2 * MAX_MEMBERS;
}

/// How large the rings are.
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

/// The regions that a client offers to the nodes it connects to: the lane for their replies. It keeps public memory only to read into.
pub fn client_regions(sizes: Sizes) -> RegionSpec {
    RegionSpec {
        public: vec![(SCRATCH, COUNTERS_BYTES.next_multiple_of(VIEW_RECORD_BYTES))],
        owned: vec![SCRATCH],
        member_lanes: vec![(CLIENT_LANE, ring::lane_bytes(sizes.client_ring_bytes))],
        client_lanes: Vec::new(),
    }
}

/// Which part of a process posted an operation: the top byte of its token, by which completions find their way back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Component {
    /// Detectors, consensus, membership.
    Membership = 1,
    /// The replication engine.
    Engine = 2,
    /// The application: replies to clients.
    Application = 3,
    /// The node itself: who founds the cluster.
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
