//! The processes that decide on views are lost for good, and one replica continues alone.

use super::world::{World, quiet};
use crate::basics::{LogIndex, Time};
use crate::engine::PrimaryBackup;
use crate::engine::test_cluster::command;
use crate::engine::{Engine as _, Gathered};
use crate::membership::{Member, Roles, View};
use crate::replica::{Standing, StateMachine as _};

#[test]
fn all_that_was_acknowledged_is_brought_along_and_is_led_on_from() {
    let mut world = World::led(3, quiet());
    world.acknowledge_unread(10);
    let token = world.processes[0].engine.fencing_token().expect("it leads");
    world.crash(0);
    world.crash(1);
    let survivor = &mut world.processes[2];
    let gathered = survivor.engine.gather(&mut survivor.fabric, &mut survivor.machine).expect("it is a replica");
    assert_eq!((gathered.last, world.ids(2)), (LogIndex(10), (1..=10).collect()));

    let (digest, mut machine) = (world.processes[2].machine.digest(), world.processes[2].machine.clone());
    let mut alone = World::new(1, quiet());
    let me = alone.latest().members[0].id;
    let mut engine = PrimaryBackup::go_on_from(me, quiet(), &gathered);
    let number = gathered.first_view();
    let members = vec![Member::new(me, Roles::REPLICA.with(Roles::COORDINATOR))];
    engine.handle_view(&View { number, members, ..alone.latest().clone() });
    let fabric = &mut alone.processes[0].fabric;
    for turn in 0..3 {
        engine.post(Time(turn), fabric, &mut machine);
        engine.advance(Time(turn), Some(number), fabric, &mut machine);
    }
    assert_eq!((engine.standing(), engine.last(), machine.digest()), (Standing::Primary, LogIndex(10), digest));
    assert!(engine.fencing_token() > Some(token), "a fencing token of before would be later");
    let next = command(11, 1, 0);
    machine.chain(&next);
    assert_eq!(engine.propose(&next), Ok(LogIndex(11)));
}

#[test]
fn one_that_leads_is_gone_on_from_with_all_that_it_has_executed_and_who_learns_is_not() {
    let mut world = World::led(2, quiet());
    world.write(0, 1, 0);
    let leader = &mut world.processes[0];
    let gathered = leader.engine.gather(&mut leader.fabric, &mut leader.machine);
    assert_eq!(gathered.map(|gathered: Gathered| gathered.last), Some(LogIndex(1)), "though nobody else has it");
    let learner = world.join();
    world.enter();
    let learner = &mut world.processes[learner];
    assert_eq!(learner.engine.gather(&mut learner.fabric, &mut learner.machine), None);
}
