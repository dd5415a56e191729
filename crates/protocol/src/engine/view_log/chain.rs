//! A backup's log: what it has applied, what it holds beyond that, and which primary it follows.

use martlet_fabric::Pulse;

use crate::basics::{Canary, LogIndex, Mark, ViewNumber};
use crate::replica::part::Part;
use crate::replica::{Execution, StateMachine};

use super::layout::{Header, Kind, LaneFault};
use super::queue::EntryQueue;

/// Where the state that a replica holds comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// The empty state before the first entry.
    Genesis,
    /// A transfer that has not ended: only a part of the state, which is of no use yet.
    Learning,
    /// The whole state as of what has been applied.
    Whole,
}

/// The log as far as this replica holds it: of applied entries only the last index is kept; the rest wait for their commit.
///
/// Entries up to [`Chain::applied`] are committed, except on a learner. So no entry that a backup has applied is ever taken back.
#[derive(Debug)]
pub(super) struct Chain {
    /// The view in which the primary that wrote the end of this log took over; 0 before any did.
    view: ViewNumber,
    origin: Origin,
    pending: EntryQueue,
    committed: LogIndex,
    part: Part,
    execution: Execution,
}

impl Chain {
    pub fn new(execution: Execution) -> Chain {
        Chain {
            view: ViewNumber(0),
            origin: Origin::Genesis,
            pending: EntryQueue::new(LogIndex(1)),
            committed: LogIndex(0),
            part: Part::new(),
            execution,
        }
    }

    /// The log of a machine that shows everything up to `last`.
    pub fn behind(last: LogIndex, execution: Execution) -> Chain {
        Chain { origin: Origin::Whole, pending: EntryQueue::new(last.next()), committed: last, ..Chain::new(execution) }
    }

    /// Long entries are copied with signs of life.
    pub fn keep_alive(&mut self, pulse: Pulse) {
        self.pending.keep_alive(pulse);
    }

    pub fn view(&self) -> ViewNumber {
        self.view
    }

    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// The last whole entry held.
    pub fn last(&self) -> LogIndex {
        self.pending.last()
    }

    pub fn applied(&self) -> LogIndex {
        LogIndex(self.pending.first().0 - 1)
    }

    /// The highest index known to be committed. What a replica applied while it learned was committed before it was promoted.
    pub fn committed(&self) -> LogIndex {
        if self.origin == Origin::Whole { self.committed.max(self.applied()) } else { self.committed }
    }

    /// Applies what may be applied: the committed entries, or, on a learner, everything that the primary has executed. The parts of the state that a learner
    /// gets lie between the entries and include the effects of all entries before them.
    pub fn apply_ready<S: StateMachine>(&mut self, machine: &mut S) {
        let limit = match self.origin {
            // A part replaces its range with a state that is older than the entries between its fragments, so those entries wait for its end.
            Origin::Learning if self.part.is_open() => return,
            Origin::Learning if self.execution == Execution::Speculative || Canary::HsucEagerLearner.is_planted() => self.last(),
            Origin::Learning | Origin::Genesis | Origin::Whole => self.committed,
        };
        while self.pending.first() <= limit {
            let Some(entry) = self.pending.front() else { return };
            machine.apply(self.pending.first(), entry);
            self.pending.pop_front();
        }
    }

    /// A primary's log replaces everything after its base: `staged` holds the entries that it replicated again.
    pub fn adopt<S: StateMachine>(
        &mut self,
        base: LogIndex,
        view: ViewNumber,
        staged: &EntryQueue,
        machine: &mut S,
    ) -> Result<(), LaneFault> {
        if self.origin == Origin::Learning {
            return Err(LaneFault::NotWhole);
        }
        if base > self.last() {
            return Err(LaneFault::Gap { base, last: self.last() });
        }
        if staged.last() < self.applied() {
            return Err(LaneFault::Behind { end: staged.last(), applied: self.applied() });
        }
        let keep = base.max(self.applied());
        let keep = if Canary::KeptSuffix.is_planted() { keep.max(self.last()) } else { keep };
        if self.last() > keep {
            Mark::SuffixDropped.reach();
        }
        self.pending.truncate_after(keep);
        for (index, entry) in staged.iter() {
            // What has been applied is committed, so the primary's copy of it is the same.
            if index > keep {
                self.pending.push(entry, false);
            }
        }
        Mark::LaneAdopted.reach();
        self.view = view;
        self.origin = Origin::Whole;
        self.committed = self.committed.max(base);
        self.apply_ready(machine);
        Ok(())
    }

