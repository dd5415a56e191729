//! What a leader does (DARE section 3.3): it adjusts the logs of the servers that give it access, writes its entries into them, and commits what a majority
//! has.

use std::collections::VecDeque;

use martlet_fabric::ring::Record;
use martlet_fabric::{Fabric, LocalRegion, Memory, OpError, PeerId, invariant, pulse};

use crate::basics::layout::MAX_MEMBERS;
use crate::basics::{self, Canary, LogIndex, ProcessId, Time};
use crate::engine::Engine as _;
use crate::replica::backlog::Backlog;
use crate::replica::group::Group;
use crate::replica::nudges::Nudges;
use crate::replica::release::Releases;
use crate::replica::{Execution, StateMachine};

use super::config::Config;
use super::election::is_majority_of;
use super::follower::{Follower, Phase};
use super::layout::{self, Determinants, Kind, LOG, Op, RUNS_BYTES, SCRATCH, SLOT_BYTES, control};
use super::log::{Log, Mark};
use super::peers::{Peer, tell, word_from};
use super::quorums::Quorums;
use super::zombie::Zombies;
use super::{Dare, Ending, Event};

/// How far a reign has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// A candidate: it waits for votes.
    Electing,
    /// It is elected, and waits until the entry without an operation that begins its term is committed.
    Adjusting { noop: LogIndex, recovered: u64 },
    /// Every proposal is a record and a tail pointer for each follower.
    Leading,
}

/// A candidacy, and what becomes of it.
#[derive(Debug)]
pub(super) struct Reign {
    pub(super) me: ProcessId,
    pub term: u64,
    /// Until when a candidate waits for votes.
    pub until: Time,
    stage: Stage,
    pub followers: Vec<Follower>,
    pub backlog: Backlog,
    /// The last entry proposed.
    last: LogIndex,
    /// Records in the log that are not committed.
    open: VecDeque<Mark>,
    record: Record,
    last_post: Time,
    /// A follower has shown a higher term.
    outdated: u64,
    /// Followers whose determinants have been read since the last look.
    read: Vec<PeerId>,
    pub(super) quorums: Quorums,
    pub(super) zombies: Zombies,
    /// Where the head was, and when it was first found unable to move although the log was nearly full.
    pub head_stuck: Option<(u64, Time)>,
    /// The server whose apply pointer the head waits for, as of the last check, unless it is this one's own.
    pub head_waits_for: Option<ProcessId>,
    /// The head as of its last HEAD entry.
    head_told: u64,
}

/// What a reign works with.
pub(super) struct Context<'a, F, S> {
    pub now: Time,
    pub config: &'a Config,
    pub log: &'a mut Log,
    pub fabric: &'a mut F,
    pub machine: &'a mut S,
    pub events: &'a mut VecDeque<Event>,
    pub nudges: &'a mut Nudges,
    pub buffer: &'a mut Vec<u8>,
    pub peers: &'a mut Vec<Peer>,
    pub sessions: &'a mut u64,
}

/// Our own log's memory.
pub(super) fn ring_of<F: Fabric>(fabric: &F) -> &Memory {
    fabric.memory(LocalRegion::Public(LOG)).expect("every process offers its log")
}

impl Reign {
    pub fn new(me: ProcessId, term: u64, until: Time, record: Record, backlog: Backlog) -> Reign {
        Reign {
            me,
            term,
            until,
            stage: Stage::Electing,
            followers: Vec::with_capacity(MAX_MEMBERS),
            backlog,
            last: LogIndex(0),
            open: VecDeque::new(),
            record,
            last_post: Time(0),
            outdated: 0,
            read: Vec::with_capacity(MAX_MEMBERS),
            quorums: Quorums::default(),
            zombies: Zombies::default(),
            head_stuck: None,
            head_waits_for: None,
            head_told: 0,
        }
    }

    /// Whether it has taken over.
    #[inline]
    pub fn is_leading(&self) -> bool {
        self.stage == Stage::Leading
    }

    /// How far it has come.
    pub fn stage(&self) -> Stage {
        self.stage
    }

    /// Whether a majority has voted for it.
    pub fn is_elected(&self) -> bool {
        self.stage != Stage::Electing
    }

    pub fn last(&self) -> LogIndex {
        self.last
    }

    /// Whether something is under way.
    pub fn is_waiting(&self) -> bool {
        self.is_elected() && (!self.is_leading() || !self.open.is_empty() || !self.backlog.is_empty())
    }

