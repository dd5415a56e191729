//! Lanes whose content makes no sense. Their writers are authenticated members, so this takes a fault at a writer, which must not become a fault of the reader.

use martlet_fabric::ring::{self, Record, Writer};
use martlet_fabric::{Fabric, PeerId, Region, Remote};

use super::world::{World, peer, tiny};
use crate::basics::layout::LOG_LANE;
use crate::basics::{LogIndex, Time, ViewNumber};
use crate::engine::Engine as _;
use crate::engine::PartFault;
use crate::engine::view_log::layout::{Header, Kind};
use crate::engine::view_log::{Config, Event, LaneFault};
use crate::membership::Roles;
use crate::replica::{Standing, UnreadablePart};

/// A record, as header and content.
type Written<'a> = (Header, &'a [u8]);

/// Process 1 follows no primary yet; `records` come from process 0.
fn told(records: &[Written]) -> World {
    let config = Config { drain_budget_bytes: 100_000, ..tiny() };
    let mut world = World::new(2, config);
    // The lane that process 1 keeps for process 0, and names so.
    let salt = ring::salt(config.secret, u64::from(peer(0).0));
    let mut writer = Writer::salted(Remote { peer: peer(1), region: Region::Lane(LOG_LANE), offset: 0 }, config.log_ring_bytes, salt);
    let mut record = Record::default();
    let token = super::super::follower::token(super::super::follower::Op::Write, PeerId(77));
    for (header, content) in records {
        record.fill(|out| {
            header.encode(out);
            out.extend_from_slice(content);
        });
        assert!(writer.push(&mut world.processes[0].fabric, &mut record, token).is_some());
    }
    world.deliver(0);
    while world.processes[0].fabric.poll().is_some() {}
    // Without the world's oracle, which knows of no such commands.
    let process = &mut world.processes[1];
    for _ in 0..3 {
        process.engine.post(Time(1), &mut process.fabric, &mut process.machine);
    }
    process.events.extend(std::iter::from_fn(|| process.engine.poll_event()));
    world
}

fn header(kind: Kind, index: u64, committed: u64) -> Header {
    Header::new(kind, LogIndex(index), ViewNumber(1), LogIndex(committed))
}

fn start(base: u64, count: u32) -> (Header, &'static [u8]) {
    (Header { count, ..header(Kind::Start, base, 0) }, &[])
}

const ENTRY: &[u8] = &[1, 0, 0, 0, 0, 0, 0, 0, 5];

#[test]
fn what_makes_no_sense_is_named_counted_and_read_no_further() {
    let entry = |index| (header(Kind::Entry, index, 0), ENTRY);
    let learner = (Header { learner: true, ..header(Kind::Start, 0, 0) }, &[][..]);
    let more = (Header { more: true, ..header(Kind::Entry, 1, 0) }, ENTRY);
    let older = (Header { view: ViewNumber(2), ..header(Kind::Start, 0, 0) }, &[][..]);
    let cases: [(&[Written], LaneFault); 12] = [
        (&[entry(1)], LaneFault::Order(Kind::Entry)),
        (&[start(0, 0), start(0, 0)], LaneFault::Order(Kind::Start)),
        (&[start(0, 1), (header(Kind::Flush, 0, 0), &[])], LaneFault::Order(Kind::Flush)),
        (&[start(0, 0), entry(2)], LaneFault::Index { expected: LogIndex(1), found: LogIndex(2) }),
        (&[start(0, 2), entry(1), entry(1)], LaneFault::Index { expected: LogIndex(2), found: LogIndex(1) }),
        (&[start(5, 0)], LaneFault::Gap { base: LogIndex(5), last: LogIndex(0) }),
        (&[start(0, 0), (header(Kind::Entry, 1, 1), ENTRY)], LaneFault::Commit { committed: LogIndex(1), last: LogIndex(0) }),
        (&[start(0, 0), (header(Kind::Part, 0, 0), &[])], LaneFault::Transfer(Kind::Part)),
        (&[start(0, 0), more, (header(Kind::Flush, 0, 0), &[])], LaneFault::Transfer(Kind::Flush)),
        (&[learner, (header(Kind::End, 3, 0), &[])], LaneFault::Index { expected: LogIndex(0), found: LogIndex(3) }),
        (&[learner, (header(Kind::Part, 0, 0), &[7; 9])], LaneFault::Part(PartFault::Unreadable(UnreadablePart))),
        (&[older, entry(1)], LaneFault::View { before: ViewNumber(2), found: ViewNumber(1) }),
    ];
    for (records, fault) in cases {
        let mut world = told(records);
        assert_eq!(world.processes[1].events, [Event::LaneFault { peer: peer(0), fault: fault.to_string(), stuck: true }]);
        assert_eq!(world.processes[1].engine.lane_faults(), 1);
        let last = world.processes[1].engine.last();
        world.run(5);
        assert_eq!(world.processes[1].engine.last(), last);
        assert_eq!(world.processes[1].engine.lane_faults(), 1, "said once");
    }
}

