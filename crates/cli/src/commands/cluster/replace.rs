//! `martlet cluster replace`

use clap::Args;
use martlet_cluster::directory::Change;
use martlet_cluster::fail::Outcome;
use martlet_cluster::number::number;
use martlet_cluster::output::Format;
use martlet_protocol::basics::layout::MAX_MEMBERS;
use serde_json::json;

use super::down::Grace;
use super::session::{SAME_COMMAND, Session};
use crate::commands::Which;

/// Begin anew with a node whose data is lost, damaged, or on a disk that is to be changed: as a node of the same number that holds nothing and is taught.
///
/// A node that runs leaves in order. When the others go on without it, what it keeps on disk is removed, and it is started again; the command returns when it holds
/// the data and counts. Its own file may have been changed before, to name another `directory`. It is refused when the others could not go on without
/// it, or would not have the data. When the command was broken off, the same command goes on.
///
/// Example: martlet cluster replace 1
#[derive(Debug, Args)]
pub struct Arguments {
    /// The node's number.
    #[arg(value_parser = number::<u16>(..MAX_MEMBERS as u64))]
    node: u16,
    /// Do it even if the others cannot go on without it, or the data is lost by that.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    grace: Grace,
    /// How long to wait until the others go on without it, and until it counts, in seconds each.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = number::<u64>(..))]
    patience: u64,
    #[command(flatten)]
    which: Which,
}

pub fn run(arguments: &Arguments, format: Format) -> Outcome {
    let number = arguments.node;
    let session = Session::open_for(&arguments.which, number, arguments.patience, format)?;
    let (directory, cluster) = (&session.directory, &session.cluster);
    if directory.change(number) == Some(Change::Replacing) {
        format.say(format_args!("goes on with replacing node {number}, which was broken off"));
    } else {
        if !arguments.force {
            session.check_dispensable(cluster, number, "replaced")?;
        }
        session.dismiss(cluster, number, arguments.grace.time(), arguments.force)?;
        directory.clear_data(number)?;
        // From here on it is a node that is to be started.
        directory.begin_change(number, Change::Replacing)?;
    }
    session.welcome(cluster, number, SAME_COMMAND)?;
    format.print(format_args!("node {number} has begun anew, holds the data and counts"), || json!({"event": "replaced", "node": number}));
    Ok(())
}
