//! Replicas of `mu` on the simulated fabric.

use crate::basics::ProcessId;
use crate::engine::mu::{Config, Durability, Event, Group, Mu};
use crate::engine::test_cluster::{self, Meaning, Tested};
use crate::replica::Settings;

pub use crate::engine::test_cluster::{drawn, id};

pub type Cluster<const HOST: bool> = test_cluster::Cluster<Mu, HOST>;

pub fn tiny() -> Config {
    Config {
        shared: Settings { log_ring_bytes: 4096, state_ring_bytes: 2048, transfer_budget_bytes: 300, ..test_cluster::settings() },
        secret: 0x5ec2e7,
        durability: Durability::Memory,
        retry_ns: 5_000,
        leader_stays: false,
    }
}

/// The same, but for what is changed about it.
pub fn tiny_but(change: impl FnOnce(&mut Config)) -> Config {
    let mut config = tiny();
    change(&mut config);
    config
}

impl Tested for Mu {
    type Event = Event;

    fn durability(config: &Config) -> Durability {
        config.durability
    }

    fn founder(me: ProcessId, config: Config, group: Option<Group>) -> Mu {
        Mu::new(me, config, group)
    }

    fn next_event(&mut self) -> Option<Event> {
        self.poll_event()
    }

    fn meaning(event: &Event) -> Meaning {
        match event {
            Event::Led { .. } => Meaning::TookOver,
            Event::Forget(peer) => Meaning::Forget(*peer),
            Event::LaneFault { .. } => Meaning::Fault,
            _ => Meaning::Other,
        }
    }

    fn describe(&self) -> String {
        format!("ballot {:x}, {:?}", self.ballot(), crate::engine::Engine::standing(self))
    }
}

impl<const HOST: bool> Cluster<HOST> {
    /// Pauses `n`, and writes at `leader` until the log there ends so many bytes further on.
    pub fn leave_behind(&mut self, n: usize, leader: usize, bytes: u64) {
        self.world.pause(n);
        let end = |c: &Self, n: usize| c.nodes[n].engine.log.tail().position;
        while end(self, leader) - end(self, n) < bytes {
            self.write_through(leader);
        }
    }

    /// How often a node has been taught.
    pub fn taught(&self, n: usize) -> usize {
        self.events(n, |event| matches!(event, Event::Learned { .. }))
    }
}
