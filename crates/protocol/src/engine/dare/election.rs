//! Leader election (DARE section 3.2): a server that hears no leader checks that a majority hears none either, takes exclusive access to its log, and proposes
//! itself for the next term. A server that is asked for its vote compares logs, also under exclusive access, makes its decision durable at a majority, and only
//! then answers.

use martlet_fabric::primitive::Ordering;
use martlet_fabric::{Fabric, Local, LocalRegion, OpError, PeerId, Region, Remote};

use super::access::Purpose;
use super::layout::{self, Op, Request, SCRATCH, SLOT_BYTES, Status, WORDS, control, words};
use super::leading::Reign;
use super::peers::{at_control, control as lane_of, tell, word_from};
use super::{Dare, Ending, Event};
use crate::basics::{Canary, LogIndex, Mark, ProcessId, Time, is_number};
use crate::replica::group::Group;
use crate::replica::handover::Deference;

/// How often the time that a candidate waits is doubled, at most.
const MOST_DOUBLINGS: u32 = 6;

/// What this server knows of an election, under way or not.
#[derive(Debug, Default)]
pub(super) struct Election {
    /// The leader that it hears, and its term.
    pub leader: Option<(PeerId, u64)>,
    /// Leaders of terms up to this one certainly no longer reign: they have said so, or are dead.
    pub lost_term: u64,
    /// The highest term that any peer has shown.
    pub seen_term: u64,
    /// Since when it hears no leader.
    silent_since: Option<Time>,
    /// The successor for which it holds back.
    pub deference: Deference,
    /// Before that it neither looks nor stands.
    retry: Time,
    /// Failed attempts since a leader was last heard.
    pub failures: u32,
    look: Option<Look>,
    deciding: Option<Decision>,
    decisions: u64,
    looks: u64,
    /// Its last decision on which it has voted or asked for votes.
    pub answered: Option<Answered>,
}

impl Election {
    /// Whether a leader is heard, and nothing is under way.
    pub fn is_at_rest(&self) -> bool {
        self.leader.is_some() && self.look.is_none() && self.deciding.is_none()
    }

    /// When there is something to do without input. `deference`: until when this server holds back for another one.
    pub fn deadline(&self, deference: Option<Time>) -> Time {
        let waits = self.silent_since.is_some() && self.look.is_none();
        if waits { deference.map_or(self.retry, |until| until.max(self.retry)) } else { Time(u64::MAX) }
    }

    /// This process was itself stalled for `gap_ns`, during which it heard nothing.
    pub fn discount(&mut self, gap_ns: u64, now: Time) {
        self.deference.discount(gap_ns);
        self.silent_since = self.silent_since.map(|since| crate::replica::patience::discounted(since, gap_ns, now));
    }
}

/// What the others report of themselves, while it is being read before a vote.
#[derive(Debug)]
struct Look {
    number: u64,
    begun: Time,
    left: u32,
    /// The peers that have been read so far.
    read: Vec<PeerId>,
}

/// A decision that has been acted on (DARE section 3.2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answered {
    /// Its encoding in the others' memory, in [`PRIVATE`](control::PRIVATE).
    pub word: u64,
    /// How many memories had to hold it, the decider's included.
    pub quorum: usize,
}

/// A decision on its way to the others (DARE section 3.2.3).
#[derive(Debug)]
struct Decision {
    number: u64,
    term: u64,
    /// The chosen peer; [`PeerId::SELF`] for this server.
    choice: PeerId,
    since: Time,
    /// How many memories have to hold it, this server's included.
    quorum: usize,
    /// The processes whose memory holds it.
    at: Vec<ProcessId>,
}

