//! How an endpoint is started.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use super::carrier::Carrier;
use super::device::{Device, DeviceChoice, DeviceError};
use super::endpoint::VerbsFabric;
use super::group::{Group, Multicast};
use super::mail::Mail;
use super::peer::{Card, Own, Peer};
use super::queue::{CompletionQueue, Patience};
use crate::contract::{Identity, PeerKind, RegionSpec};
use crate::meeting::tcp::bootstrap::Bootstrap;
use crate::meeting::tcp::shared::Shared;
use crate::meeting::tcp::stream;
use crate::meeting::{DEFAULT_MAX_CLIENTS, Party, PartyError};
use crate::primitive::AtomicU64;
use crate::speech::Protocol;

/// How many completions a plane's queue holds, if the device allows that many.
const COMPLETIONS: u32 = 16 * 1024;

/// What an endpoint needs to know. [`VerbsConfig::new`] fills in the rest.
#[derive(Clone)]
pub struct VerbsConfig {
    /// The cluster's name: 1 to 64 of the characters a-z A-Z 0-9 . _ -.
    pub cluster: String,
    /// The cluster's key, at least [`super::MIN_KEY_BYTES`] long. Processes with different keys refuse each other.
    pub key: Vec<u8>,
    /// What this program speaks. Programs that do not understand each other refuse each other.
    pub protocol: Protocol,
    /// This process's identity.
    pub identity: Identity,
    /// What every member of the cluster offers.
    pub members: RegionSpec,
    /// What every client of the cluster offers. Both specs must be the same at all processes, which is checked when two of them connect.
    pub clients: RegionSpec,
    /// Where to listen for others; members only. Port 0 lets the system choose: see [`VerbsFabric::listens_at`].
    pub listen: Option<SocketAddr>,
    /// Whether to accept no connections until [`VerbsFabric::open`] or [`VerbsFabric::connect`] is called. Processes that dial earlier wait.
    pub closed: bool,
    /// How many clients are served at most. Clients that are gone but not yet forgotten count, too.
    pub max_clients: usize,
    /// Device, port and address.
    pub device: DeviceChoice,
    /// How long requests wait for an answer.
    pub patience: Patience,
    /// Whether regions of 2 MiB or more, and lanes of as much for one peer, are in huge pages. The card then has fewer pages to look up.
    pub huge_pages: bool,
    /// Whether datagrams to all members go to a multicast group of the network; members only.
    pub multicast: Multicast,
}

impl VerbsConfig {
    /// The usual configuration: a private protocol, the first device with an active port, its default address, [`DEFAULT_MAX_CLIENTS`], half a second
    /// of patience, no listening, no multicast.
    pub fn new(cluster: &str, key: &[u8], identity: Identity, members: RegionSpec, clients: RegionSpec) -> VerbsConfig {
        VerbsConfig {
            cluster: cluster.to_owned(),
            key: key.to_vec(),
            protocol: Protocol::private(),
            identity,
            members,
            clients,
            listen: None,
            closed: false,
            max_clients: DEFAULT_MAX_CLIENTS,
            device: DeviceChoice::default(),
            patience: Patience::default(),
            huge_pages: false,
            multicast: Multicast::Off,
        }
    }
}

impl std::fmt::Debug for VerbsConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Without the key, since this may end up in a log.
        f.debug_struct("VerbsConfig").field("cluster", &self.cluster).field("identity", &self.identity).finish_non_exhaustive()
    }
}

