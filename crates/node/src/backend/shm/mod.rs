//! Shared memory: processes of one host.

mod waker;

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use martlet_fabric::host::{OwnRegion, WakeReason};
use martlet_fabric::primitive::{Ordering, fence};
use martlet_fabric::shm::{MAX_PARK_WORDS, MemoryNeed, ParkWord, ShmConfig, ShmFabric};
use martlet_fabric::{BootstrapCounters, HostLock};
use martlet_fabric::{Identity, Incarnation, NodeId, PeerId, PeerKind, Region, RegionName, RegionSpec, Remote};
use martlet_protocol::basics::Time;
use martlet_protocol::basics::layout::{LIFE, MAX_MEMBERS, life};

use super::{Backend, Rest, StartError, regions};
use crate::clock;
use crate::config::{Cluster, Settings};
use crate::version;
use waker::Watch;

/// The longest sleep of a node that serves sockets and cannot wait for them, in nanoseconds.
const WITHOUT_SOCKETS_NS: u64 = 1_000_000;

fn config(cluster: &Cluster, identity: Identity) -> ShmConfig {
    let (members, clients) = regions(cluster);
    let config = ShmConfig::new(&cluster.fabric_name(), cluster.key().bytes(), identity, members, clients);
    ShmConfig { protocol: version::protocol(), rendezvous: cluster.rendezvous(), ..config }
}

impl Backend for ShmFabric {
    type Rest = ShmRest;
    type Claim = HostLock;
    const FIXED_CLAIM: bool = false;

    fn memory_need(settings: &Settings) -> MemoryNeed {
        let cluster = settings.cluster();
        let identity = Identity { node: settings.id(), incarnation: Incarnation(0), kind: PeerKind::Member };
        config(cluster, identity).memory(cluster.config().nodes.len() - 1)
    }

    fn start_node(settings: &Settings, identity: Identity) -> Result<ShmFabric, StartError> {
        Ok(ShmFabric::start(ShmConfig { closed: true, ..config(settings.cluster(), identity) })?)
    }

    fn start_client(cluster: &Cluster, identity: Identity) -> Result<ShmFabric, StartError> {
        // Root looks after other users' clusters. Of another user's processes it trusts only those of the user that the cluster belongs to, and no member
        // does so.
        let further_user = cluster.owner().filter(|_| rustix::process::geteuid().is_root());
        Ok(ShmFabric::start(ShmConfig { prefault: false, further_user, ..config(cluster, identity) })?)
    }

    /// A node's processes run on this host, one after the other. A cluster does not outlive its host, so the clock need not either.
    fn incarnation() -> u64 {
        clock::now().0
    }

    fn open(&self) {
        self.open();
    }

    fn connect(&self, _cluster: &Cluster, node: NodeId) {
        self.connect(node);
    }

    fn disconnect(&self, node: NodeId) {
        self.disconnect(node);
    }

    fn identity(&self) -> Identity {
        self.identity()
    }

    fn last_refusal(&self) -> Option<String> {
        self.last_refusal()
    }

    fn misfit(&self, within: Duration) -> Option<String> {
        self.misfit(within)
    }

    fn connections(&self) -> BootstrapCounters {
        self.bootstrap_counters()
    }

    fn malformed_datagrams(&self) -> u64 {
        self.datagram_counters().malformed
    }

    fn bell(&self) -> Box<dyn Fn() + Send> {
        let regions = self.own_regions();
        Box::new(move || regions.nudge())
    }

    fn own_region(&self, name: RegionName) -> Option<OwnRegion> {
        ShmFabric::own_region(self, name)
    }

    fn claim_founding(cluster: &Cluster, _me: NodeId) -> io::Result<Option<HostLock>> {
        cluster.rendezvous().claim_founding(&cluster.fabric_name())
    }

    /// A process begins to listen before it does anything else.
    fn is_absent(cluster: &Cluster, node: NodeId) -> io::Result<bool> {
        Ok(!cluster.rendezvous().is_running(&cluster.fabric_name(), node)?)
    }

    fn strangers(cluster: &Cluster) -> io::Result<Vec<NodeId>> {
        let mut running = Vec::new();
        for node in (0..MAX_MEMBERS as u16).map(NodeId).filter(|node| cluster.node(*node).is_none()) {
            if cluster.rendezvous().is_running(&cluster.fabric_name(), node)? {
                running.push(node);
            }
        }
        Ok(running)
    }

    fn private(processes: &[(Identity, RegionSpec)]) -> io::Result<Option<Vec<ShmFabric>>> {
        ShmFabric::private(processes).map(Some)
    }

