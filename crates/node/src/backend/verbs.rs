//! RDMA: processes of one or several hosts.
//!
//! What happens in a process's memory wakes nobody, since no CPU takes part in it. So a node that has nothing to do naps: it sleeps for a
//! moment, or until a socket has something for it, and looks.
//!
//! Death words are kept here too, and the kernel marks them. Others see the mark if they read it before the kernel has taken the dead
//! process's queue pairs down; else they learn of the end of the connection, which proves nothing about the process, and have to wait for its
//! lease to run out.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::Duration;

use martlet_fabric::BootstrapCounters;
use martlet_fabric::host::OwnRegion;
use martlet_fabric::verbs::{DeviceChoice, VerbsConfig, VerbsFabric};
use martlet_fabric::{Identity, NodeId, PeerId, RegionName};
use martlet_protocol::basics::layout;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Backend, Rest, StartError, enter};
use crate::clock;
use crate::config::{Cluster, NodeEntry, Settings};
use crate::version;

fn config(cluster: &Cluster, identity: Identity, device: DeviceChoice) -> VerbsConfig {
    let regions = (crate::engine::regions(cluster, cluster.sizes()), layout::client_regions(cluster.sizes()));
    VerbsConfig {
        protocol: version::protocol(),
        device,
        patience: cluster.config().verbs.patience(),
        huge_pages: cluster.config().verbs.huge_pages,
        multicast: cluster.config().verbs.multicast(),
        ..VerbsConfig::new(&cluster.fabric_name(), cluster.key().bytes(), identity, regions.0, regions.1)
    }
}

fn address_of(cluster: &Cluster, node: NodeId) -> SocketAddr {
    cluster.node(node).and_then(NodeEntry::meeting_point).expect("a validated cluster on RDMA has an address for each node")
}

impl Backend for VerbsFabric {
    type Rest = Nap;
    /// The first node of the configuration that may found is the one.
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

    /// A node's processes may run on different boots of its host, or on different hosts.
    fn incarnation() -> u64 {
        clock::wall_ns()
    }

    fn open(&self) {
        VerbsFabric::open(self);
    }

    fn connect(&self, cluster: &Cluster, node: NodeId) {
        VerbsFabric::connect(self, node, address_of(cluster, node));
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
        let founder = cluster.config().nodes.iter().find(|node| node.may_found());
        Ok(founder.is_some_and(|node| node.number == me.0).then_some(()))
    }

    /// A process that cannot be reached may run all the same.
    fn is_absent(_cluster: &Cluster, _node: NodeId) -> io::Result<bool> {
        Ok(false)
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
    stop: OwnedFd,
    sockets: Option<OwnedFd>,
    nap_ns: u64,
}

impl Rest<VerbsFabric> for Nap {
    fn start(settings: &Settings, _: &VerbsFabric, sockets: Option<BorrowedFd<'_>>, stop: BorrowedFd<'_>) -> io::Result<Nap> {
        if let Some(sockets) = sockets {
            enter(sockets, stop)?;
        }
        Ok(Nap {
            stop: stop.try_clone_to_owned()?,
            sockets: sockets.map(|fd| fd.try_clone_to_owned()).transpose()?,
            nap_ns: settings.cluster().config().verbs.nap_us * 1_000,
        })
    }

    fn hears_at_sockets(&self) -> bool {
        self.sockets.is_some()
    }

    fn watch_deaths(&mut self, _: &VerbsFabric, _: impl Iterator<Item = PeerId>, _: NodeId) {}

    fn prepare(&mut self, _: &mut VerbsFabric, _: bool) {}

    fn cancel(&mut self, _: &mut VerbsFabric) {}

    fn sleep(&mut self, _: &mut VerbsFabric, at_sockets: bool, at_most_ns: u64, among_sockets: impl FnOnce(u64) -> bool) {
        let ns = at_most_ns.min(self.nap_ns);
        if at_sockets && among_sockets(ns) {
            return;
        }
        let mut fds: Vec<PollFd<'_>> = [Some(self.stop.as_fd()), self.sockets.as_ref().map(|fd| fd.as_fd())]
            .into_iter()
            .flatten()
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        let timeout = Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 };
        // An error is the end of a nap as well.
        let _ = poll(&mut fds, Some(&timeout));
    }
}
