//! Sentences of the paper, each a test.

use martlet_fabric::{Fabric as _, PeerId, sim::Faults};

use super::world::{Cluster, id, tiny, tiny_but};
use crate::basics::{LogIndex, Time};
use crate::engine::Engine;
use crate::engine::mu::layout::Op;
use crate::engine::mu::{AbortReason, Config, Event, Group, MOST_PUT_OFF, Mu};
use crate::replica::Standing;

fn level<const HOST: bool>(c: &mut Cluster<HOST>) {
    c.until("all are level", |c| c.is_level());
    c.assert_level();
}

/// A cluster of three, led by 0, with some entries everywhere.
fn led<const HOST: bool>(config: Config) -> Cluster<HOST> {
    let mut c = Cluster::new(3, config);
    c.until_led_by(0);
    for _ in 0..5 {
        c.write_through(0);
    }
    level(&mut c);
    c
}

/// A leader that was deposed leads again.
fn until_led_again<const HOST: bool>(c: &mut Cluster<HOST>, n: usize) {
    let others = |c: &Cluster<HOST>| (0..c.nodes.len()).any(|m| m != n && c.leads(m));
    assert!(others(c), "nobody has deposed it");
    c.until("it leads again, alone", |c| c.leads(n) && !others(c));
}

fn certainly_dead(e: &Event, n: usize) -> bool {
    *e == Event::Suspected { process: id(n), certain: true }
}

/// Found by simulated life 110014559: two processes knew different groups, in which they had the same place, and both asked at the same moments for ever.
#[test]
fn two_who_want_to_lead_do_not_wait_equally_long_whatever_they_know_of_each_other() {
    let candidate = |me, failures| {
        let mut engine = Mu::new(id(me), tiny(), Some(Group::new(vec![id(0), id(me)])));
        engine.failures = failures;
        engine.back_off_ns()
    };
    for failures in 1..20 {
        let span_ns = tiny().retry_ns << failures.min(8);
        let [one, other] = [2, 3].map(|me| candidate(me, failures));
        assert!([one, other].iter().all(|ns| (2 * span_ns..3 * span_ns).contains(ns)), "{failures}: {one} {other}, of {span_ns}");
        assert!(one.abs_diff(other) > span_ns / 1000, "{failures}: {one} {other}");
    }
    assert_eq!(candidate(2, 0), tiny().retry_ns, "at first nobody stands in its way");
}

#[test]
fn mu_4_1_the_leader_waits_for_a_majority_of_acks_and_not_for_all() {
    let mut c = Cluster::<true>::new(5, tiny());
    c.kill(3);
    c.world.pause(4);
    c.until_led_by(0);
    c.write_through(0);
    c.world.pause(2);
    let index = c.write(0).expect("it leads");
    c.run(1_000_000);
    assert!(c.acknowledged.contains_key(&index), "two followers that give their permission make a majority, whether they run or not");
}

#[test]
fn mu_4_1_without_the_permission_of_a_majority_nobody_leads() {
    let mut c = Cluster::<true>::new(3, tiny());
    c.world.pause(1);
    c.world.pause(2);
    c.run(2_000_000);
    assert_eq!(c.leader(), None);
    c.world.resume(2);
    c.until_led_by(0);
}

#[test]
fn mu_4_1_a_leader_that_fails_to_write_to_a_confirmed_follower_aborts_and_proposes_again_if_it_still_leads() {
    let mut c = led::<true>(tiny());
    c.world.pause(0);
    c.until_led_by(1);
    c.world.resume(0);
    let lost = |e: &Event| matches!(e, Event::Aborted { reason: AbortReason::AccessLost(_) | AbortReason::Granted(_), .. });
    c.until("the old leader notices", |c| c.events(0, lost) == 1);
    // It has the lowest id, so it leads again, after asking for permission and choosing a proposal number again.
    c.until_led_by(0);
    c.until("the other notices", |c| !c.leads(1));
    c.write_through(0);
    level(&mut c);
}

