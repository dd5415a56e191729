//! Which replies may go out: tickets, turn by turn (TRAPS 7).

use std::collections::VecDeque;

use crate::basics::{Canary, LogIndex};
use crate::replica::Ticket;

/// Turns whose replies have not been released, and the proposals that they wait for.
#[derive(Debug)]
pub(super) struct Turns {
    turn: u64,
    released: u64,
    /// Turns in order, each with the last index proposed up to its end; of turns with the same index only the last one.
    waiting: VecDeque<Turn>,
    /// Bytes of all proposals ever made, and of those that have been committed.
    proposed_bytes: u64,
    committed_bytes: u64,
}

#[derive(Debug)]
struct Turn {
    turn: u64,
    last: LogIndex,
    bytes: u64,
}

impl Turns {
    pub fn new() -> Turns {
        Turns { turn: 1, released: 0, waiting: VecDeque::new(), proposed_bytes: 0, committed_bytes: 0 }
    }

    pub fn ticket(&self) -> Ticket {
        Ticket(self.turn)
    }

    pub fn released(&self) -> Ticket {
        Ticket(self.released)
    }

    /// Bytes proposed and not committed.
    pub fn backlog_bytes(&self) -> u64 {
        self.proposed_bytes - self.committed_bytes
    }

    pub fn note_proposal(&mut self, bytes: u64) {
        self.proposed_bytes += bytes;
    }

    /// The current turn ends; `last` is the last index proposed.
    pub fn end(&mut self, last: LogIndex) {
        match self.waiting.back_mut() {
            Some(back) if back.last == last => {
                back.turn = self.turn;
                if Canary::EagerRead.is_planted() {
                    self.released = self.turn;
                }
            }
            _ => self.waiting.push_back(Turn { turn: self.turn, last, bytes: self.proposed_bytes }),
        }
        self.turn += 1;
    }

    /// Everything up to `committed` is safe, and `active` has held since the last turn ended.
    pub fn release(&mut self, committed: LogIndex) {
        while let Some(front) = self.waiting.front() {
            if front.last > committed {
                break;
            }
            self.released = front.turn;
            self.committed_bytes = front.bytes;
            self.waiting.pop_front();
        }
    }

    /// A reign begins or ends: waiting replies will not be released.
    pub fn break_off(&mut self) {
        self.waiting.clear();
        self.committed_bytes = self.proposed_bytes;
        self.turn += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_of_a_turn_without_proposals_waits_for_a_check_after_it() {
        let mut turns = Turns::new();
        turns.note_proposal(10);
        let write = turns.ticket();
        turns.end(LogIndex(1));
        turns.release(LogIndex(1));
        assert_eq!(turns.released(), write);
        let read = turns.ticket();
        assert!(read > turns.released(), "the entry before it is committed, but no check has come after the read");
        turns.end(LogIndex(1));
        assert!(read > turns.released());
        turns.release(LogIndex(1));
        assert_eq!(turns.released(), read);
        assert_eq!(turns.backlog_bytes(), 0);
    }

    #[test]
    fn a_ticket_waits_for_the_proposals_of_its_turn_and_those_before() {
        let mut turns = Turns::new();
        let mut tickets = Vec::new();
        for index in 1..=3 {
            turns.note_proposal(10);
            tickets.push(turns.ticket());
            turns.end(LogIndex(index));
        }
        turns.release(LogIndex(2));
        assert_eq!(turns.released(), tickets[1]);
        assert_eq!(turns.backlog_bytes(), 10);
        turns.break_off();
        assert!(turns.ticket() > tickets[2]);
        assert_eq!(turns.released(), tickets[1], "what waited when a reign ended is never released");
        assert_eq!(turns.backlog_bytes(), 0);
    }
}
