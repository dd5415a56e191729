//! Membership as a whole, over the simulated fabric: views, leases, failovers, and the property that everything rests on: two views are never active at the
//! same moment.

mod caches;
mod certificates;
mod cluster;
mod deciding;
mod joining;

use cluster::{Cluster, DUTY_NS, LEASE_NS, Node, PATIENCE_NS, roles, secret_of};
use martlet_fabric::primitive::Ordering;
use martlet_fabric::pulse::beat;
use martlet_fabric::sim::{Faults, World};
use martlet_fabric::{Fabric, Incarnation, LocalRegion, NodeId, PeerEvent};
use martlet_protocol::basics::ballot::{self, FROZEN, SlotState, SlotWord};
use martlet_protocol::basics::layout::{LIFE, SLOT_WORDS, life};
use martlet_protocol::basics::{ProcessId, Time, ViewNumber};
use martlet_protocol::membership::message::Message;
use martlet_protocol::membership::{Evidence, Leases, Member, Milestone, Roles, View};

#[test]
fn section_3_1_processes_join_in_totally_ordered_views_and_the_primary_is_active() {
    let c = Cluster::three(1, Faults::calm(), Leases::Primary);
    let mut members = roles(c.newest());
    members.sort_unstable();
    assert_eq!(members, [(0, 1, true), (1, 1, true), (2, 1, true)]);
    assert_eq!(c.active(), [(c.nodes[0].id, c.newest().number)]);
    assert!(c.nodes.iter().all(|n| n.core.view() == Some(c.newest())), "everybody has learned the newest view");
}

#[test]
fn design_5_certain_death_releases_the_lease_so_that_failover_waits_for_none() {
    let mut c = Cluster::three(2, Faults::calm(), Leases::Primary);
    let killed = c.world.now();
    c.kill(0);
    c.run(LEASE_NS / 2);
    let successor = c.newest().primary().unwrap().id;
    let at = c.nodes.iter().position(|n| n.id == successor).unwrap();
    assert_eq!(c.active(), [(successor, c.newest().number)], "active again well within the lease of the dead");
    let seen = c.when(at, |m| matches!(m, Milestone::DeathSeen(p, Evidence::Certain) if p.node.0 == 0)).unwrap();
    let active = c.when(at, |m| matches!(m, Milestone::Active(_))).unwrap();
    assert!(killed < seen && seen <= active && active - seen < 20_000, "seen after {}, active after {}", seen - killed, active - killed);
}

/// Between hosts, each look used to wake the other node, and its answer this one, which looked again: idle nodes used half a core each.
#[test]
fn death_words_that_are_asked_for_over_a_network_are_looked_at_as_seldom_as_hearts() {
    let operations_of_an_idle_cluster = |death_interval_ns| {
        let mut c = Cluster { death_interval_ns, ..Cluster::new(2, Faults::calm(), Leases::Primary) };
        (0..3).for_each(|node| _ = c.start(node, 1, node == 0));
        c.run(5_000_000);
        let before = c.world.operations();
        c.run(5_000_000);
        let operations = c.world.operations() - before;
        c.kill(0);
        c.run(5_000_000);
        let is_seen = |m: &Milestone| matches!(m, Milestone::DeathSeen(p, Evidence::Certain) if p.node.0 == 0);
        assert!(c.when(1, is_seen).is_some(), "a look finds the death all the same");
        operations
    };
    let (always, seldom) = (operations_of_an_idle_cluster(0), operations_of_an_idle_cluster(500_000));
    // Three nodes look at two others each, in 250 duty cycles or in ten.
    assert!(always > 1_400 && seldom + 1_400 < always, "{always} operations, and {seldom}");
}

