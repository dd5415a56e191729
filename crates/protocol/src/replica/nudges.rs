//! Which followers a leader wakes, and when. On small hosts followers sleep, because their leader needs the processor.

use martlet_fabric::{Fabric, PeerId};

use crate::basics::Time;
use crate::basics::layout::MAX_MEMBERS;

/// The followers to be woken at the end of a turn.
#[derive(Debug)]
pub struct Nudges {
    /// A request waits for what they will do.
    at_once: Vec<PeerId>,
    /// Followers that lag behind or have not been told what is committed. No request waits for them, and a follower that is woken too often keeps the leader
    /// from running, or is slowed down itself when the leader dies.
    soon: Vec<PeerId>,
    /// When the followers in `soon` may be woken next.
    next: Time,
}

impl Default for Nudges {
    fn default() -> Nudges {
        Nudges { at_once: Vec::with_capacity(4 * MAX_MEMBERS), soon: Vec::with_capacity(MAX_MEMBERS), next: Time(0) }
    }
}

impl Nudges {
    /// To be rung at the end of this turn.
    pub fn at_once(&mut self, peer: PeerId) {
        self.at_once.push(peer);
    }

    /// To be woken once no such follower has been woken for a while.
    pub fn soon(&mut self, peer: PeerId) {
        if !self.soon.contains(&peer) {
            self.soon.push(peer);
        }
    }

    /// Wakes those that are due; those that can wait are woken no more often than every `gap_ns`.
    #[inline]
    pub fn send<F: Fabric>(&mut self, now: Time, gap_ns: u64, fabric: &mut F) {
        for peer in self.at_once.drain(..) {
            fabric.nudge(peer);
        }
        if !self.soon.is_empty() && now >= self.next {
            self.next = now.after(gap_ns);
            for peer in self.soon.drain(..) {
                fabric.nudge(peer);
            }
        }
    }

    /// When the next follower is to be woken, if any.
    pub fn due(&self) -> Option<Time> {
        (!self.soon.is_empty()).then_some(self.next)
    }
}

#[cfg(test)]
mod tests {
    use martlet_fabric::sim::{Endpoint, Faults, World};
    use martlet_fabric::{Identity, Incarnation, NodeId, PeerEvent, PeerKind, RegionSpec};

    use super::*;

    /// The endpoint of one process, and another process as its peer.
    fn two(world: &mut World<true>) -> (Endpoint<true>, PeerId) {
        let identity = |node| Identity { node: NodeId(node), incarnation: Incarnation(1), kind: PeerKind::Member };
        let (_, mut fabric) = world.spawn(identity(0), &RegionSpec::default());
        world.spawn(identity(1), &RegionSpec::default());
        while world.next_turn(world.now() + 1_000_000).is_some() {}
        let Some(PeerEvent::Up { peer, .. }) = fabric.event() else { panic!("they have met") };
        (fabric, peer)
    }

    #[test]
    fn a_follower_that_has_time_is_woken_once_in_a_while_and_one_that_is_waited_for_at_once() {
        const GAP_NS: u64 = 10_000;
        let mut world = World::<true>::new(1, Faults::calm());
        let (mut fabric, peer) = two(&mut world);
        let mut nudges = Nudges::default();
        let start = 1_000_000;
        let mut woken = |nudges: &mut Nudges, ns| {
            nudges.send(Time(start + ns), GAP_NS, &mut fabric);
            world.next_turn(world.now() + 1_000_000) == Some(1)
        };
        assert!(!woken(&mut nudges, 0), "nobody is to be woken");
        nudges.soon(peer);
        assert!(nudges.due().is_some_and(|due| due <= Time(start)));
        assert!(woken(&mut nudges, 0), "nobody has been for long");
        nudges.soon(peer);
        nudges.soon(peer);
        assert_eq!(nudges.due(), Some(Time(start + GAP_NS)), "a leader that sleeps wakes up for it");
        assert!(!woken(&mut nudges, GAP_NS - 1));
        nudges.at_once(peer);
        assert!(woken(&mut nudges, GAP_NS - 1));
        assert!(woken(&mut nudges, GAP_NS));
        assert_eq!(nudges.due(), None);
        assert!(!woken(&mut nudges, 2 * GAP_NS), "once is enough");
    }
}
