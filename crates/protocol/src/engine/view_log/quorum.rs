//! Which replies may go out without trusting a lease: those of turns that a round of questions to the coordinators vouches for (uKharon section 5, Algorithm 6,
//! and appendix B).
//!
//! Suppose that a round of questions begins after a read has been executed and everything that it saw is at every replica, and that the round finds the next
//! view's slot empty at a majority. A slot that holds something never becomes empty again. So the next view had not been decided when the round began, and:
//! - no process had led in a later view, so nothing was acknowledged there that the read could have missed;
//! - the next leader finds in its memory what the read saw.
//!
//! A round that began earlier shows neither, even if its answers arrive after the read.

use std::collections::VecDeque;

use crate::basics::{Canary, Mark};
use crate::membership::Round;
use crate::replica::Ticket;

/// Turns whose replies wait for a round.
#[derive(Debug, Default)]
pub(super) struct Quorum {
    /// In order.
    waiting: VecDeque<Ticket>,
    /// The last round that was begun for these turns, and up to which turn it vouches.
    asked: Option<(Round, Ticket)>,
    released: Ticket,
}

impl Quorum {
    /// Replies of this turn wait.
    pub fn wait(&mut self, turn: Ticket) {
        if self.waiting.back() != Some(&turn) {
            self.waiting.push_back(turn);
        }
    }

    pub fn released(&self) -> Ticket {
        self.released
    }

    /// Whether a round that begins now would vouch for any waiting turn. All turns up to `whole` have been executed, and what they saw is replicated.
    #[inline]
    pub fn wants_round(&self, whole: Ticket) -> bool {
        self.waiting.front().is_some_and(|first| *first <= whole)
    }

    /// A round begins.
    pub fn note_round(&mut self, round: Round, whole: Ticket) {
        self.asked = Some((round, whole));
    }

    /// A round was won: the one that was begun for these turns, or a later one, which vouches for at least as much. `whole`: as [above](Quorum::wants_round).
    pub fn handle_proof(&mut self, round: Round, whole: Ticket) {
        let Some((_, vouched)) = self.asked.take_if(|(asked, _)| *asked <= round) else { return };
        let vouched = if Canary::EarlyRound.is_planted() { whole } else { vouched };
        while self.waiting.front().is_some_and(|first| *first <= vouched) {
            Mark::VouchedFor.reach();
            self.waiting.pop_front();
        }
        self.released = vouched;
    }

    /// A reign begins or ends: waiting replies will not be released.
    pub fn break_off(&mut self) {
        self.waiting.clear();
        self.asked = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_vouches_for_what_was_whole_when_it_began_and_for_nothing_later() {
        let mut quorum = Quorum::default();
        quorum.wait(Ticket(3));
        quorum.wait(Ticket(3));
        assert!(!quorum.wants_round(Ticket(2)), "what it saw is not replicated yet");
        assert!(quorum.wants_round(Ticket(3)));
        quorum.note_round(Round(7), Ticket(3));
        quorum.wait(Ticket(4));
        quorum.handle_proof(Round(6), Ticket(4));
        assert_eq!(quorum.released(), Ticket(0), "that one began before the read");
        quorum.handle_proof(Round(7), Ticket(4));
        assert_eq!(quorum.released(), Ticket(3));
        assert!(quorum.wants_round(Ticket(4)), "the later read needs a later round");
        quorum.handle_proof(Round(7), Ticket(4));
        assert_eq!(quorum.released(), Ticket(3), "what is proved is proved once");
    }

    #[test]
    fn a_round_that_was_lost_is_followed_by_another_for_all_that_wait() {
        let mut quorum = Quorum::default();
        quorum.wait(Ticket(3));
        quorum.note_round(Round(7), Ticket(3));
        quorum.wait(Ticket(5));
        quorum.note_round(Round(8), Ticket(5));
        quorum.handle_proof(Round(7), Ticket(5));
        assert_eq!(quorum.released(), Ticket(0));
        // A renewal that began after it is as good.
        quorum.handle_proof(Round(9), Ticket(5));
        assert_eq!(quorum.released(), Ticket(5), "they share it");
        assert!(!quorum.wants_round(Ticket(9)), "nobody waits");
    }

    #[test]
    fn what_waited_when_a_reign_ended_is_never_released() {
        let mut quorum = Quorum::default();
        quorum.wait(Ticket(3));
        quorum.note_round(Round(7), Ticket(3));
        quorum.break_off();
        quorum.handle_proof(Round(7), Ticket(3));
        assert!(quorum.released() < Ticket(3) && !quorum.wants_round(Ticket(9)));
    }
}