    /// Whether another command of `bytes`, together with everything waiting, would find room in the log at once.
    pub fn has_room(&self, bytes: usize, log: &Log, config: &Config) -> bool {
        self.is_leading() && log.tail().position - log.head() + self.backlog.log_bytes_with(bytes) <= config.command_bytes()
    }

    pub fn into_parts(self) -> (Record, Backlog) {
        (self.record, self.backlog)
    }

    /// The peer is gone, and what it holds no longer counts.
    pub fn lose(&mut self, peer: PeerId) {
        if let Some(follower) = self.followers.iter_mut().find(|f| f.peer == peer) {
            (follower.phase, follower.acked, follower.zombie_until) = (Phase::Lost, None, None);
        }
    }

    /// An operation on a follower has completed.
    pub fn handle_completion(&mut self, op: Op, session: u64, peer: PeerId, result: Result<u64, OpError>, nudges: &mut Nudges) {
        let mine = |f: &&mut Follower| f.peer == peer && f.session & 0xffff == session;
        let Some(follower) = self.followers.iter_mut().find(mine) else { return };
        let counts = !matches!(follower.phase, Phase::Lost | Phase::Overrun | Phase::Revoked);
        match (op, result) {
            (_, Err(OpError::PeerLost)) => (follower.phase, follower.acked) = (Phase::Lost, None),
            // The follower has taken its access back. If it knows a later term it says so; otherwise it is asked again.
            (Op::Log, Err(OpError::AccessLost)) if counts && Canary::DareCountsRefused.is_planted() => follower.handle_done(),
            (_, Err(OpError::AccessLost)) if follower.phase != Phase::Lost => {
                basics::Mark::DareAccessLost.reach();
                (follower.phase, follower.acked, follower.holds) = (Phase::Revoked, None, false);
            }
            (Op::Log, Ok(_)) if counts => follower.handle_done(),
            (Op::Consumed, Ok(position)) if follower.lane.note_consumed(position) => nudges.soon(peer),
            (Op::Runs, Ok(_)) => self.read.push(peer),
            (Op::Check, Ok(term)) => {
                let turn = follower.checks.pop_front().unwrap_or(0);
                if term <= self.term {
                    follower.vouched = follower.vouched.max(turn);
                } else {
                    self.outdated = self.outdated.max(term);
                }
            }
            _ => {}
        }
    }

    /// A command, for the next record. Returns its index.
    pub fn propose(&mut self, command: &[u8], config: &Config) -> LogIndex {
        self.backlog.push(command, config.batch_bytes.min(config.max_command_bytes()));
        self.last = self.last.next();
        self.last
    }

    /// Whether a change of the group can be proposed now: one at a time, and once an entry of this term is committed.
    pub fn may_change(&self, log: &Log) -> bool {
        let hasty = Canary::DareHastyChange.is_planted();
        self.is_leading() && (!log.is_group_changing() || hasty) && !self.backlog.has_group()
    }

    pub fn propose_group(&mut self, group: &Group) {
        let mut encoded = Vec::new();
        group.encode(&mut encoded);
        self.backlog.push_group(&encoded);
        self.last = self.last.next();
    }

    /// The highest value that a majority of the group in force has reached, in transition of both groups; `mine` is that of this process, which no follower's exceeds.
    pub fn majority_of(&mut self, log: &Log, mine: u64, of: impl Fn(&Follower) -> u64) -> u64 {
        self.quorums.reached(self.me, log, &mut self.followers, mine, of)
    }

