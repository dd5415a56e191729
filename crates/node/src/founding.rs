//! Who founds the cluster: decides its first view, all by itself.
//!
//! A cluster may be founded once only, or there would be two. That can be made certain without asking anybody to decide: a view comes from a
//! founder or, in a chain, from a process that has one; so if no process has one, nobody can get one but by founding. A founder therefore
//!
//! 1. has the claim, which one process of the cluster can have at a time: on one host a name that goes with the process; over a network
//!    the first node of the configuration that may found is the one;
//! 2. sees of every other node that it is not running (which can be known on one host only), or that it is connected, its board shows no
//!    view, and nobody has made it an acceptor. A node that may be running but is not connected, a paused one say, may have a view: wait for it;
//! 3. sees all of this twice in a row, of the same processes, so that no view can have moved behind its back from a node looked at later to one
//!    looked at earlier: a process that has had a view never shows none again.
//!
//! Somebody can be an acceptor before it has heard of any view: a founder takes it in, uses it for the next view at once, and dies. With that the view may
//! have been decided, and others may tell of it; but if nobody has a view any more, what stands in its slots belongs to a history that is over, and would be
//! taken for the new one's. So whoever finds its own slots taken, and nobody with a view, **starts over**: its next incarnation has fresh ones.
//!
//! When all processes of a cluster have died their state has died with them. On one host the first to be started again founds it anew; over a
//! network all of them have to be back, since a node that is not heard from may be alive.

use std::io;

use martlet_fabric::primitive::Ordering;
use martlet_fabric::{Completion, LocalRegion, NodeId, PeerId, Region, Remote};
use martlet_protocol::basics::layout::{BOARD, Component, SLOT_WORDS, SLOTS, token_rest};
use martlet_protocol::basics::{ProcessId, Time};

use crate::backend::Backend;
use crate::config::{Cluster, NodeEntry};

/// Between two looks, in nanoseconds.
const LOOK_INTERVAL_NS: u64 = 2_000_000;
/// How many looks in a row must find nobody with a view.
const LOOKS: u32 = 2;

/// What follows from looking around.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Wait, and look again.
    Wait,
    /// This process is to found the cluster now.
    Found,
    /// This process has been made an acceptor of a history that is over.
    StartOver,
}

/// A process that knows no view, and may found its cluster.
#[derive(Debug)]
pub(crate) struct Founding<F: Backend> {
    me: NodeId,
    others: Vec<NodeId>,
    /// Whether it may be the one, or looks for its own sake only.
    may_found: bool,
    claim: Option<F::Claim>,
    /// Looks in a row that found nobody with a view.
    clear_looks: u32,
    next: Time,
    /// The look that is under way.
    look: Option<Look>,
    /// Whom the look before it saw.
    seen: Vec<PeerId>,
}

#[derive(Debug)]
struct Look {
    peers: Vec<PeerId>,
    /// Words not read yet.
    pending: usize,
    clear: bool,
}

impl<F: Backend> Founding<F> {
    pub fn new(cluster: &Cluster, me: NodeId) -> Founding<F> {
        let others = cluster.config().nodes.iter().map(|n| NodeId(n.number)).filter(|n| *n != me).collect();
        let may_found = cluster.node(me).is_some_and(NodeEntry::may_found);
        Founding { me, others, may_found, claim: None, clear_looks: 0, next: Time(0), look: None, seen: Vec::new() }
    }

    /// When it has to be asked again.
    pub fn due(&self) -> Time {
        if self.look.is_some() { Time(0) } else { self.next }
    }

    /// Looks around, if it is time. When this process is to found the cluster, the claim is held until then and given up by dropping `self`, once the view
    /// stands on the board.
    ///
    /// # Errors
    /// When the system cannot tell who runs.
    pub fn look(&mut self, now: Time, cluster: &Cluster, fabric: &mut F, members: &[(PeerId, ProcessId)]) -> io::Result<Verdict> {
        match &self.look {
            Some(look) if look.pending > 0 => return Ok(Verdict::Wait),
            Some(_) => {}
            None if now < self.next => return Ok(Verdict::Wait),
            None => {
                self.next = now.after(LOOK_INTERVAL_NS);
                let taken = is_taken(fabric);
                if taken {
                    // It will not found anything in this life.
                    self.claim = None;
                } else if self.claim.is_none() {
                    self.clear_looks = 0;
                    self.claim = if self.may_found { F::claim_founding(cluster, self.me)? } else { None };
                }
                if taken || self.claim.is_some() {
                    self.look = Some(self.begin(cluster, fabric, members, taken)?);
                }
                return Ok(Verdict::Wait);
            }
        }
        let look = self.look.take().expect("just matched");
        let same = look.peers == self.seen;
        self.clear_looks = match (look.clear, same) {
            (false, _) => 0,
            (true, false) => 1,
            (true, true) => self.clear_looks + 1,
        };
        self.seen = look.peers;
        if !look.clear {
            // Somebody who has none of our trouble may go ahead.
            self.claim = None;
        }
        Ok(match self.clear_looks >= LOOKS {
            false => Verdict::Wait,
            true if is_taken(fabric) => Verdict::StartOver,
            // It may have been taken between two looks, and looked without a claim.
            true if self.claim.is_some() => Verdict::Found,
            true => Verdict::Wait,
        })
    }

