//! How a process takes part.

use crate::basics::ProcessId;
use crate::detector::heartbeat::Thresholds;
use crate::detector::wardens::{Digest, Secret};
use crate::membership::lease::ClockBounds;
use crate::membership::view::{Evidence, Roles};
use crate::version;
use martlet_fabric::Levels;

/// The members that take leases. A failover never waits for a member that takes none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leases {
    /// The primary of the view: the only member that acts in a replicated store.
    Primary,
    /// Every member.
    Everybody,
}

/// What views mean to the engine that membership serves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Authority {
    /// Binding: the view determines the primary. A member that seems dead is cut off, so that another can act in its place.
    #[default]
    Views,
    /// Advisory: the engine has a quorum of its own, which elects and fences. Views only say which processes are there. A replica or learner that
    /// merely seems dead stays a member, since the engine's quorum may need what it holds when it comes back. It is removed when it is certainly
    /// dead, leaves, or is evicted (by an operator or by the engine's leader). And any member, not only the first in the view, may report that a
    /// learner has the whole state.
    Engine,
}

impl Authority {
    /// Whether a member with these roles is removed on such evidence. A member that holds no part of the state has nothing to lose, and only
    /// membership can cut it off.
    pub(super) fn cuts_off(self, roles: Roles, evidence: Evidence) -> bool {
        let is_the_engines = roles.has(Roles::REPLICA) || roles.has(Roles::LEARNER);
        self == Authority::Views || evidence != Evidence::Presumed || !is_the_engines
    }
}

/// How a process takes part.
#[derive(Clone, Debug)]
pub struct Config {
    /// This incarnation of this node.
    pub me: ProcessId,
    /// The roles that it wants. A replica joins as a learner, and is promoted when it has the state.
    pub roles: Roles,
    /// The feature levels that its program can work at.
    pub levels: Levels,
    /// Where clients reach it; empty when it serves none.
    pub address: String,
    /// The members that take leases; the same throughout a cluster.
    pub leases: Leases,
    /// What views are to the engine; the same throughout a cluster.
    pub authority: Authority,
    /// How long leases of a bootstrapped cluster last, in nanoseconds.
    pub lease_ns: u64,
    /// How inexact clocks may be.
    pub clocks: ClockBounds,
    /// Time between two reads of the monitored heartbeat, in nanoseconds. Longer than a healthy node ever goes without a duty cycle.
    pub heartbeat_interval_ns: u64,
    /// Time between two looks at the others' death words, in nanoseconds; 0 means one in each duty cycle. On a fabric where a peer answers a look in
    /// its own turn, a look proves little and wakes the peer, and the peer's answer is a packet that wakes this process, which would then look again.
    pub death_interval_ns: u64,
    /// When a stopped heartbeat raises a suspicion.
    pub thresholds: Thresholds,
    /// Time between two broadcasts, in nanoseconds.
    pub broadcast_interval_ns: u64,
    /// How long silence may last before it is a suspicion, in nanoseconds.
    pub broadcast_timeout_ns: u64,
    /// Time between two looks at the others' boards, in nanoseconds.
    pub pull_interval_ns: u64,
    /// Time between two transmissions of a request or notice that has had no effect yet, in nanoseconds.
    pub resend_interval_ns: u64,
    /// The unit of the randomised back-off of contending leaders, in nanoseconds.
    pub backoff_ns: u64,
    /// The digest (SHA-256) by which a secret is checked against a process's pledge. `None`: no certificate is believed.
    pub digest: Option<fn(&Secret) -> Digest>,
    /// The seed of the randomised back-off.
    pub seed: u64,
}

impl Config {
    /// Settings for a busy host with few cores.
    pub fn new(me: ProcessId, roles: Roles) -> Config {
        Config {
            me,
            roles,
            levels: version::LEVELS,
            address: String::new(),
            leases: Leases::Primary,
            authority: Authority::Views,
            lease_ns: 10_000_000,
            clocks: ClockBounds::default(),
            heartbeat_interval_ns: 25_000_000,
            death_interval_ns: 0,
            thresholds: Thresholds::default(),
            broadcast_interval_ns: 100_000_000,
            broadcast_timeout_ns: 1_500_000_000,
            pull_interval_ns: 5_000_000,
            resend_interval_ns: 5_000_000,
            backoff_ns: 20_000,
            digest: None,
            seed: me.incarnation.0 ^ u64::from(me.node.0),
        }
    }
}
