//! One server that a leader writes to.

use martlet_fabric::ring::{Record, Writer};
use martlet_fabric::{Fabric, Local, LocalRegion, PeerId, Region, Remote};

use super::layout::{Determinants, Op, RUNS, RUNS_BYTES, SCRATCH, SLOT_BYTES, WORDS, lane, words};
use super::log::Mark;
use crate::basics::layout::LOG_LANE;
use crate::basics::{Canary, LogIndex, ProcessId, Time};
use crate::replica::lane::LaneWriter;

/// How far a follower has come under the requested grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// It has been asked for access.
    Asked,
    /// It has given the grant, and its determinants are being read (DARE section 3.3.1, step a).
    Inspecting,
    /// Its log is adjusted, and it gets entries from its cursor on.
    Following,
    /// It lacks entries that are no longer in the leader's log: it has to recover, and then requests to be asked again.
    Overrun,
    /// It has taken its access back, and is to be asked again.
    Revoked,
    /// It is out of reach.
    Lost,
}

/// What the completion of an operation means.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    index: Option<LogIndex>,
    turn: u64,
}

/// A server that the leader writes to.
#[derive(Debug)]
pub(super) struct Follower {
    pub process: ProcessId,
    pub peer: PeerId,
    pub phase: Phase,
    /// The grant that was last requested. Operations posted under an earlier one do not count.
    pub grant: u64,
    /// Tells operations under that grant from others.
    pub session: u64,
    /// The lane that it keeps for us.
    pub lane: LaneWriter<Sent>,
    /// The place in the leader's log of the next record for it.
    pub cursor: Mark,
    /// How far the tail pointer in its memory is known to have moved.
    pub acked: Option<LogIndex>,
    /// Whether its machine shows the state, so that its entries count for commits.
    pub holds: bool,
    /// Of a [zombie](super::zombie): until when it may count.
    pub zombie_until: Option<Time>,
    /// Whether its entries count. A zombie's do only as long as the living servers do not suffice.
    pub counts: bool,
    /// In which of the deciding groups it votes, one bit each: see [`Quorums`](super::quorums::Quorums).
    pub groups: u8,
    /// The last turn for which it still had no higher term after the turn's execution.
    pub vouched: u64,
    /// The position of the tail pointer that was posted last.
    tail: Mark,
    /// What it was last told is committed, and by which operation.
    told: LogIndex,
    told_op: u64,
    /// Turns for which its term is being read, in order.
    pub checks: std::collections::VecDeque<u64>,
}

impl Follower {
    pub fn new(process: ProcessId, peer: PeerId, grant: u64, session: u64, log_ring_bytes: usize) -> Follower {
        let at = Remote { peer, region: Region::Lane(LOG_LANE), offset: 0 };
        Follower {
            process,
            peer,
            phase: Phase::Asked,
            grant,
            session,
            lane: LaneWriter::new(Writer::new(at, log_ring_bytes)),
            cursor: Mark::default(),
            acked: None,
            holds: false,
            zombie_until: None,
            counts: true,
            groups: 0,
            vouched: 0,
            tail: Mark::default(),
            told: LogIndex(0),
            told_op: 0,
            checks: std::collections::VecDeque::new(),
        }
    }

    /// It is asked again: nothing that was posted to it counts any more.
    pub fn ask_anew(&mut self, session: u64, log_ring_bytes: usize) {
        let vouched = self.vouched;
        let groups = self.groups;
        *self = Follower { vouched, groups, ..Follower::new(self.process, self.peer, self.grant + 1, session, log_ring_bytes) };
    }

    /// Whether it belongs to a group that decides.
    #[inline]
    pub fn votes(&self) -> bool {
        self.groups != 0
    }

    /// Whether its process is dead, and its memory may count.
    #[inline]
    pub fn is_zombie(&self) -> bool {
        self.zombie_until.is_some()
    }

    /// The last entry that it holds in its log and could lead with, which counts for the majority.
    #[inline]
    pub fn held(&self) -> Option<LogIndex> {
        self.acked.filter(|_| self.holds)
    }

    /// Whether its log is being written.
    pub fn is_following(&self) -> bool {
        self.phase == Phase::Following
    }

    /// Reads its determinants.
    pub fn inspect<F: Fabric>(&mut self, slot: usize, fabric: &mut F) {
        self.phase = Phase::Inspecting;
        let from = Remote { peer: self.peer, region: Region::Public(RUNS), offset: 0 };
        let into = Local { region: LocalRegion::Public(SCRATCH), offset: slot * SLOT_BYTES };
        fabric.read(from, into, RUNS_BYTES, Op::Runs.token(self.session, self.peer));
    }

