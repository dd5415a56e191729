//! How a replica obtains the state, if it does not hold it (APUS section 4.1, learning requests): because it was never in the group, its leader's log has
//! overrun its own, or it has executed entries that were lost.

use martlet_fabric::{Fabric, LocalRegion, PeerId, ring};

use crate::basics::{self, LogIndex, Time};
use crate::replica::StateMachine;
use crate::replica::group::Group;
use crate::replica::part::Part;
use crate::replica::patience::discounted;
use crate::replica::record;

use super::layout::{self, Header, Kind, LaneFault, STATE_LANE, Status, control};
use super::log::Mark;
use super::peers::{Peer, tell};
use super::{Apus, Event};

/// For how many heartbeats a replica must have looked for another teacher before it asks the leader.
const LEADER_TOO: u64 = 10;

/// A learning request, and how far it has been fulfilled.
#[derive(Debug)]
pub(super) struct Learning {
    teacher: PeerId,
    request: u64,
    /// When the teacher was last heard.
    heard: Time,
    /// What the machine shows, once the transfer has begun.
    at: Option<Mark>,
    group: Group,
    part: Part,
    /// Every part has come: nothing more is applied.
    whole: bool,
    committed: LogIndex,
    /// The view under which the teacher's log was taken over.
    view: u64,
    /// The highest view id that was known here when the request was made.
    known: u64,
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

    /// The last entry of the state, once the log can be joined with it.
    fn ready(&self) -> Option<Mark> {
        self.at.filter(|at| self.whole && !self.broken && at.index <= self.committed)
    }

    /// Takes a record of the teacher's. `log_bytes`: the size of all logs.
    fn take<S: StateMachine>(&mut self, payload: &[u8], log_bytes: u64, machine: &mut S) -> Result<(), LaneFault> {
        let (header, body) = Header::decode(payload)?;
        let begins = header.kind == Kind::Begin;
        if begins || header.kind == Kind::Break {
            let (position, body) = if begins { record::split_position(body)? } else { (0, body) };
            let (request, body) = body.split_first_chunk().ok_or(LaneFault::Body)?;
            if u64::from_le_bytes(*request) != self.request {
                return Ok(()); // of an earlier request
            }
            if !begins {
                self.broken = true;
                return Ok(());
            }
            self.group = Group::decode(body).ok_or(LaneFault::Body)?;
            machine.clear();
            self.part.clear();
            (self.at, self.whole) = (Some(Mark { index: header.index, position }), false);
            return Ok(());
        }
        let Some(at) = &mut self.at else { return Ok(()) };
        self.committed = self.committed.max(header.committed());
        if !layout::is_plausible(header.number, self.known) {
            return Err(LaneFault::Range);
        }
        self.view = self.view.max(header.number);
        match header.kind {
            Kind::Part if !self.whole => self.part.take(body, header.count > 0, machine)?,
            // No other record comes between the fragments of a part.
            kind if self.part.is_open() => return Err(LaneFault::Order(kind)),
            Kind::End => self.whole = true,
            Kind::Flush => {}
            kind if kind == Kind::Commands || kind == Kind::Group => {
                record::check_entries(&header, body, false)?;
                if self.whole {
                    return Err(LaneFault::Order(kind));
                }
                if header.index != at.index.next() {
                    return Err(LaneFault::Index { expected: at.index.next(), found: header.index });
                }
                if kind == Kind::Group {
                    self.group = Group::decode(body).ok_or(LaneFault::Body)?;
                } else {
                    for (command, index) in record::commands::<Kind>(body).zip(header.index.0..) {
                        machine.apply(LogIndex(index), command?);
                    }
                }
                // Where the record ends in every log that has it; in the state lane it has another position.
                *at = Mark { index: header.last(), position: ring::position_after(at.position, payload.len(), log_bytes) };
            }
            kind => return Err(LaneFault::Order(kind)),
        }
        Ok(())
    }
}

