//! One life of a node: the production state machines, driven as a real node's duty cycle drives them.

pub mod clock;
pub mod machine;
pub mod server;

use std::collections::VecDeque;

use fastrand::Rng;
use martlet_fabric::primitive::Ordering;
use martlet_fabric::sim::{DeathWords, Endpoint};
use martlet_fabric::{Fabric, Levels, LocalRegion, NodeId};
use martlet_protocol::basics::ballot::{self, LAST_CAS_BALLOT, SlotState, SlotWord};
use martlet_protocol::basics::layout::{LIFE, MAX_WATCHERS, RETURNED, SLOT_WORDS, SLOTS, life};
use martlet_protocol::basics::{ProcessId, Time, ViewNumber};
use martlet_protocol::detector::wardens::Secret;
use martlet_protocol::duty::{DutyCycle, Environment, Host, Note, Pace};
use martlet_protocol::engine::{Leaving, LeavingPatience, LeavingStep};
use martlet_protocol::founding::simulated::Claim;
use martlet_protocol::founding::{Founding, Returned, Verdict};
use martlet_protocol::membership::message::Message;
use martlet_protocol::membership::{Core, Member, Milestone, Roles, View};

use super::engine::{Engine, Vote};
use super::oracles::memory::{self, Footprint};
use super::report::Property;
use super::settings::Settings;
use super::storage::power::{self, Place};
use clock::Clock;
use machine::{Machine, Taken};
use server::Server;

/// The least time that a node spends between two turns.
const LEAST_GAP_NS: u64 = 100;

/// What the oracles and the story have to know about.
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
        /// With this many entries that were not known to be committed.
        recovered: u64,
    },
    /// It leads no longer, but keeps running.
    SteppedDown,
    /// It knows an entry that it has taken to be committed.
    Committed(Taken),
    /// Something that must not happen.
    Wrong(Property, String),
}

/// A process of the cluster: the production duty cycle, and what a simulation adds to it.
pub struct Node<E, const HOST: bool> {
    pub host: Host<Endpoint<HOST>, E, Machine>,
    pub cycle: DutyCycle,
    pub server: Server,
    pub clock: Clock,
    /// How many threads act for it so far.
    threads: usize,
    /// How many threads begin once it is a member.
    later_threads: usize,
    /// This life is over: membership says that the process is out, or the engine cannot continue.
    pub over: bool,
    /// It has been asked to leave; how far it has come with that.
    leaving: Option<Leaving>,
    /// It is a replica, or was one when it began to leave.
    replicates: bool,
    /// One of its threads has died, and the others will follow.
    pub dying: bool,
    /// Its clock has jumped, and it can detect that.
    pub jumped: bool,
    /// Entries it has taken that are not known to be committed.
    uncommitted: VecDeque<Taken>,
    /// What has happened since the last look.
    pub notable: Vec<Notable>,
    /// It has come back with its log.
    returns: bool,
    /// Its next life is to come back as this incarnation.
    pub comes_back_as: Option<u64>,
    /// In lives with disks, while it knows no view: the decision which nodes found the cluster.
    founding: Option<Founding<Claim>>,
    /// When its turn began, in true time.
    turn_begun: u64,
    /// The dead whose memory it counts, and since when, in true time.
    zombies: Vec<(ProcessId, u64)>,
    /// The last of its votes that the oracle has judged.
    pub judged: Option<Vote>,
}

/// The environment of a simulated process: a clock that is wrong within bounds, and an observer.
struct Surroundings<'a> {
    me: ProcessId,
    true_now: u64,
    clock: &'a Clock,
    chance: &'a mut Rng,
    notable: &'a mut Vec<Notable>,
    /// Whether a jump of the clock can be detected.
    jumped: &'a mut bool,
    /// Whether it has been asked for the time.
    has_read: bool,
}

