//! How a replica is started.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::app::{Program, Serving};
use super::call::{Calls, Inbox};
use super::direct::Direct;
use super::error::{CallError, StartError, StopError};
use super::machine::{Lent, Replicated, StateMachine};
use super::role::{Role, Roles};
use super::served::{Served, Shared};
use super::{Inner, Replica};
use crate::config::{Cluster, ClusterConfig, ConfigError, DurabilityKind, EngineKind, Idle, NodeConfig, Settings, ThreadsConfig};
use crate::runner::{Ended, Hooks, OnStart, ProcessPolicy, RunError, Started, run};
use crate::signals;
use crate::stop::Stop;

/// How many calls may wait unless the builder is told otherwise.
const CALLS: usize = 4096;

/// The error of a configuration, with the call on the builder that sets its key. It is then no file's.
fn given(mut error: ConfigError, call: impl FnOnce(&str) -> Option<&'static str>) -> StartError {
    let ConfigError::Value { file, key, .. } = &mut error else { return error.into() };
    let Some(call) = call(key) else { return error.into() };
    file.clear();
    StartError::Given { call, error: Box::new(error) }
}

/// How a replica is started: by [`Builder::start`] on a thread of its own, or by [`Builder::direct`] on one of the program's.
#[derive(Debug, Default)]
pub struct Builder {
    cluster: Option<Source>,
    node: Option<u16>,
    listen: Option<String>,
    engine: Option<EngineKind>,
    durability: Option<DurabilityKind>,
    directory: Option<PathBuf>,
    threads: Option<ThreadsConfig>,
    timeout: Option<Duration>,
    calls: Option<usize>,
    all_here: bool,
    policy: Option<ProcessPolicy>,
}

#[derive(Debug)]
enum Source {
    Cluster(Box<Cluster>),
    File(PathBuf),
    Settings(Box<Settings>),
}

impl Builder {
    /// The cluster that the replica belongs to. It must be the same for all replicas.
    #[must_use]
    pub fn cluster(mut self, cluster: Cluster) -> Builder {
        self.cluster = Some(Source::Cluster(Box::new(cluster)));
        self
    }

    /// The cluster's configuration file, such as the one that `martlet cluster up` writes: see `docs/operating.md`.
    #[must_use]
    pub fn cluster_file(mut self, file: impl Into<PathBuf>) -> Builder {
        self.cluster = Some(Source::File(file.into()));
        self
    }

    /// A node's whole configuration, read and validated. Use it instead of [`Builder::cluster`], [`Builder::node`] and [`Builder::threads`].
    #[must_use]
    pub fn settings(mut self, settings: Settings) -> Builder {
        self.cluster = Some(Source::Settings(Box::new(settings)));
        self
    }

    /// Which node of the cluster this process is.
    #[must_use]
    pub fn node(mut self, number: u16) -> Builder {
        self.node = Some(number);
        self
    }

    /// Where clients of this program reach this process, as `host:port`. The other replicas name this address to callers that ask for the leader. The program
    /// itself listens there. Without it, the address in the cluster's configuration.
    #[must_use]
    pub fn listen(mut self, address: impl Into<String>) -> Builder {
        self.listen = Some(address.into());
        self
    }

    /// How commands are replicated. It must be the same for all replicas of the cluster. Without it, the cluster's configuration decides.
    #[must_use]
    pub fn engine(mut self, engine: EngineKind) -> Builder {
        self.engine = Some(engine);
        self
    }

    /// What an acknowledged command survives: the same for all replicas of the cluster. Without it, as the cluster's configuration says. Any mode beyond memory
    /// requires an engine with a journal, [`EngineKind::Mu`] or [`EngineKind::Apus`]. A snapshot on disk consists of what the machine
    /// [transfers](StateMachine::transfer): see `docs/durability.md`.
    #[must_use]
    pub fn durability(mut self, durability: DurabilityKind) -> Builder {
        self.durability = Some(durability);
        self
    }

    /// A directory of its own in which this replica keeps its data, if it keeps any on disk. Without it, as the configuration says.
    #[must_use]
    pub fn directory(mut self, directory: impl Into<PathBuf>) -> Builder {
        self.directory = Some(directory.into());
        self
    }

    /// On which core the replica's thread runs, and what it does when there is no work.
    #[must_use]
    pub fn threads(mut self, threads: ThreadsConfig) -> Builder {
        self.threads = Some(threads);
        self
    }

