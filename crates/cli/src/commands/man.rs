//! `martlet man`

use std::fs;
use std::path::PathBuf;

use clap::{Args, CommandFactory as _};
use martlet_cluster::fail::{Context as _, Outcome};

use super::Cli;

/// Write manual pages, one for each command.
///
/// Example: martlet man ~/.local/share/man/man1 && man martlet-cluster-up
#[derive(Debug, Args)]
pub struct Arguments {
    /// The directory to write them to. It is created if necessary.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

pub fn run(arguments: &Arguments) -> Outcome {
    let dir = &arguments.dir;
    fs::create_dir_all(dir).context(format_args!("cannot make {}", dir.display()))?;
    clap_mangen::generate_to(Cli::command(), dir).context(format_args!("cannot write manual pages to {}", dir.display()))
}
