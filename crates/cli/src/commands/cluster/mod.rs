//! `martlet cluster`

mod add;
mod asking;
mod down;
mod evict;
mod handover;
mod kill;
mod level;
mod recover;
mod remove;
mod replace;
mod resize;
mod restart;
mod session;
mod up;

use clap::Subcommand;
use martlet_cluster::fail::Outcome;
use martlet_cluster::output::Format;

use super::status;

pub use session::Session;
pub use up::take_back;

/// Run a cluster of nodes in the background.
#[derive(Debug, Subcommand)]
pub enum Command {
    Up(up::Arguments),
    Status(status::Arguments),
    Kill(kill::Arguments),
    Restart(restart::Arguments),
    Handover(handover::Arguments),
    Resize(resize::Arguments),
    Level(level::Arguments),
    Add(add::Arguments),
    Remove(remove::Arguments),
    Replace(replace::Arguments),
    Evict(evict::Arguments),
    Recover(recover::Arguments),
    Down(down::Arguments),
}

pub fn run(command: &Command, format: Format) -> Outcome {
    match command {
        Command::Up(arguments) => up::run(arguments, format),
        Command::Status(arguments) => status::run(arguments, format),
        Command::Restart(arguments) => restart::run(arguments, format),
        Command::Handover(arguments) => handover::run(arguments, format),
        Command::Resize(arguments) => resize::run(arguments, format),
        Command::Level(arguments) => level::run(arguments, format),
        Command::Down(arguments) => down::run(arguments, format),
        Command::Add(arguments) => add::run(arguments, format),
        Command::Remove(arguments) => remove::run(arguments, format),
        Command::Replace(arguments) => replace::run(arguments, format),
        Command::Evict(arguments) => evict::run(arguments, format),
        Command::Recover(arguments) => recover::run(arguments, format),
        Command::Kill(arguments) => kill::run(arguments, format),
    }
}
