//! Runs a node: one acting thread, which gives the agent its turns and sleeps when there is nothing to do.

mod disk;
mod leaving;
mod life;
mod policy;
mod recovery;
mod rhythm;

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::rc::Rc;

use martlet_fabric::{Incarnation, NodeId, Protocol, with_fabric};
use martlet_protocol::basics::ProcessId;
use martlet_protocol::membership::ClockBounds;
use martlet_protocol::replica::{Application, Execution, StateMachine as _, UnreadableEntry};
use martlet_protocol::with_engine;

use crate::acting::{ActingError, ActingThreads};
use crate::backend::{Backend, Rest as _, StartError};
use crate::clock;
use crate::config::{Pin, RelistError, Settings};
use crate::counters::{Counter, Counters};
use crate::durable::{DiskError, Origin, Store};
use crate::engine::NodeEngine;
use crate::os::latency::WakeLatency;
use crate::sched::{self, Placement};
use crate::signals;
use crate::stop::Stop;
use crate::version;
use crate::warden::Registration;

use policy::SecondProcess;

pub use leaving::LONGEST_END;
pub use policy::{ProcessPolicy, descriptors_needed};

pub(crate) use disk::belonged;
use disk::{Birth, birth_after};
use life::{End, Life};
use recovery::{FileWatch, goes_on_from};

/// How many round trips between two cores measure the difference between their clocks at the start.
const SKEW_ROUNDS: u32 = 64;
/// How many cores' clocks are compared at most.
const SKEW_CORES: usize = 16;

/// Called with how a node has been set up.
pub type OnStart = Box<dyn FnOnce(&Started)>;

/// What a node has reached, which its process may have to tell others on its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Milestone {
    /// A view lists it as a full member, and not as one that is still being taught. Told once per life.
    Counts,
    /// It has been asked to end, and begins to leave.
    Leaves,
}

/// Called with milestones, on the node's own thread: it must not wait for anything.
pub type OnMilestone = Box<dyn FnMut(Milestone)>;

/// What a program gives a node besides its configuration and its application.
pub struct Hooks {
    /// The handle by which the node is asked to end. Keep a clone.
    pub stop: Stop,
    /// The application's epoll instance: readable when the application has something to do of which nothing on the fabric tells it. It wakes a sleeping node.
    /// The application looks at it itself in each turn, and sleeps on it as primary (`Application::sleep`); the node adds descriptors of its own, with
    /// [`NODES_OWN`](martlet_protocol::replica::NODES_OWN) as their data.
    pub wake: Option<OwnedFd>,
    /// Called once, when the node is on the fabric and before its first turn.
    pub started: Option<OnStart>,
    /// Called with the milestones that the node reaches.
    pub milestone: Option<OnMilestone>,
    /// What the node may change in this process.
    pub policy: ProcessPolicy,
}

impl Hooks {
    /// No wake-ups, no report, and a fresh stop handle; the node may change [nothing in the process](ProcessPolicy::GUEST).
    ///
    /// # Errors
    /// When the system has no descriptors left.
    pub fn new() -> io::Result<Hooks> {
        Ok(Hooks { stop: Stop::new()?, wake: None, started: None, milestone: None, policy: ProcessPolicy::GUEST })
    }
}

/// How a node has been set up. It belongs in the program's log, since a measurement means little without the placement.
#[derive(Clone, Debug)]
pub struct Started {
    /// Which life of which node it is.
    pub process: ProcessId,
    /// Where the acting thread runs, and how.
    pub placement: Placement,
    /// How far the clocks of two cores may differ, in nanoseconds; this has been subtracted from leases.
    pub skew_ns: u64,
    /// The handle by which further threads of the process act for the node.
    pub threads: ActingThreads,
}

/// How a node ended that was asked to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Whether the others had removed it from their view when it ended. If not, they learn of the end from its death words.
    pub left: bool,
    /// How often it had been excluded and started over.
    pub resets: u64,
}

