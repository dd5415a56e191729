//! What the paper says, sentence by sentence, and what it leaves open.

use super::world::{Cluster, id, tiny};
use crate::basics::{LogIndex, ViewNumber};
use crate::engine::Engine as _;
use crate::engine::apus::layout::{Status, control, words};
use crate::engine::apus::{Apus, Config};
use crate::engine::test_cluster;
use crate::membership::{Member, Roles, View};
use crate::replica::{Durability, Execution, HandOverState};

fn sync() -> Config {
    Config { durability: Durability::Sync, ..tiny() }
}

#[test]
fn apus_4_1_an_entry_is_committed_when_a_majority_has_written_replies_for_it() {
    let mut c = Cluster::new(3, tiny());
    let leader = c.until_led();
    for _ in 0..20 {
        let index = c.write_through(leader);
        let replies = (0..3).filter(|n| *n != leader && c.control(leader, *n, control::ACK) > index.0).count();
        assert!(replies >= 1, "acknowledged without a backup's reply");
    }
    c.until("all have it", |c| c.nodes.iter().all(|node| node.machine.commands() == 20));
    assert!(c.is_level());
}

#[test]
fn apus_4_1_no_backup_no_commit() {
    let mut c = Cluster::new(3, tiny());
    let leader = c.until_led();
    c.write_through(leader);
    let others: Vec<usize> = (0..3).filter(|n| *n != leader).collect();
    others.iter().for_each(|n| c.part(leader, *n));
    let index = c.write(leader).expect("it leads, and has room");
    c.run(100_000);
    assert!(!c.acknowledged.contains_key(&index) && c.nodes[leader].engine.committed() < index);
}

#[test]
fn apus_4_1_b1_b2_what_is_not_kept_is_not_acknowledged() {
    let mut c = Cluster::new(3, sync());
    let leader = c.until_led();
    c.write_through(leader);
    let others: Vec<usize> = (0..3).filter(|n| *n != leader).collect();
    // The backups' disks stand still. The leader's works, but is no majority.
    others.iter().for_each(|n| c.nodes[*n].disk.stuck = true);
    c.run(50_000);
    let index = c.write(leader).expect("it leads, and has room");
    c.run(200_000);
    let holds = |c: &Cluster, n: usize| c.nodes[n].engine.last() >= index;
    assert!(others.iter().all(|n| holds(&c, *n)), "it stands in their logs");
    assert!(others.iter().all(|n| c.control(leader, *n, control::ACK) <= index.0), "and none has said so");
    assert!(!c.acknowledged.contains_key(&index));
}

#[test]
fn apus_4_1_b3_what_is_committed_travels_with_later_entries_or_by_itself() {
    let mut c = Cluster::new(3, tiny());
    let leader = c.until_led();
    let index = c.write_through(leader);
    c.until("an idle leader tells it", |c| c.nodes.iter().all(|node| node.engine.committed() >= index));
}

#[test]
fn apus_4_1_learning_a_backup_that_misses_entries_gets_the_state_and_goes_on() {
    let mut c = Cluster::new(3, tiny());
    let leader = c.until_led();
    c.write_through(leader);
    let slow = (0..3).find(|n| *n != leader).expect("there are others");
    // It stands still while the log comes round several times.
    c.nodes[slow].alive = false;
    for _ in 0..400 {
        c.write_through(leader);
    }
    c.nodes[slow].alive = true;
    c.world.wake(slow);
    c.until("it has learned", |c| c.nodes[slow].machine.commands() >= 401 && c.nodes[slow].engine.is_complete());
    let index = c.write_through(leader);
    c.until("it acknowledges again", |c| c.control(leader, slow, control::ACK) > index.0);
    c.until("level", |c| c.is_level());
}

#[test]
fn apus_4_4_a_leader_s_death_costs_nothing_that_was_acknowledged() {
    for execution in Execution::ALL {
        let mut config = tiny();
        config.execution = execution;
        let mut c = Cluster::new(3, config);
        let leader = c.until_led();
        if execution == Execution::Committed {
            for _ in 0..10 {
                c.write_through(leader);
            }
        }
        c.kill(leader);
        c.until("another one leads", |c| c.leader().is_some());
        let next = c.leader().expect("just seen");
        assert_ne!(next, leader);
        if execution == Execution::Committed {
            c.write_through(next);
            c.until("level", |c| c.is_level());
        }
    }
}

#[test]
fn apus_4_4_the_most_up_to_date_log_wins() {
    let mut c = Cluster::new(5, tiny());
    let leader = c.until_led();
    let index = c.write_through(leader);
    c.until("all have it", |c| c.nodes.iter().all(|node| node.engine.committed() >= index));
    // Two do not get what comes next.
    let others: Vec<usize> = (0..5).filter(|n| *n != leader).collect();
    c.part(leader, others[0]);
    c.part(leader, others[1]);
    let last = c.write_through(leader);
    c.kill(leader);
    let next = c.until_led();
    assert!(next == others[2] || next == others[3], "{next} leads, of {others:?}");
    assert!(c.nodes[next].engine.committed() >= last);
}