/// The fault was found before its writer was known to be the primary.
#[test]
fn one_that_becomes_primary_after_its_lane_made_no_sense_is_not_followed_by_one_that_is_counted() {
    let learner = (Header { learner: true, ..header(Kind::Start, 0, 0) }, &[][..]);
    for (records, unfit) in [(&[learner, (header(Kind::Part, 0, 0), &[7; 9][..])][..], true), (&[start(0, 0)], false)] {
        let mut world = told(records);
        world.decide(&[(0, Roles::REPLICA), (1, Roles::LEARNER)]);
        let view = world.latest().clone();
        let engine = &mut world.processes[1].engine;
        engine.handle_view(&view);
        let said = std::iter::from_fn(|| engine.poll_event()).any(|event| event == Event::Unfit);
        assert_eq!((said, engine.standing() == Standing::Excluded), (unfit, unfit));
    }
}

#[test]
fn a_sane_lane_is_followed() {
    let world = told(&[start(0, 1), (header(Kind::Entry, 1, 0), ENTRY), (header(Kind::Entry, 2, 0), ENTRY)]);
    assert_eq!(world.processes[1].engine.last(), LogIndex(2));
    assert!(world.processes[1].events.is_empty());
}

#[test]
fn bytes_without_a_seal_are_not_there() {
    let mut world = World::led(2, tiny());
    let before = world.processes[1].engine.last();
    let mut rng = fastrand::Rng::with_seed(3);
    for _ in 0..200 {
        let bytes: Vec<u8> = (0..1024).map(|_| rng.u8(..)).collect();
        let at = Remote { peer: peer(1), region: Region::Lane(LOG_LANE), offset: 64 };
        let token = super::super::follower::token(super::super::follower::Op::Write, PeerId(77));
        world.processes[0].fabric.write(at, &bytes, token);
        world.deliver(0);
        world.turns(1, 1);
        assert_eq!(world.processes[1].engine.last(), before);
    }
    assert_eq!(world.processes[1].engine.lane_faults(), 0);
}

/// Random records, most of them almost right: they may cause faults, but never a panic, and nothing is applied that was not declared committed.
#[test]
fn no_sequence_of_sealed_records_brings_a_reader_down() {
    let mut rng = fastrand::Rng::with_seed(11);
    let (mut faults, mut followed) = (0, 0);
    for _ in 0..3000 {
        let mut records = vec![];
        let (mut index, mut view) = (rng.u64(0..2), 1);
        let learner = rng.bool();
        let count = if learner { 0 } else { rng.u32(0..3) };
        records.push((Header { learner, count, ..header(Kind::Start, index, 0) }, &[][..]));
        for _ in 0..rng.usize(0..7) {
            let kind = [Kind::Entry, Kind::Entry, Kind::Entry, Kind::Flush, Kind::Part, Kind::End, Kind::Start][rng.usize(0..7)];
            let more = matches!(kind, Kind::Entry | Kind::Part) && rng.u8(0..4) == 0;
            index += u64::from(kind == Kind::Entry && !more);
            view += u64::from(rng.u8(0..5) == 0);
            let skew = if rng.u8(0..10) == 0 { rng.u64(0..3) } else { 0 };
            let committed = rng.u64(0..=index);
            let content: &[u8] = match kind {
                Kind::Entry => ENTRY,
                Kind::Part => &[0; 16][rng.usize(0..17)..],
                _ => &[],
            };
            let learner = kind == Kind::Start && rng.bool();
            let view = ViewNumber(view);
            records.push((Header { more, learner, view, ..header(kind, index + skew, committed) }, content));
        }
        if records.iter().map(|(_, c)| 64 + c.len().next_multiple_of(16)).sum::<usize>() > 1000 {
            continue;
        }
        let world = told(&records);
        faults += world.processes[1].engine.lane_faults();
        followed += world.processes[1].engine.last().0;
        assert!(world.processes[1].engine.applied() <= world.processes[1].engine.last());
    }
    assert!(faults > 500 && followed > 500, "{faults} {followed}");
}
