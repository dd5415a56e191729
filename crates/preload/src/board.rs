//! Memory that all replicas of a server map, and that outlives each of them: where a leader collects its rounds, and how far it has come with its connections.
//!
//! It is made before the first fork, so every replica has it from birth. Each part has one writer at a time: the replica of a node writes that node's stage,
//! and the leader writes the rest. A leader writes only after it has made sure that the previous leader is dead, so a dead leader's part does not change while
//! it is read.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

pub use martlet_node::connections::Holder;

use crate::backpressure::Follower;
use crate::entry::MAX_ROUND_BYTES;
use crate::fault::Void;
use crate::service::ServiceWords;
use crate::stream::Seal;

/// How many nodes there may be; each may be a replica.
pub const NODES: usize = martlet_protocol::basics::layout::MAX_MEMBERS;
/// Connections at once.
pub const SLOTS: usize = 16 << 10;
/// How many bits of a word name a node.
const NODE_BITS: u32 = 4;
const _: () = assert!(NODES <= 1 << NODE_BITS, "a node's number fits");
/// For how long others wait for a replica that is being born, in nanoseconds.
pub const EXPECTED_NS: u64 = 60_000_000_000;
/// The size of a stage, which holds one round.
pub const STAGE_BYTES: usize = MAX_ROUND_BYTES;
/// How many words of the system's answers to leaders are kept, the last ones. A follower that is further behind than that cannot continue as a replica.
pub const TOLD_WORDS: usize = 1 << 22;
/// How many words precede the bytes of an answer.
const TOLD_HEADER_WORDS: usize = 3;
/// The most bytes that an answer may have.
pub const MOST_TOLD_BYTES: usize = 1 << 20;
/// How many children's ends are remembered.
const ENDS: usize = 64;

/// How far the leader has come with a connection, in shared memory.
#[repr(C, align(32))]
struct Cells {
    /// The connection's name; 0 while the line is being set up.
    connection: AtomicU64,
    /// Up to where output may have been given to the kernel, and the checksum there. Written before it is given.
    seal: AtomicU64,
    /// Up to where output has been given to the kernel. Written afterwards.
    written: AtomicU64,
    /// For a connection over a Unix socket, while its output is on its way through a pipe: where the pipe's content ends in the stream, and whose pipe it is,
    /// in one word. 0: no output is in a pipe.
    piped: AtomicU64,
}

/// What a replica knows. Each replica writes its own all the time, so each has a cache line of its own.
#[derive(Debug)]
#[repr(C, align(64))]
struct Known {
    /// The first round that it has not been told; 0: there is no such replica.
    next: AtomicU64,
    /// How far it has heard what the system has told leaders.
    heard: AtomicU64,
}

/// A read from a connection.
#[derive(Debug)]
#[repr(C, align(32))]
pub struct ReadWords {
    /// The round; 0: there is no read. Written last.
    round: AtomicU64,
    connection: AtomicU64,
    read: AtomicU64,
}

impl ReadWords {
    /// Notes the read. It may be called while a signal is handled.
    pub fn note(&self, fault: Void) {
        self.connection.store(fault.connection, Ordering::Relaxed);
        self.read.store(fault.read, Ordering::Relaxed);
        self.round.store(fault.round, Ordering::Release);
    }

    /// Says that there is no read any more.
    pub fn clear(&self) {
        self.round.store(0, Ordering::Release);
    }

    fn noted(&self) -> Option<Void> {
        let round = self.round.load(Ordering::Acquire);
        (round != 0).then(|| Void { round, connection: self.connection.load(Ordering::Relaxed), read: self.read.load(Ordering::Relaxed) })
    }
}

/// What is known of a replica's server while it executes what no other has executed before.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct UnderWay {
    /// The read that a fault is blamed on.
    pub fault: ReadWords,
    /// The last read of the current round, if the server has written to no connection since.
    pub read: ReadWords,
    /// When the server was given that round, on the monotonic clock.
    pub since_ns: AtomicU64,
}

