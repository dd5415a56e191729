//! The duty cycle of a node that does everything on one thread. It never blocks and knows no thread: the [runner](crate::runner) gives it
//! its turns, and decides what happens between them.
//!
//! One turn:
//!
//! 1. take what the fabric says about peers, and datagrams;
//! 2. membership's tick: it reads the death words of all peers, among other things;
//! 3. completions, until there are none: each may post further operations. A death seen here goes through proposal, decision and lease in
//!    this one step, where the fabric completes operations at once; and a takeover that has become possible is made, before anything else
//!    is looked at, since all that is cold by then;
//! 4. the application takes requests, executes them on the primary's state and proposes their effects;
//! 5. the engine posts them to the backups, or applies what has come as a backup; completions again;
//! 6. with a clock that was read after the last completion: is the view active? The engine draws its conclusions;
//! 7. where replies are not to depend on a lease: the coordinators are asked whether the view still stands, and where the answers are there at once they are taken;
//! 8. the application sends the replies that may go out: every one of them follows a check that is later than its execution (TRAPS 7).
//!
//! Where the engine elects by itself, membership decides nothing that anybody waits for, and its tick comes last: when it is due and there is
//! no other work, or when there has been other work for a while. Whoever is woken by a death, or by who asks for its permission after one, sees to that first.
//!
//! While requests keep coming to a primary that leads by views, most turns are *short*: they begin with step 4, and what nobody waits for in such a turn, steps 1 to 3,
//! comes with the first turn that begins [`SHORT_TURNS_NS`] after the last of its kind. A request that arrives finds the thread somewhere in a turn, so what
//! a turn looks at is what it waits for. Whoever is busy sees deaths later by as much.
//!
//! What has no effect on anybody's waiting, such as giving up a dead peer's memory, is left for a turn without work.

use martlet_fabric::{Completion, Fabric};
use martlet_protocol::basics::Time;
use martlet_protocol::basics::layout::Component;
use martlet_protocol::engine::Engine;
use martlet_protocol::replica::{Application, Standing};

use crate::counters::Counter;
use crate::host::Host;
use crate::idle::Rest;

/// Datagrams taken in one turn.
const DATAGRAMS_A_TURN: usize = 64;
/// Counters are written out every so many turns, and before each sleep.
const TURNS_A_PUBLICATION: u64 = 1024;
/// They are written out after so many nanoseconds as well: people look at them also where turns take long.
const PUBLICATION_NS: u64 = 10_000_000;
/// For how long membership waits, once it is due, for an engine that elects by itself and has work to do without a break, in nanoseconds: longer than an
/// election, shorter than any of membership's own intervals.
const PATIENCE_NS: u64 = 1_000_000;
/// How long turns stay short, in nanoseconds: a few times what a whole one takes, and short beside what it takes to see a death.
const SHORT_TURNS_NS: u64 = 4_000;
/// For how long after a request more are expected, in nanoseconds.
const EXPECTS_REQUESTS_NS: u64 = 50_000;
/// How often in a turn an election goes on with what its last step has brought.
const ELECTION_STEPS: usize = 8;

/// What a turn came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Turn {
    /// When it ended, or a little before.
    pub now: Time,
    /// Whether there was anything to do.
    pub worked: bool,
}

/// When who leads has to look at everything again: in each turn, but while requests keep coming.
#[derive(Clone, Copy, Debug, Default)]
struct Rounds {
    /// When the last whole turn began.
    begun: Time,
    /// Until when more requests are expected.
    requests_until: Time,
}

impl Rounds {
    fn begin(&mut self, now: Time) {
        self.begun = now;
    }

    /// There were requests in the turn that ends at `now`.
    fn expect_requests(&mut self, now: Time) {
        self.requests_until = now.after(EXPECTS_REQUESTS_NS);
    }

    /// The next turn looks at everything, whatever comes.
    fn expect_nothing(&mut self) {
        self.requests_until = Time(0);
    }

