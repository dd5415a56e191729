//! How the process that founds the cluster is chosen. It decides the first view all by itself.
//!
//! A cluster may be founded only once, or there would be two. This can be made certain without any agreement. Every view comes from a founder or,
//! through a chain, from a process that has one; so if no process has a view, a process can get one only by founding. Therefore, a founder
//!
//! 1. holds the claim, which only one process of the cluster can hold at a time: on one host, a name that is released when the process ends; over a
//!    network, the claim belongs to the first node of the configuration that may found;
//! 2. sees of every other node either that it is not running, or that it is connected, its board shows no view, and no process has made it an
//!    acceptor. (That a node is not running can be known only on a single host, and only by a process that has been told that all nodes would be seen
//!    there: [`Config::all_here`].) A node that may be running but is not connected, for instance a paused one, may have a view: wait for it. The
//!    same applies to nodes that the founder's configuration does not list, as far as it can be told that they run ([`Ground::strangers`]), and to
//!    all connected processes: nodes are added and removed while others run, and a process that was away may have an old list;
//! 3. sees all of this twice in a row, for the same processes. Then no view can have moved unseen from a node that was looked at later to one that
//!    was looked at earlier: a process that has had a view always shows one from then on.
//!
//! A process can become an acceptor before it has heard of any view: a founder takes it in, uses it for the next view at once, and dies. That view
//! may have been decided, and others may report it. But if no process has a view any more, the contents of the acceptor's slots belong to a history
//! that is over, and would be mistaken for the new one's. So a process that finds its own slots in use, and no process with a view, **starts over**:
//! its next incarnation has fresh slots.
//!
//! When all processes of a cluster have died and nothing is on their disks, their state has died with them. If all nodes run on this host, the first
//! one to be started again founds the cluster anew. Otherwise all of them have to be back, since a node that is not heard from may be alive, on
//! another host or in a namespace of this one.
//!
//! **If disks are used** (`docs/durability.md`, "Coming back"), a founder also reads what every other process has come back with. If any process has
//! come back with a log, the best log determines the group that continues: those of its members that are present, once they are a majority of that
//! group, and the process that has this log, if none of those members has it. A process that has no log, or the log of another history, waits for
//! their view. If no process has a log, every configured node has to be there to say so.
//!
//! If the claim always belongs to the same process, whatever that has come back with ([`Ground::FIXED`]), and it does not belong to the group, it
//! founds the cluster **for others**: it shows their first view on its board, from where they learn it, and asks to be taken in like any newcomer. So
//! the claim never has to move, and at no moment can two processes take it for theirs. All other processes look around as well, but only to say which
//! nodes they wait for.

mod returned;
pub mod simulated;

use std::fmt::Debug;

use martlet_fabric::primitive::Ordering;
use martlet_fabric::{Completion, Fabric, LocalRegion, NodeId, PeerId, Region, Remote};

use crate::basics::layout::{BOARD, Component, RETURNED, SLOT_WORDS, SLOTS, returned as words, token_rest};
use crate::basics::{ProcessId, Time};

pub use returned::{Lack, Refounding, Returned, Unreadable, refound};

/// Why a process that has [held](Config::has_held) the state does not found an empty cluster.
const LOST: &str = "no node has a view any more: what this node held before it was excluded is gone, and so is what the others have acknowledged since. It puts no empty \
                    cluster in its place";

/// How many looks in a row must find no process with a view.
const LOOKS: u32 = 2;

/// Chooses the life as which a node comes back, from those that have left something on its disk; `lives` lists them, the oldest first. There are
/// several if the power failed before a life that had joined anew could remove the earlier ones. `belongs` tells whether a life is in its group
/// according to the log that it left. If so, it may have contributed to a commit, and the lives before it had been removed from the group. The newest
/// such life is chosen. If there is none, the newer lives were still on their way into the group, and the oldest one is chosen, until another log
/// shows that one of the others belongs ([`Verdict::ComeBackAs`]).
///
/// # Errors
/// Those of `belongs`.
pub fn life_to_come_back_as<E>(lives: &[u64], mut belongs: impl FnMut(u64) -> Result<bool, E>) -> Result<Option<u64>, E> {
    let Some((oldest, younger)) = lives.split_first() else { return Ok(None) };
    for life in younger.iter().rev() {
        if belongs(*life)? {
            return Ok(Some(*life));
        }
    }
    Ok(Some(*oldest))
}

