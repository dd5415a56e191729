//! A server's log (DARE section 3.1.1): entries at absolute positions, and its four pointers.
//!
//! [`Entries`] has what the logs of all engines share. Besides the entries, the owner keeps the *runs* of equal terms among them. Two logs that have an entry
//! of the same term and index have everything before it in common (log matching, section 4.1), so the runs are enough to find where two logs diverge.

use std::collections::VecDeque;
use std::ops::Deref;

use martlet_fabric::Memory;
use martlet_fabric::ring::{self, Reader, Record};

use crate::basics::LogIndex;
use crate::replica::StateMachine;
use crate::replica::backlog::HEADER_BYTES;
use crate::replica::entries::Entries;
use crate::replica::group::Group;

use super::layout::{self, Determinants, Header, Kind, LaneFault, MAX_RUNS};

pub use crate::replica::entries::Mark;

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

/// A state that was recovered, and what it shows.
#[derive(Clone, Copy, Debug)]
pub struct Shown<'a> {
    /// The last entry that it shows.
    pub at: Mark,
    /// The term of that.
    pub term: u64,
    /// The group there.
    pub group: &'a Group,
    /// Whether that entry is known to be committed.
    pub is_committed: bool,
}

/// The owner's side of its log.
#[derive(Debug)]
pub struct Log {
    entries: Entries<Kind>,
    /// No server needs anything before this position, according to the last committed HEAD entry.
    head: u64,
    /// HEAD entries that are not known to be committed, and the heads that they set.
    heads: VecDeque<(LogIndex, u64)>,
    /// The runs of the entries that are still here, and of the one before them.
    runs: VecDeque<Run>,
}

/// What is asked of any log.
impl Deref for Log {
    type Target = Entries<Kind>;

    #[inline]
    fn deref(&self) -> &Entries<Kind> {
        &self.entries
    }
}

impl Log {
    /// The empty log of a machine in its first state; or, without a group, of a machine that has to recover.
    pub fn new(capacity: usize, group: Option<Group>) -> Log {
        Log { entries: Entries::new(capacity, group), head: 0, heads: VecDeque::new(), runs: VecDeque::new() }
    }

    /// The log of a machine that shows everything up to `mark`, an entry of `term`; its group begins there.
    pub fn behind(capacity: usize, group: Group, mark: Mark, term: u64) -> Log {
        let mut log = Log::new(capacity, None);
        log.begin_anew(mark, term, group);
        log
    }

    /// No server needs anything before this position.
    pub fn head(&self) -> u64 {
        self.head
    }

    /// The term of the last entry; 0 if there is none.
    pub fn last_term(&self) -> u64 {
        self.runs.back().map_or(0, |run| run.term)
    }

    /// The term of an entry that is still here, or of the one before them.
    pub fn term_at(&self, index: LogIndex) -> Option<u64> {
        if index == LogIndex(0) {
            return Some(0);
        }
        let run = self.runs.iter().rev().find(|run| run.first <= index)?;
        (index <= self.tail().index).then_some(run.term)
    }

    /// A leader has found that no server needs anything before `to`.
    pub fn raise_head(&mut self, to: u64) {
        self.head = self.head.max(to);
    }

    /// Whether a HEAD entry is not committed yet.
    pub fn is_head_moving(&self) -> bool {
        !self.heads.is_empty()
    }

    /// The bytes from the head on, including one more record of this payload.
    pub fn bytes_with(&self, payload: usize) -> u64 {
        self.position_with(payload) - self.head
    }

    /// The header of the next entry, of this term.
    pub fn next_header(&self, kind: Kind, count: u32, term: u64) -> Header {
        Header { kind, count, number: term, index: self.tail().index.next(), beside: self.last_term() }
    }

    /// Appends one of this server's own entries, which has been filled with a header and a body.
    pub fn place(&mut self, header: &Header, record: &Record, ring: &Memory) -> Result<(), LaneFault> {
        self.admit(header, record.payload())?;
        self.extend(header, ring::place(ring, self.tail().position, record));
        Ok(())
    }

    /// Appends the entry that `reader` has just taken from a lane, as it came.
    pub fn append(&mut self, ring: &Memory, header: &Header, payload: &[u8], reader: &Reader) -> Result<(), LaneFault> {
        self.follows(header)?;
        if header.beside != self.last_term() || header.number < self.last_term() {
            return Err(LaneFault::Follows { expected: self.last_term(), found: header.beside });
        }
        self.admit(header, payload)?;
        self.extend(header, ring::place_taken(ring, self.tail().position, payload, reader));
        Ok(())
    }

