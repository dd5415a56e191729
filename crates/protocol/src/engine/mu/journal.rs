//! What has to be written down so that this replica can recover as the same member (`docs/durability.md`): the changes of its log, in order.
//!
//! The engine makes entries. The node takes them to a disk, in its own time, and reports up to where they are stable. An entry is a whole change; for example,
//! a start with all its records is one entry. So any prefix of the journal that is left after a crash describes what this log was at some moment.
//!
//! [`journal_encoding`](crate::replica::journal_encoding) defines how an entry is written.

use std::ops::Deref;

use super::Group;
use super::log::Mark;
use crate::basics::{LogIndex, MAX_NUMBER};
use crate::replica::journal_encoding::{first_entry, put_entry};
use crate::replica::ledger::Ledger;

/// How far promises are made ahead: so many numbers above the latest. A process recovers with everything that it may have promised, and leaders count it as
/// prepared only for numbers that it would still remember. The step covers 16,384 attempts to lead, more than happen while a disk writes. Each recovery
/// advances the numbers of all processes by twice as much.
pub(super) const CEILING_STEP: u64 = 1 << 30;

/// A change of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Entry<'a> {
    /// A record was appended.
    Append { committed: LogIndex, payload: &'a [u8] },
    /// The log was accepted under `ballot`: everything after `keep` was replaced by these records, after a jump if there is one. `committed` is what was known
    /// to be committed before that; `taught`: [`Log::taught_ballot`](super::log::Log::taught_ballot).
    Start { ballot: u64, taught: u64, committed: LogIndex, jump: Option<(Mark, Group)>, keep: Mark, payloads: Vec<&'a [u8]> },
    /// The whole log: everything after `mark`, with the group there. `anew`: it does not continue what was written before. `ring_bytes`: the log's size, on
    /// which all positions depend.
    Base { anew: bool, ring_bytes: u64, mark: Mark, ballot: u64, taught: u64, group: Group, payloads: Vec<&'a [u8]> },
    /// Numbers up to this one count as promised.
    Ceiling(u64),
    /// The snapshot that this journal continues shows entries up to this one that were not known to be committed. If any of them is lost, the snapshot is
    /// worthless.
    Shown(LogIndex),
}

impl Entry<'_> {
    const APPEND: u8 = 1;
    const START: u8 = 2;
    const BASE: u8 = 3;
    const CEILING: u8 = 4;
    const SHOWN: u8 = 5;

    /// Appends it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Entry::Append { committed, payload } => put_entry(out, Self::APPEND, |body| {
                body.number(committed.0);
                body.rest(payload);
            }),
            Entry::Start { ballot, taught, committed, jump, keep, payloads } => put_entry(out, Self::START, |body| {
                body.number(*ballot);
                body.number(*taught);
                body.number(committed.0);
                body.mark(*keep);
                body.flag(jump.is_some());
                if let Some((base, group)) = jump {
                    body.mark(*base);
                    body.group(group);
                }
                body.payloads(payloads);
            }),
            Entry::Base { anew, ring_bytes, mark, ballot, taught, group, payloads } => put_entry(out, Self::BASE, |body| {
                body.flag(*anew);
                body.number(*ring_bytes);
                body.mark(*mark);
                body.number(*ballot);
                body.number(*taught);
                body.group(group);
                body.payloads(payloads);
            }),
            Entry::Ceiling(ballot) => put_entry(out, Self::CEILING, |body| body.number(*ballot)),
            Entry::Shown(index) => put_entry(out, Self::SHOWN, |body| body.number(index.0)),
        }
    }

    /// Whether with this entry the log stops continuing a snapshot that shows entries up to `shown`. What the log continues from then on is nowhere in the
    /// journal.
    pub fn breaks_off(&self, shown: LogIndex) -> bool {
        match self {
            Entry::Base { anew, .. } => *anew,
            Entry::Start { jump, keep, .. } => jump.is_some() || keep.index < shown,
            Entry::Append { .. } | Entry::Ceiling(_) | Entry::Shown(_) => false,
        }
    }

    /// The first entry of `bytes`, and what follows it; `None` when there is none, or it is no entry.
    pub fn decode(bytes: &[u8]) -> Option<(Entry<'_>, &[u8])> {
        let (kind, mut body, rest) = first_entry(bytes)?;
        let entry = match kind {
            Self::APPEND => Entry::Append { committed: body.index()?, payload: body.rest() },
            Self::START => {
                let (ballot, taught, committed, keep) = (body.number()?, body.number()?, body.index()?, body.mark()?);
                let jump = if body.flag()? { Some((body.mark()?, body.group()?)) } else { None };
                Entry::Start { ballot, taught, committed, jump, keep, payloads: body.payloads()? }
            }
            Self::BASE => Entry::Base {
                anew: body.flag()?,
                ring_bytes: body.number()?,
                mark: body.mark()?,
                ballot: body.number()?,
                taught: body.number()?,
                group: body.group()?,
                payloads: body.payloads()?,
            },
            Self::CEILING => Entry::Ceiling(body.number()?),
            Self::SHOWN => Entry::Shown(body.index()?),
            _ => return None,
        };
        body.is_empty().then_some((entry, rest))
    }
}

