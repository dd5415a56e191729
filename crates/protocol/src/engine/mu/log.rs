//! A replica's log (Mu listing 1): sealed records at absolute positions, and how far they are accepted, committed and applied.
//!
//! [`Entries`] has what the logs of all engines share. This module has what `mu` adds: proposal numbers, what a start replaces, and the journal.

mod written;

use std::ops::Deref;

use martlet_fabric::primitive::Ordering;
use martlet_fabric::ring::{self, Reader, Record};
use martlet_fabric::{Memory, invariant};

use crate::basics::LogIndex;
use crate::replica::StateMachine;
use crate::replica::entries::Entries;

use super::Group;
use super::journal::Journal;
use super::layout::{self, Header, Kind, LaneFault, Status, words};

pub use crate::replica::entries::Mark;

/// Records with entries that enter a log all together.
#[derive(Debug, Default)]
pub struct Staged {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Staged {
    pub fn push(&mut self, payload: &[u8]) {
        self.bytes.extend_from_slice(payload);
        self.ends.push(self.bytes.len());
    }

    pub fn len(&self) -> usize {
        self.ends.len()
    }

    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let mut from = 0;
        self.ends.iter().map(move |end| &self.bytes[std::mem::replace(&mut from, *end)..*end])
    }
}

/// The owner's side of its log.
#[derive(Debug)]
pub struct Log {
    entries: Entries<Kind>,
    /// Whether the machine shows more than the log holds: what this process executed as a leader before it lost its role.
    beyond: bool,
    min_proposal: u64,
    last_ballot: u64,
    /// The highest number of a log from which this one has anything that was not accepted here: its machine was taught it, or it was read in another log that
    /// was taught. A majority is known to have promised that number.
    taught_ballot: u64,
    /// What has to be written down about this log, if anything has to be.
    pub journal: Option<Box<Journal>>,
    record: Record,
    buffer: Vec<u8>,
}

/// The queries that all logs share.
impl Deref for Log {
    type Target = Entries<Kind>;

    #[inline]
    fn deref(&self) -> &Entries<Kind> {
        &self.entries
    }
}

impl Log {
    /// The empty log of a machine in its first state; or, without a group, of a machine that has to learn.
    pub fn new(capacity: usize, group: Option<Group>) -> Log {
        Log {
            entries: Entries::new(capacity, group),
            beyond: false,
            min_proposal: 0,
            last_ballot: 0,
            taught_ballot: 0,
            journal: None,
            record: Record::with_capacity(ring::max_payload(capacity)),
            buffer: Vec::with_capacity(ring::max_payload(capacity)),
        }
    }

    /// The log of a machine that shows everything up to `mark`, accepted under `ballot`; its group begins there.
    pub fn behind(capacity: usize, group: Group, mark: Mark, ballot: u64) -> Log {
        let mut log = Log::new(capacity, None);
        log.entries.begin_anew(mark, group);
        (log.min_proposal, log.last_ballot) = (ballot, ballot);
        log
    }

    pub fn min_proposal(&self) -> u64 {
        self.min_proposal
    }

    pub fn last_ballot(&self) -> u64 {
        self.last_ballot
    }

    /// The highest number under which anything in this log may have been committed. Above [`Log::last_ballot`] if the log was taught.
    pub fn known_ballot(&self) -> u64 {
        self.last_ballot.max(self.taught_ballot)
    }

    /// The highest proposal number that this log knows of.
    pub fn highest_ballot(&self) -> u64 {
        self.min_proposal.max(self.known_ballot())
    }

    /// The highest number under which anything was committed that this log was taught, or took from a log that was taught; 0 if nothing was.
    pub fn taught_ballot(&self) -> u64 {
        self.taught_ballot
    }

    /// What enters this log next was committed under numbers up to `ballot`, which a majority has promised; it does not count as accepted under that number
    /// here.
    pub fn note_taught(&mut self, ballot: u64) {
        self.taught_ballot = self.taught_ballot.max(ballot);
    }

    /// Whether a majority is known to accept nothing under `ballot` any more.
    pub fn is_succeeded(&self, ballot: u64) -> bool {
        ballot < self.taught_ballot
    }

    /// Raises the smallest proposal number that is accepted here.
    pub fn promise(&mut self, ballot: u64) {
        invariant!(ballot > self.min_proposal, "promised {ballot} after {}", self.min_proposal);
        self.min_proposal = ballot;
        if let Some(journal) = &mut self.journal {
            journal.note_promise(ballot);
        }
    }