    /// Cuts its log off at `to`, where it diverges from the leader's (DARE section 3.3.1, step b).
    pub fn adjust<F: Fabric>(&mut self, to: Mark, theirs: &Determinants, committed: LogIndex, fabric: &mut F) {
        let mut writer =
            Writer::new(Remote { peer: self.peer, region: Region::Lane(LOG_LANE), offset: 0 }, self.lane.writer().capacity() as usize);
        writer.move_to(to.position, theirs.kept.min(to.position));
        self.lane = LaneWriter::new(writer);
        // The cut and the pointers are written before the grant, under which they count.
        let committed = if Canary::DareHastyCommit.is_planted() { committed } else { committed.min(to.index) };
        let pointers = [to.position, to.index.0, to.position, committed.0].map(u64::to_le_bytes);
        fabric.write(self.at(lane::CUT), pointers.as_flattened(), Op::Log.token(self.session, self.peer));
        fabric.write(self.at(lane::GRANT), &self.grant.to_le_bytes(), Op::Log.token(self.session, self.peer));
        self.lane.note_posted(2, Some(Sent { index: Some(to.index), turn: 0 }));
        (self.phase, self.cursor, self.tail) = (Phase::Following, to, to);
        self.holds = theirs.complete && theirs.applied <= to.index;
    }

    /// Tells it that its log cannot be continued.
    pub fn overrun<F: Fabric>(&mut self, keeps: Option<Mark>, fabric: &mut F) {
        if let Some(to) = keeps {
            let pointers = [to.position, to.index.0, to.position, 0].map(u64::to_le_bytes);
            fabric.write(self.at(lane::CUT), pointers.as_flattened(), Op::Log.token(self.session, self.peer));
            fabric.write(self.at(lane::GRANT), &self.grant.to_le_bytes(), Op::Log.token(self.session, self.peer));
            self.lane.note_posted(2, None);
        }
        fabric.write(self.at(lane::OVERRUN), &self.grant.to_le_bytes(), Op::Log.token(self.session, self.peer));
        self.lane.note_posted(1, None);
        self.phase = Phase::Overrun;
        (self.acked, self.holds) = (None, false);
    }

    fn at(&self, word: usize) -> Remote {
        Remote { peer: self.peer, region: Region::Lane(LOG_LANE), offset: word * 8 }
    }

    /// Posts a record at its cursor, if there is room. The record counts once the tail pointer has moved past it.
    #[inline]
    pub fn push<F: Fabric>(&mut self, fabric: &mut F, record: &mut Record, end: Mark) -> bool {
        let posted = self.lane.push(fabric, record, Op::Log.token(self.session, self.peer), None);
        if posted {
            self.cursor = end;
        }
        posted
    }

    /// Moves its tail pointer to the end of its records, and the commit pointer with it (DARE section 3.3.1, steps d and e).
    #[inline]
    pub fn move_tail<F: Fabric>(&mut self, committed: LogIndex, turn: u64, fabric: &mut F) {
        let pointers = [self.cursor.position, committed.0].map(u64::to_le_bytes);
        fabric.write(self.at(lane::TAIL), pointers.as_flattened(), Op::Log.token(self.session, self.peer));
        self.lane.note_posted(1, Some(Sent { index: Some(self.cursor.index), turn }));
        self.tail = self.cursor;
        if committed > self.told {
            (self.told, self.told_op) = (committed, self.lane.last_op());
        }
    }

    /// Whether records have been posted that no tail pointer covers.
    #[inline]
    pub fn is_tail_behind(&self) -> bool {
        self.tail != self.cursor
    }

    /// What it was last told is committed.
    pub fn told(&self) -> LogIndex {
        self.told
    }

    /// Whether its memory says that this entry is committed; it reads that before it answers any candidate.
    pub fn has_heard_of(&self, index: LogIndex) -> bool {
        self.told >= index && self.lane.is_done(self.told_op) && self.is_following()
    }

    /// The last turn for which an operation has been posted whose success vouches for it.
    pub fn asked(&self) -> u64 {
        let posted = self.lane.last_mark().map_or(0, |sent| sent.turn);
        posted.max(self.checks.back().copied().unwrap_or(0)).max(self.vouched)
    }

    /// Reads its term, to learn whether a leader of a later one may have been elected (DARE section 3.3, read requests). A zombie's term no longer means
    /// anything; there a log write vouches instead, as in a turn that has written.
    pub fn check<F: Fabric>(&mut self, turn: u64, fabric: &mut F) {
        if self.is_zombie() {
            if self.is_following() {
                self.move_tail(self.told, turn, fabric);
            }
            return;
        }
        let at = Remote { peer: self.peer, region: Region::Public(WORDS), offset: words::TERM * 8 };
        fabric.read_word(at, Op::Check.token(self.session, self.peer));
        self.checks.push_back(turn);
    }

    /// One more operation has succeeded.
    #[inline]
    pub fn handle_done(&mut self) {
        let Follower { lane, vouched, acked, .. } = self;
        lane.note_done(|sent| {
            *vouched = (*vouched).max(sent.turn);
            *acked = sent.index.or(*acked);
        });
    }

    /// Up to where it has applied, as far as is known.
    pub fn applied(&self) -> u64 {
        self.lane.writer().tail() - self.lane.writer().outstanding()
    }
}
