//! What the primary replicates to the backups: the effects of requests, in a compact binary form.
//!
//! One log entry is a sequence of effects that take effect together. Lengths are LEB128 varints, other numbers little-endian:
//!
//! ```text
//! 1  put       key length, value length, key, value
//! 2  put       key length, value length, expiry u64 (0: never), key, value
//! 3  delete    key length, key
//! 4  expire    key length, expiry u64 (0: never), key
//! 5  append    key length, suffix length, key, suffix
//! 6  write at  key length, offset, length, key, bytes
//! 7  flush
//! 8  seed      u64, u64
//! 9  answer    session u64, seq u64, lowest u64, length, reply
//! 10 end       session u64
//! ```

use martlet_fabric::Pulse;

use super::hash::Seed;
use super::sessions::SessionId;

/// The longest value, in bytes: Redis's own limit.
pub const MAX_VALUE_BYTES: usize = 512 << 20;

/// One change of the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect<'a> {
    /// From now on `key` has this value and expiry (Unix time in milliseconds).
    Put {
        /// The key.
        key: &'a [u8],
        /// Its value.
        value: &'a [u8],
        /// When it expires.
        expiry: Option<u64>,
    },
    /// `key` is removed.
    Delete {
        /// The key.
        key: &'a [u8],
    },
    /// `key` expires at another time, or never.
    Expire {
        /// The key.
        key: &'a [u8],
        /// When it expires.
        expiry: Option<u64>,
    },
    /// `suffix` is appended to the value of `key`.
    Append {
        /// The key.
        key: &'a [u8],
        /// What follows.
        suffix: &'a [u8],
    },
    /// `bytes` are written into the value of `key` at `offset`.
    WriteAt {
        /// The key.
        key: &'a [u8],
        /// Where in the value.
        offset: usize,
        /// The bytes to write.
        bytes: &'a [u8],
    },
    /// Every key is removed.
    Flush,
    /// Keys are hashed under this seed.
    Seed(Seed),
    /// A client's write has been answered.
    Answer {
        /// Whose.
        session: SessionId,
        /// Which.
        seq: u64,
        /// Everything below this number is confirmed.
        lowest: u64,
        /// The answer.
        reply: &'a [u8],
    },
    /// A client is gone.
    End {
        /// Which.
        session: SessionId,
    },
}

/// Why bytes cannot be decoded as effects.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum EffectError {
    /// They end within an effect.
    #[error("the effects end too early")]
    Short,
    /// An effect of a kind that does not exist.
    #[error("{0} is no kind of effect")]
    Kind(u8),
    /// A length or offset beyond what values may have.
    #[error("a length or offset of {0} is beyond the limit of {MAX_VALUE_BYTES}")]
    Length(u64),
    /// The range of a part of the state ends before it begins.
    #[error("a part of the state from {0} to {1} covers nothing")]
    Range(u64, u64),
}

/// Appends the encodings of effects to a buffer.
#[derive(Debug, Default)]
pub struct Effects {
    bytes: Vec<u8>,
    pulse: Pulse,
}

impl Effects {
    /// The encoding so far.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Whether there are no effects.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// From now on, reports life while it copies long values.
    pub fn keep_alive(&mut self, pulse: Pulse) {
        self.pulse = pulse;
    }

    /// How much has been appended in all, in bytes or equivalent work.
    #[inline]
    pub fn work(&self) -> u64 {
        self.pulse.total()
    }

