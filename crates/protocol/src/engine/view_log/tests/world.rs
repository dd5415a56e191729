//! Processes, their lanes, what is in flight between them, and the views that a membership service would decide.
//!
//! Nothing happens by itself: tests deliver writes word by word, let processes take single steps of their turn, decide views and let them become active. The
//! oracle knows which entry is at which index once any process has vouched for it, and what has been acknowledged.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use martlet_fabric::primitive::{AtomicU64, Ordering};
use martlet_fabric::{
    Completion, Fabric, Incarnation, Local, LocalRegion, Memory, NodeId, OpError, PeerId, Region, RegionName, Remote, Token, ring,
};

use crate::basics::layout::{Component, LOG_LANE};
use crate::basics::{LogIndex, ProcessId, Time, ViewNumber};
use crate::engine::Engine as _;
use crate::engine::primary_backup::ByMemory;
use crate::engine::test_cluster::{Machine, command, id_of};
use crate::engine::view_log::{Config, Event, Rule, ViewLog};
use crate::membership::{Member, Roles, View};
use crate::replica::{Execution, Standing, StateMachine as _, Ticket};

type Lane = Rc<[AtomicU64]>;

enum What {
    Write { words: Vec<u64>, rotate: usize, done: usize },
    Read,
}

struct InFlight {
    lane: Option<Lane>,
    at: usize,
    what: What,
    token: Token,
}

/// One process's endpoint. Peer `n` is process `n - 1`, in every process.
#[derive(Default)]
pub struct TestFabric {
    own: BTreeMap<PeerId, Lane>,
    theirs: BTreeMap<PeerId, Lane>,
    in_flight: BTreeMap<PeerId, VecDeque<InFlight>>,
    completions: VecDeque<Completion>,
    /// Operations take effect when they are posted, as on shared memory.
    pub immediate: bool,
    pub nudges: Vec<PeerId>,
    pub writes: u64,
    pub bytes_written: u64,
}

impl TestFabric {
    fn post(&mut self, remote: Remote, what: What, token: Token) {
        assert!(Component::Engine.owns(token));
        assert_eq!(remote.region, Region::Lane(LOG_LANE));
        assert_eq!(remote.offset % 8, 0);
        let lane = self.theirs.get(&remote.peer).cloned();
        self.in_flight.entry(remote.peer).or_default().push_back(InFlight { lane, at: remote.offset / 8, what, token });
        if self.immediate {
            self.deliver(remote.peer, usize::MAX);
        }
    }

    /// Lets up to `words` words in flight to `peer` arrive. Returns whether there were any.
    pub fn deliver(&mut self, peer: PeerId, mut words: usize) -> bool {
        let Some(queue) = self.in_flight.get_mut(&peer) else { return false };
        let mut any = false;
        while words > 0 {
            let Some(op) = queue.front_mut() else { break };
            any = true;
            let Some(lane) = &op.lane else {
                self.completions.push_back(Completion { token: op.token, result: Err(OpError::PeerLost) });
                queue.pop_front();
                continue;
            };
            let mut result = 0;
            match &mut op.what {
                What::Read => {
                    result = lane[op.at].load(Ordering::SeqCst);
                    words -= 1;
                }
                What::Write { words: content, rotate, done } => {
                    while words > 0 && *done < content.len() {
                        // Words of one write arrive in any order: here from somewhere in the middle on.
                        let i = (*done + *rotate) % content.len();
                        lane[op.at + i].store(content[i], Ordering::SeqCst);
                        *done += 1;
                        words -= 1;
                    }
                    if *done < content.len() {
                        break;
                    }
                }
            }
            self.completions.push_back(Completion { token: op.token, result: Ok(result) });
            queue.pop_front();
        }
        any
    }

    /// What is in flight to `peer` never arrives; operations on it fail from now on.
    pub fn lose(&mut self, peer: PeerId) {
        self.theirs.remove(&peer);
        for op in self.in_flight.entry(peer).or_default() {
            op.lane = None;
        }
    }

    pub fn peers_in_flight(&self) -> Vec<PeerId> {
        self.in_flight.iter().filter(|(_, q)| !q.is_empty()).map(|(p, _)| *p).collect()
    }

