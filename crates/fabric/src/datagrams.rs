//! Datagrams in memory that one process keeps for another: a ring with one writer and one reader.
//!
//! ```text
//! word 0    head: words consumed so far; the reader writes it
//! word 8    tail: words produced so far; the writer writes it, last
//! word 16.. a power of two of words; a record is a word with its length in bytes, then the bytes, padded to words; it may wrap
//! ```
//!
//! A record is there once the tail has passed it, so a writer that dies in the middle leaves no partial record. Both positions only grow. Neither
//! side trusts the other: a position or length that makes no sense is skipped, and the caller is told ([`Popped::Malformed`]).

use crate::contract::{MAX_DATAGRAM_BYTES, Memory};
use crate::primitive::Ordering;

const HEAD: usize = 0;
const TAIL: usize = 8;
const DATA: usize = 16;

/// The length of a ring with `capacity` words of data.
pub const fn ring_bytes(capacity: usize) -> usize {
    assert!(capacity.is_power_of_two(), "a ring's capacity is a power of two");
    (DATA + capacity) * 8
}

#[inline]
fn capacity_of(ring: &Memory) -> u64 {
    let capacity = (ring.len() - DATA) as u64;
    debug_assert!(capacity.is_power_of_two(), "a ring of {capacity} words");
    capacity
}

#[inline]
fn index(ring: &Memory, position: u64) -> usize {
    DATA + (position & (capacity_of(ring) - 1)) as usize
}

/// The writing end, held by the writer, which passes the ring's memory to each call.
#[derive(Debug, Default)]
pub struct Sender {
    tail: u64,
}

impl Sender {
    /// Appends a datagram. Returns `false` if there is no room.
    pub fn push(&mut self, ring: &Memory, datagram: &[u8]) -> bool {
        let need = 1 + datagram.len().div_ceil(8) as u64;
        // Pairs with the release in `pop`: the reader has copied whatever it has consumed.
        let head = ring[HEAD].load(Ordering::Acquire);
        // A head beyond the tail is the reader's mistake. By its own account there is no room.
        if self.tail.checked_sub(head).is_none_or(|used| used + need > capacity_of(ring)) {
            return false;
        }
        ring[index(ring, self.tail)].store(datagram.len() as u64, Ordering::Relaxed);
        for (at, chunk) in (self.tail + 1..).zip(datagram.chunks(8)) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            ring[index(ring, at)].store(u64::from_le_bytes(word), Ordering::Relaxed);
        }
        self.tail += need;
        // Pairs with the acquire in `pop`.
        ring[TAIL].store(self.tail, Ordering::Release);
        true
    }
}

/// What the reading end found.
#[derive(Debug, PartialEq, Eq)]
pub enum Popped {
    /// There is nothing.
    Nothing,
    /// The next datagram.
    Datagram,
    /// Something that no writer of ours produces; everything up to the tail has been skipped.
    Malformed,
}

/// The reading end, held by the owner, which passes the ring's memory to each call.
#[derive(Debug, Default)]
pub struct Receiver {
    head: u64,
}

impl Receiver {
    /// Whether no datagram waits. One load.
    #[inline]
    pub fn is_empty(&self, ring: &Memory) -> bool {
        ring[TAIL].load(Ordering::Acquire) == self.head
    }

    /// Takes everything without looking at it.
    pub fn skip(&mut self, ring: &Memory) {
        let tail = ring[TAIL].load(Ordering::Acquire);
        self.advance_to(ring, tail);
    }

    /// Takes the next datagram into `into`, which it clears first.
    pub fn pop(&mut self, ring: &Memory, into: &mut Vec<u8>) -> Popped {
        into.clear();
        // Pairs with the release in `push`.
        let tail = ring[TAIL].load(Ordering::Acquire);
        let waiting = tail.wrapping_sub(self.head);
        if waiting == 0 {
            return Popped::Nothing;
        }
        let len = ring[index(ring, self.head)].load(Ordering::Relaxed);
        let sane = waiting <= capacity_of(ring) && len <= MAX_DATAGRAM_BYTES as u64 && len.div_ceil(8) < waiting;
        if !sane {
            self.advance_to(ring, tail);
            return Popped::Malformed;
        }
        let words = len.div_ceil(8);
        // The writer alone says where the tail is, so it may have led us near the end of the range of numbers.
        for word in 1..=words {
            into.extend_from_slice(&ring[index(ring, self.head.wrapping_add(word))].load(Ordering::Relaxed).to_le_bytes());
        }
        into.truncate(len as usize);
        self.advance_to(ring, self.head.wrapping_add(1 + words));
        Popped::Datagram
    }

