//! Schedules drawn from a seed: crashes, pauses, evictions and joins at every step of every turn, writes torn and late.
//!
//! The world's oracle checks all along that no two commands are vouched for at one index, that entries are applied in order and once, that a new primary holds
//! everything acknowledged, and that released reads saw a state that existed. Then the faults end, and all processes have to catch up.

use martlet_fabric::PeerId;

use super::world::{World, WorldOf, peer, tiny};
use crate::engine::Engine as _;
use crate::engine::hsuc::ByAcknowledgement;
use crate::engine::huc::ByBroadcast;
use crate::engine::view_log::{Config, Event, Rule};
use crate::membership::Roles;
use crate::replica::{Execution, Standing};

const MAX_PROCESSES: usize = 9;

struct Schedule<R: Rule> {
    rng: fastrand::Rng,
    world: WorldOf<R>,
    /// Events already looked at, for each process.
    seen: Vec<usize>,
    promotions: Vec<(usize, usize)>,
    drops: Vec<usize>,
    zombies: bool,
    /// Processes that take no steps at present.
    paused: Vec<bool>,
    /// Faults and changes of view in 10,000 steps.
    faults: u32,
}

impl<R: Rule> Schedule<R> {
    fn new(seed: u64, execution: Execution, clocks_lie: bool) -> Schedule<R> {
        let mut rng = fastrand::Rng::with_seed(seed);
        let config = Config {
            log_ring_bytes: 512 << rng.usize(0..4),
            backlog_bytes: rng.usize(500..6000),
            learner_overruns: rng.u32(0..20),
            drain_budget_bytes: rng.usize(1..2000),
            transfer_budget_bytes: rng.usize(1..600),
            nudge_entries: rng.u32(1..20),
            flush_idle_ns: rng.u64(0..200),
            execution,
            ..tiny()
        };
        let replicas = rng.usize(1..4);
        let mut world = WorldOf::new(replicas, config);
        world.clocks_lie = clocks_lie;
        let immediate = rng.bool();
        for process in &mut world.processes {
            process.fabric.immediate = immediate;
        }
        let zombies = rng.bool();
        let faults = rng.u32(5..150);
        Schedule {
            faults,
            rng,
            world,
            seen: vec![0; replicas],
            promotions: Vec::new(),
            drops: Vec::new(),
            zombies,
            paused: vec![false; replicas],
        }
    }

    fn any(&mut self) -> usize {
        self.rng.usize(0..self.world.processes.len())
    }

    fn spawn(&mut self) -> usize {
        let immediate = self.world.processes[0].fabric.immediate;
        let p = self.world.spawn();
        self.world.processes[p].fabric.immediate = immediate;
        for q in 0..p {
            if !self.zombies && !self.world.processes[q].alive {
                self.world.processes[p].fabric.lose(peer(q));
            }
        }
        self.seen.push(0);
        self.paused.push(false);
        p
    }

    /// Whether, without `p`, some living process holds, or will hold, the state in the latest view.
    fn spares(&self, p: usize) -> bool {
        self.world.members().iter().any(|(q, roles)| *q != p && roles.has(Roles::REPLICA) && self.world.processes[*q].alive)
    }

    fn crash(&mut self, p: usize) {
        if !self.world.processes[p].alive || !self.spares(p) {
            return;
        }
        self.world.crash(p);
        if self.rng.bool() {
            // A part of what it had posted was never sent.
            self.deliver(p);
            self.world.processes[p].fabric.drop_in_flight();
        }
        if !self.zombies {
            for q in 0..self.world.processes.len() {
                self.world.processes[q].fabric.lose(peer(p));
            }
        }
    }

    fn deliver(&mut self, p: usize) {
        let to: Vec<PeerId> = self.world.processes[p].fabric.peers_in_flight();
        if let Some(to) = self.rng.choice(to) {
            let words = if self.rng.u8(0..4) == 0 { usize::MAX } else { self.rng.usize(1..60) };
            self.world.processes[p].fabric.deliver(to, words);
        }
    }

