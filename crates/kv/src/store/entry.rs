//! A key together with its value, in one allocation.

use martlet_fabric::Pulse;
use martlet_fabric::pulse::BEAT_BYTES;

/// Bit of the header's first byte: the key's length takes four bytes instead of one.
const LONG_KEY: u8 = 1;
/// Bit of the header's first byte: eight bytes of expiry follow the key's length.
const EXPIRES: u8 = 2;
/// Bit of the header's first byte: four bytes follow that say how many bytes at the end are spare.
const GROWS: u8 = 4;

/// An entry with at least this many bytes of key and value has room for an expiry from the start: adding it later would move the whole value.
const LONG_BYTES: usize = 256;
/// The expiry in such an entry if it does not expire. As with [effects](super::effects), no key expires in 1970.
const NEVER: u64 = 0;

/// A key, its value and, for those that have one, its expiry: `flags, key length (1 or 4 bytes), expiry (0 or 8 bytes), spare bytes (0 or 4 bytes), key, value,
/// spare`.
///
/// A usual key has two bytes of header, in a boxed slice. Beyond that an entry costs only the allocator's own header and its slot in the table. A value that is
/// appended to gets a quarter of its length as spare room, so each byte is moved a bounded number of times, however small the steps in which the value grows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry(Box<[u8]>);

/// Where the parts of an entry lie.
struct Shape {
    expiry_at: Option<usize>,
    grows_at: Option<usize>,
    key_at: usize,
    value_at: usize,
    /// Where the value ends.
    end: usize,
}

impl Entry {
    /// An entry of these parts. `expiry` is in milliseconds of Unix time, and not 0.
    pub fn new(key: &[u8], value: &[u8], expiry: Option<u64>) -> Entry {
        Entry::copied(key, value, expiry, &Pulse::default())
    }

    /// The same; reports life while it copies a long value.
    pub fn copied(key: &[u8], value: &[u8], expiry: Option<u64>, pulse: &Pulse) -> Entry {
        let expires = expiry.is_some() || key.len() + value.len() >= LONG_BYTES;
        let mut bytes = Vec::with_capacity(header_bytes(key.len(), expires, false) + key.len() + value.len());
        write_header(&mut bytes, key.len(), expires.then_some(expiry.unwrap_or(NEVER)), None);
        bytes.extend_from_slice(key);
        pulse.append(&mut bytes, value);
        Entry(bytes.into_boxed_slice())
    }

    #[inline]
    fn shape(&self) -> Shape {
        let flags = self.0[0];
        let (key_len, mut at) = if flags & LONG_KEY == 0 {
            (usize::from(self.0[1]), 2)
        } else {
            (u32::from_le_bytes(self.0[1..5].try_into().expect("4 bytes")) as usize, 5)
        };
        let mut expiry_at = None;
        if flags & EXPIRES != 0 {
            expiry_at = Some(at);
            at += 8;
        }
        let (mut grows_at, mut end) = (None, self.0.len());
        if flags & GROWS != 0 {
            grows_at = Some(at);
            end -= u32::from_le_bytes(self.0[at..at + 4].try_into().expect("4 bytes")) as usize;
            at += 4;
        }
        Shape { expiry_at, grows_at, key_at: at, value_at: at + key_len, end }
    }

    /// The key.
    #[inline]
    pub fn key(&self) -> &[u8] {
        let shape = self.shape();
        &self.0[shape.key_at..shape.value_at]
    }

    /// The value.
    #[inline]
    pub fn value(&self) -> &[u8] {
        let shape = self.shape();
        &self.0[shape.value_at..shape.end]
    }

    /// When it expires, in milliseconds of Unix time.
    #[inline]
    pub fn expiry(&self) -> Option<u64> {
        let at = self.shape().expiry_at?;
        Some(u64::from_le_bytes(self.0[at..at + 8].try_into().expect("8 bytes"))).filter(|expiry| *expiry != NEVER)
    }

