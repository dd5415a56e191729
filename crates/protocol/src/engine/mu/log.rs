//! A replica's log (Mu listing 1): sealed records at absolute positions, what of them is accepted, committed and applied.
//!
//! The records lie in a ring of the owner's public memory, so that a new leader can read them. Nothing is zeroed and nothing is recycled by
//! a procedure of its own: a record is overwritten when the ring comes round to it, which the owner allows once it is applied here.
//! Positions are the same at all replicas that hold the same entries, since they follow from the records' lengths alone.

mod written;

use martlet_fabric::primitive::Ordering;
use martlet_fabric::ring::{self, Reader, Record};
use martlet_fabric::{Memory, invariant};

use crate::basics::LogIndex;
use crate::replica::StateMachine;

use super::Group;
use super::journal::Journal;
use super::layout::{self, Header, Kind, LaneFault, Status, words};

/// A place between two records: the last entry before it, and where the next record begins (or the filler ahead of it).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    pub index: LogIndex,
    pub position: u64,
}

/// Records with entries on their way into a log, as one.
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
    capacity: u64,
    tail: Mark,
    /// Nothing before this position was ever here.
    floor: u64,
    /// Up to which position anything was ever written: what was cut off has overwritten the lap before it all the same.
    written: u64,
    committed: Mark,
    /// What the machine shows, as long as `complete`.
    applied: Mark,
    complete: bool,
    /// The machine shows more than the log holds: what this process executed as a leader that has lost its role.
    beyond: bool,
    min_proposal: u64,
    last_ballot: u64,
    /// The highest number of a log from which this one has anything without having been accepted under it: what its machine was taught, or read in another's log that
    /// was taught. A majority is known to have promised it.
    taught_ballot: u64,
    /// The group of the committed prefix, and those of entries behind it.
    groups: Vec<(LogIndex, Group)>,
    /// How often the group in force may have changed.
    group_version: u64,
    /// How often the machine has ceased to show what it showed.
    breaks: u64,
    /// What has to be written down about it, if anything has to.
    pub journal: Option<Box<Journal>>,
    record: Record,
    buffer: Vec<u8>,
}

impl Log {
    /// The empty log of a machine in its first state, or with no group of one that has to learn.
    pub fn new(capacity: usize, group: Option<Group>) -> Log {
        Log {
            capacity: capacity as u64,
            tail: Mark::default(),
            floor: 0,
            written: 0,
            committed: Mark::default(),
            applied: Mark::default(),
            complete: group.is_some(),
            beyond: false,
            min_proposal: 0,
            last_ballot: 0,
            taught_ballot: 0,
            groups: group.into_iter().map(|g| (LogIndex(0), g)).collect(),
            group_version: 0,
            breaks: 0,
            journal: None,
            record: Record::with_capacity(ring::max_payload(capacity)),
            buffer: Vec::with_capacity(ring::max_payload(capacity)),
        }
    }

    /// The log of a machine that shows everything up to `mark`, as it was accepted under `ballot`, of a group that begins there.
    pub fn behind(capacity: usize, group: Group, mark: Mark, ballot: u64) -> Log {
        let mut log = Log::new(capacity, None);
        (log.tail, log.committed, log.applied) = (mark, mark, mark);
        (log.floor, log.written) = (mark.position, mark.position);
        (log.min_proposal, log.last_ballot) = (ballot, ballot);
        (log.groups, log.complete) = (vec![(mark.index, group)], true);
        log
    }

    #[inline]
    pub fn tail(&self) -> Mark {
        self.tail
    }

    #[inline]
    pub fn committed(&self) -> Mark {
        self.committed
    }

    pub fn applied(&self) -> Mark {
        self.applied
    }

    /// Whether the machine shows exactly the entries up to [`Log::applied`].
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    /// The ring's size in bytes.
    pub fn capacity(&self) -> usize {
        self.capacity as usize
    }

    pub fn min_proposal(&self) -> u64 {
        self.min_proposal
    }

    pub fn last_ballot(&self) -> u64 {
        self.last_ballot
    }

    /// The highest number under which anything in this log may have been committed. Above [`Log::last_ballot`] where it was taught.
    pub fn known_ballot(&self) -> u64 {
        self.last_ballot.max(self.taught_ballot)
    }

    /// The highest proposal number that this log knows of.
    pub fn highest_ballot(&self) -> u64 {
        self.min_proposal.max(self.known_ballot())
    }

    /// The highest number under which anything was committed that this log was taught, or has from one that was; 0 if nothing was.
    pub fn taught_ballot(&self) -> u64 {
        self.taught_ballot
    }

