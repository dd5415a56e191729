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
//! When all processes of a cluster have died, and nothing is on their disks, their state has died with them. On one host the first to be started again founds
//! it anew; over a network all of them have to be back, since a node that is not heard from may be alive.
//!
//! **Where disks are used** (`docs/durability.md`, "Coming back"), whoever would found it reads also what everybody has come back with. If anybody has come
//! back with a log, the members of the best log's group that are there go on with it, once they are a majority of that group; a process that has nothing, or a
//! log of another history, waits for their view. If nobody has one, every configured node has to be there to say so.

use std::io;

use martlet_fabric::primitive::Ordering;
use martlet_fabric::{Completion, LocalRegion, NodeId, PeerId, Region, Remote};
use martlet_protocol::basics::layout::{BOARD, Component, RETURNED, SLOT_WORDS, SLOTS, returned, token_rest};
use martlet_protocol::basics::{ProcessId, Time};

use crate::backend::Backend;
use crate::config::{Cluster, NodeEntry};
use crate::durable::{Refounding, Returned, refound};

/// Between two looks, in nanoseconds.
const LOOK_INTERVAL_NS: u64 = 2_000_000;
/// How many looks in a row must find nobody with a view.
const LOOKS: u32 = 2;
/// For how long those who can found the cluster again wait for the rest of their group, in nanoseconds. Who comes later is taught the whole state.
const RETURN_PATIENCE_NS: u64 = 1_000_000_000;
/// How often who cannot found anything looks whether that has changed, in nanoseconds.
const UNABLE_INTERVAL_NS: u64 = 20_000_000;

/// What follows from looking around.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Wait, and look again.
    Wait,
    /// This process is to found the cluster now: alone, or again with all who have come back.
    Found(Option<Refounding>),
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
    /// Where disks are used: what they have to do with it.
    disks: Option<Disks>,
}

/// What a process has come back with, and how it waits for others who have.
#[derive(Debug)]
struct Disks {
    me: ProcessId,
    own: Option<Returned>,
    /// Since when it could found the cluster without some of its group.
    able_since: Option<Time>,
    /// Why it can't, as it was last said.
    said: String,
}

#[derive(Debug)]
struct Look {
    peers: Vec<PeerId>,
    /// What they have come back with, word for word.
    words: Vec<(ProcessId, [u64; returned::WORDS])>,
    /// Every configured node is connected.
    everybody: bool,
    /// Words not read yet.
    pending: usize,
    clear: bool,
}

impl<F: Backend> Founding<F> {
    pub fn new(cluster: &Cluster, me: NodeId) -> Founding<F> {
        let others = cluster.config().nodes.iter().map(|n| NodeId(n.number)).filter(|n| *n != me).collect();
        let may_found = cluster.node(me).is_some_and(NodeEntry::may_found);
        Founding { me, others, may_found, claim: None, clear_looks: 0, next: Time(0), look: None, seen: Vec::new(), disks: None }
    }

