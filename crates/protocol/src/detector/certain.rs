//! Certain death: the kernel's own word (uKharon section 4.2, userspace failures; DESIGN section 4).
//!
//! Every thread that may act for a process holds a robust futex word for each watcher. When the thread dies, even by SIGKILL, the kernel itself marks
//! the word, before it tears down the process's memory. Death is judged per thread: a sibling that still runs could still act, so the process is dead
//! only when every word says so (TRAPS 32). A clean end clears the word first: that is a leave, not a crash (TRAPS 28).
//!
//! # Threads that begin later
//! A process may have further threads act for it at any time. Such a thread stores its death words, counts itself ([`life::THREADS`]), and fences. It
//! acts only if it then finds an acting thread whose words all say that it is alive; otherwise it ends without having acted. A watcher reads the
//! count, then all words, and, if no word says that a thread is alive, the count again: an unchanged count proves the death.
//!
//! *Why.* Suppose that a thread acts afterwards all the same. If it was counted before the watcher's first read of the count, then the watcher read
//! its words after they were stored and before it was gone, and found it alive. If it was counted between the two reads, the counts differ. If it was
//! counted after the second read, it found an acting thread alive. The first such thread found one that had been counted before the second read, and
//! by then the watcher had found all of those dead.

use std::fmt;

use martlet_fabric::{Fabric, PeerId, Region, Remote, Token};

use crate::basics::layout::life::{OWNER_DIED, TID_MASK};
use crate::basics::layout::{LIFE, MAX_ACTING_THREADS, life};
use crate::basics::{Canary, Mark};

/// What a process's death words say about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    /// Some acting thread is alive, or nothing is known yet.
    Alive,
    /// Every acting thread is gone, and at least one did not end cleanly.
    Dead,
    /// Every acting thread ended cleanly.
    Ended,
}

/// Judges the words of all acting threads of a process, as one watcher reads them.
pub fn judge(words: &[u64]) -> Sign {
    let (mut died, mut lives) = (false, false);
    for word in words {
        if word & OWNER_DIED != 0 {
            died = true;
        } else if word & TID_MASK != 0 {
            lives = true;
        }
    }
    if lives && died {
        Mark::PartialDeath.reach();
    }
    if lives && !(died && Canary::OneThreadDead.is_planted()) {
        return Sign::Alive;
    }
    match (words.is_empty(), died) {
        (true, _) => Sign::Alive,
        (false, true) => {
            Mark::CertainDeath.reach();
            Sign::Dead
        }
        (false, false) => {
            Mark::CleanEnd.reach();
            Sign::Ended
        }
    }
}

/// What one watcher has read of the death words of one process.
#[derive(Clone)]
pub struct DeathWords {
    /// The process's count of its acting threads, as last read; `None` before the first read.
    count: Option<u64>,
    counting: bool,
    /// For each thread, what was read since the count last changed.
    words: [u64; MAX_ACTING_THREADS],
    /// The words that are being read, one bit each.
    asked: u64,
    /// Whether what the words prove has been reported.
    told: bool,
}

/// Shows only the words of the threads that exist; nothing is known of others.
impl fmt::Debug for DeathWords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DeathWords { count, counting, asked, told, .. } = self;
        let words = &self.words[..self.threads()];
        f.debug_struct("DeathWords")
            .field("count", count)
            .field("counting", counting)
            .field("words", &words)
            .field("asked", asked)
            .field("told", told)
            .finish()
    }
}

impl Default for DeathWords {
    fn default() -> DeathWords {
        DeathWords { count: None, counting: false, words: [TID_MASK; MAX_ACTING_THREADS], asked: 0, told: false }
    }
}

impl DeathWords {
    fn threads(&self) -> usize {
        self.count.map_or(0, life::threads)
    }

    /// Whether no known thread is alive, and there may be others.
    fn is_unsettled(&self) -> bool {
        !self.told && judge(&self.words[..self.threads()]) != Sign::Alive
    }

    /// Posts the next reads: the words of all threads that are meant for this process, whose node has the number `watcher`, and the count if it is
    /// missing. A read that is still under way is not posted again.
    pub fn look<F: Fabric>(&mut self, peer: PeerId, watcher: usize, fabric: &mut F, threads: Token, death: impl Fn(usize) -> Token) {
        for thread in 0..self.threads() {
            if self.asked & 1 << thread == 0 {
                self.asked |= 1 << thread;
                fabric.read_word(Remote { peer, region: Region::Public(LIFE), offset: life::death(thread, watcher) * 8 }, death(thread));
            }
        }
        self.ask_count(peer, fabric, threads);
    }

    /// Posts a read of the count if one is needed: at first, and once no thread seems to be alive. It takes place after the reads completed so far.
    pub fn ask_count<F: Fabric>(&mut self, peer: PeerId, fabric: &mut F, threads: Token) {
        if self.count.is_none() || self.is_unsettled() {
            self.recount(peer, fabric, threads);
        }
    }

    /// Posts a read of the count, unless one is under way.
    pub fn recount<F: Fabric>(&mut self, peer: PeerId, fabric: &mut F, threads: Token) {
        if !std::mem::replace(&mut self.counting, true) {
            fabric.read_word(Remote { peer, region: Region::Public(LIFE), offset: life::THREADS * 8 }, threads);
        }
    }

