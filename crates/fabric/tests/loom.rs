//! The memory orders that shared memory relies on, under loom: every interleaving, and every value that the memory model lets a load return.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p martlet-fabric --test loom --release` runs them; without that flag there is nothing here.
//!
//! Each rule comes with a canary: the same code without one of its fences, in which loom must find the violation. Without a canary that fails, a rule
//! would prove nothing.
#![cfg(loom)]

use std::collections::VecDeque;

use loom::sync::Arc;
use loom::thread;
use martlet_fabric::datagrams::{Popped, Receiver, Sender, ring_bytes};
use martlet_fabric::primitive::{AtomicU64, Ordering, fence};
use martlet_fabric::ring::{HEADER_BYTES, Reader, Record, Writer, lane_bytes};
use martlet_fabric::{Completion, Fabric, Local, LocalRegion, Memory, OpError, PeerId, Region, RegionName, Remote, Token};

/// The smallest ring there is.
const CAPACITY: usize = 256;
/// The grant word while the writer may write.
const GRANTED: u64 = 1;
const REVOKED: u64 = 2;

/// Explores every execution of a model, without a bound on preemptions, since these models are small.
fn explore(model: impl Fn() + Sync + Send + 'static) {
    let executions = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counter = executions.clone();
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = None;
    builder.check(move || {
        counter.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        model();
    });
    let executions = executions.load(std::sync::atomic::Ordering::Relaxed);
    println!("{executions} executions");
    assert!(executions > 2, "a model without a race proves nothing");
}

/// A lane and its grant word, as two processes map them.
struct Shared {
    lane: Vec<AtomicU64>,
    grant: AtomicU64,
}

impl Shared {
    fn new() -> Arc<Shared> {
        let words = |n| (0..n).map(|_| AtomicU64::new(0)).collect();
        Arc::new(Shared { lane: words(lane_bytes(CAPACITY) / 8), grant: AtomicU64::new(GRANTED) })
    }
}

/// The writer's endpoint as in the shared-memory backend: relaxed stores after a release fence when a write is posted, the first word last and as a
/// release; one full fence and then a look at the grant word before it completes.
struct LaneWriter {
    shared: Arc<Shared>,
    /// What canaries leave out.
    fenced: bool,
    first_word_last: bool,
    posted: VecDeque<Completion>,
}

impl LaneWriter {
    fn new(shared: &Arc<Shared>) -> LaneWriter {
        LaneWriter { shared: shared.clone(), fenced: true, first_word_last: true, posted: VecDeque::new() }
    }
}

impl Fabric for LaneWriter {
    const ZOMBIES_REACHABLE: bool = true;

    fn write(&mut self, at: Remote, bytes: &[u8], token: Token) {
        fence(Ordering::Release);
        let word = |i: usize| u64::from_le_bytes(bytes[i * 8..i * 8 + 8].try_into().unwrap());
        let lane = &self.shared.lane[at.offset / 8..];
        if !self.first_word_last {
            lane[0].store(word(0), Ordering::Release);
        }
        for i in 1..bytes.len() / 8 {
            lane[i].store(word(i), Ordering::Relaxed);
        }
        if self.first_word_last {
            lane[0].store(word(0), Ordering::Release);
        }
        self.posted.push_back(Completion { token, result: Ok(0) });
    }
    fn read_word(&mut self, from: Remote, token: Token) {
        let word = self.shared.lane[from.offset / 8].load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        self.posted.push_back(Completion { token, result: Ok(word) });
    }
    fn poll(&mut self) -> Option<Completion> {
        let mut done = self.posted.pop_front()?;
        if self.fenced {
            fence(Ordering::SeqCst);
        }
        if self.shared.grant.load(Ordering::Relaxed) != GRANTED {
            done.result = Err(OpError::AccessLost);
        }
        Some(done)
    }
    fn memory(&self, _: LocalRegion) -> Option<&Memory> {
        None
    }
    fn read(&mut self, _: Remote, _: Local, _: usize, _: Token) {
        unreachable!("a ring does not")
    }
    fn compare_and_swap(&mut self, _: Remote, _: u64, _: u64, _: Token) {
        unreachable!("a ring does not")
    }
    martlet_fabric::idle!(send, multicast, receive, event, grant, revoke, nudge, forget);
}

