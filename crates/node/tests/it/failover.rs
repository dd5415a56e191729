//! What a user sees when nodes die, hang and come back.

use martlet_fabric::NodeId;
use martlet_node::config::{ClusterConfig, Idle, Role};
use martlet_node::counters::{Counter, EventKind};
use rustix::process::Signal;

use crate::cluster::Nodes;
use crate::counter::Request;
use crate::session::Session;

#[test]
fn a_killed_primary_is_followed_by_the_next_and_nothing_acknowledged_is_lost() {
    let mut nodes = Nodes::start("kill", 3);
    let mut session = Session::open(&nodes.cluster, 1);
    let mut expected = 0;
    for round in 0..5 {
        nodes.settle();
        for _ in 0..50 {
            expected += 1;
            assert_eq!(session.add(), expected);
        }
        let primary = nodes.primary();
        let before = martlet_node::clock::now().0;
        nodes.kill(primary);
        expected += 1;
        assert_eq!(session.add(), expected, "round {round}");
        assert_eq!(session.get(), expected);
        nodes.show(before);
        assert_ne!(nodes.primary(), primary);
        nodes.spawn(primary);
    }
}

#[test]
fn a_paused_primary_is_replaced_and_answers_nothing_stale_when_it_goes_on() {
    let mut nodes = Nodes::start_with("pause", 3, |_| {}, |_| {});
    nodes.settle();
    let mut session = Session::open(&nodes.cluster, 1);
    let mut other = Session::open(&nodes.cluster, 2);
    let mut expected = 0;
    for _ in 0..3 {
        nodes.settle();
        expected += 1;
        assert_eq!(session.add(), expected);
        let primary = nodes.primary();
        let life = nodes.reading(primary).expect("connected").get(Counter::Incarnation);
        nodes.until("the other session is connected", |_| other.is_connected(NodeId(primary)).then_some(()));
        let before = martlet_node::clock::now().0;
        nodes.pause(primary);
        // In the paused node's memory: a read and a write that it finds first when it resumes.
        let stale = Request { client: 2, seq: u64::from(primary) + 10 * expected, add: false };
        other.post_to(NodeId(primary), stale);
        other.post_to(NodeId(primary), Request { add: true, ..stale });
        for _ in 0..10 {
            expected += 1;
            assert_eq!(session.add(), expected, "the survivors go on");
        }
        nodes.signal(primary, Signal::CONT);
        nodes.until("the old primary has started over", |nodes| {
            for answer in other.answers_of(NodeId(primary)) {
                assert_eq!(answer.value, None, "a paused ex-primary answered");
            }
            nodes.reading(primary).filter(|r| r.get(Counter::Incarnation) > life)
        });
        nodes.settle();
        nodes.show(before);
        assert_eq!(session.get(), expected, "what was posted to it took no effect");
    }
}

#[test]
fn idle_nodes_notice_a_paused_primary_however_quick_their_heartbeats_are() {
    // Heartbeats so frequent that an idle node sleeps for longer than half an interval; and broadcasts alone would not notice.
    let quick = |config: &mut ClusterConfig| {
        config.detector.heartbeat_us = 4_000;
        config.detector.broadcast_timeout_us = 600_000_000;
    };
    let mut nodes = Nodes::start_with("idle-pause", 3, quick, |_| {});
    nodes.settle();
    let primary = nodes.primary();
    nodes.pause(primary);
    nodes.until("another one leads", |nodes| {
        let others: Vec<u16> = nodes.running().filter(|n| *n != primary).collect();
        others.into_iter().find(|n| nodes.reading(*n).is_some_and(|r| r.get(Counter::Standing) == 2))
    });
    nodes.signal(primary, Signal::CONT);
    nodes.settle();
}

