//! Replicas of an engine on the simulated fabric, and an oracle that knows what has been committed and acknowledged, for the tests of engines with elections.

mod disk;
mod machine;

use std::collections::BTreeMap;

use fastrand::Rng;
use martlet_fabric::primitive::Ordering;
use martlet_fabric::sim::{DeathWords, Endpoint, Faults, World};
use martlet_fabric::{Fabric, Identity, Incarnation, LocalRegion, Memory, NodeId, PeerEvent, PeerId, PeerKind, RegionName, RegionSpec};

pub use disk::{Disk, Stored};
pub use machine::{KEY_BYTES, Machine, command, id_of};

use super::{Durable, Event, Gathered};
use crate::basics::layout::{LIFE, MAX_WATCHERS, life};
use crate::basics::{LogIndex, ProcessId, RETURN_BITS, Time};
use crate::detector::heartbeat::Thresholds;
use crate::replica::group::Group;
use crate::replica::{Durability, Execution, Settings, Standing, StateMachine as _, Ticket};

/// What a test cluster has to know of its engine, besides the interface of all engines.
pub trait Tested: Durable {
    /// What it tells, as it tells it itself.
    type Event: std::fmt::Debug;

    /// An acknowledgement's meaning, with these settings.
    fn durability(config: &Self::Config) -> Durability;

    /// One that founds this group, or holds nothing.
    fn founder(me: ProcessId, config: Self::Config, group: Option<Group>) -> Self;

    /// Takes the next of its events.
    fn next_event(&mut self) -> Option<Self::Event>;

    /// What the cluster has to do about an event.
    fn meaning(event: &Self::Event) -> Meaning;

    /// Its state in words.
    fn describe(&self) -> String;
}

/// The events that a cluster acts on.
pub enum Meaning {
    /// It leads from now on.
    TookOver,
    /// A peer is to be forgotten.
    Forget(PeerId),
    /// It finds a fault in what it reads from another process.
    Fault,
    /// Anything else.
    Other,
}

impl Meaning {
    /// What an event means, for an engine without events of its own.
    pub fn of(event: &Event) -> Meaning {
        match event {
            Event::TookOver { .. } => Meaning::TookOver,
            Event::Forget(peer) => Meaning::Forget(*peer),
            Event::LaneFault { .. } => Meaning::Fault,
            _ => Meaning::Other,
        }
    }
}

/// An engine whose words are looked at from outside.
pub trait Watched: Tested {
    /// What a process says of itself.
    const WORDS: RegionName;
    /// The lane for a process's words to another one.
    const CONTROL_LANE: RegionName;

    /// The peer by which it knows a process, if they have met.
    fn met(&self, process: ProcessId) -> Option<PeerId>;
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

/// A reply that waits for its ticket.
struct Reply {
    reign: u64,
    ticket: Ticket,
    what: What,
}

enum What {
    /// The write's index and number.
    Write(LogIndex, u64),
    /// The state that a read saw, and the last index that had been acknowledged when it was executed.
    Read { saw: LogIndex, acknowledged: LogIndex },
}

/// A replica.
pub struct Node<E: Tested, const HOST: bool> {
    pub id: ProcessId,
    pub engine: E,
    pub fabric: Endpoint<HOST>,
    pub machine: Machine,
    pub disk: Disk,
    pub alive: bool,
    pub events: Vec<E::Event>,
    /// Reads that have been answered.
    pub reads: u64,
    waiting: Vec<Reply>,
    /// Entries of the machine's log that have been compared.
    checked: usize,
    /// Up to where, and after which reign, the state that it shows has been compared.
    shown: Option<(u64, LogIndex)>,
    cleared: u64,
}

/// Replicas, and what is known of them.
pub struct Cluster<E: Tested, const HOST: bool> {
    pub world: World<HOST>,
    pub config: E::Config,
    pub nodes: Vec<Node<E, HOST>>,
    /// How often the power has failed: each time, the recovered processes are new ones.
    losses: u64,
    /// The final command at each index.
    pub truth: BTreeMap<LogIndex, u64>,
    commands: BTreeMap<u64, Vec<u8>>,
    /// With the fencing token of the leader that acknowledged it.
    pub acknowledged: BTreeMap<LogIndex, u64>,
    next_id: u64,
    /// A node that may find a fault in what its leader writes.
    pub finds_fault: Option<usize>,
    /// The padding of the next commands.
    pub padding: usize,
}

/// The first life of a node.
pub fn id(n: usize) -> ProcessId {
    ProcessId { node: NodeId(n as u16), incarnation: Incarnation(1 << RETURN_BITS) }
}

/// A temper drawn from a seed.
pub fn drawn(seed: u64) -> Faults {
    Faults::drawn(&mut Rng::with_seed(seed))
}

impl<E: Tested, const HOST: bool> Cluster<E, HOST> {
    /// `replicas` founding members in a calm world.
    pub fn new(replicas: usize, config: E::Config) -> Self {
        Cluster::in_world(1, replicas, config, Faults::calm())
    }

