//! Names.

use std::fmt;

use martlet_fabric::{Incarnation, NodeId};

/// The highest number that anybody counts by: an index, a position, a proposal number. Ours never come near the end of their range, so whoever adds to one that
/// was found to be a number needs no second thought.
pub const MAX_NUMBER: u64 = (1 << 62) - 1;

/// Whether somebody else's word can be such a number.
pub fn is_number(number: u64) -> bool {
    number <= MAX_NUMBER
}

/// One life of one node: what a view lists. A restarted process is another one (TRAPS 28).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessId {
    /// Its number in the configuration.
    pub node: NodeId,
    /// Its life.
    pub incarnation: Incarnation,
}

/// How many of an incarnation's lowest bits count the times that its log has been come back with (`docs/durability.md`).
pub const RETURN_BITS: u32 = 16;

impl ProcessId {
    /// The process with which the log began that this one keeps, where processes come back from disks: itself, unless it has come back.
    #[must_use]
    pub const fn birth(self) -> ProcessId {
        ProcessId { node: self.node, incarnation: Incarnation(self.incarnation.0 >> RETURN_BITS << RETURN_BITS) }
    }
}

impl fmt::Display for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:x}", self.node, self.incarnation.0 & 0xffff_ffff)
    }
}

/// The number of a view: they are decided in order and without gaps, from 1 on. 0 is "none yet".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ViewNumber(pub u64);

impl ViewNumber {
    /// The view after this one.
    #[must_use]
    pub const fn next(self) -> ViewNumber {
        ViewNumber(self.0 + 1)
    }
}

impl fmt::Display for ViewNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The absolute index of an entry of the replicated log, from 1 on; 0 is "before the first". Never wraps: 64 bits last for centuries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogIndex(pub u64);

impl LogIndex {
    /// The index after this one.
    #[must_use]
    pub const fn next(self) -> LogIndex {
        LogIndex(self.0 + 1)
    }
}

impl fmt::Display for LogIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}
