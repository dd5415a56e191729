//! What the endpoint and its bootstrap thread say to each other.

use std::net::SocketAddr;

use crate::contract::{NodeId, PeerId};
use crate::exchange::Exchange;

/// What the bootstrap thread tells the endpoint.
#[derive(Debug)]
pub(crate) enum Note<P> {
    Up(PeerId, Box<P>),
    Gone(PeerId),
    /// The connection's TCP connection has ended. Anybody on the way can bring that about, so the peer is to be asked; who gets no answer cuts the connection.
    /// Only where [`super::Carrier::ASKS`].
    Doubt(PeerId),
    /// It has a TCP connection again, and nothing else of it has changed.
    Sure(PeerId),
}

/// What the endpoint asks of the bootstrap thread.
#[derive(Debug)]
pub(crate) enum Command<P> {
    /// Accept connections from now on.
    Open,
    Connect(NodeId, SocketAddr),
    Disconnect(NodeId),
    /// End a connection that does not work any more; the endpoint wants to hear of it.
    Cut(PeerId),
    /// End a connection and give back what was kept for it, which takes long.
    Forget(PeerId, Option<Box<P>>),
    Stop,
}

pub(crate) type Shared<P> = Exchange<Note<P>, Command<P>>;