#[test]
fn mu_4_1_the_new_leader_adopts_the_value_with_the_highest_proposal_number() {
    let mut c = led::<true>(tiny());
    // 0 writes X and 1 writes Y into the same slot, and both stop before any other process has either.
    let x = c.write(0).expect("it leads");
    c.begin_turn(0);
    c.world.pause(0);
    c.until_led_by(1);
    c.world.pause(2);
    let y = c.write(1).expect("it leads");
    assert_eq!(x, y);
    c.begin_turn(1);
    c.world.pause(1);
    c.kill(2);
    c.world.resume(0);
    c.world.resume(1);
    // 0 and 1 are a majority. Both have accepted something in this slot, 1 under a higher number.
    until_led_again(&mut c, 0);
    level(&mut c);
    assert_eq!(c.nodes[0].machine.log, c.nodes[1].machine.log);
    assert_eq!(c.nodes[1].machine.log.last().map(|(index, _)| *index), Some(y));
    assert_eq!(c.truth[&y], 7, "the seventh command, Y, and not the sixth");
}

#[test]
fn mu_4_2_listing_3_the_leader_brings_itself_up_to_date() {
    let mut c = led::<true>(tiny());
    c.world.pause(0);
    c.until_led_by(1);
    for _ in 0..20 {
        c.write_through(1);
    }
    c.world.resume(0);
    until_led_again(&mut c, 0);
    assert_eq!(c.nodes[0].engine.last(), LogIndex(25), "what it missed, from the log of a confirmed follower");
    assert_eq!(c.events(0, |e| matches!(e, Event::Learning { .. })), 0, "and not by a transfer of the state");
    c.write_through(0);
    level(&mut c);
}

#[test]
fn mu_4_2_listing_4_the_leader_brings_its_followers_up_to_date() {
    let mut c = led::<true>(tiny());
    c.world.pause(2);
    for _ in 0..10 {
        c.write_through(0);
    }
    c.kill(0);
    c.until("the death is seen", |c| c.events(1, |e| certainly_dead(e, 0)) == 1);
    c.world.resume(2);
    c.until_led_by(1);
    level(&mut c);
    assert_eq!(c.nodes[2].engine.applied(), LogIndex(15));
    assert_eq!(c.events(2, |e| matches!(e, Event::Learning { .. })), 0);
}

#[test]
fn mu_4_2_followers_commit_up_to_but_excluding_the_highest_entry() {
    let mut c = Cluster::<true>::new(3, tiny_but(|config| config.flush_idle_ns = 1_000_000_000));
    c.until("everybody has given its permission", |c| {
        c.leads(0) && c.nodes[0].engine.reign.as_ref().is_some_and(|r| r.followers.iter().filter(|f| f.acked.is_some()).count() == 2)
    });
    let index = c.write_through(0);
    c.run(200_000);
    for n in [1, 2] {
        assert_eq!((c.nodes[n].engine.last(), c.nodes[n].engine.applied()), (index, LogIndex(index.0 - 1)));
    }
    c.write_through(0);
    c.run(200_000);
    assert_eq!(c.nodes[1].engine.applied(), index, "the next entry carries the word");
}

#[test]
fn mu_4_2_in_the_common_case_a_propose_is_one_write_to_each_follower() {
    let mut c = led::<true>(tiny());
    let mut fewest = u64::MAX;
    for _ in 0..200 {
        let index = c.write(0).expect("it leads");
        let before = c.world.operations();
        c.begin_turn(0);
        fewest = fewest.min(c.world.operations() - before);
        c.end_turn(0);
        c.until("the write is acknowledged", |c| c.acknowledged.contains_key(&index));
    }
    assert_eq!(fewest, 2);
}

