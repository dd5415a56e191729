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

mod returned;

use std::fmt::Debug;

use martlet_fabric::primitive::Ordering;
use martlet_fabric::{Completion, Fabric, LocalRegion, NodeId, PeerId, Region, Remote};

use crate::basics::layout::{BOARD, Component, RETURNED, SLOT_WORDS, SLOTS, returned as words, token_rest};
use crate::basics::{ProcessId, Time};

pub use returned::{Lack, Refounding, Returned, Unreadable, refound};

/// How many looks in a row must find nobody with a view.
const LOOKS: u32 = 2;

/// Who may found the cluster, and when they look.
#[derive(Clone, Debug)]
pub struct Config {
    /// This process.
    pub me: ProcessId,
    /// Every other configured node.
    pub others: Vec<NodeId>,
    /// Whether this process may be the founder, or looks for its own sake only.
    pub may_found: bool,
    /// Between two looks, in nanoseconds.
    pub look_interval_ns: u64,
    /// How often who cannot found anything looks whether that has changed, in nanoseconds.
    pub unable_interval_ns: u64,
    /// For how long those who can found the cluster again wait for the rest of their group, in nanoseconds. Who comes later is taught the whole state.
    pub return_patience_ns: u64,
}

/// What a founder has to be told of the place where it runs.
pub trait Ground {
    /// Held by the one process that may found the cluster, as far as its founding is concerned.
    type Claim: Debug;
    /// Why it cannot be said who runs.
    type Error;

    /// Gets the claim to found the cluster, if this process may have it now.
    ///
    /// # Errors
    /// When it cannot be said.
    fn claim(&self) -> Result<Option<Self::Claim>, Self::Error>;

    /// Whether no process of that node is running, for certain. Where that cannot be known, `false`.
    ///
    /// # Errors
    /// When it cannot be said.
    fn is_absent(&self, node: NodeId) -> Result<bool, Self::Error>;
}

/// What follows from looking around.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Wait, and look again.
    Wait,
    /// This process is to found the cluster now: alone, or again with all who have come back.
    Found(Option<Refounding>),
    /// This process has been made an acceptor of a history that is over.
    StartOver,
}

/// A process that knows no view, and may found its cluster.
#[derive(Debug)]
pub struct Founding<C> {
    config: Config,
    claim: Option<C>,
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
    own: Option<Returned>,
    /// Since when it could found the cluster without some of its group.
    able_since: Option<Time>,
    /// Why it can't, as it was last said, and whether nobody has heard it yet.
    said: String,
    news: bool,
}

/// Who shows what, word for word.
type Shown = (ProcessId, [u64; words::WORDS]);

#[derive(Debug)]
struct Look {
    peers: Vec<PeerId>,
    /// What they have come back with.
    words: Vec<Shown>,
    /// Every configured node is connected.
    everybody: bool,
    /// Words not read yet.
    pending: usize,
    clear: bool,
}

impl<C> Founding<C> {
    /// Where nothing is on disks.
    pub fn new(config: Config) -> Founding<C> {
        Founding { config, claim: None, clear_looks: 0, next: Time(0), look: None, seen: Vec::new(), disks: None }
    }

    /// The same where disks are used: this process has come back with `own`, or with nothing.
    pub fn with_disks(config: Config, own: Option<Returned>) -> Founding<C> {
        let disks = Disks { own, able_since: None, said: String::new(), news: false };
        Founding { disks: Some(disks), ..Founding::new(config) }
    }

    /// Why this process waits, where disks are used: once for each new reason.
    pub fn poll_reason(&mut self) -> Option<&str> {
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
                } else if self.claim.is_none() {
                    self.clear_looks = 0;
                    self.claim = if self.config.may_found { ground.claim()? } else { None };
                }
                if taken || self.claim.is_some() {
                    self.look = Some(self.begin(ground, fabric, members, taken)?);
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
                Some(disks) => match disks.judge(now, &self.config, &words, look.everybody) {
                    Some(verdict) => verdict,
                    None => {
                        // Somebody else may be able to.
                        self.claim = None;
                        self.next = now.after(self.config.unable_interval_ns);
                        Verdict::Wait
                    }
                },
            },
            true => Verdict::Wait,
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
        let mut look = Look { peers: Vec::with_capacity(members.len()), words: Vec::new(), everybody: true, pending: 0, clear: true };
        for node in &self.config.others {
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
            look.everybody &= look.pending > before;
            look.clear &= look.pending > before || ground.is_absent(*node)?;
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
    (rest & OF_DISK != 0).then_some(((rest & !OF_DISK) as usize >> 16, (rest & 0xffff) as usize % words::WORDS))
}

impl Disks {
    /// What follows from what the others have come back with; `None`: nothing that this process could do.
    fn judge(&mut self, now: Time, config: &Config, shown: &[Shown], everybody: bool) -> Option<Verdict> {
        let mut present: Vec<(ProcessId, Returned)> = self.own.iter().map(|log| (config.me, log.clone())).collect();
        for (process, words) in shown {
            match Returned::parse(words) {
                Ok(Some(log)) => present.push((*process, log)),
                Ok(None) => {}
                // It was read while it came up, or is none of ours.
                Err(Unreadable) => return None,
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
            Ok(refounding) if !refounding.members.contains(&config.me) => {
                self.say("others have newer data, and this node joins them".into());
                None
            }
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
    }

    impl Back {
        fn judge(&mut self, now: Time, shown: &[Shown], everybody: bool) -> Option<Verdict> {
            self.disks.judge(now, &self.config, shown, everybody)
        }
    }

    fn disks(node: u16, group: Option<&[u16]>) -> Back {
        let (me, words) = shown(node, group);
        let config =
            Config { me, others: Vec::new(), may_found: true, look_interval_ns: 1, unable_interval_ns: 1, return_patience_ns: PATIENCE_NS };
        let own = Returned::parse(&words).expect("just stored");
        Back { config, disks: Disks { own, able_since: None, said: String::new(), news: false } }
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
        assert_eq!(empty.judge(Time(0), &[shown(1, None), (process, [0; words::WORDS])], true), None, "it has not said anything");
    }

    #[test]
    fn who_has_come_back_waits_for_a_majority_and_then_a_while_for_the_rest() {
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
