//! The asking half of a flow: the operations on one peer, in the order in which they were posted. It does all the remembering: what is under way,
//! what has to be sent again and when, and how much may be under way at all. Time is passed in as an argument, in microseconds.
//!
//! An operation consists of one or more parts (module `packet`). A token completes once all its parts and all earlier tokens have completed. If any
//! part is refused, the result is [`OpError::AccessLost`].
//!
//! # Order
//! Parts go out in order. After a READ of more than a word, nothing is sent until all of the READ's bytes have arrived, since a READ that is sent
//! again is executed again. A READ of a word and a compare-and-swap are answered from what the responder remembers, so they hold nothing up.
//!
//! # Size
//! What is sent for the first time goes out in packets as large as the path carries (module `path`). Retransmissions go out in small ones.
//!
//! # Loss
//! A part counts as lost if it was sent at least a round trip ago and something that was sent after it has arrived. It is then sent again. Module
//! `window` decides how much may be under way.
//!
//! A silence says nothing about what is under way: the peer may have been without a core for some milliseconds. So when patience runs out, only the
//! first unanswered packet and the last one are sent again, and the window stays as it is. Patience is [`FIRST_PATIENCE_US`] for the first [`ALIKE`]
//! waits, and then doubles up to [`LONGEST_PATIENCE_US`]; it is longer than that only if the round trip is long. An answer to the last packet shows
//! everything that was lost before it. The first packet is sent again too because an answer can name only few of the parts that have arrived out of
//! order.
//!
//! Nothing delays the first part. The wait for it is counted from when it was last sent, whatever is sent after it, and it goes out again even if the
//! window is full. So how long it takes depends only on how often the network loses one packet.

use std::collections::VecDeque;

use super::canary::Canary;
use super::packet::{
    self, Act, HEAD, MAX_PACKET, MAX_PART_BYTES, MAX_UNDER_WAY, Outcome, Part, Place, Response, TAG, begin_request, decode_response,
};
use super::path::Path;
use super::responder::Malformed;
use super::window::Window;
use crate::contract::{Completion, Local, OpError, Token};

/// How long to wait for an answer before something is sent again, at first and at most.
const FIRST_PATIENCE_US: u64 = 300;
/// So many waits are equally long before they double. If one packet in ten is lost, there or back, one operation in a thousand is lost three times in
/// a row; and two packets every 300 us do not burden any path.
const ALIKE: u32 = 3;
const LONGEST_PATIENCE_US: u64 = 10_000;
/// No round trip is assumed to be longer: what took longer was a pause of one of the two processes. Several waits for a lost packet have to fit into
/// the time after which a peer is given up.
const LONGEST_ROUND_TRIP_US: u64 = 25_000;
/// How much later a packet may arrive than others that were sent with it, at least, without counting as lost.
const LEAST_REORDERING_US: u64 = 50;
/// At most this much of a silence counts at once: a process that was stopped could not listen.
const COUNTED_AT_ONCE_US: u64 = 10_000;

/// What an operation does at the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    Write,
    /// The place in our memory that the bytes go to.
    Read(Local),
    ReadWord,
    Swap {
        expected: u64,
        new: u64,
    },
}

/// Where an operation acts, or why it cannot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) lane: bool,
    pub(super) region: crate::contract::RegionName,
    /// In bytes.
    pub(super) offset: usize,
    /// The epoch of the lane as we know it; 0 elsewhere.
    pub(super) epoch: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Not sent yet.
    Waiting,
    Flying,
    /// The peer has it, and waits for parts that come before it.
    Held,
    /// To be sent again.
    Lost,
    Done,
}

#[derive(Debug)]
struct Pending {
    state: State,
    place: Place,
    /// The number of its operation.
    op: u64,
    /// Bytes from the start of its operation.
    at: u32,
    /// Its length on the wire.
    len: u16,
    /// When it was last sent, or when a held READ became known to be no longer held. Then the packet of the flow in which it was last sent, and,
    /// below, how often it was sent in all.
    sent_at: u64,
    packet: u64,
    /// The large packet in which it was first sent; 0 if it was a small one.
    large: u64,
    sends: u32,
}