    /// Replaces the value and the expiry, in place if the room is just right.
    pub fn replace(&mut self, value: &[u8], expiry: Option<u64>, pulse: &Pulse) {
        let shape = self.shape();
        let room = self.0.len() - shape.value_at;
        // An entry with spare room keeps its allocation, unless more than half of that would be spare.
        let fits = value.len() == room || shape.grows_at.is_some() && (room / 2..=room).contains(&value.len());
        if fits && (shape.expiry_at.is_some() || expiry.is_none()) {
            pulse.copy(&mut self.0[shape.value_at..][..value.len()], value);
            self.set_end(shape.value_at + value.len());
            self.set_expiry(expiry, pulse);
        } else {
            *self = Entry::copied(self.key(), value, expiry, pulse);
        }
    }

    /// Gives it another expiry, or none.
    pub fn set_expiry(&mut self, expiry: Option<u64>, pulse: &Pulse) {
        match (self.shape().expiry_at, expiry) {
            (None, None) => {}
            (Some(at), _) => self.0[at..at + 8].copy_from_slice(&expiry.unwrap_or(NEVER).to_le_bytes()),
            (None, Some(_)) => *self = Entry::copied(self.key(), self.value(), expiry, pulse),
        }
    }

    /// Writes `bytes` into the value from `offset` on; what lies between the old end and `offset` becomes zero.
    pub fn write_at(&mut self, offset: usize, bytes: &[u8], pulse: &Pulse) {
        let mut shape = self.shape();
        let end = shape.value_at + offset + bytes.len();
        if end > self.0.len() {
            self.make_room(&shape, offset + bytes.len(), pulse);
            shape = self.shape();
        }
        let (from, end) = (shape.value_at + offset, shape.value_at + offset + bytes.len());
        if from > shape.end {
            // The spare bytes may still hold the end of a longer value.
            for part in self.0[shape.end..from].chunks_mut(BEAT_BYTES) {
                part.fill(0);
                pulse.worked(part.len());
            }
        }
        pulse.copy(&mut self.0[from..end], bytes);
        if end > shape.end {
            self.set_end(end);
        }
    }

    /// Makes room for a value of so many bytes, with some to spare.
    fn make_room(&mut self, shape: &Shape, value_bytes: usize, pulse: &Pulse) {
        let room = value_bytes + value_bytes / 4 + 8;
        let spare = |used: usize| u32::try_from(room - used).expect("a value is bounded by the longest bulk string");
        let used = shape.end - shape.value_at;
        if let Some(at) = shape.grows_at {
            let mut bytes = std::mem::take(&mut self.0).into_vec();
            let more = shape.value_at + room - bytes.len();
            bytes.reserve_exact(more);
            pulse.append_zeros(&mut bytes, more);
            bytes[at..at + 4].copy_from_slice(&spare(used).to_le_bytes());
            self.0 = bytes.into_boxed_slice();
        } else {
            let (key, value, expiry) = (self.key(), self.value(), self.expiry());
            let expires = shape.expiry_at.is_some() || key.len() + room >= LONG_BYTES;
            let mut bytes = Vec::with_capacity(header_bytes(key.len(), expires, true) + key.len() + room);
            write_header(&mut bytes, key.len(), expires.then_some(expiry.unwrap_or(NEVER)), Some(spare(used)));
            bytes.extend_from_slice(key);
            pulse.append(&mut bytes, value);
            pulse.append_zeros(&mut bytes, room - used);
            self.0 = bytes.into_boxed_slice();
        }
    }

    /// Sets where the value ends, within the room that there is.
    fn set_end(&mut self, end: usize) {
        let spare = self.0.len() - end;
        if let Some(at) = self.shape().grows_at {
            self.0[at..at + 4].copy_from_slice(&(spare as u32).to_le_bytes());
        }
    }

    /// Roughly what its allocation takes of the heap, in bytes: its length and the allocator's header, rounded up as allocators do.
    #[inline]
    pub fn heap_bytes(&self) -> usize {
        (self.0.len() + 8).next_multiple_of(16).max(32)
    }
}

fn header_bytes(key_len: usize, expires: bool, grows: bool) -> usize {
    1 + if key_len < 256 { 1 } else { 4 } + if expires { 8 } else { 0 } + if grows { 4 } else { 0 }
}

