//! `martlet model`: what DARE's models say of the machine at hand.

mod latency;
mod reliability;

use std::path::Path;

use clap::{Args, Subcommand};
use martlet_cluster::fail::{Context as _, Outcome};
use martlet_cluster::interrupt::Interrupt;
use martlet_cluster::output::Format;

use crate::report::plot::Plot;

/// Compute latency and reliability by the models of DARE's paper.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(subcommand)]
    model: Model,
}

#[derive(Debug, Subcommand)]
enum Model {
    Latency(latency::Arguments),
    Reliability(reliability::Arguments),
}

/// Computes what the arguments name, from measurements of this machine where the model needs them.
///
/// # Errors
/// When it cannot be measured, or an argument makes no sense.
pub fn run(arguments: &Arguments, format: Format) -> Outcome {
    match &arguments.model {
        Model::Latency(arguments) => {
            let interrupt = Interrupt::install().context("cannot watch for Ctrl-C")?;
            latency::run(arguments, format, &interrupt)
        }
        Model::Reliability(arguments) => reliability::run(arguments, format),
    }
}

/// Shows a drawing to people, and saves it in that file if one is named.
fn say_and_save(plot: &Plot, file: Option<&Path>, format: Format) -> Outcome {
    if let Some(file) = file {
        plot.save(file)?;
    }
    format.say(format_args!("\n{}", plot.text()));
    Ok(())
}
