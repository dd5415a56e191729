//! The engine's part in durability (`docs/durability.md`): what it asks to be written down, what follows when that is stable, and how it recovers.

use martlet_fabric::primitive::AtomicU64;
use martlet_fabric::ring::lane_bytes;
use martlet_fabric::{Fabric, Memory, PeerId, invariant};

use super::config::{Config, Durability};
use super::follower::Follower;
use super::journal::{Entry, Journal};
use super::layout::{self, LaneFault, MAX_PEERS, permission};
use super::leading::{Context, Reign, ring_of};
use super::log::Log;
use super::permission::{tell, word_from};
use super::{Group, Mu};
use crate::basics::{LogIndex, ProcessId};
use crate::engine::{Durable, Engine as _};
use crate::founding::Returned;
use crate::replica::journal::{RecoverError, SnapshotStep};
use crate::replica::part::{self, Oversized};
use crate::replica::restoring::Restoring;
use crate::replica::{Execution, NoState, StateMachine};

/// What a follower has reported about its stable storage, and to which leader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Told {
    leader: Option<PeerId>,
    under: u64,
    stable: u64,
}

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

impl Durable for Mu {
    /// Empty with [`Durability::Memory`].
    fn journal(&self) -> &[u8] {
        self.log.journal.as_ref().map_or(&[], |journal| journal.pending())
    }

    fn note_taken(&mut self, ticket: u64) {
        let (ballot, last) = (self.log.last_ballot(), self.log.tail().index);
        if let Some(journal) = &mut self.log.journal {
            journal.note_taken(ticket, ballot, last);
        }
    }

    fn handle_stable(&mut self, ticket: u64) {
        if let Some(journal) = &mut self.log.journal {
            journal.note_stable(ticket);
            self.published = false;
        }
    }

    /// Whether too much waits for the disk. Then a follower leaves the leader's records in its lane. What no longer fits there it gets later or is taught, as
    /// when it is slow for another reason. Before it grants its permission to another process, it takes over the whole lane all the same.
    fn hold_back(&mut self, holds: bool) {
        self.holds_back = holds;
    }

    /// Up to which entry this replica's own log, as now accepted, is stable, together with a state to apply it to.
    fn stable(&self) -> Option<LogIndex> {
        self.log.journal.as_ref().and_then(|journal| journal.stable_under(self.log.last_ballot()))
    }

    /// Whether it holds the state, but nothing on its disk continues to the present log. Nothing of it counts as stable until there is a snapshot.
    fn lacks_snapshot(&self) -> bool {
        self.log.is_complete() && self.log.journal.as_ref().is_some_and(|journal| !journal.is_anchored())
    }

