//! Names: numbers that identify processes, views and log entries.

use std::fmt;

use martlet_fabric::{Incarnation, NodeId};

/// The highest number that is used for counting: an index, a position, a proposal number. Our own numbers never come near the end of their range, so
/// it is safe to add to a number that has passed [`is_number`].
pub const MAX_NUMBER: u64 = (1 << 62) - 1;

/// Whether another process's word can be such a number.
pub fn is_number(number: u64) -> bool {
    number <= MAX_NUMBER
}

/// One life of one node: this is what a view lists. A restarted process is a different one (TRAPS 28).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessId {
    /// The node's number in the configuration.
    pub node: NodeId,
    /// Its life.
    pub incarnation: Incarnation,
}

/// How many of an incarnation's lowest bits count how often a process has come back with its log (`docs/durability.md`).
pub const RETURN_BITS: u32 = 16;

impl ProcessId {
    /// The process that began the log which this one keeps, if processes come back from disks: this process itself, unless it has come back.
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

/// The number of a view. Views are decided in order and without gaps, from 1 on. 0 means that there is none yet.
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

/// The absolute index of an entry of the replicated log, from 1 on; 0 is before the first. Never wraps: 64 bits last for centuries.
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
