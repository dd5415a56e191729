//! Servers on the simulated fabric.

use martlet_fabric::{PeerId, RegionName};

use crate::basics::ProcessId;
use crate::engine::dare::{Config, Dare, layout};
use crate::engine::test_cluster::{self, Tested};
use crate::replica::group::Group;

pub use crate::engine::test_cluster::id;

pub type Cluster = test_cluster::Cluster<Dare>;

impl Tested for Dare {
    const WORDS: RegionName = layout::WORDS;
    const CONTROL_LANE: RegionName = layout::CONTROL_LANE;

    fn tiny() -> Config {
        Config { shared: test_cluster::settings(), election_ns: 20_000, rank_ns: 10_000, places: 0, zombies_ns: 0 }
    }

    fn founder(me: ProcessId, config: Config, group: Option<Group>) -> Dare {
        Dare::new(me, config, group)
    }

    fn met(&self, process: ProcessId) -> Option<PeerId> {
        self.peer_of(process).map(|peer| peer.id)
    }

    fn describe(&self) -> String {
        self.in_words()
    }
}
