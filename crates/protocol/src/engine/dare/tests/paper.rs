//! The paper's rules, by section.

use martlet_fabric::LocalRegion;
use martlet_fabric::primitive::Ordering;

use super::world::{Cluster, id, tiny};
use crate::basics::ViewNumber;
use crate::basics::layout::LOG_LANE;
use crate::engine::dare::layout::{WORDS, control, lane, term_of, vote_of, words};
use crate::engine::{Engine as _, Event};
use crate::membership::{Member, Roles, View};
use crate::replica::group::Phase;
use crate::replica::{HandOverState, ResizeError, Standing, StateMachine as _};

/// Of the servers, which the leader of term 1.
fn led(servers: usize) -> (Cluster, usize) {
    let mut cluster = Cluster::new(servers, tiny());
    let leader = cluster.until_led();
    (cluster, leader)
}

/// The two beside one of three.
pub(super) fn others(one: usize) -> [usize; 2] {
    [(one + 1) % 3, (one + 2) % 3]
}

#[test]
fn dare_3_2_leads_after_votes_of_a_majority_and_not_of_all() {
    let mut cluster = Cluster::new(5, tiny());
    cluster.kill(3);
    cluster.kill(4);
    let leader = cluster.until_led();
    cluster.write_through(leader);
    let mut alone = Cluster::new(3, tiny());
    alone.kill(1);
    alone.kill(2);
    alone.run(5_000_000);
    assert_eq!(alone.leader(), None, "its own vote is no majority");
    assert!(alone.nodes[0].engine.term() <= 1, "a server that cannot reach a majority raises no term");
}

#[test]
fn dare_3_2_one_server_stands_where_all_logs_are_alike() {
    let (mut cluster, leader) = led(5);
    let index = cluster.write_through(leader);
    cluster.until("all have it", |c| c.nodes.iter().all(|node| node.engine.committed() >= index));
    cluster.kill(leader);
    let next = cluster.until_led();
    assert_eq!(cluster.nodes[next].engine.term(), 2, "nobody else has stood, although all have seen the death at one time");
}

#[test]
fn dare_3_2_2_a_voter_takes_its_log_away_before_it_answers() {
    let (mut cluster, leader) = led(3);
    let [one, other] = others(leader);
    // Two servers lose the leader, which does not know of it.
    cluster.world.pause(leader);
    cluster.until("another leader", |c| c.leads(one) || c.leads(other));
    let next = if cluster.leads(one) { one } else { other };
    cluster.write_through(next);
    cluster.world.resume(leader);
    let before = cluster.acknowledged.len();
    if cluster.leads(leader) {
        cluster.write(leader).expect("it leads, and has room");
        cluster.read(leader);
    }
    cluster.until("the old leader follows", |c| !c.leads(leader) && c.nodes[leader].engine.term() == c.nodes[next].engine.term());
    assert_eq!(
        (cluster.acknowledged.len(), cluster.nodes[leader].reads),
        (before, 0),
        "an outdated leader answers neither writes nor reads"
    );
    cluster.until("level", |c| c.is_level());
}

#[test]
fn dare_3_2_3_a_decision_stands_at_a_majority_before_the_answer() {
    let (mut cluster, leader) = led(3);
    let [one, other] = others(leader);
    cluster.kill(leader);
    let decided = |c: &Cluster, by: usize, at: usize| c.control(at, by, control::PRIVATE);
    let (mut votes, mut requests) = (false, false);
    cluster.until("another leader", |c| {
        for (voter, candidate) in [(one, other), (other, one)] {
            // Of the terms that either is in after the first; of an older one its decision stands nowhere any more.
            let term = c.nodes[voter].engine.term();
            if term > 1 && c.control(candidate, voter, control::VOTE) == vote_of(term) {
                assert_eq!(decided(c, voter, candidate), vote_of(term) | (candidate as u64 + 1), "it votes, and nobody knows");
                votes = true;
            }
            let term = c.nodes[candidate].engine.term();
            if term > 1 && c.control(voter, candidate, control::REQUEST) == term {
                assert_eq!(decided(c, candidate, voter), vote_of(term) | (candidate as u64 + 1), "a candidate's own vote is as durable");
                requests = true;
            }
        }
        c.leads(one) || c.leads(other)
    });
    assert!(votes && requests);
}

