//! What a leader does (Mu section 4): it gathers permission, catches up, prepares, brings its followers up to date, and then writes each
//! record once into each of their logs.

use std::collections::VecDeque;

use martlet_fabric::ring::{self, Record, Writer};
use martlet_fabric::{Fabric, Local, LocalRegion, Memory, OpError, PeerId, Region, Remote};

use crate::basics::layout::MAX_MEMBERS;
use crate::basics::{self, Canary, LogIndex, ProcessId, Time};
use crate::replica::StateMachine;
use crate::replica::backlog::Backlog;
use crate::replica::electorate::{Electorate, Needed, reached_by_majority};

use super::config::Config;
use super::follower::{Follower, Phase};
use super::layout::{self, Header, Kind, LOG, Op, SCRATCH, SCRATCH_WORDS_BYTES, words};
use super::log::{Log, Mark, Staged};
use super::numbers::Numbers;
use super::permission::word_from;
use super::{AbortReason, Event, Group};
use crate::replica::nudges::Nudges;
use crate::replica::release::Releases;

/// The low bits of a proposal number, which tell its proposers apart; the round is above them.
const PROPOSER_BITS: u32 = 16;

/// How far a reign has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// It waits for the permission of a majority (listing 2, lines 9 to 12).
    Acquiring,
    /// It reads the log of the follower with the best log (listing 3).
    CatchingUp { from: PeerId, numbers: Numbers, pieces: u8 },
    /// It waits until its proposal number is at a majority (lines 17 to 24).
    Preparing,
    /// It waits until everything that it found is at a majority, under its own number.
    TakingOver { last: LogIndex, recovered: u64 },
    /// Every propose is one write (section 4.2, omitting the prepare phase).
    Leading,
}

/// Pieces of a log that a reign requested and that were still outstanding when it ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct StrayLog {
    pub from: PeerId,
    /// As encoded in tokens.
    pub round: u64,
    pub pieces: u8,
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
    /// The number of this process's own request that it granted last.
    pub self_granted: u64,
    /// The peer whose log an earlier reign began to read and did not finish: the pieces may still land in the scratch memory to which logs are read.
    pub stray_log: Option<PeerId>,
    /// Whether a process that cannot catch up with the logs that it has found without a majority still hopes for one.
    pub hopes: bool,
    /// The highest number that outbid an earlier reign of this process; 0 for none.
    pub outbid: u64,
}

/// Our own log's memory.
pub(super) fn ring_of<F: Fabric>(fabric: &F) -> &Memory {
    fabric.memory(LocalRegion::Public(LOG)).expect("every process offers its log")
}

/// Whether a log holds everything between the last entry committed here and its own end.
fn reaches_back<F, S>(numbers: &Numbers, cx: &Context<F, S>) -> bool {
    let (from, to) = (cx.log.committed().position, numbers.tail.position);
    (numbers.floor..=to).contains(&from) && to - from <= cx.config.log_ring_bytes as u64
}

/// An attempt to lead, from the request for permission to the abort.
#[derive(Debug)]
pub(super) struct Reign {
    me: ProcessId,
    /// The number of the request with which it began; distinguishes its operations from those of earlier reigns.
    pub(super) round: u64,
    /// The proposal number; 0 before it is chosen.
    pub(super) ballot: u64,
    pub(super) stage: Stage,
    pub followers: Vec<Follower>,
    pub(super) backlog: Backlog,
    /// The last entry proposed.
    last: LogIndex,
    /// Records in the log that are not committed.
    pub(super) open: VecDeque<Mark>,
    pub(super) record: Record,
    pub(super) last_post: Time,
    failed: Option<AbortReason>,
    /// Whether a majority has been seen to give its permission.
    permitted: bool,
    /// Whether, without a majority, only better logs were found that do not reach back to what is committed here.
    overrun: bool,
    /// Followers whose numbers or log have been read since the last look.
    read: Vec<PeerId>,
    electorate: Electorate,
}

