//! What a backup does (APUS section 4.1, B1 to B3): it takes the entries of its leader, keeps them, acknowledges them into the leader's reply words, and applies what is committed.
//!
//! A backup takes entries from one leader at a time, that of the view in which it takes part. Before it takes part in another view it closes the old leader's
//! lane, and waits until the lane is closed. Then it reads the lane to the end, and only then looks at its log or answers any process (TRAPS 41).

use martlet_fabric::{Fabric, LocalRegion, PeerId, pulse};

use crate::basics::layout::LOG_LANE;
use crate::basics::{Canary, LogIndex, Mark};
use crate::engine::Engine as _;
use crate::replica::group::Group;
use crate::replica::record::{self, RecordKind as _, is_position};
use crate::replica::{Durability, StateMachine};

use super::layout::{Header, Kind, LaneFault, Op, control};
use super::log::{Log, Mark as Place, Staged};
use super::peers::{tell, word_from};
use super::{Apus, Event};

/// What the leader's lane is closed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// To take the entries of this leader, as asked by its request of this number.
    Follow { peer: PeerId, view: u64, ask: u64 },
    /// To answer a process that proposes this view, with a log of this rank.
    Vote { peer: PeerId, view: u64, rank: (u64, LogIndex) },
    /// To propose a view.
    Stand,
}

/// Records that enter the log all at once or not at all.
#[derive(Debug)]
struct Staging {
    staged: Staged,
    due: u32,
    /// Where the log restarts, and the group there, if the start is a jump.
    jump: Option<(Place, Group)>,
}

/// The leader's lane, as its reader sees it.
#[derive(Debug, Default)]
pub(super) struct Inbound {
    /// Whose lane is read.
    pub from: Option<PeerId>,
    /// Whether that one may write there.
    open: bool,
    /// The view in which it leads.
    pub view: u64,
    /// Its request that was granted.
    ask: u64,
    /// Whether its start has taken effect, so that this log is a prefix of the leader's.
    started: bool,
    staging: Option<Staging>,
    /// Whether the next record made no sense. Its writer may count on it all the same.
    pub broken: bool,
    /// What it is being closed for.
    pub purpose: Option<Purpose>,
    /// Revocations that have not completed.
    pub revoking: u32,
    /// One more than the last acknowledged entry, 0 for none; and under which view.
    acked: (u64, u64),
}

impl Inbound {
    /// Nothing more is taken from that leader.
    fn leave(&mut self) {
        *self = Inbound { revoking: self.revoking, broken: self.broken, purpose: self.purpose, acked: self.acked, ..Inbound::default() };
    }

    /// Whether a purpose waits for the lane to be closed.
    pub fn is_closing(&self) -> bool {
        self.purpose.is_some() && !self.broken
    }

    /// Takes a record of the leader's.
    fn take<S: StateMachine>(
        &mut self,
        payload: &[u8],
        reader: &martlet_fabric::ring::Reader,
        log: &mut Log,
        machine: &mut S,
    ) -> Result<(), LaneFault> {
        let (header, body) = Header::decode(payload)?;
        // The view ID check of B1.
        if header.number != self.view {
            return Err(LaneFault::Number { expected: self.view, found: header.number });
        }
        if Canary::ApusForeignCommit.is_planted() {
            log.advance(machine, header.committed());
        }
        match (header.kind, &mut self.staging) {
            (Kind::Start | Kind::Jump, _) => {
                let (position, rest) = record::split_position(body)?;
                let base = Place { index: header.index, position };
                let jump = if header.kind == Kind::Jump { Some((base, Group::decode(rest).ok_or(LaneFault::Body)?)) } else { None };
                if jump.is_none() && base.index > log.committed().index {
                    return Err(LaneFault::Index { expected: log.committed().index, found: header.index });
                }
                (self.staging, self.started) = (Some(Staging { staged: Staged::default(), due: header.count, jump }), false);
                if header.count == 0 { self.take_over(header.committed(), log, machine) } else { Ok(()) }
            }
            (kind, Some(staging)) if kind.is_entry() => {
                // They have to have room in the log together.
                if staging.staged.bytes() + payload.len() > log.capacity() as usize {
                    return Err(LaneFault::Room);
                }
                staging.staged.push(payload);
                if staging.staged.len() == staging.due as usize {
                    self.take_over(header.committed(), log, machine)?;
                }
                Ok(())
            }
            (kind, None) if kind.is_entry() && self.started => {
                record::check_entries(&header, body, false)?;
                // What the record reports as committed was in the log before it. Applying that makes room.
                log.advance(machine, header.committed());
                // What was learned is no news.
                if header.last() > log.committed().index {
                    log.append(&header, payload, reader)?;
                }
                // A record that comes late may tell of itself.
                log.advance(machine, header.committed());
                Ok(())
            }
            (Kind::Flush, None) if self.started => {
                log.advance(machine, header.committed());
                Ok(())
            }
            (kind, _) => Err(LaneFault::Order(kind)),
        }
    }

