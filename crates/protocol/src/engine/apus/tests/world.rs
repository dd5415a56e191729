//! Replicas on the simulated fabric.

use martlet_fabric::{PeerId, RegionName};

use crate::basics::ProcessId;
use crate::engine::apus::{Apus, Config, layout};
use crate::engine::test_cluster::{self, Tested};
use crate::replica::Durability;
use crate::replica::group::Group;

pub use crate::engine::test_cluster::id;

pub type Cluster = test_cluster::Cluster<Apus>;

pub fn tiny() -> Config {
    Config { shared: test_cluster::settings(), secret: 99, durability: Durability::Memory, election_ns: 20_000, rank_ns: 10_000 }
}

impl Tested for Apus {
    const WORDS: RegionName = layout::WORDS;
    const CONTROL_LANE: RegionName = layout::CONTROL_LANE;

    fn tiny() -> Config {
        tiny()
    }

    fn durability(config: &Config) -> Durability {
        config.durability
    }

    fn founder(me: ProcessId, config: Config, group: Option<Group>) -> Apus {
        Apus::new(me, config, group)
    }

    fn met(&self, process: ProcessId) -> Option<PeerId> {
        self.peer_of(process).map(|peer| peer.id)
    }

    fn describe(&self) -> String {
        self.in_words()
    }
}
