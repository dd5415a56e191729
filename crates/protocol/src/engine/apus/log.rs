//! A replica's log: sealed records at absolute positions, the view under which all of it was last taken over, and what its owner has promised.
//!
//! [`Entries`] has what the logs of all engines share. A log of this engine is in its owner's private memory, since no other process reads it: the owner takes
//! each record from a leader's lane, and puts it here before it acknowledges anything (APUS section 4.1). The whole log counts as taken over under one view id,
//! and so is a prefix of what that view's leader had. A new leader replaces, in one step, everything after the last entry that is known to be committed.

use std::fmt;
use std::ops::Deref;

use martlet_fabric::invariant;
use martlet_fabric::primitive::AtomicU64;
use martlet_fabric::ring::{self, Reader, Record};

use crate::basics::LogIndex;
use crate::replica::StateMachine;
use crate::replica::backlog::HEADER_BYTES;
use crate::replica::entries::Entries;
use crate::replica::group::Group;
use crate::replica::record;

use super::journal::{Entry, Journal};
use super::layout::{Header, Kind, LaneFault};

pub use crate::replica::entries::Mark;

/// Records with entries that enter a log all together.
#[derive(Debug, Default)]
pub struct Staged {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Staged {
    /// One more.
    pub fn push(&mut self, payload: &[u8]) {
        self.bytes.extend_from_slice(payload);
        self.ends.push(self.bytes.len());
    }

    /// How many records there are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Bytes of all of them.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let mut from = 0;
        self.ends.iter().map(move |end| &self.bytes[std::mem::replace(&mut from, *end)..*end])
    }
}

/// The memory that holds the records, of fixed size.
struct Ring(Vec<AtomicU64>);

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ring of {} words", self.0.len())
    }
}

/// The owner's log.
#[derive(Debug)]
pub struct Log {
    entries: Entries<Kind>,
    ring: Ring,
    /// The view id under which it was last taken over.
    accepted: u64,
    /// The highest view id in which its owner has taken part: it agrees to none below that.
    promised: u64,
    /// What has to be written down about this log, if anything has to be.
    pub journal: Option<Box<Journal>>,
    record: Record,
    buffer: Vec<u8>,
}

impl Deref for Log {
    type Target = Entries<Kind>;

    fn deref(&self) -> &Entries<Kind> {
        &self.entries
    }
}

impl Log {
    /// The empty log of a machine in its first state; or, without a group, of a machine that does not hold the state.
    pub fn new(capacity: usize, group: Option<Group>) -> Log {
        Log {
            entries: Entries::new(capacity, group),
            ring: Ring((0..ring::lane_bytes(capacity) / 8).map(|_| AtomicU64::new(0)).collect()),
            accepted: 0,
            promised: 0,
            journal: None,
            record: Record::default(),
            buffer: Vec::with_capacity(ring::max_payload(capacity)),
        }
    }

    /// The log of a machine that shows everything up to `mark`, taken over under `view`; its group begins there.
    pub fn behind(capacity: usize, group: Group, mark: Mark, view: u64) -> Log {
        let mut log = Log::new(capacity, None);
        log.entries.begin_anew(mark, group);
        (log.accepted, log.promised) = (view, view);
        log
    }

    /// The view id under which it was last taken over; 0 if it never was.
    pub fn accepted(&self) -> u64 {
        self.accepted
    }

    /// The highest view id that its owner has taken part in.
    pub fn promised(&self) -> u64 {
        self.promised
    }

    /// The key for finding the log that has everything that may be committed (APUS section 4.4): the view id, then the index.
    pub fn rank(&self) -> (u64, LogIndex) {
        (self.accepted, self.tail().index)
    }

    /// From now on its owner takes part in this view, and in none below it.
    pub fn promise(&mut self, view: u64) {
        invariant!(view > self.promised, "promised {view} after {}", self.promised);
        self.promised = view;
        if let Some(journal) = &mut self.journal {
            journal.write(&Entry::Promise(view));
        }
    }

