//! What a replica of any engine writes down so that it can recover as the same member: the steps of a snapshot, and what may be wrong with what is read back
//! (`docs/durability.md`).

use super::UnreadablePart;
use crate::basics::ProcessId;

/// What an acknowledgement means (`docs/durability.md`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// It is in the memory of a majority. Nothing is written down.
    #[default]
    Memory,
    /// The same; changes of the log are written down afterwards.
    Async,
    /// It is on the stable storage of a majority as well.
    Sync,
}

impl Durability {
    /// The name of a process in groups. With a journal it stays the same member when it recovers from its disk as another process.
    pub fn known_as(self, process: ProcessId) -> ProcessId {
        if self == Durability::Memory { process } else { process.birth() }
    }
}

/// The result of asking for a part of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotStep {
    /// A part.
    Part,
    /// Nothing just now.
    Wait,
    /// The last words: the snapshot is whole.
    Whole,
    /// The state no longer continues the earlier parts, so the snapshot has to be abandoned.
    Void,
    /// The next part has so many bytes, more than [`MAX_PART_BYTES`](super::MAX_PART_BYTES) together with its prefix. The snapshot has to be abandoned, and
    /// another attempt may fail the same way.
    TooLong(usize),
}

/// Why a replica cannot recover from what is on its disk. The checksums held when it was read, so something else wrote it.
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
    /// The log had another size then, and the positions in it depend on that.
    #[error("it was written with a log of {written} bytes, and now it has {configured}")]
    Ring {
        /// The size with which it was written.
        written: u64,
        /// The size of today.
        configured: u64,
    },
    /// The parts and last words of a snapshot do not belong to this journal.
    #[error("the snapshot does not belong to the journal")]
    Snapshot,
    /// A part of the snapshot that this program's state machine did not write.
    #[error(transparent)]
    Part(#[from] UnreadablePart),
}
