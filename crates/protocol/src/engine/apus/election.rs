//! Leader election (APUS section 4.4), on the queues and words of the normal case: each process writes into its own element of the others' `elect` array.
//!
//! An election has three steps. A process that hears no leader first reads what the others report of themselves. A process stands only if a majority hears no
//! leader, and the one with the most up-to-date log goes first. Then it proposes itself, with a view id that no other process can propose and the rank of its
//! log. A process whose log is not more up to date agrees, once it has closed the old leader's lane and its promise is kept. When a majority has agreed, the
//! candidate leads, and tells the others so.

use martlet_fabric::primitive::Ordering;
use martlet_fabric::{Fabric, NodeId, OpError, PeerId, Region, Remote};

use super::backup::Purpose;
use super::layout::{self, Op, Status, WORDS, control, words};
use super::leading::Reign;
use super::peers::{control_of, tell};
use super::{Apus, Ending, Event};
use crate::basics::{Canary, LogIndex, Mark, ProcessId, Time, is_number};
use crate::replica::group::Group;
use crate::replica::handover::Deference;
use crate::replica::patience::discounted;

/// How often the time that a candidate waits is doubled, at most.
const MOST_DOUBLINGS: u32 = 6;
/// The bits of an [`Op::Look`]'s round that say which word is read.
const WORD_BITS: u32 = 3;

/// What this process knows of an election, under way or not.
#[derive(Debug, Default)]
pub(super) struct Election {
    /// The leader that it hears, and its view.
    pub leader: Option<(PeerId, u64)>,
    /// Leaders of views up to this one certainly no longer reign: they have said so, or are dead.
    pub lost_view: u64,
    /// The highest view id that any peer has shown.
    pub seen_view: u64,
    /// Since when it hears no leader.
    silent_since: Option<Time>,
    /// The successor for which it holds back.
    pub deference: Deference,
    /// Before that it neither looks nor stands.
    pub retry: Time,
    /// Failed attempts since a leader was last heard.
    pub failures: u32,
    look: Option<Look>,
    looks: u64,
    /// The highest view id whose proposer's log was less up to date than this one's.
    refused: u64,
    /// A promise on its way to the disk, and the peer that is then told; [`PeerId::SELF`]: this process stands with it.
    pledge: Option<(PeerId, u64)>,
}

impl Election {
    /// When there is something to do without input. `deference`: until when this process holds back for another one.
    pub fn deadline(&self, deference: Option<Time>) -> Time {
        let waits = self.silent_since.is_some() && self.look.is_none() && self.pledge.is_none();
        if waits { deference.map_or(self.retry, |until| until.max(self.retry)) } else { Time(u64::MAX) }
    }

    /// This process was itself stalled for `gap_ns`, during which it heard nothing.
    pub fn discount(&mut self, gap_ns: u64, now: Time) {
        self.deference.discount(gap_ns);
        self.silent_since = self.silent_since.map(|since| discounted(since, gap_ns, now));
    }
}

/// What the others report of themselves, while it is being read before a process stands.
#[derive(Debug)]
struct Look {
    number: u64,
    begun: Time,
    /// For each peer that was asked, the words that have been read.
    answers: Vec<(PeerId, [Option<u64>; words::LOOK])>,
}

impl Look {
    /// Whether all peers that still may answer have; `is_gone` tells which will not.
    fn is_whole(&self, is_gone: impl Fn(PeerId) -> bool) -> bool {
        self.answers.iter().all(|(id, words)| words.iter().all(Option::is_some) || is_gone(*id))
    }
}

