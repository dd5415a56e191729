//! Replicas of `apus` on the simulated fabric.

use martlet_fabric::{PeerId, RegionName};

use crate::basics::ProcessId;
use crate::engine::apus::{Apus, Config, layout};
use crate::engine::test_cluster::{self, Meaning, Tested, Watched};
use crate::engine::{Engine as _, Event};
use crate::replica::Durability;
use crate::replica::group::Group;

pub use crate::engine::test_cluster::id;

pub type Cluster = test_cluster::Cluster<Apus, true>;

pub fn tiny() -> Config {
    Config { shared: test_cluster::settings(), secret: 99, durability: Durability::Memory, election_ns: 20_000, rank_ns: 10_000 }
}

impl Tested for Apus {
    type Event = Event;

    fn durability(config: &Config) -> Durability {
        config.durability
    }

    fn founder(me: ProcessId, config: Config, group: Option<Group>) -> Apus {
        Apus::new(me, config, group)
    }

    fn next_event(&mut self) -> Option<Event> {
        self.poll_event()
    }

    fn meaning(event: &Event) -> Meaning {
        Meaning::of(event)
    }

    fn describe(&self) -> String {
        self.in_words()
    }
}

impl Watched for Apus {
    const WORDS: RegionName = layout::WORDS;
    const CONTROL_LANE: RegionName = layout::CONTROL_LANE;

    fn met(&self, process: ProcessId) -> Option<PeerId> {
        self.peer_of(process).map(|peer| peer.id)
    }
}
