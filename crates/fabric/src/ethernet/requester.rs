//! The asking half of a flow: the operations on one peer in the order in which they were posted, and everything that remembers: what is under way, what is to be
//! sent again and when, how much may be under way at all. Time comes in as an argument, in microseconds.
//!
//! An operation is one part or several (module `packet`). A token completes when all its parts have, and all earlier tokens; a refusal of any part makes it
//! [`OpError::AccessLost`].
//!
//! # Order
//! Parts go out in order. Behind a READ of more than a word nothing is sent until all of it has come, since a READ that is repeated is executed again. A READ of a
//! word and a compare-and-swap are answered from what the responder remembers, so they hold nothing up.
//!
//! # Size
//! What is sent for the first time goes out in packets as large as the path carries (module `path`); what is sent again, in small ones.
//!
//! # Loss
//! Lost is what was sent a round trip ago and has been overtaken: something that was sent after it has come. It is sent again. How much is under way at most,
//! module `window` says.
//!
//! A silence says nothing of what is under way: the peer may not have had its core for some milliseconds. So after [`FIRST_PATIENCE_US`], [`ALIKE`] times, and then
//! doubling to [`LONGEST_PATIENCE_US`], no more is sent again than the first packet that has no answer and the last one, and the window stays as it is. An answer to
//! the last one shows all that was lost before it; the first one is there because an answer names few of the parts that have come out of order.
//!
//! Nothing puts the first part off: it is waited for from when it was sent last, whatever is sent behind it meanwhile, and it goes out again though the window is full. So
//! its end is a matter of how often the network loses one packet, and of nothing else.

use std::collections::VecDeque;

use super::canary::Canary;
use super::packet::{
    self, Act, HEAD, MAX_PACKET, MAX_PART_BYTES, MAX_UNDER_WAY, Outcome, Part, Place, Response, TAG, begin_request, decode_response,
};
use super::path::Path;
use super::responder::Malformed;
use super::window::Window;
use crate::contract::{Completion, Local, OpError, Token};

/// The wait for an answer before something is sent again, at first and at most.
const FIRST_PATIENCE_US: u64 = 300;
/// So many waits are alike before they double. A packet in ten that is lost, there or back, is lost three times in a row by one operation of a thousand; and two packets each
/// 300 us burden no path.
const ALIKE: u32 = 3;
const LONGEST_PATIENCE_US: u64 = 10_000;
/// No round trip is taken for longer: what took longer was a pause of one of the two. Some waits for a lost packet have to fit into the time after which a peer is given up.
const LONGEST_ROUND_TRIP_US: u64 = 25_000;
/// By so much a packet may be later than others that were sent with it, at least.
const LEAST_REORDERING_US: u64 = 50;
/// So much of a silence counts at once: a process that stood still has not listened.
const COUNTED_AT_ONCE_US: u64 = 10_000;

/// What an operation does at the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    Write,
    /// Into our memory.
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
    /// The peer has it, and waits for what comes before it.
    Held,
    /// To be sent again.
    Lost,
    Done,
}

#[derive(Debug)]
struct Pending {
    state: State,
    place: Place,
    /// Number of its operation.
    op: u64,
    /// Bytes from the start of its operation.
    at: u32,
    /// On the wire.
    len: u16,
    /// When it was sent last, or a READ that was held is known to be held no more; in which packet of the flow it was sent last, and how often in all.
    sent_at: u64,
    packet: u64,
    /// The large packet in which it was sent first; 0: a small one.
    large: u64,
    sends: u32,
}

#[derive(Debug)]
struct Op {
    token: Token,
    work: Work,
    /// The number of the first part behind it.
    until: u64,
    /// Where its bytes begin, counted since the start.
    bytes_at: u64,
    result: Result<u64, OpError>,
}

/// What an answer has told that was not known.
#[derive(Clone, Copy, Debug, Default)]
struct News {
    any: bool,
    /// Of parts that were sent once, the packet that was sent last, and when that was.
    first_sent: Option<(u64, u64)>,
}

/// What was read, and where it is to stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Landed<'a> {
    pub(super) into: Local,
    pub(super) bytes: &'a [u8],
}

/// The asking half of one flow.
#[derive(Debug)]
pub(super) struct Requester {
    /// Parts from `base` on.
    parts: VecDeque<Pending>,
    base: u64,
    /// The first part that was never sent.
    next: u64,
    ops: VecDeque<Op>,
    first_op: u64,
    /// What WRITEs write, from `bytes_base` on, counted since the start.
    bytes: VecDeque<u8>,
    bytes_base: u64,
    /// Behind the last READ of more than a word that has been sent: what comes after it waits for all of it.
    barrier: u64,
    in_flight: usize,
    lost: usize,
    window: Window,
    path: Path,
    /// How many packets have been sent.
    packets: u64,
    /// The packet that was sent last of those that are known to have come, and the part of it; the highest part of which that is known.
    came: (u64, u64),
    highest: u64,
    /// When a part that has been overtaken counts as lost.
    hole_due: Option<u64>,
    /// Smoothed round trip; 0 before the first.
    round_trip: u64,
    /// When there was news last, or the patience ran out.
    since: u64,
    /// How often it has run out since there was news.
    tries: u32,
    /// The part that goes out again next to the first one when it has run out, though the window is full.
    probe: u64,
    /// How long nothing has been heard that was awaited.
    silence: u64,
    ticked: u64,
    broken: bool,
}

