//! Candidates that find a better log, and cannot catch up with it.

use super::world::{Cluster, tiny};
use crate::engine::Engine as _;

/// The first and the last of five processes. The first has missed some entries, and the last so many that the log had overrun it, so that its own log begins
/// after what the first holds. The others are stopped once `right` holds for the last. Nothing is known to be lost.
fn two_of_five(right: impl Fn(&Cluster<true>) -> bool) -> Cluster<true> {
    let mut c = Cluster::<true>::new(5, tiny());
    c.until_led_by(0);
    c.write_through(0);
    let ring = tiny().log_ring_bytes as u64;
    let tail = |c: &Cluster<true>, n: usize| c.nodes[n].engine.log.tail().position;
    c.leave_behind(4, 0, ring * 3 / 4);
    c.world.pause(0);
    c.until_led_by(1);
    while tail(&c, 1) - tail(&c, 4) < ring * 5 / 4 {
        c.write_through(1);
    }
    c.world.resume(4);
    c.until("the last is as it should be", |c| {
        let (first, last) = (&c.nodes[0].engine.log, &c.nodes[4].engine.log);
        !last.retains(first.committed().position) && right(c)
    });
    (1..4).for_each(|n| c.world.pause(n));
    c.world.resume(0);
    c.until("it knows what the last has", |c| {
        let first = &c.nodes[0].engine;
        !first.is_complete() || first.reign.as_ref().is_some_and(|r| r.is_overrun())
    });
    c
}

#[test]
fn a_candidate_without_a_majority_keeps_what_it_has_and_waits_for_a_log_that_reaches() {
    let mut c = two_of_five(|c| c.nodes[4].engine.is_complete() && c.nodes[4].engine.last() == c.nodes[1].engine.last());
    let before = c.nodes[0].engine.last();
    c.run(tiny().silence_ns / 2);
    assert!(c.nodes[0].engine.is_complete(), "nobody else may hold the state");
    assert_eq!(c.nodes[0].engine.last(), before);
    // This process's log is as good as the last one's, and reaches back further.
    c.world.resume(1);
    c.until_led_by(0);
    assert_eq!(c.taught(0), 0, "it had only to be read");
    c.write_through(0);
    c.world.resume(2);
    c.world.resume(3);
    c.until("all are level", |c| c.is_level());
}

#[test]
fn a_candidate_without_a_majority_has_itself_taught_when_nobody_else_has_come() {
    // The others may wait for it, if they belong to a group of which it does not know.
    let mut c = two_of_five(|c| c.nodes[4].engine.is_complete() && c.nodes[4].engine.last() == c.nodes[1].engine.last());
    let from = c.world.now();
    c.until("it gives up its state", |c| !c.nodes[0].engine.is_complete());
    let waited = c.world.now() - from;
    assert!((tiny().silence_ns / 2..3 * tiny().silence_ns).contains(&waited), "after {waited} ns");
    c.until("it is taught", |c| c.taught(0) == 1);
    (1..4).for_each(|n| c.world.resume(n));
    c.until_led_by(0);
    c.write_through(0);
    c.until("all are level", |c| c.is_level());
}

#[test]
fn a_candidate_keeps_its_state_as_long_as_nobody_is_there_to_replace_it() {
    let mut c = two_of_five(|c| !c.nodes[4].engine.is_complete());
    c.run(10 * tiny().silence_ns);
    assert!(c.nodes[0].engine.is_complete(), "the other holds none");
    (1..4).for_each(|n| c.world.resume(n));
    c.until_led_by(0);
    c.write_through(0);
    c.until("all are level", |c| c.is_level());
}

#[test]
fn one_that_has_missed_too_much_is_not_taught_by_another_who_has() {
    let mut c = Cluster::<false>::new(5, tiny());
    c.until_led_by(0);
    c.write_through(0);
    let ring = tiny().log_ring_bytes as u64;
    let tail = |c: &Cluster<false>, n: usize| c.nodes[n].engine.log.tail().position;
    // The highest id is the first to be asked.
    c.world.partition(&[0, 4], &[1, 2, 3]);
    c.until_led_by(1);
    while tail(&c, 1) - tail(&c, 0) < ring * 5 / 4 {
        c.write_through(1);
    }
    c.until("it has heard that it leads no longer", |c| !c.leads(0));
    c.world.heal();
    c.until_led_by(0);
    assert_eq!(c.taught(0), 1, "by one of those who went on");
    c.write_through(0);
    c.until("all are level", |c| c.is_level());
}

/// Of five processes, the first led until it was cut off with requests under way. The second has committed others in their place, and a process that missed
/// more than a log holds has been taught those. The first has no other teacher, and keeps a log that is longer than its teacher's and was accepted earlier.
#[test]
fn what_was_never_committed_is_not_taken_for_what_a_teacher_knows_to_be() {
    let mut c = Cluster::<false>::new(5, tiny());
    c.until_led_by(0);
    c.write_through(0);
    let tail = |c: &Cluster<false>, n: usize| c.nodes[n].engine.log.tail();
    c.leave_behind(4, 0, tiny().log_ring_bytes as u64 * 5 / 4);
    c.until("three are level", |c| (1..4).all(|n| tail(c, n) == tail(c, 0)));
    c.world.partition(&[0], &[1, 2, 3, 4]);
    let common = c.nodes[0].engine.last();
    c.until("requests of its own stand in its log, each in a record of its own", |c| {
        c.write(0);
        c.nodes[0].engine.last().0 >= common.0 + 8
    });
    c.until_led_by(1);
    for _ in 0..3 {
        c.write_through(1);
    }
    c.world.resume(4);
    c.until("the last was taught and has all", |c| {
        c.nodes[4].engine.is_complete()
            && tail(c, 4) == tail(c, 1)
            && !c.nodes[4].engine.log.retains(c.nodes[0].engine.log.committed().position)
    });
    assert!(c.nodes[0].engine.last() > c.nodes[4].engine.last());
    (1..4).for_each(|n| c.world.pause(n));
    c.world.unblock(0, 4);
    c.world.unblock(4, 0);
    c.until("it gives up its state", |c| !c.nodes[0].engine.is_complete());
    c.run(3 * tiny().silence_ns);
    assert_eq!(c.taught(0), 0, "what it was taught and what stands in its log are not the same");
    c.world.heal();
    (1..4).for_each(|n| c.world.resume(n));
    c.until("all are level", |c| c.is_level());
    let leader = c.leader().expect("level");
    c.write_through(leader);
    c.until("all are level again", |c| c.is_level());
    c.assert_level();
}