    pub fn drop_in_flight(&mut self) {
        self.in_flight.clear();
    }
}

impl Fabric for TestFabric {
    const ZOMBIES_REACHABLE: bool = true;

    fn memory(&self, region: LocalRegion) -> Option<&Memory> {
        match region {
            LocalRegion::Lane { writer, name } if name == LOG_LANE => self.own.get(&writer).map(|l| &**l),
            _ => None,
        }
    }

    fn write(&mut self, at: Remote, bytes: &[u8], token: Token) {
        assert_eq!(bytes.len() % 8, 0);
        let words: Vec<u64> = bytes.chunks_exact(8).map(|w| u64::from_le_bytes(w.try_into().expect("8 bytes"))).collect();
        self.writes += 1;
        self.bytes_written += bytes.len() as u64;
        let rotate = (self.writes as usize * 7) % words.len();
        self.post(at, What::Write { words, rotate, done: 0 }, token);
    }

    fn read_word(&mut self, from: Remote, token: Token) {
        self.post(from, What::Read, token);
    }

    fn poll(&mut self) -> Option<Completion> {
        self.completions.pop_front()
    }

    fn nudge(&mut self, peer: PeerId) {
        self.nudges.push(peer);
    }

    fn forget(&mut self, peer: PeerId) {
        self.own.remove(&peer);
        self.lose(peer);
    }

    fn read(&mut self, _: Remote, _: Local, _: usize, _: Token) {
        unreachable!("the engine reads words only");
    }
    fn compare_and_swap(&mut self, _: Remote, _: u64, _: u64, _: Token) {
        unreachable!("the engine swaps nothing");
    }
    fn send(&mut self, _: PeerId, _: &[u8]) {
        unreachable!("the engine sends no datagrams");
    }
    fn multicast(&mut self, _: &[u8]) {
        unreachable!("the engine sends no datagrams");
    }
    fn grant(&mut self, _: PeerId, _: RegionName) {
        unreachable!("the engine grants nothing");
    }
    fn revoke(&mut self, _: PeerId, _: RegionName, _: Token) {
        unreachable!("the engine revokes nothing");
    }
    martlet_fabric::idle!(receive, event);
}

/// A reply that waits for its ticket.
struct Reply {
    reign: u64,
    ticket: Ticket,
    /// The write's index, or, for a read, the last index whose effects it saw, with the state that it saw. Where execution is on commit, a read sees the state
    /// when it is released.
    index: LogIndex,
    read: Option<u64>,
}

pub struct Process<R: Rule> {
    pub id: ProcessId,
    pub engine: ViewLog<R>,
    pub fabric: TestFabric,
    pub machine: Machine,
    pub alive: bool,
    /// The next step of its turn.
    pub step: u8,
    active: Option<ViewNumber>,
    now: Time,
    replies: Vec<Reply>,
    pub events: Vec<Event>,
    checked: usize,
    /// Up to where, and in which life of its machine, the state that it shows has been compared.
    shown: Option<(u64, LogIndex)>,
    cleared: u64,
    /// The number of entries for which some process had vouched when this one last checked that its view was active.
    vouched: usize,
}

/// A world of the engine that counts what is in memory.
pub type World = WorldOf<ByMemory>;

pub struct WorldOf<R: Rule> {
    pub processes: Vec<Process<R>>,
    pub config: Config,
    pub views: Vec<View>,
    pub active: ViewNumber,
    /// Each process takes its own view for active, whatever the others have decided, as if clocks meant nothing.
    pub clocks_lie: bool,
    pub clock: u64,
    /// The final entry at each index, from 1 on.
    pub truth: Vec<Vec<u8>>,
    commands: BTreeMap<u64, Vec<u8>>,
    pub acknowledged: Vec<LogIndex>,
    /// The fencing tokens of the primaries that acknowledged them.
    tokens: BTreeMap<LogIndex, u64>,
    pub reads: u64,
    pub next_id: u64,
}

