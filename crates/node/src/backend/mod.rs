//! What a node or a client needs of a backend beyond the fabric's contract: to be started from a configuration, to connect, to sleep, and to tell what is
//! certain about other processes.
//!
//! Everything above is generic over the backend, so each backend gets code of its own and nothing is looked up while requests are served. If a backend cannot
//! do something, it says so here, and nodes do without it:
//!
//! | | shm | verbs | ethernet |
//! |---|---|---|---|
//! | a sleeping node is woken by a peer's [`Fabric::nudge`] | yes | no: it naps | by the packet itself |
//! | it is known for certain that a node does not run | yes, through their meeting place, if all of them meet there | no | no |
//! | it is known which nodes run without being configured | yes, in the same way | no | no |
//! | which node may found the cluster | any that holds a lock of the host | the first node of the configuration that may | the same |

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use martlet_fabric::BootstrapCounters;
use martlet_fabric::host::OwnRegion;
use martlet_fabric::shm::MemoryNeed;
use martlet_fabric::{Fabric, Identity, NodeId, PeerId, RegionName, RegionSpec};
use martlet_protocol::basics::Time;
use martlet_protocol::basics::layout;
use martlet_protocol::replica::NODES_OWN;
use rustix::event::epoll;

use crate::clock;
use crate::config::{Cluster, Settings};

mod ethernet;
mod hosts;
mod shm;
mod verbs;

/// The reasons of each fabric for not starting.
pub mod errors {
    pub use martlet_fabric::ethernet::StartError as EthernetError;
    pub use martlet_fabric::shm::StartError as ShmError;
    pub use martlet_fabric::verbs::{DeviceError, StartError as VerbsError};
}