    /// Adds peers that have not been asked yet, and asks those again that have taken their access back.
    fn ask<F: Fabric, S>(&mut self, cx: &mut Context<F, S>, is_wanted: &impl Fn(&Peer, &Log) -> bool) {
        self.followers.retain(|f| f.phase != Phase::Lost || cx.log.group().is_some_and(|group| group.contains(f.process)));
        for at in 0..cx.peers.len() {
            let peer = &cx.peers[at];
            if peer.watch.dead || !is_wanted(peer, cx.log) {
                continue;
            }
            let (id, process) = (peer.id, peer.process);
            let place = self.followers.iter().position(|f| f.peer == id);
            let place = match place {
                Some(place) => {
                    let follower = &mut self.followers[place];
                    let taken_back = word_from(cx.fabric, id, control::RENEW) == follower.grant && follower.phase != Phase::Asked;
                    if follower.phase != Phase::Revoked && !taken_back {
                        continue;
                    }
                    *cx.sessions += 1;
                    follower.ask_anew(*cx.sessions, cx.config.log_ring_bytes);
                    place
                }
                None if self.followers.len() == layout::MAX_PEERS => continue,
                None => {
                    *cx.sessions += 1;
                    // As a candidate it asks for a vote.
                    let grant = layout::vote_of(self.term) + u64::from(self.is_elected());
                    self.followers.push(Follower::new(process, id, grant, *cx.sessions, cx.config.log_ring_bytes));
                    self.quorums.forget();
                    self.followers.len() - 1
                }
            };
            if self.is_elected() {
                basics::Mark::DareAsks.reach();
                let grant = self.followers[place].grant;
                tell(cx.fabric, id, control::ASK, grant);
                cx.nudges.at_once(id);
            }
        }
    }

    /// Does what can be done now. `Err` ends the reign.
    ///
    /// `whole`: checks all followers, not only the results of what was posted.
    pub fn step<F: Fabric, S: StateMachine>(
        &mut self,
        whole: bool,
        cx: &mut Context<F, S>,
        is_wanted: impl Fn(&Peer, &Log) -> bool,
    ) -> Result<bool, Ending> {
        if self.outdated > self.term {
            return Err(Ending::Outdated);
        }
        let mut moved = false;
        self.mind_zombies(cx.now, cx.log, |peer| cx.peers.iter().any(|p| p.id == peer && p.watch.is_alive()));
        if !self.is_elected() {
            if whole {
                self.ask(cx, &is_wanted);
            }
            if !self.count_votes(cx) {
                return Ok(false);
            }
            moved = true;
        }
        if whole || moved {
            self.ask(cx, &is_wanted);
        }
        moved |= self.take_grants(cx);
        for at in 0..self.followers.len() {
            if self.followers[at].is_following() {
                moved |= self.feed(at, cx);
                let follower = &mut self.followers[at];
                if follower.is_zombie() {
                    continue;
                }
                let urgent = cx.log.tail().position - cx.log.head() > cx.config.log_ring_bytes as u64 / 4;
                follower.lane.refresh(cx.fabric, Op::Consumed.token(follower.session, follower.peer), cx.config.nudge_records, urgent);
            }
        }
        moved |= self.commit(cx);
        Ok(moved)
    }

    /// A candidate with the votes of a majority, its own included, becomes leader of its term (DARE section 3.2).
    fn count_votes<F: Fabric, S: StateMachine>(&mut self, cx: &mut Context<F, S>) -> bool {
        let Some(group) = cx.log.group() else { return false };
        let votes: Vec<ProcessId> =
            self.followers.iter().filter(|f| Dare::has_granted(cx.fabric, f.peer, f.grant)).map(|f| f.process).collect();
        let bought = |id: ProcessId| Canary::DareZombieVotes.is_planted() && cx.peers.iter().any(|p| p.process == id && p.watch.certain);
        if !is_majority_of(group, self.me, true, |id| votes.contains(&id) || bought(id)) {
            return false;
        }
        let belongs = cx.log.groups().any(|group| group.contains(self.me));
        invariant!(belongs, "{} is elected by a group to which it does not belong: {group:?}", self.me);
        cx.events.push_back(Event::Permitted);
        self.open = cx.log.open(ring_of(cx.fabric));
        let recovered = cx.log.tail().index.0 - cx.log.committed().index.0;
        self.head_told = cx.log.head();
        // A leader counts only entries of its own term: with this one, everything before it is committed too (DARE section 3.3; docs/dare.md).
        self.place(Kind::Noop, &[], cx);
        self.last = LogIndex(cx.log.tail().index.0 + self.backlog.entries());
        self.stage = Stage::Adjusting { noop: cx.log.tail().index, recovered };
        let beat = self.term << 1 | 1;
        for peer in cx.peers.iter_mut().filter(|p| !p.watch.dead) {
            peer.beat = beat;
            tell(cx.fabric, peer.id, control::BEAT, beat);
            cx.nudges.at_once(peer.id);
        }
        for at in 0..self.followers.len() {
            // A server that has voted has given access already; this process asks the others as leader.
            if !Dare::has_granted(cx.fabric, self.followers[at].peer, self.followers[at].grant) {
                self.followers[at].phase = Phase::Revoked;
            }
        }
        true
    }

