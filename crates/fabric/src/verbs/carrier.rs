//! What RDMA adds to the handshake of two processes.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::events::Events;
use super::mail::Keys;
use super::offer::Offer;
use super::peer::{Card, Kept, Peer};
use crate::contract::{Identity, PeerId, PeerKind, RegionSpec};
use crate::meeting::Refusal;
use crate::meeting::tcp::{self, Introduction};

/// The card, and the events that its device reports.
pub(super) struct Carrier {
    card: Arc<Card>,
    events: Events,
}

impl Carrier {
    pub(super) fn new(card: Arc<Card>) -> Carrier {
        Carrier { events: Events::of(&card.device), card }
    }
}

impl tcp::Carrier for Carrier {
    type Kept = Kept;
    type Peer = Peer;

    fn keep(&self, ours: PeerKind, theirs: Identity, spec: &RegionSpec) -> Result<Kept, Refusal> {
        Kept::create(&self.card, ours, theirs.kind, spec).map_err(|e| format!("no memory or queue pairs for it ({e})").into())
    }

    fn offer(&self, kept: &Kept, peer: PeerKind, number: PeerId) -> Vec<u8> {
        kept.offer(&self.card, peer, number.0).encode()
    }

    fn connect(&self, kept: Kept, introduction: Introduction<'_>) -> Result<Peer, Refusal> {
        let Introduction { party, meeting, identity, spec, offer, .. } = introduction;
        let offer = Offer::decode(offer)?;
        let (ours, theirs) = meeting.session_keys(party);
        Ok(kept.connect(&self.card, party.identity.kind, identity, spec, &offer, Keys::new(&ours, &theirs))?)
    }

    fn device(&self) -> Option<BorrowedFd<'_>> {
        self.events.fd()
    }

    fn hear_device(&mut self) {
        self.events.log();
    }
}
