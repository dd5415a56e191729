//! `martlet cluster`

mod down;
mod kill;

use clap::Subcommand;

use crate::fail::Outcome;
use crate::output::Format;

/// Run a cluster of nodes in the background.
#[derive(Debug, Subcommand)]
pub enum Command {
    Down(down::Arguments),
    Kill(kill::Arguments),
}

pub fn run(command: &Command, format: Format) -> Outcome {
    match command {
        Command::Down(arguments) => down::run(arguments, format),
        Command::Kill(arguments) => kill::run(arguments, format),
    }
}