impl<F> Environment<F> for Surroundings<'_> {
    fn now(&mut self) -> Time {
        self.has_read = true;
        self.clock.read(self.true_now, self.chance)
    }

    fn clock_jumped(&mut self, _: Time) -> Option<u64> {
        std::mem::take(self.jumped).then_some(0)
    }

    fn note(&mut self, _: &F, _: ViewNumber, note: Note<'_>) {
        let me = self.me;
        let notable = match note {
            Note::Learned(view) => Notable::Learned(view.clone()),
            Note::DeathSeen { process, evidence, .. } => Notable::Step(Milestone::DeathSeen(process, evidence)),
            Note::Proposed(view) => Notable::Step(Milestone::Proposed(view)),
            Note::Decided(view) => Notable::Step(Milestone::Decided(view)),
            Note::Acknowledged(view) => Notable::Step(Milestone::Acknowledged(view)),
            Note::Active(view) => Notable::Step(Milestone::Active(view)),
            Note::AskedPermission => Notable::Asked,
            Note::Permitted => Notable::Permitted,
            Note::TookOver { view, recovered } => Notable::TookOver { view, recovered },
            Note::SteppedDown => Notable::SteppedDown,
            Note::Unteachable { process, bytes } => {
                Notable::Wrong(Property::Recovery, format!("{me} cannot teach {process} a part of {bytes} bytes"))
            }
            // No process here writes invalid records.
            Note::LaneFault { peer, fault, .. } => {
                Notable::Wrong(Property::SoundLanes, format!("{me} finds a fault in the lane of {peer:?}: {fault}"))
            }
            Note::Unfit(view) => {
                Notable::Wrong(Property::FitPrimary, format!("view {view} makes {me} primary, which does not hold the state"))
            }
            // Every process here runs the same machine, so each must be able to read every entry.
            Note::Unreadable(entry) => Notable::Wrong(Property::LogAgreement, format!("{me}: {entry}")),
            Note::GaveUp => Notable::Wrong(Property::Recovery, format!("{me} has executed what cannot be replicated")),
            Note::PeerUp(_)
            | Note::Excluded
            | Note::CaughtUp(_)
            | Note::Dropped { .. }
            | Note::FirstReply
            | Note::Alone
            | Note::ClockJumped { .. } => return,
        };
        self.notable.push(notable);
    }
}

/// The result of a turn.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    /// The true time at which the next turn is due.
    pub due: u64,
    /// The view that was found to be active.
    pub active: Option<ViewNumber>,
}

impl<E: Engine, const HOST: bool> Node<E, HOST> {
    /// A process whose acting threads have registered with the kernel: all of them, or only the first while the others do so later.
    pub fn new(host: Host<Endpoint<HOST>, E, Machine>, clock: Clock, pace: Pace, threads: usize) -> Self {
        let at_once = if host.member.me.node.0.is_multiple_of(2) { threads } else { 1 };
        let mut node = Node {
            host,
            cycle: DutyCycle::new(pace),
            server: Server::default(),
            clock,
            threads: 0,
            later_threads: threads - at_once,
            over: false,
            leaving: None,
            replicates: false,
            dying: false,
            jumped: false,
            uncommitted: VecDeque::new(),
            notable: Vec::new(),
            returns: false,
            comes_back_as: None,
            founding: None,
            turn_begun: 0,
            zombies: Vec::new(),
            judged: None,
        };
        (0..at_once).for_each(|_| node.begin_thread());
        node
    }

    /// Another thread acts for it from now on.
    fn begin_thread(&mut self) {
        let words = self.host.member.fabric.memory(LocalRegion::Public(LIFE)).expect("every process offers signs of life");
        for watcher in 0..MAX_WATCHERS {
            let tid = 1000 + self.threads as u64;
            words[life::death(self.threads, watcher)].store(life::WAITERS | tid, Ordering::Release);
        }
        words[life::THREADS].store(life::counting(words[life::THREADS].load(Ordering::Relaxed), self.threads), Ordering::Release);
        self.threads += 1;
    }

    /// Which process it is.
    pub fn me(&self) -> ProcessId {
        self.host.member.me
    }

    /// Its membership.
    pub fn core(&self) -> &Core {
        &self.host.member.core
    }

    /// Its engine.
    pub fn engine(&self) -> &E {
        &self.host.engine
    }

    /// Membership acts on a request that was made between turns, at the true time `true_now`.
    fn ask(&mut self, true_now: u64, chance: &mut Rng, what: impl FnOnce(&mut Core, Time, &mut Endpoint<HOST>)) {
        let member = &mut self.host.member;
        member.now = self.clock.read(true_now, chance);
        what(&mut member.core, member.now, &mut member.fabric);
        let mut env = Surroundings {
            me: member.me,
            true_now,
            clock: &self.clock,
            chance,
            notable: &mut self.notable,
            jumped: &mut self.jumped,
            has_read: false,
        };
        self.host.take_membership_events(&mut env);
    }

