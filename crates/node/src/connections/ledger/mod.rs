//! What a leader notes of the store's connections, in memory that outlives it: what each client has sent that is not settled, and what each client is to be
//! sent.
//!
//! The memory is a file without a name, which the leader's [keeper](super::keeper) hands out with the sockets. Only the leader's own process writes it. A
//! successor reads it when that process is dead, or has let go of its connections. Every note is true before and after each step in which it is made, since the
//! process may die at any point.
//!
//! A connection has a *line* of words, and two streams of bytes. A stream is in a small room while few of its bytes are live, and else in a large one, which
//! uses memory only as it is filled.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use super::sys;

mod remains;

pub use remains::{Remainder, Remains, own_file};

/// How many connections there may be at once.
pub const SLOTS: usize = 16 << 10;
/// The longest state of a connection, in bytes.
pub const MOST_STATE_BYTES: usize = 512;
/// The most that one read takes, in bytes.
pub const SCRATCH_BYTES: usize = 256 << 10;

const WORDS: usize = 32;
const LINE_BYTES: usize = 8 * WORDS;
const SMALL_BYTES: usize = 4 << 10;
const LARGE_BYTES: usize = 128 << 20;
/// Memory of a large room is given back in pieces of so many bytes, a power of two; anything smaller is kept.
const PIECE_BYTES: u64 = 1 << 20;

const HEADER: usize = 0;
const LINES: usize = 4096;
const STATES: usize = LINES + SLOTS * LINE_BYTES;
const SMALL: usize = STATES + SLOTS * 2 * MOST_STATE_BYTES;
const SCRATCH: usize = SMALL + SLOTS * 2 * SMALL_BYTES;
const LARGE: usize = (SCRATCH + SCRATCH_BYTES).next_multiple_of(LARGE_BYTES);
const END: usize = LARGE + SLOTS * 2 * LARGE_BYTES;

// Words. Only the ledger's own process writes them, with Release, and a successor reads them from the file when the writer is dead or has let go. So a death
// can cut them off only in the order in which they were written, which is explained where they are written.

// Words of the header.
/// How many slots have been used.
const USED: usize = 0;
/// Whose bytes are in the scratch, as a connection's cookie.
const SCRATCH_OF: usize = 1;
/// The offset in that connection's stream at which they begin.
const SCRATCH_FROM: usize = 2;

// Words of a line.
/// The cookie of the connection whose line it is; 0: of none. Written after everything else of the line, and cleared before anything of the line is
/// overwritten.
const COOKIE: usize = 0;
/// Which of the two settled places is valid.
const WHICH: usize = 1;
/// Two settled places, of three words each: those of [`Settled`].
const SETTLED: usize = 2;
/// Up to where the input is in its room.
const RECEIVED: usize = 8;
/// For input and output: 0 while they are in their small rooms, else 1 more than the offset at which the large room begins.
const ORIGIN: usize = 9;
/// For two states: from which offset of the input on each holds, and its length.
const STATE: usize = 11;
/// Stands for a state that is not there.
const NONE: u64 = u64::MAX;

const INPUT: usize = 0;
const OUTPUT: usize = 1;

/// How far a connection is settled: everything before that is committed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// Requests up to this offset in the client's stream are executed.
    pub input: u64,
    /// The output of the requests that follow begins here.
    pub output: u64,
    /// Output may be sent up to here. If this is more than `output`, what lies between is the beginning of the answer to the requests that follow.
    pub sent: u64,
}

/// The mapping. It is never unmapped.
#[derive(Clone, Copy, Debug)]
struct Memory(*mut u8);

// SAFETY: the mapping is never unmapped; the writers state which process may write which part of it.
unsafe impl Send for Memory {}

impl Memory {
    fn word(self, at: usize, word: usize) -> &'static AtomicU64 {
        // SAFETY: a word of the header or of a line, which lie within the mapping at its beginning, aligned; all bits are valid atomics.
        unsafe { &*self.0.add(at + 8 * word).cast::<AtomicU64>() }
    }

    /// Copies bytes into the mapping.
    fn put(self, at: usize, bytes: &[u8]) {
        assert!(at >= STATES && at + bytes.len() <= END, "{} bytes at {at} of a ledger", bytes.len());
        // SAFETY: within the mapping, as just checked, behind its words; this process alone writes there, on one thread.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.0.add(at), bytes.len()) };
    }

    /// Copies bytes from one part of the mapping to another one.
    fn copy(self, from: usize, to: usize, bytes: usize) {
        assert!(
            from >= STATES && from + bytes <= END && to >= STATES && to + bytes <= END,
            "{bytes} bytes from {from} to {to} of a ledger"
        );
        // SAFETY: as for `put`.
        unsafe { std::ptr::copy(self.0.add(from), self.0.add(to), bytes) };
    }
}

