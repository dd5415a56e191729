//! What is taught, and what it is joined with: the learner's log may hold other records, and others may arrive.

use martlet_fabric::ring::Record;
use martlet_fabric::{Fabric as _, LocalRegion};

use super::power::{CAPACITY, memory, record};
use super::world::{Cluster, id, tiny, tiny_but};
use crate::basics::{LogIndex, Time};
use crate::engine::Engine as _;
use crate::engine::mu::layout::{Header, Kind, LOG, Op};
use crate::engine::mu::log::{Log, Mark, Staged};
use crate::engine::mu::{Config, Event, Group, LaneFault};
use crate::engine::test_cluster::Machine;
use crate::replica::part::REST_NS;
use crate::replica::{MAX_PART_BYTES, Standing};

/// A log of records accepted under `ballot`, and the places after them; the machine no longer shows anything.
fn voided(ballot: u64, records: u64, committed: u64, ring: &martlet_fabric::Memory) -> (Log, Vec<Mark>) {
    let mut log = Log::new(CAPACITY, Some(Group::new(vec![id(0), id(1)])));
    log.replace(ring, ballot, &Staged::default()).expect("room");
    let mut marks = vec![log.tail()];
    for n in 1..=records {
        let mut staged = Staged::default();
        (1..=n).for_each(|n| staged.push(&record(ballot, LogIndex(n), LogIndex(0), n).1));
        log.replace(ring, ballot, &staged).expect("room");
        marks.push(log.tail());
    }
    log.advance(ring, &mut Machine::default(), LogIndex(committed));
    log.void();
    (log, marks)
}

/// A cluster of three with some entries, and a process that is joining and has just asked a teacher; with the numbers of those two.
fn joining(config: Config) -> (Cluster<true>, usize, usize) {
    let mut c = Cluster::<true>::new(3, config);
    c.until_led_by(0);
    for _ in 0..300 {
        c.write_through(0);
    }
    let learner = c.spawn(None);
    c.nodes[0].engine.add(id(learner));
    let asked = |c: &Cluster<true>| {
        let node = &c.nodes[learner];
        let teacher = node.events.iter().find_map(|e| if let Event::Learning { teacher } = e { Some(*teacher) } else { None })?;
        let process = node.engine.peers.iter().find(|p| p.id == teacher)?.process;
        c.nodes.iter().position(|node| node.id == process)
    };
    c.until("somebody is asked", |c| asked(c).is_some());
    let teacher = asked(&c).expect("just seen");
    (c, learner, teacher)
}

/// A lesson that shows everything up to the third of five records: what its teacher knew to be committed, and under which number; what the learner knows, and whether the
/// two go together.
#[test]
fn a_lesson_is_joined_with_a_log_only_where_both_are_known_to_be_the_same() {
    let cases = [
        // Its teacher leads, and has executed what was never committed.
        (1, 5, 3, false),
        (3, 5, 3, true),
        // Under the same number, and accepted here later.
        (1, 7, 0, true),
        (1, 5, 0, false),
        (3, 5, 0, true),
        // Committed under a number of which this log knows nothing.
        (3, 9, 0, false),
        (3, 9, 2, false),
        (3, 9, 3, true),
    ];
    for (told, ballot, committed, together) in cases {
        let ring = memory();
        let (mut log, marks) = voided(7, 5, committed, &ring);
        let group = Group::new(vec![id(0), id(1)]);
        let joined = log.learned(&ring, &mut Machine::default(), marks[3], ballot, LogIndex(told), &group);
        assert_eq!(joined, together, "told {told}, ballot {ballot}, committed {committed}");
        assert_eq!((log.is_complete(), log.last_ballot()), (together, 7));
    }
}

