//! Promise 6 many times over: nothing is stored after a revocation has completed, and whatever has completed successfully was there.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::Thread;

use martlet_fabric::verbs::{DeviceChoice, Fence, VerbsFabric, devices, try_fences};
use martlet_fabric::{Fabric, LocalRegion, NodeId, OpError, PeerEvent, PeerId, PeerKind, Region, RegionName, RegionSpec, Remote, Token};

use crate::cluster::{identity, number, start, unique_cluster, until};

const LANE: RegionName = RegionName(16);
/// Long enough for two packets.
const WORDS: usize = 1024;
/// Pairs of an owner and a writer that run side by side. A revocation mostly waits for the kernel, which is done with the queue pair only when no
/// processor can be looking at it any more.
const PAIRS: u64 = 3;

/// How often all owners together revoke; `MARTLET_REVOCATIONS` says otherwise.
fn rounds() -> u64 {
    number("MARTLET_REVOCATIONS", 300)
}

fn up(fabric: &mut VerbsFabric) -> PeerId {
    until(|| match fabric.event() {
        Some(PeerEvent::Up { peer, .. }) => Some(peer),
        _ => None,
    })
}

/// What the two threads tell each other.
#[derive(Default)]
struct Told {
    /// The greatest value whose write completed successfully.
    completed: AtomicU64,
    /// Writes that lost their access.
    lost: AtomicU64,
    over: AtomicBool,
    /// The owner's thread, which completions wake.
    owner: OnceLock<Thread>,
}

/// The writer never stops: it writes value after value over the whole lane, with several writes under way at once, and goes on after every loss.
fn write_on(fabric: &mut VerbsFabric, owner: PeerId, told: &Told) {
    let (mut value, mut under_way) = (0u64, 0);
    let mut bytes = vec![0; WORDS * 8];
    while !told.over.load(Ordering::SeqCst) || under_way > 0 {
        // One by one, so that each is handed over and completes separately: when one has completed, others are on their way.
        if under_way < 4 && !told.over.load(Ordering::SeqCst) {
            value += 1;
            // The lengths differ, so that the revocation meets single packets and long messages.
            let bytes = &mut bytes[..if value.is_multiple_of(2) { WORDS * 8 } else { 64 }];
            bytes.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&value.to_le_bytes()));
            fabric.write(Remote { peer: owner, region: Region::Lane(LANE), offset: 0 }, bytes, Token(value));
            under_way += 1;
        }
        while let Some(done) = fabric.poll() {
            under_way -= 1;
            match done.result {
                Ok(_) => {
                    told.completed.store(done.token.0, Ordering::SeqCst);
                    told.owner.get().inspect(|owner| owner.unpark());
                }
                Err(error) => {
                    assert_eq!(error, OpError::AccessLost, "write {:?}", done.token);
                    told.lost.fetch_add(1, Ordering::SeqCst);
                }
            }
        }
        std::thread::yield_now();
    }
}

/// The owner revokes while the writer is writing, and looks at the lane for a while; then it grants again.
fn revoke_on(fabric: &mut VerbsFabric, writer: PeerId, told: &Told, rounds: u64) {
    told.owner.set(std::thread::current()).expect("there is one owner");
    fn lane(fabric: &VerbsFabric, writer: PeerId) -> impl Iterator<Item = u64> {
        let lane = fabric.memory(LocalRegion::Lane { writer, name: LANE }).expect("not forgotten");
        lane.iter().map(|word| word.load(Ordering::Acquire))
    }
    for round in 0..rounds {
        // The writer has written since the grant: there is something to revoke.
        let before = told.completed.load(Ordering::SeqCst);
        while told.completed.load(Ordering::SeqCst) == before {
            assert_eq!(fabric.poll(), None);
            assert_eq!(fabric.event(), None, "nobody goes");
            std::thread::park();
        }
        if round.is_multiple_of(2) {
            // When a packet has begun to be stored.
            let first = |fabric: &VerbsFabric| lane(fabric, writer).next().expect("a lane has words");
            let stored = first(fabric);
            until(|| (first(fabric) != stored).then_some(()));
        } else {
            // At any other stage of a write.
            for _ in 0..round * 37 % 400 {
                std::hint::spin_loop();
            }
        }
        fabric.revoke(writer, LANE, Token(round));
        let done = until(|| fabric.poll());
        assert_eq!((done.token, done.result), (Token(round), Ok(0)));
        let at_once: Vec<u64> = lane(fabric, writer).collect();
        let lost = told.lost.load(Ordering::SeqCst);
        // Until the writer knows of it, and longer.
        let mut looks = 0;
        while told.lost.load(Ordering::SeqCst) < lost + 4 || looks < 20 {
            looks += 1;
            assert_eq!(fabric.poll(), None);
            let unchanged = lane(fabric, writer).eq(at_once.iter().copied());
            assert!(unchanged, "round {round}: something was stored after the revocation had completed");
            std::thread::yield_now();
        }
        // Nothing can have completed since then, so what had completed must be there: in the first words, which every write covers.
        let completed = told.completed.load(Ordering::SeqCst);
        assert!(
            at_once[..8].iter().all(|word| *word >= completed),
            "round {round}: write {completed} completed, the lane holds {:?}",
            &at_once[..8]
        );
        fabric.grant(writer, LANE);
    }
    told.over.store(true, Ordering::SeqCst);
}

