//! What the logs of all engines have in common: sealed records at absolute positions, how far they are committed and applied, and the groups that they
//! introduce.
//!
//! The records lie in a ring of the owner's public memory, so that others can read them. Nothing is zeroed, and there is no separate recycling: a record is
//! overwritten when the ring comes round to it, which the owner allows once the record is applied here. Positions follow from the records' lengths alone, so
//! they are the same at all replicas that hold the same entries. They never wrap, and are compared as numbers (TRAPS 17).

use martlet_fabric::ring;
use martlet_fabric::{Memory, invariant};

use super::StateMachine;
use super::backlog::{Content, HEADER_BYTES};
use super::group::Group;
use super::record::{self, Header, LaneFault, RecordKind};
use crate::basics::LogIndex;

/// A place between two records: the last entry before it, and where the next record begins (or the filler ahead of it).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    /// The last entry before it.
    pub index: LogIndex,
    /// Where it is.
    pub position: u64,
}

/// The part of a log's owner's side that is the same in all engines. An engine's log contains one, and adds the meaning of its entries.
#[derive(Debug)]
pub struct Entries<K> {
    capacity: u64,
    tail: Mark,
    /// Nothing before this position was ever here.
    floor: u64,
    /// Up to which position anything was ever written. Records that were cut off since count too, because they overwrote the lap before.
    written: u64,
    committed: Mark,
    /// Up to where the machine shows the log, as long as `complete`.
    applied: Mark,
    complete: bool,
    /// The group of the committed prefix, then the groups introduced by entries after it.
    groups: Vec<(LogIndex, Group)>,
    /// How often the group in force may have changed.
    group_version: u64,
    /// How often the machine has stopped showing the state.
    breaks: u64,
    buffer: Vec<u8>,
    kinds: std::marker::PhantomData<K>,
}

impl<K: RecordKind> Entries<K> {
    /// The empty log of a machine in its first state; or, without a group, of a machine that does not hold the state.
    pub fn new(capacity: usize, group: Option<Group>) -> Entries<K> {
        Entries {
            capacity: capacity as u64,
            tail: Mark::default(),
            floor: 0,
            written: 0,
            committed: Mark::default(),
            applied: Mark::default(),
            complete: group.is_some(),
            groups: group.into_iter().map(|group| (LogIndex(0), group)).collect(),
            group_version: 0,
            breaks: 0,
            buffer: Vec::with_capacity(ring::max_payload(capacity)),
            kinds: std::marker::PhantomData,
        }
    }

    /// The end of it.
    #[inline]
    pub fn tail(&self) -> Mark {
        self.tail
    }

    /// What is known to be committed.
    #[inline]
    pub fn committed(&self) -> Mark {
        self.committed
    }

    /// Up to where the machine shows the log, as long as it [is complete](Entries::is_complete).
    #[inline]
    pub fn applied(&self) -> Mark {
        self.applied
    }

    /// Whether the machine shows exactly the entries up to [`Entries::applied`].
    #[inline]
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    /// The ring's size in bytes.
    #[inline]
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// The group in force: that of the last entry that changes it, committed or not.
    pub fn group(&self) -> Option<&Group> {
        self.groups.last().map(|(_, group)| group)
    }

    /// The entry that introduced [`Entries::group`], or, if that is older than the last jump, the entry from which the log restarted.
    pub fn group_since(&self) -> Option<LogIndex> {
        self.groups.last().map(|(index, _)| *index)
    }

    /// As long as it stays the same, so does [`Entries::group`].
    #[inline]
    pub fn group_version(&self) -> u64 {
        self.group_version
    }

    /// The group of the committed prefix, and the entry that introduced it.
    pub fn committed_group(&self) -> Option<&(LogIndex, Group)> {
        self.groups.first()
    }

    /// The group of the committed prefix, then the groups of entries not known to be committed.
    pub fn groups(&self) -> impl Iterator<Item = &Group> {
        self.groups.iter().map(|(_, group)| group)
    }