    /// Begins a snapshot, which replaces an unfinished one. Besides the snapshot's parts, only what is written to the journal from now on has to be kept. To be
    /// called when nothing is pending. `false`: there is no whole state.
    ///
    /// Panics when something is pending: it would precede the base, and a recovering process would take it for what followed.
    fn begin_snapshot<F: Fabric>(&mut self, fabric: &F) -> bool {
        let pending = self.journal().len();
        invariant!(pending == 0, "a snapshot begins while {pending} bytes of the journal have not been taken");
        self.snapshot = None;
        let Some(chain) = self.log.journal.as_ref().map(|journal| journal.chain()).filter(|_| self.log.is_complete()) else { return false };
        self.log.write_base(ring_of(fabric), false);
        let ceiling = self.log.min_proposal();
        if let Some(journal) = &mut self.log.journal {
            journal.write_ceiling(ceiling);
        }
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
            None if self.log.committed().index < snapshot.shown && !self.lacks_snapshot() => SnapshotStep::Wait,
            None => {
                let committed = self.log.committed().index;
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

    fn handle_snapshot_stable(&mut self) {
        if let (Some(chain), Some(journal)) = (self.finished.take(), &mut self.log.journal) {
            journal.note_snapshot(chain);
            self.published = false;
        }
    }

    fn is_settled(&self) -> bool {
        let taken_in = self.log.committed_group().filter(|(_, group)| group.contains(self.me));
        taken_in.is_some_and(|(index, _)| self.stable().is_some_and(|stable| stable >= *index))
    }

    fn returned(&self) -> Option<Returned> {
        let group = self.group()?;
        Some(Returned { ballot: self.ballot(), last: self.last(), view: group.view(), members: group.members().to_vec() })
    }

    /// Whether the process that has written this down belongs to its group, by its own log. Until it does, no process has ever counted on it. The process that
    /// it replaced was removed from the group before it was added, because each change is committed before the next one is made.
    ///
    /// # Errors
    /// When the journal was not written by this engine.
    fn belonged(me: ProcessId, config: &Config, last: &[u8], journal: &[u8]) -> Result<bool, RecoverError> {
        let ring: Vec<AtomicU64> = (0..lane_bytes(config.log_ring_bytes) / 8).map(|_| AtomicU64::new(0)).collect();
        let Replayed { log, .. } = replay(config.log_ring_bytes, &[], last, journal, &ring, &mut NoState)?;
        // A member that is being removed still belongs, as long as the removal is not known to be committed.
        let committed = log.committed_group().map(|(_, group)| group);
        Ok(log.group().into_iter().chain(committed).any(|group| group.contains(config.durability.known_as(me))))
    }

    /// The log that the process `me` has written down.
    ///
    /// # Errors
    /// When the journal was not written by this engine.
    fn written(_: ProcessId, config: &Config, last: &[u8], journal: &[u8]) -> Result<Option<Returned>, RecoverError> {
        let ring: Vec<AtomicU64> = (0..lane_bytes(config.log_ring_bytes) / 8).map(|_| AtomicU64::new(0)).collect();
        let Replayed { log, .. } = replay(config.log_ring_bytes, &[], last, journal, &ring, &mut NoState)?;
        let group = log.group().filter(|_| log.is_complete());
        Ok(group.map(|group| Returned {
            ballot: log.last_ballot(),
            last: log.tail().index,
            view: group.view(),
            members: group.members().to_vec(),
        }))
    }

    /// Recovers the engine of the process `me` from its journal and its snapshot: a member of the same group, with the same log. `machine` is empty; afterwards
    /// it shows what is known to be committed, or what the snapshot shows if that is more. A log that stopped continuing the snapshot is restored as it was
    /// before that, and nothing of it counts as stable until there is another snapshot.
    ///
    /// # Errors
    /// When the journal was not written by this engine.
    fn recover<F: Fabric, S: StateMachine>(
        me: ProcessId,
        config: Config,
        parts: &[Vec<u8>],
        last: &[u8],
        journal: &[u8],
        fabric: &F,
        machine: &mut S,
    ) -> Result<Option<Mu>, RecoverError> {
        let mut mu = Mu::new(me, config, None);
        let Replayed { mut log, ceiling, broken_off } = replay(config.log_ring_bytes, parts, last, journal, ring_of(fabric), machine)?;
        log.restore_promise(ceiling);
        if config.durability != Durability::Memory {
            let (ballot, tail, anchored) = (log.last_ballot(), log.tail().index, log.is_complete() && !broken_off);
            let mut journal = Journal::after_recovery(log.min_proposal(), ballot, tail, anchored);
            if log.applied().index > log.committed().index {
                // The snapshot's last words may be the last thing that was written.
                journal.note_shown(log.applied().index);
            }
            log.journal = Some(Box::new(journal));
        }
        // By the committed group, as below: a process that is being added to the group has not been removed from it.
        mu.listed = log.committed_group().is_some_and(|(_, group)| group.contains(mu.me));
        mu.log = log;
        Ok(Some(mu))
    }
}

impl Mu {
    /// Whether this process could recover if the power failed now: it has a snapshot on disk, whatever has become of its log since.
    pub(super) fn is_kept(&self) -> bool {
        self.log.journal.as_ref().is_none_or(|journal| journal.is_kept())
    }

    /// Whether the machine may show entries that are not in the log.
    pub(super) fn is_ahead_of_log(&self) -> bool {
        // Commands only, because a machine does not show changes of the group, and a change that finds no room in the log may itself wait for the snapshot.
        let more = self.log.is_beyond() || self.reign.as_ref().is_some_and(Reign::has_commands);
        more && self.config.execution == Execution::Speculative
    }

    /// Persist, then acknowledge (APUS section 4.1): tells the leader up to where its log is on our stable storage.
    pub(super) fn tell_stable<F: Fabric>(&mut self, fabric: &mut F) {
        if self.config.durability != Durability::Sync {
            return;
        }
        let Some(leader) = self.permission.holder.filter(|holder| *holder != PeerId::SELF) else { return };
        let now = Told { leader: Some(leader), under: self.log.last_ballot(), stable: self.stable().map_or(0, |last| last.0 + 1) };
        if now == self.told {
            return;
        }
        if (now.leader, now.under) != (self.told.leader, self.told.under) {
            // In this order: the leader must not take what was stable under another number for its own.
            tell(fabric, leader, permission::STABLE, 0);
            tell(fabric, leader, permission::STABLE_UNDER, now.under);
        }
        tell(fabric, leader, permission::STABLE, now.stable);
        self.nudges.at_once(leader);
        self.told = now;
    }
}

/// What a journal describes.
#[derive(Debug)]
pub(super) struct Replayed {
    /// The log, up to where it follows from the snapshot.
    pub log: Log,
    /// What its owner may have promised at most.
    pub ceiling: u64,
    /// Whether the log stopped continuing the snapshot. Since then its owner has reported nothing as stable.
    pub broken_off: bool,
}

/// What a journal describes. `machine` is empty; afterwards it shows what is committed, or what the snapshot shows if that is more.
///
/// The log may have stopped continuing the snapshot, and its owner may have lost power before it had the next one. Later entries cannot be restored, and would
/// make this log look better than logs of others that can be. As long as there was no other snapshot the owner reported nothing as stable, so to the others it
/// is as if its disk had been slower. Therefore the replay ends there. Later promises count all the same.
pub(super) fn replay<S: StateMachine>(
    capacity: usize,
    parts: &[Vec<u8>],
    last: &[u8],
    journal: &[u8],
    ring: &Memory,
    machine: &mut S,
) -> Result<Replayed, RecoverError> {
    let mut restoring = Restoring::new(parts, machine)?;
    let committed = LogIndex(u64::from_le_bytes(last.try_into().map_err(|_| RecoverError::Snapshot)?));
    let mut log = Log::new(capacity, None);
    let (mut rest, mut ceiling, mut entry) = (journal, 0, 0);
    let (mut shown, mut broken_off) = (LogIndex(0), false);
    while !rest.is_empty() {
        let (next, after) = Entry::decode(rest).ok_or(RecoverError::NoEntry(entry))?;
        if let Entry::Base { ring_bytes: written, .. } = next
            && written != capacity as u64
        {
            return Err(RecoverError::Ring { written, configured: capacity as u64 });
        }
        broken_off |= entry > 0 && next.breaks_off(shown);
        match next {
            Entry::Ceiling(promised) => ceiling = promised.max(ceiling),
            _ if broken_off => {}
            Entry::Shown(index) => shown = index,
            _ => replay_entry(next, entry == 0, &mut log, ring, &mut restoring)
                .map_err(|fault| RecoverError::Order { entry, fault: fault.to_string() })?,
        }
        (rest, entry) = (after, entry + 1);
    }
    if log.is_complete() {
        log.advance(ring, &mut restoring, committed);
        let most_shown = restoring.most_shown();
        let shows = log.execute(ring, &mut restoring, most_shown);
        restoring.finish()?;
        if log.committed().index < committed || !shows {
            return Err(RecoverError::Snapshot);
        }
    } else {
        restoring.clear();
    }
    Ok(Replayed { log, ceiling, broken_off })
}

fn replay_entry<S: StateMachine>(
    entry: Entry<'_>,
    first: bool,
    log: &mut Log,
    ring: &Memory,
    restoring: &mut Restoring<'_, S>,
) -> Result<(), LaneFault> {
    match entry {
        Entry::Base { .. } if first => log.restore_base(ring, entry),
        // It says what has been replayed.
        Entry::Base { .. } => Ok(()),
        Entry::Append { committed, payload } => {
            log.advance(ring, restoring, committed);
            log.restore_record(ring, payload)
        }
        Entry::Start { ballot, taught, committed, keep, payloads, .. } => {
            log.advance(ring, restoring, committed);
            log.note_taught(taught);
            log.restore_start(ring, ballot, keep, &payloads)
        }
        Entry::Ceiling(_) | Entry::Shown(_) => Ok(()),
    }
}

impl Reign {
    /// How many of the group have promised our number. With a journal the promise has to survive a power failure: a process that would not remember it yet is
    /// asked again.
    pub(super) fn count_prepared<F: Fabric, S>(&mut self, group: &Group, cx: &mut Context<F, S>) -> usize {
        if cx.config.durability == Durability::Memory {
            return self.count(group, true, Follower::is_prepared);
        }
        let ballot = self.ballot;
        for follower in self.followers.iter_mut().filter(|f| f.is_prepared() && f.ceiling < ballot && !f.reading) {
            follower.inspect(self.round, cx.fabric);
        }
        let own = cx.log.journal.as_ref().is_some_and(|journal| journal.ceiling() >= ballot);
        self.count(group, own, |f| f.is_prepared() && f.ceiling >= ballot)
    }

    /// Up to where our own log, under our number, is on stable storage.
    pub(super) fn own_stable(&self, log: &Log) -> Option<LogIndex> {
        log.journal.as_ref().and_then(|journal| journal.stable_under(self.ballot))
    }

    /// With durability `sync`: the last entry that is in the logs of a majority and on their stable storage.
    #[inline(never)]
    pub(super) fn stable_at_majority<F: Fabric, S>(&mut self, cx: &mut Context<F, S>) -> LogIndex {
        for follower in &mut self.followers {
            // In this order: the follower sets the entry to 0 before it names another number.
            let under = word_from(cx.fabric, follower.peer, layout::permission::STABLE_UNDER);
            let stable = word_from(cx.fabric, follower.peer, layout::permission::STABLE);
            follower.stable = (under == self.ballot && stable > 0).then(|| LogIndex(stable - 1));
        }
        let needed = self.needed(cx.log);
        let mine = self.own_stable(cx.log).filter(|_| needed.me);
        let held = |f: &Follower| Some(f.held()?.min(f.stable?));
        let reached = self.followers.iter().filter(|f| f.votes).map(held).chain([mine]);
        let mut values = [LogIndex(0); MAX_PEERS + 1];
        reached.zip(&mut values).for_each(|(last, value)| *value = last.unwrap_or_default());
        values.sort_unstable_by(|a, b| b.cmp(a));
        needed.majority().checked_sub(1).map_or(LogIndex(0), |at| values[at])
    }
}
