//! Records in a lane, over memory that does exactly what it is told.

use std::collections::VecDeque;

use super::*;
use crate::contract::{Completion, Local, LocalRegion, PeerId, Region, RegionName};
use crate::primitive::AtomicU64;

const CAPACITY: usize = 1024;
const LANE: RegionName = RegionName(9);

/// A fabric with one lane: writes wait, cut into words, until the test lets them land in the order it chooses.
struct OneLane {
    lane: Vec<AtomicU64>,
    /// Index and value of each word on its way.
    in_flight: VecDeque<(usize, u64)>,
    completions: VecDeque<Completion>,
}

impl OneLane {
    fn new() -> OneLane {
        OneLane { lane: words(lane_bytes(CAPACITY) / 8), in_flight: VecDeque::new(), completions: VecDeque::new() }
    }

    fn land(&mut self, index: usize) {
        let (at, word) = self.in_flight.remove(index).expect("in flight");
        self.lane[at].store(word, Ordering::Release);
    }

    fn land_all(&mut self) {
        while !self.in_flight.is_empty() {
            self.land(0);
        }
    }
}

fn words(n: usize) -> Vec<AtomicU64> {
    (0..n).map(|_| AtomicU64::new(0)).collect()
}

fn start() -> Remote {
    Remote { peer: PeerId(1), region: Region::Lane(LANE), offset: 0 }
}

impl Fabric for OneLane {
    const ZOMBIES_REACHABLE: bool = true;

    fn memory(&self, _: LocalRegion) -> Option<&Memory> {
        Some(&self.lane)
    }
    fn write(&mut self, at: Remote, bytes: &[u8], token: Token) {
        assert_eq!((at.peer, at.region, at.offset % 8, bytes.len() % 8), (PeerId(1), Region::Lane(LANE), 0, 0));
        assert!(at.offset >= HEADER_BYTES && at.offset + bytes.len() <= lane_bytes(CAPACITY), "outside of the ring's data");
        for (i, word) in bytes.chunks_exact(8).enumerate() {
            self.in_flight.push_back((at.offset / 8 + i, u64::from_le_bytes(word.try_into().expect("8 bytes"))));
        }
        self.completions.push_back(Completion { token, result: Ok(0) });
    }
    fn read(&mut self, _: Remote, _: Local, _: usize, _: Token) {
        unreachable!("a ring never reads in bulk")
    }
    fn read_word(&mut self, from: Remote, token: Token) {
        let word = self.lane[from.offset / 8].load(Ordering::Acquire);
        self.completions.push_back(Completion { token, result: Ok(word) });
    }
    fn compare_and_swap(&mut self, _: Remote, _: u64, _: u64, _: Token) {
        unreachable!("a ring never swaps")
    }
    fn poll(&mut self) -> Option<Completion> {
        self.completions.pop_front()
    }
    crate::idle!(send, multicast, receive, event, grant, revoke, nudge, forget);
}

fn record(payload: &[u8]) -> Record {
    let mut record = Record::default();
    record.fill(|bytes| bytes.extend_from_slice(payload));
    record
}

/// A writer and a reader at `position`, as after a long life.
fn pair_at(position: u64) -> (Writer, Reader) {
    let mut writer = Writer::new(start(), CAPACITY);
    writer.tail = position;
    writer.consumed = position;
    (writer, Reader { next: position, published: position, ..Reader::new() })
}

#[test]
fn sizes_fit_each_other() {
    assert_eq!(record_bytes(0), 16);
    assert_eq!(record_bytes(1), 32);
    assert_eq!(record_bytes(16), 32);
    assert_eq!(record_bytes(17), 48);
    for capacity in [256, 512, 1024, 1 << 20] {
        assert_eq!(record_bytes(max_payload(capacity)), capacity / 4);
        assert!(record_bytes(max_payload(capacity) + 1) > capacity / 4);
    }
}

#[test]
fn the_longest_record_fits_an_empty_ring_at_every_position() {
    for position in (0..2 * CAPACITY as u64).step_by(16) {
        let (mut writer, mut reader) = pair_at(position);
        let mut fabric = OneLane::new();
        let longest = vec![7; max_payload(CAPACITY)];
        assert!(writer.push(&mut fabric, &mut record(&longest), Token(0)).is_some(), "at {position}");
        fabric.land_all();
        let mut got = Vec::new();
        assert!(reader.next(&fabric.lane, &mut got), "at {position}");
        assert_eq!(got, longest);
        assert_eq!(reader.position(), writer.tail());
    }
}

