//! Death words: robust futexes in shared memory, by which the kernel tells the others that a thread has died.
//!
//! A thread registers words of a public region of its process. Each holds the thread's id and FUTEX_WAITERS in its low 32 bits. When the
//! thread ends without having given them back, SIGKILL included, the kernel sets FUTEX_OWNER_DIED in each, clears the id, and wakes one
//! waiter a word, before the process's memory is torn down: microseconds after the signal.
//!
//! The kernel knows one robust list a thread, and the C library has registered its own, for robust pthread mutexes. While a thread holds
//! death words their list takes that place: **such a thread must not hold robust pthread mutexes**. The C library's list is put back when
//! the words are given back.

use std::io;
use std::marker::PhantomData;
use std::ptr::NonNull;

use super::futex;
use super::memory::Area;
use crate::primitive::Ordering;

/// FUTEX_WAITERS: makes the kernel wake a waiter when it sets [`OWNER_DIED`].
pub const WAITERS: u64 = 0x8000_0000;
/// FUTEX_OWNER_DIED: the thread that held the word has died.
pub const OWNER_DIED: u64 = 0x4000_0000;
/// The most entries of a list that the kernel walks: ROBUST_LIST_LIMIT.
pub const MAX_WORDS: usize = 2048;

/// Why death words were not registered.
#[derive(Debug, thiserror::Error)]
pub enum DeathWordsError {
    /// The region was never declared.
    #[error("this process declares no public region {0}")]
    Region(u8),
    /// A word that the region does not have.
    #[error("word {word} of a region that has {words}")]
    Word {
        /// The index asked for.
        word: usize,
        /// How many words there are.
        words: usize,
    },
    /// None, or more than the kernel walks.
    #[error("{0} death words; allowed are 1 to {MAX_WORDS}")]
    Count(usize),
    /// The calling thread holds death words already.
    #[error("this thread holds death words already")]
    Twice,
    /// The kernel refuses.
    #[error("the kernel does not take the robust list: {0}")]
    Kernel(#[from] io::Error),
}

/// `struct robust_list_head`: a ring of entries through itself. An entry's futex lies `futex_offset` bytes after the entry.
#[repr(C)]
struct Head {
    list: *mut Entry,
    futex_offset: isize,
    pending: *mut Entry,
}

/// `struct robust_list`. As large as a word of a region, so that an array of entries runs beside the region at a constant distance.
#[repr(C)]
struct Entry {
    next: *mut Entry,
}

/// What the kernel may look at until the thread ends: on the heap, where it stays.
struct List {
    head: Head,
    /// One for each word from the first to the last registered one; some are in no list.
    entries: Box<[Entry]>,
}

thread_local! {
    /// The thread that holds some: its id, or 0. A fork has the value, and not the words.
    static HELD: std::cell::Cell<i32> = const { std::cell::Cell::new(0) };
}

/// The death words of the thread that registered them. Dropping it on that thread gives them back: they read 0, which is a clean end and no
/// death. When the thread ends without dropping it, the kernel says that it died.
#[must_use = "dropped, the words are given back"]
pub struct DeathWords {
    area: Area,
    words: Vec<usize>,
    list: NonNull<List>,
    /// The C library's list.
    before: (*mut libc::c_void, usize),
    /// Tied to its thread.
    _thread: PhantomData<*const ()>,
}

impl std::fmt::Debug for DeathWords {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeathWords").field("words", &self.words).finish_non_exhaustive()
    }
}

