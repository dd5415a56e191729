//! The simulated backend against the suite, and what only a simulator can show.

mod conformance;
mod faults;
mod onlookers;
mod replay;

use super::{Endpoint, Faults, World};
use crate::contract::{Completion, Fabric, Identity, Incarnation, NodeId, PeerEvent, PeerId, PeerKind, RegionName, RegionSpec};

/// A public region of these tests.
const PUBLIC: RegionName = RegionName(1);
/// A lane of these tests.
const LANE: RegionName = RegionName(2);

fn spec() -> RegionSpec {
    RegionSpec { public: vec![(PUBLIC, 1024)], owned: Vec::new(), member_lanes: vec![(LANE, 1024)], client_lanes: vec![(LANE, 1024)] }
}

fn identity(node: u16, incarnation: u64, kind: PeerKind) -> Identity {
    Identity { node: NodeId(node), incarnation: Incarnation(incarnation), kind }
}

/// `count` connected members, each with the list of the numbers by which it knows its peers, by process.
fn members<const HOST: bool>(seed: u64, faults: Faults, count: usize) -> (World<HOST>, Vec<Endpoint<HOST>>, Vec<Vec<PeerId>>) {
    let mut world = World::<HOST>::new(seed, faults);
    let mut endpoints: Vec<_> = (0..count).map(|node| world.spawn(identity(node as u16, 1, PeerKind::Member), &spec()).1).collect();
    let mut peers = vec![vec![PeerId::SELF; count]; count];
    world.run_for(1_000_000);
    for (of, endpoint) in endpoints.iter_mut().enumerate() {
        let mut up = 0;
        while let Some(PeerEvent::Up { peer, identity }) = endpoint.event() {
            peers[of][usize::from(identity.node.0)] = peer;
            up += 1;
        }
        assert_eq!(up, count - 1);
    }
    (world, endpoints, peers)
}

/// Goes on until the endpoint has a completion.
fn completion<const HOST: bool>(world: &mut World<HOST>, endpoint: &mut Endpoint<HOST>) -> Completion {
    for _ in 0..100_000 {
        if let Some(done) = endpoint.poll() {
            return done;
        }
        world.run_for(100);
    }
    panic!("nothing has completed");
}
