//! The other replicas, as the engine sees them: which are connected or gone, whose lanes it reads, and which of them read its own.

use martlet_fabric::primitive::Ordering;
use martlet_fabric::{Fabric, LocalRegion, Memory, OpError, PeerId, Region, Remote, ring};

use super::follower::{self, Op};
use super::inbound::{Inbound, Phase};
use super::{Event, Role, Rule, ViewLog};
use crate::basics::layout::LOG_LANE;
use crate::basics::{Canary, Mark, ProcessId, Time};
use crate::membership::View;

/// A connected process.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) id: PeerId,
    pub(super) process: ProcessId,
    /// A view has listed it.
    pub(super) listed: bool,
    pub(super) gone: bool,
    /// It was already gone when its lane was last read to the end.
    pub(super) read_out: bool,
    /// What we know of the lane that it keeps for us.
    pub(super) outbound: Outbound,
    /// Its lane's header says that we read it.
    pub(super) attended: bool,
    /// Whether it may write there.
    pub(super) access: Access,
    pub(super) inbound: Inbound,
}

/// Whether a peer may write the lane that we keep for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Granted,
    /// Its access is being revoked.
    Revoking,
    /// From here on its writes fail; those that have not failed are in the lane.
    Revoked,
}

impl Peer {
    /// Whether it may have led or counted, and is no longer in this view.
    fn has_departed(&self, view: &View) -> bool {
        let belonged = self.listed || self.inbound.has_started() || view.departed.iter().any(|d| d.id == self.process);
        belonged && view.member(self.process).is_none()
    }
}

/// Whether a peer reads the lane that it keeps for us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outbound {
    /// Not as far as we know; we may ask again at this time.
    Unknown(Time),
    /// We have asked.
    Asked,
    /// It does, with this salt.
    Attended(u64),
    /// It cannot be reached.
    Lost,
}

/// About how many bytes a new primary writes to each of the others before its first client has its reply.
const FIRST_BYTES: usize = 512;

impl<R: Rule> ViewLog<R> {
    /// A hint that it may lead soon: prefetches the beginnings of the lanes to peers that attend to them.
    pub fn expect_to_lead<F: Fabric>(&self, fabric: &F) {
        for peer in self.peers.iter().filter(|p| matches!(p.outbound, Outbound::Attended(_))) {
            let start = Remote { peer: peer.id, region: Region::Lane(LOG_LANE), offset: ring::HEADER_BYTES };
            fabric.expect_write(start, FIRST_BYTES);
        }
    }

    /// Tells peers that this process reads their lanes, and asks whether they read the lanes that it writes.
    pub(super) fn attend<F: Fabric>(&mut self, now: Time, fabric: &mut F) {
        for peer in &mut self.peers {
            if !peer.attended
                && let Some(memory) = lane_of(fabric, peer.id)
            {
                // From here on every takeover of this process reads this lane. Pairs with the writer's `read_word` below.
                let salt = ring::salt(self.config.secret, lane_number(peer.id, peer.process));
                memory[ring::ATTENDED_OFFSET / 8].store(salt, Ordering::Release);
                peer.attended = true;
            }
            if let Outbound::Unknown(due) = peer.outbound
                && now >= due
            {
                let word = Remote { peer: peer.id, region: Region::Lane(LOG_LANE), offset: ring::ATTENDED_OFFSET };
                fabric.read_word(word, follower::token(Op::Attended, peer.id));
                peer.outbound = Outbound::Asked;
                self.asked = now;
            }
        }
    }

    pub(super) fn handle_attended(&mut self, peer: PeerId, result: Result<u64, OpError>) {
        let Some(peer) = self.peers.iter_mut().find(|p| p.id == peer) else { return };
        peer.outbound = match result {
            Ok(salt) if salt != 0 => Outbound::Attended(salt),
            Ok(_) => Outbound::Unknown(self.asked.after(self.config.ask_gap_ns)),
            Err(_) => Outbound::Lost,
        };
        if let Outbound::Attended(salt) = peer.outbound
            && let Role::TakingOver(leading) | Role::Primary(leading) = &mut self.role
        {
            leading.connect(peer.process, peer.id, salt);
        }
    }

