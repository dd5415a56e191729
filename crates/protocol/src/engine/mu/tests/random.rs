//! Schedules drawn from a seed: kills, pauses, losses of leadership, joins and removals between any two operations, with writes torn, late, and in flight
//! across changes of permission.
//!
//! The world's oracle checks all along that no two commands are committed at one index, that entries are applied in order and once, that a new leader holds
//! everything acknowledged, and that released reads saw it. Then the faults end, and all processes have to catch up.

use fastrand::Rng;

use super::world::{Cluster, drawn, tiny_but};
use crate::basics::LogIndex;
use crate::engine::Engine as _;
use crate::engine::mu::{Event, Group};
use crate::replica::Execution;

const MAX_PROCESSES: usize = 9;
/// Schedules on each kind of fabric.
const SEEDS: u64 = 200;

struct Schedule<const HOST: bool> {
    rng: Rng,
    cluster: Cluster<HOST>,
    /// Faults per 10,000 turns.
    faults: u32,
    /// How often a leader was asked to hand over, and was about to.
    handed_over: usize,
}

/// What came of a schedule.
#[derive(Debug, Default)]
struct Tally {
    acknowledged: usize,
    reads: u64,
    led: usize,
    recovered: u64,
    learned: usize,
    changes: usize,
    aborted: usize,
    handed_over: usize,
}

impl<const HOST: bool> Schedule<HOST> {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let execution = if rng.bool() { Execution::Committed } else { Execution::Speculative };
        let config = tiny_but(|config| (config.execution, config.leader_stays) = (execution, seed.is_multiple_of(4)));
        let replicas = [1, 3, 3, 3, 5][rng.usize(0..5)];
        let cluster = Cluster::in_world(seed, replicas, config, drawn(seed));
        let faults = [0, 10, 30, 100][rng.usize(0..4)];
        Schedule { rng, cluster, faults, handed_over: 0 }
    }

    /// The most recent group that any process knows.
    fn group(&self) -> Group {
        let nodes = self.cluster.nodes.iter().filter(|n| n.engine.group().is_some());
        nodes.max_by_key(|n| (n.engine.ballot(), n.engine.last())).and_then(|n| n.engine.group().cloned()).expect("somebody founded it")
    }

    /// Whether enough would be left without `victim`: of the most recent group known to any process and of every other process's group, also if the victim is
    /// just being added.
    fn can_lose(&self, victim: usize) -> bool {
        let nodes = &self.cluster.nodes;
        let id = nodes[victim].id;
        let enough = |group: &Group| {
            let group = &group.with(id).unwrap_or(group.clone());
            let able = nodes.iter().enumerate().filter(|(n, node)| {
                *n != victim && node.alive && group.contains(node.id) && node.engine.is_complete() && !self.cluster.world.is_paused(*n)
            });
            able.count() >= group.majority()
        };
        enough(&self.group()) && nodes.iter().filter(|n| n.alive).filter_map(|n| n.engine.group()).all(enough)
    }

    fn somebody(&mut self) -> usize {
        match self.cluster.leader() {
            Some(leader) if self.rng.u8(0..3) == 0 => leader,
            _ => self.rng.usize(0..self.cluster.nodes.len()),
        }
    }

    fn fault(&mut self) {
        let n = self.somebody();
        match self.rng.u8(0..9) {
            0..2 if self.can_lose(n) && self.cluster.nodes[n].alive => self.cluster.kill(n),
            2..5 if self.cluster.world.is_paused(n) => self.cluster.world.resume(n),
            2..5 if self.can_lose(n) => self.cluster.world.pause(n),
            5 if self.rng.bool() => self.cluster.nodes[n].engine.step_down(),
            5 => {
                let to = self.rng.bool().then(|| self.cluster.nodes[self.rng.usize(0..self.cluster.nodes.len())].id.node);
                self.handed_over += usize::from(self.cluster.nodes[n].engine.hand_over(to).is_ok());
            }
            6 if self.cluster.nodes.len() < MAX_PROCESSES => {
                self.cluster.spawn(None);
            }
            7 => self.wish_for_changes(),
            _ => {
                for n in 0..self.cluster.nodes.len() {
                    if self.cluster.world.is_paused(n) && self.rng.bool() {
                        self.cluster.world.resume(n);
                    }
                }
            }
        }
    }

    /// The leader is told that dead processes are to be removed, and the others added.
    fn wish_for_changes(&mut self) {
        let Some(leader) = self.cluster.leader() else { return };
        for n in 0..self.cluster.nodes.len() {
            let node = &self.cluster.nodes[n];
            let (alive, id) = (node.alive, node.id);
            let engine = &mut self.cluster.nodes[leader].engine;
            if alive { engine.add(id) } else { engine.remove(id) }
        }
    }

    fn step(&mut self, limit: u64) -> bool {
        let Some(n) = self.cluster.world.next_turn(limit) else { return false };
        if self.cluster.nodes[n].alive {
            match self.rng.u8(0..8) {
                0..4 => {
                    self.cluster.padding = if self.rng.u8(0..8) == 0 { self.rng.usize(0..380) } else { self.rng.usize(0..40) };
                    for _ in 0..self.rng.u8(1..5) {
                        self.cluster.write(n);
                    }
                }
                4 => self.cluster.read(n),
                _ => {}
            }
            self.cluster.begin_turn(n);
            if self.rng.u32(0..10_000) < self.faults {
                self.fault();
            }
            if !self.cluster.world.is_paused(n) {
                self.cluster.end_turn(n);
            }
        }
        if self.rng.u32(0..10_000) < self.faults {
            self.fault();
        }
        true
    }

    /// No more faults: the remaining processes have to catch up, and to take another write.
    fn settle(&mut self) {
        for n in 0..self.cluster.nodes.len() {
            self.cluster.world.resume(n);
            self.cluster.world.wake(n);
        }
        self.cluster.world.set_faults(martlet_fabric::sim::Faults::calm());
        let mut wrote: Option<LogIndex> = None;
        for round in 0.. {
            assert!(round < 400, "the survivors do not come level: {}", self.describe());
            self.cluster.run(100_000);
            match wrote {
                Some(index) if self.cluster.acknowledged.contains_key(&index) && self.cluster.is_level() => break,
                Some(index) if self.cluster.leader().is_some_and(|l| self.cluster.nodes[l].engine.committed() >= index) => {
                    // Another leader may have lost it: not acknowledged, not promised.
                    if !self.cluster.acknowledged.contains_key(&index) {
                        wrote = None;
                    }
                }
                Some(_) => {
                    if round % 20 == 0 {
                        wrote = None;
                    }
                }
                None => wrote = self.cluster.leader().and_then(|l| self.cluster.write(l)),
            }
        }
        self.cluster.assert_level();
    }

    fn describe(&self) -> String {
        let mut out = String::new();
        for (n, node) in self.cluster.nodes.iter().enumerate() {
            let e = &node.engine;
            out += &format!(
                "\n{n}: alive {} paused {} {:?} complete {} ballot {:x} last {} committed {} applied {} leader {:?} group {:?}\n   {:?}",
                node.alive,
                self.cluster.world.is_paused(n),
                e.standing(),
                e.is_complete(),
                e.ballot(),
                e.last(),
                e.committed(),
                e.applied(),
                e.leader(),
                e.group().map(|g| g.members().iter().map(|m| m.node.0).collect::<Vec<_>>()),
                &node.events[node.events.len().saturating_sub(8)..]
            );
        }
        out
    }
}