    /// The leader's whole start is here: from now on this log is a prefix of the leader's.
    fn take_over<S: StateMachine>(&mut self, committed: LogIndex, log: &mut Log, machine: &mut S) -> Result<(), LaneFault> {
        let Some(Staging { staged, jump, .. }) = self.staging.take() else { return Ok(()) };
        // What has been learned here meanwhile needs no jump.
        if let Some((base, group)) = jump.filter(|(base, _)| base.index > log.committed().index || log.group().is_none()) {
            Mark::ApusOverrun.reach();
            log.take_over_anew(self.view, base, group, &staged)?;
        } else if log.take_over(self.view, &staged)? {
            Mark::ApusCutOff.reach();
        }
        Mark::ApusTakesOver.reach();
        self.started = true;
        log.advance(machine, committed);
        Ok(())
    }
}

impl Apus {
    /// Takes up to `budget` bytes from the leader's lane. Returns whether there were any.
    pub(super) fn drain<F: Fabric, S: StateMachine>(&mut self, budget: usize, fabric: &mut F, machine: &mut S) -> bool {
        let Some(from) = self.inbound.from else { return false };
        let Some(peer) = self.peers.iter_mut().find(|p| p.id == from) else { return false };
        let Some(lane) = fabric.memory(LocalRegion::Lane { writer: from, name: LOG_LANE }) else { return false };
        let (mut taken, mut any) = (0, false);
        while taken < budget && !self.inbound.broken && peer.reader.next(lane, &mut self.buffer) {
            any = true;
            taken += self.buffer.len() + 1;
            pulse::moved(fabric, Apus::hearts(), self.buffer.len());
            if let Err(fault) = self.inbound.take(&self.buffer, &peer.reader, &mut self.log, machine) {
                self.inbound.broken = true;
                self.events.push_back(Event::LaneFault { peer: from, fault: fault.to_string(), stuck: true });
            }
        }
        peer.reader.publish(lane);
        any
    }

    /// The last entry that may be acknowledged: the log up to it is kept as durability requires, and this process could later lead with it.
    pub(super) fn acknowledgeable(&self) -> Option<LogIndex> {
        if !self.log.is_complete() {
            return None;
        }
        match self.config.durability {
            Durability::Sync if !Canary::ApusEarlyAck.is_planted() => self.stable_of(self.log.accepted()),
            _ => Some(self.log.tail().index),
        }
    }

    /// Persist, then acknowledge (APUS section 4.1, B2): writes into the leader's reply words up to where its log is kept here. A new leader is told again,
    /// including what was kept before (TRAPS 21).
    pub(super) fn acknowledge<F: Fabric>(&mut self, fabric: &mut F) {
        let Some(leader) = self.inbound.from.filter(|_| self.inbound.open || Canary::ApusLateClose.is_planted()) else { return };
        let last = self.acknowledgeable().filter(|_| self.inbound.started && self.log.accepted() == self.inbound.view);
        let now = (last.map_or(0, |last| last.0 + 1), self.inbound.view);
        if now == self.inbound.acked {
            return;
        }
        self.inbound.acked = now;
        tell(fabric, leader, control::ACK, now.0);
        self.nudges.at_once(leader);
    }