impl Apus {
    /// Takes what the others have written into the control lanes: which of them lead and ask to be followed, which stand, and which have promised a later view.
    pub(super) fn hear<F: Fabric>(&mut self, now: Time, fabric: &mut F) {
        let promised = self.log.promised();
        let (mut leader, mut request) = (None::<(u64, PeerId, u64)>, None::<(u64, PeerId, (u64, LogIndex))>);
        let (mut outdated, mut stand) = (0, false);
        for at in 0..self.peers.len() {
            let (id, dead, alive) = (self.peers[at].id, self.peers[at].watch.dead, self.peers[at].watch.is_alive());
            let Some(lane) = control_of(fabric, id) else { continue };
            let word = |at: usize| lane[at].load(Ordering::Acquire);
            let plausible = |view: u64| layout::is_plausible(view, promised);
            // The reign is told before it asks.
            let ask = word(control::ASK);
            let reign = word(control::REIGN);
            let (view, reigns) = (reign >> 1, reign & 1 == 1);
            if !plausible(view) {
                continue;
            }
            if view > 0 && (!reigns || self.peers[at].watch.certain) {
                self.election.lost_view = self.election.lost_view.max(view);
            }
            if dead {
                continue;
            }
            self.election.seen_view = self.election.seen_view.max(view);
            if reigns && alive && view >= promised && leader.is_none_or(|(other, ..)| view > other) {
                leader = Some((view, id, ask));
            }
            if reigns && view < promised && self.peers[at].outdated < promised {
                self.peers[at].outdated = promised;
                tell(fabric, id, control::OUTDATED, promised);
                self.nudges.at_once(id);
                continue;
            }
            outdated = outdated.max(Some(word(control::OUTDATED)).filter(|view| plausible(*view)).unwrap_or(0));
            let named = word(control::STAND);
            if named > promised && plausible(named) {
                match NodeId(layout::proposer(named)) {
                    node if node == self.me.node => stand = true,
                    node => self.election.deference.begin(named, node, now.after(self.config.silence_ns)),
                }
            }
            // The proposal is read before the log's rank: a later proposal's rank is no lower.
            let proposed = word(control::ELECT);
            let rank = (word(control::ELECT_ACCEPTED), LogIndex(word(control::ELECT_LAST)));
            // A removed process cannot be the leader, unless it alone has what follows: see `is_heir`.
            let is_removed = self.log.group().is_some_and(|group| group.has_removed(self.peers[at].process)) && rank <= self.log.rank();
            if proposed > promised.max(self.election.refused)
                && plausible(proposed)
                && !is_removed
                && request.is_none_or(|(other, ..)| proposed > other)
            {
                request = Some((proposed, id, rank));
            }
        }
        self.election.seen_view = self.election.seen_view.max(outdated);
        if self.reign.as_ref().is_some_and(|reign| outdated > reign.view) {
            self.end_reign(Ending::Outdated, fabric);
        }
        let reigns = self.reign.as_ref().is_some_and(Reign::is_elected);
        let was = self.election.leader;
        self.election.leader = leader.map(|(view, id, _)| (id, view)).filter(|_| !reigns);
        self.published &= was == self.election.leader;
        if self.is_removed() || self.inbound.broken || reigns {
            return;
        }
        if let Some((view, id, ask)) = leader {
            (self.election.failures, self.election.silent_since, self.election.look) = (0, None, None);
            // This backup waited for the candidate to which it agreed, which leads by now.
            self.election.retry = Time(0);
            self.election.deference.end();
            let purpose = Purpose::Follow { peer: id, view, ask };
            if self.peer(id).is_some_and(|peer| ask > peer.served) && self.inbound.purpose != Some(purpose) {
                self.election.pledge = None;
                self.end_reign(Ending::Superseded, fabric);
                self.close(purpose, fabric);
            }
            return;
        }
        if let Some((view, peer, rank)) = request {
            let under_way = match self.inbound.purpose {
                Some(Purpose::Vote { view, .. }) => view,
                _ => 0,
            };
            if view > under_way {
                if self.peers.iter_mut().find(|p| p.id == peer).is_some_and(|peer| peer.watch.take_back()) {
                    Mark::ApusRecovered.reach();
                }
                (self.election.pledge, self.election.look) = (None, None);
                self.end_reign(Ending::Superseded, fabric);
                if Canary::ApusLateClose.is_planted() {
                    self.consider(peer, view, rank);
                } else {
                    self.close(Purpose::Vote { peer, view, rank }, fabric);
                }
            }
            return;
        }
        if stand && self.reign.is_none() && self.may_stand() && self.inbound.purpose.is_none() && self.election.pledge.is_none() {
            Mark::ApusStandsAtOnce.reach();
            self.election.look = None;
            self.election.silent_since.get_or_insert(now);
            self.close(Purpose::Stand, fabric);
        }
    }

    /// Considers a proposal, once the old leader's lane has been read to its end: agrees, unless this process's own log is more up to date (APUS section 4.4).
    /// The proposer is told when the promise is kept.
    pub(super) fn consider(&mut self, peer: PeerId, view: u64, rank: (u64, LogIndex)) {
        if view <= self.log.promised() {
            return;
        }
        if rank < self.log.rank() && !Canary::ApusShortLog.is_planted() {
            Mark::ApusRefuses.reach();
            (self.election.seen_view, self.election.refused) = (self.election.seen_view.max(view), view);
            // It stands itself as soon as its turn comes.
            self.election.retry = Time(0);
            return;
        }
        self.leave_leader();
        self.log.promise(view);
        self.election.pledge = Some((peer, view));
    }

    /// The old leader's lane has been read to its end: this process proposes itself, once its own promise is kept.
    pub(super) fn stand(&mut self) {
        let known = self.log.promised().max(self.election.seen_view);
        let Some(view) = layout::next_view(known, self.me.node.0).filter(|_| self.may_stand()) else { return };
        Mark::ApusStands.reach();
        self.events.push_back(Event::AskedPermission);
        self.leave_leader();
        self.log.promise(view);
        self.election.pledge = Some((PeerId::SELF, view));
    }