/// How many reads are remembered that are answered with the end of their connections. Each of them costs a replica, so no follower is so many behind.
const VOIDS: usize = 64;

#[repr(C, align(4096))]
struct Words {
    /// Replicas that may hold sockets, by node: a process's number, or 0. The leader is among them, and so is a replica that died as leader until its successor
    /// has all that it held.
    holders: [AtomicU64; NODES],
    /// When those processes started, in clock ticks since the host started.
    started: [AtomicU64; NODES],
    /// Replicas that are being born, by node: the first round that each lacks, or 0; and since when, on the monotonic clock.
    expected: [AtomicU64; NODES],
    expected_since_ns: [AtomicU64; NODES],
    /// The processes of the replicas that have begun, by node, or 0; and when each started, in clock ticks since the host started. Each replica writes its own:
    /// first the start, then the number, with release ordering. The replica that is about to fork a node's replica clears what an earlier one of that node has
    /// left, and the leader clears what a dead one has left.
    processes: [AtomicU64; NODES],
    processes_started: [AtomicU64; NODES],
    /// What each of them knows, by node.
    known: [Known; NODES],
    /// The round that a leader collects, by node. Everything that the log holds before it has been taken out of the kernel.
    collecting: [AtomicU64; NODES],
    /// How often leaders have shown that they lead.
    beats: AtomicU64,
    /// Whether a leader has ever begun to serve.
    open: AtomicU64,
    /// What operators are told of the service as a whole.
    service: ServiceWords,
    /// The last round that a leader's server has come back from.
    survived: AtomicU64,
    /// What each node's server is doing.
    under_way: [UnderWay; NODES],
    /// The last reads that no server is given: how many there have been so far, and each in its place.
    void_count: AtomicU64,
    voids: [ReadWords; VOIDS],
    lines: [Cells; SLOTS],
    /// How the server's children have ended, by process number: each word holds the number, and next to it 256 plus the exit code.
    ends: [AtomicU64; ENDS],
    /// How often the server of the replica that leads or succeeds has read the clock. No other server has come further.
    readings: AtomicU64,
    /// How many words the system has told leaders so far.
    told_end: AtomicU64,
    told: [AtomicU64; TOLD_WORDS],
}

/// What the system has answered to a call of a leader's server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// Which call it was.
    pub call: u8,
    /// What it returned.
    pub value: i64,
    /// Its errno, if it failed.
    pub errno: i32,
    /// What it wrote to the caller's memory.
    pub bytes: Vec<u8>,
}

/// What a replica finds when it looks for the next answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    /// The answer, and where the next one is.
    Its(Told, u64),
    /// There is none so far.
    Nothing,
    /// It has been overwritten.
    TooLate,
}

/// The mapping. It is never unmapped.
#[derive(Clone, Copy)]
pub struct Board {
    words: &'static Words,
    stages: *mut u8,
}

impl std::fmt::Debug for Board {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Board").finish_non_exhaustive()
    }
}

impl Board {
    /// Maps a new board, which forks share.
    ///
    /// # Errors
    /// When there is no memory.
    pub fn create() -> io::Result<Board> {
        let len = size_of::<Words>() + NODES * STAGE_BYTES;
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: the kernel chooses a free range.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = base.cast::<u8>();
        // SAFETY: the range begins with as many zero bytes, at a page; all bits are valid atomics, and it is never unmapped. The stages come after the words.
        Ok(Board { words: unsafe { &*base.cast::<Words>() }, stages: unsafe { base.add(size_of::<Words>()) } })
    }

    fn stage(&self, node: u16) -> *mut u8 {
        assert!(usize::from(node) < NODES, "node {node} of {NODES}");
        // SAFETY: within the mapping, as just checked.
        unsafe { self.stages.add(usize::from(node) * STAGE_BYTES) }
    }

