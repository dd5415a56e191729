//! What leaders tell operators of the service as a whole: since when the present leader serves, and how often one leader has taken over from another.
//!
//! It is on the [board](crate::board), since it outlives each leader. The leader that serves shows it among its node's counters.

use std::sync::atomic::{AtomicU64, Ordering};

use martlet_node::counters::{Event, EventKind};
use martlet_protocol::basics::Time;
use martlet_protocol::replica::Service;

/// These words are on the board. A leader writes all of them except `replaced`, when the leaders before it are dead.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct ServiceWords {
    /// Since when the last leader that has begun to serve serves; 0: none has so far.
    since_ns: AtomicU64,
    takeovers: AtomicU64,
    last_takeover_ns: AtomicU64,
    /// How many replicas have begun since a leader first served. Each adds itself.
    replaced: AtomicU64,
}

impl ServiceWords {
    /// From now on this leader serves; its node has recorded these events. If a leader has served before, this one has taken over from replicas at the nodes
    /// for which `led` holds.
    pub fn serve(&self, now: Time, events: &[(u64, Event)], led: impl Fn(u16) -> bool) {
        let before = Time(self.since_ns.load(Ordering::Relaxed));
        if before != Time(0) {
            let took_ns = began(events, before, led).map_or(0, |began| now.since(began));
            self.last_takeover_ns.store(took_ns, Ordering::Relaxed);
            self.takeovers.fetch_add(1, Ordering::Relaxed);
        }
        self.since_ns.store(now.0, Ordering::Relaxed);
    }

    /// A replica begins. Those with which the service begins are not replacements.
    pub fn begin_replica(&self) {
        if self.since_ns.load(Ordering::Relaxed) != 0 {
            self.replaced.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// All of it, with the number of connections that the leader has. For the leader that serves.
    pub fn told(&self, connections: u64) -> Service {
        Service {
            since: Time(self.since_ns.load(Ordering::Relaxed)),
            connections,
            takeovers: self.takeovers.load(Ordering::Relaxed),
            last_takeover_ns: self.last_takeover_ns.load(Ordering::Relaxed),
            replaced: self.replaced.load(Ordering::Relaxed),
        }
    }
}

/// When a successor saw that a leader that had served since `before` was gone. That is when it saw a death or a silence; or when it asked to lead, if its
/// engine elects by itself and had not waited for those.
///
/// Several leaders may have died, one after the other, before this one serves: clients have waited since the first death.
fn began(events: &[(u64, Event)], before: Time, led: impl Fn(u16) -> bool) -> Option<Time> {
    let since = || events.iter().map(|(_, event)| event).filter(|event| event.at >= before);
    let is_end = |event: &&Event| matches!(event.kind, EventKind::DeathSeen | EventKind::Suspected);
    let end = since().filter(is_end).find(|event| event.process.is_some_and(|process| led(process.node.0)));
    // It may have asked before, in vain.
    let asked = since().rfind(|event| event.kind == EventKind::PermissionAsked);
    end.into_iter().chain(asked).map(|event| event.at).min()
}

#[cfg(test)]
mod tests {
    use martlet_fabric::{Incarnation, NodeId};
    use martlet_protocol::basics::{ProcessId, ViewNumber};

    use super::*;
    use crate::board::Board;

    fn event(at: u64, kind: EventKind, node: u16) -> (u64, Event) {
        let process = Some(ProcessId { node: NodeId(node), incarnation: Incarnation(1) });
        (at, Event { at: Time(at), kind, view: ViewNumber(1), process, detail: 0 })
    }

    #[test]
    fn the_first_leader_takes_over_from_nobody_and_each_later_one_from_when_the_one_before_was_missed() {
        use EventKind::{DeathSeen, PermissionAsked};
        let board = Board::create().expect("memory");
        let words = board.service();
        (0..3).for_each(|_| words.begin_replica());
        let told = |since: u64, takeovers, last_takeover_ns, replaced| {
            let since = Time(since);
            assert_eq!(words.told(7), Service { since, connections: 7, takeovers, last_takeover_ns, replaced });
        };
        words.serve(Time(100), &[event(90, PermissionAsked, 0)], |_| false);
        told(100, 0, 0, 0);
        // A follower's death is not a leader's, and an earlier death of that number is another process's.
        let mut events = vec![event(50, DeathSeen, 0), event(150, DeathSeen, 2), event(200, DeathSeen, 0), event(205, PermissionAsked, 1)];
        words.begin_replica();
        words.serve(Time(230), &events, |node| node == 0);
        told(230, 1, 30, 1);
        // Two leaders die before a third serves: clients wait since the first death.
        events.extend([event(300, DeathSeen, 1), event(310, DeathSeen, 3), event(320, PermissionAsked, 4)]);
        words.begin_replica();
        words.serve(Time(350), &events, |node| node == 1 || node == 3);
        told(350, 2, 50, 2);
        // The engine did not wait to be told of the death, and was told later.
        words.serve(Time(450), &[event(400, PermissionAsked, 4), event(420, DeathSeen, 4)], |node| node == 4);
        told(450, 3, 50, 2);
        words.serve(Time(500), &[], |_| true);
        told(500, 4, 0, 2);
    }
}