impl Apus {
    /// Asks for the state when that is necessary, and takes what is sent. Returns whether anything arrived.
    pub(super) fn learn<F: Fabric, S: StateMachine>(&mut self, now: Time, fabric: &mut F, machine: &mut S) -> bool {
        // A process that only renews leases has no use for the state, and no leader would keep it up to date.
        let belongs = self.roster.lists(self.me) || self.log.group().is_some_and(|group| group.contains(self.me));
        if self.log.is_complete() || self.reign.is_some() || self.is_removed() || !belongs {
            return false;
        }
        // First takes what has arrived: for a process that was itself kept from running, that may be the whole state, and there was nothing to wait for.
        let mut moved = false;
        if let Some(mut learning) = self.learning.take() {
            moved = self.take_lesson(now, &mut learning, fabric, machine);
            if let Some(at) = learning.ready() {
                if self.log.learned(machine, at, learning.view, &learning.group) {
                    basics::Mark::ApusLearned.reach();
                    self.incomplete_since = None;
                    self.published = false;
                    self.end_lesson(&learning, fabric);
                    return true;
                }
                // Either the state is too old, or the log has to be taken over first; this process waits for the latter.
                learning.broken = at.index < self.log.committed().index;
            }
            self.learning = Some(learning);
        }
        let given_up = self.learning.as_ref().is_none_or(|l| {
            let gone = self.peer(l.teacher).is_none_or(|peer| !peer.watch.is_alive());
            l.broken || gone || now.since(l.heard) > self.config.teach_patience_ns
        });
        if given_up {
            self.request(now, fabric);
        }
        moved
    }

    /// Otherwise a living teacher would continue in vain.
    fn end_lesson<F: Fabric>(&self, learning: &Learning, fabric: &mut F) {
        if self.peer(learning.teacher).is_some_and(|peer| !peer.watch.dead) {
            tell(fabric, learning.teacher, control::TEACH, learning.request << 1);
        }
    }

    /// Picks a teacher and asks it: a backup rather than the leader, to spare the leader, and not the same one again if there is another.
    fn request<F: Fabric>(&mut self, now: Time, fabric: &mut F) {
        let last = self.learning.as_ref().map(|l| l.teacher);
        let since = *self.incomplete_since.get_or_insert(now);
        let leader_too = now.since(since) >= LEADER_TOO * self.config.heartbeat_interval_ns;
        let rank = |peer: &Peer| match peer.watch.status {
            Some(Status::Backup) => 2,
            Some(Status::Leader) if leader_too => 1,
            _ => 0,
        };
        let able = self.peers.iter().filter(|p| p.watch.is_alive());
        let best = able.map(|p| (rank(p), Some(p.id) != last, p.process, p.id)).filter(|(rank, ..)| *rank > 0);
        let teacher = best.max_by_key(|(rank, other, process, _)| (*other, *rank, *process)).map(|(.., teacher)| teacher);
        // If no teacher makes sense, requests are slowed down, so that they are not repeated at the speed of the fabric.
        let refused = self.learning.as_ref().filter(|l| l.refusals > 1 || l.refusals == 1 && Some(l.teacher) == teacher);
        if refused.is_some_and(|l| now.since(l.heard) <= self.config.teach_patience_ns) {
            return;
        }
        let refusals = self.learning.as_ref().map_or(0, |l| l.refusals);
        if let Some(learning) = self.learning.take() {
            self.end_lesson(&learning, fabric);
        }
        let Some(teacher) = teacher else { return };
        basics::Mark::ApusRequests.reach();
        self.requests += 1;
        let request = self.requests;
        tell(fabric, teacher, control::TEACH, request << 1 | 1);
        self.nudges.at_once(teacher);
        self.learning = Some(Learning {
            teacher,
            request,
            heard: now,
            at: None,
            group: Group::default(),
            part: Part::new(),
            whole: false,
            committed: LogIndex(0),
            view: 0,
            known: self.log.promised(),
            broken: false,
            refusals,
        });
    }

    fn take_lesson<F: Fabric, S: StateMachine>(&mut self, now: Time, learning: &mut Learning, fabric: &mut F, machine: &mut S) -> bool {
        let Some(peer) = self.peers.iter_mut().find(|p| p.id == learning.teacher) else { return false };
        let Some(lane) = fabric.memory(LocalRegion::Lane { writer: peer.id, name: STATE_LANE }) else { return false };
        let mut any = false;
        while !learning.broken && learning.ready().is_none() && peer.state_reader.next(lane, &mut self.buffer) {
            any = true;
            learning.heard = now;
            if let Err(fault) = learning.take(&self.buffer, self.config.log_ring_bytes as u64, machine) {
                learning.broken = true;
                learning.refusals += 1;
                self.events.push_back(Event::LaneFault { peer: peer.id, fault: fault.to_string(), stuck: false });
            }
        }
        self.lesson_begun |= learning.at.is_some();
        peer.state_reader.publish(lane);
        if any {
            self.nudges.at_once(learning.teacher);
        }
        any
    }
}