    /// Starts over. A huge buffer is given back to the allocator.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(1 << 20);
    }

    /// Appends an effect.
    #[inline]
    pub fn push(&mut self, effect: Effect<'_>) {
        let (out, pulse) = (&mut self.bytes, &self.pulse);
        pulse.stepped();
        match effect {
            Effect::Put { key, value, expiry } => {
                out.push(if expiry.is_some() { 2 } else { 1 });
                put_varint(out, key.len() as u64);
                put_varint(out, value.len() as u64);
                if let Some(expiry) = expiry {
                    out.extend_from_slice(&expiry.to_le_bytes());
                }
                out.extend_from_slice(key);
                pulse.append(out, value);
            }
            Effect::Delete { key } => {
                out.push(3);
                put_varint(out, key.len() as u64);
                out.extend_from_slice(key);
            }
            Effect::Expire { key, expiry } => {
                out.push(4);
                put_varint(out, key.len() as u64);
                out.extend_from_slice(&expiry.unwrap_or(0).to_le_bytes());
                out.extend_from_slice(key);
            }
            Effect::Append { key, suffix } => {
                out.push(5);
                put_varint(out, key.len() as u64);
                put_varint(out, suffix.len() as u64);
                out.extend_from_slice(key);
                pulse.append(out, suffix);
            }
            Effect::WriteAt { key, offset, bytes } => {
                out.push(6);
                put_varint(out, key.len() as u64);
                put_varint(out, offset as u64);
                put_varint(out, bytes.len() as u64);
                out.extend_from_slice(key);
                pulse.append(out, bytes);
            }
            Effect::Flush => out.push(7),
            Effect::Seed(seed) => {
                out.push(8);
                out.extend_from_slice(&seed.0.to_le_bytes());
                out.extend_from_slice(&seed.1.to_le_bytes());
            }
            Effect::Answer { session, seq, lowest, reply } => {
                out.push(9);
                for n in [session.0, seq, lowest] {
                    out.extend_from_slice(&n.to_le_bytes());
                }
                put_varint(out, reply.len() as u64);
                out.extend_from_slice(reply);
            }
            Effect::End { session } => {
                out.push(10);
                out.extend_from_slice(&session.0.to_le_bytes());
            }
        }
    }
}

/// Appends `n` in LEB128.
#[inline]
pub(super) fn put_varint(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

/// Reads effects one after the other; the first error ends it.
#[derive(Debug)]
pub struct Decoder<'a> {
    bytes: &'a [u8],
}

impl<'a> Decoder<'a> {
    /// A decoder of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Decoder<'a> {
        Decoder { bytes }
    }

    /// What has not been read yet.
    pub(super) fn rest(&self) -> &'a [u8] {
        self.bytes
    }

    pub(super) fn bytes(&mut self, n: usize) -> Result<&'a [u8], EffectError> {
        let (head, tail) = self.bytes.split_at_checked(n).ok_or(EffectError::Short)?;
        self.bytes = tail;
        Ok(head)
    }

    pub(super) fn u64(&mut self) -> Result<u64, EffectError> {
        Ok(u64::from_le_bytes(self.bytes(8)?.try_into().expect("8 bytes")))
    }

    pub(super) fn u8(&mut self) -> Result<u8, EffectError> {
        Ok(self.bytes(1)?[0])
    }

    pub(super) fn length(&mut self) -> Result<usize, EffectError> {
        let mut n = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            n |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return if n <= MAX_VALUE_BYTES as u64 { Ok(n as usize) } else { Err(EffectError::Length(n)) };
            }
        }
        Err(EffectError::Length(n))
    }

    fn effect(&mut self) -> Result<Effect<'a>, EffectError> {
        Ok(match self.u8()? {
            kind @ (1 | 2) => {
                let (key, value) = (self.length()?, self.length()?);
                // 0 means "never" here as well, as it does when the state is transferred.
                let expiry = if kind == 2 { Some(self.u64()?).filter(|at| *at != 0) } else { None };
                Effect::Put { key: self.bytes(key)?, value: self.bytes(value)?, expiry }
            }
            3 => {
                let key = self.length()?;
                Effect::Delete { key: self.bytes(key)? }
            }
            4 => {
                let key = self.length()?;
                let expiry = self.u64()?;
                Effect::Expire { key: self.bytes(key)?, expiry: (expiry != 0).then_some(expiry) }
            }
            5 => {
                let (key, suffix) = (self.length()?, self.length()?);
                Effect::Append { key: self.bytes(key)?, suffix: self.bytes(suffix)? }
            }
            6 => {
                let (key, offset, len) = (self.length()?, self.length()?, self.length()?);
                if offset + len > MAX_VALUE_BYTES {
                    return Err(EffectError::Length((offset + len) as u64));
                }
                Effect::WriteAt { key: self.bytes(key)?, offset, bytes: self.bytes(len)? }
            }
            7 => Effect::Flush,
            8 => Effect::Seed(Seed(self.u64()?, self.u64()?)),
            9 => {
                let (session, seq, lowest) = (SessionId(self.u64()?), self.u64()?, self.u64()?);
                let len = self.length()?;
                Effect::Answer { session, seq, lowest, reply: self.bytes(len)? }
            }
            10 => Effect::End { session: SessionId(self.u64()?) },
            other => return Err(EffectError::Kind(other)),
        })
    }
}