#[test]
fn design_5_survivors_that_may_hold_a_lease_are_waited_for_until_they_give_it_back() {
    let mut c = Cluster::three(3, Faults::calm(), Leases::Everybody);
    assert_eq!(c.active().len(), 3);
    // One survivor cannot give its lease back: it is paused. The other waits for the whole lease.
    let before = c.newest().number;
    c.kill(0);
    let junior = c.newest().members.last().expect("three members").id;
    let sleeper = c.nodes.iter().find(|n| n.id == junior).expect("it runs").index;
    c.world.pause(sleeper);
    c.run(LEASE_NS / 2);
    assert!(c.newest().number > before, "the view is decided");
    assert_eq!(c.active(), [], "but not active");
    c.run(2 * LEASE_NS);
    assert_eq!(c.active().len(), 1);
    c.world.resume(sleeper);
    c.run(20_000_000);
    assert!(c.active().iter().all(|(_, v)| *v == c.newest().number));
}

/// The dead one was first removed because it was presumed dead, so later views still list it as a process that may hold a lease.
#[test]
fn design_5_a_death_that_was_certain_is_remembered_by_the_views_that_follow_within_a_lease() {
    let mut c = Cluster::new(37, Faults::calm(), Leases::Primary);
    (0..5).for_each(|node| _ = c.start(node, 1, node == 0));
    c.run(10_000_000);
    let [first, second, _, fourth, last] = c.seniority()[..] else { panic!("{:?}", c.newest()) };
    let (now, lease_ns) = (Time(c.world.now()), 50 * LEASE_NS);
    let leader = &mut c.nodes[first];
    leader.core.set_lease_ns(now, &mut leader.fabric, lease_ns);
    c.run(2_000_000);
    assert_eq!(c.newest().lease_ns, lease_ns);
    c.world.pause(c.nodes[first].index);
    c.run(6_000_000);
    let successor = c.nodes[second].id;
    assert_eq!(c.newest().primary().map(|m| m.id), Some(successor));
    assert_eq!(c.active(), [], "the first may still act");
    c.kill(first);
    c.run(1_000_000);
    assert_eq!(c.active(), [(successor, c.newest().number)]);
    for junior in [last, fourth] {
        let (now, junior) = (Time(c.world.now()), c.nodes[junior].id);
        let leader = &mut c.nodes[second];
        leader.core.evict(now, &mut leader.fabric, junior);
        c.run(1_000_000);
        assert!(c.newest().member(junior).is_none());
        assert!(
            c.newest().departed.iter().any(|d| d.id.node.0 == 0 && d.evidence == Evidence::Presumed),
            "the case that this test is about"
        );
        assert_eq!(c.active(), [(successor, c.newest().number)]);
    }
}

#[test]
fn section_6_2_a_paused_primary_is_superseded_after_its_lease_and_finds_itself_excluded() {
    let mut c = Cluster::three(4, Faults::calm(), Leases::Primary);
    let old = c.nodes[0].id;
    c.world.pause(c.nodes[0].index);
    c.run(20_000_000);
    let primary = c.newest().primary().unwrap().id;
    assert_ne!(primary, old);
    assert!(c.newest().departed.iter().any(|d| d.id == old && d.evidence == Evidence::Presumed));
    assert_eq!(c.active(), [(primary, c.newest().number)]);
    c.world.resume(c.nodes[0].index);
    c.run(5_000_000);
    assert!(c.nodes[0].excluded, "the old primary has learned that it is out");
    assert_eq!(c.active(), [(primary, c.newest().number)]);
}

#[test]
fn trap_6_whom_no_datagram_reaches_learns_of_views_all_the_same() {
    let mut c = Cluster::three(16, Faults::calm(), Leases::Primary);
    let [first, _, last] = c.seniority()[..] else { panic!("{:?}", c.newest()) };
    let before = c.newest().number;
    c.deaf = Some(last);
    c.kill(first);
    c.run(2_000_000);
    let newest = c.newest();
    assert!(newest.number > before && newest.member(c.nodes[first].id).is_none());
    assert_eq!(c.nodes[last].core.view().map(|view| view.number), Some(newest.number), "it has looked at the others' boards");
}

