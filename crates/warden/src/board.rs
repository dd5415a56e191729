//! The board: memory in which a warden shows its state to the programs of its host. A program that polls the board makes no system call.
//!
//! | words | what | who writes | which way | order |
//! |---|---|---|---|---|
//! | 0 | the bell: how often anything has changed; sleepers are woken when it moves | eye and desk | up | release, after what has changed |
//! | 1 | what this is, and the version of its layout | the desk, once | | release, after 2, 4 and 5 |
//! | 2 | the warden's life: a random number, never 0 | the desk, once | | |
//! | 4 | when the warden began | the desk, once | | |
//! | 5 | which marks it has: see [`Marking`] | the desk, once | | |
//! | 16 to 23 | the death word of the warden's eye, the thread that hears deaths, and what belongs to it | the eye, and the kernel when it dies | held, then marked | the kernel's |
//! | 64 + seat | how many messages have been put into a program's socket | eye and desk | up | release, after the message |
//! | 512 + 8 slot | the state of an application's life, see [`State`], its [`Evidence`] in the second byte, and the slot's generation in the high half | the desk; the eye ends lives | free, awaited, alive, failed or left, free | release, after + 1 to + 3 |
//! | + 1 | its number, and its host's in the high half (0: this one) | the desk | | after a release fence that follows the free state |
//! | + 2 | its incarnation | the desk | | as + 1 |
//! | + 3 | its process, as this host numbers it; 0 for one of another host | the desk | | as + 1 |
//! | + 4 | when this warden learned its end; 0 until then | the thread that changed the state | | release, after the state and + 5; as + 1 where this host hears of a life of another host only after its end |
//! | + 5, + 6 | the secret of a life that has certainly failed; else 0 | the thread that changed the state | | as + 4 |
//!
//! Readers load every word with acquire, which pairs with the releases. A slot holds one life. The thread that ends the life does so by one compare-and-swap of
//! the state word, generation included. So an end is reported once, with one evidence, and a thread that is late cannot end another life in the same slot. Only
//! the desk frees a slot, after it has heard of the end; the next life in it has a new generation. Everything read between two loads that find the same state
//! word belongs to one life.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use martlet_fabric::host::page::Page;
use martlet_fabric::host::{DeathWords, DeathWordsError, OWNER_DIED, WORDS_EACH, wake_word};
use martlet_fabric::primitive::{Ordering, fence};
use martlet_protocol::detector::wardens::{AppLife, Secret};

use crate::AppId;
use crate::wire::Malformed;

const BELL: usize = 0;
const MAGIC: usize = 1;
const LIFE: usize = 2;
const STARTED: usize = 4;
const MARKING: usize = 5;
const EYE: usize = 16;
const _: () = assert!(EYE + WORDS_EACH <= MAIL);
const MAIL: usize = 64;
const SLOTS: usize = 512;
const SLOT_WORDS: usize = 8;
/// The most programs that a warden serves at a time.
pub const MAX_SEATS: usize = 256;
/// The most lives of applications that a warden keeps.
pub const MAX_SLOTS: usize = 512;
const WORDS: usize = SLOTS + SLOT_WORDS * MAX_SLOTS;
/// "martletw", and the layout's version.
const IS_BOARD: u64 = 0x7774_656c_7472_6d00 | 3;

/// The state of an application's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum State {
    /// The slot is free.
    Free = 0,
    /// A program monitors it, and it has not joined yet.
    Awaited = 1,
    /// It has joined, and as far as is known it is alive.
    Alive = 2,
    /// It has failed.
    Failed = 3,
    /// It has quit.
    Left = 4,
}

impl State {
    pub(crate) fn of(byte: u8) -> Result<State, Malformed> {
        let all = [State::Free, State::Awaited, State::Alive, State::Failed, State::Left];
        let unknown = Malformed::Field { field: "state", value: u64::from(byte), allowed: "0 to 4" };
        all.get(usize::from(byte)).copied().ok_or(unknown)
    }
}