#[test]
fn a_log_that_was_taught_does_not_speak_for_the_number_under_which_it_was_accepted() {
    let (ring, group) = (memory(), Group::new(vec![id(0), id(1)]));
    let (mut log, marks) = voided(3, 2, 1, &ring);
    let at = Mark { index: LogIndex(9), position: marks[2].position + 160 };
    assert!(log.learned(&ring, &mut Machine::default(), at, 10, LogIndex(9), &group));
    assert_eq!((log.last_ballot(), log.known_ballot(), log.is_succeeded(9), log.is_succeeded(10)), (3, 10, true, false));
    // It still counts as accepted under 3: what the leader of 10 had found at others and did not know to be committed is not here.
    log.void();
    let behind = Mark { index: LogIndex(9), position: at.position };
    let mut staged = Staged::default();
    staged.push(&record(3, LogIndex(10), LogIndex(9), 77).1);
    log.replace(&ring, 3, &staged).expect("room");
    assert!(
        !log.learned(&ring, &mut Machine::default(), Mark { index: LogIndex(10), ..behind }, 3, LogIndex(9), &group),
        "3 says nothing about 10"
    );
}

/// Of five processes, the last has missed more than a log holds, and has given its permission to the first, which is paused. Meanwhile the others have
/// committed something else, which one of them teaches to the last. Then the first continues where it was, and only the last accepts what it writes.
#[test]
fn what_a_deposed_leader_writes_does_not_go_on_behind_what_has_been_taught() {
    let mut c = Cluster::<false>::new(5, tiny());
    c.until_led_by(0);
    c.write_through(0);
    let tail = |c: &Cluster<false>, n: usize| c.nodes[n].engine.log.tail();
    c.leave_behind(4, 0, 2 * tiny().log_ring_bytes as u64);
    c.until("four are level", |c| (1..4).all(|n| tail(c, n) == tail(c, 0)));
    let common = c.nodes[0].engine.last();
    c.world.partition(&[4], &[1, 2, 3]);
    c.world.resume(4);
    c.until("the last begins anew where the first says", |c| !c.nodes[4].engine.is_complete() && tail(c, 4).index == common);
    c.world.pause(0);
    c.world.partition(&[0], &[1, 2, 3]);
    c.until_led_by(1);
    for _ in 0..3 {
        c.write_through(1);
    }
    for n in [2, 3] {
        c.world.unblock(4, n);
        c.world.unblock(n, 4);
    }
    c.until("the last has been taught", |c| c.taught(4) == 1);
    let at = tail(&c, 4);
    assert!(at.index > common && c.leads(0), "at {at:?}, behind {common:?}");
    c.world.resume(0);
    c.until("the first has written its own, each in a record of its own", |c| {
        c.write(0);
        c.nodes[0].engine.last() > at.index
    });
    let written = c.nodes[0].engine.reign.as_ref().map(|reign| reign.round());
    c.until("the last has read that", |c| {
        let first = c.nodes[0].engine.reign.as_ref().filter(|reign| Some(reign.round()) == written);
        let last = first.and_then(|reign| reign.followers.iter().find(|f| f.process == c.nodes[4].id));
        last.is_some_and(|f| f.acked >= Some(at.index.next()))
    });
    c.run(tiny().background_ns);
    assert_eq!(tail(&c, 4), at);
    c.world.heal();
    c.until("all are level", |c| c.is_level());
    let leader = c.leader().expect("level");
    c.write_through(leader);
    c.until("all are level again", |c| c.is_level());
    c.assert_level();
}

