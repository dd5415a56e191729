//! One process that a primary writes to.

use martlet_fabric::ring::{Record, Writer};
use martlet_fabric::{Fabric, OpError, PeerId, Region, Remote, Token};

use crate::basics::layout::{Component, LOG_LANE, token_rest};
use crate::basics::{Canary, LogIndex, Mark, ProcessId, Time};
use crate::replica::lane::LaneWriter;

use super::config::Config;
use super::rule::Holds;

/// The kinds of operations on a follower's lane, as encoded in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    /// A record, or a filler before one.
    Write,
    /// The word that tells what the reader has consumed.
    Consumed,
    /// The word that tells whether its owner attends to the lane.
    Attended,
    /// The revocation of the lane that we keep for it.
    Revoked,
    /// The word that tells a primary what we hold.
    Acknowledged,
}

/// The token of an operation on a peer's lane: its kind, and the peer, whose number is never reused.
pub(super) fn token(op: Op, peer: PeerId) -> Token {
    Component::Engine.token(((op as u64) << 32) | u64::from(peer.0))
}

/// What [`token`] packed.
pub(super) fn parse_token(token: Token) -> (Op, PeerId) {
    let rest = token_rest(token);
    let op = match rest >> 32 {
        0 => Op::Write,
        1 => Op::Consumed,
        2 => Op::Attended,
        3 => Op::Revoked,
        _ => Op::Acknowledged,
    };
    (op, PeerId(rest as u32))
}

/// How far a follower is from holding the whole state.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// It was a replica when the primary took over: its lane gets the start as soon as it is connected.
    Unstarted,
    /// It holds the whole state, or will once it has read its lane. It gets every entry.
    Following,
    /// It is to learn: a transfer begins as soon as its lane is connected and empty.
    Unlearned,
    /// It gets every entry, and parts of the state between them.
    Learning(Transfer),
    /// It was given up; nothing more is written.
    Dropped,
}

/// A state transfer to a learner.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Transfer {
    /// Where the next part begins; `None` when the last one has been taken.
    pub cursor: Option<u64>,
    /// The part under way, and how much of it has been posted.
    pub part: Vec<u8>,
    pub posted: usize,
    /// The end of the transfer, once posted: the number of its operation, and the last entry before it.
    pub end: Option<(u64, LogIndex)>,
}

/// A process that the primary writes to: a replica or a learner of its view.
#[derive(Debug)]
pub(super) struct Follower {
    pub process: ProcessId,
    pub peer: Option<PeerId>,
    /// The lane that it keeps for us; when a record in it has been written, everything up to the record's mark is in its memory.
    lane: Option<LaneWriter<LogIndex>>,
    pub phase: Phase,
    /// Whether it is a replica of the view: nothing is committed that it does not hold.
    pub replica: bool,
    /// Its transfer is complete. From then on it counts like a replica, since it is about to be reported as caught up, after which a view may promote it at any
    /// time.
    pub caught_up: bool,
    /// Its removal has been asked for.
    pub given_up: bool,
    /// The lane failed: nothing more can be written.
    pub broken: Option<OpError>,
    /// It holds everything up to here.
    pub acked: Option<LogIndex>,
    /// The index of the last start that was posted to it. Lower acknowledgements belong to an earlier transfer.
    pub started: LogIndex,
    /// The last committed index that was sent along.
    pub told: LogIndex,
    /// How often the log has overrun it, so that its transfer had to begin again.
    pub overruns: u32,
    /// An entry has gone to its lane since the last part of the state.
    pub owed_part: bool,
    wants_nudge: bool,
    nudged: Option<Time>,
}

impl Follower {
    /// `lane`: the peer as which it is connected, and the salt of the lane that it keeps for us.
    pub fn new(process: ProcessId, lane: Option<(PeerId, u64)>, phase: Phase, config: &Config) -> Follower {
        let mut follower = Follower {
            process,
            peer: None,
            lane: None,
            phase,
            replica: false,
            caught_up: false,
            given_up: false,
            broken: None,
            acked: None,
            started: LogIndex(0),
            told: LogIndex(0),
            overruns: 0,
            owed_part: false,
            wants_nudge: false,
            nudged: None,
        };
        if let Some((peer, salt)) = lane {
            follower.connect(peer, salt, config);
        }
        follower
    }

    /// Its lane can be written from now on.
    pub fn connect(&mut self, peer: PeerId, salt: u64, config: &Config) {
        if self.peer.is_none() {
            self.peer = Some(peer);
            let at = Remote { peer, region: Region::Lane(LOG_LANE), offset: 0 };
            self.lane = Some(LaneWriter::new(Writer::salted(at, config.log_ring_bytes, salt)));
        }
    }

    /// Nothing is committed that it does not hold.
    pub fn counts(&self) -> bool {
        self.replica || self.caught_up
    }

