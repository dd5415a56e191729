//! What one life came to.

use std::fmt;

use super::faults::{FAULTS, Fault};
use crate::linearizability::Operation;
use crate::linearizability::kv::{Input, Output};

/// What must hold in every life. Each has an oracle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Property {
    /// At any instant of true time at most one view is active, and no view is active after a newer one.
    OneActiveView,
    /// No process holds a lease on a view once its successor has been known for as long as a lease may last.
    LeaseWithinView,
    /// All processes that learn the view of a given number learn the same one, and each view follows from its predecessor.
    ViewAgreement,
    /// What is broadcast as a view is what was decided.
    DecidedIsBroadcast,
    /// All members of a view support its feature level, which never falls.
    FeatureLevel,
    /// All processes that apply the entry of a given index apply the same one, in order and without gaps.
    LogAgreement,
    /// A request takes effect at most once, however often it is sent.
    ExactlyOnce,
    /// Fencing tokens grow from leader to leader.
    FencingTokens,
    /// No write that was acknowledged to a client is lost.
    Acknowledged,
    /// What the clients saw has an order.
    Linearizable,
    /// A vote is told to no process before it is in the memory of a majority.
    DurableVotes,
    /// The memory of a dead process counts for no longer than is stated, and no process waits for it.
    ZombiesEnd,
    /// When nothing moves any more, all replicas are equal.
    ReplicasEqual,
    /// What a node holds does not grow with what it has been through.
    BoundedMemory,
    /// A healed cluster becomes whole again within a bounded time.
    Recovery,
    /// No process finds an invalid record in a lane.
    SoundLanes,
    /// No process becomes primary that does not hold the state.
    FitPrimary,
    /// The state machines' own invariants.
    Invariant,
}

impl Property {
    /// Its name on the command line and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Property::OneActiveView => "one-active-view",
            Property::LeaseWithinView => "lease-within-view",
            Property::ViewAgreement => "view-agreement",
            Property::DecidedIsBroadcast => "decided-is-broadcast",
            Property::FeatureLevel => "feature-level",
            Property::LogAgreement => "log-agreement",
            Property::ExactlyOnce => "exactly-once",
            Property::FencingTokens => "fencing-tokens-grow",
            Property::Acknowledged => "acknowledged-writes-stay",
            Property::Linearizable => "linearizable",
            Property::DurableVotes => "durable-votes",
            Property::ZombiesEnd => "zombies-end",
            Property::ReplicasEqual => "replicas-equal",
            Property::BoundedMemory => "bounded-memory",
            Property::Recovery => "recovery",
            Property::SoundLanes => "sound-lanes",
            Property::FitPrimary => "fit-primary",
            Property::Invariant => "invariant",
        }
    }
}

impl fmt::Display for Property {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Something that must never happen has happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Virtual nanoseconds since the beginning.
    pub at_ns: u64,
    /// The property that does not hold.
    pub property: Property,
    /// What was seen.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} violated at {} ns: {}", self.property, self.at_ns, self.what)
    }
}

/// How wild a life is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Temper {
    /// Little trouble, if any.
    Calm,
    /// Some kinds of trouble, now and then.
    #[default]
    Rough,
    /// Most kinds of trouble, all the time.
    Hell,
}

/// How often each kind of fault was injected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts([u64; FAULTS]);

impl FaultCounts {
    /// How often this kind was injected.
    pub fn of(&self, fault: Fault) -> u64 {
        self.0[fault as usize]
    }

    /// Adds to the count of a kind.
    pub(super) fn add(&mut self, fault: Fault, times: u64) {
        self.0[fault as usize] += times;
    }

    /// Single events: kills, pauses, partitions and the like.
    pub fn events(&self) -> u64 {
        Fault::ALL.iter().filter(|fault| fault.is_event()).map(|fault| self.of(*fault)).sum()
    }

    /// All faults, including each lost datagram and each torn transfer.
    pub fn all(&self) -> u64 {
        self.0.iter().sum()
    }
}

impl std::ops::AddAssign for FaultCounts {
    fn add_assign(&mut self, other: FaultCounts) {
        for (one, more) in self.0.iter_mut().zip(other.0) {
            *one += more;
        }
    }
}

/// What one life came to.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Its seed, which gives the same life again.
    pub seed: u64,
    /// How wild it was.
    pub temper: Temper,
    /// What went wrong, if anything did.
    pub violation: Option<Violation>,
    /// Virtual nanoseconds.
    pub length_ns: u64,
    /// Operations on the fabric.
    pub operations: u64,
    /// Views decided.
    pub views: u64,
    /// Views that were active.
    pub active_views: u64,
    /// Times that a replica became primary, the first included.
    pub takeovers: u64,
    /// Processes killed.
    pub kills: u64,
    /// Faults injected.
    pub faults: FaultCounts,
    /// Single faults that were due, including those that could not be injected or were left out.
    pub struck: FaultCounts,
    /// Whether the service ended because too little was left of it: no replica, or no coordinator (one crashed while the others were being excluded because
    /// they seemed dead). Where the dead are out of reach or ballots are used up, also if there was no majority of coordinators that reach each other.
    pub ended: bool,
    /// Whether a majority had to serve while the others were stopped or out of reach, and did.
    pub served_alone: bool,
    /// Operations that took effect although their poster was told that the peer is lost,
    pub lost_completions: u64,
    /// among them compare-and-swaps.
    pub lost_swaps: u64,
    /// Writes that were on their way when the writer's access to the lane was revoked.
    pub writes_across_revocations: u64,
    /// Whether the clients' history was too hard to judge within the checker's steps.
    pub undecided: bool,
    /// Requests of clients that got a reply.
    pub replies: u64,
    /// Requests of clients that got none.
    pub unknown: u64,
    /// Views whose decision the oracle has seen in the acceptors' memory.
    pub decisions_seen: u64,
    /// The most that one node held when all was quiet, measured by the length of its description.
    pub footprint: usize,
    /// What the clients saw, if the plan asks for it.
    pub history: Vec<Operation<Input, Output>>,
    /// The fabric's trace, if the plan asks for it.
    pub trace: Vec<u8>,
    /// A digest of all that happened.
    pub digest: u64,
}
