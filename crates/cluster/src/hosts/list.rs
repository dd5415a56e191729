//! How a host gets the newest list of nodes.

use std::time::Duration;

use martlet_node::config::{Cluster, NodeEntry};

use super::{NodeList, asking, keeper};
use crate::directory::Directory;

/// The newest list that other hosts have, if it is newer than this host's. It comes from the host that keeps the list; if that is this host, or is not reached,
/// from any host.
///
/// # Errors
/// Why none could be got.
pub(super) fn newer(cluster: &Cluster, own: u16, patience: Duration) -> Result<Option<NodeList>, String> {
    let first = keeper(cluster);
    let is_newer = |list: &NodeList| list.number > cluster.config().list;
    let mut silent = None;
    if first.number != own {
        match asking::list(cluster, first, patience) {
            Ok(list) => return Ok(Some(list).filter(is_newer)),
            Err(why) => silent = Some(format!("node {} does not send it{why}", first.number)),
        }
    }
    let others = cluster.config().nodes.iter().filter(|node| node.number != own && node.number != first.number);
    let told = others.filter_map(|node| asking::list(cluster, node, patience).ok());
    match (told.filter(is_newer).max_by_key(|list| list.number), silent) {
        (Some(list), _) => Ok(Some(list)),
        (None, None) => Ok(None),
        (None, Some(why)) => Err(why),
    }
}

/// What a list says about this host's own node.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Own {
    Listed,
    /// A node of another host has its number.
    Elsewhere(String),
    Removed,
}

impl Own {
    pub(super) fn in_list(list: &NodeList, before: &NodeEntry) -> Own {
        match list.nodes.iter().find(|node| node.number == before.number) {
            None => Own::Removed,
            Some(now) if now.address != before.address => Own::Elsewhere(now.address.clone()),
            Some(_) => Own::Listed,
        }
    }
}

/// Writes the list, if it is newer than this host's. Returns whether it was. Under the directory's lock.
///
/// # Errors
/// Why it could not be written.
pub(super) fn take(directory: &Directory, list: &NodeList) -> Result<bool, String> {
    let told = |error: crate::fail::Fail| error.to_string();
    let cluster = directory.existing_cluster().map_err(told)?;
    if list.number <= cluster.config().list {
        return Ok(false);
    }
    directory.take_list(&cluster, &list.nodes, list.number).map_err(told)?;
    Ok(true)
}
