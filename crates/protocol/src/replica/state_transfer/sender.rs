//! The sender's half.

use std::ops::Deref;

use martlet_fabric::ring::{self, Record, Writer};
use martlet_fabric::{Fabric, PeerId, Region, RegionName, Remote, Token};

use super::TransferKind;
use crate::basics::{self, LogIndex};
use crate::replica::backlog::HEADER_BYTES;
use crate::replica::entries::{Entries, Mark};
use crate::replica::part::{self, Oversized};
use crate::replica::record::{self, Header};
use crate::replica::{Settings, StateMachine};

/// The log of a sender.
pub trait Source: Deref<Target = Entries<Self::Kind>> {
    /// Its kinds of records.
    type Kind: TransferKind;
    /// Reached when a transfer begins, and when one is broken off.
    const MARKS: [basics::Mark; 2];

    /// The number under which a record is sent. Its header is that of an entry here, or, with number 0, that of a record about the entries up to its index.
    fn number(&self, header: &Header<Self::Kind>) -> u64;

    /// The entry at `position`, into `into`: its header, and where the next one begins. `None` when none is there.
    fn entry_at<F: Fabric>(&self, fabric: &F, position: u64, into: &mut Vec<u8>) -> Option<(Header<Self::Kind>, u64)>;

    /// The header with which such a record is sent.
    fn sent(&self, header: Header<Self::Kind>) -> Header<Self::Kind> {
        Header { number: self.number(&header), beside: self.committed().index.0, ..header }
    }

    /// The header of a record without entries.
    fn bare(&self, kind: Self::Kind, count: u32, index: LogIndex) -> Header<Self::Kind> {
        self.sent(Header { kind, count, number: 0, index, beside: 0 })
    }
}

/// A replica that sends its state: what it sends from.
pub struct Sender<'a, L> {
    /// Its log.
    pub log: &'a L,
    /// Whether the machine shows the log's entries and nothing else: that of a leader that executes first may show more.
    pub is_exact: bool,
    /// The settings of its engine.
    pub settings: &'a Settings,
    /// Where entries are read into.
    pub buffer: &'a mut Vec<u8>,
}

/// One learner's transfer, as its sender sees it.
#[derive(Debug)]
pub struct Sending {
    request: u64,
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
    /// [`Entries::breaks`] when it began: what was sent is worthless once the machine has stopped showing the state, even if it shows the state again later.
    breaks: u64,
}

impl Sending {
    /// The transfer that fulfils the request of this number; nothing of it has been sent.
    pub fn new(request: u64) -> Sending {
        Sending {
            request,
            sent: Mark::default(),
            begun: false,
            cursor: Some(0),
            part: Vec::new(),
            posted: 0,
            ended: false,
            told: LogIndex(0),
            breaks: 0,
        }
    }

    /// Whether anything has been sent.
    pub fn has_begun(&self) -> bool {
        self.begun
    }

    /// Whether it can go on. A sender that no longer holds the state, or has lost an entry that the learner still lacks, cannot continue.
    pub fn is_possible<K: TransferKind>(&self, log: &Entries<K>) -> bool {
        log.is_complete() && (!self.begun || self.breaks == log.breaks() && log.retains(self.sent.position))
    }

    /// Sends as much as one turn allows. `put` posts a record with this header and body, if there is room for it.
    ///
    /// # Errors
    /// When the next part is too long for any learner. It may be tried again later.
    pub fn go_on<F: Fabric, L: Source, S: StateMachine>(
        &mut self,
        sender: &mut Sender<L>,
        fabric: &mut F,
        machine: &S,
        mut put: impl FnMut(&mut F, &Header<L::Kind>, &[u8]) -> bool,
    ) -> Result<(), Oversized> {
        let log = sender.log;
        if !self.begun {
            (self.sent, self.breaks) = (log.applied(), log.breaks());
            // The group as of what the state shows, which may be ahead of what is committed, or not yet known to the log.
            let Some(group) = log.group_at(self.sent.index) else { return Ok(()) };
            let mut body = Vec::new();
            record::begin_body(self.sent.position, self.request, group, &mut body);
            self.begun = put(fabric, &log.bare(L::Kind::BEGIN, 0, self.sent.index), &body);
            if self.begun {
                L::MARKS[0].reach();
            }
        }
        // The budget is for the state only. Entries are always sent at once, because an entry that is overwritten before it is sent costs the whole transfer.
        let mut budget = sender.settings.transfer_budget_bytes;
        while self.begun && budget > 0 {
            if self.posted < self.part.len() {
                // Fragments of a part, with nothing between them.
                let room = ring::max_payload(sender.settings.state_ring_bytes) - HEADER_BYTES;
                let end = (self.posted + room).min(self.part.len());
                let more = u32::from(end < self.part.len());
                if !put(fabric, &log.bare(L::Kind::PART, more, self.sent.index), &self.part[self.posted..end]) {
                    return Ok(());
                }
                budget = budget.saturating_sub(end - self.posted);
                self.posted = end;
                continue;
            }
            if self.sent.position < log.applied().position && (L::Kind::CONTINUES || !self.ended) {
                let Some((header, next)) = log.entry_at(fabric, self.sent.position, sender.buffer) else { return Ok(()) };
                if !put(fabric, &log.sent(header), &sender.buffer[HEADER_BYTES..]) {
                    return Ok(());
                }
                (self.sent, self.told) = (Mark { index: header.last(), position: next }, log.committed().index);
                continue;
            }
            match self.cursor {
                Some(_) if !sender.is_exact => return Ok(()),
                Some(cursor) => {
                    self.part.clear();
                    self.posted = 0;
                    self.cursor = part::transfer(machine, cursor, budget, &mut self.part)?;
                }
                // What has been sent becomes final when it is committed, which has to be told, like the end itself.
                None if self.ended && self.told >= self.sent.index.min(log.committed().index) => return Ok(()),
                None => {
                    let kind = if self.ended { L::Kind::FLUSH } else { L::Kind::END };
                    if !put(fabric, &log.bare(kind, 0, self.sent.index), &[]) {
                        return Ok(());
                    }
                    (self.ended, self.told) = (true, log.committed().index);
                }
            }
        }
        Ok(())
    }
}