/// The operations that have completed at the leader since the last call, by follower. No other process runs meanwhile, and the leader draws no conclusions.
fn completed<const HOST: bool>(c: &mut Cluster<HOST>, leader: usize) -> Vec<(PeerId, Op)> {
    let limit = c.world.now() + 500_000;
    while c.world.next_turn(limit).is_some() {}
    let tokens = std::iter::from_fn(|| c.nodes[leader].fabric.poll().map(|completion| completion.token));
    tokens.map(Op::parse).map(|(op, _, peer)| (peer, op)).collect()
}

#[test]
fn mu_4_and_5_the_background_plane_stands_in_the_way_of_no_record() {
    let mut c = led::<true>(tiny());
    // When the outstanding operations have completed, everything that it reads of the others is due.
    completed(&mut c, 0);
    for number in 0..MOST_PUT_OFF {
        c.write(0).expect("it leads, and has room");
        c.begin_turn(0);
        let ops = completed(&mut c, 0);
        assert!(ops.iter().all(|(_, op)| *op == Op::Log) && ops.len() == 2, "record {number} went with {ops:?}");
    }
    c.write(0).expect("it leads, and has room");
    c.begin_turn(0);
    let ops = completed(&mut c, 0);
    for peer in [PeerId(1), PeerId(2)] {
        let at = |wanted| ops.iter().position(|op| *op == (peer, wanted));
        assert!(at(Op::Log) < at(Op::Heartbeat), "and it does not wait for ever, but behind the record: {ops:?}");
    }
}

#[test]
fn mu_4_2_the_prepare_phase_comes_back_after_an_abort() {
    let mut c = led::<true>(tiny());
    let first = c.nodes[0].engine.fencing_token();
    assert_eq!(first, Some(c.nodes[0].engine.ballot()));
    c.nodes[0].engine.step_down();
    c.until("it has given up", |c| !c.leads(0));
    assert_eq!(c.nodes[0].engine.fencing_token(), None);
    c.until_led_by(0);
    assert!(c.nodes[0].engine.fencing_token() > first);
}

#[test]
fn mu_4_2_the_leader_adds_confirmed_followers_later_and_brings_them_up_to_date_before() {
    let mut c = Cluster::<true>::new(3, tiny());
    c.world.pause(2);
    c.until_led_by(0);
    for _ in 0..10 {
        c.write_through(0);
    }
    c.world.resume(2);
    level(&mut c);
    assert_eq!(c.nodes[2].engine.applied(), LogIndex(10));
    // And counts them: without 1 it continues.
    c.kill(1);
    c.write_through(0);
}

#[test]
fn mu_4_2_operation_continues_despite_the_failure_of_a_minority() {
    let mut c = led::<false>(tiny());
    c.kill(2);
    for _ in 0..50 {
        c.write_through(0);
    }
    assert_eq!(c.events(0, |e| matches!(e, Event::Aborted { .. })), 0, "a follower's death is no reason to abort");
}

#[test]
fn mu_5_1_the_lowest_id_among_those_alive_leads() {
    let mut c = Cluster::<true>::new(5, tiny());
    c.until_led_by(0);
    for n in 0..2 {
        c.kill(n);
        c.until_led_by(n + 1);
    }
    c.write_through(2);
    level(&mut c);
}

#[test]
fn mu_5_1_a_paused_leader_is_found_by_its_heartbeat_and_leads_again_when_it_recovers() {
    let mut c = led::<true>(tiny());
    c.world.pause(0);
    c.until_led_by(1);
    assert_eq!(c.events(1, |e| *e == Event::Suspected { process: id(0), certain: false }), 1);
    c.write_through(1);
    c.world.resume(0);
    // It may ask for permission before any other process has seen its heart recover.
    c.until("both agree on it", |c| c.leads(0) && !c.leads(1) && c.events(1, |e| *e == Event::Recovered(id(0))) == 1);
    level(&mut c);
}

