//! When an entry counts, and what that costs (uKharon section 7.3; TRAPS 7, 13, 14, 15, 17, 20).

use martlet_fabric::ring;

use super::world::{TestFabric, World, peer, tiny};
use crate::basics::LogIndex;
use crate::engine::Engine as _;
use crate::engine::view_log::layout::HEADER_BYTES;
use crate::engine::view_log::{Config, Event};
use crate::membership::{Proof, Round};
use crate::replica::Standing;

fn quiet() -> Config {
    Config { flush_idle_ns: u64::MAX, nudge_entries: u32::MAX, ..tiny() }
}

fn written(fabric: &TestFabric) -> (u64, u64) {
    (fabric.writes, fabric.bytes_written)
}

#[test]
fn ukharon_7_3_the_primary_replicates_a_put_with_one_write_to_each_backup() {
    let mut world = World::led(3, quiet());
    let before = written(&world.processes[0].fabric);
    world.write(0, 1, 3);
    world.step(0);
    let after = written(&world.processes[0].fabric);
    assert_eq!(after.0 - before.0, 2);
    assert_eq!(after.1 - before.1, 2 * ring::record_bytes(HEADER_BYTES + 12) as u64);
}

#[test]
fn ukharon_7_3_a_get_is_not_replicated() {
    let mut world = World::led(3, quiet());
    world.write(0, 1, 3);
    world.run(2);
    let before = written(&world.processes[0].fabric);
    world.read(0);
    world.run(2);
    assert_eq!(written(&world.processes[0].fabric), before);
    assert_eq!(world.reads, 1);
}

#[test]
fn ukharon_7_3_the_primary_replies_when_the_write_is_in_every_backup_and_the_view_still_active() {
    let mut world = World::led(3, quiet());
    let index = world.write(0, 1, 3).expect("there is room");
    world.turns(0, 3);
    assert!(world.acknowledged.is_empty(), "posted, but in nobody's memory");
    world.processes[0].fabric.deliver(peer(1), usize::MAX);
    world.turns(0, 3);
    assert!(world.acknowledged.is_empty(), "in the memory of one of two backups");
    world.processes[0].fabric.deliver(peer(2), usize::MAX);
    world.turns(0, 1);
    assert_eq!(world.acknowledged, [index]);
}

#[test]
fn appendix_b_a_read_by_quorum_asks_nobody_before_what_it_saw_is_in_every_backup() {
    let mut world = World::led(3, quiet());
    world.write(0, 1, 3).expect("there is room");
    let before = written(&world.processes[0].fabric);
    let read = world.processes[0].engine.ticket_by_quorum();
    for backup in [1, 2] {
        world.turns(0, 3);
        assert!(!world.processes[0].engine.wants_round(), "a round that begins now would not vouch for what it saw");
        world.processes[0].fabric.deliver(peer(backup), usize::MAX);
    }
    world.turns(0, 1);
    let after = written(&world.processes[0].fabric);
    assert_eq!(after.0 - before.0, 2, "the write's own, one to each backup, and nothing for the read");
    let engine = &mut world.processes[0].engine;
    assert!(engine.wants_round() && engine.released() >= read);
    let view = engine.view();
    engine.note_round(Round(1));
    engine.handle_proof(Proof { round: Round(1), view: view.next() });
    assert!(engine.released_by_quorum() < read, "that says nothing of this view (TRAPS 3)");
    engine.handle_proof(Proof { round: Round(1), view });
    assert!(engine.released_by_quorum() >= read && !engine.wants_round());
}

#[test]
fn trap_7_neither_a_put_nor_a_get_is_answered_after_the_view_has_ended() {
    let mut world = World::led(2, quiet());
    world.write(0, 1, 3);
    world.read(0);
    world.step(0);
    world.deliver(0);
    // The write is in the backup's memory, but before the primary checks, another view has become active, of which it was not told.
    world.decide(&[(1, crate::membership::Roles::REPLICA)]);
    world.activate();
    world.turns(0, 5);
    assert_eq!(world.processes[0].engine.standing(), Standing::Primary, "it knows of nothing");
    assert!(world.acknowledged.is_empty() && world.reads == 0);
    let reign = world.processes[0].engine.reign();
    world.learn(0);
    assert_eq!(world.processes[0].engine.standing(), Standing::Excluded);
    assert_eq!(world.processes[0].engine.reign(), reign + 1, "so that waiting replies are dropped");
    world.turns(0, 3);
    assert!(world.acknowledged.is_empty() && world.reads == 0);
}

#[test]
fn trap_7_a_get_waits_for_a_check_that_is_later_than_its_execution() {
    let mut world = World::led(2, quiet());
    let ticket = world.processes[0].engine.ticket();
    assert!(ticket > world.processes[0].engine.released(), "nothing is proposed, and the last check is past");
    world.turns(0, 1);
    assert!(ticket <= world.processes[0].engine.released());
}

#[test]
fn a_check_of_another_view_than_the_engines_counts_for_nothing() {
    let mut world = World::led(2, quiet());
    let ticket = world.processes[0].engine.ticket();
    let process = &mut world.processes[0];
    let old = process.engine.view();
    process.engine.advance(crate::basics::Time(5000), Some(old.next()), &mut process.fabric, &mut process.machine);
    assert!(ticket > process.engine.released());
}

#[test]
fn backups_apply_an_entry_only_when_they_know_that_it_is_committed() {
    let mut world = World::led(3, quiet());
    world.write(0, 1, 0);
    world.run(3);
    assert_eq!(world.acknowledged.len(), 1);
    assert_eq!(world.ids(1), [] as [u64; 0], "held, and acknowledged to the client, but the backup cannot know");
    world.write(0, 1, 0);
    world.run(3);
    assert_eq!(world.ids(1), [1], "the second entry brought the news of the first");
    assert_eq!(world.processes[1].engine.last(), LogIndex(2));
}

