//! What is due, ordered by time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::invariant;

/// Something that happens at a certain time. Numbers are indexes into the world's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// The first operation of a link makes progress, unless the link has been rescheduled since.
    Effect { link: u32, plan: u32 },
    /// Completions of a link may have reached the poster.
    Completion { link: u32 },
    /// The last operations of a dead poster are cut off.
    Cut { link: u32 },
    /// A datagram arrives.
    Datagram { slot: u32 },
    /// Two processes connect.
    Connect { one: u32, other: u32 },
    /// The peer of a link whose poster has given up is told: the connection is gone at both ends.
    Part { link: u32 },
    /// A process is told that a peer is gone.
    Gone { at: u32, peer: u32, certain: bool },
    /// The kernel sets the death words of a thread.
    Death { process: u32, thread: u32 },
    /// A process is to be woken.
    Wake { process: u32 },
    /// A process has its turn.
    Turn { process: u32 },
}

/// The bits of a key that name the place of what is due. Above them is the order in which it was entered, and above that its time.
const PLACE_BITS: u32 = 24;
const PLACES: usize = 1 << PLACE_BITS;

/// The queue of what is due. Entries that are due at the same time come in the order in which they were entered.
///
/// The heap holds only keys, each a single number: a comparison has no branch, and half as many bytes are moved.
#[derive(Debug, Default)]
pub(super) struct Agenda {
    heap: BinaryHeap<Reverse<u128>>,
    places: Vec<Due>,
    free: Vec<u32>,
    entered: u64,
}

impl Agenda {
    pub(super) fn enter(&mut self, at: u64, due: Due) {
        self.entered += 1;
        let place = match self.free.pop() {
            Some(place) => {
                self.places[place as usize] = due;
                place
            }
            None => {
                self.places.push(due);
                invariant!(self.places.len() <= PLACES, "more than {PLACES} things are due at once");
                (self.places.len() - 1) as u32
            }
        };
        // The world ends long before this count outgrows its bits.
        self.heap.push(Reverse(u128::from(at) << 64 | u128::from(self.entered << PLACE_BITS | u64::from(place))));
    }

    pub(super) fn len(&self) -> usize {
        self.heap.len()
    }

    pub(super) fn next_at(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse(key)| (key >> 64) as u64)
    }

    pub(super) fn pop(&mut self) -> Option<(u64, Due)> {
        let Reverse(key) = self.heap.pop()?;
        let place = key as u32 & (PLACES - 1) as u32;
        self.free.push(place);
        Some(((key >> 64) as u64, self.places[place as usize]))
    }
}
