//! `martlet cluster restart`

use clap::Args;
use martlet_cluster::directory::Life;
use martlet_cluster::fail::Outcome;
use martlet_cluster::number::number;
use martlet_cluster::output::Format;
use martlet_protocol::basics::layout::MAX_MEMBERS;
use serde_json::json;

use super::down::Grace;
use super::session::Session;
use crate::commands::Which;

/// Start a node again. One that runs is asked to end first.
///
/// It comes back as a new incarnation and receives the data from the others.
///
/// Example: martlet cluster kill 0 && martlet cluster restart 0
#[derive(Debug, Args)]
pub struct Arguments {
    /// The node's number.
    #[arg(value_parser = number::<u16>(..MAX_MEMBERS as u64))]
    node: u16,
    #[command(flatten)]
    grace: Grace,
    /// How long to wait until the cluster is whole again, in seconds; 0: not at all.
    #[arg(long, value_name = "SECONDS", default_value_t = 20, value_parser = number::<u64>(..))]
    patience: u64,
    #[command(flatten)]
    which: Which,
}

pub fn run(arguments: &Arguments, format: Format) -> Outcome {
    let node = arguments.node;
    let session = Session::open_for(&arguments.which, node, arguments.patience, format)?;
    let directory = &session.directory;
    super::down::stop(directory, node, arguments.grace.time())?;
    let (process, _child) = directory.start(node, Life::OfItsOwn)?;
    if arguments.patience > 0 {
        super::up::await_whole(directory, &session.cluster, session.patience, &session.interrupt)?;
    }
    format.print(
        format_args!("node {node} started (process {})", process.pid),
        || json!({"event": "restarted", "node": node, "pid": process.pid}),
    );
    Ok(())
}
