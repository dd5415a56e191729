//! What the hosts of a cluster ask each other, under its key.

use std::net::SocketAddr;
use std::time::Duration;

use martlet_fabric::NodeId;
use martlet_node::config::{Cluster, NodeEntry};
use martlet_node::version;

use super::channel::Channel;
use super::newcomer::unexpected;
use super::{Answer, NodeList, Request, TalkError, answers_at, keeper, list};
use crate::directory::Directory;
use crate::fail::{Fail, Outcome};

/// Why a host has not done what it was asked. Its message follows right after what the host has not done.
#[derive(Debug)]
pub(super) enum Unanswered {
    /// Its node has no address at which it could answer.
    NoAddress,
    /// It was asked at that address.
    At(SocketAddr, TalkError),
}

impl std::fmt::Display for Unanswered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Unanswered::NoAddress => write!(f, ": it has no address at which it could answer other hosts"),
            Unanswered::At(at, why) => write!(f, " (asked at {at}): {why}"),
        }
    }
}

impl Unanswered {
    /// Whether the host did not answer at all.
    pub(super) fn is_silence(&self) -> bool {
        matches!(self, Unanswered::At(_, TalkError::Broken(_)))
    }
}

fn ask(cluster: &Cluster, node: &NodeEntry, request: &Request, patience: Duration) -> Result<Answer, Unanswered> {
    let at = answers_at(node).ok_or(Unanswered::NoAddress)?;
    let talk = || -> Result<Answer, TalkError> {
        let mut channel = Channel::ask(at, None, cluster.key().bytes(), &version::protocol().build, patience)?;
        channel.send(request)?;
        match channel.receive()? {
            Answer::Refused(why) => Err(TalkError::Refused(why)),
            answer => Ok(answer),
        }
    };
    talk().map_err(|why| Unanswered::At(at, why))
}

fn other(node: &NodeEntry, answer: Answer) -> Unanswered {
    answers_at(node).map_or(Unanswered::NoAddress, |at| Unanswered::At(at, unexpected(answer)))
}

/// The list of nodes, as another node's host has it.
pub(super) fn list(cluster: &Cluster, node: &NodeEntry, patience: Duration) -> Result<NodeList, Unanswered> {
    match ask(cluster, node, &Request::List, patience)? {
        Answer::List(list) => Ok(list),
        answer => Err(other(node, answer)),
    }
}

/// Checks that a node's process answers other hosts, within that patience.
///
/// # Errors
/// Why it does not.
pub fn answers(cluster: &Cluster, node: &NodeEntry, patience: Duration) -> Outcome {
    list(cluster, node, patience)
        .map(drop)
        .map_err(|why| Fail::failed(format_args!("node {} does not answer other hosts{why}", node.number)))
}

/// Makes a node end in an orderly way and start again, on whichever host it is. It has begun to end when this returns.
///
/// # Errors
/// Why it does not.
pub fn restart(cluster: &Cluster, node: u16, patience: Duration) -> Outcome {
    let entry = cluster.node(NodeId(node)).ok_or_else(|| Fail::absent(format_args!("there is no node {node}")))?;
    noted(cluster, entry, &Request::Restart, patience).map_err(|why| Fail::failed(format_args!("node {node} does not restart{why}")))
}

pub(super) fn noted(cluster: &Cluster, node: &NodeEntry, request: &Request, patience: Duration) -> Result<(), Unanswered> {
    match ask(cluster, node, request, patience)? {
        Answer::Noted => Ok(()),
        answer => Err(other(node, answer)),
    }
}

/// Gets an invitation from the host that keeps the list of nodes.
///
/// # Errors
/// Why there is none, and what to do if that host is lost.
pub fn invited(cluster: &Cluster, valid: Duration, patience: Duration) -> Outcome<String> {
    let first = keeper(cluster);
    match ask(cluster, first, &Request::Invite { valid_s: valid.as_secs() }, patience) {
        Ok(Answer::Invited(token)) => Ok(token),
        Ok(answer) => Err(Fail::failed(format_args!("node {} does not invite{}", first.number, other(first, answer)))),
        Err(why) if why.is_silence() => Err(Fail::failed(format_args!(
            "node {} keeps the list of nodes, but cannot be reached{why}. {}",
            first.number,
            when_lost(cluster)
        ))),
        Err(why) => Err(Fail::failed(format_args!("node {} does not invite{why}", first.number))),
    }
}

