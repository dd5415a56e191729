//! The conformance suite over RDMA.

use martlet_fabric::conformance::{self, Backend, Processes};
use martlet_fabric::verbs::{Multicast, VerbsConfig, VerbsFabric};
use martlet_fabric::{Identity, NodeId};

use crate::cluster::{config, number};

/// With a multicast group or without.
pub struct Verbs<const GROUP: bool>;

impl<const GROUP: bool> Backend for Verbs<GROUP> {
    type Fabric = VerbsFabric;

    const ROUNDS: u64 = 1;
    const BYSTANDER: &'static str = "conformance::be_a_bystander";
    // Software RDMA needs a processor too.
    const TURNS: u32 = 1;

    /// Seven acts take minutes under emulation; `MARTLET_HAND_OVER_ACTS` says otherwise.
    fn hand_over_acts() -> usize {
        number("MARTLET_HAND_OVER_ACTS", 5)
    }

    fn start(cluster: &str, who: Identity) -> VerbsFabric {
        let usual = config(cluster, who, conformance::spec(), conformance::client_spec());
        VerbsFabric::start(VerbsConfig { multicast: if GROUP { Multicast::On } else { Multicast::Off }, ..usual }).expect("started")
    }

    fn address(fabric: &VerbsFabric) -> String {
        fabric.listens_at().expect("it listens").to_string()
    }

    fn dial(fabric: &VerbsFabric, member: NodeId, address: &str) {
        fabric.connect(member, address.parse().expect("an address"));
    }
}

#[test]
#[ignore = "it is started by other tests, as a process of its own"]
fn be_a_bystander() {
    conformance::be_a_bystander::<Verbs<false>>();
}

martlet_fabric::conformance_suite!(Processes<Verbs<false>>);
