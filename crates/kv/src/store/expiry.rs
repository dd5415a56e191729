//! Which keys expire when.

use std::collections::BTreeSet;

/// What one indexed key costs here, in bytes: 16 for itself, in tree nodes that are about two thirds full.
const KEY_BYTES: usize = 24;

/// Keys that expire, ordered by the time at which they do. A key is identified by its hash; a key without expiry costs nothing.
///
/// Every replica keeps the index, so that a new primary need not search for keys that are due. Only the primary acts on it.
#[derive(Debug, Default)]
pub struct ExpiryIndex {
    due: BTreeSet<(u64, u64)>,
}

impl ExpiryIndex {
    /// Notes that the expiry of the key with `hash` changed from `old` to `new`, each in milliseconds of Unix time.
    #[inline]
    pub fn moved(&mut self, hash: u64, old: Option<u64>, new: Option<u64>) {
        if old == new {
            return;
        }
        if let Some(old) = old {
            self.due.remove(&(old, hash));
        }
        if let Some(new) = new {
            self.due.insert((new, hash));
        }
    }

    /// The expiry and the hash of the key that is due first, if that is not after `now_ms`.
    pub fn first_due(&self, now_ms: u64) -> Option<(u64, u64)> {
        self.due.first().copied().filter(|(when, _)| *when <= now_ms)
    }

    /// Drops up to so many keys, no matter which. Returns whether any are left.
    pub(super) fn drop_some(&mut self, most: usize) -> bool {
        (0..most).all(|_| self.due.pop_first().is_some())
    }

    /// How many keys have an expiry.
    pub fn len(&self) -> usize {
        self.due.len()
    }

    /// Whether no key expires.
    pub fn is_empty(&self) -> bool {
        self.due.is_empty()
    }

    /// Roughly how much heap it takes, in bytes.
    pub fn heap_bytes(&self) -> usize {
        self.due.len() * KEY_BYTES
    }

    /// The mean time to live, counted from `now_ms`, of the keys that are due next; 0 when none expires.
    pub fn mean_ttl_ms(&self, now_ms: u64) -> u64 {
        let sample = self.due.iter().take(64);
        let (mut sum, mut n) = (0u128, 0u128);
        for (when, _) in sample {
            sum += u128::from(when.saturating_sub(now_ms));
            n += 1;
        }
        sum.checked_div(n).map_or(0, |mean| mean as u64)
    }
}
