//! `martlet cluster restart`

use std::time::{Duration, Instant};

use clap::{ArgGroup, Args};
use martlet_cluster::directory::Life;
use martlet_cluster::fail::{Fail, Outcome};
use martlet_cluster::hosts;
use martlet_cluster::number::number;
use martlet_cluster::output::Format;
use martlet_cluster::process::Activity;
use martlet_cluster::watch::observer::{self, Observer, Sight};
use martlet_cluster::watch::standing;
use martlet_node::config::Settings;
use martlet_node::counters::Counter;
use martlet_protocol::basics::layout::MAX_MEMBERS;
use serde_json::json;

use super::down::Grace;
use super::session::Session;
use crate::commands::Which;

/// Restart a node, or with --all every node, one after the other.
///
/// A node that is running is asked to end first. It comes back as a new incarnation and receives the data from the others. The command refuses if the others
/// could not go on without the node. With --all the leader comes last, and each node is restarted only when the cluster is whole.
///
/// In a cluster of several hosts (`martlet host init`), any running node can be restarted from any host; a node that is not running has to be started on its
/// own host. While one host restarts nodes, the command is refused on the others.
///
/// Example: martlet cluster kill 0 && martlet cluster restart 0
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("which nodes").args(["node", "all"]).required(true))]
pub struct Arguments {
    /// The node's number.
    #[arg(value_parser = number::<u16>(..MAX_MEMBERS as u64))]
    node: Option<u16>,
    /// Restart all nodes, one after the other.
    #[arg(long)]
    all: bool,
    /// Do it even if the others cannot go on without the node, or data is lost.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    grace: Grace,
    /// How long to wait after each node until the cluster is whole again, in seconds. 0 does not wait; it is allowed for one node only.
    #[arg(long, value_name = "SECONDS", default_value_t = 20, value_parser = number::<u64>(..))]
    patience: u64,
    #[command(flatten)]
    which: Which,
}

/// How long a node that runs may take to answer that it will begin again.
const ANSWER: Duration = Duration::from_secs(10);

pub fn run(arguments: &Arguments, format: Format) -> Outcome {
    match arguments.node {
        Some(node) => {
            let session = Session::open_for(&arguments.which, node, arguments.patience, format)?;
            let _turn = turn(&session, &node.to_string())?;
            again(&session, node, arguments)
        }
        None => {
            let session = Session::open(&arguments.which, arguments.patience, format)?;
            let _turn = turn(&session, "--all")?;
            all(&session, arguments)
        }
    }
}

/// Where the cluster has several hosts, no command on another one restarts nodes meanwhile.
fn turn(session: &Session, what: &str) -> Outcome<Option<hosts::Turn>> {
    let cluster = &session.cluster;
    if !session.answers_hosts(cluster) {
        // Elsewhere a node's process begins again by itself, as the user that it is.
        session.check_user()?;
        return Ok(None);
    }
    let here = session.directory.nodes_here(cluster);
    let process = std::process::id();
    hosts::Turn::take(cluster, format!("`martlet cluster restart {what}` (process {process}) on the host of nodes {here:?}")).map(Some)
}

/// All nodes, the leader last.
fn all(session: &Session, arguments: &Arguments) -> Outcome {
    if arguments.patience == 0 {
        return Err(Fail::usage("--patience is 0, and --all restarts a node only when the cluster is whole; allowed is 1 or more"));
    }
    let cluster = &session.cluster;
    let nodes: Vec<u16> = cluster.config().nodes.iter().map(|node| node.number).collect();
    nodes.iter().try_for_each(|node| session.directory.adopt(*node))?;
    let began = Instant::now();
    let mut left = nodes.clone();
    while !left.is_empty() {
        let whole = |sights: &[Sight]| observer::is_whole(sights, &nodes) && standing::is_settled(sights, cluster.config().engine);
        let found = Observer::open(cluster)?.wait_for(session.patience, &session.interrupt, whole)?;
        let sights = found.map_err(|sights| {
            let what = format!("the cluster is not whole, so nodes {left:?} have not been restarted; the same command starts over");
            observer::not_ready(&what, &sights)
        })?;
        let leader = observer::primary(&sights).map(|sight| sight.node);
        let next = left.iter().position(|node| Some(*node) != leader).unwrap_or(0);
        again(session, left.remove(next), arguments)?;
    }
    let took = began.elapsed();
    session.format.print(
        format_args!("all nodes have been restarted, in {:.1} s", took.as_secs_f64()),
        || json!({"event": "restarted all", "nodes": nodes, "took_ms": took.as_millis() as u64}),
    );
    Ok(())
}

/// One node.
fn again(session: &Session, node: u16, arguments: &Arguments) -> Outcome {
    let (directory, cluster) = (&session.directory, &session.cluster);
    let elsewhere = session.elsewhere(cluster).contains(&node);
    let runs = if elsewhere { session.is_seen(cluster, node)? } else { directory.activity(node)? != Activity::Gone };
    if runs && !arguments.force {
        session.check_dispensable(cluster, node, "restarted")?;
    }
    if elsewhere && !runs {
        return Err(Fail::failed(format_args!(
            "node {node} belongs to another host, and is not running or cannot be reached; start it there, with its service manager or `martlet host start`"
        )));
    }
    // A process that a service manager has started stays the one that it knows.
    let in_place = elsewhere || runs && Settings::load(&directory.node_file(node)).map_err(Fail::failed)?.node().answers_hosts;
    if in_place {
        let mut observer = Observer::open(cluster)?;
        let life = |sights: &[Sight]| sights.iter().find(|sight| sight.node == node).map_or(0, |sight| sight.counter(Counter::Incarnation));
        let found = observer.wait_for(session.patience.max(ANSWER), &session.interrupt, |sights| life(sights) != 0)?;
        let before = life(&found.map_err(|sights| observer::not_ready(&format!("node {node} does not show its state"), &sights))?);
        hosts::restart(cluster, node, ANSWER)?;
        await_life(session, &mut observer, node, |sights| life(sights) > before)?;
    } else {
        super::down::stop(directory, node, arguments.grace.time())?;
        directory.start(node, Life::OfItsOwn)?;
    }
    if arguments.patience > 0 {
        super::up::await_whole(directory, cluster, session.patience, &session.interrupt)?;
    }
    let pid = directory.process(node)?.map(|process| process.pid);
    let process = pid.map_or_else(|| "on its host".to_owned(), |pid| format!("process {pid}"));
    session.format.print(format_args!("node {node} started ({process})"), || json!({"event": "restarted", "node": node, "pid": pid}));
    Ok(())
}

/// Waits until a node that begins again is there as another life.
fn await_life(session: &Session, observer: &mut Observer, node: u16, is_there: impl Fn(&[Sight]) -> bool) -> Outcome {
    if session.patience.is_zero() {
        return Ok(());
    }
    observer.wait_for(session.patience, &session.interrupt, is_there)?.map(drop).map_err(|sights| {
        let what =
            format!("node {node} ended to restart, but was not seen again within {} s; its log says more", session.patience.as_secs());
        observer::not_ready(&what, &sights)
    })
}
