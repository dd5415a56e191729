//! Durability: what is acknowledged with `sync` outlives a loss of power at all replicas, at any moment.

use fastrand::Rng;
use martlet_fabric::primitive::AtomicU64;
use martlet_fabric::ring::{Record, lane_bytes};
use martlet_fabric::sim::{Faults, World};
use martlet_fabric::{Identity, Incarnation, PeerKind, RegionSpec};

use super::world::{Cluster, drawn, id, tiny_but};
use crate::basics::{LogIndex, ProcessId};
use crate::engine::Durable as _;
use crate::engine::Engine as _;
use crate::engine::mu::durable::{Replayed, replay};
use crate::engine::mu::journal::Journal;
use crate::engine::mu::layout::{Header, Kind, add_regions};
use crate::engine::mu::log::{Log, Mark, Staged};
use crate::engine::mu::{Config, Durability, Event, Group, Mu};
use crate::engine::test_cluster::Stored;
use crate::engine::test_cluster::{KEY_BYTES, Machine, command};
use crate::replica::Execution;
use crate::replica::journal::{RecoverError, SnapshotStep};
use crate::replica::{MAX_PART_BYTES, Standing, StateMachine, UnreadablePart};

fn durable(durability: Durability) -> Config {
    tiny_but(|config| config.durability = durability)
}

fn durable_running(execution: Execution) -> Config {
    let mut config = durable(Durability::Sync);
    config.execution = execution;
    config
}

/// Until every node has something to recover.
fn ready<const HOST: bool>(c: &mut Cluster<HOST>) {
    c.until("everybody has a snapshot", |c| c.nodes.iter().all(|node| node.disk.is_good()));
}

#[test]
fn apus_4_1_with_sync_nothing_is_acknowledged_before_a_majority_has_it_on_stable_storage() {
    let mut c = Cluster::<true>::new(3, durable(Durability::Sync));
    c.until_led_by(0);
    ready(&mut c);
    c.write_through(0);
    c.nodes[1].disk.stuck = true;
    let index = c.write_through(0);
    assert!(c.nodes[1].engine.stable() < Some(index), "one of three is not waited for");
    c.nodes[2].disk.stuck = true;
    let index = c.write(0).expect("it leads, and has room");
    c.run(500_000);
    assert!(!c.acknowledged.contains_key(&index) && c.nodes[0].engine.committed() < index, "the leader alone is no majority");
    assert!(c.nodes[0].engine.stable() >= Some(index));
    c.nodes[1].disk.stuck = false;
    c.until("it is acknowledged", |c| c.acknowledged.contains_key(&index));
}

#[test]
fn with_async_nobody_waits_for_a_disk() {
    let mut c = Cluster::<true>::new(3, durable(Durability::Async));
    c.until_led_by(0);
    ready(&mut c);
    c.nodes.iter_mut().for_each(|node| node.disk.stuck = true);
    let index = c.write_through(0);
    assert!(c.nodes.iter().all(|node| node.engine.stable() < Some(index)));
}

#[test]
fn a_part_that_is_too_long_for_the_disk_is_no_part_of_a_snapshot() {
    let mut c = Cluster::<true>::new(3, durable(Durability::Async));
    c.until_led_by(0);
    ready(&mut c);
    c.write_through(0);
    let node = &mut c.nodes[0];
    node.engine.note_taken(u64::MAX);
    node.machine.sprawls = true;
    assert!(node.engine.begin_snapshot(&node.fabric));
    node.engine.note_taken(u64::MAX);
    let mut out = Vec::new();
    assert_eq!(node.engine.snapshot_step(&node.machine, 200, &mut out), SnapshotStep::Part);
    out.clear();
    assert_eq!(node.engine.snapshot_step(&node.machine, 200, &mut out), SnapshotStep::TooLong(MAX_PART_BYTES + 1));
    assert_eq!((out.len(), node.engine.snapshot_step(&node.machine, 200, &mut out)), (0, SnapshotStep::Void), "it is given up");
}

