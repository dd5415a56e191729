//! The operations on one peer, in the order in which they were posted.
//!
//! A peer is reached on several queue pairs: one of the background plane, for public memory and all reading, and one for each lane that the peer
//! keeps for us. Each queue pair keeps its own order, but the contract promises an order among all operations. So requests are under way on only one
//! of them at a time: an operation for another queue pair waits until those before it have completed. A caller that works on one lane, as replication
//! does, never waits.

use std::collections::VecDeque;

use super::peer::Stage;
use crate::contract::{Completion, OpError, Token};
use crate::primitive::Ordering;

/// How many requests there are to one completion: every request at that interval asks for one, and so does the last of a batch, so that each makes
/// room for more while later requests are under way. So does each READ of several packets.
pub(super) const SIGNAL_EVERY: usize = 16;
/// A WRITE of up to this many packets goes as one request, a longer one as one request for each packet (module `endpoint`). It is two because that is
/// the length of a record whose contents fit into one packet and whose headers do not: each request that is saved saves an acknowledgement.
const WRITE_PACKETS: u32 = 2;
/// The most packets that one READ brings. A longer READ goes as several. The card says nothing about a READ before all of it has arrived, so the
/// longer it is, the later it shows that the card has forgotten it (module `overdue`).
const READ_PACKETS: u32 = 16;
/// The most packets that the card carries without reporting anything: requests that ask for no completion, and a READ after them that does.
pub(super) const SILENT_PACKETS: u32 = (SIGNAL_EVERY as u32 - 1) * WRITE_PACKETS + READ_PACKETS;

/// The queue pair that an operation goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Channel {
    Background,
    /// The queue pair of a lane, by its place among the lanes that the peer keeps for us.
    Lane(u8),
}

/// What an operation does at the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    Write,
    /// The place in our memory that the bytes go to.
    Read {
        address: u64,
        lkey: u32,
    },
    ReadWord,
    Swap {
        expected: u64,
        new: u64,
    },
}

impl Work {
    pub(super) fn is_read(self) -> bool {
        matches!(self, Work::Read { .. } | Work::ReadWord)
    }

    pub(super) fn is_swap(self) -> bool {
        matches!(self, Work::Swap { .. })
    }
}

/// How far an operation has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Not handed to the card yet.
    Queued,
    /// Under way, in whole or in part.
    Posted,
    /// A write that got no answer. We are finding out whether its lane was revoked or the peer is out of reach.
    Undecided,
    Done(Result<u64, OpError>),
}

/// An operation.
#[derive(Debug)]
pub(super) struct Op {
    pub(super) token: Token,
    pub(super) work: Work,
    pub(super) channel: Channel,
    pub(super) state: State,
    pub(super) remote: u64,
    pub(super) rkey: u32,
    /// For a change in a lane, the only epoch of its grant in which it may take effect.
    pub(super) epoch: u64,
    pub(super) bytes: u32,
    /// How many of its bytes have been handed to the card. A long operation goes as many requests.
    pub(super) handed: u32,
    /// The number after its last request, once all of it has been handed over.
    pub(super) until: u64,
    /// Where in the stage its bytes are, or its word is to land.
    pub(super) at: u32,
    /// Bytes of the stage that are freed with it.
    pub(super) staged: u32,
    /// Memory of its own, if the stage had no room.
    pub(super) own_stage: Option<Box<Stage>>,
}

impl Op {
    /// How many of its bytes the next request carries. One packet to the peer carries `packet` bytes.
    pub(super) fn next_bytes(&self, packet: u32) -> u32 {
        let rest = self.bytes - self.handed;
        match self.work {
            Work::Write if self.bytes <= WRITE_PACKETS * packet => rest,
            Work::Write => rest.min(packet),
            Work::Read { .. } => rest.min(READ_PACKETS * packet),
            Work::ReadWord | Work::Swap { .. } => rest,
        }
    }
}

/// A look at a lane's grant word.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    pub(super) lane: u8,
    /// Distinguishes it from earlier looks.
    pub(super) number: u64,
    /// Operations before this one were posted before the look.
    pub(super) before: u64,
}

/// A peer's operations, and the requests to the card of which they consist. Both are counted from the connection's first.
#[derive(Debug)]
pub(super) struct Line {
    ops: VecDeque<Op>,
    /// The sequence number of the first operation in `ops`.
    first: u64,
    /// The sequence number of the first operation that has not been handed to the card as a whole.
    pub(super) next: u64,
    /// The operations before this one are known to be complete, or are not under way.
    settled: u64,
    /// Requests that have been handed over.
    sent: u64,
    /// The requests before this one are known to be complete, or are not under way.
    answered: u64,
    pub(super) channel: Channel,
    /// The positions after the last READ, and after the last swap.
    pub(super) last_read: u64,
    pub(super) last_swap: u64,
    pub(super) look: Option<Look>,
    pub(super) looks: u64,
    /// No operation can succeed any more.
    pub(super) broken: bool,
    /// The stage's ring, in bytes since the start.
    head: u64,
    tail: u64,
    stage_bytes: u64,
}