#[test]
fn mu_5_1_a_certain_death_needs_no_score() {
    let mut c = led::<true>(tiny_but(|config| config.heartbeat_interval_ns = 5_000_000));
    let at = c.world.now();
    c.kill(0);
    c.until_led_by(1);
    assert_eq!(c.events(1, |e| certainly_dead(e, 0)), 1);
    assert!(c.world.now() - at < 100_000, "{} ns", c.world.now() - at);
}

#[test]
fn mu_5_1_network_delays_slow_down_the_reads_and_suspect_nobody() {
    let slow = Faults { latency: martlet_fabric::sim::Span(100_000, 200_000), ..Faults::calm() };
    let mut c = Cluster::<false>::in_world(3, 3, tiny_but(|config| config.fate_beats = 1_000_000), slow);
    c.until("a leader", |c| c.leader().is_some());
    c.run(20_000_000);
    for n in 0..3 {
        assert_eq!(c.events(n, |e| matches!(e, Event::Suspected { .. })), 0, "a read takes ten heartbeats, and no counter stood still");
    }
}

#[test]
fn mu_5_1_the_long_timeout_finds_who_cannot_be_reached() {
    let mut c = led::<false>(tiny());
    c.world.partition(&[0], &[1, 2]);
    c.until("its successor", |c| c.leads(1));
    c.write_through(1);
    assert!(c.leader() == Some(1));
}

#[test]
fn mu_5_1_fate_sharing_a_leader_that_is_stuck_inside_propose_lets_its_heart_stop() {
    let mut c = led::<true>(tiny());
    c.world.pause(1);
    c.world.pause(2);
    // The lanes fill up. Then nothing more is committed, and the leader no longer considers itself alive.
    let given_up = |e: &Event| matches!(e, Event::Aborted { reason: AbortReason::NotLeader, .. });
    let before = c.events(0, given_up);
    c.until("it gives up", |c| {
        while c.write(0).is_some() {}
        c.events(0, given_up) > before
    });
    c.world.resume(1);
    c.world.resume(2);
    c.until("somebody leads", |c| c.leader().is_some());
    level(&mut c);
}

#[test]
fn mu_5_2_requests_are_served_one_by_one_in_order_of_id() {
    let mut c = led::<true>(tiny());
    let requested = |c: &Cluster<true>, n: usize| c.nodes[n].engine.permission.requested;
    let before = (requested(&c, 0), requested(&c, 1));
    c.world.pause(2);
    c.world.pause(0);
    c.until("1 asks", |c| requested(c, 1) > before.1);
    c.run(10_000);
    c.world.resume(0);
    c.until("0 asks again", |c| requested(c, 0) > before.0);
    c.run(3_000);
    let now = (requested(&c, 0), requested(&c, 1));
    // 2 finds the requests of both.
    c.world.resume(2);
    c.until("2 has served both", |c| {
        let served = |n: usize| c.nodes[2].engine.peers.iter().find(|p| p.process == id(n)).map_or(0, |p| p.served);
        served(0) >= now.0 && served(1) >= now.1
    });
    let holder = c.nodes[2].engine.permission.holder;
    let of = |n: usize| c.nodes[2].engine.peers.iter().find(|p| p.process == id(n)).map(|p| p.id);
    assert!(holder == of(1) && holder != Some(PeerId::SELF), "the higher id comes later, and so holds it: {holder:?}");
    c.until("they agree", |c| c.leads(0) && !c.leads(1));
    level(&mut c);
}

#[test]
fn mu_5_3_the_log_is_used_again_and_again() {
    let mut c = led::<true>(tiny());
    for _ in 0..1000 {
        c.write_through(0);
    }
    level(&mut c);
    assert_eq!(c.nodes[2].engine.applied(), LogIndex(1005), "a log of 4 KiB has had room for all of them");
}

