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

/// How long a start waits for its name. The kernel releases a dead process's name only after it has torn down the process's memory, so a node that is
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
    /// What every client of the cluster offers. Both specs must be the same at all processes, which is checked when two of them connect.
    pub clients: RegionSpec,
    /// Where the cluster's processes find each other: the same for all of them.
    pub rendezvous: Rendezvous,
    /// Whether to listen for others. Members do; clients cannot.
    pub listen: bool,
    /// Whether to accept no connections until [`ShmFabric::open`] or [`ShmFabric::connect`] is called. Processes that dial earlier wait. This is for
    /// a process that has to store something, such as death words, before anyone may look.
    pub closed: bool,
    /// How many clients are served at most. Clients that are gone but not yet forgotten count, too.
    pub max_clients: usize,
    /// Whether to take all page faults at the start and when connecting, so that none is taken later. This makes all declared memory resident.
    pub prefault: bool,
    /// A user whose processes may connect besides those of this process's own user and of root: for a client that looks after a cluster of another user's.
    pub further_user: Option<u32>,
}

impl ShmConfig {
    /// The usual configuration: a private protocol, abstract names, members listen, [`DEFAULT_MAX_CLIENTS`], memory is prefaulted.
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
            further_user: None,
        }
    }
}

/// How much memory an endpoint takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryNeed {
    /// The largest piece, in bytes. To the system, each piece is a file.
    pub largest_bytes: u64,
    /// All that it creates and maps once it is connected to that many other members, in bytes.
    pub all_bytes: u64,
}

impl ShmConfig {
    /// What an endpoint with this configuration takes once it is connected to `others` other members.
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
        // Without the key, since this may end up in a log.
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
    /// Creates this process's regions, takes its name (members only), and starts the bootstrap thread. It does not dial any node yet: see
    /// [`ShmFabric::connect`]. Others may connect from now on, unless the configuration says [`ShmConfig::closed`]; this leaves time to register
    /// death words and to store whatever else they rely on.
    pub fn start(config: ShmConfig) -> Result<ShmFabric, StartError> {
        let ShmConfig {
            cluster,
            key,
            protocol,
            identity,
            members,
            clients,
            rendezvous,
            listen,
            closed,
            max_clients,
            prefault,
            further_user,
        } = config;
        let party = Party { protocol, identity, cluster, members, clients, key }.check(listen)?;
        // The name first: a second process of the same node must not get as far as creating memory.
        let listener = if listen { Some(take_name(&rendezvous, &party.cluster, identity.node)?) } else { None };
        let own = Arc::new(Own::create(party.offers().clone(), prefault).map_err(system("cannot make shared memory"))?);
        let loopback = loopback().map_err(system("cannot make shared memory"))?;
        let shared = Arc::new(Shared::new(own.clone()).map_err(system("cannot make an eventfd"))?);
        let ours = Ours { party, own: own.clone(), prefault, further_user };
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