    #[inline]
    fn expects_requests(&self, now: Time) -> bool {
        now < self.requests_until
    }

    #[inline]
    fn is_due(&self, now: Time) -> bool {
        !self.expects_requests(now) || now.since(self.begun) >= SHORT_TURNS_NS
    }
}

/// A node's parts, and the application that it serves.
pub(crate) struct Agent<F: Fabric, E: Engine, A: Application> {
    pub host: Host<F, E, A::Machine>,
    pub app: A,
    completions: Vec<Completion>,
    datagram: Vec<u8>,
    turns: u64,
    /// When counters were last written out between sleeps.
    published: Time,
    /// When membership last had its tick, where the engine goes before.
    tended: Time,
    /// Since when there has been other work in each turn.
    busy: Option<Time>,
    rounds: Rounds,
    /// Since when the engine takes this process for the leader that it is not yet.
    asked: Option<Time>,
    /// Whether requests are still taken.
    pub serving: bool,
}

impl<F: Fabric, E: Engine, A: Application> Agent<F, E, A> {
    pub fn new(host: Host<F, E, A::Machine>, app: A) -> Self {
        Agent {
            host,
            app,
            completions: Vec::with_capacity(4096),
            datagram: Vec::with_capacity(4096),
            turns: 0,
            published: Time(0),
            tended: Time(0),
            busy: None,
            rounds: Rounds::default(),
            asked: None,
            serving: true,
        }
    }

    /// One turn.
    pub fn turn(&mut self) -> Turn {
        let looked = if self.may_be_short() { 0 } else { self.look_around() };

        let host = &mut self.host;
        let taken = if self.serving { self.app.poll(host) } else { 0 };
        let posted = !host.dormant && host.engine.post(host.now, &mut host.fabric, &mut host.machine);
        let mut now = self.take_completions();
        self.advance(now);
        self.go_on_electing(&mut now);
        self.check_by_quorum(&mut now);

        self.asked = if self.is_electing() { self.asked.or(Some(now)) } else { None };

        let host = &mut self.host;
        let sent = self.app.release(host);
        host.note_replies(sent);

        if taken > 0 {
            self.rounds.expect_requests(now);
        }
        host.counters.add(Counter::Requests, taken as u64);
        host.counters.add(Counter::Replies, sent as u64);
        let worked = looked > 0 || taken > 0 || posted || sent > 0 || self.is_busy();
        self.busy = if worked || self.is_electing() { self.busy.or(Some(now)) } else { None };
        if E::TRAITS.elects() && now >= self.membership_due() {
            self.tended = now;
            self.tend_membership();
            now = self.take_completions();
        }
        self.turns += 1;
        let host = &mut self.host;
        host.counters.add(Counter::Turns, 1);
        host.counters.add(Counter::BusyTurns, u64::from(worked));
        if !worked {
            host.forget_the_gone();
        }
        if self.turns.is_multiple_of(TURNS_A_PUBLICATION) || now.since(self.published) >= PUBLICATION_NS {
            self.published = now;
            host.publish_counters();
        }
        Turn { now, worked }
    }

    /// Whether this turn is for requests only. If so, the time is what it is now: who was kept from running since the last turn neither goes on as before nor
    /// dates requests back.
    #[inline]
    fn may_be_short(&mut self) -> bool {
        let host = &mut self.host;
        let leads = !E::TRAITS.elects() && host.engine.standing() == Standing::Primary;
        if !leads || !self.rounds.expects_requests(host.now) {
            return false;
        }
        host.now = (host.clock)();
        !self.rounds.is_due(host.now)
    }

    /// The next turn is a whole one: before a sleep everything has to be looked at that could end it.
    pub fn look_around_next(&mut self) {
        self.rounds.expect_nothing();
    }

