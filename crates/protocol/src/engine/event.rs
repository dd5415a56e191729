//! What any engine tells its node.

use std::fmt;

use martlet_fabric::PeerId;

use crate::basics::ProcessId;

/// Why an engine asks membership to remove a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// A group without it is committed: it was dead for too long, or was to be removed.
    NotInGroup,
    /// Its lane can no longer be written.
    LaneLost,
    /// A view counts on it, but the state cannot be taught.
    Unteachable,
}

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DropReason::NotInGroup => "the engine's group goes on without it",
            DropReason::LaneLost => "what is written to it does not arrive",
            DropReason::Unteachable => "the state cannot be sent to it",
        })
    }
}

/// Something that a node has to act on or report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// This learner has the whole state and counts for commits from now on: ask membership to make it a replica.
    CaughtUp(ProcessId),
    /// This process cannot follow, or no longer belongs to the engine's group: ask membership to remove it.
    Drop {
        /// The process.
        process: ProcessId,
        /// Why.
        reason: DropReason,
    },
    /// This process cannot be taught the state, because a part of it is longer than a learner accepts.
    Unteachable {
        /// The process.
        process: ProcessId,
        /// How long the part is; at most [`MAX_PART_BYTES`](crate::replica::MAX_PART_BYTES) are taken.
        bytes: usize,
    },
    /// The engine no longer needs the memory of this peer.
    Forget(PeerId),
    /// This process asks the others for permission to lead. Engines without their own election never do.
    AskedPermission,
    /// A majority gives it the permission.
    Permitted,
    /// This process leads from now on. It found this many entries that were not known to be committed; now they are.
    TookOver {
        /// The entries.
        recovered: u64,
    },
    /// This process no longer leads, and continues as a follower.
    SteppedDown,
    /// A peer wrote something that makes no sense.
    LaneFault {
        /// The peer.
        peer: PeerId,
        /// What was found.
        fault: String,
        /// Whether this process cannot follow any more, and has to start over as a new incarnation.
        stuck: bool,
    },
    /// It should lead but does not hold the state, or a view requires something of it that it cannot do. It has excluded itself rather than serve a part of the
    /// state, and has to start over.
    Unfit,
}