/// What can be done if the host that keeps the list is lost.
fn when_lost(cluster: &Cluster) -> String {
    let first = keeper(cluster).number;
    let rest: Vec<NodeEntry> = cluster.config().nodes.iter().filter(|node| node.number != first).cloned().collect();
    match Directory::keeper(&rest) {
        Some(next) => format!(
            "If its host is lost for good, run `martlet cluster remove {first}` on this one: that takes node {first} off the list, and from then on the host of node {} keeps the list",
            next.number
        ),
        None => "It is the only node that can found the cluster".into(),
    }
}

/// The result of taking a node off the list.
#[derive(Debug)]
pub struct Unlisted {
    /// The cluster without it.
    pub cluster: Cluster,
    /// Hosts that have not been told; they ask for the list by themselves.
    pub unaware: Vec<u16>,
}

/// Takes a node that has left the cluster off the list of all hosts. Under the lock.
///
/// # Errors
/// When the host that keeps the list is not reached, unless it is the host of this node.
pub fn unlist(directory: &Directory, cluster: &Cluster, number: u16, patience: Duration) -> Outcome<Unlisted> {
    let first = keeper(cluster).clone();
    let here = directory.nodes_here(cluster);
    let cluster = if here.contains(&first.number) {
        directory.unlist_node(cluster, number)?
    } else if first.number == number {
        // The new list is made from this host's, which must therefore include everything that other hosts have heard of: a node that is not on it would end.
        let own = here.first().copied().unwrap_or(number);
        match list::newer(cluster, own, patience) {
            Ok(Some(newer)) => directory.unlist_node(&directory.take_list(cluster, &newer.nodes, newer.number)?, number)?,
            // If the keeper itself does not answer, that is why it is being removed.
            Ok(None) | Err(_) => directory.unlist_node(cluster, number)?,
        }
    } else {
        match ask(cluster, &first, &Request::Unlist { number }, patience) {
            Ok(Answer::List(list)) => directory.take_list(cluster, &list.nodes, list.number)?,
            answer => {
                let why = answer.map_or_else(|why| why, |answer| other(&first, answer));
                return Err(Fail::failed(format_args!(
                    "node {number} has left the cluster, but is still on the list of nodes. The host of node {}, which keeps the list, does not take it off{why}. The same \
                     command continues from here. {}",
                    first.number,
                    if why.is_silence() { when_lost(cluster) } else { String::new() }
                )));
            }
        }
    };
    let list = NodeList::of(&cluster);
    let told = |node: &&NodeEntry| here.contains(&node.number) || noted(&cluster, node, &Request::Take(list.clone()), patience).is_ok();
    let unaware = cluster.config().nodes.iter().filter(|node| !told(node)).map(|node| node.number).collect();
    Ok(Unlisted { cluster, unaware })
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn what_a_host_has_not_done_and_why_are_told_apart() {
        let at = "10.0.0.1:7601".parse().expect("an address");
        let refused = TalkError::Refused("node 3 is not listed".into());
        for (why, wanted, is_silence) in [
            (Unanswered::NoAddress, "node 1 does not restart: it has no address at which it could answer other hosts", false),
            (Unanswered::At(at, refused), "node 1 does not restart (asked at 10.0.0.1:7601): it says: node 3 is not listed", false),
            (
                Unanswered::At(at, TalkError::Broken(io::Error::other("timed out"))),
                "node 1 does not restart (asked at 10.0.0.1:7601): timed out",
                true,
            ),
        ] {
            assert_eq!(format!("node 1 does not restart{why}"), wanted);
            assert_eq!(why.is_silence(), is_silence);
        }
    }

    #[test]
    fn a_node_without_an_address_is_named_with_what_it_lacks() {
        let nodes = vec![NodeEntry::new(0), NodeEntry::new(1)];
        let key = Some("00".repeat(32).as_str().into());
        let cluster = Cluster::new(martlet_node::config::ClusterConfig { key, ..martlet_node::config::ClusterConfig::new("shop", nodes) });
        let cluster = cluster.expect("valid");
        let said = restart(&cluster, 1, Duration::from_secs(1)).expect_err("nothing to ask").to_string();
        assert_eq!(said, "node 1 does not restart: it has no address at which it could answer other hosts");
    }
}
