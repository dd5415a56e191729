//! The processes that this one is or was connected with, for as long as they matter.

use martlet_fabric::primitive::Ordering;
use martlet_fabric::ring::{self, Reader, Writer};
use martlet_fabric::{Fabric, LocalRegion, Memory, PeerId, Region, Remote};

use super::layout::{CONTROL_LANE, Op, STATE_LANE, Status, control};
use super::{Apus, Event};
use crate::basics::layout::LOG_LANE;
use crate::basics::{Mark, ProcessId};
use crate::replica::state_transfer::StateLane;
use crate::replica::watch::Watch;

/// A connected process.
#[derive(Debug)]
pub(super) struct Peer {
    pub id: PeerId,
    /// As groups call it: see [`Roster::name_of`](crate::replica::roster::Roster::name_of).
    pub process: ProcessId,
    /// As it calls itself.
    pub identity: ProcessId,
    pub watch: Watch<Status>,
    /// The writing end of the log lane that it keeps for us; a reign takes it while it lasts.
    pub writer: Option<Writer>,
    /// The reading end of the lane that we keep for it.
    pub reader: Reader,
    /// Its last request, as a leader, that was granted.
    pub served: u64,
    /// The last view id that it was told because it should know of it.
    pub outdated: u64,
    /// What it was last told of our reign: see [`control::REIGN`].
    pub reign: u64,
    /// The state that we send it.
    pub state_lane: StateLane,
    pub state_reader: Reader,
}

/// A lane's words that `peer` writes here.
pub(super) fn control_of<F: Fabric>(fabric: &F, peer: PeerId) -> Option<&Memory> {
    fabric.memory(LocalRegion::Lane { writer: peer, name: CONTROL_LANE })
}

/// A word of that lane.
pub(super) fn word_from<F: Fabric>(fabric: &F, peer: PeerId, word: usize) -> u64 {
    // Pairs with the release of the peer's writes.
    control_of(fabric, peer).map_or(0, |lane| lane[word].load(Ordering::Acquire))
}

/// Writes a word into the lane that `peer` keeps for us.
pub(super) fn tell<F: Fabric>(fabric: &mut F, peer: PeerId, word: usize, value: u64) {
    let at = Remote { peer, region: Region::Lane(CONTROL_LANE), offset: word * 8 };
    fabric.write(at, &value.to_le_bytes(), Op::Control.token(0, peer));
}

/// What is known of the lives of these.
pub(super) fn watches(peers: &mut [Peer]) -> impl Iterator<Item = (PeerId, &mut Watch<Status>)> {
    peers.iter_mut().map(|p| (p.id, &mut p.watch))
}

/// The latest connection with a process.
pub(super) fn latest(peers: &[Peer], process: ProcessId) -> Option<&Peer> {
    peers.iter().rev().find(|p| p.process == process)
}

impl Apus {
    /// A member's process is connected; its lanes, in both directions, are fresh. The process may be reconnecting: nothing of an earlier connection lands in
    /// the new lanes.
    pub(super) fn meet<F: Fabric>(&mut self, peer: PeerId, process: ProcessId, fabric: &mut F) {
        if self.peers.iter().any(|p| p.id == peer) {
            return;
        }
        let name = self.roster.name_of(process);
        for at in 0..self.peers.len() {
            if self.peers[at].process == name {
                Mark::ApusReconnected.reach();
                self.note_death(at, false);
            }
        }
        // A fresh lane is granted from the start, but in this engine no process writes before a promise has let it in.
        self.inbound.revoking += 1;
        fabric.revoke(peer, LOG_LANE, Op::Revoke.token(0, peer));
        // The content of records may come from outside (TRAPS 14), so only a process that knows the salt can write a valid record.
        let salt = |lane: u64| ring::salt(self.config.secret, 2 * u64::from(peer.0) + lane);
        let (log_salt, state_salt) = (salt(0), salt(1));
        tell(fabric, peer, control::LOG_SALT, log_salt);
        tell(fabric, peer, control::STATE_SALT, state_salt);
        let lane = Remote { peer, region: Region::Lane(LOG_LANE), offset: 0 };
        self.peers.push(Peer {
            id: peer,
            process: name,
            identity: process,
            watch: Watch::new(self.config.thresholds),
            writer: Some(Writer::new(lane, self.config.log_ring_bytes)),
            reader: Reader::salted(log_salt),
            served: 0,
            outdated: 0,
            reign: 0,
            state_lane: StateLane::new(peer, STATE_LANE, &self.config),
            state_reader: Reader::salted(state_salt),
        });
    }

    pub(super) fn peer(&self, id: PeerId) -> Option<&Peer> {
        self.peers.iter().find(|p| p.id == id)
    }

    /// The latest connection with a process.
    pub(super) fn peer_of(&self, process: ProcessId) -> Option<&Peer> {
        latest(&self.peers, process)
    }

    /// Drops dead processes that belong to neither the group nor the view, and lost connections of processes that have reconnected.
    pub(super) fn forget_departed(&mut self) {
        if !self.peers.iter().any(|p| p.watch.dead) {
            return;
        }
        let Apus { peers, log, inbound, roster, events, .. } = self;
        let living: Vec<ProcessId> = peers.iter().filter(|p| !p.watch.dead).map(|p| p.process).collect();
        peers.retain(|p| {
            // Membership has to be told of a process that the view lists, once it is given up.
            let listed = log.group().is_none_or(|group| group.contains(p.process)) || roster.lists(p.process);
            let belongs = listed && !living.contains(&p.process);
            let keep = !p.watch.dead || belongs || inbound.from == Some(p.id) || p.writer.is_none();
            if !keep {
                events.push_back(Event::Forget(p.id));
            }
            keep
        });
    }
}

impl Peer {
    /// Tells it the state of our reign, if it does not know that.
    pub fn tell_reign<F: Fabric>(&mut self, reign: u64, fabric: &mut F) {
        if self.reign != reign {
            self.reign = reign;
            tell(fabric, self.id, control::REIGN, reign);
        }
    }
}
