//! Words that make no sense. Their writers are members, so this takes a fault at a writer, which must not become a fault of the reader.

use martlet_fabric::primitive::Ordering;
use martlet_fabric::{Fabric as _, LocalRegion};

use super::world::{Cluster, id, tiny};
use crate::basics::MAX_NUMBER;
use crate::engine::Engine as _;
use crate::engine::mu::Event;
use crate::engine::mu::layout::{LaneFault, PERMISSION_LANE, WORDS, permission, words};

/// Writes a word into the lane that a node keeps for another, once they are connected.
fn say(c: &Cluster<true>, at: usize, from: usize, word: usize, value: u64) {
    if let Some(peer) = c.nodes[at].engine.peers.iter().find(|p| p.process == id(from)) {
        let lane = LocalRegion::Lane { writer: peer.id, name: PERMISSION_LANE };
        c.nodes[at].fabric.memory(lane).expect("its lane")[word].store(value, Ordering::Release);
    }
}

#[test]
fn one_that_asks_for_the_permission_from_nowhere_does_not_get_it() {
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
fn one_that_tells_no_salt_is_not_written_to() {
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
    assert_eq!((follower.lane.writer().tail(), follower.acked), (0, None));
}

/// Has a node show a word from now on whenever it has had a turn, until `done`.
fn until_shown(c: &mut Cluster<true>, at: usize, word: usize, value: u64, what: &str, mut done: impl FnMut(&mut Cluster<true>) -> bool) {
    c.until(what, |c| {
        let shown = c.nodes[at].fabric.memory(LocalRegion::Public(WORDS)).expect("its numbers");
        shown[word].store(value, Ordering::Release);
        done(c)
    });
}

/// No number follows the last one; and a number that no process can have reached yet would be followed by ever higher ones.
#[test]
fn one_that_shows_a_proposal_number_that_can_be_none_counts_for_nothing_as_long_as_it_does() {
    for word in [words::MIN_PROPOSAL, words::LAST_BALLOT, words::TAUGHT_BALLOT] {
        for number in [MAX_NUMBER, 1 << 61, 1 << 53] {
            let mut c = Cluster::<true>::new(3, tiny());
            until_shown(&mut c, 1, word, number, "somebody leads all the same", |c| c.leads(0));
            let index = c.write(0).expect("it leads, and has room");
            until_shown(&mut c, 1, word, number, "it is acknowledged", |c| c.acknowledged.contains_key(&index));
            assert!(c.nodes.iter().all(|node| node.engine.log.highest_ballot() < 1 << 40), "nor does anybody promise one like it");
            assert_eq!(c.nodes[1].engine.last().0, 0);
            // It shows its own numbers when they change.
            c.nodes[1].engine.published = false;
            c.until("it counts again", |c| c.is_level());
            c.assert_level();
        }
    }
}

/// It keeps showing the wrong number, so no process leads while the others are away.
#[test]
fn a_number_that_can_be_none_makes_no_majority() {
    let mut c = Cluster::<true>::new(3, tiny());
    c.world.pause(2);
    let limit = c.world.now() + 10 * tiny().silence_ns;
    until_shown(&mut c, 1, words::MIN_PROPOSAL, MAX_NUMBER, "time passes", |c| {
        assert!(!c.leads(0));
        c.world.now() > limit
    });
    c.world.resume(2);
    c.until("somebody leads", |c| c.leader().is_some());
}
