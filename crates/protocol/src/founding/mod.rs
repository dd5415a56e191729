//! The choice of the process that founds the cluster: it decides the first view, all by itself.
//!
//! A cluster may be founded once only, or there would be two. That can be made certain without asking anybody to decide: a view comes from a
//! founder or, in a chain, from a process that has one; so if no process has one, nobody can get one but by founding. A founder therefore
//!
//! 1. has the claim, which one process of the cluster can have at a time: on one host a name that goes with the process; over a network
//!    the first node of the configuration that may found is the one;
//! 2. sees of every other node that it is not running (which can be known on one host only, and only by who has been told that all of them would be seen there:
//!    [`Config::all_here`]), or that it is connected, its board shows no
//!    view, and nobody has made it an acceptor. A node that may be running but is not connected, a paused one say, may have a view: wait for it.
//!    That goes for nodes of which its configuration does not know too, as far as it can be told that they run ([`Ground::strangers`]), and for all who are
//!    connected: nodes are added and removed while others run, and who was away may know an old list;
//! 3. sees all of this twice in a row, of the same processes, so that no view can have moved behind its back from a node looked at later to one
//!    looked at earlier: a process that has had a view never shows none again.
//!
//! Somebody can be an acceptor before it has heard of any view: a founder takes it in, uses it for the next view at once, and dies. With that the view may
//! have been decided, and others may tell of it; but if nobody has a view any more, what stands in its slots belongs to a history that is over, and would be
//! taken for the new one's. So whoever finds its own slots taken, and nobody with a view, **starts over**: its next incarnation has fresh ones.
//!
//! When all processes of a cluster have died, and nothing is on their disks, their state has died with them. Where all of them run here the first to be started again
//! founds it anew; otherwise all of them have to be back, since a node that is not heard from may be alive: on another host, or in a namespace of this one.
//!
//! **Where disks are used** (`docs/durability.md`, "Coming back"), whoever would found it reads also what everybody has come back with. If anybody has come
//! back with a log, the members of the best log's group that are there go on with it, once they are a majority of that group, and with them who has that log, if none
//! of them has it; a process that has nothing, or a log of another history, waits for their view. If nobody has one, every configured node has to be there to say so.
//!
//! Where one process has the claim whatever it has come back with ([`Ground::FIXED`]), it founds the cluster **for others** if it does not belong to that group: it
//! shows their first view on its board, from where they learn it, and asks to be taken in like any newcomer. So the claim never has to move, and there is no
//! moment at which two processes could take it for theirs. All others look as well, but only to say whom they wait for.

mod returned;
pub mod simulated;

use std::fmt::Debug;

use martlet_fabric::primitive::Ordering;
use martlet_fabric::{Completion, Fabric, LocalRegion, NodeId, PeerId, Region, Remote};

use crate::basics::layout::{BOARD, Component, RETURNED, SLOT_WORDS, SLOTS, returned as words, token_rest};
use crate::basics::{ProcessId, Time};

pub use returned::{Lack, Refounding, Returned, Unreadable, refound};

/// Why a process that has [held](Config::has_held) the state founds no empty cluster.
const LOST: &str = "no node has a view any more: what this node held before it was excluded is gone, and so is what the others have acknowledged since. It puts no empty \
                    cluster in its place";

/// How many looks in a row must find nobody with a view.
const LOOKS: u32 = 2;

/// As which of the lives that have left something on a node's disk it comes back. There are several when the power went before one that had joined anew could
/// remove the others; `lives`: the oldest first. `belongs` says of what one has left whether the group has it by its own log: then it may have counted for a
/// commit, and those before it had been removed from the group. It is the newest of these. Where there is none, the newer ones were on their way into the group,
/// and it is the oldest one, until another log says that one of them belongs ([`Verdict::ComeBackAs`]).
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

/// The nodes that may found the cluster, and when they look.
#[derive(Clone, Debug)]
pub struct Config {
    /// This process.
    pub me: ProcessId,
    /// Every other configured node.
    pub others: Vec<NodeId>,
    /// Every node that may found the cluster, since it is a coordinator and a replica.
    pub founders: Vec<NodeId>,
    /// Between two looks, in nanoseconds.
    pub look_interval_ns: u64,
    /// How often who cannot found anything looks whether that has changed, in nanoseconds.
    pub unable_interval_ns: u64,
    /// For how long those who can found the cluster again wait for the rest of their group, in nanoseconds. A node that comes later is taught the whole state.
    pub return_patience_ns: u64,
    /// Whether the cluster has begun with a node's data, and keeps them on disks: then nobody founds an empty one, whoever has nothing.
    pub has_begun: bool,
    /// Whether this process has held the cluster's state in an earlier life, which the others have excluded. If nobody has a view then, what was acknowledged is gone, and it puts no
    /// empty cluster in its place.
    pub has_held: bool,
    /// Whether whoever started this process has said that every process of the cluster runs where this one sees it: then a node that is not seen does not run.
    /// Without that it may run in a namespace of its own, and serve there.
    pub all_here: bool,
}

