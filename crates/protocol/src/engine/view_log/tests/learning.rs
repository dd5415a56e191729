//! How a process that knows nothing comes to hold everything while the primary continues.

use super::world::{World, peer, tiny};
use crate::basics::LogIndex;
use crate::engine::Engine as _;
use crate::engine::view_log::Config;
use crate::engine::{DropReason, Event};
use crate::membership::Roles;
use crate::replica::part::REST_NS;
use crate::replica::{MAX_PART_BYTES, Standing};

fn quiet() -> Config {
    Config { flush_idle_ns: 200, nudge_entries: 1000, log_ring_bytes: 4096, backlog_bytes: 20_000, ..tiny() }
}

fn caught_up(world: &World, primary: usize, learner: usize) -> bool {
    let id = world.processes[learner].id;
    world.processes[primary].events.iter().any(|e| matches!(e, Event::CaughtUp(process) if *process == id))
}

/// Writes to many keys.
fn fill(world: &mut World, primary: usize, keys: u8) {
    for key in 0..keys {
        while world.write(primary, key, 5).is_none() {
            world.run(1);
        }
    }
    world.run(60);
    assert_eq!(world.processes[primary].engine.committed(), world.processes[primary].engine.last());
}

#[test]
fn trap_28_a_restarted_replica_joins_as_a_new_incarnation_without_stopping_the_primary() {
    let mut world = World::led(2, quiet());
    fill(&mut world, 0, 200);
    world.crash(1);
    world.replicas(&[0]);
    let learner = world.join();
    assert_eq!(world.processes[learner].id.node.0, 2);
    world.enter();
    let mut turns = 0;
    while !caught_up(&world, 0, learner) {
        let before = world.acknowledged.len();
        assert!(world.write(0, (turns % 250) as u8, 5).is_some(), "the primary takes requests all along");
        world.turns(0, 1);
        let counts = !world.processes[0].engine.is_alone();
        assert!(counts || world.acknowledged.len() == before + 1, "and answers each in the turn that took it, until the learner counts");
        world.deliver(0);
        world.turns(learner, 1);
        assert!(!world.processes[learner].engine.shows_committed(), "it holds a part");
        turns += 1;
        assert!(turns < 200, "even though the log never rests");
    }
    assert!(turns > 10, "a part at a time");
    assert!(!world.processes[0].engine.is_alone());
    world.promote(learner);
    world.enter();
    world.run(60);
    world.assert_level();
    assert!(world.processes[learner].engine.shows_committed());
    world.crash(0);
    world.replicas(&[learner]);
    world.run(3);
    assert_eq!(world.processes[learner].engine.standing(), Standing::Primary);
    assert_eq!(world.processes[learner].machine.keys.len(), 200.max(turns));
}

#[test]
fn a_learner_applies_entries_and_parts_in_the_order_of_the_lane_and_nothing_twice() {
    // The machine's hash chains detect a command that is applied twice, so comparing states is enough. Each part has one key, and every second key is written
    // between its part and the next.
    let mut world = World::led(1, Config { transfer_budget_bytes: 17, ..quiet() });
    fill(&mut world, 0, 255);
    let learner = world.join();
    world.enter();
    for turn in 0..600u32 {
        if turn % 2 == 0 {
            world.write(0, (turn / 2 + turn % 5) as u8, (turn % 60) as usize);
        }
        world.run(1);
    }
    becomes_a_replica(&mut world, learner);
}

#[test]
fn parts_longer_than_the_ring_arrive_in_fragments_between_which_entries_go_on() {
    let mut world = World::led(1, Config { transfer_budget_bytes: 3000, log_ring_bytes: 512, ..quiet() });
    fill(&mut world, 0, 255);
    let learner = world.join();
    world.enter();
    for key in 0..200u8 {
        world.write(0, key, 0);
        world.run(2);
    }
    becomes_a_replica(&mut world, learner);
}

/// It holds the state, and is up to date once a view has made it a replica.
fn becomes_a_replica(world: &mut World, learner: usize) {
    assert!(caught_up(world, 0, learner));
    world.promote(learner);
    world.enter();
    world.run(100);
    world.assert_level();
}

fn unteachable(world: &World, learner: usize) -> usize {
    let event = Event::Unteachable { process: world.processes[learner].id, bytes: MAX_PART_BYTES + 1 };
    world.processes[0].events.iter().filter(|e| **e == event).count()
}

