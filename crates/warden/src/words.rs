//! The page that a program gives its warden: it has a death word for each thread that acts for the program.
//!
//! A thread that acts writes its own word, when it registers it and when it gives it back. The kernel marks the word when the thread dies, and the warden only
//! reads it. Word n of the page, counted in steps of [`WORDS_EACH`], is taken and given back under a lock of the program.

use martlet_fabric::host::WORDS_EACH;

/// The most threads of a program that can hold a death word.
pub const MAX_ACTING: u16 = 64;
/// The number of words on the page.
pub(crate) const PAGE_WORDS: usize = MAX_ACTING as usize * WORDS_EACH;

/// Where on the page a thread's death word is.
pub(crate) fn death_word(index: u16) -> usize {
    usize::from(index) * WORDS_EACH
}
