//! Endpoints without a node around them.

use std::error::Error;
use std::net::SocketAddr;

use super::{ShmConfig, ShmFabric};
use crate::contract::NodeId;
use crate::standalone::{Endpoint, Standalone};

impl Standalone for ShmFabric {
    fn start_alone(endpoint: Endpoint<'_>) -> Result<ShmFabric, Box<dyn Error + Send + Sync>> {
        let Endpoint { cluster, key, identity, members, clients, .. } = endpoint;
        Ok(ShmFabric::start(ShmConfig::new(cluster, key, identity, members, clients))?)
    }

    fn connect_alone(&self, node: NodeId, _: Option<SocketAddr>) {
        self.connect(node);
    }
}
