//! One key with its value, in one allocation.

/// The header's first byte: the key's length takes four bytes instead of one.
const LONG_KEY: u8 = 1;
/// The header's first byte: eight bytes of expiry follow the key's length.
const EXPIRES: u8 = 2;

/// A key, its value and, for those that have one, its expiry: `flags, key length (1 or 4 bytes), expiry (0 or 8 bytes), key, value`.
///
/// Two bytes of header for a usual key, in a boxed slice: the allocator's own header and the slot in the table are all that is added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry(Box<[u8]>);

/// Where the parts of an entry lie.
struct Shape {
    expiry_at: Option<usize>,
    key_at: usize,
    value_at: usize,
}

impl Entry {
    /// An entry of these parts. `expiry` is in milliseconds of Unix time.
    pub fn new(key: &[u8], value: &[u8], expiry: Option<u64>) -> Entry {
        let mut bytes = Vec::with_capacity(header_bytes(key.len(), expiry.is_some()) + key.len() + value.len());
        write_header(&mut bytes, key.len(), expiry);
        bytes.extend_from_slice(key);
        bytes.extend_from_slice(value);
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
        Shape { expiry_at, key_at: at, value_at: at + key_len }
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
        &self.0[self.shape().value_at..]
    }

    /// When it expires, in milliseconds of Unix time.
    #[inline]
    pub fn expiry(&self) -> Option<u64> {
        self.shape().expiry_at.map(|at| u64::from_le_bytes(self.0[at..at + 8].try_into().expect("8 bytes")))
    }

    /// Gives it another value and expiry; in place when the length stays.
    pub fn replace(&mut self, value: &[u8], expiry: Option<u64>) {
        let shape = self.shape();
        if self.0.len() - shape.value_at == value.len() && shape.expiry_at.is_some() == expiry.is_some() {
            self.0[shape.value_at..].copy_from_slice(value);
            if let (Some(at), Some(expiry)) = (shape.expiry_at, expiry) {
                self.0[at..at + 8].copy_from_slice(&expiry.to_le_bytes());
            }
        } else {
            *self = Entry::new(self.key(), value, expiry);
        }
    }

    /// Gives it another expiry, or none.
    pub fn set_expiry(&mut self, expiry: Option<u64>) {
        match (self.shape().expiry_at, expiry) {
            (None, None) => {}
            (Some(at), Some(expiry)) => self.0[at..at + 8].copy_from_slice(&expiry.to_le_bytes()),
            _ => *self = Entry::new(self.key(), self.value(), expiry),
        }
    }

    /// Writes `bytes` into the value from `offset` on; what lies between the old end and `offset` becomes zero.
    ///
    /// Growing reuses the allocation where the allocator can extend it.
    pub fn write_at(&mut self, offset: usize, bytes: &[u8]) {
        let from = self.shape().value_at + offset;
        let end = from + bytes.len();
        if end <= self.0.len() {
            self.0[from..end].copy_from_slice(bytes);
            return;
        }
        let mut whole = std::mem::take(&mut self.0).into_vec();
        if from < whole.len() {
            whole.truncate(from);
        }
        whole.reserve_exact(end - whole.len());
        whole.resize(from, 0);
        whole.extend_from_slice(bytes);
        self.0 = whole.into_boxed_slice();
    }

    /// About what its allocation takes of the heap, in bytes: the length, the allocator's header, rounded as allocators round.
    #[inline]
    pub fn heap_bytes(&self) -> usize {
        (self.0.len() + 8).next_multiple_of(16).max(32)
    }
}

fn header_bytes(key_len: usize, expires: bool) -> usize {
    1 + if key_len < 256 { 1 } else { 4 } + if expires { 8 } else { 0 }
}

fn write_header(bytes: &mut Vec<u8>, key_len: usize, expiry: Option<u64>) {
    let expires = if expiry.is_some() { EXPIRES } else { 0 };
    if let Ok(short) = u8::try_from(key_len) {
        bytes.extend_from_slice(&[expires, short]);
    } else {
        bytes.push(expires | LONG_KEY);
        bytes.extend_from_slice(&u32::try_from(key_len).expect("a key is bounded by the longest bulk string").to_le_bytes());
    }
    if let Some(expiry) = expiry {
        bytes.extend_from_slice(&expiry.to_le_bytes());
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
            expiry in any::<Option<u64>>(),
            next in any::<Option<u64>>(),
            offset in 0usize..700,
        ) {
            let mut entry = Entry::new(&key, &value, expiry);
            prop_assert_eq!((entry.key(), entry.value(), entry.expiry()), (&key[..], &value[..], expiry));
            entry.set_expiry(next);
            prop_assert_eq!((entry.key(), entry.value(), entry.expiry()), (&key[..], &value[..], next));
            let mut expected = value.clone();
            if expected.len() < offset + other.len() {
                expected.resize(offset + other.len(), 0);
            }
            expected[offset..offset + other.len()].copy_from_slice(&other);
            entry.write_at(offset, &other);
            prop_assert_eq!((entry.key(), entry.value(), entry.expiry()), (&key[..], &expected[..], next));
            entry.replace(&other, expiry);
            prop_assert_eq!((entry.key(), entry.value(), entry.expiry()), (&key[..], &other[..], expiry));
        }
    }
}