    /// The whole log, as it is, counts as accepted under `ballot`.
    pub fn accept(&mut self, ballot: u64) {
        let keep = self.tail();
        self.note_accepted(ballot);
        self.write_start(keep, Vec::new());
    }

    fn note_accepted(&mut self, ballot: u64) {
        invariant!(ballot >= self.last_ballot, "accepted {ballot} after {}", self.last_ballot);
        self.last_ballot = ballot;
        self.min_proposal = self.min_proposal.max(ballot);
    }

    /// The bytes of the log that must not be overwritten.
    pub fn open_bytes(&self) -> u64 {
        self.tail().position - self.kept()
    }

    /// Appends a record that has been filled with a header and a body.
    #[inline]
    pub fn place(&mut self, header: &Header, record: &Record, ring: &Memory) -> Result<(), LaneFault> {
        self.entries.admit(header, record.payload())?;
        self.write_append(record.payload());
        self.entries.extend(header, ring::place(ring, self.tail().position, record));
        Ok(())
    }

    /// Appends the record that `reader` has just taken from a lane, as it came.
    pub fn append(&mut self, ring: &Memory, header: &Header, payload: &[u8], reader: &Reader) -> Result<(), LaneFault> {
        self.entries.follows(header)?;
        self.supersede();
        self.entries.admit(header, payload)?;
        self.write_append(payload);
        self.entries.extend(header, ring::place_taken(ring, self.tail().position, payload, reader));
        Ok(())
    }

    /// Appends a record that arrived some time ago.
    fn append_staged(&mut self, ring: &Memory, header: &Header, payload: &[u8]) -> Result<(), LaneFault> {
        self.entries.follows(header)?;
        self.supersede();
        let mut record = std::mem::take(&mut self.record);
        record.fill(|bytes| bytes.extend_from_slice(payload));
        let placed = self.place(header, &record, ring);
        self.record = record;
        placed
    }

    /// How many records follow `position`; `None` if no record begins there.
    pub fn records_behind(&mut self, ring: &Memory, position: u64) -> Option<u32> {
        let mut count = 0;
        let end = self.entries.each_from(ring, position, |_, _, _| count += 1);
        (end == self.tail().position).then_some(count)
    }

