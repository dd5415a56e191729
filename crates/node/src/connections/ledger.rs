//! What a leader notes of the store's connections, in memory that outlives it: what each client has sent that is not settled, and what it is to be sent.
//!
//! The memory is a file without a name, which the leader's [keeper](super::keeper) hands out with the sockets. Only its own process writes it; a successor reads it when that is dead,
//! or has let go of its connections. Every note is true before each step of its making and after it, since a death may stand anywhere.
//!
//! A connection has a *line* of words, and two streams of bytes, which stand in small rooms while few bytes are live, and else in large ones, which take memory
//! only as they are used.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicU64, Ordering};

use super::sys;

/// Connections at once.
pub const SLOTS: usize = 16 << 10;
/// The longest state of a connection, in bytes.
pub const MOST_STATE_BYTES: usize = 512;
/// What one read takes at most, in bytes.
pub const SCRATCH_BYTES: usize = 256 << 10;

const WORDS: usize = 32;
const LINE_BYTES: usize = 8 * WORDS;
const SMALL_BYTES: usize = 4 << 10;
const LARGE_BYTES: usize = 128 << 20;
/// Memory of a large room is given back in pieces of so many bytes, a power of two; what is smaller is kept.
const PIECE_BYTES: u64 = 1 << 20;

const HEADER: usize = 0;
const LINES: usize = 4096;
const STATES: usize = LINES + SLOTS * LINE_BYTES;
const SMALL: usize = STATES + SLOTS * 2 * MOST_STATE_BYTES;
const SCRATCH: usize = SMALL + SLOTS * 2 * SMALL_BYTES;
const LARGE: usize = (SCRATCH + SCRATCH_BYTES).next_multiple_of(LARGE_BYTES);
const END: usize = LARGE + SLOTS * 2 * LARGE_BYTES;

// Words of the header.
/// Slots that have been used.
const USED: usize = 0;
/// Whose bytes are in the scratch, and from which place of its stream on.
const SCRATCH_OF: usize = 1;
const SCRATCH_FROM: usize = 2;

// Words of a line.
const COOKIE: usize = 0;
/// Which of the two settled places counts.
const WHICH: usize = 1;
const SETTLED: usize = 2;
/// Up to here the room of the input holds it.
const RECEIVED: usize = 8;
/// For input and output: 0 while they are in their small rooms, else 1 more than the place at the beginning of the large one.
const ORIGIN: usize = 9;
/// For two states: from which place of the input on it holds, and its length.
const STATE: usize = 11;
/// In the place of a state that is not there.
const NONE: u64 = u64::MAX;

const INPUT: usize = 0;
const OUTPUT: usize = 1;

/// How far a connection is settled: what stands before that is committed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// Requests up to this place in the client's stream are executed.
    pub input: u64,
    /// The output of those that follow begins here.
    pub output: u64,
    /// Up to here output may be sent. Where it is more than `output`, that is the beginning of what those that follow are answered.
    pub sent: u64,
}

/// The mapping. It is never taken down.
#[derive(Clone, Copy, Debug)]
struct Memory(*mut u8);

// SAFETY: the mapping is never taken down; who may write which part of it is said where it is written.
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

