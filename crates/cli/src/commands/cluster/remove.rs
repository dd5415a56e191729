//! `martlet cluster remove`

use std::time::Duration;

use clap::Args;
use martlet_cluster::directory::Directory;
use martlet_cluster::fail::{Fail, Outcome};
use martlet_cluster::hosts;
use martlet_cluster::number::number;
use martlet_cluster::output::{Format, WARN, styled};
use martlet_node::config::{Cluster, NodeEntry, Role};
use martlet_protocol::basics::layout::MAX_MEMBERS;
use serde_json::json;

use super::down::Grace;
use super::session::Session;
use crate::commands::Which;

/// Remove a node from a running cluster, for good.
///
/// The node may be running or dead, and it may be the leader. If it is running, it leaves in order. The command returns when the others go on without it and
/// the cluster's file no longer lists it. Until then the node belongs to the cluster, and `martlet cluster up` starts it again.
///
/// The command refuses if the others could not go on without the node, or would not have the data. If it is interrupted, run it again: it continues where it
/// stopped. For a node that has been removed already it does nothing more; a number that never was a node is an error (exit code 3).
///
/// Example: martlet cluster remove 3 --purge
#[derive(Debug, Args)]
pub struct Arguments {
    /// The node's number.
    #[arg(value_parser = number::<u16>(..MAX_MEMBERS as u64))]
    node: u16,
    /// Also remove the node's files: its own file, its log, and its data below DIR/data. A data directory elsewhere stays.
    #[arg(long)]
    purge: bool,
    /// Do it even if the others cannot go on without the node, or data is lost.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    grace: Grace,
    /// How long to wait until the others go on without the node, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 20, value_parser = number::<u64>(..))]
    patience: u64,
    #[command(flatten)]
    which: Which,
}

/// How long another host may take to answer.
const ANSWER: Duration = Duration::from_secs(5);

pub fn run(arguments: &Arguments, format: Format) -> Outcome {
    let number = arguments.node;
    let session = Session::open(&arguments.which, arguments.patience, format)?;
    let (directory, mut cluster) = (&session.directory, session.cluster.clone());
    directory.adopt(number)?;
    let listed = cluster.config().nodes.iter().any(|node| node.number == number);
    if listed {
        let rest = without(&cluster, number)?;
        Directory::check_nodes(&cluster, rest)?;
        if !arguments.force {
            session.check_dispensable(&cluster, number, "removed")?;
        }
        session.dismiss(&cluster, number, arguments.grace.time(), arguments.force)?;
        cluster = unlist(&session, &cluster, number)?;
    } else {
        if !directory.was_node(&cluster, number) {
            Directory::check_listed(&cluster, number)?;
        }
        directory.note_removed(&[number])?;
        // An earlier command may have been broken off behind that point, or before.
        super::down::stop(directory, number, arguments.grace.time())?;
    }
    directory.forget_process(number)?;
    directory.end_change(number)?;
    let had_files = directory.has_left(&cluster, number);
    if arguments.purge {
        directory.purge_node(&cluster, number)?;
    }
    let left: Vec<u16> = cluster.config().nodes.iter().map(|node| node.number).collect();
    let files = match (had_files, arguments.purge) {
        (false, _) => "",
        (true, true) => "; its files have been removed",
        (true, false) => "; its files are kept",
    };
    let what = if listed {
        format!("node {number} has been removed{files}")
    } else {
        format!("node {number} does not belong to the cluster any more{files}")
    };
    format.print(
        format_args!("{what}. The cluster's nodes are {left:?}"),
        || json!({"event": "removed", "node": number, "was_listed": listed, "purged": arguments.purge, "nodes": left}),
    );
    if listed {
        warn_of_few(&cluster, format);
    }
    Ok(())
}

/// Takes it off the list: of this directory, and of all hosts where each has one of its own that it keeps like the others'.
fn unlist(session: &Session, cluster: &Cluster, number: u16) -> Outcome<Cluster> {
    if !session.answers_hosts(cluster) {
        return session.directory.unlist_node(cluster, number);
    }
    let keeper = hosts::keeper(cluster).number;
    let hosts::Unlisted { cluster, unaware } = hosts::unlist(&session.directory, cluster, number, ANSWER)?;
    let now = hosts::keeper(&cluster).number;
    if now != keeper {
        session.format.say(format_args!("from now on, the host of node {now} keeps the list of nodes and invites others"));
    }
    let here = session.directory.nodes_here(&cluster);
    let others = cluster.config().nodes.iter().filter(|node| !here.contains(&node.number)).count();
    if let Some(warning) = unheard(&unaware, others) {
        session.format.say(styled(WARN, warning));
    }
    Ok(cluster)
}

/// What to say where hosts have not heard that a node is on the list no more. `others`: the nodes of other hosts.
fn unheard(unaware: &[u16], others: usize) -> Option<String> {
    match unaware.len() {
        0 => None,
        // Were it lost, the others would go on with the list of before.
        all if all == others => Some(format!(
            "none of the other hosts, those of nodes {unaware:?}, has the new list of nodes yet: only this host has it. They ask for it every few seconds, once they run and reach \
             this host's node. Keep this node running until one of them has it"
        )),
        _ => Some(format!("the hosts of nodes {unaware:?} do not have the new list of nodes yet; they ask for it by themselves")),
    }
}

/// The cluster's nodes but for that one, if any is left.
fn without(cluster: &Cluster, number: u16) -> Outcome<Vec<NodeEntry>> {
    let rest: Vec<NodeEntry> = cluster.config().nodes.iter().filter(|node| node.number != number).cloned().collect();
    if rest.is_empty() {
        return Err(Fail::usage(format_args!("node {number} is the cluster's only node; `martlet cluster down --purge` ends the cluster")));
    }
    if !rest.iter().any(NodeEntry::may_found) {
        return Err(Fail::usage(format_args!(
            "node {number} is the only node that is both coordinator and replica, and the cluster needs one; add another first: `martlet cluster add`"
        )));
    }
    Ok(rest)
}

fn warn_of_few(cluster: &Cluster, format: Format) {
    let replicas = cluster.config().nodes.iter().filter(|node| node.roles.contains(&Role::Replica)).count();
    let what = match (replicas, cluster.config().engine) {
        (1, _) => "only one node holds the data: no other node can take over when it dies",
        (2, engine) if engine.traits().commits_by_majority() => {
            "two nodes hold the data, and a majority of two is both: when the leader dies, the other node cannot take over"
        }
        _ => return,
    };
    format.say(styled(WARN, what));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_told_whether_any_other_host_has_heard_of_it() {
        assert_eq!(unheard(&[], 2), None);
        assert_eq!(unheard(&[], 0), None, "there is no other host");
        let some = unheard(&[2], 2).expect("one has not heard");
        assert!(some.starts_with("the hosts of nodes [2] do not have the new list of nodes yet"), "{some}");
        let all = unheard(&[1, 2], 2).expect("none has heard");
        assert!(
            all.starts_with("none of the other hosts, those of nodes [1, 2], has the new list of nodes yet: only this host has it"),
            "{all}"
        );
    }
}
