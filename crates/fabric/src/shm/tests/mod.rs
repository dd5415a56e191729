//! The endpoint as a whole. Tests that need real deaths of other executables are in the crate's integration test.

mod conformance;
mod endpoint;
mod intruders;
mod private;

use std::time::Duration;

use super::{ShmConfig, ShmFabric};
use crate::conformance::unique_cluster;
use crate::contract::{Fabric, Identity, Incarnation, NodeId, PeerEvent, PeerId, PeerKind, RegionName, RegionSpec};

const KEY: &[u8] = b"the key of the tests' cluster";

fn identity(node: u16, incarnation: u64, kind: PeerKind) -> Identity {
    Identity { node: NodeId(node), incarnation: Incarnation(incarnation), kind }
}

const PUBLIC: RegionName = RegionName(1);
const LANE: RegionName = RegionName(16);

fn member_spec() -> RegionSpec {
    RegionSpec { public: vec![(PUBLIC, 4096)], owned: Vec::new(), member_lanes: vec![(LANE, 4096)], client_lanes: vec![(LANE, 4096)] }
}

fn client_spec() -> RegionSpec {
    RegionSpec { public: vec![(PUBLIC, 64)], owned: Vec::new(), member_lanes: vec![(LANE, 64)], client_lanes: vec![] }
}

fn config(cluster: &str, node: u16, kind: PeerKind) -> ShmConfig {
    ShmConfig { prefault: false, ..ShmConfig::new(cluster, KEY, identity(node, 1, kind), member_spec(), client_spec()) }
}

fn member(cluster: &str, node: u16) -> ShmFabric {
    ShmFabric::start(config(cluster, node, PeerKind::Member)).expect("started")
}

fn client(cluster: &str, node: u16) -> ShmFabric {
    ShmFabric::start(config(cluster, node, PeerKind::Client)).expect("started")
}

/// Waits until something holds. It has no time limit: a test that hangs says so by hanging.
fn until<T>(mut look: impl FnMut() -> Option<T>) -> T {
    loop {
        if let Some(found) = look() {
            return found;
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}

fn next_event(fabric: &mut ShmFabric) -> PeerEvent {
    until(|| fabric.event())
}

fn next_up(fabric: &mut ShmFabric) -> (PeerId, Identity) {
    match next_event(fabric) {
        PeerEvent::Up { peer, identity } => (peer, identity),
        gone => panic!("{gone:?}"),
    }
}

/// Two connected members, and the number by which each knows the other.
fn pair() -> (String, ShmFabric, PeerId, ShmFabric, PeerId) {
    let cluster = unique_cluster();
    let (mut a, mut b) = (member(&cluster, 1), member(&cluster, 2));
    a.connect(NodeId(2));
    let (to_b, _) = next_up(&mut a);
    let (to_a, _) = next_up(&mut b);
    (cluster, a, to_b, b, to_a)
}