#[test]
fn one_that_holds_back_writes_nothing_down_and_the_others_go_on() {
    let mut c = Cluster::<true>::new(3, durable(Durability::Async));
    c.until_led_by(0);
    ready(&mut c);
    c.write_through(0);
    c.until("all are level", |c| c.is_level());
    c.nodes[1].engine.hold_back(true);
    let last = c.nodes[1].engine.last();
    // So much that the log wraps around, and the lane too.
    for _ in 0..200 {
        c.write_through(0);
    }
    assert_eq!((c.nodes[1].engine.last(), c.nodes[1].engine.journal().len()), (last, 0));
    // What its lane holds counts when the leader changes.
    c.kill(0);
    let leader = |c: &Cluster<true>| c.leader().filter(|leader| *leader != 0);
    c.until("another leader", |c| leader(c).is_some());
    let next = leader(&c).expect("just seen");
    c.write_through(next);
    c.nodes[1].engine.hold_back(false);
    c.until("all are level", |c| c.is_level());
}

#[test]
fn a_log_says_whether_its_owner_belonged_to_the_group() {
    let mut c = Cluster::<true>::new(3, durable(Durability::Sync));
    c.until_led_by(0);
    ready(&mut c);
    let joiner = c.spawn(None);
    let belonged = |c: &Cluster<true>| {
        let left = c.nodes[joiner].disk.stored()?;
        Some(Mu::belonged(id(joiner), &c.config, &left.last, &left.journal()).expect("what it has written"))
    };
    c.until("it has a snapshot", |c| belonged(c).is_some());
    assert_eq!(belonged(&c), Some(false), "it has been taught, and nobody counts on it");
    c.nodes[0].engine.add(id(joiner));
    c.until("its log says so", |c| belonged(c) == Some(true));
    // It has yet to learn whether that is committed. A node that recovers now has not been removed.
    let Stored { parts, last, .. } = c.nodes[joiner].disk.stored().expect("just seen");
    let journal = c.nodes[joiner].disk.stored().map(Stored::journal).expect("just seen");
    let mut spec = RegionSpec::default();
    add_regions(&mut spec, &c.config);
    let identity = Identity { node: id(joiner).node, incarnation: id(joiner).incarnation, kind: PeerKind::Member };
    let (_, fabric) = World::<true>::new(1, Faults::calm()).spawn(identity, &spec);
    let back = Mu::recover(id(joiner), c.config, parts, last, &journal, &fabric, &mut Machine::default()).expect("what it has written");
    let back = back.expect("it keeps a journal");
    assert!(back.log.is_group_changing() && !back.is_removed());
    c.until("it is taken in", |c| c.nodes[0].engine.group().is_some_and(|group| group.contains(id(joiner))) && c.is_level());
    assert_eq!(belonged(&c), Some(true));
}

#[test]
fn a_leader_whose_promise_would_be_forgotten_does_not_prepare() {
    let mut c = Cluster::<true>::new(3, durable(Durability::Sync));
    c.nodes.iter_mut().for_each(|node| node.disk.stuck = true);
    c.run(1_000_000);
    assert_eq!(c.leader(), None, "no ceiling is stable");
    c.nodes.iter_mut().for_each(|node| node.disk.stuck = false);
    c.until_led_by(0);
}

#[test]
fn a_number_that_may_have_been_promised_before_the_power_went_is_not_used_again() {
    let mut c = Cluster::<true>::new(3, durable(Durability::Sync));
    c.until_led_by(0);
    ready(&mut c);
    c.write_through(0);
    // All of them would have accepted numbers up to there without another sync.
    let ceiling = c.nodes.iter().map(|node| node.engine.log.journal.as_ref().expect("durable").ceiling()).max().expect("three");
    assert!(ceiling > c.nodes[0].engine.ballot());
    c.lose_power(2, Faults::calm());
    c.until("a leader", |c| c.leader().is_some());
    assert!(c.leader().is_some_and(|leader| c.nodes[leader].engine.ballot() > ceiling));
}