/// Why an endpoint did not start, on any backend.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// On shared memory.
    #[error(transparent)]
    Shm(#[from] errors::ShmError),
    /// On RDMA.
    #[error(transparent)]
    Verbs(#[from] errors::VerbsError),
    /// Between ordinary hosts.
    #[error(transparent)]
    Ethernet(#[from] errors::EthernetError),
}

/// A backend that nodes and clients run on.
pub trait Backend: Fabric + Sized + Send + 'static {
    /// How a node's thread sleeps.
    type Rest: Rest<Self>;
    /// Held by the one process that may found the cluster.
    type Claim: std::fmt::Debug;
    /// Whether the claim always belongs to the same node, whichever node asks for it.
    const FIXED_CLAIM: bool;

    /// How much memory a node's endpoint takes, as far as that is known before it starts.
    fn memory_need(_settings: &Settings) -> MemoryNeed {
        MemoryNeed::default()
    }

    /// Starts a node's endpoint. It lets no other process in until [`Backend::open`] or [`Backend::connect`] is called.
    ///
    /// # Errors
    /// See [`StartError`].
    fn start_node(settings: &Settings, identity: Identity) -> Result<Self, StartError>;

    /// Starts a client's endpoint.
    ///
    /// # Errors
    /// See [`StartError`].
    fn start_client(cluster: &Cluster, identity: Identity) -> Result<Self, StartError>;

    /// A number larger than that of any earlier process of this node, unless clocks have been set back: in that case others refuse it, and say which numbers
    /// they would accept. It comes from the wall clock, because a node's processes may run after different boots of its host, or on different hosts.
    fn incarnation() -> u64 {
        clock::wall_ns()
    }

    /// Lets other processes in.
    fn open(&self);

    /// Asks to be connected with a node of the cluster whenever it is there: now, later, and again after it has restarted.
    fn connect(&self, cluster: &Cluster, node: NodeId);

    /// Undoes [`Backend::connect`]: the node is no longer looked for. An existing connection is kept.
    fn disconnect(&self, node: NodeId);

    /// This process's identity.
    fn identity(&self) -> Identity;

    /// Why the latest refused connection was refused.
    fn last_refusal(&self) -> Option<String>;

    /// If less than `within` ago a connection was refused because its two ends run builds that do not understand each other: why the latest such connection
    /// failed.
    fn misfit(&self, within: Duration) -> Option<String>;

    /// How connections have fared since the start.
    fn connections(&self) -> BootstrapCounters;

    /// How many datagrams, or packets of them, have come that no sender of ours produces.
    fn malformed_datagrams(&self) -> u64;

    /// A function that any other thread of this process can call to end this endpoint's sleep, or the next one if it is about to sleep. On a backend that
    /// cannot do this, it does nothing.
    fn bell(&self) -> Box<dyn Fn() + Send> {
        Box::new(|| {})
    }

    /// A public region of this process, for any of its threads; `None` when it was never declared.
    fn own_region(&self, name: RegionName) -> Option<OwnRegion>;

    /// Gets the claim to found the cluster, if this process may have it now.
    ///
    /// # Errors
    /// When the system refuses to say.
    fn claim_founding(cluster: &Cluster, me: NodeId) -> io::Result<Option<Self::Claim>>;

    /// Whether it is certain that no process of that node is running, provided that every process of the cluster runs where this one would see it. On a backend
    /// that cannot know, `false`.
    ///
    /// # Errors
    /// When the system refuses to say.
    fn is_absent(_cluster: &Cluster, _node: NodeId) -> io::Result<bool> {
        Ok(false)
    }

    /// The nodes that are certainly running without being configured. On a backend that cannot know, none.
    ///
    /// # Errors
    /// When the system refuses to say.
    fn strangers(_cluster: &Cluster) -> io::Result<Vec<NodeId>> {
        Ok(Vec::new())
    }

    /// Endpoints within this process that are connected with each other and with no other process, for rehearsals: the process at place `n` is peer `n + 1` to
    /// all others. `None` if this backend has no such endpoints.
    ///
    /// # Errors
    /// When the system has no memory or descriptors left.
    fn private(_processes: &[(Identity, RegionSpec)]) -> io::Result<Option<Vec<Self>>> {
        Ok(None)
    }

    /// At an endpoint of [`Backend::private`]: forgets what has happened between it and other members, as if they had just been connected.
    fn rewind(&mut self) {}

    /// A client is about to sleep: from now on a peer that nudges it wakes it. A last look follows, and then [`Backend::stay_awake`] or
    /// [`Backend::sleep_at_most`].
    fn announce(&mut self);

    /// The last look has found something.
    fn stay_awake(&mut self);

    /// Sleeps until there may be something to do, but at most for so long.
    fn sleep_at_most(&mut self, timeout: Duration);

    /// The same, for a client that waits only for what others write into its memory. Even where the end of the client's own operations would wake it, it does
    /// not end this sleep.
    fn sleep_until_told(&mut self, timeout: Duration) {
        self.sleep_at_most(timeout);
    }
}

/// How a node's thread sleeps when it has nothing to do, and what wakes it. Each life of the node has one.
///
/// A sleep has three steps: [`Rest::prepare`]; a whole turn as the last look at everything; and [`Rest::sleep`] or, if there is work after all,
/// [`Rest::cancel`].
pub trait Rest<F>: Sized {
    /// Prepares for sleeps that end when `stop`, or `sockets`, the application's epoll instance, has something.
    ///
    /// # Errors
    /// When the system has no descriptors or threads left.
    fn start(settings: &Settings, fabric: &F, sockets: Option<BorrowedFd<'_>>, stop: BorrowedFd<'_>) -> io::Result<Self>;

    /// Whether the thread can sleep on the application's sockets and still hear of everything else.
    fn hears_at_sockets(&self) -> bool;

    /// Says which peers' deaths are to end a sleep from now on. `me` is the watcher. This is a hint: some backends cannot be woken by a death.
    fn watch_deaths(&mut self, fabric: &F, peers: impl Iterator<Item = PeerId>, me: NodeId);

    /// Whether one of those has died since, as far as a look can tell that takes no time. Anything else is seen in the next turn.
    fn has_seen_death(&self, fabric: &F) -> bool {
        let _ = fabric;
        false
    }

    /// To be called between turns that found nothing to do. `among_sockets_soon`: as far as can be told, the next sleep may be one on the sockets; if not, what
    /// only those sleeps need may be released.
    fn tend(&mut self, now: Time, among_sockets_soon: bool) {
        let _ = (now, among_sockets_soon);
    }

    /// Announces a sleep. From now on, whatever happens is either seen in the look that follows, or ends the sleep.
    fn prepare(&mut self, fabric: &mut F, at_sockets: bool);

    /// There is no sleep after all.
    fn cancel(&mut self, fabric: &mut F);

    /// Sleeps for at most so many nanoseconds: on the sockets, by calling `among_sockets`, or elsewhere. That call returns `false` when it cannot sleep.
    fn sleep(&mut self, fabric: &mut F, at_sockets: bool, at_most_ns: u64, among_sockets: impl FnOnce(u64) -> bool);
}

/// The regions that the cluster's members offer, and those that its clients offer.
fn regions(cluster: &Cluster) -> (RegionSpec, RegionSpec) {
    (crate::engine::regions(cluster, cluster.sizes()), layout::client_regions(cluster.sizes()))
}

/// Adds one of the node's own descriptors to the application's epoll instance. Edge-triggered: it is not read, and each new event is reported once.
pub(crate) fn enter(sockets: BorrowedFd<'_>, own: BorrowedFd<'_>) -> io::Result<()> {
    match epoll::add(sockets, own, epoll::EventData::new_u64(NODES_OWN), epoll::EventFlags::IN | epoll::EventFlags::ET) {
        // The node's stop handle stays there from one life to the next.
        Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
