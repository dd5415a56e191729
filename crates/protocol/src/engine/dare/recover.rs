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
use crate::replica::backlog::{self, HEADER_BYTES};
use crate::replica::group::Group;
use crate::replica::part::{Oversized, Part, REST_NS};
use crate::replica::patience::discounted;
use crate::replica::record::RecordKind as _;
use crate::replica::state_transfer::{Desk, Sending, Source, TransferKind};

/// For how many heartbeats a server must have looked for another teacher before it asks the leader.
const LEADER_TOO: u64 = 10;
/// The bits of a request's number that name the learner.
const NODE_BITS: u32 = 16;

/// A request to read the state, and how far it has been fulfilled.
#[derive(Debug)]
pub(super) struct Learning {
    teacher: PeerId,
    wish: u64,
    /// When anything last arrived.
    heard: Time,
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
    /// Once the transfer has begun: the last entry that the machine shows, and its term.
    at: Option<Mark>,
    term: u64,
    group: Group,
    part: Part,
    /// Every part has arrived.
    whole: bool,
    committed: LogIndex,
    /// The teacher has given up, or made no sense.
    broken: bool,
    /// How many transfers in a row have made no sense, up to and including this one.
    refusals: u32,
}

impl Learning {
    /// This process was itself stalled for `gap_ns`, which does not count as waiting.
    pub(super) fn discount(&mut self, gap_ns: u64, now: Time) {
        self.heard = discounted(self.heard, gap_ns, now);
    }

