//! Death words: robust futexes in shared memory, by which the kernel tells other processes that a thread has died.
//!
//! A thread registers words of a public region of its process. Each word holds the thread's id and FUTEX_WAITERS in its low 32 bits. When the thread
//! ends without having given the words back, by SIGKILL or otherwise, the kernel sets FUTEX_OWNER_DIED in each, clears the id, and wakes one waiter
//! per word. It does so before the process's memory is torn down: microseconds after the signal.
//!
//! The kernel knows only one robust list per thread, and that list belongs to the C library, for robust pthread mutexes. So a death word is such a
//! mutex, shared between processes, which its thread locks once and for all. The library enters it in the list, and robust mutexes of the rest of the
//! program stay in the list beside it.
//!
//! A mutex is longer than its word: a death word takes [`WORDS_EACH`] words of the region. Two of them mean something to other processes: the first,
//! and the last, which says how many threads have held the death word so far. The last one tells apart two threads that have had the same id
//! ([`Holder`]).

use std::io;
use std::marker::PhantomData;

use super::futex;
use super::marks::{Marks, Moment};
use super::memory::{Area, OwnRegion};
use crate::primitive::{Ordering, fence};

/// FUTEX_WAITERS: makes the kernel wake a waiter when it sets [`OWNER_DIED`].
pub const WAITERS: u64 = 0x8000_0000;
/// FUTEX_OWNER_DIED: the thread that held the word has died.
pub const OWNER_DIED: u64 = 0x4000_0000;
/// FUTEX_TID_MASK: the thread's id.
const TID_MASK: u64 = 0x3fff_ffff;
/// The most death words of one thread. It is half of what the kernel walks of a list (ROBUST_LIST_LIMIT), which leaves room for the program's own
/// mutexes.
pub const MAX_WORDS: usize = 1024;
/// The least distance between death words, in words: a cache line. The C library's mutex is no longer than that.
pub const WORDS_EACH: usize = 8;
/// Words that a mutex covers.
const MUTEX_WORDS: usize = size_of::<libc::pthread_mutex_t>().div_ceil(8);
/// Which word of a death word counts the threads that have held it.
const HOLDERS: usize = WORDS_EACH - 1;
const _: () = assert!(MUTEX_WORDS <= HOLDERS && align_of::<libc::pthread_mutex_t>() <= 8);

/// Why death words were not registered.
#[derive(Debug, thiserror::Error)]
pub enum DeathWordsError {
    /// The region was never declared.
    #[error("this process declares no public region {0}")]
    Region(u8),
    /// A word that the region does not have, or that lacks room for all that a death word takes.
    #[error("a death word at word {word} of a region that has {words}; it takes {WORDS_EACH}")]
    Word {
        /// The index asked for.
        word: usize,
        /// How many words there are.
        words: usize,
    },
    /// Two words, or the same word twice, closer to each other than [`WORDS_EACH`].
    #[error("death words at words {0} and {1} of a region; each takes {WORDS_EACH}")]
    Overlap(usize, usize),
    /// No words, or more than a thread may have.
    #[error("{0} death words; allowed are 1 to {MAX_WORDS}")]
    Count(usize),
    /// A thread holds the word, or died holding it.
    #[error("word {word} of the region, {value:#x}, is a death word already")]
    Held {
        /// Its index.
        word: usize,
        /// What it holds.
        value: u64,
    },
    /// The C library does not keep the futex of a mutex in the mutex's first four bytes.
    #[error("this C library's mutexes are none that can serve as death words: the first word of one that is locked holds {0:#x}")]
    Library(u64),
    /// The system refuses.
    #[error("a robust mutex cannot be had: {0}")]
    Mutex(#[from] io::Error),
}

/// The death words of the thread that registered them. Dropping this on that thread gives them back: they read 0, which is a clean end and no death.
/// If the thread ends without dropping it, the kernel says that the thread has died.
#[must_use = "dropped, the words are given back"]
pub struct DeathWords {
    area: Area,
    /// The words that are locked.
    words: Vec<usize>,
    /// Ties it to its thread: no other thread may unlock the words.
    _thread: PhantomData<*const ()>,
}

impl std::fmt::Debug for DeathWords {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeathWords").field("words", &self.words).finish_non_exhaustive()
    }
}

