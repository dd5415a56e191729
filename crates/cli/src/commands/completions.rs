//! `martlet completions`

use clap::{Args, CommandFactory as _};
use clap_complete::Shell;
use martlet_cluster::fail::Outcome;
use martlet_cluster::output;

use super::Cli;

/// Print completions for a shell.
///
/// Example: martlet completions bash > ~/.local/share/bash-completion/completions/martlet
#[derive(Debug, Args)]
pub struct Arguments {
    /// The shell.
    shell: Shell,
}

pub fn run(arguments: &Arguments) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut Cli::command(), "martlet", &mut script);
    output::raw(&script);
    Ok(())
}