    /// Appends one of the engine's own entries, for which commands always leave room.
    fn place<F: Fabric, S>(&mut self, kind: Kind, body: &[u8], cx: &mut Context<F, S>) {
        let header = cx.log.next_header(kind, 1, self.term);
        self.record.fill(|bytes| {
            bytes.extend_from_slice(&header.bytes());
            bytes.extend_from_slice(body);
        });
        let executed = cx.log.applied() == cx.log.tail();
        let placed = cx.log.place(&header, &self.record, ring_of(cx.fabric));
        invariant!(placed.is_ok(), "the log has no room for an entry of the leader's own: {placed:?}");
        if cx.config.execution == Execution::Speculative && executed {
            cx.log.note_executed();
        }
        self.open.push_back(cx.log.tail());
    }

    /// Adjusts the logs to which access has been given (DARE section 3.3.1): reads their determinants, and cuts them off where they diverge from this log.
    fn take_grants<F: Fabric, S: StateMachine>(&mut self, cx: &mut Context<F, S>) -> bool {
        let mut moved = false;
        for follower in &mut self.followers {
            if follower.phase == Phase::Asked && Dare::has_granted(cx.fabric, follower.peer, follower.grant) {
                let Some(at) = cx.peers.iter().position(|p| p.id == follower.peer) else { continue };
                let free = |slot: &usize| cx.peers.iter().all(|p| p.slot != Some(*slot));
                let Some(slot) = cx.peers[at].slot.or_else(|| (0..layout::MAX_PEERS).find(free)) else { continue };
                cx.peers[at].slot = Some(slot);
                cx.peers[at].reads += 1;
                follower.inspect(slot, cx.fabric);
                moved = true;
            }
        }
        while let Some(id) = self.read.pop() {
            let Some(at) = self.followers.iter().position(|f| f.peer == id && f.phase == Phase::Inspecting) else { continue };
            let Some(slot) = cx.peers.iter().find(|p| p.id == id).and_then(|p| p.slot) else { continue };
            let scratch = cx.fabric.memory(LocalRegion::Public(SCRATCH)).expect("every process has room for its reads");
            let words = &scratch[slot * SLOT_BYTES / 8..(slot * SLOT_BYTES + RUNS_BYTES) / 8];
            let read = Determinants::read(words).filter(|these| these.grant == self.followers[at].grant);
            let committed = cx.log.committed().index;
            let follower = &mut self.followers[at];
            moved = true;
            let Some(theirs) = read else {
                // The follower has given access under another grant meanwhile, or its memory makes no sense. It is asked again if it requests that.
                follower.phase = Phase::Overrun;
                continue;
            };
            match cx.log.last_in_common(&theirs) {
                Some(to) => {
                    basics::Mark::DareAdjusts.reach();
                    let to =
                        if Canary::DareNoAdjust.is_planted() && theirs.tail.position <= cx.log.tail().position { theirs.tail } else { to };
                    let to = if Canary::DareNaiveAdjust.is_planted() { theirs.base } else { to };
                    follower.adjust(to, &theirs, committed, cx.fabric);
                }
                None => {
                    basics::Mark::DareOverruns.reach();
                    follower.overrun(Some(theirs.tail), cx.fabric);
                }
            }
            cx.nudges.at_once(id);
        }
        moved
    }

    /// Posts what a follower does not have, as far as there is room, and then moves its tail pointer. The leader does not wait for a slow follower (TRAPS 15).
    fn feed<F: Fabric, S: StateMachine>(&mut self, at: usize, cx: &mut Context<F, S>) -> bool {
        let tail = cx.log.tail().position;
        while self.followers[at].cursor.position < tail {
            let follower = &mut self.followers[at];
            let Some((header, next)) = cx.log.read(ring_of(cx.fabric), follower.cursor.position, cx.buffer) else {
                basics::Mark::DareOverruns.reach();
                follower.overrun(None, cx.fabric);
                return true;
            };
            if !follower.lane.writer().fits(cx.buffer.len()) {
                basics::Mark::DareLaneFull.reach();
                follower.lane.set_full(true);
                break;
            }
            let payload = &cx.buffer;
            self.record.fill(|bytes| bytes.extend_from_slice(payload));
            follower.push(cx.fabric, &mut self.record, Mark { index: header.last(), position: next });
            pulse::moved(cx.fabric, Dare::hearts(), cx.buffer.len());
        }
        let committed = cx.log.committed().index;
        let follower = &mut self.followers[at];
        let moves = follower.is_tail_behind();
        if moves {
            follower.move_tail(committed, 0, cx.fabric);
        }
        moves
    }

