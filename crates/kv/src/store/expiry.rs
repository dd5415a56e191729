//! Which keys expire when.

use std::collections::BTreeSet;

/// What one indexed key costs here, in bytes: 16 of its own, in nodes that are about two thirds full.
const KEY_BYTES: usize = 24;

/// Keys that expire, by the time at which they do. A key is named by its hash; one without expiry costs nothing.
///
/// Every replica keeps the index, so a new primary need not look for what is due; only the primary acts on it.
#[derive(Debug, Default)]
pub struct ExpiryIndex {
    due: BTreeSet<(u64, u64)>,
}

impl ExpiryIndex {
    /// Takes note that the expiry of the key with `hash` was `old` and is `new`, each in milliseconds of Unix time.
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

    /// Forgets so many keys, whichever. Returns whether any are left.
    pub(super) fn drop_some(&mut self, most: usize) -> bool {
        (0..most).all(|_| self.due.pop_first().is_some())
    }

    /// How many keys expire some day.
    pub fn len(&self) -> usize {
        self.due.len()
    }

    /// Whether no key expires.
    pub fn is_empty(&self) -> bool {
        self.due.is_empty()
    }

    /// About what it takes of the heap, in bytes.
    pub fn heap_bytes(&self) -> usize {
        self.due.len() * KEY_BYTES
    }

    /// The mean time to live from `now_ms` on of the keys that are due next; 0 when none expires.
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