/// Which nodes may found the cluster, and when they look around.
#[derive(Clone, Debug)]
pub struct Config {
    /// This process.
    pub me: ProcessId,
    /// Every other configured node.
    pub others: Vec<NodeId>,
    /// Every node that may found the cluster because it is a coordinator and a replica.
    pub founders: Vec<NodeId>,
    /// Time between two looks, in nanoseconds.
    pub look_interval_ns: u64,
    /// How often a process that cannot found the cluster looks whether that has changed, in nanoseconds.
    pub unable_interval_ns: u64,
    /// How long processes that can found the cluster again wait for the rest of their group, in nanoseconds. A node that comes later is taught the
    /// whole state.
    pub return_patience_ns: u64,
    /// Whether the cluster was begun with a node's data, and keeps it on disks: then a process without data never founds an empty cluster.
    pub has_begun: bool,
    /// Whether this process held the cluster's state in an earlier life, which the others have excluded. If no process has a view then, what was
    /// acknowledged is gone, and this process does not found an empty cluster in its place.
    pub has_held: bool,
    /// Whether this process was told at its start that every process of the cluster runs where it can see them: then a node that is not seen is not
    /// running. Otherwise such a node may run in a namespace of its own, and serve clients there.
    pub all_here: bool,
}

impl Config {
    fn is_configured(&self, node: NodeId) -> bool {
        node == self.me.node || self.others.contains(&node)
    }
}

/// What a founder has to know about the place where it runs.
pub trait Ground {
    /// The claim: held by the one process that may found the cluster.
    type Claim: Debug;
    /// Why it cannot be told which processes run.
    type Error;

    /// Whether the claim always belongs to the same node. Otherwise the first process to ask holds it until it gives it up.
    const FIXED: bool;

    /// Takes the claim to found the cluster, if this process may have it now.
    ///
    /// # Errors
    /// When that cannot be told.
    fn claim(&self) -> Result<Option<Self::Claim>, Self::Error>;

    /// Whether no process of that node is running where this process would see it. `false` if nothing can be seen.
    ///
    /// # Errors
    /// When that cannot be told.
    fn is_absent(&self, node: NodeId) -> Result<bool, Self::Error>;

    /// The nodes that are certainly running, or at least those of them that are not configured. Empty if this cannot be known.
    ///
    /// # Errors
    /// When that cannot be told.
    fn strangers(&self) -> Result<Vec<NodeId>, Self::Error> {
        Ok(Vec::new())
    }
}

/// What follows from a look around.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Wait, and look again.
    Wait,
    /// This process is to found the cluster now: either a new one by itself, or again with the processes that have come back, to which it need not
    /// belong.
    Found(Option<Refounding>),
    /// This process has been made an acceptor of a history that is over.
    StartOver,
    /// The best log's group lists another life of this node, whose log is on this node's disk: the node is to come back as that life. A change of the
    /// group can take in a newcomer that has not heard of it yet; then the log that is needed for a majority belongs to that life.
    ComeBackAs(u64),
}

/// A process that knows no view, and may found its cluster.
#[derive(Debug)]
pub struct Founding<C> {
    config: Config,
    claim: Option<C>,
    /// Consecutive looks that found no process with a view.
    clear_looks: u32,
    next: Time,
    /// Whether this process has been made an acceptor. What it saw before that says nothing about the time since.
    taken: bool,
    /// The look under way.
    look: Option<Look>,
    /// The peers that the previous look saw.
    seen: Vec<PeerId>,
    /// Configured nodes that may run and are not connected.
    unseen: Unseen,
    /// What concerns disks, if they are used.
    disks: Option<Disks>,
    /// Whether it has been reported that the state is [lost](LOST), and whether that report has not been fetched yet.
    says_lost: bool,
    news_of_loss: bool,
}

