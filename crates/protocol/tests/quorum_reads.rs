//! Reads by quorum with `primary-backup` (uKharon section 5, Algorithm 6, and appendix B): membership and engine together, each process with its own clock.

use martlet_fabric::primitive::Ordering;
use martlet_fabric::sim::{Endpoint, Faults, World};
use martlet_fabric::{Fabric, Identity, Incarnation, LocalRegion, NodeId, PeerEvent, PeerKind};
use martlet_protocol::basics::layout::{Component, LIFE, MAX_WATCHERS, Sizes, life, regions};
use martlet_protocol::basics::{LogIndex, ProcessId, Time};
use martlet_protocol::engine::primary_backup::Config as EngineConfig;
use martlet_protocol::engine::{self, Engine, PrimaryBackup};
use martlet_protocol::membership::{Config, Core, Event, Roles};
use martlet_protocol::replica::{Standing, StateMachine, Ticket, UnreadablePart};

const LEASE_NS: u64 = 200_000;
const TURN_NS: u64 = 2_000;

/// A state machine that holds a number, which commands replace.
#[derive(Debug, Default)]
struct Register(u64);

impl StateMachine for Register {
    fn apply(&mut self, _: LogIndex, command: &[u8]) {
        self.0 = u64::from_le_bytes(command.try_into().expect("8 bytes"));
    }
    fn transfer(&self, _: u64, _: usize, out: &mut Vec<u8>) -> Option<u64> {
        out.extend_from_slice(&self.0.to_le_bytes());
        None
    }
    fn install(&mut self, part: &[u8]) -> Result<(), UnreadablePart> {
        self.0 = u64::from_le_bytes(part.try_into().map_err(|_| UnreadablePart)?);
        Ok(())
    }
    fn clear(&mut self) {
        self.0 = 0;
    }
    fn digest(&self) -> u64 {
        self.0
    }
}

struct Process<const HOST: bool> {
    index: usize,
    fabric: Endpoint<HOST>,
    core: Core,
    engine: PrimaryBackup,
    machine: Register,
    /// If set, the process's clock shows this time for ever.
    stopped_clock: Option<Time>,
    excluded: bool,
}

impl<const HOST: bool> Process<HOST> {
    fn clock(&self, world_now: u64) -> Time {
        self.stopped_clock.unwrap_or(Time(world_now))
    }

    fn take_completions(&mut self, now: u64) {
        while let Some(completion) = self.fabric.poll() {
            if Component::Engine.owns(completion.token) {
                self.engine.handle_completion(completion);
            } else {
                self.core.handle_completion(self.clock(now), &mut self.fabric, completion);
                self.take_views();
            }
        }
    }

    fn take_views(&mut self) {
        while let Some(event) = self.core.poll_event() {
            match event {
                Event::View(view) => self.engine.handle_view(&view),
                Event::Excluded => self.excluded = true,
                Event::Milestone(_) => {}
            }
        }
    }

    /// The steps of a turn that come before requests.
    fn look_around(&mut self, now: u64) {
        let clock = self.clock(now);
        while let Some(event) = self.fabric.event() {
            match event {
                PeerEvent::Up { peer, identity } => {
                    self.engine.handle_peer_up(
                        peer,
                        ProcessId { node: identity.node, incarnation: identity.incarnation },
                        &mut self.fabric,
                    );
                }
                PeerEvent::Gone { peer, certain } => self.engine.handle_peer_gone(peer, certain),
            }
            self.core.handle_peer(clock, &mut self.fabric, event);
            self.take_views();
        }
        let mut datagram = Vec::new();
        while let Some(from) = self.fabric.receive(&mut datagram) {
            self.core.handle_datagram(clock, &mut self.fabric, from, &datagram);
            self.take_views();
        }
        self.core.tick(clock, &mut self.fabric, true);
        self.take_views();
    }

