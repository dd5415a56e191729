//! One client's pair of lanes: its requests to us, and our replies to it.

use std::collections::VecDeque;

use martlet_fabric::ring::{Reader, Record, Writer};
use martlet_fabric::{Fabric, Memory, NodeId, PeerId, Region, Remote};
use martlet_protocol::basics::{ViewNumber, layout};

use super::wire::{self, Answer};
use super::{PROGRESS, REPLY, token};
use crate::store::SessionId;
use crate::turn::{Released, Wait};

/// A client's lanes, and the replies that wait, first for their ticket and then for room.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) peer: PeerId,
    pub(super) reader: Reader,
    writer: Writer,
    pub(super) session: Option<SessionId>,
    /// Replies wait for a majority, even if the lease holds, because the client asked for that.
    pub(super) by_quorum: bool,
    /// Requests below this number may have been sent on other lanes too.
    pub(super) fresh_from: u64,
    /// The reign in which its session was last seen in the state.
    pub(super) opened_in: Option<u64>,
    /// The epoch of the last request.
    pub(super) epoch: u32,
    /// The latest epoch in which a request was refused: no later request of that epoch may be executed.
    pub(super) refused: Option<u32>,
    /// Encoded answers, one after another.
    bytes: Vec<u8>,
    /// Where each answer ends, and what it waits for.
    frames: VecDeque<(Option<Wait>, usize)>,
    /// Where the first answer starts.
    start: usize,
    record: Record,
    /// Writes that have not completed yet.
    in_flight: u32,
    /// A read of the client's progress is under way.
    asking: bool,
    /// There may be requests that the last turn had no budget for.
    pub(super) unfinished: bool,
    /// The client broke the protocol, or its lane is lost: nothing is read from it any more.
    pub(super) broken: bool,
}

impl Lane {
    pub(super) fn new(peer: PeerId, capacity: usize) -> Lane {
        let remote = Remote { peer, region: Region::Lane(layout::CLIENT_LANE), offset: 0 };
        Lane {
            peer,
            reader: Reader::new(),
            writer: Writer::new(remote, capacity),
            session: None,
            by_quorum: false,
            fresh_from: 0,
            opened_in: None,
            epoch: 0,
            refused: None,
            bytes: Vec::new(),
            frames: VecDeque::new(),
            start: 0,
            record: Record::with_capacity(256),
            in_flight: 0,
            asking: false,
            unfinished: false,
            broken: false,
        }
    }

    /// The client has said who it is, perhaps not for the first time. Returns `false` if it names another session than before.
    pub(super) fn introduce(&mut self, session: SessionId, fresh_from: u64, salt: u64, by_quorum: bool) -> bool {
        let known = *self.session.get_or_insert_with(|| {
            self.writer = self.writer.with_salt(salt);
            session
        });
        self.fresh_from = self.fresh_from.max(fresh_from);
        self.by_quorum = by_quorum;
        known == session
    }

    /// The size of its rings.
    pub(super) fn capacity(&self) -> usize {
        self.writer.capacity() as usize
    }

    /// Tells the client how many of its records have been taken, but only once that is a quarter of the ring: each update costs the client's core a cache miss.
    /// With that much unpublished the client still has room for its longest record and a filler.
    #[inline]
    pub(super) fn publish(&mut self, memory: &Memory, now: bool) {
        if now || self.reader.unpublished() >= self.writer.capacity() / 4 {
            self.reader.publish(memory);
        }
    }

    /// Whether another request may be taken. This keeps replies from piling up for a client that does not read them.
    pub(super) fn has_reply_room(&self) -> bool {
        self.bytes.len() - self.start <= self.capacity()
    }

    /// Where the text of an open answer is appended.
    pub(super) fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Starts an answer. Returns where it starts.
    pub(super) fn open(&mut self, answer: Answer) -> usize {
        let at = self.bytes.len();
        wire::encode_answer(answer, &mut self.bytes);
        at
    }

