//! One life of a node: the production state machines, driven as the node's duty cycle drives them.

use fastrand::Rng;
use martlet_fabric::primitive::Ordering;
use martlet_fabric::sim::{DeathWords, Endpoint};
use martlet_fabric::{Completion, Fabric, LocalRegion, PeerEvent, PeerId, PeerKind};
use martlet_protocol::basics::ballot::{self, LAST_CAS_BALLOT, SlotState, SlotWord};
use martlet_protocol::basics::layout::{Component, LIFE, MAX_WATCHERS, SLOT_WORDS, SLOTS, life};
use martlet_protocol::basics::{ProcessId, Time, ViewNumber};
use martlet_protocol::engine::PrimaryBackup;
use martlet_protocol::engine::primary_backup;
use martlet_protocol::membership::{Core, Event};
use martlet_protocol::replica::Standing;

use super::Canary;
use super::clock::Clock;
use super::machine::Machine;
use super::oracle::Oracle;
use super::server::Server;
use super::settings::Settings;

/// Datagrams taken in one turn.
const DATAGRAMS_A_TURN: usize = 64;

/// A process of the cluster.
pub struct Node<const HOST: bool> {
    pub me: ProcessId,
    pub clock: Clock,
    pub core: Core,
    pub engine: PrimaryBackup,
    pub machine: Machine,
    pub server: Server,
    fabric: Endpoint<HOST>,
    threads: usize,
    completions: Vec<Completion>,
    datagram: Vec<u8>,
    /// Peers that the engine has let go of, but membership perhaps not.
    let_go: Vec<PeerId>,
    /// This life is over: membership says that the process is out, or the engine can't go on.
    pub over: bool,
    /// It has been asked to leave.
    pub leaving: bool,
    canary: Option<Canary>,
    step: Step,
}

/// The steps of a turn. A process can be stopped between any two of them.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Peers, datagrams, membership's tick.
    Take,
    /// Completions; before the application has its turn, and once more after it (`served`).
    Collect { served: bool },
    /// With a clock read after that: what they mean, and whether the view is active.
    Judge { served: bool },
    /// A takeover, if one has become possible.
    TakeOver(Time, Option<ViewNumber>),
    /// Requests, the engine's posts.
    Serve,
    /// The engine's conclusions, with the clock and the answer as they were; replies.
    Conclude(Time, Option<ViewNumber>),
}

/// What a turn came to.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    /// The true time at which the next is due.
    pub due: u64,
    /// The view that was found to be active.
    pub active: Option<ViewNumber>,
}

impl<const HOST: bool> Node<HOST> {
    /// A process whose acting threads have registered with the kernel.
    pub fn new(
        me: ProcessId,
        fabric: Endpoint<HOST>,
        core: Core,
        engine: PrimaryBackup,
        clock: Clock,
        threads: usize,
        canary: Option<Canary>,
    ) -> Self {
        let words = fabric.memory(LocalRegion::Public(LIFE)).expect("every process offers signs of life");
        for thread in 0..threads {
            for watcher in 0..MAX_WATCHERS {
                let tid = 1000 + thread as u64;
                words[life::death(thread, watcher)].store(life::WAITERS | tid, Ordering::Release);
            }
        }
        words[life::THREADS].store(threads as u64, Ordering::Release);
        Node {
            me,
            clock,
            core,
            engine,
            machine: Machine::default(),
            server: Server::default(),
            fabric,
            threads,
            completions: Vec::new(),
            datagram: Vec::new(),
            let_go: Vec::new(),
            over: false,
            leaving: false,
            canary,
            step: Step::Take,
        }
    }

    /// Makes as if proposers had fought for all slots of our acceptor from `next` on, until their ballots hardly fit into its words
    /// (uKharon App. A.6).
    pub fn wear_out(&self, next: ViewNumber, chance: &mut Rng) {
        let words = self.fabric.memory(LocalRegion::Public(SLOT_WORDS)).expect("every process offers slots");
        for view in (next.0..).take(SLOTS).map(ViewNumber) {
            let min = (LAST_CAS_BALLOT - chance.u64(..12)) as u16;
            let word = SlotWord::new(SlotState { min, ..SlotState::default() }, ballot::generation_of(view));
            words[ballot::slot_of(view)].store(word.0, Ordering::Release);
        }
    }