    /// The same where disks are used: `me` has come back with `own`, or with nothing.
    pub fn with_disks(cluster: &Cluster, me: ProcessId, own: Option<Returned>) -> Founding<F> {
        let disks = Disks { me, own, able_since: None, said: String::new() };
        Founding { disks: Some(disks), ..Founding::new(cluster, me.node) }
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
        let mut look = self.look.take().expect("just matched");
        let words = std::mem::take(&mut look.words);
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
            true if self.claim.is_some() => match &mut self.disks {
                None => Verdict::Found(None),
                Some(disks) => match disks.judge(now, &words, look.everybody) {
                    Some(verdict) => verdict,
                    None => {
                        // Somebody else may be able to.
                        self.claim = None;
                        self.next = now.after(UNABLE_INTERVAL_NS);
                        Verdict::Wait
                    }
                },
            },
            true => Verdict::Wait,
        })
    }

    /// Begins to read the boards of all who are connected; and their slots, unless it looks for its own sake only.
    fn begin(&self, cluster: &Cluster, fabric: &mut F, members: &[(PeerId, ProcessId)], taken: bool) -> io::Result<Look> {
        let mut look = Look { peers: Vec::with_capacity(members.len()), words: Vec::new(), everybody: true, pending: 0, clear: true };
        for node in &self.others {
            // Every connection of that node: an earlier life may still be listed while it dies.
            let before = look.pending;
            for (peer, process) in members.iter().filter(|(_, process)| process.node == *node) {
                let place = look.peers.len();
                look.peers.push(*peer);
                if self.disks.is_some() {
                    look.words.push((*process, [0; returned::WORDS]));
                    for word in 0..returned::WORDS {
                        look.pending += 1;
                        let at = Remote { peer: *peer, region: Region::Public(RETURNED), offset: word * 8 };
                        fabric.read_word(at, Component::Founding.token(of_disk(place, word)));
                    }
                }
                look.pending += 1;
                let board = Remote { peer: *peer, region: Region::Public(BOARD), offset: 0 };
                fabric.read_word(board, Component::Founding.token(u64::from(peer.0)));
                for slot in 0..if taken { 0 } else { SLOTS } {
                    look.pending += 1;
                    let word = Remote { peer: *peer, region: Region::Public(SLOT_WORDS), offset: slot * 8 };
                    fabric.read_word(word, Component::Founding.token(u64::from(peer.0)));
                }
            }
            look.everybody &= look.pending > before;
            look.clear &= look.pending > before || F::is_absent(cluster, *node)?;
        }
        Ok(look)
    }

    /// A word has been read, of a board or a slot, or of what somebody has come back with.
    pub fn handle_completion(&mut self, completion: Completion) {
        let Some(look) = &mut self.look else { return };
        if let Some((place, word)) = from_disk(token_rest(completion.token)) {
            look.pending -= 1;
            match (completion.result, look.words.get_mut(place)) {
                (Ok(value), Some((_, words))) => words[word] = value,
                _ => look.clear = false,
            }
            return;
        }
        if look.peers.contains(&PeerId(token_rest(completion.token) as u32)) {
            look.pending -= 1;
            look.clear &= completion.result == Ok(0);
        }
    }
}

/// Tells reads of [`RETURNED`] from those of boards and slots, which bear the peer's number alone.
const OF_DISK: u64 = 1 << 48;

fn of_disk(place: usize, word: usize) -> u64 {
    OF_DISK | (place as u64) << 16 | word as u64
}

fn from_disk(rest: u64) -> Option<(usize, usize)> {
    (rest & OF_DISK != 0).then_some(((rest & !OF_DISK) as usize >> 16, (rest & 0xffff) as usize % returned::WORDS))
}

impl Disks {
    /// What follows from what the others have come back with; `None`: nothing that this process could do.
    fn judge(&mut self, now: Time, words: &[(ProcessId, [u64; returned::WORDS])], everybody: bool) -> Option<Verdict> {
        let mut present: Vec<(ProcessId, Returned)> = self.own.iter().map(|log| (self.me, log.clone())).collect();
        for (process, words) in words {
            match Returned::parse(words) {
                Ok(Some(log)) => present.push((*process, log)),
                Ok(None) => {}
                // It was read while it came up, or is none of ours.
                Err(()) => return None,
            }
        }
        if present.is_empty() {
            if everybody {
                return Some(Verdict::Found(None));
            }
            self.say("nobody who runs has any data; a new cluster is founded when every configured node runs and has none either".into());
            return None;
        }
        match refound(&present) {
            Ok(refounding) if !refounding.members.contains(&self.me) => {
                self.say("others have newer data, and this node joins them".into());
                None
            }
            Ok(refounding) => {
                let since = *self.able_since.get_or_insert(now);
                let ready = refounding.complete || now.since(since) >= RETURN_PATIENCE_NS;
                Some(if ready { Verdict::Found(Some(refounding)) } else { Verdict::Wait })
            }
            Err(lack) => {
                self.able_since = None;
                self.say(lack.to_string());
                None
            }
        }
    }

