//! Clusters that span several hosts: how one host founds the cluster, how others are invited and join, and how all of them keep the same list of nodes.
//!
//! Each host has a directory like that of `martlet cluster up` (module [`directory`](crate::directory)), with only the file of its own node. If that file says
//! `answers_hosts = true`, the node's process answers other hosts at the TCP port after the one of its `address`.
//!
//! | who asks | under which secret | what for |
//! |---|---|---|
//! | a newcomer | of an invitation, which `martlet host invite` has written into the directory and printed as a [`Token`] | a number, the cluster's file and key |
//! | any host of the cluster | the cluster's key | the list of nodes; an invitation; to take a node off the list; to restart the asked host's node |
//!
//! **One host keeps the list**: the host of the first listed node that may found the cluster. Only this host changes the list and invites, so no number is
//! given twice. The other hosts ask it for the list every few seconds, and write the list into their files. It also founds the cluster, so a cluster is never
//! founded from an outdated list.
//!
//! **When that host is lost for good**, `martlet cluster remove` on another host takes the lost host's node off the list, and so the next host keeps it. Lists
//! are numbered ([`ListConfig`]), and a list of the new keeper is newer than any that the old one could still make. If the keeper is not reached, hosts ask all
//! others. The keeper always asks all others, so a keeper that was lost and comes back learns that it is no longer on the list, and ends its node.
//!
//! **Before a node starts**, its host asks all others for the list. A node that has been removed does not start. A host that reaches no other starts its node:
//! alone, that node has no majority. It then asks every second until another host has answered.
//!
//! **A newcomer is listed before it is answered**, under a number that has been written into the invitation by then. If the answer is lost, the same host asks
//! again with the same token and gets the same number, until it has said that it has everything.

mod asking;
mod channel;
mod conversations;
mod hex;
mod invitation;
mod list;
mod newcomer;
mod restart;
mod service;
mod token;
mod turn;

use std::net::SocketAddr;

use martlet_node::config::{Cluster, ListConfig, NodeEntry};
use serde::{Deserialize, Serialize};

use crate::directory::Directory;

pub use asking::{Unlisted, answers, invited, restart, unlist};
pub use channel::TalkError;
pub use invitation::invite;
pub use list::{before_start, own, up_to_date, without_a_node};
pub use newcomer::{Joining, Welcome};
pub use restart::{Restart, Successor};
pub use service::Service;
pub use token::Token;
pub use turn::Turn;

/// The version of the conversation between hosts. Other versions are refused.
const VERSION: u32 = 2;

/// What a host asks of another.
#[derive(Debug, Serialize, Deserialize)]
enum Request {
    /// To become a node of the cluster that the others reach at `address` and clients at `redis`.
    /// If `redis` is `None`, clients reach it at that address, on the port that the asked host uses for its own node.
    Join { address: SocketAddr, redis: Option<String>, version: u32, least_level: u8, most_level: u8 },
    /// The newcomer has everything.
    Joined,
    /// The list of nodes.
    List,
    /// For an invitation that is valid for this many seconds.
    Invite { valid_s: u64 },
    /// To take a node that has left the cluster off the list.
    Unlist { number: u16 },
    /// To take a list that is newer than its own.
    Take(NodeList),
    /// To restart the node of the host that is asked, in an orderly way.
    Restart,
    /// To let only this command restart nodes, for this many seconds; 0: to stop doing so. `by`: its name, for other commands that are refused.
    Turn { id: String, by: String, valid_s: u64 },
}

/// The answer to a request.
#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    Welcome(Box<Welcome>),
    Noted,
    List(NodeList),
    Invited(String),
    Refused(String),
}

/// The nodes of a cluster, as one host knows them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct NodeList {
    number: ListConfig,
    nodes: Vec<NodeEntry>,
}

impl NodeList {
    fn of(cluster: &Cluster) -> NodeList {
        NodeList { number: cluster.config().list, nodes: cluster.config().nodes.clone() }
    }

    fn numbers(&self) -> Vec<u16> {
        self.nodes.iter().map(|node| node.number).collect()
    }

    fn has(&self, number: u16) -> bool {
        self.nodes.iter().any(|node| node.number == number)
    }
}

/// The address at which a node's process answers other hosts: the TCP port after the one at which nodes meet.
pub fn answers_at(entry: &NodeEntry) -> Option<SocketAddr> {
    let meeting = entry.meeting_point()?;
    Some(SocketAddr::new(meeting.ip(), meeting.port().checked_add(1)?))
}

/// The node whose host keeps the list.
pub fn keeper(cluster: &Cluster) -> &NodeEntry {
    Directory::keeper(&cluster.config().nodes).expect("a validated cluster has a node that may found it")
}

/// Seconds of the wall clock.
fn now_s() -> u64 {
    martlet_node::clock::wall_ns() / 1_000_000_000
}
