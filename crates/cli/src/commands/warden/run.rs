//! `martlet warden run`

use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use martlet_cluster::fail::{Context as _, Fail, Outcome};
use martlet_cluster::log;
use martlet_cluster::output::Format;
use martlet_fabric::host::marks::drop_capabilities;
use martlet_fabric::host::process::end_with_parent;
use martlet_node::config::{Idle, Key, Priority};
use martlet_node::sched::{place_current_thread, raise_descriptor_limit};
use martlet_node::stop::Stop;
use martlet_warden::board::Marking;
use martlet_warden::daemon::{Options, Party, RunError, Thread, Warden};
use martlet_warden::neighbours::Neighbours;
use martlet_warden::place::ListenError;
use serde_json::json;

use super::Place;

/// Run this host's warden in the foreground, until SIGTERM or Ctrl-C.
///
/// A host has one warden: a second one at the same socket is refused. When the warden dies, programs go on watching with what it gave them, and register with
/// the next one by themselves. The log goes to standard error. RUST_LOG sets its level (info by default).
///
/// Example: martlet warden run --fifo
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    place: Place,
    /// The socket's mode, which says which users may connect, in three or four octal digits.
    #[arg(long, value_name = "MODE", default_value = "0600", value_parser = mode)]
    mode: u32,
    /// A TOML file that says which other hosts to hear, and over which paths (docs/fide.md). Without it, the warden knows this host only.
    #[arg(long, value_name = "FILE")]
    neighbours: Option<PathBuf>,
    /// Run the threads that hear of deaths and of other hosts under SCHED_FIFO. Needs CAP_SYS_NICE.
    #[arg(long)]
    fifo: bool,
    /// Whether to have the kernel mark deaths, which is sooner than its death words. Needs CAP_BPF and CAP_PERFMON at the start.
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    marks: Marks,
    /// End as soon as the process that started this one does.
    #[arg(long, hide = true)]
    die_with_parent: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Marks {
    /// If the kernel permits it.
    Auto,
    /// Never.
    Off,
}

fn mode(text: &str) -> Result<u32, String> {
    u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777).ok_or_else(|| "allowed are 0 to 0777, in octal digits".into())
}

fn party(file: &Path) -> Outcome<Party> {
    let neighbours = Neighbours::read(file).map_err(Fail::usage)?;
    let key = Key::load(&neighbours.key_file).map_err(Fail::usage)?;
    Ok(Party { neighbours, key: *key.bytes() })
}

pub fn run(arguments: &Arguments, format: Format) -> Outcome {
    if arguments.die_with_parent {
        end_with_parent().context("cannot tie this process to its parent")?;
    }
    log::start()?;
    let stop = Stop::new().context("cannot make the warden's stop handle")?;
    stop.on_signals().context("cannot take the signals")?;
    let limit = raise_descriptor_limit().context("cannot raise the limit of descriptors")?;
    tracing::debug!(limit, "descriptors");
    let options = Options {
        socket: arguments.place.path(),
        mode: arguments.mode,
        party: arguments.neighbours.as_deref().map(party).transpose()?,
        marks: arguments.marks == Marks::Auto,
    };
    let warden = Warden::new(&options).map_err(|error| match error {
        RunError::Listen(ListenError::Path(_)) => Fail::usage(error),
        other => Fail::failed(other),
    })?;
    match (warden.marking(), warden.marks_refused()) {
        (Marking::Nothing, Some(why)) => {
            tracing::info!(%why, "the kernel does not mark deaths; they are seen by death words and process descriptors")
        }
        (Marking::Nothing, None) => {}
        (marking, _) => tracing::info!(?marking, "the kernel marks deaths"),
    }
    // Before any other thread begins.
    drop_capabilities().context("cannot give up the capabilities for marks")?;
    let (socket, life) = (options.socket.display().to_string(), format!("{:016x}", warden.life()));
    format.print(format_args!("warden {life} at {socket}"), || json!({"event": "warden", "socket": socket, "life": life}));
    let priority = if arguments.fifo { Priority::Fifo } else { Priority::Auto };
    let place = |thread| {
        if thread != Thread::Desk {
            match place_current_thread(None, priority, Idle::Park) {
                Ok(placement) => tracing::info!(?thread, %placement, "placed a time-critical thread"),
                Err(error) => tracing::warn!(?thread, %error, "a time-critical thread could not be placed"),
            }
        }
    };
    warden.run(stop.as_fd(), place).map_err(Fail::failed)?;
    tracing::info!("ended");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_is_octal() {
        assert_eq!(mode("0660"), Ok(0o660));
        assert_eq!(mode("888"), Err("allowed are 0 to 0777, in octal digits".into()));
        assert!(mode("1777").is_err());
    }
}
