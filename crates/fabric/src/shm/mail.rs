//! Datagrams between two members: a ring with one writer and one reader, in memory that the reader keeps for the writer.
//!
//! ```text
//! word 0    head: words consumed so far; the reader writes it
//! word 8    tail: words produced so far; the writer writes it, last
//! word 16.. CAPACITY words; a record is a word with its length in bytes, then the bytes, padded to words; it may wrap
//! ```
//!
//! A record is there once the tail has passed it, so a writer that dies in the middle leaves nothing half-said. Both positions only grow.
//! Neither side trusts the other: a position or length that makes no sense is counted and skipped.

use super::memory::Area;
use crate::contract::MAX_DATAGRAM_BYTES;
use crate::primitive::Ordering;

/// Words of data; a power of two.
const CAPACITY: u64 = 32 * 1024;
const HEAD: usize = 0;
const TAIL: usize = 8;
const DATA: usize = 16;
/// Length of the ring.
pub(super) const BYTES: usize = (DATA + CAPACITY as usize) * 8;

fn index(position: u64) -> usize {
    DATA + (position % CAPACITY) as usize
}

/// The writing end.
#[derive(Debug)]
pub(super) struct Sender {
    ring: Area,
    tail: u64,
}

impl Sender {
    pub(super) fn new(ring: Area) -> Sender {
        Sender { ring, tail: 0 }
    }

    /// Appends a datagram; `false` when there is no room.
    pub(super) fn push(&mut self, datagram: &[u8]) -> bool {
        let memory = self.ring.memory();
        let need = 1 + datagram.len().div_ceil(8) as u64;
        // Pairs with the release in `pop`: what it has consumed, it has copied.
        let head = memory[HEAD].load(Ordering::Acquire);
        // A head beyond the tail is the reader's mistake: there is no room, by its own account.
        if self.tail.checked_sub(head).is_none_or(|used| used + need > CAPACITY) {
            return false;
        }
        memory[index(self.tail)].store(datagram.len() as u64, Ordering::Relaxed);
        for (at, chunk) in (self.tail + 1..).zip(datagram.chunks(8)) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            memory[index(at)].store(u64::from_le_bytes(word), Ordering::Relaxed);
        }
        self.tail += need;
        // Pairs with the acquire in `pop`.
        memory[TAIL].store(self.tail, Ordering::Release);
        true
    }
}

/// What the reading end found.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Popped {
    Nothing,
    Datagram,
    /// Something that no writer of ours produces; everything up to the tail has been skipped.
    Malformed,
}

/// The reading end.
#[derive(Debug)]
pub(super) struct Receiver {
    ring: Area,
    head: u64,
}

impl Receiver {
    pub(super) fn new(ring: Area) -> Receiver {
        Receiver { ring, head: 0 }
    }