    /// The rest of a turn. Between two whole turns, a busy primary's turns consist of this part alone.
    fn serve(&mut self, now: u64) {
        self.engine.post(self.clock(now), &mut self.fabric, &mut self.machine);
        self.take_completions(now);
        let (clock, view) = (self.clock(now), self.engine.view());
        let active = self.core.lease().active(view, clock).then_some(view);
        self.engine.advance(clock, active, &mut self.fabric, &mut self.machine);
        while let Some(event) = Engine::poll_event(&mut self.engine) {
            if let engine::Event::CaughtUp(process) = event {
                self.core.promote(clock, &mut self.fabric, process);
            }
        }
        self.engine.check_by_quorum(clock, &mut self.core, &mut self.fabric);
        self.take_completions(now);
        self.engine.check_by_quorum(clock, &mut self.core, &mut self.fabric);
    }

    /// Makes two reads at one moment, the second by quorum. Returns what they see and the tickets that they wait for.
    fn read(&mut self) -> (u64, Ticket, Ticket) {
        assert_eq!(self.engine.standing(), Standing::Primary);
        (self.machine.0, self.engine.ticket(), self.engine.ticket_by_quorum())
    }
}

struct Cluster<const HOST: bool> {
    world: World<HOST>,
    processes: Vec<Process<HOST>>,
    fences_departed: bool,
}

impl<const HOST: bool> Cluster<HOST> {
    /// One process for each role; the first founds the cluster. Returns when all are replicas, or nothing but coordinators.
    fn new(seed: u64, roles: &[Roles]) -> Self {
        Self::fencing(seed, roles, !HOST)
    }

    /// `fences_departed`: see the engine's setting.
    fn fencing(seed: u64, roles: &[Roles], fences_departed: bool) -> Self {
        let mut cluster = Cluster { world: World::new(seed, Faults::calm()), processes: Vec::new(), fences_departed };
        for roles in roles {
            cluster.start(*roles);
        }
        cluster.until("all are taken in and taught", |c| {
            c.processes
                .iter()
                .all(|p| p.core.view().is_some_and(|v| v.members.len() == roles.len() && v.with_roles(Roles::LEARNER).next().is_none()))
                && c.leader().is_some()
        });
        cluster
    }

    fn start(&mut self, roles: Roles) {
        let me = ProcessId { node: NodeId(self.processes.len() as u16), incarnation: Incarnation(1) };
        let identity = Identity { node: me.node, incarnation: me.incarnation, kind: PeerKind::Member };
        let engine_config = EngineConfig { log_ring_bytes: 16 << 10, fences_departed: self.fences_departed, ..EngineConfig::default() };
        let mut spec = regions(Sizes { log_ring_bytes: 16 << 10, client_ring_bytes: 256 });
        PrimaryBackup::add_regions(&mut spec, &engine_config);
        let (index, mut fabric) = self.world.spawn(identity, &spec);
        let words = fabric.memory(LocalRegion::Public(LIFE)).expect("offered");
        for watcher in 0..MAX_WATCHERS {
            words[life::death(0, watcher)].store(life::WAITERS | 1000, Ordering::SeqCst);
        }
        words[life::THREADS].store(1, Ordering::SeqCst);
        let config = Config {
            lease_ns: LEASE_NS,
            heartbeat_interval_ns: 50_000,
            broadcast_interval_ns: 100_000,
            broadcast_timeout_ns: 2_000_000,
            pull_interval_ns: 50_000,
            resend_interval_ns: 50_000,
            ..Config::new(me, roles)
        };
        let now = Time(self.world.now());
        let mut core = Core::new(now, config);
        if self.processes.is_empty() {
            core.bootstrap(now, &mut fabric);
        } else {
            core.join(now);
        }
        let engine = PrimaryBackup::new(me, engine_config);
        self.processes.push(Process { index, fabric, core, engine, machine: Register::default(), stopped_clock: None, excluded: false });
        let process = self.processes.last_mut().expect("just pushed");
        process.take_views();
        self.world.wake(index);
    }

    /// Gives every process its turns, until `done`.
    fn until(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        let end = self.world.now() + 100_000_000;
        while !done(self) {
            let Some(index) = self.world.next_turn(end) else { panic!("it does not come to this: {what}") };
            let now = self.world.now();
            if let Some(process) = self.processes.iter_mut().find(|p| p.index == index && !p.excluded) {
                process.look_around(now);
                process.take_completions(now);
                process.serve(now);
                self.world.wake_at(index, now + TURN_NS);
            }
        }
    }

