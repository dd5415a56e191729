//! Whole clusters of the production state machines over the simulated fabric: one seed, one life.
//!
//! A life has two parts. In the first there is trouble: kills, pauses, partitions, dead NICs, whatever the fabric does. Oracles look
//! on. In the second everything has healed, and the cluster has to come together again: safety first, then liveness. In the end every key is
//! read once more, all replicas must be equal, and what the clients saw must be linearizable.

mod clients;
mod clock;
mod machine;
mod node;
mod oracle;
mod server;
mod settings;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use fastrand::Rng;
use martlet_fabric::sim::{Faults, Span, World};
use martlet_fabric::{Identity, Incarnation, NodeId, PeerKind};
use martlet_protocol::basics::layout::{Sizes, life, regions};
use martlet_protocol::basics::{ProcessId, ViewNumber, ballot};
use martlet_protocol::engine::{PrimaryBackup, primary_backup};
use martlet_protocol::membership::{Config, Core, Roles};
use martlet_protocol::replica::{Standing, StateMachine};

use crate::linearizability::kv::{Input, Output, Store};
use crate::linearizability::{Operation, Verdict, check};
use clients::Client;
use clock::Clock;
use node::Node;
use server::{Reply, Request};

use oracle::Oracle;
pub use oracle::Violation;
use settings::Settings;

/// What one life came to.
#[derive(Clone, Debug)]
pub struct Report {
    /// Its seed: the same life again.
    pub seed: u64,
    /// What went wrong, if anything did.
    pub violation: Option<Violation>,
    /// Virtual nanoseconds.
    pub length_ns: u64,
    /// Operations on the fabric.
    pub operations: u64,
    /// Views decided.
    pub views: u64,
    /// Views that were active.
    pub active_views: u64,
    /// Times that a replica became primary, the first included.
    pub takeovers: u64,
    /// Processes killed.
    pub kills: u64,
    /// Whether the service ended because no replica was left: one crashed while the others were being cut off for seeming dead.
    pub ended: bool,
    /// Whether a cluster did not come together again that need not: one with worn slots (a slot that has been frozen ahead stops leases until a
    /// view is decided in it, and the dead cannot be asked by RPC), or one on a network (where a lost connection is lost for good). What it did
    /// before has to be right all the same.
    pub stalled: bool,
    /// Requests of clients that got a reply.
    pub replies: u64,
    /// Requests of clients that got none.
    pub unknown: u64,
    /// A digest of all that happened.
    pub digest: u64,
}

/// Where a cluster lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ground {
    /// One host with shared memory: the dead can be read, and the kernel says who died.
    Host,
    /// Hosts with one-sided operations between them: the dead are out of reach, and death is presumed.
    Network,
}

/// Lives the life of one seed on a host.
///
/// # Panics
/// When a state machine finds one of its own invariants broken.
pub fn run(seed: u64) -> Report {
    run_on(Ground::Host, seed)
}

/// Lives the life of one seed.
///
/// # Panics
/// When a state machine finds one of its own invariants broken.
pub fn run_on(ground: Ground, seed: u64) -> Report {
    tell(ground, seed, false).0
}

/// Lives the life of one seed; if `narrate`, tells it as well, a line for each view, kill, pause and so on.
///
/// # Panics
/// When a state machine finds one of its own invariants broken.
pub fn tell(ground: Ground, seed: u64, narrate: bool) -> (Report, String) {
    let mut chance = Rng::with_seed(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x6d61_7274_6c65_7473);
    let settings = Settings::drawn(&mut chance, ground);
    match ground {
        Ground::Host => Cluster::<true>::new(seed, chance, settings, narrate).live(),
        Ground::Network => Cluster::<false>::new(seed, chance, settings, narrate).live(),
    }
}

/// A mistake made on purpose: an oracle that does not find it is worth nothing (STYLE 24).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Canary {
    /// Replies go out without a look at the lease.
    NoActiveCheck,
    /// Now and then a process is declared dead for certain that goes on.
    FalseCertainty,
    /// Clocks drift far more than the bounds say.
    WildClocks,
}

