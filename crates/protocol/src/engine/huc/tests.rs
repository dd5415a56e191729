//! FiDe's claims about HUC, tested on a log behind views.

use super::{ByBroadcast, Config};
use crate::engine::Engine as _;
use crate::engine::hsuc::ByAcknowledgement;
use crate::engine::view_log::Rule;
use crate::engine::view_log::tests::world::{WorldOf, outlives_all_but_one_of_five, outlives_all_but_one_of_five_at_once, peer, quiet};
use crate::membership::Roles;
use crate::replica::{Execution, Standing};

type World = WorldOf<ByBroadcast>;

/// Consensus is on requests: the leader executes what has been decided.
fn on_commit() -> Config {
    Config { execution: Execution::Committed, ..quiet() }
}

/// "HUC does not need an explicit ACK-ing round before calling DECIDE": appendix A.4's two messages, of which the first is a client's to the leader.
#[test]
fn a_leader_decides_once_its_choice_stands_in_all_memories_though_nobody_has_looked_there() {
    let mut world = World::led(3, on_commit());
    let index = world.write(0, 1, 0).expect("it leads");
    world.turns(0, 1);
    world.deliver(0);
    world.turns(0, 1);
    assert_eq!((world.processes[0].engine.committed(), world.acknowledged.as_slice()), (index, &[index][..]));
}

/// How many turns others have to take before a leader decides.
fn turns_of_others<R: Rule>() -> usize {
    let mut world = WorldOf::<R>::led(3, on_commit());
    let index = world.write(0, 1, 0).expect("it leads");
    world.turns(0, 1);
    world.deliver(0);
    world.turns(0, 1);
    let mut turns = 0;
    while world.processes[0].engine.committed() < index {
        let other = 1 + turns % 2;
        world.turns(other, 1);
        world.deliver(other);
        world.turns(0, 1);
        turns += 1;
    }
    turns
}

/// Table 1 counts a message delay less than for HSUC.
#[test]
fn a_decision_takes_a_turn_of_nobody_else_where_hsuc_takes_one_of_each() {
    assert_eq!((turns_of_others::<ByBroadcast>(), turns_of_others::<ByAcknowledgement>()), (0, 2));
}

/// Section 6.4 answers once the choice is queued for a heartbeat. The choice is then lost if the leader dies. Here nothing is answered or executed before all
/// hold it.
#[test]
fn nothing_is_answered_or_executed_while_one_replica_lacks_it() {
    let mut world = World::led(3, on_commit());
    let index = world.write(0, 1, 0).expect("it leads");
    world.turns(0, 3);
    assert!(world.acknowledged.is_empty(), "posted, and on its way");
    world.processes[0].fabric.deliver(peer(1), usize::MAX);
    world.turns(0, 3);
    let leader = &world.processes[0];
    assert!(leader.engine.committed() < index && leader.engine.applied() < index && leader.machine.keys.is_empty());
    world.processes[0].fabric.deliver(peer(2), usize::MAX);
    world.turns(0, 1);
    assert_eq!((world.processes[0].machine.keys.len(), world.acknowledged.as_slice()), (1, &[index][..]));
}

/// Fail-consistency: "messages are delivered before failure notifications". A successor takes up what a dead leader has decided before it leads.
#[test]
fn what_a_dead_leader_has_decided_is_delivered_before_anybody_else_leads() {
    let mut world = World::led(3, on_commit());
    let index = world.write(0, 1, 0).expect("it leads");
    world.turns(0, 1);
    world.deliver(0);
    world.turns(0, 1);
    assert_eq!(world.acknowledged, [index], "and nobody has heard of it");
    world.crash(0);
    world.replicas(&[1, 2]);
    world.run(6);
    assert_eq!(world.processes[1].engine.standing(), Standing::Primary);
    assert!((1..3).all(|p| world.processes[p].engine.last() == index) && world.processes[1].engine.committed() == index);
}

/// Uniformity: "all processes receive a message or no process does". A choice that reached one of two processes is delivered to both if that one leads, and to
/// neither if the other one does.
#[test]
fn a_choice_that_reached_one_replica_is_all_replicas_in_the_end_or_nobodys() {
    for reached in [1, 2] {
        let mut world = World::led(3, on_commit());
        let index = world.write(0, 1, 0).expect("it leads");
        world.turns(0, 1);
        world.processes[0].fabric.deliver(peer(reached), usize::MAX);
        world.crash(0);
        world.processes[0].fabric.drop_in_flight();
        world.replicas(&[1, 2]);
        world.run(6);
        let later = world.write(1, 2, 0).expect("it leads");
        world.run(6);
        assert_eq!(later, if reached == 1 { index.next() } else { index });
        assert!((1..3).all(|p| world.processes[p].engine.last() == later) && world.processes[1].engine.committed() == later);
    }
}

/// "If f = N - 1": one after the other, and all at once.
#[test]
fn all_but_one_of_the_replicas_may_die() {
    outlives_all_but_one_of_five::<ByBroadcast>(on_commit());
    outlives_all_but_one_of_five_at_once::<ByBroadcast>(on_commit());
}

/// TRAPS 25: a leader that is falsely suspected and continues decides nothing that its successor lacks: the view ends its activity, and between hosts its lanes
/// are revoked.
#[test]
fn a_leader_that_a_view_excludes_decides_nothing_that_its_successor_lacks() {
    let mut world = World::led(3, on_commit());
    let index = world.write(0, 1, 0).expect("it leads, and nobody has told it otherwise");
    world.turns(0, 1);
    world.decide(&[(1, Roles::REPLICA), (2, Roles::REPLICA)]);
    world.activate();
    for process in [2, 1] {
        world.learn(process);
    }
    world.run_only(&[1, 2], 6);
    assert_eq!(world.processes[1].engine.standing(), Standing::Primary);
    world.deliver(0);
    world.turns(0, 3);
    assert!(world.acknowledged.is_empty() && world.processes[0].engine.committed() < index);
    let later = world.write(1, 2, 0).expect("it leads");
    world.run_only(&[1, 2], 6);
    assert_eq!(world.acknowledged, [later]);
}

/// A learner that joins while entries are under way gets a state that includes all of them.
#[test]
fn a_learner_begins_once_what_is_under_way_is_decided() {
    let mut world = World::led(2, on_commit());
    world.write(0, 1, 0);
    world.turns(0, 1);
    let learner = world.join();
    world.enter();
    for key in 2..40 {
        world.write(0, key, 0);
        world.run(2);
    }
    world.promote(learner);
    world.enter();
    world.run(6);
    for gone in [0, 1] {
        world.crash(gone);
    }
    world.replicas(&[learner]);
    world.run(6);
    assert_eq!(world.processes[learner].engine.standing(), Standing::Primary);
    world.assert_level();
}
