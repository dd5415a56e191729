//! What an operator's recovery goes on from, when a majority is lost for good: one replica's state, as the first of a cluster of its own.

use crate::basics::layout::LAST_VIEW;
use crate::basics::{LogIndex, MAX_NUMBER, ViewNumber};

/// How much further views are numbered behind a recovery. Others may have decided views of which the replica that is gone on from has never heard: fencing tokens
/// have to be larger than those of any of them.
const VIEWS: u64 = 1 << 16;
/// How much further proposals are numbered, for the same reason. An attempt to lead takes 2^16: these are more than 16 million that went unheard of.
const NUMBERS: u64 = 1 << 40;

/// What a replica held, all of which its machine shows: what is known to be committed, and what may have been.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gathered {
    /// The last entry.
    pub last: LogIndex,
    /// Where the log ends that has it, for an engine to which that means something.
    pub position: u64,
    /// The highest proposal number that it knew, for an engine that has such.
    pub number: u64,
    /// The newest view that it knew.
    pub view: ViewNumber,
}

impl Gathered {
    /// The number of the first view of the cluster that goes on from here.
    pub fn first_view(&self) -> ViewNumber {
        ViewNumber((self.view.0 + VIEWS).min(LAST_VIEW - VIEWS))
    }

    /// A proposal number behind all that may have been used before.
    pub fn later_number(&self) -> u64 {
        (self.number + NUMBERS).min(MAX_NUMBER / 2)
    }
}