    /// Whether nothing waits. One load.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.ring.memory()[TAIL].load(Ordering::Acquire) == self.head
    }

    /// Takes everything, and looks at nothing of it.
    pub(super) fn skip(&mut self) {
        let tail = self.ring.memory()[TAIL].load(Ordering::Acquire);
        self.advance_to(tail);
    }

    /// Takes the next datagram into `into`, which it clears first.
    pub(super) fn pop(&mut self, into: &mut Vec<u8>) -> Popped {
        into.clear();
        let memory = self.ring.memory();
        // Pairs with the release in `push`.
        let tail = memory[TAIL].load(Ordering::Acquire);
        let waiting = tail.wrapping_sub(self.head);
        if waiting == 0 {
            return Popped::Nothing;
        }
        let len = memory[index(self.head)].load(Ordering::Relaxed);
        let sane = waiting <= CAPACITY && len <= MAX_DATAGRAM_BYTES as u64 && len.div_ceil(8) < waiting;
        if !sane {
            self.advance_to(tail);
            return Popped::Malformed;
        }
        let words = len.div_ceil(8);
        // Where the tail has sent us is the writer's word: near the end of the range, too.
        for word in 1..=words {
            into.extend_from_slice(&memory[index(self.head.wrapping_add(word))].load(Ordering::Relaxed).to_le_bytes());
        }
        into.truncate(len as usize);
        self.advance_to(self.head.wrapping_add(1 + words));
        Popped::Datagram
    }

    fn advance_to(&mut self, head: u64) {
        self.head = head;
        self.ring.memory()[HEAD].store(head, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::super::memory::{Access, Map, create};
    use super::*;

    fn ring() -> (Sender, Receiver, Area) {
        let bytes = BYTES.next_multiple_of(4096);
        let fd = create("martlet-test", bytes).expect("memfd");
        let area = Area::new(&Map::new(&fd, 0, bytes, Access::ReadWrite, false).expect("map"), 0, BYTES);
        (Sender::new(area.clone()), Receiver::new(area.clone()), area)
    }

    #[test]
    fn datagrams_arrive_unaltered_over_many_laps() {
        let (mut sender, mut receiver, _) = ring();
        let mut got = Vec::new();
        for round in 0..20_000usize {
            let len = (round * 7919) % (MAX_DATAGRAM_BYTES + 1);
            let sent: Vec<u8> = (0..len).map(|i| (i ^ round) as u8).collect();
            assert!(sender.push(&sent));
            assert!(!receiver.is_empty());
            assert_eq!(receiver.pop(&mut got), Popped::Datagram);
            assert_eq!(got, sent, "round {round}");
        }
        assert_eq!(receiver.pop(&mut got), Popped::Nothing);
    }

    #[test]
    fn a_full_ring_refuses_and_recovers() {
        let (mut sender, mut receiver, _) = ring();
        let datagram = vec![5; MAX_DATAGRAM_BYTES];
        let mut sent = 0;
        while sender.push(&datagram) {
            sent += 1;
        }
        assert!(sent >= 60, "{sent} of the longest fit");
        let mut got = Vec::new();
        assert_eq!(receiver.pop(&mut got), Popped::Datagram);
        assert!(sender.push(&datagram));
        assert!(!sender.push(&datagram));
    }

    #[test]
    fn positions_at_the_end_of_their_range_wrap() {
        let (_, mut receiver, area) = ring();
        let mut got = Vec::new();
        area.memory()[TAIL].store(u64::MAX - 1, Ordering::Release);
        assert_eq!(receiver.pop(&mut got), Popped::Malformed);
        for (i, word) in [16, 0x11, 0x22].into_iter().enumerate() {
            area.memory()[index((u64::MAX - 1).wrapping_add(i as u64))].store(word, Ordering::Relaxed);
        }
        area.memory()[TAIL].store(1, Ordering::Release);
        assert_eq!(receiver.pop(&mut got), Popped::Datagram);
        assert_eq!((got.len(), got[0], got[8]), (16, 0x11, 0x22));
        assert_eq!(receiver.pop(&mut got), Popped::Nothing);
    }

    #[test]
    fn nonsense_is_skipped_and_later_mail_still_arrives() {
        let (mut sender, mut receiver, area) = ring();
        let mut got = Vec::new();
        for (len, words_behind) in [(MAX_DATAGRAM_BYTES as u64 + 1, 2000), (64, 3), (u64::MAX, 1), (8, 1), (0, CAPACITY + 1), (0, u64::MAX)]
        {
            assert!(sender.push(b"before"));
            assert_eq!(receiver.pop(&mut got), Popped::Datagram);
            area.memory()[index(receiver.head)].store(len, Ordering::Relaxed);
            area.memory()[TAIL].store(receiver.head.wrapping_add(words_behind), Ordering::Release);
            assert_eq!(receiver.pop(&mut got), Popped::Malformed, "length {len}, {words_behind} words");
            // Back to what the writer says.
            area.memory()[TAIL].store(sender.tail, Ordering::Release);
            receiver.advance_to(sender.tail);
        }
        area.memory()[HEAD].store(u64::MAX, Ordering::Release);
        assert!(!sender.push(b"no room by the reader's account"));
    }
}