    /// The steps of a turn that come before requests. Returns how much there was to do.
    fn look_around(&mut self) -> usize {
        self.rounds.begin(self.host.now);
        let mut work = self.host.take_peer_events();
        work += self.take_datagrams();
        if !E::TRAITS.elects() {
            self.tend_membership();
        }
        let mut now = self.take_completions();
        work + usize::from(self.take_over(&mut now))
    }

    /// Tells the engine whether the view is active at `now`, which was read after all completions so far, and does what follows.
    fn advance(&mut self, now: Time) {
        let host = &mut self.host;
        host.dormant &= !host.core.is_member();
        if host.dormant {
            return;
        }
        let view = host.engine.view();
        let active = host.core.lease().active(view, now);
        if !E::TRAITS.elects() && host.engine.standing() == Standing::Primary {
            host.counters.add(Counter::ActiveChecks, 1);
            host.counters.add(Counter::InactiveChecks, u64::from(!active));
        }
        host.engine.advance(now, active.then_some(view), &mut host.fabric, &mut host.machine);
        host.take_engine_events();
    }

    fn tend_membership(&mut self) {
        let host = &mut self.host;
        // One thread for all: whoever gets here makes progress, and who hangs neither beats nor renews (TRAPS 9).
        host.core.tick(host.now, &mut host.fabric, true);
        host.take_membership_events();
    }

    /// When membership's next tick is due, where it comes after the engine.
    fn membership_due(&self) -> Time {
        membership_due(self.tended, self.busy, self.host.core.deadline())
    }

    /// Whether the engine has an election of its own, which is under way here or elsewhere as far as this process knows.
    fn is_electing(&self) -> bool {
        E::TRAITS.elects() && !self.host.dormant && self.host.engine.standing() == Standing::Backup { primary: None }
    }

    /// Takes the steps of an election that wait for nothing but the others' memory.
    fn go_on_electing(&mut self, now: &mut Time) {
        for _ in 0..ELECTION_STEPS {
            if !self.is_electing() || !self.has_completions() {
                return;
            }
            *now = self.take_completions();
            self.advance(*now);
        }
    }

    /// Asks the coordinators for those whose replies wait for that. What was executed in this turn came before.
    #[inline]
    fn check_by_quorum(&mut self, now: &mut Time) {
        let host = &mut self.host;
        if host.engine.check_by_quorum(*now, &mut host.core, &mut host.fabric) && self.has_completions() {
            *now = self.take_completions();
            let host = &mut self.host;
            host.engine.check_by_quorum(*now, &mut host.core, &mut host.fabric);
        }
    }

    /// Takes over as primary if that is due, as far as it can be done at once. Returns whether anything has moved.
    fn take_over(&mut self, now: &mut Time) -> bool {
        let mut moved = false;
        if E::TRAITS.elects() {
            return false;
        }
        // Once to begin; once more when the others' memory has answered; the rest is for later turns.
        for _ in 0..2 {
            let host = &self.host;
            if host.engine.standing() == Standing::Primary || !host.core.lease().active(host.engine.view(), *now) {
                break;
            }
            moved = true;
            self.advance(*now);
            if self.has_completions() {
                *now = self.take_completions();
            }
        }
        moved
    }

    /// Whether operations have completed that have not been handed out.
    fn has_completions(&mut self) -> bool {
        let Some(completion) = self.host.fabric.poll() else { return false };
        self.completions.push(completion);
        true
    }

    /// Whether something is under way that goes on by itself in the next turn: a takeover, proposals that wait for a backup's lane, or replies that wait for the
    /// coordinators. Who cannot reach those, so that its lease has run out, waits until something comes.
    fn is_busy(&self) -> bool {
        let host = &self.host;
        let active = || host.core.lease().active(host.engine.view(), host.now);
        match host.engine.standing() {
            Standing::Primary => host.engine.committed() != host.engine.last() || (host.engine.wants_round() && active()),
            // Its own election waits for what others write, which wakes it.
            _ if E::TRAITS.elects() => false,
            _ => active(),
        }
    }

