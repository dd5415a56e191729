//! Failovers, one after the other, and broken off anywhere.

use super::world::{World, peer, quiet};
use crate::basics::LogIndex;
use crate::engine::Engine as _;
use crate::engine::view_log::{Config, Event};
use crate::membership::Roles;
use crate::replica::Standing;

fn took_over(world: &World, p: usize) -> Option<u64> {
    world.processes[p].events.iter().find_map(|e| match e {
        Event::TookOver { recovered, .. } => Some(*recovered),
        _ => None,
    })
}

#[test]
fn ukharon_7_3_upon_membership_change_the_backup_waits_for_the_new_membership_to_become_active() {
    let mut world = World::led(2, quiet());
    world.write(0, 1, 0);
    world.run_only(&[0, 1], 3);
    world.crash(0);
    world.decide(&[(1, Roles::REPLICA)]);
    world.learn(1);
    world.turns(1, 5);
    assert_eq!(world.processes[1].engine.standing(), Standing::Backup { primary: None });
    assert_eq!(world.ids(1), [] as [u64; 0]);
    world.activate();
    world.turns(1, 1);
    assert_eq!(world.processes[1].engine.standing(), Standing::Primary, "within one turn when it is alone");
    assert_eq!((world.ids(1), took_over(&world, 1)), (vec![1], Some(1)));
}

#[test]
fn ukharon_7_3_the_new_primary_applies_all_unprocessed_requests_in_its_buffer() {
    let mut world = World::led(3, quiet());
    world.acknowledge_unread(10);
    world.crash(0);
    world.replicas(&[1, 2]);
    world.run_only(&[1, 2], 4);
    assert_eq!(took_over(&world, 1), Some(10));
    assert_eq!(world.ids(1), (1..=10).collect::<Vec<_>>());
}

/// A acknowledged 1 and 2; B takes over and replicates 1 again, then dies; C must still have 2.
#[test]
fn a_takeover_that_breaks_off_midway_takes_nothing_with_it() {
    let mut world = World::led(3, quiet());
    for _ in 0..2 {
        world.write(0, 1, 60);
    }
    world.run_only(&[0, 1, 2], 2);
    assert_eq!(world.acknowledged.len(), 2);
    world.crash(0);
    world.replicas(&[1, 2]);
    world.turns(1, 1);
    // A start and two entries are in flight to C: 48 bytes, 128, 128. The start and the first entry arrive.
    world.processes[1].fabric.deliver(peer(2), (48 + 128) / 8);
    world.run_only(&[2], 2);
    world.crash(1);
    world.replicas(&[2]);
    world.turns(2, 2);
    assert_eq!((world.ids(2), took_over(&world, 2)), (vec![1, 2], Some(2)));
}

/// A wrote 3 to C only; B, which never had it, takes over and writes another 3.
#[test]
fn what_the_new_primary_does_not_hold_is_cut_off_at_the_others() {
    let mut world = World::led(3, quiet());
    for _ in 0..2 {
        world.write(0, 1, 0);
        world.run_only(&[0, 1, 2], 2);
    }
    world.write(0, 1, 0);
    world.turns(0, 1);
    world.processes[0].fabric.deliver(peer(2), usize::MAX);
    world.turns(2, 1);
    assert_eq!((world.processes[1].engine.last(), world.processes[2].engine.last()), (LogIndex(2), LogIndex(3)));
    world.crash(0);
    world.replicas(&[1, 2]);
    world.run_only(&[1, 2], 4);
    assert_eq!(world.processes[2].engine.last(), LogIndex(2));
    world.write(1, 1, 0);
    world.run_only(&[1, 2], 3);
    world.crash(1);
    world.replicas(&[2]);
    world.turns(2, 2);
    assert_eq!(world.ids(2), [1, 2, 4], "3 was never acknowledged, 4 was");
}

