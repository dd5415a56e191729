//! The machine that an engine replicates here. It checks only in which order it is given entries.

use martlet_protocol::basics::LogIndex;
use martlet_protocol::replica::{StateMachine, UnreadablePart};

/// Whether indices may be skipped: the machine is not given entries that say which processes belong to the group.
#[derive(PartialEq, Eq)]
pub enum Gaps {
    None,
    Allowed,
}

pub struct Machine {
    gaps: Gaps,
    last: Option<LogIndex>,
}

impl Machine {
    pub fn new(gaps: Gaps) -> Machine {
        Machine { gaps, last: None }
    }

    /// Checks an entry that the machine shows, because it was applied, or executed before it is committed.
    pub fn show(&mut self, index: LogIndex) {
        let follows = |last: LogIndex| if self.gaps == Gaps::None { index == last.next() } else { index > last };
        assert!(self.last.is_none_or(follows), "{index} after {:?}", self.last);
        self.last = Some(index);
    }
}

impl StateMachine for Machine {
    fn apply(&mut self, index: LogIndex, _: &[u8]) {
        self.show(index);
    }
    fn transfer(&self, cursor: u64, budget: usize, out: &mut Vec<u8>) -> Option<u64> {
        out.resize(out.len() + budget, 0);
        (cursor < 3).then_some(cursor + 1)
    }
    fn install(&mut self, part: &[u8]) -> Result<(), UnreadablePart> {
        if part.first() == Some(&0xff) { Err(UnreadablePart) } else { Ok(()) }
    }
    fn clear(&mut self) {
        self.last = None;
    }
    fn digest(&self) -> u64 {
        0
    }
}