impl std::fmt::Display for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            State::Free => "free",
            State::Awaited => "awaited",
            State::Alive => "alive",
            State::Failed => "failed",
            State::Left => "left",
        })
    }
}

/// Why an application counts as failed, and how certain that is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Evidence {
    /// The kernel marked the words of all threads that acted for it: none of them executes anything any more.
    Words = 1,
    /// The kernel says that the whole process has ended.
    Process = 2,
    /// The warden of its host says so, and proves it with the secret that the application had chosen.
    Certificate = 3,
    /// Its host has been silent for longer than the timeout: a presumption.
    Silence = 4,
    /// Programs inside the kernel marked the death of all threads that acted for it, or of the whole process, before the kernel's own words said so.
    Marks = 5,
}

impl Evidence {
    /// Whether it is certain that the application will do nothing more.
    pub fn is_certain(self) -> bool {
        self != Evidence::Silence
    }

    pub(crate) fn of(byte: u8) -> Option<Evidence> {
        let all = [Evidence::Words, Evidence::Process, Evidence::Certificate, Evidence::Silence, Evidence::Marks];
        all.into_iter().find(|one| *one as u8 == byte)
    }
}

impl std::fmt::Display for Evidence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Evidence::Words => "words",
            Evidence::Process => "process",
            Evidence::Certificate => "certificate",
            Evidence::Silence => "silence",
            Evidence::Marks => "marks",
        })
    }
}

/// Which [marks](martlet_fabric::host::marks) a warden has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Marking {
    /// None: the kernel's programs are not permitted, or not wanted.
    Nothing = 0,
    /// Of threads.
    Threads = 1,
    /// Of threads, and of whole processes.
    Processes = 2,
}

/// A slot, and the life in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot {
    /// Which slot.
    pub index: u16,
    /// Which of the lives that have had this slot.
    pub generation: u32,
}

/// What a slot shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The state of the life.
    pub state: State,
    /// Why it has failed, if it has.
    pub evidence: Option<Evidence>,
    /// Which life of the application it is; 0 until it has joined.
    pub incarnation: u64,
    /// When the warden learned its end, in nanoseconds of CLOCK_MONOTONIC; 0 until then, and for a moment after.
    pub at_ns: u64,
    /// The secret of a life that has certainly failed, once `at_ns` is set. With it other processes recognise that the life's warden says so
    /// ([`certificate`](martlet_protocol::detector::certificate)).
    pub secret: Option<Secret>,
}

/// How a life ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End {
    pub(crate) state: State,
    pub(crate) evidence: Option<Evidence>,
    /// When the warden learned of it.
    pub(crate) at_ns: u64,
    /// Its secret, while its end is not a certain failure; when it is, the secret is revealed.
    pub(crate) secret: Secret,
}

impl End {
    /// A failure, as certain as `evidence` makes it.
    pub(crate) fn failure(evidence: Evidence, at_ns: u64, secret: Secret) -> End {
        End { state: State::Failed, evidence: Some(evidence), at_ns, secret }
    }

    /// The words to store after the state has changed: the secret, if it is to be revealed, and the time.
    fn words(&self) -> [(usize, u64); 3] {
        let is_certain = self.state == State::Failed && self.evidence.is_some_and(Evidence::is_certain);
        let secret = if is_certain { self.secret } else { [0; 16] };
        let [first, second] = [0, 8].map(|at| u64::from_le_bytes(std::array::from_fn(|byte| secret[at + byte])));
        [(5, first), (6, second), (4, self.at_ns)]
    }
}

/// The board, as mapped by the warden or by a program.
#[derive(Clone, Debug)]
pub struct Board(Page);

const fn word_of(slot: u16, word: usize) -> usize {
    SLOTS + SLOT_WORDS * slot as usize + word
}

const fn state_word(state: State, evidence: Option<Evidence>, generation: u32) -> u64 {
    let evidence = match evidence {
        Some(evidence) => evidence as u64,
        None => 0,
    };
    state as u64 | evidence << 8 | (generation as u64) << 32
}