/// Why an endpoint did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// There is no device to use.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// What the process says of itself is not allowed.
    #[error(transparent)]
    Party(#[from] PartyError),
    /// The patience is not allowed.
    #[error("{0}")]
    Patience(String),
    /// It cannot listen there.
    #[error("cannot listen at {at}: {source}")]
    Listen {
        /// The address.
        at: SocketAddr,
        /// Why it failed.
        source: io::Error,
    },
    /// The device, or its network, does not have the kind of multicast that was asked for.
    #[error("device {device} cannot multicast: {why}; without `multicast` below [verbs] each member gets its own datagrams")]
    Multicast {
        /// The device.
        device: String,
        /// What it cannot do.
        why: String,
    },
    /// The system, or the device, refuses something.
    #[error("{what}: {source}")]
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

impl VerbsFabric {
    /// Opens the device, registers this process's regions, listens (members only), and starts the bootstrap thread. It does not dial any node yet:
    /// see [`VerbsFabric::connect`]. Others may connect from now on, unless the configuration says [`VerbsConfig::closed`].
    ///
    /// # Errors
    /// Among others, the error says if the host has no device, and names the limit on locked memory if that is the reason.
    pub fn start(config: VerbsConfig) -> Result<VerbsFabric, StartError> {
        let VerbsConfig {
            cluster,
            key,
            protocol,
            identity,
            members,
            clients,
            listen,
            closed,
            max_clients,
            device,
            patience,
            huge_pages,
            multicast,
        } = config;
        // Clients are sent no datagrams.
        let multicast = if identity.kind == PeerKind::Member { multicast } else { Multicast::Off };
        let party = Party { protocol, identity, cluster, members, clients, key }.check(listen.is_some())?;
        patience.check().map_err(StartError::Patience)?;
        // The address first: a second process of the same node must not get as far as locking memory.
        let listener = listen.map(|at| stream::listen(at).map_err(|source| StartError::Listen { at, source })).transpose()?;
        let listens_at = listener.as_ref().and_then(|listener| listener.local_addr().ok());
        let device = Device::open(&device)?;
        let queue = || CompletionQueue::new(&device, COMPLETIONS).map_err(system("cannot make a completion queue"));
        let group = Group::join(&device, multicast, &party.cluster, &party.key)
            .map_err(|why| StartError::Multicast { device: device.name.clone(), why })?;
        let mail = Mail::new(&device, identity.node, group).map_err(system("cannot make a queue pair for datagrams"))?;
        let card = Arc::new(Card {
            own: Own::create(&device, party.offers().clone(), huge_pages).map_err(system("cannot register memory"))?,
            background: queue()?,
            replication: queue()?,
            device,
            patience,
            huge_pages,
            mail: AtomicU64::new(mail.number().into()),
        });
        let ourselves = Peer::ourselves(&card, identity).map_err(|why| system("cannot reach our own memory")(io::Error::other(why)))?;
        let shared = Arc::new(Shared::new().map_err(system("cannot make an eventfd"))?);
        let bootstrap = Bootstrap::new(party, Carrier::new(card.clone()), shared.clone(), listener, max_clients, !closed);
        let thread = std::thread::Builder::new()
            .name("martlet-boot".into())
            .spawn(move || bootstrap.run())
            .map_err(system("cannot start the bootstrap thread"))?;
        Ok(VerbsFabric::new(identity, card, mail, ourselves, shared, thread, listens_at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::{Incarnation, NodeId, RegionName};

    fn config() -> VerbsConfig {
        let identity = Identity { node: NodeId(1), incarnation: Incarnation(1), kind: PeerKind::Member };
        VerbsConfig::new("c", b"the key of the tests' cluster", identity, RegionSpec::default(), RegionSpec::default())
    }

    fn why(config: VerbsConfig) -> String {
        VerbsFabric::start(config).expect_err("a mistake").to_string()
    }

    #[test]
    fn bad_configurations_are_named() {
        let good = config();
        assert!(why(VerbsConfig { cluster: "a b".into(), ..good.clone() }).contains("\"a b\""));
        assert_eq!(why(VerbsConfig { key: b"short".to_vec(), ..good.clone() }), "the cluster key has 5 bytes; allowed are 16 or more");
        let members = RegionSpec { public: vec![(RegionName(1), 12)], ..RegionSpec::default() };
        assert!(why(VerbsConfig { members, ..good.clone() }).contains("members' regions: public region 1 has 12 bytes"));
        let patience = Patience { retries: 7, ..Patience::default() };
        assert!(why(VerbsConfig { patience, ..good.clone() }).contains("7 retries; allowed are 1 to 6"));
        let client = Identity { kind: PeerKind::Client, ..good.identity };
        let listen = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
        assert!(why(VerbsConfig { identity: client, listen, ..good }).contains("only members do"));
    }

    #[test]
    fn a_host_without_the_device_says_so() {
        let device = DeviceChoice { name: Some("martlet-none".into()), ..DeviceChoice::default() };
        let error = VerbsFabric::start(VerbsConfig { device, ..config() }).expect_err("no such device");
        assert!(matches!(error, StartError::Device(_)), "{error}");
        let text = error.to_string();
        let known = ["libibverbs", "no RDMA support", "no RDMA device"];
        assert!(known.iter().any(|part| text.contains(part)), "{text}");
    }
}
