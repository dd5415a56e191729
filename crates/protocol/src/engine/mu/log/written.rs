//! What a log writes into its journal, and how it is restored from one (`docs/durability.md`).

use martlet_fabric::Memory;

use super::{Log, Mark};
use crate::engine::mu::journal::{Entry, Journal};
use crate::engine::mu::layout::{self, Header, LaneFault};

impl Log {
    /// Writes down that the log after `keep` now consists of these records, and under which number it is accepted.
    pub(super) fn write_start(&mut self, keep: Mark, payloads: Vec<&[u8]>) {
        let (ballots, committed) = ((self.last_ballot, self.taught_ballot), self.committed().index);
        if let Some(journal) = &mut self.journal {
            journal.write_start(ballots, committed, keep, payloads);
        }
    }

    /// Writes down that this record was appended.
    #[inline]
    pub(super) fn write_append(&mut self, payload: &[u8]) {
        let committed = self.entries.committed().index;
        if let Some(journal) = &mut self.journal {
            journal.write(&Entry::Append { committed, payload });
        }
    }

    /// Writes down the whole log, from the committed index on. `anew`: it does not continue what was written before.
    pub fn write_base(&mut self, ring: &Memory, anew: bool) {
        let (mut records, from) = (Vec::new(), self.committed().position);
        self.entries.each_from(ring, from, |_, payload, _| records.push(payload.to_vec()));
        self.write_base_of(&records, anew);
    }

    /// Begins to write down the changes of this log, which is empty.
    pub fn begin_journal(&mut self, mut journal: Box<Journal>) {
        journal.note_promise(self.min_proposal);
        self.journal = Some(journal);
        self.write_base_of(&[], true);
    }

    pub(super) fn write_base_of(&mut self, records: &[Vec<u8>], anew: bool) {
        // A replica that knows no group has nothing to recover.
        let Some(group) = self.group_at(self.committed().index).cloned() else { return };
        let payloads = records.iter().map(Vec::as_slice).collect();
        let (mark, ballot, taught) = (self.committed(), self.last_ballot, self.taught_ballot);
        let entry = Entry::Base { anew, ring_bytes: self.capacity(), mark, ballot, taught, group, payloads };
        if let Some(journal) = &mut self.journal {
            journal.write(&entry);
        }
    }

    /// Restores the log from such an entry; the machine shows everything before it.
    pub fn restore_base(&mut self, ring: &Memory, base: Entry<'_>) -> Result<(), LaneFault> {
        let Entry::Base { mark, ballot, taught, group, payloads, .. } = base else { return Err(LaneFault::Body) };
        self.entries.begin_anew(mark, group);
        (self.last_ballot, self.taught_ballot) = (ballot, taught);
        payloads.iter().try_for_each(|payload| self.restore_record(ring, payload))
    }

    /// Appends a record that was written down.
    pub fn restore_record(&mut self, ring: &Memory, payload: &[u8]) -> Result<(), LaneFault> {
        let (header, body) = Header::decode(payload)?;
        layout::check_entries(&header, body)?;
        self.append_staged(ring, &header, payload)
    }

    /// Restores a start: the log after `keep` now consists of these records, accepted under `ballot`.
    pub fn restore_start(&mut self, ring: &Memory, ballot: u64, keep: Mark, payloads: &[&[u8]]) -> Result<(), LaneFault> {
        if keep.index < self.committed().index || keep.index > self.tail().index || ballot < self.last_ballot {
            return Err(LaneFault::Index { expected: self.tail().index, found: keep.index });
        }
        // The same entry at another position was written with a ring of another size. An entry between two others cannot be elsewhere either.
        for known in [self.tail(), self.committed()] {
            if keep.index.cmp(&known.index) != keep.position.cmp(&known.position) {
                return Err(LaneFault::Position { expected: known.position, found: keep.position });
            }
        }
        if keep != self.tail() {
            self.truncate(keep);
        }
        self.note_accepted(ballot);
        payloads.iter().try_for_each(|payload| self.restore_record(ring, payload))
    }

    /// The highest number that a restored process may have promised.
    pub fn restore_promise(&mut self, ceiling: u64) {
        self.min_proposal = self.min_proposal.max(ceiling);
    }
}