/// Configured nodes that may run and are not connected, as the last look found them.
#[derive(Debug, Default)]
struct Unseen {
    nodes: Vec<u16>,
    /// Since when there have been such nodes.
    since: Option<Time>,
    /// What has been reported about them, and whether that report has not been fetched yet.
    said: String,
    news: bool,
}

impl Unseen {
    /// A look has found these nodes. They are reported only after they have had a while to come.
    fn note(&mut self, now: Time, nodes: Vec<u16>, patience_ns: u64) {
        if nodes.is_empty() {
            *self = Unseen::default();
            return;
        }
        let since = *self.since.get_or_insert(now);
        let why = format!("nodes {nodes:?} are not connected, but may be running");
        if now.since(since) >= patience_ns && self.said != why {
            (self.said, self.news) = (why, true);
        }
        self.nodes = nodes;
    }
}

/// What this process has come back with, and how it waits for others that have come back too.
#[derive(Debug)]
struct Disks {
    own: Option<Returned>,
    /// All the lives as which it could come back.
    lives: Vec<u64>,
    /// Since when it could found the cluster without some members of its group.
    able_since: Option<Time>,
    /// Why it cannot, as last reported, and whether that report has not been fetched yet.
    said: String,
    news: bool,
}

/// The words that each process shows.
type Shown = (ProcessId, [u64; words::WORDS]);

#[derive(Debug)]
struct Look {
    peers: Vec<PeerId>,
    /// What these peers have come back with.
    words: Vec<Shown>,
    /// Configured nodes that are not connected,
    missing: Vec<u16>,
    /// and those of them that may be running nevertheless.
    unheard: Vec<u16>,
    /// Number of words not read yet.
    pending: usize,
    clear: bool,
}

impl<C> Founding<C> {
    /// A process of a cluster that does not use disks.
    pub fn new(config: Config) -> Founding<C> {
        Founding {
            config,
            claim: None,
            clear_looks: 0,
            next: Time(0),
            taken: false,
            look: None,
            seen: Vec::new(),
            unseen: Unseen::default(),
            disks: None,
            says_lost: false,
            news_of_loss: false,
        }
    }

    /// A process of a cluster that uses disks: it has come back with `own`, or with nothing, and could come back as any of these lives.
    pub fn with_disks(config: Config, own: Option<Returned>, lives: Vec<u64>) -> Founding<C> {
        let disks = Disks { own, lives, able_since: None, said: String::new(), news: false };
        Founding { disks: Some(disks), ..Founding::new(config) }
    }

    /// Nodes that prevent this process from founding a cluster, since they are not connected and may be running nevertheless.
    pub fn awaited(&self) -> &[u16] {
        &self.unseen.nodes
    }

    /// Whether it refuses to found an empty cluster in place of the state that it [held](Config::has_held).
    pub fn is_lost(&self) -> bool {
        self.says_lost
    }

    /// Why this process waits; each new reason is returned once.
    pub fn poll_reason(&mut self) -> Option<&str> {
        if std::mem::take(&mut self.unseen.news) {
            return Some(&self.unseen.said);
        }
        if std::mem::take(&mut self.news_of_loss) {
            return Some(LOST);
        }
        let disks = self.disks.as_mut()?;
        std::mem::take(&mut disks.news).then_some(&disks.said)
    }

    /// When [`look`](Self::look) has to be called again.
    pub fn due(&self) -> Time {
        if self.look.is_some() { Time(0) } else { self.next }
    }