/// How far a log reaches at one place of its journal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Reach {
    ballot: u64,
    last: LogIndex,
    ceiling: u64,
}

/// The journal's end in the engine.
#[derive(Debug, Default)]
pub(super) struct Journal {
    ledger: Ledger<Reach>,
    ceiling: u64,
    /// A jump whose start has not been written yet, and what was committed before it.
    jump: Option<(LogIndex, Mark, Group)>,
}

impl Deref for Journal {
    type Target = Ledger<Reach>;

    fn deref(&self) -> &Ledger<Reach> {
        &self.ledger
    }
}

impl Journal {
    /// The empty journal of a process that has promised numbers up to `promised`.
    pub fn new(promised: u64) -> Journal {
        let mut journal = Journal::default();
        journal.note_promise(promised);
        journal
    }

    /// Continues after a recovery, with a log that ends at `last`; `anchored`: what is written now continues the snapshot that was recovered from.
    pub fn after_recovery(promised: u64, ballot: u64, last: LogIndex, anchored: bool) -> Journal {
        let ledger = Ledger::after_recovery(Reach { ballot, last, ceiling: promised }, anchored);
        let mut journal = Journal { ledger, ..Journal::default() };
        journal.note_promise(promised);
        journal
    }

    /// Numbers up to `ballot` are promised; the ceiling is raised long before they reach it.
    pub fn note_promise(&mut self, ballot: u64) {
        if ballot + CEILING_STEP > self.ceiling {
            // A number that could not be read back is no valid ceiling.
            self.ceiling = (ballot + 2 * CEILING_STEP).min(MAX_NUMBER);
            self.write(&Entry::Ceiling(self.ceiling));
        }
    }

    #[inline(never)]
    pub fn write(&mut self, entry: &Entry<'_>) {
        let breaks_off = entry.breaks_off(self.ledger.shown());
        self.ledger.write(breaks_off, |out| entry.encode(out));
    }

    /// Repeats what is promised, for a recovery that begins to read here.
    pub fn write_ceiling(&mut self, promised: u64) {
        self.ceiling = self.ceiling.max(promised);
        self.write(&Entry::Ceiling(self.ceiling));
    }

    /// A snapshot shows entries up to this one that are not known to be committed.
    pub fn note_shown(&mut self, index: LogIndex) {
        self.ledger.note_shown(index);
        self.write(&Entry::Shown(index));
    }

    /// The next start comes with a jump, before which everything up to `committed` was known to be committed.
    pub fn note_jump(&mut self, committed: LogIndex, base: Mark, group: Group) {
        self.jump = Some((committed, base, group));
    }

    /// The log after `keep` was replaced by these records, and is accepted under the first number; the second is the number under which it was taught.
    pub fn write_start(&mut self, (ballot, taught): (u64, u64), committed: LogIndex, keep: Mark, payloads: Vec<&[u8]>) {
        self.note_promise(ballot);
        let (committed, jump) = match self.jump.take() {
            // The records here before the base need not be the committed ones.
            Some((before, base, group)) => (before, Some((base, group))),
            None => (committed, None),
        };
        self.write(&Entry::Start { ballot, taught, committed, jump, keep, payloads });
    }