    /// The words that the kernel sets when the process is killed.
    pub fn death_words(&self) -> DeathWords {
        let words = |thread| (0..MAX_WATCHERS).map(|watcher| life::death(thread, watcher)).collect();
        DeathWords { region: LIFE, threads: (0..self.threads).map(words).collect() }
    }

    /// Stores a death word of every thread for every watcher.
    pub fn set_death_words(&self, word: u64) {
        let words = self.fabric.memory(LocalRegion::Public(LIFE)).expect("every process offers signs of life");
        for thread in 0..self.threads {
            for watcher in 0..MAX_WATCHERS {
                words[life::death(thread, watcher)].store(word, Ordering::Release);
            }
        }
    }

    /// Founds the cluster.
    pub fn bootstrap(&mut self, true_now: u64, chance: &mut Rng, oracle: &mut Oracle) {
        let now = self.clock.read(true_now, chance);
        self.core.bootstrap(now, &mut self.fabric);
        self.take_membership_events(true_now, oracle);
    }

    /// Asks to be taken in.
    pub fn join(&mut self, true_now: u64, chance: &mut Rng) {
        self.core.join(self.clock.read(true_now, chance));
    }

    /// Asks to be removed, of its own will. It has stopped acting.
    pub fn leave(&mut self, true_now: u64, chance: &mut Rng, oracle: &mut Oracle) {
        self.leaving = true;
        let now = self.clock.read(true_now, chance);
        self.core.leave(now, &mut self.fabric);
        self.take_membership_events(true_now, oracle);
    }

    /// An operator wants leases of another length.
    pub fn set_lease_ns(&mut self, true_now: u64, chance: &mut Rng, lease_ns: u64) {
        let now = self.clock.read(true_now, chance);
        self.core.set_lease_ns(now, &mut self.fabric, lease_ns);
    }

    /// The view that some core of this process may find active at the true time `true_now`.
    pub fn may_act_in(&self, true_now: u64) -> Option<ViewNumber> {
        let (lease, (least, most)) = (self.core.lease(), self.clock.bounds(true_now));
        // Between the slowest core and the fastest one, somebody finds the lease begun and not ended.
        let begun = lease.active(lease.view(), most) || (most >= lease.end() && least < lease.end());
        (lease.view() != ViewNumber(0) && begun).then_some(lease.view())
    }

    /// One turn of the duty cycle, as the node's agent has it, or, if it is broken off between two steps, a part of it.
    pub fn turn(&mut self, true_now: u64, settings: &Settings, chance: &mut Rng, oracle: &mut Oracle) -> Turn {
        let mut found = None;
        loop {
            self.step = match self.step {
                Step::Take => {
                    self.take(true_now, chance, oracle);
                    Step::Collect { served: false }
                }
                Step::Collect { served } => {
                    while let Some(completion) = self.fabric.poll() {
                        self.completions.push(completion);
                    }
                    Step::Judge { served }
                }
                Step::Judge { served } => {
                    // Later than every completion just taken, as membership and the engine ask.
                    let now = self.clock.read(true_now, chance);
                    self.handle_completions(now, true_now, oracle);
                    let view = self.engine.view();
                    let active = self.core.lease().active(view, now) || self.canary == Some(Canary::NoActiveCheck);
                    found = active.then_some(view);
                    if served { Step::Conclude(now, found) } else { Step::TakeOver(now, found) }
                }
                Step::TakeOver(now, active) => {
                    if active.is_some() && self.engine.standing() != Standing::Primary {
                        self.engine.advance(now, active, &mut self.fabric, &mut self.machine);
                        self.take_engine_events(now, true_now, oracle);
                    }
                    Step::Serve
                }
                Step::Serve => {
                    let now = self.clock.read(true_now, chance);
                    if !self.leaving {
                        self.server.poll(&mut self.engine, &mut self.machine);
                    }
                    self.engine.post(now, &mut self.fabric, &mut self.machine);
                    Step::Collect { served: true }
                }
                Step::Conclude(now, active) => {
                    self.conclude(now, active, true_now, chance, oracle);
                    self.step = Step::Take;
                    let due = self.clock.true_time(self.core.deadline()).min(true_now + settings.idle_ns);
                    return Turn { due, active: found };
                }
            };
            if chance.u32(..1000) < settings.broken_turns {
                return Turn { due: true_now + chance.u64(settings.break_ns.0..=settings.break_ns.1), active: found };
            }
        }
    }