/// The first of seven keeps records that no other process accepted. The last was started under the same number, and taught what was committed under a higher
/// one.
#[test]
fn one_that_was_taught_does_not_teach_a_deposed_leader_its_own_records() {
    let mut c = Cluster::<false>::new(7, tiny());
    let ring = tiny().log_ring_bytes as u64;
    let tail = |c: &Cluster<false>, n: usize| c.nodes[n].engine.log.tail();
    let others = [(1, 2), (1, 3), (1, 4), (1, 5), (2, 3), (2, 4), (2, 5), (3, 4), (3, 5), (4, 5)];
    c.until_led_by(0);
    c.write_through(0);
    c.leave_behind(6, 0, 9 * ring / 4);
    c.until("six are level", |c| (1..6).all(|n| tail(c, n) == tail(c, 0)));
    let common = c.nodes[0].engine.last();
    // The last restarts under the first one's number.
    c.world.partition(&[6], &[1, 2, 3, 4, 5]);
    c.world.resume(6);
    c.until("the last begins anew where the first says", |c| !c.nodes[6].engine.is_complete() && tail(c, 6).index == common);
    // The first keeps many records, and the others commit something else.
    c.only(0..7, &others);
    c.until("requests of its own stand in its log", |c| {
        c.write(0);
        tail(c, 0).index.0 >= common.0 + 8
    });
    c.world.pause(0);
    c.until_led_by(1);
    for _ in 0..3 {
        c.write_through(1);
    }
    // The last learns of that from a follower, so that its log counts as accepted under the number of the first.
    c.only(0..7, &[&others[..], &[(3, 6)]].concat());
    c.until("the last has been taught", |c| c.taught(6) == 1);
    c.only(0..7, &others);
    let (first, last) = (&c.nodes[0].engine.log, &c.nodes[6].engine.log);
    assert_eq!(first.last_ballot(), last.last_ballot());
    assert!(first.tail().index > last.tail().index, "{:?}, {:?}", first.tail(), last.tail());
    assert!(last.known_ballot() > last.last_ballot());
    // Another one is overrun, so that its log does not reach back to what the first knows.
    c.leave_behind(2, 1, 9 * ring / 4);
    c.world.resume(2);
    c.until("it was overrun, and has all", |c| c.taught(2) == 1 && tail(c, 2) == tail(c, 1));
    (1..6).filter(|n| *n != 2).for_each(|n| c.world.pause(n));
    c.only(0..7, &[(0, 2)]);
    c.world.resume(0);
    c.until("the first gives up its state", |c| !c.nodes[0].engine.is_complete());
    c.only(0..7, &[(0, 6)]);
    c.run(5 * tiny().silence_ns);
    assert_eq!(c.taught(0), 0, "what it was taught and what stands in its log are not the same");
    (1..6).for_each(|n| c.world.resume(n));
    c.world.heal();
    c.until("all are level", |c| c.is_level());
    c.assert_level();
}

/// What a teacher has sent is worthless once its machine has stopped showing the state, even if it shows the state again before there was room to say so.
#[test]
fn a_teacher_that_has_been_taught_anew_begins_anew() {
    let (mut c, learner, teacher) = joining(tiny_but(|config| config.teach_patience_ns = 40_000_000));
    let lesson = |c: &Cluster<true>| c.nodes[teacher].engine.peers.iter().position(|p| p.process == id(learner));
    let begun = |c: &Cluster<true>| lesson(c).is_some_and(|at| c.nodes[teacher].engine.peers[at].state_lane.writer.tail() > 0);
    c.until("it begins to teach", |c| begun(c));
    c.world.pause(learner);
    let at = lesson(&c).expect("it is taught");
    let node = &mut c.nodes[teacher];
    let (peer, mut flush) = (&mut node.engine.peers[at], Record::default());
    let header = Header { kind: Kind::Flush, count: 0, number: 0, index: LogIndex(0), beside: 0 };
    flush.fill(|bytes| header.encode(bytes));
    while peer.state_lane.writer.push(&mut node.fabric, &mut flush, Op::State.token(0, peer.id)).is_some() {}
    // It is taught itself what it held.
    let log = &mut node.engine.log;
    let (at, ballot, group) = (log.applied(), log.last_ballot(), log.group().cloned().expect("a member has one"));
    let ring = node.fabric.memory(LocalRegion::Public(LOG)).expect("declared");
    log.void();
    assert!(log.learned(ring, &mut node.machine, at, ballot, at.index, &group));
    let wishes = c.nodes[learner].engine.wishes;
    c.world.resume(learner);
    c.until("it belongs to the group", |c| c.nodes[learner].engine.group().is_some_and(|g| g.contains(id(learner))));
    assert!(c.nodes[learner].engine.wishes > wishes, "it had to wish again");
    c.until("all are level", |c| c.is_level());
    c.assert_level();
}