    /// Its node has a disk; if it `returns`, it has come back from that disk.
    pub fn begin_with_disk(&mut self, settings: &Settings, returns: bool, lives: Vec<u64>) {
        let back = self.engine().returned().filter(|_| returns);
        Returned::store(
            back.as_ref(),
            self.host.member.fabric.memory(LocalRegion::Public(RETURNED)).expect("offered where there are disks"),
        );
        self.founding = Some(Founding::with_disks(power::founding_config(settings, self.me()), back, lives));
        (self.host.dormant, self.returns) = (returns, returns);
    }

    /// Founds the cluster, if that falls to this process.
    fn found(&mut self, true_now: u64, settings: &Settings, chance: &mut Rng, place: &Place<'_, HOST>) {
        let Some(founding) = &mut self.founding else { return };
        let member = &mut self.host.member;
        if member.core.view().is_some() {
            self.founding = None;
            return;
        }
        member.boards_read.drain(..).for_each(|completion| founding.handle_completion(completion));
        let now = self.clock.read(true_now, chance);
        let Ok(verdict) = founding.look(now, &place.ground, &mut member.fabric, &member.members);
        match verdict {
            Verdict::Wait => return,
            Verdict::StartOver => self.over = true,
            Verdict::ComeBackAs(life) => (self.over, self.comes_back_as) = (true, Some(life)),
            Verdict::Found(None) => self.bootstrap(true_now, chance),
            Verdict::Found(Some(again)) => {
                let number = again.number;
                let levels = Levels::only(self.core().level());
                let members = again.view_members(|id| Some(Member { levels, ..Member::new(id, settings.roles[usize::from(id.node.0)]) }));
                self.ask(true_now, chance, |core, now, fabric| core.found_again(now, fabric, number, members));
            }
        }
        self.founding = None;
    }

    /// In a life with disks: whether the others continue without it.
    fn is_outlived(&self) -> bool {
        let (me, core) = (self.me(), self.core());
        let Some(view) = core.view().filter(|_| !core.is_member()) else { return false };
        let later = view.members.iter().any(|m| m.id.node == me.node && m.id > me);
        later || (self.returns && core.is_view_shared())
    }