    /// Replaces the open answer by another one, without text.
    pub(super) fn reopen(&mut self, at: usize, answer: Answer) {
        self.bytes.truncate(at);
        wire::encode_answer(answer, &mut self.bytes);
    }

    /// Ends the open answer, which then waits for `wait`.
    pub(super) fn close(&mut self, wait: Option<Wait>) {
        self.frames.push_back((wait, self.bytes.len()));
    }

    /// Appends a whole answer.
    pub(super) fn answer(&mut self, answer: Answer, wait: Option<Wait>, text: impl FnOnce(&mut Vec<u8>)) {
        self.open(answer);
        text(&mut self.bytes);
        self.close(wait);
    }

    /// Replaces the replies that wait for tickets by redirections to `node`: whether those requests took effect is unknown, and their client has to ask again.
    /// Returns whether there were any.
    pub(super) fn void(&mut self, view: ViewNumber, node: Option<NodeId>) -> bool {
        if self.frames.iter().all(|(wait, _)| wait.is_none()) {
            return false;
        }
        let epoch = self.epoch;
        self.refused = Some(epoch);
        let (bytes, frames) = (std::mem::take(&mut self.bytes), std::mem::take(&mut self.frames));
        let mut start = std::mem::take(&mut self.start);
        for (wait, end) in frames {
            let frame = &bytes[start..end];
            match (wait, wire::decode_answer(frame)) {
                (Some(_), Ok(Answer::Reply { seq, .. })) => {
                    self.open(Answer::Redirect { epoch, seq, view, node });
                }
                // The session may not be in the state after all; another primary will tell the client.
                (Some(_), Ok(Answer::Welcome { .. })) => {
                    start = end;
                    continue;
                }
                _ => self.bytes.extend_from_slice(frame),
            }
            self.close(None);
            start = end;
        }
        true
    }

    /// Posts the answers that may be sent and find room. Returns how many.
    pub(super) fn send<F: Fabric>(&mut self, released: Released, fabric: &mut F) -> usize {
        let mut sent = 0;
        if self.session.is_none() {
            return 0; // its salt is not known yet
        }
        while let Some(&(wait, end)) = self.frames.front() {
            if wait.is_some_and(|wait| !released.lets_go(wait)) || self.broken {
                break;
            }
            if !self.writer.fits(end - self.start) {
                if !self.asking {
                    self.asking = true;
                    fabric.read_word(self.writer.consumed_word(), token(self.peer, PROGRESS));
                }
                break;
            }
            let answer = &self.bytes[self.start..end];
            self.record.fill(|out| out.extend_from_slice(answer));
            let Some(posted) = self.writer.push(fabric, &mut self.record, token(self.peer, REPLY)) else { break };
            self.in_flight += posted;
            self.frames.pop_front();
            self.start = end;
            sent += 1;
        }
        if self.frames.is_empty() {
            self.bytes.clear();
            self.bytes.shrink_to(self.capacity());
            self.start = 0;
        }
        sent
    }

    /// A hint that a short answer will soon be written.
    pub(super) fn expect<F: Fabric>(&self, fabric: &F) {
        self.writer.expect(fabric, 0, 128);
    }

    /// One write has completed. Returns whether it was the last one posted, so that the client may be told to look.
    pub(super) fn reply_stands(&mut self) -> bool {
        self.in_flight -= 1;
        self.in_flight == 0
    }

    /// Whether answers wait for the client to take earlier ones. No event tells when it does.
    pub(super) fn is_waiting_for_room(&self) -> bool {
        self.asking && !self.broken
    }

    /// Takes in the client's progress, which has just been read.
    pub(super) fn progress(&mut self, position: u64) {
        self.asking = false;
        if !self.writer.note_consumed(position) {
            tracing::warn!(peer = ?self.peer, position, "a client over the fabric reports a wrong position: its requests are ignored from now on");
            self.broken = true;
        }
    }
}