    /// Checks that there is room for a record, and that its content makes sense.
    fn admit(&mut self, header: &Header, payload: &[u8]) -> Result<(), LaneFault> {
        self.entries.admit(header, payload)?;
        if header.kind == Kind::Head {
            let (head, _) = layout::split_position(&payload[HEADER_BYTES..])?;
            if head > self.tail().position {
                return Err(LaneFault::Body);
            }
            self.heads.push_back((header.index, head));
        }
        Ok(())
    }

    fn extend(&mut self, header: &Header, end: u64) {
        if header.number != self.last_term() {
            self.runs.push_back(Run { term: header.number, first: header.index, position: self.tail().position });
        }
        self.entries.extend(header, end);
    }

    /// The ends of the records that are not known to be committed.
    pub fn open(&mut self, ring: &Memory) -> VecDeque<Mark> {
        let (mut open, from) = (VecDeque::with_capacity(1024), self.committed().position);
        self.entries.each_from(ring, from, |_, _, end| open.push_back(end));
        open
    }

    /// Cuts off everything after `to` (DARE section 3.3.1). If the machine shows some of that, its state is void.
    ///
    /// # Errors
    /// When no entry ends there, or what is cut off is known to be committed.
    pub fn cut(&mut self, ring: &Memory, to: Mark) -> Result<(), LaneFault> {
        if to.index < self.committed().index || to.index > self.tail().index || !self.entries.has(ring, to) {
            return Err(LaneFault::Cut(to.position));
        }
        self.entries.cut_behind(to);
        self.runs.truncate(self.runs.partition_point(|run| run.first <= to.index));
        self.heads.retain(|(index, _)| *index <= to.index);
        Ok(())
    }

    /// The machine shows everything in the log, because the leader executed it.
    #[inline]
    pub fn note_executed(&mut self) {
        self.entries.note_executed();
    }

    /// The machine shows something that is not in the log, or has missed something that was: it has to be recovered.
    pub fn void(&mut self) {
        self.entries.void();
    }

    /// See [`Entries::advance`].
    pub fn advance<S: StateMachine>(&mut self, ring: &Memory, machine: &mut S, index: LogIndex) -> bool {
        let moved = self.entries.advance(ring, machine, index);
        self.move_head();
        moved
    }

    /// See [`Entries::commit_to`].
    #[inline]
    pub fn commit_to(&mut self, mark: Mark) {
        self.entries.commit_to(mark);
        self.move_head();
    }

    /// Sets the head from the last committed HEAD entry.
    fn move_head(&mut self) {
        let committed = self.committed().index;
        while let Some((_, head)) = self.heads.front().copied().filter(|(index, _)| *index <= committed) {
            self.heads.pop_front();
            self.head = self.head.max(head);
            while self.runs.len() > 1 && self.runs[1].position <= self.head {
                self.runs.pop_front();
            }
        }
    }

    /// Whether this very entry is here, and everything after it.
    fn has(&mut self, ring: &Memory, shown: &Shown<'_>) -> bool {
        let at = shown.at;
        let is_here = at.index <= self.tail().index && self.retains(at.position) && self.term_at(at.index) == Some(shown.term);
        is_here && self.entries.has(ring, at)
    }

    /// Whether the log can continue from a recovered state: from its own copy of that entry, committed or not, or by restarting after a committed entry.
    pub fn can_join(&mut self, ring: &Memory, shown: &Shown<'_>) -> bool {
        let (at, own) = (shown.at, self.committed());
        // Positions grow with the entries.
        self.has(ring, shown) || (shown.is_committed && at.index >= own.index && at.position >= own.position)
    }

    /// The machine has recovered this state. If the log has that entry, it continues with what it has. Otherwise it restarts after that entry, because whatever
    /// is here instead follows something that was never committed. `false`: it [can do neither](Log::can_join).
    ///
    /// An entry that is in this log need not be committed. A leader that executes first shows uncommitted entries, and possibly nothing can be committed before
    /// others hold the state.
    pub fn join<S: StateMachine>(&mut self, ring: &Memory, machine: &mut S, shown: &Shown<'_>) -> bool {
        if !self.can_join(ring, shown) {
            return false;
        }
        if self.has(ring, shown) {
            if shown.is_committed {
                self.entries.commit_shown(ring, shown.at.index);
            }
            self.entries.show(shown.at);
            self.advance(ring, machine, self.committed().index);
        } else {
            self.begin_anew(shown.at, shown.term, shown.group.clone());
        }
        true
    }

    fn begin_anew(&mut self, at: Mark, term: u64, group: Group) {
        self.entries.begin_anew(at, group);
        self.head = at.position;
        self.runs.clear();
        self.heads.clear();
        if at.index > LogIndex(0) {
            self.runs.push_back(Run { term, first: at.index, position: at.position });
        }
    }

