//! The conformance suite over UDP on the loopback device: as it is, and over a wire that loses, repeats, reorders and corrupts.

#![cfg(all(target_os = "linux", target_endian = "little", target_pointer_width = "64"))]

use std::net::SocketAddr;

use martlet_fabric::conformance::{self, Backend, Processes};
use martlet_fabric::ethernet::{EthernetConfig, EthernetFabric, Mangling};
use martlet_fabric::{Identity, NodeId, PeerKind};

const KEY: &[u8] = b"the key of the tests' cluster";

/// With a hostile wire or without.
struct Ethernet<const HOSTILE: bool>;

impl<const HOSTILE: bool> Backend for Ethernet<HOSTILE> {
    type Fabric = EthernetFabric;

    const ROUNDS: u64 = 1;
    const BYSTANDER: &'static str = "be_a_bystander";
    // The other end needs a processor too.
    const TURNS: u32 = 1;

    /// Each act waits for a packet or two, and on the hostile wire for many; `MARTLET_HAND_OVER_ACTS` says otherwise.
    fn hand_over_acts() -> usize {
        let asked = std::env::var("MARTLET_HAND_OVER_ACTS").ok().and_then(|acts| acts.parse().ok());
        asked.unwrap_or(if HOSTILE { 4 } else { 5 })
    }

    fn start(cluster: &str, who: Identity) -> EthernetFabric {
        let usual = EthernetConfig::new(cluster, KEY, who, conformance::spec(), conformance::client_spec());
        let listen = (who.kind == PeerKind::Member).then(|| SocketAddr::from(([127, 0, 0, 1], 0)));
        let seed = u64::from(std::process::id()) << 32 | u64::from(who.node.0) << 16 | who.incarnation.0;
        let mangling = HOSTILE.then_some(Mangling { lost: 50, repeated: 20, reordered: 100, corrupted: 10, seed });
        EthernetFabric::start(EthernetConfig { listen, mangling, ..usual }).expect("started")
    }

    fn address(fabric: &EthernetFabric) -> String {
        fabric.listens_at().expect("it listens").to_string()
    }

    fn dial(fabric: &EthernetFabric, member: NodeId, address: &str) {
        fabric.connect(member, address.parse().expect("an address"));
    }
}

#[test]
#[ignore = "it is started by other tests, as a process of its own"]
fn be_a_bystander() {
    conformance::be_a_bystander::<Ethernet<false>>();
}

#[path = "ethernet/ended.rs"]
mod ended;

mod plain {
    martlet_fabric::conformance_suite!(super::Processes<super::Ethernet<false>>);
}

mod hostile {
    martlet_fabric::conformance_suite!(super::Processes<super::Ethernet<true>>);
}