    fn collect_events(&mut self) {
        for p in 0..self.world.processes.len() {
            for event in &self.world.processes[p].events[self.seen[p]..] {
                match event {
                    Event::CaughtUp(process) => self.promotions.push((p, self.world.index_of(*process))),
                    Event::Drop { process, .. } => self.drops.push(self.world.index_of(*process)),
                    Event::LaneFault { peer, fault, .. } => panic!("process {p} found fault with {peer:?}: {fault}"),
                    Event::Unfit => panic!("process {p} was made primary without holding the state"),
                    Event::Unteachable { .. } => unreachable!("nobody sprawls"),
                    Event::AskedPermission | Event::Permitted | Event::SteppedDown => unreachable!("a primary is made by views"),
                    Event::Forget(_) | Event::TookOver { .. } => {}
                }
            }
            self.seen[p] = self.world.processes[p].events.len();
        }
    }

    /// The membership service decides one view, with one change or several.
    fn decide(&mut self, evict: bool, join: bool) {
        self.collect_events();
        let mut members = self.world.members();
        let primary = members.iter().find(|(_, r)| r.has(Roles::REPLICA)).map(|(p, _)| *p);
        // A promotion counts only if its asker is still primary.
        for (asker, learner) in std::mem::take(&mut self.promotions) {
            if primary == Some(asker) && members.contains(&(learner, Roles::LEARNER)) {
                // Last, so that it comes after every replica: a primary stays primary.
                members.retain(|(p, _)| *p != learner);
                members.push((learner, Roles::REPLICA));
            }
        }
        for learner in std::mem::take(&mut self.drops) {
            members.retain(|(p, roles)| *p != learner || roles.has(Roles::REPLICA));
        }
        let alive = |p: usize, world: &WorldOf<R>| world.processes[p].alive;
        let keep_dead = evict && self.rng.u8(0..4) == 0;
        members.retain(|(p, _)| keep_dead || alive(*p, &self.world));
        if evict && !members.is_empty() {
            let out = self.rng.usize(0..members.len());
            let rest_lives =
                members.iter().enumerate().any(|(i, (p, roles))| i != out && roles.has(Roles::REPLICA) && alive(*p, &self.world));
            if rest_lives {
                members.remove(out);
            }
        }
        if join && self.world.processes.len() < MAX_PROCESSES {
            let p = self.spawn();
            members.push((p, Roles::LEARNER));
        }
        self.world.decide(&members);
    }

    /// Usually a process with something to do: the primary of the latest view, or another process in it.
    fn somebody(&mut self) -> usize {
        match self.rng.u8(0..4) {
            0 => self.any(),
            1 => self.world.members()[0].0,
            _ => {
                let members = self.world.members();
                members[self.rng.usize(0..members.len())].0
            }
        }
    }

    fn step(&mut self) {
        if self.rng.u32(0..10_000) < self.faults {
            match self.rng.u8(0..8) {
                0 => {
                    let p = self.any();
                    self.paused[p] = !self.paused[p];
                }
                1..3 => {
                    let p = self.somebody();
                    self.crash(p);
                }
                3 => self.decide(true, false),
                4..6 => self.decide(false, true),
                _ => self.decide(false, false),
            }
            return;
        }
        match self.rng.u32(0..100) {
            0..55 => {
                let p = self.somebody();
                if !self.paused[p] {
                    self.world.step(p);
                }
            }
            55..75 => {
                let p = self.any();
                self.deliver(p);
            }
            75..90 => {
                let p = self.somebody();
                if self.world.processes[p].step == 0 && self.world.processes[p].alive {
                    if self.rng.u8(0..4) == 0 {
                        if !self.world.clocks_lie {
                            self.world.read(p);
                        }
                    } else {
                        let padding = if self.rng.u8(0..8) == 0 { self.rng.usize(0..1500) } else { self.rng.usize(0..40) };
                        let key = self.rng.u8(0..40);
                        self.world.write(p, key, padding);
                    }
                }
            }
            90..94 => {
                let p = self.somebody();
                self.world.learn(p);
            }
            94..98 => {
                let (p, q) = (self.any(), self.any());
                self.world.connect(p, q);
                if !self.world.processes[q].alive && self.rng.bool() {
                    self.world.processes[p].engine.handle_peer_gone(peer(q), false);
                }
            }
            98 => {
                self.collect_events();
                if !self.promotions.is_empty() || !self.drops.is_empty() {
                    self.decide(false, false);
                }
            }
            _ => self.world.activate(),
        }
    }

