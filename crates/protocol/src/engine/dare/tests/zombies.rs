//! Zombies: servers whose processor is dead but whose memory still answers (DARE section 5, TRAPS 20).

use super::world::{Cluster, id, others, tell_view, tiny, until_stable};
use crate::basics::Time;
use crate::engine::Engine as _;
use crate::engine::dare::Config;
use crate::engine::dare::layout::words;
use crate::replica::HandOverError;

const ZOMBIES_NS: u64 = 2_000_000;

/// A cluster of so many servers, whose leader counts zombies for so long; and the leader.
fn led(servers: usize, zombies_ns: u64) -> (Cluster, usize) {
    let mut cluster = Cluster::new(servers, Config { zombies_ns, ..tiny() });
    let leader = cluster.until_led();
    let index = cluster.write_through(leader);
    cluster.until("all follow", |c| c.nodes.iter().all(|node| node.engine.committed() >= index));
    (cluster, leader)
}

/// Until when the leader may count each of its zombies.
fn zombies(cluster: &Cluster, leader: usize) -> Vec<Time> {
    let reign = cluster.nodes[leader].engine.reign.as_ref();
    reign.map(|reign| reign.followers.iter().filter_map(|f| f.zombie_until).collect()).unwrap_or_default()
}

#[test]
fn dare_5_zombies_complete_a_majority_and_no_longer_than_is_stated() {
    // The moments of a turn at which the others can die, and those at which the time can end.
    for moment in 0..40 {
        let (mut cluster, leader) = led(3, ZOMBIES_NS);
        cluster.run(moment * 333);
        others(leader).into_iter().for_each(|other| cluster.kill(other));
        cluster.until("their deaths are seen", |c| zombies(c, leader).len() == 2);
        let until = zombies(&cluster, leader).into_iter().max().expect("two");
        cluster.write_through(leader);
        let reads = cluster.nodes[leader].reads;
        cluster.read(leader);
        cluster.until("reads are answered too", |c| c.nodes[leader].reads > reads);
        assert!(cluster.nodes[leader].engine.is_alone(), "nobody who lives has it");
        // One write after the other, up to the end and beyond.
        cluster.run(until.0 - cluster.world.now() - 100_000);
        cluster.write_through(leader);
        cluster.write(leader).expect("it leads, and has room");
        cluster.until("the time is over", |c| {
            let engine = &c.nodes[leader].engine;
            let counts = zombies(c, leader).into_iter().any(|until| engine.now >= until);
            assert!(!counts, "it counts beyond its time");
            if engine.now < until && c.leads(leader) && engine.has_room(100) {
                c.write(leader).expect("it leads, and has room");
            }
            c.nodes[leader].engine.now >= until
        });
        let committed = cluster.nodes[leader].engine.committed();
        cluster.run(1_000_000);
        assert_eq!(cluster.nodes[leader].engine.committed(), committed, "what was proposed last is not committed by the dead");
        assert!(!cluster.leads(leader), "a leader that gets nowhere stops");
    }
}

#[test]
fn dare_5_without_that_setting_the_dead_count_for_nothing() {
    let (mut cluster, leader) = led(3, 0);
    others(leader).into_iter().for_each(|other| cluster.kill(other));
    cluster.until("their deaths are seen", |c| c.nodes[leader].engine.peers.iter().all(|peer| peer.watch.dead));
    let before = cluster.acknowledged.len();
    if cluster.leads(leader) {
        cluster.write(leader).expect("it leads, and has room");
    }
    cluster.run(5_000_000);
    assert_eq!(cluster.acknowledged.len(), before);
}

#[test]
fn dare_5_three_of_five_die_at_once_and_those_that_live_go_on_without_them() {
    let (mut cluster, leader) = led(5, ZOMBIES_NS);
    tell_view(&mut cluster, 2, 0..5);
    let rest: Vec<usize> = (0..5).filter(|n| *n != leader).collect();
    rest[..3].iter().for_each(|n| cluster.kill(*n));
    cluster.write_through(leader);
    until_stable(&mut cluster, leader, 2);
    assert!(zombies(&cluster, leader).is_empty());
    let group = cluster.nodes[leader].engine.group().expect("a founder").clone();
    assert!(group.contains(id(leader)) && group.contains(id(rest[3])));
    cluster.run(2 * ZOMBIES_NS);
    cluster.write_through(leader);
    assert!(!cluster.nodes[leader].engine.is_alone(), "another one that lives has it");
    cluster.until("level", |c| c.is_level());
}

