//! A cluster on one host, over the simulated fabric. Each node has the same turns as a real one.

use martlet_fabric::primitive::Ordering;
use martlet_fabric::sim::{DeathWords, Endpoint, Faults, World};
use martlet_fabric::{Fabric, Identity, Incarnation, LocalRegion, NodeId, PeerKind};
use martlet_protocol::basics::layout::{LIFE, MAX_WATCHERS, Sizes, life, regions};
use martlet_protocol::basics::{ProcessId, Time, ViewNumber};
use martlet_protocol::detector::wardens::Secret;
use martlet_protocol::membership::message::Message;
use martlet_protocol::membership::{Authority, Config, Core, Event, Leases, Milestone, Roles, View};

pub struct Node {
    pub index: usize,
    pub fabric: Endpoint<true>,
    pub core: Core,
    pub id: ProcessId,
    pub excluded: bool,
    /// How many datagrams it was given.
    pub heard: u64,
    /// Until when it sleeps, if nodes are drowsy.
    pub asleep_until: u64,
    pub milestones: Vec<(u64, Milestone)>,
}

/// The cluster, and what was observed of it.
pub struct Cluster {
    pub world: World<true>,
    pub nodes: Vec<Node>,
    pub leases: Leases,
    pub authority: Authority,
    /// Whether nodes have little to do besides their heartbeats, and take no turn before they have something to do.
    pub drowsy: bool,
    /// The time between two looks at death words.
    pub death_interval_ns: u64,
    /// The primary counts every learner of its view as soon as it sees it.
    pub teaches: bool,
    /// The node that gets no datagrams, if any.
    pub deaf: Option<usize>,
    /// Every view that was ever seen decided, by number.
    pub decided: Vec<View>,
    pub newest_active: ViewNumber,
}

pub const LEASE_NS: u64 = 2_000_000;
/// How long a process asks in vain to be taken in before it gives up.
pub const PATIENCE_NS: u64 = 80_000_000;
pub const DUTY_NS: u64 = 20_000;

impl Cluster {
    pub fn new(seed: u64, faults: Faults, leases: Leases) -> Cluster {
        Cluster {
            world: World::new(seed, faults),
            nodes: Vec::new(),
            leases,
            authority: Authority::Views,
            drowsy: false,
            death_interval_ns: 0,
            teaches: true,
            deaf: None,
            decided: Vec::new(),
            newest_active: ViewNumber(0),
        }
    }

    pub fn config(&self, id: ProcessId) -> Config {
        let (seldom_ns, broadcast_ns) = if self.drowsy { (5_000_000, 5_000_000) } else { (200_000, 1_000_000) };
        Config {
            leases: self.leases,
            authority: self.authority,
            lease_ns: LEASE_NS,
            heartbeat_interval_ns: 500_000,
            death_interval_ns: self.death_interval_ns,
            broadcast_interval_ns: broadcast_ns,
            broadcast_timeout_ns: PATIENCE_NS / 4,
            pull_interval_ns: seldom_ns,
            resend_interval_ns: seldom_ns,
            // No test here tries to find a secret.
            digest: Some(|secret| std::array::from_fn(|byte| secret[byte % secret.len()] ^ 0x5a)),
            ..Config::new(id, Roles::COORDINATOR.with(Roles::REPLICA))
        }
    }

    pub fn start(&mut self, node: u16, incarnation: u64, bootstrap: bool) -> usize {
        self.start_as(Roles::COORDINATOR.with(Roles::REPLICA), node, incarnation, bootstrap)
    }

    pub fn start_as(&mut self, wanted: Roles, node: u16, incarnation: u64, bootstrap: bool) -> usize {
        let id = ProcessId { node: NodeId(node), incarnation: Incarnation(incarnation) };
        let identity = Identity { node: id.node, incarnation: id.incarnation, kind: PeerKind::Member };
        let sizes = Sizes { log_ring_bytes: 4096, client_ring_bytes: 4096 };
        let (index, mut fabric) = self.world.spawn(identity, &regions(sizes));
        let words = fabric.memory(LocalRegion::Public(LIFE)).unwrap();
        for watcher in 0..MAX_WATCHERS {
            words[life::death(0, watcher)].store(life::WAITERS | 1000, Ordering::SeqCst);
        }
        words[life::THREADS].store(1, Ordering::SeqCst);
        let now = Time(self.world.now());
        let mut core = Core::new(now, Config { roles: wanted, ..self.config(id) });
        core.pledge(&fabric, secret_of(id));
        if bootstrap {
            core.bootstrap(now, &mut fabric);
        } else {
            core.join(now);
        }
        self.world.wake(index);
        self.nodes.push(Node { index, fabric, core, id, excluded: false, heard: 0, asleep_until: 0, milestones: Vec::new() });
        self.nodes.len() - 1
    }

    pub fn kill(&mut self, node: usize) {
        let words = (0..MAX_WATCHERS).map(|w| life::death(0, w)).collect();
        self.world.kill(self.nodes[node].index, Some(DeathWords { region: LIFE, threads: vec![words] }));
    }

