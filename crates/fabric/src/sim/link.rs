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
    /// Its first word there.
    pub(super) word: usize,
    pub(super) len: usize,
    /// For a write or a revocation of a lane: the lane's number in its owner's table.
    pub(super) lane: Option<u32>,
    /// The poster has no right to this: a client that writes public memory.
    pub(super) denied: bool,
    /// What is written, or what has been read.
    pub(super) data: Vec<u64>,
    /// Where a read lands.
    pub(super) into: Option<(Rc<Block>, usize)>,
    /// How many words have landed, from which on, and whether downwards.
    pub(super) landed: usize,
    pub(super) first: usize,
    pub(super) down: bool,
    /// The lane's epoch when the first word landed, if it was granted then.
    pub(super) epoch: Option<u64>,
    /// When it reaches the peer, if nothing is in the way.
    pub(super) arrives_at: u64,
    /// When the poster stops trying.
    pub(super) lost_at: u64,
    /// When its completion reaches the poster, if nothing is in the way.
    pub(super) completes_at: u64,
    pub(super) result: Option<Result<u64, OpError>>,
}

impl Op {
    /// The word of the transfer that lands as number `i`.
    pub(super) fn nth(&self, i: usize) -> usize {
        let i = self.first + i;
        let i = if i < self.len { i } else { i - self.len };
        if self.down { self.len - 1 - i } else { i }
    }

    /// The words that land next, up to number `upto`, if they follow each other. Those of one piece land at one moment, so that their order among
    /// themselves is nothing that anybody sees.
    pub(super) fn run(&self, upto: usize) -> Option<Range<usize>> {
        let whole = self.landed == 0 && upto == self.len;
        (whole || (self.first == 0 && !self.down)).then_some(self.landed..upto)
    }
}

/// The ordered queue of one poster's operations on one peer. Both ends are processes of the world; they may be the same.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) from: u32,
    pub(super) to: u32,
    /// How the poster numbers the peer.
    pub(super) peer: u32,
    /// Posted and not yet done at the peer.
    pub(super) posted: VecDeque<u32>,
    /// Done at the peer; the completion is on its way.
    pub(super) done: VecDeque<u32>,
    pub(super) last_arrival: u64,
    pub(super) last_completion: u64,
    /// Which plan of the first posted operation is valid; older ones on the agenda are void.
    pub(super) plan: u32,
    /// The poster has lost the peer, or given it up: nothing posted takes effect any more.
    pub(super) broken: bool,
    /// A completion event on the agenda for when a blocked way back is given up; saves entering it twice.
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
