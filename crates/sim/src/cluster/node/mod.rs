//! One life of a node: the production state machines, driven as the node's duty cycle drives them.

pub mod clock;
pub mod machine;
pub mod server;

use std::collections::VecDeque;

use fastrand::Rng;
use martlet_fabric::primitive::Ordering;
use martlet_fabric::sim::{DeathWords, Endpoint};
use martlet_fabric::{Completion, Fabric, LocalRegion, PeerEvent, PeerId, PeerKind};
use martlet_protocol::basics::ballot::{self, LAST_CAS_BALLOT, SlotState, SlotWord};
use martlet_protocol::basics::layout::{Component, LIFE, MAX_WATCHERS, RETURNED, SLOT_WORDS, SLOTS, life};
use martlet_protocol::basics::{ProcessId, Time, ViewNumber};
use martlet_protocol::engine;
use martlet_protocol::founding::simulated::Claim;
use martlet_protocol::founding::{Founding, Refounding, Returned, Verdict};
use martlet_protocol::membership::{Core, Event, Member, Milestone, Roles, View};
use martlet_protocol::replica::Standing;

use super::engine::Engine;
use super::oracles::memory::{self, Footprint};
use super::plan::Canary;
use super::report::Property;
use super::settings::Settings;
use super::storage::power::{self, Place};
use clock::Clock;
use machine::{Machine, Taken};
use server::Server;

/// Datagrams taken in one turn.
const DATAGRAMS_A_TURN: usize = 64;

/// What somebody who looks on has to know.
#[derive(Clone, Debug)]
pub enum Notable {
    /// It knows this view now.
    Learned(View),
    /// A step towards a view.
    Step(Milestone),
    /// It asks the others for permission to lead.
    Asked,
    /// It has the permission of a majority.
    Permitted,
    /// It leads now.
    TookOver {
        /// In this view.
        view: ViewNumber,
        /// With so many entries that were not known to be committed.
        recovered: u64,
    },
    /// It leads no longer, and goes on.
    SteppedDown,
    /// It knows an entry that it has taken to be committed.
    Committed(Taken),
    /// Something that must not be.
    Wrong(Property, String),
}

/// A process of the cluster.
pub struct Node<E, const HOST: bool> {
    pub me: ProcessId,
    pub clock: Clock,
    pub core: Core,
    pub engine: E,
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
    /// One of its threads has died, the others follow.
    pub dying: bool,
    canary: Option<Canary>,
    step: Step,
    /// Entries taken that are not known to be committed.
    uncommitted: VecDeque<Taken>,
    /// What has happened since somebody looked last.
    pub notable: Vec<Notable>,
    /// It has come back with its log, and stands in no view yet: its engine stands still.
    pub dormant: bool,
    /// It has come back with its log.
    returns: bool,
    /// Its next life is to come back as this one.
    pub comes_back_as: Option<u64>,
    /// While it knows no view, in lives with disks: who founds the cluster.
    founding: Option<Founding<Claim>>,
    /// Who is connected, in lives with disks.
    members: Vec<(PeerId, ProcessId)>,
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

impl<E: Engine, const HOST: bool> Node<E, HOST> {
    /// A process whose acting threads have registered with the kernel.
    pub fn new(me: ProcessId, fabric: Endpoint<HOST>, core: Core, engine: E, clock: Clock, threads: usize, canary: Option<Canary>) -> Self {
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
            dying: false,
            canary,
            step: Step::Take,
            uncommitted: VecDeque::new(),
            notable: Vec::new(),
            dormant: false,
            returns: false,
            comes_back_as: None,
            founding: None,
            members: Vec::new(),
        }
    }

    /// Its node has a disk, and it has come back from there if it `returns`.
    pub fn begin_with_disk(&mut self, settings: &Settings, returns: bool, lives: Vec<u64>) {
        let back = self.engine.returned().filter(|_| returns);
        Returned::store(back.as_ref(), self.fabric.memory(LocalRegion::Public(RETURNED)).expect("offered where there are disks"));
        self.founding = Some(Founding::with_disks(power::founding_config(settings, self.me), back, lives));
        (self.dormant, self.returns) = (returns, returns);
    }