#[test]
fn a_minority_that_comes_back_does_not_lead() {
    let mut c = Cluster::<true>::new(3, durable(Durability::Sync));
    c.until_led_by(0);
    ready(&mut c);
    c.write_through(0);
    c.lose_power(3, Faults::calm());
    c.kill(1);
    c.kill(2);
    c.run(3_000_000);
    assert_ne!(c.nodes[0].engine.standing(), Standing::Primary);
}

#[test]
fn one_that_joins_counts_when_it_could_come_back() {
    let mut c = Cluster::<true>::new(3, durable(Durability::Sync));
    c.until_led_by(0);
    ready(&mut c);
    let joiner = c.spawn(None);
    c.nodes[joiner].disk.stuck = true;
    c.nodes[0].engine.add(id(joiner));
    c.until("it has been taught", |c| c.nodes[joiner].engine.is_complete());
    c.run(500_000);
    c.write_through(0);
    assert!(!c.nodes[0].engine.group().expect("a leader has one").contains(id(joiner)));
    c.nodes[joiner].disk.stuck = false;
    c.until("it is taken in", |c| c.nodes[joiner].engine.group().is_some_and(|group| group.contains(id(joiner))));
    c.until("all are level", |c| c.is_level());
}

#[test]
fn one_that_is_taken_in_could_come_back_with_async_too() {
    let mut c = Cluster::<true>::new(1, durable(Durability::Async));
    c.until_led_by(0);
    ready(&mut c);
    let joiner = c.spawn(None);
    c.nodes[joiner].disk.stuck = true;
    c.nodes[0].engine.add(id(joiner));
    c.until("it has been taught", |c| c.nodes[joiner].engine.is_complete());
    c.run(500_000);
    c.write_through(0);
    let is_in = |c: &Cluster<true>| c.nodes[0].engine.group().expect("a leader has one").contains(id(joiner));
    assert!(!is_in(&c), "a group of two could not come back without it");
    // Nor when its log has been overrun meanwhile, and it holds nothing at all.
    c.leave_behind(joiner, 0, c.config.log_ring_bytes as u64 * 9 / 4);
    c.world.resume(joiner);
    c.until("it has been overrun", |c| !c.nodes[joiner].engine.is_complete());
    c.run(500_000);
    assert!(!is_in(&c), "without a state");
    c.nodes[joiner].disk.stuck = false;
    c.until("it is taken in", |c| c.nodes[joiner].engine.group().is_some_and(|group| group.contains(id(joiner))));
    c.until("all are level", |c| c.is_level());
}

#[test]
fn nobody_is_taught_by_who_could_not_come_back() {
    for durability in [Durability::Async, Durability::Sync] {
        let mut c = Cluster::<true>::new(1, durable(durability));
        c.nodes[0].disk.stuck = true;
        let joiner = c.spawn(None);
        c.run(10 * c.config.teach_patience_ns);
        assert!(!c.nodes[joiner].engine.is_complete(), "it could come back, and wait for a founder that has nothing");
        c.nodes[0].disk.stuck = false;
        c.until("it is taught", |c| c.nodes[joiner].engine.is_complete());
        assert!(c.nodes[0].disk.is_good());
    }
}

/// Of three processes with a leader that executes first, one has missed so much that it has to be taught, and another is gone. The leader's next proposals then
/// need both that are left.
fn taught_what_it_is_needed_for() -> (Cluster<true>, LogIndex) {
    let mut c = Cluster::<true>::new(3, durable_running(Execution::Speculative));
    c.until_led_by(0);
    ready(&mut c);
    c.leave_behind(1, 0, c.config.log_ring_bytes as u64 * 9 / 4);
    c.kill(2);
    let index = (0..3).filter_map(|_| c.write(0)).last().expect("it leads, and has room");
    c.world.resume(1);
    (c, index)
}

#[test]
fn a_snapshot_that_is_needed_for_a_commit_does_not_wait_for_it() {
    let (mut c, index) = taught_what_it_is_needed_for();
    c.until("it has been taught what is not committed", |c| {
        let log = &c.nodes[1].engine.log;
        log.is_complete() && log.applied().index >= index && log.committed().index < index
    });
    assert!(c.nodes[1].engine.lacks_snapshot() && c.taught(1) == 1);
    c.until("it is committed", |c| c.nodes[0].engine.committed() >= index);
    c.until("both are level", |c| c.is_level());
    c.assert_level();
}