#[test]
fn apus_4_4_views_go_up_and_one_leads_in_each() {
    let mut c = Cluster::new(3, tiny());
    let first = c.until_led();
    let view = c.nodes[first].engine.fencing_token().expect("it leads");
    assert_eq!(view & 0xffff, first as u64, "no other process can propose it");
    c.kill(first);
    let second = c.until_led();
    let later = c.nodes[second].engine.fencing_token().expect("it leads");
    assert!(later > view && later & 0xffff == second as u64);
}

#[test]
fn trap_41_a_backup_closes_the_old_leader_s_queue_before_it_agrees_to_another_one() {
    let mut c = Cluster::new(3, tiny());
    let old = c.until_led();
    c.write_through(old);
    let others: Vec<usize> = (0..3).filter(|n| *n != old).collect();
    // It lives, but no other process hears it.
    c.nodes[old].alive = false;
    c.until("another one leads", |c| others.iter().any(|n| c.leads(*n)));
    let new = others.iter().copied().find(|n| c.leads(*n)).expect("just seen");
    c.write_through(new);
    // The old leader continues as if nothing had happened, but none of its writes is acknowledged, and no read is answered.
    c.nodes[old].alive = true;
    let (reads, acknowledged) = (c.nodes[old].reads, c.acknowledged.len());
    assert!(c.leads(old), "it has not noticed");
    c.read(old);
    c.write(old).expect("it leads, and has room");
    c.world.wake(old);
    c.until("it follows", |c| !c.leads(old));
    assert_eq!((c.nodes[old].reads, c.acknowledged.len()), (reads, acknowledged));
    c.until("level", |c| c.is_level() && c.nodes[old].engine.is_complete());
}

#[test]
fn apus_4_4_a_backup_waits_no_longer_once_it_hears_the_leader_to_whom_it_has_agreed() {
    let election_ns = 2_000_000;
    let mut c = Cluster::new(3, Config { election_ns, ..tiny() });
    let leader = c.until_led();
    let index = c.write_through(leader);
    c.until("both follow", |c| c.nodes.iter().all(|node| node.engine.committed() >= index));
    // Long before the backups would have given it up as a candidate.
    c.kill(leader);
    let killed = c.world.now();
    assert!(killed < election_ns / 4, "{killed} ns");
    c.until_led();
    let took = c.world.now() - killed;
    assert!(took < election_ns / 4, "{took} ns");
}

#[test]
fn apus_4_4_one_false_suspicion_deposes_nobody() {
    let mut c = Cluster::new(3, tiny());
    let leader = c.until_led();
    c.write_through(leader);
    let view = c.nodes[leader].engine.log.promised();
    let alone = (0..3).find(|n| *n != leader).expect("there are others");
    c.part(leader, alone);
    c.run(3_000_000);
    assert!(c.leads(leader) && c.nodes.iter().all(|node| node.engine.log.promised() == view), "a majority hears it");
    c.write_through(leader);
}

#[test]
fn trap_21_what_was_acknowledged_to_a_dead_leader_is_acknowledged_again_to_the_next() {
    let mut c = Cluster::new(3, sync());
    let leader = c.until_led();
    let index = c.write_through(leader);
    c.until("all have it", |c| c.nodes.iter().all(|node| node.engine.last() >= index));
    c.kill(leader);
    // Nothing new is proposed: the next leader leads with what is there.
    let next = c.until_led();
    let other = (0..3).find(|n| *n != leader && *n != next).expect("three");
    assert!(c.control(next, other, control::ACK) > index.0);
    assert_eq!(c.control(next, other, control::ACK_VIEW), c.nodes[next].engine.log.promised());
}

#[test]
fn trap_40_what_was_acknowledged_under_an_earlier_view_of_the_same_leader_counts_for_nothing() {
    let mut c = Cluster::new(3, tiny());
    let leader = c.until_led();
    for _ in 0..5 {
        c.write_through(leader);
    }
    let others: Vec<usize> = (0..3).filter(|n| *n != leader).collect();
    // It hands leadership over and gets it back: its reply words of the first reign are still there.
    c.nodes[leader].engine.hand_over(Some(id(others[0]).node)).expect("it holds the state");
    c.until("handed over", |c| c.leads(others[0]));
    c.write_through(others[0]);
    c.nodes[others[0]].engine.hand_over(Some(id(leader).node)).expect("it holds the state");
    c.until("back", |c| c.leads(leader));
    let view = c.nodes[leader].engine.log.promised();
    assert!(others.iter().any(|n| c.control(leader, *n, control::ACK_VIEW) == view));
    c.write_through(leader);
    c.until("level", |c| c.is_level());
}

