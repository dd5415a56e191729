//! Runs a node: one acting thread, which gives the agent its turns and sleeps when there is nothing to do.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};

use martlet_fabric::primitive::Ordering;
use martlet_fabric::shm::{DeathWords, DeathWordsError, ShmFabric, process};
use martlet_fabric::verbs::VerbsFabric;
use martlet_fabric::{Identity, Incarnation, LocalRegion, NodeId, PeerKind};
use martlet_protocol::basics::layout::{LIFE, MAX_WATCHERS, life};
use martlet_protocol::basics::{ProcessId, Time};
use martlet_protocol::engine::{Mu, PrimaryBackup};
use martlet_protocol::membership::{Authority, ClockBounds, Core, Roles, View};
use martlet_protocol::replica::{Application, Standing, StateMachine as _};

use crate::agent::Agent;
use crate::backend::{Backend, Rest as _, StartError};
use crate::clock;
use crate::config::{Cluster, EngineKind, FabricKind, Key, Settings};
use crate::counters::{Counter, Counters, EventKind};
use crate::engine::{self, NodeEngine};
use crate::founding::{Founding, Verdict};
use crate::host::Host;
use crate::idle::{Idler, Rest};
use crate::rehearsal::Rehearsals;
use crate::sched::{self, Class, FifoWatch, Placement};
use crate::stop::Stop;
use crate::undertaker::Undertaker;
use crate::warm;

/// The longest sleep, in nanoseconds: a lost wake-up would cost this much and no more.
const LONGEST_SLEEP_NS: u64 = 20_000_000;
/// How long a node that ends waits for the others to take note, in nanoseconds. If they don't, its death words tell them.
const LEAVE_PATIENCE_NS: u64 = 500_000_000;
/// How long a node that ends while nobody else holds the whole state waits for a learner to have it, in nanoseconds.
const HAND_OVER_PATIENCE_NS: u64 = 10_000_000_000;
/// How long a new role lasts before the thread's schedule is suited to it, in nanoseconds.
const SETTLE_NS: u64 = 1_000_000;
/// How many trips between two cores measure the difference of their clocks at the start.
const SKEW_ROUNDS: u32 = 64;

/// Told how a node has been set up.
pub type OnStart = Box<dyn FnOnce(&Started)>;

/// What a program gives a node beside its configuration and its application.
pub struct Hooks {
    /// By which the node is asked to end. Keep a clone.
    pub stop: Stop,
    /// The application's epoll instance: readable when it has something to do that nobody on the fabric tells it of. It wakes a sleeping
    /// node. The application looks at it itself in each turn, and sleeps there as primary (`Application::sleep`); the node puts descriptors of
    /// its own there, with [`NODES_OWN`](martlet_protocol::replica::NODES_OWN) as their data.
    pub wake: Option<OwnedFd>,
    /// Called once, when the node is on the fabric and before its first turn.
    pub started: Option<OnStart>,
}

impl Hooks {
    /// No wake-ups, no report, a stop handle that nobody else has yet.
    ///
    /// # Errors
    /// When the system has no descriptors left.
    pub fn new() -> io::Result<Hooks> {
        Ok(Hooks { stop: Stop::new()?, wake: None, started: None })
    }
}

/// How a node has been set up: for its log, since a figure without its placement means little.
#[derive(Clone, Debug)]
pub struct Started {
    /// Which life of which node it is.
    pub process: ProcessId,
    /// Where the acting thread runs, and how.
    pub placement: Placement,
    /// How far the clocks of two cores may differ, in nanoseconds; it has been subtracted from leases.
    pub skew_ns: u64,
}

/// How a node ended that was asked to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Whether the others had removed it from their view when it ended. If not, they learn it from its death words.
    pub left: bool,
    /// How often it had been excluded and started over.
    pub resets: u64,
}