/// An entry that is overwritten before it has been sent costs the whole lesson, so entries do not wait for the parts of the state that a turn sends.
#[test]
fn a_lesson_keeps_up_with_a_log_that_grows_by_more_each_turn_than_is_sent_of_the_state() {
    let (mut c, learner, _) = joining(tiny_but(|config| {
        config.shared.transfer_budget_bytes = 50;
        config.shared.state_ring_bytes = config.shared.log_ring_bytes;
    }));
    c.padding = 80;
    let mut turns = 0;
    c.until("it is taught while more is written", |c| {
        turns += 1;
        assert!(turns < 10_000, "{} lessons", c.nodes[learner].engine.wishes);
        if turns % 2 == 0 {
            c.write(0);
        }
        c.taught(learner) == 1
    });
    c.until("all are level", |c| c.is_level());
    c.assert_level();
}

#[test]
fn one_that_is_taught_by_somebody_else_is_taught_by_the_first_no_longer() {
    let (mut c, learner, teacher) = joining(tiny());
    c.world.pause(teacher);
    c.until("it is taught by another", |c| c.taught(learner) == 1);
    assert!(c.nodes[learner].engine.wishes > 1);
    c.world.resume(teacher);
    c.until("all are level", |c| c.is_level());
    c.run(tiny().teach_patience_ns);
    let peer = c.nodes[teacher].engine.peers.iter().find(|p| p.process == id(learner)).expect("connected");
    assert!(!peer.state_lane.is_under_way());
}

#[test]
fn one_that_is_sent_what_is_no_state_is_taught_by_another() {
    let (mut c, learner, teacher) = joining(tiny());
    c.finds_fault = Some(learner);
    c.nodes[teacher].machine.misleads = true;
    c.until("it is taught by another", |c| c.taught(learner) == 1);
    assert_eq!(c.events(learner, |e| matches!(e, Event::LaneFault { fault: LaneFault::Part(_), stuck: false, .. })), 1);
    assert!(c.nodes[learner].engine.wishes > 1);
    c.until("all are level", |c| c.is_level());
    c.assert_level();
}

fn unteachable(c: &Cluster<true>, teacher: usize, learner: usize) -> usize {
    c.events(teacher, |e| *e == Event::Unteachable { process: id(learner), bytes: MAX_PART_BYTES + 1 })
}

#[test]
fn one_that_has_a_part_that_is_too_long_for_anybody_says_so_and_another_teaches() {
    let (mut c, learner, teacher) = joining(tiny());
    c.nodes[teacher].machine.sprawls = true;
    c.until("it is taught by another", |c| c.taught(learner) == 1);
    assert_eq!(unteachable(&c, teacher, learner), 1);
    assert!(c.nodes[learner].engine.wishes > 1);
    c.until("all are level", |c| c.is_level());
    c.assert_level();
}

/// Each attempt costs a copy of a part of that length.
#[test]
fn a_state_that_nobody_can_be_taught_is_not_looked_at_at_the_speed_of_the_fabric() {
    let (mut c, learner, _) = joining(tiny());
    c.nodes.iter_mut().for_each(|n| n.machine.sprawls = true);
    c.run(20 * tiny().teach_patience_ns);
    let asked = c.nodes[learner].engine.wishes;
    assert!((15..=25).contains(&asked), "asked {asked} times: it goes on to hope");
    for n in 0..3 {
        let (made, said) = (c.nodes[n].machine.sprawled.get(), unteachable(&c, n, learner));
        assert!(made <= 1, "{n} made {made} such parts");
        assert_eq!(said, made as usize, "and each time said so");
    }
    c.nodes.iter_mut().for_each(|n| n.machine.sprawls = false);
    c.run(5 * tiny().teach_patience_ns);
    assert_eq!(c.taught(learner), 0, "nor is it looked at soon");
    let rests: Vec<_> = c.nodes.iter().filter_map(|n| n.engine.unteachable_since).collect();
    assert!(!rests.is_empty() && rests.iter().all(|since| since.0 + REST_NS > c.world.now()));
    // As if that time were over.
    c.nodes.iter_mut().for_each(|n| n.engine.unteachable_since = None);
    c.until("all are level", |c| c.is_level());
    c.assert_level();
}