#[test]
fn apus_4_4_a_promise_is_told_when_it_is_kept_and_not_before() {
    // A slow disk is no reason to give up.
    let mut patient = sync();
    patient.fate_beats = 10_000;
    let mut c = Cluster::new(3, patient);
    let leader = c.until_led();
    c.write_through(leader);
    let others: Vec<usize> = (0..3).filter(|n| *n != leader).collect();
    others.iter().for_each(|n| c.nodes[*n].disk.stuck = true);
    c.run(20_000);
    let view = c.nodes[leader].engine.log.promised();
    c.kill(leader);
    c.run(300_000);
    // They have promised, in memory only: no process has been told.
    assert!(others.iter().any(|n| c.nodes[*n].engine.log.promised() > view));
    assert!(others.iter().all(|n| others.iter().all(|m| n == m || c.control(*n, *m, control::VOTE) <= view)));
    assert!(others.iter().all(|n| !c.leads(*n)));
    others.iter().for_each(|n| c.nodes[*n].disk.stuck = false);
    c.until("kept", |c| others.iter().any(|n| c.leads(*n)));
}

#[test]
fn a_hand_over_takes_no_timeout_and_loses_nothing() {
    let mut c = Cluster::new(3, tiny());
    let leader = c.until_led();
    c.write_through(leader);
    let to = (0..3).find(|n| *n != leader).expect("there are others");
    c.nodes[leader].engine.hand_over(Some(id(to).node)).expect("it holds the state");
    c.until("handed over", |c| c.leads(to));
    c.until("known", |c| c.nodes[leader].engine.hand_over_state() == Some(HandOverState::Done));
    c.write_through(to);
    c.until("level", |c| c.is_level());
}

#[test]
fn the_others_hold_back_for_a_successor_that_lives_and_is_held_up() {
    let mut c = Cluster::new(3, tiny());
    let leader = c.until_led();
    c.write_through(leader);
    let to = (0..3).rev().find(|n| *n != leader).expect("there are others");
    c.nodes[leader].engine.hand_over(Some(id(to).node)).expect("it holds the state");
    c.until("it is told", |c| !c.leads(leader));
    c.world.pause(to);
    let silence_ns = c.nodes[leader].engine.config.silence_ns;
    c.run(silence_ns / 2);
    assert!((0..3).all(|n| !c.leads(n)), "nobody overtakes it");
    c.world.resume(to);
    c.until("it leads", |c| c.leads(to));

    // One that dies is not waited for.
    let last = (0..3).find(|n| *n != to).expect("there are others");
    c.until("it can succeed", |c| c.nodes[to].engine.hand_over(Some(id(last).node)).is_ok());
    c.until("it is told", |c| !c.leads(to));
    c.kill(last);
    c.until("another one leads", |c| (0..3).any(|n| n != last && c.leads(n)));
}

#[test]
fn apus_5_2_a_newcomer_is_taken_in_once_it_holds_the_state_and_a_dead_one_goes() {
    let mut c = Cluster::new(3, tiny());
    let leader = c.until_led();
    for _ in 0..200 {
        c.write_through(leader);
    }
    let members: Vec<Member> = (0..4).map(|n| Member::new(id(n), if n < 3 { Roles::REPLICA } else { Roles::LEARNER })).collect();
    c.spawn(None);
    let view = View { number: ViewNumber(2), lease_ns: 1, fence_ns: 1, compatible: false, level: 1, members, departed: Vec::new() };
    c.nodes.iter_mut().for_each(|node| node.engine.handle_view(&view));
    c.until("it belongs", |c| c.nodes[leader].engine.group().is_some_and(|group| group.contains(id(3))));
    let index = c.write_through(leader);
    c.until("it follows", |c| c.nodes[3].engine.committed() >= index && c.nodes[3].engine.is_complete());
    let dead = (0..3).find(|n| *n != leader).expect("there are others");
    c.kill(dead);
    c.until("it is gone", |c| c.nodes[leader].engine.group().is_some_and(|group| !group.contains(id(dead))));
    c.write_through(leader);
    c.until("level", |c| c.is_level());
    assert_eq!(Status::of(c.word(leader, words::STATUS)), Status::Leader);
}