/// A process's ledger.
#[derive(Debug)]
pub struct Ledger {
    file: File,
    memory: Memory,
    free: Vec<u32>,
    has_scratch: bool,
}

/// The memory into which each read puts its bytes.
#[derive(Debug)]
pub struct Scratch {
    memory: Memory,
    bytes: &'static mut [u8],
}

impl Ledger {
    /// An empty one.
    ///
    /// # Errors
    /// When the kernel refuses the memory.
    pub fn create() -> io::Result<Ledger> {
        // SAFETY: the name ends with a zero byte; the call makes a descriptor, which goes nowhere else.
        let file = File::from(unsafe { sys::owned(libc::syscall(libc::SYS_memfd_create, c"martlet-ledger".as_ptr(), libc::MFD_CLOEXEC)) }?);
        file.set_len(END as u64)?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
        // SAFETY: the kernel chooses a free range.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), END, protection, flags, file.as_raw_fd(), 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // No child of this process may write it, or pay for it.
        // SAFETY: the range that has just been mapped.
        unsafe { libc::madvise(base, END, libc::MADV_DONTFORK) };
        Ok(Ledger { file, memory: Memory(base.cast()), free: (0..SLOTS as u32).rev().collect(), has_scratch: true })
    }

    /// The file.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Its scratch.
    ///
    /// # Panics
    /// When called a second time: there is only one scratch.
    pub fn scratch(&mut self) -> Scratch {
        assert!(std::mem::take(&mut self.has_scratch), "a ledger has one scratch");
        // SAFETY: within the mapping, which is never taken down; it is given out once.
        let bytes = unsafe { std::slice::from_raw_parts_mut(self.memory.0.add(SCRATCH), SCRATCH_BYTES) };
        Scratch { memory: self.memory, bytes }
    }

    /// Begins the line of the connection with that cookie. The connection is settled up to `at`, the kernel has taken its output up to `written`, and its state
    /// is `state`. `None`: all slots are taken.
    ///
    /// # Panics
    /// When the state is longer than [`MOST_STATE_BYTES`], or the cookie is 0.
    pub fn begin(&mut self, cookie: u64, at: Settled, written: u64, state: &[u8]) -> Option<Line> {
        assert!(cookie != 0, "a socket has a cookie");
        let slot = self.free.pop()?;
        self.memory.word(HEADER, USED).fetch_max(u64::from(slot) + 1, Ordering::Release);
        let mut line = Line {
            memory: self.memory,
            file: self.file.as_raw_fd(),
            slot,
            cookie,
            settled: at,
            which: 0,
            rooms: [Room::new(at.input), Room::new(written)],
            states: [NONE; 2],
        };
        line.word(COOKIE).store(0, Ordering::Release);
        line.word(STATE).store(NONE, Ordering::Release);
        line.word(STATE + 2).store(NONE, Ordering::Release);
        line.word(ORIGIN + INPUT).store(0, Ordering::Release);
        line.word(ORIGIN + OUTPUT).store(0, Ordering::Release);
        line.word(RECEIVED).store(at.input, Ordering::Release);
        line.note_settled(0, at);
        line.word(WHICH).store(0, Ordering::Release);
        line.change(at.input, state);
        Some(line)
    }

    /// Lets successors find a line that has been begun, with everything of it that is live.
    pub fn show(line: &Line) {
        line.word(COOKIE).store(line.cookie, Ordering::Release);
    }

    /// Ends a line.
    pub fn end(&mut self, mut line: Line) {
        line.hide();
        for which in [INPUT, OUTPUT] {
            line.rooms[which].start = line.rooms[which].end;
            line.leave_large(which);
        }
        self.free.push(line.slot);
    }
}

