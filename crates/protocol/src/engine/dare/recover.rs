//! Recovery (DARE section 3.4): a server that does not hold the state reads it from another server's memory.
//!
//! The teacher, any server but the leader if there is another, puts parts of its state into a ring of its own, and between them the entries as it applies them.
//! Each part shows exactly the entries before it, so that the whole state is never copied and nothing has to stop. The learner reads how far the ring is
//! filled, then the new part of it, and reports how far it has come. Once it has the whole state, as of an entry that is committed or in its own log, it takes
//! exclusive access to its log, continues from there, and has the leader ask it again.

use std::cmp::Reverse;

use martlet_fabric::primitive::Ordering;
use martlet_fabric::ring::{self, Reader};
use martlet_fabric::{Fabric, Local, LocalRegion, OpError, PeerId, Region, Remote};

use super::access::Purpose;
use super::layout::{self, Header, Kind, LaneFault, Op, SCRATCH, SLOTS_BYTES, SNAPSHOT, Status, WORDS, control, words};
use super::leading::ring_of;
use super::log::{Log, Mark, Shown};
use super::peers::{Peer, tell, word_from};
use super::{Dare, Event};
use crate::basics::{self, LogIndex, Time};
use crate::replica::StateMachine;
use crate::replica::backlog::HEADER_BYTES;
use crate::replica::part::{Oversized, REST_NS};
use crate::replica::record::RecordKind as _;
use crate::replica::state_transfer::{Learning, Sender, Sending, Source, TransferKind};

/// For how many heartbeats a server must have looked for another teacher before it asks the leader.
const LEADER_TOO: u64 = 10;
/// The bits of a request's number that name the learner.
const NODE_BITS: u32 = 16;

/// A request to read the state, and how far it has been fulfilled. Its number is the term of the last entry that the machine shows.
#[derive(Debug)]
pub(super) struct Reading {
    pub learning: Learning,
    /// Whether the teacher has begun.
    served: bool,
    /// Up to where its ring has been read.
    fetched: u64,
    reader: Reader,
    asking: bool,
    /// Up to where it is known to be filled.
    filled: u64,
    /// Outstanding reads of pieces of the ring, and up to where they go. Anything after that in our copy may come from another teacher's ring.
    pieces: u32,
    upto: u64,
}

impl Reading {
    /// What the log can be joined with, once the whole state has arrived.
    fn ready(&self) -> Option<Shown<'_>> {
        let at = self.learning.done()?;
        let (term, group) = (self.learning.number, &self.learning.received.group);
        Some(Shown { at, term, group, is_committed: self.learning.is_committed() })
    }

    /// Takes a record of the teacher's. `log_bytes`: the size of all logs.
    fn take<S: StateMachine>(&mut self, payload: &[u8], log_bytes: u64, machine: &mut S) -> Result<(), LaneFault> {
        let (header, body) = Header::decode(payload)?;
        let learning = &mut self.learning;
        match header.kind {
            Kind::Begin => {
                let (position, body) = layout::split_position(body)?;
                let (request, group) = body.split_first_chunk().ok_or(LaneFault::Body)?;
                if u64::from_le_bytes(*request) != learning.request {
                    // The teacher has lost patience, and serves another learner.
                    learning.broken = true;
                    return Ok(());
                }
                learning.received.begin(Mark { index: header.index, position }, group, machine)?;
            }
            Kind::Break => learning.broken = true,
            _ => learning.received.take(&header, body, log_bytes, machine)?,
        }
        if header.kind == Kind::Begin || header.kind.is_entry() {
            learning.number = header.number;
        }
        Ok(())
    }
}

/// One learner's transfer, as its teacher sees it.
#[derive(Debug)]
pub(super) struct Serving {
    peer: PeerId,
    wish: u64,
    /// Up to where the learner has taken what is in the ring.
    taken: u64,
    /// When the learner last took anything.
    heard: Time,
    sending: Sending,
}

impl TransferKind for Kind {
    const BEGIN: Kind = Kind::Begin;
    const PART: Kind = Kind::Part;
    const END: Kind = Kind::End;
    const FLUSH: Kind = Kind::Flush;
    const BREAK: Kind = Kind::Break;
    const CONTINUES: bool = true;

    fn check(header: &Header, body: &[u8]) -> Result<(), LaneFault> {
        layout::check_entries(header, body)
    }
}

impl Source for Log {
    type Kind = Kind;
    const MARKS: [basics::Mark; 2] = [basics::Mark::DareServes, basics::Mark::DareServiceBroken];