pub fn tiny() -> Config {
    Config {
        log_ring_bytes: 1024,
        backlog_bytes: 2000,
        nudge_entries: 4,
        nudge_gap_ns: 3,
        ask_gap_ns: 3,
        flush_idle_ns: 5,
        drain_budget_bytes: 300,
        transfer_budget_bytes: 200,
        learner_overruns: 1000,
        fences_departed: false,
        execution: Execution::Speculative,
        secret: 0x5ec2e7,
    }
}

/// Nothing is flushed, nudged or overrun by itself.
pub fn quiet() -> Config {
    Config { flush_idle_ns: u64::MAX, nudge_entries: u32::MAX, log_ring_bytes: 4096, ..tiny() }
}

pub fn peer(process: usize) -> PeerId {
    PeerId(process as u32 + 1)
}

impl<R: Rule> WorldOf<R> {
    /// `replicas` processes, connected, in view 1, which is active.
    pub fn new(replicas: usize, config: Config) -> Self {
        let mut world = WorldOf {
            processes: Vec::new(),
            config,
            views: Vec::new(),
            active: ViewNumber(0),
            clocks_lie: false,
            clock: 1000,
            truth: Vec::new(),
            commands: BTreeMap::new(),
            acknowledged: Vec::new(),
            tokens: BTreeMap::new(),
            reads: 0,
            next_id: 1,
        };
        for _ in 0..replicas {
            world.spawn();
        }
        let everybody: Vec<(usize, Roles)> = (0..replicas).map(|p| (p, Roles::REPLICA)).collect();
        world.decide(&everybody);
        for p in 0..replicas {
            for q in 0..replicas {
                world.connect(p, q);
            }
            world.learn(p);
        }
        world.activate();
        world
    }

    /// The same, after process 0 has become primary. Only flushes that a test asks for are sent.
    pub fn led(replicas: usize, config: Config) -> Self {
        let mut world = WorldOf::new(replicas, config);
        world.run(6);
        assert_eq!(world.processes[0].engine.standing(), Standing::Primary);
        world
    }

    /// A new process, connected to all others, which the next view adds as a learner. No process knows of the view yet.
    pub fn join(&mut self) -> usize {
        let p = self.spawn();
        for q in 0..p {
            self.connect(p, q);
            self.connect(q, p);
        }
        let mut members = self.members();
        members.push((p, Roles::LEARNER));
        self.decide(&members);
        p
    }

    /// The next view promotes a learner.
    pub fn promote(&mut self, p: usize) {
        let mut members = self.members();
        members.retain(|(q, _)| *q != p);
        members.push((p, Roles::REPLICA));
        self.decide(&members);
    }

    /// Decides a view that lists these processes as replicas; it is active, and they know of it.
    pub fn replicas(&mut self, replicas: &[usize]) {
        let members: Vec<_> = replicas.iter().map(|p| (*p, Roles::REPLICA)).collect();
        self.decide(&members);
        self.enter();
    }

    /// All living processes learn of the latest view, and it is active.
    pub fn enter(&mut self) {
        for p in 0..self.processes.len() {
            if self.processes[p].alive {
                self.learn(p);
            }
        }
        self.activate();
    }

    /// Commands that process `p` has applied as a follower or executed as primary, since it was last cleared.
    pub fn ids(&self, p: usize) -> Vec<u64> {
        self.processes[p].machine.log.iter().map(|(_, id)| *id).collect()
    }

    /// A new process, to which no other is connected. Its lanes are ready.
    pub fn spawn(&mut self) -> usize {
        let n = self.processes.len();
        let id = ProcessId { node: NodeId(n as u16 % 5), incarnation: Incarnation(n as u64 + 1) };
        let mut fabric = TestFabric::default();
        for (p, other) in self.processes.iter_mut().enumerate() {
            let lane = || (0..ring::lane_bytes(self.config.log_ring_bytes) / 8).map(|_| AtomicU64::new(0)).collect::<Lane>();
            let (to_us, to_them) = (lane(), lane());
            fabric.own.insert(peer(p), to_us.clone());
            fabric.theirs.insert(peer(p), to_them.clone());
            other.fabric.own.insert(peer(n), to_them);
            other.fabric.theirs.insert(peer(n), to_us);
        }
        self.processes.push(Process {
            id,
            engine: ViewLog::new(id, self.config),
            fabric,
            machine: Machine { gapless: true, ..Machine::default() },
            alive: true,
            step: 0,
            active: None,
            now: Time(0),
            replies: Vec::new(),
            events: Vec::new(),
            checked: 0,
            shown: None,
            cleared: 0,
            vouched: 0,
        });
        n
    }

