//! Replicas on the simulated fabric, and an oracle that knows what has been committed and acknowledged.

use std::collections::BTreeMap;

use fastrand::Rng;
use martlet_fabric::primitive::Ordering;
use martlet_fabric::sim::{DeathWords, Endpoint, Faults, World};
use martlet_fabric::{Fabric, Identity, Incarnation, LocalRegion, NodeId, PeerEvent, PeerKind, RegionSpec};

use super::disk::{Disk, Stored};
use super::machine::{Machine, command, id_of};
use crate::basics::layout::{LIFE, MAX_WATCHERS, life};
use crate::basics::{LogIndex, ProcessId, RETURN_BITS, Time};
use crate::detector::heartbeat::Thresholds;
use crate::engine::Durable as _;
use crate::engine::mu::layout::add_regions;
use crate::engine::mu::{Config, Durability, Event, Group, Mu};
use crate::engine::{Engine as _, Gathered};
use crate::replica::Execution;
use crate::replica::{Settings, Standing, StateMachine, Ticket};

/// A reply that waits for its ticket.
struct Reply {
    reign: u64,
    ticket: Ticket,
    /// The write's index and number; for a read, the last index that had been acknowledged when it was executed.
    what: What,
}

enum What {
    Write(LogIndex, u64),
    Read { saw: LogIndex, acknowledged: LogIndex },
}

pub struct Node<const HOST: bool> {
    pub id: ProcessId,
    pub engine: Mu,
    pub fabric: Endpoint<HOST>,
    pub machine: Machine,
    pub alive: bool,
    waiting: Vec<Reply>,
    pub events: Vec<Event>,
    pub disk: Disk,
    checked: usize,
    /// After which reign, and up to where, the state that it shows has been compared.
    shown: Option<(u64, LogIndex)>,
    cleared: u64,
}

pub struct Cluster<const HOST: bool> {
    pub world: World<HOST>,
    pub config: Config,
    pub nodes: Vec<Node<HOST>>,
    /// How often the power has gone: those who come back are other processes each time.
    losses: u64,
    /// The command that stands at an index for good.
    pub truth: BTreeMap<LogIndex, u64>,
    commands: BTreeMap<u64, Vec<u8>>,
    /// With the proposal number of the leader that acknowledged it.
    pub acknowledged: BTreeMap<LogIndex, u64>,
    pub reads: u64,
    next_id: u64,
    /// Those that may find fault with what their leader writes.
    pub finds_fault: Option<usize>,
    /// The padding of the next commands.
    pub padding: usize,
}

pub fn tiny() -> Config {
    Config {
        shared: Settings {
            log_ring_bytes: 4096,
            state_ring_bytes: 2048,
            execution: Execution::Committed,
            backlog_bytes: 3000,
            batch_bytes: 200,
            flush_idle_ns: 10_000,
            nudge_records: 4,
            nudge_gap_ns: 2_000,
            heartbeat_interval_ns: 10_000,
            background_ns: 1_000,
            thresholds: Thresholds { cap: 6, failure: 1, recovery: 4 },
            fate_beats: 100,
            silence_ns: 1_000_000,
            stall_ns: 20_000,
            death_interval_ns: 4_000,
            teach_patience_ns: 1_000_000,
            transfer_budget_bytes: 300,
        },
        secret: 0x5ec2e7,
        durability: Durability::Memory,
        retry_ns: 5_000,
        leader_stays: false,
    }
}

/// The same, but for what is changed about it.
pub fn tiny_but(change: impl FnOnce(&mut Config)) -> Config {
    let mut config = tiny();
    change(&mut config);
    config
}

pub fn id(n: usize) -> ProcessId {
    ProcessId { node: NodeId(n as u16), incarnation: Incarnation(1 << RETURN_BITS) }
}

impl<const HOST: bool> Cluster<HOST> {
    /// `replicas` founding members in a calm world.
    pub fn new(replicas: usize, config: Config) -> Self {
        Cluster::in_world(1, replicas, config, Faults::calm())
    }

    pub fn in_world(seed: u64, replicas: usize, config: Config, faults: Faults) -> Self {
        let mut cluster = Cluster {
            world: World::new(seed, faults),
            config,
            nodes: Vec::new(),
            losses: 0,
            truth: BTreeMap::new(),
            commands: BTreeMap::new(),
            acknowledged: BTreeMap::new(),
            reads: 0,
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

    /// Everybody's memory is gone, and whoever has something on disk comes back in another world.
    pub fn lose_power(&mut self, seed: u64, faults: Faults) {
        let disks: Vec<_> = std::mem::take(&mut self.nodes).into_iter().map(|node| node.disk.lose_power()).collect();
        self.world = World::new(seed, faults);
        self.losses += 1;
        for stored in disks {
            self.come_up(None, Some(stored.expect("nobody was ready")), seed);
        }
    }

    /// The node that an operator goes on from, as the only one of another world. What its machine shows is committed now.
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
        (next.nodes[0].machine, next.nodes[0].engine) = (machine, Mu::go_on_from(me, next.config, &gathered));
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
        add_regions(&mut spec, &self.config);
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
            None => Mu::new(me, self.config, group),
            Some(Stored { parts, last, .. }) => {
                let journal = stored.as_ref().map(Stored::journal).unwrap_or_default();
                Mu::recover(me, self.config, parts, last, &journal, &fabric, &mut machine)
                    .expect("what it has written")
                    .expect("it keeps a journal")
            }
        };
        self.nodes.push(Node {
            id: id(n),
            engine,
            fabric,
            machine,
            disk: Disk::new(seed ^ n as u64, stored),
            alive: true,
            waiting: Vec::new(),
            events: Vec::new(),
            checked: 0,
            shown: None,
            cleared: 0,
        });
        self.world.wake(n);
        n
    }

