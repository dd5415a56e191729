//! Rings of sealed records, end to end over the fabric.

use super::cluster::{Cluster, RING, RING_CAPACITY};
use super::{Harness, Step};
use crate::contract::{Fabric, LocalRegion, OpError, Region, Remote, Token};
use crate::primitive::{AtomicU64, Ordering};
use crate::ring::{HEADER_BYTES, Reader, Record, Writer, max_payload};

/// The payload of record `i`. Every length from none to the longest occurs, and the bytes follow from `i`.
fn payload(i: u64, into: &mut Vec<u8>) {
    let len = (i as usize * 37) % (max_payload(RING_CAPACITY) + 1);
    into.extend((0..len).map(|at| (at as u64 * 13 + i * 101) as u8));
}

/// Token of the operations that refresh the writer's view of the reader's progress.
const REFRESH: Token = Token(u64::MAX);

/// Records arrive in order, once, whole, lap after lap, while the reader reads concurrently with the writer.
pub fn a_ring_carries_records_through_a_lane<H: Harness>(round: u64) {
    const RECORDS: u64 = 400;
    let mut cluster = Cluster::<H>::connected(round, 2);
    let lane = Remote { peer: cluster.peer(0, 1), region: Region::Lane(RING), offset: 0 };
    let owner_side = LocalRegion::Lane { writer: cluster.peer(1, 0), name: RING };
    let (mut writer, mut record, mut next, mut awaited, mut refreshing) =
        (Writer::new(lane, RING_CAPACITY), Record::default(), 0, 0, false);
    let (mut reader, mut taken, mut got, mut wanted) = (Reader::new(), 0, Vec::new(), Vec::new());
    cluster.harness.run(vec![
        (
            0,
            Box::new(move |fabric| {
                while let Some(done) = fabric.poll() {
                    let word = done.result.expect("nobody has died");
                    if done.token == REFRESH {
                        refreshing = false;
                        assert!(writer.note_consumed(word), "the reader's progress {word} makes no sense");
                    } else {
                        awaited -= 1;
                    }
                }
                if next < RECORDS {
                    record.fill(|bytes| payload(next, bytes));
                    if let Some(completions) = writer.push(fabric, &mut record, Token(next)) {
                        awaited += completions;
                        next += 1;
                    } else if !refreshing {
                        refreshing = true;
                        fabric.read_word(writer.consumed_word(), REFRESH);
                    }
                }
                if next == RECORDS && awaited == 0 && !refreshing { Step::Done } else { Step::More }
            }),
        ),
        (
            1,
            Box::new(move |fabric| {
                let lane = fabric.memory(owner_side).expect("not forgotten");
                while reader.next(lane, &mut got) {
                    wanted.clear();
                    payload(taken, &mut wanted);
                    assert_eq!(got, wanted, "record {taken}");
                    taken += 1;
                }
                reader.publish(lane);
                if taken == RECORDS { Step::Done } else { Step::More }
            }),
        ),
    ]);
}

/// Promise 6 for records: the owner revokes, then drains the ring. What it drains has no gap and contains at least every record whose write
/// completed.
pub fn a_ring_through_a_revocation_keeps_what_completed<H: Harness>(round: u64) {
    for start in [0, 3, 17, 40] {
        let mut cluster = Cluster::<H>::connected(round, 2);
        let lane = Remote { peer: cluster.peer(0, 1), region: Region::Lane(RING), offset: 0 };
        let writer_there = cluster.peer(1, 0);
        let owner_side = LocalRegion::Lane { writer: writer_there, name: RING };
        let pushed = AtomicU64::new(0);
        let (mut kept, mut drained) = (0, 0);
        {
            let (pushed, kept, drained) = (&pushed, &mut kept, &mut drained);
            let (mut writer, mut record) = (Writer::new(lane, RING_CAPACITY), Record::default());
            let (mut posted, mut outcomes, mut next, mut refreshing, mut lost) = (0u64, 0u64, 0u64, false, false);
            // How many completions of each record's token are still to come; fillers count, too.
            let mut left: Vec<u32> = Vec::new();
            let mut reader = Reader::new();
            let (mut got, mut wanted, mut asked) = (Vec::new(), Vec::new(), false);
            cluster.harness.run(vec![
                (
                    0,
                    Box::new(move |fabric| {
                        while let Some(done) = fabric.poll() {
                            if done.token == REFRESH {
                                refreshing = false;
                                writer.note_consumed(done.result.expect("nobody has died"));
                                continue;
                            }
                            outcomes += 1;
                            match done.result {
                                Err(error) => {
                                    assert_eq!(error, OpError::AccessLost);
                                    lost = true;
                                }
                                Ok(_) => {
                                    assert!(!lost, "a write went through after one that lost its access");
                                    left[done.token.0 as usize] -= 1;
                                    if left[done.token.0 as usize] == 0 {
                                        *kept = done.token.0 + 1;
                                    }
                                }
                            }
                        }
                        if lost {
                            return if posted == outcomes && !refreshing { Step::Done } else { Step::More };
                        }
                        record.fill(|bytes| payload(next, bytes));
                        if let Some(completions) = writer.push(fabric, &mut record, Token(next)) {
                            left.push(completions);
                            posted += u64::from(completions);
                            next += 1;
                            pushed.store(next, Ordering::SeqCst);
                        } else if !refreshing {
                            refreshing = true;
                            fabric.read_word(writer.consumed_word(), REFRESH);
                        }
                        Step::More
                    }),
                ),
                (
                    1,
                    Box::new(move |fabric| {
                        if !asked && pushed.load(Ordering::SeqCst) >= start {
                            asked = true;
                            fabric.revoke(writer_there, RING, Token(1));
                        }
                        let revoked = fabric.poll().is_some();
                        let lane = fabric.memory(owner_side).expect("not forgotten");
                        while reader.next(lane, &mut got) {
                            wanted.clear();
                            payload(*drained, &mut wanted);
                            assert_eq!(got, wanted, "record {drained}");
                            *drained += 1;
                        }
                        reader.publish(lane);
                        if revoked { Step::Done } else { Step::More }
                    }),
                ),
            ]);
        }
        assert!(drained >= kept, "{kept} records completed at the writer, {drained} were there after the revocation");
    }
}