fn set_list(head: *const libc::c_void, len: usize) -> io::Result<()> {
    // SAFETY: the call only records the address; what stands there is argued for where it is called.
    let rc = unsafe { libc::syscall(libc::SYS_set_robust_list, head, len) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn get_list() -> io::Result<(*mut libc::c_void, usize)> {
    let (mut head, mut len) = (std::ptr::null_mut::<libc::c_void>(), 0usize);
    // SAFETY: the kernel stores a pointer and a length into two variables of those types.
    let rc = unsafe { libc::syscall(libc::SYS_get_robust_list, 0, &raw mut head, &raw mut len) };
    if rc == 0 { Ok((head, len)) } else { Err(io::Error::last_os_error()) }
}

impl DeathWords {
    /// Registers words of an area, by index, as the calling thread's death words: one for each watcher, since the kernel wakes one waiter a word. From the return on
    /// each holds the thread's id and [`WAITERS`]. Nobody else may write them.
    pub(crate) fn register_in(area: Area, words: &[usize]) -> Result<DeathWords, DeathWordsError> {
        let mut words = words.to_vec();
        words.sort_unstable();
        words.dedup();
        let memory = area.memory();
        let (Some(&first), Some(&last)) = (words.first(), words.last()) else {
            return Err(DeathWordsError::Count(0));
        };
        if words.len() > MAX_WORDS {
            return Err(DeathWordsError::Count(words.len()));
        }
        if last >= memory.len() {
            return Err(DeathWordsError::Word { word: last, words: memory.len() });
        }
        let tid = rustix::thread::gettid().as_raw_nonzero().get();
        if HELD.get() == tid {
            return Err(DeathWordsError::Twice);
        }
        let before = get_list()?;

        let entries = (first..=last).map(|_| Entry { next: std::ptr::null_mut() }).collect();
        let head = Head { list: std::ptr::null_mut(), futex_offset: 0, pending: std::ptr::null_mut() };
        let list = NonNull::from(Box::leak(Box::new(List { head, entries })));
        // SAFETY: `list` has just been leaked; nobody else knows it.
        let whole = unsafe { &mut *list.as_ptr() };
        let base = whole.entries.as_mut_ptr();
        let end = (&raw mut whole.head).cast::<Entry>();
        // Entry `i - first` belongs to word `i`, so the distance between an entry and its futex is the same for all.
        whole.head.futex_offset = (memory.as_ptr() as isize).wrapping_add((first * 8) as isize).wrapping_sub(base as isize);
        let mut next = end;
        for word in words.iter().rev() {
            // SAFETY: `word` is between `first` and `last`, and there is an entry for each of those.
            let entry = unsafe { base.add(word - first) };
            // SAFETY: as above; the entry is ours alone so far.
            unsafe { (*entry).next = next };
            next = entry;
        }
        whole.head.list = next;

        // From here on the kernel would act for words that hold our id; none does yet. The list stays where it is until `drop` has put the
        // old one back, or for ever.
        if let Err(error) = set_list((&raw const whole.head).cast(), size_of::<Head>()) {
            // SAFETY: leaked above and not registered, so this is its only owner.
            drop(unsafe { Box::from_raw(list.as_ptr()) });
            return Err(error.into());
        }
        HELD.set(tid);
        for word in &words {
            memory[*word].store(tid as u64 | WAITERS, Ordering::Release);
        }
        Ok(DeathWords { area, words, list, before, _thread: PhantomData })
    }

    /// The word's value while this thread lives: its id and [`WAITERS`].
    pub fn value(&self) -> u64 {
        self.area.memory()[self.words[0]].load(Ordering::Relaxed)
    }
}

impl Drop for DeathWords {
    fn drop(&mut self) {
        // First the words, so that the kernel finds none of ours whenever we are killed: a clean end is no death.
        for word in &self.words {
            self.area.memory()[*word].store(0, Ordering::Release);
        }
        match set_list(self.before.0, self.before.1) {
            // SAFETY: leaked by `register_in` for this value alone, and the kernel no longer knows it.
            Ok(()) => drop(unsafe { Box::from_raw(self.list.as_ptr()) }),
            // The kernel keeps the list, so it must stay; its words hold nobody's id.
            Err(error) => tracing::error!(%error, "the C library's robust list could not be put back"),
        }
        HELD.set(0);
        // A process that waits for a change of a word learns of the clean end too.
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

    fn load(area: &Area, word: usize) -> u64 {
        area.memory()[word].load(Ordering::Acquire)
    }

    #[test]
    fn a_thread_that_ends_without_giving_back_is_dead_in_every_word() {
        let area = area();
        let theirs = area.clone();
        let words = [3, 9, 10, 200];
        std::thread::spawn(move || {
            let held = DeathWords::register_in(theirs.clone(), &words).expect("registered");
            for word in words {
                assert_eq!(load(&theirs, word), held.value());
                assert_ne!(held.value() & 0x3fff_ffff, 0);
            }
            std::mem::forget(held);
        })
        .join()
        .expect("the thread ends");
        // `join` waits for the thread's memory to be given back, which the kernel does after it has walked the robust list.
        for word in 0..area.memory().len() {
            let expected = if words.contains(&word) { OWNER_DIED | WAITERS } else { 0 };
            assert_eq!(load(&area, word), expected, "word {word}");
        }
    }

    #[test]
    fn a_thread_that_gives_its_words_back_is_not_dead() {
        let area = area();
        let theirs = area.clone();
        std::thread::spawn(move || {
            let before = get_list().expect("the C library's list");
            let held = DeathWords::register_in(theirs.clone(), &[1, 2]).expect("registered");
            assert_ne!(get_list().expect("ours"), before);
            assert!(matches!(DeathWords::register_in(theirs.clone(), &[3]), Err(DeathWordsError::Twice)));
            drop(held);
            assert_eq!(get_list().expect("put back"), before);
            // Again, after having been given back.
            drop(DeathWords::register_in(theirs, &[5]).expect("registered"));
        })
        .join()
        .expect("the thread ends");
        assert!((0..16).all(|word| load(&area, word) == 0));
    }

    #[test]
    fn a_fork_of_a_thread_that_holds_words_holds_none_and_may_register_its_own() {
        let theirs = area();
        std::thread::spawn(move || {
            let held = DeathWords::register_in(theirs, &[1]).expect("registered");
            // SAFETY: the child has this thread alone, maps memory, makes system calls, and ends.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let own = DeathWords::register_in(area(), &[2]);
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
        let error = DeathWords::register_in(area, &[4, 512]).expect_err("beyond the end");
        assert_eq!(error.to_string(), "word 512 of a region that has 512");
    }
}