impl Scratch {
    /// Where the bytes that are read next go, for this line.
    pub fn of(&mut self, line: &Line) -> &mut [u8] {
        self.memory.word(HEADER, SCRATCH_OF).store(0, Ordering::Release);
        self.memory.word(HEADER, SCRATCH_FROM).store(line.rooms[INPUT].end, Ordering::Release);
        self.memory.word(HEADER, SCRATCH_OF).store(line.cookie, Ordering::Release);
        self.bytes
    }

    /// Where bytes go that no successor needs.
    pub fn of_nobody(&mut self) -> &mut [u8] {
        self.memory.word(HEADER, SCRATCH_OF).store(0, Ordering::Release);
        self.bytes
    }
}

/// One of a connection's streams, as its leader knows it.
#[derive(Clone, Copy, Debug)]
struct Room {
    /// The part of the stream that is live.
    start: u64,
    end: u64,
    /// 1 more than the offset at which the large room begins; 0: the stream is in the small room.
    origin: u64,
    /// Up to where the large room's memory has been given back.
    given_back: u64,
}

impl Room {
    fn new(at: u64) -> Room {
        Room { start: at, end: at, origin: 0, given_back: at }
    }
}

/// The line of a connection, for its leader.
#[derive(Debug)]
pub struct Line {
    memory: Memory,
    file: i32,
    slot: u32,
    cookie: u64,
    settled: Settled,
    which: usize,
    rooms: [Room; 2],
    /// From which offset on each of the two states holds.
    states: [u64; 2],
}