    /// The group in force after the entry at `index`.
    pub fn group_at(&self, index: LogIndex) -> Option<&Group> {
        self.groups.iter().rev().find(|(changed, _)| *changed <= index).map(|(_, group)| group)
    }

    /// Whether a change of the group is not committed yet.
    pub fn is_group_changing(&self) -> bool {
        self.groups.len() > 1
    }

    /// Counts the times that the machine has stopped showing the state.
    pub fn breaks(&self) -> u64 {
        self.breaks
    }

    /// Whether the record at `position` is still here.
    pub fn retains(&self, position: u64) -> bool {
        position >= self.lowest() && position <= self.tail.position
    }

    /// The lowest position that may still be here.
    pub fn lowest(&self) -> u64 {
        self.floor.max(self.written.saturating_sub(self.capacity))
    }

    /// Up to where the owner allows the log to be overwritten.
    #[inline]
    pub fn kept(&self) -> u64 {
        if self.complete { self.committed.position.min(self.applied.position) } else { self.committed.position }
    }

    /// Where the log would end with one more record of this payload.
    #[inline]
    pub fn position_with(&self, payload: usize) -> u64 {
        ring::position_after(self.tail.position, payload, self.capacity)
    }

    /// Checks that another process's record may follow the last one here.
    ///
    /// # Errors
    /// When it is not the next.
    pub fn follows(&self, header: &Header<K>) -> Result<(), LaneFault<K>> {
        let expected = self.tail.index.next();
        if header.index == expected { Ok(()) } else { Err(LaneFault::Index { expected, found: header.index }) }
    }

    /// Checks that there is room for a record and that the group that it introduces, if any, makes sense. That group is in force from now on.
    ///
    /// # Errors
    /// When there is no room, or the group makes no sense.
    #[inline]
    pub fn admit(&mut self, header: &Header<K>, payload: &[u8]) -> Result<(), LaneFault<K>> {
        if self.position_with(payload.len()) - self.kept() > self.capacity {
            return Err(LaneFault::Room);
        }
        if header.kind.content() == Some(Content::Group) {
            let group = Group::decode(&payload[HEADER_BYTES..]).ok_or(LaneFault::Body)?;
            self.groups.push((header.index, group));
            self.group_version += 1;
        }
        Ok(())
    }

    /// A record that has been [admitted](Entries::admit) is now in the ring, and ends at `end`.
    #[inline]
    pub fn extend(&mut self, header: &Header<K>, end: u64) {
        self.tail = Mark { index: header.last(), position: end };
        self.written = self.written.max(end);
    }

    /// The record at `position`, into `into`: its header, and where the next one begins. `None` when none is there.
    pub fn read(&self, ring: &Memory, position: u64, into: &mut Vec<u8>) -> Option<(Header<K>, u64)> {
        if position >= self.tail.position || !self.retains(position) {
            return None;
        }
        let next = ring::reread(ring, position, into)?;
        let (header, _) = Header::decode(into).ok()?;
        Some((header, next))
    }

    /// Whether an entry ends there, and everything after it is still in the ring.
    pub fn has(&mut self, ring: &Memory, at: Mark) -> bool {
        let mut buffer = std::mem::take(&mut self.buffer);
        let next = self.read(ring, at.position, &mut buffer);
        self.buffer = buffer;
        at == self.tail || next.is_some_and(|(header, _)| header.index == at.index.next())
    }

    /// Calls `with` for each record from `position` on, in order, with its header, its payload and where it ends. Returns where that ended: at the tail, if a
    /// record begins at `position`.
    pub fn each_from(&mut self, ring: &Memory, mut position: u64, mut with: impl FnMut(Header<K>, &[u8], Mark)) -> u64 {
        let mut buffer = std::mem::take(&mut self.buffer);
        while let Some((header, next)) = self.read(ring, position, &mut buffer) {
            position = next;
            with(header, &buffer, Mark { index: header.last(), position });
        }
        self.buffer = buffer;
        position
    }

