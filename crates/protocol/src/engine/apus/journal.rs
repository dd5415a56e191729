//! What has to be written down so that this replica can recover as the same member (`docs/durability.md`): the changes of its log, and its promises, in order.
//!
//! The engine makes entries. The node takes them to a disk, in its own time, and reports up to where they are stable. An entry is a whole change; for example,
//! a start with all its records is one entry. So any prefix of the journal that is left after a crash describes what this log was at some moment.
//!
//! How an entry is written is said by [`journal_encoding`](crate::replica::journal_encoding).

use std::ops::{Deref, DerefMut};

use crate::basics::LogIndex;
use crate::replica::group::Group;
use crate::replica::journal_encoding::{first_entry, put_entry};
use crate::replica::ledger::Ledger;

use super::log::Mark;

/// A change of the log, or a promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Entry<'a> {
    /// A record was appended.
    Append { committed: LogIndex, payload: &'a [u8] },
    /// The log was taken over under `view`: everything after `keep` was replaced by these records. `committed` is what was known to be committed before that.
    Start { view: u64, committed: LogIndex, keep: Mark, payloads: Vec<&'a [u8]> },
    /// The whole log: everything after `mark`, with the group there. `anew`: it does not continue what was written before. `ring_bytes`: the log's size, on
    /// which all positions depend.
    Base { anew: bool, ring_bytes: u64, mark: Mark, view: u64, group: Group, payloads: Vec<&'a [u8]> },
    /// Its owner no longer takes part in any view below this one.
    Promise(u64),
    /// The snapshot that this journal continues shows entries up to this one that were not known to be committed. If any of them is lost, the snapshot is
    /// worthless.
    Shown(LogIndex),
}

impl Entry<'_> {
    const APPEND: u8 = 1;
    const START: u8 = 2;
    const BASE: u8 = 3;
    const PROMISE: u8 = 4;
    const SHOWN: u8 = 5;

    /// Appends it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Entry::Append { committed, payload } => put_entry(out, Self::APPEND, |body| {
                body.number(committed.0);
                body.rest(payload);
            }),
            Entry::Start { view, committed, keep, payloads } => put_entry(out, Self::START, |body| {
                body.number(*view);
                body.number(committed.0);
                body.mark(*keep);
                body.payloads(payloads);
            }),
            Entry::Base { anew, ring_bytes, mark, view, group, payloads } => put_entry(out, Self::BASE, |body| {
                body.flag(*anew);
                body.number(*ring_bytes);
                body.mark(*mark);
                body.number(*view);
                body.group(group);
                body.payloads(payloads);
            }),
            Entry::Promise(view) => put_entry(out, Self::PROMISE, |body| body.number(*view)),
            Entry::Shown(index) => put_entry(out, Self::SHOWN, |body| body.number(index.0)),
        }
    }

    /// Whether with this entry the log stops continuing a snapshot that shows entries up to `shown`. What the log continues from then on is nowhere in the
    /// journal.
    pub fn breaks_off(&self, shown: LogIndex) -> bool {
        match self {
            Entry::Base { anew, .. } => *anew,
            Entry::Start { keep, .. } => keep.index < shown,
            Entry::Append { .. } | Entry::Promise(_) | Entry::Shown(_) => false,
        }
    }

    /// The view id in which its owner takes part by this entry; 0 for none.
    pub fn promises(&self) -> u64 {
        match self {
            Entry::Promise(view) | Entry::Start { view, .. } | Entry::Base { view, .. } => *view,
            Entry::Append { .. } | Entry::Shown(_) => 0,
        }
    }

    /// The first entry of `bytes`, and what follows it; `None` when there is none, or it is no entry.
    pub fn decode(bytes: &[u8]) -> Option<(Entry<'_>, &[u8])> {
        let (kind, mut body, rest) = first_entry(bytes)?;
        let entry = match kind {
            Self::APPEND => Entry::Append { committed: body.index()?, payload: body.rest() },
            Self::START => Entry::Start { view: body.number()?, committed: body.index()?, keep: body.mark()?, payloads: body.payloads()? },
            Self::BASE => Entry::Base {
                anew: body.flag()?,
                ring_bytes: body.number()?,
                mark: body.mark()?,
                view: body.number()?,
                group: body.group()?,
                payloads: body.payloads()?,
            },
            Self::PROMISE => Entry::Promise(body.number()?),
            Self::SHOWN => Entry::Shown(body.index()?),
            _ => return None,
        };
        body.is_empty().then_some((entry, rest))
    }
}

/// How far a log reaches at one place of its journal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Reach {
    pub promised: u64,
    pub accepted: u64,
    pub last: LogIndex,
}

/// The journal's end in the engine.
#[derive(Debug, Default)]
pub(super) struct Journal(Ledger<Reach>);

impl Deref for Journal {
    type Target = Ledger<Reach>;

    fn deref(&self) -> &Ledger<Reach> {
        &self.0
    }
}

impl DerefMut for Journal {
    fn deref_mut(&mut self) -> &mut Ledger<Reach> {
        &mut self.0
    }
}

impl Journal {
    /// Continues after a recovery, with a log up to `reach`; `anchored`: what is written now continues the snapshot that was recovered from.
    pub fn after_recovery(reach: Reach, anchored: bool) -> Journal {
        Journal(Ledger::after_recovery(reach, anchored))
    }

    #[inline(never)]
    pub fn write(&mut self, entry: &Entry<'_>) {
        let breaks = entry.breaks_off(self.0.shown());
        self.0.write(breaks, |out| entry.encode(out));
    }

    /// A snapshot shows entries up to this one that are not known to be committed.
    pub fn note_shown(&mut self, index: LogIndex) {
        self.0.note_shown(index);
        self.write(&Entry::Shown(index));
    }

    /// The highest view id whose promise by the owner will be remembered, whatever happens.
    pub fn promised(&self) -> u64 {
        self.0.stable().promised
    }

    /// Up to which entry the log that was taken over under this view is stable, together with the state that it continues. `None` when nothing of it is.
    pub fn stable_under(&self, view: u64) -> Option<LogIndex> {
        let stable = self.0.stable();
        (self.0.is_anchored() && stable.accepted == view && view > 0).then_some(stable.last)
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
            Entry::Start { view: 9, committed: LogIndex(3), keep: mark(4), payloads: vec![b"", b"one"] },
            Entry::Base { anew: true, ring_bytes: 4096, mark: mark(6), view: 8, group, payloads: vec![b"two"] },
            Entry::Promise(77),
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
    fn a_promise_counts_when_it_is_stable() {
        let mut journal = Journal::default();
        journal.write(&Entry::Promise(7));
        assert_eq!((Entry::decode(journal.pending()), journal.promised()), (Some((Entry::Promise(7), &[][..])), 0));
        journal.note_taken(1, Reach { promised: 7, ..Reach::default() });
        assert_eq!((journal.pending(), journal.promised()), (&[][..], 0), "taken, not stable");
        journal.note_stable(1);
        assert_eq!(journal.promised(), 7);
    }
}
