//! RDMA: processes of one or several hosts.
//!
//! What happens in a process's memory does not wake the process, since no CPU takes part in it. So a node that has nothing to do naps: it sleeps for a moment,
//! or until a socket has something for it, and then looks.
//!
//! Death words exist here too, and the kernel marks them. Others see the mark if they read it before the kernel has torn down the dead process's queue pairs.
//! Otherwise they learn only of the end of the connection, which proves nothing about the process, and have to wait for its lease to run out.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use martlet_fabric::BootstrapCounters;
use martlet_fabric::host::OwnRegion;
use martlet_fabric::verbs::{DeviceChoice, VerbsConfig, VerbsFabric};
use martlet_fabric::{Identity, NodeId, PeerId, RegionName};

use super::hosts::{self, Sources};
use super::{Backend, Rest, StartError, regions};
use crate::config::{Cluster, Settings};
use crate::version;

fn config(cluster: &Cluster, identity: Identity, device: DeviceChoice) -> VerbsConfig {
    let (members, clients) = regions(cluster);
    VerbsConfig {
        protocol: version::protocol(),
        device,
        patience: cluster.config().verbs.patience(),
        huge_pages: cluster.config().verbs.huge_pages,
        multicast: cluster.config().verbs.multicast(),
        ..VerbsConfig::new(&cluster.fabric_name(), cluster.key().bytes(), identity, members, clients)
    }
}

impl Backend for VerbsFabric {
    type Rest = Nap;
    /// The claim belongs to the first node of the configuration that may found the cluster.
    type Claim = ();
    const FIXED_CLAIM: bool = true;

    fn start_node(settings: &Settings, identity: Identity) -> Result<VerbsFabric, StartError> {
        let config = config(settings.cluster(), identity, settings.verbs_device());
        let listen = settings.verbs_listen();
        Ok(VerbsFabric::start(VerbsConfig { listen, closed: true, ..config })?)
    }

    fn start_client(cluster: &Cluster, identity: Identity) -> Result<VerbsFabric, StartError> {
        Ok(VerbsFabric::start(config(cluster, identity, cluster.config().verbs.device()))?)
    }

    fn open(&self) {
        VerbsFabric::open(self);
    }

    fn connect(&self, cluster: &Cluster, node: NodeId) {
        VerbsFabric::connect(self, node, hosts::address_of(cluster, node));
    }

    fn disconnect(&self, node: NodeId) {
        self.disconnect(node);
    }

    fn identity(&self) -> Identity {
        VerbsFabric::identity(self)
    }

    fn last_refusal(&self) -> Option<String> {
        VerbsFabric::last_refusal(self)
    }

    fn misfit(&self, within: Duration) -> Option<String> {
        VerbsFabric::misfit(self, within)
    }

    fn connections(&self) -> BootstrapCounters {
        self.bootstrap_counters()
    }

    fn malformed_datagrams(&self) -> u64 {
        self.mail_counters().rejected
    }

    fn own_region(&self, name: RegionName) -> Option<OwnRegion> {
        VerbsFabric::own_region(self, name)
    }

    fn claim_founding(cluster: &Cluster, me: NodeId) -> io::Result<Option<()>> {
        Ok(hosts::claim_founding(cluster, me))
    }

    // A process that looks now and then need not announce anything.
    fn announce(&mut self) {}

    fn stay_awake(&mut self) {}

    fn sleep_at_most(&mut self, timeout: Duration) {
        std::thread::sleep(timeout.min(CLIENTS_NAP));
    }
}

/// How long a client sleeps between two looks.
const CLIENTS_NAP: Duration = Duration::from_micros(50);

/// Sleeps for a moment, or until there is something for the application.
#[derive(Debug)]
pub struct Nap {
    sources: Sources,
    nap_ns: u64,
}

impl Rest<VerbsFabric> for Nap {
    fn start(settings: &Settings, _: &VerbsFabric, sockets: Option<BorrowedFd<'_>>, stop: BorrowedFd<'_>) -> io::Result<Nap> {
        Ok(Nap { sources: Sources::new(sockets, stop)?, nap_ns: settings.cluster().config().verbs.nap_us * 1_000 })
    }

    fn hears_at_sockets(&self) -> bool {
        self.sources.have_sockets()
    }

    fn watch_deaths(&mut self, _: &VerbsFabric, _: impl Iterator<Item = PeerId>, _: NodeId) {}

    fn prepare(&mut self, _: &mut VerbsFabric, _: bool) {}

    fn cancel(&mut self, _: &mut VerbsFabric) {}

    fn sleep(&mut self, _: &mut VerbsFabric, at_sockets: bool, at_most_ns: u64, among_sockets: impl FnOnce(u64) -> bool) {
        let ns = at_most_ns.min(self.nap_ns);
        if !(at_sockets && among_sockets(ns)) {
            self.sources.wait(None, ns);
        }
    }
}
