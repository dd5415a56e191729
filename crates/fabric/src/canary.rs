//! Known bugs of this crate, kept as canaries ([`probe`]). Numbers in brackets are those of TRAPS.

use crate::{probe, probes};

probes! {
    /// A bug that a simulator can plant.
    pub enum Canary {
        /// A record is taken although its seal does not hold (14).
        UnsealedRecord = "unsealed-record",
        /// A record is written whether or not the reader has taken what stands in its place (15).
        OverwrittenRecord = "overwritten-record",
    }
}

impl Canary {
    /// Whether it has been planted. Without the feature `canaries`: never.
    #[inline(always)]
    pub(crate) fn is_planted(self) -> bool {
        probe::planted(self.name())
    }
}