/// Where each read puts what it reads.
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
        // SAFETY: the name ends with a zero byte.
        let file = File::from(sys::owned(unsafe { libc::syscall(libc::SYS_memfd_create, c"martlet-ledger".as_ptr(), libc::MFD_CLOEXEC) })?);
        file.set_len(END as u64)?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
        // SAFETY: the kernel chooses a free range.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), END, protection, flags, file.as_raw_fd(), 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // No child of this process's may write it, or pay for it.
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
    /// The second time: there is one.
    pub fn scratch(&mut self) -> Scratch {
        assert!(std::mem::take(&mut self.has_scratch), "a ledger has one scratch");
        // SAFETY: within the mapping, which is never taken down; it is given out once.
        let bytes = unsafe { std::slice::from_raw_parts_mut(self.memory.0.add(SCRATCH), SCRATCH_BYTES) };
        Scratch { memory: self.memory, bytes }
    }

    /// Begins the line of a connection of that cookie, which is settled so far, of whose output the kernel has taken so much, in this state. `None`: all slots
    /// are taken.
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

    /// Lets successors find a line that has been begun, with all that is live of it.
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
    /// Where the bytes of this line go that are read next.
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
    /// What is live.
    start: u64,
    end: u64,
    /// 1 more than the place where the large room begins; 0: it is in the small one.
    origin: u64,
    /// Up to here the large room's memory has been given back.
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
    /// From where on each of the two states holds.
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

    /// Takes input. `false`: it is more than a line holds, and successors do not find it any more.
    #[must_use]
    pub fn receive(&mut self, bytes: &[u8]) -> bool {
        let fits = self.append(INPUT, bytes);
        self.word(RECEIVED).store(self.rooms[INPUT].end, Ordering::Release);
        fits
    }

    /// Takes output, before it is proposed what it answers. `false`: as [`receive`](Line::receive).
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

    /// Takes note that bytes before this place are of no use any more.
    fn drop_before(&mut self, which: usize, place: u64) {
        let room = &mut self.rooms[which];
        room.start = room.start.max(place.min(room.end));
        if room.origin == 0 {
            return;
        }
        if room.start == room.end {
            return self.leave_large(which);
        }
        // Whole pieces, as they lie in the room.
        let begin = room.origin - 1;
        let until = begin + (room.start - begin) / PIECE_BYTES * PIECE_BYTES;
        while self.rooms[which].given_back < until {
            let offset = (self.rooms[which].given_back - begin) % LARGE_BYTES as u64;
            self.give_back(large_room(self.slot, which) + offset as usize, PIECE_BYTES as usize);
            self.rooms[which].given_back += PIECE_BYTES;
        }
    }

    /// Best effort: memory that is not given back is used again.
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

    /// It is settled up to there: what stands before that is committed, its output is to be sent, and its input of no use any more.
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

    /// Whether the state of the connection may change: there is room for one that is not settled.
    pub fn may_change(&self) -> bool {
        self.states.contains(&NONE) || self.states.iter().all(|from| *from <= self.settled.input)
    }

    /// From this place of the input on this is the connection's state.
    ///
    /// # Panics
    /// When it is longer than [`MOST_STATE_BYTES`].
    pub fn change(&mut self, from: u64, state: &[u8]) {
        assert!(state.len() <= MOST_STATE_BYTES, "a state of {} bytes", state.len());
        // One of the same place goes before all, then one that is not there, then the older one.
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

    /// Successors do not find it any more.
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

/// Where a place of a stream stands in the memory, and for how many bytes on.
fn where_is(slot: u32, which: usize, origin: u64, place: u64) -> (usize, usize) {
    let (room, bytes, begin) = match origin {
        0 => (SMALL + (slot as usize * 2 + which) * SMALL_BYTES, SMALL_BYTES, 0),
        origin => (large_room(slot, which), LARGE_BYTES, origin - 1),
    };
    let offset = (place.wrapping_sub(begin) % bytes as u64) as usize;
    (room + offset, bytes - offset)
}

/// What another process has left: for its successor, when that is dead or has let go.
#[derive(Debug)]
pub struct Remains {
    file: File,
    scratch_of: u64,
    scratch_from: u64,
    lines: HashMap<u64, (u32, [u64; WORDS])>,
}

/// A connection as it was left.
#[derive(Debug, PartialEq, Eq)]
pub struct Remainder {
    /// How far it is settled: by the ledger, or by the log's word where that is further.
    pub settled: Settled,
    /// What holds of it there.
    pub state: Vec<u8>,
    /// What its client has sent from there on and has been read out of the kernel.
    pub input: Vec<u8>,
    /// What is to be sent that the kernel has not.
    pub output: Vec<u8>,
}

impl Remains {
    /// Reads which lines there are. `file` is a ledger's.
    ///
    /// # Errors
    /// When it is none, or cannot be read.
    pub fn read(file: OwnedFd) -> io::Result<Remains> {
        let file = File::from(file);
        if file.metadata()?.len() != END as u64 {
            return Err(io::Error::other("it is no ledger of this build"));
        }
        let mut header = [0; LINES];
        file.read_exact_at(&mut header, HEADER as u64)?;
        let word = |at: usize| u64::from_le_bytes(header[8 * at..8 * at + 8].try_into().expect("8 bytes"));
        let used = (word(USED) as usize).min(SLOTS);
        let mut bytes = vec![0; used * LINE_BYTES];
        file.read_exact_at(&mut bytes, LINES as u64)?;
        let mut lines = HashMap::new();
        for (slot, line) in bytes.chunks_exact(LINE_BYTES).enumerate() {
            let mut words = [0; WORDS];
            for (word, bytes) in words.iter_mut().zip(line.chunks_exact(8)) {
                *word = u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
            }
            if words[COOKIE] != 0 {
                lines.insert(words[COOKIE], (slot as u32, words));
            }
        }
        Ok(Remains { file, scratch_of: word(SCRATCH_OF), scratch_from: word(SCRATCH_FROM), lines })
    }

    /// Whether it has a line of that connection.
    pub fn has(&self, cookie: u64) -> bool {
        self.lines.contains_key(&cookie)
    }

    /// A connection, of which the kernel says that so many bytes have been read and written, and the log that it is executed up to `mark`: a place in its input, and one in its
    /// output.
    ///
    /// # Errors
    /// When that does not go together with what is noted: it cannot be gone on with.
    pub fn of(&self, cookie: u64, (read, written): (u64, u64), mark: Option<(u64, u64)>) -> io::Result<Remainder> {
        let wrong = |why: String| Err(io::Error::other(why));
        let Some((slot, words)) = self.lines.get(&cookie) else { return wrong("nothing is noted of it".into()) };
        let at = SETTLED + 3 * (words[WHICH] as usize & 1);
        let mut settled = Settled { input: words[at], output: words[at + 1], sent: words[at + 2] };
        if let Some((input, output)) = mark.filter(|(input, _)| *input > settled.input) {
            settled = Settled { input, output, sent: output };
        }
        if written > settled.sent || read < settled.input {
            return wrong(format!(
                "{read} bytes were read and {written} written, and it is settled up to {} and {}",
                settled.input, settled.sent
            ));
        }
        let states = (0..2).map(|at| (words[STATE + 2 * at], at)).filter(|(from, _)| *from != NONE && *from <= settled.input);
        let Some((_, state)) = states.max() else { return wrong("its state is not noted".into()) };
        let mut text = vec![0; (words[STATE + 2 * state + 1] as usize).min(MOST_STATE_BYTES)];
        self.file.read_exact_at(&mut text, state_room(*slot, state) as u64)?;
        let received = words[RECEIVED];
        let mut input = self.stream(*slot, INPUT, words[ORIGIN + INPUT], settled.input, received.max(settled.input).min(read))?;
        let missing = read.saturating_sub(received) as usize;
        if missing > 0 {
            if (self.scratch_of, self.scratch_from) != (cookie, received) || missing > SCRATCH_BYTES {
                return wrong(format!("{missing} bytes that were read of it are not there"));
            }
            let before = input.len();
            input.resize(before + missing, 0);
            self.file.read_exact_at(&mut input[before..], SCRATCH as u64)?;
        }
        let output = self.stream(*slot, OUTPUT, words[ORIGIN + OUTPUT], written, settled.sent)?;
        Ok(Remainder { settled, state: text, input, output })
    }

    fn stream(&self, slot: u32, which: usize, origin: u64, from: u64, to: u64) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; to.saturating_sub(from).min(LARGE_BYTES as u64) as usize];
        let (mut place, mut done) = (from, 0);
        while done < bytes.len() {
            let (at, most) = where_is(slot, which, origin, place);
            let now = most.min(bytes.len() - done);
            self.file.read_exact_at(&mut bytes[done..done + now], at as u64)?;
            (place, done) = (place + now as u64, done + now);
        }
        Ok(bytes)
    }
}

