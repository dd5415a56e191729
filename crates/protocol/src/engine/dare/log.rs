//! A server's log (DARE section 3.1.1): entries at absolute positions, and its four pointers.
//!
//! The records lie in a ring of the owner's public memory. Positions follow from the records' lengths alone, so they are the same in all logs that hold the same
//! entries; they never wrap, and pointers are compared as numbers (TRAPS 17). Beside the entries the owner keeps the *runs* of equal terms among them: two logs that have
//! an entry of the same term and index have everything before it in common (log matching, section 4.1), so runs are all that it takes to find where two logs part.

use std::collections::VecDeque;

use martlet_fabric::ring::{self, Reader, Record};
use martlet_fabric::{Memory, invariant};

use crate::basics::LogIndex;
use crate::replica::StateMachine;
use crate::replica::backlog::{self, HEADER_BYTES};
use crate::replica::group::Group;

use super::layout::{self, Determinants, Header, Kind, LaneFault, MAX_RUNS};

/// A place between two records: the last entry before it, and where the next record begins (or the filler ahead of it).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    /// The last entry before it.
    pub index: LogIndex,
    /// Where it is.
    pub position: u64,
}

/// Entries of one term that follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Their term.
    pub term: u64,
    /// The first of them.
    pub first: LogIndex,
    /// Where that begins.
    pub position: u64,
}

/// The owner's side of its log.
#[derive(Debug)]
pub struct Log {
    capacity: u64,
    tail: Mark,
    /// Before this position nothing is needed by anybody: as of the last committed HEAD entry.
    head: u64,
    /// HEAD entries that are not known to be committed, and the heads that they bring.
    heads: VecDeque<(LogIndex, u64)>,
    /// Nothing before this position was ever here.
    floor: u64,
    /// Up to which position anything was ever written: what was cut off has overwritten the lap before it all the same.
    written: u64,
    committed: Mark,
    /// What the machine shows, as long as `complete`.
    applied: Mark,
    complete: bool,
    /// The runs of what is still here, and of the entry before that.
    runs: VecDeque<Run>,
    /// The group of the committed prefix, and those of entries behind it.
    groups: Vec<(LogIndex, Group)>,
    /// How often the group in force may have changed.
    group_version: u64,
    /// How often the machine has ceased to show what it showed.
    breaks: u64,
    buffer: Vec<u8>,
}

impl Log {
    /// The empty log of a machine in its first state, or with no group of one that has to recover.
    pub fn new(capacity: usize, group: Option<Group>) -> Log {
        Log {
            capacity: capacity as u64,
            tail: Mark::default(),
            head: 0,
            heads: VecDeque::new(),
            floor: 0,
            written: 0,
            committed: Mark::default(),
            applied: Mark::default(),
            complete: group.is_some(),
            runs: VecDeque::new(),
            groups: group.into_iter().map(|group| (LogIndex(0), group)).collect(),
            group_version: 0,
            breaks: 0,
            buffer: Vec::with_capacity(ring::max_payload(capacity)),
        }
    }