impl Reign {
    /// `backlog`: what this process executed beyond the end of its log in an earlier reign, if anything.
    pub fn new(me: ProcessId, round: u64, record: Record, backlog: Backlog) -> Reign {
        Reign {
            me,
            round,
            ballot: 0,
            stage: Stage::Acquiring,
            followers: Vec::with_capacity(MAX_MEMBERS),
            backlog,
            last: LogIndex(0),
            open: VecDeque::with_capacity(1024),
            record,
            last_post: Time(0),
            failed: None,
            permitted: false,
            overrun: false,
            read: Vec::with_capacity(MAX_MEMBERS),
            electorate: Electorate::default(),
        }
    }

    pub fn round(&self) -> u64 {
        self.round
    }

    pub fn ballot(&self) -> u64 {
        self.ballot
    }

    /// Whether it has taken over.
    #[inline]
    pub fn is_leading(&self) -> bool {
        matches!(self.stage, Stage::Leading)
    }

    /// Whether it waits for a majority or for a log that reaches back to its own.
    pub fn is_overrun(&self) -> bool {
        self.overrun
    }

    /// Whether a majority has given its permission.
    pub fn is_permitted(&self) -> bool {
        self.permitted
    }

    pub fn last(&self) -> LogIndex {
        self.last
    }

    /// Whether something is under way.
    pub fn is_waiting(&self) -> bool {
        !self.is_leading() || !self.open.is_empty() || !self.backlog.is_empty()
    }

    /// Whether commands have been proposed that are not in the log.
    pub fn has_commands(&self) -> bool {
        self.backlog.has_commands()
    }

    /// Whether another command of `bytes`, together with everything waiting, would find room in the log at once.
    pub fn has_room(&self, bytes: usize, log: &Log, config: &Config) -> bool {
        self.is_leading() && log.open_bytes() + self.backlog.log_bytes_with(bytes) <= config.open_bytes()
    }

    /// Asks a process for its permission, now or as soon as it attends. Its numbers land in `slot` of the scratch memory.
    pub fn ask(&mut self, process: ProcessId, peer: PeerId, slot: usize, writer: Writer) {
        self.followers.push(Follower::new(process, peer, slot, writer));
        self.electorate.forget();
    }

