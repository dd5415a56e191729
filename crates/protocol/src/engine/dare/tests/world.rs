//! Servers on the simulated fabric.

use martlet_fabric::{PeerId, RegionName};

use crate::basics::{LogIndex, ProcessId, ViewNumber};
use crate::engine::dare::{Config, Dare, layout};
use crate::engine::test_cluster::{self, Meaning, Tested, Watched};
use crate::engine::{Engine as _, Event};
use crate::membership::{Member, Roles, View};
use crate::replica::Durability;
use crate::replica::group::{Group, Phase};

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

/// Of the servers, which the leader of term 1.
pub fn led(servers: usize) -> (Cluster, usize) {
    let mut cluster = Cluster::new(servers, tiny());
    let leader = cluster.until_led();
    (cluster, leader)
}

/// So many servers that all have the same log; also returns the leader and the last entry.
pub fn alike(servers: usize) -> (Cluster, usize, LogIndex) {
    let (mut cluster, leader) = led(servers);
    let last = cluster.write_through(leader);
    cluster.until("all have it", |c| c.nodes.iter().all(|node| node.engine.committed() >= last));
    (cluster, leader, last)
}

/// The two beside one of three.
pub fn others(one: usize) -> [usize; 2] {
    [(one + 1) % 3, (one + 2) % 3]
}

/// All learn a view of these replicas.
pub fn tell_view(cluster: &mut Cluster, number: u64, replicas: impl Iterator<Item = usize>) {
    let members = replicas.map(|n| Member::new(id(n), Roles::REPLICA)).collect();
    let view = View { number: ViewNumber(number), lease_ns: 1, fence_ns: 1, compatible: false, level: 1, members, departed: Vec::new() };
    cluster.nodes.iter_mut().for_each(|node| node.engine.handle_view(&view));
}

/// Runs turns until the group at `n` has so many members and no change is under way. Returns the phases that it went through.
pub fn until_stable(cluster: &mut Cluster, n: usize, members: usize) -> Vec<Phase> {
    let mut phases: Vec<Phase> = Vec::new();
    cluster.until("the group is stable", |c| {
        let group = c.nodes[n].engine.group().expect("a founder").clone();
        if phases.last() != Some(group.phase()) {
            phases.push(group.phase().clone());
        }
        let is_committed = !c.nodes[n].engine.log.is_group_changing();
        is_committed && group.members().len() == members && *group.phase() == Phase::Stable
    });
    phases
}
