//! Endpoints without a node around them.

use std::error::Error;
use std::net::SocketAddr;

use super::{DeviceChoice, VerbsConfig, VerbsFabric};
use crate::contract::NodeId;
use crate::standalone::{Endpoint, Standalone};

impl Standalone for VerbsFabric {
    fn start_alone(endpoint: Endpoint<'_>) -> Result<VerbsFabric, Box<dyn Error + Send + Sync>> {
        let Endpoint { cluster, key, identity, members, clients, listen, device: name } = endpoint;
        let device = DeviceChoice { name, ..DeviceChoice::default() };
        Ok(VerbsFabric::start(VerbsConfig { listen, device, ..VerbsConfig::new(cluster, key, identity, members, clients) })?)
    }

    /// Panics without an address, since there is no other way to reach a node.
    fn connect_alone(&self, node: NodeId, at: Option<SocketAddr>) {
        self.connect(node, at.expect("where it listens"));
    }
}
