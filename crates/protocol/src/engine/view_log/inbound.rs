//! The reading end of one peer's log lane.

use martlet_fabric::ring::Reader;

use crate::basics::{Canary, LogIndex, Mark, ViewNumber};
use crate::replica::StateMachine;

use super::chain::Chain;
use super::layout::{Header, Kind, LaneFault};
use super::queue::EntryQueue;

/// How far a lane has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Nothing has been read.
    Fresh,
    /// Its writer has started as primary of `view`, but not all of the `count` entries that it replicates again are here.
    Starting { view: ViewNumber, base: LogIndex, count: u32 },
    /// All of those entries are here, so the start is effective and the log may switch to this lane. Nothing more is read before it does.
    Effective { view: ViewNumber, base: LogIndex },
    /// The log follows this lane.
    Current,
    /// A later primary's lane has replaced it, or this replica leads itself.
    Retired,
    /// It made no sense.
    Faulty,
}

/// One peer's lane, as its reader sees it.
#[derive(Debug)]
pub(super) struct Inbound {
    pub reader: Reader,
    pub phase: Phase,
    /// The view of the last record.
    view: ViewNumber,
    /// Entries replicated again by a start that is not yet effective.
    staged: EntryQueue,
}

impl Inbound {
    /// The lane of a peer that has been given this salt.
    pub fn new(salt: u64) -> Inbound {
        Inbound { reader: Reader::salted(salt), phase: Phase::Fresh, view: ViewNumber(0), staged: EntryQueue::new(LogIndex(1)) }
    }

    /// Whether records are taken from it at present.
    pub fn reads(&self) -> bool {
        matches!(self.phase, Phase::Fresh | Phase::Starting { .. } | Phase::Current)
    }

    /// Whether its writer has been seen to start as primary.
    pub fn has_started(&self) -> bool {
        !matches!(self.phase, Phase::Fresh)
    }

    /// The view of a start that has become effective and waits for the log to switch.
    pub fn effective(&self) -> Option<ViewNumber> {
        match self.phase {
            Phase::Effective { view, .. } => Some(view),
            _ => None,
        }
    }

    /// Whether this lane no longer matters once the log follows a lane that was started in `view`.
    pub fn is_older_than(&self, view: ViewNumber) -> bool {
        match self.phase {
            Phase::Starting { view: own, .. } | Phase::Effective { view: own, .. } => own <= view,
            Phase::Current => true,
            Phase::Fresh | Phase::Retired | Phase::Faulty => false,
        }
    }

    /// Stops reading for good.
    pub fn stop(&mut self, phase: Phase) {
        self.phase = phase;
        self.staged = EntryQueue::new(LogIndex(1));
    }

    /// Takes the payload of the next record. `true`: the log has switched to this lane at once, which happens only for a transfer.
    pub fn take<S: StateMachine>(&mut self, payload: &[u8], chain: &mut Chain, machine: &mut S) -> Result<bool, LaneFault> {
        let (header, content) = Header::decode(payload)?;
        if header.view < self.view {
            return Err(LaneFault::View { before: self.view, found: header.view });
        }
        self.view = header.view;
        match self.phase {
            Phase::Fresh => self.start(header, chain, machine),
            Phase::Starting { view, base, count } => {
                if header.kind != Kind::Entry {
                    return Err(LaneFault::Order(header.kind));
                }
                let expected = self.staged.last().next();
                if header.index != expected {
                    return Err(LaneFault::Index { expected, found: header.index });
                }
                if header.committed > base {
                    return Err(LaneFault::Commit { committed: header.committed, last: base });
                }
                self.staged.push(content, header.more);
                if self.staged.len() == count as usize {
                    self.phase = Phase::Effective { view, base };
                }
                Ok(false)
            }
            Phase::Current if header.kind == Kind::Start && header.learner => {
                chain.begin_transfer(header, machine)?;
                Ok(false)
            }
            Phase::Current => chain.take(header, content, machine).map(|()| false),
            Phase::Effective { .. } | Phase::Retired | Phase::Faulty => Ok(false),
        }
    }

    fn start<S: StateMachine>(&mut self, header: Header, chain: &mut Chain, machine: &mut S) -> Result<bool, LaneFault> {
        if header.kind != Kind::Start {
            return Err(LaneFault::Order(header.kind));
        }
        if header.view <= chain.view() && !Canary::SupersededStart.is_planted() {
            // The late start of a primary that has been succeeded.
            Mark::StartTooLate.reach();
            self.stop(Phase::Retired);
            return Ok(false);
        }
        if header.learner {
            chain.begin_transfer(header, machine)?;
            self.phase = Phase::Current;
            return Ok(true);
        }
        if header.committed > header.index {
            return Err(LaneFault::Commit { committed: header.committed, last: header.index });
        }
        self.staged.restart(header.index.next());
        self.phase = if header.count == 0 {
            Phase::Effective { view: header.view, base: header.index }
        } else {
            Phase::Starting { view: header.view, base: header.index, count: header.count }
        };
        Ok(false)
    }

    /// Switches the log to this lane, whose start has become effective.
    pub fn adopt<S: StateMachine>(&mut self, chain: &mut Chain, machine: &mut S) -> Result<(), LaneFault> {
        let Phase::Effective { view, base } = self.phase else { return Ok(()) };
        chain.adopt(base, view, &self.staged, machine)?;
        self.stop(Phase::Current);
        Ok(())
    }
}
