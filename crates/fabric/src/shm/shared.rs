//! What the endpoint and its bootstrap thread share.

use std::io;
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::ear::Attention;
use super::peer::{Own, Peer};
use crate::contract::{NodeId, PeerId};
use crate::exchange::Exchange;

/// What the bootstrap thread tells the endpoint.
#[derive(Debug)]
pub(super) enum Note {
    Up(PeerId, Box<Peer>),
    Gone { peer: PeerId, certain: bool },
}

/// What the endpoint asks of the bootstrap thread.
#[derive(Debug)]
pub(super) enum Command {
    /// Accept connections from now on.
    Open,
    Connect(NodeId),
    Disconnect(NodeId),
    /// From now on, whenever the endpoint's [`Ear`](super::ear::Ear) is armed, listen to these descriptors and not to earlier ones.
    Listen(Vec<OwnedFd>),
    /// Close the connection and unmap its memory. Unmapping takes long, so the endpoint's thread does not do it.
    Forget(PeerId, Option<Box<Peer>>),
    Stop,
}

#[derive(Debug)]
pub(super) struct Shared {
    exchange: Exchange<Note, Command>,
    pub(super) own: Arc<Own>,
    pub(super) attention: Attention,
}

impl Deref for Shared {
    type Target = Exchange<Note, Command>;

    fn deref(&self) -> &Exchange<Note, Command> {
        &self.exchange
    }
}

impl Shared {
    pub(super) fn new(own: Arc<Own>) -> io::Result<Shared> {
        Ok(Shared { exchange: Exchange::new()?, own, attention: Attention::new() })
    }

    /// For the bootstrap thread: leaves a note and wakes the endpoint's thread if it is parked.
    pub(super) fn tell(&self, note: Note) {
        self.exchange.leave(note);
        self.wake();
    }

    /// For the bootstrap thread: wakes the endpoint's thread if it is parked.
    pub(super) fn wake(&self) {
        // Pairs with the fence of a parking endpoint: either it sees the note, or we see that it sleeps.
        std::sync::atomic::fence(Ordering::SeqCst);
        self.own.bell.ring();
    }
}
