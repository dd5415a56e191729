//! The `primary-backup` engine: uKharon-KV's replication (uKharon section 7.3).
//!
//! A [log behind views](super::view_log) in which a replica holds what is in its memory. `docs/primary-backup.md` has the protocol and the argument that
//! nothing acknowledged is lost.

use super::view_log::{Holds, Rule, ViewLog};
use super::{CommitRule, Leadership, Traits};

pub use super::view_log::{Config, LaneFault, MIN_RING_BYTES, layout};

/// The engine.
pub type PrimaryBackup = ViewLog<ByMemory>;

/// What is in the memory of every replica is committed. The primary executes ahead.
#[derive(Clone, Copy, Debug)]
pub enum ByMemory {}

impl Rule for ByMemory {
    const TRAITS: Traits = Traits {
        name: "primary-backup",
        leadership: Leadership::Views,
        commit: CommitRule::EveryReplica,
        has_journal: false,
        hands_over_by_name: false,
        has_places: false,
        counts_zombies: false,
        executes_on_commit: false,
        prefers_lowest: false,
    };
    const HOLDS: Holds = Holds::Written;
}
