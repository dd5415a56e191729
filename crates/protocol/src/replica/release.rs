//! Which replies may go out where a majority gives a leader its permission (TRAPS 7). A turn's replies may go out once everything proposed up to its end is
//! committed, and a majority still gave its permission after the turn's execution. So a read sees everything that was acknowledged before it, although nothing
//! is replicated for it.

use std::cell::Cell;
use std::collections::VecDeque;

use super::Ticket;
use crate::basics::LogIndex;

/// Turns whose replies have not been released. A turn is what lies between two calls of [`Releases::end`].
#[derive(Debug)]
pub struct Releases {
    turn: u64,
    released: u64,
    /// Whether a reply waits for the present turn.
    asked: Cell<bool>,
    waiting: VecDeque<(u64, LogIndex)>,
}

impl Default for Releases {
    fn default() -> Releases {
        Releases { turn: 1, released: 0, asked: Cell::new(false), waiting: VecDeque::with_capacity(1024) }
    }
}

impl Releases {
    /// The present turn. The first is 1.
    pub fn turn(&self) -> u64 {
        self.turn
    }

    /// The ticket for replies computed in the present turn; from now on the turn counts as having replies.
    pub fn ticket(&self) -> Ticket {
        self.asked.set(true);
        Ticket(self.turn)
    }

    /// Replies with tickets up to this one may go out.
    pub fn released(&self) -> Ticket {
        Ticket(self.released)
    }

    /// Whether replies of earlier turns wait.
    #[inline]
    pub fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether replies of the present turn wait, so that the followers' permission has to be confirmed after it.
    pub fn is_asked(&self) -> bool {
        self.asked.get()
    }

    /// The present turn ends; `last` is the last index proposed.
    pub fn end(&mut self, last: LogIndex) {
        if self.asked.replace(false) {
            self.waiting.push_back((self.turn, last));
        }
        self.turn += 1;
    }

    /// A majority gave its permission after the end of turn `vouched`, and everything up to `committed` is committed.
    pub fn release(&mut self, vouched: u64, committed: LogIndex) {
        while let Some((turn, last)) = self.waiting.front().filter(|(turn, last)| *turn <= vouched && *last <= committed) {
            let _ = last;
            self.released = *turn;
            self.waiting.pop_front();
        }
    }

    /// A reign begins or ends: waiting replies will not be released.
    pub fn break_off(&mut self) {
        self.waiting.clear();
        self.asked.set(false);
        self.turn += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_waits_for_its_entries_and_for_a_majority_that_still_gives_its_permission() {
        let mut releases = Releases::default();
        let write = releases.ticket();
        releases.end(LogIndex(1));
        releases.end(LogIndex(1));
        let read = releases.ticket();
        releases.end(LogIndex(1));
        releases.release(2, LogIndex(0));
        assert_eq!(releases.released(), Ticket(0), "not committed");
        releases.release(2, LogIndex(1));
        assert_eq!(releases.released(), write, "the read's turn has not been vouched for");
        releases.release(3, LogIndex(1));
        assert_eq!(releases.released(), read);
        let lost = releases.ticket();
        releases.break_off();
        releases.release(u64::MAX, LogIndex(9));
        assert!(releases.released() < lost, "what waited when a reign ended is never released");
    }
}
