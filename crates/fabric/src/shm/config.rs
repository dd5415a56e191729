//! How an endpoint is started.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::bootstrap::Bootstrap;
use super::endpoint::ShmFabric;
use super::handshake::Ours;
use super::mail;
use super::peer::Own;
use super::rendezvous::{Listener, Rendezvous};
use super::shared::Shared;
use crate::contract::{Identity, NodeId, PeerKind, RegionSpec};
use crate::host::memory::{self, Access, Area, Map, page};
use crate::host::plan::{LanesPlan, PublicPlan, by_writer};
use crate::meeting::{DEFAULT_MAX_CLIENTS, Party, PartyError};
use crate::speech::Protocol;

/// How long a start waits for its name. The kernel gives a dead process's name back when it has torn down its memory, so a node that is
/// started again right after its death may have to wait a little.
const NAME_PATIENCE: Duration = Duration::from_secs(2);

/// What an endpoint needs to know. [`ShmConfig::new`] fills in the rest.
#[derive(Clone)]
pub struct ShmConfig {
    /// The cluster's name: 1 to 64 of the characters a-z A-Z 0-9 . _ - ~. It keeps clusters of one host apart.
    pub cluster: String,
    /// The cluster's key, at least [`super::MIN_KEY_BYTES`] long. Processes with different keys refuse each other.
    pub key: Vec<u8>,
    /// What this program speaks. Programs that do not understand each other refuse each other.
    pub protocol: Protocol,
    /// This process's identity. A member's node number names its socket.
    pub identity: Identity,
    /// What every member of the cluster offers.
    pub members: RegionSpec,
    /// What every client of the cluster offers. Both must be the same at all processes, which is checked when two meet.
    pub clients: RegionSpec,
    /// Where its processes find each other: the same for all of them.
    pub rendezvous: Rendezvous,
    /// Whether to listen for others. Members do; clients cannot.
    pub listen: bool,
    /// Whether to accept nobody until [`ShmFabric::open`] or [`ShmFabric::connect`] is called. Those who come earlier wait. For a process
    /// that has something to store, such as death words, before anybody may look.
    pub closed: bool,
    /// How many clients are served at most, those included that are gone but not yet forgotten.
    pub max_clients: usize,
    /// Whether to take all page faults at the start and at connection, so that none is taken later. It makes all declared memory resident.
    pub prefault: bool,
}

impl ShmConfig {
    /// The usual: a private protocol, abstract names, members listen, [`DEFAULT_MAX_CLIENTS`], memory is prefaulted.
    pub fn new(cluster: &str, key: &[u8], identity: Identity, members: RegionSpec, clients: RegionSpec) -> ShmConfig {
        ShmConfig {
            cluster: cluster.to_owned(),
            key: key.to_vec(),
            protocol: Protocol::private(),
            identity,
            members,
            clients,
            rendezvous: Rendezvous::default(),
            listen: identity.kind == PeerKind::Member,
            closed: false,
            max_clients: DEFAULT_MAX_CLIENTS,
            prefault: true,
        }
    }
}

/// How much memory an endpoint takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryNeed {
    /// The largest piece, in bytes. Each is a file to the system.
    pub largest_bytes: u64,
    /// All that it makes and maps once it is connected with so many other members, in bytes.
    pub all_bytes: u64,
}

impl ShmConfig {
    /// What an endpoint with this configuration takes, connected with so many other members.
    pub fn memory(&self, others: usize) -> MemoryNeed {
        let public = by_writer(&self.members).map(|regions| PublicPlan::of(&regions).bytes as u64);
        let lanes = LanesPlan::new(&self.members.member_lanes, Some(mail::BYTES)).bytes() as u64;
        let others = others as u64;
        let all_public = public.iter().sum::<u64>();
        MemoryNeed { largest_bytes: public.into_iter().fold(lanes, u64::max), all_bytes: all_public + others * (all_public + 2 * lanes) }
    }
}

impl std::fmt::Debug for ShmConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Not the key: this may end in a log.
        f.debug_struct("ShmConfig").field("cluster", &self.cluster).field("identity", &self.identity).finish_non_exhaustive()
    }
}

/// Why an endpoint did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// What the process says of itself is not allowed.
    #[error(transparent)]
    Party(#[from] PartyError),
    /// Another process has the name.
    #[error("node {node} of cluster {cluster:?} is running already on this host")]
    NameInUse {
        /// The cluster.
        cluster: String,
        /// The node's number.
        node: NodeId,
    },
    /// The system refuses something.
    #[error("{what}: {source}{}", crate::limits::hint(source))]
    System {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
}

fn system(what: &'static str) -> impl FnOnce(io::Error) -> StartError {
    move |source| StartError::System { what, source }
}

impl ShmFabric {
    /// Makes this process's regions, takes its name (members), and starts the bootstrap thread. Dials
    /// nobody yet: see [`ShmFabric::connect`]. But others may connect from now on, unless it is told to stay [`ShmConfig::closed`] until
    /// death words are registered and whatever else they rely on is stored.
    pub fn start(config: ShmConfig) -> Result<ShmFabric, StartError> {
        let ShmConfig { cluster, key, protocol, identity, members, clients, rendezvous, listen, closed, max_clients, prefault } = config;
        let party = Party { protocol, identity, cluster, members, clients, key }.check(listen)?;
        // The name first: a second process of a node must not get as far as making memory.
        let listener = if listen { Some(take_name(&rendezvous, &party.cluster, identity.node)?) } else { None };
        let own = Arc::new(Own::create(party.offers().clone(), prefault).map_err(system("cannot make shared memory"))?);
        let loopback = loopback().map_err(system("cannot make shared memory"))?;
        let shared = Arc::new(Shared::new(own.clone()).map_err(system("cannot make an eventfd"))?);
        let ours = Ours { party, own: own.clone(), prefault };
        let bootstrap = Bootstrap::new(ours, shared.clone(), (rendezvous, listener), max_clients, !closed);
        let thread = std::thread::Builder::new()
            .name("martlet-boot".into())
            .spawn(move || {
                crate::host::process::stand_aside();
                bootstrap.run()
            })
            .map_err(system("cannot start the bootstrap thread"))?;
        Ok(ShmFabric::new(identity, shared, own, loopback, Some(thread)))
    }
}

fn take_name(rendezvous: &Rendezvous, cluster: &str, node: NodeId) -> Result<Listener, StartError> {
    let until = Instant::now() + NAME_PATIENCE;
    loop {
        match rendezvous.listen(cluster, node) {
            Ok(listener) => return Ok(listener),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                if Instant::now() >= until {
                    return Err(StartError::NameInUse { cluster: cluster.to_owned(), node });
                }
                std::thread::sleep(Duration::from_millis(2));
            }
            Err(source) => return Err(StartError::System { what: "cannot listen for peers", source }),
        }
    }
}

/// A mail ring to ourselves.
pub(super) fn loopback() -> io::Result<Area> {
    let bytes = mail::BYTES.next_multiple_of(page());
    let fd = memory::create("martlet-loopback", bytes)?;
    Ok(Area::new(&Map::new(&fd, 0, bytes, Access::ReadWrite, false)?, 0, mail::BYTES))
}