/// The same, but B dies before its start is whole at C: B has acknowledged nothing, so C may keep what it has.
#[test]
fn an_ineffective_start_cuts_nothing_off() {
    let mut world = World::led(3, quiet());
    world.write(0, 1, 0);
    world.run_only(&[0, 1, 2], 2);
    world.write(0, 1, 0);
    world.turns(0, 1);
    world.processes[0].fabric.deliver(peer(2), usize::MAX);
    world.crash(0);
    world.replicas(&[1, 2]);
    world.turns(1, 1);
    world.processes[1].fabric.deliver(peer(2), 48 / 8);
    world.run_only(&[2], 2);
    world.crash(1);
    world.replicas(&[2]);
    world.turns(2, 2);
    assert_eq!(world.ids(2), [1, 2]);
}

#[test]
fn a_late_store_of_a_paused_ex_primary_harms_nobody() {
    let mut world = World::led(3, quiet());
    world.write(0, 1, 0);
    world.run_only(&[0, 1, 2], 3);
    // Paused with entry 2 on its way to both.
    world.write(0, 1, 0);
    world.step(0);
    world.replicas(&[1, 2]);
    world.run_only(&[1, 2], 4);
    // Now the write arrives, where it would just continue the log, and the former primary continues.
    world.deliver(0);
    world.run_only(&[1, 2], 3);
    world.turns(0, 5);
    for p in [1, 2] {
        assert_eq!(world.processes[p].engine.last(), LogIndex(1));
    }
    for _ in 0..2 {
        world.write(1, 1, 0);
        world.run_only(&[1, 2], 3);
    }
    world.crash(1);
    world.replicas(&[2]);
    world.turns(2, 2);
    assert_eq!(world.ids(2), [1, 3, 4], "command 2 was never acknowledged");
    assert_eq!(world.acknowledged.len(), 3);
    assert_eq!(world.processes[1].engine.lane_faults() + world.processes[2].engine.lane_faults(), 0);
}

/// The new primary relies on what its base covers; a backup that has slept finds it in the old primary's lane.
#[test]
fn a_backup_reads_the_older_lanes_to_their_ends_before_it_follows_the_new_primary() {
    let mut world = World::led(3, Config { drain_budget_bytes: 1, ..quiet() });
    for _ in 0..5 {
        world.write(0, 1, 0);
        world.run_only(&[0, 1], 3);
    }
    world.write(0, 1, 0);
    world.run_only(&[0, 1], 8);
    assert_eq!(world.processes[1].engine.committed(), LogIndex(5));
    assert_eq!(world.processes[2].engine.last(), LogIndex(0), "asleep");
    world.crash(0);
    world.replicas(&[1, 2]);
    world.run_only(&[1], 2);
    world.run_only(&[2], 3);
    assert_eq!(world.processes[2].engine.last(), LogIndex(6));
    assert_eq!(world.processes[2].engine.lane_faults(), 0);
    world.run_only(&[1, 2], 3);
    assert_eq!(took_over(&world, 1), Some(1));
}

/// A late store can make a start effective that the next primary took for ineffective. The next primary's own start corrects that.
#[test]
fn a_late_start_of_a_paused_primary_is_superseded_by_its_successors() {
    let mut world = World::led(4, quiet());
    for _ in 0..2 {
        world.write(0, 1, 0);
        world.run_only(&[0, 1, 2, 3], 2);
    }
    // Entry 3 reaches 2 and 3, not 1.
    world.write(0, 1, 0);
    world.turns(0, 1);
    world.processes[0].fabric.deliver(peer(2), usize::MAX);
    world.processes[0].fabric.deliver(peer(3), usize::MAX);
    world.run_only(&[2, 3], 1);
    world.crash(0);
    // Process 1 starts with entries 1 and 2 only, and is paused before anything has arrived.
    world.replicas(&[1, 2, 3]);
    world.turns(1, 1);
    // Process 2 takes over with 1 to 3.
    world.replicas(&[2, 3]);
    world.turns(2, 1);
    // 1's start arrives at 3, whole, and is believed: entry 3 is cut off there.
    world.deliver(1);
    world.run_only(&[3], 2);
    assert_eq!(world.processes[3].engine.last(), LogIndex(2));
    // 2's start arrives, with entry 3.
    world.deliver(2);
    world.run_only(&[3, 2], 3);
    assert_eq!(world.processes[3].engine.last(), LogIndex(3));
    assert_eq!(world.processes[2].engine.committed(), LogIndex(3));
    world.crash(2);
    world.replicas(&[3]);
    world.turns(3, 2);
    assert_eq!(world.ids(3), [1, 2, 3]);
}

