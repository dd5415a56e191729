//! The `huc` engine: heartbeat uniform consensus (FiDe section 4.1, appendix A.4) as a log whose leader is determined by views.
//!
//! A [log behind views](super::view_log) in which a replica holds what is in its memory. The leader sends its choice to all by fail-consistent broadcast, which
//! over lanes is one write into every replica's memory. What has reached all replicas is decided if the view was active after that. `docs/huc.md` says why this
//! is the paper's broadcast, and how it differs from the neighbouring engines. One decision by itself is `crates/protocol/tests/agreement/huc.rs`.

#[cfg(test)]
mod tests;

use super::view_log::{Holds, Rule, ViewLog};
use super::{CommitRule, Leadership, Traits};

pub use super::view_log::{Config, LaneFault, MIN_RING_BYTES, layout};

/// The engine.
pub type Huc = ViewLog<ByBroadcast>;

/// What is in the memory of every replica is committed. The primary executes ahead, or on commit.
#[derive(Clone, Copy, Debug)]
pub enum ByBroadcast {}

impl Rule for ByBroadcast {
    const TRAITS: Traits = Traits {
        name: "huc",
        leadership: Leadership::Views,
        commit: CommitRule::EveryReplica,
        has_journal: false,
        hands_over_by_name: false,
        has_places: false,
        counts_zombies: false,
        executes_on_commit: true,
        prefers_lowest: false,
    };
    const HOLDS: Holds = Holds::Written;
}
