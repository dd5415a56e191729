//! What is due, in order of time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Something that happens at a moment. Numbers are indexes into the world's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Due {
    /// The first operation of a link goes on, unless the link has been rescheduled since.
    Effect { link: u32, plan: u32 },
    /// Completions of a link may have come home.
    Completion { link: u32 },
    /// The last operations of a dead poster are cut off.
    Cut { link: u32 },
    /// A datagram arrives.
    Datagram { slot: u32 },
    /// Two processes connect.
    Connect { one: u32, other: u32 },
    /// The peer of a link, which has given up, hears of it: the connection is gone at both ends.
    Part { link: u32 },
    /// A process hears that a peer is gone.
    Gone { at: u32, peer: u32, certain: bool },
    /// The kernel sets the death words of a thread.
    Death { process: u32, thread: u32 },
    /// A process is to be woken.
    Wake { process: u32 },
    /// A process has its turn.
    Turn { process: u32 },
}

/// The queue of what is due. What is due at the same moment comes in the order in which it was entered.
#[derive(Debug, Default)]
pub(super) struct Agenda {
    heap: BinaryHeap<Reverse<(u64, u64, Due)>>,
    entered: u64,
}

impl Agenda {
    pub(super) fn enter(&mut self, at: u64, due: Due) {
        self.entered += 1;
        self.heap.push(Reverse((at, self.entered, due)));
    }

    pub(super) fn len(&self) -> usize {
        self.heap.len()
    }

    pub(super) fn next_at(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse((at, _, _))| *at)
    }

    pub(super) fn pop(&mut self) -> Option<(u64, Due)> {
        self.heap.pop().map(|Reverse((at, _, due))| (at, due))
    }
}