    fn advance_to(&mut self, ring: &Memory, head: u64) {
        self.head = head;
        // Pairs with the acquire in `push`.
        ring[HEAD].store(head, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::primitive::AtomicU64;

    const CAPACITY: usize = if cfg!(miri) { 1024 } else { 32 * 1024 };

    fn ring() -> (Sender, Receiver, Vec<AtomicU64>) {
        (Sender::default(), Receiver::default(), (0..ring_bytes(CAPACITY) / 8).map(|_| AtomicU64::new(0)).collect())
    }

    #[test]
    fn datagrams_arrive_unaltered_over_many_laps() {
        let (mut sender, mut receiver, ring) = ring();
        let mut got = Vec::new();
        for round in 0..20_000usize {
            let len = (round * 7919) % (MAX_DATAGRAM_BYTES + 1);
            let sent: Vec<u8> = (0..len).map(|i| (i ^ round) as u8).collect();
            assert!(sender.push(&ring, &sent));
            assert!(!receiver.is_empty(&ring));
            assert_eq!(receiver.pop(&ring, &mut got), Popped::Datagram);
            assert_eq!(got, sent, "round {round}");
        }
        assert_eq!(receiver.pop(&ring, &mut got), Popped::Nothing);
    }

    #[test]
    fn a_full_ring_refuses_and_recovers() {
        let (mut sender, mut receiver, ring) = ring();
        let datagram = vec![5; MAX_DATAGRAM_BYTES];
        let mut sent = 0;
        while sender.push(&ring, &datagram) {
            sent += 1;
        }
        assert!(sent >= 60, "{sent} of the longest fit");
        let mut got = Vec::new();
        assert_eq!(receiver.pop(&ring, &mut got), Popped::Datagram);
        assert!(sender.push(&ring, &datagram));
        assert!(!sender.push(&ring, &datagram));
    }

    #[test]
    fn positions_at_the_end_of_their_range_wrap() {
        let (_, mut receiver, ring) = ring();
        let mut got = Vec::new();
        ring[TAIL].store(u64::MAX - 1, Ordering::Release);
        assert_eq!(receiver.pop(&ring, &mut got), Popped::Malformed);
        for (i, word) in [16, 0x11, 0x22].into_iter().enumerate() {
            ring[index(&ring, (u64::MAX - 1).wrapping_add(i as u64))].store(word, Ordering::Relaxed);
        }
        ring[TAIL].store(1, Ordering::Release);
        assert_eq!(receiver.pop(&ring, &mut got), Popped::Datagram);
        assert_eq!((got.len(), got[0], got[8]), (16, 0x11, 0x22));
        assert_eq!(receiver.pop(&ring, &mut got), Popped::Nothing);
    }

    #[test]
    fn nonsense_is_skipped_and_later_mail_still_arrives() {
        let (mut sender, mut receiver, ring) = ring();
        let mut got = Vec::new();
        let capacity = CAPACITY as u64;
        for (len, words_behind) in [(MAX_DATAGRAM_BYTES as u64 + 1, 2000), (64, 3), (u64::MAX, 1), (8, 1), (0, capacity + 1), (0, u64::MAX)]
        {
            assert!(sender.push(&ring, b"before"));
            assert_eq!(receiver.pop(&ring, &mut got), Popped::Datagram);
            ring[index(&ring, receiver.head)].store(len, Ordering::Relaxed);
            ring[TAIL].store(receiver.head.wrapping_add(words_behind), Ordering::Release);
            assert_eq!(receiver.pop(&ring, &mut got), Popped::Malformed, "length {len}, {words_behind} words");
            // Back to the tail of the real writer.
            ring[TAIL].store(sender.tail, Ordering::Release);
            receiver.advance_to(&ring, sender.tail);
        }
        ring[HEAD].store(u64::MAX, Ordering::Release);
        assert!(!sender.push(&ring, b"no room by the reader's account"));
    }
}
