//! Ordinary hosts: processes that reach each other by sealed packets over UDP.
//!
//! A sleeping node is woken by the packet that asks it for something, since its sockets are among what it waits for. Nothing is known for certain of other
//! hosts: a peer that does not answer may be running all the same, and its lease has to run out.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use martlet_fabric::BootstrapCounters;
use martlet_fabric::ethernet::{EthernetConfig, EthernetFabric};
use martlet_fabric::host::OwnRegion;
use martlet_fabric::{Identity, NodeId, PeerId, RegionName};

use super::hosts::{self, Sources};
use super::{Backend, Rest, StartError, enter, regions};
use crate::config::{Cluster, Settings};
use crate::version;

fn config(cluster: &Cluster, identity: Identity) -> EthernetConfig {
    let (members, clients) = regions(cluster);
    EthernetConfig {
        protocol: version::protocol(),
        give_up: cluster.config().ethernet.give_up(),
        ..EthernetConfig::new(&cluster.fabric_name(), cluster.key().bytes(), identity, members, clients)
    }
}

impl Backend for EthernetFabric {
    type Rest = Doze;
    /// The claim belongs to the first node of the configuration that may found the cluster.
    type Claim = ();
    const FIXED_CLAIM: bool = true;

    fn start_node(settings: &Settings, identity: Identity) -> Result<EthernetFabric, StartError> {
        let listen = settings.ethernet_listen();
        Ok(EthernetFabric::start(EthernetConfig { listen, closed: true, ..config(settings.cluster(), identity) })?)
    }

    fn start_client(cluster: &Cluster, identity: Identity) -> Result<EthernetFabric, StartError> {
        Ok(EthernetFabric::start(config(cluster, identity))?)
    }

    fn open(&self) {
        EthernetFabric::open(self);
    }

    fn connect(&self, cluster: &Cluster, node: NodeId) {
        EthernetFabric::connect(self, node, hosts::address_of(cluster, node));
    }

    fn disconnect(&self, node: NodeId) {
        self.disconnect(node);
    }

    fn identity(&self) -> Identity {
        EthernetFabric::identity(self)
    }

    fn last_refusal(&self) -> Option<String> {
        EthernetFabric::last_refusal(self)
    }

    fn misfit(&self, within: Duration) -> Option<String> {
        EthernetFabric::misfit(self, within)
    }

    fn connections(&self) -> BootstrapCounters {
        self.bootstrap_counters()
    }

    fn malformed_datagrams(&self) -> u64 {
        self.packet_counters().malformed
    }

    fn bell(&self) -> Box<dyn Fn() + Send> {
        Box::new(EthernetFabric::bell(self))
    }

    fn own_region(&self, name: RegionName) -> Option<OwnRegion> {
        EthernetFabric::own_region(self, name)
    }

    fn claim_founding(cluster: &Cluster, me: NodeId) -> io::Result<Option<()>> {
        Ok(hosts::claim_founding(cluster, me))
    }

    fn announce(&mut self) {
        self.fall_asleep();
    }

    fn stay_awake(&mut self) {
        self.wake_up();
    }

    fn sleep_at_most(&mut self, timeout: Duration) {
        self.sleep(timeout);
        self.wake_up();
    }

    fn sleep_until_told(&mut self, timeout: Duration) {
        self.sleep_until_asked(timeout);
        self.wake_up();
    }
}

/// Sleeps until a packet comes, or there is something for the application.
#[derive(Debug)]
pub struct Doze {
    sources: Sources,
}

impl Rest<EthernetFabric> for Doze {
    fn start(_: &Settings, fabric: &EthernetFabric, sockets: Option<BorrowedFd<'_>>, stop: BorrowedFd<'_>) -> io::Result<Doze> {
        if let Some(sockets) = sockets {
            enter(sockets, fabric.sources())?;
        }
        Ok(Doze { sources: Sources::new(sockets, stop)? })
    }

    fn hears_at_sockets(&self) -> bool {
        self.sources.have_sockets()
    }

    // The end of a connection tells of a death. The thread that watches connections notices it, and rings.
    fn watch_deaths(&mut self, _: &EthernetFabric, _: impl Iterator<Item = PeerId>, _: NodeId) {}

    fn prepare(&mut self, fabric: &mut EthernetFabric, _: bool) {
        fabric.fall_asleep();
    }

    fn cancel(&mut self, fabric: &mut EthernetFabric) {
        fabric.wake_up();
    }

    fn sleep(&mut self, fabric: &mut EthernetFabric, at_sockets: bool, at_most_ns: u64, among_sockets: impl FnOnce(u64) -> bool) {
        let due_ns = fabric.due_in().map_or(u64::MAX, |due| due.as_nanos() as u64);
        let ns = at_most_ns.min(due_ns);
        if !(at_sockets && among_sockets(ns)) {
            self.sources.wait(Some(fabric.sources()), ns);
        }
        fabric.wake_up();
    }
}