impl Config {
    fn is_configured(&self, node: NodeId) -> bool {
        node == self.me.node || self.others.contains(&node)
    }
}

/// What a founder has to be told of the place where it runs.
pub trait Ground {
    /// Held by the one process that may found the cluster, as far as its founding is concerned.
    type Claim: Debug;
    /// Why it cannot be said who runs.
    type Error;

    /// Whether the claim is one node's whoever asks for it; otherwise whoever asks first has it, until it is given up.
    const FIXED: bool;

    /// Gets the claim to found the cluster, if this process may have it now.
    ///
    /// # Errors
    /// When it cannot be said.
    fn claim(&self) -> Result<Option<Self::Claim>, Self::Error>;

    /// Whether no process of that node is running where this process would see it. Where nothing can be seen, `false`.
    ///
    /// # Errors
    /// When it cannot be said.
    fn is_absent(&self, node: NodeId) -> Result<bool, Self::Error>;

    /// The nodes that run for certain, at least those of them that are not configured. Where that cannot be known, nobody.
    ///
    /// # Errors
    /// When it cannot be said.
    fn strangers(&self) -> Result<Vec<NodeId>, Self::Error> {
        Ok(Vec::new())
    }
}

/// What follows from looking around.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Wait, and look again.
    Wait,
    /// This process is to found the cluster now: alone, or again of those who have come back, to whom it need not belong.
    Found(Option<Refounding>),
    /// This process has been made an acceptor of a history that is over.
    StartOver,
    /// The best log's group knows this node as another life, of which its disk has the log: it is to come back as that one. A change of the group can take in
    /// a newcomer that has not heard of it, and what is needed for a majority then lies there.
    ComeBackAs(u64),
}

/// A process that knows no view, and may found its cluster.
#[derive(Debug)]
pub struct Founding<C> {
    config: Config,
    claim: Option<C>,
    /// Looks in a row that found nobody with a view.
    clear_looks: u32,
    next: Time,
    /// It has been made an acceptor; what it saw before says nothing about that.
    taken: bool,
    /// The look that is under way.
    look: Option<Look>,
    /// Whom the look before it saw.
    seen: Vec<PeerId>,
    /// Configured nodes that may run and are not connected.
    unseen: Unseen,
    /// Where disks are used: what they have to do with it.
    disks: Option<Disks>,
    /// Whether it has said that the state is [lost](LOST), and whether that has not been heard yet.
    says_lost: bool,
    news_of_loss: bool,
}

/// Configured nodes that may run and are not connected, as the last look found them.
#[derive(Debug, Default)]
struct Unseen {
    nodes: Vec<u16>,
    /// Since when there have been such nodes.
    since: Option<Time>,
    /// What has been said of it, and whether that has not been heard yet.
    said: String,
    news: bool,
}

impl Unseen {
    /// A look has found these. They are spoken of once they have had a while to come.
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

/// What a process has come back with, and how it waits for others who have.
#[derive(Debug)]
struct Disks {
    own: Option<Returned>,
    /// All the lives that it could come back as.
    lives: Vec<u64>,
    /// Since when it could found the cluster without some of its group.
    able_since: Option<Time>,
    /// Why it can't, as it was last said, and whether nobody has heard it yet.
    said: String,
    news: bool,
}

/// What each process shows, word for word.
type Shown = (ProcessId, [u64; words::WORDS]);

#[derive(Debug)]
struct Look {
    peers: Vec<PeerId>,
    /// What they have come back with.
    words: Vec<Shown>,
    /// Configured nodes that are not connected,
    missing: Vec<u16>,
    /// and those of them that may run all the same.
    unheard: Vec<u16>,
    /// Words not read yet.
    pending: usize,
    clear: bool,
}

impl<C> Founding<C> {
    /// Where nothing is on disks.
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

