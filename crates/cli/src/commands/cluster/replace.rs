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

/// Replace a node whose data is lost, damaged, or to be moved to another disk.
///
/// The node keeps its number, but starts again without data and receives it from the others. If it is running, it leaves in order first. When the others go on
/// without it, what it keeps on disk is removed, and it is started again. The command returns when it holds the data and is a full member. To move the data,
/// change `directory` in the node's own file beforehand.
///
/// The command refuses if the others could not go on without the node, or would not have the data. If it is interrupted, run it again: it continues where it stopped.
///
/// Example: martlet cluster replace 1
#[derive(Debug, Args)]
pub struct Arguments {
    /// The node's number.
    #[arg(value_parser = number::<u16>(..MAX_MEMBERS as u64))]
    node: u16,
    /// Do it even if the others cannot go on without the node, or data is lost.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    grace: Grace,
    /// How long to wait until the others go on without the node, and then until it is a full member, in seconds each.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = number::<u64>(..))]
    patience: u64,
    #[command(flatten)]
    which: Which,
}

pub fn run(arguments: &Arguments, format: Format) -> Outcome {
    let number = arguments.node;
    let session = Session::open_for(&arguments.which, number, arguments.patience, format)?;
    session.check_user()?;
    let (directory, cluster) = (&session.directory, &session.cluster);
    if directory.change(number) == Some(Change::Replacing) {
        format.say(format_args!("continuing with replacing node {number}, which was interrupted"));
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
    format.print(
        format_args!("node {number} has been replaced: it holds the data and is a full member"),
        || json!({"event": "replaced", "node": number}),
    );
    Ok(())
}
