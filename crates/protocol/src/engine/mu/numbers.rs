//! The numbers of a log that others read.

use martlet_fabric::Memory;
use martlet_fabric::primitive::Ordering;

use super::journal::CEILING_STEP;
use super::layout::{Status, is_position, words};
use super::log::Mark;
use crate::basics::{LogIndex, MAX_NUMBER, RETURN_BITS, is_number};

/// Proposal numbers grow by 2^16 with each attempt to lead, and by 2^31 when a replica recovers from its disk, since it has promised ahead. So no process gets
/// this far ahead of what another one knows, even in years of nothing but elections. And it would take a thousand wrong words of this size to use up all
/// numbers.
const LEAP: u64 = 1 << 52;

const _: () = assert!(LEAP > (2 * CEILING_STEP) << RETURN_BITS, "one log comes back as often, and counts all the while");

/// A replica that knows no number yet believes the group that it joins up to here: that group may be old, and half of all numbers are left to lead with.
const MOST_AT_FIRST: u64 = MAX_NUMBER / 2;

/// Whether another process's proposal number is plausible, given that `known` is known here. If an implausible number were believed, elections could end for
/// good, because no number follows the last.
pub fn is_plausible(ballot: u64, known: u64) -> bool {
    is_number(ballot) && ballot <= known.saturating_add(LEAP)
}

/// The same for a number that its owner has chosen above those that were plausible to it.
pub fn is_plausible_choice(ballot: u64, known: u64) -> bool {
    let most = if known == 0 { MOST_AT_FIRST } else { known.saturating_add(2 * LEAP) };
    is_number(ballot) && ballot <= most
}

/// The numbers of a peer's log, as read from its memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Numbers {
    pub min_proposal: u64,
    pub last_ballot: u64,
    pub tail: Mark,
    pub committed: Mark,
    pub floor: u64,
    pub ceiling: u64,
    pub taught_ballot: u64,
    status: Status,
    executed: u64,
}

impl Numbers {
    /// Reads them; `None` when they make no sense, given that proposal numbers up to `known` are known here.
    pub fn read(words: &Memory, known: u64) -> Option<Numbers> {
        let word = |at: usize| words[at].load(Ordering::Acquire);
        let numbers = Numbers {
            min_proposal: word(words::MIN_PROPOSAL),
            last_ballot: word(words::LAST_BALLOT),
            tail: Mark { index: LogIndex(word(words::LAST_INDEX)), position: word(words::TAIL) },
            committed: Mark { index: LogIndex(word(words::COMMITTED)), position: word(words::COMMITTED_POSITION) },
            floor: word(words::FLOOR),
            ceiling: word(words::CEILING),
            taught_ballot: word(words::TAUGHT_BALLOT),
            status: Status::of(word(words::STATUS)),
            executed: word(words::EXECUTED),
        };
        let (tail, committed) = (numbers.tail, numbers.committed);
        let ordered = committed.index <= tail.index && committed.position <= tail.position && numbers.floor <= tail.position;
        let aligned = [tail.position, committed.position, numbers.floor].into_iter().all(is_position);
        let ballots = [numbers.min_proposal, numbers.last_ballot, numbers.taught_ballot];
        let small = ballots.into_iter().all(|ballot| is_plausible(ballot, known)) && is_number(tail.index.0);
        (ordered && aligned && small).then_some(numbers)
    }

    /// Whether its owner's machine shows the state, and still will whatever follows the entries committed there.
    pub fn holds_state(&self) -> bool {
        self.status != Status::Incomplete && self.executed <= self.committed.index.0
    }

    /// Whether its owner says that its machine shows the state.
    pub fn is_complete(&self) -> bool {
        self.status != Status::Incomplete
    }

    /// The key for finding the log that holds everything that may be committed: the proposal number, then the length.
    pub fn rank(&self) -> (u64, LogIndex) {
        (self.last_ballot, self.tail.index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_knows_no_number_joins_a_group_that_has_come_back_from_its_disks_a_million_times() {
        let old = (1 << 20) * 2 * CEILING_STEP;
        assert!(is_plausible_choice(old, 0) && is_plausible(old + 2 * CEILING_STEP, old));
        let older = 1 << 60;
        assert!(is_plausible_choice(older, 0) && !is_plausible_choice(older, 1 << 16));
        assert!(!is_plausible_choice(MAX_NUMBER, 0) && !is_plausible_choice(MAX_NUMBER + 1, MAX_NUMBER));
    }
}
