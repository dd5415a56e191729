//! FiDe's claims about HSUC, tested on a log behind views.

use super::{ByAcknowledgement, Config};
use crate::engine::Engine as _;
use crate::engine::view_log::tests::world::{WorldOf, outlives_all_but_one_of_five, outlives_all_but_one_of_five_at_once, quiet};
use crate::replica::{Execution, Standing};

type World = WorldOf<ByAcknowledgement>;

/// Appendix A.3, the three messages of a run without failures.
#[test]
fn a_leader_decides_once_every_replica_has_adopted_its_proposal() {
    let mut world = World::led(3, quiet());
    let index = world.write(0, 1, 0).expect("it leads");
    world.turns(0, 1);
    world.deliver(0);
    world.turns(0, 1);
    assert!(world.processes[0].engine.committed() < index, "it stands in all memories, and no process has looked there");
    world.turns(1, 1);
    world.deliver(1);
    world.turns(0, 1);
    assert!(world.processes[0].engine.committed() < index, "one of two has acknowledged it");
    world.turns(2, 1);
    world.deliver(2);
    world.turns(0, 1);
    assert_eq!((world.processes[0].engine.committed(), world.acknowledged.as_slice()), (index, &[index][..]));
}

/// "HSUC can tolerate up to f = N - 1 failures."
#[test]
fn all_but_one_of_the_replicas_may_die() {
    for execution in Execution::ALL {
        outlives_all_but_one_of_five::<ByAcknowledgement>(Config { execution, ..quiet() });
    }
}

/// The same, without a moment between the deaths.
#[test]
fn all_but_one_of_the_replicas_may_die_at_once() {
    for execution in Execution::ALL {
        outlives_all_but_one_of_five_at_once::<ByAcknowledgement>(Config { execution, ..quiet() });
    }
}

/// `correct` is the replicas of the newest view that a process has entered.
#[test]
fn the_replicas_of_the_newest_view_count_for_commits_and_learners_do_not() {
    let mut world = World::led(3, quiet());
    let group = |world: &World, process: usize| -> Vec<usize> {
        world.processes[process].engine.committed_group().iter().map(|id| world.index_of(*id)).collect()
    };
    assert_eq!(group(&world, 1), [0, 1, 2]);
    let learner = world.join();
    world.enter();
    assert_eq!((group(&world, 0), group(&world, learner)), (vec![0, 1, 2], vec![0, 1, 2]));
    world.crash(0);
    world.replicas(&[1, 2]);
    assert_eq!(group(&world, 1), [1, 2]);
}

/// "If the leader decides on v and then crashes before its decision can reach any other process, any of the following leaders will propose v as it was adopted as own proposal."
#[test]
fn what_a_leader_alone_has_decided_is_what_the_next_one_proposes() {
    for execution in Execution::ALL {
        let mut world = World::led(3, Config { execution, ..quiet() });
        let index = world.write(0, 1, 0).expect("it leads");
        world.run(2);
        assert_eq!(world.acknowledged, [index]);
        assert!((1..3).all(|process| world.processes[process].engine.committed() < index), "nobody else has heard of it");
        world.crash(0);
        world.replicas(&[1, 2]);
        world.run(6);
        assert!((1..3).all(|process| world.processes[process].engine.last() == index));
        assert_eq!(world.processes[1].engine.committed(), index);
    }
}

/// TRAPS 21: acknowledgements to a dead leader do not count for the next one.
#[test]
fn a_new_leader_decides_by_what_has_been_acknowledged_to_itself() {
    let mut world = World::led(3, quiet());
    let index = world.write(0, 1, 0).expect("it leads");
    world.run(1);
    world.crash(0);
    world.replicas(&[1, 2]);
    world.turns(1, 2);
    world.deliver(1);
    world.turns(1, 2);
    assert_ne!(world.processes[1].engine.standing(), Standing::Primary, "the other one has not taken the entry from its lane");
    world.run(3);
    assert_eq!((world.processes[1].engine.standing(), world.processes[1].engine.committed()), (Standing::Primary, index));
}

/// TRAPS 25: a suspicion counts once a view excludes the suspect, and then for good.
#[test]
fn a_replica_that_has_entered_a_view_acknowledges_nothing_to_a_leader_that_it_excludes() {
    let mut world = World::led(3, quiet());
    // No clock stops the old leader.
    world.clocks_lie = true;
    let index = world.write(0, 1, 0).expect("it leads, and nobody has told it otherwise");
    world.turns(0, 1);
    world.deliver(0);
    world.decide(&[(1, crate::membership::Roles::REPLICA), (2, crate::membership::Roles::REPLICA)]);
    world.learn(2);
    for process in [2, 1, 2] {
        world.turns(process, 1);
        world.deliver(process);
    }
    world.turns(0, 2);
    assert!(world.processes[0].engine.committed() < index && world.acknowledged.is_empty(), "one of its replicas has left it");
    world.learn(1);
    world.run_only(&[1, 2], 6);
    assert_eq!(world.processes[1].engine.standing(), Standing::Primary);
    let later = world.write(1, 2, 0).expect("it leads");
    world.run(6);
    assert!(world.acknowledged.contains(&later));
}

/// Nothing is executed before it is decided, at the leader as elsewhere.
#[test]
fn a_leader_that_executes_on_commit_shows_nothing_that_is_not_decided() {
    let mut world = World::led(3, Config { execution: Execution::Committed, ..quiet() });
    let index = world.write(0, 1, 0).expect("it leads");
    world.turns(0, 2);
    assert!(world.processes[0].machine.keys.is_empty() && world.processes[0].engine.applied() < index);
    world.run(3);
    assert_eq!((world.processes[0].machine.keys.len(), world.processes[0].engine.applied()), (1, index));
}

/// A learner that joins while entries are under way gets a state that includes all of them.
#[test]
fn a_learner_begins_once_what_is_under_way_is_decided() {
    let mut world = World::led(2, Config { execution: Execution::Committed, ..quiet() });
    world.write(0, 1, 0);
    world.turns(0, 1);
    let learner = world.join();
    world.enter();
    for key in 2..40 {
        world.write(0, key, 0);
        world.run(2);
    }
    assert!(world.processes[0].events.iter().any(|event| matches!(event, crate::engine::Event::CaughtUp(_))), "it has the state");
    world.promote(learner);
    world.enter();
    world.run(6);
    world.processes[0].engine.handle_peer_gone(crate::engine::view_log::tests::world::peer(1), false);
    world.replicas(&[0, learner]);
    world.write(0, 1, 0);
    world.run(3);
    world.crash(0);
    world.replicas(&[learner]);
    world.run(6);
    assert_eq!(world.processes[learner].engine.standing(), Standing::Primary);
    world.assert_level();
}