    /// The same where disks are used: this process has come back with `own`, or with nothing, and could do so as any of these lives.
    pub fn with_disks(config: Config, own: Option<Returned>, lives: Vec<u64>) -> Founding<C> {
        let disks = Disks { own, lives, able_since: None, said: String::new(), news: false };
        Founding { disks: Some(disks), ..Founding::new(config) }
    }

    /// Nodes without which this process founds no cluster, since they are not connected and may run all the same.
    pub fn awaited(&self) -> &[u16] {
        &self.unseen.nodes
    }

    /// Whether it puts no empty cluster in the place of the state that it [held](Config::has_held).
    pub fn is_lost(&self) -> bool {
        self.says_lost
    }

    /// Why this process waits: once for each new reason.
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

    /// When it has to be asked again.
    pub fn due(&self) -> Time {
        if self.look.is_some() { Time(0) } else { self.next }
    }

    /// Looks around, if it is time. When this process is to found the cluster, the claim is held until then and given up by dropping `self`, once the view
    /// stands on the board.
    ///
    /// # Errors
    /// When it cannot be said who runs.
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
                    // It will not found anything in this life.
                    self.claim = None;
                    if !std::mem::replace(&mut self.taken, true) {
                        self.clear_looks = 0;
                    }
                }
                let may_found = self.config.founders.contains(&self.config.me.node);
                // A process that can never be the one looks to see as what it comes back, and to say whom it waits for.
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
            // Somebody who has none of our trouble may go ahead.
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
            // Since the look began, by somebody who may have a view.
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
            // It may have been taken between two looks, and looked without a claim; or somebody else has it.
            _ if self.claim.is_none() => Verdict::Wait,
            Some(verdict) => verdict,
            None => {
                if !G::FIXED {
                    // Somebody else may be able to.
                    self.claim = None;
                }
                self.next = now.after(self.config.unable_interval_ns);
                Verdict::Wait
            }
        })
    }

    /// Begins to read the boards of all who are connected; and their slots, unless it looks for its own sake only.
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

    /// The nodes that are not configured and run all the same, as the place says or since they are connected.
    fn strangers(&self, running: Vec<NodeId>, members: &[(PeerId, ProcessId)]) -> Vec<NodeId> {
        let mut strangers = running;
        strangers.extend(members.iter().map(|(_, process)| process.node));
        strangers.retain(|node| *node != self.config.me.node && !self.config.others.contains(node));
        strangers.sort_unstable();
        strangers.dedup();
        strangers
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
    (rest & OF_DISK != 0).then_some(((rest & !OF_DISK) as usize >> 16, (rest & 0xffff) as usize % words::WORDS))
}

impl Disks {
    /// What follows from what the others have come back with; `None`: nothing that this process could do.
    fn judge(&mut self, now: Time, config: &Config, fixed: bool, shown: &[Shown], everybody: bool) -> Option<Verdict> {
        let mut present: Vec<(ProcessId, Returned)> = self.own.iter().map(|log| (config.me, log.clone())).collect();
        for (process, words) in shown {
            match Returned::parse(words) {
                Ok(Some(log)) => present.push((*process, log)),
                Ok(None) => {}
                // It was read while it came up, or is none of ours.
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
            // What roles it has is not known here, and without it the others might be no majority.
            Ok(Refounding { members, .. }) if !members.iter().all(|id| config.is_configured(id.node)) => {
                let unknown: Vec<u16> = members.iter().map(|id| id.node.0).filter(|node| !config.is_configured(NodeId(*node))).collect();
                self.say(format!(
                    "nodes {unknown:?} have the newest data, but are not among the cluster's nodes as this process knows them"
                ));
                None
            }
            // The first view needs somebody to decide the next one.
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

    /// This process is none of those who go on. Whether it founds the cluster for them: nobody else ever could where the claim is fixed.
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

/// Whether somebody has made this process an acceptor.
fn is_taken<F: Fabric>(fabric: &F) -> bool {
    let slots = fabric.memory(LocalRegion::Public(SLOT_WORDS)).expect("every process offers its slots");
    // Whatever was stored by a process that is known to have gone is there; it is read again in a later look otherwise.
    slots.iter().any(|word| word.load(Ordering::Acquire) != 0)
}

#[cfg(test)]
mod tests {
    use martlet_fabric::Incarnation;
    use martlet_fabric::primitive::AtomicU64;

    use super::*;
    use crate::basics::{LogIndex, ViewNumber};

    /// What a process of that node shows; `group`: it has come back with that group's log.
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
        // Node 0 has come back as the life of 1 << 20; the group of the best log, node 1's, has taken in a later one.
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