#[test]
fn dare_3_2_3_a_candidate_with_an_older_log_is_refused() {
    let (mut cluster, leader) = led(3);
    let [one, other] = others(leader);
    cluster.until("both follow", |c| [one, other].iter().all(|n| c.nodes[*n].engine.committed() == c.nodes[leader].engine.committed()));
    // Its memory would take what is written there.
    cluster.part(leader, other);
    cluster.world.pause(other);
    cluster.write_through(leader);
    // The one that has missed it is the first to see that the leader is gone.
    cluster.world.pause(one);
    cluster.kill(leader);
    cluster.world.resume(other);
    cluster.run(200_000);
    assert!(!cluster.leads(other));
    cluster.world.resume(one);
    assert_eq!(cluster.until_led(), one);
    cluster.until("level", |c| c.is_level());
}

#[test]
fn dare_3_2_2_a_false_suspicion_of_one_server_deposes_nobody() {
    let (mut cluster, leader) = led(3);
    let [_, other] = others(leader);
    cluster.part(leader, other);
    cluster.run(10_000_000);
    assert!(cluster.leads(leader));
    assert_eq!(cluster.nodes[leader].engine.term(), 1, "it has looked, and raised no term");
    assert_eq!(cluster.word(other, words::TERM), 1);
}

#[test]
fn dare_3_3_a_new_leader_commits_what_it_finds_by_an_entry_of_its_own_term() {
    let (mut cluster, leader) = led(3);
    let first = cluster.write_through(leader);
    cluster.until("all have applied it", |c| c.nodes.iter().all(|node| node.engine.applied() >= first));
    let index = cluster.write(leader).expect("it leads, and has room");
    let [one, other] = others(leader);
    cluster.until("one has it", |c| [one, other].iter().any(|n| c.nodes[*n].engine.last() >= index));
    cluster.kill(leader);
    let next = cluster.until_led();
    let node = &cluster.nodes[next];
    assert!(node.engine.committed() > index, "an entry of its own stands behind");
    assert!(node.events.iter().any(|event| matches!(event, Event::TookOver { recovered } if *recovered >= 1)));
    assert_eq!(node.engine.fencing_token(), Some(2));
    cluster.until("level", |c| c.is_level());
}

#[test]
fn dare_3_3_reads_wait_for_the_terms_of_a_majority() {
    let (mut cluster, leader) = led(3);
    cluster.write_through(leader);
    cluster.read(leader);
    cluster.until("an answer", |c| c.nodes[leader].reads == 1);
    others(leader).into_iter().for_each(|other| cluster.part(leader, other));
    cluster.read(leader);
    cluster.run(200_000);
    assert_eq!(cluster.nodes[leader].reads, 1, "trap 18: no majority is a no");
}

#[test]
fn dare_3_3_one_that_shows_a_higher_term_vouches_for_no_read_although_nobody_tells_the_leader() {
    let (mut cluster, leader) = led(3);
    cluster.write_through(leader);
    others(leader).into_iter().for_each(|other| cluster.world.pause(other));
    cluster.read(leader);
    cluster.until("their memory answers", |c| c.nodes[leader].reads == 1);
    // As of servers that have voted, and whose word to the old leader is on its way.
    for other in others(leader) {
        cluster.memory(other, LocalRegion::Public(WORDS))[words::TERM].store(2, Ordering::Release);
    }
    cluster.read(leader);
    cluster.until("it leads no more", |c| !c.leads(leader));
    assert_eq!(cluster.nodes[leader].reads, 1);
}

