//! `martlet node`

use std::path::{Path, PathBuf};

use clap::Args;
use martlet_cluster::directory::Directory;
use martlet_cluster::fail::{Context as _, Fail, Outcome};
use martlet_cluster::hosts;
use martlet_cluster::log;
use martlet_cluster::starter::Starter;
use martlet_fabric::NodeId;
use martlet_fabric::host::process::end_with_parent;
use martlet_kv::store::KvMachine;
use martlet_kv::{CpuTimes, KvApp, KvConfig};
use martlet_node::config::{Key, NodeConfig, Settings};
use martlet_node::connections::service::Service;
use martlet_node::cpu::{CpuOf, cpu_us};
use martlet_node::{Hooks, Milestone, ProcessPolicy, clock};
use martlet_protocol::basics::layout::MAX_MEMBERS;
use rustix::process::{Resource, Rlimit};

/// Run one node in the foreground, until SIGTERM or Ctrl-C.
///
/// The first such signal makes the node leave the cluster in order; a second one ends it at once.
///
/// The log goes to standard error. RUST_LOG sets its level (info by default). A log that cannot be written, or is not read, never holds the node up: lines are
/// dropped, and once lines can be written again, one says how many are missing. A service manager that sets NOTIFY_SOCKET is told READY=1 when the node is a
/// full member, and STOPPING=1 when it begins to leave for good.
///
/// Example: martlet node --config martlet-cluster/node-0.toml
#[derive(Debug, Args)]
pub struct Arguments {
    /// The node's TOML file, which names the cluster's; or a directory with the file of one node, such as the directory of a host.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Declare that every node of the cluster runs where this one sees it: in this network namespace, or with the same rendezvous directory. A node that is not
    /// seen is then taken not to run, and this one may found the cluster without it. If the declaration is wrong, two clusters can come about.
    #[arg(long)]
    all_here: bool,
    /// Whether to refuse to listen beyond this host without a password. Overrides `redis.protected_mode` of the file.
    #[arg(long, value_name = "true|false", action = clap::ArgAction::Set)]
    protected_mode: Option<bool>,
    /// End as soon as the process that started this one does.
    #[arg(long, hide = true)]
    die_with_parent: bool,
}

pub fn run(arguments: &Arguments) -> Outcome {
    if arguments.die_with_parent {
        end_with_parent().context("cannot tie this process to its parent")?;
    }
    log::start()?;
    let file = node_file(&arguments.config)?;
    let settings = Settings::load(&file).map_err(|error| removed(&file).unwrap_or_else(|| Fail::usage(error)))?;
    let settings = settings.with_all_here(arguments.all_here);
    let redis = &settings.node().redis;
    let service = settings.cluster().config().service;
    let addresses = [("redis.listen", settings.redis_listen()), ("the cluster's service", service)];
    for (what, listen) in addresses.into_iter().filter_map(|(what, address)| Some((what, address?))) {
        let is_protected = redis.requirepass.is_none() && arguments.protected_mode.unwrap_or(redis.protected_mode);
        if !is_protected || listen.ip().to_canonical().is_loopback() {
            continue;
        }
        return Err(Fail::usage(format_args!(
            "{what} in {} is {}, beyond this host, and redis.requirepass is not set: anyone who reaches {listen} could read and write everything. Set \
             redis.requirepass, or listen on 127.0.0.1. If only trusted clients can reach it, set redis.protected_mode = false, or give --protected-mode false",
            arguments.config.display(),
            listen.ip(),
        )));
    }
    let mut hooks = Hooks::new().context("cannot make the node's stop handle")?;
    hooks.policy = ProcessPolicy::OWN;
    let starter = Starter::from_environment()?;
    let mut successor = None;
    if settings.node().answers_hosts {
        let prepared = hosts::Successor::prepare(&hooks.stop)?;
        let address = hosts::Service::start(&settings, prepared.handle())?;
        successor = Some(prepared);
        tracing::info!(%address, "answering other hosts");
    }
    let mut store = store(&settings);
    store.max_clients = make_room(store.max_clients);
    let mut app = KvApp::new(store, Box::new(clock::wall_ns), chance()?).map_err(Fail::failed)?.with_cpu_clock(Box::new(cpu_times));
    if let Some(address) = service {
        app = app
            .with_service(Service::open(&settings.cluster().config().name, address, settings.node().number).map_err(Fail::failed)?)
            .map_err(Fail::failed)?;
        tracing::info!(%address, "taking part in the service");
    }
    if let Some(address) = app.address() {
        tracing::info!(%address, "serving the Redis protocol");
    }
    let restart = successor.as_ref().map(hosts::Successor::handle);
    hooks.milestone = Some(Box::new(move |milestone| match milestone {
        Milestone::Counts => starter.tell("READY=1\nSTATUS=full member"),
        Milestone::Leaves if restart.as_ref().is_some_and(hosts::Restart::is_under_way) => starter.tell("STATUS=restarting"),
        Milestone::Leaves => starter.tell("STOPPING=1"),
    }));
    hooks.wake = Some(app.events().try_clone_to_owned().context("cannot watch the sockets")?);
    let ended = martlet_node::run(&settings, app, KvMachine::default(), hooks).map_err(|error| match error.is_of_settings() {
        true => Fail::usage(format_args!("{}: {error}", arguments.config.display())),
        false => Fail::failed(error),
    })?;
    tracing::info!(left = ended.left, resets = ended.resets, "ended");
    successor.map_or(Ok(()), hosts::Successor::begin_again)
}