fn look(slot: Slot, mut load: impl FnMut(usize) -> u64) -> Option<Seen> {
    let mut state = load(word_of(slot.index, 0));
    // The state changes at most three times in a life.
    while state >> 32 == u64::from(slot.generation) {
        // The time is loaded before the words that are stored ahead of it.
        let (incarnation, at_ns) = (load(word_of(slot.index, 2)), load(word_of(slot.index, 4)));
        let secret = [5, 6].map(|word| load(word_of(slot.index, word)));
        let before = std::mem::replace(&mut state, load(word_of(slot.index, 0)));
        if before == state {
            let state = State::of(before as u8).ok().filter(|state| *state != State::Free)?;
            let evidence = Evidence::of((before >> 8) as u8);
            let is_certain = state == State::Failed && evidence.is_some_and(Evidence::is_certain);
            let secret = Some(secret).filter(|secret| is_certain && at_ns != 0 && *secret != [0; 2]).map(|[first, second]| {
                let (first, second) = (first.to_le_bytes(), second.to_le_bytes());
                std::array::from_fn(|byte| if byte < 8 { first[byte] } else { second[byte - 8] })
            });
            return Some(Seen { state, evidence, incarnation, at_ns, secret });
        }
    }
    None
}

impl Board {
    pub(crate) fn create(life: u64, now_ns: u64, marking: Marking) -> io::Result<Board> {
        let page = Page::create("martlet-board", WORDS)?;
        page.words()[MARKING].store(marking as u64, Ordering::Relaxed);
        page.words()[LIFE].store(life, Ordering::Relaxed);
        page.words()[STARTED].store(now_ns, Ordering::Relaxed);
        page.words()[MAGIC].store(IS_BOARD, Ordering::Release);
        Ok(Board(page))
    }

    /// Maps a board that a warden has handed out.
    pub(crate) fn open(fd: OwnedFd) -> io::Result<Board> {
        let board = Board(Page::open(fd, WORDS)?);
        match board.0.load(MAGIC) {
            IS_BOARD => Ok(board),
            other => Err(io::Error::new(io::ErrorKind::InvalidData, format!("the board begins with {other:#x}, not {IS_BOARD:#x}"))),
        }
    }

    pub(crate) fn for_readers(&self) -> io::Result<OwnedFd> {
        self.0.for_readers()
    }

    /// The warden's life.
    pub fn life(&self) -> u64 {
        self.0.load(LIFE)
    }

    /// When the warden began, in nanoseconds of CLOCK_MONOTONIC.
    pub fn started_ns(&self) -> u64 {
        self.0.load(STARTED)
    }

    /// Which marks the warden has.
    pub fn marking(&self) -> Marking {
        let all = [Marking::Nothing, Marking::Threads, Marking::Processes];
        all.into_iter().find(|one| *one as u64 == self.0.load(MARKING)).unwrap_or(Marking::Nothing)
    }

    /// How often anything on the board has changed.
    pub fn changes(&self) -> u64 {
        self.0.load(BELL)
    }

    /// Sleeps until [`Board::changes`] has changed or the warden has died, but no longer than given; it may return early.
    pub fn sleep(&self, changes: u64, at_most: Option<std::time::Duration>) {
        let eye = self.0.load(EYE);
        if eye & OWNER_DIED == 0 {
            martlet_fabric::host::sleep_on(&[(self.0.sleep_word(BELL), changes as u32), (self.0.sleep_word(EYE), eye as u32)], at_most);
        }
    }

    /// Whether the kernel says that the warden has died.
    pub fn warden_died(&self) -> bool {
        self.0.load(EYE) & OWNER_DIED != 0
    }

    /// What the slot shows, unless the life has given way to another one.
    pub fn look(&self, slot: Slot) -> Option<Seen> {
        look(slot, |word| self.0.load(word))
    }