/// Lets an owner revoke that often under a writer that writes all the time. Returns how many writes lost their access.
fn revoke_under_a_writer(rounds: u64) -> u64 {
    let cluster = unique_cluster();
    let spec = RegionSpec { member_lanes: vec![(LANE, WORDS * 8)], ..RegionSpec::default() };
    let member = |node| start(&cluster, identity(node, 1, PeerKind::Member), spec.clone(), RegionSpec::default());
    let (mut owner, mut writer) = (member(0), member(1));
    writer.connect(NodeId(0), owner.listens_at().expect("it listens"));
    let (there, here) = (up(&mut writer), up(&mut owner));
    let told = Told::default();
    std::thread::scope(|scope| {
        scope.spawn(|| revoke_on(&mut owner, here, &told, rounds));
        write_on(&mut writer, there, &told);
    });
    told.lost.load(Ordering::SeqCst)
}

#[test]
fn nothing_is_stored_after_a_revocation_under_a_running_writer() {
    let each = rounds().div_ceil(PAIRS);
    let lost: u64 = std::thread::scope(|scope| {
        let pairs: Vec<_> = (0..PAIRS).map(|_| scope.spawn(|| revoke_under_a_writer(each))).collect();
        pairs.into_iter().map(|pair| pair.join().expect("no violation")).sum()
    });
    println!("{} revocations under a running writer, {lost} writes lost their access", each * PAIRS);
}

/// How often the self-test revokes, in all ways and between all devices together; `MARTLET_FENCE_TRIALS` says otherwise.
fn trials() -> u32 {
    number("MARTLET_FENCE_TRIALS", 40)
}

/// What this backend relies on, checked by the self-test that an operator can run: on one device, and from one to another. The self-test looks at the
/// memory as soon as the call has returned, whereas the endpoint first tells the writer. So it is here that a call that is no fence shows. The trials
/// run one at a time, since an owner must not be kept from its processor at that moment. Four trials side by side saw nothing stored late in 160
/// rounds of the two ways that are no fences here; one alone saw it in 13.
#[test]
fn the_self_test_finds_that_destroying_a_queue_pair_is_a_fence() {
    let choice = |at: usize| DeviceChoice { name: Some(devices().expect("RDMA")[at].clone()), ..DeviceChoice::default() };
    let wanted = trials().div_ceil(2 * Fence::ALL.len() as u32);
    for (owner, writer) in [(0, 0), (0, 1)] {
        let trials = try_fences(&choice(owner), &choice(writer), wanted).expect("tried");
        assert_eq!(trials.iter().map(|trial| trial.fence).collect::<Vec<_>>(), Fence::ALL);
        for trial in &trials {
            println!("{owner} <- {writer}: {trial}");
            let done = if trial.refused.is_some() { 0 } else { wanted };
            assert_eq!(trial.rounds, done, "{trial}");
        }
        assert!(trials[0].held(), "{}", trials[0]);
    }
}