    /// What a leader has to know of this log; `None` when there are too many runs.
    pub fn determinants(&self, grant: u64) -> Option<Determinants> {
        let base = self.committed();
        let runs = self.runs.iter().enumerate().filter_map(|(at, run)| {
            let end = self.runs.get(at + 1).map_or(self.tail().index.0 + 1, |next| next.first.0);
            // The part of it behind what is committed.
            let behind = if run.first > base.index { *run } else { Run { first: base.index.next(), position: base.position, ..*run } };
            (end > base.index.next().0).then_some(behind)
        });
        let runs: Vec<Run> = runs.collect();
        let base_term = self.term_at(base.index).unwrap_or(0);
        let (applied, kept, complete) = (self.applied().index, self.kept(), self.is_complete());
        (runs.len() <= MAX_RUNS).then_some(Determinants { grant, tail: self.tail(), base, base_term, applied, kept, complete, runs })
    }

    /// The last entry of a term that is here, and where it ends.
    fn end_of(&self, term: u64) -> Option<Mark> {
        let at = self.runs.iter().position(|run| run.term == term)?;
        Some(match self.runs.get(at + 1) {
            Some(next) => Mark { index: LogIndex(next.first.0 - 1), position: next.position },
            None => self.tail(),
        })
    }

    /// The last entry that another log has in common with this one, according to its determinants; that log is to be cut off there. What is known to be
    /// committed in it should be in any leader's log. `None`: it is not, or what follows it is no longer here.
    pub fn last_in_common(&self, theirs: &Determinants) -> Option<Mark> {
        let ends = theirs.runs.iter().skip(1).map(|next| Mark { index: LogIndex(next.first.0 - 1), position: next.position });
        let ends: Vec<Mark> = ends.chain([theirs.tail]).collect();
        let shared = theirs.runs.iter().zip(ends).rev().find_map(|(run, end)| {
            let ours = self.end_of(run.term)?;
            let common = if ours.index < end.index { ours } else { end };
            (common.index >= run.first).then_some(common)
        });
        let common = shared.unwrap_or(theirs.base);
        (common.index <= self.tail().index && self.retains(common.position)).then_some(common)
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

    /// Each log is one that leaders could have written: each leader took the log that it had, cut others' logs where they diverged from it, and appended some
    /// entries of its own.
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
                // What all have is committed at some, since commits are reported lazily.
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
        let shown = |at, term, is_committed| Shown { at, term, group: &group, is_committed };
        assert!(log.join(ring, &mut NoState, &shown(third, 2, true)), "the same entry");
        assert_eq!((log.tail(), log.committed(), log.applied()), (sixth, third, third));
        log.void();
        assert!(log.join(ring, &mut NoState, &shown(third, 2, true)) && log.tail() == sixth, "nothing is lost by that");
        log.void();
        // Of another term: what is here from there on was never committed.
        let fifth = Mark { index: LogIndex(5), position: third.position + 160 };
        assert!(!log.join(ring, &mut NoState, &shown(fifth, 3, false)), "it may be that it is not committed either");
        assert!(log.join(ring, &mut NoState, &shown(fifth, 3, true)));
        assert_eq!((log.tail(), log.committed(), log.last_term()), (fifth, fifth, 3));
        assert!(!log.join(ring, &mut NoState, &shown(Mark { index: LogIndex(1), position: 80 }, 2, true)), "too far back");
    }

    /// If the only server that holds the state shows uncommitted entries, and nothing can be committed before others hold the state, the others continue from
    /// what is in their logs.
    #[test]
    fn dare_3_4_a_state_that_shows_what_is_not_committed_is_joined_where_the_log_has_it() {
        let group = Group::new(vec![crate::basics::ProcessId::default()]);
        let mut server = Server::new();
        (0..6).for_each(|_| server.append(2, 20));
        server.commit(2);
        let (second, fifth, sixth) = (server.mark(2), server.mark(5), server.mark(6));
        server.log.void();
        let Server { log, ring, .. } = &mut server;
        assert!(log.join(ring, &mut NoState, &Shown { at: fifth, term: 2, group: &group, is_committed: false }));
        assert_eq!((log.tail(), log.committed(), log.applied(), log.is_complete()), (sixth, second, fifth, true));
        log.advance(ring, &mut NoState, LogIndex(6));
        assert_eq!((log.committed(), log.applied()), (sixth, sixth), "each is applied once");
        // A state that shows entries that are cut off has to be recovered.
        let mut server = Server::new();
        (0..6).for_each(|_| server.append(2, 20));
        server.commit(2);
        let fourth = server.mark(4);
        server.log.void();
        let Server { log, ring, .. } = &mut server;
        assert!(log.join(ring, &mut NoState, &Shown { at: fifth, term: 2, group: &group, is_committed: false }));
        log.cut(ring, fourth).expect("an entry ends there");
        assert!(!log.is_complete());
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
