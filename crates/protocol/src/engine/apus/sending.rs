//! State transfer to a replica that has asked for the state by a learning request (APUS section 4.1).
//!
//! A replica that holds the state sends a *begin*, then the entries as it applies them and, between them, parts of its state: each part shows exactly the
//! entries before it in the lane. An *end* follows the last part, and then the commit index as it advances. So the whole state is never copied, and nothing has
//! to stop meanwhile.

use martlet_fabric::ring::{self, Record, Writer};
use martlet_fabric::{Fabric, PeerId, Region, Remote};

use crate::basics::{self, LogIndex, Time};
use crate::replica::StateMachine;
use crate::replica::backlog::HEADER_BYTES;
use crate::replica::part::{self, Oversized, REST_NS};
use crate::replica::record;

use super::config::Config;
use super::layout::{Header, Kind, Op, STATE_LANE, control};
use super::log::{Log, Mark};
use super::peers::{Peer, word_from};
use super::{Apus, Event};

/// One learner's transfer, as its sender sees it.
#[derive(Debug)]
struct Sending {
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
    /// [`Entries::breaks`](crate::replica::entries::Entries::breaks) when it began: what was sent is worthless once the machine has stopped showing the state.
    breaks: u64,
}

/// The writing end of a state lane.
#[derive(Debug)]
pub(super) struct Lesson {
    writer: Writer,
    /// The last request that was read, with its lowest bit.
    heard: u64,
    refreshing: bool,
    under_way: Option<Sending>,
}

impl Lesson {
    pub fn new(peer: PeerId, config: &Config) -> Lesson {
        let lane = Remote { peer, region: Region::Lane(STATE_LANE), offset: 0 };
        Lesson { writer: Writer::new(lane, config.state_ring_bytes), heard: 0, refreshing: false, under_way: None }
    }

    /// Takes what the learner has consumed.
    pub fn handle_consumed(&mut self, position: u64) {
        self.refreshing = false;
        self.writer.note_consumed(position);
    }
}

/// What a sender has at hand.
struct Desk<'a> {
    log: &'a Log,
    config: &'a Config,
    /// Whether the machine shows the log's entries and nothing else: that of a leader that executes first may show more.
    exact: bool,
    record: &'a mut Record,
    buffer: &'a mut Vec<u8>,
}

impl Apus {
    /// Sends the state to those that have asked. Returns whether anything was sent.
    ///
    /// A state with a part that is too long for any learner is sent to no process, and not tried again for a while. With a journal, a process sends its state
    /// only if it could itself recover if the power failed now. Otherwise a learner might recover with the log of a group from which no other process can
    /// recover.
    pub(super) fn send_states<F: Fabric, S: StateMachine>(&mut self, now: Time, fabric: &mut F, machine: &S) -> bool {
        self.unteachable_since = self.unteachable_since.filter(|since| now.since(*since) <= REST_NS);
        if !self.is_kept() || self.unteachable_since.is_some() {
            return false;
        }
        let exact = !self.is_ahead_of_log();
        let Apus { peers, log, config, sending_record, buffer, nudges, events, unteachable_since, .. } = self;
        let mut any = false;
        for peer in peers.iter_mut().filter(|p| !p.watch.dead) {
            let mut desk = Desk { log, config, exact, record: sending_record, buffer };
            match peer.send_state(&mut desk, fabric, machine) {
                Ok(true) => {
                    any = true;
                    nudges.at_once(peer.id);
                }
                Ok(false) => {}
                Err(Oversized(bytes)) => {
                    *unteachable_since = Some(now);
                    events.push_back(Event::Unteachable { process: peer.identity, bytes });
                }
            }
        }
        any
    }
}

