//! State transfer from one replica to another (Mu section 5.4: from a follower, so that the leader does not pause).
//!
//! A replica that does not hold the state asks a replica that does, its teacher. The teacher sends a *begin*, then the entries as it applies them and, between
//! them, parts of its state: each part shows exactly the entries before it in the lane. An *end* follows the last part. After that only entries follow, until
//! the learner has enough to continue from its own log or from the leader's.

use martlet_fabric::ring::{Record, Writer};
use martlet_fabric::{Fabric, Memory, PeerId, Region, Remote};

use crate::basics::{self, LogIndex, Time};
use crate::replica::StateMachine;
use crate::replica::part::{self, Oversized, REST_NS};

use super::config::Config;
use super::layout::{self, HEADER_BYTES, Header, Kind, Op, STATE_LANE, permission};
use super::leading::ring_of;
use super::log::{Log, Mark};
use super::permission::word_from;
use super::{Event, Mu, Peer};

/// One learner's transfer, as its teacher sees it.
#[derive(Debug)]
pub(super) struct Teaching {
    /// Entries up to here have been sent.
    sent: Mark,
    begun: bool,
    /// Where the next part begins; `None` when the last one has been taken.
    cursor: Option<u64>,
    part: Vec<u8>,
    posted: usize,
    ended: bool,
    /// What was last said to be committed.
    told: LogIndex,
    /// [`Log::breaks`] when it began: what was sent is worthless once the machine has stopped showing the state, even if it shows the state again later.
    breaks: u64,
}

/// The writing end of a state lane.
#[derive(Debug)]
pub(super) struct Lesson {
    pub writer: Writer,
    /// The last request that was read, with its lowest bit.
    heard: u64,
    refreshing: bool,
    under_way: Option<Teaching>,
}

impl Lesson {
    pub fn new(peer: PeerId, config: &Config) -> Lesson {
        let lane = Remote { peer, region: Region::Lane(STATE_LANE), offset: 0 };
        Lesson { writer: Writer::new(lane, config.state_ring_bytes), heard: 0, refreshing: false, under_way: None }
    }

    /// Whether a learner waits to be taught, and could be.
    #[cfg(test)]
    pub fn is_under_way(&self) -> bool {
        self.under_way.is_some()
    }

    /// Takes what the learner has consumed.
    pub fn handle_consumed(&mut self, position: u64) {
        self.refreshing = false;
        self.writer.note_consumed(position);
    }

    pub(super) fn push<F: Fabric>(&mut self, fabric: &mut F, peer: PeerId, record: &mut Record) -> bool {
        self.writer.push(fabric, record, Op::State.token(0, peer)).is_some()
    }
}

/// What a teacher works with.
struct Desk<'a> {
    log: &'a Log,
    config: &'a Config,
    /// Whether the machine shows the log's entries and nothing else: that of a leader that executes first may show more.
    exact: bool,
    record: &'a mut Record,
    buffer: &'a mut Vec<u8>,
}

impl Desk<'_> {
    fn fill(&mut self, kind: Kind, count: u32, index: LogIndex, body: &[u8]) {
        let header = Header { kind, count, number: self.log.known_ballot(), index, beside: self.log.committed().index.0 };
        self.record.fill(|bytes| {
            header.encode(bytes);
            bytes.extend_from_slice(body);
        });
    }
}

impl Mu {
    /// Teaches the learners that have asked. Returns whether anything was sent.
    ///
    /// A state with a part that is too long for any learner is taught to no process, and not tried again for a while. A learner that has asked for it gets no
    /// answer before that, and asks another process when its patience is over.
    ///
    /// With a journal, a process teaches only if it could itself recover if the power failed now. Otherwise a learner might recover with the log of a group
    /// from which no other process can recover.
    pub(super) fn teach<F: Fabric, S: StateMachine>(&mut self, now: Time, fabric: &mut F, machine: &S) -> bool {
        self.unteachable_since = self.unteachable_since.filter(|since| now.since(*since) <= REST_NS);
        if !self.is_kept() || self.unteachable_since.is_some() {
            return false;
        }
        let exact = !self.is_ahead_of_log();
        let Mu { peers, log, config, teaching_record, buffer, nudges, events, unteachable_since, .. } = self;
        let mut any = false;
        for peer in peers.iter_mut().filter(|p| !p.watch.dead) {
            let mut desk = Desk { log, config, exact, record: teaching_record, buffer };
            match peer.teach(&mut desk, fabric, machine) {
                Ok(true) => {
                    any = true;
                    nudges.at_once(peer.id);
                }
                Ok(false) => {}
                Err(Oversized(bytes)) => {
                    *unteachable_since = Some(now);
                    events.push_back(Event::Unteachable { process: peer.process, bytes });
                }
            }
        }
        any
    }
}

