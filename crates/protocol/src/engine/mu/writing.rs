//! What a reign writes once it has permission (Mu sections 4.1, accept phase, and 4.2): what its followers lack, and then each record once into each log.

use martlet_fabric::{Fabric, Memory, invariant, pulse, ring};

use crate::basics::{self, Canary, LogIndex};
use crate::engine::Engine as _;
use crate::replica::{Execution, StateMachine};

use super::config::{Config, Durability};
use super::follower::Phase;
use super::layout::{self, Header, Kind};
use super::leading::{Context, Reign, Stage, ring_of};
use super::log::{Log, Mark};
use super::{AbortReason, Event, Mu};

/// How much of the next record is prefetched, at most: the processor does not fetch more lines at one time.
const EXPECTED_BYTES: usize = 512;

impl Reign {
    /// Brings followers up to date, writes what is new, and determines what a majority holds.
    pub(super) fn write<F: Fabric, S: StateMachine>(&mut self, cx: &mut Context<F, S>) -> Result<bool, AbortReason> {
        self.write_ballots(cx)?;
        let mut moved = false;
        for at in 0..self.followers.len() {
            if let Phase::Preparing(numbers) = self.followers[at].phase {
                // Whether its machine holds the state does not matter here: it accepts entries all the same.
                let base = numbers.committed;
                let reaches = cx.log.retains(base.position) && base.index <= cx.log.committed().index;
                self.start(at, reaches.then_some(base), cx);
            }
            if matches!(self.followers[at].phase, Phase::Following) {
                moved |= self.feed(at, cx);
                let follower = &mut self.followers[at];
                follower.look_for_state(self.round, cx.fabric);
                follower.refresh(cx.fabric, self.round, cx.config.nudge_records);
            }
        }
        moved |= self.commit(cx);
        Ok(moved)
    }

    /// Listing 4: replaces the follower's log after `base` by ours, all at once or not at all. Entries that the follower holds and that may be committed must
    /// not be gone before their copies are there. Without a base that our log reaches, the follower's log restarts at what is committed.
    fn start<F: Fabric, S: StateMachine>(&mut self, at: usize, base: Option<Mark>, cx: &mut Context<F, S>) {
        let ring = ring_of(cx.fabric);
        // The base is what the follower says, and may not be a valid one.
        let reached = base.and_then(|base| Some((Kind::Start, base, cx.log.records_behind(ring, base.position)?)));
        let (kind, base, count) = reached.unwrap_or_else(|| {
            let base = cx.log.committed();
            let count = cx.log.records_behind(ring, base.position);
            invariant!(count.is_some(), "the log breaks off behind {base:?}");
            (Kind::Jump, base, count.expect("just checked"))
        });
        let header = self.header(kind, base.index, count, cx.log);
        let group = cx.log.committed_group().map(|(_, group)| group);
        self.record.fill(|bytes| {
            header.encode(bytes);
            if let (Kind::Jump, Some(group)) = (kind, group) {
                layout::jump_body(base.position, group, bytes);
            }
        });
        let follower = &mut self.followers[at];
        let mark = (count == 0).then_some(base.index);
        follower.acked = None;
        follower.holds &= kind == Kind::Start;
        follower.start_ends = u64::MAX;
        if follower.push(cx.fabric, &mut self.record, mark, self.round, 0) {
            if kind == Kind::Start { basics::Mark::MuStarts } else { basics::Mark::MuJumps }.reach();
            (follower.phase, follower.cursor, follower.started_to) = (Phase::Following, base.position, cx.log.tail().position);
            follower.note_told(header.committed());
            if count == 0 {
                follower.start_ends = follower.lane.writer().tail();
            }
            cx.nudges.at_once(follower.peer);
        }
    }

    /// Posts a record that is all header.
    fn say<F: Fabric, S>(&mut self, at: usize, kind: Kind, cx: &mut Context<F, S>) -> bool {
        let header = self.header(kind, cx.log.tail().index, 0, cx.log);
        self.record.fill(|bytes| header.encode(bytes));
        let follower = &mut self.followers[at];
        let told = follower.push(cx.fabric, &mut self.record, None, self.round, 0);
        if told {
            follower.note_told(header.committed());
            cx.nudges.soon(follower.peer);
        }
        told
    }