    /// The log, as it is, becomes that of the leader of `view`, its owner.
    pub fn lead(&mut self, view: u64) {
        let keep = self.tail();
        self.note_accepted(view);
        self.write_start(keep, Vec::new());
    }

    fn note_accepted(&mut self, view: u64) {
        invariant!(view >= self.accepted, "taken over under {view} after {}", self.accepted);
        self.accepted = view;
        self.promised = self.promised.max(view);
    }

    /// Appends a record that has been filled with a header and a body.
    ///
    /// # Errors
    /// When there is no room for it, or it makes no sense.
    pub fn place(&mut self, header: &Header, record: &Record) -> Result<(), LaneFault> {
        self.entries.admit(header, record.payload())?;
        self.write_append(record.payload());
        self.entries.extend(header, ring::place(&self.ring.0, self.tail().position, record));
        Ok(())
    }

    /// Appends the record that `reader` has just taken from a lane, as it came.
    ///
    /// # Errors
    /// When it is not the next, there is no room for it, or it makes no sense.
    pub fn append(&mut self, header: &Header, payload: &[u8], reader: &Reader) -> Result<(), LaneFault> {
        self.entries.follows(header)?;
        self.entries.admit(header, payload)?;
        self.write_append(payload);
        self.entries.extend(header, ring::place_taken(&self.ring.0, self.tail().position, payload, reader));
        Ok(())
    }

    /// Appends a record that came some time ago.
    fn append_staged(&mut self, payload: &[u8]) -> Result<(), LaneFault> {
        let (header, body) = Header::decode(payload)?;
        record::check_entries(&header, body, false)?;
        self.entries.follows(&header)?;
        let mut record = std::mem::take(&mut self.record);
        record.fill(|bytes| bytes.extend_from_slice(payload));
        let placed = self.place(&header, &record);
        self.record = record;
        placed
    }

    /// The record at `position`, into `into`: its header, and where the next one begins. `None` when none is there.
    pub fn read(&self, position: u64, into: &mut Vec<u8>) -> Option<(Header, u64)> {
        self.entries.read(&self.ring.0, position, into)
    }

    /// Whether an entry ends there, and everything after it is still in the ring.
    pub fn has(&mut self, at: Mark) -> bool {
        self.retains(at.position) && self.entries.has(&self.ring.0, at)
    }

    /// The ends of the records after `position`, at which one begins.
    pub fn marks_behind(&mut self, position: u64) -> Vec<Mark> {
        let mut marks = Vec::new();
        self.entries.each_from(&self.ring.0, position, |_, _, end| marks.push(end));
        marks
    }

    /// Bytes behind what must not be overwritten.
    pub fn open_bytes(&self) -> u64 {
        self.tail().position - self.kept()
    }