impl Dare {
    /// Takes what the others have written into the control lanes: which of them reign and ask for access, which stand, and which know a higher term.
    pub(super) fn hear<F: Fabric>(&mut self, now: Time, fabric: &mut F) {
        let removed = self.is_removed();
        let (mut leader, mut request, mut outdated) = (None::<(u64, PeerId, u64)>, None::<(Request, PeerId)>, 0);
        let mut stand = false;
        for at in 0..self.peers.len() {
            let (id, dead) = (self.peers[at].id, self.peers[at].watch.dead);
            let Some(lane) = lane_of(fabric, id) else { continue };
            let word = |at: usize| lane[at].load(Ordering::Acquire);
            let beat = word(control::BEAT);
            let (term, reigns) = (beat >> 1, beat & 1 == 1);
            if !layout::is_plausible(term, self.term) {
                continue;
            }
            if term > 0 && (!reigns || self.peers[at].watch.certain) {
                self.election.lost_term = self.election.lost_term.max(term);
            }
            if dead {
                continue;
            }
            self.election.seen_term = self.election.seen_term.max(term);
            let is_removed = self.log.group().is_some_and(|group| group.has_removed(self.peers[at].process));
            let ask = word(control::ASK);
            let alive = self.peers[at].watch.is_alive();
            if reigns && alive && term >= self.term && leader.is_none_or(|(other, ..)| term > other) {
                leader = Some((term, id, ask));
            }
            if reigns && term < self.term && self.peers[at].outdated < self.term {
                self.peers[at].outdated = self.term;
                let term = self.term;
                tell(fabric, id, control::OUTDATED, term);
                self.nudges.at_once(id);
                continue;
            }
            outdated = outdated.max(Some(word(control::OUTDATED)).filter(|term| layout::is_plausible(*term, self.term)).unwrap_or(0));
            let named = word(control::STAND);
            let successor = layout::choice_of(named).filter(|(term, _)| *term > self.term && layout::is_plausible(*term, self.term));
            match successor {
                Some((_, node)) if node == self.me.node => stand = true,
                Some((term, node)) => self.election.deference.begin(term, node, now.after(self.config.silence_ns)),
                None => {}
            }
            if let Some(asked) = Request::read(&lane[control::REQUEST..control::REQUEST + control::REQUEST_WORDS], self.term)
                && (asked.term > self.term || self.may_vote_again(asked.term, id))
                && !is_removed
                && request.is_none_or(|(other, _)| asked.term > other.term)
            {
                request = Some((asked, id));
            }
        }
        self.election.seen_term = self.election.seen_term.max(outdated);
        if self.reign.as_ref().is_some_and(|reign| outdated > reign.term) {
            self.end_reign(Ending::Outdated, fabric);
        }
        let reigns = self.reign.as_ref().is_some_and(Reign::is_elected);
        let was = self.election.leader;
        self.election.leader = leader.map(|(term, id, _)| (id, term)).filter(|_| !reigns);
        self.published &= was == self.election.leader;
        if removed || self.access.broken {
            return;
        }
        if let Some((term, id, ask)) = leader.filter(|_| !reigns) {
            (self.election.failures, self.election.silent_since, self.election.look) = (0, None, None);
            // This server waited for the candidate for which it voted, which leads by now.
            self.election.retry = Time(0);
            self.election.deference.end();
            let news = self.peer(id).is_some_and(|peer| ask > peer.granted);
            let purpose = Purpose::Support { peer: id, grant: ask };
            if layout::term_of(ask) == term && news && self.access.purpose != Some(purpose) {
                self.election.deciding = None;
                self.end_reign(Ending::Superseded, fabric);
                self.close_log(purpose, fabric);
            }
            return;
        }
        if reigns {
            return;
        }
        if let Some((request, peer)) = request {
            let under_way = match self.access.purpose {
                Some(Purpose::Vote { request, .. }) => request.term,
                _ => self.election.deciding.as_ref().map_or(0, |decision| decision.term),
            };
            if request.term > under_way {
                if self.peer_mut(peer).is_some_and(|peer| peer.watch.take_back()) {
                    Mark::DareRecovered.reach();
                }
                (self.election.deciding, self.election.look) = (None, None);
                self.end_reign(Ending::Superseded, fabric);
                self.close_log(Purpose::Vote { peer, request }, fabric);
            }
            return;
        }
        if stand && self.reign.is_none() && self.may_stand() && self.access.purpose.is_none() && self.election.deciding.is_none() {
            Mark::DareStandsAtOnce.reach();
            self.election.look = None;
            self.election.silent_since.get_or_insert(now);
            self.close_log(Purpose::Stand, fabric);
        }
    }

    /// Gives a leader the access that it asks for.
    pub(super) fn support<F: Fabric>(&mut self, peer: PeerId, grant: u64, fabric: &mut F) {
        let term = layout::term_of(grant);
        if term < self.term {
            return;
        }
        Mark::DareSupports.reach();
        self.raise_term(term, fabric);
        self.give_access(peer, grant, fabric);
    }

