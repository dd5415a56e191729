//! What a leader does (APUS section 4.1, L2 to L4): it puts each record into its own log, writes it into the lane of each backup, and commits what a majority acknowledges.

use std::collections::VecDeque;

use martlet_fabric::ring::{Record, Writer};
use martlet_fabric::{Fabric, OpError, PeerId, invariant, pulse};

use crate::basics::layout::MAX_MEMBERS;
use crate::basics::{self, Canary, LogIndex, ProcessId, Time};
use crate::engine::Engine as _;
use crate::replica::backlog::{Backlog, HEADER_BYTES};
use crate::replica::electorate::{Electorate, reached_by_any_majority};
use crate::replica::group::Group;
use crate::replica::nudges::Nudges;
use crate::replica::release::Releases;
use crate::replica::{Durability, Execution, StateMachine};

use super::config::Config;
use super::follower::{Follower, Phase};
use super::layout::{self, Header, Kind, Op, control};
use super::log::{Log, Mark};
use super::peers::{Peer, tell, word_from};
use super::{Apus, Event};

/// How far a reign has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// A candidate: it waits until a majority agrees.
    Electing,
    /// It is elected, and waits until a majority acknowledges the whole log with which it began.
    TakingOver { last: LogIndex, recovered: u64 },
    /// Every proposal is a record to each backup.
    Leading,
}

/// A candidacy, and what becomes of it.
#[derive(Debug)]
pub(super) struct Reign {
    me: ProcessId,
    /// The view id: no other process leads under it.
    pub view: u64,
    /// Until when a candidate waits for the others.
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
    electorate: Electorate,
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
    pub asks: &'a mut u64,
}

