//! Changes of the group (DARE section 3.4), a test for each rule.

use super::world::{Cluster, alike, id, led, others, tell_view, until_stable};
use crate::engine::dare::layout::{control, term_of, vote_of};
use crate::engine::test_cluster::Watched as _;
use crate::engine::{Engine as _, Event};
use crate::replica::group::Phase;
use crate::replica::{ResizeError, StateMachine as _};

#[test]
fn dare_3_4_a_server_comes_to_a_full_group_in_three_phases_and_recovers_from_anybody_but_the_leader() {
    let (mut cluster, leader) = led(3);
    for _ in 0..20 {
        cluster.write_through(leader);
    }
    cluster.spawn(None);
    tell_view(&mut cluster, 2, 0..4);
    let phases = until_stable(&mut cluster, leader, 4);
    assert!(phases.contains(&Phase::Extended(id(3))), "{phases:?}");
    assert!(
        phases.iter().any(|phase| matches!(phase, Phase::Transitional { old, new, .. } if old.len() == 3 && new.len() == 4)),
        "{phases:?}"
    );
    assert_eq!(cluster.control(leader, 3, control::RECOVER), 0, "the leader was not asked");
    assert!(others(leader).into_iter().any(|other| cluster.control(other, 3, control::RECOVER) > 0));
    cluster.until("level", |c| c.is_level() && c.nodes[3].machine.commands() == 20);
    // The notification after its recovery (section 3.4) is a vote.
    assert_eq!(term_of(cluster.control(leader, 3, control::VOTE)), cluster.nodes[leader].engine.term());
}

#[test]
fn dare_3_4_a_group_is_resized_under_writes_and_its_leader_stays() {
    let (mut cluster, leader) = led(5);
    let next = (leader + 1) % 5;
    tell_view(&mut cluster, 2, 0..5);
    cluster.write_through(leader);
    assert_eq!(cluster.nodes[next].engine.resize(3), Err(ResizeError::NotLeading));
    assert_eq!(cluster.nodes[leader].engine.resize(17), Err(ResizeError::TooMany { places: 17, most: 16 }));
    cluster.nodes[leader].engine.resize(3).expect("it leads");
    let first = cluster.write(leader).expect("it leads, and has room");
    let phases = until_stable(&mut cluster, leader, 3);
    assert!(
        phases.iter().any(|phase| matches!(phase, Phase::Transitional { old, new, .. } if old.len() == 5 && new.len() == 3)),
        "{phases:?}"
    );
    let group = cluster.nodes[leader].engine.group().expect("a founder").clone();
    assert!(group.contains(id(leader)) && (group.places(), group.majority()) == (3, 2));
    // The places stay when a member leaves, and so does the number needed for a majority.
    let gone = group.members().iter().position(|member| *member != id(leader)).expect("two others");
    let gone = usize::from(group.members()[gone].node.0);
    cluster.kill(gone);
    until_stable(&mut cluster, leader, 2);
    assert_eq!(cluster.nodes[leader].engine.places(), Some((3, 3)));
    cluster.write_through(leader);
    assert!(cluster.acknowledged.contains_key(&first));
    cluster.until("level", |c| {
        let members: Vec<usize> = (0..5).filter(|n| group.contains(id(*n)) && *n != gone).collect();
        members.iter().all(|n| c.nodes[*n].machine.digest() == c.nodes[leader].machine.digest())
    });
}

#[test]
fn dare_3_4_a_change_of_size_goes_on_under_the_next_leader() {
    let (mut cluster, leader) = led(5);
    tell_view(&mut cluster, 2, 0..5);
    cluster.write_through(leader);
    cluster.nodes[leader].engine.resize(3).expect("it leads");
    let is_in_transition =
        |c: &Cluster, n: usize| matches!(c.nodes[n].engine.group().map(|g| g.phase().clone()), Some(Phase::Transitional { .. }));
    cluster.until("some know of the transition", |c| (0..5).filter(|n| is_in_transition(c, *n)).count() >= 3);
    cluster.kill(leader);
    // The next leader completes the change, and may have no place itself.
    cluster.until("the change has ended", |c| {
        let Some(next) = c.leader() else { return false };
        let group = c.nodes[next].engine.group().expect("a member");
        *group.phase() == Phase::Stable && (group.places(), group.members().len()) == (3, 2) && !group.contains(id(leader))
    });
    let next = cluster.until_led();
    cluster.write_through(next);
}