/// Each attempt costs a copy of a part of that length.
#[test]
fn a_state_with_a_part_that_is_too_long_for_anybody_is_said_to_be_so_and_looked_at_again_later() {
    let mut world = World::led(1, quiet());
    fill(&mut world, 0, 255);
    let learner = world.join();
    world.enter();
    world.processes[0].machine.sprawls = true;
    world.run(300);
    assert_eq!((world.processes[0].machine.sprawled.get(), unteachable(&world, learner)), (1, 1));
    world.clock += REST_NS;
    world.run(300);
    assert_eq!((world.processes[0].machine.sprawled.get(), unteachable(&world, learner)), (2, 2));
    assert!(!world.processes[0].events.iter().any(|e| matches!(e, Event::Drop { .. })), "it may yet be taught");
    world.processes[0].machine.sprawls = false;
    for turn in 0..10 {
        assert!(world.write(0, turn, 5).is_some(), "and nobody waits for it");
        world.run(10);
    }
    assert!(!caught_up(&world, 0, learner));
    world.clock += REST_NS;
    world.run(300);
    becomes_a_replica(&mut world, learner);
}

#[test]
fn a_replica_that_cannot_be_taught_is_given_up_since_everybody_waits_for_it() {
    let mut world = World::led(1, quiet());
    fill(&mut world, 0, 255);
    let learner = world.join();
    // Made a replica by a view whose maker saw another primary teach it.
    world.promote(learner);
    world.enter();
    world.processes[0].machine.sprawls = true;
    world.run(300);
    assert_eq!(unteachable(&world, learner), 1);
    let gone = Event::Drop { process: world.processes[learner].id, reason: DropReason::Unteachable };
    assert_eq!(world.processes[0].events.iter().filter(|e| **e == gone).count(), 1);
}

#[test]
fn nobody_waits_for_a_replica_that_cannot_be_taught_while_the_state_is_not_looked_at() {
    let mut world = World::led(1, quiet());
    fill(&mut world, 0, 255);
    let first = world.join();
    world.enter();
    world.processes[0].machine.sprawls = true;
    world.run(300);
    assert_eq!(unteachable(&world, first), 1);
    let second = world.join();
    world.promote(second);
    world.enter();
    world.run(100);
    let gone = Event::Drop { process: world.processes[second].id, reason: DropReason::Unteachable };
    assert_eq!(world.processes[0].events.iter().filter(|e| **e == gone).count(), 1);
    assert_eq!(world.processes[0].machine.sprawled.get(), 1, "no part was copied for it");
}

#[test]
fn a_learner_does_not_count_before_it_has_caught_up_and_counts_from_then_on() {
    let mut world = World::led(1, quiet());
    let learner = world.join();
    world.enter();
    world.write(0, 1, 0);
    world.turns(0, 1);
    assert_eq!(world.acknowledged.len(), 1, "nothing of it has reached the learner");
    world.run(20);
    assert!(caught_up(&world, 0, learner));
    // A view may promote the learner now, and the primary may die before it learns of that. So everything acknowledged has to be at the learner.
    world.write(0, 1, 0);
    world.turns(0, 3);
    assert_eq!(world.acknowledged.len(), 1);
    world.deliver(0);
    world.turns(0, 1);
    assert_eq!(world.acknowledged.len(), 2);
    world.promote(learner);
    world.crash(0);
    world.replicas(&[learner]);
    world.turns(learner, 3);
    assert_eq!(world.processes[learner].engine.last(), LogIndex(2));
}

/// The last write is in the learner's copy, as an entry and within the parts, and is not committed.
fn one_entry_reaches_the_learner_only() -> (World, usize) {
    let mut world = World::led(2, quiet());
    fill(&mut world, 0, 10);
    let learner = world.join();
    world.enter();
    // The backup's lane is silent from here on.
    world.write(0, 1, 0);
    for _ in 0..60 {
        world.turns(0, 1);
        world.processes[0].fabric.deliver(peer(learner), usize::MAX);
        world.turns(learner, 1);
    }
    assert_eq!(world.processes[learner].engine.applied(), LogIndex(11));
    (world, learner)
}

#[test]
fn a_learner_has_not_caught_up_while_its_copy_includes_what_is_not_committed() {
    let (mut world, learner) = one_entry_reaches_the_learner_only();
    assert!(!caught_up(&world, 0, learner));
    world.run(5);
    assert!(caught_up(&world, 0, learner));
}

#[test]
fn when_the_primary_dies_a_learner_starts_over_and_what_it_held_is_void() {
    let (mut world, learner) = one_entry_reaches_the_learner_only();
    world.crash(0);
    world.processes[0].fabric.drop_in_flight();
    world.decide(&[(1, Roles::REPLICA), (learner, Roles::LEARNER)]);
    world.enter();
    world.run(30);
    assert!(caught_up(&world, 1, learner));
    world.promote(learner);
    world.enter();
    world.run(30);
    assert_eq!(world.processes[learner].engine.applied(), LogIndex(10));
    world.assert_level();
}