fn run<const HOST: bool>(seed: u64, steps: usize, tally: &mut Tally) {
    struct Name(u64, bool);
    impl Drop for Name {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("failing seed: {} (host: {})", self.0, self.1);
            }
        }
    }
    let _name = Name(seed, HOST);
    let mut schedule = Schedule::<HOST>::new(seed);
    let limit = 1_000_000_000;
    for _ in 0..steps {
        if !schedule.step(limit) {
            break;
        }
    }
    schedule.settle();
    let cluster = &schedule.cluster;
    tally.acknowledged += cluster.acknowledged.len();
    tally.reads += cluster.reads();
    tally.handed_over += schedule.handed_over;
    for event in cluster.nodes.iter().flat_map(|n| &n.events) {
        match event {
            Event::Led { recovered, .. } => {
                tally.led += 1;
                tally.recovered += recovered;
            }
            Event::Learned { .. } => tally.learned += 1,
            Event::GroupChanged { .. } => tally.changes += 1,
            Event::Aborted { .. } => tally.aborted += 1,
            _ => {}
        }
    }
}

fn seeds<const HOST: bool>() {
    let mut tally = Tally::default();
    for seed in 0..SEEDS {
        run::<HOST>(seed, 4000, &mut tally);
    }
    // The schedules have to do what they are for.
    eprintln!("{tally:?}");
    let Tally { acknowledged, reads, led, recovered, learned, changes, aborted, handed_over } = tally;
    assert!(acknowledged > 100 * SEEDS as usize && reads > 10 * SEEDS && led > SEEDS as usize && aborted > SEEDS as usize);
    assert!(recovered > SEEDS && learned > SEEDS as usize / 2 && changes > SEEDS as usize / 4);
    assert!(handed_over > SEEDS as usize / 4);
}

#[test]
fn nothing_acknowledged_is_lost_in_any_schedule_on_shared_memory() {
    seeds::<true>();
}

#[test]
fn nothing_acknowledged_is_lost_in_any_schedule_on_a_network() {
    seeds::<false>();
}
