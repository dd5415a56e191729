//! A majority is lost for good, and one replica continues alone.

use martlet_fabric::Incarnation;

use super::world::{Cluster, id, tiny, tiny_but};
use crate::basics::ProcessId;
use crate::engine::Engine as _;
use crate::replica::Execution;
use crate::replica::StateMachine as _;

/// The last entry was acknowledged, and the follower does not know yet that it is committed.
fn all_that_was_acknowledged_is_brought_along(execution: Execution) {
    let config = tiny_but(|config| {
        config.execution = execution;
        config.flush_idle_ns = u64::MAX >> 1;
    });
    let mut c = Cluster::<true>::new(3, config);
    c.until_led_by(0);
    let written: Vec<_> = (0..8).map(|_| c.write_through(0)).collect();
    let (last, ballot) = (*written.last().expect("some"), c.nodes[0].engine.ballot());
    c.until("all have it", |c| c.nodes.iter().all(|node| node.engine.last() >= last));
    assert!(c.nodes[2].engine.committed() < last, "it has heard, and this test is of no use");
    (0..2).for_each(|n| c.kill(n));
    let acknowledged: Vec<_> = c.acknowledged.keys().copied().collect();
    let (mut next, gathered) = c.go_on_from(2);
    assert!(acknowledged.iter().all(|index| *index <= gathered.last), "{gathered:?} lacks some of {acknowledged:?}");
    assert_eq!(next.nodes[0].machine.log.last().map(|(index, _)| *index), Some(last), "the machine shows all of it");

    next.until("it leads alone", |c| c.leads(0));
    assert!(next.nodes[0].engine.ballot() > ballot, "a fencing token of before would be later");
    let index = next.write_through(0);
    assert!(index > gathered.last);
    let n = next.spawn(None);
    let newcomer = ProcessId { incarnation: Incarnation(id(n).incarnation.0 + 1), ..id(n) };
    next.nodes[0].engine.add(newcomer);
    next.until("the newcomer is taught", |c| {
        let engine = &c.nodes[n].engine;
        engine.is_complete() && engine.last() >= index && engine.group().is_some_and(|group| group.contains(newcomer))
    });
    let index = next.write_through(0);
    next.until("it is level", |c| c.nodes[n].engine.last() >= index);
    let ahead = next.nodes[0].machine.clone();
    let (next, gathered) = next.go_on_from(n);
    assert_eq!(gathered.last, index);
    assert_eq!(next.nodes[0].machine.digest(), ahead.digest(), "the one that was taught can be gone on from as well");
}

#[test]
fn all_that_was_acknowledged_is_brought_along_where_what_is_committed_is_executed() {
    all_that_was_acknowledged_is_brought_along(Execution::Committed);
}

#[test]
fn all_that_was_acknowledged_is_brought_along_where_leaders_execute_ahead() {
    all_that_was_acknowledged_is_brought_along(Execution::Speculative);
}

#[test]
fn one_that_has_been_taught_a_part_is_not_gone_on_from() {
    use crate::engine::Engine as _;
    let mut c = Cluster::<true>::new(1, tiny());
    c.until_led_by(0);
    let n = c.spawn(None);
    let node = &mut c.nodes[n];
    assert_eq!(node.engine.gather(&mut node.fabric, &mut node.machine), None);
}