#[test]
fn trap_6_a_notice_is_sent_again_until_a_view_excludes_the_dead() {
    let mut c = Cluster::new(17, Faults::calm(), Leases::Primary);
    (0..4).for_each(|node| _ = c.start(node, 1, node == 0));
    c.run(10_000_000);
    let [leader, gone, hearer, teller] = c.seniority()[..] else { panic!("{:?}", c.newest()) };
    let id = c.nodes[gone].id;
    c.deaf = Some(leader);
    // The process lives, so these messages are the only news of its death.
    c.hear(hearer, teller, &Message::Certificate { process: id, secret: secret_of(id) });
    c.run(1_000_000);
    assert_eq!(c.nodes[leader].core.suspicion(id), None, "all that was sent so far was lost");
    assert!(c.newest().member(id).is_some());
    c.deaf = None;
    c.run(1_000_000);
    assert!(c.newest().member(id).is_none(), "{:?}", c.newest());
}

#[test]
fn trap_28_a_restarted_node_is_another_process_and_joins_at_the_end() {
    let mut c = Cluster::three(5, Faults::calm(), Leases::Primary);
    c.kill(0);
    c.run(1_000_000);
    c.start(0, 2, false);
    c.run(5_000_000);
    assert_eq!(roles(c.newest()).last(), Some(&(0, 2, true)));
    assert_eq!(c.newest().members.len(), 3);
}

#[test]
fn a_coordinator_that_connects_late_is_asked_at_once() {
    // A newcomer's connections come one by one. A failover may find it connected to the dead primary and not yet to the next one.
    let mut c = Cluster::new(11, Faults::calm(), Leases::Primary);
    let roles = Roles::COORDINATOR.with(Roles::REPLICA);
    let [a, late, teller] = [0, 1, 2].map(|node| c.start(node, 1, false));
    let mut held = None;
    c.world.run_for(1_000_000);
    let ids = [a, late].map(|n| c.nodes[n].id);
    let node = &mut c.nodes[a];
    let now = Time(c.world.now());
    let mut from = None;
    while let Some(event) = node.fabric.event() {
        match event {
            PeerEvent::Up { identity, .. } if identity.node == NodeId(1) => held = Some(event),
            PeerEvent::Up { peer, .. } => {
                from = Some(peer);
                node.core.handle_peer(now, &mut node.fabric, event);
            }
            PeerEvent::Gone { .. } => {}
        }
    }
    let members = ids.map(|id| Member::new(id, roles)).to_vec();
    let view =
        View { number: ViewNumber(5), lease_ns: LEASE_NS, fence_ns: LEASE_NS, compatible: false, level: 1, members, departed: vec![] };
    let mut datagram = Vec::new();
    Message::View(view).encode(&mut datagram);
    let from = from.unwrap_or_else(|| panic!("node {teller} is connected"));
    node.core.handle_datagram(now, &mut node.fabric, from, &datagram);
    let turns = |node: &mut Node, world: &mut World<true>, ns: u64| {
        let until = world.now() + ns;
        while world.now() < until {
            world.run_for(1_000);
            let now = Time(world.now());
            while let Some(completion) = node.fabric.poll() {
                node.core.handle_completion(now, &mut node.fabric, completion);
            }
            node.core.tick(now, &mut node.fabric, true);
        }
    };
    turns(node, &mut c.world, 100_000);
    let active = |node: &Node, world: &World<true>| node.core.lease().active(ViewNumber(5), Time(world.now()));
    assert!(!active(node, &c.world), "a majority of two needs both");
    node.core.handle_peer(Time(c.world.now()), &mut node.fabric, held.expect("it is connected"));
    turns(node, &mut c.world, 100_000);
    assert!(active(node, &c.world), "it has answered long before a lease's time");
}

/// Over a link that loses much, an answer can take longer than the interval between questions. If each question were asked all the same, everything that goes
/// to that peer would wait behind more and more of them, including an engine's records and requests for permission.
#[test]
fn one_that_is_not_answered_does_not_ask_again() {
    let mut c = Cluster::three(13, Faults::calm(), Leases::Primary);
    c.world.set_faults(Faults { peer_lost_after_ns: 1 << 40, ..Faults::calm() });
    c.run(5_000_000);
    let before = c.newest().clone();
    assert_eq!(before.members.len(), 3);
    let [one, other] = [1, 2].map(|n| c.nodes[n].index);
    c.world.block(one, other);
    c.run(2_000_000);
    let held = c.world.held();
    // Sixty looks at boards in each direction, and twenty at a heart, but not so long that either is presumed dead.
    c.run(12_000_000);
    assert!(c.world.held() < held + 20, "{held} operations and events waited, and now {}", c.world.held());
    c.world.unblock(one, other);
    c.run(1_000_000);
    assert!(c.world.held() < held + 20, "they are answered, and asked again");
    assert_eq!(*c.newest(), before, "nobody has been blamed");
}

