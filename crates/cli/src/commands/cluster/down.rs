//! `martlet cluster down`

use std::time::{Duration, Instant};

use clap::Args;
use martlet_cluster::directory::{Directory, running_replicas};
use martlet_cluster::fail::{Context as _, Fail, Outcome};
use martlet_cluster::number::number;
use martlet_cluster::output::Format;
use martlet_cluster::process::Activity;
use martlet_node::LONGEST_END;
use martlet_node::config::{Cluster, Role};
use martlet_protocol::basics::layout::MAX_MEMBERS;
use rustix::process::Signal;
use serde_json::json;

use crate::commands::Which;

/// Stop all nodes of a cluster.
///
/// The data goes with them, unless it is on their disks (--durability of `cluster up`): the command says so where the last copy was in memory. Each node is asked to end (SIGTERM), and killed if it does not end in
/// time. Running the command twice does no harm.
///
/// Example: martlet cluster down --purge
#[derive(Debug, Args)]
pub struct Arguments {
    /// Also remove the cluster's files: logs, and the data below DIR/data. Data directories elsewhere stay.
    #[arg(long)]
    purge: bool,
    #[command(flatten)]
    grace: Grace,
    #[command(flatten)]
    which: Which,
}

/// The usual: what a node waits for before it ends is over by then, so that only one that hangs is killed.
const GRACE_S: u64 = LONGEST_END.as_secs() + 2;
/// How long the last node of a cluster has to end by itself before it is told that nobody is left to wait for.
const LAST: Duration = Duration::from_secs(1);
/// How often it is looked whether a node has ended, while several are to.
const LOOK: Duration = Duration::from_millis(5);

/// How long nodes may take to end, of the commands that end some.
#[derive(Clone, Copy, Debug, Args)]
pub struct Grace {
    /// How long a node may take to end before it is killed, in seconds.
    #[arg(long = "grace", value_name = "SECONDS", default_value_t = GRACE_S, value_parser = number::<u64>(..))]
    seconds: u64,
}

impl Grace {
    /// So long.
    pub fn time(self) -> Duration {
        Duration::from_secs(self.seconds)
    }
}

pub fn run(arguments: &Arguments, format: Format) -> Outcome {
    let directory = Directory::new(&arguments.which.dir);
    let path = directory.path().display().to_string();
    let nothing = |cluster: bool| {
        let what = if cluster { format!("no node of the cluster in {path} is running") } else { format!("there is no cluster in {path}") };
        format.print(what, || json!({"event": "nothing to stop", "dir": path, "cluster": cluster}));
    };
    if !directory.path().exists() {
        nothing(false);
        return Ok(());
    }
    if directory.server().is_some() {
        end_of_service(&directory, arguments.purge)?;
    }
    let _lock = directory.lock()?;
    let cluster = directory.cluster().ok().flatten();
    let stopped = stop_all(&directory, arguments.grace.time())?;
    let gone = cluster.as_ref().filter(|cluster| is_last_copy(cluster, &directory.nodes_here(cluster), &stopped));
    if stopped.is_empty() {
        nothing(directory.cluster_file().exists());
    }
    for (node, how) in stopped {
        format.print(format_args!("node {node} {how}"), || json!({"event": "stopped", "node": node, "how": how}));
    }
    if gone.is_some() {
        format.print(
            format_args!(
                "the cluster's data was only in the memory of its nodes, and is gone with the last of them (`cluster up --durability async` or `sync` also keeps it on disks)"
            ),
            || json!({"event": "data gone", "durability": "memory", "dir": path}),
        );
    }
    if arguments.purge && directory.purge()? {
        format.print(format_args!("removed the cluster's files from {path}"), || json!({"event": "purged", "dir": path}));
    }
    Ok(())
}

/// Whether with these nodes the last copy of the cluster's data has ended. Of nodes on other hosts that is not known.
fn is_last_copy(cluster: &Cluster, here: &[u16], stopped: &[(u16, &str)]) -> bool {
    let config = cluster.config();
    let holds = |number: u16| config.nodes.iter().any(|node| node.number == number && node.roles.contains(&Role::Replica));
    !config.durability.writes() && here.len() == config.nodes.len() && stopped.iter().any(|(node, _)| holds(*node))
}

/// Of a server that `martlet run` runs: only what an earlier one has left is removed.
fn end_of_service(directory: &Directory, purge: bool) -> Outcome {
    let runner = directory.runner();
    let instead = match (runner.activity, runner.pid) {
        (Activity::Gone, _) => {
            let living = directory.cluster()?.map_or_else(|| Ok(Vec::new()), |cluster| running_replicas(&cluster))?;
            if living.is_empty() && purge {
                return Ok(());
            }
            match living.is_empty() {
                true => "It is not running any more; --purge removes what is left here".to_owned(),
                false => format!(
                    "martlet run has ended, but replicas {living:?} are still running: end the server with its own command (redis-cli shutdown), or kill their processes, which `martlet status` shows. If it shows none, what is left are keepers (martlet-keeper) of dead replicas, which end by themselves within half a minute"
                ),
            }
        }
        (_, Some(pid)) => format!("`kill -TERM {pid}` ends the server, and what is shown here goes with it"),
        (_, None) => "SIGTERM to martlet run ends the server, and what is shown here goes with it".into(),
    };
    directory.refuse_a_service(&instead)
}

