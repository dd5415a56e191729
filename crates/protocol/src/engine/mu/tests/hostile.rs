//! Words that make no sense. Those who write them are members, so this takes a fault of theirs; it must not become ours.

use martlet_fabric::primitive::Ordering;
use martlet_fabric::{Fabric as _, LocalRegion};

use super::world::{Cluster, id, tiny};
use crate::basics::MAX_NUMBER;
use crate::engine::mu::layout::{LaneFault, PERMISSION_LANE, WORDS, permission, words};
use crate::engine::mu::{AbortReason, Event};

/// Writes a word into the lane that a node keeps for another, once they are connected.
fn say(c: &Cluster<true>, at: usize, from: usize, word: usize, value: u64) {
    if let Some(peer) = c.nodes[at].engine.peers.iter().find(|p| p.process == id(from)) {
        let lane = LocalRegion::Lane { writer: peer.id, name: PERMISSION_LANE };
        c.nodes[at].fabric.memory(lane).expect("its lane")[word].store(value, Ordering::Release);
    }
}

#[test]
fn who_asks_for_the_permission_from_nowhere_does_not_get_it() {
    for start in [8, u64::MAX - 15] {
        let mut c = Cluster::<true>::new(3, tiny());
        c.until_led_by(0);
        c.write_through(0);
        c.until("all are level", |c| c.is_level());
        c.finds_fault = Some(1);
        say(&c, 1, 2, permission::START, start);
        say(&c, 1, 2, permission::REQUEST, 1 << 40);
        c.until("it is found", |c| c.events(1, |e| matches!(e, Event::LaneFault { fault: LaneFault::Start(_), stuck: false, .. })) == 1);
        c.until("somebody leads", |c| (0..3).any(|n| c.leads(n)));
        c.until_led_by(0);
        c.write_through(0);
        c.until("all are level", |c| c.is_level());
        assert_eq!(c.events(1, |e| matches!(e, Event::LaneFault { .. })), 1, "said once");
    }
}

#[test]
fn who_tells_no_salt_is_not_written_to() {
    let mut c = Cluster::<true>::new(3, tiny());
    let unsalted = |c: &mut Cluster<true>| {
        say(c, 0, 1, permission::LOG_SALT, 0);
        c.leads(0)
    };
    c.until("a leader", unsalted);
    for _ in 0..3 {
        c.write_through(0);
        c.nodes[0].engine.step_down();
        c.turn(0);
        c.until("it leads again", unsalted);
    }
    let reign = c.nodes[0].engine.reign.as_ref().expect("it leads");
    let follower = reign.followers.iter().find(|f| f.process == id(1)).expect("it was asked");
    assert_eq!((follower.writer.tail(), follower.acked), (0, None));
}

#[test]
fn no_proposal_number_follows_the_last_one() {
    let mut c = Cluster::<true>::new(3, tiny());
    c.world.pause(2);
    c.until("it gives up", |c| {
        let shown = c.nodes[1].fabric.memory(LocalRegion::Public(WORDS)).expect("its numbers");
        shown[words::MIN_PROPOSAL].store(MAX_NUMBER, Ordering::Release);
        c.events(0, |e| matches!(e, Event::Aborted { reason: AbortReason::Outbid, .. })) > 0
    });
    assert_eq!(c.nodes[0].engine.log.min_proposal(), 0, "nor is one promised");
}