    /// Replaces everything after the committed prefix by `staged`, accepted under `ballot`. Entries that are there already stay. If the machine shows one that
    /// is removed, its state is void.
    pub fn replace(&mut self, ring: &Memory, ballot: u64, staged: &Staged) -> Result<(), LaneFault> {
        let committed = self.committed().index;
        // What is committed here already is the same there.
        let news = || staged.iter().filter(|payload| Header::decode(payload).is_ok_and(|(header, _)| header.last() > committed));
        let mut next = committed.next();
        for payload in news() {
            let (header, body) = Header::decode(payload)?;
            layout::check_entries(&header, body)?;
            if header.index != next {
                return Err(LaneFault::Index { expected: next, found: header.index });
            }
            next = header.last().next();
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut same = self.committed();
        let mut rest = news().peekable();
        while let (Some(payload), Some((header, after))) = (rest.peek(), self.read(ring, same.position, &mut buffer)) {
            let (wanted, body) = Header::decode(payload)?;
            if (wanted.kind, wanted.index, wanted.count, body) != (header.kind, header.index, header.count, &buffer[layout::HEADER_BYTES..])
            {
                break;
            }
            same = Mark { index: header.last(), position: after };
            rest.next();
        }
        self.buffer = buffer;
        self.truncate(same);
        // They are written down as one entry, together with the number.
        let journal = self.journal.take();
        let mut payloads = Vec::new();
        let put = || {
            for payload in rest {
                let (header, _) = Header::decode(payload)?;
                self.append_staged(ring, &header, payload)?;
                payloads.push(payload);
            }
            self.note_accepted(ballot);
            Ok(())
        };
        let done = put();
        self.journal = journal;
        self.write_start(same, payloads);
        done
    }

    /// Restarts the log after `base`, which is committed, with the group there; what the machine shows ends before it.
    pub fn jump(&mut self, base: Mark, group: Group) {
        let committed = self.committed().index;
        invariant!(base.index > committed, "a jump back from {committed:?} to {base:?}");
        self.void();
        if let Some(journal) = &mut self.journal {
            journal.note_jump(committed, base, group.clone());
        }
        self.entries.jump_to(base, group);
    }

    fn truncate(&mut self, to: Mark) {
        if to != self.tail() {
            self.supersede();
        }
        self.entries.cut_behind(to);
    }

    /// The machine shows everything in the log, because the leader executed it.
    #[inline]
    pub fn note_executed(&mut self) {
        self.entries.note_executed();
    }

    /// Sets whether the machine shows more than the log holds. If so, any change of the log from now on voids what it shows.
    pub fn set_beyond(&mut self, beyond: bool) {
        self.beyond = beyond;
    }

    /// Whether it does, and the log has not changed since.
    pub fn is_beyond(&self) -> bool {
        self.beyond
    }

    fn supersede(&mut self) {
        if self.beyond {
            self.void();
        }
    }

    /// The machine shows something that will never be in the log, or is about to be emptied.
    pub fn void(&mut self) {
        self.beyond = false;
        self.entries.void();
    }

    /// See [`Entries::advance`].
    pub fn advance<S: StateMachine>(&mut self, ring: &Memory, machine: &mut S, index: LogIndex) -> bool {
        self.entries.advance(ring, machine, index)
    }

    /// See [`Entries::execute`].
    pub fn execute<S: StateMachine>(&mut self, ring: &Memory, machine: &mut S, index: LogIndex) -> bool {
        self.entries.execute(ring, machine, index)
    }

    /// See [`Entries::commit_to`].
    #[inline]
    pub fn commit_to(&mut self, mark: Mark) {
        self.entries.commit_to(mark);
    }

    /// The machine has been taught everything up to `at`, with the `group` there, by a process whose log holds what was committed under numbers up to `ballot`
    /// ([`Log::known_ballot`]), and that knew `committed` to be committed. Entries in the log after `at` stay accepted. `false`: the lesson cannot be joined
    /// with this log, or makes no sense.
    pub fn learned<S: StateMachine>(
        &mut self,
        ring: &Memory,
        machine: &mut S,
        at: Mark,
        ballot: u64,
        committed: LogIndex,
        group: &Group,
    ) -> bool {
        let (last, own) = (self.tail().index, self.committed());
        if at.index <= committed && last <= at.index {
            // Positions grow with the entries.
            if at.index.cmp(&own.index) != at.position.cmp(&own.position) {
                return false;
            }
            self.entries.begin_anew(at, group.clone());
            self.note_taught(ballot);
            self.write_base(ring, true);
            return true;
        }
        // Our entries may differ from what was taught: they may be a leader's own records that no other process had, and what was taught may be what a leader
        // shows before it is committed. The two are the same where both are known to be committed, and where they come from the same leader. As far as what was
        // taught is committed, they are also the same where ours was accepted under a higher number, because its leader had to adopt what was committed before.
        let known = at.index <= committed.min(own.index);
        let same_leader = ballot == self.last_ballot && ballot == self.known_ballot();
        let accepted_later = ballot < self.last_ballot && at.index <= committed;
        let same = known || (at.index <= last && (same_leader || accepted_later));
        if !same || !self.entries.has(ring, at) {
            return false;
        }
        self.advance(ring, machine, at.index.min(committed));
        self.entries.show(at);
        self.advance(ring, machine, self.committed().index);
        true
    }

    /// Shows the numbers to the others.
    pub fn publish(&self, words: &Memory, status: Status) {
        for (at, value) in [
            (words::MIN_PROPOSAL, self.min_proposal),
            (words::LAST_BALLOT, self.last_ballot),
            (words::LAST_INDEX, self.tail().index.0),
            (words::TAIL, self.tail().position),
            (words::COMMITTED, self.committed().index.0),
            (words::COMMITTED_POSITION, self.committed().position),
            (words::FLOOR, self.lowest()),
            (words::STATUS, status as u64),
            (words::EXECUTED, if self.beyond { self.tail().index.0 + 1 } else { self.applied().index.0 }),
            (words::TAUGHT_BALLOT, self.taught_ballot),
            (words::CEILING, self.journal.as_ref().map_or(0, |journal| journal.ceiling())),
        ] {
            words[at].store(value, Ordering::Release);
        }
    }
}