impl<'a> Iterator for Decoder<'a> {
    type Item = Result<Effect<'a>, EffectError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.bytes.is_empty() {
            return None;
        }
        let effect = self.effect();
        if effect.is_err() {
            self.bytes = &[];
        }
        Some(effect)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// An effect that owns its bytes.
    #[derive(Clone, Debug)]
    pub struct Owned {
        pub kind: u8,
        pub key: Vec<u8>,
        pub bytes: Vec<u8>,
        pub n: [u64; 3],
        pub offset: usize,
    }

    impl Owned {
        pub fn effect(&self) -> Effect<'_> {
            let (key, value) = (&self.key[..], &self.bytes[..]);
            let expiry = (self.n[0] != 0).then_some(self.n[0]);
            match self.kind {
                0..=2 => Effect::Put { key, value, expiry },
                3 => Effect::Delete { key },
                4 => Effect::Expire { key, expiry },
                5 => Effect::Append { key, suffix: value },
                6 => Effect::WriteAt { key, offset: self.offset, bytes: value },
                7 => Effect::Flush,
                8 => Effect::Answer { session: SessionId(self.n[0] << 1), seq: self.n[1], lowest: self.n[2], reply: value },
                9 => Effect::End { session: SessionId(self.n[0] << 1) },
                _ => Effect::Seed(Seed(self.n[1], self.n[2])),
            }
        }
    }

    pub fn any_effect(kinds: std::ops::Range<u8>) -> impl Strategy<Value = Owned> {
        (kinds, 0u16..60, prop::collection::vec(any::<u8>(), 0..40), [0u64..6, 0u64..50, 0u64..50], 0usize..50)
            .prop_map(|(kind, key, bytes, n, offset)| Owned { kind, key: key.to_le_bytes().to_vec(), bytes, n, offset })
    }

    #[test]
    fn an_expiry_of_zero_is_never() {
        let mut bytes = vec![2, 1, 1];
        bytes.extend_from_slice(&[0; 8]);
        bytes.extend_from_slice(b"kv");
        let put = Effect::Put { key: b"k", value: b"v", expiry: None };
        assert_eq!(Decoder::new(&bytes).collect::<Vec<_>>(), [Ok(put)]);
    }

    proptest! {
        #[test]
        fn effects_come_back(list in prop::collection::vec(any_effect(0..11), 0..20), long in 0usize..70_000) {
            let mut effects = Effects::default();
            let big = vec![7; long];
            effects.push(Effect::Put { key: b"big", value: &big, expiry: None });
            for e in &list {
                effects.push(e.effect());
            }
            let decoded: Vec<_> = Decoder::new(effects.bytes()).skip(1).collect::<Result<_, _>>().unwrap();
            prop_assert_eq!(decoded, list.iter().map(Owned::effect).collect::<Vec<_>>());
            // A prefix never decodes to more effects, and never panics.
            for cut in 0..effects.bytes().len().min(300) {
                prop_assert!(Decoder::new(&effects.bytes()[..cut]).filter(Result::is_ok).count() <= list.len() + 1);
            }
        }

        #[test]
        fn any_bytes_decode_or_fail(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            for effect in Decoder::new(&bytes) {
                if let Err(e) = effect {
                    prop_assert!(!e.to_string().is_empty());
                }
            }
        }
    }
}