#[test]
fn a_learner_that_the_log_overruns_starts_over_and_is_waited_for_at_last() {
    let mut world = World::led(1, Config { learner_overruns: 2, log_ring_bytes: 512, backlog_bytes: 1000, ..quiet() });
    fill(&mut world, 0, 100);
    let learner = world.join();
    world.enter();
    world.run(4);
    // The learner has one turn for every forty of the primary, and clients send more than its lane holds.
    let (mut taken, mut turns) = (0, 0);
    while !caught_up(&world, 0, learner) {
        for _ in 0..40 {
            while world.write(0, (taken % 100) as u8, 20).is_some() {
                taken += 1;
            }
            world.turns(0, 1);
            world.deliver(0);
        }
        world.turns(learner, 1);
        turns += 1;
        assert!(turns < 2000, "{taken} requests have been taken");
    }
    assert!(taken > turns, "requests are taken all along: {taken}, {turns}");
    world.promote(learner);
    world.enter();
    world.run(60);
    world.assert_level();
}

#[test]
fn a_replica_that_holds_a_part_of_the_state_does_not_lead() {
    let mut world = World::led(1, quiet());
    fill(&mut world, 0, 200);
    let learner = world.join();
    world.enter();
    world.run(4);
    assert!(!caught_up(&world, 0, learner));
    // A membership service that promotes it nevertheless, and a primary that dies.
    world.promote(learner);
    world.crash(0);
    world.replicas(&[learner]);
    world.turns(learner, 2);
    assert_eq!(world.processes[learner].engine.standing(), Standing::Excluded);
    assert!(matches!(world.processes[learner].events[..], [Event::Unfit]));
    // Nor does one that never heard a thing.
    let mut world = World::led(1, quiet());
    let learner = world.join();
    world.learn(learner);
    world.crash(0);
    world.replicas(&[learner]);
    world.turns(learner, 2);
    assert_eq!(world.processes[learner].engine.standing(), Standing::Excluded);
}

#[test]
fn a_replica_promoted_too_early_holds_up_commits_until_it_has_caught_up() {
    let mut world = World::led(1, quiet());
    fill(&mut world, 0, 200);
    let learner = world.join();
    world.enter();
    world.run(4);
    world.promote(learner);
    world.enter();
    let before = world.acknowledged.len();
    world.write(0, 1, 0);
    world.turns(0, 2);
    assert_eq!(world.acknowledged.len(), before);
    world.run(60);
    assert_eq!(world.acknowledged.len(), before + 1);
    world.assert_level();
}

#[test]
fn a_learner_whose_lane_is_lost_is_given_up_and_holds_up_nothing() {
    let mut world = World::led(1, quiet());
    fill(&mut world, 0, 200);
    let learner = world.join();
    world.enter();
    world.run(8);
    world.processes[0].fabric.lose(peer(learner));
    for _ in 0..20 {
        let before = world.acknowledged.len();
        world.write(0, 1, 0);
        world.turns(0, 1);
        world.deliver(0);
        assert_eq!(world.acknowledged.len(), before + 1);
    }
    let id = world.processes[learner].id;
    let said = world.processes[0].events.iter().filter(|e| **e == Event::Drop { process: id, reason: DropReason::LaneLost }).count();
    assert_eq!(said, 1);
}

/// The machine also shows what waits in the queue; with a part of its state, the learner would see that twice.
#[test]
fn no_part_of_the_state_is_sent_while_proposals_wait() {
    let mut world = World::led(2, Config { log_ring_bytes: 512, ..quiet() });
    // The backup sleeps, its lane is full, and proposals wait.
    for key in 0..20 {
        world.write(0, key, 0);
        world.turns(0, 1);
        world.deliver(0);
    }
    let learner = world.join();
    world.enter();
    for _ in 0..20 {
        for p in [0, learner] {
            world.turns(p, 1);
            world.deliver(p);
        }
    }
    assert!(world.processes[0].engine.lagging().count() == 1);
    assert!(world.processes[learner].engine.last() > LogIndex(0), "its transfer has begun");
    assert!(world.processes[learner].machine.keys.is_empty(), "but it got no part");
    world.run(60);
    assert!(caught_up(&world, 0, learner));
    world.promote(learner);
    world.enter();
    world.run(60);
    world.assert_level();
}