/// Why a node did not start, or could not go on.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The cluster's leader is to execute on commit, and this program executes requests before they are replicated.
    #[error(
        "node {node}: execution is \"committed\" in the cluster's file; this program executes requests before they are replicated, so \"speculative\" is allowed"
    )]
    OnCommit {
        /// Which node.
        node: NodeId,
    },
    /// The fabric does not start.
    #[error("node {node}: {error}")]
    Fabric {
        /// Which node.
        node: NodeId,
        /// Why.
        #[source]
        error: StartError,
    },
    /// The kernel does not accept the words by which others see this process die.
    #[error("node {node}: cannot register death words: {error}")]
    DeathWords {
        /// Which node.
        node: NodeId,
        /// Why.
        #[source]
        error: ActingError,
    },
    /// The node has to register with the warden of its host, and cannot.
    #[error("node {node}: warden.use is \"on\": {error}")]
    Warden {
        /// Which node.
        node: NodeId,
        /// Why.
        #[source]
        error: martlet_warden::client::Error,
    },
    /// The disk refuses, or what is on it is not what was written. Nothing more is written after that.
    #[error("node {node}: {error}")]
    Disk {
        /// Which node.
        node: NodeId,
        /// The file, what was attempted, and what the system said.
        #[source]
        error: DiskError,
    },
    /// The cluster works at a feature level that this build cannot work at.
    #[error(
        "node {node}: the cluster works at feature level {level}, but this is {build}: run a build that can work at that level (docs/operating.md, \"Upgrade\")"
    )]
    Level {
        /// Which node.
        node: NodeId,
        /// The view's level.
        level: u8,
        /// This build.
        build: Protocol,
    },
    /// Every other node that is there runs a build that does not understand this one.
    #[error("node {node}: no node of its own build is there; {why}")]
    Build {
        /// Which node.
        node: NodeId,
        /// Why the latest connection failed: it names both builds.
        why: String,
    },
    /// Another build has written an entry of the log that this one cannot read.
    #[error("node {node}: {entry}: another build has written it, but this is {build} (docs/operating.md, \"Upgrade\")")]
    Unreadable {
        /// Which node.
        node: NodeId,
        /// The entry.
        entry: UnreadableEntry,
        /// This build.
        build: Protocol,
    },
    /// The cluster's file no longer lists the node. The node saw this when it was about to begin a new life.
    #[error("node {node}: {why}")]
    Removed {
        /// Which node.
        node: NodeId,
        /// The file, and which nodes it lists.
        why: String,
    },
    /// The cluster is to be founded again from this node, which does not hold the whole state.
    #[error(
        "node {node}: the cluster is to go on from it, but it does not hold the whole state; `martlet cluster recover` shows which nodes do"
    )]
    NothingHeld {
        /// Which node.
        node: NodeId,
    },
    /// The node's file names cores that this process may not use.
    #[error("node {node}: threads.pin is {named:?}; allowed: {}", sched::allowed_pins(allowed))]
    Cores {
        /// Which node.
        node: NodeId,
        /// The cores that are named.
        named: Vec<u16>,
        /// The cores that may be used.
        allowed: Vec<u16>,
    },
    /// A limit of this process is too low for a node.
    #[error("node {node}: {why}")]
    Limit {
        /// Which node.
        node: NodeId,
        /// Which limit, what it is, and what is needed.
        why: String,
    },
    /// The system refuses something else.
    #[error("node {node}: {what}: {error}{}", martlet_fabric::limits::hint(error))]
    System {
        /// Which node.
        node: NodeId,
        /// What was attempted.
        what: &'static str,
        /// Why it failed.
        #[source]
        error: io::Error,
    },
}

impl RunError {
    /// Whether a file or a program asks for something that cannot be had with this program or on this host, so that the same node will not start until its
    /// settings are changed.
    pub fn is_of_settings(&self) -> bool {
        matches!(self, RunError::OnCommit { .. } | RunError::Cores { .. })
    }
}

/// Runs a node on the calling thread until it is asked to end.
///
/// `machine` is the application's state, empty. It is emptied again whenever the others exclude the node, as happens to a node that was paused for too long:
/// the node then starts over as a new incarnation and receives the state from them.
///
/// In the process it changes only what the [policy](ProcessPolicy) in `hooks` allows.
///
/// # Errors
/// See [`RunError`]. When it returns one, nothing is left behind.
pub fn run<A: Application>(settings: &Settings, app: A, machine: A::Machine, hooks: Hooks) -> Result<Ended, RunError> {
    let config = settings.cluster().config();
    with_fabric!(config.fabric, F => with_engine!(config.engine, E => run_on::<F, E, A>(settings, app, machine, hooks)))
}

