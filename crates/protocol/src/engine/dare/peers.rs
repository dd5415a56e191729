//! The processes that this one is or was connected with, for as long as they matter.

use martlet_fabric::primitive::Ordering;
use martlet_fabric::{Fabric, LocalRegion, Memory, PeerId, Region, Remote};

use super::layout::{CONTROL_LANE, MAX_PEERS, Op, Status};
use super::{Dare, Event};
use crate::basics::layout::LOG_LANE;
use crate::basics::{Mark, ProcessId};
use crate::replica::watch::Watch;

/// A connected process.
#[derive(Debug)]
pub(super) struct Peer {
    pub id: PeerId,
    pub process: ProcessId,
    pub watch: Watch<Status>,
    /// The last grant that we gave it.
    pub granted: u64,
    /// The last term that it was told because it should know of it.
    pub outdated: u64,
    /// What it was last told of our reign: see [`BEAT`](super::layout::control::BEAT).
    pub beat: u64,
    /// Its last request for the state that has ended or is being served.
    pub heard: u64,
    /// The number of our latest request to read its state, since the last search for the state ended; 0: none.
    pub wished: u64,
    /// Where our reads from it land, once there are any. No other peer uses the slot while this one is here, because an earlier read may land late.
    pub slot: Option<usize>,
    /// Outstanding reads of more than a word from it.
    pub reads: u32,
}

/// A lane's words that `peer` writes here.
pub(super) fn control<F: Fabric>(fabric: &F, peer: PeerId) -> Option<&Memory> {
    fabric.memory(LocalRegion::Lane { writer: peer, name: CONTROL_LANE })
}

/// A word of that lane.
pub(super) fn word_from<F: Fabric>(fabric: &F, peer: PeerId, word: usize) -> u64 {
    // Pairs with the release of the peer's writes.
    control(fabric, peer).map_or(0, |lane| lane[word].load(Ordering::Acquire))
}

/// Where a word of the lane is that `peer` keeps for us.
pub(super) fn at_control(peer: PeerId, word: usize) -> Remote {
    Remote { peer, region: Region::Lane(CONTROL_LANE), offset: word * 8 }
}

/// Writes a word into the lane that `peer` keeps for us.
pub(super) fn tell<F: Fabric>(fabric: &mut F, peer: PeerId, word: usize, value: u64) {
    fabric.write(at_control(peer, word), &value.to_le_bytes(), Op::Control.token(0, peer));
}

/// What is known of the lives of these.
pub(super) fn watches(peers: &mut [Peer]) -> impl Iterator<Item = (PeerId, &mut Watch<Status>)> {
    peers.iter_mut().map(|p| (p.id, &mut p.watch))
}

/// The latest connection with a process.
pub(super) fn latest(peers: &[Peer], process: ProcessId) -> Option<&Peer> {
    peers.iter().rev().find(|p| p.process == process)
}

impl Dare {
    /// A member's process is connected; its lanes, in both directions, are fresh. The process may be reconnecting: nothing of an earlier connection lands in
    /// the new lanes.
    pub(super) fn meet<F: Fabric>(&mut self, peer: PeerId, process: ProcessId, fabric: &mut F) {
        if self.peers.iter().any(|p| p.id == peer) {
            return;
        }
        for at in 0..self.peers.len() {
            if self.peers[at].process == process {
                Mark::DareReconnected.reach();
                self.note_death(at, false);
            }
        }
        // A fresh lane is granted from the start, but in this engine no process has access before this server has given it.
        self.access.revoking += 1;
        fabric.revoke(peer, LOG_LANE, Op::Revoke.token(0, peer));
        self.peers.push(Peer {
            id: peer,
            process,
            watch: Watch::new(self.config.thresholds),
            granted: 0,
            outdated: 0,
            beat: 0,
            heard: 0,
            wished: 0,
            slot: None,
            reads: 0,
        });
    }

    pub(super) fn peer(&self, id: PeerId) -> Option<&Peer> {
        self.peers.iter().find(|p| p.id == id)
    }

    pub(super) fn peer_mut(&mut self, id: PeerId) -> Option<&mut Peer> {
        self.peers.iter_mut().find(|p| p.id == id)
    }

    /// The latest connection with a process.
    pub(super) fn peer_of(&self, process: ProcessId) -> Option<&Peer> {
        latest(&self.peers, process)
    }

    /// Where reads from a peer land: its slot, which is assigned now if it has none. `None`: there are too many peers.
    pub(super) fn slot_of(&mut self, at: usize) -> Option<usize> {
        if self.peers[at].slot.is_none() {
            let is_free = |slot: &usize| self.peers.iter().all(|p| p.slot != Some(*slot));
            self.peers[at].slot = (0..MAX_PEERS).find(is_free);
        }
        self.peers[at].slot
    }

    /// A read of more than a word from a peer has completed.
    pub(super) fn note_read(&mut self, peer: PeerId) {
        if let Some(peer) = self.peer_mut(peer) {
            peer.reads -= 1;
        }
    }

    /// Drops dead processes that belong to neither the group nor the view, and lost connections of processes that have reconnected.
    pub(super) fn forget_departed(&mut self) {
        if !self.peers.iter().any(|p| p.watch.dead) {
            return;
        }
        let Dare { peers, log, access, roster, events, reign, .. } = self;
        let living: Vec<ProcessId> = peers.iter().filter(|p| !p.watch.dead).map(|p| p.process).collect();
        peers.retain(|p| {
            // Membership has to be told of a process that the view lists, once it is given up.
            let listed = log.group().is_none_or(|group| group.contains(p.process)) || roster.lists(p.process);
            let is_written = reign.as_ref().is_some_and(|reign| reign.followers.iter().any(|f| f.peer == p.id && f.is_zombie()));
            let keep =
                !p.watch.dead || (listed && !living.contains(&p.process)) || access.holder == Some(p.id) || p.reads > 0 || is_written;
            if !keep {
                events.push_back(Event::Forget(p.id));
            }
            keep
        });
    }
}