#[test]
fn dare_3_4_a_configuration_counts_as_soon_as_it_stands_in_a_log() {
    let (mut cluster, leader, _) = alike(5);
    tell_view(&mut cluster, 2, 0..5);
    cluster.write_through(leader);
    cluster.nodes[leader].engine.resize(3).expect("it leads");
    let mut early = [false; 2];
    cluster.until("the group is stable", |c| {
        for (n, node) in c.nodes.iter().enumerate() {
            let engine = &node.engine;
            let group = engine.group().expect("a founder");
            if engine.group_since().is_some_and(|since| since > engine.committed()) {
                assert!(engine.log.is_group_changing());
                early[usize::from(n != leader)] |= matches!(group.phase(), Phase::Transitional { .. });
            }
        }
        let group = c.nodes[leader].engine.group().expect("a founder");
        group.places() == 3 && *group.phase() == Phase::Stable && !c.nodes[leader].engine.log.is_group_changing()
    });
    assert_eq!(early, [true, true], "the leader's, and another one's");
}

#[test]
fn dare_3_4_a_dead_server_is_removed_in_one_phase_and_its_connection_is_given_up() {
    let (mut cluster, leader, _) = alike(5);
    tell_view(&mut cluster, 2, 0..5);
    cluster.write_through(leader);
    let gone = (leader + 1) % 5;
    let peer = cluster.peer(leader, gone);
    cluster.kill(gone);
    assert_eq!(until_stable(&mut cluster, leader, 4), [Phase::Stable]);
    tell_view(&mut cluster, 3, (0..5).filter(|n| *n != gone));
    cluster.until("it is forgotten", |c| c.events(leader, |event| *event == Event::Forget(peer)) == 1);
    cluster.write_through(leader);
    cluster.until("level", |c| c.is_level());
}

#[test]
fn dare_3_4_a_server_that_is_being_added_to_a_full_group_does_not_take_part() {
    let (mut cluster, leader, _) = alike(3);
    cluster.spawn(None);
    tell_view(&mut cluster, 2, 0..4);
    let extended = |c: &Cluster, n: usize| c.nodes[n].engine.group().is_some_and(|group| *group.phase() == Phase::Extended(id(3)));
    cluster.until("the others know of it", |c| (0..3).all(|n| extended(c, n)));
    // A majority of three and no more: the fourth would make it up.
    let [one, other] = others(leader);
    cluster.world.pause(other);
    cluster.kill(leader);
    cluster.run(100_000);
    assert!(cluster.leader().is_none());
    assert!(cluster.control(one, 3, control::VOTE) < vote_of(2), "it has not voted");
    assert_eq!(cluster.events(3, |event| matches!(event, Event::AskedPermission)), 0, "nor stood");
    cluster.world.resume(other);
    let next = cluster.until_led();
    assert_ne!(next, 3);
    cluster.until("it is added in the end", |c| c.leader().is_some_and(|n| c.nodes[n].engine.group().is_some_and(|g| g.contains(id(3)))));
}

#[test]
fn dare_3_4_a_leader_serves_while_a_server_recovers() {
    let (mut cluster, leader, _) = alike(3);
    for _ in 0..100 {
        cluster.write_through(leader);
    }
    cluster.spawn(None);
    tell_view(&mut cluster, 2, 0..4);
    cluster.until("it has begun", |c| c.nodes[3].engine.reading.is_some());
    let mut meanwhile = 0;
    while !cluster.nodes[3].engine.is_complete() {
        cluster.write_through(leader);
        meanwhile += 1;
    }
    assert!(meanwhile > 0);
    cluster.until("level", |c| c.is_level() && c.nodes[3].engine.is_complete());
    assert_eq!(cluster.nodes[3].machine.digest(), cluster.nodes[leader].machine.digest());
}

#[test]
fn dare_3_4_servers_that_lag_for_ever_are_not_asked_over_and_over() {
    let (mut cluster, leader, _) = alike(5);
    let rest: Vec<usize> = (0..5).filter(|n| *n != leader).collect();
    let (fed, lagging) = rest.split_at(2);
    lagging.iter().for_each(|n| cluster.part(leader, *n));
    let tails: Vec<u64> = lagging.iter().map(|n| cluster.nodes[*n].engine.log.tail().position).collect();
    while tails.iter().any(|tail| cluster.nodes[leader].engine.log.retains(*tail)) {
        cluster.write_through(leader);
    }
    // It reaches the leader, and otherwise only servers that the leader does not reach.
    cluster.spawn(None);
    fed.iter().for_each(|n| cluster.part(5, *n));
    tell_view(&mut cluster, 2, 0..6);
    let met = |c: &Cluster, n: usize| c.nodes[n].engine.met(id(5)).is_some();
    cluster.until("they meet", |c| met(c, leader) && lagging.iter().all(|n| met(c, *n)));
    cluster.until("one that lags is asked", |c| lagging.iter().any(|n| c.control(*n, 5, control::RECOVER) > 0));
    assert_eq!(cluster.control(leader, 5, control::RECOVER), 0, "the leader is asked last");
    cluster.until("it is taken in", |c| c.nodes[leader].engine.group().is_some_and(|group| group.contains(id(5))));
    let index = cluster.write_through(leader);
    cluster.until("it follows", |c| c.nodes[5].engine.is_complete() && c.nodes[5].engine.applied() >= index);
    assert_eq!(cluster.nodes[5].machine.digest(), cluster.nodes[leader].machine.digest());
}

