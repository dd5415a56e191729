//! Endpoints of one process that are connected to each other and to nothing else.
//!
//! What runs on them is what runs between processes, in the same kind of memory, but invisible from outside. They are for a program that rehearses
//! what it may have to do one day. No thread makes the connections, no socket is opened and no name is taken.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;

use super::ShmFabric;
use crate::contract::{Identity, PeerId, PeerKind, RegionSpec};
use crate::shm::config::loopback;
use crate::shm::mail;
use crate::shm::peer::{Kept, Lane, Own, Peer};
use crate::shm::shared::{Note, Shared};

impl ShmFabric {
    /// Makes an endpoint for each of these processes, each connected to all others, except clients to clients. To every other endpoint, the process
    /// at index `n` of the list is [`PeerId`] `n + 1`, and its `Up` event already waits there.
    ///
    /// Memory is allocated as it is touched. [`ShmFabric::connect`] and similar calls have no effect here.
    ///
    /// # Errors
    /// When the system has no memory or descriptors left.
    pub fn private(processes: &[(Identity, RegionSpec)]) -> io::Result<Vec<ShmFabric>> {
        let own = processes.iter().map(|(_, spec)| Own::create(spec.clone(), false).map(Arc::new)).collect::<io::Result<Vec<_>>>()?;
        let mut endpoints = Vec::with_capacity(processes.len());
        for ((identity, _), own) in processes.iter().zip(&own) {
            endpoints.push(ShmFabric::new(*identity, Arc::new(Shared::new(own.clone())?), own.clone(), loopback()?, None));
        }
        for (a, (first, spec)) in processes.iter().enumerate() {
            for (b, (second, other_spec)) in processes.iter().enumerate().skip(a + 1) {
                if first.kind == PeerKind::Client && second.kind == PeerKind::Client {
                    continue;
                }
                let kept = Kept::create(spec, first.kind, second.kind, false)?;
                let others = Kept::create(other_spec, second.kind, first.kind, false)?;
                let (offer, others_offer) = (offer(&own[a], &kept, second.kind)?, offer(&own[b], &others, first.kind)?);
                introduce(&endpoints[a], b, *second, other_spec, first.kind, kept, others_offer)?;
                introduce(&endpoints[b], a, *first, spec, second.kind, others, offer)?;
            }
        }
        Ok(endpoints)
    }

    /// Forgets what has happened between this endpoint and the other members of its private fabric, as if they had just been connected: nothing is
    /// under way, the lanes that it keeps for them are zeroed and granted, there is no mail, and their `Up` events come again. Public memory stays as
    /// it is, and so does everything between this endpoint and clients. Call this at every member's endpoint before any of them goes on.
    pub fn rewind(&mut self) {
        self.queue.clear();
        (self.fenced, self.dirty, self.turn) = (0, false, 0);
        self.loopback.1.skip();
        let known = std::mem::take(&mut self.members);
        let mut members: Vec<_> = known.into_iter().filter_map(|id| Some((id, self.peers[id.0 as usize].take()?))).collect();
        // The peers that it has not been told of yet.
        let notes: Vec<Note> = std::iter::from_fn(|| self.shared.note()).collect();
        for note in notes {
            match note {
                Note::Up(id, peer) if peer.inbound.is_some() => members.push((id, peer)),
                other => self.shared.leave(other),
            }
        }
        for (id, mut peer) in members {
            peer.gone = false;
            peer.inbound.iter_mut().for_each(mail::Receiver::skip);
            peer.ours.iter().for_each(Lane::refresh);
            self.shared.leave(Note::Up(id, peer));
        }
    }
}

fn offer(own: &Own, kept: &Kept, to: PeerKind) -> io::Result<Vec<OwnedFd>> {
    let [public, owned, bell] = own.fds(to);
    [public, owned, bell, kept.fd.as_fd()].into_iter().map(|fd| fd.try_clone_to_owned()).collect()
}

fn introduce(
    endpoint: &ShmFabric,
    place: usize,
    identity: Identity,
    spec: &RegionSpec,
    own_kind: PeerKind,
    kept: Kept,
    offered: Vec<OwnedFd>,
) -> io::Result<()> {
    let peer = Peer::map(identity, spec, own_kind, kept, offered, false).map_err(io::Error::other)?;
    endpoint.shared.leave(Note::Up(PeerId(place as u32 + 1), Box::new(peer)));
    Ok(())
}
