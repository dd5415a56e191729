//! Servers on the simulated fabric.

use martlet_fabric::{PeerId, RegionName};

use crate::basics::ProcessId;
use crate::engine::dare::{Config, Dare, layout};
use crate::engine::test_cluster::{self, Meaning, Tested, Watched};
use crate::engine::{Engine as _, Event};
use crate::replica::Durability;
use crate::replica::group::Group;

pub use crate::engine::test_cluster::id;

pub type Cluster = test_cluster::Cluster<Dare, true>;

pub fn tiny() -> Config {
    Config { shared: test_cluster::settings(), election_ns: 20_000, rank_ns: 10_000, places: 0, zombies_ns: 0 }
}

impl Tested for Dare {
    type Event = Event;

    fn durability(_: &Config) -> Durability {
        Durability::Memory
    }

    fn founder(me: ProcessId, config: Config, group: Option<Group>) -> Dare {
        Dare::new(me, config, group)
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

impl Watched for Dare {
    const WORDS: RegionName = layout::WORDS;
    const CONTROL_LANE: RegionName = layout::CONTROL_LANE;

    fn met(&self, process: ProcessId) -> Option<PeerId> {
        self.peer_of(process).map(|peer| peer.id)
    }
}