fn lane() -> Remote {
    Remote { peer: PeerId(1), region: Region::Lane(RegionName(1)), offset: 0 }
}

fn record(payload: &[u8]) -> Record {
    let mut record = Record::default();
    record.fill(|bytes| bytes.extend_from_slice(payload));
    record
}

/// A record's seal vouches for its payload, whichever of the writer's stores the reader sees; records come in order.
#[test]
fn a_reader_takes_whole_records_in_order() {
    explore(|| {
        let shared = Shared::new();
        let mut fabric = LaneWriter::new(&shared);
        let writer = thread::spawn(move || {
            let mut writer = Writer::new(lane(), CAPACITY);
            writer.push(&mut fabric, &mut record(b"the first"), Token(0)).expect("room");
            writer.push(&mut fabric, &mut record(b"second"), Token(1)).expect("room");
        });
        let (mut reader, mut got, mut taken) = (Reader::new(), Vec::new(), 0);
        let expected = [&b"the first"[..], b"second"];
        for _ in 0..2 {
            if reader.next(&shared.lane, &mut got) {
                assert_eq!(got, expected[taken]);
                taken += 1;
            }
        }
        writer.join().unwrap();
        while taken < 2 {
            assert!(reader.next(&shared.lane, &mut got), "written, joined, and not there");
            assert_eq!(got, expected[taken]);
            taken += 1;
        }
    });
}

/// `maybe` is a hint that is not wrong for good: once the record is known to be written, it says so.
#[test]
fn a_finished_record_is_announced() {
    explore(|| {
        let shared = Shared::new();
        let mut fabric = LaneWriter::new(&shared);
        let writer = thread::spawn(move || {
            Writer::new(lane(), CAPACITY).push(&mut fabric, &mut record(b"x"), Token(0)).expect("room");
        });
        let (mut reader, mut got) = (Reader::new(), Vec::new());
        if !reader.maybe(&shared.lane) {
            writer.join().unwrap();
            assert!(reader.maybe(&shared.lane));
        } else {
            writer.join().unwrap();
        }
        assert!(reader.next(&shared.lane, &mut got));
        assert_eq!(got, b"x");
    });
}

/// On shared memory an announced record is whole: the seal is not needed to find out that it is not.
fn announcement(first_word_last: bool) {
    explore(move || {
        let shared = Shared::new();
        let mut fabric = LaneWriter::new(&shared);
        fabric.first_word_last = first_word_last;
        let writing = thread::spawn(move || {
            Writer::new(lane(), CAPACITY).push(&mut fabric, &mut record(b"some bytes"), Token(0)).expect("room");
        });
        let (mut reader, mut got) = (Reader::new(), Vec::new());
        if reader.maybe(&shared.lane) {
            assert!(reader.next(&shared.lane, &mut got), "announced and not whole");
        }
        writing.join().unwrap();
    });
}

#[test]
fn an_announced_record_is_whole() {
    announcement(true);
}

#[test]
#[should_panic(expected = "announced and not whole")]
fn canary_a_record_announced_before_it_is_written() {
    announcement(false);
}

/// Fills the ring before the race begins, so that the next record can go only where the first one is.
fn full_ring(shared: &Arc<Shared>) -> (Writer, LaneWriter) {
    let (mut writer, mut fabric) = (Writer::new(lane(), CAPACITY), LaneWriter::new(shared));
    for i in 0..4u8 {
        writer.push(&mut fabric, &mut record(&[i + 1; 48]), Token(0)).expect("room");
    }
    assert!(!writer.fits(48));
    (writer, fabric)
}