    /// The peers whose numbers are still being read.
    pub fn on_their_way(&self) -> impl Iterator<Item = PeerId> + '_ {
        self.followers.iter().filter(|f| f.reading && !self.read.contains(&f.peer)).map(|f| f.peer)
    }

    /// The log that is being read, if one is.
    pub fn log_on_its_way(&self) -> Option<StrayLog> {
        match self.stage {
            Stage::CatchingUp { from, pieces, .. } if pieces > 0 => Some(StrayLog { from, round: self.round & 0xffff, pieces }),
            _ => None,
        }
    }

    /// Drops followers that are lost and no longer `matter`. A follower that is still being read stays until the read has completed.
    pub fn drop_lost(&mut self, matters: impl Fn(&Follower) -> bool) -> Vec<Follower> {
        let stage = self.stage;
        let read_from = |f: &Follower| f.reading || matches!(stage, Stage::CatchingUp { from, .. } if from == f.peer);
        let dropped: Vec<Follower> = self.followers.extract_if(.., |f| f.is_lost() && !read_from(f) && !matters(f)).collect();
        if !dropped.is_empty() {
            self.electorate.forget();
        }
        dropped
    }

    /// Whether there is room for one more.
    pub fn may_ask(&self, peer: PeerId) -> bool {
        self.followers.len() < layout::MAX_PEERS && self.followers.iter().all(|f| f.peer != peer)
    }

    /// Returns what the next reign can use.
    pub fn into_parts(self) -> (Vec<Follower>, Record, Backlog) {
        (self.followers, self.record, self.backlog)
    }

    /// The peer is gone, and what it holds no longer counts.
    pub fn lose(&mut self, peer: PeerId) {
        if let Some(follower) = self.followers.iter_mut().find(|f| f.peer == peer) {
            (follower.phase, follower.acked) = (Phase::Lost, None);
        }
    }

    /// An operation of this reign has completed.
    pub fn handle_completion(&mut self, op: Op, peer: PeerId, result: Result<u64, OpError>, nudges: &mut Nudges) {
        let Some(follower) = self.followers.iter_mut().find(|f| f.peer == peer) else { return };
        follower.reading &= op != Op::Words || result.is_ok();
        let mut log_is_home = false;
        if let (Op::CatchUp, Stage::CatchingUp { from, pieces, .. }) = (op, &mut self.stage)
            && *from == peer
        {
            *pieces -= 1;
            log_is_home = *pieces == 0;
        }
        match (op, result) {
            (_, Err(OpError::PeerLost)) => {
                follower.phase = Phase::Lost;
                follower.acked = None;
                if matches!(self.stage, Stage::CatchingUp { from, .. } if from == peer) {
                    self.failed = Some(AbortReason::CatchUp);
                }
            }
            // Listing 2, lines 24 and 33: abort if any write fails, since that follower has granted its permission to another process.
            (_, Err(OpError::AccessLost)) => self.failed = Some(AbortReason::AccessLost(follower.process)),
            // Late completions of a lost follower do not count: its process may already count through another connection.
            (Op::Log, Ok(_)) if !follower.is_lost() => follower.handle_done(),
            (Op::Consumed, Ok(position)) if follower.handle_consumed(position) => nudges.soon(peer),
            (Op::Words, Ok(_)) => self.read.push(peer),
            (Op::CatchUp, Ok(_)) if log_is_home => self.read.push(peer),
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

    pub(super) fn header(&self, kind: Kind, index: LogIndex, count: u32, log: &Log) -> Header {
        Header { kind, count, number: self.ballot, index, beside: log.committed().index.0 }
    }

    /// For how many members of the group `yes` holds, counting this process if `me`.
    pub(super) fn count(&self, group: &Group, me: bool, yes: impl Fn(&Follower) -> bool) -> usize {
        let others = self.followers.iter().filter(|f| group.contains(f.process) && yes(f)).count();
        others + usize::from(me && group.contains(self.me))
    }

    /// The highest value that a majority of the group has reached; `mine` is the value of this process, which no follower's exceeds.
    #[inline]
    pub(super) fn majority_of(&mut self, log: &Log, mine: u64, of: impl Fn(&Follower) -> u64) -> u64 {
        let needed = self.needed(log);
        reached_by_majority(needed, mine, self.followers.iter().filter(|f| f.votes).map(of))
    }

    /// What a majority of the group in force takes.
    #[inline]
    pub(super) fn needed(&mut self, log: &Log) -> Needed {
        self.electorate.needed(self.me, log, &mut self.followers)
    }

    /// Does what can be done now. `Err` aborts the reign.
    #[inline]
    pub fn step<F: Fabric, S: StateMachine>(&mut self, cx: &mut Context<F, S>) -> Result<bool, AbortReason> {
        if !self.is_steady(cx.log) {
            return self.settle(cx);
        }
        for follower in &mut self.followers {
            follower.refresh(cx.fabric, self.round, cx.config.nudge_records);
        }
        Ok(self.commit(cx))
    }

    /// Whether it leads, and every follower in reach has been sent the whole log and holds the state, so that the only thing left to do is to commit.
    #[inline]
    fn is_steady(&self, log: &Log) -> bool {
        let tail = log.tail().position;
        let follows = |f: &Follower| match f.phase {
            Phase::Following => f.cursor == tail && f.holds,
            Phase::Lost => true,
            _ => false,
        };
        self.is_leading() && self.failed.is_none() && self.read.is_empty() && self.followers.iter().all(follows)
    }

    /// Works towards a steady reign, at the beginning and after disturbances.
    #[inline(never)]
    fn settle<F: Fabric, S: StateMachine>(&mut self, cx: &mut Context<F, S>) -> Result<bool, AbortReason> {
        let mut moved = self.take_acks(cx);
        moved |= self.take_read(cx)?;
        loop {
            if let Some(reason) = self.failed {
                return Err(reason);
            }
            let before = self.stage;
            match self.stage {
                Stage::Acquiring => self.acquire(cx)?,
                Stage::CatchingUp { .. } => {}
                Stage::Preparing => self.prepare(cx)?,
                Stage::TakingOver { .. } | Stage::Leading => moved |= self.write(cx)?,
            }
            if self.stage == before {
                return Ok(moved);
            }
            moved = true;
        }
    }

    /// A process that has acknowledged the request for permission becomes a confirmed follower, once its numbers are known.
    fn take_acks<F: Fabric, S>(&mut self, cx: &mut Context<F, S>) -> bool {
        let mut moved = false;
        for follower in &mut self.followers {
            if matches!(follower.phase, Phase::Asked) && word_from(cx.fabric, follower.peer, layout::permission::ACK) == self.round {
                // It tells the salt before it acknowledges anything. A process that did not is not written to.
                if !follower.lane.writer().is_salted()
                    && !follower.lane.salt(word_from(cx.fabric, follower.peer, layout::permission::LOG_SALT))
                {
                    continue;
                }
                follower.phase = Phase::Inspecting;
                follower.inspect(self.round, cx.fabric);
                moved = true;
            }
        }
        moved
    }

    /// Takes the results of reads: numbers, or a piece of a log.
    fn take_read<F: Fabric, S: StateMachine>(&mut self, cx: &mut Context<F, S>) -> Result<bool, AbortReason> {
        let mut moved = false;
        while let Some(peer) = self.read.pop() {
            moved = true;
            if let Stage::CatchingUp { from, numbers, pieces: 0 } = self.stage
                && from == peer
            {
                self.adopt(&numbers, cx)?;
                continue;
            }
            let Some(follower) = self.followers.iter_mut().find(|f| f.peer == peer && f.reading) else { continue };
            follower.reading = false;
            let scratch = cx.fabric.memory(LocalRegion::Public(SCRATCH)).expect("every process has room for its reads");
            let at = follower.slot * words::BYTES / 8;
            let numbers = Numbers::read(&scratch[at..at + words::COUNT], cx.log.highest_ballot());
            follower.ceiling = numbers.map_or(follower.ceiling, |numbers| numbers.ceiling);
            match (follower.phase, numbers) {
                (Phase::Inspecting, Some(numbers)) => {
                    basics::Mark::MuConfirmed.reach();
                    follower.phase = Phase::Confirmed(numbers);
                    follower.holds = numbers.holds_state();
                }
                (Phase::Inspecting, None) => follower.phase = Phase::Lost,
                (Phase::Following, Some(numbers)) => {
                    if numbers.is_complete() {
                        basics::Mark::MuStateBack.reach();
                    }
                    follower.holds = numbers.is_complete();
                }
                _ => {}
            }
        }
        Ok(moved)
    }

    /// Once a majority has given its permission: catches up with the best log among them, or else begins the prepare phase.
    fn acquire<F: Fabric, S: StateMachine>(&mut self, cx: &mut Context<F, S>) -> Result<(), AbortReason> {
        let Some(group) = cx.log.group().cloned() else { return Err(AbortReason::Removed) };
        let own = (cx.log.last_ballot(), cx.log.tail().index);
        let granted = cx.self_granted == self.round;
        let needed = if Canary::MuWaitsForAll.is_planted() { group.members().len() } else { group.majority() };
        if !granted {
            return Ok(());
        }
        let confirmed = self.count(&group, true, |f| f.numbers().is_some()) >= needed;
        if confirmed && !std::mem::replace(&mut self.permitted, true) {
            cx.events.push_back(Event::Permitted);
        }
        // A better log is read without a majority too. A majority of an outdated group may never be found, because the group has grown or dead members have
        // been removed from it. A better log may contain the group in force, and replacing ours loses nothing committed (docs/mu.md).
        let members = self.followers.iter();
        let is_better = |numbers: &Numbers| numbers.rank() > own && !Canary::MuNoCatchUp.is_planted();
        let better = members.clone().filter_map(|f| Some((f.numbers().filter(|n| is_better(n))?, f.peer)));
        // Of equally good logs, prefer one that reaches back to ours.
        let mut best = better.clone().max_by_key(|(numbers, _)| (numbers.rank(), reaches_back(numbers, cx)));
        self.overrun = false;
        if !confirmed && best.is_some_and(|(numbers, _)| !reaches_back(numbers, cx)) {
            // Any better log that does brings us nearer.
            let nearer = better.clone().filter(|(numbers, _)| reaches_back(numbers, cx)).max_by_key(|(numbers, _)| numbers.rank());
            let replaceable = better.clone().any(|(numbers, _)| numbers.holds_state());
            if nearer.is_none() && (cx.hopes || !replaceable) {
                self.overrun = true;
                return Ok(());
            }
            best = nearer.or(best);
        }
        if let Some((numbers, from)) = best {
            return self.catch_up(from, *numbers, cx);
        }
        if !confirmed {
            return Ok(());
        }
        // Whatever any of them knows to be committed is in our log by now.
        let committed = members.clone().filter_map(|f| Some(f.numbers()?.committed.index)).max().unwrap_or_default();
        cx.log.advance(ring_of(cx.fabric), cx.machine, committed);
        if !cx.log.is_complete() {
            return Err(AbortReason::TooOld);
        }
        if self.ballot == 0 {
            let seen = members
                .filter_map(|f| Some(f.numbers()?.min_proposal))
                .max()
                .unwrap_or(0)
                .max(cx.outbid)
                .max(cx.log.min_proposal())
                .max(cx.log.taught_ballot());
            // Higher than any seen or used before (listing 2, line 20), and used by no other process.
            let ballot = (((seen >> PROPOSER_BITS) + 1) << PROPOSER_BITS) | u64::from(self.me.node.0);
            // No record carries such a number.
            if !basics::is_number(ballot) {
                return Err(AbortReason::Outbid(seen));
            }
            self.ballot = ballot;
            if Canary::MuKeptFastPath.is_planted() && cx.log.last_ballot() & ((1 << PROPOSER_BITS) - 1) == u64::from(self.me.node.0) {
                self.ballot = cx.log.last_ballot().max(1);
                for follower in &mut self.followers {
                    if let Phase::Confirmed(numbers) = follower.phase {
                        follower.note_prepare();
                        follower.phase = Phase::Preparing(numbers);
                    }
                }
            } else {
                cx.log.promise(self.ballot);
            }
        }
        self.stage = Stage::Preparing;
        Ok(())
    }

    /// Listing 3: reads the part of the best log that is not decided here.
    fn catch_up<F: Fabric, S: StateMachine>(&mut self, peer: PeerId, numbers: Numbers, cx: &mut Context<F, S>) -> Result<(), AbortReason> {
        if !reaches_back(&numbers, cx) {
            return Err(AbortReason::TooOld);
        }
        // What comes from the same process comes in order.
        if cx.stray_log.is_some_and(|stray| stray != peer) {
            basics::Mark::MuAwaitsStray.reach();
            return Ok(());
        }
        let (from, to, capacity) = (cx.log.committed().position, numbers.tail.position, cx.config.log_ring_bytes as u64);
        basics::Mark::MuCatchesUp.reach();
        // In as many pieces as the ring splits it into, at the same places.
        let mut pieces = 0;
        let mut at = from;
        while at < to {
            let len = (to - at).min(capacity - at % capacity);
            let offset = ring::HEADER_BYTES + (at % capacity) as usize;
            let remote = Remote { peer, region: Region::Public(LOG), offset };
            let into = Local { region: LocalRegion::Public(SCRATCH), offset: SCRATCH_WORDS_BYTES + offset };
            cx.fabric.read(remote, into, len as usize, Op::CatchUp.token(self.round, peer));
            at += len;
            pieces += 1;
        }
        self.stage = Stage::CatchingUp { from: peer, numbers, pieces };
        if pieces == 0 { self.adopt(&numbers, cx) } else { Ok(()) }
    }

    /// Takes over the log that has been read.
    fn adopt<F: Fabric, S: StateMachine>(&mut self, numbers: &Numbers, cx: &mut Context<F, S>) -> Result<(), AbortReason> {
        let scratch = cx.fabric.memory(LocalRegion::Public(SCRATCH)).expect("every process has room for its reads");
        let copy = &scratch[SCRATCH_WORDS_BYTES / 8..];
        let mut reader = ring::Reader::at(cx.log.committed().position);
        let mut staged = Staged::default();
        while reader.position() < numbers.tail.position && reader.next(copy, cx.buffer) {
            staged.push(cx.buffer);
        }
        if self.ballot != 0 && numbers.last_ballot.max(numbers.taught_ballot) > self.ballot {
            // The proposal number was chosen before this log was seen. Nothing may be accepted under it any more.
            return Err(AbortReason::Outbid(numbers.last_ballot.max(numbers.taught_ballot)));
        }
        let whole = reader.position() == numbers.tail.position;
        let ring = ring_of(cx.fabric);
        cx.log.note_taught(numbers.taught_ballot);
        if !whole || cx.log.replace(ring, numbers.last_ballot, &staged).is_err() || cx.log.tail().index != numbers.tail.index {
            return Err(AbortReason::CatchUp);
        }
        basics::Mark::MuAdopted.reach();
        self.stage = Stage::Acquiring;
        Ok(())
    }

    /// Writes the proposal number to each confirmed follower; when the number is at a majority, everything to be accepted is sent.
    fn prepare<F: Fabric, S: StateMachine>(&mut self, cx: &mut Context<F, S>) -> Result<(), AbortReason> {
        let Some(group) = cx.log.group().cloned() else { return Err(AbortReason::Removed) };
        let own = (cx.log.last_ballot(), cx.log.tail().index);
        let better = |f: &Follower| matches!(f.phase, Phase::Confirmed(numbers) if numbers.rank() > own);
        if self.followers.iter().any(better) && !Canary::MuNoCatchUp.is_planted() {
            basics::Mark::MuLooksAgain.reach();
            self.stage = Stage::Acquiring;
            return Ok(());
        }
        self.write_ballots(cx)?;
        if self.count_prepared(&group, cx) < group.majority() && !Canary::MuUnprepared.is_planted() {
            return Ok(());
        }
        basics::Mark::MuPrepared.reach();
        let (last, committed) = (cx.log.tail().index, cx.log.committed());
        cx.log.accept(self.ballot);
        self.last = LogIndex(last.0 + self.backlog.entries());
        let mut position = committed.position;
        while let Some((header, next)) = cx.log.read(ring_of(cx.fabric), position, cx.buffer) {
            position = next;
            self.open.push_back(Mark { index: header.last(), position });
        }
        self.stage = Stage::TakingOver { last, recovered: last.0 - committed.index.0 };
        Ok(())
    }

    pub(super) fn write_ballots<F: Fabric, S>(&mut self, cx: &mut Context<F, S>) -> Result<(), AbortReason> {
        for at in 0..self.followers.len() {
            let Phase::Confirmed(numbers) = self.followers[at].phase else { continue };
            if numbers.min_proposal >= self.ballot {
                return Err(AbortReason::Outbid(numbers.min_proposal));
            }
            let header = self.header(Kind::Prepare, numbers.tail.index, 0, cx.log);
            self.record.fill(|bytes| header.encode(bytes));
            let follower = &mut self.followers[at];
            if follower.push(cx.fabric, &mut self.record, None, self.round, 0) {
                follower.note_prepare();
                follower.phase = Phase::Preparing(numbers);
                cx.nudges.at_once(follower.peer);
            }
        }
        Ok(())
    }

    /// Releases the replies of turns whose proposals are committed and for which a majority has since confirmed its permission.
    #[inline]
    pub fn release(&mut self, releases: &mut Releases, log: &Log) {
        if releases.is_waiting() {
            let vouched = self.majority_of(log, releases.turn() - 1, |f| f.vouched);
            releases.release(vouched, log.committed().index);
        }
    }
}
