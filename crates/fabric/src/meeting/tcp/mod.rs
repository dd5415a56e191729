//! How processes of several hosts meet: over TCP, whatever carries their operations afterwards.
//!
//! | file | what stands there |
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

/// Two processes that know each other and have the same key, one of which has told the other how it is reached.
pub(crate) struct Introduction<'a> {
    pub(crate) party: &'a Party,
    pub(crate) meeting: &'a Meeting,
    /// The peer's identity, and what it offers.
    pub(crate) identity: Identity,
    pub(crate) spec: &'a RegionSpec,
    /// What it has told us, and what we tell it.
    pub(crate) offer: &'a [u8],
    pub(crate) ours: &'a [u8],
    /// The other end of the connection.
    pub(crate) from: SocketAddr,
}

/// What a fabric adds to the meeting of two processes: what they keep for each other. It belongs to the bootstrap thread.
pub(crate) trait Carrier: Send + 'static {
    /// What is kept for a peer that has not said yet how it is reached.
    type Kept: Send;
    /// A connected peer.
    type Peer: Debug + Send + 'static;

    /// Makes what a process of kind `ours` keeps for one of kind `theirs` that offers these regions.
    fn keep(&self, ours: PeerKind, theirs: PeerKind, spec: &RegionSpec) -> Result<Self::Kept, Refusal>;

    /// What the peer has to know of it: the body of our offer. `number` is what we call the peer.
    fn offer(&self, kept: &Self::Kept, peer: PeerKind, number: PeerId) -> Vec<u8>;

    /// Completes it with what the peer has offered.
    fn connect(&self, kept: Self::Kept, introduction: Introduction<'_>) -> Result<Self::Peer, Refusal>;

    /// Both ends have agreed. The endpoint hears of it after this.
    fn connected(&self, peer: PeerId, made: &mut Self::Peer) {
        let _ = (peer, made);
    }

    /// The connection is no more: nothing of it may take effect here after this returns. The endpoint hears of it, and the peer may meet us anew, after this.
    fn lost(&self, peer: PeerId) {
        let _ = peer;
    }

    /// A device that says something by itself, for the log.
    fn device(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Takes what the device has said.
    fn hear_device(&mut self) {}
}