#[test]
fn a_change_of_the_group_that_finds_no_room_outlives_its_reign_in_nothing() {
    let mut c = Cluster::<true>::new(7, durable_running(Execution::Speculative));
    c.until_led_by(0);
    ready(&mut c);
    (1..7).for_each(|n| c.world.pause(n));
    while c.write(0).is_some() {
        c.begin_turn(0);
    }
    c.nodes[0].engine.remove(id(2));
    c.until("its removal waits for room", |c| c.nodes[0].engine.reign.as_ref().is_some_and(|reign| reign.backlog.has_group()));
    c.begin_turn(0);
    let engine = &mut c.nodes[0].engine;
    assert!(engine.reign.as_ref().is_some_and(|reign| reign.backlog.has_group() && !reign.has_commands()), "all else has found room");
    engine.step_down();
    c.until("it has given up", |c| !c.leads(0));
    let engine = &c.nodes[0].engine;
    assert!(!engine.is_ahead_of_log() && engine.backlog.is_empty(), "neither lessons nor snapshots wait for it");
    (1..7).for_each(|n| c.world.resume(n));
    c.until("it leads again", |c| c.leads(0));
    c.write_through(0);
}

#[test]
fn a_snapshot_of_what_is_not_committed_yet_brings_that_back() {
    let (mut shown, mut seed) = (0, 0);
    while shown < 5 {
        seed += 1;
        assert!(seed < 100, "{shown} of {seed} had such a snapshot");
        let (mut c, index) = taught_what_it_is_needed_for();
        c.until("it has a snapshot of that", |c| !c.nodes[1].engine.lacks_snapshot() && c.nodes[1].engine.applied() >= index);
        let committed = c.nodes[1].engine.committed();
        c.kill(0);
        c.lose_power(seed, Faults::calm());
        let log = &c.nodes[1].engine.log;
        assert!(log.is_complete() && !c.nodes[1].engine.lacks_snapshot());
        shown += usize::from(committed < index && log.applied().index > log.committed().index);
        c.until("somebody leads", |c| c.leader().is_some());
        let leader = c.leader().expect("just seen");
        c.write_through(leader);
        c.until("all are level", |c| c.is_level());
        c.assert_level();
    }
}

#[test]
fn a_log_that_nobody_can_go_on_from_does_not_come_back_as_the_best_one() {
    let mut c = Cluster::<true>::new(3, durable(Durability::Sync));
    c.until_led_by(0);
    ready(&mut c);
    c.leave_behind(2, 0, c.config.log_ring_bytes as u64 * 9 / 4);
    c.until("the others are level", |c| c.nodes[0].engine.committed() == c.nodes[0].engine.last());
    // Their disks stand still from here on. Only the third process, whose log begins with a jump, keeps what is written now.
    (0..2).for_each(|n| c.nodes[n].disk.stuck = true);
    let last = c.write(0).expect("it leads, and has room");
    c.world.resume(2);
    c.until("its disk is ahead of the others'", |c| c.nodes[2].engine.last() == last && c.nodes[2].disk.is_idle());
    assert!(c.nodes[2].engine.lacks_snapshot() || !c.nodes[2].engine.is_complete());
    assert_eq!(c.nodes[2].engine.stable(), None, "it has told nobody");
    let promised = c.nodes[2].engine.log.journal.as_ref().expect("durable").ceiling();
    c.lose_power(7, Faults::calm());
    let third = &c.nodes[2].engine;
    assert!(third.is_complete() && third.last() < last, "it is what it was when its log last followed from its snapshot");
    assert!(third.log.min_proposal() >= promised);
    // Nor does what it accepts now count, because on its disk that follows a break.
    assert!(third.stable().is_none() && third.lacks_snapshot());
    // Two of three are enough, of which that one is the other.
    c.world.pause(1);
    c.until("somebody leads", |c| c.leader().is_some());
    let leader = c.leader().expect("just seen");
    c.write_through(leader);
    c.world.resume(1);
    c.until("all are level", |c| c.is_level());
    c.assert_level();
}