    /// The word of a thread has been read, or could not be read.
    pub fn note_word(&mut self, thread: usize, value: Option<u64>) {
        let thread = thread % MAX_ACTING_THREADS;
        self.asked &= !(1 << thread);
        if let Some(value) = value.filter(|value| *value != self.words[thread]) {
            (self.words[thread], self.told) = (value, false);
        }
    }

    /// The count has been read. Returns what is now certain.
    pub fn note_count(&mut self, count: u64) -> Sign {
        self.counting = false;
        let count = self.count.filter(|_| Canary::ThreadsFixed.is_planted()).unwrap_or(count);
        if self.count.replace(count) != Some(count) {
            // Word reads still in flight were posted after the count's read, so what they return is newer.
            (self.words, self.told) = ([TID_MASK; MAX_ACTING_THREADS], false);
            return Sign::Alive;
        }
        let sign = judge(&self.words[..self.threads()]);
        self.told |= sign != Sign::Alive;
        sign
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::basics::layout::life::WAITERS;

    const ALIVE: u64 = WAITERS | 4711;
    const DIED: u64 = WAITERS | OWNER_DIED;

    #[test]
    fn trap_32_a_process_is_dead_when_its_last_acting_thread_is() {
        assert_eq!(judge(&[DIED, ALIVE]), Sign::Alive);
        assert_eq!(judge(&[DIED, DIED]), Sign::Dead);
    }

    #[test]
    fn trap_28_a_clean_end_is_no_crash() {
        assert_eq!(judge(&[0, 0]), Sign::Ended);
        assert_eq!(judge(&[0, DIED]), Sign::Dead, "one thread ended, the other was killed");
    }

    #[test]
    fn no_words_are_no_evidence() {
        assert_eq!(judge(&[]), Sign::Alive);
    }

    /// A process whose first thread dies while a second one begins, and its watcher: how far each has got.
    #[derive(Clone)]
    struct Race {
        count: u64,
        words: [u64; 2],
        /// The place of the second thread; the first thread has the other one.
        place: usize,
        /// How far the second thread has got.
        begun: usize,
        acts: bool,
        watcher: DeathWords,
        /// The thread whose word is read next.
        at: usize,
        sign: Sign,
    }

    impl Race {
        fn step(&mut self, who: usize) {
            match (who, self.begun) {
                (0, _) => self.words[1 - self.place] = DIED,
                (1, begun) => {
                    self.begun += 1;
                    match begun {
                        0 => self.words[self.place] = ALIVE,
                        1 => self.count = life::counting(self.count, self.place),
                        2 if self.words[1 - self.place] == ALIVE => self.acts = true,
                        2 => self.words[self.place] = 0,
                        _ => (self.words[self.place], self.acts) = (if self.acts { DIED } else { 0 }, false),
                    }
                }
                _ if self.at < self.watcher.threads() => {
                    self.watcher.note_word(self.at, Some(self.words[self.at]));
                    self.at += 1;
                }
                _ => {
                    if self.watcher.count.is_none() || self.watcher.is_unsettled() {
                        self.sign = self.watcher.note_count(self.count);
                    }
                    self.at = 0;
                }
            }
        }
    }

    /// Explores all orders of the remaining steps. Returns how often a death was certain, and how often it was not because another thread had begun.
    fn explore(race: &Race, left: [usize; 3]) -> (usize, usize) {
        let (mut certain, mut withheld) = (0, 0);
        for who in (0..3).filter(|who| left[*who] > 0) {
            let mut next = race.clone();
            let unsettled = next.watcher.is_unsettled() && who == 2 && next.at == next.watcher.threads();
            next.step(who);
            if next.sign != Sign::Alive {
                assert!(next.words[1 - next.place] != ALIVE && !next.acts, "a thread acts, and the process is taken for dead");
                certain += 1;
            } else if unsettled && next.acts {
                withheld += 1;
            }
            let mut left = left;
            left[who] -= 1;
            let more = explore(&next, left);
            (certain, withheld) = (certain + more.0, withheld + more.1);
        }
        (certain, withheld)
    }

    #[test]
    fn trap_32_a_thread_that_begins_while_another_dies_is_not_overlooked() {
        // The second thread in a place of its own, and in the place of a thread that has ended.
        for (count, place) in [(1, 1), (2, 0)] {
            let (mut words, watcher) = ([0; 2], DeathWords::default());
            words[1 - place] = ALIVE;
            let race = Race { count, words, place, begun: 0, acts: false, watcher, at: 0, sign: Sign::Alive };
            let (certain, withheld) = explore(&race, [1, 4, 9]);
            assert!(certain > 0 && withheld > 0, "{certain} deaths, {withheld} in doubt: this test would find nothing");
        }
    }

    #[test]
    fn what_a_process_says_of_its_threads_is_brought_into_bounds() {
        assert_eq!([0, 1, 0x2_01, 0x40, 0xff, u64::MAX].map(life::threads), [1, 1, 1, 64, 64, 64]);
        assert_eq!([(1, 1), (0x1_02, 0), (0x1_02, 5)].map(|(count, thread)| life::counting(count, thread)), [0x1_02, 0x2_02, 0x2_06]);
    }
}