    /// Begins to read the boards of all who are connected; and their slots, unless it looks for its own sake only.
    fn begin(&self, cluster: &Cluster, fabric: &mut F, members: &[(PeerId, ProcessId)], taken: bool) -> io::Result<Look> {
        let mut look = Look { peers: Vec::with_capacity(members.len()), pending: 0, clear: true };
        for node in &self.others {
            // Every connection of that node: an earlier life may still be listed while it dies.
            let before = look.pending;
            for (peer, _) in members.iter().filter(|(_, process)| process.node == *node) {
                look.peers.push(*peer);
                look.pending += 1;
                let board = Remote { peer: *peer, region: Region::Public(BOARD), offset: 0 };
                fabric.read_word(board, Component::Founding.token(u64::from(peer.0)));
                for slot in 0..if taken { 0 } else { SLOTS } {
                    look.pending += 1;
                    let word = Remote { peer: *peer, region: Region::Public(SLOT_WORDS), offset: slot * 8 };
                    fabric.read_word(word, Component::Founding.token(u64::from(peer.0)));
                }
            }
            look.clear &= look.pending > before || F::is_absent(cluster, *node)?;
        }
        Ok(look)
    }

    /// A word has been read, of a board or a slot.
    pub fn handle_completion(&mut self, completion: Completion) {
        let Some(look) = &mut self.look else { return };
        if look.peers.contains(&PeerId(token_rest(completion.token) as u32)) {
            look.pending -= 1;
            look.clear &= completion.result == Ok(0);
        }
    }
}

/// Whether somebody has made this process an acceptor.
fn is_taken<F: Backend>(fabric: &F) -> bool {
    let slots = fabric.memory(LocalRegion::Public(SLOT_WORDS)).expect("every process offers its slots");
    // Whatever was stored by a process that is known to have gone is there; it is read again in a later look otherwise.
    slots.iter().any(|word| word.load(Ordering::Acquire) != 0)
}

#[cfg(test)]
mod tests {
    use martlet_fabric::shm::{ShmConfig, ShmFabric};
    use martlet_fabric::{Fabric as _, Identity, Incarnation, PeerEvent, PeerKind};
    use martlet_protocol::basics::layout;

    use super::*;
    use crate::clock;
    use crate::config::{ClusterConfig, Key, Role};

    struct Node {
        fabric: ShmFabric,
        members: Vec<(PeerId, ProcessId)>,
        founding: Founding<ShmFabric>,
    }

    impl Node {
        fn start(cluster: &Cluster, number: u16) -> Node {
            let identity = Identity { node: NodeId(number), incarnation: Incarnation(1), kind: PeerKind::Member };
            let regions = (crate::engine::regions(cluster, cluster.sizes()), layout::client_regions(cluster.sizes()));
            let config = ShmConfig::new(&cluster.config().name, cluster.key().bytes(), identity, regions.0, regions.1);
            let fabric = ShmFabric::start(ShmConfig { prefault: false, ..config }).expect("started");
            fabric.connect(NodeId(1 - number));
            Node { fabric, members: Vec::new(), founding: Founding::new(cluster, NodeId(number)) }
        }

        fn turn(&mut self, cluster: &Cluster) -> Verdict {
            while let Some(event) = self.fabric.event() {
                if let PeerEvent::Up { peer, identity } = event {
                    self.members.push((peer, ProcessId { node: identity.node, incarnation: identity.incarnation }));
                }
            }
            let verdict = self.founding.look(clock::now(), cluster, &mut self.fabric, &self.members).expect("it can be told who runs");
            while let Some(completion) = self.fabric.poll() {
                self.founding.handle_completion(completion);
            }
            verdict
        }

        /// Its verdict, once it does not wait any more or has looked that often.
        fn verdict(&mut self, cluster: &Cluster, turns: u32) -> Verdict {
            for _ in 0..turns {
                match self.turn(cluster) {
                    Verdict::Wait => std::thread::yield_now(),
                    verdict => return verdict,
                }
                // Looks are made when they are due.
                self.founding.next = Time(0);
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

    /// What a founder that is gone now did: it made node 1 an acceptor, which has not heard of any view.
    fn take(node: &mut Node) {
        let slot = Remote { peer: PeerId::SELF, region: Region::Public(SLOT_WORDS), offset: 3 * 8 };
        node.fabric.compare_and_swap(slot, 0, 0x1234, Component::Founding.token(u64::from(u32::MAX)));
        while node.fabric.poll().is_some() {}
    }

    #[test]
    fn who_sees_nobody_with_a_view_founds() {
        let (cluster, [mut first, _second]) = two("clear");
        assert_eq!(first.verdict(&cluster, 1000), Verdict::Found);
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