/// Why a node did not start, or could not go on.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The fabric does not start.
    #[error("node {node}: {error}")]
    Fabric {
        /// Which node.
        node: NodeId,
        /// Why.
        #[source]
        error: StartError,
    },
    /// The kernel does not take the words by which others see this process die.
    #[error("node {node}: cannot register death words: {error}")]
    DeathWords {
        /// Which node.
        node: NodeId,
        /// Why.
        #[source]
        error: DeathWordsError,
    },
    /// The system refuses something else.
    #[error("node {node}: {what}: {error}")]
    System {
        /// Which node.
        node: NodeId,
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        #[source]
        error: io::Error,
    },
}

/// Runs a node on the calling thread until it is asked to end.
///
/// `machine` is the application's state, empty. It is emptied again whenever the node is excluded by the others, which happens to a node
/// that was paused for too long: it then starts over as a new incarnation and receives the state from them.
///
/// The process is taken to belong to the node: core dumps are turned off, and the calling thread must hold no robust pthread mutex.
///
/// # Errors
/// See [`RunError`]. When it returns one, nothing is left behind.
pub fn run<A: Application>(settings: &Settings, app: A, machine: A::Machine, hooks: Hooks) -> Result<Ended, RunError> {
    let config = settings.cluster().config();
    match (config.fabric, config.engine) {
        (FabricKind::Shm, EngineKind::PrimaryBackup) => run_on::<ShmFabric, PrimaryBackup, A>(settings, app, machine, hooks),
        (FabricKind::Shm, EngineKind::Mu) => run_on::<ShmFabric, Mu, A>(settings, app, machine, hooks),
        (FabricKind::Verbs, EngineKind::PrimaryBackup) => run_on::<VerbsFabric, PrimaryBackup, A>(settings, app, machine, hooks),
        (FabricKind::Verbs, EngineKind::Mu) => run_on::<VerbsFabric, Mu, A>(settings, app, machine, hooks),
    }
}

fn run_on<F: Backend, E: NodeEngine, A: Application>(
    settings: &Settings,
    mut app: A,
    mut machine: A::Machine,
    hooks: Hooks,
) -> Result<Ended, RunError> {
    let node = settings.id();
    let system = |what| move |error| RunError::System { node, what, error };
    process::disable_core_dumps().map_err(system("cannot turn core dumps off"))?;
    sched::raise_descriptor_limit().map_err(system("cannot raise the limit of descriptors"))?;
    let threads = &settings.node().threads;
    let allowed = sched::allowed_cores().map_err(system("cannot tell the cores"))?;
    let skew_ns = match allowed[..] {
        [first, second, ..] => {
            clock::cross_core_skew(first, second, SKEW_ROUNDS).map_err(system("cannot compare the cores' clocks"))?.bound_ns()
        }
        _ => 0,
    };
    let clocks = ClockBounds::default();
    let clocks = ClockBounds { skew_ns: clocks.skew_ns.max(skew_ns), ..clocks };
    let core = sched::choose_core(&threads.pin, settings.position(), 0, &allowed);
    let placement = sched::place_current_thread(core, threads.priority, threads.idle).map_err(system("cannot place the thread"))?;
    let populated_bytes = warm::populate_code().map_err(system("cannot tell what is mapped"))?;
    warm::keep_heap();
    tracing::info!(%placement, skew_ns, populated_bytes, "node {node} starts");
    // Without it everything works, but connections of clients end only after the memory of a dead node has been taken down.
    let _undertaker = Undertaker::start().inspect_err(|error| tracing::warn!(%error, "no undertaker")).ok();

    let mut counters = Counters::default();
    counters.set(Counter::Pid, u64::from(std::process::id()));
    counters.set(Counter::StartedNs, clock::now().0);
    let mut engine = None;
    let mut incarnation = 0;
    let mut report = hooks.started;
    let mut resets = 0;
    loop {
        incarnation = next_incarnation::<F>(incarnation);
        let me = ProcessId { node, incarnation: Incarnation(incarnation) };
        let mut life = Life::<F, E, A>::begin(settings, me, clocks, engine, machine, counters, app)?;
        if let Some(report) = report.take() {
            report(&Started { process: me, placement: placement.clone(), skew_ns: clocks.skew_ns });
        }
        let sockets = hooks.wake.as_ref().map(|fd| fd.as_fd());
        let mut bed =
            F::Rest::start(settings, &life.agent.host.fabric, sockets, hooks.stop.as_fd()).map_err(system("cannot watch descriptors"))?;
        let end = life.live(settings, &hooks.stop, &mut bed, &placement).map_err(system("cannot tell who runs"))?;
        drop(bed);
        let (old, parts) = life.end();
        (app, machine, counters, incarnation) = (parts.app, parts.machine, parts.counters, incarnation.max(old));
        engine = Some(parts.engine);
        match end {
            End::Stopped { left } => return Ok(Ended { left, resets }),
            End::StartOver => {
                resets += 1;
                counters.set(Counter::Resets, resets);
                tracing::warn!("node {node} starts over as a new incarnation");
            }
        }
    }
}

