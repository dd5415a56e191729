//! A node that does everything on one thread: a [duty cycle](martlet_protocol::duty), the application that it serves, and its instruments. It never blocks: the
//! [runner](crate::runner) gives it its turns, and decides what happens between turns.

use martlet_fabric::Fabric;
use martlet_protocol::basics::{ProcessId, Time};
use martlet_protocol::duty::{DutyCycle, Host, Pace, Turn};
use martlet_protocol::engine::Engine;
use martlet_protocol::membership::Core;
use martlet_protocol::replica::{Application, Standing};

use crate::counters::{Counter, Counters, EventKind};
use crate::idle::Rest;
use crate::instruments::Instruments;

/// Counters are written out once in so many turns, and before each sleep.
const TURNS_A_PUBLICATION: u64 = 1024;
/// They are also written out after so many nanoseconds, because people look at them even when turns take long.
const PUBLICATION_NS: u64 = 10_000_000;

/// A node's parts, and the application that it serves.
pub(crate) struct Agent<F: Fabric, E: Engine, A: Application> {
    pub host: Host<F, E, A::Machine>,
    pub app: A,
    pub cycle: DutyCycle,
    pub instruments: Instruments,
    turns: u64,
    /// When counters were last written out between sleeps.
    published: Time,
}

impl<F: Fabric, E: Engine, A: Application> Agent<F, E, A> {
    /// A process whose life begins now, and that knows no other process yet.
    #[allow(clippy::too_many_arguments, reason = "a node's parts, each of another kind")]
    pub fn new(
        me: ProcessId,
        fabric: F,
        core: Core,
        engine: E,
        machine: A::Machine,
        app: A,
        counters: Counters,
        clock: fn() -> Time,
    ) -> Self {
        let instruments = Instruments::new::<F, E>(me, &fabric, counters, clock);
        Agent {
            host: Host::new(me, fabric, core, engine, machine, clock()),
            app,
            cycle: DutyCycle::new(Pace::default()),
            instruments,
            turns: 0,
            published: Time(0),
        }
    }

    /// One turn.
    pub fn turn(&mut self) -> Turn {
        let Agent { host, app, cycle, instruments, .. } = self;
        let turn = cycle.turn(host, app, instruments);
        instruments.count(&turn);
        self.turns += 1;
        if self.turns.is_multiple_of(TURNS_A_PUBLICATION) || turn.now.since(self.published) >= PUBLICATION_NS {
            self.published = turn.now;
            self.publish();
        }
        turn
    }

    /// Writes the counters to where others read them.
    pub fn publish(&mut self) {
        self.instruments.counters.set(Counter::MalformedRequests, self.app.malformed_requests());
        if let Some(service) = self.app.service() {
            self.instruments.tell_of(&service);
        }
        self.instruments.publish(&self.host);
    }

    /// Stamps an event of this process and shows it.
    pub fn record(&mut self, kind: EventKind, process: Option<ProcessId>, detail: u64) {
        let member = &self.host.member;
        self.instruments.record(&member.fabric, kind, member.core.view_number(), process, detail);
    }

    /// Acts on what membership says after a request that was made to it between turns.
    pub fn take_membership_events(&mut self) {
        self.host.take_membership_events(&mut self.instruments);
    }

    /// For engines that elect: a process that waits for the others' permission, or has just done something as a follower, yields to the processes that wait for
    /// it, since they may share a core, and then looks again at once. A process that is halfway through giving permission continues first. `None`: the usual
    /// rest will do.
    pub fn makes_way(&self, turn: &Turn) -> Option<Rest> {
        if !E::TRAITS.elects() || self.host.engine.standing() == Standing::Primary {
            return None;
        }
        if self.host.engine.goes_on() {
            return Some(Rest::None);
        }
        (turn.worked || self.waits_for_permission(turn)).then_some(Rest::Yield)
    }

    /// Whether it waits for the others' permission to lead.
    pub fn waits_for_permission(&self, turn: &Turn) -> bool {
        self.cycle.waits_for_permission(turn.now)
    }

    /// When the next turn is due at the latest, for a node that would rather sleep.
    pub fn deadline(&self) -> Time {
        self.cycle.deadline(&self.host, &self.app)
    }

