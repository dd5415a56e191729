//! What the engine tells its node.

use martlet_fabric::PeerId;

use crate::basics::{LogIndex, ProcessId};

use super::layout::LaneFault;

/// Something that the node has to act on or report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A member of the group is taken to be gone.
    Suspected {
        /// The process.
        process: ProcessId,
        /// Its kernel says so; otherwise it is presumed.
        certain: bool,
    },
    /// A process that was taken to be gone shows signs of life again.
    Recovered(ProcessId),
    /// This process takes itself for the leader, and asks all others for permission.
    Asked,
    /// It has the permission of a majority, itself included.
    Permitted,
    /// This process leads from now on.
    Led {
        /// Its proposal number.
        ballot: u64,
        /// The number of entries found at it or its followers that were not known to be committed; now they are.
        recovered: u64,
    },
    /// This process led (`led`) or tried to lead, and has given up.
    Aborted {
        /// Why.
        reason: AbortReason,
        /// Whether it led.
        led: bool,
    },
    /// This learner of the newest view belongs to the group.
    CaughtUp(ProcessId),
    /// This member of the newest view has been removed from the group, or went out of reach before it could be added.
    Drop(ProcessId),
    /// An added process belongs to the group, or a removed one no longer does: the change is committed.
    GroupChanged {
        /// The entry that changed it.
        index: LogIndex,
    },
    /// This process does not hold the whole state, and has asked another one to teach it.
    Learning {
        /// The teacher.
        teacher: PeerId,
    },
    /// It holds the whole state again.
    Learned {
        /// The last entry that it shows.
        index: LogIndex,
    },
    /// That process has asked this one for the state, a part of which is longer than any learner accepts. The machine is not asked for the state again for some
    /// time.
    Unteachable {
        /// The process that has asked.
        process: ProcessId,
        /// How long the part is; at most [`MAX_PART_BYTES`](crate::replica::MAX_PART_BYTES) are taken.
        bytes: usize,
    },
    /// A peer wrote something that makes no sense, and nothing more is taken from it.
    LaneFault {
        /// The peer.
        peer: PeerId,
        /// What was found.
        fault: LaneFault,
        /// Whether it was the log lane. Its writer believes that records are here that are not, so this process gives its permission to no process any more,
        /// and has to start over.
        stuck: bool,
    },
    /// The engine no longer needs the memory of this peer.
    Forget(PeerId),
}

/// Why a leader has given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AbortReason {
    /// A follower has given its permission to another process.
    AccessLost(ProcessId),
    /// This process itself has given its permission to that one.
    Granted(ProcessId),
    /// A process with a lower id lives.
    NotLeader,
    /// A process has promised or accepted this number, which is not below that of this reign.
    Outbid(u64),
    /// A follower's log could not be read as it should.
    CatchUp,
    /// The others' logs begin after the end of ours.
    TooOld,
    /// This process is not, or no longer, in the group.
    Removed,
}