    /// Closes the lane of the leader whose entries are taken, if there is one, for a purpose that has to wait for that.
    pub(super) fn close<F: Fabric>(&mut self, purpose: Purpose, fabric: &mut F) {
        if let Some(leader) = self.inbound.from.filter(|_| self.inbound.open) {
            Mark::ApusCloses.reach();
            self.inbound.open = false;
            self.inbound.revoking += 1;
            fabric.revoke(leader, LOG_LANE, Op::Revoke.token(0, leader));
            // If it continues to lead, it has to ask again.
            tell(fabric, leader, control::RENEW, self.inbound.ask);
            self.nudges.at_once(leader);
        }
        self.inbound.purpose = Some(purpose);
    }

    /// Fulfils the purpose for which the lane was closed, once it is. Returns whether anything was done.
    pub(super) fn act_on_closed<F: Fabric, S: StateMachine>(&mut self, fabric: &mut F, machine: &mut S) -> bool {
        let Some(purpose) = self.inbound.purpose.filter(|_| self.inbound.revoking == 0) else { return false };
        // Everything that its leader wrote successfully is in the lane by now.
        while self.drain(usize::MAX, fabric, machine) {}
        // A process that relied on this log would miss what the leader may count on.
        if self.inbound.broken {
            return false;
        }
        self.inbound.purpose = None;
        match purpose {
            Purpose::Follow { peer, view, ask } => self.follow_leader(peer, view, ask, fabric),
            Purpose::Vote { peer, view, rank } => self.consider(peer, view, rank),
            Purpose::Stand => self.stand(),
        }
        self.published = false;
        true
    }

    /// From here on takes the entries of a leader, as it asked.
    fn follow_leader<F: Fabric>(&mut self, id: PeerId, view: u64, ask: u64, fabric: &mut F) {
        if view < self.log.promised() {
            return;
        }
        let start = word_from(fabric, id, control::START);
        let Some(peer) = self.peers.iter_mut().find(|p| p.id == id) else { return };
        peer.served = ask;
        if !is_position(start) {
            self.events.push_back(Event::LaneFault { peer: id, fault: LaneFault::Start(start).to_string(), stuck: false });
            return;
        }
        Mark::ApusFollows.reach();
        if peer.watch.take_back() {
            Mark::ApusRecovered.reach();
        }
        peer.reader.move_to(start);
        if let Some(lane) = fabric.memory(LocalRegion::Lane { writer: id, name: LOG_LANE }) {
            peer.reader.publish(lane);
        }
        if view > self.log.promised() {
            self.log.promise(view);
        }
        let acked = if Canary::ApusMutedAcks.is_planted() { self.inbound.acked.0 } else { 0 };
        self.inbound.leave();
        (self.inbound.from, self.inbound.open, self.inbound.view, self.inbound.ask) = (Some(id), true, view, ask);
        fabric.grant(id, LOG_LANE);
        let (base, knows) = (self.log.committed(), self.log.group().is_some());
        // Acknowledgements under an earlier view mean nothing to this one (TRAPS 21, 40).
        self.inbound.acked = (acked, view);
        tell(fabric, id, control::ACK, 0);
        tell(fabric, id, control::ACK_VIEW, view);
        tell(fabric, id, control::GRANT_INDEX, base.index.0);
        tell(fabric, id, control::GRANT_POSITION, base.position);
        tell(fabric, id, control::GRANT_KNOWS, u64::from(knows));
        tell(fabric, id, control::GRANTED, ask);
        self.nudges.at_once(id);
    }

    /// A view is promised, so nothing more is taken from the leader of an earlier one.
    pub(super) fn leave_leader(&mut self) {
        if !Canary::ApusLateClose.is_planted() {
            self.inbound.leave();
        }
    }
}
