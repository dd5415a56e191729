//! `martlet host start`

use clap::Args;
use martlet_cluster::fail::Outcome;
use martlet_cluster::number::number;
use martlet_cluster::output::Format;

use super::{Existing, Starting, report};

/// Start this host's node in the background, if it does not run, and wait until it holds the data and counts.
///
/// Where the unit martlet@NAME starts it, this is not needed.
///
/// Example: martlet host start shop
#[derive(Debug, Args)]
pub struct Arguments {
    /// How long to wait until the node counts, in seconds. It takes as long as to send it all data.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = number::<u64>(..))]
    patience: u64,
    #[command(flatten)]
    existing: Existing,
}

pub fn run(arguments: &Arguments, format: Format) -> Outcome {
    let (directory, cluster, own) = arguments.existing.open()?;
    Starting { no_start: false, patience: arguments.patience }.start(&directory, own, format)?;
    report(&directory, &cluster, own, "started", format)
}
