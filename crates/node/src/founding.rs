//! What `protocol`'s founding needs of a node: its cluster's configuration, and the backend's word on which nodes run.

use std::io;

use martlet_fabric::NodeId;
use martlet_protocol::basics::ProcessId;
use martlet_protocol::founding::{self, Config, Ground};

use crate::backend::Backend;
use crate::config::{Cluster, Settings};

/// Between two looks, in nanoseconds.
const LOOK_INTERVAL_NS: u64 = 2_000_000;
/// For how long the nodes that can found the cluster again wait for the rest of their group, in nanoseconds.
const RETURN_PATIENCE_NS: u64 = 1_000_000_000;
/// How often a node that cannot found anything looks whether that has changed, in nanoseconds.
const UNABLE_INTERVAL_NS: u64 = 20_000_000;

/// A process that knows no view, and may found its cluster.
pub(crate) type Founding<F> = founding::Founding<<F as Backend>::Claim>;

/// A node's cluster, on a backend.
#[derive(Debug)]
pub(crate) struct OnBackend<'a, F> {
    cluster: &'a Cluster,
    me: NodeId,
    /// Whether this process has returned with a log of this generation of the cluster.
    comes_back: bool,
    backend: std::marker::PhantomData<F>,
}

impl<'a, F: Backend> OnBackend<'a, F> {
    pub fn new(cluster: &'a Cluster, me: NodeId, comes_back: bool) -> Self {
        OnBackend { cluster, me, comes_back, backend: std::marker::PhantomData }
    }
}

impl<F: Backend> Ground for OnBackend<'_, F> {
    type Claim = F::Claim;
    type Error = io::Error;

    const FIXED: bool = F::FIXED_CLAIM;

    fn claim(&self) -> io::Result<Option<F::Claim>> {
        F::claim_founding(self.cluster, self.me)
    }

    /// A cluster that is founded again begins with the state of one node. Until that node is there, no other node founds anything, except those that have been
    /// in the new cluster already: for them it has begun.
    fn is_absent(&self, node: NodeId) -> io::Result<bool> {
        let begins = self.cluster.config().recovery.as_ref().is_some_and(|recovery| recovery.from == node.0);
        if begins && !self.comes_back {
            return Ok(false);
        }
        F::is_absent(self.cluster, node)
    }

    fn strangers(&self) -> io::Result<Vec<NodeId>> {
        F::strangers(self.cluster)
    }
}

/// How the process `me` looks around. `has_held`: an earlier life of this process has held the cluster's state.
pub(crate) fn config(settings: &Settings, me: ProcessId, has_held: bool) -> Config {
    let cluster = settings.cluster();
    Config {
        me,
        others: cluster.config().nodes.iter().map(|n| NodeId(n.number)).filter(|n| *n != me.node).collect(),
        founders: cluster.config().nodes.iter().filter(|n| n.may_found()).map(|n| NodeId(n.number)).collect(),
        look_interval_ns: LOOK_INTERVAL_NS,
        unable_interval_ns: UNABLE_INTERVAL_NS,
        return_patience_ns: RETURN_PATIENCE_NS,
        has_begun: cluster.generation() > 0 && cluster.config().durability.writes(),
        has_held,
        all_here: settings.all_here(),
    }
}

#[cfg(test)]
mod tests {
    use martlet_fabric::primitive::Ordering;
    use martlet_fabric::shm::{ShmConfig, ShmFabric};
    use martlet_fabric::{Fabric as _, Identity, Incarnation, PeerEvent, PeerKind};
    use martlet_fabric::{LocalRegion, PeerId, Region, Remote};
    use martlet_protocol::basics::layout::{self, BOARD, Component, SLOT_WORDS};
    use martlet_protocol::founding::Verdict;

    use super::*;
    use crate::clock;
    use crate::config::{ClusterConfig, Key, NodeConfig, NodeEntry, Role};

    struct Node {
        fabric: ShmFabric,
        members: Vec<(PeerId, ProcessId)>,
        founding: Founding<ShmFabric>,
    }

    /// Looks are due at once.
    fn config_at_once(cluster: &Cluster, identity: Identity) -> Config {
        let me = ProcessId { node: identity.node, incarnation: identity.incarnation };
        let node = NodeConfig::new(identity.node.0, "<cluster>");
        let settings = Settings::new(cluster.clone(), node).expect("valid").with_all_here(true);
        Config { look_interval_ns: 0, ..super::config(&settings, me, false) }
    }

    impl Node {
        fn start(cluster: &Cluster, number: u16) -> Node {
            let identity = Identity { node: NodeId(number), incarnation: Incarnation(1), kind: PeerKind::Member };
            let regions = (crate::engine::regions(cluster, cluster.sizes()), layout::client_regions(cluster.sizes()));
            let config = ShmConfig::new(&cluster.fabric_name(), cluster.key().bytes(), identity, regions.0, regions.1);
            let fabric = ShmFabric::start(ShmConfig { prefault: false, ..config }).expect("started");
            fabric.connect(NodeId(1 - number));
            let founding = Founding::<ShmFabric>::new(config_at_once(cluster, identity));
            Node { fabric, members: Vec::new(), founding }
        }

