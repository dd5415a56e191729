//! What a replica writes down so that it can come back as what it was, whichever engine it runs: the steps of a snapshot, and what may be wrong with what
//! is read again (`docs/durability.md`).

use super::UnreadablePart;
use crate::basics::ProcessId;

/// What an acknowledgement means (`docs/durability.md`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// It is in the memory of a majority. Nothing is written down.
    #[default]
    Memory,
    /// The same; what changes about the log is written down behind it.
    Async,
    /// It is on the stable storage of a majority as well.
    Sync,
}

impl Durability {
    /// What a process is called in groups. With a journal it stays a member when it comes back from its disk as another process.
    pub fn known_as(self, process: ProcessId) -> ProcessId {
        if self == Durability::Memory { process } else { process.birth() }
    }
}

/// What has come of asking for a part of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotStep {
    /// A part.
    Part,
    /// Nothing just now.
    Wait,
    /// The last words: the snapshot is whole.
    Whole,
    /// The state is not any more what the parts before showed: the snapshot has to be given up.
    Void,
    /// The next part has so many bytes, more than [`MAX_PART_BYTES`](super::MAX_PART_BYTES) with what stands before it: the snapshot has to be given up, and another
    /// one may fare no better.
    TooLong(usize),
}

/// Why a replica cannot come back from what it has written down. It was checked when it was read, so it was written by something else.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecoverError {
    /// Bytes that are no entry of a journal.
    #[error("entry {0} of the journal is none")]
    NoEntry(u64),
    /// An entry that cannot follow the ones before.
    #[error("entry {entry} of the journal does not follow from those before it: {fault}")]
    Order {
        /// Which one, from 0 on.
        entry: u64,
        /// What is wrong with it.
        fault: String,
    },
    /// The log had another size then, and what stands where in it depends on that.
    #[error("it was written with a log of {written} bytes, and now it has {configured}")]
    Ring {
        /// The size with which it was written.
        written: u64,
        /// The size of today.
        configured: u64,
    },
    /// Parts and last words of a snapshot that do not belong to this journal.
    #[error("the snapshot does not belong to the journal")]
    Snapshot,
    /// A part of the snapshot that this program's state machine did not write.
    #[error(transparent)]
    Part(#[from] UnreadablePart),
}