#[test]
fn a_primary_goes_on_through_views_that_others_join_and_leave_without_a_new_start() {
    let mut world = World::led(3, quiet());
    world.write(0, 1, 0);
    world.run_only(&[0, 1, 2], 2);
    let (reign, writes) = (world.processes[0].engine.reign(), world.processes[0].fabric.writes);
    let token = world.processes[0].engine.fencing_token();
    assert!(token.is_some_and(|token| token > 0));
    world.replicas(&[0, 2]);
    world.run_only(&[0, 2], 3);
    assert_eq!(world.processes[0].fabric.writes, writes);
    assert_eq!(world.processes[0].engine.reign(), reign);
    world.write(0, 1, 0);
    world.run_only(&[0, 2], 2);
    assert_eq!(world.acknowledged.len(), 2);
    assert_eq!(world.processes[2].engine.last(), LogIndex(2));
    assert_eq!(world.processes[1].engine.standing(), Standing::Excluded);
    assert_eq!(world.processes[0].engine.fencing_token(), token, "a reign has one, however many views it goes through");
    world.crash(0);
    world.replicas(&[2]);
    world.run_only(&[2], 3);
    assert!(world.processes[2].engine.fencing_token() > token);
}

#[test]
fn trap_28_an_excluded_process_starts_over_as_a_new_one() {
    let mut world = World::led(2, quiet());
    world.write(0, 1, 0);
    world.run_only(&[0, 1], 2);
    world.replicas(&[1]);
    world.run_only(&[1, 0], 3);
    let process = &mut world.processes[0];
    assert_eq!(process.engine.standing(), Standing::Excluded);
    let (reign, ticket) = (process.engine.reign(), process.engine.ticket());
    let new = crate::basics::ProcessId { incarnation: martlet_fabric::Incarnation(99), ..process.id };
    process.engine.reset(new, &mut process.machine);
    assert_eq!(process.engine.standing(), Standing::Backup { primary: None });
    assert_eq!((process.engine.last(), process.engine.view().0), (LogIndex(0), 0));
    assert!(process.machine.keys.is_empty());
    assert_eq!(process.engine.reign(), reign);
    assert!(process.engine.ticket() >= ticket, "tickets only grow");
}

/// Process 0 leads and is killed after each possible number of steps, where a step is one word of transfer or one step of a turn. Then process 1 takes over and
/// is killed in the same way, and then process 2 takes over. The world's oracle checks everything.
#[test]
fn nothing_acknowledged_is_lost_whichever_two_steps_two_primaries_die_at() {
    let mut recovered = 0;
    for first in 0..90 {
        for second in (0..70).step_by(1 + first % 3) {
            let mut world = World::led(3, quiet());
            micro_steps(&mut world, 0, first);
            world.crash(0);
            world.replicas(&[1, 2]);
            micro_steps(&mut world, 1, second);
            world.crash(1);
            let acknowledged = world.acknowledged.len();
            world.replicas(&[2]);
            world.turns(2, 2);
            assert_eq!(world.processes[2].engine.standing(), Standing::Primary);
            assert!(world.processes[2].engine.last().0 as usize >= acknowledged);
            recovered += took_over(&world, 2).unwrap_or(0);
        }
    }
    assert!(recovered > 1000);
}

/// The primary `p` writes whenever it may, and a word to each other process arrives after every step.
fn micro_steps(world: &mut World, p: usize, steps: usize) {
    for step in 0..steps {
        if world.processes[p].step == 0 && step % 2 == 0 {
            world.write(p, 1, 0);
        }
        match step % 3 {
            0 => {
                world.step(p);
            }
            1 => {
                world.processes[p].fabric.deliver(peer(1 - p.min(1)), 9);
                world.processes[p].fabric.deliver(peer(2), 5);
            }
            _ => {
                world.step(2);
            }
        }
    }
}
