//! A record at a fixed place: written as one, and read completely or not at all (TRAPS 14).
//!
//! A header of five words, then the payload. The header holds what the record belongs to (`subject`), the attempt in which it was written (`ballot`),
//! the payload's length, its checksum, and a seal over all of these. A reader that sees a torn record sees a broken seal. If a record must survive
//! being rewritten, two copies are kept and written in turn.

use martlet_fabric::Memory;
use martlet_fabric::primitive::Ordering;

use super::Canary;

/// Length of the header, in bytes.
pub const HEADER_BYTES: usize = 40;

/// A record that was read whole, and what it claims to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sealed {
    /// What it belongs to: a view number.
    pub subject: u64,
    /// The ballot at which it was written.
    pub ballot: u64,
    /// The payload.
    pub payload: Vec<u8>,
}

fn seal(subject: u64, ballot: u64, len: u64, crc: u64) -> u64 {
    let mut z = 0x6d61_7274_6c65_7421u64; // "martlet!": zeroed memory has no valid seal
    for word in [subject, ballot, len, crc] {
        z = (z ^ word).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z ^= z >> 29;
    }
    z
}

/// Puts the record into `out` (cleared first), padded to whole words, ready to be written.
pub fn encode(subject: u64, ballot: u64, payload: &[u8], out: &mut Vec<u8>) {
    out.clear();
    let (len, crc) = (payload.len() as u64, u64::from(crc32fast::hash(payload)));
    for word in [subject, ballot, len, crc, seal(subject, ballot, len, crc)] {
        out.extend_from_slice(&word.to_le_bytes());
    }
    out.extend_from_slice(payload);
    out.resize(out.len().next_multiple_of(8), 0);
}

/// Reads the record in `words`, if there is a whole one. The words may change during the read: the returned record was checked after it had been
/// copied.
pub fn read(words: &Memory) -> Option<Sealed> {
    let word = |i: usize| words.get(i).map(|w| w.load(Ordering::Acquire));
    let (subject, ballot, len, crc, sealed) = (word(0)?, word(1)?, word(2)?, word(3)?, word(4)?);
    let room = (words.len() * 8 - HEADER_BYTES) as u64;
    if len > room || seal(subject, ballot, len, crc) != sealed {
        return None;
    }
    let len = len as usize;
    let mut payload = Vec::with_capacity(len.next_multiple_of(8));
    for w in &words[HEADER_BYTES / 8..HEADER_BYTES / 8 + len.div_ceil(8)] {
        payload.extend_from_slice(&w.load(Ordering::Relaxed).to_le_bytes());
    }
    payload.truncate(len);
    (u64::from(crc32fast::hash(&payload)) == crc || Canary::TornView.is_planted()).then_some(Sealed { subject, ballot, payload })
}

/// Stores an encoded record into our own memory. A reader may see it torn, and then sees no record.
pub fn store(words: &Memory, encoded: &[u8]) {
    for (word, bytes) in words.iter().zip(encoded.chunks_exact(8)) {
        word.store(u64::from_le_bytes(bytes.try_into().expect("8 bytes")), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use martlet_fabric::primitive::AtomicU64;

    fn memory(words: usize) -> Vec<AtomicU64> {
        (0..words).map(|_| AtomicU64::new(0)).collect()
    }

    #[test]
    fn fresh_memory_holds_no_record() {
        assert_eq!(read(&memory(64)), None);
    }

    #[test]
    fn trap_14_any_single_word_left_behind_is_seen() {
        let payload: Vec<u8> = (1..=90).collect();
        let mut old = Vec::new();
        encode(4, 1, &[9; 90], &mut old);
        let mut new = Vec::new();
        encode(5, 2, &payload, &mut new);
        for stale in 0..new.len() / 8 {
            let m = memory(32);
            store(&m, &new);
            let before = u64::from_le_bytes(old[stale * 8..stale * 8 + 8].try_into().unwrap());
            if m[stale].swap(before, Ordering::Relaxed) != before {
                assert_eq!(read(&m), None, "word {stale} is stale and nobody noticed");
            }
        }
        let m = memory(32);
        store(&m, &new);
        assert_eq!(read(&m), Some(Sealed { subject: 5, ballot: 2, payload }));
    }

    #[test]
    fn a_length_beyond_the_memory_is_no_record() {
        let m = memory(8);
        for (i, w) in [1, 1, u64::MAX, 0, seal(1, 1, u64::MAX, 0)].into_iter().enumerate() {
            m[i].store(w, Ordering::Relaxed);
        }
        assert_eq!(read(&m), None);
    }
}
