//! How a process obtains the state, if it does not hold it: because it was never in the group, the log has overrun it, or it has executed entries that were
//! lost.

use martlet_fabric::{Fabric, LocalRegion, PeerId};

use crate::basics::{self, LogIndex, Time};
use crate::replica::StateMachine;
use crate::replica::part::Part;
use crate::replica::patience::discounted;

use super::layout::{self, Header, Kind, LaneFault, STATE_LANE, Status, permission};
use super::leading::ring_of;
use super::log::Mark;
use super::numbers::is_plausible_choice;
use super::peers::Peer;
use super::permission::tell;
use super::{Event, Group, Mu};

/// For how many heartbeats a teacher that is presumed dead must have been silent before another process is asked. A teacher that was only kept from running for
/// a moment continues where it was.
const SILENT_HEARTBEATS: u64 = 10;

/// A request to be taught, and how far it has been fulfilled.
#[derive(Debug)]
pub(super) struct Learning {
    teacher: PeerId,
    wish: u64,
    /// When the teacher was last heard.
    heard: Time,
    /// What the machine shows, once the transfer has begun.
    at: Option<Mark>,
    group: Group,
    part: Part,
    /// Every part has arrived.
    whole: bool,
    committed: LogIndex,
    /// The highest proposal number under which anything in the teacher's log was committed.
    ballot: u64,
    /// The highest proposal number that was known here when the request was made.
    known: u64,
    /// The teacher has given up, or made no sense.
    broken: bool,
    /// How many lessons in a row have made no sense, up to and including this one.
    refusals: u32,
}

impl Learning {
    /// This process was itself stalled for `gap_ns`, which does not count as waiting.
    pub(super) fn discount(&mut self, gap_ns: u64, now: Time) {
        self.heard = discounted(self.heard, gap_ns, now);
    }

