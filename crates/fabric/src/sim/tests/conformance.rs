//! Every promise, in worlds with all kinds of faults.

use super::super::{Endpoint, Faults, World};
use super::identity;
use crate::conformance::Harness;
use crate::contract::{Identity, PeerKind, RegionSpec};

/// Round 0 is calm; every other draws its faults.
struct Simulated<const HOST: bool> {
    world: World<HOST>,
    endpoints: Vec<Endpoint<HOST>>,
    identities: Vec<Identity>,
    spec: RegionSpec,
}

impl<const HOST: bool> Simulated<HOST> {
    fn add(&mut self, node: u16, incarnation: u64, kind: PeerKind, spec: &RegionSpec) -> usize {
        let identity = identity(node, incarnation, kind);
        let (process, endpoint) = self.world.spawn(identity, spec);
        assert_eq!(process, self.endpoints.len());
        self.endpoints.push(endpoint);
        self.identities.push(identity);
        process
    }
}

impl<const HOST: bool> Harness for Simulated<HOST> {
    type Fabric = Endpoint<HOST>;
    const ROUNDS: u64 = 24;

    fn start(round: u64, members: usize, spec: &RegionSpec) -> Self {
        let faults = if round == 0 { Faults::calm() } else { Faults::drawn(&mut fastrand::Rng::with_seed(round)) };
        let world = World::new(round, faults);
        let mut harness = Simulated { world, endpoints: Vec::new(), identities: Vec::new(), spec: spec.clone() };
        for node in 0..members {
            harness.add(node as u16, 1, PeerKind::Member, spec);
        }
        harness
    }

    fn client(&mut self, spec: &RegionSpec) -> Option<usize> {
        Some(self.add(100, 1, PeerKind::Client, spec))
    }

    fn bystander(&mut self, after: Option<usize>) -> Option<usize> {
        let (node, incarnation) = match after {
            None => (self.endpoints.len() as u16, 1),
            Some(before) => (self.identities[before].node.0, self.identities[before].incarnation.0 + 1),
        };
        let spec = self.spec.clone();
        Some(self.add(node, incarnation, PeerKind::Member, &spec))
    }

    fn crash(&mut self, bystander: usize) {
        self.world.kill(bystander, None);
    }

    fn identity(&self, process: usize) -> Identity {
        self.identities[process]
    }

    fn fabric(&mut self, process: usize) -> &mut Endpoint<HOST> {
        &mut self.endpoints[process]
    }

    fn pass(&mut self) {
        self.world.run_for(200);
    }
}

mod host {
    crate::conformance_suite!(super::Simulated<true>);
}

mod network {
    crate::conformance_suite!(super::Simulated<false>);
}

#[test]
#[should_panic(expected = "which had no permission, completed Ok")]
fn canary_a_fabric_that_reports_success_without_permission_is_found() {
    crate::conformance::every_order_of_hand_overs::<Simulated<true>>(0, |_| Ok(0));
}
