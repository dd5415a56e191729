//! One backup, as its leader sees it.

use martlet_fabric::ring::{Record, Writer};
use martlet_fabric::{Fabric, PeerId, Region, Remote};

use super::layout::{Op, PROBE_OFFSET};
use crate::basics::layout::LOG_LANE;
use crate::basics::{LogIndex, Mark, ProcessId};
use crate::replica::electorate::Voter;
use crate::replica::lane::LaneWriter;

/// How far a backup has come in this reign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// It has been asked to take this leader's entries.
    Asked,
    /// It gets the log, record by record, from its cursor on.
    Following,
    /// It has closed its lane, or lacks entries that are no longer in this leader's log, and is to be asked again.
    Closed,
    /// It is out of reach.
    Lost,
}

/// What the completion of an operation means: everything up to this turn had been executed before the operation was posted, and the lane was open after that.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    turn: u64,
}

/// A process that the leader writes to.
#[derive(Debug)]
pub(super) struct Follower {
    pub process: ProcessId,
    pub peer: PeerId,
    pub phase: Phase,
    /// The request that was last sent to it. Operations posted before that do not count.
    pub ask: u64,
    /// The lane that it keeps for us.
    pub lane: LaneWriter<Sent>,
    /// The position in the leader's log of the next record for it.
    pub cursor: u64,
    /// Its reply words: one more than the last entry that it acknowledges under this leader's view; 0 for none.
    pub acked: u64,
    /// Whether it belongs to the group in force, as of the reign's electorate.
    pub votes: bool,
    /// The last turn for which its lane was still open after the turn's execution.
    pub vouched: u64,
    /// What it was last told is committed, and by which operation.
    told: LogIndex,
    told_op: u64,
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
    pub fn new(process: ProcessId, peer: PeerId, ask: u64, writer: Writer) -> Follower {
        Follower {
            process,
            peer,
            phase: Phase::Asked,
            ask,
            lane: LaneWriter::new(writer),
            cursor: 0,
            acked: 0,
            votes: false,
            vouched: 0,
            told: LogIndex(0),
            told_op: 0,
        }
    }

    /// It is asked again: nothing that was posted to it or is in its lane counts any more.
    pub fn ask_anew(self, ask: u64) -> Follower {
        let Follower { process, peer, votes, vouched, acked, .. } = self;
        let mut writer = self.lane.into_writer();
        writer.move_to(writer.tail(), writer.tail());
        Follower { votes, vouched, acked, ..Follower::new(process, peer, ask, writer) }
    }

    /// Up to which entry it acknowledges this leader's log.
    #[inline]
    pub fn held(&self) -> Option<LogIndex> {
        self.acked.checked_sub(1).map(LogIndex)
    }

    pub fn is_following(&self) -> bool {
        self.phase == Phase::Following
    }

    pub fn is_lost(&self) -> bool {
        self.phase == Phase::Lost
    }

    /// Posts a record, if there is room.
    #[inline]
    pub fn push<F: Fabric>(&mut self, fabric: &mut F, record: &mut Record, turn: u64, committed: LogIndex) -> bool {
        let posted = self.lane.push(fabric, record, Op::Log.token(self.ask, self.peer), Some(Sent { turn }));
        if !posted {
            Mark::ApusLaneFull.reach();
        } else if committed > self.told {
            (self.told, self.told_op) = (committed, self.lane.last_op());
        }
        posted
    }

    /// What was last said to it to be committed.
    pub fn told(&self) -> LogIndex {
        self.told
    }

    /// Whether its memory says that this entry is committed; it reads that before it agrees with any candidate.
    pub fn has_heard_of(&self, index: LogIndex) -> bool {
        self.told >= index && self.lane.is_done(self.told_op) && self.is_following()
    }

    /// The last turn for which an operation has been posted.
    pub fn asked(&self) -> u64 {
        self.lane.last_mark().map_or(self.vouched, |sent| sent.turn.max(self.vouched))
    }

    /// Writes a word that is never read, to learn whether its lane is still open.
    pub fn probe<F: Fabric>(&mut self, fabric: &mut F, turn: u64) {
        let at = Remote { peer: self.peer, region: Region::Lane(LOG_LANE), offset: PROBE_OFFSET };
        fabric.write(at, &turn.to_le_bytes(), Op::Log.token(self.ask, self.peer));
        self.lane.note_posted(1, Some(Sent { turn }));
    }

    /// One more operation has completed well.
    #[inline]
    pub fn handle_done(&mut self) {
        let Follower { lane, vouched, .. } = self;
        lane.note_done(|sent| *vouched = (*vouched).max(sent.turn));
    }
}