    /// Where the replica of this node collects its rounds.
    ///
    /// # Safety
    /// This process is that replica, leads, and holds no other reference to the stage.
    #[allow(clippy::mut_from_ref, reason = "the memory is shared with other processes, not with this value")]
    pub unsafe fn own_stage(&self, node: u16) -> &'static mut [u8] {
        // SAFETY: so many bytes of the mapping, which is never taken down; nothing else uses them, as the caller promises.
        unsafe { std::slice::from_raw_parts_mut(self.stage(node), STAGE_BYTES) }
    }

    /// The content of a dead replica's stage.
    ///
    /// # Safety
    /// The replica is dead, and no other replica of that node runs that could lead.
    pub unsafe fn dead_stage(&self, node: u16) -> &'static [u8] {
        // SAFETY: so many bytes of the mapping, which is never taken down; nothing writes them, as the caller promises.
        unsafe { std::slice::from_raw_parts(self.stage(node), STAGE_BYTES) }
    }

    /// This replica may hold sockets from now on.
    pub fn hold(&self, holder: Holder) {
        let node = usize::from(holder.node);
        self.words.holders[node].store(0, Ordering::SeqCst);
        self.words.collecting[node].store(0, Ordering::SeqCst);
        self.words.started[node].store(holder.started, Ordering::SeqCst);
        self.words.holders[node].store(holder.pid as u64, Ordering::SeqCst);
    }

    /// A dead replica holds no sockets any more that are wanted.
    pub fn let_go(&self, holder: Holder) {
        self.words.holders[usize::from(holder.node)].store(0, Ordering::SeqCst);
    }

    /// The replicas that may hold sockets.
    pub fn holders(&self) -> Vec<Holder> {
        let of = |node: usize| {
            let pid = self.words.holders[node].load(Ordering::SeqCst) as i32;
            (pid != 0).then(|| Holder { node: node as u16, pid, started: self.words.started[node].load(Ordering::SeqCst) })
        };
        (0..NODES).filter_map(of).collect()
    }

    /// Notes that a replica of this node lacks the rounds from this one on: it is about to be forked, or has been forked and is being taught.
    pub fn expect(&self, node: u16, round: u64, now_ns: u64) {
        self.words.expected_since_ns[usize::from(node)].store(now_ns, Ordering::Relaxed);
        self.words.expected[usize::from(node)].store(round, Ordering::Release);
    }

    /// Notes that this process is the replica of its node.
    pub fn begin(&self, own: Holder) {
        let node = usize::from(own.node);
        self.words.processes[node].store(0, Ordering::Relaxed);
        self.words.processes_started[node].store(own.started, Ordering::Release);
        self.words.processes[node].store(own.pid as u64, Ordering::Release);
    }

    /// The processes of the replicas of these nodes (one bit each) that have begun.
    pub fn processes(&self, nodes: u64) -> Vec<Holder> {
        let of = |node: usize| {
            let pid = self.words.processes[node].load(Ordering::Acquire) as i32;
            let started = self.words.processes_started[node].load(Ordering::Acquire);
            (nodes >> node & 1 != 0 && pid != 0).then_some(Holder { node: node as u16, pid, started })
        };
        (0..NODES).filter_map(of).collect()
    }

    /// Notes that this process is dead. Another process of the same node, which may be on its way, is not affected.
    pub fn died(&self, dead: Holder) {
        let node = usize::from(dead.node);
        let word = &self.words.processes[node];
        if word.compare_exchange(dead.pid as u64, 0, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            self.words.expected[node].store(0, Ordering::Release);
            self.words.known[node].next.store(0, Ordering::Release);
        }
    }

    /// A replica of this node is about to be forked: clears what an earlier one of that number has left here, which says nothing of the new one.
    ///
    /// The new replica has heard what its parent has heard, up to `heard`.
    pub fn before_fork(&self, node: u16, heard: u64) {
        self.words.processes[usize::from(node)].store(0, Ordering::Release);
        self.words.known[usize::from(node)].next.store(0, Ordering::Release);
        self.hears(node, heard);
    }

    /// Notes that the newborn replica of this node has been told all rounds, or that there is none.
    pub fn arrived(&self, node: u16) {
        self.words.expected[usize::from(node)].store(0, Ordering::Release);
    }

    /// Notes that the replica of this node has been told all rounds before this one.
    pub fn knows(&self, node: u16, next: u64) {
        self.words.known[usize::from(node)].next.store(next, Ordering::Release);
    }

    /// Notes how far the replica of this node has heard what the system has told leaders.
    pub fn hears(&self, node: u16, heard: u64) {
        self.words.known[usize::from(node)].heard.store(heard, Ordering::Release);
    }

    /// The replicas that have begun and are not known to be dead, except this node's, and how far each has come.
    pub fn followers(&self, leader: u16) -> Vec<Follower> {
        let of = |process: Holder| {
            let Known { next, heard } = &self.words.known[usize::from(process.node)];
            Follower { process, heard: heard.load(Ordering::Acquire), next: next.load(Ordering::Acquire) }
        };
        self.processes(!(1 << leader)).into_iter().map(of).collect()
    }

    /// The first round that some replica has not been told; `None`: there are no replicas.
    pub fn first_unknown(&self) -> Option<u64> {
        self.words.known.iter().map(|known| known.next.load(Ordering::Acquire)).filter(|next| *next != 0).min()
    }

    /// The nodes whose replicas are being born, a bit each.
    pub fn lacking(&self) -> u64 {
        (0..NODES).filter(|node| self.words.expected[*node].load(Ordering::Acquire) != 0).map(|node| 1 << node).sum()
    }

    /// The nodes whose replicas have begun, and are not known to be dead, a bit each.
    pub fn present(&self) -> u64 {
        (0..NODES).filter(|node| self.words.processes[*node].load(Ordering::Acquire) != 0).map(|node| 1 << node).sum()
    }

    /// The first round that a replica that is being born lacks; `None`: none is being born, or each has taken so long that it must have died.
    pub fn first_lacked(&self, now_ns: u64) -> Option<u64> {
        let of = |node: usize| {
            let round = self.words.expected[node].load(Ordering::Acquire);
            let since_ns = self.words.expected_since_ns[node].load(Ordering::Relaxed);
            (round != 0 && now_ns.saturating_sub(since_ns) < EXPECTED_NS).then_some(round)
        };
        (0..NODES).filter_map(of).min()
    }

    /// Notes that the leader of this node collects this round: everything before it is committed, and has been taken out of the kernel.
    pub fn collect(&self, node: u16, round: u64) {
        self.words.collecting[usize::from(node)].store(round, Ordering::Release);
    }

    /// The round that the replica of this node collected last; 0: none since it began to hold sockets.
    pub fn collected(&self, node: u16) -> u64 {
        self.words.collecting[usize::from(node)].load(Ordering::Acquire)
    }

    /// Shows that the leader leads: what it has proposed is committed.
    pub fn beat(&self) {
        self.words.beats.fetch_add(1, Ordering::Relaxed);
    }

    /// How often leaders have shown that.
    pub fn beats(&self) -> u64 {
        self.words.beats.load(Ordering::Relaxed)
    }

    /// Notes that a leader begins to serve.
    pub fn open(&self) {
        self.words.open.store(1, Ordering::SeqCst);
    }

    /// What operators are told of the service as a whole.
    pub fn service(&self) -> &'static ServiceWords {
        &self.words.service
    }

    /// Whether a leader has ever begun to serve.
    pub fn is_open(&self) -> bool {
        self.words.open.load(Ordering::SeqCst) != 0
    }

    /// Notes that the leader's server has come back from this round: followers may execute it, too.
    pub fn survive(&self, round: u64) {
        // Pairs with the acquire of those followers: a follower that sees the round sees which of its reads are void.
        self.words.survived.fetch_max(round, Ordering::Release);
    }

    /// The last round that a leader's server has come back from.
    pub fn survived(&self) -> u64 {
        self.words.survived.load(Ordering::Acquire)
    }

    /// Where the replica of this node notes what its server is doing, cleared of what earlier replicas have noted.
    pub fn under_way(&self, node: u16) -> &'static UnderWay {
        let words = &self.words.under_way[usize::from(node)];
        words.fault.clear();
        words.read.clear();
        words
    }

    /// The fault that a dead replica has noted.
    pub fn fault(&self, node: u16) -> Option<Void> {
        self.words.under_way[usize::from(node)].fault.noted()
    }

    /// The read that a dead replica's server had not come back from, if the server had been given the round more than `longer_than_ns` before `now_ns`.
    pub fn hung(&self, node: u16, now_ns: u64, longer_than_ns: u64) -> Option<Void> {
        let UnderWay { read, since_ns, .. } = &self.words.under_way[usize::from(node)];
        let is_long = now_ns.saturating_sub(since_ns.load(Ordering::Relaxed)) > longer_than_ns;
        read.noted().filter(|_| is_long)
    }

    /// From here on no server is given this read. Only for a successor, when all leaders before it are dead.
    pub fn avoid(&self, void: Void) {
        let count = self.words.void_count.load(Ordering::Relaxed);
        self.words.voids[count as usize % VOIDS].note(void);
        self.words.void_count.store(count + 1, Ordering::Release);
    }

    /// The reads of a round that no server is given. For a round that a leader has survived, and for a successor.
    pub fn voids(&self, round: u64) -> Vec<Void> {
        let count = (self.words.void_count.load(Ordering::Acquire) as usize).min(VOIDS);
        self.words.voids[..count].iter().filter_map(ReadWords::noted).filter(|void| void.round == round).collect()
    }

    /// Where the next answer of the system will be.
    pub fn told_end(&self) -> u64 {
        self.words.told_end.load(Ordering::Acquire)
    }

    /// Adds an answer of the system to the leader's server. Only the leader calls this.
    ///
    /// # Panics
    /// When the answer is longer than [`MOST_TOLD_BYTES`].
    pub fn tell(&self, told: &Told) {
        assert!(told.bytes.len() <= MOST_TOLD_BYTES, "an answer of {} bytes", told.bytes.len());
        let mut at = self.told_end();
        // A process that reads a word of this answer in place of an older one must also see the end as it was before this answer: by that it knows that the
        // older one is lost.
        std::sync::atomic::fence(Ordering::Release);
        let mut put = |word: u64| {
            self.words.told[at as usize % TOLD_WORDS].store(word, Ordering::Relaxed);
            at += 1;
        };
        put(u64::from(told.call) << 32 | told.bytes.len() as u64);
        put(told.value as u64);
        put(told.errno as u64);
        for part in told.bytes.chunks(8) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            put(u64::from_le_bytes(word));
        }
        // Pairs with the acquire of the replicas that look for it.
        self.words.told_end.store(at, Ordering::Release);
    }

    /// Forgets what the system told a leader from there on: a request that crashed the server asked for it. Only for a successor, when all leaders before it
    /// are dead.
    pub fn untell(&self, at: u64) {
        self.words.told_end.store(at, Ordering::Release);
    }

    /// Whether an answer to such a call is there, or one that [has been overwritten](Heard::TooLate).
    pub fn tells(&self, at: u64, call: u8) -> bool {
        let end = self.told_end();
        end != at
            && (end > at + TOLD_WORDS as u64 || (self.words.told[at as usize % TOLD_WORDS].load(Ordering::Relaxed) >> 32) as u8 == call)
    }

    /// Notes that the server of the replica that leads or succeeds reads the clock for that time.
    pub fn reads_clock(&self, reading: u64) {
        self.words.readings.store(reading, Ordering::Release);
    }

    /// How often such servers have read the clock. For a successor, when all leaders before it are dead.
    pub fn readings(&self) -> u64 {
        self.words.readings.load(Ordering::Acquire)
    }

    /// The answer of the system that is there.
    pub fn hear(&self, at: u64) -> Heard {
        if self.told_end() == at {
            return Heard::Nothing;
        }
        let word = |at: u64| self.words.told[at as usize % TOLD_WORDS].load(Ordering::Relaxed);
        // A word may be overwritten by a newer answer while it is read. Where the end is afterwards tells whether that has happened.
        let is_lost = || {
            std::sync::atomic::fence(Ordering::Acquire);
            self.told_end() + (TOLD_HEADER_WORDS + MOST_TOLD_BYTES / 8) as u64 > at + TOLD_WORDS as u64
        };
        let head = word(at);
        let (call, len) = ((head >> 32) as u8, (head as u32) as usize);
        if is_lost() {
            return Heard::TooLate;
        }
        let mut bytes = Vec::with_capacity(len + 8);
        let first = at + TOLD_HEADER_WORDS as u64;
        let end = first + len.div_ceil(8) as u64;
        (first..end).for_each(|at| bytes.extend_from_slice(&word(at).to_le_bytes()));
        bytes.truncate(len);
        let told = Told { call, value: word(at + 1) as i64, errno: word(at + 2) as i32, bytes };
        if is_lost() { Heard::TooLate } else { Heard::Its(told, end) }
    }

    /// Notes the exit code that a child of the server ends with. The child says so itself, because the process that the kernel tells may have died before.
    pub fn child_ends(&self, pid: i32, code: i32) {
        let word = (pid as u64) << 32 | 0x100 | (code as u64 & 0xff);
        self.words.ends[pid as usize % ENDS].store(word, Ordering::Release);
    }

    /// The exit code that a child of the server has ended with, if the child has said so.
    pub fn child_end(&self, pid: i32) -> Option<i32> {
        let word = self.words.ends[pid as usize % ENDS].load(Ordering::Acquire);
        (word >> 32 == pid as u64).then_some((word & 0xff) as i32)
    }

    /// The leader has a new connection in this slot.
    pub fn begin_line(&self, slot: u32, connection: u64, seal: Seal, written: u64) {
        let line = &self.words.lines[slot as usize];
        line.connection.store(0, Ordering::Release);
        line.seal.store(seal.0, Ordering::Release);
        line.piped.store(0, Ordering::Release);
        line.written.store(written, Ordering::Release);
        line.connection.store(connection, Ordering::Release);
    }

    /// A new leader continues with a connection. Should it die here, what its successor reads is true before each step and after it.
    pub fn resume_line(&self, slot: u32, connection: u64, seal: Seal, written: u64) {
        let line = &self.words.lines[slot as usize];
        if line.connection.load(Ordering::Acquire) != connection {
            return self.begin_line(slot, connection, seal, written);
        }
        self.written(slot, written);
        self.intend(slot, seal);
    }

    /// Output of a connection, up to this offset, is in the pipe of the leader of this node, and nothing else is in that pipe.
    pub fn piped(&self, slot: u32, offset: u64, node: u16) {
        self.words.lines[slot as usize].piped.store(offset << NODE_BITS | u64::from(node), Ordering::Release);
    }

    /// The leader is about to give the kernel output of a connection, at most up to this offset.
    pub fn intend(&self, slot: u32, seal: Seal) {
        self.words.lines[slot as usize].seal.store(seal.0, Ordering::Release);
    }

    /// The kernel has taken the output up to this offset.
    pub fn written(&self, slot: u32, offset: u64) {
        let line = &self.words.lines[slot as usize];
        line.written.store(offset, Ordering::Release);
        // Last, and before the rest in the pipe is thrown away: as long as this word is set, it is what a successor goes by.
        line.piped.store(0, Ordering::Release);
    }

    /// What the leader says of a connection.
    pub fn line(&self, slot: u32, connection: u64) -> Line {
        let line = &self.words.lines[slot as usize];
        let whose = || line.connection.load(Ordering::Acquire);
        let before = whose();
        let piped = match line.piped.load(Ordering::Acquire) {
            0 => None,
            word => Some((word >> NODE_BITS, (word & ((1 << NODE_BITS) - 1)) as u16)),
        };
        let its = Line::Its { written: line.written.load(Ordering::Acquire), piped, seal: Seal(line.seal.load(Ordering::Acquire)) };
        // Slots are given to connections in the order of their names.
        match (before == connection, whose()) {
            (true, after) if after == connection => its,
            (_, after) if after > connection => Line::Gone,
            _ => Line::Unborn,
        }
    }
}