/// Larger than every earlier one of this node, and than `last`, the newest that the cluster is known to know.
fn next_incarnation<F: Backend>(last: u64) -> u64 {
    F::incarnation().max(last + 1)
}

enum End {
    Stopped { left: bool },
    StartOver,
}

struct Parts<E, A: Application> {
    app: A,
    machine: A::Machine,
    counters: Counters,
    engine: E,
}

/// One incarnation: an endpoint, the thread's death words, and the agent.
struct Life<F: Backend, E: NodeEngine, A: Application> {
    agent: Agent<F, E, A>,
    rehearsals: Rehearsals<F, E, A>,
    /// `None` once given back.
    words: Option<DeathWords>,
    me: ProcessId,
    gaps: Gaps,
}

impl<F: Backend, E: NodeEngine, A: Application> Life<F, E, A> {
    fn begin(
        settings: &Settings,
        me: ProcessId,
        clocks: ClockBounds,
        engine: Option<E>,
        mut machine: A::Machine,
        counters: Counters,
        app: A,
    ) -> Result<Life<F, E, A>, RunError> {
        let node = me.node;
        let cluster = settings.cluster();
        let config = cluster.config();
        let identity = Identity { node, incarnation: me.incarnation, kind: PeerKind::Member };
        let fabric = F::start_node(settings, identity).map_err(|error| RunError::Fabric { node, error })?;

        // What others rely on stands before anybody is let in.
        let indices: Vec<usize> = (0..MAX_WATCHERS).map(|watcher| life::death(0, watcher)).collect();
        let words = fabric.register_death_words(LIFE, &indices).map_err(|error| RunError::DeathWords { node, error })?;
        let signs = fabric.memory(LocalRegion::Public(LIFE)).expect("every process offers signs of life");
        signs[life::THREADS].store(1, Ordering::Release);
        fabric.open();
        let others = config.nodes.iter().map(|n| NodeId(n.number)).filter(|n| *n != node);
        others.for_each(|other| fabric.connect(cluster, other));

        let now = clock::now();
        let entry = settings.entry();
        let mut membership = engine::membership(cluster, me, entry.role_set(), clocks, E::AUTHORITY);
        membership.address.clone_from(&entry.redis);
        let stall_ns = membership.heartbeat_interval_ns / 2;
        let mut core = Core::new(now, membership);
        core.join(now);

        let engine = match engine {
            None => {
                machine.clear();
                let random = Key::generate().map_err(|error| RunError::System { node, what: "no random numbers", error })?;
                let secret = u64::from_le_bytes(*random.bytes().first_chunk().expect("32 bytes"));
                E::new(me, E::config(cluster, cluster.sizes(), secret))
            }
            Some(mut engine) => {
                engine.reset(me, &mut machine);
                engine
            }
        };
        let host = Host::new(me, fabric, core, engine, machine, counters, clock::now);
        let rehearsals = Rehearsals::new(settings, clocks, now);
        Ok(Life { agent: Agent::new(host, app), rehearsals, words: Some(words), me, gaps: Gaps::new(now, stall_ns) })
    }