/// A duplicate of the file of a process's own ledger, for [`Remains::read`].
///
/// # Errors
/// When no descriptor is left.
pub fn own_file(ledger: &Ledger) -> io::Result<OwnedFd> {
    // SAFETY: `duplicate` owns what the call has made for it.
    let duplicate = sys::checked(unsafe { libc::syscall(libc::SYS_fcntl, ledger.file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 0) })?;
    // SAFETY: as above.
    Ok(unsafe { OwnedFd::from_raw_fd(duplicate as i32) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger() -> (Ledger, Scratch) {
        let mut ledger = Ledger::create().expect("memory");
        let scratch = ledger.scratch();
        (ledger, scratch)
    }

    fn remains(ledger: &Ledger) -> Remains {
        Remains::read(own_file(ledger).expect("a descriptor")).expect("a ledger")
    }

    fn settled(input: u64, output: u64) -> Settled {
        Settled { input, output, sent: output }
    }

    fn read(scratch: &mut Scratch, line: &mut Line, bytes: &[u8]) {
        scratch.of(line)[..bytes.len()].copy_from_slice(bytes);
        assert!(line.receive(bytes));
    }

    #[test]
    fn what_is_not_settled_is_executed_again_and_what_is_settled_is_sent() {
        let (mut ledger, mut scratch) = ledger();
        let mut line = ledger.begin(7, Settled::default(), 0, b"new").expect("a slot");
        assert!(!remains(&ledger).has(7), "it is shown when all of it is there");
        Ledger::show(&line);
        read(&mut scratch, &mut line, b"SET a 1\nGET a\n");
        assert!(line.produce(b"+OK\n") && line.produce(b"1\n"));
        let left = |read, written, mark| remains(&ledger).of(7, (read, written), mark).expect("whole");
        let all = left(14, 0, None);
        assert_eq!(
            (&all.input[..], &all.output[..], &all.state[..]),
            (&b"SET a 1\nGET a\n"[..], &b""[..], &b"new"[..]),
            "nothing is settled"
        );
        let marked = left(14, 0, Some((8, 4)));
        assert_eq!((&marked.input[..], &marked.output[..]), (&b"GET a\n"[..], &b"+OK\n"[..]), "the change is in the log");
        line.settle(settled(14, 6));
        let left = |read, written, mark| remains(&ledger).of(7, (read, written), mark);
        let sent = left(14, 5, Some((8, 4))).expect("whole");
        assert_eq!((&sent.input[..], &sent.output[..], sent.settled), (&b""[..], &b"\n"[..], settled(14, 6)));
        assert!(left(14, 7, None).is_err(), "more than was to be sent");
        assert!(left(15, 6, None).is_err(), "a byte that nobody has");
        ledger.end(line);
        assert!(!remains(&ledger).has(7));
    }

    #[test]
    fn what_was_read_and_not_noted_is_in_the_scratch() {
        let (mut ledger, mut scratch) = ledger();
        let mut line = ledger.begin(7, Settled::default(), 0, b"").expect("a slot");
        Ledger::show(&line);
        read(&mut scratch, &mut line, b"one ");
        scratch.of(&line)[..4].copy_from_slice(b"two ");
        let left = remains(&ledger).of(7, (8, 0), None).expect("whole");
        assert_eq!(left.input, b"one two ");
        let other = ledger.begin(8, Settled::default(), 0, b"").expect("a slot");
        scratch.of(&other);
        assert!(remains(&ledger).of(7, (8, 0), None).is_err(), "another one's bytes are there");
    }

    #[test]
    fn long_streams_are_kept_whole_and_their_memory_is_given_back() {
        let (mut ledger, _scratch) = ledger();
        let start = Settled { input: 0, output: 4000, sent: 4000 };
        let mut line = ledger.begin(7, start, 4000, b"").expect("a slot");
        Ledger::show(&line);
        let bytes: Vec<u8> = (0..9_000_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        let mut produced = 0;
        for part in [100, 3_000, 5_000, 2_000_000, 4_000_000] {
            assert!(line.produce(&bytes[produced..produced + part]));
            produced += part;
            let end = 4000 + produced as u64;
            line.settle(settled(0, end));
            for from in [0, produced / 2, produced - 1] {
                let left = remains(&ledger).of(7, (0, 4000 + from as u64), None).expect("whole");
                assert!(left.output == bytes[from..produced], "{part} from {from}");
            }
        }
        let held = |ledger: &Ledger| std::os::unix::fs::MetadataExt::blocks(&ledger.file.metadata().expect("a file")) * 512;
        let before = held(&ledger);
        line.written(4000 + 5_000_000);
        let after = held(&ledger);
        assert!(after + 4_000_000 < before, "{after} of {before}");
        let left = remains(&ledger).of(7, (0, 4000 + 5_000_000), None).expect("whole");
        assert!(left.output == bytes[5_000_000..produced]);
        line.written(4000 + produced as u64);
        assert!(held(&ledger) < 1 << 20, "{}", held(&ledger));
        assert!(line.produce(b"short"));
        line.settle(settled(0, line.produced()));
        assert_eq!(remains(&ledger).of(7, (0, 4000 + produced as u64), None).expect("whole").output, b"short");
    }

    #[test]
    fn the_state_is_that_of_the_settled_place() {
        let (mut ledger, mut scratch) = ledger();
        let mut line = ledger.begin(7, Settled::default(), 0, b"new").expect("a slot");
        Ledger::show(&line);
        read(&mut scratch, &mut line, b"HELLO 3\nAUTH x\n");
        assert!(line.may_change());
        line.change(8, b"three");
        assert!(!line.may_change(), "two are needed");
        let state = |mark| remains(&ledger).of(7, (15, 0), mark).expect("whole").state;
        assert_eq!((state(None), state(Some((8, 0)))), (b"new".to_vec(), b"three".to_vec()));
        line.settle(settled(8, 0));
        assert!(line.may_change());
        line.change(15, b"known");
        let state = |mark| remains(&ledger).of(7, (15, 0), mark).expect("whole").state;
        assert_eq!((state(None), state(Some((15, 0)))), (b"three".to_vec(), b"known".to_vec()));
    }

    #[test]
    fn what_is_no_ledger_is_refused() {
        let file = File::open("/proc/self/exe").expect("this program");
        assert!(Remains::read(file.into()).is_err());
    }
}