#[test]
fn the_last_member_goes_on_alone() {
    let mut c = Cluster::three(6, Faults::calm(), Leases::Primary);
    c.kill(0);
    c.run(1_000_000);
    c.kill(1);
    c.run(1_000_000);
    assert_eq!(roles(c.newest()), [(2, 1, true)]);
    assert_eq!(c.active(), [(c.nodes[2].id, c.newest().number)]);
}

#[test]
fn two_members_that_die_at_once_are_survived_by_the_third() {
    let mut c = Cluster::three(7, Faults::calm(), Leases::Primary);
    c.kill(0);
    c.kill(1);
    c.run(2_000_000);
    assert_eq!(c.active(), [(c.nodes[2].id, c.newest().number)]);
}

#[test]
fn ukharon_4_2_those_who_stop_together_are_presumed_dead_one_after_the_other() {
    let mut c = Cluster::new(12, Faults::calm(), Leases::Primary);
    (0..5).for_each(|node| _ = c.start(node, 1, node == 0));
    c.run(10_000_000);
    let [first, second, third, rest @ ..] = &c.newest().members[..] else { panic!("{:?}", c.newest()) };
    let (stopped, rest) = ([first.id, second.id, third.id], rest.iter().map(|m| m.id).collect::<Vec<_>>());
    for node in c.nodes.iter().filter(|n| stopped.contains(&n.id)) {
        c.world.pause(node.index);
    }
    // Five heartbeats each, and one more after the first, which the others are compared with. The timeout of broadcasts is 20 ms.
    c.run(10_000_000);
    assert_eq!(c.newest().members.iter().map(|m| m.id).collect::<Vec<_>>(), rest);
}

/// The presumed process is neither before nor after the one that has heard of its death in the ring. So that one usually looks at others.
#[test]
fn one_that_is_presumed_dead_is_looked_at_wherever_it_stands() {
    let mut c = Cluster::new(15, Faults::calm(), Leases::Primary);
    (0..4).for_each(|node| _ = c.start(node, 1, node == 0));
    c.run(10_000_000);
    let [first, second, teller, last] = c.seniority()[..] else { panic!("{:?}", c.newest()) };
    // The process that would remove it is paused.
    c.world.pause(c.nodes[first].index);
    c.hear(second, teller, &Message::Notice { process: c.nodes[last].id, evidence: Evidence::Presumed });
    assert_eq!(c.nodes[second].core.suspicion(c.nodes[last].id), Some(Evidence::Presumed));
    c.run(1_500_000);
    assert!(c.nodes.iter().all(|n| n.core.suspicion(c.nodes[last].id).is_none()));
}