    /// Turns, until it is over.
    fn live(&mut self, settings: &Settings, stop: &Stop, bed: &mut F::Rest, placement: &Placement) -> io::Result<End> {
        let cluster = settings.cluster();
        let mut founding = Some(Founding::new(cluster, self.me.node));
        let mut idler = Idler::new(&settings.node().threads, clock::now());
        let mut fifo = (placement.class == Class::Fifo).then(FifoWatch::default);
        let mut posture = Posture { class: placement.class, elected: E::AUTHORITY == Authority::Engine, leads: false, since: clock::now() };
        loop {
            let turn = self.turn();
            if founding.is_some() {
                match self.found(&mut founding, cluster, turn.now)? {
                    Verdict::Wait => {}
                    Verdict::Found => continue,
                    Verdict::StartOver => return Ok(End::StartOver),
                }
            }
            if stop.requests() > 0 || self.agent.app.wants_end() {
                return Ok(End::Stopped { left: self.leave(stop) });
            }
            if self.agent.host.excluded || self.is_outlived() {
                return Ok(End::StartOver);
            }
            if self.agent.host.unfit {
                // It is still listed, and has stopped acting: the others need not wait for its lease.
                self.leave(stop);
                return Ok(End::StartOver);
            }
            let leads = self.agent.host.engine.standing() == Standing::Primary;
            posture.after_turn(&turn, leads);
            if !turn.worked {
                // A backup may lead at any moment, and whoever comes then must not wait.
                bed.tend(turn.now, !(leads && self.agent.app.is_heard_in_memory()));
                let Agent { host, app, .. } = &mut self.agent;
                if self.rehearsals.play(turn.now, settings, host, app, bed) {
                    continue;
                }
            }
            // Were a new primary to sleep before its clients have come, the dead one would get the core that they share, and end what it has begun:
            // connections close, which wakes everybody's helpers, on the core of those very clients.
            let awaited = posture.is_new(leads) && self.agent.app.has_clients_in_memory();
            match self.agent.makes_way(&turn).unwrap_or_else(|| idler.after_turn(turn.now, turn.worked || awaited, leads)) {
                Rest::None => std::hint::spin_loop(),
                Rest::Yield => std::thread::yield_now(),
                Rest::Park => {
                    let due = founding.as_ref().map_or(Time(u64::MAX), Founding::due);
                    // Who is heard of in memory is heard sooner by a sleep there.
                    let at_sockets = leads && !self.agent.app.is_heard_in_memory() && bed.hears_at_sockets();
                    self.park(due, bed, at_sockets, fifo.as_mut());
                }
            }
        }
    }

    fn turn(&mut self) -> crate::agent::Turn {
        let turn = self.agent.turn();
        let host = &mut self.agent.host;
        if let Some(gap) = self.gaps.turn(turn.now, &mut host.counters) {
            host.record(EventKind::Stalled, None, gap);
        }
        turn
    }

    /// A turn of a node that waits for others: they may need this core.
    fn patient_turn(&mut self) {
        if !self.turn().worked {
            std::thread::yield_now();
        }
    }

    /// Whether a later life of this node is listed: this one would never be let in.
    fn is_outlived(&self) -> bool {
        let core = &self.agent.host.core;
        !core.is_member() && core.view().is_some_and(|v| v.members.iter().any(|m| m.id.node == self.me.node && m.id > self.me))
    }

    /// Founds the cluster if it falls to this process. Returns what is to be done, or has been.
    fn found(&mut self, founding: &mut Option<Founding<F>>, cluster: &Cluster, now: Time) -> io::Result<Verdict> {
        let host = &mut self.agent.host;
        let Some(looking) = founding else { return Ok(Verdict::Wait) };
        if host.core.view().is_some() {
            *founding = None;
            return Ok(Verdict::Wait);
        }
        host.boards_read.drain(..).for_each(|completion| looking.handle_completion(completion));
        match looking.look(now, cluster, &mut host.fabric, &host.members)? {
            Verdict::Wait => return Ok(Verdict::Wait),
            Verdict::Found => {}
            Verdict::StartOver => {
                tracing::warn!("{} was made an acceptor, and nobody has a view any more", self.me);
                return Ok(Verdict::StartOver);
            }
        }
        tracing::info!("nobody has a view: {} founds the cluster", self.me);
        host.now = clock::now();
        host.core.bootstrap(host.now, &mut host.fabric);
        host.take_membership_events();
        *founding = None;
        Ok(Verdict::Found)
    }