    /// The log of a machine that shows everything up to `mark`, an entry of `term`, of a group that begins there.
    pub fn behind(capacity: usize, group: Group, mark: Mark, term: u64) -> Log {
        let mut log = Log::new(capacity, None);
        log.begin_anew(mark, term, group);
        log.complete = true;
        log
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

    /// What the machine shows, as long as it [is complete](Log::is_complete).
    pub fn applied(&self) -> Mark {
        self.applied
    }

    /// Before this position nothing is needed by anybody.
    pub fn head(&self) -> u64 {
        self.head
    }

    /// Whether the machine shows exactly the entries up to [`Log::applied`].
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    /// The term of the last entry; 0 if there is none.
    pub fn last_term(&self) -> u64 {
        self.runs.back().map_or(0, |run| run.term)
    }

    /// The term of an entry that is still here, or of the one before those.
    pub fn term_at(&self, index: LogIndex) -> Option<u64> {
        if index == LogIndex(0) {
            return Some(0);
        }
        let run = self.runs.iter().rev().find(|run| run.first <= index)?;
        (index <= self.tail.index).then_some(run.term)
    }

    /// The group in force: that of the last entry which changes it, committed or not (DARE section 3.4).
    pub fn group(&self) -> Option<&Group> {
        self.groups.last().map(|(_, group)| group)
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

    /// The group of what is committed, and the entry that brought it.
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

    /// Nobody needs anything before `to`, as a leader has found.
    pub fn raise_head(&mut self, to: u64) {
        self.head = self.head.max(to);
    }

    /// Whether a HEAD entry is not committed yet.
    pub fn is_head_moving(&self) -> bool {
        !self.heads.is_empty()
    }

    /// Counts the times that the machine has ceased to show what it showed.
    pub fn breaks(&self) -> u64 {
        self.breaks
    }

    /// Whether the record at `position` is still here.
    pub fn retains(&self, position: u64) -> bool {
        position >= self.floor.max(self.written.saturating_sub(self.capacity)) && position <= self.tail.position
    }

    /// Up to where the log may be overwritten, as far as its owner is concerned: the apply pointer of a machine that shows the state.
    pub fn kept(&self) -> u64 {
        if self.complete { self.committed.position.min(self.applied.position) } else { self.committed.position }
    }

    /// The ring's size in bytes.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Bytes from the head on, with one more record of this payload.
    pub fn bytes_with(&self, payload: usize) -> u64 {
        ring::position_after(self.tail.position, payload, self.capacity) - self.head
    }

    /// The header of the next entry, of this term.
    pub fn next_header(&self, kind: Kind, count: u32, term: u64) -> Header {
        Header { kind, count, term, index: self.tail.index.next(), beside: self.last_term() }
    }

    /// Appends an entry of ours, which has been filled with a header and a body.
    pub fn place(&mut self, header: &Header, record: &Record, ring: &Memory) -> Result<(), LaneFault> {
        self.admit(header, record.payload())?;
        self.extend(header, ring::place(ring, self.tail.position, record));
        Ok(())
    }

    /// Appends the entry that `reader` has just taken from a lane, as it came.
    pub fn append(&mut self, ring: &Memory, header: &Header, payload: &[u8], reader: &Reader) -> Result<(), LaneFault> {
        if header.index != self.tail.index.next() {
            return Err(LaneFault::Index { expected: self.tail.index.next(), found: header.index });
        }
        if header.beside != self.last_term() || header.term < self.last_term() {
            return Err(LaneFault::Follows { expected: self.last_term(), found: header.beside });
        }
        self.admit(header, payload)?;
        self.extend(header, ring::place_taken(ring, self.tail.position, payload, reader));
        Ok(())
    }

    /// There is room for a record, and what it brings makes sense.
    fn admit(&mut self, header: &Header, payload: &[u8]) -> Result<(), LaneFault> {
        if ring::position_after(self.tail.position, payload.len(), self.capacity) - self.kept() > self.capacity {
            return Err(LaneFault::Room);
        }
        let body = &payload[HEADER_BYTES..];
        match header.kind {
            Kind::Group => {
                self.groups.push((header.index, Group::decode(body).ok_or(LaneFault::Body)?));
                self.group_version += 1;
            }
            Kind::Head => {
                let (head, _) = layout::split_position(body)?;
                if head > self.tail.position {
                    return Err(LaneFault::Body);
                }
                self.heads.push_back((header.index, head));
            }
            _ => {}
        }
        Ok(())
    }

    fn extend(&mut self, header: &Header, end: u64) {
        if header.term != self.last_term() {
            self.runs.push_back(Run { term: header.term, first: header.index, position: self.tail.position });
        }
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

    /// The ends of the records that are not known to be committed.
    pub fn open(&mut self, ring: &Memory) -> VecDeque<Mark> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let (mut open, mut position) = (VecDeque::with_capacity(1024), self.committed.position);
        while let Some((header, next)) = self.read(ring, position, &mut buffer) {
            position = next;
            open.push_back(Mark { index: header.last(), position });
        }
        self.buffer = buffer;
        open
    }

    /// Cuts off what stands behind `to` (DARE section 3.3.1). When the machine shows something of that, it is void.
    ///
    /// # Errors
    /// When no entry ends there, or what is cut off is known to be committed.
    pub fn cut(&mut self, ring: &Memory, to: Mark) -> Result<(), LaneFault> {
        if to.index < self.committed.index || to.index > self.tail.index || !self.has(ring, to) {
            return Err(LaneFault::Cut(to.position));
        }
        if self.applied.index > to.index {
            self.void();
        }
        self.tail = to;
        self.runs.truncate(self.runs.partition_point(|run| run.first <= to.index));
        self.heads.retain(|(index, _)| *index <= to.index);
        self.groups.retain(|(index, _)| *index <= to.index);
        self.group_version += 1;
        Ok(())
    }

    /// The machine shows everything in the log, which ends at `tail`, since the leader executed it.
    #[inline]
    pub fn note_executed(&mut self) {
        self.applied = self.tail;
    }

    /// The machine shows what is not in the log, or has missed what was: it has to be recovered.
    pub fn void(&mut self) {
        self.breaks += u64::from(std::mem::replace(&mut self.complete, false));
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

    /// Commits up to a mark whose records the machine shows already: the way of a leader that executes first.
    #[inline]
    pub fn commit_to(&mut self, mark: Mark) {
        self.committed = mark;
        while self.groups.len() > 1 && self.groups[1].0 <= mark.index {
            self.groups.remove(0);
        }
        while let Some((_, head)) = self.heads.front().copied().filter(|(index, _)| *index <= mark.index) {
            self.heads.pop_front();
            self.head = self.head.max(head);
            while self.runs.len() > 1 && self.runs[1].position <= self.head {
                self.runs.pop_front();
            }
        }
    }

    /// The machine has recovered the state as of `at`, an entry of `term`, which is committed; `group` goes with it. The log goes on from what it has, where it has that
    /// entry, and begins anew behind it elsewhere: whatever stands here instead follows what was never committed. `false`: it is too far back.
    pub fn join<S: StateMachine>(&mut self, ring: &Memory, machine: &mut S, at: Mark, term: u64, group: &Group) -> bool {
        if at.index <= self.tail.index && self.retains(at.position) && self.term_at(at.index) == Some(term) && self.has(ring, at) {
            // Without applying: the machine shows it.
            self.complete = false;
            self.advance(ring, machine, at.index);
            (self.applied, self.complete) = (at, true);
            self.advance(ring, machine, self.committed.index);
            return true;
        }
        // Positions grow with the entries.
        if at.index < self.committed.index || at.position < self.committed.position {
            return false;
        }
        self.begin_anew(at, term, group.clone());
        self.complete = true;
        true
    }

    fn begin_anew(&mut self, at: Mark, term: u64, group: Group) {
        (self.tail, self.committed, self.applied) = (at, at, at);
        (self.floor, self.head) = (at.position, at.position);
        self.written = self.written.max(at.position);
        self.runs.clear();
        self.heads.clear();
        if at.index > LogIndex(0) {
            self.runs.push_back(Run { term, first: at.index, position: at.position });
        }
        self.groups = vec![(at.index, group)];
        self.group_version += 1;
    }

    /// What a leader has to know of this log; `None` when there are more runs than fit.
    pub fn determinants(&self, grant: u64) -> Option<Determinants> {
        let base = self.committed;
        let runs = self.runs.iter().enumerate().filter_map(|(at, run)| {
            let end = self.runs.get(at + 1).map_or(self.tail.index.0 + 1, |next| next.first.0);
            // The part of it behind what is committed.
            let behind = if run.first > base.index { *run } else { Run { first: base.index.next(), position: base.position, ..*run } };
            (end > base.index.next().0).then_some(behind)
        });
        let runs: Vec<Run> = runs.collect();
        let base_term = self.term_at(base.index).unwrap_or(0);
        let (applied, kept, complete) = (self.applied.index, self.kept(), self.complete);
        (runs.len() <= MAX_RUNS).then_some(Determinants { grant, tail: self.tail, base, base_term, applied, kept, complete, runs })
    }

    /// The last entry of a term that is here, and where it ends.
    fn end_of(&self, term: u64) -> Option<Mark> {
        let at = self.runs.iter().position(|run| run.term == term)?;
        Some(match self.runs.get(at + 1) {
            Some(next) => Mark { index: LogIndex(next.first.0 - 1), position: next.position },
            None => self.tail,
        })
    }

    /// The last entry that another log has in common with this one, as its determinants tell: where that log is to be cut off. What is known to be committed there is in
    /// the log of any leader; `None`: it is not, or what follows it is no longer here.
    pub fn last_in_common(&self, theirs: &Determinants) -> Option<Mark> {
        let ends = theirs.runs.iter().skip(1).map(|next| Mark { index: LogIndex(next.first.0 - 1), position: next.position });
        let ends: Vec<Mark> = ends.chain([theirs.tail]).collect();
        let shared = theirs.runs.iter().zip(ends).rev().find_map(|(run, end)| {
            let ours = self.end_of(run.term)?;
            let common = if ours.index < end.index { ours } else { end };
            (common.index >= run.first).then_some(common)
        });
        let common = shared.unwrap_or(theirs.base);
        (common.index <= self.tail.index && self.retains(common.position)).then_some(common)
    }
}

fn apply<S: StateMachine>(header: &Header, payload: &[u8], machine: &mut S) {
    if header.kind == Kind::Commands {
        for (command, index) in backlog::commands(&payload[HEADER_BYTES..]).zip(header.index.0..) {
            machine.apply(LogIndex(index), command.expect("checked when it came"));
        }
    }
}

#[cfg(test)]
mod tests {
    use martlet_fabric::primitive::AtomicU64;

    use super::*;
    use crate::replica::NoState;

    const BYTES: usize = 2048;

    /// A log in a ring that it wraps around often, with the terms of its entries.
    #[derive(Debug)]
    struct Server {
        log: Log,
        ring: Vec<AtomicU64>,
        terms: Vec<u64>,
    }

    impl Server {
        fn new() -> Server {
            let group = Group::new(vec![crate::basics::ProcessId::default()]);
            let ring = (0..ring::lane_bytes(BYTES) / 8).map(|_| AtomicU64::new(0)).collect();
            Server { log: Log::new(BYTES, Some(group)), ring, terms: Vec::new() }
        }

        fn append(&mut self, term: u64, len: usize) {
            let header = self.log.next_header(Kind::Commands, 1, term);
            let mut record = Record::default();
            record.fill(|bytes| {
                bytes.extend_from_slice(&header.bytes());
                bytes.extend_from_slice(&(len as u32).to_le_bytes());
                bytes.extend(std::iter::repeat_n(term as u8, len));
            });
            self.log.place(&header, &record, &self.ring).expect("there is room");
            self.terms.push(term);
        }

        fn commit(&mut self, index: u64) {
            self.log.advance(&self.ring, &mut NoState, LogIndex(index));
        }

        fn mark(&self, index: u64) -> Mark {
            let (mut buffer, mut mark) = (Vec::new(), self.log.committed());
            while mark.index.0 < index {
                let (header, position) = self.log.read(&self.ring, mark.position, &mut buffer).expect("it is here");
                mark = Mark { index: header.last(), position };
            }
            mark
        }
    }

    /// How many entries two logs have in common.
    fn common(a: &Server, b: &Server) -> u64 {
        a.terms.iter().zip(&b.terms).take_while(|(a, b)| a == b).count() as u64
    }

    /// A log is one that leaders can have written: each took the log that it had, cut others' where they parted from it, and wrote some of its own entries behind.
    #[test]
    fn dare_3_3_1_what_two_logs_have_in_common_is_found_by_runs_of_terms() {
        let mut found = [0u32; 6];
        for seed in 0..300 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut servers: Vec<Server> = (0..4).map(|_| Server::new()).collect();
            let len = |term: u64, index: usize| (term as usize * 7 + index * 5) % 60;
            for term in 1..=12u64 {
                let leader = rng.usize(..servers.len());
                for _ in 0..rng.u8(..4) {
                    let index = servers[leader].terms.len();
                    servers[leader].append(term, len(term, index));
                }
                for other in 0..servers.len() {
                    if other == leader || rng.bool() {
                        continue;
                    }
                    let determinants = servers[other].log.determinants(term).expect("there are few runs");
                    let expected = common(&servers[leader], &servers[other]);
                    let to = servers[leader].log.last_in_common(&determinants).expect("all of it is here");
                    assert_eq!(
                        to.index.0, expected,
                        "seed {seed}, term {term}: {:?} and {:?}",
                        servers[leader].terms, servers[other].terms
                    );
                    assert_eq!(to, servers[leader].mark(expected));
                    found[(servers[other].terms.len() as u64 - expected).min(5) as usize] += 1;
                    let upto = rng.usize(expected as usize..=servers[leader].terms.len());
                    let news: Vec<u64> = servers[leader].terms[expected as usize..upto].to_vec();
                    let Server { log, ring, terms } = &mut servers[other];
                    log.cut(ring, to).expect("an entry ends there");
                    terms.truncate(expected as usize);
                    for term in news {
                        let index = servers[other].terms.len();
                        servers[other].append(term, len(term, index));
                    }
                    assert_eq!(servers[other].log.last_term(), servers[other].terms.last().copied().unwrap_or(0));
                }
                // What all have is committed at some, as lazily as that is told.
                let all = (1..servers.len()).map(|other| common(&servers[0], &servers[other])).min().unwrap_or(0);
                for server in servers.iter_mut().filter(|_| rng.bool()) {
                    server.commit(all);
                }
            }
        }
        assert!(found.iter().all(|times| *times > 50), "as many entries were cut off: {found:?}");
    }

    #[test]
    fn trap_17_positions_are_compared_as_numbers_across_many_laps() {
        let mut server = Server::new();
        for index in 1..=1000u64 {
            server.append(1 + index / 100, (index % 40) as usize);
            server.commit(index);
            assert!(server.log.tail().position > server.log.committed().position.saturating_sub(1));
            assert_eq!(server.log.term_at(LogIndex(index)), Some(1 + index / 100));
        }
        assert!(server.log.tail().position > 20 * BYTES as u64);
        assert!(!server.log.retains(0) && server.log.retains(server.log.tail().position));
        let determinants = server.log.determinants(1).expect("there is none");
        assert_eq!((determinants.runs.len(), determinants.base), (0, server.log.tail()));
    }

    #[test]
    fn what_is_committed_is_never_cut_off_and_nothing_between_two_entries() {
        let mut server = Server::new();
        (0..4).for_each(|_| server.append(1, 20));
        server.commit(2);
        let (first, third) = (Mark { index: LogIndex(1), position: server.mark(4).position / 4 }, server.mark(3));
        let Server { log, ring, .. } = &mut server;
        assert_eq!(log.cut(ring, first), Err(LaneFault::Cut(first.position)));
        assert_eq!(log.cut(ring, Mark { position: third.position + 16, ..third }), Err(LaneFault::Cut(third.position + 16)));
        assert_eq!(log.cut(ring, third), Ok(()));
        assert!(log.is_complete() && log.tail() == third, "the machine shows nothing of what went");
    }

    #[test]
    fn a_machine_that_shows_what_is_cut_off_shows_the_state_no_longer() {
        let mut server = Server::new();
        (0..3).for_each(|_| server.append(1, 20));
        server.commit(1);
        let to = server.mark(2);
        server.log.note_executed();
        let breaks = server.log.breaks();
        let Server { log, ring, .. } = &mut server;
        log.cut(ring, to).expect("an entry ends there");
        assert!(!log.is_complete() && log.breaks() == breaks + 1);
    }

    #[test]
    fn dare_3_4_a_log_goes_on_from_a_state_that_it_has_the_entry_of_and_begins_anew_elsewhere() {
        let group = Group::new(vec![crate::basics::ProcessId::default()]);
        let mut server = Server::new();
        (0..6).for_each(|_| server.append(2, 20));
        server.commit(2);
        let (third, sixth) = (server.mark(3), server.mark(6));
        server.log.void();
        let Server { log, ring, .. } = &mut server;
        assert!(log.join(ring, &mut NoState, third, 2, &group), "the same entry");
        assert_eq!((log.tail(), log.committed(), log.applied()), (sixth, third, third));
        log.void();
        assert!(log.join(ring, &mut NoState, third, 2, &group) && log.tail() == sixth, "nothing is lost by that");
        log.void();
        // Of another term: what stands here from there on was never committed.
        let fifth = Mark { index: LogIndex(5), position: third.position + 160 };
        assert!(log.join(ring, &mut NoState, fifth, 3, &group));
        assert_eq!((log.tail(), log.committed(), log.last_term()), (fifth, fifth, 3));
        assert!(!log.join(ring, &mut NoState, Mark { index: LogIndex(1), position: 80 }, 2, &group), "too far back");
    }

    #[test]
    fn dare_3_3_2_the_head_moves_when_its_entry_is_committed() {
        let mut server = Server::new();
        server.append(1, 20);
        let head = server.log.tail().position;
        let header = server.log.next_header(Kind::Head, 1, 1);
        let mut record = Record::default();
        record.fill(|bytes| {
            bytes.extend_from_slice(&header.bytes());
            bytes.extend_from_slice(&head.to_le_bytes());
        });
        server.log.place(&header, &record, &server.ring).expect("there is room");
        assert_eq!((server.log.head(), server.log.is_head_moving()), (0, true));
        server.commit(1);
        assert_eq!(server.log.head(), 0);
        server.commit(2);
        assert_eq!((server.log.head(), server.log.is_head_moving()), (head, false));
    }
}