/// Bits of a request's number that travel with it.
const SEQUENCE_BITS: u32 = 30;

impl Line {
    pub(super) fn new(stage_bytes: usize) -> Line {
        Line {
            ops: VecDeque::with_capacity(256),
            first: 0,
            next: 0,
            settled: 0,
            sent: 0,
            answered: 0,
            channel: Channel::Background,
            last_read: 0,
            last_swap: 0,
            look: None,
            looks: 0,
            broken: false,
            head: 0,
            tail: 0,
            stage_bytes: stage_bytes as u64,
        }
    }

    /// Whether there is nothing to do.
    pub(super) fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// The sequence number of the next operation to be appended.
    pub(super) fn end(&self) -> u64 {
        self.first + self.ops.len() as u64
    }

    /// How many requests are under way.
    pub(super) fn outstanding(&self) -> u64 {
        self.sent - self.answered
    }

    /// How many requests are no longer under way.
    pub(super) fn answered(&self) -> u64 {
        self.answered
    }

    /// How many packets of `packet` bytes it takes to carry what is under way.
    pub(super) fn packets(&self, packet: u32) -> u32 {
        let under_way = self.ops.iter().filter(|op| op.state == State::Posted);
        under_way.fold(0, |sum, op| sum.saturating_add(op.handed.div_ceil(packet)))
    }

    /// Hands over one more request, for `bytes` more of the next operation, and returns its number. After the last request of an operation,
    /// [`Line::advance`] is due.
    pub(super) fn begin(&mut self, bytes: u32) -> u64 {
        let number = self.sent;
        self.sent += 1;
        let op = self.op_mut(self.next);
        op.state = State::Posted;
        op.handed += bytes;
        op.until = number + 1;
        number
    }

    /// The next operation has been handed to the card as a whole, or is done without it.
    pub(super) fn advance(&mut self) {
        self.next += 1;
        if self.outstanding() == 0 {
            self.settled = self.next;
        }
    }

    /// The first operation that may be under way.
    pub(super) fn settled(&self) -> u64 {
        self.settled
    }

    pub(super) fn op(&self, sequence: u64) -> &Op {
        &self.ops[(sequence - self.first) as usize]
    }

    pub(super) fn op_mut(&mut self, sequence: u64) -> &mut Op {
        &mut self.ops[(sequence - self.first) as usize]
    }

    /// Finds room for `bytes`, a multiple of 8, in the stage. Returns where it is, and how much of the ring it takes up.
    pub(super) fn reserve(&mut self, bytes: usize) -> Option<(u32, u32)> {
        let bytes = bytes as u64;
        let at = self.tail % self.stage_bytes;
        let (at, need) = if at + bytes <= self.stage_bytes { (at, bytes) } else { (0, self.stage_bytes - at + bytes) };
        if self.tail + need - self.head > self.stage_bytes {
            return None;
        }
        self.tail += need;
        Some((at as u32, need as u32))
    }

    pub(super) fn append(&mut self, op: Op) {
        self.ops.push_back(op);
    }

    /// The full number of a request that is under way, from the part of the number that travelled with it.
    pub(super) fn under_way(&self, low: u32) -> Option<u64> {
        let mask = (1 << SEQUENCE_BITS) - 1;
        let number = self.answered + u64::from(low.wrapping_sub(self.answered as u32) & mask);
        (number < self.sent).then_some(number)
    }

    /// The part of a number that travels.
    pub(super) fn low(number: u64) -> u32 {
        number as u32 & ((1 << SEQUENCE_BITS) - 1)
    }

    /// The operation under way to which a request belongs.
    pub(super) fn owner_mut(&mut self, request: u64) -> Option<&mut Op> {
        // Of the operations under way, only the last may not have been handed over as a whole, and in that case all later requests are its own.
        let last = self.ops.iter().rposition(|op| op.state == State::Posted)?;
        let at = self.ops.iter().position(|op| op.state == State::Posted && op.until > request).unwrap_or(last);
        self.ops.get_mut(at)
    }

