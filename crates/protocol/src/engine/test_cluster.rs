//! Replicas of an engine on the simulated fabric, the list that they replicate, and what has been acknowledged by any of them: for the tests of engines with elections.

use std::collections::BTreeMap;

use martlet_fabric::primitive::Ordering;
use martlet_fabric::sim::{DeathWords, Endpoint, Faults, World};
use martlet_fabric::{Fabric, Identity, Incarnation, LocalRegion, Memory, NodeId, PeerEvent, PeerId, PeerKind, RegionName, RegionSpec};

use super::{Durable, Event};
use crate::basics::layout::{LIFE, MAX_WATCHERS, life};
use crate::basics::{LogIndex, ProcessId, Time};
use crate::detector::heartbeat::Thresholds;
use crate::replica::group::Group;
use crate::replica::journal::SnapshotStep;
use crate::replica::{Durability, Execution, Settings, Standing, StateMachine, Ticket, UnreadablePart};

/// What a cluster has to know of its engine, beside what all engines have in common.
pub trait Tested: Durable {
    /// What a process says of itself.
    const WORDS: RegionName;
    /// The lane in which a process's words to another one stand.
    const CONTROL_LANE: RegionName;

    /// Settings with [small](settings) rings and short timeouts.
    fn tiny() -> Self::Config;

    /// What an acknowledgement means with these settings.
    fn durability(_: &Self::Config) -> Durability {
        Durability::Memory
    }

    /// One that founds this group, or holds nothing.
    fn founder(me: ProcessId, config: Self::Config, group: Option<Group>) -> Self;

    /// The peer by which it knows a process, if they have met.
    fn met(&self, process: ProcessId) -> Option<PeerId>;

    /// How it stands.
    fn describe(&self) -> String;
}

/// Small rings and short timeouts.
pub fn settings() -> Settings {
    Settings {
        log_ring_bytes: 8192,
        state_ring_bytes: 8192,
        execution: Execution::Committed,
        backlog_bytes: 3000,
        batch_bytes: 200,
        flush_idle_ns: 10_000,
        nudge_records: 4,
        nudge_gap_ns: 2_000,
        heartbeat_interval_ns: 10_000,
        thresholds: Thresholds { cap: 6, failure: 1, recovery: 4 },
        background_ns: 1_000,
        fate_beats: 100,
        silence_ns: 1_000_000,
        stall_ns: 20_000,
        death_interval_ns: 4_000,
        teach_patience_ns: 1_000_000,
        transfer_budget_bytes: 1_000,
    }
}

/// All commands, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct List(pub Vec<(LogIndex, u64)>);

impl StateMachine for List {
    fn apply(&mut self, index: LogIndex, command: &[u8]) {
        assert!(self.0.last().is_none_or(|(last, _)| *last < index), "{index} after {:?}", self.0.last());
        self.0.push((index, u64::from_le_bytes(command[..8].try_into().expect("8 bytes"))));
    }

    fn transfer(&self, _: u64, _: usize, out: &mut Vec<u8>) -> Option<u64> {
        self.0.iter().for_each(|(index, id)| out.extend([index.0, *id].map(u64::to_le_bytes).as_flattened()));
        None
    }

    fn install(&mut self, part: &[u8]) -> Result<(), UnreadablePart> {
        let words: Vec<u64> = part.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
        self.0 = words.chunks_exact(2).map(|pair| (LogIndex(pair[0]), pair[1])).collect();
        Ok(())
    }

    fn clear(&mut self) {
        self.0.clear();
    }

    fn digest(&self) -> u64 {
        self.0.len() as u64
    }
}

/// A disk that brings what it is given in one sync, so long after it was handed over.
#[derive(Debug, Default)]
pub struct Disk {
    pub sync_ns: u64,
    ticket: u64,
    syncing: Option<(u64, u64)>,
    stable: u64,
    /// The whole snapshot's last ticket, once it is whole.
    whole: Option<u64>,
    begun: bool,
    pub snapshots: u32,
}

impl Disk {
    fn before(&mut self, now: u64, engine: &mut impl Durable) {
        if let Some((covers, _)) = self.syncing.filter(|(_, done)| *done <= now) {
            (self.stable, self.syncing) = (covers, None);
            engine.handle_stable(covers);
            if self.whole.is_some_and(|at| at <= covers) {
                (self.whole, self.begun) = (None, false);
                self.snapshots += 1;
                engine.handle_snapshot_stable();
            }
        }
    }

    fn take(&mut self, engine: &mut impl Durable) {
        if !engine.journal().is_empty() {
            self.ticket += 1;
            engine.note_taken(self.ticket);
        }
    }