    fn take_datagrams(&mut self) -> usize {
        let host = &mut self.host;
        for taken in 0..DATAGRAMS_A_TURN {
            let Some(from) = host.fabric.receive(&mut self.datagram) else { return taken };
            // Read after the datagram was there: what it tells was so before this moment.
            host.now = host.clock();
            host.core.handle_datagram(host.now, &mut host.fabric, from, &self.datagram);
            host.take_membership_events();
        }
        DATAGRAMS_A_TURN
    }

    /// Hands out completions until there are none. The time returned was read after the last of them had been there.
    fn take_completions(&mut self) -> Time {
        loop {
            while let Some(completion) = self.host.fabric.poll() {
                self.completions.push(completion);
            }
            // Later than every completion just taken, as membership and the engine ask.
            let now = self.host.clock();
            self.host.now = now;
            if self.completions.is_empty() {
                return now;
            }
            for at in 0..self.completions.len() {
                let completion = self.completions[at];
                let host = &mut self.host;
                if Component::Engine.owns(completion.token) {
                    host.engine.handle_completion(completion);
                } else if Component::Application.owns(completion.token) {
                    self.app.complete(host, completion);
                } else if Component::Founding.owns(completion.token) {
                    host.boards_read.push(completion);
                } else {
                    host.core.handle_completion(now, &mut host.fabric, completion);
                    host.take_membership_events();
                }
            }
            self.completions.clear();
            if !self.has_completions() {
                return now;
            }
        }
    }

    /// Where the engine elects: whoever waits for the others' permission, or has just done something as a follower, gives way to who waits for it, since
    /// they may share a core, and looks again at once. Who has given the permission halfway goes on first. `None`: the usual rest will do.
    pub fn makes_way(&self, turn: &Turn) -> Option<Rest> {
        if !E::TRAITS.elects() || self.host.engine.standing() == Standing::Primary {
            return None;
        }
        if self.host.engine.goes_on() {
            return Some(Rest::None);
        }
        let waits = self.asked.is_some_and(|asked| turn.now.since(asked) < PATIENCE_NS);
        (turn.worked || waits).then_some(Rest::Yield)
    }

    /// When the next turn is due at the latest, for who would rather sleep.
    pub fn deadline(&self) -> Time {
        let membership = if self.is_electing() { self.membership_due() } else { self.host.core.deadline() };
        let engine = if self.host.dormant { Time(u64::MAX) } else { self.host.engine.deadline() };
        membership.min(engine).min(self.app.deadline())
    }

    /// The end of this life, before its endpoint goes: the application learns that its clients are gone, and that nothing that waited will
    /// be released.
    pub fn end_life(&mut self) {
        self.host.dismiss_clients();
        self.app.end_life(&mut self.host);
        self.host.publish_counters();
    }
}

