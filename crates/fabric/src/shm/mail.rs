//! Datagrams between two members: a ring ([`datagrams`]) in mapped memory that the reader keeps for the writer.

use crate::datagrams;
use crate::host::memory::Area;

pub(super) use crate::datagrams::Popped;

/// Length of the ring.
pub(super) const BYTES: usize = datagrams::ring_bytes(32 * 1024);

/// The writing end.
#[derive(Debug)]
pub(super) struct Sender {
    ring: Area,
    end: datagrams::Sender,
}

impl Sender {
    pub(super) fn new(ring: Area) -> Sender {
        Sender { ring, end: datagrams::Sender::default() }
    }

    /// Appends a datagram. Returns `false` if there is no room.
    pub(super) fn push(&mut self, datagram: &[u8]) -> bool {
        self.end.push(self.ring.memory(), datagram)
    }
}

/// The reading end.
#[derive(Debug)]
pub(super) struct Receiver {
    ring: Area,
    end: datagrams::Receiver,
}

impl Receiver {
    pub(super) fn new(ring: Area) -> Receiver {
        Receiver { ring, end: datagrams::Receiver::default() }
    }

    /// Whether no datagram waits. One load.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.end.is_empty(self.ring.memory())
    }

    /// Takes everything without looking at it.
    pub(super) fn skip(&mut self) {
        self.end.skip(self.ring.memory());
    }

    /// Takes the next datagram into `into`, which it clears first.
    pub(super) fn pop(&mut self, into: &mut Vec<u8>) -> Popped {
        self.end.pop(self.ring.memory(), into)
    }
}