    /// The life in a slot, in the slot's present generation.
    pub(crate) fn app_life(&self, slot: Slot) -> AppLife {
        AppLife { app: self.0.load(word_of(slot.index, 1)) as u32, incarnation: self.0.load(word_of(slot.index, 2)) }
    }

    /// Whether the life in the slot belongs to an application of this host.
    pub fn is_of_this_host(&self, slot: Slot) -> bool {
        self.0.load(word_of(slot.index, 1)) >> 32 == 0
    }

    /// How many messages have been put into the socket of a seat.
    pub(crate) fn mail(&self, seat: u8) -> u64 {
        self.0.load(MAIL + usize::from(seat))
    }

    pub(crate) fn register_eye(&self) -> Result<DeathWords, DeathWordsError> {
        self.0.register_death_words(&[EYE])
    }

    pub(crate) fn count_mail(&self, seat: u8) {
        self.0.words()[MAIL + usize::from(seat)].fetch_add(1, Ordering::Release);
    }

    fn ring(&self) {
        let bell = &self.0.words()[BELL];
        bell.fetch_add(1, Ordering::Release);
        wake_word(bell);
    }

    /// Begins a life in a slot that the desk knows to be free, awaited or already alive.
    pub(crate) fn begin(&self, slot: Slot, app: AppId, host: u32, incarnation: u64, pid: u32, state: State) {
        self.fill(
            slot,
            [u64::from(app.get()) | u64::from(host) << 32, incarnation, u64::from(pid), 0, 0, 0],
            state_word(state, None, slot.generation),
        );
    }

    /// Shows a life of another host that was over before this host heard of it, in a slot that the desk knows to be free or awaited. No reader ever sees it
    /// alive.
    pub(crate) fn begin_over(&self, slot: Slot, life: AppLife, host: u32, end: &End) {
        let [(_, first), (_, second), (_, at_ns)] = end.words();
        self.fill(
            slot,
            [u64::from(life.app) | u64::from(host) << 32, life.incarnation, 0, at_ns, first, second],
            state_word(end.state, end.evidence, slot.generation),
        );
    }

    fn fill(&self, slot: Slot, life: [u64; 6], state: u64) {
        let words = self.0.words();
        // A reader that finds one of the stores below also finds, when it looks at the state again, that the slot has been freed or that its own generation is
        // gone.
        fence(Ordering::Release);
        for (word, value) in (1..).zip(life) {
            words[word_of(slot.index, word)].store(value, Ordering::Relaxed);
        }
        words[word_of(slot.index, 0)].store(state, Ordering::Release);
        self.ring();
    }

    /// Ends a life that is alive. Returns whether this call did it: then no other call has reported the end, or will.
    pub(crate) fn end(&self, slot: Slot, end: &End) -> bool {
        let words = self.0.words();
        let (alive, ended) = (state_word(State::Alive, None, slot.generation), state_word(end.state, end.evidence, slot.generation));
        let is_first = words[word_of(slot.index, 0)].compare_exchange(alive, ended, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if is_first {
            for (word, value) in end.words() {
                words[word_of(slot.index, word)].store(value, Ordering::Release);
            }
            self.ring();
        }
        is_first
    }

    /// Frees a slot. Readers that look at it from now on find nothing.
    pub(crate) fn free(&self, slot: Slot) {
        self.0.words()[word_of(slot.index, 0)].store(state_word(State::Free, None, slot.generation), Ordering::Release);
        self.ring();
    }
}

impl AsFd for Board {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const APP: AppId = AppId(7);

    fn slot(generation: u32) -> Slot {
        Slot { index: 3, generation }
    }

    fn failure(evidence: Evidence, at_ns: u64) -> End {
        End::failure(evidence, at_ns, [9; 16])
    }

    const LEFT: End = End { state: State::Left, evidence: None, at_ns: 5, secret: [9; 16] };

