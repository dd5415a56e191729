//! The engine's part in durability (`docs/durability.md`): what it asks to be written down, what follows when that is stable, and how it recovers.

use martlet_fabric::{Fabric, invariant};

use super::Apus;
use super::config::Config;
use super::journal::{Entry, Journal, Reach};
use super::layout::LaneFault;
use super::log::Log;
use crate::basics::{LogIndex, ProcessId};
use crate::engine::Durable;
use crate::founding::Returned;
use crate::replica::journal::{RecoverError, SnapshotStep};
use crate::replica::part::{self, Oversized};
use crate::replica::restoring::Restoring;
use crate::replica::{Durability, Execution, NoState, StateMachine};

/// A snapshot on its way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Snapshot {
    breaks: u64,
    chain: u64,
    /// Where the next part begins; `None` when the last one has been taken.
    cursor: Option<u64>,
    /// The last entry that a part shows.
    shown: LogIndex,
}

impl Durable for Apus {
    fn journal(&self) -> &[u8] {
        self.log.journal.as_ref().map_or(&[], |journal| journal.pending())
    }

    fn note_taken(&mut self, ticket: u64) {
        let reach = Reach { promised: self.log.promised(), accepted: self.log.accepted(), last: self.log.tail().index };
        if let Some(journal) = &mut self.log.journal {
            journal.note_taken(ticket, reach);
        }
    }

    fn handle_stable(&mut self, ticket: u64) {
        if let Some(journal) = &mut self.log.journal {
            journal.note_stable(ticket);
        }
    }

    fn hold_back(&mut self, holds: bool) {
        self.holds_back = holds;
    }

    fn stable(&self) -> Option<LogIndex> {
        self.stable_of(self.log.accepted())
    }

    /// Whether it holds the state, but nothing on its disk continues to the present log. Nothing of it counts as stable until there is a snapshot.
    fn lacks_snapshot(&self) -> bool {
        self.log.is_complete() && self.log.journal.as_ref().is_some_and(|journal| !journal.is_anchored())
    }

    /// Begins a snapshot, which replaces an unfinished one. `false`: there is no whole state.
    ///
    /// Panics when something is pending: it would precede the base, and a recovering process would take it for what followed.
    fn begin_snapshot<F: Fabric>(&mut self, _: &F) -> bool {
        let pending = self.journal().len();
        invariant!(pending == 0, "a snapshot begins while {pending} bytes of the journal have not been taken");
        self.snapshot = None;
        let Some(chain) = self.log.journal.as_ref().map(|journal| journal.chain()).filter(|_| self.log.is_complete()) else { return false };
        self.log.write_base(false);
        self.snapshot = Some(Snapshot { breaks: self.log.breaks(), chain, cursor: Some(0), shown: LogIndex(0) });
        true
    }

    /// Appends the next part of the snapshot to `out`, of about `budget` bytes, or its last words. Between two parts commands may be applied.
    fn snapshot_step<S: StateMachine>(&mut self, machine: &S, budget: usize, out: &mut Vec<u8>) -> SnapshotStep {
        let Some(mut snapshot) = self.snapshot.take() else { return SnapshotStep::Void };
        let chain = self.log.journal.as_ref().map(|journal| journal.chain());
        let holds = self.log.is_complete() && machine.unreadable().is_none();
        if !holds || self.log.breaks() != snapshot.breaks || chain != Some(snapshot.chain) {
            return SnapshotStep::Void;
        }
        let committed = self.log.committed().index;
        let step = match snapshot.cursor {
            // A leader that executes first may show more than its log has.
            Some(_) if self.is_ahead_of_log() => SnapshotStep::Wait,
            Some(cursor) => {
                snapshot.shown = self.log.applied().index;
                out.extend_from_slice(&snapshot.shown.0.to_le_bytes());
                match part::transfer(machine, cursor, budget, out) {
                    Ok(next) => snapshot.cursor = next,
                    Err(Oversized(bytes)) => return SnapshotStep::TooLong(bytes),
                }
                SnapshotStep::Part
            }
            // The snapshot should show only committed entries, so that it stays valid whatever becomes of the log. But without a snapshot that its log
            // continues this process does not count, and the commit may wait for just that.
            None if committed < snapshot.shown && !self.lacks_snapshot() => SnapshotStep::Wait,
            None => {
                out.extend_from_slice(&committed.0.to_le_bytes());
                if let Some(journal) = self.log.journal.as_mut().filter(|_| committed < snapshot.shown) {
                    journal.note_shown(snapshot.shown);
                }
                self.finished = Some(snapshot.chain);
                return SnapshotStep::Whole;
            }
        };
        self.snapshot = Some(snapshot);
        step
    }

