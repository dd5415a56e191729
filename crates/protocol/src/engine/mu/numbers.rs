//! What the others read of a log.

use martlet_fabric::Memory;
use martlet_fabric::primitive::Ordering;

use super::layout::{Status, is_position, words};
use super::log::Mark;
use crate::basics::{LogIndex, is_number};

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
    /// Reads them; `None` when they make no sense.
    pub fn read(words: &Memory) -> Option<Numbers> {
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
        let small = [numbers.min_proposal, numbers.last_ballot, numbers.taught_ballot, tail.index.0].into_iter().all(is_number);
        (ordered && aligned && small).then_some(numbers)
    }

    /// Whether its owner's machine shows the state, and will whatever follows what is committed there.
    pub fn holds_state(&self) -> bool {
        self.status != Status::Incomplete && self.executed <= self.committed.index.0
    }

    /// Whether its owner says that its machine shows the state.
    pub fn is_complete(&self) -> bool {
        self.status != Status::Incomplete
    }

    /// What is compared to find the log that holds everything that may be committed: the proposal number, then the length.
    pub fn rank(&self) -> (u64, LogIndex) {
        (self.last_ballot, self.tail.index)
    }
}