    /// Ends this life, before its endpoint goes away: the application learns that its clients are gone, and that nothing that waited will be released.
    pub fn end_life(&mut self) {
        self.host.dismiss_clients();
        self.app.end_life(&mut self.host);
        self.publish();
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::Cell;

    use martlet_fabric::shm::ShmFabric;
    use martlet_fabric::{Identity, Incarnation, NodeId, PeerId, PeerKind};
    use martlet_protocol::basics::ProcessId;
    use martlet_protocol::basics::layout::{self, Sizes};
    use martlet_protocol::engine::PrimaryBackup;
    use martlet_protocol::engine::primary_backup::Config;
    use martlet_protocol::membership::{self, Core, Roles};
    use martlet_protocol::replica::{NoState, Replica, Ticket};

    use super::*;
    use crate::clock::jumps::{JumpWatch, Reading};

    /// An application that is asked for something in each turn. Keeps the time of the last.
    struct Asked(Time);

    impl Application for Asked {
        type Machine = NoState;

        fn poll<R: Replica<Machine = NoState>>(&mut self, replica: &mut R) -> usize {
            self.0 = replica.now();
            1
        }

        fn release<R: Replica<Machine = NoState>>(&mut self, _: &mut R) -> usize {
            0
        }
    }

    thread_local! {
        static CLOCK: Cell<u64> = const { Cell::new(1_000_000) };
    }

    fn clock() -> Time {
        Time(CLOCK.get())
    }

    /// A node that leads alone after its first turns, and the endpoint of another process. Its clock stands still.
    pub(crate) fn alone<A: Application>(app: A, machine: A::Machine) -> (Agent<ShmFabric, PrimaryBackup, A>, ShmFabric) {
        const SIZES: Sizes = Sizes { log_ring_bytes: 4 << 10, client_ring_bytes: 4 << 10 };
        let config = Config { log_ring_bytes: SIZES.log_ring_bytes, ..Config::default() };
        let mut spec = layout::regions(SIZES);
        PrimaryBackup::add_regions(&mut spec, &config);
        let identity = |node| Identity { node: NodeId(node), incarnation: Incarnation(1), kind: PeerKind::Member };
        let endpoints = ShmFabric::private(&[(identity(0), spec.clone()), (identity(1), spec)]).expect("memory");
        let [fabric, other] = <[ShmFabric; 2]>::try_from(endpoints).expect("two");
        let me = ProcessId { node: NodeId(0), incarnation: Incarnation(1) };
        let core = Core::new(clock(), membership::Config::new(me, Roles::COORDINATOR.with(Roles::REPLICA)));
        let engine = PrimaryBackup::new(me, config);
        let mut agent = Agent::new(me, fabric, core, engine, machine, app, Counters::default(), clock);
        let member = &mut agent.host.member;
        member.core.bootstrap(clock(), &mut member.fabric);
        agent.take_membership_events();
        (agent, other)
    }

    /// A node that is asked for something all the time.
    fn busy() -> (Agent<ShmFabric, PrimaryBackup, Asked>, ShmFabric) {
        let (mut agent, other) = alone(Asked(Time(0)), NoState);
        for _ in 0..8 {
            agent.turn();
        }
        assert_eq!(agent.host.engine.standing(), Standing::Primary);
        (agent, other)
    }

    #[test]
    fn one_that_is_busy_shows_its_counters_before_long_however_few_turns_it_takes() {
        let (mut agent, _other) = busy();
        let shown = |agent: &Agent<ShmFabric, PrimaryBackup, Asked>| agent.instruments.counters.get(Counter::PublishedNs);
        CLOCK.set(CLOCK.get() + PUBLICATION_NS);
        agent.turn();
        let at = clock().0;
        assert_eq!(shown(&agent), at);
        for (later_ns, expected) in [(PUBLICATION_NS - 1, at), (1, at + PUBLICATION_NS)] {
            CLOCK.set(CLOCK.get() + later_ns);
            agent.turn();
            assert_eq!(shown(&agent), expected);
        }
    }

    #[test]
    fn one_that_leaves_shows_that() {
        let (mut agent, _other) = busy();
        let shown = |agent: &mut Agent<ShmFabric, PrimaryBackup, Asked>| {
            CLOCK.set(CLOCK.get() + PUBLICATION_NS);
            agent.turn();
            agent.instruments.counters.get(Counter::Standing)
        };
        assert_eq!(shown(&mut agent), 2);
        agent.instruments.leaving = true;
        assert_eq!(shown(&mut agent), 4);
        agent.host.member.excluded = true;
        assert_eq!(shown(&mut agent), 3, "the others have removed it");
    }

    thread_local! {
        static WALL: Cell<u64> = const { Cell::new(0) };
    }

    fn clocks() -> Reading {
        let now = clock().0;
        Reading { before: now, monotonic: now, wall: WALL.get() + now, after: now }
    }

    /// Answers requests when a test allows it, and keeps how many it has answered.
    #[derive(Default)]
    struct Answering(Vec<Ticket>, usize);

    impl Application for Answering {
        type Machine = NoState;

        fn poll<R: Replica<Machine = NoState>>(&mut self, replica: &mut R) -> usize {
            self.0.push(replica.ticket());
            1
        }

        fn release<R: Replica<Machine = NoState>>(&mut self, replica: &mut R) -> usize {
            let before = self.0.len();
            self.0.retain(|ticket| *ticket > replica.released());
            self.1 += before - self.0.len();
            before - self.0.len()
        }
    }

    #[test]
    fn trap_8_a_holder_whose_clock_has_jumped_answers_nothing_before_it_has_asked() {
        let (mut agent, _other) = alone(Answering::default(), NoState);
        (0..8).for_each(|_| _ = agent.turn());
        assert_eq!(agent.host.engine.standing(), Standing::Primary);
        agent.instruments.jumps = Some(JumpWatch::of(clocks));
        // Long before its lease ends, and in a short turn.
        CLOCK.set(CLOCK.get() + 1_000_000);
        agent.turn();
        let (answered, won) = (agent.app.1, agent.host.member.core.renewals_by_majority());
        CLOCK.set(CLOCK.get() + 1_000_000);
        agent.turn();
        assert_eq!((agent.app.1, agent.host.member.core.renewals_by_majority()), (answered + 1, won), "the lease stands");
        // As on a virtual machine that was suspended for an hour, and whose wall clock has been set right.
        WALL.set(WALL.get() + 3_600_000_000_000);
        CLOCK.set(CLOCK.get() + 1_000_000);
        agent.turn();
        assert_eq!((agent.app.1, agent.app.0.len()), (answered + 1, 1), "its lease would have had it answered");
        assert_eq!(agent.instruments.counters.get(Counter::ClockJumps), 1);
        agent.turn();
        assert_eq!(
            (agent.app.1, agent.host.member.core.renewals_by_majority()),
            (answered + 3, won + 1),
            "the coordinators have been asked"
        );
    }

    fn received(agent: &Agent<ShmFabric, PrimaryBackup, Asked>) -> u64 {
        agent.host.member.fabric.datagram_counters().received
    }

    #[test]
    fn one_that_is_busy_hears_of_the_rest_before_long_and_before_it_sleeps() {
        let (mut agent, mut other) = busy();
        let mut say = || {
            while other.event().is_some() {}
            other.send(PeerId(1), b"whatever");
        };
        // The clock stands still, so a whole turn was taken just now.
        let before = received(&agent);
        say();
        agent.turn();
        assert_eq!(received(&agent), before, "requests come first");
        // The node was kept from running, or has only been busy.
        CLOCK.set(CLOCK.get() + Pace::default().short_turns_ns);
        agent.turn();
        assert_eq!(received(&agent), before + 1);
        say();
        CLOCK.set(CLOCK.get() + Pace::default().short_turns_ns - 1);
        agent.turn();
        assert_eq!(agent.app.0, clock(), "requests are dated as they come");
        assert_eq!(received(&agent), before + 1);
        agent.cycle.look_around_next();
        agent.turn();
        assert_eq!(received(&agent), before + 2, "what came before a sleep was announced would end no sleep");
    }
}