    /// The last complete snapshot is stable, and so is the journal up to the snapshot's last words.
    fn handle_snapshot_stable(&mut self) {
        if let (Some(chain), Some(journal)) = (self.finished.take(), &mut self.log.journal) {
            journal.note_snapshot(chain);
            self.published = false;
        }
    }

    /// Whether it has been added to the group and its own disk says so, so that older data of its node no longer matters.
    fn is_settled(&self) -> bool {
        let taken_in = self.log.committed_group().filter(|(_, group)| group.contains(self.me));
        let stable = || self.stable_of(self.log.accepted());
        taken_in.is_some_and(|(index, _)| stable().is_some_and(|stable| stable >= *index))
    }

    fn returned(&self) -> Option<Returned> {
        returned(&self.log)
    }

    fn belonged(me: ProcessId, config: &Config, last: &[u8], journal: &[u8]) -> Result<bool, RecoverError> {
        let Replayed { log, .. } = replay(config, &[], last, journal, &mut NoState)?;
        // A member that is being removed still belongs, as long as the removal is not known to be committed.
        let committed = log.committed_group().map(|(_, group)| group);
        Ok(log.group().into_iter().chain(committed).any(|group| group.contains(config.durability.known_as(me))))
    }

    fn written(_: ProcessId, config: &Config, last: &[u8], journal: &[u8]) -> Result<Option<Returned>, RecoverError> {
        let Replayed { log, .. } = replay(config, &[], last, journal, &mut NoState)?;
        Ok(returned(&log).filter(|_| log.is_complete()))
    }

    fn recover<F: Fabric, S: StateMachine>(
        me: ProcessId,
        config: Config,
        parts: &[Vec<u8>],
        last: &[u8],
        journal: &[u8],
        _: &F,
        machine: &mut S,
    ) -> Result<Option<Apus>, RecoverError> {
        let mut apus = Apus::new(me, config, None);
        let Replayed { mut log, promised, broken_off } = replay(&config, parts, last, journal, machine)?;
        log.restore_promise(promised);
        if config.durability != Durability::Memory {
            let reach = Reach { promised: log.promised(), accepted: log.accepted(), last: log.tail().index };
            let mut journal = Journal::after_recovery(reach, log.is_complete() && !broken_off);
            if log.applied().index > log.committed().index {
                // The snapshot's last words may be the last thing that was written.
                journal.note_shown(log.applied().index);
            }
            log.journal = Some(Box::new(journal));
        }
        // By the committed group: a process that is being added to the group has not been removed from it.
        apus.listed = log.committed_group().is_some_and(|(_, group)| group.contains(apus.me));
        apus.log = log;
        Ok(Some(apus))
    }
}

impl Apus {
    /// Up to which entry this replica's log, as it was taken over under `view`, is stable, together with a state to apply it to.
    pub(super) fn stable_of(&self, view: u64) -> Option<LogIndex> {
        self.log.journal.as_ref().and_then(|journal| journal.stable_under(view))
    }

    /// Whether this process could recover if the power failed now: it has a snapshot on disk, whatever has become of its log since.
    pub(super) fn is_kept(&self) -> bool {
        self.log.journal.as_ref().is_none_or(|journal| journal.is_kept())
    }

