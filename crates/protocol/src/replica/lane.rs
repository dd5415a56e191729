//! The writing end of a lane: what a process keeps about a peer to which it sends records, for any kind of record and any engine.

use std::collections::VecDeque;

use martlet_fabric::ring::{Record, Writer};
use martlet_fabric::{Fabric, Token};

/// The writer of a lane, the operations that are under way on it, and what is known of its reader.
///
/// Operations complete in the order in which they were posted. Each may carry a *mark*, by which the engine says what its completion means. The caller passes
/// every completion of an operation to [`note_done`](Self::note_done), in order, and the answers to [`refresh`](Self::refresh) to
/// [`note_consumed`](Self::note_consumed). After a failed operation the lane's state is unknown, and nothing may be posted.
#[derive(Debug)]
pub struct LaneWriter<M> {
    writer: Writer,
    posted: u64,
    done: u64,
    marks: VecDeque<(u64, M)>,
    full: bool,
    /// The reader's progress is being asked for.
    asking: bool,
    records_since_asked: u32,
    /// The tail when the reader's progress was last read.
    tail_then: u64,
}

impl<M> LaneWriter<M> {
    /// The end that writes with `writer`, on which nothing is under way.
    pub fn new(writer: Writer) -> LaneWriter<M> {
        LaneWriter {
            writer,
            posted: 0,
            done: 0,
            marks: VecDeque::with_capacity(256),
            full: false,
            asking: false,
            records_since_asked: 0,
            tail_then: 0,
        }
    }

    /// The writer, for another end to continue with. Nothing may be under way here that the other end would take for its own.
    pub fn into_writer(self) -> Writer {
        self.writer
    }

    /// The writer, which knows its position in the lane.
    #[inline]
    pub fn writer(&self) -> &Writer {
        &self.writer
    }

    /// Sets the salt that seals the records; it has to be set before the first is written. Returns whether there is one now: 0 is none.
    pub fn salt(&mut self, salt: u64) -> bool {
        self.writer = self.writer.with_salt(salt);
        self.writer.is_salted()
    }

    /// Posts a record, if there is room; otherwise the lane counts as full. When the record's last operation completes, `mark` holds.
    #[inline]
    pub fn push<F: Fabric>(&mut self, fabric: &mut F, record: &mut Record, token: Token, mark: Option<M>) -> bool {
        let Some(ops) = self.writer.push(fabric, record, token) else {
            self.full = true;
            return false;
        };
        self.full = false;
        self.records_since_asked = self.records_since_asked.saturating_add(1);
        self.note_posted(u64::from(ops), mark);
        true
    }

    /// `ops` further operations have been posted to the same peer; their completions arrive among those of the records.
    #[inline]
    pub fn note_posted(&mut self, ops: u64, mark: Option<M>) {
        self.posted += ops;
        if let Some(mark) = mark {
            self.marks.push_back((self.posted, mark));
        }
    }

    /// The number of the operation posted last; 0 before the first.
    #[inline]
    pub fn last_op(&self) -> u64 {
        self.posted
    }

    /// Whether the operation of this number has completed.
    #[inline]
    pub fn is_done(&self, op: u64) -> bool {
        self.done >= op
    }

    /// The most recent mark whose operation has not completed.
    pub fn last_mark(&self) -> Option<&M> {
        self.marks.back().map(|(_, mark)| mark)
    }

    /// One more operation has succeeded. Each mark that now holds is passed to `hold`, in order.
    #[inline]
    pub fn note_done(&mut self, mut hold: impl FnMut(M)) {
        self.done += 1;
        while self.marks.front().is_some_and(|(op, _)| *op <= self.done) {
            let (_, mark) = self.marks.pop_front().expect("just seen");
            hold(mark);
        }
    }