/// The writer overwrites only what the reader has published, never what it is still copying.
#[test]
fn a_record_is_overwritten_only_after_it_has_been_copied() {
    explore(|| {
        let shared = Shared::new();
        let (mut writer, mut fabric) = full_ring(&shared);
        let overwriting = thread::spawn(move || {
            fabric.posted.clear();
            fabric.read_word(writer.consumed_word(), Token(1));
            let consumed = fabric.poll().expect("posted").result.expect("granted");
            assert!(writer.note_consumed(consumed));
            writer.push(&mut fabric, &mut record(&[9; 48]), Token(2)).is_some()
        });
        let (mut reader, mut got) = (Reader::new(), Vec::new());
        assert!(reader.next(&shared.lane, &mut got), "it has been overwritten before it was published");
        assert_eq!(got, [1; 48]);
        reader.publish(&shared.lane);
        let overwritten = overwriting.join().unwrap();
        for i in [2, 3, 4] {
            assert!(reader.next(&shared.lane, &mut got));
            assert_eq!(got, [i; 48]);
        }
        assert_eq!(reader.next(&shared.lane, &mut got), overwritten);
    });
}

/// Publishing with a relaxed store would let the overwriting pass the copying.
#[test]
#[should_panic(expected = "overwritten before")]
fn canary_progress_published_without_release() {
    explore(|| {
        let shared = Shared::new();
        let (mut writer, mut fabric) = full_ring(&shared);
        let overwriting = thread::spawn(move || {
            fabric.posted.clear();
            fabric.read_word(writer.consumed_word(), Token(1));
            let consumed = fabric.poll().expect("posted").result.expect("granted");
            writer.note_consumed(consumed);
            writer.push(&mut fabric, &mut record(&[9; 48]), Token(2));
        });
        // As if the reader published before its copy, which is what a reader without the release may amount to.
        shared.lane[0].store(64, Ordering::Relaxed);
        let mut got = Vec::new();
        assert!(Reader::new().next(&shared.lane, &mut got), "overwritten before it was copied");
        overwriting.join().unwrap();
    });
}

/// The owner revokes as in the shared-memory backend: new grant word, full fence. Then it drains the lane.
fn revocation(writer_fenced: bool, owner_fenced: bool) {
    explore(move || {
        let shared = Shared::new();
        let mut fabric = LaneWriter::new(&shared);
        fabric.fenced = writer_fenced;
        let writing = thread::spawn(move || {
            let mut writer = Writer::new(lane(), CAPACITY);
            writer.push(&mut fabric, &mut record(b"entry"), Token(0)).expect("room");
            fabric.poll().expect("posted").result.is_ok()
        });
        shared.grant.store(REVOKED, Ordering::Relaxed);
        if owner_fenced {
            fence(Ordering::SeqCst);
        }
        let (mut reader, mut got) = (Reader::new(), Vec::new());
        let there = reader.next(&shared.lane, &mut got);
        assert!(!there || got == b"entry");
        let acknowledged = writing.join().unwrap();
        assert!(there || !acknowledged, "an acknowledged entry is lost");
    });
}

/// Promise 6: either the writer sees the revocation, or the owner, which reads after it, sees the entry.
#[test]
fn what_is_acknowledged_is_seen_after_the_revocation() {
    revocation(true, true);
}

#[test]
#[should_panic(expected = "an acknowledged entry is lost")]
fn canary_a_writer_without_its_fence() {
    revocation(false, true);
}

#[test]
#[should_panic(expected = "an acknowledged entry is lost")]
fn canary_an_owner_without_its_fence() {
    revocation(true, false);
}

