//! `martlet cluster kill`

use std::time::Duration;

use clap::Args;
use martlet_cluster::directory::{Directory, running_replicas};
use martlet_cluster::fail::{Context as _, Fail, Outcome};
use martlet_cluster::interrupt::Interrupt;
use martlet_cluster::named::signal;
use martlet_cluster::number::number;
use martlet_cluster::output::Format;
use martlet_cluster::process::signal_name;
use martlet_cluster::watch::observer::Observer;
use martlet_node::config::Cluster;
use martlet_node::counters::Counter;
use martlet_protocol::basics::layout::MAX_MEMBERS;
use rustix::process::Signal;
use serde_json::json;

use crate::commands::Which;

/// Send a signal to a node: SIGKILL, unless --signal names another.
///
/// STOP pauses a node, and CONT resumes it. By then the others have long gone on without it.
///
/// Example: martlet cluster kill 0 && redis-cli -c -p 7712 get key
#[derive(Debug, Args)]
pub struct Arguments {
    /// The node's number.
    #[arg(value_parser = number::<u16>(..MAX_MEMBERS as u64))]
    node: u16,
    /// The signal's name, with or without SIG, or its number.
    #[arg(long, default_value = "KILL", value_parser = signal())]
    signal: Signal,
    #[command(flatten)]
    which: Which,
}

/// The process of a replica that `martlet run` has started.
fn service_process(cluster: &Cluster, node: u16) -> Outcome<Option<u64>> {
    if !running_replicas(cluster)?.contains(&node) {
        return Ok(None);
    }
    let interrupt = Interrupt::install().context("cannot watch for Ctrl-C")?;
    let sights = Observer::open(cluster)?.connect(&[node], &interrupt)?;
    Ok(sights.iter().find(|sight| sight.node == node).map(|sight| sight.counter(Counter::Pid)).filter(|pid| *pid != 0))
}

/// How long the kernel may take to end a process.
const PATIENCE: Duration = Duration::from_secs(20);

pub fn run(arguments: &Arguments, format: Format) -> Outcome {
    let node = arguments.node;
    let directory = Directory::new(&arguments.which.dir);
    let cluster = directory.existing_cluster()?;
    let signal = signal_name(arguments.signal);
    let name = signal.strip_prefix("SIG").unwrap_or(signal.trim_start_matches("signal "));
    let instead = || -> Outcome<String> {
        Ok(match service_process(&cluster, node)? {
            Some(pid) => format!("Replica {node} is process {pid}: `kill -{name} {pid}`"),
            None => format!(
                "It has no replica {node}; `martlet status` shows the numbers and processes of its replicas, and `kill -{name} PROCESS` signals one"
            ),
        })
    };
    if directory.server().is_some() {
        directory.refuse_a_service(&instead()?)?;
    }
    directory.existing_node(node)?;
    let gone = || Fail::absent(format_args!("node {node} is not running"));
    let process = directory.process(node)?.ok_or_else(gone)?;
    let handle = process.open().context(format_args!("cannot reach node {node}"))?.ok_or_else(gone)?;
    if !handle.signal(arguments.signal).context(format_args!("cannot signal node {node}"))? {
        return Err(gone());
    }
    // So that whoever looks next sees it gone.
    if arguments.signal == Signal::KILL && !handle.wait_gone(PATIENCE).context(format_args!("cannot wait for node {node}"))? {
        return Err(Fail::failed(format_args!(
            "node {node} (process {}) has not ended {} s after SIGKILL",
            process.pid,
            PATIENCE.as_secs()
        )));
    }
    format.print(
        format_args!("sent {signal} to node {node} (process {})", process.pid),
        || json!({"event": "signalled", "node": node, "pid": process.pid, "signal": signal}),
    );
    Ok(())
}
