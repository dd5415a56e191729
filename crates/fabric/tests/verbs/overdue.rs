//! Requests that the device forgets: an endpoint that waits for them is told that the peer is lost, and the two connect anew.

use std::sync::atomic::Ordering;

use martlet_fabric::verbs::{Patience, VerbsConfig, VerbsFabric};
use martlet_fabric::{
    Completion, Fabric, Local, LocalRegion, NodeId, OpError, PeerEvent, PeerId, PeerKind, Region, RegionName, RegionSpec, Remote, Token,
};

use crate::cluster::{config, identity, unique_cluster, until};

const PUBLIC: RegionName = RegionName(1);
const LANE: RegionName = RegionName(16);

/// With so little patience that the longest wait for a short request is a second.
const IMPATIENT: Patience = Patience { timeout: 13, retries: 6 };

fn member(cluster: &str, node: u16) -> VerbsFabric {
    let spec = RegionSpec { public: vec![(PUBLIC, 4096)], member_lanes: vec![(LANE, 4096)], ..RegionSpec::default() };
    let usual = config(cluster, identity(node, 1, PeerKind::Member), spec, RegionSpec::default());
    VerbsFabric::start(VerbsConfig { patience: IMPATIENT, ..usual }).expect("started")
}

fn up(fabric: &mut VerbsFabric) -> PeerId {
    until(|| match fabric.event() {
        Some(PeerEvent::Up { peer, .. }) => Some(peer),
        _ => None,
    })
}

fn lane(peer: PeerId) -> Remote {
    Remote { peer, region: Region::Lane(LANE), offset: 0 }
}

/// Writes until that succeeds, on whichever connection there is.
fn goes_on(writer: &mut VerbsFabric) {
    let mut peer = up(writer);
    until(|| {
        writer.write(lane(peer), &[1; 8], Token(9));
        let done = until(|| writer.poll());
        if done.result.is_err() {
            peer = up(writer);
        }
        done.result.ok()
    });
}

#[test]
fn operations_that_the_device_forgets_are_lost_with_their_peer() {
    for on_lane in [true, false] {
        let cluster = unique_cluster();
        let (owner, mut writer) = (member(&cluster, 0), member(&cluster, 1));
        writer.connect(NodeId(0), owner.listens_at().expect("it listens"));
        let first = up(&mut writer);
        writer.forget_requests(first);
        match on_lane {
            true => writer.write(lane(first), &[1; 8], Token(1)),
            false => writer.read_word(Remote { peer: first, region: Region::Public(PUBLIC), offset: 0 }, Token(1)),
        }
        // It waits for the other queue pair, and so for the first operation.
        match on_lane {
            true => writer.read_word(Remote { peer: first, region: Region::Public(PUBLIC), offset: 0 }, Token(2)),
            false => writer.write(lane(first), &[1; 8], Token(2)),
        }
        for token in [1, 2] {
            assert_eq!(until(|| writer.poll()), Completion { token: Token(token), result: Err(OpError::PeerLost) });
        }
        assert_eq!(until(|| writer.event()), PeerEvent::Gone { peer: first, certain: false });
        goes_on(&mut writer);
    }
}

#[test]
fn an_owner_whose_notice_is_forgotten_does_not_wait_for_ever() {
    let cluster = unique_cluster();
    let (mut owner, mut writer) = (member(&cluster, 0), member(&cluster, 1));
    writer.connect(NodeId(0), owner.listens_at().expect("it listens"));
    let (to_writer, to_owner) = (up(&mut owner), up(&mut writer));
    owner.forget_requests(to_writer);
    owner.revoke(to_writer, LANE, Token(1));
    assert_eq!(until(|| owner.poll()), Completion { token: Token(1), result: Ok(0) });
    owner.grant(to_writer, LANE);
    assert_eq!(until(|| owner.event()), PeerEvent::Gone { peer: to_writer, certain: false });
    assert_eq!(until(|| writer.event()), PeerEvent::Gone { peer: to_owner, certain: false });
    goes_on(&mut writer);
}

/// A process that catches up with a log reads it in one go, and the device may forget that READ too: all of it, or the rest when some of it has
/// arrived.
#[test]
fn a_long_read_that_the_device_forgets_is_lost_with_its_peer() {
    const BYTES: usize = 8 << 20;
    let cluster = unique_cluster();
    let big = |node| {
        let spec = RegionSpec { public: vec![(PUBLIC, BYTES)], ..RegionSpec::default() };
        let usual = config(&cluster, identity(node, 1, PeerKind::Member), spec, RegionSpec::default());
        VerbsFabric::start(VerbsConfig { patience: IMPATIENT, ..usual }).expect("started")
    };
    let (owner, mut reader) = (big(0), big(1));
    owner.memory(LocalRegion::Public(PUBLIC)).expect("ours").iter().for_each(|word| word.store(1, Ordering::Relaxed));
    reader.connect(NodeId(0), owner.listens_at().expect("it listens"));
    for begun in [false, true] {
        let from = up(&mut reader);
        if !begun {
            reader.forget_requests(from);
        }
        let at = |offset| Remote { peer: from, region: Region::Public(PUBLIC), offset };
        reader.read(at(0), Local { region: LocalRegion::Public(PUBLIC), offset: 0 }, BYTES, Token(1));
        if begun {
            until(|| {
                assert_eq!(reader.poll(), None, "there is much to come yet");
                let landed = &reader.memory(LocalRegion::Public(PUBLIC)).expect("ours")[BYTES / 16];
                (landed.load(Ordering::Acquire) == 1).then_some(())
            });
            reader.forget_requests(from);
        }
        assert_eq!(until(|| reader.poll()), Completion { token: Token(1), result: Err(OpError::PeerLost) });
        assert_eq!(until(|| reader.event()), PeerEvent::Gone { peer: from, certain: false });
        reader.memory(LocalRegion::Public(PUBLIC)).expect("ours").iter().for_each(|word| word.store(0, Ordering::Relaxed));
    }
}

/// Datagrams that the device forgets keep their slots, so that in the end nothing could be sent.
#[test]
fn one_that_waits_for_datagrams_in_vain_is_heard_again() {
    let cluster = unique_cluster();
    let (mut one, mut other) = (member(&cluster, 0), member(&cluster, 1));
    one.connect(NodeId(1), other.listens_at().expect("it listens"));
    let (to_other, to_one) = (up(&mut one), up(&mut other));
    one.forget_datagrams();
    for number in 0..1000u64 {
        one.send(to_other, &number.to_le_bytes());
    }
    assert!(one.mail_counters().dropped > 0, "no slot is left");
    let lost = until(|| {
        assert_eq!(one.receive(&mut Vec::new()), None);
        one.event()
    });
    assert_eq!(lost, PeerEvent::Gone { peer: to_other, certain: false });
    assert_eq!(until(|| other.event()), PeerEvent::Gone { peer: to_one, certain: false });
    let (to_other, to_one) = (up(&mut one), up(&mut other));
    let mut heard = Vec::new();
    until(|| {
        one.send(to_other, b"again");
        one.receive(&mut Vec::new());
        other.receive(&mut heard).filter(|from| *from == to_one && heard == b"again")
    });
}
