//! What happened, to compare two runs.

/// A running digest of all that happened, and, on demand, the whole record.
#[derive(Debug, Default)]
pub(super) struct Trace {
    digest: u64,
    full: Option<Vec<u8>>,
}

impl Trace {
    pub(super) fn keep_all(&mut self) {
        self.full.get_or_insert_default();
    }

    pub(super) fn digest(&self) -> u64 {
        self.digest
    }

    pub(super) fn full(&self) -> &[u8] {
        self.full.as_deref().unwrap_or_default()
    }

    /// Notes that `what` happened at `now`, with two particulars.
    #[inline]
    pub(super) fn note(&mut self, now: u64, what: u8, one: u64, other: u64) {
        for word in [now ^ (u64::from(what) << 56), one, other] {
            self.digest = (self.digest ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        }
        if let Some(full) = &mut self.full {
            full.push(what);
            for word in [now, one, other] {
                full.extend_from_slice(&word.to_le_bytes());
            }
        }
    }
}
