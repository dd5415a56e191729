//! What stands around a process: its clock, and an onlooker that hears what happens to it.

use crate::basics::{ProcessId, Time, ViewNumber};
use crate::engine::DropReason;
use crate::membership::View;
use crate::membership::view::Evidence;
use crate::replica::UnreadableEntry;

use martlet_fabric::PeerId;

/// What a process needs from outside. A node gives it the host's clock, and keeps counters, a timeline and a log of what it hears; a simulator gives it a clock that
/// is wrong within bounds, and lets oracles judge.
pub trait Environment<F> {
    /// What the process's clock shows now. Never earlier than it has shown before.
    fn now(&mut self) -> Time;

    /// Whether that clock has done, since this was last asked, what no bound on clocks allows for: its host was suspended, say, or its virtual machine stopped.
    /// `now` has just been read, and what happened before that reading is told. If so, by how much, in nanoseconds; 0 where that is not known.
    fn clock_jumped(&mut self, now: Time) -> Option<u64>;

    /// Something has happened, in this view as far as the process knows. Notes come in the order of what they tell, and as soon as it has happened.
    fn note(&mut self, fabric: &F, view: ViewNumber, note: Note<'_>);
}

/// Something that has happened to a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note<'a> {
    /// A member's process is connected.
    PeerUp(ProcessId),
    /// A member is dead, or presumed dead, on this evidence. It was seen at `at`, before all that membership has done about it since.
    DeathSeen {
        /// Which member.
        process: ProcessId,
        /// What says so.
        evidence: Evidence,
        /// When it was seen.
        at: Time,
    },
    /// This process proposes a view of that number.
    Proposed(ViewNumber),
    /// This process knows that a view of that number is decided, since it has proposed it.
    Decided(ViewNumber),
    /// This process has given up whatever lease it held on earlier views.
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
        /// Which member.
        process: ProcessId,
        /// Why.
        reason: DropReason,
    },
    /// A learner cannot be taught the state, of which one part has this length in bytes.
    Unteachable {
        /// Which learner.
        process: ProcessId,
        /// The length of the part; at most [`MAX_PART_BYTES`](crate::replica::MAX_PART_BYTES) are taken.
        bytes: usize,
    },
    /// This process asks the others for their permission to lead.
    AskedPermission,
    /// A majority gives this process its permission.
    Permitted,
    /// This process leads from now on.
    TookOver {
        /// In this view.
        view: ViewNumber,
        /// With so many entries that were not known to be committed.
        recovered: u64,
    },
    /// This process led and leads no longer.
    SteppedDown,
    /// The first reply of this process since it leads has gone out.
    FirstReply,
    /// This process holds the only copy of the state.
    Alone,
    /// A peer wrote what makes no sense.
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
    /// A view makes this process primary, which does not hold the whole state: it has to start over.
    Unfit(ViewNumber),
    /// The application has executed what cannot be replicated: this process has to start over.
    GaveUp,
    /// The clock has jumped ([`Environment::clock_jumped`]): this process uses no lease until the coordinators have been asked anew.
    ClockJumped {
        /// By how much, in nanoseconds; 0 where that is not known.
        by_ns: u64,
        /// Whether it held a lease on the newest view that it knows.
        held: bool,
    },
    /// The state machine could not read an entry, which another build has written: this process serves nobody any more, and has to leave.
    Unreadable(&'a UnreadableEntry),
}
