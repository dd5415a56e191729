//! What an operator's recovery starts from when a majority is lost for good: one replica's state, with which it founds a new cluster.

use crate::basics::layout::LAST_VIEW;
use crate::basics::{LogIndex, MAX_NUMBER, ViewNumber};

/// How many view numbers are skipped by a recovery. Others may have decided views that the surviving replica never heard of, and later fencing tokens have to
/// be larger than any of theirs.
const VIEWS: u64 = 1 << 16;
/// How many proposal numbers are skipped, for the same reason. An attempt to lead uses 2^16, so this covers more than 16 million attempts that the replica
/// never heard of.
const NUMBERS: u64 = 1 << 40;

/// What a replica held, known to be committed or not. Its machine shows all of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gathered {
    /// The last entry.
    pub last: LogIndex,
    /// Where its log ends, for an engine that uses positions.
    pub position: u64,
    /// The highest proposal number that it knew, for an engine that has proposal numbers.
    pub number: u64,
    /// The newest view that it knew.
    pub view: ViewNumber,
}

impl Gathered {
    /// The number of the first view of the new cluster.
    pub fn first_view(&self) -> ViewNumber {
        ViewNumber((self.view.0 + VIEWS).min(LAST_VIEW - VIEWS))
    }

    /// A proposal number above all that may have been used before.
    pub fn later_number(&self) -> u64 {
        (self.number + NUMBERS).min(MAX_NUMBER / 2)
    }
}