    /// Looks around, if it is time. When this process is to found the cluster, it keeps the claim; drop `self` to give it up once the view is on the
    /// board.
    ///
    /// # Errors
    /// When it cannot be told which processes run.
    pub fn look<F: Fabric, G: Ground<Claim = C>>(
        &mut self,
        now: Time,
        ground: &G,
        fabric: &mut F,
        members: &[(PeerId, ProcessId)],
    ) -> Result<Verdict, G::Error> {
        match &self.look {
            Some(look) if look.pending > 0 => return Ok(Verdict::Wait),
            Some(_) => {}
            None if now < self.next => return Ok(Verdict::Wait),
            None => {
                self.next = now.after(self.config.look_interval_ns);
                let taken = is_taken(fabric);
                if taken {
                    // It will not found a cluster in this life.
                    self.claim = None;
                    if !std::mem::replace(&mut self.taken, true) {
                        self.clear_looks = 0;
                    }
                }
                let may_found = self.config.founders.contains(&self.config.me.node);
                // A process that can never be the founder looks around to learn as which life it comes back, and to say which nodes it waits for.
                let never = G::FIXED || !may_found;
                if !taken && self.claim.is_none() {
                    self.claim = if may_found { ground.claim()? } else { None };
                    if self.claim.is_some() || !never {
                        self.clear_looks = 0;
                    }
                }
                let only_says = never && self.claim.is_none();
                if only_says && !taken {
                    self.next = now.after(self.config.unable_interval_ns);
                }
                if taken || self.claim.is_some() || only_says {
                    self.look = Some(self.begin(ground, fabric, members, taken)?);
                }
                return Ok(Verdict::Wait);
            }
        }
        let mut look = self.look.take().expect("just matched");
        let Look { missing, unheard, words, .. } = &mut look;
        let (missing, unheard, words) = (std::mem::take(missing), std::mem::take(unheard), std::mem::take(words));
        let same = look.peers == self.seen;
        self.clear_looks = match (look.clear, same) {
            (false, _) => 0,
            (true, false) => 1,
            (true, true) => self.clear_looks + 1,
        };
        self.seen = look.peers;
        if !look.clear && !G::FIXED {
            // Another process may not have this one's trouble, and may go ahead.
            self.claim = None;
        }
        self.unseen.note(now, unheard, self.config.return_patience_ns);
        if self.clear_looks < LOOKS {
            return Ok(Verdict::Wait);
        }
        if self.taken {
            return Ok(Verdict::StartOver);
        }
        if is_taken(fabric) {
            // It was made an acceptor since the look began, by a process that may have a view.
            return Ok(Verdict::Wait);
        }
        let verdict = match &mut self.disks {
            None => Some(Verdict::Found(None)),
            Some(disks) => disks.judge(now, &self.config, G::FIXED, &words, missing.is_empty()),
        };
        let is_lost = self.config.has_held && self.claim.is_some() && verdict == Some(Verdict::Found(None));
        if is_lost && !std::mem::replace(&mut self.says_lost, true) {
            self.news_of_loss = true;
        }
        Ok(match verdict.filter(|_| !is_lost) {
            Some(again @ Verdict::ComeBackAs(_)) => again,
            // Between two looks this process may have been made an acceptor, and then looked without a claim; or another process holds it.
            _ if self.claim.is_none() => Verdict::Wait,
            Some(verdict) => verdict,
            None => {
                if !G::FIXED {
                    // Another process may be able to.
                    self.claim = None;
                }
                self.next = now.after(self.config.unable_interval_ns);
                Verdict::Wait
            }
        })
    }