    /// No more faults: the remaining processes, learners included, have to catch up, and to take another write.
    fn settle(&mut self) {
        let wrote = self.world.next_id;
        for round in 0.. {
            assert!(round < 600, "the survivors do not come level");
            for p in 0..self.world.processes.len() {
                self.paused[p] = false;
                for q in 0..self.world.processes.len() {
                    self.world.connect(p, q);
                    if !self.world.processes[q].alive {
                        self.world.processes[p].engine.handle_peer_gone(peer(q), false);
                    }
                }
            }
            self.collect_events();
            let dead = self.world.members().iter().any(|(p, _)| !self.world.processes[*p].alive);
            if dead || !self.promotions.is_empty() || !self.drops.is_empty() {
                self.decide(false, false);
            }
            for p in 0..self.world.processes.len() {
                self.world.learn(p);
            }
            self.world.activate();
            self.world.run(3);
            let members = self.world.members();
            let Some((primary, _)) = members.iter().find(|(_, r)| r.has(Roles::REPLICA)) else { panic!("a view without replicas") };
            let learners = members.iter().any(|(_, r)| r.has(Roles::LEARNER));
            if self.world.processes[*primary].engine.standing() != Standing::Primary || learners {
                continue;
            }
            if self.world.next_id == wrote {
                self.world.write(*primary, 1, 3);
                continue;
            }
            let last = self.world.processes[*primary].engine.last();
            let level = members.iter().all(|(p, _)| self.world.processes[*p].engine.applied() == last);
            if level && self.world.processes[*primary].engine.committed() == last {
                break;
            }
        }
        self.world.assert_level();
    }
}

fn run<R: Rule>(seed: u64, execution: Execution, clocks_lie: bool) -> WorldOf<R> {
    const STEPS: usize = 3000;
    struct Name(u64);
    impl Drop for Name {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("failing seed: {}", self.0);
            }
        }
    }
    let _name = Name(seed);
    let mut schedule = Schedule::new(seed, execution, clocks_lie);
    for _ in 0..STEPS {
        schedule.step();
    }
    schedule.collect_events();
    schedule.settle();
    schedule.world
}

#[test]
fn nothing_acknowledged_is_lost_in_any_of_thousands_of_schedules() {
    live((0..4000).map(|seed| -> World { run(seed, Execution::Speculative, false) }), 4000);
}

/// FiDe's HSUC: nothing counts but what all have acknowledged.
#[test]
fn nothing_acknowledged_is_lost_where_replicas_acknowledge() {
    let run = |execution| (0..1000).map(move |seed| -> WorldOf<ByAcknowledgement> { run(seed, execution, false) });
    live(run(Execution::Speculative), 1000);
    live(run(Execution::Committed), 1000);
}

/// FiDe's HUC: what is in all memories counts, and only then is executed.
#[test]
fn nothing_acknowledged_is_lost_where_leaders_execute_what_stands_everywhere() {
    live((0..1000).map(|seed| -> WorldOf<ByBroadcast> { run(seed, Execution::Committed, false) }), 1000);
}

/// HSUC decides by acknowledgements alone, without any lease. Only reads depend on leases, and there are none here.
#[test]
fn nothing_acknowledged_is_lost_where_replicas_acknowledge_and_clocks_lie() {
    for execution in Execution::ALL {
        let worlds = (0..1000).map(|seed| -> WorldOf<ByAcknowledgement> { run(seed, execution, true) });
        let acknowledged: usize = worlds.map(|world| world.acknowledged.len()).sum();
        assert!(acknowledged > 12_500, "{acknowledged} acknowledged");
    }
}

/// Runs so many of them, and checks that they exercise what they are meant to.
fn live<R: Rule>(worlds: impl Iterator<Item = WorldOf<R>>, lives: usize) {
    let (mut acknowledged, mut takeovers, mut recovered, mut learned, mut reads) = (0, 0, 0, 0, 0);
    for world in worlds {
        acknowledged += world.acknowledged.len();
        reads += world.reads;
        for event in world.processes.iter().flat_map(|p| &p.events) {
            match event {
                Event::TookOver { recovered: n, .. } => {
                    takeovers += 1;
                    recovered += n;
                }
                Event::CaughtUp(_) => learned += 1,
                _ => {}
            }
        }
    }
    eprintln!("{acknowledged} acknowledged, {reads} reads, {takeovers} takeovers, {recovered} recovered, {learned} learned");
    let share = |of_4000: usize| of_4000 * lives / 4000;
    assert!(acknowledged > share(50_000) && reads > share(20_000) as u64 && takeovers > share(5_000));
    assert!(recovered > share(1_000) as u64 && learned > share(4_000));
}