    /// The same, in another world.
    pub fn in_world(seed: u64, replicas: usize, config: E::Config, faults: Faults) -> Self {
        let mut cluster = Cluster {
            world: World::new(seed, faults),
            config,
            nodes: Vec::new(),
            losses: 0,
            truth: BTreeMap::new(),
            commands: BTreeMap::new(),
            acknowledged: BTreeMap::new(),
            next_id: 1,
            finds_fault: None,
            padding: 20,
        };
        let group = Group::new((0..replicas).map(id).collect());
        for _ in 0..replicas {
            cluster.spawn(Some(group.clone()));
        }
        cluster
    }

    /// All memory is lost, and the nodes recover in another world from what is on disk.
    pub fn lose_power(&mut self, seed: u64, faults: Faults) {
        let disks: Vec<_> = std::mem::take(&mut self.nodes).into_iter().map(|node| node.disk.lose_power()).collect();
        self.world = World::new(seed, faults);
        self.losses += 1;
        for stored in disks {
            self.come_up(None, Some(stored.expect("nobody was ready")), seed);
        }
    }

    /// Continues, as an operator would, from one node alone, in another world. What its machine shows is committed now.
    pub fn go_on_from(mut self, n: usize) -> (Self, Gathered) {
        let node = &mut self.nodes[n];
        let gathered = node.engine.gather(&mut node.fabric, &mut node.machine).expect("it holds the state");
        let machine = node.machine.clone();
        let mut next = Cluster::in_world(2, 0, self.config, Faults::calm());
        (next.losses, next.commands, next.next_id) = (self.losses + 1, self.commands, self.next_id);
        next.truth = machine.log.iter().copied().collect();
        next.spawn(None);
        let me = ProcessId { incarnation: Incarnation(id(0).incarnation.0 + next.losses), ..id(0) };
        next.nodes[0].checked = machine.log.len();
        (next.nodes[0].machine, next.nodes[0].engine) = (machine, E::go_on_from(me, next.config, &gathered));
        (next, gathered)
    }

    /// A new process, in the founding group or outside.
    pub fn spawn(&mut self, group: Option<Group>) -> usize {
        self.come_up(group, None, 0)
    }

    fn come_up(&mut self, group: Option<Group>, stored: Option<Stored>, seed: u64) -> usize {
        let n = self.nodes.len();
        let mut spec = RegionSpec::default();
        spec.own([(LIFE, life::WORDS * 8)]);
        E::add_regions(&mut spec, &self.config);
        let me = ProcessId { incarnation: Incarnation(id(n).incarnation.0 + self.losses), ..id(n) };
        let identity = Identity { node: me.node, incarnation: me.incarnation, kind: PeerKind::Member };
        let (index, fabric) = self.world.spawn(identity, &spec);
        assert_eq!(index, n);
        let signs = fabric.memory(LocalRegion::Public(LIFE)).expect("declared");
        signs[life::THREADS].store(1, Ordering::Relaxed);
        for watcher in 0..MAX_WATCHERS {
            signs[life::death(0, watcher)].store(life::WAITERS | 4711, Ordering::Relaxed);
        }
        let mut machine = Machine::default();
        let engine = match &stored {
            None => E::founder(me, self.config, group),
            Some(stored) => E::recover(me, self.config, &stored.parts, &stored.last, &stored.journal(), &fabric, &mut machine)
                .expect("what it has written")
                .expect("it keeps a journal"),
        };
        self.nodes.push(Node {
            id: id(n),
            engine,
            fabric,
            machine,
            disk: Disk::new(seed ^ n as u64, stored),
            alive: true,
            events: Vec::new(),
            reads: 0,
            waiting: Vec::new(),
            checked: 0,
            shown: None,
            cleared: 0,
        });
        self.world.wake(n);
        n
    }