    /// Posts what a follower does not have, from the log, as far as there is room. The leader does not wait for a slow follower, which gets what it lacks
    /// later, or is taught when the log has overrun it (TRAPS 15).
    fn feed<F: Fabric, S: StateMachine>(&mut self, at: usize, cx: &mut Context<F, S>) -> bool {
        let mut moved = false;
        while self.followers[at].cursor < cx.log.tail().position {
            let Some((mut header, next)) = cx.log.read(ring_of(cx.fabric), self.followers[at].cursor, cx.buffer) else {
                self.start(at, None, cx);
                return moved;
            };
            if !self.followers[at].lane.writer().fits(cx.buffer.len()) {
                self.followers[at].lane.set_full(true);
                return moved;
            }
            (header.number, header.beside) = (self.ballot, cx.log.committed().index.0);
            let body = &cx.buffer[layout::HEADER_BYTES..];
            self.record.fill(|bytes| {
                header.encode(bytes);
                bytes.extend_from_slice(body);
            });
            let follower = &mut self.followers[at];
            let mark = (next >= follower.started_to).then_some(header.last());
            follower.push(cx.fabric, &mut self.record, mark, self.round, 0);
            pulse::moved(cx.fabric, Mu::hearts(), cx.buffer.len());
            follower.cursor = next;
            follower.note_told(header.committed());
            if next == follower.started_to {
                follower.start_ends = follower.lane.writer().tail();
            }
            moved = true;
        }
        moved
    }

    /// The common path: each batch becomes one record, in our log and, by one write each, in each follower's.
    pub fn post<F: Fabric, S: StateMachine>(&mut self, turn: u64, cx: &mut Context<F, S>) -> bool {
        if !self.is_leading() {
            return false;
        }
        let mut posted = false;
        if !self.backlog.is_empty() {
            // The readers poll these cache lines all the time. Prefetched now, the lines come back while the record is made.
            self.followers.iter().for_each(|f| f.lane.writer().expect(cx.fabric, 0, 64));
        }
        while let Some(batch) = self.backlog.front() {
            let len = batch.record.len();
            let before = cx.log.tail();
            let end = cx.log.position_with(len);
            // Space is checked here too (TRAPS 15): what is not known to be committed must fit at every follower.
            let needed = end - before.position + cx.log.open_bytes();
            if needed > cx.config.open_bytes() && !Canary::MuUncheckedSpace.is_planted() {
                basics::Mark::MuNoRoom.reach();
                break;
            }
            let (kind, index, committed) = (batch.kind.into(), before.index.next(), cx.log.committed().index);
            let header = Header { kind, count: batch.count, number: self.ballot, index, beside: committed.0 };
            batch.record.close(&header.bytes());
            let placed = cx.log.place(&header, &batch.record, ring_of(cx.fabric));
            invariant!(placed.is_ok(), "the log has no room although it was checked: {placed:?}");
            let mark = Mark { index: header.last(), position: end };
            self.open.push_back(mark);
            if cx.config.execution == Execution::Speculative {
                cx.log.note_executed();
            }
            for follower in &mut self.followers {
                let level = matches!(follower.phase, Phase::Following) && follower.cursor == before.position;
                if level && follower.push(cx.fabric, &mut batch.record, Some(mark.index), self.round, turn) {
                    follower.cursor = end;
                    follower.note_told(committed);
                    pulse::moved(cx.fabric, Mu::hearts(), len);
                    if cx.config.durability == Durability::Sync {
                        // It is committed when it is on disks, to which the followers write it.
                        cx.nudges.at_once(follower.peer);
                    }
                }
            }
            // The next record will be like this one. Its first line is polled until the record is there; the others can be prefetched.
            let next = ring::record_bytes(len).min(EXPECTED_BYTES);
            self.followers.iter().for_each(|f| f.lane.writer().expect(cx.fabric, 64, next));
            ring::expect_place(ring_of(cx.fabric), end, next);
            self.backlog.pop_front();
            posted = true;
        }
        if self.backlog.is_empty() {
            cx.log.set_beyond(false);
        }
        if posted {
            self.last_post = cx.now;
        } else if cx.now.since(self.last_post) >= cx.config.flush_idle_ns && !Canary::MuNoFlush.is_planted() {
            self.flush(cx);
        }
        posted
    }