/// What a canary changes about a hand-over.
#[derive(Clone, Copy, PartialEq, Eq)]
enum HandOver {
    AsItIs,
    /// The owner does not fence between its revocation and its look into the lane.
    Unfenced,
    /// It grants, and says so, before it revokes.
    EarlyGrant,
    /// What it took from the lane may become visible to readers after its word that it has granted.
    UnorderedGrant,
}

/// The owner hands the permission over as `mu` does; each writer has a lane of its own. The owner revokes the first writer's lane, takes the lane's
/// contents into its log, grants the second writer's lane, and says so. The second writer then reads the log, and writes; the owner takes that too.
/// Whatever was acknowledged to the first writer is in the log that the second writer reads, and comes before the second writer's record.
fn hand_over(how: HandOver) {
    explore(move || {
        let (from, to) = (Shared::new(), Shared::new());
        to.grant.store(REVOKED, Ordering::Relaxed);
        // The owner's log, of one entry, for the next leader to read, and the owner's word that it has granted.
        let words = Arc::new((AtomicU64::new(0), AtomicU64::new(0)));
        let mut fabric = LaneWriter::new(&from);
        let first = thread::spawn(move || {
            Writer::new(lane(), CAPACITY).push(&mut fabric, &mut record(b"old"), Token(0)).expect("room");
            fabric.poll().expect("posted").result.is_ok()
        });
        let (mut fabric, shared) = (LaneWriter::new(&to), words.clone());
        let second = thread::spawn(move || {
            let (log, granted) = &*shared;
            if granted.load(Ordering::Acquire) == 0 {
                return None;
            }
            // As in a read: relaxed loads before an acquire fence.
            let found = log.load(Ordering::Relaxed);
            Writer::new(lane(), CAPACITY).push(&mut fabric, &mut record(b"new"), Token(0)).expect("room");
            Some((found, fabric.poll().expect("posted").result.is_ok()))
        });
        let (log, granted) = &*words;
        let mut got = Vec::new();
        let grant = |order| {
            to.grant.store(GRANTED, Ordering::Release);
            granted.store(1, order);
        };
        if how == HandOver::EarlyGrant {
            grant(Ordering::Release);
        }
        from.grant.store(REVOKED, Ordering::Relaxed);
        if how != HandOver::Unfenced {
            fence(Ordering::SeqCst);
        }
        let taken = Reader::new().next(&from.lane, &mut got);
        log.store(u64::from(taken), Ordering::Relaxed);
        match how {
            HandOver::EarlyGrant => {}
            HandOver::UnorderedGrant => grant(Ordering::Relaxed),
            _ => grant(Ordering::Release),
        }
        let acknowledged = first.join().unwrap();
        assert!(taken || !acknowledged, "what was acknowledged is not in the log");
        if let Some((found, acknowledged_too)) = second.join().unwrap() {
            assert!(found == 1 || !acknowledged, "the next leader has not read what was acknowledged");
            assert!(Reader::new().next(&to.lane, &mut got) && got == b"new" || !acknowledged_too, "the second record is lost");
        }
    });
}

/// Mu section 5.2: no store of the earlier holder takes effect after the next one has been acknowledged.
#[test]
fn what_is_acknowledged_before_a_hand_over_is_read_after_it() {
    hand_over(HandOver::AsItIs);
}

#[test]
#[should_panic(expected = "what was acknowledged is not in the log")]
fn canary_a_hand_over_without_its_fence() {
    hand_over(HandOver::Unfenced);
}

#[test]
#[should_panic(expected = "the next leader has not read what was acknowledged")]
fn canary_a_grant_before_the_revocation() {
    hand_over(HandOver::EarlyGrant);
}

#[test]
#[should_panic(expected = "the next leader has not read what was acknowledged")]
fn canary_a_grant_that_is_not_ordered_behind_the_log() {
    hand_over(HandOver::UnorderedGrant);
}