    /// `p` hears that `q` is connected.
    pub fn connect(&mut self, p: usize, q: usize) {
        if p != q {
            let id = self.processes[q].id;
            let process = &mut self.processes[p];
            process.engine.handle_peer_up(peer(q), id, &mut process.fabric);
        }
    }

    /// The membership service decides the next view.
    pub fn decide(&mut self, members: &[(usize, Roles)]) {
        let members = members.iter().map(|(p, roles)| Member::new(self.processes[*p].id, *roles)).collect();
        let number = ViewNumber(self.views.len() as u64 + 1);
        self.views.push(View { number, lease_ns: 1, fence_ns: 1, compatible: false, level: 1, members, departed: Vec::new() });
    }

    pub fn latest(&self) -> &View {
        self.views.last().expect("view 1 is there from the start")
    }

    pub fn index_of(&self, id: ProcessId) -> usize {
        self.processes.iter().position(|p| p.id == id).expect("all processes are in the list")
    }

    /// The members of the latest view.
    pub fn members(&self) -> Vec<(usize, Roles)> {
        self.latest().members.iter().map(|m| (self.index_of(m.id), m.roles)).collect()
    }

    /// `p` hears of the latest view.
    pub fn learn(&mut self, p: usize) {
        let view = self.latest().clone();
        self.processes[p].engine.handle_view(&view);
    }

    /// All leases on older views have ended: the latest view is active, and no earlier one ever will be again.
    pub fn activate(&mut self) {
        self.active = self.latest().number;
    }

    pub fn crash(&mut self, p: usize) {
        self.processes[p].alive = false;
    }

    /// `p` executes a write of `padding` extra bytes, if it is primary and has room.
    pub fn write(&mut self, p: usize, key: u8, padding: usize) -> Option<LogIndex> {
        let process = &mut self.processes[p];
        if process.engine.standing() != Standing::Primary || !process.engine.has_room(9 + padding) {
            return None;
        }
        let command = command(self.next_id, key, padding);
        self.next_id += 1;
        let index = process.engine.propose(&command).expect("it leads");
        if self.config.execution == Execution::Speculative {
            process.machine.execute(index, &command);
        }
        self.commands.insert(id_of(&command), command);
        process.replies.push(Reply { reign: process.engine.reign(), ticket: process.engine.ticket(), index, read: None });
        Some(index)
    }

    /// `p` executes a read of everything, if it is primary.
    pub fn read(&mut self, p: usize) {
        let latest = self.acknowledged.iter().max().copied();
        let process = &mut self.processes[p];
        if process.engine.standing() == Standing::Primary {
            let index = process.engine.last();
            let reply =
                Reply { reign: process.engine.reign(), ticket: process.engine.ticket(), index, read: Some(process.machine.digest()) };
            // What the read sees may be stale, as long as it is never released in that case. So the reference for the check is taken here.
            if Some(index) >= latest {
                process.replies.push(reply);
            } else {
                process.replies.push(Reply { read: None, index: LogIndex(u64::MAX), ..reply });
            }
        }
    }

    /// One of the five steps of a turn of `p`. True when it was the last one.
    pub fn step(&mut self, p: usize) -> bool {
        if !self.processes[p].alive {
            return true;
        }
        self.clock += 1;
        let process = &mut self.processes[p];
        match process.step {
            0 => {
                process.engine.post(Time(self.clock), &mut process.fabric, &mut process.machine);
                self.check_applied(p);
                self.check_shown(p);
            }
            1 => {
                while let Some(completion) = process.fabric.poll() {
                    process.engine.handle_completion(completion);
                }
            }
            2 => {
                process.now = Time(self.clock);
                // Anything vouched for later may come from a later primary, if this one stalls between its check and its use.
                process.vouched = self.truth.len();
                let view = process.engine.view();
                process.active = (view == self.active || self.clocks_lie).then_some(view);
            }
            3 => {
                let (now, active) = (process.now, process.active);
                process.engine.advance(now, active, &mut process.fabric, &mut process.machine);
                self.take_events(p);
                self.note_committed(p);
            }
            _ => self.release(p),
        }
        let process = &mut self.processes[p];
        process.step = (process.step + 1) % 5;
        process.step == 0
    }

