//! The queue pair for datagrams: a failing receiver does not take it from the others, and it is replaced when it fails.

use std::process::Command;

use martlet_fabric::verbs::VerbsFabric;
use martlet_fabric::{Fabric, NodeId, PeerEvent, PeerId, PeerKind, RegionSpec};

use crate::cluster::{identity, start, unique_cluster, until};

fn member(cluster: &str, node: u16) -> VerbsFabric {
    start(cluster, identity(node, 1, PeerKind::Member), RegionSpec::default(), RegionSpec::default())
}

/// Waits for a node; no peer may be reported as gone meanwhile.
fn up(fabric: &mut VerbsFabric, node: u16) -> PeerId {
    match until(|| fabric.event()) {
        PeerEvent::Up { peer, identity } => {
            assert_eq!(identity.node, NodeId(node));
            peer
        }
        gone => panic!("{gone:?}"),
    }
}

/// Sends a number to a peer again and again until the peer has received it.
fn tell(from: &mut VerbsFabric, to: PeerId, listener: &mut VerbsFabric, number: u64) {
    let mut heard = Vec::new();
    while heard != number.to_le_bytes() {
        from.send(to, &number.to_le_bytes());
        from.receive(&mut Vec::new());
        std::thread::yield_now();
        listener.receive(&mut heard);
    }
}

/// Lets the link of the virtual machine's first device take packets only ten times a second. The device knows of the packets that wait there, unlike
/// of those that are merely delayed, and with 64 of one queue pair it stops.
fn slow(slow: bool) {
    let mut tc = Command::new("tc");
    match slow {
        true => tc.args(["qdisc", "replace", "dev", "ve0", "root", "netem", "slot", "100ms"]),
        false => tc.args(["qdisc", "delete", "dev", "ve0", "root"]),
    };
    assert!(tc.status().expect("tc is installed").success(), "{tc:?}");
}

/// The receiver is forgotten before the device has even looked its address up.
#[test]
#[ignore = "it slows the link between the virtual machine's devices, so it runs alone"]
fn forgetting_a_peer_takes_datagrams_from_nobody_else() {
    let cluster = unique_cluster();
    // Both of the others on the second device.
    let (mut sender, mut third) = (member(&cluster, 0), member(&cluster, 3));
    third.connect(NodeId(0), sender.listens_at().expect("it listens"));
    let (to_third, _) = (up(&mut sender, 3), up(&mut third, 0));
    let one = member(&cluster, 1);
    one.connect(NodeId(0), sender.listens_at().expect("it listens"));
    for round in 0..10 {
        let to_one = up(&mut sender, 1);
        slow(true);
        for _ in 0..128 {
            sender.send(to_one, &[1; 64]);
        }
        sender.forget(to_one);
        tell(&mut sender, to_third, &mut third, round);
        slow(false);
        assert_eq!(third.event(), None, "the third notices nothing");
    }
    println!("{:?}", sender.mail_counters());
}

#[test]
fn one_that_loses_the_queue_pair_for_datagrams_is_heard_again() {
    let cluster = unique_cluster();
    let (mut one, mut other) = (member(&cluster, 0), member(&cluster, 1));
    one.connect(NodeId(1), other.listens_at().expect("it listens"));
    let (mut to_other, mut to_one) = (up(&mut one, 1), up(&mut other, 0));
    for round in 0..3 {
        tell(&mut one, to_other, &mut other, round);
        one.fail_mail();
        // A peer that listens notices it.
        let lost = until(|| {
            assert_eq!(one.receive(&mut Vec::new()), None);
            one.event()
        });
        assert_eq!(lost, PeerEvent::Gone { peer: to_other, certain: false });
        assert_eq!(until(|| other.event()), PeerEvent::Gone { peer: to_one, certain: false });
        (to_other, to_one) = (up(&mut one, 1), up(&mut other, 0));
    }
    tell(&mut one, to_other, &mut other, 100);
    tell(&mut other, to_one, &mut one, 101);
}
