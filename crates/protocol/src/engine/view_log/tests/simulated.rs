//! The engine on the simulated fabric, which has the promises and delays of the real ones.

use fastrand::Rng;
use martlet_fabric::sim::{Endpoint, Faults, World};
use martlet_fabric::{Fabric, Identity, Incarnation, NodeId, PeerEvent, PeerKind, RegionSpec, ring};

use super::world::tiny;
use crate::basics::layout::LOG_LANE;
use crate::basics::{LogIndex, ProcessId, Time, ViewNumber};
use crate::engine::Engine as _;
use crate::engine::PrimaryBackup;
use crate::engine::test_cluster::{Machine, command};
use crate::engine::view_log::{Config, Event};
use crate::membership::{Member, Roles, View};
use crate::replica::{Standing, StateMachine, Ticket};

struct Node<const HOST: bool> {
    id: ProcessId,
    engine: PrimaryBackup,
    fabric: Endpoint<HOST>,
    machine: Machine,
    waiting: Vec<(u64, Ticket, LogIndex)>,
}

struct Cluster<const HOST: bool> {
    world: World<HOST>,
    config: Config,
    nodes: Vec<Node<HOST>>,
    view: View,
    acknowledged: LogIndex,
    next_id: u64,
    caught_up: Vec<ProcessId>,
}

impl<const HOST: bool> Cluster<HOST> {
    fn new(seed: u64) -> Self {
        let world = World::new(seed, Faults::drawn(&mut Rng::with_seed(seed)));
        // The ring has to hold what the primary writes while a learner's progress report is on its way; otherwise the log overruns every learner.
        let config = Config { log_ring_bytes: 16 << 10, nudge_gap_ns: 20_000, ask_gap_ns: 20_000, flush_idle_ns: 20_000, ..tiny() };
        let view = View {
            number: ViewNumber(0),
            lease_ns: 1,
            fence_ns: 1,
            compatible: false,
            level: 1,
            members: Vec::new(),
            departed: Vec::new(),
        };
        Cluster { world, config, nodes: Vec::new(), view, acknowledged: LogIndex(0), next_id: 1, caught_up: Vec::new() }
    }

    fn spawn(&mut self, roles: Roles) {
        let n = self.nodes.len();
        let id = ProcessId { node: NodeId(n as u16), incarnation: Incarnation(1) };
        let lanes = vec![(LOG_LANE, ring::lane_bytes(self.config.log_ring_bytes))];
        let spec = RegionSpec { member_lanes: lanes, ..RegionSpec::default() };
        let identity = Identity { node: id.node, incarnation: id.incarnation, kind: PeerKind::Member };
        let (index, fabric) = self.world.spawn(identity, &spec);
        assert_eq!(index, n);
        let engine = PrimaryBackup::new(id, self.config);
        self.nodes.push(Node { id, engine, fabric, machine: Machine::default(), waiting: Vec::new() });
        self.view.members.push(Member::new(id, roles));
    }

    /// The members as listed now become the next view, which is active and known to all.
    fn decide(&mut self) {
        self.view.number = self.view.number.next();
        for node in &mut self.nodes {
            node.engine.handle_view(&self.view);
        }
    }

    fn kill(&mut self, n: usize) {
        self.world.kill(n, None);
        let id = self.nodes[n].id;
        self.view.members.retain(|m| m.id != id);
        self.decide();
    }

    fn turn(&mut self, n: usize, writes: bool) {
        let now = Time(self.world.now());
        self.world.wake_at(n, now.0 + 5_000);
        let node = &mut self.nodes[n];
        while let Some(event) = node.fabric.event() {
            match event {
                PeerEvent::Up { peer, identity } => {
                    node.engine.handle_peer_up(
                        peer,
                        ProcessId { node: identity.node, incarnation: identity.incarnation },
                        &mut node.fabric,
                    );
                }
                PeerEvent::Gone { peer, certain } => node.engine.handle_peer_gone(peer, certain),
            }
        }
        if writes && node.engine.standing() == Standing::Primary && node.engine.has_room(100) {
            let command = command(self.next_id, self.next_id as u8, (self.next_id % 300) as usize);
            self.next_id += 1;
            node.machine.chain(&command);
            let index = node.engine.propose(&command).expect("it leads");
            node.waiting.push((node.engine.reign(), node.engine.ticket(), index));
        }
        node.engine.post(now, &mut node.fabric, &mut node.machine);
        while let Some(completion) = node.fabric.poll() {
            node.engine.handle_completion(completion);
        }
        node.engine.advance(now, Some(self.view.number), &mut node.fabric, &mut node.machine);
        while let Some(event) = node.engine.poll_event() {
            match event {
                Event::CaughtUp(process) => self.caught_up.push(process),
                Event::Forget(peer) => node.fabric.forget(peer),
                Event::TookOver { .. } => {
                    assert!(node.engine.last() >= self.acknowledged, "{:?} was acknowledged and is lost", self.acknowledged);
                }
                other => panic!("{other:?}"),
            }
        }
        let (reign, released) = (node.engine.reign(), node.engine.released());
        for (_, _, index) in node.waiting.extract_if(.., |(r, t, _)| *r == reign && *t <= released) {
            assert!(index > self.acknowledged);
            self.acknowledged = index;
        }
    }

    /// Turns of the processes that the world names, until `done`.
    fn until(&mut self, writes: bool, what: &str, done: impl Fn(&Self) -> bool) {
        for _ in 0..200_000 {
            if done(self) {
                return;
            }
            let Some(n) = self.world.next_turn(self.world.now() + 100_000) else {
                for n in 0..self.nodes.len() {
                    self.world.wake(n);
                }
                continue;
            };
            self.turn(n, writes);
        }
        panic!("never: {what}");
    }
}

/// Three replicas under load: the primary is killed, a new process joins, then the next primary is killed, and then the one after it.
fn three_failovers<const HOST: bool>(seed: u64) -> u64 {
    let mut cluster = Cluster::<HOST>::new(seed);
    for _ in 0..3 {
        cluster.spawn(Roles::REPLICA);
    }
    cluster.decide();
    for n in 0..3 {
        cluster.world.wake(n);
    }
    for primary in 0..3 {
        let target = LogIndex(cluster.acknowledged.0 + 30 + seed % 7);
        cluster.until(true, "writes are acknowledged", |c| c.acknowledged >= target);
        cluster.kill(primary);
        cluster.spawn(Roles::LEARNER);
        let joiner = cluster.nodes.len() - 1;
        cluster.decide();
        cluster.world.wake(joiner);
        let id = cluster.nodes[joiner].id;
        cluster.until(true, "the learner catches up", |c| c.caught_up.contains(&id));
        cluster.view.members.last_mut().expect("it was the last to join").roles = Roles::REPLICA;
        cluster.decide();
    }
    let live = 3..6;
    cluster.until(false, "all come level", |c| {
        let last = c.nodes[3].engine.last();
        live.clone().all(|n| c.nodes[n].engine.applied() == last && c.nodes[n].engine.committed() == last)
    });
    for n in 4..6 {
        assert_eq!(cluster.nodes[n].machine.digest(), cluster.nodes[3].machine.digest());
    }
    cluster.acknowledged.0
}

#[test]
fn three_failovers_and_joins_on_simulated_shared_memory() {
    for seed in 0..200 {
        assert!(three_failovers::<true>(seed) >= 90);
    }
}

#[test]
fn three_failovers_and_joins_on_a_simulated_network() {
    for seed in 0..200 {
        assert!(three_failovers::<false>(seed) >= 90);
    }
}
