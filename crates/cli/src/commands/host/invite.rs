//! `martlet host invite`

use std::time::Duration;

use clap::Args;
use martlet_cluster::fail::{Fail, Outcome};
use martlet_cluster::hosts;
use martlet_cluster::number::number;
use martlet_cluster::output::Format;
use serde_json::json;

use super::Existing;

/// Print a token that lets one more host join the cluster.
///
/// A host with the token can join, once, and then has the cluster's key: treat the token like a password. Run the command on any host of the cluster. The host
/// that keeps the list of nodes does the inviting, and its node has to run until the new host has joined.
///
/// Example: martlet host invite shop
#[derive(Debug, Args)]
pub struct Arguments {
    /// How long the token can be used, in minutes.
    #[arg(long, value_name = "MINUTES", default_value_t = 10, value_parser = number::<u32>(1..=10_080))]
    valid: u32,
    #[command(flatten)]
    existing: Existing,
}

/// How long the node may take to answer whose host invites.
const PATIENCE: Duration = Duration::from_secs(10);

pub fn run(arguments: &Arguments, format: Format) -> Outcome {
    let (directory, cluster, own) = arguments.existing.open()?;
    let valid = Duration::from_secs(60 * u64::from(arguments.valid));
    let first = hosts::keeper(&cluster);
    let token = if first.number == own {
        let token = hosts::invite(&directory, &cluster, own, valid)?;
        // A token that nobody will answer is worth nothing.
        hosts::answers(&cluster, first, PATIENCE).map_err(|why| {
            Fail::failed(format_args!("{why}. Is it running? `martlet host start --dir {}` starts it", directory.path().display()))
        })?;
        token.to_string()
    } else {
        hosts::invited(&cluster, valid, PATIENCE)?
    };
    format.print(&token, || json!({"event": "invited", "token": token, "valid_minutes": arguments.valid}));
    Ok(())
}