    /// The common path: each batch becomes one record in each log, and each follower gets one tail pointer for all records of a turn (DARE section 3.3,
    /// batches).
    pub fn post<F: Fabric, S: StateMachine>(&mut self, turn: u64, cx: &mut Context<F, S>) -> bool {
        if !self.is_leading() {
            return false;
        }
        self.prune(cx);
        let mut posted = false;
        while let Some(batch) = self.backlog.front() {
            let len = batch.record.len();
            let limit =
                if batch.kind == crate::replica::backlog::Content::Commands { cx.config.command_bytes() } else { cx.log.capacity() };
            if cx.log.bytes_with(len) > limit {
                basics::Mark::DareNoRoom.reach();
                break;
            }
            let before = cx.log.tail();
            let header = cx.log.next_header(batch.kind.into(), batch.count, self.term);
            batch.record.close(&header.bytes());
            let placed = cx.log.place(&header, &batch.record, ring_of(cx.fabric));
            invariant!(placed.is_ok(), "the log has no room although it was checked: {placed:?}");
            let mark = cx.log.tail();
            self.open.push_back(mark);
            if cx.config.execution == Execution::Speculative {
                cx.log.note_executed();
            }
            for follower in self.followers.iter_mut().filter(|f| f.is_following() && f.cursor == before) {
                if follower.push(cx.fabric, &mut batch.record, mark) {
                    pulse::moved(cx.fabric, Dare::hearts(), len);
                }
            }
            self.backlog.pop_front();
            posted = true;
        }
        self.tell_head(cx);
        if posted {
            let (tail, committed) = (cx.log.tail(), cx.log.committed().index);
            for follower in self.followers.iter_mut().filter(|f| f.is_following() && f.is_tail_behind() && f.cursor == tail) {
                follower.move_tail(committed, turn, cx.fabric);
            }
            self.last_post = cx.now;
        } else if cx.now.since(self.last_post) >= cx.config.flush_idle_ns && !Canary::DareNoFlush.is_planted() {
            self.flush(cx);
        }
        posted
    }

    /// Moves the head: entries that all unsuspected servers have applied are no longer needed (DARE section 3.3.2). The move is final once the HEAD entry is
    /// committed.
    fn prune<F: Fabric, S: StateMachine>(&mut self, cx: &mut Context<F, S>) {
        let (head, tail, size) = (cx.log.head(), cx.log.tail().position, cx.config.log_ring_bytes as u64);
        self.head_waits_for = None;
        if tail - head < size / 4 {
            return;
        }
        let Context { peers, log, .. } = cx;
        let is_alive = |id: PeerId| peers.iter().any(|p| p.id == id && p.watch.is_alive());
        let held_up = |f: &&Follower| match f.phase {
            Phase::Following if Canary::DareZombieHead.is_planted() && f.is_zombie() => true,
            Phase::Asked | Phase::Inspecting | Phase::Following => is_alive(f.peer) && (f.votes() || f.phase == Phase::Following),
            // It recovers, and needs nothing of this log before.
            Phase::Overrun | Phase::Revoked | Phase::Lost => false,
        };
        let of = |f: &Follower| if f.phase == Phase::Following { f.applied() } else { head };
        let slowest = self.followers.iter().filter(held_up).min_by_key(|f| of(f));
        let least = slowest.map_or(tail, of);
        self.head_waits_for = slowest.filter(|_| least < log.kept()).map(|f| f.process);
        let to = least.min(log.kept()).max(head);
        log.raise_head(to);
        if tail - to > size / 2 {
            let since = self.head_stuck.filter(|(at, _)| *at == to).map_or(cx.now, |(_, since)| since);
            self.head_stuck = Some((to, since));
        } else {
            self.head_stuck = None;
        }
    }