/// A permission returns to an earlier holder while a write that this holder began before is still on its way. `by_epoch` says how the write is
/// judged: by the grant word at the time when it began, as in the backend, or by whether there is a permission at all.
fn permission_that_comes_back(by_epoch: bool) {
    const GRANTED_AGAIN: u64 = 3;
    explore(move || {
        let shared = Shared::new();
        let writers = shared.clone();
        let writing = thread::spawn(move || {
            let begun = writers.grant.load(Ordering::Relaxed);
            if begun == REVOKED {
                return None;
            }
            fence(Ordering::Release);
            writers.lane[0].store(1, Ordering::Release);
            fence(Ordering::SeqCst);
            let now = writers.grant.load(Ordering::Relaxed);
            Some((begun, if by_epoch { now == begun } else { now != REVOKED }))
        });
        shared.grant.store(REVOKED, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let taken = shared.lane[0].load(Ordering::Acquire) == 1;
        shared.grant.store(GRANTED_AGAIN, Ordering::Release);
        if let Some((GRANTED, acknowledged)) = writing.join().unwrap() {
            assert!(taken || !acknowledged, "a write of the earlier epoch is lost");
        }
    });
}

#[test]
fn a_write_counts_in_the_epoch_in_which_it_began() {
    permission_that_comes_back(true);
}

#[test]
#[should_panic(expected = "a write of the earlier epoch is lost")]
fn canary_a_write_that_any_permission_lets_count() {
    permission_that_comes_back(false);
}

/// Words of a ring for datagrams: the smallest that the model below fills.
const MAIL_WORDS: usize = 4;

fn mail() -> Arc<Vec<AtomicU64>> {
    Arc::new((0..ring_bytes(MAIL_WORDS) / 8).map(|_| AtomicU64::new(0)).collect())
}

/// Datagrams arrive whole and in order, even where they wrap, and where there was no room before.
#[test]
fn datagrams_come_whole_and_in_order() {
    explore(|| {
        let ring = mail();
        let shared = ring.clone();
        let sending = thread::spawn(move || {
            let mut sender = Sender::default();
            let sent = [&[1u8; 12][..], &[2; 8]];
            // The second one has room only where the first one was, once that is taken.
            (0..2).take_while(|n| sender.push(&shared, sent[*n])).count()
        });
        let (mut receiver, mut got, mut taken) = (Receiver::default(), Vec::new(), 0);
        let mut take = |receiver: &mut Receiver| match receiver.pop(&ring, &mut got) {
            Popped::Nothing => false,
            Popped::Malformed => panic!("a datagram of ours is malformed"),
            Popped::Datagram => {
                assert_eq!(got, [&[1u8; 12][..], &[2; 8]][taken], "torn, or out of order");
                taken += 1;
                true
            }
        };
        take(&mut receiver);
        take(&mut receiver);
        let sent = sending.join().unwrap();
        while take(&mut receiver) {}
        assert_eq!(taken, sent, "sent, and not there");
    });
}

/// Here the tail is stored before the datagram: it is the order of the stores that keeps datagrams whole.
#[test]
#[should_panic(expected = "torn, or out of order")]
fn canary_a_tail_before_its_datagram() {
    explore(|| {
        let ring = mail();
        let shared = ring.clone();
        let sending = thread::spawn(move || {
            // What `Sender::push` stores, in another order.
            for (word, value) in [(16, 8), (8, 2), (17, u64::MAX)] {
                shared[word].store(value, Ordering::Release);
            }
        });
        let mut got = Vec::new();
        if Receiver::default().pop(&ring, &mut got) == Popped::Datagram {
            assert_eq!(got, [0xff; 8], "torn, or out of order");
        }
        sending.join().unwrap();
    });
}

/// Here the head is stored before the datagram has been copied, so the datagram is overwritten meanwhile.
#[test]
#[should_panic(expected = "overwritten before it was copied")]
fn canary_a_head_before_the_copy() {
    explore(|| {
        let ring = mail();
        let mut sender = Sender::default();
        assert!(sender.push(&ring, &[1; 16]));
        let shared = ring.clone();
        let sending = thread::spawn(move || sender.push(&shared, &[2; 16]));
        // What `Receiver::pop` does, in another order.
        ring[0].store(3, Ordering::Release);
        let mut got = Vec::new();
        assert_eq!(Receiver::default().pop(&ring, &mut got), Popped::Datagram);
        assert_eq!(got, [1; 16], "overwritten before it was copied");
        sending.join().unwrap();
    });
}

/// A writer asks for a lease on view 1 while a proposer decides view 2 and wants to act in it. `fences` says whether the asker and the proposer
/// fence.
///
/// The asker stores its lease word, then looks whether slot 2 is empty; if so, it has its lease. The proposer swaps slot 2, then reads the lease
/// words of all that might act in view 1; if they are clear, it acts. If both acted, there would be two active views (uKharon section 6).
fn lease_against_decision(fences: [bool; 2]) {
    explore(move || {
        let words = Arc::new((AtomicU64::new(0), AtomicU64::new(0)));
        let shared = words.clone();
        let asking = thread::spawn(move || {
            let (lease, slot) = &*shared;
            lease.store(1, Ordering::Relaxed);
            if fences[0] {
                fence(Ordering::SeqCst);
            }
            slot.load(Ordering::Acquire) == 0
        });
        let (lease, slot) = &*words;
        slot.compare_exchange(0, 2, Ordering::AcqRel, Ordering::Acquire).expect("the only proposer");
        if fences[1] {
            fence(Ordering::SeqCst);
        }
        let nobody_acts = lease.load(Ordering::Acquire) == 0;
        let leased = asking.join().unwrap();
        assert!(!(leased && nobody_acts), "two views are active at once");
    });
}

/// The Dekker pair between lease words and slots, in both directions.
#[test]
fn a_lease_and_a_newer_view_exclude_each_other() {
    lease_against_decision([true, true]);
}

#[test]
#[should_panic(expected = "two views are active at once")]
fn canary_a_lease_word_without_its_fence() {
    lease_against_decision([false, true]);
}

#[test]
#[should_panic(expected = "two views are active at once")]
fn canary_a_decision_without_its_fence() {
    lease_against_decision([true, false]);
}

/// An owner that goes to sleep announces it, fences, and looks once more. A peer writes, fences, and looks whether it has to nudge. `fences` says
/// whether the sleeper and the peer fence.
fn sleep_against_nudge(fences: [bool; 2]) {
    explore(move || {
        let words = Arc::new((AtomicU64::new(0), AtomicU64::new(0)));
        let shared = words.clone();
        let sleeping = thread::spawn(move || {
            let (bell, work) = &*shared;
            bell.store(1, Ordering::Relaxed);
            if fences[0] {
                fence(Ordering::SeqCst);
            }
            work.load(Ordering::Relaxed) == 0
        });
        let (bell, work) = &*words;
        work.store(1, Ordering::Relaxed);
        if fences[1] {
            fence(Ordering::SeqCst);
        }
        let nudged = bell.load(Ordering::Relaxed) == 1;
        let sleeps = sleeping.join().unwrap();
        assert!(nudged || !sleeps, "asleep beside work");
    });
}

#[test]
fn nobody_sleeps_beside_work() {
    sleep_against_nudge([true, true]);
}

#[test]
#[should_panic(expected = "asleep beside work")]
fn canary_a_sleeper_without_its_fence() {
    sleep_against_nudge([false, true]);
}

#[test]
#[should_panic(expected = "asleep beside work")]
fn canary_a_nudge_without_its_fence() {
    sleep_against_nudge([true, false]);
}

/// The layout that the models above rely on.
#[test]
fn four_records_of_48_bytes_fill_the_smallest_ring() {
    assert_eq!(lane_bytes(CAPACITY), HEADER_BYTES + 4 * martlet_fabric::ring::record_bytes(48));
}
