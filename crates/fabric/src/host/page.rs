//! Words that one process makes and writes, and others read, outside any fabric: what a daemon shows to the programs around it, and what they show to
//! the daemon.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::memory::{Access, Area, Map, check, create_owned, page, read_only};
use super::robust::{DeathWords, DeathWordsError};
use crate::contract::Memory;
use crate::invariant;
use crate::primitive::{Ordering, fence};

/// A mapping of a sealed memfd of words, which no process can shrink or grow. All clones are the same page.
#[derive(Clone, Debug)]
pub struct Page {
    fd: Arc<OwnedFd>,
    area: Area,
    writable: bool,
}

/// Bytes of a memfd with this many words: whole pages.
fn bytes_of(words: usize) -> usize {
    (words * 8).next_multiple_of(page())
}

impl Page {
    /// New memory of this many words, all zero. No other process can write it, whichever of its descriptors that process is given.
    ///
    /// # Errors
    /// When the system has no more memory or descriptors.
    pub fn create(name: &str, words: usize) -> io::Result<Page> {
        let (fd, map) = create_owned(name, bytes_of(words), true)?;
        Ok(Page { fd: Arc::new(fd), area: Area::new(&map, 0, words * 8), writable: true })
    }

    /// Maps memory that another process has [made](Page::create), read-only. The descriptor is closed with the last clone.
    ///
    /// # Errors
    /// When it is not such memory: `InvalidData`, with the reason. Also when the system refuses to map it.
    pub fn open(fd: OwnedFd, words: usize) -> io::Result<Page> {
        check(&fd, "shared", bytes_of(words)).map_err(|why| io::Error::new(io::ErrorKind::InvalidData, why))?;
        let map = Map::new(&fd, 0, bytes_of(words), Access::Read, true)?;
        Ok(Page { fd: Arc::new(fd), area: Area::new(&map, 0, words * 8), writable: false })
    }

    /// A descriptor of the same memory that can only be mapped read-only.
    ///
    /// # Errors
    /// When the system has no more descriptors.
    pub fn for_readers(&self) -> io::Result<OwnedFd> {
        read_only(&self.fd)
    }

    /// Loads a word. What its writer did before storing the word with release is visible afterwards.
    pub fn load(&self, word: usize) -> u64 {
        // On a read-only mapping, a relaxed load followed by a fence serves as an acquire load.
        let value = self.area.memory()[word].load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        value
    }

    /// The words, for a process that may write them.
    ///
    /// # Panics
    /// On memory that was opened read-only.
    pub fn words(&self) -> &Memory {
        invariant!(self.writable, "words of a page that is mapped for reading are only loaded");
        self.area.memory()
    }

    /// A word to sleep on ([`super::sleep_on`]), whether or not it may be written here.
    pub fn sleep_word(&self, word: usize) -> &crate::primitive::AtomicU64 {
        &self.area.memory()[word]
    }

    /// Registers words as the calling thread's death words. The returned value keeps the memory mapped.
    ///
    /// # Errors
    /// See [`DeathWordsError`].
    ///
    /// # Panics
    /// On memory that was opened read-only.
    pub fn register_death_words(&self, words: &[usize]) -> Result<DeathWords, DeathWordsError> {
        invariant!(self.writable, "the kernel cannot mark words of a page that is mapped for reading");
        DeathWords::register_in(self.area.clone(), words)
    }
}

impl AsFd for Page {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::super::OWNER_DIED;
    use super::*;

    #[test]
    fn a_reader_sees_what_is_written_and_cannot_write() {
        let ours = Page::create("martlet-test", 100).expect("memory");
        let theirs = Page::open(ours.for_readers().expect("a descriptor"), 100).expect("mapped");
        ours.words()[99].store(7, Ordering::Release);
        assert_eq!(theirs.load(99), 7);
        // Nor through the descriptor that it was made with, nor through one that a reader has reopened for writing.
        assert!(Map::new(&ours.fd, 0, bytes_of(100), Access::ReadWrite, false).is_err());
        let wrong = Page::open(ours.for_readers().expect("a descriptor"), 10_000).expect_err("too short");
        assert!(wrong.to_string().contains("81920 were agreed"), "{wrong}");
    }

    #[test]
    fn a_sleeper_on_a_word_is_woken_when_its_thread_dies() {
        let page = Page::create("martlet-test", 16).expect("memory");
        let theirs = page.clone();
        let (registered, wait) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let held = theirs.register_death_words(&[8]).expect("registered");
            registered.send(held.value()).expect("the test waits");
            while theirs.load(0) == 0 {
                std::thread::yield_now();
            }
            std::mem::forget(held);
        });
        let alive = wait.recv().expect("it registers");
        page.words()[0].store(1, Ordering::Release);
        while page.load(8) & OWNER_DIED == 0 {
            super::super::sleep_on(&[(page.sleep_word(3), 0), (page.sleep_word(8), alive as u32)], None);
        }
        thread.join().expect("it ends well");
    }
}