    /// Whether a transfer that has been posted to its end is complete at the follower: `end` is the operation that posted the end, and the last entry before
    /// it. A replica acknowledges nothing before it holds the whole state.
    pub fn has_learned(&self, end: (u64, LogIndex), holds: Holds) -> bool {
        match holds {
            Holds::Written => self.is_done(end.0),
            Holds::Acknowledged => self.acked >= Some(end.1),
        }
    }

    /// Entries go to its lane.
    pub fn gets_entries(&self) -> bool {
        self.broken.is_none() && matches!(self.phase, Phase::Following | Phase::Learning(_))
    }

    /// There are parts of the state that have not been posted to it.
    pub fn is_being_taught(&self) -> bool {
        matches!(&self.phase, Phase::Learning(transfer) if transfer.end.is_none())
    }

    pub fn fits(&self, payload: usize) -> bool {
        self.lane.as_ref().is_some_and(|lane| lane.writer().fits(payload))
    }

    /// Whether its lane had no room when it was last tried, or is not there yet.
    pub fn is_full(&self) -> bool {
        self.lane.as_ref().is_none_or(LaneWriter::is_full)
    }

    /// Says whether there is room for what is to be written next.
    pub fn set_full(&mut self, full: bool) {
        if let Some(lane) = &mut self.lane {
            lane.set_full(full);
        }
    }

    /// Bytes written and, as far as known, not taken.
    pub fn outstanding(&self) -> u64 {
        self.lane.as_ref().map_or(0, |lane| lane.writer().outstanding())
    }

    /// Posts a record, for which there has to be room. When it completes, everything up to `mark` is at the follower.
    pub fn push<F: Fabric>(&mut self, fabric: &mut F, record: &mut Record, mark: Option<LogIndex>) -> bool {
        let (Some(peer), Some(lane)) = (self.peer, self.lane.as_mut()) else { return false };
        lane.push(fabric, record, token(Op::Write, peer), mark)
    }

    /// The number of the operation posted last.
    pub fn last_op(&self) -> u64 {
        self.lane.as_ref().map_or(0, LaneWriter::last_op)
    }

    /// Whether that operation has completed.
    pub fn is_done(&self, op: u64) -> bool {
        self.lane.as_ref().is_some_and(|lane| lane.is_done(op))
    }

    /// An operation on its lane has completed.
    pub fn handle_completion(&mut self, op: Op, result: Result<u64, OpError>, holds: Holds) {
        match (op, result) {
            (_, Err(error)) => {
                // Later operations may still succeed, but the lane has a hole now.
                Mark::LaneBroken.reach();
                self.broken.get_or_insert(error);
            }
            (Op::Write, Ok(_)) => {
                if let Some(lane) = self.lane.as_mut().filter(|_| self.broken.is_none()) {
                    lane.note_done(|index| {
                        if holds == Holds::Written || Canary::HsucWrittenIsHeld.is_planted() {
                            self.acked = Some(index);
                        }
                    });
                }
            }
            (Op::Attended | Op::Revoked | Op::Acknowledged, Ok(_)) => {}
            (Op::Consumed, Ok(position)) => {
                self.wants_nudge |= self.lane.as_mut().is_some_and(|lane| lane.note_consumed(position));
            }
        }
    }

    /// Requests the reader's progress when that is due, and wakes a reader that does not read.
    pub fn tend<F: Fabric>(&mut self, now: Time, fabric: &mut F, config: &Config) {
        let (Some(peer), Some(lane)) = (self.peer, self.lane.as_mut()) else { return };
        if self.broken.is_some() || self.phase == Phase::Dropped {
            return;
        }
        // A new primary leaves the others asleep for a moment, because waking up on its core would delay its first reply.
        let nudged = *self.nudged.get_or_insert(now);
        if self.wants_nudge && now.since(nudged) >= config.nudge_gap_ns {
            fabric.nudge(peer);
            self.nudged = Some(now);
            self.wants_nudge = false;
        }
        let learns = matches!(self.phase, Phase::Learning(_) | Phase::Unlearned);
        let half_full = lane.writer().outstanding() * 2 > lane.writer().capacity();
        lane.refresh(fabric, token(Op::Consumed, peer), config.nudge_entries, learns && half_full);
    }

    /// A learner is nudged for every part, since nothing else is urgent for it.
    pub fn want_nudge(&mut self) {
        self.wants_nudge = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_name_their_peer_and_operation() {
        for peer in [PeerId(0), PeerId(1), PeerId(u32::MAX)] {
            for op in [Op::Write, Op::Consumed, Op::Attended, Op::Revoked, Op::Acknowledged] {
                let token = token(op, peer);
                assert!(Component::Engine.owns(token));
                assert_eq!(parse_token(token), (op, peer));
            }
        }
    }
}