    /// Whether the last attempt found no room.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.full
    }

    /// Sets whether the lane is too full for the next record. The reader's progress is requested at once when it is.
    #[inline]
    pub fn set_full(&mut self, full: bool) {
        self.full = full;
    }

    /// Requests the reader's progress when that is due: when the lane is full, when `every` records have been posted since the last time, or when it is
    /// `urgent`. This happens in the background, before the lane is full (TRAPS 15), with one request at a time.
    #[inline]
    pub fn refresh<F: Fabric>(&mut self, fabric: &mut F, token: Token, every: u32, urgent: bool) {
        let due = self.full || urgent || self.records_since_asked >= every;
        if due && !self.asking {
            self.asking = true;
            self.records_since_asked = 0;
            fabric.read_word(self.writer.consumed_word(), token);
        }
    }

    /// Takes the reader's progress. Returns whether the reader is to be woken: it has not touched what was in the lane at its last report, so it sleeps or is
    /// slow.
    pub fn note_consumed(&mut self, position: u64) -> bool {
        self.asking = false;
        self.writer.note_consumed(position);
        let consumed = self.writer.tail() - self.writer.outstanding();
        let sleeps = consumed < self.tail_then || (self.full && self.writer.outstanding() > 0);
        self.tail_then = self.writer.tail();
        sleeps
    }
}

#[cfg(test)]
mod tests {
    use martlet_fabric::ring::lane_bytes;
    use martlet_fabric::sim::{Faults, World};
    use martlet_fabric::{Identity, Incarnation, NodeId, PeerId, PeerKind, Region, RegionName, RegionSpec, Remote};

    use super::*;

    const LANE: RegionName = RegionName(3);
    const BYTES: usize = 1024;

    fn end() -> LaneWriter<u32> {
        LaneWriter::new(Writer::new(Remote { peer: PeerId(1), region: Region::Lane(LANE), offset: 0 }, BYTES))
    }

    /// An endpoint that is connected with the one that keeps the lane.
    fn connected() -> (World<true>, martlet_fabric::sim::Endpoint<true>) {
        let mut world = World::<true>::new(1, Faults::calm());
        let spec = RegionSpec { member_lanes: vec![(LANE, lane_bytes(BYTES))], ..RegionSpec::default() };
        let identity = |node| Identity { node: NodeId(node), incarnation: Incarnation(1), kind: PeerKind::Member };
        let (_, mut fabric) = world.spawn(identity(0), &spec);
        let (_, mut other) = world.spawn(identity(1), &spec);
        let mut both = [false; 2];
        while both != [true; 2] {
            assert!(world.next_turn(u64::MAX).is_some(), "they are connected before all is quiet");
            both[0] |= fabric.event().is_some();
            both[1] |= other.event().is_some();
        }
        (world, fabric)
    }

    #[test]
    fn a_mark_holds_when_the_operation_that_it_was_posted_with_completes() {
        let mut end = end();
        end.note_posted(2, Some(7));
        end.note_posted(1, None);
        end.note_posted(1, Some(8));
        let mut held = Vec::new();
        let mut dones = |end: &mut LaneWriter<u32>| {
            end.note_done(|mark| held.push(mark));
            held.clone()
        };
        assert_eq!(dones(&mut end), []);
        assert_eq!(dones(&mut end), [7]);
        assert_eq!((end.is_done(2), end.is_done(3), end.last_mark()), (true, false, Some(&8)));
        assert_eq!(dones(&mut end), [7]);
        assert_eq!(dones(&mut end), [7, 8]);
        assert_eq!((end.last_op(), end.last_mark()), (4, None));
    }

    #[test]
    fn a_reader_is_woken_when_what_stood_there_is_untouched() {
        let (mut end, (_world, mut fabric), mut record) = (end(), connected(), Record::default());
        let mut push = |end: &mut LaneWriter<u32>| {
            record.fill(|bytes| bytes.extend([1; 200]));
            end.push(&mut fabric, &mut record, Token(1), Some(0))
        };
        assert!(push(&mut end));
        assert!(!end.note_consumed(0), "it may not have had the time");
        assert!(end.note_consumed(0), "now it had");
        let tail = end.writer().tail();
        assert!(!end.note_consumed(tail));
        while push(&mut end) {}
        assert!(end.is_full() && end.note_consumed(tail), "nothing can be written before it reads");
    }
}