    /// `n` dies, and its death words say so.
    pub fn kill(&mut self, n: usize) {
        let words = (0..MAX_WATCHERS).map(|watcher| life::death(0, watcher)).collect();
        self.world.kill(n, Some(DeathWords { region: LIFE, threads: vec![words] }));
        self.nodes[n].alive = false;
    }

    /// Two replicas do not reach each other any more.
    pub fn part(&mut self, one: usize, other: usize) {
        self.world.block(one, other);
        self.world.block(other, one);
    }

    /// Of these nodes only `pairs` can reach each other.
    pub fn only(&mut self, nodes: std::ops::Range<usize>, pairs: &[(usize, usize)]) {
        for one in nodes.clone() {
            for other in nodes.clone().filter(|other| *other != one) {
                if pairs.contains(&(one, other)) || pairs.contains(&(other, one)) {
                    self.world.unblock(one, other);
                } else {
                    self.world.block(one, other);
                }
            }
        }
    }

    /// Whether `n` lives and takes itself for the leader.
    pub fn leads(&self, n: usize) -> bool {
        self.nodes[n].alive && self.nodes[n].engine.standing() == Standing::Primary
    }

    /// The live process that leads with the highest fencing token.
    pub fn leader(&self) -> Option<usize> {
        (0..self.nodes.len()).filter(|n| self.leads(*n)).max_by_key(|n| self.nodes[*n].engine.fencing_token())
    }

    /// Proposes a command at `n`, if it leads and has room.
    pub fn write(&mut self, n: usize) -> Option<LogIndex> {
        let written = self.propose(n, command(self.next_id, self.next_id as u8, self.padding));
        self.next_id += u64::from(written.is_some());
        written
    }

    /// Proposes this command at `n`, if it leads and has room.
    pub fn propose(&mut self, n: usize, command: Vec<u8>) -> Option<LogIndex> {
        let id = id_of(&command);
        let node = &mut self.nodes[n];
        if !node.alive || node.engine.standing() != Standing::Primary || !node.engine.has_room(command.len()) {
            return None;
        }
        let index = node.engine.propose(&command).expect("it leads");
        if node.engine.execution() == Execution::Speculative {
            node.machine.execute(index, &command);
        }
        let what = What::Write(index, id);
        node.waiting.push(Reply { reign: node.engine.reign(), ticket: node.engine.ticket(), what });
        self.commands.insert(id, command);
        Some(index)
    }

    /// Executes a read at `n`, if it takes itself for the leader.
    pub fn read(&mut self, n: usize) {
        let acknowledged = self.acknowledged.keys().last().copied().unwrap_or_default();
        let node = &mut self.nodes[n];
        if node.alive && node.engine.standing() == Standing::Primary {
            let what = What::Read { saw: node.engine.applied().max(node.engine.committed()), acknowledged };
            node.waiting.push(Reply { reign: node.engine.reign(), ticket: node.engine.ticket(), what });
        }
    }

    /// Reads that have been answered, by all of them.
    pub fn reads(&self) -> u64 {
        self.nodes.iter().map(|node| node.reads).sum()
    }