#[test]
fn a_removed_process_that_alone_holds_the_last_change_of_the_group_leads_up_to_it() {
    let mut c = Cluster::new(3, tiny());
    let leader = c.until_led();
    let [left, removed] = [1, 2].map(|n| (leader + n) % 3);
    let list = |c: &mut Cluster, number: u64, members: [usize; 2]| {
        let members = members.map(|n| Member::new(id(n), Roles::REPLICA)).to_vec();
        let number = ViewNumber(number);
        let view = View { number, lease_ns: 1, fence_ns: 1, compatible: false, level: 1, members, departed: Vec::new() };
        c.nodes.iter_mut().for_each(|node| node.engine.handle_view(&view));
    };
    list(&mut c, 2, [leader, left]);
    c.until("all know that one is removed", |c| c.nodes.iter().all(|node| !node.engine.committed_group().contains(&id(removed))));
    // The leader removes itself, and only the process that was removed before learns of it.
    c.part(leader, left);
    list(&mut c, 3, [left, removed]);
    let has_last = |c: &Cluster, n: usize| c.nodes[n].engine.group().is_some_and(|group| !group.contains(id(leader)));
    c.until("it has the last change", |c| has_last(c, removed));
    assert!(!has_last(&c, left));
    c.kill(leader);
    c.until("it is not needed any more, and the one that is left leads", |c| c.leads(left) && !c.leads(removed));
    c.write_through(left);
}

#[test]
fn a_reply_to_a_read_needs_a_majority_s_open_lanes() {
    let mut c = Cluster::new(3, tiny());
    let leader = c.until_led();
    c.write_through(leader);
    c.read(leader);
    c.until("an answer", |c| c.nodes[leader].reads == 1);
    let others: Vec<usize> = (0..3).filter(|n| *n != leader).collect();
    others.iter().for_each(|n| c.part(leader, *n));
    c.read(leader);
    c.run(100_000);
    assert_eq!(c.nodes[leader].reads, 1, "nobody has said that it may still lead");
}

#[test]
fn what_is_acknowledged_is_in_order_and_without_a_gap() {
    let mut c = Cluster::new(3, tiny());
    let leader = c.until_led();
    for _ in 0..50 {
        c.until("room", |c| c.nodes[leader].engine.has_room(100));
        c.write(leader).expect("it leads, and has room");
    }
    c.until("all", |c| c.acknowledged.len() == 50);
    let indices: Vec<u64> = c.acknowledged.keys().map(|index| index.0).collect();
    assert_eq!(indices, (1..=50).collect::<Vec<u64>>());
    assert_eq!(c.nodes[leader].engine.committed(), LogIndex(50));
}

/// The leader and a backup are lost at the same time; the backup's loss is noticed only when the others read what it reports of itself.
#[test]
fn one_that_is_found_to_be_gone_is_not_waited_for_by_those_that_look() {
    let config = Config { election_ns: 20_000_000, ..tiny() };
    let mut c = test_cluster::Cluster::<Apus, false>::new(5, config);
    let leader = c.until_led();
    c.write_through(leader);
    c.until("all have it", |c| c.is_level());
    let others: Vec<usize> = (0..5).filter(|n| *n != leader).collect();
    let (lost, rest) = others.split_first().expect("four");
    c.world.partition(&[leader, *lost], rest);
    let gone = |c: &mut test_cluster::Cluster<Apus, false>, gone: usize| {
        for n in rest {
            let peer = c.peer(*n, gone);
            c.nodes[*n].engine.handle_peer_gone(peer, false);
        }
    };
    gone(&mut c, leader);
    c.until("they look", |c| rest.iter().all(|n| c.nodes[*n].engine.is_looking()));
    gone(&mut c, *lost);
    let from = c.world.now();
    c.until("one of them leads", |c| rest.iter().any(|n| c.leads(*n)));
    let took = c.world.now() - from;
    assert!(took < config.election_ns, "after {took} ns");
}

/// It runs for less time than an answer takes, and between that is kept from running for longer than it waits for an answer. The answer has arrived when it
/// runs again.
#[test]
fn one_that_runs_for_moments_only_learns_what_has_come_meanwhile() {
    let mut config = tiny();
    config.state_ring_bytes = 65_536;
    for stall_ns in [config.silence_ns / 2, 3 * config.teach_patience_ns] {
        let mut c = Cluster::new(3, config);
        let leader = c.until_led();
        let slow = (0..3).find(|n| *n != leader).expect("there are others");
        c.nodes[slow].alive = false;
        for _ in 0..400 {
            c.write_through(leader);
        }
        c.nodes[slow].alive = true;
        c.world.wake(slow);
        c.until("it asks", |c| c.nodes[slow].engine.requests > 0);
        let mut moments = 0;
        while !c.nodes[slow].engine.is_complete() {
            moments += 1;
            assert!(moments < 40, "asked {} times, with pauses of {stall_ns} ns", c.nodes[slow].engine.requests);
            c.world.pause(slow);
            c.run(stall_ns);
            c.world.resume(slow);
            c.run(1_500);
        }
        assert_eq!(c.nodes[slow].engine.requests, 1);
        c.until("level", |c| c.is_level());
    }
}