/// A backup has heard from the primary that a learner has everything. The learner leads the views. It knows before that backup does that the backup is the
/// primary now, which has taught it nothing yet.
#[test]
fn what_an_earlier_primary_said_of_a_learner_is_nothing_that_the_next_one_says() {
    let mut c = Cluster::new(16, Faults::calm(), Leases::Primary);
    c.teaches = false;
    (0..4).for_each(|node| _ = c.start(node, 1, node == 0));
    c.run(5_000_000);
    let id = |node| ProcessId { node: NodeId(node), incarnation: Incarnation(1) };
    for replica in [2, 3] {
        let now = Time(c.world.now());
        let Node { core, fabric, .. } = &mut c.nodes[0];
        core.promote(now, fabric, id(replica));
        c.run(1_000_000);
    }
    assert_eq!(roles(c.newest()), [(0, 1, true), (1, 1, false), (2, 1, true), (3, 1, true)], "the learner is next to lead the views");
    [1, 3].iter().for_each(|n| c.world.pause(c.nodes[*n].index));
    c.hear(2, 0, &Message::Promote { process: id(1) });
    c.run(1_000_000);
    c.world.pause(c.nodes[2].index);
    c.kill(0);
    // It reads its mail only after it has noticed the death.
    let index = c.nodes[1].index;
    c.world.resume(index);
    while c.nodes[1].core.view().and_then(View::primary).map(|m| m.id) != Some(id(2)) {
        c.world.run_for(1_000);
        let now = Time(c.world.now());
        let Node { core, fabric, .. } = &mut c.nodes[1];
        while let Some(event) = fabric.event() {
            core.handle_peer(now, fabric, event);
        }
        while let Some(completion) = fabric.poll() {
            core.handle_completion(now, fabric, completion);
        }
        core.tick(now, fabric, true);
    }
    c.world.wake(index);
    c.run(2_000_000);
    assert!(c.nodes[1].core.view().and_then(|v| v.member(id(1))).is_some_and(|m| m.roles.has(Roles::LEARNER)));
}

/// A process that has heard of a presumption from another passes it on to none. If they did, they would keep telling each other for ever.
#[test]
fn a_presumption_that_was_heard_of_is_passed_on_to_nobody() {
    let mut c = Cluster::new(15, Faults::calm(), Leases::Primary);
    (0..4).for_each(|node| _ = c.start(node, 1, node == 0));
    c.run(10_000_000);
    let [_, presumed, hearer, teller] = c.seniority()[..] else { panic!("{:?}", c.newest()) };
    let id = c.nodes[presumed].id;
    let mut tell = |message| {
        c.hear(hearer, teller, &message);
        c.run(30_000);
        [hearer, teller].map(|n| c.nodes[n].core.suspicion(id))
    };
    assert_eq!(tell(Message::Notice { process: id, evidence: Evidence::Presumed }), [Some(Evidence::Presumed), None]);
    let certain = tell(Message::Certificate { process: id, secret: secret_of(id) });
    assert_eq!(certain, [Some(Evidence::Certain); 2], "a certain death is, and so its news is as quick as it was");
}

/// A process that has looked for longer says that the first two are gone, and then stops itself. None is left to say so again. What the last one sees of the
/// two at first proves neither that they have stopped nor that they go on.
#[test]
fn a_presumption_that_was_heard_of_stands_until_a_heart_is_seen_to_beat() {
    let mut c = Cluster::new(14, Faults::calm(), Leases::Primary);
    (0..4).for_each(|node| _ = c.start(node, 1, node == 0));
    c.run(10_000_000);
    let [first, second, teller, last] = c.seniority()[..] else { panic!("{:?}", c.newest()) };
    // The leader is paused, and so is the process that would remove it.
    [first, second, teller].into_iter().for_each(|n| c.world.pause(c.nodes[n].index));
    let presumed = c.nodes[first].id;
    c.hear(last, teller, &Message::Notice { process: presumed, evidence: Evidence::Presumed });
    c.run(1_200_000);
    assert_eq!(c.nodes[last].core.suspicion(presumed), Some(Evidence::Presumed), "two looks have shown nothing");
    assert!(c.nodes[last].core.suspicion(c.nodes[second].id).is_none(), "nor are there enough yet to presume anybody dead");
    c.world.resume(c.nodes[first].index);
    c.run(1_200_000);
    assert_eq!(c.nodes[last].core.suspicion(presumed), None, "two looks have shown that it lives");
}

#[test]
fn one_that_sleeps_for_want_of_work_notices_who_stopped() {
    let mut c = Cluster::new(13, Faults::calm(), Leases::Primary);
    c.drowsy = true;
    // Only two, so that no other node wakes the sleeping one.
    (0..2).for_each(|node| _ = c.start(node, 1, node == 0));
    c.run(20_000_000);
    assert_eq!(c.newest().members.len(), 2);
    let primary = c.newest().primary().unwrap().id;
    let stopped = c.nodes.iter().find(|n| n.id == primary).unwrap().index;
    c.world.pause(stopped);
    c.run(10_000_000);
    assert!(c.newest().member(primary).is_none(), "half the time that silence may last: {:?}", c.newest());
}

