//! An endpoint without a node around it: to measure a fabric, and to find out whether a host supports it.

use std::error::Error;
use std::net::SocketAddr;

use crate::contract::{Fabric, Identity, NodeId, RegionSpec};

/// The configuration of a standalone endpoint.
#[derive(Clone, Debug)]
pub struct Endpoint<'a> {
    /// The cluster of the endpoints that connect to each other.
    pub cluster: &'a str,
    /// Its key.
    pub key: &'a [u8],
    /// Which process this is.
    pub identity: Identity,
    /// What it offers to members.
    pub members: RegionSpec,
    /// What it offers to clients.
    pub clients: RegionSpec,
    /// Where it listens, on a fabric whose processes need an address.
    pub listen: Option<SocketAddr>,
    /// Which device it uses, on a fabric that has devices. `None`: the first one with an active port.
    pub device: Option<String>,
}

/// A fabric whose endpoints can be started without a node.
pub trait Standalone: Fabric + Send + Sized {
    /// Starts an endpoint.
    ///
    /// # Errors
    /// When the fabric does not start.
    fn start_alone(endpoint: Endpoint<'_>) -> Result<Self, Box<dyn Error + Send + Sync>>;

    /// Connects to a node. On a fabric whose processes need an address, `at` is where that node listens.
    fn connect_alone(&self, node: NodeId, at: Option<SocketAddr>);
}
