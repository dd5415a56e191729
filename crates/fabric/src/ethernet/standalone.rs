//! Endpoints without a node around them.

use std::error::Error;
use std::net::SocketAddr;

use super::{EthernetConfig, EthernetFabric};
use crate::contract::NodeId;
use crate::standalone::{Endpoint, Standalone};

impl Standalone for EthernetFabric {
    fn start_alone(endpoint: Endpoint<'_>) -> Result<EthernetFabric, Box<dyn Error + Send + Sync>> {
        let Endpoint { cluster, key, identity, members, clients, listen, device: _ } = endpoint;
        Ok(EthernetFabric::start(EthernetConfig { listen, ..EthernetConfig::new(cluster, key, identity, members, clients) })?)
    }

    /// Panics without an address, since there is no other way to reach a node.
    fn connect_alone(&self, node: NodeId, at: Option<SocketAddr>) {
        self.connect(node, at.expect("where it listens"));
    }
}