    /// Founds the cluster, if that falls to this process.
    fn found(&mut self, true_now: u64, settings: &Settings, chance: &mut Rng, place: &Place<'_, HOST>) {
        let Some(founding) = &mut self.founding else { return };
        if self.core.view().is_some() {
            self.founding = None;
            return;
        }
        let now = self.clock.read(true_now, chance);
        let Ok(verdict) = founding.look(now, &place.ground, &mut self.fabric, &self.members);
        match verdict {
            Verdict::Wait => return,
            Verdict::StartOver => self.over = true,
            Verdict::ComeBackAs(life) => (self.over, self.comes_back_as) = (true, Some(life)),
            Verdict::Found(None) => self.core.bootstrap(now, &mut self.fabric),
            Verdict::Found(Some(Refounding { number, members, .. })) => {
                let roles = |id: ProcessId| settings.roles[usize::from(id.node.0)];
                let members = members.into_iter().map(|id| Member::new(id, roles(id))).collect();
                self.core.found_again(now, &mut self.fabric, number, members);
            }
        }
        self.founding = None;
        self.take_membership_events();
    }

    /// In a life with disks: whether others go on without it.
    fn is_outlived(&self) -> bool {
        let Some(view) = self.core.view().filter(|_| !self.core.is_member()) else { return false };
        let later = view.members.iter().any(|m| m.id.node == self.me.node && m.id > self.me);
        later || (self.returns && self.core.is_view_shared())
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

    /// Whether it has a thread that can die before another.
    pub fn dies_in_parts(&self) -> bool {
        self.threads > 1 && !self.dying
    }

    /// Its first thread has died: the kernel says so at once. The others go on for a moment, and may still store and reply (TRAPS 32).
    pub fn lose_a_thread(&mut self) {
        self.dying = true;
        let words = self.fabric.memory(LocalRegion::Public(LIFE)).expect("every process offers signs of life");
        for watcher in 0..MAX_WATCHERS {
            words[life::death(0, watcher)].store(life::WAITERS | life::OWNER_DIED, Ordering::Release);
        }
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
    pub fn bootstrap(&mut self, true_now: u64, chance: &mut Rng) {
        let now = self.clock.read(true_now, chance);
        self.core.bootstrap(now, &mut self.fabric);
        self.take_membership_events();
    }

    /// Asks to be taken in.
    pub fn join(&mut self, true_now: u64, chance: &mut Rng) {
        self.core.join(self.clock.read(true_now, chance));
    }

    /// Asks to be removed, of its own will. It has stopped acting.
    pub fn leave(&mut self, true_now: u64, chance: &mut Rng) {
        self.leaving = true;
        let now = self.clock.read(true_now, chance);
        self.core.leave(now, &mut self.fabric);
        self.take_membership_events();
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

    /// Whether it has stopped between two steps of a turn.
    pub fn is_mid_turn(&self) -> bool {
        !matches!(self.step, Step::Take)
    }

    /// One turn of the duty cycle, as the node's agent has it, or, if it is broken off between two steps, a part of it.
    /// `place`: in lives with disks.
    pub fn turn(&mut self, true_now: u64, settings: &Settings, chance: &mut Rng, mut place: Option<&mut Place<'_, HOST>>) -> Turn {
        let mut found = None;
        // For requests only, which a primary takes between two whole ones.
        let short = !self.is_mid_turn()
            && self.engine.standing() == Standing::Primary
            && chance.u32(..1000) < settings.short_turns
            && !E::TRAITS.elects();
        if short {
            self.step = Step::Serve;
        }
        loop {
            self.step = match self.step {
                Step::Take => {
                    if let Some(place) = &mut place {
                        place.disk.before_turn(true_now, &mut self.engine);
                    }
                    self.take(true_now, chance);
                    if let Some(place) = &place {
                        self.found(true_now, settings, chance, place);
                    }
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
                    self.handle_completions(now);
                    let view = self.engine.view();
                    let active = self.core.lease().active(view, now) || self.canary == Some(Canary::NoActiveCheck);
                    found = active.then_some(view);
                    if served { Step::Conclude(now, found) } else { Step::TakeOver(now, found) }
                }
                Step::TakeOver(now, active) => {
                    if active.is_some() && self.engine.standing() != Standing::Primary && !self.dormant {
                        self.engine.advance(now, active, &mut self.fabric, &mut self.machine);
                        self.take_engine_events(now);
                    }
                    Step::Serve
                }
                Step::Serve => {
                    let now = self.clock.read(true_now, chance);
                    if !self.leaving && !self.dormant {
                        self.server.poll(&mut self.engine, &mut self.machine);
                    }
                    if !self.dormant {
                        self.engine.post(now, &mut self.fabric, &mut self.machine);
                    }
                    Step::Collect { served: true }
                }
                Step::Conclude(now, active) => {
                    self.conclude(now, active, chance);
                    self.step = Step::Take;
                    self.note_entries();
                    self.note_contradictions();
                    let engine_due = if self.dormant { Time(u64::MAX) } else { self.engine.deadline() };
                    let mut due = self.clock.true_time(self.core.deadline().min(engine_due)).min(true_now + settings.idle_ns);
                    if let Some(place) = place {
                        let is_member = self.core.is_member();
                        place.disk.after_turn(true_now, &mut self.engine, &self.machine, &self.fabric, is_member);
                        self.over |= self.is_outlived();
                        // What it has asked for wakes it.
                        let founding_due = self.founding.as_ref().map(|founding| self.clock.true_time(founding.due()));
                        let founding_due = founding_due.filter(|due| *due > true_now).unwrap_or(u64::MAX);
                        due = due.min(place.disk.deadline()).min(founding_due);
                    }
                    // What woke it may not have been looked at.
                    let due = if short { due.min(true_now + settings.short_turn_ns) } else { due };
                    return Turn { due, active: found };
                }
            };
            if chance.u32(..1000) < settings.broken_turns {
                self.note_entries();
                return Turn { due: true_now + chance.u64(settings.break_ns.0..=settings.break_ns.1), active: found };
            }
        }
    }

    fn take(&mut self, true_now: u64, chance: &mut Rng) {
        let now = self.clock.read(true_now, chance);
        self.take_peer_events(now);
        for _ in 0..DATAGRAMS_A_TURN {
            let Some(from) = self.fabric.receive(&mut self.datagram) else { break };
            let now = self.clock.read(true_now, chance);
            self.core.handle_datagram(now, &mut self.fabric, from, &self.datagram);
            self.take_membership_events();
        }
        self.core.tick(now, &mut self.fabric, true);
        self.take_membership_events();
    }

    fn handle_completions(&mut self, now: Time) {
        for at in 0..self.completions.len() {
            let completion = self.completions[at];
            if Component::Engine.owns(completion.token) {
                self.engine.handle_completion(completion);
            } else if Component::Founding.owns(completion.token) {
                if let Some(founding) = &mut self.founding {
                    founding.handle_completion(completion);
                }
            } else {
                self.core.handle_completion(now, &mut self.fabric, completion);
                self.take_membership_events();
            }
        }
        self.completions.clear();
    }

    fn conclude(&mut self, now: Time, active: Option<ViewNumber>, chance: &mut Rng) {
        self.dormant &= !self.core.is_member();
        if !self.dormant {
            self.engine.advance(now, active, &mut self.fabric, &mut self.machine);
            self.take_engine_events(now);
            self.check_by_quorum(now);
        }
        if !self.leaving {
            self.server.release(&self.engine);
        }
        // The node leaves this to turns without work: any turn may be one.
        if chance.bool() {
            return;
        }
        let (core, fabric) = (&mut self.core, &mut self.fabric);
        self.let_go.retain(|peer| {
            let go = core.forget(*peer);
            if go {
                fabric.forget(*peer);
            }
            !go
        });
    }

    /// Asks the coordinators for replies that wait for that. Where they have answered at once, the replies go out in this turn.
    fn check_by_quorum(&mut self, now: Time) {
        if self.engine.check_by_quorum(now, &mut self.core, &mut self.fabric) {
            while let Some(completion) = self.fabric.poll() {
                self.completions.push(completion);
            }
            self.handle_completions(now);
            self.engine.check_by_quorum(now, &mut self.core, &mut self.fabric);
        }
    }

    fn take_peer_events(&mut self, now: Time) {
        while let Some(event) = self.fabric.event() {
            match event {
                PeerEvent::Up { identity, .. } if identity.kind == PeerKind::Client => continue,
                PeerEvent::Up { peer, identity } => {
                    let process = ProcessId { node: identity.node, incarnation: identity.incarnation };
                    self.members.push((peer, process));
                    self.engine.handle_peer_up(peer, process, &mut self.fabric);
                }
                PeerEvent::Gone { peer, certain } => {
                    self.members.retain(|(known, _)| *known != peer);
                    self.engine.handle_peer_gone(peer, certain);
                }
            }
            self.core.handle_peer(now, &mut self.fabric, event);
            self.take_membership_events();
        }
    }

    fn take_membership_events(&mut self) {
        while let Some(event) = self.core.poll_event() {
            match event {
                Event::View(view) => {
                    self.engine.handle_view(&view);
                    self.notable.push(Notable::Learned(view));
                }
                Event::Excluded => self.over = true,
                Event::Milestone(milestone) => self.notable.push(Notable::Step(milestone)),
            }
        }
    }

    fn take_engine_events(&mut self, now: Time) {
        while let Some(event) = self.engine.poll_event() {
            match event {
                engine::Event::CaughtUp(process) => self.core.promote(now, &mut self.fabric, process),
                engine::Event::Drop(process) => self.core.evict(now, &mut self.fabric, process),
                engine::Event::Forget(peer) => self.let_go.push(peer),
                engine::Event::AskedPermission => self.notable.push(Notable::Asked),
                engine::Event::Permitted => self.notable.push(Notable::Permitted),
                engine::Event::TookOver { recovered } => self.notable.push(Notable::TookOver { view: self.engine.view(), recovered }),
                engine::Event::SteppedDown => self.notable.push(Notable::SteppedDown),
                engine::Event::Unteachable { process, bytes } => {
                    let what = format!("{} cannot teach {process} a part of {bytes} bytes", self.me);
                    self.notable.push(Notable::Wrong(Property::Recovery, what));
                }
                // Nobody here writes nonsense.
                engine::Event::LaneFault { peer, fault, .. } => {
                    self.notable
                        .push(Notable::Wrong(Property::SoundLanes, format!("{} finds a fault in the lane of {peer:?}: {fault}", self.me)));
                }
                engine::Event::Unfit => {
                    let what = format!("view {} makes {} primary, which does not hold the state", self.engine.view(), self.me);
                    self.notable.push(Notable::Wrong(Property::FitPrimary, what));
                    self.over = true;
                }
            }
            self.take_membership_events();
        }
        self.over |= self.engine.standing() == Standing::Excluded;
    }

    /// Nobody here lies: who hears of two views of one number, or of a value that is no view, has come upon a mistake of ours.
    fn note_contradictions(&mut self) {
        if self.core.contradictions() > 0 {
            let what = format!("{} has heard of two views of one number, or of a value that is none", self.me);
            self.notable.push(Notable::Wrong(Property::ViewAgreement, what));
        }
    }

    /// What the machine has taken, and how much of it is known to be committed now.
    fn note_entries(&mut self) {
        if std::mem::take(&mut self.machine.cleared) {
            self.uncommitted.clear();
        }
        for taken in self.machine.taken.drain(..) {
            self.uncommitted.push_back(taken);
        }
        // What a learner has taken may yet be taken back, by teaching it anew.
        if self.core.view().and_then(|view| view.member(self.me)).is_none_or(|member| !member.roles.has(Roles::REPLICA)) {
            return;
        }
        // Nor has what it shows any meaning while it holds the state no longer.
        if !self.engine.is_complete() {
            return;
        }
        let committed = self.engine.committed();
        while self.uncommitted.front().is_some_and(|taken| taken.index <= committed) {
            let taken = self.uncommitted.pop_front().expect("checked");
            self.notable.push(Notable::Committed(taken));
        }
    }

    /// How much it holds.
    pub fn footprint(&self) -> Footprint {
        Footprint {
            core: memory::length(&self.core),
            engine: memory::length(&self.engine),
            // Who leaves takes none any more; its clients' lie there until it has gone.
            requests: if self.leaving { 0 } else { self.server.held() },
            let_go: self.let_go.len(),
        }
    }
}
