//! Normal operation (DARE section 3.3), a test for each rule.

use std::collections::BTreeMap;

use martlet_fabric::primitive::Ordering;
use martlet_fabric::ring::Reader;
use martlet_fabric::sim::{Faults, Span};
use martlet_fabric::{Fabric as _, LocalRegion};

use super::world::{Cluster, alike, id, led, others, tell_view, tiny};
use crate::basics::LogIndex;
use crate::basics::layout::LOG_LANE;
use crate::engine::dare::layout::{Determinants, Header, LOG, RUNS, WORDS, control, lane, term_of, words};
use crate::engine::test_cluster::Watched as _;
use crate::engine::{Engine as _, Event};
use crate::replica::Standing;

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
    // As if from servers that have voted, whose message to the old leader is on its way.
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

/// Step d follows step c: at every nanosecond, everything that a server's tail pointer covers is in its memory.
#[test]
fn dare_3_3_1_the_tail_moves_only_after_the_entries_are_there() {
    let (mut cluster, leader, _) = alike(3);
    cluster.until("level", |c| c.is_level());
    let lanes = others(leader).map(|n| (n, LocalRegion::Lane { writer: cluster.peer(n, leader), name: LOG_LANE }));
    let tail_of = |c: &Cluster, (n, lane): (usize, LocalRegion)| c.memory(n, lane)[lane::TAIL].load(Ordering::Acquire);
    let before = lanes.map(|of| tail_of(&cluster, of));
    // Of more bytes than go in one record.
    (0..18).for_each(|_| assert!(cluster.write(leader).is_some()));
    cluster.begin_turn(leader);
    let last = cluster.nodes[leader].engine.last();
    let (mut waited, mut moved, mut buffer) = ([false; 2], [false; 2], Vec::new());
    for _ in 0..50_000 {
        cluster.world.run_for(1);
        for (at, of) in lanes.into_iter().enumerate() {
            let words = cluster.memory(of.0, of.1);
            let (tail, mut reader, mut here) = (tail_of(&cluster, of), Reader::at(before[at]), LogIndex(0));
            while reader.next(words, &mut buffer) {
                here = Header::decode(&buffer).expect("the leader's entry").0.last();
                assert!(here <= last);
            }
            if tail == before[at] {
                waited[at] |= here > LogIndex(0);
            } else {
                assert!(here == last && reader.position() == tail, "the tail pointer of {} covers what is not there", of.0);
                moved[at] = true;
            }
        }
        if moved == [true; 2] {
            break;
        }
    }
    assert_eq!((waited, moved), ([true; 2], [true; 2]), "entries stood there before the tail pointer moved, and it moved");
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

/// It runs for less time than a read takes, and between that is kept from running for longer than it waits for its teacher. What it reads has arrived when it
/// runs again.
#[test]
fn dare_3_4_one_that_runs_for_moments_only_recovers_from_what_it_has_read_meanwhile() {
    let config = tiny();
    for stall_ns in [config.silence_ns / 2, 3 * config.teach_patience_ns] {
        let (mut c, leader) = led(3);
        let slow = others(leader)[0];
        c.nodes[slow].alive = false;
        for _ in 0..400 {
            c.write_through(leader);
        }
        c.nodes[slow].alive = true;
        c.world.wake(slow);
        c.until("it asks", |c| c.nodes[slow].engine.wishes > 0);
        let mut moments = 0;
        while !c.nodes[slow].engine.is_complete() {
            moments += 1;
            assert!(moments < 100, "asked {} times, with pauses of {stall_ns} ns", c.nodes[slow].engine.wishes);
            c.world.pause(slow);
            c.run(stall_ns);
            c.world.resume(slow);
            c.run(1_500);
        }
        assert_eq!(c.nodes[slow].engine.wishes, 1);
        c.until("level", |c| c.is_level());
    }
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

#[test]
fn dare_3_1_1_the_pointers_of_a_log_follow_each_other_lap_after_lap() {
    let (mut cluster, leader, _) = alike(3);
    let slow = others(leader)[0];
    for write in 0..300 {
        if write % 30 == 0 {
            cluster.world.pause(slow);
        } else if write % 30 == 3 {
            cluster.world.resume(slow);
        }
        let index = cluster.write(leader).expect("it leads, and has room");
        cluster.until("an answer", |c| {
            for node in c.nodes.iter().filter(|node| node.engine.is_complete()) {
                let log = &node.engine.log;
                let pointers = [log.head(), log.applied().position, log.committed().position, log.tail().position];
                assert!(pointers.is_sorted(), "{pointers:?}");
                assert!(pointers[3] - pointers[0] <= log.capacity());
            }
            c.acknowledged.contains_key(&index)
        });
    }
    assert!(cluster.nodes[leader].engine.log.head() > 8192, "more than a lap was pruned");
}

#[test]
fn dare_3_1_1_and_4_1_entries_have_sequential_indexes_and_match_in_all_logs_that_have_them() {
    let mut cluster = Cluster::new(7, tiny());
    for _ in 0..3 {
        let leader = cluster.until_led();
        for _ in 0..5 {
            cluster.write_through(leader);
        }
        // Some have this, and others not.
        cluster.write(leader).expect("it leads, and has room");
        cluster.run(1_000);
        cluster.kill(leader);
    }
    cluster.until_led();
    cluster.until("level", |c| c.is_level());
    let mut entries: BTreeMap<LogIndex, (u64, Vec<u8>)> = BTreeMap::new();
    for node in cluster.nodes.iter().filter(|node| node.alive) {
        let (log, ring) = (&node.engine.log, node.fabric.memory(LocalRegion::Public(LOG)).expect("declared"));
        let (mut at, mut payload, mut last) = (log.head(), Vec::new(), None);
        while at < log.tail().position {
            let (header, next) = log.read(ring, at, &mut payload).expect("a whole entry");
            if let Some((index, term)) = last {
                assert!(header.index == LogIndex(index) && header.number >= term, "{header:?} after {index}");
            }
            let (term, same) = entries.entry(header.index).or_insert_with(|| (header.number, payload.clone()));
            assert_eq!((*term, &*same), (header.number, &payload), "two entries at one index");
            (at, last) = (next, Some((header.last().0 + 1, header.number)));
        }
        assert_eq!(last.map(|(next, _)| next), Some(log.tail().index.0 + 1));
    }
    assert!(entries.values().any(|(term, _)| *term == 1) && entries.values().any(|(term, _)| *term > 3));
}

#[test]
fn dare_3_3_commands_that_wait_go_at_once_with_one_tail_pointer() {
    let (mut cluster, leader, _) = alike(3);
    let mut turn_with = |commands: usize| {
        cluster.until("level", |c| c.is_level());
        (0..commands).for_each(|_| assert!(cluster.write(leader).is_some()));
        let before = cluster.world.operations();
        cluster.begin_turn(leader);
        let posted = cluster.world.operations() - before;
        cluster.end_turn(leader);
        posted
    };
    let [one, three, eighteen] = [1, 3, 18].map(&mut turn_with);
    assert_eq!(three, one, "they go in one record");
    // Three of 200 bytes at most; a record is one write, where it does not wrap.
    assert!((one + 4..=one + 6).contains(&eighteen), "{eighteen} operations where one command takes {one}");
}

#[test]
fn dare_3_3_one_look_at_the_terms_serves_all_reads_of_a_turn_and_none_is_needed_after_a_write() {
    let (mut cluster, leader, _) = alike(3);
    let looks = |c: &Cluster| -> Vec<usize> {
        c.nodes[leader].engine.reign.as_ref().expect("it leads").followers.iter().map(|f| f.checks.len()).collect()
    };
    (0..5).for_each(|_| cluster.read(leader));
    cluster.begin_turn(leader);
    assert_eq!(looks(&cluster), [1, 1]);
    cluster.end_turn(leader);
    cluster.until("all are answered", |c| c.nodes[leader].reads == 5);
    cluster.write(leader).expect("it leads, and has room");
    cluster.read(leader);
    cluster.begin_turn(leader);
    assert_eq!(looks(&cluster), [0, 0], "who takes the write has no later leader");
    cluster.end_turn(leader);
    cluster.until("that is answered too", |c| c.nodes[leader].reads == 6);
}

#[test]
fn dare_3_3_a_new_leader_serves_nobody_until_its_state_is_that_of_all_committed_entries() {
    let (mut cluster, leader, _) = alike(3);
    let index = cluster.write_through(leader);
    assert!(others(leader).into_iter().all(|n| cluster.nodes[n].engine.committed() < index), "they do not know that it is committed");
    cluster.kill(leader);
    let mut waited = false;
    cluster.until("a leader", |c| {
        for n in others(leader) {
            let engine = &c.nodes[n].engine;
            if engine.reign.as_ref().is_some_and(|reign| reign.is_elected()) && engine.applied() < index {
                assert!(engine.standing() != Standing::Primary && !engine.has_room(1));
                waited = true;
            }
        }
        c.leader().is_some()
    });
    assert!(waited);
    let next = cluster.until_led();
    assert_eq!(cluster.nodes[next].machine.commands(), 2);
}

#[test]
fn dare_3_3_1_what_a_majority_of_tails_has_reached_is_committed_and_nobody_applies_more() {
    let (mut cluster, leader, _) = alike(5);
    let [near, other, far, farther] = [1, 2, 3, 4].map(|by| (leader + by) % 5);
    cluster.part(leader, far);
    cluster.part(leader, farther);
    let index = cluster.write_through(leader);
    assert!([far, farther].into_iter().all(|n| cluster.nodes[n].engine.last() < index), "two lack it");
    cluster.part(leader, other);
    cluster.write(leader).expect("it leads, and has room");
    let mut more = false;
    cluster.until("the others have elected another one", |c| {
        let of_old = |n: &usize| c.nodes[*n].engine.term() == 1;
        for n in [leader, near].into_iter().filter(of_old) {
            let node = &c.nodes[n];
            assert!(node.engine.committed() <= index && node.engine.applied() <= index && node.machine.commands() <= 2);
            more |= n == near && node.engine.last() > index;
        }
        c.leader().is_some_and(|n| n != leader)
    });
    assert!(more, "one more server has had it");
}

/// Figure 5: the commit pointer of a server lags behind what is committed.
#[test]
fn dare_3_3_1_adjusting_keeps_what_a_server_does_not_know_to_be_committed() {
    let (mut cluster, leader, _) = alike(3);
    let index = cluster.write_through(leader);
    cluster.kill(leader);
    let next = cluster.until_led();
    let [other] = others(leader).into_iter().filter(|n| *n != next).collect::<Vec<_>>()[..] else { unreachable!("one of two") };
    let lane = LocalRegion::Lane { writer: cluster.peer(other, next), name: LOG_LANE };
    let cut = |c: &Cluster| c.memory(other, lane)[lane::CUT_INDEX].load(Ordering::Acquire);
    cluster.until("it is adjusted", |c| cut(c) > 0);
    assert!(LogIndex(cut(&cluster)) >= index, "cut off at {}, of {index}", cut(&cluster));
    cluster.until("level", |c| c.is_level());
}

/// How many operations it takes to adjust a log from which so many entries have to be removed, and to write what it lacks.
fn operations_to_adjust(entries: usize) -> (u64, Determinants) {
    // What does not get through is only held up.
    let faults = Faults { peer_lost_after_ns: 20_000_000, ..Faults::calm() };
    let mut cluster = Cluster::in_world(1, 3, tiny(), faults);
    let leader = cluster.until_led();
    let last = cluster.write_through(leader);
    cluster.until("all have it", |c| c.nodes.iter().all(|node| node.engine.committed() >= last));
    others(leader).into_iter().for_each(|other| cluster.part(leader, other));
    for _ in 0..entries {
        // An entry each.
        cluster.write(leader).expect("it leads, and has room");
        cluster.turn(leader);
    }
    cluster.world.pause(leader);
    cluster.until("another leader", |c| others(leader).into_iter().any(|n| c.leads(n)));
    let next = cluster.until_led();
    cluster.world.heal();
    cluster.world.resume(leader);
    let of_old = |c: &Cluster| {
        let peer = c.nodes[next].engine.met(id(leader))?;
        let reign = c.nodes[next].engine.reign.as_ref()?;
        let follower = reign.followers.iter().find(|f| f.peer == peer && f.is_following())?;
        (follower.cursor == c.nodes[next].engine.log.tail()).then(|| follower.lane.last_op())
    };
    cluster.until("the old leader is written to", |c| of_old(c).is_some());
    let runs = cluster.memory(leader, LocalRegion::Public(RUNS));
    (of_old(&cluster).expect("just seen"), Determinants::read(runs).expect("it has given access"))
}

#[test]
fn dare_3_3_1_adjusting_takes_as_many_operations_whatever_the_mismatch_and_reads_terms_only() {
    let (operations, few) = operations_to_adjust(1);
    for entries in [5, 25] {
        let (found, many) = operations_to_adjust(entries);
        assert_eq!(found, operations, "{entries} entries");
        assert_eq!(many.tail.index.0, few.tail.index.0 + entries as u64 - 1, "all of them were there");
        assert_eq!(many.runs.len(), few.runs.len(), "one run of entries of the old term, and none of their bytes");
    }
}

/// What an earlier leader left at a majority is not committed by that alone, but only once an entry of the new leader is there too.
#[test]
fn dare_3_3_1_entries_of_earlier_terms_are_not_committed_by_counting() {
    let mut counted = 0;
    for seed in 1..=20 {
        // Writes take their time, and one may arrive long before the next.
        let faults = Faults { latency: Span(100, 4_000), ..Faults::calm() };
        let mut cluster = Cluster::in_world(seed, 3, tiny(), faults);
        let leader = cluster.until_led();
        let index = cluster.write_through(leader);
        cluster.kill(leader);
        cluster.until("a leader", |c| {
            for n in others(leader) {
                let engine = &c.nodes[n].engine;
                let Some(reign) = engine.reign.as_ref().filter(|reign| reign.is_elected()) else { continue };
                let held = reign.followers.iter().filter_map(|f| f.held()).max();
                // The other one has it, and with this one that is a majority of three.
                if held == Some(index) {
                    assert!(engine.committed() < index, "it has counted an entry of term 1");
                    counted += 1;
                }
            }
            c.leader().is_some()
        });
    }
    assert!(counted > 5, "{counted} such moments");
}

#[test]
fn dare_3_3_2_the_next_leader_goes_on_from_the_head_of_the_one_before() {
    let (mut cluster, leader, _) = alike(3);
    for _ in 0..400 {
        cluster.write_through(leader);
    }
    let heads = others(leader).map(|n| cluster.nodes[n].engine.log.head());
    assert!(heads[0] > 8192 && heads[0] == heads[1], "{heads:?}");
    cluster.kill(leader);
    let next = cluster.until_led();
    assert!(cluster.nodes[next].engine.log.head() >= heads[0]);
    for _ in 0..400 {
        cluster.write_through(next);
    }
    assert!(cluster.nodes[next].engine.log.head() > 2 * heads[0] / 8192 * 8192);
}

/// Under writes, one server of three has a beating heart but a machine that stands still; the third one is `reachable` or not. Returns whether the former is
/// removed, and whether the log was full.
fn laggard(reachable: bool) -> (bool, bool) {
    let (mut cluster, leader, _) = alike(3);
    tell_view(&mut cluster, 2, 0..3);
    let [third, slow] = others(leader);
    if !reachable {
        cluster.part(leader, third);
    }
    cluster.world.pause(slow);
    let mut full = false;
    let until = cluster.world.now() + 3 * tiny().silence_ns;
    let is_out = |c: &Cluster| c.nodes[leader].engine.group().is_some_and(|group| !group.contains(id(slow)));
    cluster.until("it is removed, or the time is over", |c| {
        c.memory(slow, LocalRegion::Public(WORDS))[words::HEARTBEAT].fetch_add(1, Ordering::Release);
        if c.leads(leader) {
            let has_room = c.nodes[leader].engine.has_room(100);
            full |= !has_room;
            if has_room {
                c.write(leader).expect("it leads, and has room");
            }
        }
        is_out(c) || c.world.now() > until
    });
    if is_out(&cluster) {
        cluster.write_through(leader);
    }
    (is_out(&cluster), full)
}

#[test]
fn dare_3_3_2_a_full_log_blocks_and_the_slowest_server_is_removed_if_the_others_suffice() {
    assert_eq!(laggard(true), (true, true));
    assert_eq!(laggard(false), (false, true), "nothing could be decided without it");
}