    #[test]
    fn an_end_is_told_once_with_one_evidence() {
        let board = Board::create(9, 1, Marking::Nothing).expect("memory");
        let reader = Board::open(board.for_readers().expect("a descriptor")).expect("a board");
        assert_eq!((reader.life(), reader.look(slot(1))), (9, None));
        board.begin(slot(1), APP, 0, 0, 0, State::Awaited);
        assert!(!board.end(slot(1), &failure(Evidence::Words, 5)), "it has not joined");
        board.begin(slot(1), APP, 0, 42, 100, State::Alive);
        let before = reader.changes();
        assert!(board.end(slot(1), &failure(Evidence::Words, 6)));
        assert!(!board.end(slot(1), &failure(Evidence::Process, 7)));
        assert!(reader.changes() > before);
        let seen = Seen { state: State::Failed, evidence: Some(Evidence::Words), incarnation: 42, at_ns: 6, secret: Some([9; 16]) };
        assert_eq!(reader.look(slot(1)), Some(seen));
    }

    #[test]
    fn a_secret_is_revealed_by_a_certain_failure_and_by_nothing_else() {
        let presumed = failure(Evidence::Silence, 6);
        for (end, revealed) in [(failure(Evidence::Process, 6), true), (presumed, false), (LEFT, false)] {
            let board = Board::create(9, 1, Marking::Nothing).expect("memory");
            board.begin(slot(1), APP, 0, 42, 100, State::Alive);
            assert_eq!(board.look(slot(1)).and_then(|seen| seen.secret), None);
            assert!(board.end(slot(1), &end));
            assert_eq!(board.look(slot(1)).and_then(|seen| seen.secret), revealed.then_some([9; 16]), "{end:?}");
            assert_eq!(board.0.load(word_of(3, 5)) != 0, revealed, "nor does it stand there unseen");
            let life = AppLife { app: 7, incarnation: 43 };
            board.begin_over(slot(2), life, 2, &end);
            assert_eq!(board.look(slot(2)).and_then(|seen| seen.secret), revealed.then_some([9; 16]), "{end:?}");
        }
    }

    #[test]
    fn a_late_word_of_an_earlier_life_ends_no_later_one() {
        let board = Board::create(9, 1, Marking::Nothing).expect("memory");
        board.begin(slot(1), APP, 0, 42, 100, State::Alive);
        assert!(board.end(slot(1), &LEFT));
        board.free(slot(1));
        board.begin(slot(2), APP, 0, 43, 100, State::Alive);
        assert!(!board.end(slot(1), &failure(Evidence::Process, 6)));
        assert_eq!(board.look(slot(1)), None);
        assert_eq!(board.look(slot(2)).map(|seen| seen.state), Some(State::Alive));
    }

    #[test]
    fn a_life_is_never_seen_with_what_belongs_to_the_next_one() {
        // All points between a reader's loads at which the desk may free the slot, and all points that it may have reached with the next life.
        for freed in 0..7 {
            for begun in freed..7 {
                let board = Board::create(9, 1, Marking::Nothing).expect("memory");
                board.begin(slot(1), APP, 0, 42, 100, State::Alive);
                assert!(board.end(slot(1), &failure(Evidence::Words, 6)));
                let mut loads = 0;
                let seen = look(slot(1), |word| {
                    if loads == freed {
                        board.free(slot(1));
                    }
                    if loads == begun {
                        board.0.words()[word_of(3, 2)].store(43, Ordering::Relaxed);
                    }
                    loads += 1;
                    board.0.load(word)
                });
                assert!(seen.is_none_or(|seen| (seen.state, seen.incarnation) == (State::Failed, 42)), "{freed} {begun}: {seen:?}");
            }
        }
    }

    #[test]
    fn memory_that_is_no_board_is_refused() {
        let other = Page::create("martlet-test", WORDS).expect("memory");
        let error = Board::open(other.for_readers().expect("a descriptor")).expect_err("no board");
        assert!(error.to_string().contains("the board begins with 0x0"), "{error}");
    }
}