impl Peer {
    fn send_state<F: Fabric, S: StateMachine>(&mut self, desk: &mut Desk, fabric: &mut F, machine: &S) -> Result<bool, Oversized> {
        let (peer, lesson) = (self.id, &mut self.lesson);
        let request = word_from(fabric, peer, control::TEACH);
        if request != lesson.heard {
            // It tells the salt before its first request. A process that did not is not written to.
            if !lesson.writer.is_salted() {
                lesson.writer = lesson.writer.with_salt(word_from(fabric, peer, control::STATE_SALT));
                if !lesson.writer.is_salted() {
                    return Ok(false);
                }
            }
            lesson.heard = request;
            lesson.under_way = (request & 1 == 1).then(|| Sending {
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
        let Some(mut sending) = lesson.under_way.take() else { return Ok(false) };
        let before = lesson.writer.tail();
        // A sender that no longer holds the state, or has lost an entry that the learner still lacks, cannot continue.
        let goes_on = sending.breaks == desk.log.breaks() && desk.log.retains(sending.sent.position);
        let sent = if desk.log.is_complete() && (!sending.begun || goes_on) {
            let Lesson { writer, heard, .. } = lesson;
            let done = sending.go_on(writer, *heard >> 1, peer, desk, fabric, machine);
            done.map(|()| false)
        } else {
            basics::Mark::ApusSendingBroken.reach();
            Ok(desk.put(&mut lesson.writer, Kind::Break, 0, LogIndex(0), &(request >> 1).to_le_bytes(), peer, fabric))
        };
        // A part that is too long is tried again where it was.
        if sent != Ok(true) {
            lesson.under_way = Some(sending);
        }
        sent?;
        if lesson.writer.outstanding() > 0 && !lesson.refreshing && lesson.under_way.is_some() {
            lesson.refreshing = true;
            fabric.read_word(lesson.writer.consumed_word(), Op::StateConsumed.token(0, peer));
        }
        Ok(lesson.writer.tail() != before)
    }
}

impl Desk<'_> {
    /// Posts a record, if there is room.
    #[allow(clippy::too_many_arguments, reason = "a record's parts, and where it goes")]
    fn put<F: Fabric>(
        &mut self,
        writer: &mut Writer,
        kind: Kind,
        count: u32,
        index: LogIndex,
        body: &[u8],
        peer: PeerId,
        fabric: &mut F,
    ) -> bool {
        let header = Header { kind, count, number: self.log.accepted(), index, beside: self.log.committed().index.0 };
        self.record.fill(|bytes| {
            header.encode(bytes);
            bytes.extend_from_slice(body);
        });
        writer.push(fabric, self.record, Op::State.token(0, peer)).is_some()
    }
}

impl Sending {
    fn go_on<F: Fabric, S: StateMachine>(
        &mut self,
        writer: &mut Writer,
        request: u64,
        peer: PeerId,
        desk: &mut Desk,
        fabric: &mut F,
        machine: &S,
    ) -> Result<(), Oversized> {
        if !self.begun {
            (self.sent, self.breaks) = (desk.log.applied(), desk.log.breaks());
            // The group as of what the state shows, which may be ahead of what is committed.
            let Some(group) = desk.log.group_at(self.sent.index) else { return Ok(()) };
            let mut body = Vec::new();
            record::begin_body(self.sent.position, request, group, &mut body);
            self.begun = desk.put(writer, Kind::Begin, 0, self.sent.index, &body, peer, fabric);
            if self.begun {
                basics::Mark::ApusSends.reach();
            }
        }
        // The budget is for the state only. Entries are always sent at once, because an entry that is overwritten before it is sent costs the whole transfer.
        let mut budget = desk.config.transfer_budget_bytes;
        while self.begun && budget > 0 {
            if self.posted < self.part.len() {
                // Fragments of a part, with nothing between them.
                let room = ring::max_payload(desk.config.state_ring_bytes) - HEADER_BYTES;
                let end = (self.posted + room).min(self.part.len());
                let more = u32::from(end < self.part.len());
                if !desk.put(writer, Kind::Part, more, self.sent.index, &self.part[self.posted..end], peer, fabric) {
                    return Ok(());
                }
                budget = budget.saturating_sub(end - self.posted);
                self.posted = end;
                continue;
            }
            if !self.ended && self.sent.position < desk.log.applied().position {
                let mut payload = std::mem::take(desk.buffer);
                let read = desk.log.read(self.sent.position, &mut payload);
                let put = read.map(|(header, next)| {
                    let put = desk.put(writer, header.kind, header.count, header.index, &payload[HEADER_BYTES..], peer, fabric);
                    (put, Mark { index: header.last(), position: next })
                });
                *desk.buffer = payload;
                let Some((true, sent)) = put else { return Ok(()) };
                (self.sent, self.told) = (sent, desk.log.committed().index);
                continue;
            }
            match self.cursor {
                Some(_) if !desk.exact => return Ok(()),
                Some(cursor) => {
                    self.part.clear();
                    self.posted = 0;
                    self.cursor = part::transfer(machine, cursor, budget, &mut self.part)?;
                }
                // What has been sent is of use only once it is committed, which has to be told, like the end itself.
                None if self.ended && self.told >= self.sent.index.min(desk.log.committed().index) => return Ok(()),
                None => {
                    let (kind, committed) = (if self.ended { Kind::Flush } else { Kind::End }, desk.log.committed().index);
                    if !desk.put(writer, kind, 0, self.sent.index, &[], peer, fabric) {
                        return Ok(());
                    }
                    (self.ended, self.told) = (true, committed);
                }
            }
        }
        Ok(())
    }
}