#[test]
fn dare_3_3_1_the_commit_pointer_is_lazy_and_comes_all_the_same() {
    let (mut cluster, leader) = led(3);
    let index = cluster.write_through(leader);
    cluster.until("all have applied it", |c| c.nodes.iter().all(|node| node.engine.applied() >= index));
    assert!(cluster.is_level());
}

#[test]
fn dare_3_3_1_a_server_is_written_to_while_another_one_has_not_answered() {
    let mut cluster = Cluster::new(3, tiny());
    cluster.world.pause(2);
    let leader = cluster.until_led();
    cluster.write_through(leader);
    cluster.world.resume(2);
    cluster.until("level", |c| c.is_level() && c.nodes[2].machine.commands() == 1);
}

#[test]
fn dare_3_3_1_pointers_count_under_the_grant_that_they_were_written_for() {
    let (mut cluster, leader) = led(3);
    cluster.write_through(leader);
    for follower in (0..3).filter(|n| *n != leader) {
        cluster.until("it follows", |c| c.nodes[follower].engine.committed() >= c.nodes[leader].engine.committed());
        let region = LocalRegion::Lane { writer: cluster.peer(follower, leader), name: LOG_LANE };
        let lane_word = |word: usize| cluster.memory(follower, region)[word].load(Ordering::Acquire);
        let grant = lane_word(lane::GRANT);
        assert_eq!((term_of(grant), grant), (1, cluster.control(leader, follower, control::VOTE)));
        assert!(lane_word(lane::TAIL) >= lane_word(lane::CUT));
    }
}

#[test]
fn dare_3_3_2_the_log_wraps_around_and_a_server_that_was_away_recovers() {
    let (mut cluster, leader) = led(3);
    let [one, other] = others(leader);
    cluster.world.pause(other);
    for _ in 0..400 {
        cluster.write_through(leader);
    }
    assert!(cluster.nodes[leader].engine.log.head() > 8192, "more than a lap was pruned");
    cluster.world.resume(other);
    cluster.until("level", |c| c.is_level() && c.nodes[other].engine.is_complete() && c.nodes[other].machine.commands() == 400);
    assert!(cluster.nodes[one].engine.log.head() > 8192, "the others hear of the head");
}

#[test]
fn dare_3_3_2_the_head_waits_for_a_server_that_is_slow_and_not_suspected() {
    let mut config = tiny();
    config.shared.heartbeat_interval_ns = 200_000;
    let mut cluster = Cluster::new(3, config);
    let leader = cluster.until_led();
    let index = cluster.write_through(leader);
    cluster.until("all have applied it", |c| c.nodes.iter().all(|node| node.engine.applied() >= index));
    let [_, slow] = others(leader);
    let applied = cluster.nodes[slow].engine.log.applied().position;
    cluster.world.pause(slow);
    let peer = cluster.peer(leader, slow);
    let mut most = 0;
    cluster.until("it is suspected", |c| {
        if c.leads(leader) && c.nodes[leader].engine.has_room(100) {
            c.write(leader).expect("it leads, and has room");
        }
        let engine = &c.nodes[leader].engine;
        let is_alive = engine.peer(peer).is_some_and(|peer| peer.watch.is_alive());
        if is_alive {
            assert!(engine.log.head() <= applied, "it would have to recover");
            most = most.max(engine.log.tail().position - applied);
        }
        !is_alive
    });
    assert!(most > 8192 / 4, "{most} bytes: there is something to prune");
}

#[test]
fn dare_4_2_2_a_leader_that_reaches_nobody_stops() {
    let (mut cluster, leader) = led(3);
    others(leader).into_iter().for_each(|other| cluster.part(leader, other));
    cluster.write(leader).expect("it leads, and has room");
    cluster.until("another leader", |c| c.leader().is_some_and(|n| n != leader));
    cluster.until("it gets nowhere, and knows", |c| !c.leads(leader));
    assert!(cluster.acknowledged.is_empty());
}