#[test]
fn payloads_of_every_length_come_back_over_many_laps() {
    let mut fabric = OneLane::new();
    let (mut writer, mut reader) = pair_at(0);
    let mut got = Vec::new();
    for i in 0..5000usize {
        let payload: Vec<u8> = (0..(i * 37) % (max_payload(CAPACITY) + 1)).map(|at| (at * 13 + i) as u8).collect();
        let mut record = record(&payload);
        assert_eq!(record.payload(), payload);
        let posted = writer.push(&mut fabric, &mut record, Token(i as u64)).expect("the reader keeps up");
        for _ in 0..posted {
            assert_eq!(fabric.poll(), Some(Completion { token: Token(i as u64), result: Ok(0) }));
        }
        assert_eq!(fabric.poll(), None);
        fabric.land_all();
        assert!(reader.maybe(&fabric.lane));
        assert!(reader.next(&fabric.lane, &mut got));
        assert_eq!(got, payload);
        assert!(!reader.next(&fabric.lane, &mut got), "a stale record of an earlier lap was taken");
        reader.publish(&fabric.lane);
        fabric.read_word(writer.consumed_word(), Token(0));
        let consumed = fabric.poll().expect("completes at once").result.expect("no peer to lose");
        assert!(writer.note_consumed(consumed));
        assert_eq!(writer.outstanding(), 0);
    }
    assert!(writer.tail() > 100 * CAPACITY as u64, "the ring has wrapped often");
}

#[test]
fn a_full_ring_takes_nothing_and_overwrites_nothing() {
    let mut chance = fastrand::Rng::with_seed(7);
    let mut fabric = OneLane::new();
    let (mut writer, mut reader) = pair_at(0);
    let (mut pushed, mut taken, mut got) = (0u64, 0u64, Vec::new());
    for _ in 0..20_000 {
        if chance.bool() {
            let mut payload = vec![0; chance.usize(8..=max_payload(CAPACITY))];
            payload[..8].copy_from_slice(&pushed.to_le_bytes());
            let fits = writer.fits(payload.len());
            let posted = writer.push(&mut fabric, &mut record(&payload), Token(0));
            assert_eq!(posted.is_some(), fits);
            assert!(writer.outstanding() <= writer.capacity());
            pushed += u64::from(fits);
            fabric.land_all();
        } else if reader.next(&fabric.lane, &mut got) {
            assert_eq!(got[..8], taken.to_le_bytes());
            taken += 1;
        } else {
            assert_eq!(taken, pushed, "a record that was pushed is not there");
        }
        if chance.u8(..) < 64 {
            reader.publish(&fabric.lane);
            assert_eq!(reader.unpublished(), 0);
            assert!(writer.note_consumed(fabric.lane[0].load(Ordering::Acquire)));
        }
    }
    assert!(pushed > 1000);
}

/// Every order in which the words of a record can land: until the last one has, the record is not there (TRAPS 14).
#[test]
fn a_partly_landed_record_is_not_there_yet() {
    let mut chance = fastrand::Rng::with_seed(11);
    for round in 0..3000 {
        let mut fabric = OneLane::new();
        let (mut writer, mut reader) = pair_at(16 * chance.u64(0..10_000));
        // The ring is full of an earlier lap's records, so that stale words look as much like the new ones as they can.
        let mut old = pair_at(writer.tail() - writer.tail().min(CAPACITY as u64)).0;
        while old.tail() + 64 <= writer.tail() {
            old.consumed = old.tail();
            old.push(&mut fabric, &mut record(&[round as u8; 40]), Token(0)).expect("room");
        }
        fabric.land_all();
        let payload = vec![(round as u8).wrapping_add(chance.u8(0..2)); chance.usize(1..=48)];
        writer.push(&mut fabric, &mut record(&payload), Token(0)).expect("room");
        let (mut got, mut taken) = (Vec::new(), false);
        while !taken {
            // Missing words may already hold what they are going to hold (padding, say): it is the payload that must be right.
            taken = reader.next(&fabric.lane, &mut got);
            assert!(taken || !fabric.in_flight.is_empty(), "round {round}: all of it has landed, and it is not taken");
            if !taken {
                fabric.land(chance.usize(..fabric.in_flight.len()));
            }
        }
        assert_eq!(got, payload, "round {round}");
        assert_eq!(reader.position(), writer.tail());
    }
}