pub const CAPACITY: usize = 2048;

pub fn memory() -> Vec<AtomicU64> {
    (0..lane_bytes(CAPACITY) / 8).map(|_| AtomicU64::new(0)).collect()
}

/// A record of one command.
pub fn record(ballot: u64, index: LogIndex, committed: LogIndex, number: u64) -> (Header, Vec<u8>) {
    let header = Header { kind: Kind::Commands, count: 1, number: ballot, index, beside: committed.0 };
    let mut payload = Vec::new();
    header.encode(&mut payload);
    let command = command(number, number as u8, (number % 40) as usize);
    payload.extend_from_slice(&(command.len() as u32).to_le_bytes());
    payload.extend_from_slice(&command);
    (header, payload)
}

fn behind(log: &Log, ring: &[AtomicU64], mut position: u64) -> Vec<Vec<u8>> {
    let (mut records, mut buffer) = (Vec::new(), Vec::new());
    while let Some((_, next)) = log.read(ring, position, &mut buffer) {
        records.push(buffer.clone());
        position = next;
    }
    records
}

#[test]
fn a_journal_of_a_log_of_another_size_is_refused_whatever_stands_in_it() {
    let ring = memory();
    let mut log = Log::new(CAPACITY, Some(Group::new(vec![id(0), id(1)])));
    log.begin_journal(Box::new(Journal::new(0)));
    let journal = log.journal.as_ref().expect("just begun").pending().to_vec();
    for size in [CAPACITY / 2, CAPACITY, 2 * CAPACITY] {
        let replayed = replay(size, &[], &[0; 8], &journal, &ring, &mut Machine::default()).map(drop);
        let refused = RecoverError::Ring { written: CAPACITY as u64, configured: size as u64 };
        assert_eq!(replayed, if size == CAPACITY { Ok(()) } else { Err(refused) });
    }
}

#[test]
fn a_snapshot_of_something_else_is_refused() {
    let ring = memory();
    let mut log = Log::new(CAPACITY, Some(Group::new(vec![id(0), id(1)])));
    log.begin_journal(Box::new(Journal::new(0)));
    log.journal.as_mut().expect("just begun").note_taken(1, 0, LogIndex(0));
    log.write_base(&ring, false);
    let journal = log.journal.as_ref().expect("begun").pending();
    let replayed = replay(CAPACITY, &[vec![0; 9]], &[0; 8], journal, &memory(), &mut Machine::default()).map(drop);
    assert_eq!(replayed, Err(RecoverError::Part(UnreadablePart)));
    let replayed = replay(CAPACITY, &[vec![0; 24]], &[0; 8], journal, &ring, &mut Machine::default()).map(drop);
    assert_eq!(replayed, Ok(()));
    // What follows is not given to a machine that has refused a part.
    let (mut machine, entry) = (Machine::default(), [vec![0; 24], vec![5; KEY_BYTES]].concat());
    assert_eq!(
        replay(CAPACITY, &[vec![0; 9], entry], &[0; 8], journal, &memory(), &mut machine).map(drop),
        Err(RecoverError::Part(UnreadablePart))
    );
    assert_eq!((machine.digest(), machine.cleared), (Machine::default().digest(), 1));
}