    /// Leaves the slots of this acceptor from `next` on as if proposers had fought for them until their ballots hardly fit into the slots' words (uKharon App.
    /// A.6).
    pub fn wear_out(&self, next: ViewNumber, chance: &mut Rng) {
        let words = self.host.member.fabric.memory(LocalRegion::Public(SLOT_WORDS)).expect("every process offers slots");
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

    /// Whether it has a thread that can die before another one does.
    pub fn dies_in_parts(&self) -> bool {
        self.threads > 1 && !self.dying
    }

    /// Its first thread has died, and the kernel reports that at once. The other threads run on for a moment, and may still store and reply (TRAPS 32).
    pub fn lose_a_thread(&mut self) {
        self.dying = true;
        let words = self.host.member.fabric.memory(LocalRegion::Public(LIFE)).expect("every process offers signs of life");
        for watcher in 0..MAX_WATCHERS {
            words[life::death(0, watcher)].store(life::WAITERS | life::OWNER_DIED, Ordering::Release);
        }
    }

    /// Stores a death word for each thread and each watcher.
    pub fn set_death_words(&self, word: u64) {
        let words = self.host.member.fabric.memory(LocalRegion::Public(LIFE)).expect("every process offers signs of life");
        for thread in 0..self.threads {
            for watcher in 0..MAX_WATCHERS {
                words[life::death(thread, watcher)].store(word, Ordering::Release);
            }
        }
    }

    /// Founds the cluster.
    pub fn bootstrap(&mut self, true_now: u64, chance: &mut Rng) {
        self.ask(true_now, chance, |core, now, fabric| core.bootstrap(now, fabric));
    }

    /// Asks to join.
    pub fn join(&mut self, true_now: u64, chance: &mut Rng) {
        self.ask(true_now, chance, |core, now, _| core.join(now));
    }

    /// Asks it to end in an orderly way.
    pub fn leave(&mut self, true_now: u64, settings: &Settings, chance: &mut Rng) {
        let leave_ns = settings.broadcast_timeout_ns;
        let patience = LeavingPatience { last_copy_ns: 2 * leave_ns, leave_ns, needed_ns: 2 * leave_ns };
        let now = self.clock.read(true_now, chance);
        self.leaving.get_or_insert_with(|| Leaving::new(now, patience));
    }

    /// Whether it has been asked to leave.
    pub fn is_leaving(&self) -> bool {
        self.leaving.is_some()
    }

    /// Continues to leave, up to the next turn.
    fn get_on_with_leaving(&mut self, true_now: u64, chance: &mut Rng) {
        while let Some(leaving) = &mut self.leaving {
            let now = self.clock.read(true_now, chance);
            let Host { engine, member, unfit, .. } = &self.host;
            match leaving.step::<Endpoint<HOST>, _>(now, &member.core, engine, member.excluded, *unfit) {
                LeavingStep::Turn => return,
                LeavingStep::StopServing => self.cycle.serving = false,
                LeavingStep::Leave => self.ask(true_now, chance, |core, now, fabric| core.leave(now, fabric)),
                LeavingStep::End => {
                    self.over = true;
                    return;
                }
            }
        }
    }

    /// The warden of its host certifies the death of a node with this secret.
    pub fn hear_certificate(&mut self, true_now: u64, chance: &mut Rng, of: NodeId, secret: Secret) {
        self.ask(true_now, chance, |core, now, fabric| {
            let _ = core.handle_certificate(now, fabric, of, secret);
        });
    }

    /// A message of another process arrives.
    pub fn hear_message(&mut self, true_now: u64, chance: &mut Rng, teller: ProcessId, message: &Message) {
        let mut datagram = Vec::new();
        message.encode(&mut datagram);
        self.ask(true_now, chance, |core, now, fabric| {
            if let Some(teller) = core.peer_of(teller) {
                core.handle_datagram(now, fabric, teller, &datagram);
            }
        });
    }

    /// An operator changes the length of leases.
    pub fn set_lease_ns(&mut self, true_now: u64, chance: &mut Rng, lease_ns: u64) {
        self.ask(true_now, chance, |core, now, fabric| core.set_lease_ns(now, fabric, lease_ns));
    }

    /// An operator asks for a higher feature level. If some member does not support it, the answer is no and nothing happens.
    pub fn raise_level(&mut self, true_now: u64, chance: &mut Rng, level: u8) {
        self.ask(true_now, chance, |core, now, fabric| {
            let _ = core.raise_level(now, fabric, level);
        });
    }

    /// The view that some core of this process may find active at the true time `true_now`.
    pub fn may_act_in(&self, true_now: u64) -> Option<ViewNumber> {
        if self.jumped {
            return None;
        }
        let (lease, (least, most)) = (self.core().lease(), self.clock.bounds(true_now));
        // Some core between the slowest and the fastest one finds that the lease has begun and not ended.
        let begun = lease.active(lease.view(), most) || (most >= lease.end() && least < lease.end());
        (lease.view() != ViewNumber(0) && begun).then_some(lease.view())
    }

    /// Whether it has stopped between two steps of a turn.
    pub fn is_mid_turn(&self) -> bool {
        self.cycle.is_mid_turn()
    }

    /// One turn of the duty cycle, or only a part of it if the turn is broken off between two steps. `place`: in lives with disks.
    pub fn turn(&mut self, true_now: u64, settings: &Settings, chance: &mut Rng, mut place: Option<&mut Place<'_, HOST>>) -> Turn {
        if !self.is_mid_turn() {
            self.turn_begun = true_now;
        }
        if !self.is_mid_turn()
            && let Some(place) = &mut place
        {
            place.disk.before_turn(true_now, &mut self.host.engine);
        }
        let mut active = None;
        let turn = loop {
            let mut env = Surroundings {
                me: self.me(),
                true_now,
                clock: &self.clock,
                chance,
                notable: &mut self.notable,
                jumped: &mut self.jumped,
                has_read: false,
            };
            let ended = self.cycle.step(&mut self.host, &mut self.server, &mut env);
            if env.has_read {
                // What it would find active at this moment; it may be stopped before it looks.
                let (member, view) = (&self.host.member, self.host.engine.view());
                active = member.core.lease().active(view, member.now).then_some(view);
            }
            if let Some(turn) = ended {
                break turn;
            }
            if chance.u32(..1000) < settings.broken_turns {
                self.note_entries();
                return Turn { due: true_now + chance.u64(settings.break_ns.0..=settings.break_ns.1), active };
            }
        };
        if self.later_threads > 0 && self.core().is_member() && !self.dying {
            self.later_threads -= 1;
            self.begin_thread();
        }
        self.over |= (self.host.unfit || self.host.member.excluded) && !self.is_leaving();
        self.get_on_with_leaving(true_now, chance);
        self.note_zombies(true_now, settings.zombies_ns);
        self.note_entries();
        self.note_contradictions();
        self.host.invariants();
        let mut due = self.clock.true_time(self.cycle.deadline(&self.host, &self.server)).min(true_now + settings.idle_ns);
        if let Some(place) = place {
            let is_member = self.core().is_member();
            let Host { engine, machine, member, .. } = &mut self.host;
            place.disk.after_turn(true_now, engine, machine, &member.fabric, is_member);
            self.found(true_now, settings, chance, place);
            self.over |= self.is_outlived();
            // It asked to be woken then.
            let founding_due = self.founding.as_ref().map(|founding| self.clock.true_time(founding.due()));
            let founding_due = founding_due.filter(|due| *due > true_now).unwrap_or(u64::MAX);
            due = due.min(place.disk.deadline()).min(founding_due);
        }
        // A short turn may not have looked at what woke it.
        let due = if turn.short { due.min(true_now + settings.pace.short_turns_ns) } else { due };
        Turn { due: due.max(true_now + LEAST_GAP_NS), active }
    }

    /// Checks at the end of a turn whether it counts the memory of a dead process for longer than is stated. Everything in the turn may have happened as early
    /// as its beginning.
    fn note_zombies(&mut self, true_now: u64, zombies_ns: u64) {
        let counted = self.engine().counted_zombies();
        for id in counted {
            let since = match self.zombies.iter().find(|(known, _)| *known == id) {
                Some((_, since)) => *since,
                None => {
                    self.zombies.push((id, true_now));
                    true_now
                }
            };
            let counts_ns = self.turn_begun.saturating_sub(since);
            if counts_ns > zombies_ns {
                let what = format!("{} counts the memory of {id}, which is dead, for {counts_ns} ns; allowed is {zombies_ns}", self.me());
                self.notable.push(Notable::Wrong(Property::ZombiesEnd, what));
            }
        }
        if let Some(id) = self.engine().dead_that_is_waited_for() {
            let what = format!("{} waits for {id}, which is dead, before it prunes its log", self.me());
            self.notable.push(Notable::Wrong(Property::ZombiesEnd, what));
        }
    }

    /// No process lies here: if one hears of two views with one number, or of a value that is no view, that is a bug of ours.
    fn note_contradictions(&mut self) {
        if self.core().contradictions() > 0 {
            let what = format!("{} has heard of two views of one number, or of a value that is none", self.me());
            self.notable.push(Notable::Wrong(Property::ViewAgreement, what));
        }
    }

    /// Notes the entries that the machine has taken, and which of them are known to be committed now.
    fn note_entries(&mut self) {
        if std::mem::take(&mut self.host.machine.cleared) {
            self.uncommitted.clear();
        }
        for taken in self.host.machine.taken.drain(..) {
            self.uncommitted.push_back(taken);
        }
        // What a learner has taken may still be replaced by another state transfer. A node that leaves stays a replica until it ends, whatever the view says by
        // then.
        let member = self.core().view().and_then(|view| view.member(self.me()));
        if member.is_some() || !self.is_leaving() {
            self.replicates = member.is_some_and(|member| member.roles.has(Roles::REPLICA));
        }
        if !self.replicates {
            return;
        }
        // Likewise, its entries mean nothing while it does not hold the whole state.
        if !self.engine().is_complete() {
            return;
        }
        let committed = self.engine().committed();
        while self.uncommitted.front().is_some_and(|taken| taken.index <= committed) {
            let taken = self.uncommitted.pop_front().expect("checked");
            self.notable.push(Notable::Committed(taken));
        }
    }

    /// How much memory it holds.
    pub fn footprint(&self) -> Footprint {
        Footprint {
            core: memory::length(self.core()),
            engine: memory::length(self.engine()),
            // A node that leaves takes no more requests; what its clients have sent stays there until it has gone.
            requests: if self.is_leaving() { 0 } else { self.server.held() },
            let_go: self.host.awaiting_forgetting(),
        }
    }
}