    fn after(&mut self, now: u64, engine: &mut impl Durable, machine: &List, fabric: &Endpoint<true>) {
        self.take(engine);
        if !self.begun && engine.lacks_snapshot() && engine.begin_snapshot(fabric) {
            self.begun = true;
            self.take(engine);
        } else if self.begun && self.whole.is_none() {
            match engine.snapshot_step(machine, 1000, &mut Vec::new()) {
                SnapshotStep::Whole => {
                    self.take(engine);
                    self.ticket += 1;
                    self.whole = Some(self.ticket);
                }
                SnapshotStep::Void | SnapshotStep::TooLong(_) => self.begun = false,
                SnapshotStep::Part | SnapshotStep::Wait => {}
            }
        }
        if self.syncing.is_none() && self.ticket > self.stable {
            self.syncing = Some((self.ticket, now + self.sync_ns));
        }
    }
}

/// A reply: in which reign, for which ticket, and of a write its index and number.
type Waiting = (u64, Ticket, Option<(LogIndex, u64)>);

pub struct Node<E> {
    pub engine: E,
    pub fabric: Endpoint<true>,
    pub machine: List,
    pub disk: Option<Disk>,
    pub alive: bool,
    pub events: Vec<Event>,
    waiting: Vec<Waiting>,
    /// Reads that have been answered.
    pub reads: usize,
}

pub struct Cluster<E: Tested> {
    pub world: World<true>,
    pub nodes: Vec<Node<E>>,
    config: E::Config,
    next: u64,
    pub acknowledged: BTreeMap<LogIndex, u64>,
}

pub fn id(n: usize) -> ProcessId {
    ProcessId { node: NodeId(n as u16), incarnation: Incarnation(1 << 16) }
}

impl<E: Tested> Cluster<E> {
    /// So many founding members in a calm world.
    pub fn new(replicas: usize) -> Self {
        Cluster::with(replicas, E::tiny())
    }

    /// The same, with these settings.
    pub fn with(replicas: usize, config: E::Config) -> Self {
        let mut cluster =
            Cluster { world: World::new(1, Faults::calm()), nodes: Vec::new(), config, next: 1, acknowledged: BTreeMap::new() };
        let group = Group::new((0..replicas).map(id).collect());
        (0..replicas).for_each(|_| cluster.spawn(Some(group.clone())));
        cluster
    }

    pub fn spawn(&mut self, group: Option<Group>) {
        let n = self.nodes.len();
        let mut spec = RegionSpec::default();
        spec.own([(LIFE, life::WORDS * 8)]);
        E::add_regions(&mut spec, &self.config);
        let identity = Identity { node: id(n).node, incarnation: id(n).incarnation, kind: PeerKind::Member };
        let (index, fabric) = self.world.spawn(identity, &spec);
        assert_eq!(index, n);
        let signs = fabric.memory(LocalRegion::Public(LIFE)).expect("declared");
        signs[life::THREADS].store(1, Ordering::Relaxed);
        for watcher in 0..MAX_WATCHERS {
            signs[life::death(0, watcher)].store(life::WAITERS | 4711, Ordering::Relaxed);
        }
        let disk = (E::durability(&self.config) != Durability::Memory).then(|| Disk { sync_ns: 3_000, ..Disk::default() });
        self.nodes.push(Node {
            engine: E::founder(id(n), self.config, group),
            fabric,
            machine: List::default(),
            disk,
            alive: true,
            events: Vec::new(),
            waiting: Vec::new(),
            reads: 0,
        });
        self.world.wake(n);
    }

    pub fn kill(&mut self, n: usize) {
        let words = (0..MAX_WATCHERS).map(|watcher| life::death(0, watcher)).collect();
        self.world.kill(n, Some(DeathWords { region: LIFE, threads: vec![words] }));
        self.nodes[n].alive = false;
    }

    pub fn leads(&self, n: usize) -> bool {
        self.nodes[n].alive && self.nodes[n].engine.standing() == Standing::Primary
    }

    /// The leader of the latest reign.
    pub fn leader(&self) -> Option<usize> {
        (0..self.nodes.len()).filter(|n| self.leads(*n)).max_by_key(|n| self.nodes[*n].engine.fencing_token())
    }

    /// Proposes a command at `n`, which leads.
    pub fn propose(&mut self, n: usize) -> LogIndex {
        let node = &mut self.nodes[n];
        let index = node.engine.propose(&[&self.next.to_le_bytes()[..], &[7; 40]].concat()).expect("it leads");
        node.waiting.push((node.engine.reign(), node.engine.ticket(), Some((index, self.next))));
        self.next += 1;
        index
    }