    /// A transfer begins: everything held so far is void.
    pub fn begin_transfer<S: StateMachine>(&mut self, start: Header, machine: &mut S) -> Result<(), LaneFault> {
        // The state shows everything before it. Where a primary executes on commit, all that was posted must therefore be committed.
        if start.committed > start.index || (start.committed < start.index && self.execution == Execution::Committed) {
            return Err(LaneFault::Commit { committed: start.committed, last: start.index });
        }
        (if self.origin == Origin::Learning { Mark::TransferRestarted } else { Mark::TransferBegun }).reach();
        machine.clear();
        self.pending.restart(start.index.next());
        self.committed = start.committed;
        self.view = start.view;
        self.origin = Origin::Learning;
        self.part.clear();
        Ok(())
    }

    /// Takes a record of the lane that this log follows, other than a start.
    pub fn take<S: StateMachine>(&mut self, header: Header, content: &[u8], machine: &mut S) -> Result<(), LaneFault> {
        let last = self.last();
        if header.committed > last {
            return Err(LaneFault::Commit { committed: header.committed, last });
        }
        let expected = if header.kind == Kind::Entry { last.next() } else { last };
        if header.index != expected {
            return Err(LaneFault::Index { expected, found: header.index });
        }
        if header.kind != Kind::Entry && self.pending.is_open() {
            return Err(LaneFault::Transfer(header.kind));
        }
        if header.committed > self.committed {
            self.committed = header.committed;
            self.apply_ready(machine);
        }
        match header.kind {
            Kind::Start => return Err(LaneFault::Order(Kind::Start)),
            Kind::Flush => {}
            Kind::Entry => {
                let executes = self.origin == Origin::Learning && self.execution == Execution::Speculative;
                let at_once = executes && !self.part.is_open() && !header.more && !self.pending.is_open();
                if at_once {
                    machine.apply(header.index, content);
                    self.pending.skip();
                } else {
                    self.pending.push(content, header.more);
                    if !header.more && self.origin == Origin::Learning {
                        self.apply_ready(machine);
                    }
                }
            }
            Kind::Part => {
                if self.origin != Origin::Learning {
                    return Err(LaneFault::Transfer(Kind::Part));
                }
                self.part.take(content, header.more, machine)?;
                if !header.more {
                    Mark::PartInstalled.reach();
                    self.apply_ready(machine);
                }
            }
            Kind::End => {
                if self.origin != Origin::Learning || self.part.is_open() {
                    return Err(LaneFault::Transfer(Kind::End));
                }
                Mark::TransferEnded.reach();
                self.origin = Origin::Whole;
                self.part.clear();
            }
        }
        Ok(())
    }

    /// Hands the end of this log to a primary: the entries not known to be committed, with the index before them. Where a primary executes ahead, they are
    /// applied too.
    pub fn take_over<S: StateMachine>(&mut self, machine: &mut S) -> (LogIndex, EntryQueue) {
        self.apply_ready(machine);
        let base = self.committed();
        let mut uncommitted = EntryQueue::new(base.next());
        std::mem::swap(&mut uncommitted, &mut self.pending);
        uncommitted.discard_open();
        if self.execution == Execution::Speculative {
            uncommitted.iter().for_each(|(index, entry)| machine.apply(index, entry));
        }
        if Canary::UnsharedTail.is_planted() {
            return (uncommitted.last(), EntryQueue::new(uncommitted.last().next()));
        }
        (base, uncommitted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::PartFault;
    use crate::engine::test_cluster::Machine;

    #[test]
    fn a_part_without_end_is_refused() {
        let (mut chain, mut machine) = (Chain { part: Part::of_at_most(40), ..Chain::new(Execution::Speculative) }, Machine::default());
        let header = |kind| Header::new(kind, LogIndex(0), ViewNumber(1), LogIndex(0));
        let more = Header { more: true, ..header(Kind::Part) };
        chain.begin_transfer(Header { learner: true, ..header(Kind::Start) }, &mut machine).expect("a transfer begins");
        for _ in 0..2 {
            assert_eq!(chain.take(more, &[0; 24], &mut machine), Ok(()));
            assert_eq!(chain.take(header(Kind::Part), &[], &mut machine), Ok(()));
        }
        assert_eq!(chain.take(more, &[0; 40], &mut machine), Ok(()), "as long as a part may be");
        assert_eq!(chain.take(more, &[0], &mut machine), Err(PartFault::TooLong.into()));
    }
}
