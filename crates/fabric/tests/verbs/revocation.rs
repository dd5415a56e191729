//! Promise 6 many times over: nothing is stored after a revocation has completed, and whatever completed well was there.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use martlet_fabric::verbs::{DeviceChoice, Fence, VerbsFabric, devices, try_fences};
use martlet_fabric::{Fabric, LocalRegion, NodeId, OpError, PeerEvent, PeerId, PeerKind, Region, RegionName, RegionSpec, Remote, Token};

use crate::cluster::{identity, number, start, unique_cluster};

const LANE: RegionName = RegionName(16);
/// Long enough for several packets.
const WORDS: usize = 2048;

/// How often the owner revokes; `MARTLET_REVOCATIONS` says otherwise.
fn rounds() -> u64 {
    number("MARTLET_REVOCATIONS", 300)
}

fn up(fabric: &mut VerbsFabric) -> PeerId {
    loop {
        if let Some(PeerEvent::Up { peer, .. }) = fabric.event() {
            return peer;
        }
        std::thread::yield_now();
    }
}

/// What the two threads tell each other.
#[derive(Default)]
struct Told {
    /// The greatest value whose write completed well.
    completed: AtomicU64,
    /// Writes that lost their access.
    lost: AtomicU64,
    over: AtomicBool,
}

/// The writer never stops: it writes value after value over the whole lane, several under way at once, and goes on after every loss.
fn write_on(fabric: &mut VerbsFabric, owner: PeerId, told: &Told) {
    let (mut value, mut under_way) = (0u64, 0);
    let mut bytes = vec![0; WORDS * 8];
    while !told.over.load(Ordering::SeqCst) || under_way > 0 {
        while under_way < 4 && !told.over.load(Ordering::SeqCst) {
            value += 1;
            // Lengths differ, so that the revocation meets single packets and long messages.
            let words = if value.is_multiple_of(2) { WORDS } else { 8 };
            bytes.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&value.to_le_bytes()));
            fabric.write(Remote { peer: owner, region: Region::Lane(LANE), offset: 0 }, &bytes[..words * 8], Token(value));
            under_way += 1;
        }
        while let Some(done) = fabric.poll() {
            under_way -= 1;
            match done.result {
                Ok(_) => told.completed.store(done.token.0, Ordering::SeqCst),
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
fn revoke_on(fabric: &mut VerbsFabric, writer: PeerId, told: &Told) -> u64 {
    let mut with_writes = 0;
    let region = LocalRegion::Lane { writer, name: LANE };
    for round in 0..rounds() {
        // The writer has written since the grant: there is something to revoke.
        let before = told.completed.load(Ordering::SeqCst);
        while told.completed.load(Ordering::SeqCst) == before {
            assert_eq!(fabric.poll(), None);
            assert_eq!(fabric.event(), None, "nobody goes");
            std::thread::yield_now();
        }
        // Revocations at all moments of a write.
        for _ in 0..round * 37 % 400 {
            std::hint::spin_loop();
        }
        fabric.revoke(writer, LANE, Token(round));
        let done = loop {
            if let Some(done) = fabric.poll() {
                break done;
            }
        };
        assert_eq!((done.token, done.result), (Token(round), Ok(0)));
        let snapshot = |fabric: &VerbsFabric| -> Vec<u64> {
            fabric.memory(region).expect("not forgotten").iter().map(|word| word.load(Ordering::Acquire)).collect()
        };
        let at_once = snapshot(fabric);
        let lost = told.lost.load(Ordering::SeqCst);
        // Until the writer has come to know, and longer.
        let mut looks = 0;
        while told.lost.load(Ordering::SeqCst) < lost + 4 || looks < 20 {
            looks += 1;
            assert_eq!(fabric.poll(), None);
            assert_eq!(snapshot(fabric), at_once, "round {round}: something was stored after the revocation had completed");
            std::thread::yield_now();
        }
        // Nothing can have completed since, so what had completed must be there: in the first words, which every write covers.
        let completed = told.completed.load(Ordering::SeqCst);
        assert!(
            at_once[..8].iter().all(|word| *word >= completed),
            "round {round}: write {completed} completed, the lane holds {:?}",
            &at_once[..8]
        );
        with_writes += u64::from(completed > before);
        fabric.grant(writer, LANE);
    }
    told.over.store(true, Ordering::SeqCst);
    with_writes
}

#[test]
fn nothing_is_stored_after_a_revocation_under_a_running_writer() {
    let cluster = unique_cluster();
    let spec = RegionSpec { member_lanes: vec![(LANE, WORDS * 8)], ..RegionSpec::default() };
    let member = |node| start(&cluster, identity(node, 1, PeerKind::Member), spec.clone(), RegionSpec::default());
    let (mut owner, mut writer) = (member(0), member(1));
    writer.connect(NodeId(0), owner.listens_at().expect("it listens"));
    let (there, here) = (up(&mut writer), up(&mut owner));
    let told = Told::default();
    let revoked = std::thread::scope(|scope| {
        let owner = scope.spawn(|| revoke_on(&mut owner, here, &told));
        write_on(&mut writer, there, &told);
        owner.join().expect("no violation")
    });
    assert_eq!(revoked, rounds());
    println!("{revoked} revocations under a running writer, {} writes lost their access", told.lost.load(Ordering::SeqCst));
}

/// What this backend relies on, found out by the self-test that an operator can run; on one device, and from one to another.
#[test]
fn the_self_test_finds_that_destroying_a_queue_pair_is_a_fence() {
    let choice = |at: usize| DeviceChoice { name: Some(devices().expect("RDMA")[at].clone()), ..DeviceChoice::default() };
    let wanted = u32::try_from(rounds() / 100).expect("few").max(5);
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