#[test]
fn mu_5_4_a_removed_replica_stops_and_the_others_go_on() {
    let mut c = led::<true>(tiny());
    c.nodes[0].engine.remove(id(2));
    c.until("it sees that it is removed", |c| c.nodes[2].engine.standing() == Standing::Excluded);
    assert_eq!(c.nodes[0].engine.group().map(|g| g.members().to_vec()), Some(vec![id(0), id(1)]));
    c.write_through(0);
    level(&mut c);
}

#[test]
fn mu_5_4_a_leader_can_be_removed() {
    let mut c = led::<true>(tiny());
    c.nodes[0].engine.remove(id(0));
    c.until("it stops", |c| c.nodes[0].engine.standing() == Standing::Excluded);
    c.until_led_by(1);
    c.write_through(1);
    level(&mut c);
}

/// A later change would be in its own log only, so its successor would lack what the best log says about the group.
#[test]
fn mu_5_4_a_leader_that_has_removed_itself_changes_nothing_more() {
    let mut c = led::<true>(tiny());
    [0, 1].into_iter().for_each(|n| c.nodes[0].engine.remove(id(n)));
    c.until("it stops", |c| c.nodes[0].engine.standing() == Standing::Excluded);
    assert_eq!(c.nodes[0].engine.group().map(|g| g.members().to_vec()), Some(vec![id(1), id(2)]));
    c.until_led_by(1);
    c.write_through(1);
    level(&mut c);
}

#[test]
fn mu_5_4_one_that_ends_is_needed_until_a_group_without_it_is_committed() {
    let mut c = led::<true>(tiny());
    assert!((0..3).all(|n| c.nodes[n].engine.is_needed()));
    c.nodes[0].engine.remove(id(2));
    c.until("it knows that", |c| !c.nodes[2].engine.is_needed());
    let committed = c.nodes[0].engine.log.committed_group().map(|(_, group)| group.members().to_vec());
    assert_eq!(committed, Some(vec![id(0), id(1)]));
    assert!((0..2).all(|n| c.nodes[n].engine.is_needed()), "of two each is");
    c.world.pause(1);
    c.until("its heart stands still", |c| !c.nodes[0].engine.could_lead(id(1)));
    assert!(c.nodes[0].engine.is_needed(), "the one that is stopped goes on, and lacks a majority then");
    c.world.resume(1);
    c.until("its heart beats again", |c| c.nodes[0].engine.could_lead(id(1)));
    c.kill(1);
    c.until("its death is seen", |c| !c.nodes[0].engine.could_lead(id(1)));
    assert!(!c.nodes[0].engine.is_needed(), "nobody is left whom it could tell anything");
    let newcomer = c.spawn(None);
    c.run(100_000);
    assert!(!c.nodes[newcomer].engine.is_needed(), "nobody counts on its vote");
}

#[test]
fn mu_5_4_a_replica_is_added_with_the_state_of_a_follower() {
    let mut c = led::<true>(tiny());
    for _ in 0..300 {
        c.write_through(0);
    }
    let n = c.spawn(None);
    c.nodes[0].engine.add(id(n));
    let mut longest = 0;
    let mut last = c.world.now();
    c.until("it belongs to the group", |c| {
        if c.write(0).is_some() {
            longest = longest.max(c.world.now() - last);
            last = c.world.now();
        }
        c.nodes[n].engine.group().is_some_and(|g| g.contains(id(n)))
    });
    level(&mut c);
    let taught_by = |c: &Cluster<true>, teacher: usize| c.nodes[n].engine.peers.iter().find(|p| p.process == id(teacher)).map(|p| p.id);
    let leader = taught_by(&c, 0).expect("connected");
    assert_eq!(c.events(n, |e| matches!(e, Event::Learning { teacher } if *teacher == leader)), 0, "not by the leader");
    assert!(longest < 50_000, "the leader had no room for {longest} ns");
    // It counts: three of four make a majority.
    c.kill(1);
    c.write_through(0);
    level(&mut c);
}

