//! `martlet cluster add`

use clap::Args;
use martlet_cluster::directory::{Change, Directory, Ports};
use martlet_cluster::fail::{Fail, Outcome};
use martlet_cluster::number::number;
use martlet_cluster::output::Format;
use martlet_node::config::Cluster;
use martlet_protocol::basics::layout::MAX_MEMBERS;
use serde_json::json;

use super::session::{SAME_COMMAND, Session};
use crate::commands::Which;

/// Add a node to a running cluster.
///
/// The new node is a coordinator and a replica: it decides about membership and holds the data. It gets a number and its files and is started, while the
/// cluster goes on serving. The command returns when the node holds the data and is a full member. Its own file is made like those of the others, unless there
/// is one already. If the command is interrupted, run it again, or run `martlet cluster up`: both continue with the same node.
///
/// Example: martlet cluster add && martlet status
#[derive(Debug, Args)]
pub struct Arguments {
    /// The new node's number [default: one more than the highest]. A node that the cluster has already is started if it is not running.
    #[arg(long, value_name = "N", value_parser = number::<u16>(..MAX_MEMBERS as u64))]
    node: Option<u16>,
    /// The new node's port for the Redis protocol [default: as far from the first node's as its number is].
    #[arg(long, value_name = "PORT", value_parser = number::<u16>(1..))]
    redis_port: Option<u16>,
    /// On a fabric that spans hosts: the port on which it meets the others [default: as far from the first node's as its number is].
    #[arg(long, value_name = "PORT", value_parser = number::<u16>(1..))]
    fabric_port: Option<u16>,
    /// How long to wait until the node is a full member, in seconds. All data has to be sent to it first.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = number::<u64>(..))]
    patience: u64,
    #[command(flatten)]
    which: Which,
}

pub fn run(arguments: &Arguments, format: Format) -> Outcome {
    let session = Session::open(&arguments.which, arguments.patience, format)?;
    session.check_user()?;
    let (directory, cluster) = (&session.directory, session.cluster.clone());
    if !session.elsewhere(&cluster).is_empty() {
        return Err(Fail::usage(
            "the cluster's nodes run on several hosts, one on each; `martlet host invite` and `martlet host join` add another host",
        ));
    }
    session.await_leader(&cluster)?;
    let number = match (arguments.node, directory.half_added()) {
        (None, Some(begun)) => begun,
        (None, None) => directory.free_number(&cluster)?,
        (Some(asked), _) => asked,
    };
    let listed = cluster.config().nodes.iter().any(|node| node.number == number);
    let begun = directory.change(number);
    match begun {
        None if listed => format.say(format_args!("node {number} already belongs to the cluster")),
        Some(change) => format.say(format_args!("continuing with {change} node {number}, which was interrupted")),
        None => {}
    }
    let cluster = if listed && begun != Some(Change::Adding) {
        as_asked(arguments, cluster, number)?
    } else {
        list(arguments, directory, &cluster, number)?
    };
    session.welcome(&cluster, number, SAME_COMMAND)?;
    let entry = cluster.config().nodes.iter().find(|node| node.number == number).expect("just listed");
    let count = cluster.config().nodes.len();
    format.print(
        format_args!("node {number} belongs to the cluster, which has {count} nodes{}", served(&entry.redis)),
        || json!({"event": "added", "node": number, "redis": entry.redis, "nodes": count}),
    );
    Ok(())
}

fn served(redis: &str) -> String {
    if redis.is_empty() { String::new() } else { format!("; it serves the Redis protocol on {redis}") }
}

/// The node becomes one of the cluster's, if it is not yet, where it was asked for.
fn list(arguments: &Arguments, directory: &Directory, cluster: &Cluster, number: u16) -> Outcome<Cluster> {
    let ports = Ports { redis: arguments.redis_port, fabric: arguments.fabric_port };
    let entry = directory.entry_for(cluster, number, ports)?;
    let mut nodes = cluster.config().nodes.clone();
    nodes.retain(|node| node.number != number);
    nodes.push(entry.clone());
    Directory::check_nodes(cluster, nodes)?;
    directory.begin_change(number, Change::Adding)?;
    directory.list_node(cluster, &entry)
}

/// The cluster with that node, which it has already, if it is where it was asked for.
fn as_asked(arguments: &Arguments, cluster: Cluster, number: u16) -> Outcome<Cluster> {
    let entry = cluster.config().nodes.iter().find(|node| node.number == number).expect("listed");
    let redis = entry.redis_host_port().map(|(_, port)| port);
    let fabric = entry.meeting_point().map(|address| address.port());
    for (flag, asked, there) in [("--redis-port", arguments.redis_port, redis), ("--fabric-port", arguments.fabric_port, fabric)] {
        if let Some(asked) = asked.filter(|asked| Some(*asked) != there) {
            let there = there.map_or_else(|| "none".into(), |port| port.to_string());
            return Err(Fail::usage(format_args!("{flag} is {asked}, but node {number} belongs to the cluster already and has {there}")));
        }
    }
    Ok(cluster)
}