#[test]
fn a_leave_is_a_view_without_the_leaver_and_costs_no_lease() {
    let mut c = Cluster::three(8, Faults::calm(), Leases::Primary);
    let now = Time(c.world.now());
    let node = &mut c.nodes[0];
    node.core.leave(now, &mut node.fabric);
    c.run(LEASE_NS / 2);
    assert!(c.nodes[0].excluded);
    assert!(c.newest().member(c.nodes[0].id).is_none());
    assert_eq!(c.active().len(), 1);
}

#[test]
fn section_6_3_a_longer_lease_is_a_compatible_view_and_interrupts_nobody() {
    let mut c = Cluster::three(9, Faults::calm(), Leases::Primary);
    let now = Time(c.world.now());
    let node = &mut c.nodes[2];
    node.core.set_lease_ns(now, &mut node.fabric, 3 * LEASE_NS);
    c.run(1_000_000);
    assert!(c.newest().compatible);
    assert_eq!(c.newest().lease_ns, 3 * LEASE_NS);
    assert_eq!(c.active(), [(c.nodes[0].id, c.newest().number)]);
}

#[test]
fn appendix_a_6_a_slot_that_its_proposer_froze_and_left_stops_nobody() {
    let mut c = Cluster::three(12, Faults::calm(), Leases::Primary);
    let (before, primary) = (c.newest().clone(), c.nodes[0].id);
    // What a leader leaves behind that fell back to RPC for lack of ballots and then died: a word without a known promise and without a value.
    let next = before.number.next();
    let frozen = SlotWord::new(SlotState { min: FROZEN, ..SlotState::default() }, ballot::generation_of(next));
    for node in &c.nodes {
        let words = node.fabric.memory(LocalRegion::Public(SLOT_WORDS)).expect("every process offers slots");
        words[ballot::slot_of(next)].store(frozen.0, Ordering::SeqCst);
    }
    c.run(5 * LEASE_NS);
    let now = c.newest();
    assert!(now.number == next && now.compatible && now.members == before.members, "one more view, which changes nothing: {now:?}");
    assert_eq!(c.active(), [(primary, next)]);
}

#[test]
fn trap_9_a_process_without_progress_loses_its_lease() {
    let mut c = Cluster::three(10, Faults::calm(), Leases::Primary);
    let until = c.world.now() + 2 * LEASE_NS;
    // The membership part goes on, but the acting part hangs.
    while let Some(index) = c.world.next_turn(until) {
        let now = Time(c.world.now());
        if index == c.nodes[0].index {
            let node = &mut c.nodes[0];
            while let Some(completion) = node.fabric.poll() {
                node.core.handle_completion(now, &mut node.fabric, completion);
            }
            node.core.tick(now, &mut node.fabric, false);
            c.world.wake_at(index, now.0 + DUTY_NS);
        } else if let Some(at) = c.nodes.iter().position(|n| n.index == index) {
            c.turn(at);
        }
    }
    let now = Time(c.world.now());
    let lease = c.nodes[0].core.lease();
    assert!(!lease.active(lease.view(), now));
}

/// The process executes something long: it takes no turn of its duty cycle, but shows signs of life meanwhile. That may last longer than a silence may.
#[test]
fn trap_9_one_that_works_for_long_keeps_its_place_for_as_long_as_it_gets_on_and_has_no_lease_meanwhile() {
    let mut c = Cluster::three(41, Faults::calm(), Leases::Primary);
    let [first, second, _] = c.seniority()[..] else { panic!("{:?}", c.newest()) };
    let before = c.newest().number;
    c.world.pause(c.nodes[first].index);
    for _ in 0..PATIENCE_NS / 250_000 {
        let own = c.nodes[first].fabric.memory(LocalRegion::Public(LIFE)).expect("signs of life");
        beat(&own[life::HEARTBEAT]);
        c.run(250_000);
        assert_eq!(c.newest().number, before, "at {}", c.world.now());
    }
    let lease = c.nodes[first].core.lease();
    assert!(!lease.active(before, Time(c.world.now())), "a process that is back releases nothing before it has another one");
    // Now it makes no more progress.
    c.run(20_000_000);
    let (newest, old) = (c.newest(), c.nodes[first].id);
    assert!(newest.departed.iter().any(|d| d.id == old && d.evidence == Evidence::Presumed), "{newest:?}");
    assert_eq!(newest.primary().map(|m| m.id), Some(c.nodes[second].id));
}