    fn number(&self, header: &Header) -> u64 {
        if header.kind.is_entry() { header.number } else { self.term_at(header.index).unwrap_or(0) }
    }

    fn entry_at<F: Fabric>(&self, fabric: &F, position: u64, into: &mut Vec<u8>) -> Option<(Header, u64)> {
        self.read(ring_of(fabric), position, into)
    }
}

impl Dare {
    /// Looks for the state when that is necessary, and takes what has been read. Returns whether anything arrived.
    pub(super) fn learn<F: Fabric, S: StateMachine>(&mut self, now: Time, fabric: &mut F, machine: &mut S) -> bool {
        // A process that only renews leases has no use for the state, and no leader would keep it up to date.
        let belongs = self.roster.lists(self.me) || self.log.group().is_some_and(|group| group.contains(self.me));
        if self.log.is_complete() || self.reign.is_some() || self.is_removed() || !belongs {
            return false;
        }
        // First takes what has been read: for a process that was itself kept from running, that may be the whole state, and there was nothing to wait for.
        let mut moved = false;
        if let Some(mut reading) = self.reading.take() {
            moved = self.fetch(now, &mut reading, fabric, machine);
            let ready = reading.ready().is_some_and(|shown| self.log.can_join(ring_of(fabric), &shown));
            let teacher = reading.learning.teacher;
            self.reading = Some(reading);
            let free = self.access.purpose.is_none() && !self.access.broken;
            if ready && free {
                self.close_log(Purpose::Join, fabric);
            }
            if moved {
                self.nudges.at_once(teacher);
            }
        }
        let given_up = self.reading.as_ref().is_none_or(|Reading { learning, .. }| {
            let gone = self.peer(learning.teacher).is_none_or(|peer| peer.watch.dead);
            learning.broken || gone || now.since(learning.heard) > self.config.teach_patience_ns
        });
        if given_up {
            self.wish(now, fabric);
        }
        moved
    }

    /// With exclusive access, the log continues from the state that has been read.
    pub(super) fn join<F: Fabric, S: StateMachine>(&mut self, fabric: &mut F, machine: &mut S) {
        let Some(reading) = self.reading.take() else { return };
        let before = self.log.tail();
        if !reading.ready().is_some_and(|shown| self.log.join(ring_of(fabric), machine, &shown)) {
            self.reading = Some(reading);
            return;
        }
        if self.log.tail() == before { basics::Mark::DareRejoins } else { basics::Mark::DareJoins }.reach();
        tell(fabric, reading.learning.teacher, control::RECOVER, reading.learning.request << 1);
        self.published = false;
    }

    /// The leader writes on from what was learned, or this server leads itself, so the state was recent enough. Next time, any other server is again asked
    /// before the leader.
    #[inline]
    pub(super) fn end_search(&mut self) {
        if self.incomplete_since.take().is_some() {
            self.peers.iter_mut().for_each(|peer| peer.wished = 0);
        }
    }

    /// Picks a teacher and asks it: preferably not the leader, and none twice before each of them, the leader too, has been asked. Some teachers may lag for
    /// ever, such as those that the leader does not reach. The leader cannot continue from what they teach, so it has to be learned again.
    fn wish<F: Fabric>(&mut self, now: Time, fabric: &mut F) {
        // Outstanding reads of an earlier request would land among those of this one.
        if self.snapshot_reads > 0 {
            return;
        }
        let belongs = |id| self.roster.lists(id) || self.log.group().is_some_and(|group| group.contains(id));
        let since = *self.incomplete_since.get_or_insert(now);
        let leader_too = now.since(since) >= LEADER_TOO * self.config.heartbeat_interval_ns;
        let rank = |peer: &Peer| match peer.watch.status {
            Some(Status::Idle) => 2,
            Some(Status::Leader) if leader_too => 1,
            _ => 0,
        };
        let able = self.peers.iter().filter(|p| p.watch.is_alive() && belongs(p.process));
        let best = able.filter(|p| rank(p) > 0).max_by_key(|p| (Reverse(p.wished), rank(p), p.process));
        let teacher = best.map(|p| p.id);
        if self.reading.as_ref().is_some_and(|reading| reading.learning.delays(now, teacher, self.config.teach_patience_ns)) {
            return;
        }
        let last = self.reading.take().map(|reading| reading.learning);
        if let Some(last) = &last
            && self.peer(last.teacher).is_some_and(|peer| !peer.watch.dead)
        {
            tell(fabric, last.teacher, control::RECOVER, last.request << 1);
        }
        let Some(teacher) = teacher else { return };
        basics::Mark::DareWishes.reach();
        self.wishes += 1;
        let number = self.wishes;
        if let Some(peer) = self.peer_mut(teacher) {
            peer.wished = number;
        }
        // No other learner's request has this number: what follows ours in the ring may be for another learner.
        let wish = self.wishes << NODE_BITS | u64::from(self.me.node.0);
        tell(fabric, teacher, control::RECOVER, wish << 1 | 1);
        self.nudges.at_once(teacher);
        self.reading = Some(Reading {
            learning: Learning::new(now, teacher, wish, 0, last.as_ref()),
            served: false,
            fetched: 0,
            reader: Reader::new(),
            asking: false,
            filled: 0,
            pieces: 0,
            upto: 0,
        });
    }