    /// Considers a vote request, with exclusive access to the log (DARE section 3.2.3).
    pub(super) fn consider<F: Fabric>(&mut self, peer: PeerId, request: Request, fabric: &mut F) {
        if request.term <= self.term && !self.may_vote_again(request.term, peer) {
            return;
        }
        self.raise_term(request.term, fabric);
        let own = (self.log.last_term(), self.log.tail().index);
        let theirs = (request.last_term, request.last);
        let is_older = if Canary::DareShortLog.is_planted() { theirs.0 < own.0 } else { theirs < own };
        if is_older && !Canary::DareOldLog.is_planted() {
            Mark::DareRefuses.reach();
            // This server's own log is better, so it stands as soon as no leader is heard.
            self.election.retry = Time(0);
            return;
        }
        self.decide(request.term, peer, request.quorum, fabric);
    }

    /// Whether it votes for a second candidate of its term, which no server should do.
    fn may_vote_again(&self, term: u64, candidate: PeerId) -> bool {
        Canary::DareDoubleVote.is_planted()
            && term == self.term
            && self.peer(candidate).is_some_and(|peer| peer.granted < layout::vote_of(term))
    }

    /// With exclusive access to its log, this server proposes itself for the next term. Its own vote is made as durable as any other (DARE section 3.2.3).
    pub(super) fn stand<F: Fabric>(&mut self, fabric: &mut F) {
        let term = self.term.max(self.election.seen_term) + 1;
        if !self.may_stand() || term > layout::MAX_TERM {
            return;
        }
        Mark::DareStands.reach();
        self.events.push_back(Event::AskedPermission);
        self.raise_term(term, fabric);
        let quorum = self.log.group().map_or(1, |group| group.majority());
        self.decide(term, PeerId::SELF, quorum, fabric);
    }

    /// Raises the term in this server's memory, before any action of this server in that term can be seen.
    fn raise_term<F: Fabric>(&mut self, term: u64, fabric: &F) {
        self.term = self.term.max(term);
        self.published = false;
        self.publish(fabric);
    }

    /// Writes a decision into the memory of the others. A candidate knows which others are needed. A voter's log may be older, and its group another one, so it
    /// writes to all.
    fn decide<F: Fabric>(&mut self, term: u64, choice: PeerId, quorum: usize, fabric: &mut F) {
        self.election.decisions += 1;
        let number = self.election.decisions;
        let chosen = self.peer(choice).map_or(self.me, |peer| peer.process);
        let word = layout::choice(term, chosen.node);
        let group = self.log.group().filter(|_| choice == PeerId::SELF);
        for peer in self.peers.iter().filter(|p| !p.watch.dead && group.is_none_or(|group| group.contains(p.process))) {
            fabric.write(at_control(peer.id, control::PRIVATE), &word.to_le_bytes(), Op::Private.token(number, peer.id));
        }
        self.election.deciding = Some(Decision { number, term, choice, since: self.now, quorum, at: Vec::new() });
    }

    /// A decision is in a peer's memory, or writing it there has failed.
    pub(super) fn handle_private(&mut self, round: u64, peer: PeerId, result: Result<u64, OpError>) {
        let Some(process) = self.peer(peer).map(|peer| peer.process) else { return };
        if let Some(decision) = &mut self.election.deciding
            && decision.number & 0xffff == round
            && result.is_ok()
            && !decision.at.contains(&process)
        {
            decision.at.push(process);
        }
    }

    /// Answers, once the decision is at a majority. Returns whether anything has moved.
    pub(super) fn act_on_decision<F: Fabric>(&mut self, now: Time, fabric: &mut F) -> bool {
        let Some(decision) = &self.election.deciding else { return false };
        let (term, choice, late) = (decision.term, decision.choice, now.since(decision.since) > self.config.silence_ns);
        // A candidate knows the groups whose majorities are needed; a voter knows only how many servers are needed at least.
        let stands = |id: ProcessId| decision.at.contains(&id) || self.votes_as_zombie(id);
        let zombies = self.peers.iter().filter(|p| self.votes_as_zombie(p.process)).count();
        let is_durable = decision.at.len() + zombies + 1 >= decision.quorum && (choice != PeerId::SELF || self.is_majority(true, stands));
        let is_durable = is_durable || Canary::DareUnkeptVote.is_planted();
        let quorum = decision.quorum;
        if self.access.purpose.is_some() || term != self.term || late {
            self.election.deciding = None;
            return true;
        }
        if !is_durable {
            return false;
        }
        self.election.deciding = None;
        let wait = self.wait_ns();
        self.election.retry = now.after(wait);
        let chosen = self.peer(choice).map_or(self.me, |peer| peer.process);
        self.election.answered = Some(Answered { word: layout::choice(term, chosen.node), quorum });
        if choice == PeerId::SELF {
            self.begin_reign(term, now.after(wait), fabric);
        } else {
            Mark::DareVotes.reach();
            self.give_access(choice, layout::vote_of(term), fabric);
        }
        true
    }