/// Five servers whose group is to have three places: the leader, the two others that stay, and two that leave. Of those two, only the first has the entry that
/// removes them.
fn one_that_goes_knows() -> (Cluster, usize, [usize; 2], [usize; 2]) {
    let (mut cluster, leader, _) = alike(5);
    tell_view(&mut cluster, 2, 0..5);
    cluster.write_through(leader);
    let rest: Vec<usize> = (0..5).filter(|n| *n != leader).collect();
    let (stay, go) = ([rest[0], rest[1]], [rest[2], rest[3]]);
    cluster.nodes[leader].engine.resize(3).expect("it leads");
    let leaves_out = |c: &Cluster, n: usize| c.nodes[n].engine.group().is_some_and(|group| !group.contains(id(go[0])));
    cluster.until("the leader proposes it", |c| leaves_out(c, leader));
    // Both groups decide with those that stay.
    [stay[0], stay[1], go[1]].iter().for_each(|n| cluster.part(leader, *n));
    cluster.until("one that goes has it", |c| leaves_out(c, go[0]));
    assert!([stay[0], stay[1], go[1]].iter().all(|n| !leaves_out(&cluster, *n)), "nobody else has");
    assert!(!cluster.nodes[go[0]].engine.is_removed());
    (cluster, leader, stay, go)
}

#[test]
fn dare_3_4_a_server_that_goes_leads_until_that_is_committed() {
    let (mut cluster, leader, stay, go) = one_that_goes_knows();
    cluster.kill(leader);
    cluster.until_led_by(go[0]);
    let last = cluster.write_through(go[0]);
    cluster.until("one of those that stay leads", |c| stay.iter().any(|n| c.leads(*n)));
    assert!(cluster.nodes[go[0]].engine.is_removed());
    let next = cluster.until_led();
    assert!(stay.contains(&next) && cluster.nodes[next].engine.committed() >= last);
    cluster.write_through(next);
    let group = cluster.nodes[next].engine.group().expect("a member").clone();
    assert!(!group.contains(id(go[0])) && !group.contains(id(go[1])));
}

#[test]
fn dare_3_4_a_server_that_goes_is_elected_by_those_that_stay_and_does_not_count_itself() {
    let (mut cluster, leader, stay, go) = one_that_goes_knows();
    // Of the three that stay, only one can vote, as can all of those that leave: a majority of five, but not of three.
    cluster.world.pause(stay[0]);
    cluster.kill(leader);
    cluster.run(1_000_000);
    assert!(cluster.leader().is_none());
    assert!(cluster.events(go[0], |event| matches!(event, Event::AskedPermission)) > 0, "it stands");
    cluster.world.resume(stay[0]);
    let next = cluster.until_led();
    cluster.write_through(next);
}

#[test]
fn dare_3_4_a_server_that_knows_that_it_was_removed_never_stands() {
    let (mut cluster, leader, _) = alike(5);
    let gone = (leader + 1) % 5;
    let rest: Vec<usize> = (0..5).filter(|n| *n != leader && *n != gone).collect();
    tell_view(&mut cluster, 2, 0..5);
    cluster.write_through(leader);
    tell_view(&mut cluster, 3, (0..5).filter(|n| *n != gone));
    cluster.until("it knows, and has what the others have", |c| {
        let tail = c.nodes[leader].engine.log.tail();
        (0..5).all(|n| c.nodes[n].engine.log.tail() == tail) && c.nodes[gone].engine.is_removed()
    });
    // It alone acts, has as good a log as any server, and reads of the others that they hear only the dead leader.
    rest.iter().for_each(|n| cluster.world.pause(*n));
    cluster.kill(leader);
    cluster.run(1_000_000);
    assert_eq!(cluster.events(gone, |event| matches!(event, Event::AskedPermission)), 0);
    assert_eq!(cluster.nodes[gone].engine.term(), 1);
    rest.iter().for_each(|n| cluster.world.resume(*n));
    let next = cluster.until_led();
    assert_ne!(next, gone);
    cluster.write_through(next);
}