impl Reign {
    pub fn new(me: ProcessId, view: u64, until: Time, record: Record, backlog: Backlog) -> Reign {
        Reign {
            me,
            view,
            until,
            stage: Stage::Electing,
            followers: Vec::with_capacity(MAX_MEMBERS),
            backlog,
            last: LogIndex(0),
            open: VecDeque::new(),
            record,
            last_post: Time(0),
            electorate: Electorate::default(),
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

    /// Whether a majority has agreed to it.
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
        self.is_leading() && log.open_bytes() + self.backlog.log_bytes_with(bytes) <= config.open_bytes()
    }

    /// Returns what the next reign can use, and the peers' writers.
    pub fn into_parts(self) -> (Record, Backlog, Vec<(PeerId, Writer)>) {
        let writers = self.followers.into_iter().map(|f| (f.peer, f.lane.into_writer())).collect();
        (self.record, self.backlog, writers)
    }

    /// The peer is gone, and what it holds no longer counts.
    pub fn lose(&mut self, peer: PeerId) {
        if let Some(follower) = self.followers.iter_mut().find(|f| f.peer == peer) {
            (follower.phase, follower.acked) = (Phase::Lost, 0);
        }
    }

    /// An operation on a backup's log lane has completed.
    pub fn handle_completion(&mut self, op: Op, ask: u64, peer: PeerId, result: Result<u64, OpError>, nudges: &mut Nudges) {
        let mine = |f: &&mut Follower| f.peer == peer && f.ask & 0xffff == ask && !f.is_lost();
        let Some(follower) = self.followers.iter_mut().find(mine) else { return };
        match (op, result) {
            (_, Err(OpError::PeerLost)) => (follower.phase, follower.acked) = (Phase::Lost, 0),
            // The backup has closed its lane. If it has promised a later view it says so; otherwise it is asked again.
            (_, Err(OpError::AccessLost)) => {
                basics::Mark::ApusClosed.reach();
                follower.phase = Phase::Closed;
            }
            (Op::Log, Ok(_)) if follower.phase != Phase::Closed => follower.handle_done(),
            (Op::Consumed, Ok(position)) if follower.lane.note_consumed(position) => nudges.soon(peer),
            _ => {}
        }
    }

    /// A command, for the next record. Returns its index.
    pub fn propose(&mut self, command: &[u8], config: &Config) -> LogIndex {
        self.backlog.push(command, config.batch_bytes.min(config.max_command_bytes()));
        self.last = self.last.next();
        self.last
    }

    /// Whether a change of the group can be proposed now: one at a time.
    pub fn may_change(&self, log: &Log) -> bool {
        self.is_leading() && !log.is_group_changing() && !self.backlog.has_group()
    }

    pub fn propose_group(&mut self, group: &Group) {
        let mut encoded = Vec::new();
        group.encode(&mut encoded);
        self.backlog.push_group(&encoded);
        self.last = self.last.next();
    }

    /// The highest value that a majority of the group in force has reached; `mine` is that of this process.
    #[inline]
    pub fn majority_of(&mut self, log: &Log, mine: u64, of: impl Fn(&Follower) -> u64) -> u64 {
        let needed = self.electorate.needed(self.me, log, &mut self.followers);
        // The others may acknowledge entries that are not on this process's own disk yet.
        reached_by_any_majority(needed, mine, self.followers.iter().filter(|f| f.votes).map(of))
    }

    /// Asks peers that have not been asked yet to take its entries, and asks those again that have closed their lanes or have learned what they lacked.
    fn ask<F: Fabric, S>(&mut self, cx: &mut Context<F, S>, is_wanted: &impl Fn(&Peer, &Log) -> bool) {
        // A lost follower keeps its place in the electorate while it belongs to the group, unless it has reconnected.
        let Context { peers, log, .. } = cx;
        let is_connected = |f: &Follower| peers.iter().any(|p| p.process == f.process && !p.watch.dead);
        let belongs = |f: &Follower| log.group().is_some_and(|group| group.contains(f.process));
        let gone: Vec<Follower> = self.followers.extract_if(.., |f| f.is_lost() && (is_connected(f) || !belongs(f))).collect();
        for follower in gone {
            self.electorate.forget();
            if let Some(peer) = cx.peers.iter_mut().find(|p| p.id == follower.peer) {
                peer.writer = Some(follower.lane.into_writer());
            }
        }
        for at in 0..cx.peers.len() {
            let peer = &mut cx.peers[at];
            if peer.watch.dead || !is_wanted(peer, cx.log) {
                continue;
            }
            let id = peer.id;
            let place = match self.followers.iter().position(|f| f.peer == id) {
                Some(place) => {
                    let follower = &self.followers[place];
                    let wants_anew = follower.phase != Phase::Asked && word_from(cx.fabric, id, control::RENEW) == follower.ask;
                    if follower.is_lost() || !(follower.phase == Phase::Closed || wants_anew) {
                        continue;
                    }
                    *cx.asks += 1;
                    let follower = self.followers.swap_remove(place).ask_anew(*cx.asks);
                    self.followers.push(follower);
                    self.electorate.forget();
                    self.followers.len() - 1
                }
                None if self.followers.len() == layout::MAX_PEERS => continue,
                None => {
                    let Some(mut writer) = peer.writer.take() else { continue };
                    if !writer.is_salted() {
                        writer = writer.with_salt(word_from(cx.fabric, id, control::LOG_SALT));
                    }
                    // The backup tells the salt when it connects; until that has arrived, its lane cannot be written.
                    if !writer.is_salted() {
                        peer.writer = Some(writer);
                        continue;
                    }
                    writer.move_to(writer.tail(), writer.tail());
                    *cx.asks += 1;
                    self.followers.push(Follower::new(peer.process, id, *cx.asks, writer));
                    self.electorate.forget();
                    self.followers.len() - 1
                }
            };
            basics::Mark::ApusAsks.reach();
            let follower = &self.followers[place];
            peer.tell_reign(self.view << 1 | 1, cx.fabric);
            tell(cx.fabric, id, control::START, follower.lane.writer().tail());
            tell(cx.fabric, id, control::ASK, follower.ask);
            cx.nudges.at_once(id);
        }
    }

    /// Does what can be done now. Returns whether there was anything.
    ///
    /// `whole`: checks all followers, not only the results of what was posted.
    pub fn step<F: Fabric, S: StateMachine>(
        &mut self,
        whole: bool,
        cx: &mut Context<F, S>,
        is_wanted: impl Fn(&Peer, &Log) -> bool,
    ) -> bool {
        let mut moved = false;
        if !self.is_elected() {
            if !self.count_votes(cx) {
                return false;
            }
            moved = true;
        }
        if whole || moved {
            self.ask(cx, &is_wanted);
        }
        for at in 0..self.followers.len() {
            if self.followers[at].phase == Phase::Asked {
                moved |= self.take_grant(at, cx);
            }
            if self.followers[at].is_following() {
                moved |= self.feed(at, cx);
                let follower = &mut self.followers[at];
                follower.lane.refresh(cx.fabric, Op::Consumed.token(follower.ask, follower.peer), cx.config.nudge_records, false);
            }
        }
        moved | self.commit(cx)
    }

    /// A candidate to which a majority has agreed, itself included, leads its view (APUS section 4.4).
    fn count_votes<F: Fabric, S: StateMachine>(&mut self, cx: &mut Context<F, S>) -> bool {
        let Some(group) = cx.log.group() else { return false };
        let agreed = |id: ProcessId| {
            id == self.me
                || cx.peers.iter().any(|p| p.process == id && !p.watch.dead && word_from(cx.fabric, p.id, control::VOTE) == self.view)
        };
        if group.members().iter().filter(|id| agreed(**id)).count() < group.majority() {
            return false;
        }
        cx.events.push_back(Event::Permitted);
        let recovered = cx.log.tail().index.0 - cx.log.committed().index.0;
        self.open = cx.log.marks_behind(cx.log.committed().position).into();
        cx.log.lead(self.view);
        self.last = cx.log.tail().index;
        self.stage = Stage::TakingOver { last: self.last, recovered };
        for peer in cx.peers.iter_mut().filter(|p| !p.watch.dead) {
            peer.tell_reign(self.view << 1 | 1, cx.fabric);
            cx.nudges.at_once(peer.id);
        }
        true
    }

    /// A backup that has let this leader in gets the leader's log after what is committed there, or, if this log does not reach back that far, after what is
    /// committed here. It gets that all at once or not at all: entries that it holds and that may be committed must not be gone before their copies are there.
    fn take_grant<F: Fabric, S: StateMachine>(&mut self, at: usize, cx: &mut Context<F, S>) -> bool {
        let (id, ask) = (self.followers[at].peer, self.followers[at].ask);
        if word_from(cx.fabric, id, control::GRANTED) != ask {
            return false;
        }
        let word = |word: usize| word_from(cx.fabric, id, word);
        let base = Mark { index: LogIndex(word(control::GRANT_INDEX)), position: word(control::GRANT_POSITION) };
        let reaches = word(control::GRANT_KNOWS) != 0 && cx.log.has(base);
        let (kind, base) = if reaches { (Kind::Start, base) } else { (Kind::Jump, cx.log.committed()) };
        if reaches { basics::Mark::ApusStarts } else { basics::Mark::ApusOverruns }.reach();
        let (count, committed) = (cx.log.marks_behind(base.position).len() as u32, cx.log.committed().index);
        let header = Header { kind, count, number: self.view, index: base.index, beside: committed.0 };
        let group = cx.log.committed_group().map(|(_, group)| group);
        self.record.fill(|bytes| {
            header.encode(bytes);
            bytes.extend_from_slice(&base.position.to_le_bytes());
            if let (Kind::Jump, Some(group)) = (kind, group) {
                group.encode(bytes);
            }
        });
        let follower = &mut self.followers[at];
        let posted = follower.push(cx.fabric, &mut self.record, 0, committed);
        invariant!(posted, "a lane that begins anew has no room for a start");
        (follower.phase, follower.cursor) = (Phase::Following, base.position);
        cx.nudges.at_once(id);
        true
    }

    /// Posts what a backup does not have, from the log, as far as there is room. The leader does not wait for a slow backup, which gets what it lacks later, or
    /// learns it when the log has overrun it (TRAPS 15).
    fn feed<F: Fabric, S: StateMachine>(&mut self, at: usize, cx: &mut Context<F, S>) -> bool {
        let mut moved = false;
        while self.followers[at].cursor < cx.log.tail().position {
            let Some((mut header, next)) = cx.log.read(self.followers[at].cursor, cx.buffer) else {
                // It is asked again, and then restarts.
                self.followers[at].phase = Phase::Closed;
                return true;
            };
            let follower = &mut self.followers[at];
            if !follower.lane.writer().fits(cx.buffer.len()) {
                basics::Mark::ApusLaneFull.reach();
                follower.lane.set_full(true);
                break;
            }
            let committed = cx.log.committed().index;
            (header.number, header.beside) = (self.view, committed.0);
            let body = &cx.buffer[HEADER_BYTES..];
            self.record.fill(|bytes| {
                header.encode(bytes);
                bytes.extend_from_slice(body);
            });
            let posted = follower.push(cx.fabric, &mut self.record, 0, committed);
            invariant!(posted, "no room for a record that was found to fit");
            follower.cursor = next;
            pulse::moved(cx.fabric, Apus::hearts(), cx.buffer.len());
            moved = true;
        }
        if moved {
            cx.nudges.at_once(self.followers[at].peer);
        }
        moved
    }

    /// The common path (L2 and L3): each batch goes into our own log, and into the lane of each backup.
    pub fn post<F: Fabric, S: StateMachine>(&mut self, turn: u64, cx: &mut Context<F, S>) -> bool {
        if !self.is_leading() {
            return false;
        }
        let mut posted = false;
        while let Some(batch) = self.backlog.front() {
            let len = batch.record.len();
            if cx.log.position_with(len) - cx.log.kept() > cx.config.open_bytes() {
                basics::Mark::ApusNoRoom.reach();
                break;
            }
            let (before, committed) = (cx.log.tail(), cx.log.committed().index);
            let kind = batch.kind.into();
            let header = Header { kind, count: batch.count, number: self.view, index: before.index.next(), beside: committed.0 };
            batch.record.close(&header.bytes());
            let placed = cx.log.place(&header, &batch.record);
            invariant!(placed.is_ok(), "the log has no room although it was checked: {placed:?}");
            let mark = cx.log.tail();
            self.open.push_back(mark);
            if cx.config.execution == Execution::Speculative {
                cx.log.note_executed();
            }
            for follower in self.followers.iter_mut().filter(|f| f.is_following() && f.cursor == before.position) {
                if follower.push(cx.fabric, &mut batch.record, turn, committed) {
                    follower.cursor = mark.position;
                    pulse::moved(cx.fabric, Apus::hearts(), len);
                    cx.nudges.at_once(follower.peer);
                }
            }
            self.backlog.pop_front();
            posted = true;
        }
        if posted {
            self.last_post = cx.now;
        } else if cx.now.since(self.last_post) >= cx.config.flush_idle_ns {
            self.flush(cx);
        }
        posted
    }

    /// When the commit index is to be sent on its own.
    pub fn flush_due(&self, log: &Log, config: &Config) -> Option<Time> {
        let committed = log.committed().index;
        let waits = self.is_leading() && self.followers.iter().any(|f| f.is_following() && f.told() < committed);
        waits.then(|| self.last_post.after(config.flush_idle_ns))
    }

    /// Makes sure that every voting backup is written to after the end of this turn: a lane that is still open shows that this process may still lead.
    pub fn probe<F: Fabric>(&mut self, turn: u64, fabric: &mut F) {
        for follower in self.followers.iter_mut().filter(|f| f.votes && f.is_following()) {
            if follower.asked() < turn {
                basics::Mark::ApusProbes.reach();
                follower.probe(fabric, turn);
            }
        }
    }

    /// Sends the commit index without an entry when nothing has been posted for a while (TRAPS 13).
    #[inline(never)]
    fn flush<F: Fabric, S: StateMachine>(&mut self, cx: &mut Context<F, S>) {
        let (tail, committed) = (cx.log.tail(), cx.log.committed().index);
        for follower in self.followers.iter_mut().filter(|f| f.is_following() && f.cursor == tail.position && f.told() < committed) {
            let header = Header { kind: Kind::Flush, count: 0, number: self.view, index: tail.index, beside: committed.0 };
            self.record.fill(|bytes| header.encode(bytes));
            if follower.push(cx.fabric, &mut self.record, 0, committed) {
                basics::Mark::ApusFlushes.reach();
                cx.nudges.soon(follower.peer);
                self.last_post = cx.now;
            }
        }
    }

    /// L4: commits what a majority acknowledges under this view; this process counts with its own log.
    fn commit<F: Fabric, S: StateMachine>(&mut self, cx: &mut Context<F, S>) -> bool {
        for follower in self.followers.iter_mut().filter(|f| !f.is_lost()) {
            // The backup sets `ACK` to 0 before it names another view of ours.
            let mine = word_from(cx.fabric, follower.peer, control::ACK_VIEW) == self.view;
            let last = word_from(cx.fabric, follower.peer, control::ACK);
            follower.acked = if mine { last.min(cx.log.tail().index.0 + 1) } else { 0 };
        }
        let own = match cx.config.durability {
            Durability::Sync if !Canary::ApusEarlyAck.is_planted() => {
                let stable = cx.log.journal.as_ref().and_then(|journal| journal.stable_under(self.view));
                stable.map_or(0, |last| last.0 + 1)
            }
            _ => cx.log.tail().index.0 + 1,
        };
        let acked = self.majority_of(cx.log, own, |f| f.acked);
        let Some(held) = acked.checked_sub(1).map(LogIndex) else { return false };
        if let Stage::TakingOver { last, recovered } = self.stage {
            if held < last {
                return false;
            }
            if recovered == 0 { basics::Mark::ApusLeads } else { basics::Mark::ApusLeadsTail }.reach();
            self.stage = Stage::Leading;
            cx.events.push_back(Event::TookOver { recovered });
        }
        let mut last = None;
        while let Some(mark) = self.open.front().copied().filter(|mark| mark.index <= held) {
            last = Some(mark);
            self.open.pop_front();
        }
        let Some(mark) = last else { return false };
        if cx.config.execution == Execution::Committed || cx.log.applied().index < mark.index {
            cx.log.advance(cx.machine, mark.index);
        } else {
            cx.log.commit_to(mark);
        }
        true
    }

    /// The reign ends: what was executed is at least added to our own log, as far as there is room. The log is ours until another leader's start replaces it.
    pub fn keep_executed(&mut self, log: &mut Log) {
        while let Some(batch) = self.backlog.front() {
            if log.position_with(batch.record.len()) - log.kept() > log.capacity() {
                return;
            }
            let (index, beside) = (log.tail().index.next(), log.committed().index.0);
            let header = Header { kind: batch.kind.into(), count: batch.count, number: self.view, index, beside };
            batch.record.close(&header.bytes());
            let placed = log.place(&header, &batch.record);
            invariant!(placed.is_ok(), "the log has no room although it was checked: {placed:?}");
            self.backlog.pop_front();
            log.note_executed();
        }
    }

    /// Releases the replies of turns whose proposals are committed, and after which a majority's lanes were still open.
    #[inline]
    pub fn release(&mut self, releases: &mut Releases, log: &Log) {
        if releases.is_waiting() {
            let mine = releases.turn() - 1;
            let vouched = self.majority_of(log, mine, |f| f.vouched);
            releases.release(vouched, log.committed().index);
        }
    }
}
