//! The hash of keys: keyed, as a protection against flooding, and the same on every replica.
//!
//! A client that chooses keys must not be able to choose keys that collide (Redis had to learn this), so the hash is SipHash-1-3 under a secret seed. The seed
//! is **replicated state**: the first primary draws it and proposes it ahead of everything else ([`Effect::Seed`](super::effects::Effect::Seed)), and each part
//! of a state transfer carries it. So both ends of a transfer mean the same by a range, and a SCAN cursor survives a failover.

use siphasher::sip::SipHasher13;

/// The secret that the hash of keys depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seed(pub u64, pub u64);

/// Where a key lies in the order in which SCAN and state transfer walk the table: the top [`POSITION_BITS`] of its hash.
///
/// 48 bits, so that clients which keep numbers in doubles hold a SCAN cursor exactly. Keys that share a position are visited together.
pub type Position = u64;

/// How many bits of the hash a [`Position`] has.
pub const POSITION_BITS: u32 = 48;

/// The position of a hash.
pub const fn position(hash: u64) -> Position {
    hash >> (64 - POSITION_BITS)
}

/// A hash function under one seed.
#[derive(Clone, Copy, Debug)]
pub struct Hasher {
    sip: SipHasher13,
    seed: Seed,
}

impl Hasher {
    /// The function under `seed`.
    pub fn new(seed: Seed) -> Hasher {
        Hasher { sip: SipHasher13::new_with_keys(seed.0, seed.1), seed }
    }

    /// The seed.
    pub fn seed(&self) -> Seed {
        self.seed
    }

    /// The hash of `bytes`.
    #[inline]
    pub fn hash(&self, bytes: &[u8]) -> u64 {
        self.sip.hash(bytes)
    }
}
