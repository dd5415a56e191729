//! What the endpoint and its bootstrap thread say to each other.

use std::net::SocketAddr;

use crate::contract::{NodeId, PeerId};
use crate::exchange::Exchange;

/// What the bootstrap thread tells the endpoint.
#[derive(Debug)]
pub(crate) enum Note<P> {
    Up(PeerId, Box<P>),
    Gone(PeerId),
    /// The connection's TCP connection has ended. Anybody on the way can cause that, so the endpoint asks the peer, and cuts the connection if it
    /// gets no answer. Only where [`super::Carrier::ASKS`].
    Doubt(PeerId),
    /// The connection has a TCP connection again, and is otherwise unchanged.
    Sure(PeerId),
}

/// What the endpoint asks of the bootstrap thread.
#[derive(Debug)]
pub(crate) enum Command<P> {
    /// Accept connections from now on.
    Open,
    Connect(NodeId, SocketAddr),
    Disconnect(NodeId),
    /// End a connection that no longer works; the endpoint wants to be told when it has ended.
    Cut(PeerId),
    /// End a connection and release what was kept for it, which takes long.
    Forget(PeerId, Option<Box<P>>),
    Stop,
}

pub(crate) type Shared<P> = Exchange<Note<P>, Command<P>>;