    /// The first half of a turn of `n`, which ends with what it posts.
    pub fn begin_turn(&mut self, n: usize) {
        let now = Time(self.world.now());
        let node = &mut self.nodes[n];
        while let Some(event) = node.fabric.event() {
            match event {
                PeerEvent::Up { peer, identity } => {
                    let process = ProcessId { node: identity.node, incarnation: identity.incarnation };
                    node.engine.handle_peer_up(peer, process, &mut node.fabric);
                }
                PeerEvent::Gone { peer, certain } => node.engine.handle_peer_gone(peer, certain),
            }
        }
        node.engine.post(now, &mut node.fabric, &mut node.machine);
        self.check(n);
    }

    /// The second half.
    pub fn end_turn(&mut self, n: usize) {
        let now = Time(self.world.now());
        let node = &mut self.nodes[n];
        while let Some(completion) = node.fabric.poll() {
            node.engine.handle_completion(completion);
        }
        node.engine.advance(now, None, &mut node.fabric, &mut node.machine);
        let next = node.engine.deadline().0.clamp(now.0 + 500, now.0 + 5_000);
        self.world.wake_at(n, next);
        self.check(n);
        self.release(n);
        let node = &mut self.nodes[n];
        if E::durability(&self.config) != Durability::Memory {
            node.disk.turn(&mut node.engine, &node.machine, &node.fabric);
        }
    }

    /// A turn of `n`, if it lives.
    pub fn turn(&mut self, n: usize) {
        if self.nodes[n].alive {
            self.begin_turn(n);
            self.end_turn(n);
        }
    }

    /// Turns of those that the world names, for so many nanoseconds.
    pub fn run(&mut self, ns: u64) {
        let limit = self.world.now() + ns;
        while let Some(n) = self.world.next_turn(limit) {
            self.turn(n);
        }
    }

    /// The same, until `done`.
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

    /// Turns until `n` leads.
    pub fn until_led_by(&mut self, n: usize) {
        self.until("a leader", |c| c.leads(n));
    }

    /// Turns until one leads, and returns which.
    pub fn until_led(&mut self) -> usize {
        self.until("a leader", |c| c.leader().is_some());
        self.leader().expect("just seen")
    }

    /// Writes at `n` until one more write has been acknowledged; starts again if `n` loses leadership on the way.
    pub fn write_through(&mut self, n: usize) -> LogIndex {
        loop {
            self.until("room", |c| c.leads(n) && c.nodes[n].engine.has_room(100));
            let reign = self.nodes[n].engine.reign();
            let index = self.write(n).expect("it leads, and has room");
            self.until("an answer", |c| c.acknowledged.contains_key(&index) || c.nodes[n].engine.reign() != reign);
            if self.nodes[n].engine.reign() == reign {
                return index;
            }
        }
    }

    /// A command is committed at an index: for ever the same in all processes.
    fn commit(&mut self, index: LogIndex, id: u64) {
        let known = *self.truth.entry(index).or_insert(id);
        assert_eq!(known, id, "two commands at index {index}");
    }

    fn check(&mut self, n: usize) {
        let node = &mut self.nodes[n];
        let mut led = false;
        while let Some(event) = node.engine.next_event() {
            match E::meaning(&event) {
                Meaning::TookOver => led = true,
                Meaning::Forget(peer) => node.fabric.forget(peer),
                Meaning::Fault => assert_eq!(self.finds_fault, Some(n), "{event:?}"),
                Meaning::Other => {}
            }
            node.events.push(event);
        }
        if node.cleared != node.machine.cleared {
            (node.cleared, node.checked, node.shown) = (node.machine.cleared, 0, None);
        }
        if !node.engine.is_complete() {
            return;
        }
        let committed = node.engine.committed();
        let fresh: Vec<_> = node.machine.log[node.checked..].iter().take_while(|(index, _)| *index <= committed).copied().collect();
        node.checked += fresh.len();
        for (index, id) in fresh {
            self.commit(index, id);
        }
        self.check_shown(n);
        if led {
            let node = &self.nodes[n];
            let (last, token) = (node.engine.committed(), node.engine.fencing_token().expect("it leads"));
            // It may not know of a leader with a higher token: it may still believe that it leads, but what it writes will be refused.
            let lost = self.acknowledged.iter().rfind(|(index, theirs)| **index > last && **theirs < token);
            assert_eq!(lost, None, "{n} leads with token {token:x}, and this was acknowledged");
            // A replica where execution comes first may show uncommitted entries, and may have been taught them.
            if node.engine.execution() == Execution::Committed {
                assert_eq!(node.machine.digest(), self.replay(last), "{n}: the new leader's state is not that of its log up to {last}");
            }
        }
    }