/// Lives the life of one seed on a host, with a mistake in it.
///
/// # Panics
/// When a state machine finds one of its own invariants broken, which a canary may well bring about.
pub fn run_canary(seed: u64, canary: Canary) -> Report {
    let mut chance = Rng::with_seed(seed);
    let mut settings = Settings::drawn(&mut chance, Ground::Host);
    settings.canary = Some(canary);
    settings.pause_every_ns = Some(200_000);
    settings.pause = Span(10_000, 600_000);
    if canary == Canary::WildClocks {
        // Long leases and quick suspicions: what the bounds are for.
        (settings.lease_ns, settings.lease_change_every_ns) = (400_000, None);
        settings.heartbeat_interval_ns = 10_000;
    }
    Cluster::<true>::new(seed, chance, settings, false).live().0
}

/// Something that is going to happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    Kill,
    Leave,
    Restart { node: u16 },
    Pause,
    Resume { process: usize },
    Partition,
    Heal,
    KillNic,
    ChangeLease,
    DeclareDead,
    Call { client: usize },
    Send { client: usize, number: u64 },
    Arrive { slot: usize },
    GiveUp { client: usize, number: u64 },
}

/// Something on its way between a client and a process.
enum Message {
    Request { process: usize, request: Request },
    Reply(Reply),
}

/// A cluster, its world, and who torments it.
struct Cluster<const HOST: bool> {
    seed: u64,
    settings: Settings,
    world: World<HOST>,
    chance: Rng,
    /// By process; `None` once the process is dead.
    nodes: Vec<Option<Node<HOST>>>,
    /// The life of each node that runs, by node; `None` between two lives.
    current: Vec<Option<usize>>,
    lives: Vec<u64>,
    agenda: BinaryHeap<Reverse<(u64, u64, Due)>>,
    entered: u64,
    oracle: Oracle,
    clients: Vec<Client>,
    messages: Vec<Option<Message>>,
    free_messages: Vec<usize>,
    history: Vec<Operation<Input, Output>>,
    /// Values handed out, so that no two writes write the same.
    values: u64,
    kills: u64,
    replies: u64,
    /// Clients start nothing new.
    closing: bool,
    stalled: bool,
}

impl<const HOST: bool> Cluster<HOST> {
    /// A cluster whose first node founds it, and which the others join.
    fn new(seed: u64, mut chance: Rng, settings: Settings, narrate: bool) -> Self {
        let world = World::new(chance.u64(..), settings.faults.clone());
        let nodes = usize::from(settings.nodes);
        let clients = (0..settings.clients as usize).map(|id| Client::new(id, settings.keys, chance.u16(..settings.nodes))).collect();
        let mut cluster = Cluster {
            seed,
            settings,
            world,
            chance,
            nodes: Vec::new(),
            current: vec![None; nodes],
            lives: vec![0; nodes],
            agenda: BinaryHeap::new(),
            entered: 0,
            oracle: Oracle::default(),
            clients,
            messages: Vec::new(),
            free_messages: Vec::new(),
            history: Vec::new(),
            values: 0,
            kills: 0,
            replies: 0,
            closing: false,
            stalled: false,
        };
        cluster.world.let_stores_wake(!cluster.settings.sleepers);
        if narrate {
            cluster.oracle.narrate();
        }
        for node in 0..nodes {
            cluster.start(node as u16);
        }
        cluster.enter_after(cluster.settings.kill_every_ns, Due::Kill);
        cluster.enter_after(cluster.settings.leave_every_ns, Due::Leave);
        cluster.enter_after(cluster.settings.pause_every_ns, Due::Pause);
        cluster.enter_after(cluster.settings.partition_every_ns, Due::Partition);
        cluster.enter_after(cluster.settings.nic_every_ns, Due::KillNic);
        cluster.enter_after(cluster.settings.lease_change_every_ns, Due::ChangeLease);
        if cluster.settings.canary == Some(Canary::FalseCertainty) {
            cluster.enter_after(Some(300_000), Due::DeclareDead);
        }
        for client in 0..cluster.clients.len() {
            cluster.enter_after(Some(20_000), Due::Call { client });
        }
        cluster
    }