    /// Cuts the log off at `to`, which is before its present end and not before the committed prefix. If the machine shows something of what is cut off, its
    /// state is void.
    pub fn cut_behind(&mut self, to: Mark) {
        invariant!(to.index >= self.committed.index, "a committed entry was to be cut off: {to:?}, {:?}", self.committed);
        if self.applied.index > to.index {
            self.void();
        }
        self.tail = to;
        self.groups.retain(|(index, _)| *index <= to.index);
        self.group_version += 1;
    }

    /// Restarts the log after `base`, which is committed, with the group there. The machine is not affected.
    pub fn jump_to(&mut self, base: Mark, group: Group) {
        (self.tail, self.committed, self.floor) = (base, base, base.position);
        self.written = self.written.max(base.position);
        self.groups = vec![(base.index, group)];
        self.group_version += 1;
    }

    /// Restarts the log after `base`, which is committed; the machine shows everything before it.
    pub fn begin_anew(&mut self, base: Mark, group: Group) {
        self.jump_to(base, group);
        self.show(base);
    }

    /// From now on the machine shows everything up to `at`, and nothing else.
    pub fn show(&mut self, at: Mark) {
        (self.applied, self.complete) = (at, true);
    }

    /// The machine shows everything in the log, because the leader executed it.
    #[inline]
    pub fn note_executed(&mut self) {
        self.applied = self.tail;
    }

    /// The machine shows something that will never be in the log, has missed something that was, or is about to be emptied. If it showed the state until now,
    /// this counts as one more break.
    pub fn void(&mut self) {
        self.breaks += u64::from(std::mem::replace(&mut self.complete, false));
    }

    /// Commits the records up to `index` and applies them, unless the machine shows them already. Returns whether there were any.
    pub fn advance<S: StateMachine>(&mut self, ring: &Memory, machine: &mut S, index: LogIndex) -> bool {
        let mut buffer = std::mem::take(&mut self.buffer);
        let before = (self.committed, self.applied);
        while self.committed.index < index.min(self.tail.index) {
            let (header, mark) = self.record_behind(ring, self.committed, &mut buffer);
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
            let (header, mark) = self.record_behind(ring, self.applied, &mut buffer);
            apply(&header, &buffer, machine);
            self.applied = mark;
        }
        self.buffer = buffer;
        before != (self.committed, self.applied)
    }

    /// The record after `at`, which is here, and where it ends.
    fn record_behind(&self, ring: &Memory, at: Mark, into: &mut Vec<u8>) -> (Header<K>, Mark) {
        let record = self.read(ring, at.position, into);
        invariant!(record.is_some(), "no record behind {at:?}");
        let (header, position) = record.expect("just checked");
        (header, Mark { index: header.last(), position })
    }

    /// Commits the records up to `index`, whose effects the machine shows.
    pub fn commit_shown(&mut self, ring: &Memory, index: LogIndex) {
        let complete = std::mem::replace(&mut self.complete, false);
        self.advance(ring, &mut super::NoState, index);
        self.complete = complete;
    }

    /// Applies the records up to `index`, committed or not. `false`: no record ends there.
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

    /// Commits up to a mark whose records the machine shows already, as in a leader that executes first.
    #[inline]
    pub fn commit_to(&mut self, mark: Mark) {
        self.committed = mark;
        while self.groups.len() > 1 && self.groups[1].0 <= mark.index {
            self.groups.remove(0);
        }
    }
}

/// Has the machine apply the commands of a record.
pub fn apply<K: RecordKind, S: StateMachine>(header: &Header<K>, payload: &[u8], machine: &mut S) {
    if header.kind.content() == Some(Content::Commands) {
        for (command, index) in record::commands::<K>(&payload[HEADER_BYTES..]).zip(header.index.0..) {
            machine.apply(LogIndex(index), command.expect("checked when it came"));
        }
    }
}