#[test]
fn one_that_has_worked_for_long_acts_again_at_once() {
    let mut c = Cluster::three(42, Faults::calm(), Leases::Primary);
    let [first, ..] = c.seniority()[..] else { panic!("{:?}", c.newest()) };
    let before = c.newest().number;
    c.world.pause(c.nodes[first].index);
    for _ in 0..100 {
        let own = c.nodes[first].fabric.memory(LocalRegion::Public(LIFE)).expect("signs of life");
        beat(&own[life::HEARTBEAT]);
        c.run(250_000);
    }
    assert_eq!(c.active(), []);
    c.world.resume(c.nodes[first].index);
    c.run(LEASE_NS);
    assert_eq!(c.active(), [(c.nodes[first].id, before)]);
}

/// Kills, pauses and restarts at random, under random faults: two views are never active, and at the end, once healed, one is.
#[test]
fn theorem_b_1_one_active_view_whatever_happens_and_convergence_once_it_is_over() {
    let seeds = std::env::var("MARTLET_SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(20u64);
    let from = std::env::var("MARTLET_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1u64);
    for seed in from..from + seeds {
        println!("seed {seed}");
        let mut chance = fastrand::Rng::with_seed(seed);
        let faults = Faults::drawn(&mut chance);
        let leases = if chance.bool() { Leases::Primary } else { Leases::Everybody };
        let mut c = Cluster::three(seed, faults, leases);
        c.run(20_000_000);
        let mut life = 2;
        for _ in 0..chance.u32(5..25) {
            let alive: Vec<usize> = (0..c.nodes.len()).filter(|&n| c.world.is_alive(c.nodes[n].index) && !c.nodes[n].excluded).collect();
            if alive.is_empty() {
                break; // killed as the last one of its view: nothing survives that
            }
            let victim = alive[chance.usize(..alive.len())];
            match chance.u32(..10) {
                0..=3 if alive.len() > 1 => c.kill(victim),
                4 | 5 => c.world.pause(c.nodes[victim].index),
                6 | 7 => (0..c.nodes.len()).for_each(|n| {
                    if c.world.is_alive(c.nodes[n].index) {
                        c.world.resume(c.nodes[n].index);
                    }
                }),
                _ => {
                    let node = (0..3u16).find(|n| !alive.iter().any(|&a| c.nodes[a].id.node.0 == *n));
                    if let Some(node) = node {
                        c.start(node, life, false);
                        life += 1;
                    }
                }
            }
            c.run(chance.u64(1_000..10_000_000));
        }
        c.world.set_faults(Faults::calm());
        for n in 0..c.nodes.len() {
            if c.world.is_alive(c.nodes[n].index) {
                c.world.resume(c.nodes[n].index);
                c.world.wake(c.nodes[n].index);
            }
        }
        c.run(60_000_000);
        // A member that is lost to all others cannot be healed if no process that knows its view is left: that takes a live replica in the newest view.
        let newest = c.newest();
        let survivors = c.nodes.iter().any(|n| c.world.is_alive(n.index) && !n.excluded && newest.member(n.id).is_some());
        if survivors && newest.primary().is_some_and(|p| c.nodes.iter().any(|n| n.id == p.id && c.world.is_alive(n.index))) {
            let active = c.active();
            assert!(
                active.iter().any(|(p, v)| *p == newest.primary().unwrap().id && *v == newest.number),
                "seed {seed}: {active:?} of {newest:?}"
            );
        }
    }
}