    /// What comes into this log next was committed under numbers up to `ballot`, which a majority has promised; it is not accepted under that here.
    pub fn note_taught(&mut self, ballot: u64) {
        self.taught_ballot = self.taught_ballot.max(ballot);
    }

    /// Whether a majority is known to take nothing under `ballot` any more.
    pub fn is_succeeded(&self, ballot: u64) -> bool {
        ballot < self.taught_ballot
    }

    /// The group in force: that of the last entry which changes it, committed or not.
    pub fn group(&self) -> Option<&Group> {
        self.groups.last().map(|(_, g)| g)
    }

    /// The entry that brought [`Log::group`], or the last before a jump that did.
    pub fn group_since(&self) -> Option<LogIndex> {
        self.groups.last().map(|(index, _)| *index)
    }

    /// As long as it stays the same, so does [`Log::group`].
    #[inline]
    pub fn group_version(&self) -> u64 {
        self.group_version
    }

    /// The group of what is committed.
    pub fn committed_group(&self) -> Option<&(LogIndex, Group)> {
        self.groups.first()
    }

    /// The group in force behind the entry at `index`.
    pub fn group_at(&self, index: LogIndex) -> Option<&Group> {
        self.groups.iter().rev().find(|(changed, _)| *changed <= index).map(|(_, group)| group)
    }

    /// Whether a change of the group is not committed yet.
    pub fn is_group_changing(&self) -> bool {
        self.groups.len() > 1
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
        let keep = self.tail;
        self.note_accepted(ballot);
        self.write_start(keep, Vec::new());
    }

    fn note_accepted(&mut self, ballot: u64) {
        invariant!(ballot >= self.last_ballot, "accepted {ballot} after {}", self.last_ballot);
        self.last_ballot = ballot;
        self.min_proposal = self.min_proposal.max(ballot);
    }

    /// Counts the times that the machine has ceased to show what it showed.
    pub fn breaks(&self) -> u64 {
        self.breaks
    }

    /// Whether the record at `position` is still here.
    pub fn retains(&self, position: u64) -> bool {
        position >= self.lowest() && position <= self.tail.position
    }

    /// The lowest position that may still be here.
    fn lowest(&self) -> u64 {
        self.floor.max(self.written.saturating_sub(self.capacity))
    }

    /// Bytes behind what must not be overwritten.
    pub fn open_bytes(&self) -> u64 {
        self.tail.position - self.kept()
    }

    fn kept(&self) -> u64 {
        if self.complete { self.committed.position.min(self.applied.position) } else { self.committed.position }
    }

    /// Where the log would end with one more record of this payload.
    pub fn position_with(&self, payload: usize) -> u64 {
        ring::position_after(self.tail.position, payload, self.capacity)
    }

    /// Appends a record that has been filled with a header and a body.
    #[inline]
    pub fn place(&mut self, header: &Header, record: &Record, ring: &Memory) -> Result<(), LaneFault> {
        self.admit(header, record.payload())?;
        self.write_append(record.payload());
        self.extend(header, ring::place(ring, self.tail.position, record));
        Ok(())
    }

    /// Appends the record that `reader` has just taken from a lane, as it came.
    pub fn append(&mut self, ring: &Memory, header: &Header, payload: &[u8], reader: &Reader) -> Result<(), LaneFault> {
        self.follow(header)?;
        self.admit(header, payload)?;
        self.write_append(payload);
        self.extend(header, ring::place_taken(ring, self.tail.position, payload, reader));
        Ok(())
    }

    /// Appends a record that came some time ago.
    fn append_staged(&mut self, ring: &Memory, header: &Header, payload: &[u8]) -> Result<(), LaneFault> {
        self.follow(header)?;
        let mut record = std::mem::take(&mut self.record);
        record.fill(|bytes| bytes.extend_from_slice(payload));
        let placed = self.place(header, &record, ring);
        self.record = record;
        placed
    }

    /// Somebody else's record is to follow the last one here.
    fn follow(&mut self, header: &Header) -> Result<(), LaneFault> {
        if header.index != self.tail.index.next() {
            return Err(LaneFault::Index { expected: self.tail.index.next(), found: header.index });
        }
        self.supersede();
        Ok(())
    }

    /// There is room for a record, and the group that it brings, if it does, makes sense.
    #[inline]
    fn admit(&mut self, header: &Header, payload: &[u8]) -> Result<(), LaneFault> {
        if self.position_with(payload.len()) - self.kept() > self.capacity {
            return Err(LaneFault::Room);
        }
        if header.kind == Kind::Group {
            let group = Group::decode(&payload[layout::HEADER_BYTES..]).ok_or(LaneFault::Body)?;
            self.groups.push((header.index, group));
            self.group_version += 1;
        }
        Ok(())
    }

