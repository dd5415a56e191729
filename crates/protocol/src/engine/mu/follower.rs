//! One process that a leader writes to.

use martlet_fabric::ring::{Record, Writer};
use martlet_fabric::{Fabric, Local, LocalRegion, PeerId, Region, Remote};

use crate::basics::layout::LOG_LANE;
use crate::basics::{LogIndex, Mark, ProcessId};
use crate::replica::electorate::Voter;
use crate::replica::lane::LaneWriter;

use super::layout::{Op, PROBE_OFFSET, SCRATCH, WORDS, words};
use super::numbers::Numbers;

/// How far a follower has come in this reign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// It has been asked for its permission.
    Asked,
    /// It has granted it, and its numbers are being read.
    Inspecting,
    /// It has granted its permission, and its numbers are known.
    Confirmed(Numbers),
    /// The proposal number has been written to it.
    Preparing(Numbers),
    /// It gets the log, record by record, from its cursor on.
    Following,
    /// It is out of reach.
    Lost,
}

/// A process that the leader writes to.
#[derive(Debug)]
pub(super) struct Follower {
    pub process: ProcessId,
    pub peer: PeerId,
    /// Where its numbers land in our scratch memory.
    pub slot: usize,
    pub phase: Phase,
    /// The lane that it keeps for us.
    pub lane: LaneWriter<Sent>,
    /// The position in the leader's log of the next record for it.
    pub cursor: u64,
    /// Everything up to here is in its memory; known once its start has taken effect.
    pub acked: Option<LogIndex>,
    /// Whether it belongs to the group in force, as of the reign's electorate.
    pub votes: bool,
    /// Whether its machine shows the state: only processes that could lead count for commits.
    pub holds: bool,
    /// The end of its start in its lane: once it has read that far, it knows whether it still holds the state.
    pub start_ends: u64,
    /// Its numbers are being read.
    pub reading: bool,
    /// The last turn all of whose writes were made while it still gave its permission.
    pub vouched: u64,
    /// Where the entries of its start end; they count only all together.
    pub started_to: u64,
    /// Up to which number it is known to remember its promises, whatever happens to it.
    pub ceiling: u64,
    /// With durability `sync`: up to where its log, accepted under our number, is on its stable storage.
    pub stable: Option<LogIndex>,
    /// The operation by which the proposal number was written.
    prepare_op: u64,
    /// What it was last told is committed, and by which operation.
    told: LogIndex,
    told_op: u64,
}

/// What the completion of an operation means.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    index: Option<LogIndex>,
    turn: u64,
}

impl Voter for Follower {
    fn process(&self) -> ProcessId {
        self.process
    }

    fn votes(&mut self) -> &mut bool {
        &mut self.votes
    }
}

impl Follower {
    pub fn new(process: ProcessId, peer: PeerId, slot: usize, writer: Writer) -> Follower {
        Follower {
            process,
            peer,
            slot,
            phase: Phase::Asked,
            lane: LaneWriter::new(writer),
            cursor: 0,
            acked: None,
            votes: false,
            holds: false,
            start_ends: u64::MAX,
            reading: false,
            vouched: 0,
            started_to: 0,
            ceiling: 0,
            stable: None,
            prepare_op: u64::MAX,
            told: LogIndex(0),
            told_op: 0,
        }
    }

    /// The last entry that it holds in its log and could lead with, which counts for the majority.
    #[inline]
    pub fn held(&self) -> Option<LogIndex> {
        self.acked.filter(|_| self.holds)
    }

    /// Checks whether a follower that lost its state, with the start or before, has been taught meanwhile.
    pub fn look_for_state<F: Fabric>(&mut self, round: u64, fabric: &mut F) {
        if self.holds || self.reading {
            return;
        }
        if self.lane.writer().tail() - self.lane.writer().outstanding() >= self.start_ends {
            self.inspect(round, fabric);
        } else {
            // So that it is asked how far it has read.
            self.lane.set_full(true);
        }
    }

    /// Reads its numbers, and how much of its lane it has consumed.
    pub fn inspect<F: Fabric>(&mut self, round: u64, fabric: &mut F) {
        self.reading = true;
        let from = Remote { peer: self.peer, region: Region::Public(WORDS), offset: 0 };
        let into = Local { region: LocalRegion::Public(SCRATCH), offset: self.slot * words::BYTES };
        fabric.read_word(self.lane.writer().consumed_word(), Op::Consumed.token(round, self.peer));
        fabric.read(from, into, words::COUNT * 8, Op::Words.token(round, self.peer));
    }

