//! How a replica obtains the state, if it does not hold it (APUS section 4.1, learning requests): because it was never in the group, its leader's log has
//! overrun its own, or it has executed entries that were lost.

use martlet_fabric::{Fabric, LocalRegion};

use crate::basics::{self, Time};
use crate::replica::StateMachine;
use crate::replica::state_transfer::Learning;

use super::layout::{Kind, STATE_LANE, Status, control, is_plausible};
use super::peers::{Peer, tell};
use super::{Apus, Event};

/// For how many heartbeats a replica must have looked for another teacher before it asks the leader.
const LEADER_TOO: u64 = 10;

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
            if let Some(at) = learning.done().filter(|_| learning.is_committed()) {
                if self.log.learned(machine, at, learning.number, &learning.received.group) {
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
        if self.learning.as_ref().is_some_and(|l| l.delays(now, teacher, self.config.teach_patience_ns)) {
            return;
        }
        let last = self.learning.take();
        if let Some(learning) = &last {
            self.end_lesson(learning, fabric);
        }
        let Some(teacher) = teacher else { return };
        basics::Mark::ApusRequests.reach();
        self.requests += 1;
        let request = self.requests;
        tell(fabric, teacher, control::TEACH, request << 1 | 1);
        self.nudges.at_once(teacher);
        self.learning = Some(Learning::new(now, teacher, request, self.log.promised(), last.as_ref()));
    }

    fn take_lesson<F: Fabric, S: StateMachine>(&mut self, now: Time, learning: &mut Learning, fabric: &mut F, machine: &mut S) -> bool {
        let Some(peer) = self.peers.iter_mut().find(|p| p.id == learning.teacher) else { return false };
        let Some(lane) = fabric.memory(LocalRegion::Lane { writer: peer.id, name: STATE_LANE }) else { return false };
        let log_bytes = self.config.log_ring_bytes as u64;
        let (any, fault) =
            learning.take_from::<Kind, _>(now, lane, &mut peer.state_reader, &mut self.buffer, log_bytes, is_plausible, machine);
        let fault = fault.map(|fault| Event::LaneFault { peer: peer.id, fault: fault.to_string(), stuck: false });
        self.events.extend(fault);
        self.lesson_begun |= learning.received.at.is_some();
        if any {
            self.nudges.at_once(learning.teacher);
        }
        any
    }
}