    /// Whole turns of `p`.
    pub fn turns(&mut self, p: usize, turns: usize) {
        for _ in 0..turns {
            while !self.step(p) {}
        }
    }

    /// Everything in flight from `p` arrives.
    pub fn deliver(&mut self, p: usize) {
        for to in self.processes[p].fabric.peers_in_flight() {
            self.processes[p].fabric.deliver(to, usize::MAX);
        }
    }

    /// Turns of all living processes, with everything delivered, `rounds` times.
    pub fn run(&mut self, rounds: usize) {
        let all: Vec<usize> = (0..self.processes.len()).collect();
        self.run_only(&all, rounds);
    }

    /// The same of some processes.
    pub fn run_only(&mut self, processes: &[usize], rounds: usize) {
        for _ in 0..rounds {
            for p in processes {
                self.turns(*p, 1);
                self.deliver(*p);
            }
        }
    }

    /// The first process, the primary, acknowledges so many requests. No process was told that they are committed, and none has read anything.
    pub fn acknowledge_unread(&mut self, requests: usize) {
        for _ in 0..requests {
            self.write(0, 1, 0);
        }
        self.turns(0, 1);
        self.deliver(0);
        self.turns(0, 1);
        assert_eq!(self.acknowledged.len(), requests);
    }

    pub fn committed_by(&mut self, index: LogIndex, id: u64) {
        let at = index.0 as usize - 1;
        assert!(at <= self.truth.len(), "index {index} is vouched for before the one before it");
        if at == self.truth.len() {
            self.truth.push(self.commands[&id].clone());
        } else {
            assert_eq!(id_of(&self.truth[at]), id, "two commands at index {index}");
        }
    }

    /// A replica that follows applies committed entries only; what it applied as a learner was committed before it was promoted.
    fn check_applied(&mut self, p: usize) {
        let process = &mut self.processes[p];
        if process.cleared != process.machine.cleared {
            process.cleared = process.machine.cleared;
            process.checked = 0;
        }
        if !process.engine.follows_as_whole_replica() {
            return;
        }
        let entries = process.machine.log[process.checked..].to_vec();
        process.checked += entries.len();
        for (index, id) in entries {
            self.committed_by(index, id);
        }
    }

    /// Checks that what a backup says it may show is the state after some committed entry.
    fn check_shown(&mut self, p: usize) {
        let process = &self.processes[p];
        let applied = process.engine.applied();
        if process.engine.shows_committed() && process.shown != Some((process.cleared, applied)) {
            let entries = applied.0 as usize;
            assert!(entries <= self.truth.len(), "process {p} shows entry {applied}, which nobody has committed");
            assert_eq!(process.machine.digest(), self.replay(entries), "process {p} shows what is not the state after {applied}");
            self.processes[p].shown = Some((self.processes[p].cleared, applied));
        }
    }

    /// What a primary says to be committed is what it proposed.
    fn note_committed(&mut self, p: usize) {
        let process = &self.processes[p];
        if process.engine.standing() != Standing::Primary {
            return;
        }
        let committed = process.engine.committed();
        let from = process.checked;
        let entries: Vec<_> = process.machine.log[from..].iter().take_while(|(i, _)| *i <= committed).copied().collect();
        self.processes[p].checked += entries.len();
        for (index, id) in entries {
            self.committed_by(index, id);
        }
    }