    /// Takes what has been read from the teacher's ring, and reads on.
    fn fetch<F: Fabric, S: StateMachine>(&mut self, now: Time, reading: &mut Reading, fabric: &mut F, machine: &mut S) -> bool {
        let teacher = reading.learning.teacher;
        if reading.learning.broken {
            return false;
        }
        if !reading.served {
            if word_from(fabric, teacher, control::SERVES) != reading.learning.request {
                return false;
            }
            let from = word_from(fabric, teacher, control::SERVES_FROM);
            if !layout::is_position(from) {
                reading.learning.broken = true;
                return false;
            }
            (reading.served, reading.fetched, reading.reader, reading.learning.heard) = (true, from, Reader::at(from), now);
        }
        let scratch = fabric.memory(LocalRegion::Public(SCRATCH)).expect("every process has room for its reads");
        let copy = &scratch[SLOTS_BYTES / 8..];
        let from = reading.reader.position();
        while reading.pieces == 0 && !reading.learning.broken && reading.reader.position() < reading.fetched {
            if !reading.reader.next(copy, &mut self.buffer) {
                reading.learning.broken = true;
                break;
            }
            reading.learning.heard = now;
            if let Err(fault) = reading.take(&self.buffer, self.config.log_ring_bytes as u64, machine) {
                reading.learning.broken = true;
                reading.learning.refusals += 1;
                self.events.push_back(Event::LaneFault { peer: teacher, fault: fault.to_string(), stuck: false });
            }
        }
        self.lesson_begun |= reading.learning.received.at.is_some();
        let moved = reading.reader.position() != from;
        if moved {
            tell(fabric, teacher, control::TAKEN, reading.reader.position());
        }
        if !reading.asking && reading.pieces == 0 {
            reading.asking = true;
            let at = Remote { peer: teacher, region: Region::Public(WORDS), offset: words::SNAPSHOT_TAIL * 8 };
            fabric.read_word(at, Op::SnapshotTail.token(reading.learning.request >> NODE_BITS, teacher));
        }
        if reading.filled > reading.fetched && reading.pieces == 0 {
            let capacity = self.config.state_ring_bytes as u64;
            reading.upto = reading.filled;
            let mut at = reading.fetched;
            while at < reading.upto {
                let len = (reading.upto - at).min(capacity - at % capacity);
                let offset = ring::HEADER_BYTES + (at % capacity) as usize;
                let remote = Remote { peer: teacher, region: Region::Public(SNAPSHOT), offset };
                let into = Local { region: LocalRegion::Public(SCRATCH), offset: SLOTS_BYTES + offset };
                fabric.read(remote, into, len as usize, Op::Snapshot.token(reading.learning.request >> NODE_BITS, teacher));
                reading.pieces += 1;
                at += len;
            }
            self.snapshot_reads += reading.pieces;
            if let Some(peer) = self.peers.iter_mut().find(|p| p.id == teacher) {
                peer.reads += reading.pieces;
            }
        }
        moved
    }

    /// How far the teacher's ring is filled, or a piece of it, has been read.
    pub(super) fn handle_snapshot(&mut self, op: Op, round: u64, peer: PeerId, result: Result<u64, OpError>) {
        if op == Op::Snapshot {
            self.note_read(peer);
            self.snapshot_reads -= 1;
        }
        let capacity = self.config.state_ring_bytes as u64;
        let mine = |r: &&mut Reading| (r.learning.request >> NODE_BITS) & 0xffff == round && r.learning.teacher == peer;
        let Some(reading) = self.reading.as_mut().filter(mine) else { return };
        match (op, result) {
            (Op::SnapshotTail, Ok(tail)) => {
                reading.asking = false;
                if layout::is_position(tail) && tail >= reading.fetched && tail - reading.reader.position() <= capacity {
                    reading.filled = tail;
                } else if tail > reading.fetched {
                    reading.learning.broken = true;
                }
            }
            (Op::Snapshot, result) => {
                reading.pieces -= 1;
                reading.learning.broken |= result.is_err();
                if reading.pieces == 0 {
                    reading.fetched = reading.upto;
                }
            }
            (_, Err(_)) => reading.learning.broken = true,
            _ => {}
        }
    }

