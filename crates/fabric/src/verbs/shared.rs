//! What the endpoint and its bootstrap thread say to each other.

use std::net::SocketAddr;

use super::peer::Peer;
use crate::contract::{NodeId, PeerId};
use crate::exchange::Exchange;

/// What the bootstrap thread tells the endpoint.
#[derive(Debug)]
pub(super) enum Note {
    Up(PeerId, Box<Peer>),
    Gone(PeerId),
}

/// What the endpoint asks of the bootstrap thread.
#[derive(Debug)]
pub(super) enum Command {
    /// Accept connections from now on.
    Open,
    Connect(NodeId, SocketAddr),
    Disconnect(NodeId),
    /// End a connection that does not work any more; the endpoint wants to hear of it.
    Cut(PeerId),
    /// End a connection and give back what was kept for it, which takes long.
    Forget(PeerId, Option<Box<Peer>>),
    Stop,
}

pub(super) type Shared = Exchange<Note, Command>;
