//! Which nodes to dial, and when. A wanted node is dialled whenever it is not connected, with pauses that grow while it does not answer.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::contract::NodeId;

/// A node to connect to.
#[derive(Debug)]
struct Target<A> {
    at: A,
    next: Instant,
    pause: Duration,
}

/// The nodes that are wanted, each at an address `A`.
#[derive(Debug)]
pub(crate) struct Dialer<A> {
    targets: HashMap<NodeId, Target<A>>,
    /// The first and the longest pause between two attempts to reach a node.
    first: Duration,
    longest: Duration,
}

impl<A: Copy> Dialer<A> {
    /// A dialer that wants no node yet.
    pub(crate) fn new(first: Duration, longest: Duration) -> Dialer<A> {
        Dialer { targets: HashMap::new(), first, longest }
    }

    /// From now on, the node is wanted and has the address `at`.
    pub(crate) fn want(&mut self, node: NodeId, at: A, now: Instant) {
        self.targets.entry(node).or_insert(Target { at, next: now, pause: self.first }).at = at;
    }

    /// The node is no longer wanted.
    pub(crate) fn unwant(&mut self, node: NodeId) {
        self.targets.remove(&node);
    }

    /// An attempt to reach a node has failed: puts off the next.
    pub(crate) fn pause(&mut self, node: NodeId, now: Instant) {
        if let Some(target) = self.targets.get_mut(&node) {
            target.next = now + target.pause;
            target.pause = (target.pause * 2).min(self.longest);
        }
    }

    /// A connection to a node has ended. If the node is wanted, it is tried again from `when` on, with the shortest pauses.
    pub(crate) fn eager(&mut self, node: NodeId, when: Instant) {
        if let Some(target) = self.targets.get_mut(&node) {
            (target.next, target.pause) = (when, self.first);
        }
    }

    /// The nodes whose pause is over.
    pub(crate) fn due(&self, now: Instant) -> Vec<(NodeId, A)> {
        self.targets.iter().filter(|(_, target)| target.next <= now).map(|(node, target)| (*node, target.at)).collect()
    }

    /// When the next pause of a node that is `missing` is over.
    pub(crate) fn next(&self, missing: impl Fn(NodeId) -> bool) -> Option<Instant> {
        self.targets.iter().filter(|(node, _)| missing(**node)).map(|(_, target)| target.next).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: NodeId = NodeId(3);

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn pauses_grow_to_a_limit_and_start_over_when_a_connection_ends() {
        let now = Instant::now();
        let mut dialer = Dialer::new(ms(2), ms(5));
        dialer.want(NODE, 'a', now);
        assert_eq!(dialer.due(now), [(NODE, 'a')]);
        for (pause, next) in [(2, 2), (4, 4), (5, 5), (5, 5)] {
            dialer.pause(NODE, now);
            assert_eq!(dialer.next(|_| true), Some(now + ms(next)), "after a pause of {pause} ms");
            assert_eq!(dialer.due(now + ms(next - 1)), []);
        }
        dialer.eager(NODE, now);
        assert_eq!(dialer.next(|_| true), Some(now));
        dialer.pause(NODE, now);
        assert_eq!(dialer.next(|_| true), Some(now + ms(2)));
    }

    #[test]
    fn a_new_address_does_not_shorten_a_pause() {
        let now = Instant::now();
        let mut dialer = Dialer::new(ms(2), ms(5));
        dialer.want(NODE, 'a', now);
        dialer.pause(NODE, now);
        dialer.want(NODE, 'b', now);
        assert_eq!(dialer.due(now), []);
        assert_eq!(dialer.due(now + ms(2)), [(NODE, 'b')]);
    }

    #[test]
    fn only_who_is_wanted_and_missing_is_waited_for() {
        let now = Instant::now();
        let mut dialer = Dialer::new(ms(2), ms(5));
        assert_eq!(dialer.next(|_| true), None);
        dialer.want(NODE, (), now);
        assert_eq!(dialer.next(|node| node != NODE), None);
        dialer.unwant(NODE);
        // A node that is not wanted has no pause.
        dialer.pause(NODE, now);
        dialer.eager(NODE, now);
        assert_eq!((dialer.due(now), dialer.next(|_| true)), (Vec::new(), None));
    }
}
