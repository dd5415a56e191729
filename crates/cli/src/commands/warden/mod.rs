//! `martlet warden`

mod monitor;
mod run;
mod status;
mod watch;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use martlet_cluster::fail::{Fail, Outcome};
use martlet_cluster::output::Format;
use martlet_warden::client::{Error, Warden};
use martlet_warden::{AppId, place};

/// Tell programs of this host when others die, within microseconds.
///
/// The warden is a process that watches the programs of its host. They register with it (docs/fide.md: a library for Rust, one for C), or are watched from
/// outside, unchanged. It needs no privilege.
///
/// Example: martlet warden run & martlet warden watch --pid 4711 --app 7; martlet warden monitor 7
#[derive(Debug, Subcommand)]
pub enum Command {
    Run(run::Arguments),
    Status(status::Arguments),
    Watch(watch::Arguments),
    Monitor(monitor::Arguments),
}

/// Which warden.
#[derive(Clone, Debug, Args)]
pub struct Place {
    /// The warden's socket [default: /run/martlet/warden.sock].
    #[arg(long, value_name = "PATH", env = place::SOCKET_VARIABLE)]
    socket: Option<PathBuf>,
}

impl Place {
    fn path(&self) -> PathBuf {
        self.socket.clone().unwrap_or_else(|| place::DEFAULT_SOCKET.into())
    }

    fn connect(&self) -> Outcome<Warden> {
        Warden::connect(&self.path(), "martlet").map_err(|error| match error {
            Error::Connect { .. } => Fail::absent(format_args!("{error}; start one with `martlet warden run`")),
            other => Fail::failed(other),
        })
    }
}

fn application(text: &str) -> Result<AppId, String> {
    let number = text.parse().map_err(|_| format!("allowed are numbers from 1 to {}", AppId::MAX))?;
    AppId::new(number).map_err(|error| error.to_string())
}

pub fn run(command: &Command, format: Format) -> Outcome {
    match command {
        Command::Run(arguments) => run::run(arguments, format),
        Command::Status(arguments) => status::run(arguments, format),
        Command::Watch(arguments) => watch::run(arguments, format),
        Command::Monitor(arguments) => monitor::run(arguments, format),
    }
}