#[test]
fn the_last_replica_goes_on_alone_and_hands_the_state_to_those_who_come_back() {
    let mut nodes = Nodes::start("alone", 3);
    nodes.settle();
    let mut session = Session::open(&nodes.cluster, 1);
    let mut expected = 0;
    for _ in 0..2 {
        for _ in 0..2 {
            let primary = nodes.primary();
            nodes.kill(primary);
            expected += 1;
            assert_eq!(session.add(), expected);
        }
        let last = nodes.primary();
        nodes.settle();
        assert_eq!(nodes.running().collect::<Vec<_>>(), [last]);
        assert!(nodes.has_event(last, EventKind::Alone), "it says so");
        nodes.until("its counters say so", |nodes| nodes.reading(last).filter(|r| r.get(Counter::Replicas) == 1));
        for number in (0..3).filter(|n| *n != last) {
            nodes.spawn(number);
        }
        nodes.settle();
        // The node that came back has the state, and leads with it.
        nodes.kill(last);
        expected += 1;
        assert_eq!(session.add(), expected);
        nodes.spawn(last);
        nodes.settle();
    }
}

#[test]
fn a_node_that_is_asked_to_end_leaves_and_ends_well() {
    let mut nodes = Nodes::start("leave", 3);
    let mut session = Session::open(&nodes.cluster, 1);
    let mut expected = 0;
    for signal in [Signal::TERM, Signal::INT] {
        nodes.settle();
        expected += 1;
        assert_eq!(session.add(), expected);
        let primary = nodes.primary();
        nodes.signal(primary, signal);
        assert!(nodes.reap(primary).success());
        expected += 1;
        assert_eq!(session.add(), expected);
        // No node saw a death: a clean end is not a crash (TRAPS 28).
        let next = nodes.primary();
        let deaths =
            nodes.reading(next).expect("connected").events.iter().filter(|(_, e)| e.kind == EventKind::DeathSeen && e.detail == 1).count();
        assert_eq!(deaths, 0);
        nodes.spawn(primary);
    }
    nodes.settle();
    // All of them end at once, and the last one has no other to tell.
    for number in 0..3 {
        nodes.signal(number, Signal::TERM);
    }
    for number in 0..3 {
        assert!(nodes.reap(number).success());
    }
    let sockets = std::fs::read_to_string("/proc/net/unix").expect("Linux");
    let name = &nodes.cluster.config().name;
    assert!(!sockets.lines().any(|l| l.contains(&format!("@martlet/{name}/"))), "a name is left over");
}

#[test]
fn every_idle_strategy_serves() {
    for idle in [Idle::Spin, Idle::Yield, Idle::Park, Idle::Adaptive] {
        let mut nodes = Nodes::start_with("idle", 2, Nodes::patient, |node| node.threads.idle = idle);
        nodes.settle();
        let mut session = Session::open(&nodes.cluster, 1);
        for expected in 1..=20 {
            assert_eq!(session.add(), expected);
        }
        let primary = nodes.primary();
        nodes.kill(primary);
        assert_eq!(session.add(), 21, "{idle:?}");
    }
}

#[test]
fn a_primary_renews_through_another_nodes_lease_cache_and_takes_the_next_when_that_is_killed() {
    let roles = |config: &mut ClusterConfig| {
        Nodes::patient(config);
        config.nodes.iter_mut().for_each(|node| node.roles.push(Role::LeaseCache));
    };
    let mut nodes = Nodes::start_with("cache", 3, roles, |_| {});
    nodes.settle();
    let mut session = Session::open(&nodes.cluster, 1);
    let primary = nodes.primary();
    let renewed = |nodes: &mut Nodes| nodes.reading(primary).map_or(0, |r| r.get(Counter::CacheRenewals));
    let mut expected = 0;
    for others in [2, 1] {
        let before = renewed(&mut nodes);
        nodes.until("the lease is renewed through a cache", |nodes| (renewed(nodes) > before + 20).then_some(()));
        expected += 1;
        assert_eq!(session.add(), expected);
        let victim = nodes.running().find(|n| *n != primary).expect("caches are left");
        assert_eq!(nodes.running().count(), others + 1);
        nodes.kill(victim);
        expected += 1;
        assert_eq!(session.add(), expected, "the primary goes on");
        nodes.settle();
    }
    expected += 1;
    assert_eq!(session.add(), expected, "without caches as well");
}
