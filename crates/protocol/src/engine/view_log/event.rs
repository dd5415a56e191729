//! What the engine tells its node.

use martlet_fabric::PeerId;

use crate::basics::{ProcessId, ViewNumber};

use super::layout::LaneFault;

/// Something that the node has to act on, or to report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The learner holds everything that is committed, and from now on whatever will be: ask the coordinator to make it a replica.
    ///
    /// The coordinator may do so only while this process is still primary, in the view it has decided last. Otherwise a later primary may
    /// have begun to teach the learner anew.
    CaughtUp {
        /// The learner.
        process: ProcessId,
        /// The newest view that this primary knew.
        view: ViewNumber,
    },
    /// The learner cannot be taught: ask the coordinator to remove it.
    Drop {
        /// The learner.
        process: ProcessId,
        /// Why.
        reason: DropReason,
    },
    /// The state has a part that is longer than any learner takes, so this process cannot be taught. It is not asked of the machine again for some time.
    Unteachable {
        /// The learner.
        process: ProcessId,
        /// How long the part is; at most [`MAX_PART_BYTES`](crate::replica::MAX_PART_BYTES) are taken.
        bytes: usize,
    },
    /// The engine no longer needs the memory of this peer, whose process is no longer a member.
    Forget(PeerId),
    /// This process has become primary: [`Standing::Primary`](crate::replica::Standing::Primary) from now on.
    TookOver {
        /// The view in which the takeover was completed.
        view: ViewNumber,
        /// Entries found in this process's memory that were not known to be committed; they are now.
        recovered: u64,
    },
    /// A peer wrote what makes no sense: its lane is read no further. When the peer is the primary, this process can no longer follow and has
    /// to start over as a new incarnation.
    LaneFault {
        /// The peer.
        peer: PeerId,
        /// What was found.
        fault: LaneFault,
    },
    /// A view made this process primary, but it does not hold the whole state; or it made somebody primary whose lane made no sense. It has excluded itself
    /// rather than serve a part, or be counted for what it does not take.
    Unfit {
        /// The view.
        view: ViewNumber,
    },
}

/// Why a learner is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// The log overran its lane too often: it reads more slowly than the primary writes.
    Overrun,
    /// Its lane can no longer be written.
    LaneLost,
    /// A view counts on it, and the state cannot be taught.
    Unteachable,
}