/// The low bits of a position in a record's first word wrap every 64 GiB; at that point too an empty record must be seen.
#[test]
fn an_empty_record_is_seen_where_the_tag_wraps() {
    for position in [(1u64 << 36) - 32, (1 << 36) - 16, 1 << 36, (1 << 35) - 16, 1 << 35, (5 << 36) - 16] {
        let mut fabric = OneLane::new();
        let (mut writer, mut reader) = pair_at(position);
        let mut got = Vec::new();
        for _ in 0..8 {
            assert!(!reader.maybe(&fabric.lane), "fresh memory at {position} claims to be a record");
            writer.push(&mut fabric, &mut record(&[]), Token(0)).expect("room");
            fabric.land_all();
            assert!(reader.maybe(&fabric.lane), "at {position}");
            assert!(reader.next(&fabric.lane, &mut got), "at {position}");
            assert!(got.is_empty());
        }
    }
}

#[test]
fn fresh_memory_holds_no_record_at_any_position() {
    let fabric = OneLane::new();
    let mut got = Vec::new();
    for position in (0..4 * CAPACITY as u64).step_by(16).chain([(1 << 36) - 16, 1 << 36, u64::MAX / 2 / 16 * 16]) {
        let mut reader = pair_at(position).1;
        assert!(!reader.maybe(&fabric.lane));
        assert!(!reader.next(&fabric.lane, &mut got));
    }
}

/// A writer that is broken or malicious: whatever it puts into its lane, the reader does not panic, hang or read outside of the lane.
#[test]
fn garbage_in_the_lane_is_no_record() {
    let mut chance = fastrand::Rng::with_seed(13);
    let mut got = Vec::new();
    for _ in 0..20_000 {
        let lane = words(lane_bytes(CAPACITY) / 8);
        let position = 16 * chance.u64(0..1000);
        for word in &lane {
            word.store(if chance.bool() { chance.u64(..) } else { u64::from(chance.u8(..)) }, Ordering::Relaxed);
        }
        let at = index_of(position, CAPACITY as u64);
        // Plausible claims: the right tag with lengths near every limit.
        let len = *chance.choice(&[0, 1, 16, 255, 256, 1007, 1008, 1009, u32::MAX - 16, u32::MAX - 1, u32::MAX]).expect("not empty");
        lane[at].store(word0(len, position), Ordering::Relaxed);
        let mut reader = pair_at(position).1;
        assert!(!reader.next(&lane, &mut got));
        assert_eq!(reader.position(), position);
    }
}

/// A well-sealed filler that covers a whole lap moves the reader by one lap, once: it cannot be made to run in circles.
#[test]
fn a_filler_is_taken_once() {
    let lane = words(lane_bytes(CAPACITY) / 8);
    let (at, mut got) = (HEADER_BYTES / 8, Vec::new());
    lane[at].store(word0(FILLER, 0), Ordering::Relaxed);
    lane[at + 1].store(seal(0, 0, FILLER, 0), Ordering::Relaxed);
    let mut reader = Reader::new();
    assert!(!reader.next(&lane, &mut got));
    assert_eq!(reader.position(), CAPACITY as u64);
    assert!(!reader.next(&lane, &mut got));
    assert_eq!(reader.position(), CAPACITY as u64);
}

/// A record's seal also covers its place: copied elsewhere, it is no record.
#[test]
fn a_record_copied_to_another_place_is_no_record() {
    let mut fabric = OneLane::new();
    let (mut writer, _) = pair_at(0);
    writer.push(&mut fabric, &mut record(b"a record of some bytes"), Token(0)).expect("room");
    fabric.land_all();
    let mut got = Vec::new();
    for position in (16..CAPACITY as u64 - 64).step_by(16).chain([CAPACITY as u64, 1 << 36]) {
        let lane = words(lane_bytes(CAPACITY) / 8);
        let (from, to) = (HEADER_BYTES / 8, index_of(position, CAPACITY as u64));
        for i in 0..6 {
            lane[to + i].store(fabric.lane[from + i].load(Ordering::Relaxed), Ordering::Relaxed);
        }
        // Even with the tag put right.
        lane[to].store(word0(22, position), Ordering::Relaxed);
        assert!(!pair_at(position).1.next(&lane, &mut got), "at {position}");
    }
}