/// The process with the lowest id takes its place back. The present leader had taken it for dead. The two would depose each other in turn until the score of
/// the former has risen.
#[test]
fn mu_5_1_a_leader_that_returns_deposes_its_successor_once() {
    for ns in [100_000, 300_000] {
        let mut c = Cluster::<true>::new(3, tiny());
        c.until_led_by(0);
        c.write_through(0);
        c.until("all are level", |c| c.is_level());
        c.world.pause(0);
        c.until_led_by(1);
        c.write_through(1);
        c.run(ns);
        let asked = |c: &Cluster<true>| -> [usize; 3] { std::array::from_fn(|n| c.events(n, |e| *e == Event::Asked)) };
        let before = asked(&c);
        c.world.resume(0);
        c.until_led_by(0);
        c.run(100 * tiny().heartbeat_interval_ns);
        assert!(c.leads(0) && c.is_level());
        assert_eq!(asked(&c), [before[0] + 1, before[1], before[2]], "{ns}: how often each has asked for the permission");
        c.assert_level();
    }
}

/// A process with the lowest id joins. The leader last read that the newcomer lacks the state. The two would depose each other in turn until the leader reads
/// the newcomer's signs again; after that, the former leader would wait long before it replaces a dead newcomer.
#[test]
fn mu_5_1_a_newcomer_with_the_lowest_id_deposes_the_leader_once() {
    let config = tiny_but(|config| {
        config.heartbeat_interval_ns = 500_000;
        config.stall_ns = 500_000;
        config.fate_beats = 2;
    });
    let mut c = Cluster::<true>::new(0, config);
    let newcomer = c.spawn(None);
    let group = Group::new((1..4).map(id).collect());
    (1..4).for_each(|_| assert!(c.spawn(Some(group.clone())) > newcomer));
    c.until_led_by(1);
    c.write_through(1);
    let asked = |c: &Cluster<true>| -> [usize; 4] { std::array::from_fn(|n| c.events(n, |e| *e == Event::Asked)) };
    let before = asked(&c);
    c.nodes[1].engine.add(id(newcomer));
    c.until_led_by(newcomer);
    c.run(4 * config.heartbeat_interval_ns);
    assert!(c.leads(newcomer) && c.is_level());
    assert_eq!(asked(&c), [1, before[1], before[2], before[3]], "how often each has asked for the permission");
    c.write_through(newcomer);
    c.kill(newcomer);
    let killed = c.world.now();
    c.until_led_by(1);
    assert!(c.world.now() - killed < config.heartbeat_interval_ns, "nobody waits for anything but the death's being seen");
    level(&mut c);
}

#[test]
fn one_that_has_tried_in_vain_does_not_wait_when_its_leader_dies() {
    let mut c = led::<true>(tiny());
    // As after many failed attempts.
    let engine = &mut c.nodes[1].engine;
    (engine.failures, engine.retry) = (8, Time(c.world.now() + 100 * tiny().heartbeat_interval_ns));
    c.kill(0);
    let killed = c.world.now();
    c.until_led_by(1);
    assert!(c.world.now() - killed < 5 * tiny().heartbeat_interval_ns, "it takes what seeing the death takes, and the change of leaders");
}

#[test]
fn mu_5_2_one_that_has_revoked_a_permission_says_that_it_goes_on_until_the_next_is_granted() {
    let mut c = led::<true>(tiny());
    c.kill(0);
    c.until("a request is being served", |c| c.nodes[2].engine.permission.is_to_grant());
    assert!(Engine::goes_on(&c.nodes[2].engine), "on a busy host who asked would wait for this one to run again");
    let served = |c: &Cluster<true>| c.nodes[2].engine.peers.iter().find(|p| p.process == id(1)).map(|p| p.served);
    let before = served(&c);
    c.turn(2);
    assert!(!Engine::goes_on(&c.nodes[2].engine) && served(&c) > before);
    c.until_led_by(1);
    level(&mut c);
}
