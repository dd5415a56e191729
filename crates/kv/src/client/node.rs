//! A node as its client sees it: the lane to the node, the lane from it, and the operations under way.

use martlet_fabric::ring::{Reader, Record, Writer, salt};
use martlet_fabric::{Fabric, NodeId, PeerId, Region, Remote, Token};
use martlet_protocol::basics::layout::{self, Component, Sizes};

use super::config::{ClientConfig, Reads};
use crate::frontend::fabric::wire;

/// Tokens say what an operation was for.
pub(super) const REQUEST: u64 = 0;
pub(super) const PROGRESS: u64 = 1;

/// A node that we are connected to.
#[derive(Debug)]
pub(super) struct Node {
    pub id: NodeId,
    pub peer: PeerId,
    pub reader: Reader,
    pub writer: Writer,
    /// Writes that have not completed yet.
    pub in_flight: u32,
    /// The epoch in which the node was last told up to which number we have sent requests elsewhere.
    pub told: Option<u32>,
    pub asking: bool,
    /// It sent an invalid record, or its lane is lost.
    pub broken: bool,
}

impl Node {
    /// A node that has just been connected, and has been told nothing yet.
    pub fn new(id: NodeId, peer: PeerId, session: u64, sizes: Sizes) -> Node {
        let lane = Remote { peer, region: Region::Lane(layout::CLIENT_LANE), offset: 0 };
        Node {
            id,
            peer,
            reader: Reader::salted(lane_salt(session, peer)),
            writer: Writer::new(lane, sizes.client_ring_bytes),
            in_flight: 0,
            told: None,
            asking: false,
            broken: false,
        }
    }

    /// Says who we are, and that requests below `next` may have been sent elsewhere. Returns whether there was room for it.
    pub fn introduce<F: Fabric>(&mut self, fabric: &mut F, config: &ClientConfig, next: u64, epoch: u32) -> bool {
        let mut hello = Record::with_capacity(wire::HELLO_BYTES);
        let (session, by_quorum) = (config.session, config.reads == Reads::Quorum);
        hello.fill(|out| wire::encode_hello(epoch, session, next, lane_salt(session, self.peer), by_quorum, out));
        let posted = self.writer.push(fabric, &mut hello, token(self.peer, REQUEST));
        self.in_flight += posted.unwrap_or(0);
        self.told = posted.map(|_| epoch).or(self.told);
        posted.is_some()
    }

    /// Asks how much of what we sent the node has taken.
    pub fn ask_progress<F: Fabric>(&mut self, fabric: &mut F) {
        if !self.asking {
            self.asking = true;
            fabric.read_word(self.writer.consumed_word(), token(self.peer, PROGRESS));
        }
    }
}

/// The salt of the lane that we keep for a node's answers.
fn lane_salt(session: u64, peer: PeerId) -> u64 {
    salt(session, u64::from(peer.0))
}

/// The token of an operation on that peer.
pub(super) fn token(peer: PeerId, what: u64) -> Token {
    Component::Application.token(u64::from(peer.0) << 1 | what)
}