    /// Its numbers, once they are known and as long as nothing has been written after they were read.
    pub fn numbers(&self) -> Option<&Numbers> {
        match &self.phase {
            Phase::Confirmed(numbers) | Phase::Preparing(numbers) => Some(numbers),
            _ => None,
        }
    }

    pub fn is_lost(&self) -> bool {
        matches!(self.phase, Phase::Lost)
    }

    /// Whether the proposal number is in its memory, written while it still gave its permission.
    pub fn is_prepared(&self) -> bool {
        self.lane.is_done(self.prepare_op) && matches!(self.phase, Phase::Preparing(_) | Phase::Following)
    }

    /// Posts a record, if there is room. When it completes, everything up to `index` is in its memory.
    #[inline]
    pub fn push<F: Fabric>(&mut self, fabric: &mut F, record: &mut Record, index: Option<LogIndex>, round: u64, turn: u64) -> bool {
        let posted = self.lane.push(fabric, record, Op::Log.token(round, self.peer), Some(Sent { index, turn }));
        if !posted {
            Mark::MuLaneFull.reach();
        }
        posted
    }

    /// The record just posted carried the proposal number.
    pub fn note_prepare(&mut self) {
        self.prepare_op = self.lane.last_op();
    }

    /// The record just posted said what is committed.
    pub fn note_told(&mut self, committed: LogIndex) {
        if committed > self.told {
            (self.told, self.told_op) = (committed, self.lane.last_op());
        }
    }

    /// What it was last told is committed.
    pub fn told(&self) -> LogIndex {
        self.told
    }

    /// Whether its memory says that this entry is committed; it reads that before it grants its permission to any other process.
    pub fn has_heard_of(&self, index: LogIndex) -> bool {
        self.told >= index && self.lane.is_done(self.told_op) && matches!(self.phase, Phase::Following)
    }

    /// The last turn for which an operation has been posted.
    pub fn asked(&self) -> u64 {
        self.lane.last_mark().map_or(self.vouched, |sent| sent.turn)
    }

    /// Writes a word that is never read, to learn whether it still gives its permission.
    pub fn probe<F: Fabric>(&mut self, fabric: &mut F, round: u64, turn: u64) {
        let at = Remote { peer: self.peer, region: Region::Lane(LOG_LANE), offset: PROBE_OFFSET };
        fabric.write(at, &turn.to_le_bytes(), Op::Log.token(round, self.peer));
        self.lane.note_posted(1, Some(Sent { index: None, turn }));
    }

    /// One more operation has succeeded.
    #[inline]
    pub fn handle_done(&mut self) {
        let Follower { lane, vouched, acked, .. } = self;
        lane.note_done(|sent| {
            // What is written for no turn takes nothing back.
            *vouched = (*vouched).max(sent.turn);
            *acked = sent.index.or(*acked);
        });
    }

    /// Takes the reader's progress. Returns whether the reader has to be woken: it has not touched what was there when we last asked.
    pub fn handle_consumed(&mut self, position: u64) -> bool {
        self.lane.note_consumed(position)
    }

    /// Asks for the reader's progress when it is due: in the background, before the lane is full (TRAPS 15).
    #[inline]
    pub fn refresh<F: Fabric>(&mut self, fabric: &mut F, round: u64, every: u32) {
        if !self.is_lost() {
            self.lane.refresh(fabric, Op::Consumed.token(round, self.peer), every, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::basics::ProcessId;
    use martlet_fabric::{Incarnation, NodeId};

    #[test]
    fn what_is_written_for_no_turn_takes_back_nothing_that_it_has_vouched_for() {
        let process = ProcessId { node: NodeId(1), incarnation: Incarnation(1) };
        let lane = Remote { peer: PeerId(0), region: Region::Lane(LOG_LANE), offset: 0 };
        let mut follower = Follower::new(process, PeerId(0), 0, Writer::new(lane, 1024));
        follower.lane.note_posted(1, Some(Sent { index: Some(LogIndex(1)), turn: 7 }));
        follower.lane.note_posted(1, Some(Sent { index: None, turn: 0 }));
        follower.handle_done();
        follower.handle_done();
        assert_eq!((follower.vouched, follower.acked), (7, Some(LogIndex(1))), "a reply may have waited for a disk meanwhile");
    }
}