    /// Asks for a read at `n`, which leads.
    pub fn read(&mut self, n: usize) {
        let node = &mut self.nodes[n];
        node.waiting.push((node.engine.reign(), node.engine.ticket(), None));
    }

    pub fn turn(&mut self, n: usize) {
        let now = Time(self.world.now());
        let Cluster { nodes, acknowledged, world, .. } = self;
        let node = &mut nodes[n];
        if !node.alive {
            return;
        }
        while let Some(event) = node.fabric.event() {
            match event {
                PeerEvent::Up { peer, identity } => {
                    let process = ProcessId { node: identity.node, incarnation: identity.incarnation };
                    node.engine.handle_peer_up(peer, process, &mut node.fabric);
                }
                PeerEvent::Gone { peer, certain } => node.engine.handle_peer_gone(peer, certain),
            }
        }
        if let Some(disk) = &mut node.disk {
            disk.before(now.0, &mut node.engine);
        }
        node.engine.post(now, &mut node.fabric, &mut node.machine);
        while let Some(completion) = node.fabric.poll() {
            node.engine.handle_completion(completion);
        }
        node.engine.advance(now, None, &mut node.fabric, &mut node.machine);
        while let Some(event) = node.engine.poll_event() {
            assert!(!matches!(event, Event::LaneFault { .. }), "{n}: {event:?}");
            node.events.push(event);
        }
        if let Some(disk) = &mut node.disk {
            disk.after(now.0, &mut node.engine, &node.machine, &node.fabric);
        }
        let (reign, released) = (node.engine.reign(), node.engine.released());
        node.waiting.retain(|(asked, ..)| *asked == reign);
        for (.., what) in node.waiting.extract_if(.., |(_, ticket, _)| *ticket <= released) {
            match what {
                Some((index, id)) => {
                    assert_eq!(acknowledged.insert(index, id), None, "two commands at {index}");
                    assert!(node.engine.committed() >= index);
                }
                None => node.reads += 1,
            }
        }
        let next = node.engine.deadline().0.clamp(now.0 + 500, now.0 + 5_000);
        world.wake_at(n, next);
    }

    /// Turns, until `done`.
    pub fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let limit = self.world.now() + 50_000_000;
        while !done(self) {
            match self.world.next_turn(limit) {
                Some(n) => self.turn(n),
                None => {
                    let all: Vec<String> = self.nodes.iter().map(|node| node.engine.describe()).collect();
                    panic!("never: {what}\n{}", all.join("\n"))
                }
            }
        }
    }

    /// Turns for so many nanoseconds.
    pub fn run(&mut self, ns: u64) {
        let limit = self.world.now() + ns;
        while let Some(n) = self.world.next_turn(limit) {
            self.turn(n);
        }
    }

    /// Turns until somebody leads, and returns which.
    pub fn until_led(&mut self) -> usize {
        self.until("a leader", |c| c.leader().is_some());
        self.leader().expect("just seen")
    }

    /// Two replicas do not reach each other any more.
    pub fn part(&mut self, one: usize, other: usize) {
        self.world.block(one, other);
        self.world.block(other, one);
    }

    /// Proposes a command at `n`, and turns until it is acknowledged.
    pub fn write(&mut self, n: usize) -> LogIndex {
        self.until("room", |c| c.leads(n) && c.nodes[n].engine.has_room(100));
        let index = self.propose(n);
        self.until("an answer", |c| c.acknowledged.contains_key(&index));
        index
    }

    /// The peer by which `of` knows `n`.
    pub fn peer(&self, of: usize, n: usize) -> PeerId {
        self.nodes[of].engine.met(id(n)).expect("they have met")
    }

    /// A word that `from` has written into the control lane of `to`.
    pub fn control(&self, to: usize, from: usize, word: usize) -> u64 {
        let lane = LocalRegion::Lane { writer: self.peer(to, from), name: E::CONTROL_LANE };
        self.memory(to, lane)[word].load(Ordering::Acquire)
    }

    /// What a replica says of itself.
    pub fn word(&self, n: usize, word: usize) -> u64 {
        self.memory(n, LocalRegion::Public(E::WORDS))[word].load(Ordering::Acquire)
    }

    pub fn memory(&self, n: usize, region: LocalRegion) -> &Memory {
        self.nodes[n].fabric.memory(region).expect("declared")
    }

    /// Whether all that live hold the same, and all that was acknowledged.
    pub fn is_level(&self) -> bool {
        let mut machines = self.nodes.iter().filter(|node| node.alive && node.engine.is_complete()).map(|node| &node.machine);
        let first = machines.next().expect("somebody lives");
        machines.all(|machine| machine == first) && self.acknowledged.iter().all(|(index, id)| first.0.contains(&(*index, *id)))
    }
}