    pub fn kill(&mut self, n: usize) {
        let words = (0..MAX_WATCHERS).map(|w| life::death(0, w)).collect();
        self.world.kill(n, Some(DeathWords { region: LIFE, threads: vec![words] }));
        self.nodes[n].alive = false;
    }

    pub fn leads(&self, n: usize) -> bool {
        self.nodes[n].alive && self.nodes[n].engine.standing() == Standing::Primary
    }

    /// The live process that leads with the highest proposal number.
    pub fn leader(&self) -> Option<usize> {
        (0..self.nodes.len()).filter(|n| self.leads(*n)).max_by_key(|n| self.nodes[*n].engine.ballot())
    }

    /// Proposes a command at `n`, if it leads and has room.
    pub fn write(&mut self, n: usize) -> Option<LogIndex> {
        let written = self.propose(n, command(self.next_id, self.padding));
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
        if self.config.execution == Execution::Speculative {
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
        if self.config.durability != Durability::Memory {
            node.disk.turn(&mut node.engine, &node.machine, &node.fabric);
        }
    }

    pub fn turn(&mut self, n: usize) {
        if self.nodes[n].alive {
            self.begin_turn(n);
            self.end_turn(n);
        }
    }

    /// Turns of whoever the world names, for so many nanoseconds.
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
                None => panic!("never: {what}"),
            }
        }
    }

    pub fn until_led_by(&mut self, n: usize) {
        self.until("a leader", |c| c.leads(n));
    }

    /// Writes at `n` until one more has been acknowledged; again if it has lost the lead on the way.
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

    /// A command is committed at an index: the same for everybody, for ever.
    fn commit(&mut self, index: LogIndex, id: u64) {
        let known = *self.truth.entry(index).or_insert(id);
        assert_eq!(known, id, "two commands at index {index}");
    }

    fn check(&mut self, n: usize) {
        let node = &mut self.nodes[n];
        let mut led = false;
        while let Some(event) = node.engine.poll_event() {
            led |= matches!(event, Event::Led { .. });
            assert!(!matches!(event, Event::LaneFault { .. }) || self.finds_fault == Some(n), "{n}: {event:?}");
            if let Event::Forget(peer) = event {
                node.fabric.forget(peer);
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
            let last = node.engine.committed();
            // Of a leader with a higher number it may know nothing: its word that it leads can be late, but what it writes will be refused.
            let lost = self.acknowledged.iter().rfind(|(index, ballot)| **index > last && **ballot < node.engine.ballot());
            assert_eq!(lost, None, "{n} leads with ballot {:x}, and this was acknowledged", node.engine.ballot());
            // A replica that executes first may show what is not committed, and may have been taught it.
            if self.config.execution == Execution::Committed {
                assert_eq!(node.machine.digest(), self.replay(last), "{n}: the new leader's state is not that of its log up to {last}");
            }
        }
    }

    /// What a follower says that it may tell of is the state after some committed command.
    fn check_shown(&mut self, n: usize) {
        let node = &self.nodes[n];
        let (reign, applied) = (node.engine.reign(), node.engine.applied());
        // A reign may have changed what it shows, and not up to where it says that it has applied.
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
                    self.reads += 1;
                }
            }
        }
    }

    /// Everybody of the leader's group holds everything.
    pub fn is_level(&self) -> bool {
        let Some(leader) = self.leader() else { return false };
        let engine = &self.nodes[leader].engine;
        let group = engine.group().expect("a leader has one");
        engine.committed() == engine.last()
            && self
                .nodes
                .iter()
                .filter(|n| n.alive && group.contains(n.id))
                .all(|n| n.engine.is_complete() && n.engine.applied() == engine.last() && n.engine.committed() == engine.last())
    }

    pub fn assert_level(&self) {
        assert!(self.is_level());
        let leader = &self.nodes[self.leader().expect("level")];
        let all = leader.machine.digest();
        if self.config.execution == Execution::Committed {
            assert_eq!(all, self.replay(leader.engine.last()), "{} holds another state than its log", leader.id);
        }
        for node in self.nodes.iter().filter(|n| n.alive && leader.engine.group().expect("a leader has one").contains(n.id)) {
            assert_eq!(node.machine.digest(), all, "{} holds another state", node.id);
        }
    }

    /// Pauses `n`, and writes at `leader` until the log there ends so many bytes further on.
    pub fn leave_behind(&mut self, n: usize, leader: usize, bytes: u64) {
        self.world.pause(n);
        let end = |c: &Self, n: usize| c.nodes[n].engine.log.tail().position;
        while end(self, leader) - end(self, n) < bytes {
            self.write_through(leader);
        }
    }

    /// How often a node has been taught.
    pub fn taught(&self, n: usize) -> usize {
        self.events(n, |e| matches!(e, Event::Learned { .. }))
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

    /// How often a node reported what `of` looks for.
    pub fn events(&self, n: usize, of: impl Fn(&Event) -> bool) -> usize {
        self.nodes[n].events.iter().filter(|e| of(e)).count()
    }
}

/// A temper drawn from a seed.
pub fn drawn(seed: u64) -> Faults {
    Faults::drawn(&mut Rng::with_seed(seed))
}