    #[inline]
    fn extend(&mut self, header: &Header, end: u64) {
        self.tail = Mark { index: header.last(), position: end };
        self.written = self.written.max(end);
    }

    /// The record at `position`, into `into`: its header, and where the next one begins. `None` when none is there.
    pub fn read(&self, ring: &Memory, position: u64, into: &mut Vec<u8>) -> Option<(Header, u64)> {
        if position >= self.tail.position || !self.retains(position) {
            return None;
        }
        let next = ring::reread(ring, position, into)?;
        let (header, _) = Header::decode(into).ok()?;
        Some((header, next))
    }

    /// Whether an entry ends there, and what follows it here is still here.
    fn has(&mut self, ring: &Memory, at: Mark) -> bool {
        let mut buffer = std::mem::take(&mut self.buffer);
        let next = self.read(ring, at.position, &mut buffer);
        self.buffer = buffer;
        at == self.tail || next.is_some_and(|(header, _)| header.index == at.index.next())
    }

    /// How many records stand behind `position`; `None` if none of them begins there.
    pub fn records_behind(&mut self, ring: &Memory, mut position: u64) -> Option<u32> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut count = 0;
        while let Some((_, next)) = self.read(ring, position, &mut buffer) {
            position = next;
            count += 1;
        }
        self.buffer = buffer;
        (position == self.tail.position).then_some(count)
    }

    /// Replaces everything behind what is committed by `staged`, as accepted under `ballot`. Entries that stand there already stay; when the
    /// machine shows one that goes, it is void.
    pub fn replace(&mut self, ring: &Memory, ballot: u64, staged: &Staged) -> Result<(), LaneFault> {
        let committed = self.committed.index;
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
        let mut same = self.committed;
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
        // They are written down as one, with the number.
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

    /// The log begins anew behind `base`, which is committed, with the group there; what the machine shows ends before it.
    pub fn jump(&mut self, base: Mark, group: Group) {
        invariant!(base.index > self.committed.index, "a jump back from {:?} to {base:?}", self.committed);
        self.void();
        if let Some(journal) = &mut self.journal {
            journal.note_jump(self.committed.index, base, group.clone());
        }
        (self.tail, self.committed, self.floor) = (base, base, base.position);
        self.written = self.written.max(base.position);
        self.groups = vec![(base.index, group)];
        self.group_version += 1;
    }

    fn truncate(&mut self, to: Mark) {
        invariant!(to.index >= self.committed.index, "a committed entry was to be cut off: {to:?}, {:?}", self.committed);
        if self.applied.index > to.index {
            self.cease();
        }
        if to != self.tail {
            self.supersede();
        }
        self.tail = to;
        self.groups.retain(|(index, _)| *index <= to.index);
        self.group_version += 1;
    }

    /// The machine shows everything in the log, which ends at `tail`, since the leader executed it.
    #[inline]
    pub fn note_executed(&mut self, tail: Mark) {
        debug_assert_eq!(tail, self.tail);
        self.applied = tail;
    }

    /// The machine shows more than the log holds, or no longer does. Whatever changes the log from now on voids what it shows.
    pub fn set_beyond(&mut self, beyond: bool) {
        self.beyond = beyond;
    }

    /// Whether it does, and nothing has come between.
    pub fn is_beyond(&self) -> bool {
        self.beyond
    }

    fn supersede(&mut self) {
        if std::mem::take(&mut self.beyond) {
            self.cease();
        }
    }

    fn cease(&mut self) {
        self.complete = false;
        self.breaks += 1;
    }

    /// The machine shows what will never be in the log, or is to be emptied.
    pub fn void(&mut self) {
        self.beyond = false;
        self.cease();
    }

    /// Commits the records up to `index` and applies them, unless the machine shows them already. Returns whether there were any.
    pub fn advance<S: StateMachine>(&mut self, ring: &Memory, machine: &mut S, index: LogIndex) -> bool {
        let mut buffer = std::mem::take(&mut self.buffer);
        let before = (self.committed, self.applied);
        while self.committed.index < index.min(self.tail.index) {
            let record = self.read(ring, self.committed.position, &mut buffer);
            invariant!(record.is_some(), "no record behind {:?}", self.committed);
            let (header, position) = record.expect("just checked");
            let mark = Mark { index: header.last(), position };
            if mark.index > index {
                break;
            }
            if self.complete && self.applied == self.committed {
                apply(&header, &buffer, machine);
                self.applied = mark;
            }
            self.commit_to(mark);
        }
        while self.complete && self.applied.index < self.committed.index {
            let record = self.read(ring, self.applied.position, &mut buffer);
            invariant!(record.is_some(), "no record behind {:?}", self.applied);
            let (header, position) = record.expect("just checked");
            apply(&header, &buffer, machine);
            self.applied = Mark { index: header.last(), position };
        }
        self.buffer = buffer;
        before != (self.committed, self.applied)
    }

    /// Applies the records up to `index`, committed or not. `false`: none ends there.
    pub fn execute<S: StateMachine>(&mut self, ring: &Memory, machine: &mut S, index: LogIndex) -> bool {
        let mut buffer = std::mem::take(&mut self.buffer);
        while self.applied.index < index {
            let record = self.read(ring, self.applied.position, &mut buffer);
            let Some((header, position)) = record.filter(|(header, _)| header.last() <= index) else { break };
            apply(&header, &buffer, machine);
            self.applied = Mark { index: header.last(), position };
        }
        self.buffer = buffer;
        self.applied.index >= index
    }

    /// Commits up to a mark whose records the machine shows already: the way of a leader that executes first.
    #[inline]
    pub fn commit_to(&mut self, mark: Mark) {
        self.committed = mark;
        while self.groups.len() > 1 && self.groups[1].0 <= mark.index {
            self.groups.remove(0);
        }
    }

    /// The machine has been taught everything up to `at`, by somebody whose log holds what was committed under numbers up to `ballot` ([`Log::known_ballot`]), and who
    /// knew `committed` to be committed; `group` goes with it. What stands in the log behind it stays accepted. `false`: it cannot be joined with what stands here,
    /// or makes no sense.
    pub fn learned<S: StateMachine>(
        &mut self,
        ring: &Memory,
        machine: &mut S,
        at: Mark,
        ballot: u64,
        committed: LogIndex,
        group: &Group,
    ) -> bool {
        let last = self.tail.index;
        if at.index <= committed && last <= at.index {
            // Positions grow with the entries.
            if at.index.cmp(&self.committed.index) != at.position.cmp(&self.committed.position) {
                return false;
            }
            (self.tail, self.committed, self.applied, self.floor) = (at, at, at, at.position);
            self.written = self.written.max(at.position);
            self.groups = vec![(at.index, group.clone())];
            self.group_version += 1;
            self.complete = true;
            self.note_taught(ballot);
            self.write_base(ring, true);
            return true;
        }
        // What stands here already may be something else: a leader's own records that nobody else had; and so may what was taught, which a leader shows before it is
        // committed. They are the same where both are known to be committed, where they are the same leader's, and, as far as what was taught is committed, where
        // ours was accepted under a higher number: its leader had to adopt what was committed before.
        let known = at.index <= committed.min(self.committed.index);
        let same_leader = ballot == self.last_ballot && ballot == self.known_ballot();
        let accepted_later = ballot < self.last_ballot && at.index <= committed;
        let same = known || (at.index <= last && (same_leader || accepted_later));
        if !same || !self.has(ring, at) {
            return false;
        }
        self.advance(ring, machine, at.index.min(committed));
        self.applied = at;
        self.complete = true;
        self.advance(ring, machine, self.committed.index);
        true
    }

    /// Shows the numbers to the others.
    pub fn publish(&self, words: &Memory, status: Status) {
        for (at, value) in [
            (words::MIN_PROPOSAL, self.min_proposal),
            (words::LAST_BALLOT, self.last_ballot),
            (words::LAST_INDEX, self.tail.index.0),
            (words::TAIL, self.tail.position),
            (words::COMMITTED, self.committed.index.0),
            (words::COMMITTED_POSITION, self.committed.position),
            (words::FLOOR, self.lowest()),
            (words::STATUS, status as u64),
            (words::EXECUTED, if self.beyond { self.tail.index.0 + 1 } else { self.applied.index.0 }),
            (words::TAUGHT_BALLOT, self.taught_ballot),
            (words::CEILING, self.journal.as_ref().map_or(0, |journal| journal.ceiling())),
        ] {
            words[at].store(value, Ordering::Release);
        }
    }
}

fn apply<S: StateMachine>(header: &Header, payload: &[u8], machine: &mut S) {
    if header.kind == Kind::Commands {
        for (command, index) in layout::commands(&payload[layout::HEADER_BYTES..]).zip(header.index.0..) {
            machine.apply(LogIndex(index), command.expect("checked when it came"));
        }
    }
}