#[derive(Debug)]
struct Op {
    token: Token,
    work: Work,
    /// The number of the first part after it.
    until: u64,
    /// Where its bytes begin, counted since the start.
    bytes_at: u64,
    result: Result<u64, OpError>,
}

/// What an answer has told us that we did not know.
#[derive(Clone, Copy, Debug, Default)]
struct News {
    any: bool,
    /// Among the newly confirmed parts that were sent only once, the last packet that was sent, and when it was sent.
    first_sent: Option<(u64, u64)>,
}

/// What was read, and where it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Landed<'a> {
    pub(super) into: Local,
    pub(super) bytes: &'a [u8],
}

/// The asking half of one flow.
#[derive(Debug)]
pub(super) struct Requester {
    /// The parts from `base` on.
    parts: VecDeque<Pending>,
    base: u64,
    /// The first part that was never sent.
    next: u64,
    ops: VecDeque<Op>,
    first_op: u64,
    /// The bytes that WRITEs write, from `bytes_base` on, counted since the start.
    bytes: VecDeque<u8>,
    bytes_base: u64,
    /// The part after the last READ of more than a word that has been sent: it and later ones wait until all of that READ has arrived.
    barrier: u64,
    in_flight: usize,
    lost: usize,
    window: Window,
    path: Path,
    /// How many packets have been sent.
    packets: u64,
    /// Of the packets known to have arrived, the one that was sent last, and its part; then the highest part known to have arrived.
    came: (u64, u64),
    highest: u64,
    /// When a part that has been overtaken counts as lost.
    hole_due: Option<u64>,
    /// The smoothed round trip; 0 before the first.
    round_trip: u64,
    /// When there was last news, or patience last ran out.
    since: u64,
    /// How often patience has run out since there was news.
    tries: u32,
    /// The part that, besides the first one, goes out again when patience has run out, even if the window is full.
    probe: u64,
    /// For how long nothing has been heard although an answer was awaited.
    silence: u64,
    ticked: u64,
    broken: bool,
}

impl Requester {
    /// A requester on a route that takes packets of `route_bytes`, as far as the system knows.
    pub(super) fn new(route_bytes: usize) -> Requester {
        Requester {
            path: Path::new(route_bytes),
            // A node may have a thousand clients that ask for nothing, so room is allocated only once there is something to put there.
            parts: VecDeque::new(),
            base: 1,
            next: 1,
            ops: VecDeque::new(),
            first_op: 0,
            bytes: VecDeque::new(),
            bytes_base: 0,
            barrier: 0,
            in_flight: 0,
            lost: 0,
            window: Window::new(),
            packets: 0,
            came: (0, 0),
            highest: 0,
            hole_due: None,
            round_trip: 0,
            since: 0,
            tries: 0,
            probe: 0,
            silence: 0,
            ticked: 0,
            broken: false,
        }
    }

    /// The heap memory that it uses.
    #[cfg(test)]
    pub(super) fn heap_bytes(&self) -> usize {
        self.parts.capacity() * size_of::<Pending>() + self.ops.capacity() * size_of::<Op>() + self.bytes.capacity()
    }

    /// Bytes that may be under way.
    #[cfg(test)]
    pub(super) fn window(&self) -> usize {
        self.window.bytes()
    }

    /// The most bytes in a packet.
    #[cfg(test)]
    pub(super) fn packet_bytes(&self) -> usize {
        self.path.size()
    }

    fn end(&self) -> u64 {
        self.base + self.parts.len() as u64
    }

    /// Whether every operation has ended.
    pub(super) fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    pub(super) fn is_broken(&self) -> bool {
        self.broken
    }

