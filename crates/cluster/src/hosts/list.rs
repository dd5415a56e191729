//! How a host gets the newest list of nodes.

use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use martlet_node::config::{Cluster, NodeEntry, Settings};
use martlet_protocol::basics::layout::MAX_MEMBERS;

use super::{NodeList, asking, keeper};
use crate::directory::{Directory, Lock};
use crate::fail::{Fail, Outcome};

/// How long other hosts may take to answer before a node starts. A host that is down must not hold up one that starts.
const BEFORE_START: Duration = Duration::from_secs(1);

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

/// The newest list of nodes that another host has, whether or not it is newer than this host's. All are asked at once, and the word of the host that keeps the
/// list is enough. `None`: none of them has answered in time.
pub(super) fn heard(cluster: &Cluster, own: u16) -> Option<NodeList> {
    let keeper = keeper(cluster).number;
    let (tell, told) = channel();
    for node in cluster.config().nodes.iter().filter(|node| node.number != own) {
        let (cluster, node, tell) = (cluster.clone(), node.clone(), tell.clone());
        // Where no thread can be started, this host is not asked.
        let _ = thread::Builder::new().name("martlet-asks".into()).spawn(move || {
            let _ = tell.send((node.number, asking::list(&cluster, &node, BEFORE_START).ok()));
        });
    }
    drop(tell);
    let until = Instant::now() + BEFORE_START;
    let mut newest: Option<NodeList> = None;
    while let Ok((from, list)) = told.recv_timeout(until.saturating_duration_since(Instant::now())) {
        let Some(list) = list else { continue };
        if newest.as_ref().is_none_or(|newest| list.number > newest.number) {
            newest = Some(list);
        }
        if from == keeper {
            break;
        }
    }
    newest
}

/// This host's node, if this is the directory of a host whose node answers others.
pub fn own(directory: &Directory, cluster: &Cluster) -> Option<u16> {
    if !cluster.config().fabric.traits().spans_hosts {
        return None;
    }
    let answers = |node: &u16| Settings::load(&directory.node_file(*node)).is_ok_and(|settings| settings.node().answers_hosts);
    directory.nodes_here(cluster).into_iter().find(answers)
}

/// The cluster with the newest list of nodes, as far as another host answers: hosts may have joined, or been removed, since this one last asked. The list is
/// written into the directory only by a caller that has its lock.
///
/// # Errors
/// When the list cannot be written.
pub fn up_to_date(directory: &Directory, cluster: &Cluster, lock: Option<&Lock>) -> Outcome<Cluster> {
    let newer = own(directory, cluster).and_then(|own| heard(cluster, own)).filter(|list| list.number > cluster.config().list);
    let Some(list) = newer else { return Ok(cluster.clone()) };
    match lock {
        Some(_) => directory.take_list(cluster, &list.nodes, list.number),
        None => cluster.with(|config| (config.nodes, config.list) = (list.nodes, list.number)).map_err(Fail::failed),
    }
}

/// Brings this host's list up to date before its node is started. Under the directory's lock.
///
/// # Errors
/// When the node has been removed from the cluster.
pub fn before_start(directory: &Directory, cluster: &Cluster, own: u16, lock: &Lock) -> Outcome<Cluster> {
    let cluster = up_to_date(directory, cluster, Some(lock))?;
    let list = NodeList::of(&cluster);
    if list.has(own) { Ok(cluster) } else { Err(removed(directory, own, &list)) }
}

/// The error for a node that is to start, but has been removed.
pub(super) fn removed(directory: &Directory, own: u16, list: &NodeList) -> Fail {
    Fail::failed(format_args!(
        "node {own} has been removed from the cluster, whose nodes are now {:?}, so it does not start. {}",
        list.numbers(),
        join_again(directory)
    ))
}

/// The error for a directory of a cluster of several hosts of whose nodes none is this host's any more.
pub fn without_a_node(directory: &Directory, cluster: &Cluster) -> Fail {
    let left: Vec<String> =
        (0..MAX_MEMBERS as u16).filter(|number| directory.node_file(*number).exists()).map(|number| format!("node {number}")).collect();
    let (numbers, again) = (NodeList::of(cluster).numbers(), join_again(directory));
    if left.is_empty() {
        return Fail::failed(format_args!(
            "{} has the file of no node: the cluster's nodes are {numbers:?}, on other hosts. If this host had a node, it has been removed. {again}",
            directory.path().display()
        ));
    }
    let left = left.join(" and ");
    Fail::failed(format_args!("{left} of this host has been removed from the cluster, whose nodes are now {numbers:?}. {again}"))
}

/// What to do on a host whose node has been removed.
pub(super) fn join_again(directory: &Directory) -> String {
    format!(
        "To take part again, the host has to join as a new one: run `martlet cluster down --purge --dir {}`, and then `martlet host join` with a token that `martlet host \
         invite` prints on one of the other hosts",
        directory.path().display()
    )
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
