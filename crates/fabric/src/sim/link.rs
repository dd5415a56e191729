//! The queue of one process's operations on one peer.

use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;

use super::memory::Block;
use crate::contract::OpError;

/// What an operation does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Kind {
    #[default]
    Write,
    Read,
    ReadWord,
    Swap {
        expected: u64,
        new: u64,
    },
    Revoke,
}

/// A posted operation.
#[derive(Debug, Default)]
pub(super) struct Op {
    pub(super) kind: Kind,
    pub(super) token: u64,
    /// The peer's memory; `None` for a revocation.
    pub(super) at: Option<Rc<Block>>,
    /// The index of its first word there.
    pub(super) word: usize,
    pub(super) len: usize,
    /// For a write or a revocation of a lane: the lane's number in its owner's table.
    pub(super) lane: Option<u32>,
    /// The poster has no right to do this, such as a client that writes public memory.
    pub(super) denied: bool,
    /// What is written, or what has been read.
    pub(super) data: Vec<u64>,
    /// Where a read lands.
    pub(super) into: Option<(Rc<Block>, usize)>,
    /// How many words have landed, starting with which, and whether downwards.
    pub(super) landed: usize,
    pub(super) first: usize,
    pub(super) down: bool,
    /// The lane's epoch when the first word landed, if the lane was granted then.
    pub(super) epoch: Option<u64>,
    /// When it reaches the peer, if nothing delays it.
    pub(super) arrives_at: u64,
    /// When the poster stops trying.
    pub(super) lost_at: u64,
    /// When its completion reaches the poster, if nothing delays it.
    pub(super) completes_at: u64,
    pub(super) result: Option<Result<u64, OpError>>,
}

impl Op {
    /// The `i`-th word of the transfer to land.
    pub(super) fn nth(&self, i: usize) -> usize {
        let i = self.first + i;
        let i = if i < self.len { i } else { i - self.len };
        if self.down { self.len - 1 - i } else { i }
    }

    /// The words that land next, up to the one numbered `upto`, if they are consecutive. The words of one piece land at the same time, so no process
    /// can see their order.
    pub(super) fn run(&self, upto: usize) -> Option<Range<usize>> {
        let whole = self.landed == 0 && upto == self.len;
        (whole || (self.first == 0 && !self.down)).then_some(self.landed..upto)
    }
}

/// The ordered queue of one poster's operations on one peer. Both are processes of the world, and may be the same one.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) from: u32,
    pub(super) to: u32,
    /// The number by which the poster knows the peer.
    pub(super) peer: u32,
    /// Operations that are posted and not yet done at the peer.
    pub(super) posted: VecDeque<u32>,
    /// Operations that are done at the peer and whose completions are on their way.
    pub(super) done: VecDeque<u32>,
    pub(super) last_arrival: u64,
    pub(super) last_completion: u64,
    /// Which plan of the first posted operation is valid. Older plans on the agenda are void.
    pub(super) plan: u32,
    /// The poster has lost the peer, or has given it up: nothing posted takes effect any more.
    pub(super) broken: bool,
    /// The time of a completion event on the agenda, at which a blocked way back is given up. It saves entering that event twice.
    pub(super) retry_at: u64,
}

impl Link {
    pub(super) fn new(from: u32, to: u32, peer: u32) -> Link {
        Link {
            from,
            to,
            peer,
            posted: VecDeque::new(),
            done: VecDeque::new(),
            last_arrival: 0,
            last_completion: 0,
            plan: 0,
            broken: false,
            retry_at: 0,
        }
    }
}
