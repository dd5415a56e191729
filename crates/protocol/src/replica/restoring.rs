//! Restores a state machine from a snapshot and the entries after it (`docs/durability.md`).

use std::collections::VecDeque;

use super::journal::RecoverError;
use super::{StateMachine, UnreadableEntry, UnreadablePart};
use crate::basics::LogIndex;

/// A machine that is being restored. Each part is installed when the machine shows the same entries as the part. A part begins with the index of the last of
/// these, in eight bytes.
#[derive(Debug)]
pub struct Restoring<'a, S> {
    machine: &'a mut S,
    parts: VecDeque<(LogIndex, &'a [u8])>,
    /// The last entry that the first part shows: entries up to there need not be applied.
    first: LogIndex,
    /// The last entry that any part shows.
    most: LogIndex,
    /// A part could not be read. What follows is still checked, but has no effect.
    unreadable: Option<UnreadablePart>,
}

impl<'a, S: StateMachine> Restoring<'a, S> {
    /// `machine`, which is empty, and the parts of its snapshot.
    ///
    /// # Errors
    /// When a part does not say which entries it shows.
    pub fn new(parts: &'a [Vec<u8>], machine: &'a mut S) -> Result<Restoring<'a, S>, RecoverError> {
        let split = |part: &'a Vec<u8>| -> Result<(LogIndex, &'a [u8]), RecoverError> {
            let (shown, part) = part.split_first_chunk().ok_or(RecoverError::Snapshot)?;
            Ok((LogIndex(u64::from_le_bytes(*shown)), part))
        };
        let parts: VecDeque<(LogIndex, &'a [u8])> = parts.iter().map(split).collect::<Result<_, RecoverError>>()?;
        let first = parts.front().map_or(LogIndex(0), |(shown, _)| *shown);
        let most = parts.iter().map(|(shown, _)| *shown).max().unwrap_or_default();
        Ok(Restoring { machine, parts, first, most, unreadable: None })
    }

    /// The last entry that any part shows.
    pub fn most_shown(&self) -> LogIndex {
        self.most
    }

    /// All entries have been applied; installs the remaining parts, which show them.
    ///
    /// # Errors
    /// When any part could not be read.
    pub fn finish(mut self) -> Result<(), UnreadablePart> {
        self.install_before(LogIndex(u64::MAX));
        self.unreadable.map_or(Ok(()), Err)
    }

    /// Installs the parts that show nothing from `index` on.
    fn install_before(&mut self, index: LogIndex) {
        while let Some((_, part)) = self.parts.front().filter(|(shown, _)| *shown < index) {
            // A machine that has refused a part is given no further one.
            if self.unreadable.is_none()
                && let Err(unreadable) = self.machine.install(part)
            {
                self.unreadable = Some(unreadable);
                self.machine.clear();
            }
            self.parts.pop_front();
        }
    }
}

impl<S: StateMachine> StateMachine for Restoring<'_, S> {
    fn apply(&mut self, index: LogIndex, command: &[u8]) {
        if index > self.first {
            self.install_before(index);
            // Not to a machine that holds anything.
            if self.unreadable.is_none() {
                self.machine.apply(index, command);
            }
        }
    }

    fn unreadable(&self) -> Option<&UnreadableEntry> {
        self.machine.unreadable()
    }

    fn transfer(&self, cursor: u64, budget: usize, out: &mut Vec<u8>) -> Option<u64> {
        self.machine.transfer(cursor, budget, out)
    }

    fn install(&mut self, part: &[u8]) -> Result<(), UnreadablePart> {
        self.machine.install(part)
    }

    fn clear(&mut self) {
        self.machine.clear();
    }

    fn digest(&self) -> u64 {
        self.machine.digest()
    }
}