    /// Lives to the end.
    fn live(mut self) -> (Report, String) {
        self.go_on_until(self.settings.trouble_ns);
        self.heal_all();
        self.recover();
        self.judge();
        let unknown = self.history.len() as u64 - self.replies;
        let report = Report {
            seed: self.seed,
            violation: self.oracle.violation().cloned(),
            length_ns: self.world.now(),
            operations: self.world.operations(),
            views: self.oracle.view_count(),
            active_views: self.oracle.active_views,
            takeovers: self.oracle.takeovers,
            kills: self.kills,
            ended: self.has_ended(),
            stalled: self.stalled,
            replies: self.replies,
            unknown,
            digest: self.world.digest(),
        };
        (report, self.oracle.transcript().to_owned())
    }

    fn enter(&mut self, at: u64, due: Due) {
        self.entered += 1;
        self.agenda.push(Reverse((at, self.entered, due)));
    }

    /// Enters something that happens every so often, if it does at all.
    fn enter_after(&mut self, mean_ns: Option<u64>, due: Due) {
        if let Some(mean) = mean_ns {
            let at = self.world.now() + self.chance.u64(mean / 4..=mean * 7 / 4);
            self.enter(at, due);
        }
    }

    /// The next life of a node begins.
    fn start(&mut self, node: u16) {
        self.lives[usize::from(node)] += 1;
        let first = self.lives.iter().sum::<u64>() == 1;
        let me = ProcessId { node: NodeId(node), incarnation: Incarnation(self.lives[usize::from(node)]) };
        let identity = Identity { node: me.node, incarnation: me.incarnation, kind: PeerKind::Member };
        let sizes = Sizes { log_ring_bytes: self.settings.log_ring_bytes, client_ring_bytes: 256 };
        let (process, fabric) = self.world.spawn(identity, &regions(sizes));
        let settings = &self.settings;
        let drift_ppm = if settings.canary == Some(Canary::WildClocks) { 800_000 } else { settings.clocks.drift_ppm };
        let clock = Clock::drawn(&mut self.chance, drift_ppm, settings.clocks.skew_ns);
        let config = Config {
            lease_ns: settings.lease_ns,
            clocks: settings.clocks,
            heartbeat_interval_ns: settings.heartbeat_interval_ns,
            broadcast_interval_ns: settings.broadcast_interval_ns,
            broadcast_timeout_ns: settings.broadcast_timeout_ns,
            pull_interval_ns: settings.heartbeat_interval_ns,
            resend_interval_ns: settings.heartbeat_interval_ns,
            backoff_ns: 2_000,
            seed: self.chance.u64(..),
            leases: settings.leases,
            ..Config::new(me, settings.roles[usize::from(node)])
        };
        let now = self.world.now();
        let core = Core::new(clock.read(now, &mut self.chance), config);
        let config = primary_backup::Config {
            log_ring_bytes: settings.log_ring_bytes,
            backlog_bytes: settings.log_ring_bytes,
            nudge_entries: 4,
            nudge_gap_ns: 1_000,
            flush_idle_ns: settings.flush_idle_ns,
            drain_budget_bytes: settings.drain_budget_bytes,
            transfer_budget_bytes: settings.transfer_budget_bytes,
            ..primary_backup::Config::default()
        };
        let engine = PrimaryBackup::new(me, config);
        let mut life = Node::new(me, fabric, core, engine, clock, settings.threads, settings.canary);
        if settings.worn {
            let known = self.oracle.newest().map_or(ViewNumber(0), |view| view.number);
            life.wear_out(known.next(), &mut self.chance);
        }
        if first {
            life.bootstrap(now, &mut self.chance, &mut self.oracle);
        } else {
            life.join(now, &mut self.chance);
        }
        self.nodes.push(Some(life));
        self.current[usize::from(node)] = Some(process);
        self.world.wake(process);
    }

