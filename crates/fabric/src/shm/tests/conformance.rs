//! The conformance suite on shared memory.

use super::{KEY, ShmConfig, ShmFabric};
use crate::conformance::{self, Backend, Processes};
use crate::contract::{Identity, NodeId};

struct Shm;

impl Backend for Shm {
    type Fabric = ShmFabric;

    const ROUNDS: u64 = 3;
    const BYSTANDER: &'static str = "shm::tests::conformance::be_a_bystander";
    const TURNS: u32 = 64;

    fn start(cluster: &str, who: Identity) -> ShmFabric {
        let (members, clients) = (conformance::spec(), conformance::client_spec());
        ShmFabric::start(ShmConfig { prefault: false, ..ShmConfig::new(cluster, KEY, who, members, clients) }).expect("started")
    }

    fn address(_: &ShmFabric) -> String {
        "here".into()
    }

    fn dial(fabric: &ShmFabric, member: NodeId, _: &str) {
        fabric.connect(member);
    }
}

#[test]
#[ignore = "it is started by other tests, as a process of its own"]
fn be_a_bystander() {
    conformance::be_a_bystander::<Shm>();
}

crate::conformance_suite!(Processes<Shm>);