/// The result of a function of the pthread family.
fn checked(error: libc::c_int) -> io::Result<()> {
    if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
}

/// The mutex that begins at a word of the area.
fn mutex(area: &Area, word: usize) -> *mut libc::pthread_mutex_t {
    area.memory()[word..word + MUTEX_WORDS].as_ptr().cast_mut().cast()
}

/// Makes and locks a robust mutex at a word of the area that belongs to no other mutex.
fn lock(area: &Area, word: usize) -> io::Result<()> {
    let mut kind = std::mem::MaybeUninit::<libc::pthread_mutexattr_t>::uninit();
    let kind = kind.as_mut_ptr();
    // SAFETY: `kind` is initialised by the first call and used by those that follow. The mutex's words are ours to write, and aligned: `register_in`
    // checks that they are within the area, which `DeathWords` keeps mapped until the mutex is unlocked, and that they are in no other mutex. Others
    // load the first word at any time. The library writes its low half, the futex, by atomic instructions, and its high half, a count that nobody
    // looks at, by aligned stores.
    unsafe {
        checked(libc::pthread_mutexattr_init(kind))?;
        let made = checked(libc::pthread_mutexattr_setpshared(kind, libc::PTHREAD_PROCESS_SHARED))
            .and_then(|()| checked(libc::pthread_mutexattr_setrobust(kind, libc::PTHREAD_MUTEX_ROBUST)))
            .and_then(|()| checked(libc::pthread_mutex_init(mutex(area, word), kind)));
        libc::pthread_mutexattr_destroy(kind);
        made?;
        checked(libc::pthread_mutex_lock(mutex(area, word)))
    }
}

/// Unlocks the mutex, and leaves zeros.
fn unlock(area: &Area, word: usize) {
    // SAFETY: the mutex was locked by `lock`, on this thread, and its memory is still mapped.
    let unlocked = unsafe { checked(libc::pthread_mutex_unlock(mutex(area, word))) };
    match unlocked {
        // It is no longer in any list, and no thread waits to lock it.
        Ok(()) => area.memory()[word..word + MUTEX_WORDS].iter().for_each(|word| word.store(0, Ordering::Release)),
        // This happens in the child of a fork whose parent held it: there, it is in no list either.
        Err(error) => tracing::error!(%error, "a death word cannot be given back"),
    }
}

impl DeathWords {
    /// See [`OwnRegion::register_death_words`].
    pub(crate) fn register_in(area: Area, words: &[usize]) -> Result<DeathWords, DeathWordsError> {
        let mut words = words.to_vec();
        words.sort_unstable();
        let memory = area.memory();
        if words.is_empty() || words.len() > MAX_WORDS {
            return Err(DeathWordsError::Count(words.len()));
        }
        if let Some(near) = words.windows(2).find(|pair| pair[1] - pair[0] < WORDS_EACH) {
            return Err(DeathWordsError::Overlap(near[0], near[1]));
        }
        if let Some(&word) = words.iter().find(|word| word.saturating_add(WORDS_EACH) > memory.len()) {
            return Err(DeathWordsError::Word { word, words: memory.len() });
        }
        let value = |word: usize| memory[word].load(Ordering::Acquire);
        if let Some(&word) = words.iter().find(|word| value(**word) != 0) {
            return Err(DeathWordsError::Held { word, value: value(word) });
        }
        let mut held = DeathWords { area: area.clone(), words: Vec::with_capacity(words.len()), _thread: PhantomData };
        let tid = rustix::thread::gettid().as_raw_nonzero().get() as u64;
        // The last first: the kernel walks the list starting with what was entered last.
        for &word in words.iter().rev() {
            let holders = &memory[word + HOLDERS];
            holders.store(holders.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
            // A reader that sees the thread's id also sees this count.
            fence(Ordering::Release);
            lock(&area, word)?;
            held.words.push(word);
            let found = value(word);
            if found & TID_MASK != tid {
                return Err(DeathWordsError::Library(found));
            }
            memory[word].fetch_or(WAITERS, Ordering::Release);
        }
        Ok(held)
    }

    /// The low half of each word while this thread lives: its id and [`WAITERS`].
    pub fn value(&self) -> u64 {
        self.area.memory()[self.words[0]].load(Ordering::Relaxed) & (WAITERS | OWNER_DIED | TID_MASK)
    }
}

/// What a reader of a death word knows about the thread that holds it, once it has found that thread alive.
#[derive(Clone, Copy, Debug, Default)]
pub struct Holder {
    /// Which of the threads that have held the word, by the count.
    which: u64,
    /// When it was found alive.
    since: Option<Moment>,
}

/// What a reader finds out about a thread that may hold a death word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The word.
    pub word: u64,
    /// Whether [marks](super::marks) say that its thread has died, which the word does not say yet.
    pub is_marked: bool,
}