#[test]
fn trap_13_the_last_entry_is_applied_without_a_next_one() {
    let mut world = World::led(3, Config { flush_idle_ns: 100, ..quiet() });
    world.write(0, 1, 0);
    world.run(20);
    world.assert_level();
    let before = written(&world.processes[0].fabric);
    world.run(50);
    assert_eq!(written(&world.processes[0].fabric), before, "told once");
}

#[test]
fn trap_14_a_record_is_taken_whole_or_not_at_all_however_its_words_arrive() {
    let mut world = World::led(2, quiet());
    for id in 1..=40u64 {
        let held = world.processes[1].engine.last();
        world.write(0, 1, 50);
        for _ in 0..10 {
            world.turns(0, 1);
            while world.processes[0].fabric.deliver(peer(1), 1) {
                world.turns(1, 1);
                let last = world.processes[1].engine.last();
                assert!(last == held || last == held.next());
            }
        }
        assert_eq!(world.processes[1].engine.last(), LogIndex(id));
    }
    assert_eq!(world.acknowledged.len(), 40, "many laps of the ring of 1024 bytes");
}

#[test]
fn trap_15_a_full_lane_stops_the_log_loses_nothing_and_blocks_nobody() {
    let mut world = World::led(2, quiet());
    let mut written = 0;
    // The backup reads nothing.
    for _ in 0..200 {
        written += u64::from(world.write(0, 1, 20).is_some());
        world.turns(0, 1);
        world.deliver(0);
    }
    let engine = &world.processes[0].engine;
    assert!(!engine.has_room(1), "the backlog is bounded");
    assert_eq!(engine.lagging().collect::<Vec<_>>(), [world.processes[1].id]);
    assert!(world.acknowledged.len() < written as usize);
    world.run(100);
    assert_eq!(world.acknowledged.len(), written as usize);
    assert_eq!(world.processes[1].engine.last(), LogIndex(written));
    assert!(world.processes[0].engine.has_room(1));
    assert_eq!(world.processes[0].engine.lagging().count(), 0);
}

#[test]
fn entries_of_any_length_travel_in_fragments() {
    let mut world = World::led(3, quiet());
    for padding in [0, 100, 190, 200, 500, 1024, 5000, 100_000] {
        assert!(world.write(0, 1, padding).is_some(), "an entry of any length has room when nothing waits");
        let mut rounds = 0;
        while world.processes[0].engine.committed() < world.processes[0].engine.last() {
            world.run(1);
            rounds += 1;
            assert!(rounds < 1000);
        }
        world.run(1);
    }
    world.write(0, 1, 0);
    world.run(3);
    assert_eq!(world.ids(1), [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(world.processes[1].machine.digest_of(1), world.processes[2].machine.digest_of(1));
}

#[test]
fn trap_20_a_dead_backup_counts_until_a_view_excludes_it_and_then_the_primary_goes_on_without_a_break() {
    let mut world = World::led(3, quiet());
    world.crash(2);
    for p in [0, 1] {
        world.processes[p].engine.handle_peer_gone(peer(2), false);
    }
    world.write(0, 1, 0);
    world.run(3);
    assert_eq!(world.acknowledged.len(), 1, "a zombie's memory still completes writes");
    world.processes[0].fabric.lose(peer(2));
    world.write(0, 1, 0);
    world.run(3);
    assert_eq!(world.acknowledged.len(), 1, "out of reach it holds up the log");
    assert_eq!(world.processes[0].engine.lagging().collect::<Vec<_>>(), [world.processes[2].id]);
    let reign = world.processes[0].engine.reign();
    world.replicas(&[0, 1]);
    world.run(3);
    assert_eq!(world.acknowledged.len(), 2);
    assert_eq!(world.processes[0].engine.reign(), reign);
    assert!(!world.processes[0].engine.is_alone());
    for p in [0, 1] {
        assert!(world.processes[p].events.contains(&Event::Forget(peer(2))));
    }
    world.replicas(&[0]);
    assert!(world.processes[0].engine.is_alone());
    world.write(0, 1, 0);
    world.turns(0, 1);
    assert_eq!(world.acknowledged.len(), 3, "alone it commits at once, while its view is active");
    world.activate();
    world.write(0, 1, 0);
    world.active = world.active.next();
    world.turns(0, 1);
    assert_eq!(world.acknowledged.len(), 3, "and not otherwise");
}

#[test]
fn a_backup_that_sleeps_is_nudged_and_one_that_reads_is_not() {
    let config = Config { nudge_entries: 4, nudge_gap_ns: 0, ..quiet() };
    let mut world = World::led(3, config);
    for _ in 0..20 {
        world.write(0, 1, 0);
        world.turns(0, 1);
        world.deliver(0);
        world.turns(1, 1);
    }
    let nudges = &world.processes[0].fabric.nudges;
    assert!(nudges.contains(&peer(2)), "{nudges:?}");
    assert!(!nudges.contains(&peer(1)), "{nudges:?}");
}

#[test]
fn nothing_is_written_to_a_process_that_does_not_know_of_the_lane() {
    let mut world = World::new(2, quiet());
    for _ in 0..10 {
        world.turns(0, 1);
        world.deliver(0);
    }
    assert_eq!(world.processes[0].fabric.writes, 0, "process 1 has not taken a turn");
    assert_eq!(world.processes[0].engine.standing(), Standing::Backup { primary: None });
    world.run(6);
    assert_eq!(world.processes[0].engine.standing(), Standing::Primary);
}