    /// Sleeps until there is something to do. The look for work between the announcement and the sleep is a whole turn: whatever can wake
    /// this thread is looked at there.
    fn park(&mut self, due: Time, bed: &mut F::Rest, at_sockets: bool, fifo: Option<&mut FifoWatch>) {
        let host = &mut self.agent.host;
        if std::mem::take(&mut host.members_changed) {
            let watched = host.members.iter().filter(|(_, process)| host.is_ours_to_watch(*process)).map(|(peer, _)| *peer);
            bed.watch_deaths(&host.fabric, watched, self.me.node);
        }
        bed.prepare(&mut host.fabric, at_sockets);
        let turn = self.turn();
        let due = self.rehearsals.due(&self.agent.host).map_or(due, |rehearsal| due.min(rehearsal));
        let until = self.agent.deadline().min(due).min(turn.now.after(LONGEST_SLEEP_NS));
        let Agent { host, app, .. } = &mut self.agent;
        if turn.worked || until <= turn.now || host.members_changed {
            bed.cancel(&mut host.fabric);
            return;
        }
        host.counters.add(Counter::Parks, 1);
        host.publish_counters();
        if fifo.is_some_and(FifoWatch::before_sleep) {
            host.counters.add(Counter::Demotions, 1);
        }
        bed.sleep(&mut host.fabric, at_sockets, until.since(turn.now), |at_most_ns| app.sleep(at_most_ns));
        // Who slept through its deadline was stalled; who was woken before it was not.
        self.gaps.slept(clock::now(), until);
    }

    /// Leaves the cluster in order: what was executed is answered, a learner gets the state if nobody else has it, and the others
    /// remove this process. A second request cuts it short. Returns whether the others have removed it.
    fn leave(&mut self, stop: &Stop) -> bool {
        let asked = stop.requests();
        let start = clock::now();
        let patient = |patience| stop.requests() <= asked.max(1) && clock::now() < start.after(patience);
        // The last whole copy is not given up while somebody is about to have it.
        while patient(HAND_OVER_PATIENCE_NS) && self.is_last_copy() && !self.is_over() {
            self.patient_turn();
        }
        self.agent.serving = false;
        self.agent.host.record(EventKind::Leaving, Some(self.me), 0);
        let start = clock::now();
        let patient = |patience| stop.requests() <= asked.max(1) && clock::now() < start.after(patience);
        while patient(LEAVE_PATIENCE_NS) && !self.is_over() && self.is_answering() {
            self.patient_turn();
        }
        let host = &mut self.agent.host;
        if !host.excluded {
            host.now = clock::now();
            host.core.leave(host.now, &mut host.fabric);
            host.take_membership_events();
        }
        while patient(LEAVE_PATIENCE_NS) && !self.agent.host.excluded {
            self.patient_turn();
        }
        // A leader that has a quorum of its own takes itself out of it, or the others might lack a majority.
        let hands_over = |host: &Host<F, E, A::Machine>| {
            E::AUTHORITY == Authority::Engine && host.engine.standing() == Standing::Primary && !host.engine.is_alone()
        };
        while patient(LEAVE_PATIENCE_NS) && hands_over(&self.agent.host) {
            self.patient_turn();
        }
        self.agent.host.excluded
    }

    fn is_over(&self) -> bool {
        self.agent.host.excluded || self.agent.host.unfit
    }

