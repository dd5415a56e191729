//! `martlet pauses-node`: one of the nodes whose pauses are measured. Not for people, so it is hidden.

use std::io::BufReader;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use martlet_cluster::fail::{Context as _, Fail, Outcome};
use martlet_cluster::number::number;
use martlet_node::config::{Idle, NodeConfig, Pin, Settings};
use martlet_node::{Hooks, ProcessPolicy};
use rustix::process::Signal;

use super::app::{Pacer, Wanted};
use super::machine::Bytes;

/// Be a node whose pauses are measured.
#[derive(Debug, Args)]
#[command(hide = true)]
pub struct Arguments {
    /// The node's TOML file, which names the cluster's.
    #[arg(long)]
    config: PathBuf,
    /// The core that its thread runs on.
    #[arg(long, value_parser = number::<u16>(..))]
    core: Option<u16>,
    /// A core that its other threads run on; can be repeated. Those would leave a follower's core for its leader's.
    #[arg(long, value_parser = number::<u16>(..))]
    helpers: Vec<u16>,
    /// Nobody else of ours runs there.
    #[arg(long)]
    alone: bool,
    /// How long the state will be, in bytes.
    #[arg(long, value_parser = number::<usize>(..))]
    state: usize,
    /// Where it leaves what it has seen.
    #[arg(long)]
    record: PathBuf,
}

pub fn run(arguments: &Arguments) -> Outcome {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).context("cannot tie this process to its parent")?;
    martlet_cluster::log::start()?;
    let settings = Settings::load(&arguments.config).map_err(Fail::usage)?;
    let mut node: NodeConfig = settings.node().clone();
    if let Some(core) = arguments.core {
        node.threads.pin = Pin::Cores(vec![core]);
    }
    if arguments.alone {
        // What is due is known by the clock alone. And a sleep would look like a pause.
        node.threads.idle = Idle::Spin;
    }
    // The benchmark starts all of them here.
    let settings = Settings::new(settings.cluster().clone(), node).map_err(Fail::usage)?.with_all_here(true);
    if !arguments.helpers.is_empty() {
        let cores: Vec<usize> = arguments.helpers.iter().copied().map(usize::from).collect();
        martlet_fabric::host::process::keep_helpers_on(&cores).context("cannot keep this process's helpers off the leader's core")?;
    }
    let hooks = Hooks { policy: ProcessPolicy::OWN, ..Hooks::new().context("cannot make the node's stop handle")? };
    let wanted = Arc::new(Wanted::default());
    let its = Arc::clone(&wanted);
    let orders = move || its.read(BufReader::new(std::io::stdin()));
    std::thread::Builder::new().name("orders".into()).spawn(orders).context("cannot start the thread that takes orders")?;
    let mut pacer = Pacer::new(wanted);
    martlet_node::run(&settings, &mut pacer, Bytes::with_capacity(arguments.state), hooks).map_err(Fail::failed)?;
    pacer.record.save(&arguments.record).context(format_args!("cannot write {}", arguments.record.display()))
}