    /// Checks that what a follower says it may show is the state after some committed command.
    fn check_shown(&mut self, n: usize) {
        let node = &self.nodes[n];
        let (reign, applied) = (node.engine.reign(), node.engine.applied());
        // A reign may have changed what it shows without changing up to where it says it has applied.
        if !node.engine.shows_committed() || node.shown == Some((reign, applied)) {
            return;
        }
        assert_eq!(node.machine.digest(), self.replay(applied), "{n} shows what is not the state after {applied}");
        self.nodes[n].shown = Some((reign, applied));
    }

    /// The digest of the state after the first entries.
    pub fn replay(&self, upto: LogIndex) -> u64 {
        let mut machine = Machine::default();
        for (_, id) in self.truth.range(..=upto) {
            machine.chain(&self.commands[id]);
        }
        machine.digest()
    }

    fn release(&mut self, n: usize) {
        let node = &mut self.nodes[n];
        let (reign, released) = (node.engine.reign(), node.engine.released());
        node.waiting.retain(|r| r.reign == reign);
        let out: Vec<Reply> = node.waiting.extract_if(.., |r| r.ticket <= released).collect();
        for reply in out {
            match reply.what {
                What::Write(index, id) => {
                    let token = self.nodes[n].engine.fencing_token().expect("replies are of the reign that lasts");
                    assert!(self.nodes[n].engine.committed() >= index, "acknowledged before it was committed");
                    self.commit(index, id);
                    let earlier = self.acknowledged.range(..index).next_back().map(|(_, token)| *token);
                    let later = self.acknowledged.range(index..).next().map(|(_, token)| *token);
                    assert!(
                        earlier <= Some(token) && later.is_none_or(|later| token <= later),
                        "{n}: {earlier:?}, {token} at {index}, {later:?}"
                    );
                    self.acknowledged.insert(index, token);
                }
                What::Read { saw, acknowledged } => {
                    assert!(saw >= acknowledged, "{n}: a read saw the state at {saw} after {acknowledged} had been acknowledged");
                    self.nodes[n].reads += 1;
                }
            }
        }
    }

    /// Whether every living member of the leader's group holds everything.
    pub fn is_level(&self) -> bool {
        let Some(leader) = self.leader() else { return false };
        let engine = &self.nodes[leader].engine;
        engine.committed() == engine.last()
            && self
                .of_group(leader)
                .all(|n| n.engine.is_complete() && n.engine.applied() == engine.last() && n.engine.committed() == engine.last())
    }

    /// And the same.
    pub fn assert_level(&self) {
        assert!(self.is_level());
        let leader = self.leader().expect("level");
        let Node { engine, machine, id, .. } = &self.nodes[leader];
        let all = machine.digest();
        if engine.execution() == Execution::Committed {
            assert_eq!(all, self.replay(engine.last()), "{id} holds another state than its log");
        }
        for node in self.of_group(leader) {
            assert_eq!(node.machine.digest(), all, "{} holds another state", node.id);
        }
    }

    fn of_group(&self, leader: usize) -> impl Iterator<Item = &Node<E, HOST>> {
        let group = self.nodes[leader].engine.committed_group();
        self.nodes.iter().filter(|node| node.alive && group.contains(&node.id))
    }

    /// How often a node reported what `of` looks for.
    pub fn events(&self, n: usize, of: impl Fn(&E::Event) -> bool) -> usize {
        self.nodes[n].events.iter().filter(|event| of(event)).count()
    }

    /// Memory of a process.
    pub fn memory(&self, n: usize, region: LocalRegion) -> &Memory {
        self.nodes[n].fabric.memory(region).expect("declared")
    }
}

impl<E: Watched, const HOST: bool> Cluster<E, HOST> {
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
}
