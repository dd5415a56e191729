//! Endpoints of a benchmark: several in this process, on either fabric.

use std::net::{SocketAddr, TcpListener};

use martlet_cluster::directory::FabricPlan;
use martlet_cluster::fail::{Context as _, Fail, Outcome};
use martlet_fabric::standalone::{self, Standalone};
use martlet_fabric::{Identity, Incarnation, NodeId, PeerKind, RegionSpec, Traits};
use martlet_protocol::basics::layout::{self, Sizes};

use crate::commands::victim::BENCH_KEY;

/// Where the endpoints of one benchmark meet.
#[derive(Clone, Debug)]
pub struct Place {
    cluster: String,
    /// What the fabric is like.
    pub fabric: Traits,
    /// Where the fabric needs addresses: where each listens.
    addresses: Vec<SocketAddr>,
    /// Where the fabric has devices: those that are taken in turn.
    devices: Vec<String>,
}

impl Place {
    /// For so many endpoints.
    ///
    /// # Errors
    /// When there are no free ports.
    pub fn new(purpose: &str, plan: &FabricPlan, endpoints: u16) -> Outcome<Place> {
        let cluster = format!("{purpose}-{}", std::process::id());
        let fabric = plan.kind.traits();
        if !fabric.needs_address {
            return Ok(Place { cluster, fabric, addresses: Vec::new(), devices: Vec::new() });
        }
        // All are held until all are known, so that they differ.
        let listeners = (0..endpoints).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<Result<Vec<_>, _>>();
        let listeners = listeners.context("cannot find free ports")?;
        let addresses = listeners.iter().map(TcpListener::local_addr).collect::<Result<_, _>>().context("cannot find free ports")?;
        Ok(Place { cluster, fabric, addresses, devices: plan.devices.clone() })
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
pub trait Endpoint: Standalone {
    /// Starts the endpoint of a node with these regions.
    ///
    /// # Errors
    /// When the fabric does not start.
    fn start(place: &Place, node: u16, regions: RegionSpec) -> Outcome<Self> {
        let number = usize::from(node);
        let device = (!place.devices.is_empty()).then(|| place.devices[number % place.devices.len()].clone());
        let endpoint = standalone::Endpoint {
            cluster: &place.cluster,
            key: BENCH_KEY,
            identity: identity(node),
            members: regions,
            clients: layout::client_regions(Sizes::default()),
            listen: place.addresses.get(number).copied(),
            device,
        };
        Self::start_alone(endpoint).map_err(Fail::failed)
    }

    /// Connects with another node of the benchmark.
    fn connect(&self, place: &Place, node: u16) {
        self.connect_alone(NodeId(node), place.addresses.get(usize::from(node)).copied());
    }
}

impl<F: Standalone> Endpoint for F {}