    /// Posts an operation of `len` bytes, a multiple of 8. For a WRITE, `bytes` is what it writes.
    pub(super) fn post(&mut self, token: Token, target: Result<Target, OpError>, work: Work, len: usize, bytes: &[u8]) {
        let target = if self.broken { Err(OpError::PeerLost) } else { target };
        let bytes_at = self.bytes_base + self.bytes.len() as u64;
        let op = self.first_op + self.ops.len() as u64;
        let result = match target {
            Ok(_) => Ok(0),
            Err(error) => Err(error),
        };
        if let Ok(target) = target {
            self.bytes.extend(bytes);
            let changes = matches!(work, Work::Write | Work::Swap { .. });
            for at in (0..len).step_by(MAX_PART_BYTES) {
                let words = (len - at).min(MAX_PART_BYTES) / 8;
                let place = Place {
                    lane: target.lane,
                    region: target.region,
                    offset: ((target.offset + at) / 8) as u32,
                    words: words as u16,
                    epoch: if target.lane && changes { target.epoch } else { 0 },
                };
                let act = act(work, &[]);
                let len = Part { place, act }.len() + if work == Work::Write { words * 8 } else { 0 };
                self.parts.push_back(Pending {
                    state: State::Waiting,
                    place,
                    op,
                    at: at as u32,
                    len: len as u16,
                    sent_at: 0,
                    packet: 0,
                    large: 0,
                    sends: 0,
                });
            }
        }
        self.ops.push_back(Op { token, work, until: self.end(), bytes_at, result });
    }

    fn part(&mut self, number: u64) -> &mut Pending {
        &mut self.parts[(number - self.base) as usize]
    }

    fn set(&mut self, number: u64, state: State) {
        let part = &mut self.parts[(number - self.base) as usize];
        let (before, len) = (part.state, usize::from(part.len));
        part.state = state;
        self.in_flight -= if before == State::Flying { len } else { 0 };
        self.in_flight += if state == State::Flying { len } else { 0 };
        self.lost -= usize::from(before == State::Lost);
        self.lost += usize::from(state == State::Lost);
    }

    fn op(&self, op: u64) -> &Op {
        &self.ops[(op - self.first_op) as usize]
    }

    /// Whether a part that was never sent may be sent now.
    fn may_send(&self, number: u64) -> bool {
        let part = &self.parts[(number - self.base) as usize];
        let behind_read = self.base < self.barrier && number >= self.barrier && !Canary::ReadOvertaken.is_planted();
        number < self.base + MAX_UNDER_WAY && !behind_read && self.in_flight + usize::from(part.len) <= self.window.bytes()
    }

    /// Writes the bodies of the requests that are due, one after another. `begin` makes an empty packet, and `emit` takes it once it has its body.
    pub(super) fn send(
        &mut self,
        now: u64,
        epochs: impl Iterator<Item = u32> + Clone,
        packet: &mut Vec<u8>,
        begin: impl Fn(&mut Vec<u8>),
        mut emit: impl FnMut(&mut Vec<u8>),
    ) {
        let mut number = self.base;
        while self.lost > 0 && number < self.next {
            // Held parts count as under way until an answer has had room to name them, and that has to wait for the first part. So the first part and
            // the probe go out even if the window is full.
            let exempt = (number == self.base && !Canary::FullWindowBlocks.is_planted()) || number == self.probe;
            if self.part(number).state == State::Lost && (exempt || self.in_flight < self.window.bytes()) {
                number = self.send_from(number, State::Lost, now, &epochs, packet, &begin, &mut emit);
            } else {
                number += 1;
            }
        }
        while self.next < self.end() && self.may_send(self.next) {
            self.next = self.send_from(self.next, State::Waiting, now, &epochs, packet, &begin, &mut emit);
            if Canary::SendingIsNews.is_planted() {
                self.since = now;
            }
        }
    }

    /// Sends one packet of consecutive parts that are in the same state. Returns the number after the last.
    #[allow(clippy::too_many_arguments)]
    fn send_from(
        &mut self,
        first: u64,
        state: State,
        now: u64,
        epochs: &(impl Iterator<Item = u32> + Clone),
        packet: &mut Vec<u8>,
        begin: &impl Fn(&mut Vec<u8>),
        emit: &mut impl FnMut(&mut Vec<u8>),
    ) -> u64 {
        begin(packet);
        let most = match state {
            State::Waiting => self.path.to_try(now).unwrap_or(self.path.size()),
            _ if Canary::LargeAgain.is_planted() => self.path.size(),
            _ => MAX_PACKET,
        };
        let most = packet.len() - HEAD + most - TAG;
        begin_request(first, self.base, epochs.clone(), packet);
        let mut number = first;
        self.packets += 1;
        while number < self.end() {
            let len = usize::from(self.part(number).len);
            let full = packet.len() + len > most;
            if self.part(number).state != state || (number > first && (full || (state == State::Waiting && !self.may_send(number)))) {
                break;
            }
            self.encode(number, packet);
            self.set(number, State::Flying);
            let op = self.part(number).op;
            if matches!(self.op(op).work, Work::Read(_)) {
                self.barrier = self.barrier.max(self.op(op).until);
            }
            let packet = self.packets;
            let part = self.part(number);
            (part.sent_at, part.packet) = (now, packet);
            part.sends += 1;
            number += 1;
        }
        if state == State::Waiting && self.path.sent(self.packets, packet.len() + TAG) {
            for number in first..number {
                self.part(number).large = self.packets;
            }
        }
        emit(packet);
        number
    }