    /// The longest that a blocking call may take. Without it, a call takes as long as it needs: while no majority of the coordinators lives, for instance, it
    /// waits.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Builder {
        self.timeout = Some(timeout);
        self
    }

    /// How many calls may wait at once, for the replica's thread or for room in the log; 4096 when not set.
    #[must_use]
    pub fn max_waiting(mut self, calls: usize) -> Builder {
        self.calls = Some(calls);
        self
    }

    /// Claims that every process of the cluster runs where this process can see it: in this network namespace, or with the same rendezvous directory. Then a
    /// replica that is not seen is known not to run, and the cluster is founded without it. Without this claim a cluster of several nodes on one host is
    /// founded only when all of them are there: see `docs/containers.md`.
    #[must_use]
    pub fn all_here(mut self) -> Builder {
        self.all_here = true;
        self
    }

    /// What the replica may change of this process. Without it, [nothing](ProcessPolicy::GUEST). A program that is a replica and nothing else gives it
    /// [everything](ProcessPolicy::OWN). The replica's own thread ([`Builder::start`]) is placed as `threads` says in any case. A thread of the program
    /// ([`Builder::direct`]) is placed only where the policy, [`Builder::threads`] or [`Builder::settings`] says so.
    #[must_use]
    pub fn process_policy(mut self, policy: ProcessPolicy) -> Builder {
        self.policy = Some(policy);
        self
    }

    fn settled(self) -> Result<Settings, StartError> {
        let missing = |what, call| StartError::Missing { what, call };
        let (has_number, has_threads) = (self.node.is_some(), self.threads.is_some());
        let mut all_here = self.all_here;
        let (cluster, node) = match self.cluster.ok_or(missing("the cluster", "cluster_file"))? {
            Source::Settings(settings) => {
                all_here |= settings.all_here();
                (settings.cluster().clone(), settings.node().clone())
            }
            other => {
                let cluster = match other {
                    Source::Cluster(cluster) => *cluster,
                    Source::File(file) => Cluster::load(&file)?,
                    Source::Settings(_) => unreachable!("taken above"),
                };
                (cluster, NodeConfig::new(self.node.ok_or(missing("the node's number", "node"))?, "<cluster>"))
            }
        };
        let (threads, directory) = (self.threads.unwrap_or(node.threads.clone()), self.directory.or(node.directory.clone()));
        let node = NodeConfig { number: self.node.unwrap_or(node.number), threads, directory, ..node };
        let cluster = match self.listen {
            None => cluster,
            Some(address) => {
                let own = |config: &mut ClusterConfig| {
                    config.nodes.iter_mut().filter(|other| other.number == node.number).for_each(|own| own.redis.clone_from(&address));
                };
                cluster.with(own).map_err(|error| given(error, |_| Some("listen")))?
            }
        };
        let cluster = match (self.engine, self.durability) {
            (None, None) => cluster,
            (engine, durability) => {
                let both = |config: &mut ClusterConfig| {
                    config.engine = engine.unwrap_or(config.engine);
                    config.durability.mode = durability.unwrap_or(config.durability.mode);
                };
                let by = |key: &str| {
                    let is_durability = engine.is_none() || durability.is_some() && key.starts_with("durability.");
                    Some(if is_durability { "durability" } else { "engine" })
                };
                cluster.with(both).map_err(|error| given(error, by))?
            }
        };
        let settings = Settings::new(cluster, node).map_err(|error| {
            given(error, |key| match key {
                "number" if has_number => Some("node"),
                _ if has_threads && key.starts_with("threads.") => Some("threads"),
                _ => None,
            })
        })?;
        Ok(settings.with_all_here(all_here))
    }

    /// Starts the replica with an empty state, on a thread of its own. Returns when the replica is on the fabric: it has a role then, but is not yet part of
    /// the cluster. [`Replica::roles`] tells when it is.
    ///
    /// # Errors
    /// See [`StartError`]. After an error nothing is left behind.
    pub fn start<M: StateMachine>(self, machine: M) -> Result<Replica<M>, StartError> {
        let mut prepared = self.prepare(machine)?;
        // The thread belongs to the replica, so the replica may place it.
        prepared.policy.place_thread = true;
        let on_start = prepared.handle_maker();
        let (report, reported) = sync_channel(1);
        let thread = std::thread::Builder::new()
            .name("martlet-replica".into())
            .spawn(move || {
                signals::expect_full_files();
                let started: OnStart = Box::new(move |started: &Started| {
                    // The thread that starts the replica waits for this.
                    let _ = report.send(on_start(started));
                });
                prepared.serve(started, None)
            })
            .map_err(|error| StartError::System { what: "cannot start the replica's thread", error })?;
        match reported.recv() {
            Ok(replica) => {
                replica.0.adopt(thread);
                Ok(replica)
            }
            // The thread ended without a report.
            Err(_) => match thread.join() {
                Ok(Err(StopError::Run(error))) => Err(error.into()),
                Ok(Err(error)) => Err(StartError::Panicked(error.to_string())),
                Ok(Ok(_)) => Err(StartError::Panicked("it ended without a word".into())),
                Err(panic) => Err(StartError::Panicked(message(panic.as_ref()))),
            },
        }
    }

    /// Prepares a replica with an empty state to run on one of the program's threads, together with the program. Nothing runs until [`Direct::run`].
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn direct<M: StateMachine>(self, machine: M) -> Result<Direct<M>, StartError> {
        self.prepare(machine).map(Direct)
    }

    fn prepare<M: StateMachine>(self, machine: M) -> Result<Prepared<M>, StartError> {
        let (timeout, calls) = (self.timeout, self.calls.unwrap_or(CALLS));
        if calls == 0 {
            return Err(StartError::Value { key: "max_waiting", value: "0".into(), allowed: "at least 1" });
        }
        let mut policy = self.policy.unwrap_or(ProcessPolicy::GUEST);
        policy.place_thread |= self.threads.is_some() || matches!(self.cluster, Some(Source::Settings(_)));
        let settings = self.settled()?;
        let system = |what| move |error| StartError::System { what, error };
        let threads = &settings.node().threads;
        let rings = matches!(threads.idle, Idle::Park | Idle::Adaptive);
        // On a single core, a caller that spins would keep the replica from running.
        let spin = match threads.idle {
            Idle::Spin | Idle::Adaptive if std::thread::available_parallelism().is_ok_and(|cores| cores.get() > 1) => {
                Duration::from_micros(threads.spin_us)
            }
            _ => Duration::ZERO,
        };
        let (inbox, calls) = Inbox::new(calls, rings).map_err(system("cannot make the descriptors that wake the replica"))?;
        let stop = Stop::new().map_err(system("cannot make the descriptor that stops the replica"))?;
        let shared = Arc::new(Shared { inbox, roles: Roles::new() });
        Ok(Prepared { settings, machine, shared, calls, stop, timeout, spin, policy })
    }
}