/// Writes one record from process `of` into the ring that process 0 keeps for it, and waits until it is there. The reader is assumed to have read
/// everything before it.
fn push<H: Harness>(cluster: &mut Cluster<H>, of: usize, writer: &mut Writer, payload: &[u8]) {
    let mut record = Record::default();
    record.fill(|bytes| bytes.extend_from_slice(payload));
    writer.note_consumed(writer.tail());
    let token = cluster.token();
    let completions = writer.push(cluster.harness.fabric(of), &mut record, token).expect("room");
    for _ in 0..completions {
        assert_eq!(cluster.complete(of, token), Ok(0));
    }
}

/// A client that can influence payloads can plant bytes in them that look like a record, where a later record is going to be. Under a salt that it
/// does not know, these bytes are no record.
pub fn a_planted_record_is_no_record<H: Harness>(round: u64) {
    const SALT: u64 = 0x5a17;
    // The last case shows that the place is right: with the salt, anything can be forged.
    for (guess, is_taken) in [(0, false), (SALT + 1, false), (SALT, true)] {
        let mut cluster = Cluster::<H>::connected(round, 3);
        let ring_of = |cluster: &mut Cluster<H>, of| Remote { peer: cluster.peer(of, 0), region: Region::Lane(RING), offset: 0 };
        let side_of = |cluster: &mut Cluster<H>, of| LocalRegion::Lane { writer: cluster.peer(0, of), name: RING };

        // A ring of its own shows the planter what a record in the second lap looks like, 32 bytes from the start.
        let lane = ring_of(&mut cluster, 2);
        let mut planter = Writer::salted(lane, RING_CAPACITY, guess);
        while planter.tail() < RING_CAPACITY as u64 + 32 {
            push(&mut cluster, 2, &mut planter, &[0; 16]);
        }
        push(&mut cluster, 2, &mut planter, b"sixteen bytes it");
        let side = side_of(&mut cluster, 2);
        let at = (HEADER_BYTES + 32) / 8;
        let forgery: Vec<u8> =
            cluster.memory(0, side)[at..at + 4].iter().flat_map(|word| word.load(Ordering::Acquire).to_le_bytes()).collect();

        // It is in the payload of the first record, and the second lap continues exactly where it is.
        let lane = ring_of(&mut cluster, 1);
        let side = side_of(&mut cluster, 1);
        let (mut writer, mut reader, mut got) = (Writer::salted(lane, RING_CAPACITY, SALT), Reader::salted(SALT), Vec::new());
        let planted = [&[0; 16][..], &forgery].concat();
        let payloads = std::iter::once(&planted[..]).chain(std::iter::repeat_n(&[1; 48][..], 15)).chain([&[2; 16][..]]);
        for payload in payloads {
            push(&mut cluster, 1, &mut writer, payload);
            assert!(reader.next(cluster.memory(0, side), &mut got));
            assert_eq!(got, payload);
        }
        assert_eq!(writer.tail(), RING_CAPACITY as u64 + 32);
        assert_eq!(reader.next(cluster.memory(0, side), &mut got), is_taken, "planted under the guess {guess:#x}");
    }
}