/// The writing end of the lane that a peer keeps for the state that we send it.
#[derive(Debug)]
pub struct StateLane {
    /// Into the lane.
    pub writer: Writer,
    /// The last request that was read, with its lowest bit.
    heard: u64,
    refreshing: bool,
    under_way: Option<Sending>,
}

impl StateLane {
    /// Of a peer that has asked for nothing yet.
    pub fn new(peer: PeerId, name: RegionName, settings: &Settings) -> StateLane {
        let lane = Remote { peer, region: Region::Lane(name), offset: 0 };
        StateLane { writer: Writer::new(lane, settings.state_ring_bytes), heard: 0, refreshing: false, under_way: None }
    }

    /// Whether a learner waits for the state, and could get it.
    #[cfg(test)]
    pub fn is_under_way(&self) -> bool {
        self.under_way.is_some()
    }

    /// Takes what the learner has consumed.
    pub fn handle_consumed(&mut self, position: u64) {
        self.refreshing = false;
        self.writer.note_consumed(position);
    }

    /// Sends the state if the peer has asked for it: `asked` is twice the number of its latest request, plus one while that is open. Returns whether anything was
    /// sent. `salt`: that of the lane. `tokens`: for records, and for reading what has been consumed.
    ///
    /// # Errors
    /// When a part of the state is too long for any learner. It may be tried again later.
    #[allow(clippy::too_many_arguments, reason = "what the peer has said, what is sent, and how")]
    pub fn send<F: Fabric, L: Source, S: StateMachine>(
        &mut self,
        asked: u64,
        salt: impl FnOnce(&F) -> u64,
        tokens: [Token; 2],
        sender: &mut Sender<L>,
        record: &mut Record,
        fabric: &mut F,
        machine: &S,
    ) -> Result<bool, Oversized> {
        if asked != self.heard {
            // It tells the salt before its first request. A process that did not is not written to.
            if !self.writer.is_salted() {
                self.writer = self.writer.with_salt(salt(fabric));
                if !self.writer.is_salted() {
                    return Ok(false);
                }
            }
            self.heard = asked;
            self.under_way = (asked & 1 == 1).then(|| Sending::new(asked >> 1));
        }
        let Some(mut sending) = self.under_way.take() else { return Ok(false) };
        let before = self.writer.tail();
        let mut put = |fabric: &mut F, header: &Header<L::Kind>, body: &[u8]| {
            record.fill(|bytes| {
                header.encode(bytes);
                bytes.extend_from_slice(body);
            });
            self.writer.push(fabric, record, tokens[0]).is_some()
        };
        let over = if sending.is_possible(sender.log) {
            sending.go_on(sender, fabric, machine, put).map(|()| false)
        } else {
            L::MARKS[1].reach();
            Ok(put(fabric, &sender.log.bare(L::Kind::BREAK, 0, LogIndex(0)), &sending.request.to_le_bytes()))
        };
        // A part that is too long is tried again where it was.
        if over != Ok(true) {
            self.under_way = Some(sending);
        }
        over?;
        if self.writer.outstanding() > 0 && !self.refreshing && self.under_way.is_some() {
            self.refreshing = true;
            fabric.read_word(self.writer.consumed_word(), tokens[1]);
        }
        Ok(self.writer.tail() != before)
    }
}