    /// Takes a record of the teacher's.
    fn take<S: StateMachine>(&mut self, payload: &[u8], end: u64, machine: &mut S) -> Result<(), LaneFault> {
        let (header, body) = Header::decode(payload)?;
        let begins = header.kind == Kind::Begin;
        if begins || header.kind == Kind::Break {
            let (position, body) = if begins { layout::split_position(body)? } else { (0, body) };
            let (wish, body) = body.split_first_chunk().ok_or(LaneFault::Body)?;
            if u64::from_le_bytes(*wish) != self.wish {
                return Ok(()); // of an earlier wish
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
        if !is_plausible_choice(header.number, self.known) {
            return Err(LaneFault::Range);
        }
        self.ballot = header.number;
        match header.kind {
            Kind::Part => self.part.take(body, header.count > 0, machine)?,
            // No other record comes between the fragments of a part.
            kind if self.part.is_open() => return Err(LaneFault::Order(kind)),
            Kind::End => self.whole = true,
            Kind::Flush => {}
            Kind::Commands | Kind::Group => {
                layout::check_entries(&header, body)?;
                if header.index != at.index.next() {
                    return Err(LaneFault::Index { expected: at.index.next(), found: header.index });
                }
                if header.kind == Kind::Group {
                    self.group = Group::decode(body).ok_or(LaneFault::Body)?;
                } else {
                    for (command, index) in layout::commands(body).zip(header.index.0..) {
                        machine.apply(LogIndex(index), command?);
                    }
                }
                *at = Mark { index: header.last(), position: end };
            }
            kind => return Err(LaneFault::Order(kind)),
        }
        Ok(())
    }
}

impl Mu {
    /// Asks to be taught when that is necessary, and takes what a teacher sends. Returns whether anything arrived.
    pub(super) fn learn<F: Fabric, S: StateMachine>(&mut self, now: Time, fabric: &mut F, machine: &mut S) -> bool {
        if self.log.is_complete() || self.reign.is_some() || self.is_removed() {
            return false;
        }
        // First takes what has arrived: for a process that was itself kept from running, that may be the whole lesson, and there was nothing to wait for.
        let mut moved = false;
        if let Some(mut learning) = self.learning.take() {
            moved = self.take_lesson(now, &mut learning, fabric, machine);
            let done = learning.at.filter(|_| learning.whole && !learning.broken);
            if let Some(at) = done
                && self.log.learned(ring_of(fabric), machine, at, learning.ballot, learning.committed, &learning.group)
            {
                basics::Mark::MuLearned.reach();
                self.incomplete_since = None;
                self.ahead.clear();
                self.end_lesson(&learning, fabric);
                self.events.push_back(Event::Learned { index: at.index });
                self.publish(fabric);
                return true;
            }
            self.learning = Some(learning);
        }
        if self.learning.as_ref().is_none_or(|learning| self.gives_up(now, learning)) {
            self.wish(now, fabric);
        }
        moved
    }

    /// Whether a lesson can no longer succeed.
    fn has_failed(&self, learning: &Learning) -> bool {
        learning.broken || self.peers.iter().all(|p| p.id != learning.teacher || p.watch.dead)
    }

    /// Otherwise a living teacher would continue to teach in vain.
    fn end_lesson<F: Fabric>(&self, learning: &Learning, fabric: &mut F) {
        if self.peers.iter().any(|p| p.id == learning.teacher && !p.watch.dead) {
            tell(fabric, learning.teacher, permission::TEACH, learning.wish << 1);
        }
    }

    /// Whether another teacher is to be asked.
    fn gives_up(&self, now: Time, learning: &Learning) -> bool {
        // Long before patience runs out: a candidate may wait for what this process lacks, with no leader meanwhile.
        let presumed = self.peers.iter().any(|p| p.id == learning.teacher && !p.watch.is_alive());
        let silence_ns = SILENT_HEARTBEATS * self.config.heartbeat_interval_ns;
        let silent_ns = now.since(learning.heard);
        self.has_failed(learning) || presumed && silent_ns >= silence_ns || silent_ns > self.config.teach_patience_ns
    }

    /// Picks a teacher and asks it: a follower rather than the leader, the one with the highest id, and not the same one again if there is another. If others
    /// were found to be ahead, it asks one of them: a process that has missed as much as this one would only teach it what it has had already, for ever. If
    /// there is no candidate, the process asked before may still continue.
    fn wish<F: Fabric>(&mut self, now: Time, fabric: &mut F) {
        let last = self.learning.as_ref().map(|l| l.teacher);
        let since = *self.incomplete_since.get_or_insert(now);
        // Only if there is no other, and there was some time to find out.
        let leader_too = now.since(since) >= 10 * self.config.heartbeat_interval_ns;
        let able = self.peers.iter().filter(|p| p.watch.is_alive());
        let rank = |peer: &Peer| match peer.watch.status {
            Some(Status::Follower) if self.ahead.is_empty() || self.ahead.contains(&peer.process) => 3,
            Some(Status::Leader) if leader_too => 2,
            Some(Status::Follower) if leader_too => 1,
            // A leader that removed itself from the group, and has come back with the only log that says so.
            Some(Status::Taught) if leader_too && self.ahead.contains(&peer.process) => 2,
            _ => 0,
        };
        let best = able.map(|p| (rank(p), p)).filter(|(rank, _)| *rank > 0);
        let best = best.max_by_key(|(rank, p)| (*rank > 1, Some(p.id) != last, *rank, p.process, p.id));
        let teacher = best.map(|(_, p)| p.id);
        // Another teacher's lesson may make sense. If none does, or there is no other teacher, requests are slowed down, so that they are not repeated at the
        // speed of the fabric.
        let refused = self.learning.as_ref().filter(|l| l.refusals > 1 || l.refusals == 1 && Some(l.teacher) == teacher);
        if refused.is_some_and(|l| now.since(l.heard) <= self.config.teach_patience_ns) {
            return;
        }
        let goes_on = self.learning.as_ref().is_some_and(|l| !self.has_failed(l));
        if goes_on && teacher.is_none() {
            return;
        }
        let refusals = self.learning.as_ref().map_or(0, |l| l.refusals);
        if let Some(learning) = self.learning.take() {
            self.end_lesson(&learning, fabric);
        }
        let Some(teacher) = teacher else { return };
        basics::Mark::MuWishes.reach();
        self.wishes += 1;
        let wish = self.wishes;
        tell(fabric, teacher, permission::TEACH, wish << 1 | 1);
        self.nudges.at_once(teacher);
        self.events.push_back(Event::Learning { teacher });
        self.learning = Some(Learning {
            teacher,
            wish,
            heard: now,
            at: None,
            group: Group::default(),
            part: Part::new(),
            whole: false,
            committed: LogIndex(0),
            ballot: 0,
            known: self.log.highest_ballot(),
            broken: false,
            refusals,
        });
    }

    fn take_lesson<F: Fabric, S: StateMachine>(&mut self, now: Time, learning: &mut Learning, fabric: &mut F, machine: &mut S) -> bool {
        let Some(peer) = self.peers.iter_mut().find(|p| p.id == learning.teacher) else { return false };
        let Some(lane) = fabric.memory(LocalRegion::Lane { writer: peer.id, name: STATE_LANE }) else { return false };
        let mut any = false;
        while !learning.broken && peer.state_reader.next(lane, &mut self.buffer) {
            any = true;
            learning.heard = now;
            // Where the record ends in every log that has it; records in a state lane have other positions.
            let end = learning
                .at
                .map_or(0, |at| martlet_fabric::ring::position_after(at.position, self.buffer.len(), self.config.log_ring_bytes as u64));
            if let Err(fault) = learning.take(&self.buffer, end, machine) {
                learning.broken = true;
                learning.refusals += 1;
                self.events.push_back(Event::LaneFault { peer: peer.id, fault, stuck: false });
            }
        }
        self.lesson_begun |= learning.at.is_some();
        peer.state_reader.publish(lane);
        any
    }
}

#[cfg(test)]
mod tests {
    use martlet_fabric::{Incarnation, NodeId};

    use super::*;
    use crate::basics::{MAX_NUMBER, ProcessId};
    use crate::engine::PartFault;
    use crate::engine::test_cluster::Machine;
    use crate::replica::UnreadablePart;

    const WISH: u64 = 3;

    fn learning(part: Part) -> Learning {
        Learning {
            teacher: PeerId(1),
            wish: WISH,
            heard: Time(0),
            at: None,
            group: Group::default(),
            part,
            whole: false,
            committed: LogIndex(0),
            ballot: 0,
            known: 1 << 20,
            broken: false,
            refusals: 0,
        }
    }

    fn record(kind: Kind, count: u32, body: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        Header { kind, count, number: 1, index: LogIndex(9), beside: 9 }.encode(&mut bytes);
        bytes.extend_from_slice(body);
        bytes
    }

    fn begin(position: u64) -> Vec<u8> {
        let mut body = [position.to_le_bytes(), WISH.to_le_bytes()].concat();
        Group::new(vec![ProcessId { node: NodeId(1), incarnation: Incarnation(1) }]).encode(&mut body);
        record(Kind::Begin, 0, &body)
    }

    #[test]
    fn a_lesson_begins_where_a_record_can_stand() {
        for position in [8, 1 << 62, u64::MAX - 15] {
            let mut learning = learning(Part::new());
            assert_eq!(learning.take(&begin(position), 0, &mut Machine::default()), Err(LaneFault::Body), "{position}");
            assert_eq!(learning.at, None);
        }
        let mut learning = learning(Part::new());
        assert_eq!(learning.take(&begin(160), 0, &mut Machine::default()), Ok(()));
        assert_eq!(learning.at, Some(Mark { index: LogIndex(9), position: 160 }));
    }

    #[test]
    fn what_was_committed_under_a_number_that_can_be_none_is_refused() {
        for (ballot, taken) in [(1 << 50, Ok(())), (1 << 54, Err(LaneFault::Range)), (MAX_NUMBER, Err(LaneFault::Range))] {
            let (mut machine, mut lesson) = (Machine::default(), learning(Part::new()));
            lesson.take(&begin(0), 0, &mut machine).expect("a lesson begins");
            let mut flush = Vec::new();
            Header { kind: Kind::Flush, count: 0, number: ballot, index: LogIndex(9), beside: 9 }.encode(&mut flush);
            assert_eq!(lesson.take(&flush, 0, &mut machine), taken, "{ballot:x}");
        }
    }

    #[test]
    fn a_part_without_end_is_refused_and_one_that_is_none() {
        let mut machine = Machine::default();
        let mut lesson = learning(Part::of_at_most(40));
        lesson.take(&begin(0), 0, &mut machine).expect("a lesson begins");
        for _ in 0..2 {
            assert_eq!(lesson.take(&record(Kind::Part, 1, &[0; 20]), 0, &mut machine), Ok(()));
            assert_eq!(lesson.take(&record(Kind::Part, 0, &[0; 20]), 0, &mut machine), Ok(()), "as long as a part may be");
        }
        assert_eq!(lesson.take(&record(Kind::Part, 1, &[0; 40]), 0, &mut machine), Ok(()));
        assert_eq!(lesson.take(&record(Kind::Part, 1, &[0]), 0, &mut machine), Err(PartFault::TooLong.into()));

        let mut lesson = learning(Part::new());
        lesson.take(&begin(0), 0, &mut machine).expect("a lesson begins");
        assert_eq!(lesson.take(&record(Kind::Part, 0, &[0; 9]), 0, &mut machine), Err(PartFault::Unreadable(UnreadablePart).into()));
    }

    #[test]
    fn nothing_stands_within_a_part_but_the_beginning_of_another_lesson() {
        let mut machine = Machine::default();
        let mut lesson = learning(Part::new());
        lesson.take(&begin(0), 0, &mut machine).expect("a lesson begins");
        for kind in [Kind::End, Kind::Flush, Kind::Commands] {
            assert_eq!(lesson.take(&record(Kind::Part, 1, &[7; 20]), 0, &mut machine), Ok(()));
            assert_eq!(lesson.take(&record(kind, 0, &[]), 0, &mut machine), Err(LaneFault::Order(kind)));
            assert_eq!(lesson.take(&begin(0), 0, &mut machine), Ok(()));
        }
        assert_eq!(lesson.take(&record(Kind::Part, 0, &[0; 9]), 0, &mut machine), Err(PartFault::Unreadable(UnreadablePart).into()));
    }
}