    /// Reports a promise once it is kept, that is, once it survives everything that this process's log survives. Returns whether anything was told.
    pub(super) fn act_on_pledge<F: Fabric>(&mut self, now: Time, fabric: &mut F) -> bool {
        let Some((to, view)) = self.election.pledge else { return false };
        if view != self.log.promised() || self.inbound.purpose.is_some() {
            self.election.pledge = None;
            return true;
        }
        let is_kept = self.log.journal.as_ref().is_none_or(|journal| journal.promised() >= view);
        if !is_kept {
            return false;
        }
        self.election.pledge = None;
        self.publish(fabric);
        let wait = self.wait_ns();
        self.election.retry = now.after(wait);
        if to == PeerId::SELF {
            self.begin_reign(view, now.after(wait), fabric);
        } else {
            Mark::ApusAgrees.reach();
            tell(fabric, to, control::VOTE, view);
            self.nudges.at_once(to);
        }
        true
    }

    /// Whether this process could lead: it belongs to the group in force, or to the one that is known to be committed, holds the state, and makes progress. A
    /// leader that has removed itself may be the only process that has the entry which does so, and then no other log is as up to date. A process that was
    /// [removed before](Self::is_heir) may stand as well.
    pub(super) fn may_stand(&self) -> bool {
        let committed = self.log.committed_group().map(|(_, group)| group);
        let belongs = self.log.group().into_iter().chain(committed).any(|group| group.contains(self.me));
        (belongs || self.is_heir()) && self.log.is_complete() && !self.is_removed() && !self.inbound.broken
    }

    /// Whether this process, although removed from the committed group, holds a later change of the group and is listed in the newest view, as can happen after
    /// all have restarted from their disks. The remaining members may lack that change, and be too few without it. So this process stands, and leads until the
    /// change is committed.
    pub(super) fn is_heir(&self) -> bool {
        let was_removed = self.log.committed_group().is_some_and(|(_, group)| group.has_removed(self.me));
        was_removed && self.log.is_group_changing() && self.roster.lists(self.me)
    }

    /// How long a candidate waits for the others, and a process that has agreed for its candidate to lead: a random time, which grows with each failure (APUS
    /// section 4.4).
    fn wait_ns(&self) -> u64 {
        let span_ns = self.config.election_ns << self.election.failures.min(MOST_DOUBLINGS);
        let seed = u64::from(self.me.node.0) << 48 ^ self.log.promised() << 4 ^ self.me.incarnation.0;
        span_ns + fastrand::Rng::with_seed(seed).u64(..span_ns)
    }

    /// A process that hears no leader checks whether a majority hears none, and stands when its turn has come.
    pub(super) fn mind_election<F: Fabric>(&mut self, now: Time, fabric: &mut F) {
        if self.election.leader.is_some() || self.reign.is_some() || !self.may_stand() {
            (self.election.silent_since, self.election.look) = (None, None);
            return;
        }
        let since = *self.election.silent_since.get_or_insert(now);
        if self.inbound.purpose.is_some()
            || self.election.pledge.is_some()
            || now < self.election.retry.max(self.defers_until().unwrap_or_default())
        {
            return;
        }
        match self.election.look.take() {
            None => self.look(now, fabric),
            Some(look) if !self.is_over(&look) && now.since(look.begun) <= self.config.election_ns => self.election.look = Some(look),
            Some(look) => self.conclude_look(now, since, &look, fabric),
        }
    }

    /// Until when this process holds back for another one that is to lead, as long as that one is not known to be dead: if its heart stands still for a moment,
    /// it may be waiting for a processor.
    pub(super) fn defers_until(&self) -> Option<Time> {
        self.election.deference.until(self.log.promised(), |node| self.peers.iter().any(|p| p.process.node == node && !p.watch.dead))
    }

    /// Whether it is reading what the others report of themselves, and waits for answers.
    #[cfg(test)]
    pub(super) fn is_looking(&self) -> bool {
        self.election.look.is_some()
    }

    /// Whether a look will bring nothing more. A process that was found to be gone since the look began no longer answers, and is not waited for: when several
    /// hosts are lost at the same time, their losses are not all noticed at the same time.
    fn is_over(&self, look: &Look) -> bool {
        look.is_whole(|id| self.peer(id).is_none_or(|peer| peer.watch.dead))
    }

