//! What a program can see for itself about the acting threads of another program, whose death words it can read because its warden has given it their page.

use std::io;
use std::os::fd::OwnedFd;

use martlet_fabric::host::page::Page;
use martlet_protocol::basics::layout::life::{OWNER_DIED, TID_MASK};
use martlet_protocol::detector::certain::{Sign, judge};

use crate::words::{MAX_ACTING, PAGE_WORDS, death_word};

/// The death words of another program of this host.
#[derive(Debug)]
pub(super) struct Witness {
    page: Page,
    /// The words whose threads were alive when all words were last read.
    alive: Vec<u16>,
}

impl Witness {
    pub(super) fn new(page: OwnedFd) -> io::Result<Witness> {
        Ok(Witness { page: Page::open(page, PAGE_WORDS)?, alive: Vec::new() })
    }

    /// Whether all of its acting threads are over, and at least one of them has died. Without `looks_at_all` it reads only the words that were alive when all
    /// words were last read, and reads the others when one of those has died.
    pub(super) fn has_seen_the_end(&mut self, looks_at_all: bool) -> bool {
        if !looks_at_all && !self.alive.iter().any(|word| self.page.load(death_word(*word)) & OWNER_DIED != 0) {
            return false;
        }
        // A thread that begins to act goes on only if, after it has stored its word, it finds another one alive (`Acting::has_company`). So all words are read
        // once more after none was found alive.
        self.read() == Sign::Dead && self.read() == Sign::Dead
    }

    fn read(&mut self) -> Sign {
        let words: Vec<u64> = (0..MAX_ACTING).map(|word| self.page.load(death_word(word))).collect();
        let is_alive = |word: &u16| {
            let value = words[usize::from(*word)];
            value & OWNER_DIED == 0 && value & TID_MASK != 0
        };
        self.alive = (0..MAX_ACTING).filter(is_alive).collect();
        judge(&words)
    }
}
