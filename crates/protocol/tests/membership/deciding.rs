//! The choice of the members that decide on a removal: afterwards enough must be left to decide the next view.

use martlet_fabric::primitive::Ordering;
use martlet_fabric::sim::{Faults, Span};
use martlet_fabric::{Fabric, LocalRegion};
use martlet_protocol::basics::Time;
use martlet_protocol::basics::ballot::{self, SlotWord};
use martlet_protocol::basics::layout::SLOT_WORDS;
use martlet_protocol::membership::{Authority, Evidence, Leases, Milestone, Roles};

use crate::cluster::{Cluster, DUTY_NS, LEASE_NS, PATIENCE_NS, roles};

/// A leader that is coordinator and replica, a replica that is no coordinator, and another coordinator. The kernel takes its time to report deaths. Returns the
/// cluster and the three.
fn two_coordinators_and_a_replica(seed: u64) -> (Cluster, [usize; 3]) {
    let mut c = Cluster::new(seed, Faults { death_words: Span(500_000, 500_000), ..Faults::calm() }, Leases::Primary);
    let both = Roles::COORDINATOR.with(Roles::REPLICA);
    let nodes = [(both, true), (Roles::REPLICA, false), (Roles::COORDINATOR, false)];
    let mut number = 0;
    let nodes = nodes.map(|(wanted, founds)| {
        let started = c.start_as(wanted, number, 1, founds);
        number += 1;
        started
    });
    c.run(5_000_000);
    assert_eq!(c.newest().members.len(), 3);
    assert!(c.nodes[nodes[0]].core.is_leader());
    (c, nodes)
}

fn evict(c: &mut Cluster, by: usize, victim: usize) {
    let (now, victim) = (Time(c.world.now()), c.nodes[victim].id);
    let node = &mut c.nodes[by];
    node.core.evict(now, &mut node.fabric, victim);
    let index = node.index;
    c.world.wake(index);
}

/// Found by simulated life 208586: a leader decided on its own removal while the only other coordinator was dead, which was not known yet.
#[test]
fn a_leader_that_is_to_be_evicted_stays_while_nobody_takes_its_place() {
    let (mut c, [leader, replica, other]) = two_coordinators_and_a_replica(31);
    c.kill(other);
    evict(&mut c, replica, leader);
    c.run(20 * LEASE_NS);
    assert!(!c.nodes[leader].excluded, "views can still be decided");
    assert!(c.newest().member(c.nodes[other].id).is_none(), "as one was");
    assert_eq!(c.active().len(), 1);
    // Another coordinator comes, hears of the requested removal, and sees to it.
    let both = Roles::COORDINATOR.with(Roles::REPLICA);
    let successor = c.start_as(both, 2, 2, false);
    c.run(20_000_000);
    assert!(c.nodes[leader].excluded);
    assert!(c.nodes[successor].core.is_leader());
    assert_eq!(roles(c.newest()), [(1, 1, true), (2, 2, true)]);
    assert_eq!(c.active().len(), 1);
}

#[test]
fn a_leader_that_is_to_be_evicted_is_removed_by_another_coordinator() {
    let (mut c, [leader, replica, other]) = two_coordinators_and_a_replica(32);
    evict(&mut c, replica, leader);
    c.run(20 * LEASE_NS);
    assert!(c.nodes[leader].excluded);
    assert!(c.nodes[other].core.is_leader());
    assert!(c.newest().departed.iter().all(|d| d.evidence == Evidence::Evicted));
    assert_eq!(c.active(), [(c.nodes[replica].id, c.newest().number)]);
}

/// No other coordinator can ask for it: the leader does not decide on itself, so the one that asks for the eviction has to lead then.
#[test]
fn a_leader_is_evicted_by_the_only_other_coordinator() {
    for presumed in [false, true] {
        let mut c = Cluster::new(34, Faults::calm(), Leases::Primary);
        let [senior, junior] = [0, 1].map(|node| c.start(node, 1, node == 0));
        c.run(5_000_000);
        assert!(c.nodes[senior].core.is_leader() && c.newest().members.len() == 2);
        if presumed {
            // Paused just long enough for its heart to seem to stand still.
            c.world.pause(c.nodes[senior].index);
            let id = c.nodes[senior].id;
            while c.when(junior, |m| matches!(m, Milestone::DeathSeen(seen, _) if *seen == id)).is_none() {
                c.run(100_000);
            }
        }
        evict(&mut c, junior, senior);
        c.world.resume(c.nodes[senior].index);
        c.run(20 * LEASE_NS);
        assert!(c.nodes[senior].excluded, "presumed dead before: {presumed}");
        assert!(c.nodes[junior].core.is_leader());
    }
}

#[test]
fn a_leader_that_leaves_while_the_other_coordinator_is_dead_is_asked_to_stay_no_longer_than_that_is_unknown() {
    let (mut c, [leader, replica, other]) = two_coordinators_and_a_replica(33);
    c.kill(other);
    let now = Time(c.world.now());
    let node = &mut c.nodes[leader];
    node.core.leave(now, &mut node.fabric);
    c.run(100_000);
    assert!(!c.nodes[leader].excluded, "the other's death is not known yet");
    c.run(5 * LEASE_NS);
    assert!(c.nodes[leader].excluded, "nobody else can decide so");
    let newest = c.newest();
    assert_eq!(newest.members.iter().map(|m| m.id).collect::<Vec<_>>(), [c.nodes[replica].id]);
    let departed = |process| newest.departed.iter().find(|d| d.id == process).map(|d| d.evidence);
    assert_eq!(departed(c.nodes[leader].id), Some(Evidence::Left));
}