    /// Lets the world go on, with turns and troubles, up to `end` or the first violation.
    fn go_on_until(&mut self, end: u64) {
        while self.oracle.violation().is_none() {
            let next = self.agenda.peek().map_or(u64::MAX, |Reverse((at, _, _))| *at);
            if let Some(process) = self.world.next_turn(next.min(end)) {
                self.turn(process);
            } else if next <= end {
                let Some(Reverse((_, _, due))) = self.agenda.pop() else { return };
                self.happen(due);
            } else {
                return;
            }
        }
    }

    fn turn(&mut self, process: usize) {
        let now = self.world.now();
        let Some(node) = &mut self.nodes[process] else { return };
        let turn = node.turn(now, &self.settings, &mut self.chance, &mut self.oracle);
        let (me, over, replies) = (node.me, node.over, std::mem::take(&mut node.server.outbox));
        self.world.wake_at(process, turn.due.max(now + 1));
        if let Some(view) = turn.active
            && self.settings.canary != Some(Canary::NoActiveCheck)
        {
            let others = self.nodes.iter().flatten().filter(|n| n.me != me).filter_map(|n| Some((n.me, n.may_act_in(now)?)));
            self.oracle.active(now, me, view, others);
        }
        for reply in replies {
            self.send(Message::Reply(reply));
        }
        if over {
            self.end(process, true);
            let at = now + self.draw_restart();
            self.enter(at, Due::Restart { node: me.node.0 });
        }
    }

    /// Sends something between a client and a process. It may be lost only with the process.
    fn send(&mut self, message: Message) {
        let slot = self.free_messages.pop().unwrap_or_else(|| {
            self.messages.push(None);
            self.messages.len() - 1
        });
        self.messages[slot] = Some(message);
        let at = self.world.now() + self.chance.u64(100..5_000);
        self.enter(at, Due::Arrive { slot });
    }

    fn arrive(&mut self, slot: usize) {
        self.free_messages.push(slot);
        match self.messages[slot].take().expect("on its way") {
            Message::Request { process, request } => {
                if let Some(node) = &mut self.nodes[process] {
                    node.server.inbox.push_back(request);
                    self.world.wake(process);
                }
            }
            Message::Reply(Reply { client, number, result }) => {
                let now = self.world.now();
                match result {
                    Ok(output) => {
                        if let Some(operation) = self.clients[client].take(now, number, output) {
                            self.history.push(operation);
                            self.replies += 1;
                            self.call_later(client);
                        }
                    }
                    Err(leader) => {
                        let nodes = self.settings.nodes;
                        self.clients[client].target = match leader {
                            Some(leader) if self.chance.u8(..8) != 0 => leader.node.0,
                            _ => self.chance.u16(..nodes),
                        };
                        let at = now + self.chance.u64(500..10_000);
                        self.enter(at, Due::Send { client, number });
                    }
                }
            }
        }
    }

    fn call_later(&mut self, client: usize) {
        let span = self.settings.think;
        let at = self.world.now() + self.chance.u64(span.0..=span.1.max(span.0));
        self.enter(at, Due::Call { client });
    }

    fn call(&mut self, client: usize) {
        let now = self.world.now();
        if self.clients[client].is_waiting() || (self.closing && self.clients[client].wanted.is_empty()) {
            return;
        }
        self.values += 1;
        self.clients[client].call(now, self.values, &mut self.chance);
        let number = self.clients[client].number();
        self.enter(now + self.settings.patience_ns, Due::GiveUp { client, number });
        self.send_request(client, number);
    }

    /// Sends a client's open request to the node that it thinks leads, if that request is still open.
    fn send_request(&mut self, client: usize, number: u64) {
        let Some(request) = self.clients[client].request().filter(|r| r.number == number).cloned() else { return };
        let target = self.clients[client].target;
        match self.current[usize::from(target)] {
            Some(process) => self.send(Message::Request { process, request }),
            None => {
                self.clients[client].target = self.chance.u16(..self.settings.nodes);
                let at = self.world.now() + self.chance.u64(500..10_000);
                self.enter(at, Due::Send { client, number });
            }
        }
    }