    /// Sends the state to servers that have asked for it, one at a time. Returns whether anything was sent.
    ///
    /// A state with a part that is too long for any learner is sent to no server, and not tried again for a while.
    pub(super) fn serve<F: Fabric, S: StateMachine>(&mut self, now: Time, fabric: &mut F, machine: &S) -> bool {
        self.unteachable_since = self.unteachable_since.filter(|since| now.since(*since) <= REST_NS);
        if self.serving.is_none() && self.log.is_complete() && self.unteachable_since.is_none() {
            self.begin_to_serve(now, fabric);
        }
        let Some(mut serving) = self.serving.take() else { return false };
        let peer = serving.peer;
        let wants = word_from(fabric, peer, control::RECOVER) == serving.wish << 1 | 1;
        let taken = word_from(fabric, peer, control::TAKEN);
        if (serving.taken..=self.snapshot_tail).contains(&taken) && taken != serving.taken {
            (serving.taken, serving.heard) = (taken, now);
        }
        let dead = self.peer(peer).is_none_or(|peer| peer.watch.dead);
        let silent = serving.taken < self.snapshot_tail && now.since(serving.heard) > self.config.teach_patience_ns;
        if dead || !wants || silent {
            return false;
        }
        let before = self.snapshot_tail;
        let capacity = self.config.state_ring_bytes as u64;
        let Dare { log, reign, config, serving_buffer: buffer, serving_record: record, snapshot_tail, .. } = self;
        // Puts a record into the snapshot ring, if the learner has taken enough of its content.
        let taken = serving.taken;
        let mut put = |fabric: &mut F, header: &Header, body: &[u8]| {
            if ring::position_after(*snapshot_tail, HEADER_BYTES + body.len(), capacity) - taken > capacity {
                return false;
            }
            record.fill(|bytes| {
                header.encode(bytes);
                bytes.extend_from_slice(body);
            });
            let ring = fabric.memory(LocalRegion::Public(SNAPSHOT)).expect("every process offers its snapshot");
            *snapshot_tail = ring::place(ring, *snapshot_tail, record);
            true
        };
        if serving.sending.is_possible(log) {
            // A leader that executes first may show more than is in its log.
            let is_exact = !reign.as_ref().is_some_and(|reign| reign.backlog.has_commands());
            match serving.sending.go_on(&mut Sender { log, is_exact, settings: config, buffer }, fabric, machine, put) {
                Ok(()) => self.serving = Some(serving),
                Err(Oversized(bytes)) => {
                    self.unteachable_since = Some(now);
                    if let Some(process) = self.peer(peer).map(|peer| peer.process) {
                        self.events.push_back(Event::Unteachable { process, bytes });
                    }
                }
            }
        } else {
            Log::MARKS[1].reach();
            if serving.sending.has_begun() && !put(fabric, &log.bare(Kind::Break, 0, LogIndex(0)), &[]) {
                self.serving = Some(serving);
            }
        }
        let moved = self.snapshot_tail != before;
        if moved {
            let own = fabric.memory(LocalRegion::Public(WORDS)).expect("every process offers its words");
            own[words::SNAPSHOT_TAIL].store(self.snapshot_tail, Ordering::Release);
            self.nudges.at_once(peer);
        }
        moved
    }

    fn begin_to_serve<F: Fabric>(&mut self, now: Time, fabric: &mut F) {
        let tail = self.snapshot_tail;
        // In turn: so a learner that can take nothing now, but asks again and again, keeps the state from no other.
        let first = self.peers.iter().position(|p| Some(p.id) == self.served).map_or(0, |at| at + 1);
        for at in 0..self.peers.len() {
            let turn = (first + at) % self.peers.len();
            let peer = &mut self.peers[turn];
            if peer.watch.dead {
                continue;
            }
            let wish = word_from(fabric, peer.id, control::RECOVER);
            if wish & 1 == 0 || wish == peer.heard {
                continue;
            }
            peer.heard = wish;
            tell(fabric, peer.id, control::SERVES_FROM, tail);
            tell(fabric, peer.id, control::SERVES, wish >> 1);
            self.nudges.at_once(peer.id);
            self.served = Some(peer.id);
            self.serving = Some(Serving { peer: peer.id, wish: wish >> 1, taken: tail, heard: now, sending: Sending::new(wish >> 1) });
            return;
        }
    }
}