/// Two coordinators cannot reach each other, and each takes itself for the leader. Both are asked to take in a newcomer, which has to wait, because not all
/// members can say that they have met it. Where views are only advice, this may last.
#[test]
fn two_leaders_that_cannot_see_each_other_do_not_use_up_the_ballots_of_their_slot() {
    let mut c = Cluster::new(34, Faults::calm(), Leases::Primary);
    c.authority = Authority::Engine;
    (0..3).for_each(|node| _ = c.start(node, 1, node == 0));
    c.run(5_000_000);
    let before = c.newest().clone();
    let seniors = c.seniority();
    let [one, other, third] = seniors[..] else { panic!("{before:?}") };
    c.world.partition(&[c.nodes[one].index], &[c.nodes[other].index]);
    // Longer than a silence may last.
    c.run(PATIENCE_NS / 4 + 2_000_000);
    c.start(3, 1, false);
    c.run(5_000_000);
    let promised = |c: &Cluster| {
        let words = c.nodes[third].fabric.memory(LocalRegion::Public(SLOT_WORDS)).expect("every process offers slots");
        SlotWord(words[ballot::slot_of(before.number.next())].load(Ordering::SeqCst)).state().min
    };
    assert!([one, other].iter().all(|n| c.nodes[*n].core.is_leader()), "the case that this test is about");
    let so_far = promised(&c);
    c.run(20_000_000);
    assert!([one, other].iter().all(|n| c.nodes[*n].core.is_leader()) && c.newest().number == before.number);
    assert_eq!(promised(&c), so_far, "a hundred looks by each");
    // The one of the two that has been outbid finds out when it has something to propose. Each gets a view decided in its turn.
    for (leader, times) in [(one, 2), (other, 3)] {
        let now = Time(c.world.now());
        let node = &mut c.nodes[leader];
        node.core.set_lease_ns(now, &mut node.fabric, times * LEASE_NS);
        c.run(1_000_000);
        assert_eq!(c.newest().lease_ns, times * LEASE_NS);
        assert_eq!(c.nodes[third].core.view(), Some(c.newest()));
    }
}

/// A process is presumed dead, and its heart beats again while the view without it waits for the third one's answer. It is a junior, or the leader itself, in
/// whose place another one leads meanwhile.
#[test]
fn one_that_is_not_presumed_dead_any_more_is_not_removed_by_a_view_that_has_waited() {
    for of_leader in [false, true] {
        // No connection is given up while this lasts.
        let mut c = Cluster::three(36, Faults { peer_lost_after_ns: 1_000_000_000, ..Faults::calm() }, Leases::Primary);
        let [senior, junior, third] = c.seniority()[..] else { panic!("{:?}", c.newest()) };
        let (proposes, sleeper) = if of_leader { (junior, senior) } else { (senior, junior) };
        let (before, id) = (c.newest().clone(), c.nodes[sleeper].id);
        let proposed = |c: &Cluster| {
            let of_next = |(_, m): &&(u64, Milestone)| *m == Milestone::Proposed(before.number.next());
            c.nodes[proposes].milestones.iter().filter(of_next).count()
        };
        c.world.partition(&[c.nodes[proposes].index], &[c.nodes[third].index]);
        c.world.pause(c.nodes[sleeper].index);
        c.run(6_000_000);
        assert_eq!(c.nodes[proposes].core.suspicion(id), Some(Evidence::Presumed));
        assert_eq!(proposed(&c), 1, "the case that this test is about");
        c.world.resume(c.nodes[sleeper].index);
        c.run(3_000_000);
        let core = &c.nodes[proposes].core;
        assert_eq!(core.suspicion(id), None);
        assert!(core.deadline().0 + DUTY_NS > c.world.now(), "it has nothing left to do that was due");
        c.world.heal();
        c.run(5_000_000);
        assert_eq!(*c.newest(), before, "the leader itself: {of_leader}");
        assert!(c.nodes.iter().all(|n| !n.excluded));
        // The slot can still be used.
        let now = Time(c.world.now());
        let node = &mut c.nodes[senior];
        node.core.set_lease_ns(now, &mut node.fabric, 2 * LEASE_NS);
        c.run(1_000_000);
        assert_eq!((c.newest().number, &c.newest().members), (before.number.next(), &before.members));
        assert_eq!(proposed(&c), if of_leader { 1 } else { 2 }, "each proposal is told once");
    }
}

/// The only replica cannot be removed, so the view that would end all talk of its death never comes.
#[test]
fn a_presumption_that_nothing_can_come_of_dies_with_those_who_have_seen_for_themselves() {
    let mut c = Cluster::new(35, Faults::calm(), Leases::Primary);
    let replica = c.start(0, 1, true);
    // So that they look at hearts at different moments.
    let others = [1, 2, 3, 4].map(|node| {
        c.run(620_000);
        c.start_as(Roles::COORDINATOR, node, 1, false)
    });
    c.run(10_000_000);
    let (before, id) = (c.newest().clone(), c.nodes[replica].id);
    assert_eq!(before.members.len(), 5);
    c.world.pause(c.nodes[replica].index);
    c.run(6_000_000);
    assert!(others.iter().all(|n| c.nodes[*n].core.suspicion(id).is_some()), "everybody holds that it is gone");
    c.world.resume(c.nodes[replica].index);
    c.run(5_000_000);
    assert_eq!(others.map(|n| c.nodes[n].core.suspicion(id)), [None; 4]);
    assert_eq!(*c.newest(), before);
}