    /// All requests before `end` have completed successfully, and so have all operations that have no request after it.
    pub(super) fn settle(&mut self, end: u64, stage: &Stage) {
        self.answered = self.answered.max(end);
        while self.settled < self.next {
            let answered = self.answered;
            let op = self.op_mut(self.settled);
            if op.state == State::Posted {
                if op.until > answered {
                    break;
                }
                let word = match op.work {
                    Work::ReadWord | Work::Swap { .. } => {
                        let area = op.own_stage.as_ref().map_or(&stage.area, |own| &own.area);
                        area.memory()[op.at as usize / 8].load(Ordering::Acquire)
                    }
                    Work::Write | Work::Read { .. } => 0,
                };
                op.state = State::Done(Ok(word));
            }
            self.settled += 1;
        }
    }

    /// All operations that are under way, even in part, end in `state`.
    pub(super) fn end_posted(&mut self, state: State) {
        if self.next < self.end() && self.op(self.next).state == State::Posted {
            // The rest of it is not handed over any more.
            self.next += 1;
        }
        for sequence in self.settled..self.next {
            let op = self.op_mut(sequence);
            if op.state == State::Posted {
                op.state = state;
            }
        }
        self.settled = self.next;
        self.answered = self.sent;
    }

    /// All operations that are not done are lost, and so is every later one.
    pub(super) fn give_up(&mut self) {
        self.broken = true;
        self.look = None;
        for op in &mut self.ops {
            if !matches!(op.state, State::Done(_)) {
                op.state = State::Done(Err(OpError::PeerLost));
            }
        }
        self.next = self.end();
        self.settled = self.next;
        self.answered = self.sent;
    }

    /// Writes into a lane that are undecided end with `error`.
    pub(super) fn decide(&mut self, error: OpError) {
        for op in self.ops.iter_mut().filter(|op| op.state == State::Undecided) {
            op.state = State::Done(Err(error));
        }
    }

    pub(super) fn is_undecided(&self) -> bool {
        self.ops.iter().any(|op| op.state == State::Undecided)
    }

    /// Waiting writes into a lane that were posted before `before` lose their access.
    pub(super) fn refuse(&mut self, lane: u8, before: u64) {
        let first = self.first;
        for (sequence, op) in (first..).zip(&mut self.ops) {
            if sequence < before && op.channel == Channel::Lane(lane) && op.state == State::Queued {
                op.state = State::Done(Err(OpError::AccessLost));
            }
        }
    }

    /// Takes the next completion, in order.
    pub(super) fn pop(&mut self) -> Option<Completion> {
        let op = self.ops.front()?;
        let State::Done(result) = op.state else { return None };
        let completion = Completion { token: op.token, result };
        self.head += u64::from(op.staged);
        self.ops.pop_front();
        self.first += 1;
        self.next = self.next.max(self.first);
        self.settled = self.settled.max(self.first);
        Some(completion)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::verbs) fn op(token: u64, channel: Channel, state: State) -> Op {
        Op {
            token: Token(token),
            work: Work::Write,
            channel,
            state,
            remote: 0,
            rkey: 0,
            epoch: 1,
            bytes: 8,
            handed: 0,
            until: 0,
            at: 0,
            staged: 8,
            own_stage: None,
        }
    }

    #[test]
    fn the_stage_is_a_ring_that_never_splits_an_operation() {
        let mut line = Line::new(64);
        assert_eq!(line.reserve(40), Some((0, 40)));
        assert_eq!(line.reserve(40), None, "no room");
        assert_eq!(line.reserve(16), Some((40, 16)));
        line.append(Op { staged: 40, ..op(1, Channel::Background, State::Done(Ok(0))) });
        assert_eq!(line.pop().map(|done| done.token), Some(Token(1)));
        assert_eq!(line.reserve(16), Some((0, 24)), "eight bytes are left over at the end");
        assert_eq!(line.reserve(32), None);
    }

    #[test]
    fn completions_keep_the_order_and_wait_for_the_first() {
        let mut line = Line::new(64);
        line.append(op(1, Channel::Lane(0), State::Queued));
        line.append(op(2, Channel::Background, State::Done(Ok(2))));
        assert_eq!(line.pop(), None);
        line.refuse(0, 0);
        assert_eq!(line.pop(), None, "it was posted after the look");
        line.refuse(1, 9);
        assert_eq!(line.pop(), None, "another lane");
        line.refuse(0, 1);
        assert_eq!(line.pop(), Some(Completion { token: Token(1), result: Err(OpError::AccessLost) }));
        assert_eq!(line.pop(), Some(Completion { token: Token(2), result: Ok(2) }));
        assert!(line.is_empty());
    }