#[test]
fn what_a_snapshot_shows_and_was_cut_off_since_is_as_if_it_had_not_been() {
    let ring = memory();
    let mut log = Log::new(CAPACITY, Some(Group::new(vec![id(0), id(1)])));
    log.begin_journal(Box::new(Journal::new(0)));
    log.journal.as_mut().expect("just begun").note_taken(1, 0, LogIndex(0));
    log.write_base(&ring, false);
    log.accept(1);
    let (mut machine, mut parts, mut digest) = (Machine::default(), Vec::new(), 0);
    for n in 1..=5 {
        let (header, payload) = record(1, LogIndex(n), LogIndex(1.min(n - 1)), n);
        let mut sealed = Record::default();
        sealed.fill(|bytes| bytes.extend_from_slice(&payload));
        log.place(&header, &sealed, &ring).expect("room");
        machine.execute(LogIndex(n), &command(n, n as u8, (n % 40) as usize));
        log.note_executed();
        // Of the first keys after the second entry, of the others after the fourth.
        if n % 2 == 0 {
            let mut part = n.to_le_bytes().to_vec();
            machine.transfer(if n == 2 { 0 } else { 3 }, if n == 2 { 3 * KEY_BYTES } else { usize::MAX / 2 }, &mut part);
            parts.push(part);
            digest = machine.digest();
        }
    }
    log.advance(&ring, &mut machine, LogIndex(1));
    let come_back = |log: &Log| {
        let (ring, mut machine) = (memory(), Machine::default());
        let journal = log.journal.as_ref().expect("begun").pending();
        let back = replay(CAPACITY, &parts, &1u64.to_le_bytes(), journal, &ring, &mut machine).expect("what it has written");
        (back.log.applied().index, back.log.committed().index, back.log.tail().index, back.broken_off, machine.digest())
    };
    let shown = (LogIndex(4), LogIndex(1), LogIndex(5), false, digest);
    assert_eq!(come_back(&log), shown, "four are shown, whatever is known of them");
    let journal = log.journal.as_mut().expect("begun");
    journal.note_shown(LogIndex(4));
    let chain = journal.chain();
    // The fifth is replaced, which nothing shows.
    let staged = |last: u64| {
        let mut staged = Staged::default();
        (2..=last).for_each(|n| staged.push(&record(1, LogIndex(n), LogIndex(1), n).1));
        staged
    };
    log.replace(&ring, 2, &staged(4)).expect("room");
    assert_eq!(come_back(&log), (LogIndex(4), LogIndex(1), LogIndex(4), false, digest));
    assert_eq!(log.journal.as_ref().expect("begun").chain(), chain);
    // And the fourth.
    log.replace(&ring, 3, &staged(3)).expect("room");
    assert_eq!(come_back(&log), (LogIndex(4), LogIndex(1), LogIndex(4), true, digest), "as before");
    assert_eq!(log.journal.as_ref().expect("begun").chain(), chain + 1, "nothing counts before there is another snapshot");
    assert!(!log.is_complete());
    // A part that shows what is nowhere.
    let parts = [[9u64.to_le_bytes().to_vec(), parts[1][8..].to_vec()].concat()];
    let journal = log.journal.as_ref().expect("begun").pending();
    let back = replay(CAPACITY, &parts, &1u64.to_le_bytes(), journal, &memory(), &mut Machine::default()).map(drop);
    assert_eq!(back, Err(RecoverError::Snapshot));
}

