//! What surrounds a process: its clock, and an observer that is told what happens to it.

use crate::basics::{ProcessId, Time, ViewNumber};
use crate::engine::DropReason;
use crate::membership::View;
use crate::membership::view::Evidence;
use crate::replica::UnreadableEntry;

use martlet_fabric::PeerId;

/// What a process needs from outside. A node provides the host's clock, and keeps counters, a timeline and a log of what it is told. A simulator
/// provides a clock that is wrong within bounds, and lets oracles judge what happens.
pub trait Environment<F> {
    /// The process's clock. It never shows an earlier time than it has shown before.
    fn now(&mut self) -> Time;

    /// Whether the clock has done what no bound on clocks allows, since this was last asked: for instance, its host was suspended, or its virtual
    /// machine stopped. `now` has just been read, and the answer covers everything up to that reading. If the clock has jumped, returns by how many
    /// nanoseconds; 0 if that is not known.
    fn clock_jumped(&mut self, now: Time) -> Option<u64>;

    /// Something has happened, while the process believed that `view` was the newest view. Notes are given in the order of the events, and as soon as
    /// each has happened.
    fn note(&mut self, fabric: &F, view: ViewNumber, note: Note<'_>);
}

/// Something that has happened to a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note<'a> {
    /// A member's process is connected.
    PeerUp(ProcessId),
    /// A member is dead, or presumed dead, on this evidence. It was seen at `at`, before anything that membership has done about it since.
    DeathSeen {
        /// The member.
        process: ProcessId,
        /// The evidence.
        evidence: Evidence,
        /// When it was seen.
        at: Time,
    },
    /// This process proposes a view with that number.
    Proposed(ViewNumber),
    /// This process, which proposed a view with that number, knows that it is decided.
    Decided(ViewNumber),
    /// This process has given up any lease that it held on earlier views.
    Acknowledged(ViewNumber),
    /// This process found the view active for the first time.
    Active(ViewNumber),
    /// This process has learned a view, and acts by it from now on.
    Learned(&'a View),
    /// A view without this process has been decided.
    Excluded,
    /// A learner has the whole state.
    CaughtUp(ProcessId),
    /// Membership is asked to remove a member.
    Dropped {
        /// The member.
        process: ProcessId,
        /// The reason.
        reason: DropReason,
    },
    /// A learner cannot be taught the state, because one part of the state is this many bytes long.
    Unteachable {
        /// The learner.
        process: ProcessId,
        /// The length of the part; at most [`MAX_PART_BYTES`](crate::replica::MAX_PART_BYTES) are accepted.
        bytes: usize,
    },
    /// This process asks the others for their permission to lead.
    AskedPermission,
    /// A majority gives this process its permission.
    Permitted,
    /// This process leads from now on.
    TookOver {
        /// The view in which it leads.
        view: ViewNumber,
        /// The number of entries that were not known to be committed.
        recovered: u64,
    },
    /// This process led and leads no longer.
    SteppedDown,
    /// The first reply of this process since it began to lead has gone out.
    FirstReply,
    /// This process holds the only copy of the state.
    Alone,
    /// A peer wrote something that makes no sense.
    LaneFault {
        /// The peer.
        peer: PeerId,
        /// Its process, if a view lists it.
        process: Option<ProcessId>,
        /// What was found.
        fault: &'a str,
        /// Whether this process has to start over because of it.
        stuck: bool,
    },
    /// A view makes this process primary, although it does not hold the whole state: it has to start over.
    Unfit(ViewNumber),
    /// The application has executed something that cannot be replicated: this process has to start over.
    GaveUp,
    /// The clock has jumped ([`Environment::clock_jumped`]): this process uses no lease until the coordinators have been asked anew.
    ClockJumped {
        /// By how much, in nanoseconds; 0 where that is not known.
        by_ns: u64,
        /// Whether the process held a lease on the newest view that it knows.
        held: bool,
    },
    /// The state machine could not read an entry that another build has written: this process serves no client any more, and has to leave.
    Unreadable(&'a UnreadableEntry),
}