fn write_header(bytes: &mut Vec<u8>, key_len: usize, expiry: Option<u64>, spare: Option<u32>) {
    let flags = if expiry.is_some() { EXPIRES } else { 0 } | if spare.is_some() { GROWS } else { 0 };
    if let Ok(short) = u8::try_from(key_len) {
        bytes.extend_from_slice(&[flags, short]);
    } else {
        bytes.push(flags | LONG_KEY);
        bytes.extend_from_slice(&u32::try_from(key_len).expect("a key is bounded by the longest bulk string").to_le_bytes());
    }
    if let Some(expiry) = expiry {
        bytes.extend_from_slice(&expiry.to_le_bytes());
    }
    if let Some(spare) = spare {
        bytes.extend_from_slice(&spare.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn parts_come_back(
            key in prop::collection::vec(any::<u8>(), 0..600),
            value in prop::collection::vec(any::<u8>(), 0..600),
            other in prop::collection::vec(any::<u8>(), 0..600),
            expiry in prop::option::of(1u64..),
            next in prop::option::of(1u64..),
            offset in 0usize..700,
            again in prop::collection::vec((0usize..900, prop::collection::vec(any::<u8>(), 0..100)), 0..5),
        ) {
            let pulse = Pulse::default();
            let mut entry = Entry::new(&key, &value, expiry);
            prop_assert_eq!((entry.key(), entry.value(), entry.expiry()), (&key[..], &value[..], expiry));
            entry.set_expiry(next, &pulse);
            prop_assert_eq!((entry.key(), entry.value(), entry.expiry()), (&key[..], &value[..], next));
            let mut expected = value.clone();
            if expected.len() < offset + other.len() {
                expected.resize(offset + other.len(), 0);
            }
            expected[offset..offset + other.len()].copy_from_slice(&other);
            entry.write_at(offset, &other, &pulse);
            prop_assert_eq!((entry.key(), entry.value(), entry.expiry()), (&key[..], &expected[..], next));
            entry.replace(&other, expiry, &pulse);
            prop_assert_eq!((entry.key(), entry.value(), entry.expiry()), (&key[..], &other[..], expiry));
            let mut expected = other;
            for (offset, bytes) in again {
                entry.write_at(offset, &bytes, &pulse);
                if expected.len() < offset + bytes.len() {
                    expected.resize(offset + bytes.len(), 0);
                }
                expected[offset..offset + bytes.len()].copy_from_slice(&bytes);
                prop_assert_eq!((entry.key(), entry.value(), entry.expiry()), (&key[..], &expected[..], expiry));
                entry.set_expiry(next, &pulse);
                entry.replace(&expected[..expected.len() * 3 / 4], expiry, &pulse);
                expected.truncate(expected.len() * 3 / 4);
                prop_assert_eq!((entry.key(), entry.value(), entry.expiry()), (&key[..], &expected[..], expiry));
            }
        }
    }

    /// This counts work, not time: each byte that is written, and each byte that is moved.
    #[test]
    fn a_value_that_grows_byte_by_byte_costs_a_few_times_its_length() {
        let work = |bytes: usize| {
            let (mut entry, pulse) = (Entry::new(b"k", b"", None), Pulse::default());
            let mut places = 0;
            for at in 0..bytes {
                let before = entry.0.len();
                entry.write_at(at, &[at as u8], &pulse);
                places += usize::from(entry.0.len() != before);
            }
            assert!(entry.value().iter().enumerate().all(|(at, byte)| *byte == at as u8));
            assert!(entry.0.len() <= bytes + bytes / 4 + 64, "{} for {bytes}", entry.0.len());
            (pulse.total(), places)
        };
        let ((work, places), (more, more_places)) = (work(100_000), work(1_000_000));
        assert!(places < 60 && more_places < places + 20, "{places}, {more_places}");
        assert!(more < 15 * work, "{work} for n, {more} for 10 n");
    }

    #[test]
    fn an_expiry_moves_no_long_value() {
        let value = vec![7; 1_000_000];
        let (mut entry, pulse) = (Entry::new(b"k", &value, None), Pulse::default());
        for expiry in [Some(5), None, Some(6), Some(7), None] {
            entry.set_expiry(expiry, &pulse);
            assert_eq!((entry.expiry(), entry.value().len()), (expiry, value.len()));
        }
        assert_eq!(pulse.total(), 0);
    }
}