#[test]
fn after_any_changes_a_log_is_what_its_journal_says() {
    let (mut jumps, mut cuts) = (0, 0);
    for seed in 0..400 {
        let mut rng = Rng::with_seed(seed);
        let ring = memory();
        let group = Group::new(vec![id(0), id(1)]);
        let mut log = Log::new(CAPACITY, Some(group.clone()));
        log.begin_journal(Box::new(Journal::new(0)));
        log.journal.as_mut().expect("just begun").note_taken(1, 0, LogIndex(0));
        log.write_base(&ring, false);
        let (mut machine, mut ballot, mut number) = (Machine::default(), 1, 0);
        log.accept(ballot);
        let facts = |log: &Log| (log.tail(), log.committed(), log.last_ballot(), log.is_complete(), log.group().cloned());
        let mut whole = (facts(&log), 0, Vec::new(), machine.digest());
        let mut parts = vec![vec![0; 8]];
        machine.transfer(0, usize::MAX / 2, &mut parts[0]);
        for _ in 0..rng.usize(1..50) {
            let (before, committed) = (log.tail(), log.committed().index);
            let choice = rng.u8(0..8);
            let mut staged = |from: LogIndex, ballot| {
                let mut staged = Staged::default();
                for n in 0..rng.u64(0..3) {
                    number += 1;
                    staged.push(&record(ballot, LogIndex(from.0 + 1 + n), committed, number).1);
                }
                staged
            };
            match choice {
                4 | 5 => {
                    let index = LogIndex((committed.0 + before.index.0).div_ceil(2));
                    log.advance(&ring, &mut machine, index);
                }
                6 => {
                    ballot += 1;
                    cuts += usize::from(before.index > committed);
                    let staged = staged(committed, ballot);
                    log.replace(&ring, ballot, &staged).expect("room");
                }
                7 => {
                    ballot += 1;
                    jumps += usize::from(before.index > committed);
                    let base = Mark { index: LogIndex(committed.0 + 1 + ballot % 4), position: before.position + 16 * (ballot % 9) };
                    let staged = staged(base.index, ballot);
                    log.jump(base, group.clone());
                    log.replace(&ring, ballot, &staged).expect("room");
                }
                _ => {
                    number += 1;
                    let (header, payload) = record(ballot, before.index.next(), committed, number);
                    let end = log.position_with(payload.len());
                    if end - log.committed().position > CAPACITY as u64 / 2 {
                        log.advance(&ring, &mut machine, before.index);
                        continue;
                    }
                    let mut sealed = Record::default();
                    sealed.fill(|bytes| bytes.extend_from_slice(&payload));
                    log.place(&header, &sealed, &ring).expect("room");
                }
            }
            let (other, mut again) = (memory(), Machine::default());
            let journal = log.journal.as_ref().expect("begun").pending();
            let replayed = replay(CAPACITY, &parts, &[0; 8], journal, &other, &mut again);
            let Replayed { log: mut found, broken_off, .. } = replayed.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            assert_eq!(broken_off, !log.is_complete(), "seed {seed}");
            if !broken_off {
                let position = log.committed().position;
                whole = (facts(&log), position, behind(&log, &ring, position), machine.digest());
            }
            // Where it breaks off, as it was before that.
            let (was, position, records, digest) = &whole;
            assert!(found.committed().index <= was.1.index, "seed {seed}: more is committed than was known");
            found.advance(&other, &mut again, was.1.index);
            assert_eq!(facts(&found), *was, "seed {seed}");
            assert_eq!(behind(&found, &other, *position), *records, "seed {seed}");
            assert_eq!(again.digest(), *digest, "seed {seed}");
        }
    }
    assert!(jumps > 50 && cuts > 100, "{jumps} jumps and {cuts} starts that replaced something");
}

/// Writes, reads, pauses and losses of leadership; then the power fails; and so on. The world's oracle checks that every leader holds everything acknowledged,
/// that no two commands are ever committed at one index, and that a leader's state is that of its log.
fn live<const HOST: bool>(seed: u64, recovered: &mut usize, acknowledged: &mut usize, snapshots: &mut usize) {
    let mut rng = Rng::with_seed(seed);
    let execution = if rng.bool() { Execution::Committed } else { Execution::Speculative };
    let config = durable_running(execution);
    let mut c = Cluster::<HOST>::in_world(seed, [1, 3, 3, 5][rng.usize(0..4)], config, drawn(seed));
    ready(&mut c);
    for loss in 1..=4 {
        for _ in 0..rng.usize(200..1500) {
            let Some(n) = c.world.next_turn(u64::MAX) else { break };
            match rng.u16(0..400) {
                0 => c.nodes[n].engine.step_down(),
                1 if (0..c.nodes.len()).all(|n| !c.world.is_paused(n)) && c.nodes.len() > 1 => c.world.pause(n),
                2..6 => (0..c.nodes.len()).for_each(|n| c.world.resume(n)),
                6..200 => {
                    c.padding = if rng.u8(0..8) == 0 { rng.usize(0..380) } else { rng.usize(0..40) };
                    c.write(n);
                }
                200..250 => c.read(n),
                _ => {}
            }
            c.begin_turn(n);
            // The power may go within a turn.
            if !c.world.is_paused(n) && rng.u16(..) > 50 {
                c.end_turn(n);
            }
        }
        *snapshots += c.nodes.iter().map(|node| node.disk.snapshots).sum::<usize>();
        let faults = if loss == 4 { Faults::calm() } else { drawn(seed + loss) };
        c.lose_power(seed + loss, faults);
    }
    c.until("somebody leads again", |c| c.leader().is_some());
    let leader = c.leader().expect("just seen");
    *recovered += c.events(leader, |event| matches!(event, Event::Led { recovered: 1.., .. }));
    *acknowledged += c.acknowledged.len();
    c.until("one more is acknowledged", |c| {
        if let Some(leader) = c.leader() {
            c.write(leader);
        }
        c.leader().is_some_and(|leader| c.acknowledged.values().any(|ballot| *ballot == c.nodes[leader].engine.ballot()))
    });
    c.until("all are level", |c| c.is_level());
    c.assert_level();
}

