//! A client's endpoint: connected to all nodes of a cluster, it reads what they show, and carries requests for those who speak an
//! application's protocol over it.

use std::time::Duration;

use martlet_fabric::primitive::{Ordering, fence};
use martlet_fabric::shm::{ShmFabric, StartError, WakeReason};
use martlet_fabric::{Fabric as _, Identity, Incarnation, Memory, NodeId, PeerEvent, PeerId, PeerKind, RegionName};
use martlet_protocol::basics::layout::{BOARD, COUNTERS, VIEW_RECORD_BYTES};
use martlet_protocol::basics::{ProcessId, sealed};
use martlet_protocol::membership::View;

use crate::config::{Cluster, Key};
use crate::counters::{Reading, ReadingError};
use crate::runner::fabric_config;

/// A client of a cluster on this host. Connections come, and come again after a node has been restarted, by themselves.
#[derive(Debug)]
pub struct ClientEndpoint {
    fabric: ShmFabric,
    nodes: Vec<Node>,
}

#[derive(Debug)]
struct Node {
    id: NodeId,
    /// Its present life, when it is connected.
    life: Option<(PeerId, Incarnation)>,
}

/// Why a client's endpoint was not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The fabric does not start.
    #[error("cannot join the fabric of cluster {cluster}: {error}")]
    Fabric {
        /// The cluster.
        cluster: String,
        /// Why.
        #[source]
        error: StartError,
    },
    /// No name for this client.
    #[error("no random numbers: {0}")]
    Random(#[from] std::io::Error),
}

/// Why something of a node could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// It is not connected.
    #[error("node {node} is not connected{}", refusal.as_ref().map(|r| format!(" ({r})")).unwrap_or_default())]
    NotConnected {
        /// The node.
        node: NodeId,
        /// Why the latest refused connection, to whatever node, was refused.
        refusal: Option<String>,
    },
    /// Its counters make no sense.
    #[error("node {node}: {error}")]
    Counters {
        /// The node.
        node: NodeId,
        /// Why.
        #[source]
        error: ReadingError,
    },
}

impl ClientEndpoint {
    /// Opens an endpoint and begins to connect with every node of the cluster. Returns at once: see [`ClientEndpoint::wait`].
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(cluster: &Cluster) -> Result<ClientEndpoint, OpenError> {
        // Two processes never share an identity: a client's number is chance, of 64 bits.
        let random = Key::generate()?;
        let incarnation = u64::from_le_bytes(*random.bytes().first_chunk().expect("32 bytes")) | 1;
        let identity = Identity { node: NodeId(0), incarnation: Incarnation(incarnation), kind: PeerKind::Client };
        let mut config = fabric_config(cluster, identity);
        config.prefault = false;
        let name = config.cluster.clone();
        let fabric = ShmFabric::start(config).map_err(|error| OpenError::Fabric { cluster: name, error })?;
        let nodes: Vec<Node> = cluster.config().nodes.iter().map(|n| Node { id: NodeId(n.number), life: None }).collect();
        nodes.iter().for_each(|node| fabric.connect(node.id));
        Ok(ClientEndpoint { fabric, nodes })
    }

    /// Takes note of nodes that have come or gone, and hands the next such event out. A node that is gone has been forgotten already: its
    /// memory can no longer be read.
    pub fn event(&mut self) -> Option<PeerEvent> {
        let event = self.fabric.event()?;
        match event {
            PeerEvent::Up { peer, identity } => {
                if let Some(node) = self.nodes.iter_mut().find(|n| n.id == identity.node) {
                    // A later life replaces an earlier one whose end has not been seen yet.
                    if node.life.is_none_or(|(_, known)| known <= identity.incarnation) {
                        node.life = Some((peer, identity.incarnation));
                    }
                }
            }
            PeerEvent::Gone { peer, .. } => {
                self.nodes.iter_mut().filter(|n| n.life.is_some_and(|(p, _)| p == peer)).for_each(|n| n.life = None);
                self.fabric.forget(peer);
            }
        }
        Some(event)
    }

    /// Sleeps until somebody has something for this client, a node has come or gone, or `timeout` has passed. May return early.
    pub fn wait(&mut self, timeout: Duration) -> WakeReason {
        self.fabric.park(&[], Some(timeout), |_| false)
    }

    /// The nodes of the cluster, in the order of its configuration, each with the life that is connected.
    pub fn nodes(&self) -> impl Iterator<Item = (NodeId, Option<PeerId>)> + '_ {
        self.nodes.iter().map(|n| (n.id, n.life.map(|(peer, _)| peer)))
    }

    /// The peer that a node is connected as, as of the last [`ClientEndpoint::event`].
    pub fn peer(&self, node: NodeId) -> Option<PeerId> {
        self.nodes.iter().find(|n| n.id == node)?.life.map(|(peer, _)| peer)
    }

    /// The life of a node that is connected, as of the last [`ClientEndpoint::event`].
    pub fn process(&self, node: NodeId) -> Option<ProcessId> {
        let (_, incarnation) = self.nodes.iter().find(|n| n.id == node)?.life?;
        Some(ProcessId { node, incarnation })
    }

    /// The endpoint itself. Take its events through [`ClientEndpoint::event`].
    pub fn fabric(&mut self) -> &mut ShmFabric {
        &mut self.fabric
    }

    /// The endpoint, for a client that keeps its own list of nodes.
    pub fn into_fabric(self) -> ShmFabric {
        self.fabric
    }

    fn region(&self, node: NodeId, name: RegionName) -> Result<&Memory, ReadError> {
        let memory = self.peer(node).and_then(|peer| self.fabric.peer_memory(peer, name));
        memory.ok_or_else(|| ReadError::NotConnected { node, refusal: self.fabric.last_refusal() })
    }

    /// A node's counters and events. It costs the node nothing.
    ///
    /// # Errors
    /// When it is not connected, or of another version.
    pub fn reading(&self, node: NodeId) -> Result<Reading, ReadError> {
        let region = self.region(node, COUNTERS)?;
        // The number of events first, and behind an acquire: what it counts is then there.
        let mut bytes = Vec::with_capacity(region.len() * 8);
        for word in region {
            bytes.extend_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
            fence(Ordering::Acquire);
        }
        Reading::parse(&bytes).map_err(|error| ReadError::Counters { node, error })
    }

    /// The newest view that a node knows; `None` when it knows none, or is just writing a newer one.
    ///
    /// # Errors
    /// When it is not connected.
    pub fn view(&self, node: NodeId) -> Result<Option<View>, ReadError> {
        let board = self.region(node, BOARD)?;
        // A record may be overwritten while it is read, when two views follow each other closely; the other one is whole then.
        let newest = (0..2)
            .filter_map(|i| sealed::read(&board[(64 + i * VIEW_RECORD_BYTES) / 8..][..VIEW_RECORD_BYTES / 8]))
            .filter_map(|record| View::decode(&record.payload).ok())
            .max_by_key(|view| view.number);
        Ok(newest)
    }
}