    fn take_events(&mut self, p: usize) {
        while let Some(event) = self.processes[p].engine.poll_event() {
            match event {
                Event::TookOver { .. } => {
                    self.note_committed(p);
                    let process = &self.processes[p];
                    assert_eq!(process.engine.committed(), process.engine.last());
                    let last = process.engine.last().0 as usize;
                    // Where clocks lie, a primary that has been succeeded may believe that it leads. It decides nothing.
                    assert!(
                        last >= process.vouched || self.clocks_lie,
                        "index {} was vouched for and is lost: the new primary ends at {last}",
                        process.vouched
                    );
                    assert!(self.truth.len() >= last);
                    assert_eq!(process.machine.digest(), self.replay(last), "the new primary's state is not that of its log");
                }
                Event::Forget(peer) => self.processes[p].fabric.forget(peer),
                Event::CaughtUp(_) | Event::Drop { .. } | Event::Unteachable { .. } | Event::LaneFault { .. } | Event::Unfit => {}
                Event::AskedPermission | Event::Permitted | Event::SteppedDown => unreachable!("a primary is made by views"),
            }
            self.processes[p].events.push(event);
        }
    }

    fn release(&mut self, p: usize) {
        let process = &mut self.processes[p];
        let (reign, released) = (process.engine.reign(), process.engine.released());
        process.replies.retain(|r| r.reign == reign);
        let out: Vec<Reply> = process.replies.extract_if(.., |r| r.ticket <= released).collect();
        for reply in out {
            assert_ne!(reply.index, LogIndex(u64::MAX), "a stale read was released");
            assert!(reply.index.0 as usize <= self.truth.len(), "acknowledged before it was committed");
            match reply.read {
                None => {
                    let token = self.processes[p].engine.fencing_token().expect("replies are of the reign that lasts");
                    let earlier = self.tokens.range(..reply.index).next_back().map(|(_, token)| *token);
                    let later = self.tokens.range(reply.index..).next().map(|(_, token)| *token);
                    assert!(earlier <= Some(token) && later.is_none_or(|later| token <= later), "{p}: {earlier:?}, {token}, {later:?}");
                    self.tokens.insert(reply.index, token);
                    self.acknowledged.push(reply.index);
                }
                Some(digest) => {
                    let (digest, index) = match self.config.execution {
                        Execution::Speculative => (digest, reply.index),
                        Execution::Committed => (self.processes[p].machine.digest(), self.processes[p].engine.applied()),
                    };
                    assert!(index >= reply.index, "a read of an old state was released");
                    assert_eq!(digest, self.replay(index.0 as usize), "a read saw what never was");
                    self.reads += 1;
                }
            }
        }
    }

    /// The state after the first `entries` entries.
    pub fn replay(&self, entries: usize) -> u64 {
        let mut machine = Machine::default();
        for entry in &self.truth[..entries] {
            machine.chain(entry);
        }
        machine.digest()
    }

    /// Every living replica of the latest view holds the state of the whole log.
    pub fn assert_level(&self) {
        let all = self.replay(self.truth.len());
        for (p, roles) in self.members() {
            if roles.has(Roles::REPLICA) && self.processes[p].alive {
                assert_eq!(self.processes[p].engine.applied().0 as usize, self.truth.len(), "process {p} has not applied everything");
                assert_eq!(self.processes[p].machine.digest(), all, "process {p} holds another state");
            }
        }
    }
}

/// FiDe's "f = N - 1", of five: each leads in its turn, and dies.
pub fn outlives_all_but_one_of_five<R: Rule>(config: Config) {
    let execution = config.execution;
    let mut world = WorldOf::<R>::led(5, config);
    for leader in 0..5 {
        let index = world.write(leader, 1, 0).expect("it leads");
        world.run(3);
        assert!(world.acknowledged.contains(&index), "{execution}: the service goes on with {leader} as its leader");
        if leader < 4 {
            world.crash(leader);
            world.replicas(&(leader + 1..5).collect::<Vec<_>>());
            world.run(6);
            assert_eq!(world.processes[leader + 1].engine.standing(), Standing::Primary);
        }
    }
    assert_eq!(world.acknowledged.len(), 5);
    world.assert_level();
}

/// The same, without a moment between the deaths.
pub fn outlives_all_but_one_of_five_at_once<R: Rule>(config: Config) {
    let mut world = WorldOf::<R>::led(5, config);
    world.write(0, 1, 0);
    world.run(3);
    (0..4).for_each(|process| world.crash(process));
    world.replicas(&[4]);
    world.run(6);
    let index = world.write(4, 1, 0).expect("it leads");
    world.run(3);
    assert_eq!(world.acknowledged, [LogIndex(1), index]);
}
