//! The processes that this one is or was connected with, for as long as they matter.

use martlet_fabric::ring::{self, Reader, Writer};
use martlet_fabric::{Fabric, PeerId, Region, Remote};

use super::background::Watch;
use super::layout::{Op, STATE_LANE, permission as lane_words};
use super::permission;
use super::{Event, Mu};
use crate::basics::layout::LOG_LANE;
use crate::basics::{Mark, ProcessId};
use crate::replica::state_transfer::StateLane;

/// A connected process.
#[derive(Debug)]
pub(super) struct Peer {
    pub id: PeerId,
    /// As groups call it: see [`Roster::name_of`](crate::replica::roster::Roster::name_of).
    pub process: ProcessId,
    /// As it calls itself.
    pub identity: ProcessId,
    pub watch: Watch,
    /// The writing end of the log lane that it keeps for us; a reign takes it while it lasts.
    pub writer: Option<Writer>,
    /// Where its numbers land in our scratch memory, once they have been requested. No other peer uses the slot while this one is here, because a read of an
    /// earlier reign may land while a later reign reads.
    pub slot: Option<usize>,
    /// Outstanding reads of its numbers by reigns that have ended.
    pub stray_reads: u32,
    /// The reading end of the lane that we keep for it.
    pub reader: Reader,
    /// Its last request that was granted.
    pub served: u64,
    /// What we teach it.
    pub state_lane: StateLane,
    pub state_reader: Reader,
}

/// What is known of the lives of these.
pub(super) fn watches(peers: &mut [Peer]) -> impl Iterator<Item = (PeerId, &mut Watch)> {
    peers.iter_mut().map(|p| (p.id, &mut p.watch))
}

/// The latest connection with a process.
pub(super) fn latest(peers: &[Peer], process: ProcessId) -> Option<&Peer> {
    peers.iter().rev().find(|p| p.process == process)
}

impl Mu {
    /// A member's process is connected; its lanes, in both directions, are fresh. The engine is not told of clients.
    ///
    /// The process may be reconnecting. Then it is served, asked and read like a new one, since nothing of an earlier connection lands in the new lanes. It is
    /// still one process with one vote.
    pub fn handle_peer_up<F: Fabric>(&mut self, peer: PeerId, process: ProcessId, fabric: &mut F) {
        if self.peers.iter().any(|p| p.id == peer) {
            return;
        }
        let name = self.roster.name_of(process);
        for at in 0..self.peers.len() {
            if self.peers[at].process == name {
                Mark::MuReconnected.reach();
                self.note_death(at, false);
            }
        }
        // A fresh lane is granted from the start, but in this engine no process has permission before it has asked.
        self.permission.revoking += 1;
        fabric.revoke(peer, LOG_LANE, Op::Revoke.token(0, peer));
        let lane = Remote { peer, region: Region::Lane(LOG_LANE), offset: 0 };
        // The content of records may come from outside (TRAPS 14), so only a process that knows the salt can write a valid record.
        let salt = |lane: u64| ring::salt(self.config.secret, 2 * u64::from(peer.0) + lane);
        let (log_salt, state_salt) = (salt(0), salt(1));
        permission::tell(fabric, peer, lane_words::LOG_SALT, log_salt);
        permission::tell(fabric, peer, lane_words::STATE_SALT, state_salt);
        self.peers.push(Peer {
            id: peer,
            process: name,
            identity: process,
            watch: Watch::new(self.config.thresholds),
            writer: Some(Writer::new(lane, self.config.log_ring_bytes)),
            slot: None,
            stray_reads: 0,
            reader: Reader::salted(log_salt),
            served: 0,
            state_lane: StateLane::new(peer, STATE_LANE, &self.config),
            state_reader: Reader::salted(state_salt),
        });
    }

    /// A peer's process is gone, or its connection.
    pub fn handle_peer_gone(&mut self, peer: PeerId, certain: bool) {
        if let Some(at) = self.peers.iter().position(|p| p.id == peer) {
            self.note_death(at, certain);
        }
    }

    /// Drops dead processes that belong to neither the group nor the view, and lost connections of processes that have reconnected.
    pub(super) fn forget_departed(&mut self) {
        if !self.peers.iter().any(|p| p.watch.dead) {
            return;
        }
        let Mu { peers, log, permission, roster, events, .. } = self;
        let living: Vec<ProcessId> = peers.iter().filter(|p| !p.watch.dead).map(|p| p.process).collect();
        peers.retain(|p| {
            // Membership has to be told of a process that the view lists, once it is given up.
            let listed = log.group().is_none_or(|g| g.contains(p.process)) || roster.lists(p.process);
            let belongs = listed && !living.contains(&p.process);
            let keep = !p.watch.dead || belongs || permission.holder == Some(p.id) || p.writer.is_none() || p.stray_reads > 0;
            if !keep {
                events.push_back(Event::Forget(p.id));
            }
            keep
        });
    }
}