#[test]
fn dare_5_a_zombie_is_kept_as_long_as_the_others_do_not_suffice_and_then_replaced() {
    let (mut cluster, leader) = led(3, 20 * ZOMBIES_NS);
    tell_view(&mut cluster, 2, 0..3);
    let [zombie, slow] = others(leader);
    cluster.world.pause(slow);
    cluster.until("it is taken to be dead", |c| {
        let peer = c.peer(leader, slow);
        c.nodes[leader].engine.peer(peer).is_some_and(|peer| peer.watch.is_presumed())
    });
    cluster.kill(zombie);
    cluster.until("its death is seen", |c| !zombies(c, leader).is_empty());
    cluster.write_through(leader);
    cluster.run(ZOMBIES_NS);
    let has = |c: &Cluster, n: usize| c.nodes[leader].engine.group().is_some_and(|group| group.contains(id(n)));
    assert!(has(&cluster, zombie), "a removal counts at once, and could not be committed");
    assert_eq!(cluster.nodes[leader].engine.hand_over(None), Err(HandOverError::NoSuccessor), "nobody else could be elected");
    cluster.spawn(None);
    cluster.write_through(leader);
    cluster.world.resume(slow);
    tell_view(&mut cluster, 3, [leader, slow, 3].into_iter());
    cluster.until("it is replaced", |c| !has(c, zombie) && has(c, 3) && !c.nodes[leader].engine.log.is_group_changing());
    cluster.write_through(leader);
    cluster.until("level", |c| c.is_level() && c.nodes[3].engine.is_complete());
    assert!(zombies(&cluster, leader).is_empty());
}

#[test]
fn dare_5_those_that_live_are_waited_for_where_they_suffice() {
    let (mut cluster, leader) = led(5, 20 * ZOMBIES_NS);
    let rest: Vec<usize> = (0..5).filter(|n| *n != leader).collect();
    rest[..2].iter().for_each(|n| cluster.kill(*n));
    cluster.until("their deaths are seen", |c| zombies(c, leader).len() == 2);
    for _ in 0..20 {
        let index = cluster.write_through(leader);
        let living = rest[2..].iter().all(|n| {
            let peer = cluster.peer(leader, *n);
            let reign = cluster.nodes[leader].engine.reign.as_ref().expect("it leads");
            reign.followers.iter().any(|f| f.peer == peer && f.held().is_some_and(|held| held >= index))
        });
        assert!(living, "what is acknowledged is with three that live");
    }
}

#[test]
fn dare_5_a_zombie_is_not_waited_for_when_the_log_is_pruned() {
    let (mut cluster, leader) = led(5, 1_000 * ZOMBIES_NS);
    let rest: Vec<usize> = (0..5).filter(|n| *n != leader).collect();
    rest[..2].iter().for_each(|n| cluster.kill(*n));
    for _ in 0..400 {
        cluster.write_through(leader);
    }
    assert!(cluster.nodes[leader].engine.log.head() > 8192, "more than a lap was pruned");
}

#[test]
fn dare_5_a_zombies_log_takes_no_more_than_a_lap() {
    let (mut cluster, leader) = led(3, 1_000 * ZOMBIES_NS);
    let before = cluster.nodes[leader].engine.log.tail().position;
    others(leader).into_iter().for_each(|other| cluster.kill(other));
    cluster.until("nothing is committed any more", |c| {
        if c.leads(leader) && c.nodes[leader].engine.has_room(100) {
            c.write(leader).expect("it leads, and has room");
        }
        !c.leads(leader)
    });
    let held = cluster.nodes[leader].engine.log.committed().position - before;
    assert!((4096..=8192).contains(&held), "{held} bytes");
}

#[test]
fn dare_5_a_zombie_neither_votes_nor_succeeds() {
    let (mut cluster, leader) = led(3, 1_000 * ZOMBIES_NS);
    let [zombie, last] = others(leader);
    cluster.kill(zombie);
    cluster.until("its death is seen", |c| !zombies(c, leader).is_empty());
    let term = cluster.nodes[last].engine.term();
    assert_eq!(cluster.nodes[leader].engine.hand_over(Some(id(zombie).node)), Err(HandOverError::NoSuccessor));
    cluster.kill(leader);
    cluster.run(10_000_000);
    assert_eq!(cluster.leader(), None);
    assert_eq!(cluster.word(last, words::TERM), term, "it knows that it gets no majority");
}

#[test]
fn dare_5_a_server_that_did_not_follow_when_it_died_counts_for_nothing() {
    let (mut cluster, leader) = led(3, ZOMBIES_NS);
    let [one, other] = others(leader);
    cluster.part(leader, one);
    cluster.until("it is lost", |c| {
        let peer = c.peer(leader, one);
        c.nodes[leader].engine.peer(peer).is_none_or(|peer| peer.watch.dead)
    });
    cluster.kill(one);
    cluster.kill(other);
    cluster.until("one death is seen", |c| !zombies(c, leader).is_empty());
    assert_eq!(zombies(&cluster, leader).len(), 1);
}