    fn draw_restart(&mut self) -> u64 {
        let span = self.settings.restart;
        self.chance.u64(span.0..=span.1.max(span.0))
    }

    /// A process ends, cleanly or by SIGKILL.
    fn end(&mut self, process: usize, cleanly: bool) {
        let Some(node) = self.nodes[process].take() else { return };
        self.oracle.tell(self.world.now(), || format!("{} ends{}", node.me, if cleanly { "" } else { " by SIGKILL" }));
        if cleanly {
            // The threads give their robust futexes back first, so the kernel has nothing to say (TRAPS 28).
            node.set_death_words(0);
        }
        self.world.kill(process, Some(node.death_words()));
        self.current[usize::from(node.me.node.0)] = None;
    }

    fn happen(&mut self, due: Due) {
        let now = self.world.now();
        self.oracle.tell(now, || format!("{due:?}"));
        match due {
            Due::Kill => {
                // Sometimes several at once.
                while let Some(process) = self.dispensable() {
                    self.kills += 1;
                    let node = self.nodes[process].as_ref().expect("alive").me.node.0;
                    self.end(process, false);
                    let at = now + self.draw_restart();
                    self.enter(at, Due::Restart { node });
                    if self.chance.u8(..4) != 0 {
                        break;
                    }
                }
                self.enter_after(self.settings.kill_every_ns, Due::Kill);
            }
            Due::Leave => {
                if let Some(process) = self.dispensable()
                    && !self.world.is_paused(process)
                {
                    let node = self.nodes[process].as_mut().expect("alive");
                    node.leave(now, &mut self.chance, &mut self.oracle);
                    self.world.wake(process);
                }
                self.enter_after(self.settings.leave_every_ns, Due::Leave);
            }
            Due::DeclareDead => {
                if let Some(process) = self.dispensable() {
                    self.nodes[process].as_ref().expect("alive").set_death_words(life::OWNER_DIED);
                }
                self.enter_after(Some(300_000), Due::DeclareDead);
            }
            Due::Call { client } => self.call(client),
            Due::Send { client, number } => self.send_request(client, number),
            Due::Arrive { slot } => self.arrive(slot),
            Due::GiveUp { client, number } => {
                if let Some(operation) = self.clients[client].give_up(number) {
                    self.history.push(operation);
                    self.clients[client].target = self.chance.u16(..self.settings.nodes);
                    self.call_later(client);
                }
            }
            Due::Restart { node } => {
                if self.current[usize::from(node)].is_none() {
                    self.start(node);
                }
            }
            Due::Pause => {
                if let Some(process) = self.anybody() {
                    self.oracle.tell(now, || format!("{} is paused", self.nodes[process].as_ref().expect("alive").me));
                    self.world.pause(process);
                    let span = self.settings.pause;
                    let until = now + self.chance.u64(span.0..=span.1.max(span.0));
                    self.enter(until, Due::Resume { process });
                }
                self.enter_after(self.settings.pause_every_ns, Due::Pause);
            }
            Due::Resume { process } => self.world.resume(process),
            Due::Partition => {
                self.divide();
                let span = self.settings.partition;
                let until = now + self.chance.u64(span.0..=span.1.max(span.0));
                self.enter(until, Due::Heal);
                self.enter_after(self.settings.partition_every_ns, Due::Partition);
            }
            Due::Heal => self.world.heal(),
            Due::KillNic => {
                if let Some(process) = self.dispensable() {
                    self.world.kill_nic(process);
                }
                self.enter_after(self.settings.nic_every_ns, Due::KillNic);
            }
            Due::ChangeLease => {
                let lease_ns = self.chance.u64(20_000..150_000);
                if let Some(process) = self.anybody()
                    && let Some(node) = &mut self.nodes[process]
                {
                    node.set_lease_ns(now, &mut self.chance, lease_ns);
                    self.world.wake(process);
                }
                self.enter_after(self.settings.lease_change_every_ns, Due::ChangeLease);
            }
        }
    }

