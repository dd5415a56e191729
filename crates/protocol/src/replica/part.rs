//! A part of the state: how a teacher obtains it, and how a learner takes it in, fragment by fragment.

use super::{ConfigError, MAX_PART_BYTES, MAX_TRANSFER_BUDGET_BYTES, StateMachine, UnreadablePart};

/// Whether a state machine can be asked for so many bytes at a time.
pub fn check_transfer_budget(bytes: usize) -> Result<(), ConfigError> {
    const { assert!(MAX_TRANSFER_BUDGET_BYTES == 134_217_728, "as the error says") };
    if (1..=MAX_TRANSFER_BUDGET_BYTES).contains(&bytes) {
        return Ok(());
    }
    Err(ConfigError { key: "transfer_budget_bytes", value: bytes as u64, allowed: "1 to 134217728" })
}

/// How long, in nanoseconds, a state with a part of more than [`MAX_PART_BYTES`] is left alone before it is tried again: finding out takes a copy of such a
/// part. The state may have changed by then.
pub const REST_NS: u64 = 10_000_000_000;

/// A part that is too long for any learner: it has so many bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Oversized(pub usize);

/// Appends the part of `machine` from `cursor` on to `out`, and returns the cursor after it, or `None` when that was the last.
pub fn transfer<S: StateMachine>(machine: &S, cursor: u64, budget: usize, out: &mut Vec<u8>) -> Result<Option<u64>, Oversized> {
    let next = machine.transfer(cursor, budget, out);
    if out.len() > MAX_PART_BYTES {
        let oversized = Oversized(out.len());
        // The learner that has asked keeps its buffer.
        *out = Vec::new();
        return Err(oversized);
    }
    Ok(next)
}

/// Why a part of the state is refused. Its sender cannot teach this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PartFault {
    /// It is longer than any part that a state machine sends.
    #[error("a part of the state is longer than {MAX_PART_BYTES} bytes")]
    TooLong,
    /// The state machine cannot read it.
    #[error(transparent)]
    Unreadable(#[from] UnreadablePart),
}

/// What has arrived of a part.
#[derive(Debug)]
pub struct Part {
    bytes: Vec<u8>,
    open: bool,
    most: usize,
}

impl Default for Part {
    fn default() -> Part {
        Part::of_at_most(MAX_PART_BYTES)
    }
}

impl Part {
    /// An empty part that may grow to the longest allowed.
    pub fn new() -> Part {
        Part::of_at_most(MAX_PART_BYTES)
    }

    /// An empty part that may grow to so many bytes.
    pub fn of_at_most(most: usize) -> Part {
        Part { bytes: Vec::new(), open: false, most }
    }

    /// Whether fragments are to follow.
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// Forgets what has arrived.
    pub fn clear(&mut self) {
        (self.bytes, self.open) = (Vec::new(), false);
    }

    /// Takes the next fragment, and installs the part with its last one. A machine that refuses it is cleared at once: it may hold half of a part, which means
    /// nothing.
    pub fn take<S: StateMachine>(&mut self, fragment: &[u8], more: bool, machine: &mut S) -> Result<(), PartFault> {
        if fragment.len() > self.most - self.bytes.len() {
            self.clear();
            return Err(PartFault::TooLong);
        }
        self.bytes.extend_from_slice(fragment);
        self.open = more;
        if !more {
            let installed = machine.install(&self.bytes);
            self.bytes.clear();
            if let Err(unreadable) = installed {
                machine.clear();
                return Err(unreadable.into());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::basics::LogIndex;

    /// Accepts every part except 7.
    #[derive(Default)]
    struct Fussy {
        taken: Vec<u8>,
    }

    impl StateMachine for Fussy {
        fn apply(&mut self, _: LogIndex, _: &[u8]) {}

        fn transfer(&self, _: u64, _: usize, _: &mut Vec<u8>) -> Option<u64> {
            None
        }

        fn install(&mut self, part: &[u8]) -> Result<(), UnreadablePart> {
            self.taken.extend_from_slice(part);
            if part.contains(&7) { Err(UnreadablePart) } else { Ok(()) }
        }

        fn clear(&mut self) {
            self.taken.clear();
        }

        fn digest(&self) -> u64 {
            self.taken.len() as u64
        }
    }

    #[test]
    fn a_machine_that_refuses_a_part_is_cleared_before_anything_else() {
        let (mut part, mut machine) = (Part::new(), Fussy::default());
        assert_eq!(part.take(&[1, 2], true, &mut machine), Ok(()));
        assert_eq!((part.is_open(), part.take(&[3], false, &mut machine)), (true, Ok(())));
        assert_eq!(machine.taken, [1, 2, 3]);
        assert_eq!(part.take(&[4, 7, 5], false, &mut machine), Err(PartFault::Unreadable(UnreadablePart)));
        assert_eq!(machine.taken, []);
    }
}