    /// Revokes the lanes of departed processes as soon as a view excludes them; usually that is long before another process may take over.
    pub(super) fn fence_departed<F: Fabric>(&mut self, fabric: &mut F) {
        let follows = matches!(self.role, Role::Backup | Role::Candidate);
        let Some(view) = self.view.as_ref().filter(|_| follows && self.config.fences_departed) else { return };
        if Canary::LazyRevocation.is_planted() {
            return;
        }
        for peer in self.peers.iter_mut().filter(|p| p.access == Access::Granted && p.has_departed(view)) {
            Mark::DepartedFenced.reach();
            peer.access = Access::Revoking;
            fabric.revoke(peer.id, LOG_LANE, follower::token(Op::Revoked, peer.id));
        }
    }

    pub(super) fn handle_revoked(&mut self, peer: PeerId) {
        if let Some(peer) = self.peers.iter_mut().find(|p| p.id == peer) {
            peer.access = Access::Revoked;
        }
    }

    /// Whether everything that departed processes will ever have written here is here.
    pub(super) fn is_fenced(&self) -> bool {
        let Some(view) = self.view.as_ref().filter(|_| self.config.fences_departed) else { return true };
        let done = |p: &Peer| p.access == Access::Revoked || Canary::LazyRevocation.is_planted();
        self.peers.iter().filter(|p| p.has_departed(view)).all(done)
    }

    /// Drops peers whose memory will not be needed: the process is no longer a member, and the log has moved on to the present primary's lane; or the process
    /// is gone without ever having started as primary.
    pub(super) fn forget_departed(&mut self) {
        let Some(view) = &self.view else { return };
        let primary = view.primary().map(|m| m.id);
        let leads = matches!(self.role, Role::TakingOver(_) | Role::Primary(_));
        let settled = match &self.role {
            Role::TakingOver(_) | Role::Primary(_) => true,
            Role::Backup => self.peers.iter().any(|p| Some(p.process) == primary && p.inbound.phase == Phase::Current),
            Role::Candidate | Role::Excluded => false,
        };
        if !settled {
            return;
        }
        let events = &mut self.events;
        self.peers.retain(|peer| {
            let started = matches!(peer.inbound.phase, Phase::Starting { .. } | Phase::Effective { .. } | Phase::Current);
            // A process that we have not seen in a view may have been made primary by a view that we have not seen.
            let unused = peer.gone && (leads || (peer.read_out && !started));
            let keep = view.member(peer.process).is_some() || !(peer.listed || unused);
            if !keep {
                events.push_back(Event::Forget(peer.id));
            }
            keep
        });
    }
}

/// A number that is different for each lane that this process keeps: peer numbers are never reused.
pub(super) fn lane_number(peer: PeerId, process: ProcessId) -> u64 {
    if martlet_fabric::canary::Canary::ReusedLane.is_planted() { u64::from(process.node.0) } else { u64::from(peer.0) }
}

/// The peer as which a process is connected, if it attends to our lane there, and that lane's salt.
pub(super) fn lane_to(peers: &[Peer], process: ProcessId) -> Option<(PeerId, u64)> {
    // Only the latest connection: earlier ones of the same process are lost.
    let peer = peers.iter().rev().find(|p| p.process == process)?;
    match peer.outbound {
        Outbound::Attended(salt) => Some((peer.id, salt)),
        _ => None,
    }
}

pub(super) fn lane_of<F: Fabric>(fabric: &F, writer: PeerId) -> Option<&Memory> {
    fabric.memory(LocalRegion::Lane { writer, name: LOG_LANE })
}