    /// Whether `yes` holds for a majority of the group in force, counting this server if `me`.
    pub(super) fn is_majority(&self, me: bool, yes: impl Fn(ProcessId) -> bool) -> bool {
        self.log.group().is_some_and(|group| is_majority_of(group, self.me, me, yes))
    }

    /// Whether this server could lead: it belongs to the group in force, or [is leaving](Dare::goes_by), holds the state, and makes progress.
    pub(super) fn may_stand(&self) -> bool {
        let belongs = self.log.groups().any(|group| group.contains(self.me));
        belongs && self.log.is_complete() && !self.is_removed() && !self.access.broken
    }

    /// The entry that removes this server from the group, by its term and index, as long as it is not known to be committed. This server may be the only living
    /// one that has the entry. Then the remaining servers could not be elected against its log, so it stands as well, does not count itself, and leads until
    /// that entry is committed.
    fn goes_by(&self) -> Option<(u64, LogIndex)> {
        let goes = !self.is_removed() && self.log.group().is_some_and(|group| !group.contains(self.me));
        let index = self.log.group_since().filter(|_| goes)?;
        Some((self.log.term_at(index)?, index))
    }

    /// How long a candidate waits for votes, and a voter for its candidate to lead: a random time, which grows with each failure (DARE section 3.2.2).
    fn wait_ns(&self) -> u64 {
        let span_ns = self.config.election_ns << self.election.failures.min(MOST_DOUBLINGS);
        let seed = u64::from(self.me.node.0) << 48 ^ self.term << 20 ^ self.me.incarnation.0;
        span_ns + fastrand::Rng::with_seed(seed).u64(..span_ns)
    }

    /// A server that hears no leader checks whether a majority hears none, and stands when its turn has come.
    pub(super) fn mind_election<F: Fabric>(&mut self, now: Time, fabric: &mut F) {
        if self.election.leader.is_some() || self.reign.is_some() || !self.may_stand() {
            (self.election.silent_since, self.election.look) = (None, None);
            return;
        }
        let since = *self.election.silent_since.get_or_insert(now);
        if self.access.purpose.is_some()
            || self.election.deciding.is_some()
            || now < self.election.retry.max(self.defers_until().unwrap_or_default())
        {
            return;
        }
        match self.election.look.take() {
            None => self.look(now, fabric),
            Some(look) if look.left > 0 && now.since(look.begun) <= self.config.election_ns => self.election.look = Some(look),
            Some(look) => self.conclude_look(now, since, &look, fabric),
        }
    }

    /// Until when this process holds back for another one that is to lead, as long as that one is not known to be dead: if its heart stands still for a moment,
    /// it may be waiting for a processor.
    pub(super) fn defers_until(&self) -> Option<Time> {
        self.election.deference.until(self.term, |node| self.peers.iter().any(|p| p.process.node == node && !p.watch.dead))
    }

    /// Reads what the others report of themselves.
    fn look<F: Fabric>(&mut self, now: Time, fabric: &mut F) {
        self.election.looks += 1;
        let number = self.election.looks;
        let mut left = 0;
        for at in 0..self.peers.len() {
            let peer = &self.peers[at];
            let may_lead = self.log.groups().any(|group| group.contains(peer.process));
            if peer.watch.dead || !may_lead {
                continue;
            }
            let id = peer.id;
            let Some(slot) = self.slot_of(at) else { continue };
            let into = Local { region: LocalRegion::Public(SCRATCH), offset: slot * SLOT_BYTES };
            fabric.read(Remote { peer: id, region: Region::Public(WORDS), offset: 0 }, into, words::LOOK * 8, Op::Look.token(number, id));
            self.peers[at].reads += 1;
            left += 1;
        }
        self.election.look = Some(Look { number, begun: now, left, read: Vec::new() });
    }