        fn turn(&mut self, cluster: &Cluster) -> Verdict {
            while let Some(event) = self.fabric.event() {
                if let PeerEvent::Up { peer, identity } = event {
                    self.members.push((peer, ProcessId { node: identity.node, incarnation: identity.incarnation }));
                }
            }
            let ground = OnBackend::<ShmFabric>::new(cluster, self.fabric.identity().node, false);
            let verdict = self.founding.look(clock::now(), &ground, &mut self.fabric, &self.members).expect("it can be told who runs");
            while let Some(completion) = self.fabric.poll() {
                self.founding.handle_completion(completion);
            }
            verdict
        }

        /// The verdict of the founding once it is not `Wait`, or after so many looks.
        fn verdict(&mut self, cluster: &Cluster, turns: u32) -> Verdict {
            for _ in 0..turns {
                match self.turn(cluster) {
                    Verdict::Wait => std::thread::yield_now(),
                    verdict => return verdict,
                }
            }
            Verdict::Wait
        }
    }

    /// Two nodes that are connected and know no view.
    fn two(purpose: &str) -> (Cluster, [Node; 2]) {
        let entry =
            |number| NodeEntry { number, redis: String::new(), address: String::new(), roles: vec![Role::Coordinator, Role::Replica] };
        let mut config = ClusterConfig::new(format!("founding-{purpose}-{}", std::process::id()), vec![entry(0), entry(1)]);
        config.key = Some(Key::generate().expect("randomness").to_hex().into());
        let cluster = Cluster::new(config).expect("valid");
        let mut nodes = [0, 1].map(|number| Node::start(&cluster, number));
        while nodes.iter().any(|node| node.members.is_empty()) {
            for node in &mut nodes {
                if let Some(PeerEvent::Up { peer, identity }) = node.fabric.event() {
                    node.members.push((peer, ProcessId { node: identity.node, incarnation: identity.incarnation }));
                }
            }
        }
        (cluster, nodes)
    }

    /// Does what a founder that is gone now did: it made node 1 an acceptor, and node 1 has not heard of any view.
    fn take(node: &mut Node) {
        let slot = Remote { peer: PeerId::SELF, region: Region::Public(SLOT_WORDS), offset: 3 * 8 };
        node.fabric.compare_and_swap(slot, 0, 0x1234, Component::Founding.token(u64::from(u32::MAX)));
        while node.fabric.poll().is_some() {}
    }

    #[test]
    fn one_that_sees_nobody_with_a_view_founds() {
        let (cluster, [mut first, _second]) = two("clear");
        assert_eq!(first.verdict(&cluster, 1000), Verdict::Found(None));
    }

    /// A node that was away while nodes were added knows an old list.
    #[test]
    fn nobody_founds_beside_a_node_that_runs_and_is_not_configured() {
        let (cluster, [mut first, second]) = two("stranger");
        let old = cluster.with(|config| config.nodes.truncate(1)).expect("valid");
        first.founding = Founding::<ShmFabric>::new(config_at_once(&old, first.fabric.identity()));
        second.fabric.memory(LocalRegion::Public(BOARD)).expect("offered")[0].store(7, Ordering::Release);
        assert_eq!(first.verdict(&old, 1000), Verdict::Wait, "it has a view");
        // Not connected, but it runs.
        first.members.clear();
        assert_eq!(first.verdict(&old, 1000), Verdict::Wait, "it may have a view");
        drop(second);
        // A process that another test starts has a copy of its descriptors until it executes its program, and counts as running for as long.
        while first.verdict(&old, 1000) != Verdict::Found(None) {
            std::thread::yield_now();
        }
    }

    #[test]
    fn nobody_founds_beside_an_acceptor_of_an_old_history_which_starts_over() {
        let (cluster, [mut first, mut second]) = two("taken");
        take(&mut second);
        assert_eq!(first.verdict(&cluster, 1000), Verdict::Wait, "it would take what stands in the slots for its own history's");
        assert_eq!(second.verdict(&cluster, 1000), Verdict::StartOver);
        assert_eq!(first.verdict(&cluster, 1000), Verdict::Wait, "not before it has gone");
    }

    #[test]
    fn an_acceptor_without_a_view_waits_for_who_may_tell_it_one() {
        let (cluster, [first, mut second]) = two("told");
        take(&mut second);
        first.fabric.memory(LocalRegion::Public(BOARD)).expect("offered")[0].store(7, Ordering::Release);
        assert_eq!(second.verdict(&cluster, 1000), Verdict::Wait);
    }
}
