//! The page that a program brings to its warden: a death word for each thread that acts for it.
//!
//! The thread that acts writes its word, by registering it and giving it back, and the kernel marks it when the thread dies; the warden reads. Word n of the page, counted
//! in steps of [`WORDS_EACH`], is taken and given back under a lock of the program.

use martlet_fabric::host::WORDS_EACH;

/// The most threads of a program that hold a death word.
pub const MAX_ACTING: u16 = 64;
/// Words of the page.
pub(crate) const PAGE_WORDS: usize = MAX_ACTING as usize * WORDS_EACH;

/// Where a thread's death word stands on the page.
pub(crate) fn death_word(index: u16) -> usize {
    usize::from(index) * WORDS_EACH
}
