//! An endpoint without a node around it: to measure a fabric, and to see whether a host has it.

use std::error::Error;
use std::net::SocketAddr;

use crate::contract::{Fabric, Identity, NodeId, RegionSpec};

/// What a standalone endpoint is to be.
#[derive(Clone, Debug)]
pub struct Endpoint<'a> {
    /// The cluster of those that meet.
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
    /// Which device it uses, on a fabric that has some; `None`: the first with an active port.
    pub device: Option<String>,
}

/// A fabric whose endpoints can be started without a node.
pub trait Standalone: Fabric + Send + Sized {
    /// Starts an endpoint.
    ///
    /// # Errors
    /// When the fabric does not start.
    fn start_alone(endpoint: Endpoint<'_>) -> Result<Self, Box<dyn Error + Send + Sync>>;

    /// Connects with a node, which on a fabric whose processes need an address listens there.
    fn connect_alone(&self, node: NodeId, at: Option<SocketAddr>);
}