impl Reading {
    /// The word as it is going to be.
    pub fn foreseen(self) -> u64 {
        if self.is_marked { self.word | OWNER_DIED } else { self.word }
    }
}

impl Holder {
    /// Reads the death word at index `word`. `load` must load with acquire.
    pub fn read(&mut self, marks: &Marks, word: usize, load: impl Fn(usize) -> u64) -> Reading {
        let which = load(word + HOLDERS);
        let value = load(word);
        let thread = (value & TID_MASK) as u32;
        // If the count is the same before and after, the word is this holder's, or nobody's.
        if thread == 0 || value & OWNER_DIED != 0 || load(word + HOLDERS) != which {
            self.since = None;
            return Reading { word: value, is_marked: false };
        }
        let known = self.since.filter(|_| self.which == which);
        if known.is_none() {
            *self = Holder { which, since: Some(marks.now()) };
        }
        Reading { word: value, is_marked: known.is_some_and(|since| marks.has_died(thread, since)) }
    }
}

impl OwnRegion {
    /// Makes words of the region, given by index, the calling thread's death words. Use one for each watcher, since the kernel wakes only one waiter
    /// per word. From the return on, each holds the thread's id and [`WAITERS`] in its low half. Only the calling thread may write them, or the
    /// [`WORDS_EACH`] words that begin with each.
    ///
    /// Peers that can read the memory of the dead see the mark at any time. Other peers see it only if they read it before the kernel has torn down
    /// what they read it through.
    ///
    /// # Errors
    /// See [`DeathWordsError`].
    pub fn register_death_words(&self, words: &[usize]) -> Result<DeathWords, DeathWordsError> {
        DeathWords::register_in(self.0.clone(), words)
    }
}