    fn rewind(&mut self) {
        self.rewind();
    }

    fn announce(&mut self) {
        self.announce();
    }

    fn stay_awake(&mut self) {
        self.stay_awake();
    }

    fn sleep_at_most(&mut self, timeout: Duration) {
        self.sleep(&[], Some(timeout));
    }
}

/// Sleeps on words in memory, or on sockets; module `waker` says which thread listens at the other place meanwhile.
#[derive(Debug)]
pub struct ShmRest {
    watch: Watch,
    /// The peers whose deaths end a sleep, and the node that watches.
    mortals: (Vec<PeerId>, NodeId),
    /// Their death words: for each process, those of as many living threads as there is room for.
    watched: Vec<ParkWord>,
}

impl ShmRest {
    /// Finds the words to watch anew. A word that changes between this and the sleep keeps the thread awake, and the look between the two sees everything that
    /// had changed before.
    fn find_words(&mut self, fabric: &ShmFabric) {
        let (peers, me) = &self.mortals;
        let each = (MAX_PARK_WORDS / peers.len().max(1)).max(1);
        self.watched.clear();
        for peer in peers {
            let Some(signs) = fabric.peer_memory(*peer, LIFE) else { continue };
            let load = |index: usize| {
                let word = signs[index].load(Ordering::Relaxed);
                fence(Ordering::Acquire);
                word
            };
            let words = (0..life::threads(load(life::THREADS))).map(|thread| life::death(thread, usize::from(me.0)));
            let alive =
                words.map(|index| (index, load(index))).filter(|(_, word)| word & life::TID_MASK != 0 && word & life::OWNER_DIED == 0);
            let watch = |(index, word)| ParkWord {
                at: Remote { peer: *peer, region: Region::Public(LIFE), offset: index * 8 },
                expected: word as u32,
            };
            self.watched.extend(alive.take(each).map(watch));
        }
        self.watched.truncate(MAX_PARK_WORDS);
    }
}

impl Rest<ShmFabric> for ShmRest {
    fn start(_: &Settings, fabric: &ShmFabric, sockets: Option<BorrowedFd<'_>>, stop: BorrowedFd<'_>) -> io::Result<ShmRest> {
        Ok(ShmRest { watch: Watch::start(fabric, sockets, stop)?, mortals: (Vec::new(), NodeId(0)), watched: Vec::new() })
    }

    fn hears_at_sockets(&self) -> bool {
        self.watch.has_crier()
    }

    fn watch_deaths(&mut self, fabric: &ShmFabric, peers: impl Iterator<Item = PeerId>, me: NodeId) {
        self.mortals = (peers.collect(), me);
        self.find_words(fabric);
    }

    fn has_seen_death(&self, fabric: &ShmFabric) -> bool {
        self.watched.iter().any(|watched| {
            let word = fabric.peer_memory(watched.at.peer, LIFE).map(|signs| signs[watched.at.offset / 8].load(Ordering::Relaxed));
            word.is_some_and(|word| word as u32 != watched.expected)
        })
    }

    fn tend(&mut self, now: Time, among_sockets_soon: bool) {
        self.watch.tend_crier(now, among_sockets_soon);
    }

    fn prepare(&mut self, fabric: &mut ShmFabric, at_sockets: bool) {
        fabric.announce();
        match at_sockets {
            true => self.watch.arm_crier(fabric, &self.watched),
            false => self.watch.arm_waker(),
        }
    }

    fn cancel(&mut self, fabric: &mut ShmFabric) {
        fabric.stay_awake();
        self.watch.disarm();
    }

    fn sleep(&mut self, fabric: &mut ShmFabric, at_sockets: bool, at_most_ns: u64, among_sockets: impl FnOnce(u64) -> bool) {
        let in_memory = |fabric: &mut ShmFabric, ns| Some(fabric.sleep(&self.watched, Some(Duration::from_nanos(ns))));
        let reason = match at_sockets {
            true => {
                let found = fabric.find_work(&self.watched);
                if found.is_none() && !among_sockets(at_most_ns) {
                    // The kernel may be out of memory: until that is over, sockets are looked at often instead of being waited for.
                    in_memory(fabric, at_most_ns.min(WITHOUT_SOCKETS_NS))
                } else {
                    fabric.stay_awake();
                    found
                }
            }
            false => in_memory(fabric, at_most_ns),
        };
        self.watch.disarm();
        if let Some(WakeReason::Word(_)) = reason {
            // The next turn sees what the word has become. Another thread of that process may be alive, and has not been watched so far.
            self.find_words(fabric);
        }
    }
}
