//! `martlet cluster kill`

use std::time::Duration;

use clap::Args;
use martlet_cluster::directory::Directory;
use martlet_cluster::fail::{Context as _, Fail, Outcome};
use martlet_cluster::number::number;
use martlet_cluster::output::Format;
use martlet_cluster::process::{signal_by_name, signal_name};
use martlet_protocol::basics::layout::MAX_MEMBERS;
use rustix::process::Signal;
use serde_json::json;

use crate::commands::Which;

/// Send a signal to a node, SIGKILL unless told otherwise.
///
/// STOP pauses a node and CONT lets it go on: by then the others have long replaced it.
///
/// Example: martlet cluster kill 0 && redis-cli -c -p 7712 get key
#[derive(Debug, Args)]
pub struct Arguments {
    /// The node's number.
    #[arg(value_parser = number::<u16>(..MAX_MEMBERS as u64))]
    node: u16,
    /// The signal's name, with or without SIG, or its number.
    #[arg(long, default_value = "KILL", value_parser = signal_by_name)]
    signal: Signal,
    #[command(flatten)]
    which: Which,
}

/// How long the kernel may take to end a process.
const PATIENCE: Duration = Duration::from_secs(20);

pub fn run(arguments: &Arguments, format: Format) -> Outcome {
    let node = arguments.node;
    let directory = Directory::new(&arguments.which.dir);
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
    let signal = signal_name(arguments.signal);
    format.print(
        format_args!("sent {signal} to node {node} (process {})", process.pid),
        || json!({"event": "signalled", "node": node, "pid": process.pid, "signal": signal}),
    );
    Ok(())
}