impl Peer {
    fn teach<F: Fabric, S: StateMachine>(&mut self, desk: &mut Desk, fabric: &mut F, machine: &S) -> Result<bool, Oversized> {
        let wish = word_from(fabric, self.id, permission::TEACH);
        let lesson = &mut self.lesson;
        if wish != lesson.heard {
            // It tells the salt before its first request. A process that did not is not written to.
            if !lesson.writer.is_salted() {
                lesson.writer = lesson.writer.with_salt(word_from(fabric, self.id, permission::STATE_SALT));
                if !lesson.writer.is_salted() {
                    return Ok(false);
                }
            }
            lesson.heard = wish;
            lesson.under_way = (wish & 1 == 1).then(|| Teaching {
                sent: desk.log.applied(),
                begun: false,
                cursor: Some(0),
                part: Vec::new(),
                posted: 0,
                ended: false,
                told: LogIndex(0),
                breaks: 0,
            });
        }
        let Some(mut teaching) = lesson.under_way.take() else { return Ok(false) };
        let before = lesson.writer.tail();
        // A teacher that no longer holds the state, or has lost an entry that the learner still lacks, cannot continue.
        let begun_so = teaching.breaks == desk.log.breaks() && desk.log.retains(teaching.sent.position);
        let able = desk.log.is_complete() && (!teaching.begun || begun_so);
        if able {
            let done = teaching.go_on(lesson, self.id, desk, fabric, machine);
            // It goes on with the same part when that is tried again.
            lesson.under_way = Some(teaching);
            done?;
        } else {
            basics::Mark::MuTeachingBroken.reach();
            desk.fill(Kind::Break, 0, LogIndex(0), &(wish >> 1).to_le_bytes());
            if !lesson.push(fabric, self.id, desk.record) {
                lesson.under_way = Some(teaching);
            }
        }
        if lesson.writer.outstanding() > 0 && !lesson.refreshing && lesson.under_way.is_some() {
            lesson.refreshing = true;
            fabric.read_word(lesson.writer.consumed_word(), Op::StateConsumed.token(0, self.id));
        }
        Ok(lesson.writer.tail() != before)
    }
}

impl Teaching {
    fn go_on<F: Fabric, S: StateMachine>(
        &mut self,
        lesson: &mut Lesson,
        peer: PeerId,
        desk: &mut Desk,
        fabric: &mut F,
        machine: &S,
    ) -> Result<(), Oversized> {
        if !self.begun {
            (self.sent, self.breaks) = (desk.log.applied(), desk.log.breaks());
            // The group as of what the state shows, which may be ahead of what is committed, or not yet known to the log.
            let Some(group) = desk.log.group_at(self.sent.index) else { return Ok(()) };
            let mut body = Vec::new();
            layout::begin_body(self.sent.position, lesson.heard >> 1, group, &mut body);
            desk.fill(Kind::Begin, 0, self.sent.index, &body);
            self.begun = lesson.push(fabric, peer, desk.record);
            if self.begun {
                basics::Mark::MuTeaches.reach();
            }
        }
        // The budget is for the state only. Entries are always sent at once, because an entry that is overwritten before it is sent costs the whole lesson.
        let mut budget = desk.config.transfer_budget_bytes;
        while self.begun && budget > 0 {
            if self.posted < self.part.len() {
                // Fragments of a part, with nothing between them.
                let room = martlet_fabric::ring::max_payload(desk.config.state_ring_bytes) - HEADER_BYTES;
                let end = (self.posted + room).min(self.part.len());
                let more = u32::from(end < self.part.len());
                desk.fill(Kind::Part, more, self.sent.index, &self.part[self.posted..end]);
                if !lesson.push(fabric, peer, desk.record) {
                    return Ok(());
                }
                budget = budget.saturating_sub(end - self.posted);
                self.posted = end;
                continue;
            }
            let upto = desk.log.applied().position;
            if self.sent.position < upto {
                let ring: &Memory = ring_of(fabric);
                let Some((header, next)) = desk.log.read(ring, self.sent.position, desk.buffer) else { return Ok(()) };
                let body = std::mem::take(desk.buffer);
                desk.fill(header.kind, header.count, header.index, &body[HEADER_BYTES..]);
                let pushed = lesson.push(fabric, peer, desk.record);
                *desk.buffer = body;
                if !pushed {
                    return Ok(());
                }
                (self.sent, self.told) = (Mark { index: header.last(), position: next }, desk.log.committed().index);
                continue;
            }
            match self.cursor {
                Some(_) if !desk.exact => return Ok(()),
                Some(cursor) => {
                    self.part.clear();
                    self.posted = 0;
                    self.cursor = part::transfer(machine, cursor, budget, &mut self.part)?;
                }
                // What has been sent becomes final when it is committed, which has to be told, like the end itself.
                None if self.ended && self.told >= desk.log.committed().index => return Ok(()),
                None => {
                    let (kind, committed) = (if self.ended { Kind::Flush } else { Kind::End }, desk.log.committed().index);
                    desk.fill(kind, 0, self.sent.index, &[]);
                    if !lesson.push(fabric, peer, desk.record) {
                        return Ok(());
                    }
                    (self.ended, self.told) = (true, committed);
                }
            }
        }
        Ok(())
    }
}