    /// The node has taken what was pending, under this ticket. The log is now accepted under `ballot`, and ends at `last`.
    pub fn note_taken(&mut self, ticket: u64, ballot: u64, last: LogIndex) {
        self.ledger.note_taken(ticket, Reach { ballot, last, ceiling: self.ceiling });
    }

    /// Everything with a ticket up to this one is stable.
    pub fn note_stable(&mut self, ticket: u64) {
        self.ledger.note_stable(ticket);
    }

    /// A snapshot of that chain's beginning is stable.
    pub fn note_snapshot(&mut self, chain: u64) {
        self.ledger.note_snapshot(chain);
    }

    /// Promises up to this one will be remembered.
    pub fn ceiling(&self) -> u64 {
        self.ledger.stable().ceiling
    }

    /// Up to which entry the log accepted under this number is stable, together with the state that it continues. `None` when nothing of it is.
    pub fn stable_under(&self, ballot: u64) -> Option<LogIndex> {
        let stable = self.ledger.stable();
        (self.ledger.is_anchored() && stable.ballot == ballot && ballot > 0).then_some(stable.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::basics::ProcessId;
    use martlet_fabric::{Incarnation, NodeId};

    #[test]
    fn entries_come_back_as_they_went_and_a_part_of_one_is_none() {
        let group = Group::new(vec![ProcessId { node: NodeId(1), incarnation: Incarnation(7) }]);
        let mark = |n: u64| Mark { index: LogIndex(n), position: 16 * n };
        let entries = [
            Entry::Append { committed: LogIndex(3), payload: b"record" },
            Entry::Start { ballot: 9, taught: 11, committed: LogIndex(3), jump: None, keep: mark(4), payloads: vec![b"", b"one"] },
            Entry::Start {
                ballot: 9,
                taught: 0,
                committed: LogIndex(3),
                jump: Some((mark(5), group.clone())),
                keep: mark(5),
                payloads: vec![],
            },
            Entry::Base { anew: true, ring_bytes: 4096, mark: mark(6), ballot: 8, taught: 12, group, payloads: vec![b"two"] },
            Entry::Ceiling(77),
            Entry::Shown(LogIndex(9)),
        ];
        let mut bytes = Vec::new();
        entries.iter().for_each(|entry| entry.encode(&mut bytes));
        let mut rest = &bytes[..];
        for entry in &entries {
            let (found, after) = Entry::decode(rest).expect("an entry");
            assert_eq!(found, *entry);
            let len = rest.len() - after.len();
            assert!((0..len).all(|cut| Entry::decode(&rest[..cut]).is_none()));
            rest = after;
        }
        assert!(rest.is_empty());
        let mut rng = fastrand::Rng::with_seed(3);
        for _ in 0..20_000 {
            let mut altered = bytes.clone();
            altered[rng.usize(0..bytes.len())] = rng.u8(..);
            let mut rest = &altered[..];
            while let Some((entry, after)) = Entry::decode(rest) {
                let mut again = Vec::new();
                entry.encode(&mut again);
                assert_eq!(again, rest[..rest.len() - after.len()], "one encoding");
                rest = after;
            }
        }
    }

    #[test]
    fn a_ceiling_counts_when_it_is_stable_and_is_raised_before_it_is_reached() {
        let mut journal = Journal::new(0);
        assert_eq!(journal.ceiling(), 0);
        journal.note_taken(1, 0, LogIndex(0));
        journal.note_stable(1);
        assert_eq!(journal.ceiling(), 2 * CEILING_STEP);
        journal.note_promise(CEILING_STEP);
        assert!(journal.pending().is_empty());
        journal.note_promise(CEILING_STEP + 1);
        assert_eq!(Entry::decode(journal.pending()), Some((Entry::Ceiling(3 * CEILING_STEP + 1), &[][..])));
        assert_eq!(journal.ceiling(), 2 * CEILING_STEP, "not stable yet");
        let mut last = Journal::new(MAX_NUMBER);
        last.note_promise(MAX_NUMBER);
        assert!(Entry::decode(last.pending()).is_some(), "it can be read again");
    }
}
