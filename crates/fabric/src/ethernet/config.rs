//! How an endpoint is started.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::endpoint::{self, EthernetFabric};
use super::peer::{Carrier, Line, Own};
use super::stand_in;
use crate::contract::{Identity, RegionSpec};
use crate::meeting::tcp::bootstrap::Bootstrap;
use crate::meeting::tcp::shared::Shared;
use crate::meeting::tcp::stream;
use crate::meeting::{DEFAULT_MAX_CLIENTS, Party, PartyError};
use crate::speech::Protocol;

/// How long a peer may be silent before it is given up, unless the configuration says otherwise.
pub const DEFAULT_GIVE_UP: Duration = Duration::from_millis(500);

/// What an endpoint needs to know. [`EthernetConfig::new`] fills in the rest.
#[derive(Clone)]
pub struct EthernetConfig {
    /// The cluster's name: 1 to 64 of the characters a-z A-Z 0-9 . _ -.
    pub cluster: String,
    /// The cluster's key, at least [`crate::meeting::MIN_KEY_BYTES`] long. Processes with different keys refuse each other.
    pub key: Vec<u8>,
    /// What this program speaks. Programs that do not understand each other refuse each other.
    pub protocol: Protocol,
    /// This process's identity.
    pub identity: Identity,
    /// What every member of the cluster offers.
    pub members: RegionSpec,
    /// What every client of the cluster offers. Both specs must be the same at all processes, which is checked when two of them connect.
    pub clients: RegionSpec,
    /// Where to listen for others, by TCP and UDP; members only. Port 0 lets the system choose: see [`EthernetFabric::listens_at`].
    pub listen: Option<SocketAddr>,
    /// Whether to accept no connections until [`EthernetFabric::open`] or [`EthernetFabric::connect`] is called. Processes that dial earlier wait.
    pub closed: bool,
    /// How many clients are served at most. Clients that are gone but not yet forgotten count, too.
    pub max_clients: usize,
    /// How long a peer may leave requests without an answer before it is given up. Time in which this process was stopped does not count.
    pub give_up: Duration,
    /// A hostile wire, for tests.
    #[cfg(any(test, feature = "conformance"))]
    pub mangling: Option<super::Mangling>,
}

impl EthernetConfig {
    /// The usual configuration: a private protocol, [`DEFAULT_MAX_CLIENTS`], [`DEFAULT_GIVE_UP`], no listening.
    pub fn new(cluster: &str, key: &[u8], identity: Identity, members: RegionSpec, clients: RegionSpec) -> EthernetConfig {
        EthernetConfig {
            cluster: cluster.to_owned(),
            key: key.to_vec(),
            protocol: Protocol::private(),
            identity,
            members,
            clients,
            listen: None,
            closed: false,
            max_clients: DEFAULT_MAX_CLIENTS,
            give_up: DEFAULT_GIVE_UP,
            #[cfg(any(test, feature = "conformance"))]
            mangling: None,
        }
    }
}

impl std::fmt::Debug for EthernetConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Without the key, since this may end up in a log.
        f.debug_struct("EthernetConfig").field("cluster", &self.cluster).field("identity", &self.identity).finish_non_exhaustive()
    }
}

