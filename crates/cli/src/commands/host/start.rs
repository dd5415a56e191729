//! `martlet host start`

use clap::Args;
use martlet_cluster::fail::Outcome;
use martlet_cluster::number::number;
use martlet_cluster::output::Format;

use super::{Existing, Starting, report};

/// Start this host's node in the background, if it is not running.
///
/// The command returns when the node holds the data and is a full member. It is not needed where the unit martlet@NAME starts the node.
///
/// Example: martlet host start shop
#[derive(Debug, Args)]
pub struct Arguments {
    /// How long to wait until the node is a full member, in seconds. All data has to be sent to it first.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = number::<u64>(..))]
    patience: u64,
    #[command(flatten)]
    existing: Existing,
}

pub fn run(arguments: &Arguments, format: Format) -> Outcome {
    let (directory, _, own) = arguments.existing.open()?;
    Starting { no_start: false, patience: arguments.patience }.start(&directory, own, format)?;
    // The list of nodes may have changed since this host was last up.
    report(&directory, &directory.existing_cluster()?, own, "started", format)
}
