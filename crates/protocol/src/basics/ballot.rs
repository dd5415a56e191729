//! The word of a consensus slot: an acceptor's whole state in eight bytes, so that one CAS can change it (uKharon section 5.3.1).
//!
//! ```text
//! bits 48..64  min_proposal        the highest ballot that this acceptor has promised
//! bits 32..48  accepted_proposal   the ballot at which it accepted a value; 0 when it has accepted none
//! bits 24..32  accepted_value      position of the proposer whose record holds the value, plus one; 0 for none
//! bits  0..24  generation          view number / SLOTS: tells the uses of a slot apart, so that nothing is ever zeroed
//! ```
//!
//! The paper says that 8 - 2 - 2 bytes leave 6, but they leave 4 (TRAPS 4). Four are enough: one byte names the proposer, and three count the laps of
//! the slot ring, up to view [`LAST_VIEW`].

use martlet_fabric::invariant;

use super::layout::{LAST_VIEW, SLOTS};
use super::{Canary, ViewNumber};

/// A ballot of a CAS proposal: 1 to [`LAST_CAS_BALLOT`]. Beyond that, proposals go by RPC and their ballots have 64 bits.
pub type Ballot = u16;

/// The highest ballot that a CAS may carry. The next number marks a frozen word.
pub const LAST_CAS_BALLOT: u64 = (u16::MAX - 1) as u64;

/// The `min_proposal` of a word whose acceptor can be reached only by RPC from now on (uKharon App. A.6).
pub const FROZEN: Ballot = u16::MAX;

/// What a slot's word says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotState {
    /// The highest ballot promised; 0 for none.
    pub min: Ballot,
    /// The ballot of the accepted value; 0 if none has been accepted.
    pub accepted: Ballot,
    /// The proposer whose value is accepted: its position among the coordinators, plus one; 0 for none.
    pub value: u8,
}

impl SlotState {
    /// Whether nothing has been accepted, and nothing can have been accepted by RPC. Only this is evidence that no view was decided here.
    pub fn is_empty(self) -> bool {
        self.accepted == 0 && (self.min != FROZEN || Canary::FrozenIsEmpty.is_planted())
    }
}

/// The place of a view in the slot ring.
pub const fn slot_of(view: ViewNumber) -> usize {
    (view.0 % SLOTS as u64) as usize
}

/// Which lap of the slot ring a view belongs to.
///
/// # Panics
/// When the 24 bits in the word cannot count that far: after the successor of [`LAST_VIEW`]. Views from elsewhere are checked when they are decoded.
pub fn generation_of(view: ViewNumber) -> u32 {
    invariant!(view.0 <= LAST_VIEW + 1, "view {view} is beyond the last that a slot word can tell apart");
    (view.0 / SLOTS as u64) as u32
}

/// The word in a slot: the state, and the generation that the state belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotWord(pub u64);

impl SlotWord {
    /// The word of a state in a generation.
    pub const fn new(state: SlotState, generation: u32) -> SlotWord {
        SlotWord(((state.min as u64) << 48) | ((state.accepted as u64) << 32) | ((state.value as u64) << 24) | generation as u64)
    }

    /// The generation in which the word was written.
    pub const fn generation(self) -> u32 {
        (self.0 & 0xff_ffff) as u32
    }

    /// The state, regardless of the generation.
    pub const fn state(self) -> SlotState {
        SlotState { min: (self.0 >> 48) as u16, accepted: (self.0 >> 32) as u16, value: (self.0 >> 24) as u8 }
    }

    /// The state as seen in `generation`: what an earlier lap left is an empty slot. `None` when the word belongs to a later lap: then the caller is
    /// hopelessly behind.
    pub fn state_in(self, generation: u32) -> Option<SlotState> {
        match self.generation().cmp(&generation) {
            std::cmp::Ordering::Less => Some(SlotState::default()),
            std::cmp::Ordering::Equal => Some(self.state()),
            std::cmp::Ordering::Greater => None,
        }
    }
}

/// The smallest ballot above `floor` of the proposer at `position` among `proposers`. Its ballots are `position + 1` and every `proposers`-th number
/// after that (the residue class keeps proposers apart).
pub fn next_ballot(position: usize, proposers: usize, floor: u64) -> u64 {
    let (first, step) = (position as u64 + 1, proposers as u64);
    if floor < first { first } else { first + (floor - first + step) / step * step }
}

/// The smallest majority of `n`: floor(n/2) + 1 (TRAPS 2).
pub fn majority(n: usize) -> usize {
    if Canary::HalfMajority.is_planted() { n.div_ceil(2) } else { n / 2 + 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trap_2_a_majority_of_four_is_three() {
        assert_eq!([1, 2, 3, 4, 5].map(majority), [1, 2, 2, 3, 3]);
    }

    #[test]
    fn a_word_keeps_its_state_and_generation() {
        let state = SlotState { min: 65533, accepted: 514, value: 16 };
        let word = SlotWord::new(state, (1 << 24) - 1);
        assert_eq!((word.state(), word.generation()), (state, (1 << 24) - 1));
    }

    #[test]
    fn an_earlier_lap_is_empty_and_a_later_one_is_out_of_reach() {
        let word = SlotWord::new(SlotState { min: 7, accepted: 7, value: 1 }, 4);
        assert_eq!(word.state_in(5), Some(SlotState::default()));
        assert_eq!(word.state_in(4), Some(word.state()));
        assert_eq!(word.state_in(3), None);
    }

    #[test]
    fn trap_4_ballots_of_two_proposers_never_meet_below_the_limit() {
        for proposers in 1..=5usize {
            let mut owner = vec![None; LAST_CAS_BALLOT as usize + 1];
            for position in 0..proposers {
                let mut ballot = 0;
                loop {
                    ballot = next_ballot(position, proposers, ballot);
                    if ballot > LAST_CAS_BALLOT {
                        break;
                    }
                    assert_eq!(owner[ballot as usize].replace(position), None, "ballot {ballot} has two proposers of {proposers}");
                }
            }
        }
    }

    #[test]
    fn a_frozen_slot_is_no_evidence_of_emptiness() {
        assert!(SlotState::default().is_empty());
        assert!(!SlotState { min: FROZEN, ..SlotState::default() }.is_empty());
        assert!(SlotState { min: 9, ..SlotState::default() }.is_empty(), "a promise alone decides nothing");
    }
}