/// Why an endpoint did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// What the process says of itself is not allowed.
    #[error(transparent)]
    Party(#[from] PartyError),
    /// It cannot listen there.
    #[error("cannot listen at {at}, {by}: {source}")]
    Listen {
        /// The address.
        at: SocketAddr,
        /// TCP or UDP.
        by: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// The system refuses something.
    #[error("{what}: {source}{limit}", limit = crate::limits::hint(source))]
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

impl EthernetFabric {
    /// Creates this process's regions, listens (members only), and starts the bootstrap thread and the stand-in. It does not dial any node yet: see
    /// [`EthernetFabric::connect`]. Others may connect from now on, unless the configuration says [`EthernetConfig::closed`].
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start(config: EthernetConfig) -> Result<EthernetFabric, StartError> {
        #[cfg(any(test, feature = "conformance"))]
        let mangling = config.mangling;
        let EthernetConfig { cluster, key, protocol, identity, members, clients, listen, closed, max_clients, give_up, .. } = config;
        let party = Party { protocol, identity, cluster, members, clients, key }.check(listen.is_some())?;
        let listener = listen.map(|at| stream::listen(at).map_err(|source| StartError::Listen { at, by: "TCP", source })).transpose()?;
        let listens_at = listener.as_ref().and_then(|listener| listener.local_addr().ok());
        // If the system chooses the ports, it chooses one for TCP and another for UDP. The peers are told.
        let fixed = listen.is_some_and(|at| at.port() != 0);
        let line = Line::open(listens_at, fixed).map_err(|source| match listens_at {
            Some(at) => StartError::Listen { at, by: "UDP", source },
            None => StartError::System { what: "cannot make sockets", source },
        })?;
        #[cfg(any(test, feature = "conformance"))]
        let line = Line { wire: mangling.map(|mangling| std::sync::Mutex::new(super::mangled::Wire::new(mangling))), ..line };
        let line = Arc::new(line);
        let own = Arc::new(Own::create(party.offers().clone()).map_err(system("cannot make memory"))?);
        let sources = endpoint::sources(&line).map_err(system("cannot wait for packets"))?;
        let shared = Arc::new(Shared::new().map_err(system("cannot make an eventfd"))?);
        let carrier = Carrier::new(own.clone(), line.clone());
        let bootstrap = Bootstrap::new(party, carrier, shared.clone(), listener, max_clients, !closed);
        let thread = |name: &str, run: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new().name(name.into()).spawn(run).map_err(system("cannot start a thread"))
        };
        let boot = thread("martlet-boot", Box::new(move || bootstrap.run()))?;
        let standing_in = line.clone();
        let stand_in = match thread("martlet-standin", Box::new(move || stand_in::run(&standing_in, stand_in::after(identity.kind)))) {
            Ok(stand_in) => stand_in,
            Err(error) => {
                shared.ask(crate::meeting::tcp::shared::Command::Stop);
                let _ = boot.join();
                return Err(error);
            }
        };
        Ok(EthernetFabric::new(identity, own, line, sources, give_up, shared, [boot, stand_in], listens_at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::{Incarnation, NodeId, PeerKind, RegionName};

    #[test]
    fn bad_configurations_are_named() {
        let identity = Identity { node: NodeId(1), incarnation: Incarnation(1), kind: PeerKind::Member };
        let good = EthernetConfig::new("c", b"the key of the tests' cluster", identity, RegionSpec::default(), RegionSpec::default());
        let why = |config| EthernetFabric::start(config).expect_err("a mistake").to_string();
        assert!(why(EthernetConfig { cluster: "a b".into(), ..good.clone() }).contains("\"a b\""));
        assert_eq!(why(EthernetConfig { key: b"short".to_vec(), ..good.clone() }), "the cluster key has 5 bytes; allowed are 16 or more");
        let members = RegionSpec { public: vec![(RegionName(1), 12)], ..RegionSpec::default() };
        assert!(why(EthernetConfig { members, ..good.clone() }).contains("members' regions: public region 1 has 12 bytes"));
        let client = Identity { kind: PeerKind::Client, ..identity };
        let listen = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
        assert!(why(EthernetConfig { identity: client, listen, ..good.clone() }).contains("only members do"));
        let elsewhere = Some(SocketAddr::from(([192, 0, 2, 1], 7600)));
        assert!(why(EthernetConfig { listen: elsewhere, ..good }).starts_with("cannot listen at 192.0.2.1:7600, TCP: "));
    }

    #[test]
    fn an_address_whose_udp_port_is_taken_is_named() {
        let identity = Identity { node: NodeId(1), incarnation: Incarnation(1), kind: PeerKind::Member };
        let good = EthernetConfig::new("c", b"the key of the tests' cluster", identity, RegionSpec::default(), RegionSpec::default());
        let taken = std::net::UdpSocket::bind("127.0.0.1:0").expect("a port");
        let at = taken.local_addr().expect("bound");
        let error = EthernetFabric::start(EthernetConfig { listen: Some(at), ..good }).expect_err("taken").to_string();
        assert!(error.starts_with(&format!("cannot listen at {at}, ")), "{error}");
    }

    /// A node begins its next life at the same address, while other threads may still hold the bell of its earlier life.
    #[test]
    fn an_address_is_free_when_its_endpoint_is_gone_though_its_bell_is_not() {
        let identity = Identity { node: NodeId(1), incarnation: Incarnation(1), kind: PeerKind::Member };
        let good = EthernetConfig::new("c", b"the key of the tests' cluster", identity, RegionSpec::default(), RegionSpec::default());
        // An address that nothing else uses.
        let at = SocketAddr::from(([127, 23, 5, 9], 7600));
        let start = || EthernetFabric::start(EthernetConfig { listen: Some(at), ..good.clone() }).expect("it is free");
        let first = start();
        let bell = first.bell();
        drop(first);
        let _second = start();
        bell();
    }
}