    /// What the log can be joined with, once the whole state has arrived.
    fn ready(&self) -> Option<Shown<'_>> {
        let at = self.at.filter(|_| self.whole && !self.broken && !self.part.is_open())?;
        Some(Shown { at, term: self.term, group: &self.group, is_committed: at.index <= self.committed })
    }

    /// Takes a record of the teacher's. `log_bytes`: the size of all logs.
    fn take<S: StateMachine>(&mut self, payload: &[u8], log_bytes: u64, machine: &mut S) -> Result<(), LaneFault> {
        let (header, body) = Header::decode(payload)?;
        if header.kind == Kind::Begin {
            let (position, body) = layout::split_position(body)?;
            let (wish, body) = body.split_first_chunk().ok_or(LaneFault::Body)?;
            if u64::from_le_bytes(*wish) != self.wish {
                // The teacher has lost patience, and serves another learner.
                self.broken = true;
                return Ok(());
            }
            self.group = Group::decode(body).ok_or(LaneFault::Body)?;
            machine.clear();
            self.part.clear();
            (self.at, self.term, self.whole) = (Some(Mark { index: header.index, position }), header.number, false);
            return Ok(());
        }
        let Some(at) = &mut self.at else { return Err(LaneFault::Order(header.kind)) };
        self.committed = self.committed.max(LogIndex(header.beside));
        match header.kind {
            Kind::Part => self.part.take(body, header.count > 0, machine)?,
            // No other record comes between the fragments of a part.
            kind if self.part.is_open() && kind != Kind::Break => return Err(LaneFault::Order(kind)),
            Kind::End => self.whole = true,
            Kind::Flush => {}
            Kind::Break => self.broken = true,
            kind if kind.is_entry() => {
                layout::check_entries(&header, body)?;
                if header.index != at.index.next() {
                    return Err(LaneFault::Index { expected: at.index.next(), found: header.index });
                }
                match kind {
                    Kind::Group => self.group = Group::decode(body).ok_or(LaneFault::Body)?,
                    Kind::Commands => {
                        for (command, index) in backlog::commands(body).zip(header.index.0..) {
                            machine.apply(LogIndex(index), command.ok_or(LaneFault::Body)?);
                        }
                    }
                    _ => {}
                }
                // Where the record ends in every log that has it; in the ring it has another position.
                *at = Mark { index: header.last(), position: ring::position_after(at.position, payload.len(), log_bytes) };
                self.term = header.number;
            }
            kind => return Err(LaneFault::Order(kind)),
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
        if let Some(mut learning) = self.learning.take() {
            moved = self.fetch(now, &mut learning, fabric, machine);
            let ready = learning.ready().is_some_and(|shown| self.log.can_join(ring_of(fabric), &shown));
            let teacher = learning.teacher;
            self.learning = Some(learning);
            let free = self.access.purpose.is_none() && !self.access.broken;
            if ready && free {
                self.close_log(Purpose::Join, fabric);
            }
            if moved {
                self.nudges.at_once(teacher);
            }
        }
        let given_up = self.learning.as_ref().is_none_or(|l| {
            let gone = self.peer(l.teacher).is_none_or(|peer| peer.watch.dead);
            l.broken || gone || now.since(l.heard) > self.config.teach_patience_ns
        });
        if given_up {
            self.wish(now, fabric);
        }
        moved
    }

    /// With exclusive access, the log continues from the state that has been read.
    pub(super) fn join<F: Fabric, S: StateMachine>(&mut self, fabric: &mut F, machine: &mut S) {
        let Some(learning) = self.learning.take() else { return };
        let before = self.log.tail();
        if !learning.ready().is_some_and(|shown| self.log.join(ring_of(fabric), machine, &shown)) {
            self.learning = Some(learning);
            return;
        }
        if self.log.tail() == before { basics::Mark::DareRejoins } else { basics::Mark::DareJoins }.reach();
        tell(fabric, learning.teacher, control::RECOVER, learning.wish << 1);
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
        // If no teacher makes sense, requests are slowed down, so that they are not repeated at the speed of the fabric.
        let refused = self.learning.as_ref().filter(|l| l.refusals > 1 || l.refusals == 1 && Some(l.teacher) == teacher);
        if refused.is_some_and(|l| now.since(l.heard) <= self.config.teach_patience_ns) {
            return;
        }
        let refusals = self.learning.as_ref().map_or(0, |l| l.refusals);
        if let Some(l) = self.learning.take()
            && self.peer(l.teacher).is_some_and(|peer| !peer.watch.dead)
        {
            tell(fabric, l.teacher, control::RECOVER, l.wish << 1);
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
        self.learning = Some(Learning {
            teacher,
            wish,
            heard: now,
            served: false,
            fetched: 0,
            reader: Reader::new(),
            asking: false,
            filled: 0,
            pieces: 0,
            upto: 0,
            at: None,
            term: 0,
            group: Group::default(),
            part: Part::new(),
            whole: false,
            committed: LogIndex(0),
            broken: false,
            refusals,
        });
    }

    /// Takes what has been read from the teacher's ring, and reads on.
    fn fetch<F: Fabric, S: StateMachine>(&mut self, now: Time, learning: &mut Learning, fabric: &mut F, machine: &mut S) -> bool {
        let teacher = learning.teacher;
        if learning.broken {
            return false;
        }
        if !learning.served {
            if word_from(fabric, teacher, control::SERVES) != learning.wish {
                return false;
            }
            let from = word_from(fabric, teacher, control::SERVES_FROM);
            if !layout::is_position(from) {
                learning.broken = true;
                return false;
            }
            (learning.served, learning.fetched, learning.reader, learning.heard) = (true, from, Reader::at(from), now);
        }
        let scratch = fabric.memory(LocalRegion::Public(SCRATCH)).expect("every process has room for its reads");
        let copy = &scratch[SLOTS_BYTES / 8..];
        let from = learning.reader.position();
        while learning.pieces == 0 && !learning.broken && learning.reader.position() < learning.fetched {
            if !learning.reader.next(copy, &mut self.buffer) {
                learning.broken = true;
                break;
            }
            learning.heard = now;
            if let Err(fault) = learning.take(&self.buffer, self.config.log_ring_bytes as u64, machine) {
                learning.broken = true;
                learning.refusals += 1;
                self.events.push_back(Event::LaneFault { peer: teacher, fault: fault.to_string(), stuck: false });
            }
        }
        self.lesson_begun |= learning.at.is_some();
        let moved = learning.reader.position() != from;
        if moved {
            tell(fabric, teacher, control::TAKEN, learning.reader.position());
        }
        if !learning.asking && learning.pieces == 0 {
            learning.asking = true;
            let at = Remote { peer: teacher, region: Region::Public(WORDS), offset: words::SNAPSHOT_TAIL * 8 };
            fabric.read_word(at, Op::SnapshotTail.token(learning.wish >> NODE_BITS, teacher));
        }
        if learning.filled > learning.fetched && learning.pieces == 0 {
            let capacity = self.config.state_ring_bytes as u64;
            learning.upto = learning.filled;
            let mut at = learning.fetched;
            while at < learning.upto {
                let len = (learning.upto - at).min(capacity - at % capacity);
                let offset = ring::HEADER_BYTES + (at % capacity) as usize;
                let remote = Remote { peer: teacher, region: Region::Public(SNAPSHOT), offset };
                let into = Local { region: LocalRegion::Public(SCRATCH), offset: SLOTS_BYTES + offset };
                fabric.read(remote, into, len as usize, Op::Snapshot.token(learning.wish >> NODE_BITS, teacher));
                learning.pieces += 1;
                at += len;
            }
            self.snapshot_reads += learning.pieces;
            if let Some(peer) = self.peers.iter_mut().find(|p| p.id == teacher) {
                peer.reads += learning.pieces;
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
        let mine = |l: &&mut Learning| (l.wish >> NODE_BITS) & 0xffff == round && l.teacher == peer;
        let Some(learning) = self.learning.as_mut().filter(mine) else { return };
        match (op, result) {
            (Op::SnapshotTail, Ok(tail)) => {
                learning.asking = false;
                if layout::is_position(tail) && tail >= learning.fetched && tail - learning.reader.position() <= capacity {
                    learning.filled = tail;
                } else if tail > learning.fetched {
                    learning.broken = true;
                }
            }
            (Op::Snapshot, result) => {
                learning.pieces -= 1;
                learning.broken |= result.is_err();
                if learning.pieces == 0 {
                    learning.fetched = learning.upto;
                }
            }
            (_, Err(_)) => learning.broken = true,
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
            match serving.sending.go_on(&mut Desk { log, is_exact, settings: config, buffer }, fabric, machine, put) {
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