impl Line {
    fn word(&self, word: usize) -> &'static AtomicU64 {
        self.memory.word(LINES + self.slot as usize * LINE_BYTES, word)
    }

    /// The cookie of its socket.
    pub fn cookie(&self) -> u64 {
        self.cookie
    }

    /// Up to where input has been received.
    pub fn received(&self) -> u64 {
        self.rooms[INPUT].end
    }

    /// Up to where output has been produced.
    pub fn produced(&self) -> u64 {
        self.rooms[OUTPUT].end
    }

    /// How far it is settled.
    pub fn settled(&self) -> Settled {
        self.settled
    }

    /// Takes input. `false`: it is more than a line holds, and successors no longer find this line.
    #[must_use]
    pub fn receive(&mut self, bytes: &[u8]) -> bool {
        let fits = self.append(INPUT, bytes);
        self.word(RECEIVED).store(self.rooms[INPUT].end, Ordering::Release);
        fits
    }

    /// Takes output, before the effects of the requests that it answers are proposed. `false`: as [`receive`](Line::receive).
    #[must_use]
    pub fn produce(&mut self, bytes: &[u8]) -> bool {
        self.append(OUTPUT, bytes)
    }

    fn append(&mut self, which: usize, bytes: &[u8]) -> bool {
        let room = self.rooms[which];
        let live = (room.end - room.start) as usize + bytes.len();
        if live > LARGE_BYTES - PIECE_BYTES as usize {
            self.hide();
            return false;
        }
        if room.origin == 0 && live > SMALL_BYTES {
            self.enter_large(which);
        }
        let room = self.rooms[which];
        let mut rest = bytes;
        let mut place = room.end;
        while !rest.is_empty() {
            let (at, most) = where_is(self.slot, which, room.origin, place);
            let (now, later) = rest.split_at(rest.len().min(most));
            self.memory.put(at, now);
            (rest, place) = (later, place + now.len() as u64);
        }
        self.rooms[which].end = place;
        true
    }

    fn enter_large(&mut self, which: usize) {
        let room = &mut self.rooms[which];
        room.origin = room.start + 1;
        room.given_back = room.start;
        let (origin, mut place, end) = (room.origin, room.start, room.end);
        while place < end {
            let ((from, most), (to, _)) = (where_is(self.slot, which, 0, place), where_is(self.slot, which, origin, place));
            let bytes = most.min((end - place) as usize);
            self.memory.copy(from, to, bytes);
            place += bytes as u64;
        }
        self.word(ORIGIN + which).store(origin, Ordering::Release);
    }

    fn leave_large(&mut self, which: usize) {
        let room = self.rooms[which];
        if room.origin == 0 || room.start != room.end {
            return;
        }
        self.rooms[which].origin = 0;
        self.word(ORIGIN + which).store(0, Ordering::Release);
        if room.end - (room.origin - 1) > PIECE_BYTES {
            self.give_back(large_room(self.slot, which), LARGE_BYTES);
        }
    }

    /// Notes that bytes before this offset are of no use any more.
    fn drop_before(&mut self, which: usize, place: u64) {
        let room = &mut self.rooms[which];
        room.start = room.start.max(place.min(room.end));
        if room.origin == 0 {
            return;
        }
        if room.start == room.end {
            return self.leave_large(which);
        }
        // Whole pieces, as they are laid out in the room.
        let begin = room.origin - 1;
        let until = begin + (room.start - begin) / PIECE_BYTES * PIECE_BYTES;
        while self.rooms[which].given_back < until {
            let offset = (self.rooms[which].given_back - begin) % LARGE_BYTES as u64;
            self.give_back(large_room(self.slot, which) + offset as usize, PIECE_BYTES as usize);
            self.rooms[which].given_back += PIECE_BYTES;
        }
    }

    /// On a best-effort basis: memory that is not given back is used again.
    fn give_back(&self, at: usize, bytes: usize) {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: a plain system call on a file of this process's; what is there is of no use any more.
        unsafe { libc::syscall(libc::SYS_fallocate, self.file, mode, at as libc::off64_t, bytes as libc::off64_t) };
    }

    fn note_settled(&self, which: usize, settled: Settled) {
        for (at, word) in [settled.input, settled.output, settled.sent].into_iter().enumerate() {
            self.word(SETTLED + 3 * which + at).store(word, Ordering::Release);
        }
    }

    /// The connection is settled up to there: what comes before that is committed, its output may be sent, and its input is of no use any more.
    pub fn settle(&mut self, settled: Settled) {
        if settled == self.settled {
            return;
        }
        self.which = 1 - self.which;
        self.note_settled(self.which, settled);
        self.word(WHICH).store(self.which as u64, Ordering::Release);
        self.settled = settled;
        self.drop_before(INPUT, settled.input);
    }

    /// The kernel has taken output up to here.
    pub fn written(&mut self, place: u64) {
        self.drop_before(OUTPUT, place);
    }

    /// Whether the state of the connection may change: there is room for a state that is not settled.
    pub fn may_change(&self) -> bool {
        self.states.contains(&NONE) || self.states.iter().all(|from| *from <= self.settled.input)
    }

    /// From this offset of the input on, this is the connection's state.
    ///
    /// # Panics
    /// When the state is longer than [`MOST_STATE_BYTES`].
    pub fn change(&mut self, from: u64, state: &[u8]) {
        assert!(state.len() <= MOST_STATE_BYTES, "a state of {} bytes", state.len());
        // The first choice is to overwrite a state from the same offset, then an empty place, then the older state.
        let at = (0..2).find(|at| self.states[*at] == from).unwrap_or_else(|| {
            let [first, second] = self.states.map(|from| from.wrapping_add(1));
            usize::from(second < first)
        });
        self.word(STATE + 2 * at).store(NONE, Ordering::Release);
        self.word(STATE + 2 * at + 1).store(state.len() as u64, Ordering::Release);
        self.memory.put(state_room(self.slot, at), state);
        self.word(STATE + 2 * at).store(from, Ordering::Release);
        self.states[at] = from;
    }

    /// Successors no longer find this line.
    pub fn hide(&self) {
        self.word(COOKIE).store(0, Ordering::Release);
    }
}

fn state_room(slot: u32, which: usize) -> usize {
    STATES + (slot as usize * 2 + which) * MOST_STATE_BYTES
}

fn large_room(slot: u32, which: usize) -> usize {
    LARGE + (slot as usize * 2 + which) * LARGE_BYTES
}

/// Where an offset of a stream is in the memory, and how many bytes from there on are contiguous.
fn where_is(slot: u32, which: usize, origin: u64, place: u64) -> (usize, usize) {
    let (room, bytes, begin) = match origin {
        0 => (SMALL + (slot as usize * 2 + which) * SMALL_BYTES, SMALL_BYTES, 0),
        origin => (large_room(slot, which), LARGE_BYTES, origin - 1),
    };
    let offset = (place.wrapping_sub(begin) % bytes as u64) as usize;
    (room + offset, bytes - offset)
}

#[cfg(test)]
mod tests;
