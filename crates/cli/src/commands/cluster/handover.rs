//! `martlet cluster handover`

use std::time::Duration;

use clap::Args;
use martlet_cluster::directory::Directory;
use martlet_cluster::fail::{Fail, Outcome};
use martlet_cluster::number::number;
use martlet_cluster::output::Format;
use martlet_cluster::watch::observer::{self, Observer, Sight};
use martlet_node::config::{Cluster, EngineKind};
use martlet_node::counters::Counter;
use martlet_protocol::basics::layout::MAX_MEMBERS;
use serde_json::json;

use super::asking;
use super::session::Session;
use crate::commands::Which;

/// Hand leadership over to a node, without a failed request.
///
/// The old leader goes on until the node has everything, and then sends clients there. The node leads until it ends, or hands leadership over itself. The
/// command returns when the node leads and every node that can be seen knows it.
///
/// Only for clusters with --engine mu whose nodes serve the Redis protocol. With primary-backup the order of joining decides which node leads: there a leader
/// hands over by leaving, as with `martlet cluster restart`.
///
/// Example: martlet cluster handover 2
#[derive(Debug, Args)]
pub struct Arguments {
    /// The node that is to lead.
    #[arg(value_parser = number::<u16>(..MAX_MEMBERS as u64))]
    node: u16,
    /// How long to wait until the node leads, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 20, value_parser = number::<u64>(..))]
    patience: u64,
    #[command(flatten)]
    which: Which,
}

pub fn run(arguments: &Arguments, format: Format) -> Outcome {
    let node = arguments.node;
    Directory::new(&arguments.which.dir).refuse_a_service(
        "Its replicas take over from each other, and no connection ends: `martlet status` shows which process serves, and `kill -KILL PROCESS` makes another one lead",
    )?;
    let session = Session::open_beside(&arguments.which, arguments.patience, format)?;
    let cluster = session.cluster.clone();
    Directory::check_listed(&cluster, node)?;
    let engine = cluster.config().engine;
    if !engine.traits().hands_over_by_name {
        return Err(Fail::usage(format_args!(
            "the cluster's engine is {engine}, where a leader hands over by leaving: `martlet cluster restart`; allowed is {}",
            EngineKind::names_with(|traits| traits.hands_over_by_name)
        )));
    }
    let mut observer = Observer::open(&cluster)?;
    let (leader, _) = session.leader(&mut observer)?;
    if leader != node {
        ask(&session.directory, &cluster, leader, node, session.patience)?;
        let found = observer.wait_for(session.patience, &session.interrupt, |sights| leads(sights, node))?;
        let now = |sights: &[Sight]| observer::primary(sights).map(|sight| sight.node);
        found.map_err(|sights| observer::not_ready(&why_not(now(&sights), node, leader, arguments.patience), &sights))?;
    }
    format.print(
        format_args!("node {node} leads{}", if leader == node { " already".into() } else { format!(", and node {leader} follows") }),
        || json!({"event": "handed over", "node": node, "from": leader}),
    );
    Ok(())
}

/// Whether it leads, and everybody who can be seen knows it.
fn leads(sights: &[Sight], node: u16) -> bool {
    let knows = |sight: &Sight| sight.reading.is_none() || sight.counter(Counter::Primary) == u64::from(node) + 1;
    observer::primary(sights).is_some_and(|sight| sight.node == node) && sights.iter().all(knows)
}

/// What to say when it did not come to lead: the reply to FAILOVER says only that it was begun, so what came of it shows in who leads now.
fn why_not(leads: Option<u16>, node: u16, before: u16, patience: u64) -> String {
    let instead = match leads {
        Some(now) if now == node => "it leads, but not every node knows it yet".into(),
        Some(now) if now == before => format!("node {now} still leads; its log says why"),
        Some(now) => format!("node {now} leads: leadership was lost before it was handed over"),
        None => "no node leads".into(),
    };
    format!("not every node saw node {node} lead within {patience} s: {instead}")
}

/// Asks the leader for it.
fn ask(directory: &Directory, cluster: &Cluster, leader: u16, node: u16, patience: Duration) -> Outcome {
    let doing = format!("cannot ask node {leader}, which leads");
    let (host, port) = asking::address(cluster, node, &doing)?.rsplit_once(':').unwrap_or_default();
    asking::ask(directory, cluster, leader, &[b"FAILOVER", b"TO", host.as_bytes(), port.as_bytes()], &doing, patience)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_leads_instead_is_said() {
        let text = |now| {
            let text = why_not(now, 2, 0, 20);
            text.strip_prefix("not every node saw node 2 lead within 20 s: ").map(str::to_owned).expect("what was waited for")
        };
        assert_eq!(text(Some(2)), "it leads, but not every node knows it yet");
        assert_eq!(text(Some(0)), "node 0 still leads; its log says why");
        assert_eq!(text(Some(1)), "node 1 leads: leadership was lost before it was handed over");
        assert_eq!(text(None), "no node leads");
    }
}
