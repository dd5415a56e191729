//! Endpoints of a benchmark: several in this process, on either fabric.

use std::net::{SocketAddr, TcpListener};

use martlet_cluster::directory::FabricPlan;
use martlet_cluster::fail::{Context as _, Fail, Outcome};
use martlet_fabric::shm::{ShmConfig, ShmFabric};
use martlet_fabric::verbs::{DeviceChoice, VerbsConfig, VerbsFabric};
use martlet_fabric::{Fabric, Identity, Incarnation, NodeId, PeerKind, RegionSpec};
use martlet_protocol::basics::layout::{self, Sizes};

use crate::commands::victim::BENCH_KEY;

/// Where the endpoints of one benchmark meet.
#[derive(Clone, Debug)]
pub struct Place {
    cluster: String,
    /// On RDMA: where each listens.
    addresses: Vec<SocketAddr>,
    /// On RDMA: taken in turn.
    devices: Vec<String>,
}

impl Place {
    /// For so many endpoints.
    ///
    /// # Errors
    /// When there are no free ports.
    pub fn new(purpose: &str, plan: &FabricPlan, endpoints: u16) -> Outcome<Place> {
        let cluster = format!("{purpose}-{}", std::process::id());
        let FabricPlan::Verbs { devices, .. } = plan else {
            return Ok(Place { cluster, addresses: Vec::new(), devices: Vec::new() });
        };
        // All are held until all are known, so that they differ.
        let listeners = (0..endpoints).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<Result<Vec<_>, _>>();
        let listeners = listeners.context("cannot find free ports")?;
        let addresses = listeners.iter().map(TcpListener::local_addr).collect::<Result<_, _>>().context("cannot find free ports")?;
        Ok(Place { cluster, addresses, devices: devices.clone() })
    }
}

/// The usual regions of a member.
pub fn regions() -> RegionSpec {
    layout::regions(Sizes::default())
}

fn identity(node: u16) -> Identity {
    Identity { node: NodeId(node), incarnation: Incarnation(1), kind: PeerKind::Member }
}

/// A fabric that can be measured.
pub trait Endpoint: Fabric + Send + Sized {
    /// Starts the endpoint of a node with these regions.
    ///
    /// # Errors
    /// When the fabric does not start.
    fn start(place: &Place, node: u16, regions: RegionSpec) -> Outcome<Self>;

    /// Connects with another node of the benchmark.
    fn connect(&self, place: &Place, node: u16);
}

impl Endpoint for ShmFabric {
    fn start(place: &Place, node: u16, regions: RegionSpec) -> Outcome<ShmFabric> {
        let clients = layout::client_regions(Sizes::default());
        ShmFabric::start(ShmConfig::new(&place.cluster, BENCH_KEY, identity(node), regions, clients)).map_err(Fail::failed)
    }

    fn connect(&self, _: &Place, node: u16) {
        self.connect(NodeId(node));
    }
}

impl Endpoint for VerbsFabric {
    fn start(place: &Place, node: u16, regions: RegionSpec) -> Outcome<VerbsFabric> {
        let number = usize::from(node);
        let name = (!place.devices.is_empty()).then(|| place.devices[number % place.devices.len()].clone());
        let config = VerbsConfig {
            listen: Some(place.addresses[number]),
            device: DeviceChoice { name, ..DeviceChoice::default() },
            ..VerbsConfig::new(&place.cluster, BENCH_KEY, identity(node), regions, layout::client_regions(Sizes::default()))
        };
        VerbsFabric::start(config).map_err(Fail::failed)
    }

    fn connect(&self, place: &Place, node: u16) {
        self.connect(NodeId(node), place.addresses[usize::from(node)]);
    }
}