#[test]
fn a_leader_hands_over_and_its_successor_leads_at_once() {
    let (mut cluster, leader) = led(3);
    cluster.write_through(leader);
    let [_, to] = others(leader);
    cluster.until("it can succeed", |c| c.nodes[leader].engine.hand_over(Some(id(to).node)).is_ok());
    cluster.until("it leads", |c| c.leads(to));
    cluster.until("the old one knows", |c| c.nodes[leader].engine.hand_over_state() == Some(HandOverState::Done));
    assert_eq!(cluster.nodes[to].engine.term(), 2, "nobody else has stood");
    cluster.write_through(to);
    cluster.until("all follow", |c| (0..3).all(|n| n == to || c.nodes[n].engine.standing() == Standing::Backup { primary: Some(id(to)) }));
}

#[test]
fn the_others_hold_back_for_a_successor_that_lives_and_is_held_up() {
    let (mut cluster, leader) = led(3);
    cluster.write_through(leader);
    let [_, to] = others(leader);
    cluster.until("it can succeed", |c| c.nodes[leader].engine.hand_over(Some(id(to).node)).is_ok());
    cluster.until("it is told", |c| !c.leads(leader));
    cluster.world.pause(to);
    let silence_ns = cluster.nodes[leader].engine.config.silence_ns;
    cluster.run(silence_ns / 2);
    assert!((0..3).all(|n| !cluster.leads(n)), "nobody overtakes it");
    cluster.world.resume(to);
    cluster.until("it leads", |c| c.leads(to));
    assert_eq!(cluster.nodes[to].engine.term(), 2, "nobody else has stood");

    // One that dies is not waited for.
    let last = others(to)[0];
    cluster.until("it can succeed", |c| c.nodes[to].engine.hand_over(Some(id(last).node)).is_ok());
    cluster.until("it is told", |c| !c.leads(to));
    cluster.kill(last);
    cluster.until("another one leads", |c| (0..3).any(|n| n != last && c.leads(n)));
}

#[test]
fn each_of_many_leaders_in_turn_keeps_what_was_acknowledged() {
    let mut cluster = Cluster::new(7, tiny());
    for _ in 0..3 {
        let leader = cluster.until_led();
        for _ in 0..5 {
            cluster.write_through(leader);
        }
        cluster.kill(leader);
    }
    let leader = cluster.until_led();
    cluster.write_through(leader);
    cluster.until("level", |c| c.is_level());
    assert_eq!(cluster.acknowledged.len(), 16);
}

/// All learn a view of these replicas.
pub(super) fn tell_view(cluster: &mut Cluster, number: u64, replicas: impl Iterator<Item = usize>) {
    let members = replicas.map(|n| Member::new(id(n), Roles::REPLICA)).collect();
    let view = View { number: ViewNumber(number), lease_ns: 1, fence_ns: 1, compatible: false, level: 1, members, departed: Vec::new() };
    cluster.nodes.iter_mut().for_each(|node| node.engine.handle_view(&view));
}

/// Turns until the group at `n` has so many members, and no change is under way. Returns the phases that it went through.
pub(super) fn until_stable(cluster: &mut Cluster, n: usize, members: usize) -> Vec<Phase> {
    let mut phases: Vec<Phase> = Vec::new();
    cluster.until("the group is stable", |c| {
        let group = c.nodes[n].engine.group().expect("a founder").clone();
        if phases.last() != Some(group.phase()) {
            phases.push(group.phase().clone());
        }
        let is_committed = !c.nodes[n].engine.log.is_group_changing();
        is_committed && group.members().len() == members && *group.phase() == Phase::Stable
    });
    phases
}

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
    // The places stay when one goes, and so does the number that it takes.
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
    // The next leader ends what was begun, and may have no place itself.
    cluster.until("the change has ended", |c| {
        let Some(next) = c.leader() else { return false };
        let group = c.nodes[next].engine.group().expect("a member");
        *group.phase() == Phase::Stable && (group.places(), group.members().len()) == (3, 2) && !group.contains(id(leader))
    });
    let next = cluster.until_led();
    cluster.write_through(next);
}