    #[test]
    fn late_completions_of_what_has_ended_are_told_apart() {
        let mut line = Line::new(64);
        for token in 0..3 {
            line.append(op(token, Channel::Lane(0), State::Queued));
            assert_eq!(line.begin(8), token);
            line.advance();
        }
        assert_eq!(line.outstanding(), 3);
        assert_eq!(line.under_way(Line::low(2)), Some(2));
        assert_eq!(line.under_way(Line::low(3)), None);
        line.end_posted(State::Done(Err(OpError::AccessLost)));
        assert_eq!(line.under_way(Line::low(2)), None);
        assert_eq!(line.outstanding(), 0);
    }

    #[test]
    fn what_is_done_without_the_card_is_not_under_way() {
        let mut line = Line::new(64);
        line.append(op(1, Channel::Background, State::Queued));
        line.append(op(2, Channel::Background, State::Done(Err(OpError::AccessLost))));
        line.begin(8);
        line.advance();
        line.advance();
        assert_eq!(line.outstanding(), 1);
        line.end_posted(State::Done(Err(OpError::PeerLost)));
        assert_eq!(line.outstanding(), 0);
        let results: Vec<_> = std::iter::from_fn(|| line.pop()).map(|done| done.result).collect();
        assert_eq!(results, [Err(OpError::PeerLost), Err(OpError::AccessLost)]);
    }

    /// A line with an operation of a single request, and after it a write of three requests, of which two have been handed over.
    fn begun() -> Line {
        let mut line = Line::new(64);
        line.append(op(1, Channel::Lane(0), State::Queued));
        line.begin(8);
        line.advance();
        line.append(Op { bytes: 24, ..op(2, Channel::Lane(0), State::Queued) });
        line.begin(8);
        line.begin(8);
        line
    }

    #[test]
    fn a_request_names_the_operation_that_it_is_part_of() {
        let mut line = begun();
        let owner = |line: &mut Line, request| line.owner_mut(request).map(|op| op.token.0);
        assert_eq!((owner(&mut line, 0), owner(&mut line, 1), owner(&mut line, 2)), (Some(1), Some(2), Some(2)));
        line.begin(8);
        line.advance();
        line.append(op(3, Channel::Lane(0), State::Queued));
        line.begin(8);
        line.advance();
        assert_eq!((owner(&mut line, 1), owner(&mut line, 3), owner(&mut line, 4)), (Some(2), Some(2), Some(3)));
        line.end_posted(State::Done(Err(OpError::AccessLost)));
        assert_eq!(owner(&mut line, 4), None);
    }

    #[test]
    fn what_is_long_goes_as_many_requests() {
        let requests = |work, bytes| {
            let mut line = Line::new(64);
            line.append(Op { work, bytes, ..op(1, Channel::Background, State::Queued) });
            let mut requests = Vec::new();
            while line.op(0).handed < bytes {
                requests.push(line.op(0).next_bytes(1024));
                line.begin(requests[requests.len() - 1]);
            }
            requests
        };
        let read = Work::Read { address: 0, lkey: 0 };
        assert_eq!(requests(Work::Write, 2056), [1024, 1024, 8]);
        assert_eq!(requests(Work::Write, 2048), [2048]);
        assert_eq!(requests(read, 16 * 1024), [16 * 1024]);
        assert_eq!(requests(read, 40 * 1024 + 8), [16 * 1024, 16 * 1024, 8 * 1024 + 8]);
        assert_eq!(requests(Work::ReadWord, 8), [8]);
        assert_eq!(requests(Work::Swap { expected: 0, new: 1 }, 8), [8]);
    }

    #[test]
    fn what_has_been_handed_over_in_part_ends_with_the_rest() {
        let mut line = begun();
        line.end_posted(State::Undecided);
        assert_eq!((line.outstanding(), line.next, line.is_undecided()), (0, 2, true));
        line.decide(OpError::AccessLost);
        let results: Vec<_> = std::iter::from_fn(|| line.pop()).map(|done| done.result).collect();
        assert_eq!(results, [Err(OpError::AccessLost); 2]);
    }

    #[test]
    fn giving_up_ends_everything_that_is_not_done() {
        let mut line = Line::new(64);
        line.append(op(1, Channel::Lane(0), State::Done(Ok(7))));
        line.append(op(2, Channel::Lane(0), State::Undecided));
        line.append(op(3, Channel::Background, State::Queued));
        line.give_up();
        let results: Vec<_> = std::iter::from_fn(|| line.pop()).map(|done| done.result).collect();
        assert_eq!(results, [Ok(7), Err(OpError::PeerLost), Err(OpError::PeerLost)]);
    }
}