    fn take(&mut self, true_now: u64, chance: &mut Rng, oracle: &mut Oracle) {
        let now = self.clock.read(true_now, chance);
        self.take_peer_events(now, true_now, oracle);
        for _ in 0..DATAGRAMS_A_TURN {
            let Some(from) = self.fabric.receive(&mut self.datagram) else { break };
            let now = self.clock.read(true_now, chance);
            self.core.handle_datagram(now, &mut self.fabric, from, &self.datagram);
            self.take_membership_events(true_now, oracle);
        }
        self.core.tick(now, &mut self.fabric, true);
        self.take_membership_events(true_now, oracle);
    }

    fn handle_completions(&mut self, now: Time, true_now: u64, oracle: &mut Oracle) {
        for at in 0..self.completions.len() {
            let completion = self.completions[at];
            if Component::Engine.owns(completion.token) {
                self.engine.handle_completion(completion);
            } else {
                self.core.handle_completion(now, &mut self.fabric, completion);
                self.take_membership_events(true_now, oracle);
            }
        }
        self.completions.clear();
    }

    fn conclude(&mut self, now: Time, active: Option<ViewNumber>, true_now: u64, chance: &mut Rng, oracle: &mut Oracle) {
        self.engine.advance(now, active, &mut self.fabric, &mut self.machine);
        self.take_engine_events(now, true_now, oracle);
        if !self.leaving {
            self.server.release(&self.engine);
        }
        // The node leaves this to turns without work: any turn may be one.
        if chance.bool() {
            return;
        }
        let (core, fabric) = (&self.core, &mut self.fabric);
        self.let_go.retain(|peer| {
            let go = core.can_forget(*peer);
            if go {
                fabric.forget(*peer);
            }
            !go
        });
    }

    fn take_peer_events(&mut self, now: Time, true_now: u64, oracle: &mut Oracle) {
        while let Some(event) = self.fabric.event() {
            match event {
                PeerEvent::Up { identity, .. } if identity.kind == PeerKind::Client => continue,
                PeerEvent::Up { peer, identity } => {
                    self.engine.handle_peer_up(peer, ProcessId { node: identity.node, incarnation: identity.incarnation });
                }
                PeerEvent::Gone { peer, .. } => self.engine.handle_peer_gone(peer),
            }
            self.core.handle_peer(now, &mut self.fabric, event);
            self.take_membership_events(true_now, oracle);
        }
    }

    fn take_membership_events(&mut self, true_now: u64, oracle: &mut Oracle) {
        while let Some(event) = self.core.poll_event() {
            match event {
                Event::View(view) => {
                    oracle.learned(true_now, self.me, &view);
                    self.engine.handle_view(&view);
                }
                Event::Excluded => self.over = true,
                Event::Milestone(_) => {}
            }
        }
    }

    fn take_engine_events(&mut self, now: Time, true_now: u64, oracle: &mut Oracle) {
        while let Some(event) = self.engine.poll_event() {
            match event {
                primary_backup::Event::CaughtUp { process, .. } => self.core.promote(now, &mut self.fabric, process),
                primary_backup::Event::Drop { process, .. } => self.core.evict(now, &mut self.fabric, process),
                primary_backup::Event::Forget(peer) => self.let_go.push(peer),
                primary_backup::Event::TookOver { .. } => oracle.takeovers += 1,
                primary_backup::Event::LaneFault { peer, fault } => {
                    // Nobody here writes nonsense.
                    oracle.violated(true_now, format!("{} finds a fault in the lane of {peer:?}: {fault:?}", self.me));
                }
                primary_backup::Event::Unfit { view } => {
                    oracle.violated(true_now, format!("view {view} makes {} primary, which does not hold the state", self.me));
                    self.over = true;
                }
            }
            self.take_membership_events(true_now, oracle);
        }
        self.over |= self.engine.standing() == Standing::Excluded;
    }
}
