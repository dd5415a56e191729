//! How a process obtains the state, if it does not hold it: because it was never in the group, the log has overrun it, or it has executed entries that were
//! lost.

use martlet_fabric::{Fabric, LocalRegion};

use crate::basics::{self, Time};
use crate::replica::StateMachine;
use crate::replica::state_transfer::Learning;

use super::layout::{STATE_LANE, Status, permission};
use super::leading::ring_of;
use super::numbers::is_plausible_choice;
use super::peers::Peer;
use super::permission::tell;
use super::{Event, Mu};

/// For how many heartbeats a teacher that is presumed dead must have been silent before another process is asked. A teacher that was only kept from running for
/// a moment continues where it was.
const SILENT_HEARTBEATS: u64 = 10;

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
            let received = &learning.received;
            if let Some(at) = learning.done()
                && self.log.learned(ring_of(fabric), machine, at, learning.number, received.committed, &received.group)
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
            tell(fabric, learning.teacher, permission::TEACH, learning.request << 1);
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
        if self.learning.as_ref().is_some_and(|l| l.delays(now, teacher, self.config.teach_patience_ns)) {
            return;
        }
        let goes_on = self.learning.as_ref().is_some_and(|l| !self.has_failed(l));
        if goes_on && teacher.is_none() {
            return;
        }
        let last = self.learning.take();
        if let Some(learning) = &last {
            self.end_lesson(learning, fabric);
        }
        let Some(teacher) = teacher else { return };
        basics::Mark::MuWishes.reach();
        self.wishes += 1;
        let wish = self.wishes;
        tell(fabric, teacher, permission::TEACH, wish << 1 | 1);
        self.nudges.at_once(teacher);
        self.events.push_back(Event::Learning { teacher });
        self.learning = Some(Learning::new(now, teacher, wish, self.log.highest_ballot(), last.as_ref()));
    }

    fn take_lesson<F: Fabric, S: StateMachine>(&mut self, now: Time, learning: &mut Learning, fabric: &mut F, machine: &mut S) -> bool {
        let Some(peer) = self.peers.iter_mut().find(|p| p.id == learning.teacher) else { return false };
        let Some(lane) = fabric.memory(LocalRegion::Lane { writer: peer.id, name: STATE_LANE }) else { return false };
        let log_bytes = self.config.log_ring_bytes as u64;
        let (any, fault) = learning.take_from(now, lane, &mut peer.state_reader, &mut self.buffer, log_bytes, is_plausible_choice, machine);
        let fault = fault.map(|fault| Event::LaneFault { peer: peer.id, fault, stuck: false });
        self.events.extend(fault);
        self.lesson_begun |= learning.received.at.is_some();
        any
    }
}