/// What a leader says of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line {
    /// Nothing so far.
    Unborn,
    /// How far it has come.
    Its {
        /// Up to where the kernel has taken its output.
        written: u64,
        /// If its output is on its way through a leader's pipe: where the pipe's content ends in the stream, and which node's pipe it is.
        piped: Option<(u64, u16)>,
        /// Up to where the kernel may have taken its output, and the checksum there.
        seal: Seal,
    },
    /// It is closed, and its slot belongs to another connection.
    Gone,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_has_told_is_heard_in_order_until_it_is_overwritten() {
        let board = Board::create().expect("memory");
        assert_eq!(board.hear(0), Heard::Nothing);
        let told = |value: i64| Told { call: 3, value, errno: 11, bytes: (0..value as u8).collect() };
        (0..20).for_each(|value| board.tell(&told(value)));
        let mut at = 0;
        for value in 0..20 {
            assert!(board.tells(at, 3) && !board.tells(at, 4));
            let Heard::Its(heard, next) = board.hear(at) else { panic!("{value} was told") };
            assert_eq!(heard, told(value));
            at = next;
        }
        assert_eq!((board.hear(at), board.told_end()), (Heard::Nothing, at));
        assert!(!board.tells(at, 3));
        let long = Told { bytes: vec![7; MOST_TOLD_BYTES], ..Told::default() };
        (0..33).for_each(|_| board.tell(&long));
        assert_eq!(board.hear(at), Heard::TooLate);
        assert!(board.tells(at, 4), "nobody knows");
    }

    #[test]
    fn a_child_says_how_it_ends() {
        let board = Board::create().expect("memory");
        assert_eq!(board.child_end(70), None);
        board.child_ends(70, 1);
        assert_eq!((board.child_end(70), board.child_end(70 + ENDS as i32)), (Some(1), None));
    }

    #[test]
    fn a_line_is_one_connections() {
        let board = Board::create().expect("memory");
        assert_eq!(board.line(5, 7), Line::Unborn);
        board.begin_line(5, 7, Seal::of(0, 0), 0);
        board.intend(5, Seal::of(10, 99));
        board.written(5, 4);
        assert_eq!(board.line(5, 7), Line::Its { written: 4, piped: None, seal: Seal::of(10, 99) });
        board.piped(5, 9, 15);
        assert_eq!(board.line(5, 7), Line::Its { written: 4, piped: Some((9, 15)), seal: Seal::of(10, 99) });
        board.resume_line(5, 7, Seal::of(12, 98), 8);
        assert_eq!(board.line(5, 7), Line::Its { written: 8, piped: None, seal: Seal::of(12, 98) });
        board.resume_line(5, 8, Seal::of(0, 0), 0);
        assert_eq!(board.line(5, 7), Line::Gone);
        assert_eq!(board.line(5, 8), Line::Its { written: 0, piped: None, seal: Seal::of(0, 0) });
        assert_eq!(board.line(5, 9), Line::Unborn);
    }

    #[test]
    fn one_that_is_being_born_is_expected_until_it_is_there_or_long_overdue() {
        let board = Board::create().expect("memory");
        assert_eq!(board.first_lacked(5), None);
        board.expect(3, 100, 5);
        board.expect(4, 90, 6);
        assert_eq!((board.first_lacked(10), board.lacking()), (Some(90), 0b1_1000));
        board.arrived(4);
        assert_eq!(board.first_lacked(10), Some(100));
        assert_eq!(board.first_lacked(5 + EXPECTED_NS), None);
        // Its process is known once it has begun.
        let own = Holder { node: 3, pid: 10, started: 5 };
        assert_eq!(board.processes(!0), []);
        board.begin(own);
        assert_eq!((board.processes(!0), board.processes(!0b1000)), (vec![own], vec![]));
        // Its death says nothing of another one of its node.
        board.before_fork(3, 0);
        board.died(own);
        assert_eq!((board.processes(!0), board.lacking()), (vec![], 0b1000));
        board.begin(own);
        board.died(own);
        assert_eq!((board.processes(!0), board.lacking()), (vec![], 0));
        assert_eq!(board.present(), 0, "the dead are not there, though they count for a moment");
        board.expect(3, 100, 5);
        board.begin(own);
        board.arrived(3);
        assert_eq!((board.processes(!0), board.lacking()), (vec![own], 0));
    }

    #[test]
    fn what_no_replica_knows_is_that_of_the_living() {
        let board = Board::create().expect("memory");
        assert_eq!(board.first_unknown(), None);
        let own = |node: u16| Holder { node, pid: 10 + i32::from(node), started: 5 };
        for (node, next) in [(0, 9), (2, 7), (5, 8)] {
            board.begin(own(node));
            board.knows(node, next);
        }
        assert_eq!(board.first_unknown(), Some(7));
        board.died(own(2));
        assert_eq!(board.first_unknown(), Some(8));
        board.before_fork(5, 20);
        assert_eq!(board.first_unknown(), Some(9));
        // A fork has heard what its parent has, and is no follower before it has begun.
        board.hears(0, 30);
        assert_eq!(board.followers(7), [Follower { process: own(0), heard: 30, next: 9 }]);
        board.begin(own(5));
        assert_eq!(board.followers(0), [Follower { process: own(5), heard: 20, next: 0 }]);
    }

    #[test]
    fn a_fault_is_noted_and_its_read_is_nobodys() {
        let board = Board::create().expect("memory");
        let void = |round, connection| Void { round, connection, read: 2 };
        assert_eq!((board.fault(3), board.voids(5), board.survived()), (None, vec![], 0));
        board.under_way(3).fault.note(void(5, 7));
        assert_eq!((board.fault(3), board.fault(4)), (Some(void(5, 7)), None));
        for round in 0..VOIDS as u64 {
            board.avoid(void(5 + round, 7));
        }
        board.avoid(void(68, 8));
        assert_eq!(board.voids(68), [void(68, 8), void(68, 7)]);
        assert_eq!(board.voids(5), [], "long ago");
        board.survive(5);
        assert_eq!(board.survived(), 5);
        board.under_way(3);
        assert_eq!(board.fault(3), None, "another replica's");
    }

    #[test]
    fn a_read_from_which_a_server_does_not_come_back_is_known_when_that_is_long() {
        let board = Board::create().expect("memory");
        let void = Void { round: 5, connection: 7, read: 2 };
        let words = board.under_way(3);
        words.since_ns.store(1_000, Ordering::Relaxed);
        assert_eq!(board.hung(3, 9_000, 2_000), None, "it has read nothing");
        words.read.note(void);
        assert_eq!((board.hung(3, 3_000, 2_000), board.hung(3, 3_001, 2_000)), (None, Some(void)));
        words.read.clear();
        assert_eq!(board.hung(3, 9_000, 2_000), None, "it has come back");
    }

    #[test]
    fn holders_stand_there_until_they_are_let_go() {
        let board = Board::create().expect("memory");
        let (first, second) = (Holder { node: 0, pid: 10, started: 5 }, Holder { node: 3, pid: 11, started: 6 });
        board.hold(first);
        board.hold(second);
        assert_eq!(board.holders(), [first, second]);
        board.let_go(first);
        assert_eq!(board.holders(), [second]);
        assert!(!board.is_open());
        board.open();
        assert!(board.is_open());
    }
}