fn run_on<F: Backend, E: NodeEngine, A: Application>(
    settings: &Settings,
    mut app: A,
    mut machine: A::Machine,
    hooks: Hooks,
) -> Result<Ended, RunError> {
    let node = settings.id();
    if settings.cluster().config().execution == Execution::Committed && !A::ON_COMMIT {
        return Err(RunError::OnCommit { node });
    }
    let system = |what| move |error| RunError::System { node, what, error };
    let allowed = sched::allowed_cores().map_err(system("cannot tell the cores"))?;
    if let Pin::Cores(named) = settings.pin()
        && sched::names_others(settings.pin(), &allowed)
    {
        return Err(RunError::Cores { node, named: named.clone(), allowed });
    }
    hooks.policy.begin::<F>(settings, &hooks.stop)?;
    let threads = &settings.node().threads;
    let nodes = settings.cluster().config().nodes.len();
    let cores = sched::cores_of_nodes(settings.pin(), settings.position(), nodes, &allowed, SKEW_CORES);
    let skew_ns = clock::skew_among(&cores, SKEW_ROUNDS).map_err(system("cannot compare the cores' clocks"))?;
    let clocks =
        ClockBounds { drift_ppm: settings.cluster().config().clock_drift_ppm(), skew_ns: ClockBounds::default().skew_ns.max(skew_ns) };
    let core = sched::choose_core(settings.pin(), settings.position(), 0, &allowed);
    let placement = match hooks.policy.place_thread {
        true => sched::place_current_thread(core, threads.priority, threads.idle).map_err(system("cannot place the thread"))?,
        false => Placement::UNCHANGED,
    };
    let _latency = threads.wake_latency_us.and_then(|us| {
        let asked = WakeLatency::at_most(us);
        asked.inspect_err(|error| tracing::warn!("threads.wake_latency_us is {us}, but it has no effect: {error}")).ok()
    });
    let populated_bytes = hooks.policy.keep_memory().map_err(system("cannot tell what is mapped"))?;
    tracing::info!(%placement, skew_ns, populated_bytes, "node {node} starts");
    let mut second = SecondProcess::start(&hooks.policy);

    let warden = Registration::start(settings).map_err(|error| RunError::Warden { node, error })?.map(Rc::new);
    let acting = ActingThreads::watched_by(warden.as_ref().map(|warden| warden.threads()));
    let mut counters = Counters::default();
    counters.set(Counter::Pid, u64::from(std::process::id()));
    counters.set(Counter::StartedNs, clock::now().0);
    let build = version::protocol();
    tracing::info!("node {node} runs {build}");
    counters.set(Counter::Protocol, build.version.into());
    counters.set(Counter::LevelMost, build.levels.most.into());
    // After the undertaker, which would otherwise keep the directory locked for longer than this process lives.
    let disk = |error| RunError::Disk { node, error };
    let mut store = Store::open(settings).map_err(disk)?;
    let file = FileWatch::start(settings);
    let mut engine = None;
    // The state that the machine already has, if the cluster is founded again from this node.
    let mut gathered = match &store {
        Some(store) if goes_on_from(settings) => {
            machine.clear();
            Life::<F, E, A>::gather_from_disk(settings, store, &mut machine)?
        }
        _ => None,
    };
    // The newest incarnation that is known; the next life begins after it.
    let mut newest = 0;
    let mut may_return = true;
    // The life as which it is to return, if others have said so.
    let mut known_as = None;
    let mut has_held = false;
    let mut report = hooks.started;
    let mut milestone = hooks.milestone;
    let mut resets = 0;
    let mut relisted: Settings;
    let mut settings = settings;
    loop {
        let origin = match &store {
            Some(_) if gathered.is_some() => Origin::Afresh,
            Some(_) if let Some(life) = known_as.take() => Origin::Return { life },
            Some(store) if may_return => store.origin(|life, left| belonged::<E>(settings, life, left)).map_err(disk)?,
            _ => Origin::Afresh,
        };
        let incarnation = match (&store, origin) {
            (Some(store), Origin::Return { life }) => store.incarnation(life).map_err(disk)?,
            (Some(store), Origin::Afresh) => birth_after(next_incarnation::<F>(newest.max(store.newest_life().map_err(disk)?))),
            (None, _) => next_incarnation::<F>(newest),
        };
        newest = newest.max(incarnation);
        let me = ProcessId { node, incarnation: Incarnation(incarnation) };
        let birth = Birth { me, disk: store.as_ref().map(|store| (store, origin)), gathered: gathered.take(), has_held };
        let mut life = Life::<F, E, A>::begin(settings, &birth, (clocks, &acting, warden.clone()), engine, machine, counters, app)?;
        if let Some(report) = report.take() {
            report(&Started { process: me, placement: placement.clone(), skew_ns: clocks.skew_ns, threads: acting.clone() });
        }
        let sockets = hooks.wake.as_ref().map(|fd| fd.as_fd());
        let mut bed = F::Rest::start(settings, &life.agent.host.member.fabric, sockets, hooks.stop.as_fd())
            .map_err(system("cannot watch descriptors"))?;
        life.milestones.hook = milestone.take();
        let end = life
            .live(settings, (&hooks.stop, &file), &mut bed, &placement, &mut second)
            .map_err(system("cannot tell which nodes are running"))?;
        drop(bed);
        milestone = life.milestones.hook.take();
        // A node that has returned and has not seen a view returns again; a node that knows a view joins those that have it.
        may_return = life.agent.host.member.core.view().is_none();
        has_held = life.has_held();
        let (old, parts, written) = life.end();
        (app, machine, counters, newest) = (parts.app, parts.machine, parts.counters, newest.max(old));
        engine = Some(parts.engine);
        written.map_err(|error| disk(error.into()))?;
        match end {
            End::DiskFailed(error) => return Err(disk(error.into())),
            End::Unsuited(level) => return Err(RunError::Level { node, level, build: version::protocol() }),
            End::Misfit(why) => return Err(RunError::Build { node, why }),
            End::Unreadable(entry) => return Err(RunError::Unreadable { node, entry, build: version::protocol() }),
            End::Stopped { left } => {
                if signals::has_used_up_its_time() {
                    tracing::warn!("the processor time that this process may use (ulimit -t) is used up: node {node} has ended");
                }
                return Ok(Ended { left, resets });
            }
            End::ComeBackAs(life) => known_as = Some(life),
            End::StartOver => {
                resets += 1;
                counters.set(Counter::Resets, resets);
                tracing::warn!("node {node} starts over as a new incarnation");
                relisted = match settings.relisted() {
                    Ok(relisted) => relisted,
                    Err(why @ RelistError::Removed { .. }) => return Err(RunError::Removed { node, why: why.to_string() }),
                    Err(error) => {
                        tracing::warn!(%error, "the list of nodes in the cluster's file cannot be used; the node keeps the list of before");
                        settings.clone()
                    }
                };
                settings = &relisted;
            }
            End::MovesOn(moved, held) => {
                resets += 1;
                counters.set(Counter::Resets, resets);
                let generation = moved.cluster().generation();
                tracing::warn!(generation, "the cluster has been founded again: node {node} starts over as a new incarnation");
                if goes_on_from(&moved) && held.is_none() {
                    return Err(RunError::NothingHeld { node });
                }
                store.iter_mut().for_each(|store| store.enter(generation));
                (gathered, relisted) = (held, *moved);
                settings = &relisted;
            }
        }
    }
}

/// A number larger than every earlier incarnation of this node, and than `last`, the newest that the cluster is known to know.
fn next_incarnation<F: Backend>(last: u64) -> u64 {
    F::incarnation().max(last + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn incarnations_only_grow() {
        let first = next_incarnation::<martlet_fabric::shm::ShmFabric>(0);
        assert!(next_incarnation::<martlet_fabric::shm::ShmFabric>(first) > first);
        assert_eq!(
            next_incarnation::<martlet_fabric::shm::ShmFabric>(u64::MAX - 1),
            u64::MAX,
            "beyond what the cluster knows, whatever the clock says"
        );
    }
}