/// Stops a node if it runs: asks it to end, and kills it if it does not in time. Returns how it ended. Its process is not forgotten. Under the lock.
pub fn stop(directory: &Directory, node: u16, grace: Duration) -> Outcome<&'static str> {
    let doing = format!("cannot stop node {node}");
    let Some(process) = directory.process(node)? else { return Ok("was not running") };
    let Some(handle) = process.open().context(&doing)? else { return Ok("was not running") };
    for signal in [Signal::TERM, Signal::CONT] {
        handle.signal(signal).context(&doing)?;
    }
    if handle.wait_gone(grace).context(&doing)? {
        return Ok("ended");
    }
    handle.signal(Signal::KILL).context(&doing)?;
    match handle.wait_gone(Duration::from_secs(60)).context(&doing)? {
        true => Ok("did not end in time and was killed"),
        false => Err(Fail::failed(format_args!("node {node} (process {}) does not end, although it was killed", process.pid))),
    }
}

/// Stops every node that runs and forgets its process. Returns how each of them ended.
pub fn stop_all(directory: &Directory, grace: Duration) -> Outcome<Vec<(u16, &'static str)>> {
    (0..MAX_MEMBERS as u16).try_for_each(|node| directory.adopt(node))?;
    let mut running = Vec::new();
    for node in directory.nodes_with_processes()? {
        let handle = match directory.process(node)? {
            Some(process) => process.open().context(format_args!("cannot reach node {node}"))?,
            None => None,
        };
        match handle {
            Some(handle) => {
                // All at once: each then leaves without waiting for those before it. A stopped one must go on to hear it.
                for signal in [Signal::TERM, Signal::CONT] {
                    handle.signal(signal).context(format_args!("cannot signal node {node}"))?;
                }
                running.push((node, handle));
            }
            None => directory.forget_process(node)?,
        }
    }
    // Where all the cluster's nodes end, the last one waits in vain for those who are to go on without it.
    let cluster = directory.cluster().ok().flatten();
    let all = cluster.is_some_and(|cluster| directory.nodes_here(&cluster).len() == cluster.config().nodes.len());
    let until = Instant::now() + grace;
    let (mut ended, mut last_since) = (Vec::new(), None);
    while !running.is_empty() {
        let late = Instant::now() >= until;
        for (node, handle) in std::mem::take(&mut running) {
            let how = if handle.wait_gone(LOOK).context(format_args!("cannot wait for node {node}"))? {
                "ended"
            } else if late {
                handle.signal(Signal::KILL).context(format_args!("cannot signal node {node}"))?;
                while !handle.wait_gone(Duration::from_secs(1)).context(format_args!("cannot wait for node {node}"))? {}
                "did not end in time and was killed"
            } else {
                running.push((node, handle));
                continue;
            };
            directory.forget_process(node)?;
            ended.push((node, how));
        }
        if let ([(node, handle)], true) = (&running[..], all)
            && last_since.get_or_insert_with(Instant::now).elapsed() >= LAST
        {
            // Another request cuts short what it waits for.
            handle.signal(Signal::TERM).context(format_args!("cannot signal node {node}"))?;
            last_since = Some(Instant::now() + grace);
        }
    }
    ended.sort_unstable();
    Ok(ended)
}

#[cfg(test)]
mod tests {
    use martlet_node::config::{ClusterConfig, DurabilityKind, EngineKind, Key, NodeEntry};

    use super::*;

    #[test]
    fn the_last_copy_of_data_in_memory_ends_with_the_last_replica_on_this_host() {
        let cluster = |mode| {
            let mut config = ClusterConfig::new("c", (0..3).map(NodeEntry::new).collect());
            config.key = Some(Key::new([7; 32]).to_hex().into());
            (config.engine, config.durability.mode, config.nodes[2].roles) = (EngineKind::Mu, mode, vec![Role::Coordinator]);
            Cluster::new(config).expect("valid")
        };
        let memory = cluster(DurabilityKind::Memory);
        assert!(is_last_copy(&memory, &[0, 1, 2], &[(1, "ended"), (2, "ended")]));
        assert!(!is_last_copy(&memory, &[0, 1, 2], &[(2, "ended")]), "it held nothing");
        assert!(!is_last_copy(&memory, &[0, 1, 2], &[]), "none was running");
        assert!(!is_last_copy(&memory, &[1], &[(1, "ended")]), "other hosts may hold it");
        assert!(!is_last_copy(&cluster(DurabilityKind::Sync), &[0, 1, 2], &[(1, "ended")]), "it is on the disk");
    }
}
