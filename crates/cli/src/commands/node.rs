//! `martlet node`

use std::io::IsTerminal as _;
use std::path::PathBuf;

use clap::Args;
use martlet_kv::store::KvMachine;
use martlet_kv::{KvApp, KvConfig};
use martlet_node::config::{Key, Settings};
use martlet_node::{Hooks, clock};
use rustix::process::Signal;
use tracing_subscriber::EnvFilter;

use crate::fail::{Context as _, Fail, Outcome};

/// Run one node in the foreground, until SIGTERM or Ctrl-C.
///
/// The first such signal makes it leave the cluster in order, a second one ends it at once. What it logs goes to standard error; RUST_LOG
/// chooses how much (info unless set).
///
/// Example: martlet node --config martlet-cluster/node-0.toml
#[derive(Debug, Args)]
pub struct Arguments {
    /// The node's TOML file, which names the cluster's.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// End as soon as the process that started this one does.
    #[arg(long, hide = true)]
    die_with_parent: bool,
}

pub fn run(arguments: &Arguments) -> Outcome {
    if arguments.die_with_parent {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).context("cannot tie this process to its parent")?;
    }
    log();
    let settings = Settings::load(&arguments.config).map_err(Fail::usage)?;
    let mut hooks = Hooks::new().context("cannot make the node's stop handle")?;
    hooks.stop.on_signals().context("cannot take SIGTERM and SIGINT")?;
    let app = KvApp::new(store(&settings), Box::new(clock::wall_ms), chance()?).map_err(Fail::failed)?;
    if let Some(address) = app.address() {
        tracing::info!(%address, "serving the Redis protocol");
    }
    hooks.wake = Some(app.events().try_clone_to_owned().context("cannot watch the sockets")?);
    let ended = martlet_node::run(&settings, app, KvMachine::default(), hooks).map_err(Fail::failed)?;
    tracing::info!(left = ended.left, resets = ended.resets, "ended");
    Ok(())
}

/// What the store is told of the node's file.
fn store(settings: &Settings) -> KvConfig {
    let redis = &settings.node().redis;
    KvConfig {
        node: settings.id(),
        listen: settings.redis_listen(),
        unix_socket: redis.unix_socket.clone(),
        password: redis.requirepass.as_ref().map(|secret| secret.0.clone()),
        cluster_mode: redis.cluster,
        max_memory_bytes: usize::try_from(redis.maxmemory.0).unwrap_or(usize::MAX),
        max_clients: redis.maxclients as usize,
        sizes: settings.cluster().sizes(),
        ..KvConfig::default()
    }
}

/// From the system's secure source.
fn chance() -> Outcome<[u64; 2]> {
    let key = Key::generate().context("no random numbers")?;
    let word = |at: usize| u64::from_le_bytes(key.bytes()[at..at + 8].try_into().expect("8 of 32 bytes"));
    Ok([word(0), word(8)])
}

/// What is logged goes to standard error, as far as RUST_LOG says.
pub fn log() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(std::io::stderr().is_terminal()).init();
}