    /// Gives a node a datagram with this message from another one.
    pub fn hear(&mut self, at: usize, from: usize, message: &Message) {
        let mut datagram = Vec::new();
        message.encode(&mut datagram);
        let (now, from) = (Time(self.world.now()), self.nodes[from].id);
        let Node { core, fabric, .. } = &mut self.nodes[at];
        let from = core.peer_of(from).expect("all have met");
        core.handle_datagram(now, fabric, from, &datagram);
    }

    /// The nodes that the newest view lists, by seniority.
    pub fn seniority(&self) -> Vec<usize> {
        self.newest().members.iter().map(|m| self.nodes.iter().position(|n| n.id == m.id).expect("it was started")).collect()
    }

    pub fn run(&mut self, ns: u64) {
        let until = self.world.now() + ns;
        while let Some(index) = self.world.next_turn(until) {
            if let Some(at) = self.nodes.iter().position(|n| n.index == index) {
                self.turn(at);
                self.check();
            }
        }
    }

    pub fn turn(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        let now = Time(self.world.now());
        if now.0 < node.asleep_until {
            return;
        }
        while let Some(event) = node.fabric.event() {
            node.core.handle_peer(now, &mut node.fabric, event);
        }
        let mut datagram = Vec::new();
        while let Some(from) = node.fabric.receive(&mut datagram) {
            if self.deaf == Some(at) {
                continue;
            }
            node.heard += 1;
            node.core.handle_datagram(now, &mut node.fabric, from, &datagram);
        }
        while let Some(completion) = node.fabric.poll() {
            node.core.handle_completion(now, &mut node.fabric, completion);
        }
        node.core.tick(now, &mut node.fabric, true);
        while let Some(event) = node.core.poll_event() {
            if let (Event::View(view), Ok(_)) = (&event, std::env::var("MARTLET_TRACE")) {
                println!("{:>12} {} view {} {:?} departed {:?}", now.0, node.id, view.number, roles(view), view.departed);
            }
            match event {
                Event::View(view) => match self.decided.iter().find(|v| v.number == view.number) {
                    Some(known) => assert_eq!(*known, view, "two views of one number"),
                    None => self.decided.push(view),
                },
                Event::Excluded => node.excluded = true,
                Event::Milestone(m) => {
                    if std::env::var("MARTLET_TRACE").is_ok() {
                        println!("{:>12} {} {m:?}", now.0, node.id);
                    }
                    node.milestones.push((now.0, m));
                }
            }
        }
        // The memory's owner stores its heartbeat plainly, which wakes no other process. So the next turn is asked for.
        let soon = now.0 + DUTY_NS;
        if self.drowsy {
            node.asleep_until = node.core.deadline().0.max(soon);
        }
        self.world.wake_at(node.index, soon.max(node.asleep_until));
        // Stands in for the engine.
        if self.teaches
            && let Some(view) = node.core.view().cloned()
            && view.primary().is_some_and(|p| p.id == node.id)
        {
            for learner in view.with_roles(Roles::LEARNER) {
                node.core.promote(now, &mut node.fabric, learner.id);
            }
        }
    }

    /// Checks Theorem B.1 at this instant, over all processes: a paused one could wake and act right now.
    pub fn check(&mut self) {
        let now = Time(self.world.now());
        for node in &self.nodes {
            let lease = node.core.lease();
            if self.world.is_alive(node.index) && lease.active(lease.view(), now) {
                assert!(lease.view() >= self.newest_active, "{} is active in {} after {}", node.id, lease.view(), self.newest_active);
            }
        }
        for node in &self.nodes {
            let lease = node.core.lease();
            if self.world.is_alive(node.index) && lease.active(lease.view(), now) {
                self.newest_active = self.newest_active.max(lease.view());
            }
        }
    }

    pub fn active(&self) -> Vec<(ProcessId, ViewNumber)> {
        let now = Time(self.world.now());
        let alive = self.nodes.iter().filter(|n| self.world.is_alive(n.index) && !self.world.is_paused(n.index));
        alive.filter(|n| n.core.lease().active(n.core.lease().view(), now)).map(|n| (n.id, n.core.lease().view())).collect()
    }

    pub fn newest(&self) -> &View {
        self.decided.iter().max_by_key(|v| v.number).expect("a view")
    }

    pub fn when(&self, node: usize, wanted: impl Fn(&Milestone) -> bool) -> Option<u64> {
        self.nodes[node].milestones.iter().find(|(_, m)| wanted(m)).map(|(at, _)| *at)
    }

    pub fn three(seed: u64, faults: Faults, leases: Leases) -> Cluster {
        let mut c = Cluster::new(seed, faults, leases);
        c.start(0, 1, true);
        c.start(1, 1, false);
        c.start(2, 1, false);
        c.run(5_000_000);
        c
    }
}

/// The secret that a process has left with its warden.
pub fn secret_of(id: ProcessId) -> Secret {
    let own = ((id.node.0 as u8) << 4) ^ id.incarnation.0 as u8;
    std::array::from_fn(|byte| own ^ (byte as u8 + 1))
}

pub fn roles(view: &View) -> Vec<(u16, u64, bool)> {
    view.members.iter().map(|m| (m.id.node.0, m.id.incarnation.0, m.roles.has(Roles::REPLICA))).collect()
}
