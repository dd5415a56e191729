//! Hosts of a cluster that spans several: how one of them founds it, others are invited and join, and all keep the same list of nodes.
//!
//! Each host has a directory like that of `martlet cluster up` (module [`directory`](crate::directory)) with the file of its own node only. The node's process answers
//! other hosts at the TCP port after the one of its `address`, where its file says `answers_hosts = true`.
//!
//! | who asks | under which secret | what for |
//! |---|---|---|
//! | a newcomer | of an invitation, which `martlet host invite` has written into the directory and printed as a [`Token`] | a number, the cluster's file and key |
//! | any host of the cluster | the cluster's key | the list of nodes; an invitation; that a node is on it no more; that the node of the host that is asked begins again |
//!
//! **One host keeps the list**: that of the first node in it that may found the cluster. It alone changes it and invites, so no number is given twice; the others ask it for
//! the list every few seconds and write it into their files. It founds the cluster too, so the list by which the cluster is founded is never an old one.
//!
//! **When that host is lost for good**, `martlet cluster remove` on another one takes its node off the list, and so the next one keeps it. Lists are numbered
//! ([`ListConfig`]), and one that another host keeps is newer than any that the one before could still make. Where the keeper is not reached, hosts ask all others; the
//! keeper always does, and so one that was lost and comes back learns that it is on the list no more, and ends its node.
//!
//! **A newcomer is listed before it is answered**, under the number that stands in the invitation by then. When the answer is lost, the same host asks again with the
//! same token and gets the same number, until it has said that it has everything.

mod asking;
mod channel;
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
pub use newcomer::{Joining, Welcome};
pub use restart::{Restart, Successor};
pub use service::Service;
pub use token::Token;
pub use turn::Turn;

/// Of the conversation between hosts. Another one is refused.
const VERSION: u32 = 2;

/// What is asked.
#[derive(Debug, Serialize, Deserialize)]
enum Request {
    /// To become a node of the cluster, reached at `address` by the others and at `redis` by clients, where that is not to be as on the host that is asked.
    Join { address: SocketAddr, redis: Option<String>, version: u32, least_level: u8, most_level: u8 },
    /// The newcomer has everything.
    Joined,
    /// The list of nodes.
    List,
    /// An invitation that is good for so many seconds.
    Invite { valid_s: u64 },
    /// That a node, which has left the cluster, is on the list no more.
    Unlist { number: u16 },
    /// To take a list that is newer than its own.
    Take(NodeList),
    /// That the node of the host that is asked ends in order and begins again.
    Restart,
    /// That for so many seconds no other command than this one restarts nodes; 0: no longer. `by`: what the others are told.
    Turn { id: String, by: String, valid_s: u64 },
}

/// What is answered.
#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    Welcome(Box<Welcome>),
    Noted,
    List(NodeList),
    Invited(String),
    Refused(String),
}

/// The nodes of a cluster, as a host has them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct NodeList {
    number: ListConfig,
    nodes: Vec<NodeEntry>,
}

impl NodeList {
    fn of(cluster: &Cluster) -> NodeList {
        NodeList { number: cluster.config().list, nodes: cluster.config().nodes.clone() }
    }
}

/// Where a node's process answers other hosts: the TCP port after the one at which nodes meet.
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