    fn alive(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.nodes.len()).filter(|p| self.nodes[*p].is_some())
    }

    fn anybody(&mut self) -> Option<usize> {
        let alive: Vec<usize> = self.alive().collect();
        self.chance.choice(alive).filter(|p| !self.world.is_paused(*p))
    }

    /// A process that may die without ending the service: the newest view lists another replica, and another coordinator, that run and that nobody suspects (a
    /// replica that is suspected while the other one dies may be on its way out itself), and every member that runs is connected with every
    /// coordinator, dead or alive. (A newcomer that has not yet met the others can't decide a view with their memory.)
    fn dispensable(&mut self) -> Option<usize> {
        let victim = self.chance.choice(self.alive().collect::<Vec<_>>())?;
        let view = self.oracle.newest()?;
        let others = || self.nodes.iter().enumerate().filter(|(p, _)| *p != victim).filter_map(|(p, n)| Some((p, n.as_ref()?)));
        let well = |p: usize, n: &Node<HOST>| {
            let suspected = self.nodes.iter().flatten().any(|other| other.core.suspicion(n.me).is_some());
            !n.leaving && !suspected && !self.world.is_paused(p)
        };
        let left = |role: Roles| others().filter(|(p, n)| view.member(n.me).is_some_and(|m| m.roles.has(role)) && well(*p, n)).count();
        let survives = left(Roles::REPLICA) > 0 && left(Roles::COORDINATOR) > 0;
        let met =
            others().filter(|(_, n)| view.member(n.me).is_some()).all(|(_, n)| view.coordinators().all(|c| n.core.peer_of(c.id).is_some()));
        // Who is asked by RPC has to be there to answer.
        let answers = !self.settings.worn || left(Roles::COORDINATOR) >= ballot::majority(view.coordinators().count());
        (survives && met && answers).then_some(victim)
    }

    /// Divides the processes in two, both ways or only one.
    fn divide(&mut self) {
        let alive: Vec<usize> = self.alive().collect();
        let (one, other): (Vec<usize>, Vec<usize>) = alive.iter().partition(|_| self.chance.bool());
        if self.chance.bool() {
            self.world.partition(&one, &other);
        } else {
            for a in &one {
                for b in &other {
                    self.world.block(*a, *b);
                }
            }
        }
    }

    /// All trouble ends.
    fn heal_all(&mut self) {
        self.world.heal();
        let paused: Vec<usize> = self.alive().filter(|p| self.world.is_paused(*p)).collect();
        for process in paused {
            self.world.resume(process);
        }
        self.world.set_faults(Faults { turn: self.settings.faults.turn, ..Faults::calm() });
        // What had been planned happens no more, but for the dead, who come back, and the clients.
        let planned: Vec<_> = self.agenda.drain().collect();
        for Reverse((at, order, due)) in planned {
            match due {
                Due::Restart { node } => self.enter(self.world.now() + 1, Due::Restart { node }),
                Due::Call { .. } | Due::Send { .. } | Due::Arrive { .. } | Due::GiveUp { .. } => {
                    self.agenda.push(Reverse((at, order, due)))
                }
                Due::Kill
                | Due::Leave
                | Due::Pause
                | Due::Resume { .. }
                | Due::Partition
                | Due::Heal
                | Due::KillNic
                | Due::ChangeLease
                | Due::DeclareDead => {}
            }
        }
        // Patience enough for whatever a healthy cluster does.
        self.settings.patience_ns = self.settings.patience_ns.max(500_000);
    }

    /// The cluster has to come together: every node a replica of one active view, and in the end all of them equal.
    fn recover(&mut self) {
        if !self.wait_for("every node is a replica of one active view", Self::is_whole) {
            return;
        }
        // Every key is read once more, when all that clients had begun is over.
        self.closing = true;
        if !self.wait_for("all requests come to an end", |c| c.clients.iter().all(|client| !client.is_waiting())) {
            return;
        }
        self.clients[0].wanted = (1..=self.settings.keys).collect();
        self.enter(self.world.now() + 1, Due::Call { client: 0 });
        if !self.wait_for("every key can be read", |c| c.clients[0].wanted.is_empty()) {
            return;
        }
        self.wait_for("all replicas are equal", Self::is_equal);
    }

    /// Goes on until `done`, or until it is clear that it will not be. Returns whether it was.
    fn wait_for(&mut self, what: &str, done: impl Fn(&Self) -> bool) -> bool {
        const STEP_NS: u64 = 50_000;
        // Where it is not asked for, it is not waited for long.
        let steps = if self.must_recover() { 400 } else { 40 };
        for _ in 0..steps {
            if self.oracle.violation().is_some() {
                return false;
            }
            if done(self) {
                return true;
            }
            if self.has_ended() {
                return false;
            }
            self.go_on_until(self.world.now() + STEP_NS);
        }
        if !self.must_recover() {
            self.stalled = true;
            return false;
        }
        let mut state = String::new();
        for node in self.nodes.iter().flatten() {
            state += &format!(
                "\n  {} knows view {}, leased {}, {:?}, applied {} of {}, committed {}, alone {}, lagging {:?}",
                node.me,
                node.core.view_number(),
                node.core.lease().view(),
                node.engine.standing(),
                node.engine.applied(),
                node.engine.last(),
                node.engine.committed(),
                node.engine.is_alone(),
                node.engine.lagging().collect::<Vec<_>>()
            );
        }
        let newest = self.oracle.newest().cloned();
        self.oracle.violated(self.world.now(), format!("not reached: {what}; newest view {newest:?}{state}"));
        false
    }

    /// See [`Report::stalled`].
    fn must_recover(&self) -> bool {
        HOST && !self.settings.worn
    }

    /// Whether no replica of the newest view runs. That takes a crash and a wrong presumption at once, the one on its way when the other
    /// comes: a view drops the last replica only for certain, and nobody is killed who is known to be needed. Tests bound how often it happens.
    fn has_ended(&self) -> bool {
        let runs = |id: ProcessId| self.nodes.iter().flatten().any(|n| n.me == id);
        self.oracle.newest().is_some_and(|view| !view.with_roles(Roles::REPLICA).any(|m| runs(m.id)))
    }

    fn is_equal(&self) -> bool {
        let replicas = self.nodes.iter().flatten().filter(|n| self.settings.roles[usize::from(n.me.node.0)].has(Roles::REPLICA));
        let mut all = replicas.map(|n| (n.engine.applied(), n.machine.digest()));
        let first = all.next();
        all.all(|state| Some(state) == first)
    }

    /// What the clients saw.
    fn judge(&mut self) {
        for client in 0..self.clients.len() {
            let number = self.clients[client].number();
            if let Some(operation) = self.clients[client].give_up(number) {
                self.history.push(operation);
            }
        }
        if self.oracle.violation().is_some() {
            return;
        }
        match check(&Store, &self.history) {
            Verdict::Linearizable => {}
            Verdict::Violation(why) => self.oracle.violated(self.world.now(), format!("what clients saw has no order: {why}")),
            Verdict::Undecided { key, steps } => {
                self.oracle.violated(self.world.now(), format!("undecided after {steps} steps at key {key:?}: make the history smaller"));
            }
        }
    }

    fn is_whole(&self) -> bool {
        let now = self.world.now();
        let Some(view) = self.oracle.newest() else { return false };
        let all_run = self.current.iter().all(Option::is_some);
        let all_replicas =
            view.with_roles(Roles::REPLICA).count() == self.settings.roles.iter().filter(|roles| roles.has(Roles::REPLICA)).count();
        let all_know = self.nodes.iter().flatten().all(|n| n.core.view_number() == view.number && view.member(n.me).is_some());
        let acting = self.nodes.iter().flatten().filter(|n| n.may_act_in(now) == Some(view.number)).count();
        let leading = self.nodes.iter().flatten().filter(|n| n.engine.standing() == Standing::Primary).count();
        all_run && all_replicas && all_know && acting >= 1 && leading == 1
    }
}
