//! What an engine has written down, and comes back with (`docs/durability.md`).

use martlet_fabric::Fabric;

use super::Engine;
use crate::basics::{LogIndex, ProcessId};
use crate::founding::Returned;
use crate::replica::StateMachine;
use crate::replica::journal::{RecoverError, SnapshotStep};

/// An engine, and what of it goes to a disk: that of a node, or a simulated one. An engine without a journal writes nothing and comes back with nothing, which
/// is what these methods do by themselves.
pub trait Durable: Engine {
    /// What has to be written and has not been taken.
    fn journal(&self) -> &[u8] {
        &[]
    }

    /// That has been taken as a whole. `ticket`: not lower than those before.
    fn note_taken(&mut self, _ticket: u64) {}

    /// What was taken with tickets up to this one is stable.
    fn handle_stable(&mut self, _ticket: u64) {}

    /// Whether too much waits for the disk.
    fn hold_back(&mut self, _holds: bool) {}

    /// Up to which entry the log is stable here, with a state that it goes on from.
    fn stable(&self) -> Option<LogIndex> {
        None
    }

    /// Whether a snapshot is wanted, since what is on disk can't be come back with.
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

    /// Whether its own disk says that it belongs to the group, so that what its node had there before counts no more.
    fn is_settled(&self) -> bool {
        false
    }

    /// What it has come back with, for whoever founds the cluster again.
    fn returned(&self) -> Option<Returned> {
        None
    }

    /// Whether what the process `me` has written down, the last words of its snapshot and the journal behind that, says that it belongs to its group.
    ///
    /// # Errors
    /// When something else was written there.
    fn belonged(_me: ProcessId, _config: &Self::Config, _last: &[u8], _journal: &[u8]) -> Result<bool, RecoverError> {
        Ok(false)
    }

    /// What the process `me` has written down: its log, as it would come back with it. `None`: it knows no group.
    ///
    /// # Errors
    /// When something else was written there.
    fn written(_me: ProcessId, _config: &Self::Config, _last: &[u8], _journal: &[u8]) -> Result<Option<Returned>, RecoverError> {
        Ok(None)
    }

    /// The engine of the process `me` as what was written down says: the parts of a snapshot, its last words, and the journal. `None`: engines of this kind write nothing down.
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
