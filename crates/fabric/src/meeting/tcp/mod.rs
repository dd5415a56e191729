//! How processes of several hosts meet: over TCP, whatever carries their operations afterwards.
//!
//! | file | contents |
//! |---|---|
//! | `stream` | messages over a connection |
//! | `handshake` | one handshake |
//! | `shared` | what the endpoint and its bootstrap thread say to each other |
//! | `bootstrap` | the thread that listens, dials, shakes hands and watches the connections |

use std::fmt::Debug;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use super::{Meeting, Party, Refusal};
use crate::contract::{Identity, PeerId, PeerKind, RegionSpec};

pub(crate) mod bootstrap;
mod handshake;
pub(crate) mod shared;
pub(crate) mod stream;

/// Two processes that know each other and have the same key. One of them has told the other how it is reached.
pub(crate) struct Introduction<'a> {
    pub(crate) party: &'a Party,
    pub(crate) meeting: &'a Meeting,
    /// The peer's identity, and what it offers.
    pub(crate) identity: Identity,
    pub(crate) spec: &'a RegionSpec,
    /// What the peer has told us, and what we tell it.
    pub(crate) offer: &'a [u8],
    pub(crate) ours: &'a [u8],
    /// The other end of the connection.
    pub(crate) from: SocketAddr,
}

/// What a fabric adds to the handshake of two processes: what they keep for each other. It belongs to the bootstrap thread.
pub(crate) trait Carrier: Send + 'static {
    /// What is kept for a peer that has not yet said how it is reached.
    type Kept: Send;
    /// A connected peer.
    type Peer: Debug + Send + 'static;

    /// Whether the peers of a connection reach each other without the TCP connection on which it was agreed, so that the end of the TCP connection is
    /// only a hint.
    const ASKS: bool = false;

    /// Creates what a process of kind `ours` keeps for the peer `theirs`, which offers these regions.
    fn keep(&self, ours: PeerKind, theirs: Identity, spec: &RegionSpec) -> Result<Self::Kept, Refusal>;

    /// What the peer has to know of `kept`: the body of our offer. `number` is the peer's number here.
    fn offer(&self, kept: &Self::Kept, peer: PeerKind, number: PeerId) -> Vec<u8>;

    /// Completes `kept` with what the peer has offered.
    fn connect(&self, kept: Self::Kept, introduction: Introduction<'_>) -> Result<Self::Peer, Refusal>;

    /// The connection that both ends have said they already hold. If there is one, no new connection is made; only its TCP connection is new.
    fn resumes(peer: &Self::Peer) -> Option<PeerId> {
        let _ = peer;
        None
    }

    /// Both ends have agreed. The endpoint is told after this.
    fn connected(&self, peer: PeerId, made: &mut Self::Peer) {
        let _ = (peer, made);
    }

    /// The connection has ended: once this returns, nothing of it may take effect here. After this, the endpoint is told, unless it ended the
    /// connection itself, and the peer may connect anew.
    fn lost(&self, peer: PeerId) {
        let _ = peer;
    }

    /// A note has been left for the endpoint, which may sleep.
    fn ring(&self) {}

    /// A device whose reports go into the log.
    fn device(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Takes what the device has reported.
    fn hear_device(&mut self) {}
}
