//! A client's endpoint: connected to all nodes of a cluster, it reads what they show, and carries the requests of programs that speak an application's protocol
//! over it.

use std::time::Duration;

use martlet_fabric::primitive::Ordering;
use martlet_fabric::shm::ShmFabric;
use martlet_fabric::{Identity, Incarnation, Local, LocalRegion, NodeId, PeerEvent, PeerId, PeerKind, Region, RegionName, Remote, Token};
use martlet_protocol::basics::layout::{BOARD, COUNTERS, COUNTERS_BYTES, SCRATCH, VIEW_RECORD_BYTES};
use martlet_protocol::basics::{ProcessId, sealed};
use martlet_protocol::membership::View;

use crate::backend::{Backend, StartError};
use crate::config::{Cluster, Key};
use crate::counters::{Reading, ReadingError};

/// The token of our own reads. A caller that takes the endpoint's completions itself has to use other tokens, and gets only its own completions.
const OURS: Token = Token(u64::MAX);
/// Where a view's records begin on a board, in bytes.
const BOARD_RECORDS: usize = 64;

/// A client of a cluster. It connects by itself, and connects again after a node has been restarted.
#[derive(Debug)]
pub struct ClientEndpoint<F: Backend = ShmFabric> {
    fabric: F,
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
    /// No random name could be had for this client.
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
        /// Why the latest refused connection, to any node, was refused.
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

impl<F: Backend> ClientEndpoint<F> {
    /// Opens an endpoint and begins to connect with every node of the cluster. Returns at once: see [`ClientEndpoint::wait`].
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(cluster: &Cluster) -> Result<ClientEndpoint<F>, OpenError> {
        // Two processes never share an identity: a client's number is 64 random bits.
        let random = Key::generate()?;
        let incarnation = u64::from_le_bytes(*random.bytes().first_chunk().expect("32 bytes")) | 1;
        let identity = Identity { node: NodeId(0), incarnation: Incarnation(incarnation), kind: PeerKind::Client };
        let fabric =
            F::start_client(cluster, identity).map_err(|error| OpenError::Fabric { cluster: cluster.config().name.clone(), error })?;
        let nodes: Vec<Node> = cluster.config().nodes.iter().map(|n| Node { id: NodeId(n.number), life: None }).collect();
        nodes.iter().for_each(|node| fabric.connect(cluster, node.id));
        Ok(ClientEndpoint { fabric, nodes })
    }

    /// Takes note of nodes that have come or gone, and returns the next such event. A node that is gone has been forgotten by then: its memory can no longer be
    /// read.
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

    /// Sleeps until there is something for this client, a node has come or gone, or `timeout` has passed. May return early.
    pub fn wait(&mut self, timeout: Duration) {
        self.fabric.announce();
        self.fabric.sleep_at_most(timeout);
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

    /// If less than `within` ago a connection was refused because the node runs a build that does not understand this one: why the latest such connection
    /// failed.
    pub fn misfit(&self, within: Duration) -> Option<String> {
        self.fabric.misfit(within)
    }

    /// The endpoint itself. Take its events through [`ClientEndpoint::event`].
    pub fn fabric(&mut self) -> &mut F {
        &mut self.fabric
    }

    /// The endpoint, for a client that keeps its own list of nodes.
    pub fn into_fabric(self) -> F {
        self.fabric
    }

    /// Copies the beginning of a node's region. Words are whole; a longer record may be torn.
    fn read(&mut self, node: NodeId, name: RegionName, bytes: usize) -> Result<Vec<u64>, ReadError> {
        let refused = |fabric: &F| ReadError::NotConnected { node, refusal: fabric.last_refusal() };
        let Some(peer) = self.peer(node) else { return Err(refused(&self.fabric)) };
        let from = Remote { peer, region: Region::Public(name), offset: 0 };
        let scratch = LocalRegion::Public(SCRATCH);
        self.fabric.read(from, Local { region: scratch, offset: 0 }, bytes, OURS);
        let completion = loop {
            match self.fabric.poll() {
                Some(completion) if completion.token == OURS => break completion,
                Some(_) => {}
                None => std::thread::yield_now(),
            }
        };
        completion.result.map_err(|_| refused(&self.fabric))?;
        let memory = self.fabric.memory(scratch).expect("every client keeps memory to read into");
        // The completion orders these loads after what the read has stored.
        Ok(memory[..bytes / 8].iter().map(|word| word.load(Ordering::Relaxed)).collect())
    }

    /// A node's counters and events. It costs the node nothing.
    ///
    /// # Errors
    /// When it is not connected, or of another version.
    pub fn reading(&mut self, node: NodeId) -> Result<Reading, ReadError> {
        // The number of events is read before the events, so that all that are counted are there.
        let recorded = self.read(node, COUNTERS, 16)?[1];
        let mut words = self.read(node, COUNTERS, COUNTERS_BYTES)?;
        words[1] = recorded;
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        Reading::parse(&bytes).map_err(|error| ReadError::Counters { node, error })
    }

    /// The newest view that a node knows; `None` when it knows none, or is just writing a newer one.
    ///
    /// # Errors
    /// When it is not connected.
    pub fn view(&mut self, node: NodeId) -> Result<Option<View>, ReadError> {
        self.read(node, BOARD, BOARD_RECORDS + 2 * VIEW_RECORD_BYTES)?;
        let copy = self.fabric.memory(LocalRegion::Public(SCRATCH)).expect("every client keeps memory to read into");
        // When two views follow each other closely, a record may be overwritten while it is read; the other record is then whole.
        let newest = (0..2)
            .filter_map(|i| sealed::read(&copy[(BOARD_RECORDS + i * VIEW_RECORD_BYTES) / 8..][..VIEW_RECORD_BYTES / 8]))
            .filter_map(|record| View::decode(&record.payload).ok())
            .max_by_key(|view| view.number);
        Ok(newest)
    }
}
