//! `martlet cluster evict`

use clap::Args;
use martlet_cluster::directory::Directory;
use martlet_cluster::fail::{Fail, Outcome};
use martlet_cluster::number::number;
use martlet_cluster::output::Format;
use martlet_cluster::process::Activity;
use martlet_cluster::watch::observer::{self, Observer, Sight};
use martlet_cluster::watch::standing::{self, Standing};
use martlet_node::config::Cluster;
use martlet_node::counters::Counter;
use martlet_protocol::basics::ProcessId;
use martlet_protocol::basics::layout::MAX_MEMBERS;
use serde_json::json;

use super::asking;
use super::session::Session;
use crate::commands::Which;
use crate::watch::known::Known;

/// Make the other nodes go on without a node that hangs.
///
/// A node hangs when it is stopped, or makes no progress, while the others still rely on it. A node that died is removed automatically, and with primary-backup
/// so is a node that shows no sign of life. With mu a node that hangs is not, since its memory may be needed: this command decides that. The node still belongs
/// to the cluster: if its process resumes, it notices that it was removed, drops what it holds, and joins again as new. `cluster remove` removes a node for
/// good. Only for clusters whose nodes serve the Redis protocol.
///
/// Example: martlet cluster evict 2
#[derive(Debug, Args)]
pub struct Arguments {
    /// The node that hangs.
    #[arg(value_parser = number::<u16>(..MAX_MEMBERS as u64))]
    node: u16,
    /// Do it even if the others cannot go on without the node, or data is lost.
    #[arg(long)]
    force: bool,
    /// How long to wait until the others go on without the node, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 20, value_parser = number::<u64>(..))]
    patience: u64,
    #[command(flatten)]
    which: Which,
}

pub fn run(arguments: &Arguments, format: Format) -> Outcome {
    let node = arguments.node;
    let session = Session::open_beside(&arguments.which, arguments.patience, format)?;
    let cluster = session.cluster.clone();
    Directory::check_listed(&cluster, node)?;
    let Session { directory, interrupt, patience, .. } = &session;
    let mut observer = Observer::open(&cluster)?;
    // All who can be seen are, before it is said of any that it does not run.
    let mut others = Vec::new();
    for entry in cluster.config().nodes.iter().filter(|entry| entry.number != node) {
        if !matches!(Known::of(directory, &cluster, entry.number)?.activity, Some(Activity::Gone | Activity::Stopped)) {
            others.push(entry.number);
        }
    }
    observer.connect(&others, interrupt)?;
    // Not by the word of the one that hangs. Any member can be asked: who leads, if one does, or who waits for that one.
    let ask_of = |sights: &[Sight]| leader(sights, node).or_else(|| waits(directory, sights, node));
    let found = observer.wait_for(*patience, interrupt, |sights| ask_of(sights).is_some())?;
    let sights = found.map_err(|sights| observer::not_ready("none of the other nodes can be asked", &sights))?;
    let Some(hangs) = listed(&sights, node) else {
        return Err(Fail::absent(format_args!("node {node} is not a member of the newest view: no node relies on it")));
    };
    if !arguments.force {
        check_dispensable(directory, &cluster, &sights, node)?;
    }
    let asked = ask_of(&sights).ok_or_else(|| Fail::absent("none of the other nodes can be asked"))?;
    let doing = format!("cannot ask node {asked}");
    // As CLUSTER NODES names it.
    let name = format!("{:08x}{:032x}", hangs.node.0, hangs.incarnation.0);
    asking::ask(directory, &cluster, asked, &[b"CLUSTER", b"FORGET", name.as_bytes()], &doing, *patience)?;
    let engine = cluster.config().engine;
    let without = |sights: &[Sight]| sights.iter().filter(|sight| sight.node != node).cloned().collect::<Vec<_>>();
    let done = |sights: &[Sight]| {
        let sights = without(sights);
        listed(&sights, node) != Some(hangs) && standing::is_settled(&sights, engine)
    };
    observer.wait_for(*patience, interrupt, done)?.map_err(|sights| {
        observer::not_ready(&format!("the others were not seen to go on without node {node} within {} s", arguments.patience), &sights)
    })?;
    format.print(
        format_args!("node {node} has been evicted: the others go on without it. If its process resumes, it joins again as new; `martlet cluster kill {node}` ends it"),
        || json!({"event": "evicted", "node": node, "incarnation": hangs.incarnation.0, "asked": asked}),
    );
    Ok(())
}

/// The node that leads, other than that one.
fn leader(sights: &[Sight], node: u16) -> Option<u16> {
    let others: Vec<Sight> = sights.iter().filter(|sight| sight.node != node).cloned().collect();
    observer::primary(&others).map(|sight| sight.node)
}

/// A member that follows, other than that node, and is not stopped itself.
fn waits(directory: &Directory, sights: &[Sight], node: u16) -> Option<u16> {
    let follows = |sight: &&Sight| sight.node != node && sight.role() == Some(observer::Role::Backup);
    let runs = |sight: &&Sight| !matches!(directory.activity(sight.node), Ok(Activity::Stopped));
    sights.iter().filter(follows).find(runs).map(|sight| sight.node)
}

/// As which process the newest view lists a node.
fn listed(sights: &[Sight], node: u16) -> Option<ProcessId> {
    observer::newest_view(sights)?.members.iter().map(|member| member.id).find(|id| id.node.0 == node)
}

fn check_dispensable(directory: &Directory, cluster: &Cluster, sights: &[Sight], node: u16) -> Outcome {
    let config = cluster.config();
    let mut running = Vec::new();
    for sight in sights.iter().filter(|sight| sight.node != node && sight.counter(Counter::Pid) != 0) {
        if directory.activity(sight.node)? != Activity::Stopped {
            running.push(sight.node);
        }
    }
    let why = Standing::of(sights, &running, config.engine, config.fabric).and_then(|standing| standing.objection(node));
    why.map_or(Ok(()), |why| {
        Err(Fail::failed(format_args!(
            "node {node} is needed, so it has not been evicted: {why}. --force does it anyway, whatever is lost"
        )))
    })
}