    /// The reign ends: what was executed is at least added to our own log, as far as there is room. The log is ours until another process may write there.
    pub fn keep_executed(&mut self, ring: &Memory, log: &mut Log, config: &Config) {
        let leads = self.is_leading();
        while let Some(batch) = self.backlog.front() {
            let len = batch.record.len();
            if !leads || log.position_with(len) - log.tail().position + log.open_bytes() > config.open_bytes() {
                return;
            }
            let (kind, index, committed) = (batch.kind.into(), log.tail().index.next(), log.committed().index);
            let header = Header { kind, count: batch.count, number: self.ballot, index, beside: committed.0 };
            batch.record.close(&header.bytes());
            let placed = log.place(&header, &batch.record, ring);
            invariant!(placed.is_ok(), "the log has no room although it was checked: {placed:?}");
            self.backlog.pop_front();
            log.note_executed();
        }
    }

    /// Makes sure that, after the end of this turn, every follower is checked for still giving its permission.
    pub fn probe<F: Fabric>(&mut self, turn: u64, fabric: &mut F) {
        for follower in &mut self.followers {
            if matches!(follower.phase, Phase::Following) && follower.asked() < turn {
                basics::Mark::MuProbed.reach();
                follower.probe(fabric, self.round, turn);
            }
        }
    }

    /// The last entry is committed and no other follows (TRAPS 13): nothing has been posted for so long that the commit index has to be sent on its own.
    #[inline(never)]
    fn flush<F: Fabric, S: StateMachine>(&mut self, cx: &mut Context<F, S>) {
        let (tail, committed) = (cx.log.tail().position, cx.log.committed().index);
        for at in 0..self.followers.len() {
            let follower = &mut self.followers[at];
            if !matches!(follower.phase, Phase::Following) || follower.cursor != tail || follower.told() >= committed {
                continue;
            }
            // Without room, the reader's progress is requested, and this is tried again.
            follower.lane.set_full(!follower.lane.writer().fits(layout::HEADER_BYTES));
            if !follower.lane.is_full() {
                basics::Mark::MuFlushed.reach();
                self.say(at, Kind::Flush, cx);
                self.last_post = cx.now;
            }
        }
    }

    /// Commits what is at a majority.
    #[inline]
    pub(super) fn commit<F: Fabric, S: StateMachine>(&mut self, cx: &mut Context<F, S>) -> bool {
        let stable = cx.config.durability == Durability::Sync && !Canary::MuUnsynced.is_planted();
        let held = if stable {
            self.stable_at_majority(cx)
        } else {
            LogIndex(self.majority_of(cx.log, cx.log.tail().index.0, |f| f.held().map_or(0, |a| a.0)))
        };
        if let Stage::TakingOver { last, recovered } = self.stage {
            let Some(group) = cx.log.group() else { return false };
            // Even a log without a single entry has to be accepted by a majority under our number.
            let own = !stable || self.own_stable(cx.log).is_some();
            let started = self.count(group, own, |f| f.held().is_some() && (!stable || f.stable.is_some()));
            if held < last || started < group.majority() {
                return false;
            }
            if recovered == 0 { basics::Mark::MuLeads } else { basics::Mark::MuLeadsTail }.reach();
            self.stage = Stage::Leading;
            cx.events.push_back(Event::Led { ballot: self.ballot, recovered });
        }
        let mut last = None;
        while let Some(mark) = self.open.front().filter(|mark| mark.index <= held) {
            last = Some(*mark);
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
}
