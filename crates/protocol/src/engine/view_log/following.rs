//! What a backup does: it takes records from the lanes, and follows the log from one primary's lane to the next one's.

use martlet_fabric::{Fabric, PeerId, Region, Remote, pulse, ring};

use super::chain::Origin;
use super::follower::{self, Op};
use super::inbound::Phase;
use super::layout::{ACKNOWLEDGED_OFFSET, LaneFault};
use super::peers::lane_of;
use super::{Event, HEARTS, Holds, Rule, ViewLog};
use crate::basics::layout::LOG_LANE;
use crate::basics::{Canary, Mark};
use crate::membership::View;
use crate::replica::StateMachine;

impl<R: Rule> ViewLog<R> {
    /// Takes up to `budget` bytes from each lane, and switches the log to the latest primary whose start is effective.
    pub(super) fn drain<F: Fabric, S: StateMachine>(&mut self, fabric: &F, machine: &mut S, budget: usize) -> bool {
        let mut any = false;
        for at in 0..self.peers.len() {
            any |= self.drain_lane(at, fabric, machine, budget);
        }
        // The log switches from lane to lane in the order of their starts, and only when the older lanes have been read to their end, because a primary relies
        // on what they hold below its base. A lane's end is near, since its writer gets no more room before we are done.
        while let Some(view) = self.peers.iter().filter_map(|p| p.inbound.effective()).min() {
            for at in 0..self.peers.len() {
                self.drain_lane(at, fabric, machine, usize::MAX);
            }
            let oldest = self.peers.iter().filter_map(|p| p.inbound.effective()).min();
            if oldest != Some(view) {
                continue;
            }
            let Some(at) = self.peers.iter().position(|p| p.inbound.effective() == Some(view)) else { break };
            let peer = &mut self.peers[at];
            let id = peer.id;
            match peer.inbound.adopt(&mut self.chain, machine) {
                Ok(()) => {
                    self.retire_others(id);
                    self.drain_lane(at, fabric, machine, budget);
                }
                Err(fault) => self.fail_lane(id, fault),
            }
            any = true;
        }
        any
    }

    pub(super) fn drain_lane<F: Fabric, S: StateMachine>(&mut self, at: usize, fabric: &F, machine: &mut S, budget: usize) -> bool {
        let peer = &mut self.peers[at];
        if !peer.inbound.reads() {
            return false;
        }
        let Some(memory) = lane_of(fabric, peer.id) else { return false };
        let id = peer.id;
        let mut taken = 0;
        while taken < budget && self.peers[at].inbound.reads() {
            let inbound = &mut self.peers[at].inbound;
            if !inbound.reader.next(memory, &mut self.buffer) {
                break;
            }
            taken += ring::record_bytes(self.buffer.len());
            pulse::moved(fabric, HEARTS, self.buffer.len());
            match inbound.take(&self.buffer, &mut self.chain, machine) {
                Ok(false) => {}
                Ok(true) => self.retire_others(id),
                Err(fault) => self.fail_lane(id, fault),
            }
        }
        taken > 0
    }

    /// The log now follows this peer's lane. Earlier primaries' lanes are read no further, whatever they may still hold.
    fn retire_others(&mut self, id: PeerId) {
        if Canary::UnretiredLane.is_planted() {
            return;
        }
        let view = self.chain.view();
        for peer in self.peers.iter_mut().filter(|p| p.id != id && p.inbound.is_older_than(view)) {
            Mark::LaneRetired.reach();
            peer.inbound.stop(Phase::Retired);
        }
    }

    pub(super) fn fail_lane(&mut self, id: PeerId, fault: LaneFault) {
        self.faults += 1;
        let peer = self.peers.iter_mut().find(|p| p.id == id);
        let process = peer.map(|peer| {
            peer.inbound.stop(Phase::Faulty);
            peer.process
        });
        let primary = self.view.as_ref().and_then(View::primary).map(|member| member.id);
        let stuck = process.is_some() && process == primary;
        self.events.push_back(Event::LaneFault { peer: id, fault: fault.to_string(), stuck });
    }

    /// Tells the primary of the view up to where its entries are in this log, where commits depend on that. A replica that has learned of a later view tells an
    /// earlier primary nothing more, because that primary may commit only what every later primary holds. Nor does a replica tell the primary of a view that it
    /// has not learned of yet.
    pub(super) fn acknowledge<F: Fabric>(&mut self, fabric: &mut F) {
        if R::HOLDS != Holds::Acknowledged || self.chain.origin() != Origin::Whole {
            return;
        }
        let Some(view) = &self.view else { return };
        let knows = self.chain.view() <= view.number;
        let Some(peer) = self.peers.iter().find(|p| p.inbound.phase == Phase::Current).filter(|_| knows) else { return };
        let leads = view.primary().is_some_and(|primary| primary.id == peer.process);
        let now = (peer.id, self.chain.last());
        if self.acknowledged == Some(now) || !leads {
            return;
        }
        self.acknowledged = Some(now);
        let at = Remote { peer: peer.id, region: Region::Lane(LOG_LANE), offset: ACKNOWLEDGED_OFFSET };
        fabric.write(at, &(now.1.0 + 1).to_le_bytes(), follower::token(Op::Acknowledged, peer.id));
        fabric.nudge(peer.id);
    }

    /// Lets the writers overwrite what has been taken, which is in our private memory by now.
    pub(super) fn publish<F: Fabric>(&mut self, fabric: &F) {
        for peer in self.peers.iter_mut().filter(|p| p.inbound.reader.unpublished() > 0) {
            if let Some(memory) = lane_of(fabric, peer.id) {
                peer.inbound.reader.publish(memory);
            }
        }
    }
}