    /// Whether the machine may show entries that are not in the log.
    pub(super) fn is_ahead_of_log(&self) -> bool {
        // Commands only, because a machine does not show changes of the group.
        self.config.execution == Execution::Speculative && self.reign.as_ref().is_some_and(|reign| reign.backlog.has_commands())
    }
}

/// Describes a log for a process that founds the cluster again with it.
pub(super) fn returned(log: &Log) -> Option<Returned> {
    let group = log.group()?;
    let (ballot, last) = log.rank();
    Some(Returned { ballot, last, view: group.view(), members: group.members().to_vec() })
}

/// What a journal describes.
#[derive(Debug)]
pub(super) struct Replayed {
    /// The log, up to where it follows from the snapshot.
    pub log: Log,
    /// What its owner has promised.
    pub promised: u64,
    /// Whether the log stopped continuing the snapshot. Since then its owner has acknowledged nothing.
    pub broken_off: bool,
}

/// What a journal describes. `machine` is empty; afterwards it shows what is committed, or what the snapshot shows if that is more.
///
/// The log may have stopped continuing the snapshot, and its owner may have lost power before it had the next one. Later entries cannot be restored. As long as
/// there was no other snapshot the owner acknowledged nothing, so to the others it is as if its disk had been slower. Therefore the replay ends there. Later
/// promises count all the same.
pub(super) fn replay<S: StateMachine>(
    config: &Config,
    parts: &[Vec<u8>],
    last: &[u8],
    journal: &[u8],
    machine: &mut S,
) -> Result<Replayed, RecoverError> {
    let capacity = config.log_ring_bytes;
    let mut restoring = Restoring::new(parts, machine)?;
    let committed = LogIndex(u64::from_le_bytes(last.try_into().map_err(|_| RecoverError::Snapshot)?));
    let mut log = Log::new(capacity, None);
    let (mut rest, mut promised, mut entry) = (journal, 0, 0);
    let (mut shown, mut broken_off) = (LogIndex(0), false);
    while !rest.is_empty() {
        let (next, after) = Entry::decode(rest).ok_or(RecoverError::NoEntry(entry))?;
        if let Entry::Base { ring_bytes: written, .. } = next
            && written != capacity as u64
        {
            return Err(RecoverError::Ring { written, configured: capacity as u64 });
        }
        broken_off |= entry > 0 && next.breaks_off(shown);
        promised = promised.max(next.promises());
        if let Entry::Shown(index) = next {
            shown = index;
        } else if !broken_off {
            replay_entry(next, entry == 0, &mut log, &mut restoring)
                .map_err(|fault| RecoverError::Order { entry, fault: fault.to_string() })?;
        }
        (rest, entry) = (after, entry + 1);
    }
    if log.is_complete() {
        log.advance(&mut restoring, committed);
        let most_shown = restoring.most_shown();
        let shows = log.execute(&mut restoring, most_shown);
        restoring.finish()?;
        if log.committed().index < committed || !shows {
            return Err(RecoverError::Snapshot);
        }
    } else {
        restoring.clear();
    }
    Ok(Replayed { log, promised, broken_off })
}

fn replay_entry<S: StateMachine>(entry: Entry<'_>, first: bool, log: &mut Log, restoring: &mut Restoring<'_, S>) -> Result<(), LaneFault> {
    match entry {
        Entry::Base { .. } if first => log.restore_base(entry),
        // It says what has been replayed.
        Entry::Base { .. } | Entry::Promise(_) | Entry::Shown(_) => Ok(()),
        Entry::Append { committed, payload } => {
            log.advance(restoring, committed);
            log.restore_record(payload)
        }
        Entry::Start { view, committed, keep, payloads } => {
            log.advance(restoring, committed);
            log.restore_start(view, keep, &payloads)
        }
    }
}