    fn run(&mut self, ns: u64) {
        let end = self.world.now() + ns;
        self.until("time passes", |c| c.world.now() >= end);
    }

    /// The leader, among the processes that are not paused.
    fn leader(&self) -> Option<usize> {
        self.processes
            .iter()
            .position(|p| p.engine.standing() == Standing::Primary && !self.world.is_paused(p.index) && self.world.is_alive(p.index))
    }

    /// Has the leader write a value, and waits until it is acknowledged.
    fn write(&mut self, value: u64) {
        let leader = self.leader().expect("somebody leads");
        let process = &mut self.processes[leader];
        process.machine.0 = value;
        process.engine.propose(&value.to_le_bytes()).expect("it leads");
        let ticket = process.engine.ticket();
        self.until("a write is acknowledged", |c| c.processes[leader].engine.released() >= ticket);
    }

    /// Has the leader read by quorum.
    fn read_by_quorum(&mut self) -> u64 {
        let leader = self.leader().expect("somebody leads");
        let (seen, _, ticket) = self.processes[leader].read();
        self.until("a read by quorum is released", |c| c.processes[leader].engine.released_by_quorum() >= ticket);
        seen
    }

    fn now(&self) -> u64 {
        self.world.now()
    }
}

const BOTH: Roles = Roles::COORDINATOR.with(Roles::REPLICA);

fn reads_whoever_coordinates<const HOST: bool>(seed: u64) {
    // The second replica does not coordinate; it leads once the first has ended.
    let mut c = Cluster::<HOST>::new(seed, &[BOTH, Roles::REPLICA, Roles::COORDINATOR, Roles::COORDINATOR]);
    for value in 1..20 {
        c.write(value);
        assert_eq!(c.read_by_quorum(), value);
    }
    let first = c.leader().expect("the founder");
    assert_eq!(first, 0);
    c.world.kill(c.processes[first].index, None);
    c.processes[first].excluded = true;
    c.until("the other one leads", |c| c.leader() == Some(1));
    assert!(!c.processes[1].core.view().expect("it leads").coordinators().any(|m| m.id.node.0 == 1));
    for value in 20..40 {
        c.write(value);
        assert_eq!(c.read_by_quorum(), value);
    }
}

#[test]
fn section_5_one_that_leads_reads_by_quorum_whether_or_not_it_coordinates_on_a_host() {
    reads_whoever_coordinates::<true>(1);
}

#[test]
fn section_5_one_that_leads_reads_by_quorum_whether_or_not_it_coordinates_on_a_network() {
    reads_whoever_coordinates::<false>(2);
}

/// What reads by quorum are for. The leader is paused until another one leads and has acknowledged a write. Its clock stops too, as during a suspend that the
/// clock does not count. Under its lease it then returns a stale value. By quorum it returns nothing.
fn a_stopped_clock<const HOST: bool>(seed: u64) {
    let mut c = Cluster::<HOST>::new(seed, &[BOTH; 3]);
    c.write(1);
    c.run(LEASE_NS);
    let old = c.leader().expect("the founder");
    let now = c.now();
    assert!(c.processes[old].core.lease().active(c.processes[old].engine.view(), Time(now)));
    c.world.pause(c.processes[old].index);
    c.processes[old].stopped_clock = Some(Time(now));
    c.until("another one leads", |c| c.leader().is_some_and(|leader| leader != old));
    c.write(2);
    assert_eq!(c.read_by_quorum(), 2, "who leads now has its majority");

    c.world.resume(c.processes[old].index);
    let reign = c.processes[old].engine.reign();
    let (seen, by_lease, by_quorum) = c.processes[old].read();
    assert_eq!(seen, 1, "a value that another one has replaced");
    // Turns for requests only, in which it does not look at what the others say.
    for _ in 0..50 {
        let now = c.now();
        c.processes[old].serve(now);
        c.world.run_for(TURN_NS);
    }
    assert!(c.processes[old].engine.released() >= by_lease, "the lease, which its clock says to hold, lets a stale read through");
    // It has found the slot taken, and has looked for the view that was decided there.
    c.until("it hears that it is out", |c| c.processes[old].engine.reign() > reign);
    let engine = &c.processes[old].engine;
    assert!(engine.released_by_quorum() < by_quorum && !engine.wants_round(), "what waited is refused");
}