    /// Replaces everything after the committed prefix by `staged`, as the leader of `view` has it. Entries that are there already stay. If the machine shows
    /// one that is removed, its state is void. Returns whether any was cut off.
    ///
    /// # Errors
    /// When the records do not follow each other. Then nothing has changed, except perhaps the end of the uncommitted part.
    pub fn take_over(&mut self, view: u64, staged: &Staged) -> Result<bool, LaneFault> {
        let committed = self.committed().index;
        // What is committed here already is the same there.
        let news = || staged.iter().filter(|payload| Header::decode(payload).is_ok_and(|(header, _)| header.last() > committed));
        let mut next = committed.next();
        for payload in news() {
            let (header, body) = Header::decode(payload)?;
            record::check_entries(&header, body, false)?;
            if header.index != next {
                return Err(LaneFault::Index { expected: next, found: header.index });
            }
            next = header.last().next();
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut same = self.committed();
        let mut rest = news().peekable();
        while let (Some(payload), Some((header, after))) = (rest.peek(), self.read(same.position, &mut buffer)) {
            let (wanted, body) = Header::decode(payload)?;
            if (wanted.kind, wanted.index, wanted.count, body) != (header.kind, header.index, header.count, &buffer[HEADER_BYTES..]) {
                break;
            }
            same = Mark { index: header.last(), position: after };
            rest.next();
        }
        self.buffer = buffer;
        let cut = same != self.tail();
        self.entries.cut_behind(same);
        // They are written down as one entry, together with the view id.
        let journal = self.journal.take();
        let mut payloads = Vec::new();
        let put = || {
            for payload in rest {
                self.append_staged(payload)?;
                payloads.push(payload);
            }
            self.note_accepted(view);
            Ok(cut)
        };
        let done = put();
        self.journal = journal;
        self.write_start(same, payloads);
        done
    }

    /// The same, if the leader's log does not reach back to this one, or there is none: the log restarts after `base`, which is committed, with the group
    /// there. What the machine shows ends before it.
    ///
    /// # Errors
    /// When the records do not follow from each other.
    pub fn take_over_anew(&mut self, view: u64, base: Mark, group: Group, staged: &Staged) -> Result<(), LaneFault> {
        if base.position <= self.committed().position && self.committed().index > LogIndex(0) {
            return Err(LaneFault::Body);
        }
        self.void();
        self.entries.jump_to(base, group);
        let journal = self.journal.take();
        let done = staged.iter().try_for_each(|payload| self.append_staged(payload));
        self.journal = journal;
        self.note_accepted(view);
        self.write_base(true);
        done
    }

    /// The machine shows everything in the log, because the leader executed it.
    #[inline]
    pub fn note_executed(&mut self) {
        self.entries.note_executed();
    }

    /// The machine shows something that will never be in the log, or is about to be emptied.
    pub fn void(&mut self) {
        self.entries.void();
    }

    /// See [`Entries::advance`].
    pub fn advance<S: StateMachine>(&mut self, machine: &mut S, index: LogIndex) -> bool {
        self.entries.advance(&self.ring.0, machine, index)
    }

    /// See [`Entries::execute`].
    pub fn execute<S: StateMachine>(&mut self, machine: &mut S, index: LogIndex) -> bool {
        self.entries.execute(&self.ring.0, machine, index)
    }

    /// See [`Entries::commit_to`].
    #[inline]
    pub fn commit_to(&mut self, mark: Mark) {
        self.entries.commit_to(mark);
    }

    /// The machine has been sent everything up to `at`, which is committed, with the `group` there, by a process whose log was taken over under `view`.
    ///
    /// A log that was taken over under the same view or a later one has that entry, if it reaches that far, and continues with its own copy. A log that ends
    /// before that entry restarts after it. Its view stays what it was: the state says nothing about what that view's leader began with, and only that makes a
    /// log of that view more up to date than an earlier one. `false`: neither applies. Either this log has to be taken over first, or the state is too old.
    pub fn learned<S: StateMachine>(&mut self, machine: &mut S, at: Mark, view: u64, group: &Group) -> bool {
        let known = at.index <= self.committed().index || self.accepted >= view;
        if known && at.index <= self.tail().index && self.has(at) {
            // Without applying: the machine shows it.
            self.entries.commit_shown(&self.ring.0, at.index);
            self.entries.show(at);
            let committed = self.committed().index;
            self.advance(machine, committed);
            return true;
        }
        // Positions grow with the entries.
        let committed = self.committed();
        if at.index < self.tail().index || at.index.cmp(&committed.index) != at.position.cmp(&committed.position) {
            return false;
        }
        self.entries.begin_anew(at, group.clone());
        self.write_base(true);
        true
    }

    // What is written down.

    fn write_start(&mut self, keep: Mark, payloads: Vec<&[u8]>) {
        let (view, committed) = (self.accepted, self.entries.committed().index);
        if let Some(journal) = &mut self.journal {
            journal.write(&Entry::Start { view, committed, keep, payloads });
        }
    }

    #[inline]
    fn write_append(&mut self, payload: &[u8]) {
        let committed = self.entries.committed().index;
        if let Some(journal) = &mut self.journal {
            journal.write(&Entry::Append { committed, payload });
        }
    }

    /// Writes down the whole log, from the committed index on. `anew`: it does not continue what was written before.
    pub fn write_base(&mut self, anew: bool) {
        // A replica that knows no group has nothing to recover.
        let Some(group) = self.group_at(self.committed().index).cloned() else { return };
        let (mut records, mark) = (Vec::new(), self.committed());
        self.entries.each_from(&self.ring.0, mark.position, |_, payload, _| records.push(payload.to_vec()));
        let payloads = records.iter().map(Vec::as_slice).collect();
        let entry = Entry::Base { anew, ring_bytes: self.capacity(), mark, view: self.accepted, group, payloads };
        if let Some(journal) = &mut self.journal {
            journal.write(&entry);
            // For a recovery that begins to read here.
            journal.write(&Entry::Promise(self.promised));
        }
    }

    /// Begins to write down the changes of this log, which is empty.
    pub fn begin_journal(&mut self, journal: Box<Journal>) {
        self.journal = Some(journal);
        self.write_base(true);
    }

    /// Restores the log from such an entry; the machine shows everything before it.
    ///
    /// # Errors
    /// When it makes no sense.
    pub fn restore_base(&mut self, base: Entry<'_>) -> Result<(), LaneFault> {
        let Entry::Base { mark, view, group, payloads, .. } = base else { return Err(LaneFault::Body) };
        self.entries.begin_anew(mark, group);
        self.accepted = view;
        payloads.iter().try_for_each(|payload| self.append_staged(payload))
    }

    /// Appends a record that was written down.
    ///
    /// # Errors
    /// When it does not follow.
    pub fn restore_record(&mut self, payload: &[u8]) -> Result<(), LaneFault> {
        self.append_staged(payload)
    }

    /// Restores a start: the log after `keep` now consists of these records, taken over under `view`.
    ///
    /// # Errors
    /// When they do not follow.
    pub fn restore_start(&mut self, view: u64, keep: Mark, payloads: &[&[u8]]) -> Result<(), LaneFault> {
        let (committed, tail) = (self.committed(), self.tail());
        if keep.index < committed.index || keep.index > tail.index || view < self.accepted {
            return Err(LaneFault::Index { expected: tail.index, found: keep.index });
        }
        // The same entry at another position was written with a ring of another size. An entry between two others cannot be elsewhere either.
        for known in [tail, committed] {
            if keep.index.cmp(&known.index) != keep.position.cmp(&known.position) {
                return Err(LaneFault::Position { expected: known.position, found: keep.position });
            }
        }
        self.entries.cut_behind(keep);
        self.note_accepted(view);
        payloads.iter().try_for_each(|payload| self.append_staged(payload))
    }

    /// What a restored process has promised.
    pub fn restore_promise(&mut self, view: u64) {
        self.promised = self.promised.max(view).max(self.accepted);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::basics::ProcessId;
    use crate::replica::NoState;

    const BYTES: usize = 2048;

    fn group() -> Group {
        Group::new(vec![ProcessId::default()])
    }

    fn log() -> Log {
        Log::new(BYTES, Some(group()))
    }

    fn record(view: u64, index: u64, command: u8) -> Vec<u8> {
        let header = Header { kind: Kind::Commands, count: 1, number: view, index: LogIndex(index), beside: 0 };
        [&header.bytes()[..], &1u32.to_le_bytes(), &[command]].concat()
    }

    /// These commands after `from`, as a leader of that view sends them.
    fn staged(view: u64, from: u64, commands: &[u8]) -> Staged {
        let mut staged = Staged::default();
        commands.iter().zip(from + 1..).for_each(|(command, index)| staged.push(&record(view, index, *command)));
        staged
    }

    fn commands(log: &Log) -> Vec<u8> {
        let (mut buffer, mut position, mut found) = (Vec::new(), 0, Vec::new());
        while let Some((_, next)) = log.read(position, &mut buffer) {
            found.push(*buffer.last().expect("a command"));
            position = next;
        }
        found
    }

    fn end(log: &mut Log, index: u64) -> Mark {
        log.marks_behind(0).into_iter().find(|mark| mark.index.0 == index).expect("an entry ends there")
    }

    #[test]
    fn apus_4_4_a_start_replaces_what_is_not_committed_and_keeps_what_is_the_same() {
        let mut log = log();
        assert_eq!(log.take_over(1, &staged(1, 0, b"abcd")), Ok(false));
        log.advance(&mut NoState, LogIndex(1));
        assert_eq!(log.take_over(2, &staged(2, 0, b"abxyz")), Ok(true), "from its beginning on");
        assert_eq!((commands(&log), log.accepted(), log.committed().index), (b"abxyz".to_vec(), 2, LogIndex(1)));
        assert!(log.is_complete(), "the machine shows nothing of what went");
        assert_eq!(log.take_over(3, &staged(3, 1, b"bxyz")), Ok(false));
        log.note_executed();
        assert_eq!(log.take_over(4, &staged(4, 1, b"bx")), Ok(true));
        assert!(!log.is_complete(), "it shows what went");
    }

    #[test]
    fn what_does_not_follow_is_refused() {
        let mut log = log();
        let expected = LaneFault::Index { expected: LogIndex(1), found: LogIndex(3) };
        assert_eq!(log.take_over(1, &staged(1, 2, b"ab")), Err(expected));
        assert_eq!(log.tail(), Mark::default());
    }

    #[test]
    fn what_is_learned_never_makes_a_log_more_up_to_date_and_drops_nothing_that_it_may_have_acknowledged() {
        let mut all = log();
        all.take_over(1, &staged(1, 0, b"abcdef")).expect("they follow");
        let (third, sixth) = (end(&mut all, 3), end(&mut all, 6));
        // Acknowledged under view 1; a leader of view 5 has told the teacher that three are committed.
        let mut backup = log();
        backup.take_over(1, &staged(1, 0, b"abcd")).expect("they follow");
        backup.void();
        let rank = backup.rank();
        assert!(!backup.learned(&mut NoState, third, 5, &group()), "what stands there may be something else");
        assert_eq!((backup.rank(), commands(&backup)), (rank, b"abcd".to_vec()));
        // Once it has that leader's log, it has the entry.
        backup.take_over(5, &staged(5, 0, b"abcdef")).expect("they follow");
        assert!(backup.learned(&mut NoState, third, 5, &group()) && backup.is_complete());
        assert_eq!((backup.committed(), backup.applied(), backup.tail()), (third, third, sixth));
        // A log that ends before what the state shows restarts after it, and keeps its view.
        let mut slow = log();
        slow.take_over(1, &staged(1, 0, b"ab")).expect("they follow");
        slow.void();
        assert!(slow.learned(&mut NoState, sixth, 5, &group()));
        assert_eq!((slow.rank(), slow.committed(), slow.is_complete()), ((1, LogIndex(6)), sixth, true));
    }

    #[test]
    fn trap_17_positions_are_compared_as_numbers_across_many_laps() {
        let mut log = log();
        log.take_over(1, &Staged::default()).expect("nothing");
        for index in 1..=1000u64 {
            let payload = record(1, index, index as u8);
            let (header, _) = Header::decode(&payload).expect("a header");
            let mut record = Record::default();
            record.fill(|bytes| bytes.extend_from_slice(&payload));
            log.place(&header, &record).expect("there is room");
            log.advance(&mut NoState, LogIndex(index));
        }
        assert!(log.tail().position > 20 * BYTES as u64 && log.open_bytes() == 0);
        assert!(!log.retains(0) && log.retains(log.tail().position));
    }
}