    fn say(&mut self, why: String) {
        if self.said != why {
            tracing::warn!("waiting: {why}");
            self.said = why;
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
        assert_eq!(first.verdict(&cluster, 1000), Verdict::Found(None));
    }

    /// What a process of that node shows; `group`: it has come back with that group's log.
    fn shown(node: u16, group: Option<&[u16]>) -> (ProcessId, [u64; returned::WORDS]) {
        use martlet_fabric::primitive::AtomicU64;
        use martlet_protocol::basics::{LogIndex, ViewNumber};
        let born = |node: u16| ProcessId { node: NodeId(node), incarnation: Incarnation(1 << 20) };
        let log = group.map(|group| Returned {
            ballot: 5,
            last: LogIndex(7),
            view: ViewNumber(3),
            members: group.iter().map(|node| born(*node)).collect(),
        });
        let region: Vec<AtomicU64> = (0..returned::WORDS).map(|_| AtomicU64::new(0)).collect();
        Returned::store(log.as_ref(), &region);
        let process = ProcessId { incarnation: Incarnation((1 << 20) + 1), ..born(node) };
        (process, std::array::from_fn(|at| region[at].load(Ordering::Relaxed)))
    }

    fn disks(node: u16, group: Option<&[u16]>) -> Disks {
        let (me, words) = shown(node, group);
        Disks { me, own: Returned::parse(&words).expect("just stored"), able_since: None, said: String::new() }
    }

    #[test]
    fn empty_disks_found_a_cluster_only_when_everybody_is_there_and_has_nothing() {
        let mut empty = disks(0, None);
        assert_eq!(empty.judge(Time(0), &[shown(1, None)], false), None, "node 2 may have the data");
        assert_eq!(empty.judge(Time(0), &[shown(1, None), shown(2, None)], true), Some(Verdict::Found(None)));
        assert_eq!(empty.judge(Time(0), &[shown(1, None), shown(2, Some(&[1, 2]))], true), None, "one of two");
        let all = [shown(1, Some(&[1, 2])), shown(2, Some(&[1, 2]))];
        assert_eq!(empty.judge(Time(0), &all, true), None, "they do it themselves");
        let (process, _) = shown(2, None);
        assert_eq!(empty.judge(Time(0), &[shown(1, None), (process, [0; returned::WORDS])], true), None, "it has not said anything");
    }

    #[test]
    fn who_has_come_back_waits_for_a_majority_and_then_a_while_for_the_rest() {
        let group: Option<&[u16]> = Some(&[0, 1, 2]);
        let mut back = disks(0, group);
        assert_eq!(back.judge(Time(0), &[], false), None, "one of three");
        assert_eq!(back.judge(Time(0), &[shown(1, None), shown(2, None)], true), None, "empty disks are no majority, however many");
        let two = [shown(1, group)];
        assert_eq!(back.judge(Time(5), &two, false), Some(Verdict::Wait));
        assert_eq!(back.judge(Time(4 + RETURN_PATIENCE_NS), &two, false), Some(Verdict::Wait));
        let Some(Verdict::Found(Some(again))) = back.judge(Time(5 + RETURN_PATIENCE_NS), &two, false) else { panic!("a majority") };
        assert_eq!(again.members, [shown(0, group).0, shown(1, group).0]);
        let mut back = disks(0, group);
        let three = [shown(1, group), shown(2, group)];
        let Some(Verdict::Found(Some(again))) = back.judge(Time(5), &three, true) else { panic!("all of them") };
        assert!(again.complete && again.members.len() == 3);
        assert!(again.number.0 > 3, "the logs know views up to 3");
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
