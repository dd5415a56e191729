//! One client's pair of lanes: its requests to us, our replies to it.

use std::collections::VecDeque;

use martlet_fabric::ring::{Reader, Record, Writer};
use martlet_fabric::{Fabric, Memory, NodeId, PeerId, Region, Remote};
use martlet_protocol::basics::{ViewNumber, layout};

use super::wire::{self, Answer};
use super::{PROGRESS, REPLY, token};
use crate::store::SessionId;
use crate::turn::{Released, Wait};

/// A client's lanes, and the replies that wait: for their ticket, then for room.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) peer: PeerId,
    pub(super) reader: Reader,
    writer: Writer,
    pub(super) session: Option<SessionId>,
    /// Replies wait for a majority, whatever the lease says: so its client wants it.
    pub(super) by_quorum: bool,
    /// Requests below this number may have been sent on other lanes too.
    pub(super) fresh_from: u64,
    /// The reign in which its session was last seen to be known.
    pub(super) opened_in: Option<u64>,
    /// The epoch of the last request.
    pub(super) epoch: u32,
    /// The last epoch of which a request was refused: no later one of it may be executed.
    pub(super) refused: Option<u32>,
    /// Encoded answers, one behind the other.
    bytes: Vec<u8>,
    /// Where each ends, and what it waits for.
    frames: VecDeque<(Option<Wait>, usize)>,
    /// Where the first frame starts.
    start: usize,
    record: Record,
    /// Writes whose completion has not come.
    in_flight: u32,
    /// The client's progress has been asked for.
    asking: bool,
    /// Requests may wait that the last turn had no budget for.
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

    /// The client has said who it is, perhaps again. Returns `false` when it is not who it was.
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

    /// Tells the client how far its requests have been taken, once that is a quarter of the ring: each telling costs the client's core a
    /// cache miss. With so much unpublished the client still has room for its longest record and a filler.
    #[inline]
    pub(super) fn publish(&mut self, memory: &Memory, now: bool) {
        if now || self.reader.unpublished() >= self.writer.capacity() / 4 {
            self.reader.publish(memory);
        }
    }

    /// Whether another request may be taken: replies do not pile up without end for a client that does not take them.
    pub(super) fn has_reply_room(&self) -> bool {
        self.bytes.len() - self.start <= self.capacity()
    }

    /// Where the text of an open answer is appended.
    pub(super) fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Starts an answer. Returns where.
    pub(super) fn open(&mut self, answer: Answer) -> usize {
        let at = self.bytes.len();
        wire::encode_answer(answer, &mut self.bytes);
        at
    }

    /// Puts another answer in the place of the open one, without text.
    pub(super) fn reopen(&mut self, at: usize, answer: Answer) {
        self.bytes.truncate(at);
        wire::encode_answer(answer, &mut self.bytes);
    }

    /// Ends the open answer; it waits for that.
    pub(super) fn close(&mut self, wait: Option<Wait>) {
        self.frames.push_back((wait, self.bytes.len()));
    }

    /// One whole answer.
    pub(super) fn answer(&mut self, answer: Answer, wait: Option<Wait>, text: impl FnOnce(&mut Vec<u8>)) {
        self.open(answer);
        text(&mut self.bytes);
        self.close(wait);
    }

    /// Drops the replies that wait for tickets and puts redirections to `node` in their place: whether those requests took effect is
    /// unknown, and their client has to ask again. Returns whether there were any.
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
                // The session may not stand; its client will be told by another primary.
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

    /// Posts the answers that may go and find room. Returns how many.
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

    /// A hint that a short answer is soon to be written.
    pub(super) fn expect<F: Fabric>(&self, fabric: &F) {
        self.writer.expect(fabric, 0, 128);
    }

    /// One write has completed. Returns whether it was the last that was posted, so that the client may be told to look.
    pub(super) fn reply_stands(&mut self) -> bool {
        self.in_flight -= 1;
        self.in_flight == 0
    }

    /// Whether answers wait for the client to take earlier ones; nobody tells when it does.
    pub(super) fn is_waiting_for_room(&self) -> bool {
        self.asking && !self.broken
    }

    /// Takes the client's progress.
    pub(super) fn progress(&mut self, position: u64) {
        self.asking = false;
        if !self.writer.note_consumed(position) {
            tracing::warn!(peer = ?self.peer, position, "a client's progress makes no sense; its lane is no longer read");
            self.broken = true;
        }
    }
}
