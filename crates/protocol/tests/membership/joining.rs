//! How processes join, and which ones do not.

use martlet_fabric::sim::{Faults, Span};
use martlet_fabric::{Fabric, Incarnation};
use martlet_protocol::basics::Time;
use martlet_protocol::membership::message::Message;
use martlet_protocol::membership::{Evidence, Leases, Roles};

use crate::cluster::{Cluster, DUTY_NS, LEASE_NS, Node, PATIENCE_NS, roles};

#[test]
fn design_5_a_newcomer_is_taken_in_once_it_has_met_every_member() {
    let mut c = Cluster::three(21, Faults::calm(), Leases::Primary);
    c.kill(2);
    c.run(1_000_000);
    let newcomer = c.start(2, 2, false);
    let apart = [c.nodes[1].index, c.nodes[newcomer].index];
    c.world.partition(&apart[..1], &apart[1..]);
    c.run(3_000_000);
    assert_eq!(roles(c.newest()).len(), 2, "it has met the leader, and not who leads next");
    // The next leader finds a majority that it can reach, and answers at once.
    c.kill(0);
    c.run(LEASE_NS / 2);
    assert_eq!(c.active(), [(c.nodes[1].id, c.newest().number)]);
    c.world.heal();
    c.run(10_000_000);
    assert_eq!(roles(c.newest()), [(1, 1, true), (2, 2, true)]);
}

#[test]
fn two_newcomers_that_have_not_met_do_not_get_in_together() {
    let mut c = Cluster::new(22, Faults::calm(), Leases::Primary);
    let [founder, one, other] = [0, 1, 2].map(|node| c.start(node, 1, node == 0));
    let apart = [c.nodes[one].index, c.nodes[other].index];
    c.world.partition(&apart[..1], &apart[1..]);
    c.run(10_000_000);
    assert_eq!(c.newest().members.len(), 2, "whichever came first");
    assert!(c.newest().member(c.nodes[founder].id).is_some());
    c.world.heal();
    c.run(10_000_000);
    assert_eq!(c.newest().members.len(), 3);
}

/// A process that is paused while it is taken in, and removed before it wakes. Returns the cluster and its number.
fn taken_in_and_removed_in_its_sleep(seed: u64) -> (Cluster, usize) {
    let mut c = Cluster::three(seed, Faults::calm(), Leases::Primary);
    let joiner = c.start(3, 1, false);
    let (index, id) = (c.nodes[joiner].index, c.nodes[joiner].id);
    // It is paused as soon as the leader has taken it in, before it has looked at any board.
    while c.newest().member(id).is_none() {
        c.run(100);
    }
    c.world.pause(index);
    assert!(!c.nodes[joiner].core.is_member());
    c.run(40_000_000);
    assert!(c.newest().member(id).is_none(), "it has been cut off: {:?}", c.newest());
    // So long ago that no view lists it any more.
    c.kill(2);
    c.run(5_000_000);
    assert!(c.newest().departed.iter().all(|d| d.id != id));
    (c, joiner)
}

#[test]
fn one_that_came_and_went_while_another_did_not_look_is_not_taken_in_by_that_one_again() {
    let late = Span(5_000_000, 5_000_000);
    let faults = Faults { death_words: late, gone: late, ..Faults::calm() };
    let mut c = Cluster::new(25, faults.clone(), Leases::Primary);
    let [founder, other] = [0, 1].map(|node| c.start(node, 1, node == 0));
    c.run(5_000_000);
    let newcomer = c.start(2, 1, false);
    let id = c.nodes[newcomer].id;
    while c.newest().member(id).is_none() {
        c.run(100);
    }
    let taken_in = c.newest().number;
    c.world.pause(c.nodes[other].index);
    c.world.set_faults(Faults { drops: 1_000, ..faults });
    assert!(c.nodes[other].core.view_number() < taken_in, "it knows of the wish only");
    let now = Time(c.world.now());
    let Node { core, fabric, .. } = &mut c.nodes[founder];
    core.evict(now, fabric, id);
    while c.newest().member(id).is_some() {
        c.run(100);
    }
    c.kill(founder);
    c.kill(newcomer);
    c.world.resume(c.nodes[other].index);
    c.run(4_500_000);
    let later = c.decided.iter().filter(|v| v.number > taken_in);
    assert!(later.clone().any(|v| v.members.len() == 1), "it goes on, before it knows of any death for certain: {:?}", c.newest());
    assert!(later.clone().all(|v| v.member(id).is_none()), "{:?}", c.newest());
}

