//! The `hsuc` engine: hierarchical stabilizing uniform consensus (FiDe section 4.1, appendix A.3) as a log whose leader is determined by views.
//!
//! A [log behind views](super::view_log) in which a replica holds what its process has taken into its log and acknowledged. Each entry is an instance of
//! consensus, the view is the round, its first replica leads, and what every replica of the view has acknowledged is decided. All but one of the replicas may
//! die. `docs/hsuc.md` has the protocol, the argument that no two replicas decide differently, and the differences from the paper. One decision by itself is
//! `crates/protocol/tests/agreement/hsuc.rs`.

#[cfg(test)]
mod tests;

use super::view_log::{Holds, Rule, ViewLog};
use super::{CommitRule, Leadership, Traits};

pub use super::view_log::{Config, LaneFault, MIN_RING_BYTES, layout};

/// The engine.
pub type Hsuc = ViewLog<ByAcknowledgement>;

/// What every replica has acknowledged is committed. The primary executes ahead, or on commit.
#[derive(Clone, Copy, Debug)]
pub enum ByAcknowledgement {}

impl Rule for ByAcknowledgement {
    const TRAITS: Traits = Traits {
        name: "hsuc",
        leadership: Leadership::Views,
        commit: CommitRule::EveryReplica,
        has_journal: false,
        hands_over_by_name: false,
        has_places: false,
        counts_zombies: false,
        executes_on_commit: true,
        prefers_lowest: false,
    };
    const HOLDS: Holds = Holds::Acknowledged;
}