impl Requester {
    /// On a route that takes packets of so many bytes, as far as the system knows.
    pub(super) fn new(route_bytes: usize) -> Requester {
        Requester {
            path: Path::new(route_bytes),
            // A node has a thousand clients that ask for nothing: they are given room when there is something to put there.
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

    /// The memory that it has besides itself.
    #[cfg(test)]
    pub(super) fn heap_bytes(&self) -> usize {
        self.parts.capacity() * size_of::<Pending>() + self.ops.capacity() * size_of::<Op>() + self.bytes.capacity()
    }

    /// Bytes that may be under way.
    #[cfg(test)]
    pub(super) fn window(&self) -> usize {
        self.window.bytes()
    }

    /// Bytes of a packet at most.
    #[cfg(test)]
    pub(super) fn packet_bytes(&self) -> usize {
        self.path.size()
    }

    fn end(&self) -> u64 {
        self.base + self.parts.len() as u64
    }

    /// Whether no operation is without its end.
    pub(super) fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    pub(super) fn is_broken(&self) -> bool {
        self.broken
    }

    /// Posts an operation of `len` bytes, a multiple of 8; `bytes` are what a WRITE writes.
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

    /// Whether a part that was never sent may be.
    fn may_send(&self, number: u64) -> bool {
        let part = &self.parts[(number - self.base) as usize];
        let behind_read = self.base < self.barrier && number >= self.barrier && !Canary::ReadOvertaken.is_planted();
        number < self.base + MAX_UNDER_WAY && !behind_read && self.in_flight + usize::from(part.len) <= self.window.bytes()
    }

    /// Writes the bodies of the requests that are due, one after another: `begin` makes an empty packet, and `emit` takes it with its body.
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
            // What is held is under way as long as no answer has had room to name it, which the first part holds up.
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

    /// Sends one packet of consecutive parts that are in that state; the number behind the last.
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

    /// Writes the body of a request that asks for nothing but an answer.
    pub(super) fn ask(&self, epochs: impl Iterator<Item = u32>, packet: &mut Vec<u8>) {
        begin_request(self.base, self.base, epochs, packet);
    }

    /// Takes the body of a response. `told` is told what it says of our grants before anything else; `land` stores what was read.
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

    /// All below `done` is done, and what was not plain is among the results.
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
                // It is done when its bytes have come. They are on their way, or were lost.
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
                // So that the canary shows as a wrong result and not as a peer that is given up.
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
            // The answer had no room for what became of all parts before it, which the next one tells.
            self.set(number, State::Done);
            news.any = true;
        }
        self.window.grow();
        Ok(())
    }

    /// A part has come to the peer, and is held there or done.
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
            // Of a part that was sent twice nobody knows which of them has come.
            if sends == 1 {
                news.first_sent = news.first_sent.max(Some((packet, sent_at)));
            }
        }
    }

    fn measure(&mut self, took: u64) {
        let took = took.min(LONGEST_ROUND_TRIP_US);
        self.round_trip = if self.round_trip == 0 { took.max(1) } else { (7 * self.round_trip + took).div_ceil(8) };
    }

    /// What was sent a round trip ago, before something that has come since, is lost. Beyond the highest part that is known to have come, others may have that no answer had
    /// room to name.
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

    /// A part that is under way is to be sent again.
    fn lose(&mut self, number: u64, now: u64) {
        let packet = self.part_at(number).packet;
        self.path.missed(packet, now);
        self.set(number, State::Lost);
    }

    /// Lets go what is done.
    fn advance(&mut self) {
        while self.parts.front().is_some_and(|part| part.state == State::Done) {
            self.parts.pop_front();
            self.base += 1;
        }
    }

    /// Time has passed: what has been waited for too long is to be sent again. Returns for how long nothing has been heard that was awaited.
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

    /// When the first part has been waited for long enough.
    fn patient_until(&self) -> u64 {
        self.since.max(self.part_at(self.base).sent_at) + self.patience()
    }

    /// How long an answer is waited for.
    fn patience(&self) -> u64 {
        let first = FIRST_PATIENCE_US.max(2 * self.round_trip);
        let doubled = first << self.tries.saturating_sub(ALIKE - 1).min(10);
        doubled.min(LONGEST_PATIENCE_US.max(4 * self.round_trip))
    }

    /// Nothing has been heard for too long. It may be that the peer had no turn; so no more is sent again than brings an answer.
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
            // What held it up has come: the answer was lost.
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

    /// When it is to be looked at again at the latest.
    pub(super) fn due(&self) -> Option<u64> {
        (self.base < self.next).then(|| self.hole_due.map_or(self.patient_until(), |hole| hole.min(self.patient_until())))
    }

    /// Nothing posted can succeed any more.
    pub(super) fn give_up(&mut self) {
        self.broken = true;
        let base = self.base;
        for op in &mut self.ops {
            // What was done as a whole keeps its end.
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