    /// Whether this is the only replica, and there is a learner on its way.
    fn is_last_copy(&self) -> bool {
        let host = &self.agent.host;
        let learner = host.core.view().is_some_and(|v: &View| v.with_roles(Roles::LEARNER).next().is_some());
        learner && host.engine.is_alone()
    }

    /// Whether, as primary, replies to what has been executed are still to come.
    fn is_answering(&self) -> bool {
        let engine = &self.agent.host.engine;
        engine.standing() == Standing::Primary && (engine.committed() != engine.last() || engine.released().0 + 1 < engine.ticket().0)
    }

    /// The end: the application is told, the death words are given back while the memory still stands, and the endpoint goes.
    fn end(mut self) -> (u64, Parts<E, A>) {
        self.agent.end_life();
        // A clean end: whoever still waits for this process sees that it acts no more.
        self.words = None;
        let Agent { host, app, .. } = self.agent;
        let newest = host.core.newest_life().0;
        let parts = Parts { app, machine: host.machine, counters: host.counters, engine: host.engine };
        (newest, parts)
    }
}

/// How the thread is scheduled in its role. What follows from a new role is no matter of haste, and a failover is: it comes a while after.
struct Posture {
    class: Class,
    /// Whether the engine elects who leads.
    elected: bool,
    leads: bool,
    /// The end of the last turn in which the posture suited the role.
    since: Time,
}

impl Posture {
    /// Whether the thread leads, and has done so for less than `SETTLE_NS`.
    fn is_new(&self, leads: bool) -> bool {
        leads && !self.leads
    }

    fn after_turn(&mut self, turn: &crate::agent::Turn, leads: bool) {
        if self.leads == leads {
            self.since = turn.now;
        } else if !turn.worked && turn.now.since(self.since) >= SETTLE_NS {
            if let Err(error) = sched::suit_role(self.class, leads, self.elected) {
                tracing::debug!(%error, leads, "the thread's schedule stays as it was");
            }
            (self.leads, self.since) = (leads, turn.now);
        }
    }
}

/// The gaps between turns in which the thread did not mean to sleep.
struct Gaps {
    /// The end of the last turn, or the moment at which the thread meant to be awake again.
    last: Time,
    stall_ns: u64,
}

impl Gaps {
    fn new(now: Time, stall_ns: u64) -> Gaps {
        Gaps { last: now, stall_ns }
    }

    /// A turn has ended. Returns the gap if it is a stall.
    fn turn(&mut self, now: Time, counters: &mut Counters) -> Option<u64> {
        let gap = now.since(self.last);
        self.last = now;
        if gap > counters.get(Counter::LongestGapNs) {
            counters.set(Counter::LongestGapNs, gap);
        }
        if gap < self.stall_ns {
            return None;
        }
        counters.add(Counter::Stalls, 1);
        Some(gap)
    }

    /// The thread is awake again, and meant to be at `until` at the latest.
    fn slept(&mut self, now: Time, until: Time) {
        self.last = now.min(until);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleep_that_was_meant_is_no_stall_and_oversleeping_is() {
        let mut counters = Counters::default();
        let mut gaps = Gaps::new(Time(0), 100);
        assert_eq!(gaps.turn(Time(50), &mut counters), None);
        gaps.slept(Time(1_000), Time(2_000));
        assert_eq!(gaps.turn(Time(1_010), &mut counters), None, "woken before its time");
        gaps.slept(Time(2_150), Time(2_000));
        assert_eq!(gaps.turn(Time(2_160), &mut counters), Some(160), "overslept");
        assert_eq!(gaps.turn(Time(2_360), &mut counters), Some(200), "did not run");
        assert_eq!((counters.get(Counter::LongestGapNs), counters.get(Counter::Stalls)), (200, 2));
    }

    #[test]
    fn incarnations_only_grow() {
        let first = next_incarnation::<ShmFabric>(0);
        assert!(next_incarnation::<ShmFabric>(first) > first);
        assert_eq!(next_incarnation::<ShmFabric>(u64::MAX - 1), u64::MAX, "beyond what the cluster knows, whatever the clock says");
    }
}
