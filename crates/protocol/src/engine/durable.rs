//! What an engine has written down, and what it recovers (`docs/durability.md`).

use martlet_fabric::Fabric;

use super::Engine;
use crate::basics::{LogIndex, ProcessId};
use crate::founding::Returned;
use crate::replica::StateMachine;
use crate::replica::journal::{RecoverError, SnapshotStep};

/// An engine, and what it writes to a disk, a node's or a simulated one. An engine without a journal writes nothing and recovers nothing; the default methods
/// do just that.
pub trait Durable: Engine {
    /// What has to be written down and has not been taken by the node.
    fn journal(&self) -> &[u8] {
        &[]
    }

    /// The node has taken all of that. `ticket`: not lower than those before.
    fn note_taken(&mut self, _ticket: u64) {}

    /// What was taken with tickets up to this one is stable.
    fn handle_stable(&mut self, _ticket: u64) {}

    /// Whether too much waits for the disk.
    fn hold_back(&mut self, _holds: bool) {}

    /// Up to which entry the log is stable here, together with a state that it continues.
    fn stable(&self) -> Option<LogIndex> {
        None
    }

    /// Whether a snapshot is needed, because this replica could not recover from what is on disk.
    fn lacks_snapshot(&self) -> bool {
        false
    }

    /// Begins a snapshot. `false`: there is no whole state.
    fn begin_snapshot<F: Fabric>(&mut self, _fabric: &F) -> bool {
        false
    }

    /// The next part of the snapshot, or its last words.
    fn snapshot_step<S: StateMachine>(&mut self, _machine: &S, _budget: usize, _out: &mut Vec<u8>) -> SnapshotStep {
        SnapshotStep::Void
    }

    /// The last snapshot is stable.
    fn handle_snapshot_stable(&mut self) {}

    /// Whether its own disk says that it belongs to the group, so that older data of its node no longer matters.
    fn is_settled(&self) -> bool {
        false
    }

    /// What it has recovered, for the process that founds the cluster again.
    fn returned(&self) -> Option<Returned> {
        None
    }

    /// Whether what the process `me` has written down (the last words of its snapshot, and the journal after it) says that it belongs to its group.
    ///
    /// # Errors
    /// When something else was written there.
    fn belonged(_me: ProcessId, _config: &Self::Config, _last: &[u8], _journal: &[u8]) -> Result<bool, RecoverError> {
        Ok(false)
    }

    /// The log that the process `me` would recover from what it has written down. `None`: it knows no group.
    ///
    /// # Errors
    /// When something else was written there.
    fn written(_me: ProcessId, _config: &Self::Config, _last: &[u8], _journal: &[u8]) -> Result<Option<Returned>, RecoverError> {
        Ok(None)
    }

    /// Recovers the engine of the process `me` from what was written down: the parts of a snapshot, its last words, and the journal. `None`: this engine writes
    /// nothing down.
    ///
    /// # Errors
    /// When something else was written there.
    fn recover<F: Fabric, S: StateMachine>(
        _me: ProcessId,
        _config: Self::Config,
        _parts: &[Vec<u8>],
        _last: &[u8],
        _journal: &[u8],
        _fabric: &F,
        _machine: &mut S,
    ) -> Result<Option<Self>, RecoverError> {
        Ok(None)
    }
}