    /// What a peer reports of itself has been read.
    pub(super) fn handle_look(&mut self, round: u64, peer: PeerId, result: Result<u64, OpError>) {
        self.note_read(peer);
        if let Some(look) = self.election.look.as_mut().filter(|look| look.number & 0xffff == round) {
            look.left -= 1;
            if result.is_ok() {
                look.read.push(peer);
            }
        }
    }

    /// One server's false suspicion deposes no leader, because a majority has to hear none. Of the servers that could lead, the one with the best log stands
    /// first, and among equal logs the one with the lowest id. Without this order, all would stand at once after a certain death, which all see at the same
    /// time.
    fn conclude_look<F: Fabric>(&mut self, now: Time, since: Time, look: &Look, fabric: &mut F) {
        let scratch = fabric.memory(LocalRegion::Public(SCRATCH)).expect("every process has room for its reads");
        let own = (self.log.last_term(), self.log.tail().index);
        // A server that is leaving leads only if none of the remaining ones could.
        let goes_by = self.goes_by();
        let stays = |process| goes_by.is_some() && self.log.group().is_some_and(|group| group.contains(process));
        let (mut rank, mut hear_none, mut seen) = (0u64, Vec::new(), self.election.seen_term);
        let mut hear_some = Vec::new();
        for peer in self.peers.iter().filter(|p| look.read.contains(&p.id)) {
            let Some(slot) = peer.slot else { continue };
            let word = |at: usize| scratch[slot * SLOT_BYTES / 8 + at].load(Ordering::Acquire);
            let [term, supports, last_term, last] = [words::TERM, words::SUPPORTS, words::LAST_TERM, words::LAST_INDEX].map(word);
            if !layout::is_plausible(term, self.term) || !is_number(last) {
                continue;
            }
            seen = seen.max(term);
            if supports == 0 || supports <= self.election.lost_term {
                hear_none.push(peer.process);
            } else {
                hear_some.push(peer.id);
            }
            let theirs = (last_term, LogIndex(last));
            let first = theirs > own
                || (theirs == own && peer.process < self.me)
                || (stays(peer.process) && goes_by.is_some_and(|entry| theirs >= entry));
            rank += u64::from(first && peer.watch.is_alive() && Status::of(word(words::STATUS)).is_complete());
        }
        self.election.seen_term = seen;
        Mark::DareLooks.reach();
        if !self.is_majority(true, |id| hear_none.contains(&id) || self.votes_as_zombie(id)) {
            // Sleeping peers have not looked themselves.
            hear_some.into_iter().for_each(|peer| self.nudges.at_once(peer));
            self.election.retry = now.after(self.config.rank_ns);
            return;
        }
        let due = since.after(rank * self.config.rank_ns);
        if now < due {
            self.election.retry = due;
            return;
        }
        self.close_log(Purpose::Stand, fabric);
    }

    /// A candidate that has waited for long enough starts again (DARE section 3.2.2).
    pub(super) fn mind_candidacy<F: Fabric>(&mut self, now: Time, fabric: &mut F) {
        if self.reign.as_ref().is_some_and(|reign| !reign.is_elected() && now >= reign.until) {
            self.end_reign(Ending::TimedOut, fabric);
        }
    }

    /// The last decision on which this server has voted or asked for votes.
    pub fn answered(&self) -> Option<Answered> {
        self.election.answered
    }

    /// The process that this server takes for the leader.
    pub(super) fn leader(&self) -> Option<ProcessId> {
        let (id, _) = self.election.leader?;
        self.peer(id).map(|peer| peer.process)
    }

    /// Whether a peer votes for this candidate, or supports this leader, with the requested grant.
    pub(super) fn has_granted<F: Fabric>(fabric: &F, peer: PeerId, grant: u64) -> bool {
        word_from(fabric, peer, control::VOTE) == grant
    }
}

/// Whether `yes` holds for a majority of the group, counting the server `me` if `counts` and it is a member.
pub(super) fn is_majority_of(group: &Group, me: ProcessId, counts: bool, yes: impl Fn(ProcessId) -> bool) -> bool {
    let adds_itself = counts && Canary::DareRemovedLeads.is_planted();
    group.electorates().all(|(members, quorum)| {
        let others = members.iter().filter(|id| **id != me && yes(**id)).count();
        others + usize::from(counts && members.contains(&me) || adds_itself) >= quorum
    })
}