/// When membership is to have its tick, which it had last at `tended` and would have at `deadline` by itself; there has been other work since `busy`.
fn membership_due(tended: Time, busy: Option<Time>, deadline: Time) -> Time {
    match busy {
        Some(since) => tended.max(since).after(PATIENCE_NS),
        None => tended.after(PATIENCE_NS).min(deadline),
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
    use martlet_protocol::replica::{NoState, Replica};

    use super::*;
    use crate::counters::Counters;

    #[test]
    fn turns_are_short_only_between_requests_and_never_for_long() {
        let mut rounds = Rounds::default();
        let start = 1_000_000;
        assert!(rounds.is_due(Time(start)), "nobody has asked for anything");
        rounds.begin(Time(start));
        rounds.expect_requests(Time(start + 100));
        assert!(!rounds.is_due(Time(start + 200)));
        assert!(!rounds.is_due(Time(start + SHORT_TURNS_NS - 1)));
        assert!(rounds.is_due(Time(start + SHORT_TURNS_NS)), "however many requests there are");
        rounds.begin(Time(start + 100 + EXPECTS_REQUESTS_NS - 1));
        assert!(!rounds.is_due(Time(start + 100 + EXPECTS_REQUESTS_NS - 1)));
        assert!(rounds.is_due(Time(start + 100 + EXPECTS_REQUESTS_NS)), "they have stopped coming");
    }

    #[test]
    fn membership_comes_after_an_election_and_before_long() {
        let (tended, woken) = (Time(1_000_000), Time(50_000_000));
        let deadline = Time(2_000_000);
        assert_eq!(membership_due(tended, None, deadline), deadline, "there is nothing else to do");
        assert_eq!(membership_due(tended, Some(woken), deadline), woken.after(PATIENCE_NS), "who is woken by a death sees to that first");
        let again = woken.after(PATIENCE_NS);
        assert_eq!(membership_due(again, Some(woken), deadline), again.after(PATIENCE_NS), "however long the work lasts");
    }

    /// Somebody asks it for something in each turn. Keeps what the time was then.
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

    /// A node that leads alone once it has had its first turns, and the endpoint of another process. Its clock stands still.
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
        let mut host = Host::new(me, fabric, core, PrimaryBackup::new(me, config), machine, Counters::default(), clock);
        host.core.bootstrap(clock(), &mut host.fabric);
        host.take_membership_events();
        (Agent::new(host, app), other)
    }

    /// One that is asked for something all the time.
    fn busy() -> (Agent<ShmFabric, PrimaryBackup, Asked>, ShmFabric) {
        let (mut agent, other) = alone(Asked(Time(0)), NoState);
        for _ in 0..8 {
            agent.turn();
        }
        assert_eq!(agent.host.engine.standing(), Standing::Primary);
        (agent, other)
    }

    #[test]
    fn who_is_busy_shows_its_counters_before_long_however_few_turns_it_takes() {
        let (mut agent, _other) = busy();
        let shown = |agent: &Agent<ShmFabric, PrimaryBackup, Asked>| agent.host.counters.get(Counter::PublishedNs);
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
    fn who_leaves_shows_that() {
        let (mut agent, _other) = busy();
        let shown = |agent: &mut Agent<ShmFabric, PrimaryBackup, Asked>| {
            CLOCK.set(CLOCK.get() + PUBLICATION_NS);
            agent.turn();
            agent.host.counters.get(Counter::Standing)
        };
        assert_eq!(shown(&mut agent), 2);
        agent.host.leaving = true;
        assert_eq!(shown(&mut agent), 4);
        agent.host.excluded = true;
        assert_eq!(shown(&mut agent), 3, "the others have removed it");
    }

    fn received(agent: &Agent<ShmFabric, PrimaryBackup, Asked>) -> u64 {
        agent.host.fabric.datagram_counters().received
    }

    #[test]
    fn who_is_busy_hears_of_the_rest_before_long_and_before_it_sleeps() {
        let (mut agent, mut other) = busy();
        let mut say = || {
            while other.event().is_some() {}
            other.send(PeerId(1), b"whatever");
        };
        // The clock stands still: a whole turn was taken just now.
        let before = received(&agent);
        say();
        agent.turn();
        assert_eq!(received(&agent), before, "requests come first");
        // It was kept from running, or has only been busy.
        CLOCK.set(CLOCK.get() + SHORT_TURNS_NS);
        agent.turn();
        assert_eq!(received(&agent), before + 1);
        say();
        CLOCK.set(CLOCK.get() + SHORT_TURNS_NS - 1);
        agent.turn();
        assert_eq!(agent.app.0, clock(), "requests are dated as they come");
        assert_eq!(received(&agent), before + 1);
        agent.look_around_next();
        agent.turn();
        assert_eq!(received(&agent), before + 2, "what came before a sleep was announced would end no sleep");
    }
}