#[test]
fn trap_8_a_leader_whose_clock_stopped_hands_out_nothing_stale_by_quorum_though_it_does_under_its_lease_on_a_host() {
    a_stopped_clock::<true>(3);
}

#[test]
fn trap_8_a_leader_whose_clock_stopped_hands_out_nothing_stale_by_quorum_though_it_does_under_its_lease_on_a_network() {
    a_stopped_clock::<false>(4);
}

/// The leader is paused and its clock stops; another one leads, and has acknowledged a write. Then the first is asked for a write, in turns in which it does
/// not look at what the others say. Returns whether it acknowledges that write, and the value that the new leader holds.
fn a_stopped_clock_and_a_write(fences_departed: bool) -> (bool, u64) {
    let mut c = Cluster::<false>::fencing(7, &[BOTH; 3], fences_departed);
    c.write(1);
    c.run(LEASE_NS);
    let old = c.leader().expect("the founder");
    let now = c.now();
    c.world.pause(c.processes[old].index);
    c.processes[old].stopped_clock = Some(Time(now));
    c.until("another one leads", |c| c.leader().is_some_and(|leader| leader != old));
    let new = c.leader().expect("just seen");
    c.write(2);
    c.world.resume(c.processes[old].index);
    let process = &mut c.processes[old];
    process.machine.0 = 3;
    process.engine.propose(&3_u64.to_le_bytes()).expect("it takes itself for the leader");
    let ticket = process.engine.ticket();
    for _ in 0..50 {
        let now = c.now();
        c.processes[old].serve(now);
        c.world.run_for(TURN_NS);
    }
    let acknowledged = c.processes[old].engine.released() >= ticket;
    // The turns that the others should have had meanwhile were skipped, so wake them.
    c.processes.iter().for_each(|p| c.world.wake(p.index));
    c.run(10 * LEASE_NS);
    (acknowledged, c.processes[new].machine.0)
}

#[test]
fn trap_8_a_leader_whose_clock_stopped_acknowledges_no_write_that_its_successor_lacks() {
    assert_eq!(a_stopped_clock_and_a_write(true), (false, 2));
    assert_eq!(a_stopped_clock_and_a_write(false), (true, 2), "which is lost where its lane is left to it");
}

/// A round that was under way when a read was executed may have found the next slot empty, before another replica led.
#[test]
fn appendix_b_a_round_that_began_before_the_read_vouches_for_nothing() {
    let mut c = Cluster::<false>::new(5, &[BOTH; 3]);
    c.write(1);
    let leader = c.leader().expect("the founder");
    let (_, _, first) = c.processes[leader].read();
    let now = c.now();
    c.processes[leader].serve(now);
    let asked = c.processes[leader].core.renewals_by_majority();
    // The answers are still on their way.
    let (_, _, second) = c.processes[leader].read();
    c.until("the first is released", |c| c.processes[leader].engine.released_by_quorum() >= first);
    assert!(c.processes[leader].core.renewals_by_majority() > asked);
    assert!(c.processes[leader].engine.released() >= second, "under the lease it could go");
    assert!(c.processes[leader].engine.released_by_quorum() < second, "by quorum it needs a round of its own");
    c.until("so does the second", |c| c.processes[leader].engine.released_by_quorum() >= second);
}

/// Waiting reads share rounds: many of them cost hardly more than few.
#[test]
fn reads_of_one_moment_share_a_round() {
    let mut c = Cluster::<true>::new(6, &[BOTH; 3]);
    c.write(1);
    let leader = c.leader().expect("the founder");
    let before = c.processes[leader].core.renewals_by_majority();
    let tickets: Vec<Ticket> = (0..100).map(|_| c.processes[leader].read().2).collect();
    let now = c.now();
    c.processes[leader].serve(now);
    c.until("all are released", |c| tickets.iter().all(|t| *t <= c.processes[leader].engine.released_by_quorum()));
    assert!(c.processes[leader].core.renewals_by_majority() - before <= 2, "one, and perhaps one that the lease wanted");
}