#[test]
fn one_that_has_been_forgotten_is_not_taken_in_and_comes_back_as_another() {
    let mut c = Cluster::three(26, Faults::calm(), Leases::Primary);
    let newcomer = c.start(3, 1, false);
    let id = c.nodes[newcomer].id;
    let apart = [c.nodes[2].index, c.nodes[newcomer].index];
    c.world.partition(&apart[..1], &apart[1..]);
    c.run(1_000_000);
    let leader = c.nodes.iter().position(|n| n.core.is_leader()).unwrap();
    let Node { core, fabric, .. } = &mut c.nodes[leader];
    let peer = core.peer_of(id).expect("it asks to be taken in");
    assert!(core.forget(peer), "it is no member");
    fabric.forget(peer);
    c.world.heal();
    c.run(PATIENCE_NS + PATIENCE_NS / 4 + PATIENCE_NS / 10);
    assert!(c.decided.iter().all(|v| v.member(id).is_none()), "{:?}", c.newest());
    assert!(c.nodes[newcomer].excluded, "it has lost its patience");
}

/// A leader may still be about to take the process in when it gives up. Both coordinators are needed here, and one cannot be reached.
#[test]
fn one_that_gives_up_asks_no_more_for_a_while_before_it_does() {
    let mut c = Cluster::three(27, Faults::calm(), Leases::Primary);
    let newcomer = c.start(3, 1, false);
    let id = c.nodes[newcomer].id;
    let apart = [c.nodes[2].index, c.nodes[newcomer].index];
    c.world.partition(&apart[..1], &apart[1..]);
    c.run(PATIENCE_NS + PATIENCE_NS / 10);
    assert!(!c.nodes[newcomer].excluded, "whoever has heard it ask still finds it");
    c.world.heal();
    c.run(PATIENCE_NS / 4);
    assert!(c.decided.iter().all(|v| v.member(id).is_none()), "it asks nobody any more: {:?}", c.newest());
    assert!(c.nodes[newcomer].excluded);
}

/// Where connecting takes time, giving up would only mean starting again.
#[test]
fn one_that_gets_nearer_does_not_give_up() {
    let mut c = Cluster::three(28, Faults::calm(), Leases::Primary);
    let newcomer = c.start(3, 1, false);
    let id = c.nodes[newcomer].id;
    let index = c.nodes[newcomer].index;
    let others = [1, 2].map(|n| c.nodes[n].index);
    c.world.partition(&[index], &others);
    for other in others {
        c.run(PATIENCE_NS * 3 / 4);
        assert!(!c.nodes[newcomer].excluded);
        c.world.unblock(index, other);
        c.world.unblock(other, index);
    }
    c.run(PATIENCE_NS / 10);
    assert!(c.newest().member(id).is_some(), "{:?}", c.newest());
}

#[test]
fn one_that_is_kept_from_running_does_not_lose_its_patience_over_that() {
    let mut c = Cluster::three(29, Faults::calm(), Leases::Primary);
    let newcomer = c.start(3, 1, false);
    let (id, index, other) = (c.nodes[newcomer].id, c.nodes[newcomer].index, c.nodes[2].index);
    c.world.partition(&[index], &[other]);
    for parts in [2, 2, 2, 4] {
        c.run(PATIENCE_NS / 20);
        c.world.pause(index);
        // The last pause is longer than it may ask and then take to give up.
        c.run(parts * PATIENCE_NS / 4 + PATIENCE_NS / 2 * (parts / 4));
        c.world.resume(index);
        c.run(DUTY_NS);
        assert!(!c.nodes[newcomer].excluded);
    }
    c.world.heal();
    c.run(PATIENCE_NS / 10);
    assert!(c.newest().member(id).is_some(), "{:?}", c.newest());
}

/// Each request makes every member send a voucher to all.
#[test]
fn one_that_asks_in_vain_asks_ever_more_seldom_until_something_changes() {
    let mut c = Cluster::three(30, Faults::calm(), Leases::Primary);
    let newcomer = c.start(3, 1, false);
    let apart = [c.nodes[2].index, c.nodes[newcomer].index];
    c.world.partition(&apart[..1], &apart[1..]);
    c.run(2_000_000);
    let heard = |c: &Cluster| c.nodes[newcomer].heard;
    let since = |c: &mut Cluster, ns| {
        let before = heard(c);
        c.run(ns);
        heard(c) - before
    };
    let quiet = since(&mut c, 10_000_000);
    // Two members vouch for each request, and say every millisecond that they live. With one request every 1.25 ms, this would be 50 requests.
    assert!(quiet <= 20 + 2 * 9, "{quiet} datagrams");
    c.world.heal();
    c.run(2_000_000);
    let id = c.nodes[newcomer].id;
    assert!(c.newest().member(id).is_some(), "it asks at once when it has met one more");
}

#[test]
fn trap_28_one_that_was_removed_in_its_sleep_is_told_to_come_back_as_another() {
    let (mut c, joiner) = taken_in_and_removed_in_its_sleep(23);
    c.world.resume(c.nodes[joiner].index);
    c.run(PATIENCE_NS / 10);
    assert!(c.nodes[joiner].excluded, "it was told, long before its patience has run out");
}