    /// Begins to read the boards of all connected processes, and also their slots, unless it looks only because it has itself been made an acceptor.
    fn begin<F: Fabric, G: Ground>(
        &self,
        ground: &G,
        fabric: &mut F,
        members: &[(PeerId, ProcessId)],
        taken: bool,
    ) -> Result<Look, G::Error> {
        let peers = Vec::with_capacity(members.len());
        let mut look = Look { peers, words: Vec::new(), missing: Vec::new(), unheard: Vec::new(), pending: 0, clear: true };
        let strangers = self.strangers(ground.strangers()?, members);
        for node in self.config.others.iter().chain(&strangers) {
            // Every connection of that node: an earlier life may still be listed while it dies.
            let before = look.pending;
            for (peer, process) in members.iter().filter(|(_, process)| process.node == *node) {
                let place = look.peers.len();
                look.peers.push(*peer);
                if self.disks.is_some() {
                    look.words.push((*process, [0; words::WORDS]));
                    for word in 0..words::WORDS {
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
            if look.pending == before {
                look.missing.push(node.0);
                if !(self.config.all_here && ground.is_absent(*node)?) {
                    look.unheard.push(node.0);
                }
            }
        }
        look.clear = look.unheard.is_empty();
        Ok(look)
    }

    /// Nodes that are not configured and are running nevertheless, because `Ground` says so or because they are connected.
    fn strangers(&self, running: Vec<NodeId>, members: &[(PeerId, ProcessId)]) -> Vec<NodeId> {
        let mut strangers = running;
        strangers.extend(members.iter().map(|(_, process)| process.node));
        strangers.retain(|node| *node != self.config.me.node && !self.config.others.contains(node));
        strangers.sort_unstable();
        strangers.dedup();
        strangers
    }

    /// A word has been read: of a board, of a slot, or of what another process has come back with.
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

/// Distinguishes reads of [`RETURNED`] from those of boards and slots, whose tokens hold only the peer's number.
const OF_DISK: u64 = 1 << 48;

fn of_disk(place: usize, word: usize) -> u64 {
    OF_DISK | (place as u64) << 16 | word as u64
}

fn from_disk(rest: u64) -> Option<(usize, usize)> {
    (rest & OF_DISK != 0).then_some(((rest & !OF_DISK) as usize >> 16, (rest & 0xffff) as usize % words::WORDS))
}

impl Disks {
    /// What follows from what the others have come back with; `None` if there is nothing that this process could do.
    fn judge(&mut self, now: Time, config: &Config, fixed: bool, shown: &[Shown], everybody: bool) -> Option<Verdict> {
        let mut present: Vec<(ProcessId, Returned)> = self.own.iter().map(|log| (config.me, log.clone())).collect();
        for (process, words) in shown {
            match Returned::parse(words) {
                Ok(Some(log)) => present.push((*process, log)),
                Ok(None) => {}
                // The words were read while the process came up, or they are not ours.
                Err(Unreadable) => {
                    self.say(format!("{} does not say what it has come back with", process.node));
                    return None;
                }
            }
        }
        if present.is_empty() {
            if config.has_begun {
                self.say("no node that runs has any data of the cluster since it was founded again".into());
                return None;
            }
            if everybody {
                return Some(Verdict::Found(None));
            }
            self.say("no node that runs has any data; a new cluster is founded when every configured node runs and has none either".into());
            return None;
        }
        let named = returned::best(&present).into_iter().flat_map(|(_, log)| &log.members).find(|id| id.node == config.me.node);
        if let Some(id) = named.filter(|id| **id != config.me.birth() && self.lives.contains(&id.incarnation.0)) {
            return Some(Verdict::ComeBackAs(id.incarnation.0));
        }
        match refound(&present) {
            // The roles of such a member are not known here, and without it the others might not be a majority.
            Ok(Refounding { members, .. }) if !members.iter().all(|id| config.is_configured(id.node)) => {
                let unknown: Vec<u16> = members.iter().map(|id| id.node.0).filter(|node| !config.is_configured(NodeId(*node))).collect();
                self.say(format!(
                    "nodes {unknown:?} have the newest data, but are not among the cluster's nodes as this process knows them"
                ));
                None
            }
            // The first view needs a coordinator to decide the next one.
            Ok(Refounding { members, .. }) if !members.iter().any(|id| config.founders.contains(&id.node)) => {
                let nodes: Vec<u16> = members.iter().map(|id| id.node.0).collect();
                self.say(format!("nodes {nodes:?} have the newest data, but none of them may found a cluster"));
                None
            }
            Ok(refounding) if !refounding.members.contains(&config.me) && !self.founds_for_others(fixed) => None,
            Ok(refounding) => {
                let since = *self.able_since.get_or_insert(now);
                let ready = refounding.complete || now.since(since) >= config.return_patience_ns;
                Some(if ready { Verdict::Found(Some(refounding)) } else { Verdict::Wait })
            }
            Err(lack) => {
                self.able_since = None;
                self.say(lack.to_string());
                None
            }
        }
    }

    /// This process does not belong to those that continue. Returns whether it founds the cluster for them: if the claim is fixed, no other process
    /// ever could.
    fn founds_for_others(&mut self, fixed: bool) -> bool {
        self.say("other nodes have newer data, so this node joins them".into());
        fixed
    }

    fn say(&mut self, why: String) {
        if self.said != why {
            (self.said, self.news) = (why, true);
        }
    }
}

/// Whether another process has made this one an acceptor.
fn is_taken<F: Fabric>(fabric: &F) -> bool {
    let slots = fabric.memory(LocalRegion::Public(SLOT_WORDS)).expect("every process offers its slots");
    // Whatever was stored by a process that is known to be gone is visible here; anything else is found in a later look.
    slots.iter().any(|word| word.load(Ordering::Acquire) != 0)
}

#[cfg(test)]
mod tests {
    use martlet_fabric::Incarnation;
    use martlet_fabric::primitive::AtomicU64;

    use super::*;
    use crate::basics::{LogIndex, ViewNumber};

    /// What a process of that node shows; with `group`, it has come back with that group's log.
    fn shown(node: u16, group: Option<&[u16]>) -> Shown {
        let born = |node: u16| ProcessId { node: NodeId(node), incarnation: Incarnation(1 << 20) };
        let log = group.map(|group| Returned {
            ballot: 5,
            last: LogIndex(7),
            view: ViewNumber(3),
            members: group.iter().map(|node| born(*node)).collect(),
        });
        let region: Vec<AtomicU64> = (0..words::WORDS).map(|_| AtomicU64::new(0)).collect();
        Returned::store(log.as_ref(), &region);
        let process = ProcessId { incarnation: Incarnation((1 << 20) + 1), ..born(node) };
        (process, std::array::from_fn(|at| region[at].load(Ordering::Relaxed)))
    }

    const PATIENCE_NS: u64 = 1_000;

    struct Back {
        config: Config,
        disks: Disks,
        fixed: bool,
    }

    impl Back {
        fn judge(&mut self, now: Time, shown: &[Shown], everybody: bool) -> Option<Verdict> {
            self.disks.judge(now, &self.config, self.fixed, shown, everybody)
        }
    }

    fn disks(node: u16, group: Option<&[u16]>) -> Back {
        let (me, words) = shown(node, group);
        let config = Config {
            me,
            others: (0..3).map(NodeId).filter(|other| *other != me.node).collect(),
            founders: (0..3).map(NodeId).collect(),
            look_interval_ns: 1,
            unable_interval_ns: 1,
            return_patience_ns: PATIENCE_NS,
            has_begun: false,
            has_held: false,
            all_here: true,
        };
        let own = Returned::parse(&words).expect("just stored");
        Back { config, fixed: false, disks: Disks { own, lives: Vec::new(), able_since: None, said: String::new(), news: false } }
    }

    #[test]
    fn empty_disks_found_a_cluster_only_when_everybody_is_there_and_has_nothing() {
        let mut empty = disks(0, None);
        assert_eq!(empty.judge(Time(0), &[shown(1, None)], false), None, "node 2 may have the data");
        assert_eq!(empty.judge(Time(0), &[shown(1, None), shown(2, None)], true), Some(Verdict::Found(None)));
        empty.config.has_begun = true;
        assert_eq!(empty.judge(Time(0), &[shown(1, None), shown(2, None)], true), None, "it had data once");
        empty.config.has_begun = false;
        assert_eq!(empty.judge(Time(0), &[shown(1, None), shown(2, Some(&[1, 2]))], true), None, "one of two");
        let all = [shown(1, Some(&[1, 2])), shown(2, Some(&[1, 2]))];
        assert_eq!(empty.judge(Time(0), &all, true), None, "they do it themselves");
        let all = [shown(1, Some(&[1, 2])), shown(2, Some(&[1, 2]))];
        empty.fixed = true;
        let Some(Verdict::Found(Some(theirs))) = empty.judge(Time(0), &all, true) else { panic!("nobody else could") };
        assert_eq!(theirs.members, [all[0].0, all[1].0], "for them, and without itself");
        empty.config.founders = vec![NodeId(0)];
        assert_eq!(empty.judge(Time(0), &all, true), None, "nobody there could decide a second view");
        let (process, _) = shown(2, None);
        assert_eq!(empty.judge(Time(0), &[shown(1, None), (process, [0; words::WORDS])], true), None, "it has not said anything");
    }

    #[test]
    fn a_node_comes_back_as_whom_the_best_log_s_group_knows_if_it_has_that_log() {
        // Node 0 has come back as life 1 << 20; the best log is node 1's, and its group has taken in a later life.
        let later = 3 << 20;
        let (process, mut words) = shown(1, Some(&[0, 1]));
        (words[words::LAST], words[words::FIRST + 1]) = (9, later);
        let best = [(process, words)];
        let mut back = disks(0, Some(&[0, 1]));
        assert_eq!(back.judge(Time(0), &best, false), None, "one of two");
        back.disks.lives = vec![1 << 20, later];
        assert_eq!(back.judge(Time(0), &best, false), Some(Verdict::ComeBackAs(later)));
        back.config.me.incarnation = Incarnation(later + 1);
        assert!(matches!(back.judge(Time(0), &best, false), Some(Verdict::Found(_))), "it has");
    }

    #[test]
    fn a_cluster_is_not_founded_again_of_nodes_that_are_not_configured() {
        let group: Option<&[u16]> = Some(&[0, 1, 3]);
        let mut back = disks(0, group);
        let all = [shown(1, group), shown(3, group)];
        assert_eq!(back.judge(Time(0), &all, true), None);
        assert_eq!(back.disks.said, "nodes [3] have the newest data, but are not among the cluster's nodes as this process knows them");
        back.config.others.push(NodeId(3));
        assert!(matches!(back.judge(Time(0), &all, true), Some(Verdict::Found(_))));
    }

    #[test]
    fn one_that_has_come_back_waits_for_a_majority_and_then_a_while_for_the_rest() {
        let group: Option<&[u16]> = Some(&[0, 1, 2]);
        let mut back = disks(0, group);
        assert_eq!(back.judge(Time(0), &[], false), None, "one of three");
        assert_eq!(back.judge(Time(0), &[shown(1, None), shown(2, None)], true), None, "empty disks are no majority, however many");
        let two = [shown(1, group)];
        assert_eq!(back.judge(Time(5), &two, false), Some(Verdict::Wait));
        assert_eq!(back.judge(Time(4 + PATIENCE_NS), &two, false), Some(Verdict::Wait));
        let Some(Verdict::Found(Some(again))) = back.judge(Time(5 + PATIENCE_NS), &two, false) else { panic!("a majority") };
        assert_eq!(again.members, [shown(0, group).0, shown(1, group).0]);
        let mut back = disks(0, group);
        let three = [shown(1, group), shown(2, group)];
        let Some(Verdict::Found(Some(again))) = back.judge(Time(5), &three, true) else { panic!("all of them") };
        assert!(again.complete && again.members.len() == 3);
        assert!(again.number.0 > 3, "the logs know views up to 3");
    }
}