    /// Reads what the others say of themselves.
    fn look<F: Fabric>(&mut self, now: Time, fabric: &mut F) {
        self.election.looks += 1;
        let number = self.election.looks;
        let group = self.log.group();
        let asked = self.peers.iter().filter(|p| !p.watch.dead && group.is_some_and(|group| group.contains(p.process)));
        let answers: Vec<(PeerId, [Option<u64>; words::LOOK])> = asked.map(|p| (p.id, [None; words::LOOK])).collect();
        for (peer, of) in &answers {
            for word in 0..of.len() {
                let at = Remote { peer: *peer, region: Region::Public(WORDS), offset: word * 8 };
                fabric.read_word(at, Op::Look.token(number << WORD_BITS | word as u64, *peer));
            }
        }
        self.election.look = Some(Look { number, begun: now, answers });
    }

    /// A word that a peer reports of itself has been read.
    pub(super) fn handle_look(&mut self, round: u64, peer: PeerId, result: Result<u64, OpError>) {
        let (number, word) = (round >> WORD_BITS, (round & ((1 << WORD_BITS) - 1)) as usize);
        let Some(look) = self.election.look.as_mut().filter(|look| (look.number << WORD_BITS & 0xffff) >> WORD_BITS == number) else {
            return;
        };
        if let (Ok(value), Some((_, words))) = (result, look.answers.iter_mut().find(|(id, _)| *id == peer))
            && let Some(into) = words.get_mut(word)
        {
            *into = Some(value);
        }
    }

    /// One process's false suspicion deposes no leader, because a majority has to hear none. Of the processes that could lead, the one with the most up-to-date
    /// log stands first, and among equal logs the one with the lowest id. Without this order, all would stand at once after a certain death, which all see at
    /// the same time.
    fn conclude_look<F: Fabric>(&mut self, now: Time, since: Time, look: &Look, fabric: &mut F) {
        let own = self.log.rank();
        let (mut rank, mut hear_none, mut hear_some) = (0u64, Vec::new(), Vec::new());
        for (id, answer) in &look.answers {
            let Some(peer) = self.peers.iter().find(|p| p.id == *id) else { continue };
            let Some(answer) = answer.iter().copied().collect::<Option<Vec<u64>>>() else { continue };
            let (promised, hears) = (answer[words::PROMISED], answer[words::HEARS]);
            let theirs = (answer[words::ACCEPTED], LogIndex(answer[words::LAST]));
            if !layout::is_plausible(promised, self.log.promised()) || !is_number(theirs.1.0) {
                continue;
            }
            self.election.seen_view = self.election.seen_view.max(promised);
            if hears == 0 || hears <= self.election.lost_view {
                hear_none.push(peer.process);
            } else {
                hear_some.push(*id);
            }
            let first = theirs > own || (theirs == own && peer.process < self.me);
            rank += u64::from(first && peer.watch.is_alive() && Status::of(answer[words::STATUS]).is_complete());
        }
        Mark::ApusLooks.reach();
        if !self.is_majority(|id| id == self.me || hear_none.contains(&id)) {
            // Those that sleep have not looked themselves.
            hear_some.into_iter().for_each(|peer| self.nudges.at_once(peer));
            self.election.retry = now.after(self.config.rank_ns);
            return;
        }
        let due = since.after(rank * self.config.rank_ns);
        if now < due {
            self.election.retry = due;
            return;
        }
        self.close(Purpose::Stand, fabric);
    }

    /// Whether `yes` holds for a majority of the group in force.
    fn is_majority(&self, yes: impl Fn(ProcessId) -> bool) -> bool {
        let Some(group) = self.log.group() else { return false };
        group.members().iter().filter(|id| yes(**id)).count() >= group.majority()
    }

    /// A candidate that has waited for long enough starts again.
    pub(super) fn mind_candidacy<F: Fabric>(&mut self, now: Time, fabric: &mut F) {
        if self.reign.as_ref().is_some_and(|reign| !reign.is_elected() && now >= reign.until) {
            self.end_reign(Ending::TimedOut, fabric);
        }
    }

    /// The promise is kept, so this process proposes itself to the group.
    fn begin_reign<F: Fabric>(&mut self, view: u64, until: Time, fabric: &mut F) {
        let (accepted, last) = self.log.rank();
        let group = self.log.group();
        for peer in self.peers.iter().filter(|p| !p.watch.dead && group.is_some_and(|group: &Group| group.contains(p.process))) {
            tell(fabric, peer.id, control::ELECT_ACCEPTED, accepted);
            tell(fabric, peer.id, control::ELECT_LAST, last.0);
            tell(fabric, peer.id, control::ELECT, view);
            self.nudges.at_once(peer.id);
        }
        let (record, backlog) = std::mem::take(&mut self.spare);
        self.learning = None;
        self.reign = Some(Reign::new(self.me, view, until, record, backlog));
    }

    /// The process that this one takes for the leader.
    pub(super) fn leader(&self) -> Option<ProcessId> {
        let (id, _) = self.election.leader?;
        self.peer(id).map(|peer| peer.process)
    }
}