/// However short its membership was, others have acknowledged with it. See [`Config::has_held`](martlet_protocol::founding::Config).
#[test]
fn one_that_a_view_has_listed_has_counted_and_one_that_was_being_taught_has_not() {
    for teaches in [false, true] {
        let mut c = Cluster::new(28, Faults::calm(), Leases::Primary);
        c.teaches = teaches;
        let [_, _, node] = [0, 1, 2].map(|node| c.start(node, 1, node == 0));
        let member = |c: &Cluster| {
            c.nodes[node].core.view().and_then(|view| view.member(c.nodes[node].id)).is_some_and(|m| m.roles.has(Roles::LEARNER) != teaches)
        };
        while !member(&c) {
            c.run(100);
        }
        c.world.pause(c.nodes[node].index);
        c.run(40_000_000);
        assert!(c.newest().member(c.nodes[node].id).is_none());
        c.world.resume(c.nodes[node].index);
        c.run(PATIENCE_NS / 10);
        assert!(c.nodes[node].excluded);
        assert_eq!(c.nodes[node].core.has_counted(), teaches);
    }
}

#[test]
fn one_that_was_removed_and_forgotten_in_its_sleep_comes_back_as_another() {
    let (mut c, joiner) = taken_in_and_removed_in_its_sleep(24);
    let id = c.nodes[joiner].id;
    for node in c.nodes.iter_mut().filter(|n| c.world.is_alive(n.index)) {
        if let Some(peer) = node.core.peer_of(id).filter(|_| node.id != id) {
            assert!(node.core.forget(peer));
            node.fabric.forget(peer);
        }
    }
    c.world.resume(c.nodes[joiner].index);
    c.run(2 * PATIENCE_NS);
    assert!(c.nodes[joiner].excluded, "nobody will ever answer it");
    let next = c.nodes[joiner].core.newest_life().0 + 1;
    c.kill(joiner);
    c.start(3, next, false);
    c.run(10_000_000);
    assert!(roles(c.newest()).contains(&(3, next, true)));
}

#[test]
fn a_clock_that_was_set_back_between_two_lives_costs_one_more_life() {
    let mut c = Cluster::three(25, Faults::calm(), Leases::Primary);
    c.kill(2);
    c.run(1_000_000);
    let later = c.start(2, 9, false);
    c.run(5_000_000);
    // The later life has died, which is not noticed yet, when its successor comes with an older clock.
    c.world.pause(c.nodes[later].index);
    let earlier = c.start(2, 4, false);
    c.run(1_000_000);
    assert!(c.nodes[earlier].excluded);
    assert_eq!(c.nodes[earlier].core.newest_life(), Incarnation(9));
    c.start(2, 10, false);
    c.run(5_000_000);
    assert_eq!(roles(c.newest()), [(0, 1, true), (1, 1, true), (2, 10, true)]);
}

#[test]
fn one_that_knows_only_a_cluster_that_has_died_starts_over() {
    let mut c = Cluster::new(26, Faults::calm(), Leases::Primary);
    let founder = c.start(0, 1, true);
    c.run(1_000_000);
    c.world.pause(c.nodes[founder].index);
    let joiner = c.start(1, 1, false);
    c.run(1_000_000);
    assert_eq!(c.nodes[joiner].core.view(), Some(c.newest()), "it has read the board of the founder, which sleeps");
    c.kill(founder);
    c.run(PATIENCE_NS / 2);
    assert!(!c.nodes[joiner].excluded);
    c.run(PATIENCE_NS);
    assert!(c.nodes[joiner].excluded, "nobody is left to take it in, and as another it may found a cluster anew");
}

/// `from` says to `to` that it presumes `suspect` dead.
fn presume(c: &mut Cluster, from: usize, to: usize, suspect: usize) {
    let mut notice = Vec::new();
    Message::Notice { process: c.nodes[suspect].id, evidence: Evidence::Presumed }.encode(&mut notice);
    let peer = c.nodes[from].core.peer_of(c.nodes[to].id).expect("they are connected");
    c.nodes[from].fabric.send(peer, &notice);
    c.run(10 * DUTY_NS);
}

#[test]
fn what_a_process_presumes_that_is_no_member_removes_nobody() {
    let mut c = Cluster::three(27, Faults::calm(), Leases::Primary);
    let newcomer = c.start(3, 1, false);
    let apart = [c.nodes[1].index, c.nodes[newcomer].index];
    c.world.partition(&apart[..1], &apart[1..]);
    c.run(1_000_000);
    assert!(!c.nodes[newcomer].core.is_member(), "it has not met 1");
    presume(&mut c, newcomer, 0, 1);
    assert_eq!(c.nodes[0].core.suspicion(c.nodes[1].id), None, "0 hears 1 well");
    // Nor does it act on what it hears of members: once it is one itself, it would put itself in their place.
    presume(&mut c, 2, newcomer, 0);
    assert_eq!(c.nodes[newcomer].core.suspicion(c.nodes[0].id), None);
    assert_eq!(c.newest().members.len(), 3);
    presume(&mut c, 2, 0, 1);
    assert!(c.newest().member(c.nodes[1].id).is_none(), "a member is believed");
}