/// Its learner need not ask again: it may have nobody else to ask, and would have to run out of patience first.
#[test]
fn one_that_is_asked_while_it_lets_its_state_rest_teaches_after_that() {
    let patient = tiny_but(|config| config.teach_patience_ns = 1_000_000_000);
    for found_here in [true, false] {
        let (mut c, learner, teacher) = joining(patient);
        if found_here {
            c.nodes[teacher].machine.sprawls = true;
            c.until("it finds its state unteachable", |c| unteachable(c, teacher, learner) == 1);
        } else {
            c.nodes[teacher].engine.unteachable_since = Some(Time(c.world.now()));
        }
        c.run(1_000_000);
        assert_eq!(c.taught(learner), 0);
        c.nodes[teacher].machine.sprawls = false;
        c.nodes[teacher].engine.unteachable_since = None;
        c.until("it is taught", |c| c.taught(learner) == 1);
        assert_eq!(c.nodes[learner].engine.wishes, 1);
        c.until("all are level", |c| c.is_level());
        c.assert_level();
    }
}

/// For example, the others run another build. Each lesson costs its teacher the whole state.
#[test]
fn one_that_makes_sense_of_no_lesson_does_not_ask_at_the_speed_of_the_fabric() {
    let (mut c, learner, _) = joining(tiny());
    c.finds_fault = Some(learner);
    c.nodes.iter_mut().for_each(|n| n.machine.misleads = true);
    c.run(10 * tiny().teach_patience_ns);
    let refused = c.events(learner, |e| matches!(e, Event::LaneFault { fault: LaneFault::Part(_), stuck: false, .. }));
    assert!((3..=12).contains(&refused), "{refused} lessons");
    c.nodes.iter_mut().for_each(|n| n.machine.misleads = false);
    c.until("all are level", |c| c.is_level());
    c.assert_level();
}

#[test]
fn a_lesson_is_joined_with_a_log_only_where_that_has_a_record() {
    let (ring, group) = (memory(), Group::new(vec![id(0), id(1)]));
    let (_, marks) = voided(7, 5, 4, &ring);
    let behind = marks[5].position + 160;
    let within = |n: usize| marks[n].position + 16;
    for (index, position, together) in [
        (3, marks[3].position, true),
        (3, within(3), false),
        (3, marks[4].position, false),
        (4, within(3), false),
        (5, marks[5].position, true),
        (9, behind, true),
        (9, marks[4].position, false),
        (9, marks[2].position, false),
    ] {
        let (mut log, _) = voided(7, 5, 4, &ring);
        let at = Mark { index: LogIndex(index), position };
        assert_eq!(log.learned(&ring, &mut Machine::default(), at, 7, LogIndex(9), &group), together, "{at:?}");
        assert_eq!(log.is_complete(), together);
    }
}

/// Of three processes, one finds a fault in what the leader writes, but the leader counts it all the same; the other is paused. So the leader alone has what is
/// acknowledged.
#[test]
fn one_that_finds_fault_with_its_leader_gives_nobody_else_its_permission() {
    let mut c = Cluster::<true>::new(3, tiny());
    c.until_led_by(0);
    c.write_through(0);
    c.until("all are level", |c| c.is_level());
    c.finds_fault = Some(1);
    c.world.pause(2);
    c.nodes[1].engine.inbound.mistake_ballot();
    c.write_through(0);
    c.write_through(0);
    assert_eq!(c.events(1, |e| matches!(e, Event::LaneFault { stuck: true, .. })), 1);
    c.world.resume(2);
    c.kill(0);
    c.run(10 * tiny().silence_ns);
    assert!((1..3).all(|n| c.nodes[n].engine.standing() != Standing::Primary), "somebody leads without what was acknowledged");
}