#[test]
fn senseless_progress_of_the_reader_is_ignored() {
    let mut fabric = OneLane::new();
    let (mut writer, _) = pair_at(1600);
    writer.push(&mut fabric, &mut record(&[1; 100]), Token(0)).expect("room");
    for senseless in [0, 1599, 1600 + 129, u64::MAX] {
        assert!(!writer.note_consumed(senseless), "{senseless}");
        assert_eq!(writer.outstanding(), 128);
    }
    assert!(writer.note_consumed(1600));
    assert!(writer.note_consumed(1728));
    assert_eq!(writer.outstanding(), 0);
    assert!(!writer.note_consumed(1600), "it never goes back");
}

#[test]
fn a_record_can_be_filled_again() {
    let mut fabric = OneLane::new();
    let (mut writer, mut reader) = pair_at(0);
    let (mut record, mut got) = (Record::with_capacity(64), Vec::new());
    for payload in [&b"a longer payload than the next"[..], b"short", b"", b"0123456789abcdef"] {
        record.fill(|bytes| bytes.extend_from_slice(payload));
        writer.push(&mut fabric, &mut record, Token(0)).expect("room");
        fabric.land_all();
        assert!(reader.next(&fabric.lane, &mut got));
        assert_eq!(got, payload);
    }
}

#[test]
#[should_panic(expected = "broken invariant: record of 241 bytes in a ring of 1024")]
fn a_record_that_can_never_fit_is_a_mistake() {
    let (mut writer, _) = pair_at(0);
    let _ = writer.push(&mut OneLane::new(), &mut record(&[0; 241]), Token(0));
}

#[test]
fn records_placed_in_a_ring_of_ours_stand_where_a_writer_would_have_put_them() {
    let mut fabric = OneLane::new();
    let (mut writer, mut reader) = pair_at(0);
    let ours = words(lane_bytes(CAPACITY) / 8);
    let (mut tail, mut got) = (0, Vec::new());
    for n in 0..200u8 {
        let payload = vec![n; usize::from(n)];
        let behind = position_after(tail, payload.len(), CAPACITY as u64);
        writer.push(&mut fabric, &mut record(&payload), Token(0)).expect("room");
        fabric.land_all();
        let begin = tail;
        tail = place(&ours, tail, &record(&payload));
        assert_eq!((tail, tail), (behind, writer.tail()));
        assert!(reader.next(&fabric.lane, &mut got));
        reader.publish(&fabric.lane);
        writer.note_consumed(reader.position());
        let mut anew = Reader::at(begin);
        assert!(anew.next(&ours, &mut got), "a reader may begin at any record, or at the filler before it");
        assert_eq!((&got, anew.position()), (&payload, tail));
        got.clear();
        assert_eq!(reread(&ours, begin, &mut got), Some(tail), "and its owner may read it again");
        assert_eq!(got, payload);
    }
    assert_eq!(reread(&ours, tail, &mut got), None, "what stands there is of an earlier lap");
    assert_eq!(reread(&words(ours.len()), 0, &mut got), None, "nothing was ever put there");
}

#[test]
fn a_reader_that_begins_further_on_frees_what_lies_before() {
    let mut fabric = OneLane::new();
    let (mut writer, _) = pair_at(0);
    while writer.push(&mut fabric, &mut record(&[7; 100]), Token(0)).is_some() {}
    fabric.land_all();
    let mut reader = Reader::at(writer.tail());
    reader.publish(&fabric.lane);
    assert!(writer.note_consumed(fabric.lane[0].load(Ordering::Acquire)));
    assert_eq!(writer.outstanding(), 0);
    writer.push(&mut fabric, &mut record(b"new"), Token(0)).expect("room");
    fabric.land_all();
    let mut got = Vec::new();
    assert!(reader.next(&fabric.lane, &mut got), "and finds the next record there");
    assert_eq!(got, b"new");
    assert!(!reader.next(&fabric.lane, &mut got), "but nothing stale behind it");
}