impl Drop for DeathWords {
    fn drop(&mut self) {
        for word in &self.words {
            unlock(&self.area, *word);
        }
        // A process that waits for a word to change must be told of the clean end, too. The library wakes only one waiter, which may not be all.
        for word in &self.words {
            futex::wake_word(&self.area.memory()[*word]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::memory::{Access, Map, create};
    use super::*;

    fn area() -> Area {
        let fd = create("martlet-test", 4096).expect("memfd");
        Area::new(&Map::new(&fd, 0, 4096, Access::ReadWrite, false).expect("map"), 0, 4096)
    }

    /// The part of a word that means something to the kernel.
    fn load(area: &Area, word: usize) -> u64 {
        area.memory()[word].load(Ordering::Acquire) & (WAITERS | OWNER_DIED | TID_MASK)
    }

    #[test]
    fn a_thread_that_ends_without_giving_back_is_dead_in_every_word() {
        let area = area();
        let theirs = area.clone();
        let words = [8, 16, 24, 200];
        std::thread::spawn(move || {
            let held = DeathWords::register_in(theirs.clone(), &words).expect("registered");
            for word in words {
                assert_eq!(load(&theirs, word), held.value());
                assert_ne!(held.value() & TID_MASK, 0);
            }
            std::mem::forget(held);
        })
        .join()
        .expect("the thread ends");
        // `join` waits until the thread's memory is given back, which the kernel does after it has walked the robust list.
        for word in words {
            assert_eq!(load(&area, word), OWNER_DIED | WAITERS, "word {word}");
        }
        assert!(
            (0..8).chain(32..200).chain(208..512).all(|word| area.memory()[word].load(Ordering::Acquire) == 0),
            "what lies beside is untouched"
        );
        let error = DeathWords::register_in(area, &[16]).expect_err("somebody has died with it");
        assert!(error.to_string().ends_with("is a death word already"), "{error}");
    }

    #[test]
    fn a_thread_that_gives_its_words_back_is_not_dead() {
        let area = area();
        let theirs = area.clone();
        std::thread::spawn(move || {
            let held = DeathWords::register_in(theirs.clone(), &[8, 16]).expect("registered");
            assert!(matches!(DeathWords::register_in(theirs.clone(), &[16]), Err(DeathWordsError::Held { word: 16, .. })));
            // In any order, among others.
            let more = DeathWords::register_in(theirs.clone(), &[32]).expect("registered");
            drop(held);
            assert_eq!(load(&theirs, 32), more.value());
            drop(more);
            // Again, after having been given back.
            drop(DeathWords::register_in(theirs, &[8]).expect("registered"));
        })
        .join()
        .expect("the thread ends");
        let beside = |word: usize| word % WORDS_EACH != HOLDERS;
        assert!((0..512).filter(|word| beside(*word)).all(|word| area.memory()[word].load(Ordering::Acquire) == 0));
        assert_eq!([8, 16, 32].map(|word| area.memory()[word + HOLDERS].load(Ordering::Acquire)), [2, 1, 1]);
    }

    /// A robust mutex of the program's own, in memory that lives as long as the process.
    fn robust_mutex() -> *mut libc::pthread_mutex_t {
        let area = Box::leak(Box::new(area()));
        lock(area, 0).expect("a mutex");
        // SAFETY: this thread has just locked it.
        assert_eq!(unsafe { libc::pthread_mutex_unlock(mutex(area, 0)) }, 0);
        mutex(area, 0)
    }

    /// TRAPS 56: a program's own robust mutexes keep working on a thread that has death words, whichever was there first.
    #[test]
    fn trap_56_a_thread_with_death_words_may_hold_robust_mutexes() {
        let area = area();
        let theirs = area.clone();
        let mutexes = [robust_mutex(), robust_mutex(), robust_mutex()].map(|mutex| mutex.addr());
        std::thread::spawn(move || {
            let [before, between, released] = mutexes.map(std::ptr::with_exposed_provenance_mut::<libc::pthread_mutex_t>);
            // SAFETY: all three are robust mutexes that live as long as the process, and only the last is unlocked, after this thread has locked it.
            unsafe {
                assert_eq!(libc::pthread_mutex_lock(before), 0);
                let first = DeathWords::register_in(theirs.clone(), &[8]).expect("registered");
                assert_eq!(libc::pthread_mutex_lock(released), 0);
                assert_eq!(libc::pthread_mutex_lock(between), 0);
                std::mem::forget(DeathWords::register_in(theirs, &[16, 24]).expect("registered"));
                drop(first);
                assert_eq!(libc::pthread_mutex_unlock(released), 0);
            }
        })
        .join()
        .expect("the thread ends");
        let outcomes = mutexes.map(|mutex| {
            // SAFETY: as above.
            unsafe { libc::pthread_mutex_lock(std::ptr::with_exposed_provenance_mut(mutex)) }
        });
        assert_eq!(outcomes, [libc::EOWNERDEAD, libc::EOWNERDEAD, 0]);
        assert_eq!([8, 16, 24].map(|word| load(&area, word)), [0, OWNER_DIED | WAITERS, OWNER_DIED | WAITERS]);
    }

    #[test]
    fn a_fork_of_a_thread_that_holds_words_holds_none_and_may_register_its_own() {
        let theirs = area();
        std::thread::spawn(move || {
            let held = DeathWords::register_in(theirs, &[8]).expect("registered");
            // SAFETY: the child has only this thread. It maps memory, makes system calls, and ends.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let own = DeathWords::register_in(area(), &[16]);
                // SAFETY: it ends the child at once.
                unsafe { libc::_exit(i32::from(own.is_err())) };
            }
            let mut status = -1;
            // SAFETY: it waits for its own child, into a live variable.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert_eq!(status, 0, "the child could not register words");
            drop(held);
        })
        .join()
        .expect("no panic");
    }

    #[test]
    fn words_that_are_not_there_are_named() {
        let area = area();
        assert!(matches!(DeathWords::register_in(area.clone(), &[]), Err(DeathWordsError::Count(0))));
        let error = DeathWords::register_in(area.clone(), &[8, 505]).expect_err("beyond the end");
        assert_eq!(error.to_string(), "a death word at word 505 of a region that has 512; it takes 8");
        let error = DeathWords::register_in(area, &[8, 20, 24]).expect_err("too close");
        assert_eq!(error.to_string(), "death words at words 20 and 24 of a region; each takes 8");
    }
}