/// The file that is meant: the one there, or the only one of a node in that directory.
fn node_file(path: &Path) -> Outcome<PathBuf> {
    if !path.is_dir() {
        return Ok(path.to_owned());
    }
    let directory = Directory::new(path);
    let files: Vec<PathBuf> = (0..MAX_MEMBERS as u16).map(|number| directory.node_file(number)).filter(|file| file.exists()).collect();
    match files.as_slice() {
        [file] => Ok(file.clone()),
        files => Err(Fail::usage(format_args!(
            "--config is the directory {}, which has {} files called node-N.toml; allowed is a directory with exactly one, or the file itself",
            path.display(),
            files.len()
        ))),
    }
}

/// The error for the node of a host that has been removed, if this is its file.
fn removed(file: &Path) -> Option<Fail> {
    let own = NodeConfig::from_toml(&std::fs::read_to_string(file).ok()?).ok().filter(|own| own.answers_hosts)?;
    let directory = Directory::new(file.parent()?);
    let cluster = directory.existing_cluster().ok()?;
    cluster.node(NodeId(own.number)).is_none().then(|| hosts::without_a_node(&directory, &cluster))
}

/// What INFO tells of the processors: what getrusage does.
fn cpu_times() -> CpuTimes {
    let [process, thread, children] = [CpuOf::Process, CpuOf::Thread, CpuOf::Children].map(cpu_us);
    CpuTimes { user_us: process.0, system_us: process.1, thread_us: thread, children_us: children }
}

/// What the store is told of the node's file.
fn store(settings: &Settings) -> KvConfig {
    let redis = &settings.node().redis;
    KvConfig {
        node: settings.id(),
        listen: settings.redis_listen(),
        unix_socket: redis.unix_socket.clone(),
        password: redis.requirepass.as_ref().map(|secret| secret.0.clone()),
        reads_by_quorum: settings.reads_by_quorum(),
        cluster_mode: redis.cluster,
        max_memory_bytes: usize::try_from(redis.maxmemory.0).unwrap_or(usize::MAX),
        max_clients: redis.maxclients as usize,
        sizes: settings.cluster().sizes(),
        ..KvConfig::default()
    }
}

/// What a node needs of file descriptors beside those of Redis clients: its peers' and its clients' over shared memory.
const OWN_DESCRIPTORS: u64 = 1024;

/// The limit of descriptors that so many clients need, if one up to `hard` will do, and how many clients that leaves.
fn descriptors(clients: usize, soft: u64, hard: u64) -> (u64, usize) {
    let limit = soft.max((clients as u64 + OWN_DESCRIPTORS).min(hard));
    // Where even our own are hardly there, half of them may do.
    let own = OWN_DESCRIPTORS.min(limit / 2);
    (limit, clients.min((limit - own).max(1) as usize))
}

/// Raises this process's limit of file descriptors, which many systems set to 1024. Returns how many clients may come then: one more is told so, where it
/// would else wait for ever to be accepted.
fn make_room(clients: usize) -> usize {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let (soft, hard) = (limit.current.unwrap_or(u64::MAX), limit.maximum.unwrap_or(u64::MAX));
    let (mut got, mut room) = descriptors(clients, soft, hard);
    if got > soft
        && let Err(error) = rustix::process::setrlimit(Resource::Nofile, Rlimit { current: Some(got), ..limit })
    {
        tracing::warn!(%error, "the limit of file descriptors cannot be raised");
        (got, room) = descriptors(clients, soft, soft);
    }
    if room < clients {
        tracing::warn!(
            "redis.maxclients is {clients}, but only {room} clients can be served: this process may have {got} file descriptors (ulimit -n)"
        );
    }
    room
}

/// From the system's secure source.
fn chance() -> Outcome<[u64; 2]> {
    let key = Key::generate().context("no random numbers")?;
    let word = |at: usize| u64::from_le_bytes(key.bytes()[at..at + 8].try_into().expect("8 of 32 bytes"));
    Ok([word(0), word(8)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_asked_for_as_far_as_they_go_and_clients_taken_as_far_as_they_last() {
        assert_eq!(descriptors(10_000, 1_024, 1 << 20), (11_024, 10_000), "raised");
        assert_eq!(descriptors(10_000, 1 << 20, 1 << 20), (1 << 20, 10_000), "never lowered");
        assert_eq!(descriptors(10_000, 1_024, 4_096), (4_096, 3_072), "as far as it goes");
        assert_eq!(descriptors(10_000, 200, 200), (200, 100));
        assert_eq!(descriptors(10, 200, 200), (200, 10));
        assert_eq!(descriptors(5, 1, 1), (1, 1));
    }
}
