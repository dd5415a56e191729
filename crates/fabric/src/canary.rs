//! Known bugs of this crate, kept as canaries ([`probe`](crate::probe)). Numbers in brackets are those of `docs/traps.md`.

use crate::canaries;

canaries! {
    /// A bug that a simulator can plant.
    pub enum Canary {
        /// A record is taken although its seal does not hold (14).
        UnsealedRecord = "unsealed-record",
        /// A record is written whether or not the reader has taken what stands in its place (15).
        OverwrittenRecord = "overwritten-record",
        /// Positions in a ring are told apart by their offsets, so that a full ring looks like an empty one (17).
        CircularOffsets = "circular-offsets",
        /// A process that comes back writes into the lane of its earlier life, in which late stores of that life stand (31).
        ReusedLane = "reused-lane",
    }
}
