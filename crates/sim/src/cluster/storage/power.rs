//! Lives with disks: how a process begins with one, which nodes found the cluster, and what happens when the power goes everywhere.

use fastrand::Rng;
use martlet_fabric::NodeId;
use martlet_protocol::basics::ProcessId;
use martlet_protocol::founding;
use martlet_protocol::founding::simulated::Lock;
use martlet_protocol::membership::Roles;

use super::disk::{Disk, Disks, End};
use crate::cluster::engine::Engine;
use crate::cluster::faults::Fault;
use crate::cluster::life::{Cluster, Due};
use crate::cluster::settings::Settings;

/// How often a process that may found the cluster looks around, in nanoseconds.
const LOOK_INTERVAL_NS: u64 = 10_000;
/// How often a process that may not found it looks around, in nanoseconds.
const UNABLE_INTERVAL_NS: u64 = 50_000;
/// How long processes that are able to found the cluster again wait for the others.
const RETURN_PATIENCE_NS: u64 = 200_000;

/// What outlives processes.
pub struct Lasting {
    /// By node.
    pub disks: Vec<Disk>,
    /// By node: its last life ended by itself, and knew a view; the next life joins the processes that have one.
    pub joins: Vec<bool>,
    /// By node: as which life it is to come back next.
    pub known_as: Vec<Option<u64>>,
    /// Whether a process of the host has claimed the founding of the cluster.
    lock: Lock,
}

impl Lasting {
    /// Empty disks.
    pub fn new(nodes: usize, disk: impl Fn(u64) -> Disk) -> Lasting {
        Lasting {
            disks: (0..nodes as u64).map(disk).collect(),
            joins: vec![false; nodes],
            known_as: vec![None; nodes],
            lock: Lock::default(),
        }
    }
}

/// The surroundings of a process's turn, in a life with disks.
pub struct Place<'a, const HOST: bool> {
    pub disk: &'a mut Disk,
    pub ground: founding::simulated::Place<'a, HOST>,
}

/// How a process looks around for another one with a view.
pub fn founding_config(settings: &Settings, me: ProcessId) -> founding::Config {
    let both = Roles::COORDINATOR.with(Roles::REPLICA);
    let nodes = || (0..settings.nodes).map(NodeId);
    founding::Config {
        me,
        others: nodes().filter(|node| *node != me.node).collect(),
        founders: nodes().filter(|node| settings.roles[usize::from(node.0)].has(both)).collect(),
        look_interval_ns: LOOK_INTERVAL_NS,
        unable_interval_ns: UNABLE_INTERVAL_NS,
        return_patience_ns: RETURN_PATIENCE_NS,
        has_begun: false,
        has_held: false,
        all_here: true,
    }
}

/// The surroundings of a node's turn, where there are disks.
pub fn place<'a, const HOST: bool>(lasting: &'a mut Option<Lasting>, me: NodeId, current: &[Option<usize>]) -> Option<Place<'a, HOST>> {
    let Lasting { disks, lock, .. } = lasting.as_mut()?;
    let running = current.iter().map(Option::is_some).collect();
    Some(Place { disk: &mut disks[usize::from(me.0)], ground: founding::simulated::Place { me, lock, running } })
}

impl<E: Engine, const HOST: bool> Cluster<E, HOST> {
    /// The process of that node has ended: what it wrote is left, or part of it.
    pub(in crate::cluster) fn end_writing(&mut self, node: u16, how: End) {
        if let Some(Lasting { disks, joins, .. }) = &mut self.lasting {
            disks[usize::from(node)].end(how);
            joins[usize::from(node)] = false;
            // With disks, processes that were about to learn the first view of a founder that has died since may found the cluster again.
            if self.nodes.iter().flatten().all(|node| node.core().view().is_none()) {
                self.oracles.views_forgotten();
            }
        }
    }

    /// All hosts lose their power, and get it back one after another.
    pub(in crate::cluster) fn lose_power(&mut self, nth: u32, chance: &mut Rng) -> bool {
        let Some(disks) = self.settings.disks else { return false };
        self.tell(|_| format!("{}/{nth}: the power goes, everywhere", Fault::PowerLoss));
        for process in self.alive().collect::<Vec<_>>() {
            let node = self.name(process).node.0;
            if HOST {
                self.end(process, false);
            } else {
                self.nodes[process] = None;
                self.world.crash(process);
                self.current[usize::from(node)] = None;
                self.end_writing(node, End::Sudden);
            }
        }
        self.shutdown = None;
        self.start_all_again(disks, chance);
        true
    }

    /// No process runs. All nodes start one after another, from their disks.
    fn start_all_again(&mut self, disks: Disks, chance: &mut Rng) {
        if let Some(Lasting { joins, known_as, .. }) = &mut self.lasting {
            joins.fill(false);
            known_as.fill(None);
        }
        for node in 0..self.settings.nodes {
            let factor = if chance.u8(..8) < disks.late { 10 } else { 1 };
            let at = self.world.now() + factor * chance.u64(disks.dark.0..=disks.dark.1);
            self.enter(at, Due::Restart { node });
        }
    }

    /// All nodes are asked to end. Those that do not end soon enough are killed, as an operator or a service manager would do.
    pub(in crate::cluster) fn shut_down(&mut self, nth: u32, chance: &mut Rng) -> bool {
        if self.settings.disks.is_none() || self.shutdown.is_some() {
            return false;
        }
        // All at once, in any order, or one after another.
        let within_ns = *chance.choice(&[1, 2_000, 50_000, 2 * self.settings.broadcast_timeout_ns]).expect("there are some");
        self.tell(|_| format!("{}/{nth}: all nodes are asked to end, within {within_ns} ns", Fault::Shutdown));
        let now = self.world.now();
        for process in self.alive().collect::<Vec<_>>() {
            let at = now + chance.u64(..within_ns);
            self.enter(at, Due::Leave { process });
            if chance.u8(..8) == 0 {
                let grace_ns = chance.u64(..4 * self.settings.broadcast_timeout_ns);
                self.enter(at + grace_ns, Due::Perish { process });
            }
        }
        self.shutdown = Some(chance.fork());
        true
    }

    /// Starts all nodes again once all of them have ended.
    pub(in crate::cluster) fn start_again_after_shutdown(&mut self) {
        if self.shutdown.is_some() && self.alive().next().is_none() {
            let (mut chance, disks) = (self.shutdown.take().expect("just seen"), self.settings.disks.expect("only where there are disks"));
            self.tell(|_| "all nodes have ended, and start again".to_owned());
            self.start_all_again(disks, &mut chance);
        }
    }
}