fn lives<const HOST: bool>() {
    struct Name(u64);
    impl Drop for Name {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("failing seed: {}", self.0);
            }
        }
    }
    let (mut recovered, mut acknowledged, mut snapshots) = (0, 0, 0);
    for seed in 0..100 {
        let _name = Name(seed * 10);
        live::<HOST>(seed * 10, &mut recovered, &mut acknowledged, &mut snapshots);
    }
    // They have to do what they are for.
    eprintln!("{recovered} leaders with something to recover, {acknowledged} acknowledged, {snapshots} snapshots");
    assert!(recovered > 20 && acknowledged > 2_000 && snapshots > 500);
}

#[test]
fn nothing_acknowledged_is_lost_with_the_power_on_shared_memory() {
    lives::<true>();
}

#[test]
fn nothing_acknowledged_is_lost_with_the_power_on_a_network() {
    lives::<false>();
}

#[test]
fn one_that_has_come_back_is_the_member_that_it_was_where_a_view_lists_it_and_not_where_others_went_on() {
    use crate::basics::ViewNumber;
    use crate::membership::{Member, Roles, View};
    let again = |n: usize| ProcessId { incarnation: Incarnation(id(n).incarnation.0 + 1), ..id(n) };
    let view = |number, ids: &[ProcessId]| View {
        number: ViewNumber(number),
        lease_ns: 1,
        fence_ns: 1,
        compatible: false,
        level: 1,
        members: ids.iter().map(|id| Member::new(*id, Roles::REPLICA)).collect(),
        departed: Vec::new(),
    };
    let named = |c: &Cluster<true>, n: usize| {
        let peers = &c.nodes[n].engine.peers;
        peers.iter().map(|peer| (peer.identity, peer.process)).collect::<Vec<_>>()
    };
    let mut c = Cluster::<true>::new(3, durable(Durability::Sync));
    c.until_led_by(0);
    ready(&mut c);
    c.lose_power(5, Faults::calm());
    c.until("they are connected", |c| c.nodes.iter().all(|node| node.engine.peers.len() == 2));
    // All of them again, because a leader's reports name them as the view knows them.
    for node in &mut c.nodes {
        node.engine.handle_view(&view(9, &[again(0), again(1), again(2)]));
    }
    assert_eq!(named(&c, 1).into_iter().filter(|(identity, name)| *name == identity.birth()).count(), 2);
    c.until("they follow it", |c| c.nodes[1].engine.standing() == Standing::Backup { primary: Some(again(0)) });
    // The processes with a view now know node 2 as another process. A process that recovers as the earlier one is not taken for the member.
    let other = ProcessId { incarnation: Incarnation(7 << 16), ..id(2) };
    c.nodes[1].engine.handle_view(&view(10, &[again(0), again(1), other]));
    let late = ProcessId { incarnation: Incarnation(id(2).incarnation.0 + 2), ..id(2) };
    assert_eq!(c.nodes[1].engine.roster.name_of(late), late);
    assert_eq!(c.nodes[1].engine.roster.name_of(other), other);
    assert_eq!(c.nodes[1].engine.roster.name_of(again(0)), id(0));
    // A process that was taken for a member before keeps its vote until the group has removed it.
    assert!(named(&c, 1).contains(&(again(2), id(2))));
}