/// A replica that does not run yet.
pub(super) struct Prepared<M> {
    settings: Settings,
    machine: M,
    pub shared: Arc<Shared<M>>,
    calls: Calls<M>,
    pub stop: Stop,
    timeout: Option<Duration>,
    spin: Duration,
    policy: ProcessPolicy,
}

impl<M: StateMachine> Prepared<M> {
    /// Returns a function that makes the replica's handle. It is called on the thread that the replica runs on.
    pub fn handle_maker(&self) -> impl FnOnce(&Started) -> Replica<M> + Send + use<M> {
        let (shared, stop, timeout, spin) = (Arc::clone(&self.shared), self.stop.clone(), self.timeout, self.spin);
        move |started: &Started| {
            let (started, runs_on) = (started.clone(), std::thread::current().id());
            Replica(Arc::new(Inner { shared, stop, started, thread: Mutex::new(None), runs_on, timeout, spin }))
        }
    }

    /// Runs the replica on this thread until its end.
    pub fn serve(self, started: OnStart, program: Option<Program<'_, M>>) -> Result<Ended, StopError> {
        let shared = Arc::clone(&self.shared);
        let ended = self.serve_lives(started, program);
        // By now every call has been answered.
        shared.roles.change(Role::Stopped, 0);
        ended
    }

    /// Runs the node, and runs it again if it has left only to hand its leadership over.
    fn serve_lives(self, started: OnStart, mut program: Option<Program<'_, M>>) -> Result<Ended, StopError> {
        let Prepared { settings, machine, shared, calls, stop, policy, .. } = self;
        let mut machine = Replicated::new(machine);
        let mut served = Served::new(settings.id(), Arc::clone(&shared), calls);
        let mut started = Some(started);
        loop {
            let wake = shared.inbox.bell.events();
            let wake = wake.map_err(|error| RunError::System { node: settings.id(), what: "cannot wait for calls", error })?;
            let hooks = Hooks { stop: stop.clone(), wake: Some(wake), started: started.take(), milestone: None, policy };
            let program = program.as_mut().map(|program| Program { body: &mut *program.body, handle: program.handle });
            // Unwind safety: what the machine, a callback or the program did before it panicked is never used again.
            let ended = catch_unwind(AssertUnwindSafe(|| run(&settings, Serving::new(&mut served, program), Lent(&mut machine), hooks)));
            let ended = ended.map_err(|panic| StopError::Panicked(message(panic.as_ref())))??;
            machine.give_up_calls().into_iter().for_each(|job| job.end(Err(CallError::NotLeader { leader: None })));
            if !served.end_of_run() || stop.requests() > 0 {
                return Ok(ended);
            }
            shared.roles.change(Role::Rejoining, 0);
            machine.clear();
        }
    }
}

/// The message of a panic.
pub(super) fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".into())
}
