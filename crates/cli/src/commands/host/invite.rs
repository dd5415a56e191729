//! `martlet host invite`

use std::time::Duration;

use clap::Args;
use martlet_cluster::fail::{Fail, Outcome};
use martlet_cluster::hosts;
use martlet_cluster::number::number;
use martlet_cluster::output::Format;
use serde_json::json;

use super::Existing;

/// Print a token with which one more host joins the cluster.
///
/// A host that has the token can join, once, and has the cluster's key then: carry it as you would carry a password. Any host of the cluster can be asked; it is the one
/// that keeps the list of nodes that invites, and its node has to run until the other host has joined.
///
/// Example: martlet host invite shop
#[derive(Debug, Args)]
pub struct Arguments {
    /// For how long the token can be used, in minutes.
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
            Fail::failed(format_args!("{why}. Does it run? `martlet host start --dir {}` starts it", directory.path().display()))
        })?;
        token.to_string()
    } else {
        hosts::invited(&cluster, valid, PATIENCE)?
    };
    format.print(&token, || json!({"event": "invited", "token": token, "valid_minutes": arguments.valid}));
    Ok(())
}