    fn encode(&mut self, number: u64, packet: &mut Vec<u8>) {
        let part = &self.parts[(number - self.base) as usize];
        let op = self.op(part.op);
        let mut bytes = [0; MAX_PART_BYTES];
        let bytes = match op.work {
            Work::Write => {
                let from = (op.bytes_at - self.bytes_base) as usize + part.at as usize;
                let bytes = &mut bytes[..usize::from(part.place.words) * 8];
                let (head, tail) = self.bytes.as_slices();
                let in_head = head.len().saturating_sub(from).min(bytes.len());
                if in_head > 0 {
                    bytes[..in_head].copy_from_slice(&head[from..from + in_head]);
                }
                let rest = bytes.len() - in_head;
                if rest > 0 {
                    let from = (from + in_head) - head.len();
                    bytes[in_head..].copy_from_slice(&tail[from..from + rest]);
                }
                &*bytes
            }
            _ => &[],
        };
        Part { place: part.place, act: act(op.work, bytes) }.encode(packet);
    }

    /// Writes the body of a request that only asks for an answer.
    pub(super) fn ask(&self, epochs: impl Iterator<Item = u32>, packet: &mut Vec<u8>) {
        begin_request(self.base, self.base, epochs, packet);
    }

    /// Takes the body of a response. `told` gets what it says of the peer's grants to us before anything else happens; `land` stores what was read.
    pub(super) fn take(
        &mut self,
        body: &[u8],
        now: u64,
        told: impl FnOnce(packet::Grants<'_>),
        land: impl FnMut(Landed<'_>),
    ) -> Result<(), Malformed> {
        let response = decode_response(body).ok_or(Malformed)?;
        if response.done > self.next || response.ranges().any(|(_, to)| to > self.next) {
            return Err(Malformed);
        }
        told(response.grants);
        self.silence = 0;
        if self.broken {
            return Ok(());
        }
        let mut news = News::default();
        if response.base <= self.base || Canary::GapBelieved.is_planted() {
            self.take_done(&response, now, &mut news)?;
        }
        self.take_read(&response, land, &mut news)?;
        for (from, to) in response.ranges() {
            for number in from.max(self.base)..to {
                if matches!(self.part(number).state, State::Flying | State::Lost) {
                    self.confirm(number, State::Held, &mut news);
                }
            }
        }
        self.advance();
        if let Some((_, sent_at)) = news.first_sent {
            self.measure(now.saturating_sub(sent_at));
        }
        if news.any {
            self.since = now;
            self.tries = 0;
        }
        if news.first_sent.is_some() {
            self.window.silence_was_none();
        }
        self.find_holes(now);
        Ok(())
    }

    /// Takes that all parts below `done` are done. The outcomes of those that did not simply take effect are among the results.
    fn take_done(&mut self, response: &Response<'_>, now: u64, news: &mut News) -> Result<(), Malformed> {
        let mut results = response.results().peekable();
        for number in self.base..response.done {
            while results.peek().is_some_and(|(of, _)| *of < number) {
                results.next();
            }
            let outcome = results.next_if(|(of, _)| *of == number).map(|(_, outcome)| outcome);
            let part = &self.parts[(number - self.base) as usize];
            if part.state == State::Done {
                continue;
            }
            let at = (part.op - self.first_op) as usize;
            match (self.ops[at].work, outcome) {
                // A READ is done only when its bytes have arrived. They are on their way, or were lost.
                (Work::Read(_), None) => {
                    if self.part(number).state == State::Held {
                        self.set(number, State::Flying);
                        self.part(number).sent_at = now;
                    }
                    continue;
                }
                (Work::Write | Work::Swap { .. }, Some(Outcome::Refused)) => self.ops[at].result = Err(OpError::AccessLost),
                (Work::Write, None) => {}
                (Work::ReadWord | Work::Swap { .. }, Some(Outcome::Word(word))) => self.ops[at].result = Ok(word),
                // This lets the canary show as a wrong result rather than as a peer that is given up.
                (Work::Swap { .. } | Work::ReadWord, None) if Canary::GapBelieved.is_planted() || Canary::ForgottenRefusal.is_planted() => {
                }
                _ => return Err(Malformed),
            }
            self.confirm(number, State::Done, news);
            self.window.grow();
        }
        Ok(())
    }

    fn take_read(&mut self, response: &Response<'_>, mut land: impl FnMut(Landed<'_>), news: &mut News) -> Result<(), Malformed> {
        let Some((number, bytes)) = response.read else { return Ok(()) };
        if number >= self.next {
            return Err(Malformed);
        }
        if number < self.base || self.part(number).state == State::Done {
            return Ok(());
        }
        let part = &self.parts[(number - self.base) as usize];
        let Work::Read(into) = self.op(part.op).work else { return Err(Malformed) };
        if usize::from(part.place.words) * 8 != bytes.len() {
            return Err(Malformed);
        }
        land(Landed { into: Local { offset: into.offset + part.at as usize, ..into }, bytes });
        if number < response.done {
            self.confirm(number, State::Done, news);
        } else {
            // The answer had no room for the outcomes of all parts before this one. The next answer has.
            self.set(number, State::Done);
            news.any = true;
        }
        self.window.grow();
        Ok(())
    }

    /// A part has arrived at the peer, and is held there or done.
    fn confirm(&mut self, number: u64, state: State, news: &mut News) {
        let part = self.part(number);
        let (before, packet, large, sent_at, sends) = (part.state, part.packet, part.large, part.sent_at, part.sends);
        self.set(number, state);
        news.any = true;
        if before != State::Held {
            match (large, sends) {
                (0, _) => {}
                (_, 1) => self.path.came(large),
                _ => self.path.came_otherwise(large, self.ticked),
            }
            self.came = self.came.max((packet, number));
            self.highest = self.highest.max(number);
            // If a part was sent twice, it is unknown which of the two has arrived.
            if sends == 1 {
                news.first_sent = news.first_sent.max(Some((packet, sent_at)));
            }
        }
    }

    fn measure(&mut self, took: u64) {
        let took = took.min(LONGEST_ROUND_TRIP_US);
        self.round_trip = if self.round_trip == 0 { took.max(1) } else { (7 * self.round_trip + took).div_ceil(8) };
    }

    /// A part is lost if it was sent at least a round trip ago, and before something that has arrived since. Only parts up to the highest one known
    /// to have arrived are judged: others beyond it may have arrived without an answer having had room to name them.
    fn find_holes(&mut self, now: u64) {
        let reordering = LEAST_REORDERING_US.max(self.round_trip + self.round_trip / 4);
        let (mut found, mut due) = (false, None);
        for number in self.base..self.highest {
            let part = self.part_at(number);
            if part.state == State::Flying && (part.packet, number) < self.came {
                let lost_at = part.sent_at + reordering;
                if lost_at <= now {
                    self.lose(number, now);
                    found = true;
                } else {
                    due = Some(due.map_or(lost_at, |due: u64| due.min(lost_at)));
                }
            }
        }
        self.hole_due = due;
        if found {
            self.window.shrink(now, self.round_trip.max(FIRST_PATIENCE_US));
        }
    }

    /// Marks a part that is under way as one to be sent again.
    fn lose(&mut self, number: u64, now: u64) {
        let packet = self.part_at(number).packet;
        self.path.missed(packet, now);
        self.set(number, State::Lost);
    }

    /// Drops the first parts as far as they are done.
    fn advance(&mut self) {
        while self.parts.front().is_some_and(|part| part.state == State::Done) {
            self.parts.pop_front();
            self.base += 1;
        }
    }

    /// Time has passed: marks what has been waited for too long as to be sent again. Returns for how long nothing has been heard although an answer
    /// was awaited.
    pub(super) fn tick(&mut self, now: u64) -> u64 {
        let passed = now.saturating_sub(self.ticked).min(COUNTED_AT_ONCE_US);
        self.ticked = self.ticked.max(now);
        if self.base == self.next {
            self.silence = 0;
            self.window.silence_was_none();
            return 0;
        }
        self.silence += passed;
        if self.hole_due.is_some_and(|due| due <= now) {
            self.find_holes(now);
        }
        if now >= self.patient_until() {
            self.ask_again(now);
        }
        self.silence
    }

    /// When the wait for the first part ends.
    fn patient_until(&self) -> u64 {
        self.since.max(self.part_at(self.base).sent_at) + self.patience()
    }

    /// How long to wait for an answer.
    fn patience(&self) -> u64 {
        let first = FIRST_PATIENCE_US.max(2 * self.round_trip);
        let doubled = first << self.tries.saturating_sub(ALIKE - 1).min(10);
        doubled.min(LONGEST_PATIENCE_US.max(4 * self.round_trip))
    }

    /// Nothing has been heard for too long. The peer may merely have had no turn, so only as much is sent again as it takes to get an answer.
    fn ask_again(&mut self, now: u64) {
        let first = self.part_at(self.base).packet;
        let flying = (self.base..self.next).filter(|number| self.part_at(*number).state == State::Flying);
        let last = flying.map(|number| self.part_at(number).packet).max();
        self.probe = 0;
        for number in self.base..self.next {
            let part = self.part_at(number);
            let is_last = Some(part.packet) == last;
            let again = part.packet == first || is_last || Canary::SilenceIsLoss.is_planted();
            if part.state == State::Flying && again {
                if is_last && self.probe == 0 {
                    self.probe = number;
                }
                self.lose(number, now);
            }
        }
        if self.part_at(self.base).state == State::Held {
            // The parts that held it up have arrived: the answer was lost.
            self.set(self.base, State::Lost);
        }
        if Canary::SilenceIsLoss.is_planted() {
            self.window.shrink(now, self.round_trip.max(FIRST_PATIENCE_US));
        }
        self.tries = self.tries.saturating_add(1);
        self.window.silence();
        self.since = now;
    }

    fn part_at(&self, number: u64) -> &Pending {
        &self.parts[(number - self.base) as usize]
    }

    /// The latest time at which to look at it again.
    pub(super) fn due(&self) -> Option<u64> {
        (self.base < self.next).then(|| self.hole_due.map_or(self.patient_until(), |hole| hole.min(self.patient_until())))
    }

    /// Ends all that is posted: none of it can succeed any more.
    pub(super) fn give_up(&mut self) {
        self.broken = true;
        let base = self.base;
        for op in &mut self.ops {
            // An operation that was entirely done keeps its result.
            if op.until > base {
                op.result = Err(OpError::PeerLost);
            }
        }
        self.base = self.end();
        self.next = self.base;
        self.parts.clear();
        (self.in_flight, self.lost, self.silence, self.hole_due) = (0, 0, 0, None);
    }

    /// The next completion.
    pub(super) fn pop(&mut self) -> Option<Completion> {
        let op = self.ops.front()?;
        if op.until > self.base {
            return None;
        }
        let completion = Completion { token: op.token, result: op.result };
        let next_bytes = self.ops.get(1).map_or(self.bytes_base + self.bytes.len() as u64, |next| next.bytes_at);
        self.bytes.drain(..(next_bytes - self.bytes_base) as usize);
        self.bytes_base = next_bytes;
        self.ops.pop_front();
        self.first_op += 1;
        Some(completion)
    }
}

fn act(work: Work, bytes: &[u8]) -> Act<'_> {
    match work {
        Work::Write => Act::Write(bytes),
        Work::Read(_) => Act::Read,
        Work::ReadWord => Act::ReadWord,
        Work::Swap { expected, new } => Act::Swap { expected, new },
    }
}