    /// Appends the HEAD entry, by which the others, and so all later leaders, learn of the head. Earlier proposals already have their places in the log and go
    /// first.
    fn tell_head<F: Fabric, S>(&mut self, cx: &mut Context<F, S>) {
        let (head, size) = (cx.log.head(), cx.config.log_ring_bytes as u64);
        if !self.backlog.is_empty() || cx.log.is_head_moving() || head - self.head_told < size / 8 {
            return;
        }
        basics::Mark::DarePrunes.reach();
        self.head_told = head;
        self.place(Kind::Head, &head.to_le_bytes(), cx);
        self.last = self.last.next();
        invariant!(self.last == cx.log.tail().index, "{} has been proposed of {}", self.last, cx.log.tail().index);
    }

    /// Makes sure that every follower's term is read after the end of this turn (DARE section 3.3, read requests).
    pub fn check<F: Fabric>(&mut self, turn: u64, fabric: &mut F) {
        for follower in self.followers.iter_mut().filter(|f| f.phase != Phase::Lost && f.votes()) {
            if follower.asked() < turn {
                basics::Mark::DareChecks.reach();
                follower.check(turn, fabric);
            }
        }
    }

    /// Sends the commit pointer without an entry when nothing has been posted for a while (TRAPS 13).
    #[inline(never)]
    fn flush<F: Fabric, S: StateMachine>(&mut self, cx: &mut Context<F, S>) {
        let (tail, committed) = (cx.log.tail(), cx.log.committed().index);
        for follower in self.followers.iter_mut().filter(|f| f.is_following() && !f.is_zombie() && f.cursor == tail && f.told() < committed)
        {
            basics::Mark::DareFlushes.reach();
            follower.move_tail(committed, 0, cx.fabric);
            cx.nudges.soon(follower.peer);
            self.last_post = cx.now;
        }
    }

    /// Commits what the tail pointers of a majority have reached, once that is an entry of this term.
    fn commit<F: Fabric, S: StateMachine>(&mut self, cx: &mut Context<F, S>) -> bool {
        let held = LogIndex(self.majority_of(cx.log, cx.log.tail().index.0, |f| f.held().map_or(0, |held| held.0)));
        let held = if Canary::DareFastestFollower.is_planted() {
            self.followers.iter().filter(|f| f.votes()).filter_map(Follower::held).max().map_or(held, |fastest| fastest.max(held))
        } else {
            held
        };
        if let Stage::Adjusting { noop, recovered } = self.stage {
            let early = Canary::DareEarlyConfig.is_planted();
            if held < noop && !early && !Canary::DareOldTermCommit.is_planted() {
                return false;
            }
            if recovered == 0 { basics::Mark::DareLeads } else { basics::Mark::DareLeadsTail }.reach();
            self.stage = Stage::Leading;
            cx.events.push_back(Event::TookOver { recovered });
        }
        if Canary::DareEarlyConfig.is_planted() && cx.log.term_at(held) != Some(self.term) {
            return false;
        }
        let mut last = None;
        while let Some(mark) = self.open.front().copied().filter(|mark| mark.index <= held) {
            last = Some(mark);
            self.open.pop_front();
        }
        let Some(mark) = last else { return false };
        if cx.config.execution == Execution::Committed || cx.log.applied().index < mark.index {
            cx.log.advance(ring_of(cx.fabric), cx.machine, mark.index);
        } else {
            cx.log.commit_to(mark);
        }
        true
    }

    /// The reign ends: what was executed is at least added to our own log, as far as there is room. The log is ours until another process may write there.
    pub fn keep_executed(&mut self, ring: &Memory, log: &mut Log) {
        let leads = self.is_leading();
        while let Some(batch) = self.backlog.front() {
            if !leads || log.bytes_with(batch.record.len()) > log.capacity() {
                return;
            }
            let header = log.next_header(batch.kind.into(), batch.count, self.term);
            batch.record.close(&header.bytes());
            let placed = log.place(&header, &batch.record, ring);
            invariant!(placed.is_ok(), "the log has no room although it was checked: {placed:?}");
            self.backlog.pop_front();
            log.note_executed();
        }
    }

    /// Releases the replies of turns whose proposals are committed and for which a majority has since vouched.
    #[inline]
    pub fn release(&mut self, releases: &mut Releases, log: &Log) {
        if releases.is_waiting() {
            let vouched = self.majority_of(log, releases.turn() - 1, |f| f.vouched);
            let vouched = if Canary::DareBlindRead.is_planted() { releases.turn() - 1 } else { vouched };
            releases.release(vouched, log.committed().index);
        }
    }
}