/// The next candidate may wait for the process that it teaches.
#[test]
fn one_that_is_taught_by_one_that_is_paused_asks_somebody_else_when_that_is_presumed_dead() {
    let config = tiny_but(|config| config.teach_patience_ns = 20_000_000);
    let mut c = Cluster::<true>::new(3, config);
    c.until_led_by(0);
    c.write_through(0);
    c.until("all are level", |c| c.is_level());
    let engine = &mut c.nodes[1].engine;
    engine.log.void();
    engine.ahead = vec![id(0)];
    c.until("it has asked", |c| c.nodes[1].engine.learning.is_some());
    assert_eq!(c.taught(1), 0);
    c.world.pause(0);
    let from = c.world.now();
    c.until("one of the others leads", |c| (1..3).any(|n| c.leads(n)));
    let took = c.world.now() - from;
    assert!(took < 100 * config.heartbeat_interval_ns, "{took}");
    c.world.resume(0);
    c.until("all are level again", |c| c.is_level());
    c.assert_level();
}

/// It runs for less time than an answer takes, and between that is kept from running for longer than it waits for an answer. The answer has arrived when it
/// runs again.
#[test]
fn one_that_runs_for_moments_only_takes_what_has_come_meanwhile() {
    let config = tiny_but(|config| config.state_ring_bytes = 16_384);
    for stall_ns in [config.silence_ns / 2, 3 * config.teach_patience_ns] {
        let (mut c, learner, _) = joining(config);
        let mut moments = 0;
        while c.taught(learner) == 0 {
            moments += 1;
            assert!(moments < 40, "asked {} times, with pauses of {stall_ns} ns", c.nodes[learner].engine.wishes);
            c.world.pause(learner);
            c.run(stall_ns);
            c.world.resume(learner);
            c.run(1_500);
        }
        assert_eq!(c.nodes[learner].engine.wishes, 1);
        c.until("all are level", |c| c.is_level());
        c.assert_level();
    }
}

#[test]
fn one_to_whom_the_only_other_follower_gives_nothing_asks_the_leader() {
    let mut c = Cluster::<true>::new(3, tiny());
    c.until_led_by(0);
    c.write_through(0);
    c.until("all are level", |c| c.is_level());
    c.nodes[2].machine.sprawls = true;
    c.nodes[1].engine.log.void();
    c.until("it is taught by the leader", |c| c.taught(1) == 1);
    c.until("all are level again", |c| c.is_level());
    c.assert_level();
}

#[test]
fn one_that_has_nobody_else_to_ask_waits_for_its_teacher() {
    // So little is sent in each turn that a lesson takes several.
    let config = tiny_but(|config| (config.teach_patience_ns, config.transfer_budget_bytes) = (20_000_000, 20));
    let mut c = Cluster::<true>::new(3, config);
    c.until_led_by(0);
    (0..100).for_each(|_| _ = c.write_through(0));
    c.until("all are level", |c| c.is_level());
    c.kill(2);
    c.nodes[1].engine.log.void();
    c.until("a lesson begins", |c| c.nodes[1].engine.lesson_begun);
    let asked = c.nodes[1].engine.wishes;
    c.world.pause(0);
    c.run(30 * config.heartbeat_interval_ns);
    let alive = |c: &Cluster<true>| c.nodes[1].engine.seen_alive(id(0)).is_some();
    assert!(!alive(&c) && c.taught(1) == 0);
    c.world.resume(0);
    c.until("it is taught", |c| c.taught(1) == 1);
    assert_eq!(c.nodes[1].engine.wishes, asked, "it need not begin again");
    c.until("all are level again", |c| c.is_level());
    c.assert_level();
}
