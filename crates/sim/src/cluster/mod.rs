//! Whole clusters of the production state machines over the simulated fabric: each seed is one life.
//!
//! A life has two parts. In the first there is trouble: kills, pauses, partitions, dead NICs, and whatever the fabric does, while oracles look on. In the
//! second everything has healed, and the cluster has to become whole again: safety first, then liveness. At the end every key is read once more, all replicas
//! must be equal, and what the clients saw must be linearizable.

mod clients;
mod engine;
mod faults;
mod life;
mod node;
mod oracles;
mod plan;
mod recovery;
mod report;
mod scenarios;
mod settings;
mod storage;
#[cfg(test)]
mod tests;
mod wardens;

use std::fmt;
use std::str::FromStr;

use martlet_fabric::sim::Span;
use martlet_protocol::engine::{Apus, Dare, Hsuc, Huc, Mu, PrimaryBackup};
use martlet_protocol::replica::Execution;

pub use faults::{FAULTS, Fault, Mask, Masks};
use life::{Cluster, stream};
pub use oracles::story::told_so_far;
pub use plan::{Canary, Changes, Ground, Plan};
pub use report::{FaultCounts, Property, Report, Temper, Violation};
pub use scenarios::steps::{Blow, Harm, NODES, PHASES, Phase};
pub use scenarios::{SCENARIOS, Scenario, testdata};
use settings::Settings;

/// A kind of cluster that can be simulated.
#[derive(Debug)]
pub struct Kind {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it is.
    pub about: &'static str,
    /// Where it runs.
    pub ground: Ground,
    /// Whether its nodes have disks, and the power fails now and then.
    pub disks: bool,
    /// Runs a life of it.
    live: fn(&Plan, Settings) -> (Report, String),
}

/// All kinds. A new engine, or a new place to run, is one line. Unless a kind is named, seeds are dealt to the kinds in this order ([`Kind::of`]), so one more
/// line gives seeds other lives.
pub const KINDS: &[Kind] = &[
    Kind {
        name: "host",
        about: "primary-backup on one host with shared memory",
        ground: Ground::Host,
        disks: false,
        live: |plan, settings| Cluster::<PrimaryBackup, true>::new(plan, settings).live(),
    },
    Kind {
        name: "network",
        about: "primary-backup on hosts with one-sided operations between them",
        ground: Ground::Network,
        disks: false,
        live: |plan, settings| Cluster::<PrimaryBackup, false>::new(plan, settings).live(),
    },
    Kind {
        name: "mu",
        about: "mu on one host with shared memory",
        ground: Ground::Host,
        disks: false,
        live: |plan, settings| Cluster::<Mu, true>::new(plan, settings).live(),
    },
    Kind {
        name: "mu-network",
        about: "mu on hosts with one-sided operations between them",
        ground: Ground::Network,
        disks: false,
        live: |plan, settings| Cluster::<Mu, false>::new(plan, settings).live(),
    },
    Kind {
        name: "dare",
        about: "dare on one host with shared memory",
        ground: Ground::Host,
        disks: false,
        live: |plan, settings| Cluster::<Dare, true>::new(plan, settings).live(),
    },
    Kind {
        name: "dare-network",
        about: "dare on hosts with one-sided operations between them",
        ground: Ground::Network,
        disks: false,
        live: |plan, settings| Cluster::<Dare, false>::new(plan, settings).live(),
    },
    Kind {
        name: "apus",
        about: "apus on one host with shared memory",
        ground: Ground::Host,
        disks: false,
        live: |plan, settings| Cluster::<Apus, true>::new(plan, settings).live(),
    },
    Kind {
        name: "apus-network",
        about: "apus on hosts with one-sided operations between them",
        ground: Ground::Network,
        disks: false,
        live: |plan, settings| Cluster::<Apus, false>::new(plan, settings).live(),
    },
    Kind {
        name: "hsuc",
        about: "hsuc on one host with shared memory",
        ground: Ground::Host,
        disks: false,
        live: |plan, settings| Cluster::<Hsuc, true>::new(plan, settings).live(),
    },
    Kind {
        name: "hsuc-network",
        about: "hsuc on hosts with one-sided operations between them",
        ground: Ground::Network,
        disks: false,
        live: |plan, settings| Cluster::<Hsuc, false>::new(plan, settings).live(),
    },
];

/// The kind in which every host has a warden.
const WARDENS: &str = "wardens";

/// The kinds in which an operator changes the size of the group.
const RESIZING: [&str; 2] = ["dare-resize", "dare-resize-network"];

/// The kind in which zombies count.
const ZOMBIES: &str = "dare-zombies";

/// Lives in which something happens that default lives reach hardly ever, or never. They run only when they are named, and for canaries.
pub const SPECIAL: &[Kind] = &[
    Kind {
        name: "mu-disks",
        about: "mu on one host, with disks: what is acknowledged outlives the power loss of all",
        ground: Ground::Host,
        disks: true,
        live: |plan, settings| Cluster::<Mu, true>::new(plan, settings).live(),
    },
    Kind {
        name: "mu-disks-network",
        about: "the same on hosts with one-sided operations between them",
        ground: Ground::Network,
        disks: true,
        live: |plan, settings| Cluster::<Mu, false>::new(plan, settings).live(),
    },
    Kind {
        name: "mu-on-commit",
        about: "mu on one host, whose leader executes what is committed",
        ground: Ground::Host,
        disks: false,
        live: |plan, settings| Cluster::<Mu, true>::new(plan, Settings { execution: Execution::Committed, ..settings }).live(),
    },
    Kind {
        name: "mu-on-commit-network",
        about: "the same on hosts with one-sided operations between them",
        ground: Ground::Network,
        disks: false,
        live: |plan, settings| Cluster::<Mu, false>::new(plan, Settings { execution: Execution::Committed, ..settings }).live(),
    },
    Kind {
        name: "hsuc-on-commit",
        about: "hsuc on one host, whose leader executes what is committed",
        ground: Ground::Host,
        disks: false,
        live: |plan, settings| Cluster::<Hsuc, true>::new(plan, Settings { execution: Execution::Committed, ..settings }).live(),
    },
    Kind {
        name: "hsuc-on-commit-network",
        about: "the same on hosts with one-sided operations between them",
        ground: Ground::Network,
        disks: false,
        live: |plan, settings| Cluster::<Hsuc, false>::new(plan, Settings { execution: Execution::Committed, ..settings }).live(),
    },
    Kind {
        name: "huc",
        about: "huc on one host with shared memory, whose leader executes what is committed",
        ground: Ground::Host,
        disks: false,
        live: |plan, settings| Cluster::<Huc, true>::new(plan, Settings { execution: Execution::Committed, ..settings }).live(),
    },
    Kind {
        name: "huc-network",
        about: "the same on hosts with one-sided operations between them",
        ground: Ground::Network,
        disks: false,
        live: |plan, settings| Cluster::<Huc, false>::new(plan, Settings { execution: Execution::Committed, ..settings }).live(),
    },
    Kind {
        name: "hsuc-all-but-one",
        about: "hsuc on one host; four of five are killed within a millisecond",
        ground: Ground::Host,
        disks: false,
        live: |plan, settings| scenarios::all_but_one::<Hsuc>(plan, settings.execution),
    },
    Kind {
        name: "huc-all-but-one",
        about: "the same with huc, whose leader executes what is committed",
        ground: Ground::Host,
        disks: false,
        live: |plan, _| scenarios::all_but_one::<Huc>(plan, Execution::Committed),
    },
    Kind {
        name: "dare-contest",
        about: "dare on one host, whose leaders are stopped at any single step, again and again",
        ground: Ground::Host,
        disks: false,
        live: |plan, _| scenarios::contest::live::<Dare>(plan),
    },
    Kind {
        name: "dare-resize",
        about: "dare on one host, whose group is to have another number of places again and again",
        ground: Ground::Host,
        disks: false,
        live: |plan, settings| Cluster::<Dare, true>::new(plan, settings).live(),
    },
    Kind {
        name: "dare-resize-network",
        about: "the same on hosts with one-sided operations between them",
        ground: Ground::Network,
        disks: false,
        live: |plan, settings| Cluster::<Dare, false>::new(plan, settings).live(),
    },
    Kind {
        name: ZOMBIES,
        about: "dare on one host, where the memory of those that were killed counts for a while",
        ground: Ground::Host,
        disks: false,
        live: |plan, settings| Cluster::<Dare, true>::new(plan, settings).live(),
    },
    Kind {
        name: "dare-parted-resize",
        about: "dare on a network; a group of five is to have three places, and is parted when its leader alone knows",
        ground: Ground::Network,
        disks: false,
        live: |plan, _| scenarios::parted::resize::<Dare>(plan),
    },
    Kind {
        name: "dare-parted-removal",
        about: "dare on a network; a group of five is to have three places, and is parted when one of those that go knows the group without it",
        ground: Ground::Network,
        disks: false,
        live: |plan, _| scenarios::parted::removal::<Dare>(plan),
    },
    Kind {
        name: "dare-parted-read",
        about: "dare on a network; the others do not reach the leader, which is asked for a read when another one has acknowledged a write",
        ground: Ground::Network,
        disks: false,
        live: |plan, _| scenarios::parted::read::<Dare>(plan),
    },
    Kind {
        name: "dare-removed",
        about: "dare on one host; the leader of five is killed as soon as those for which three places have no room know the group without them",
        ground: Ground::Host,
        disks: false,
        live: |plan, _| scenarios::parted::removed::<Dare>(plan),
    },
    Kind {
        name: "dare-asked-again",
        about: "dare on one host; the leader is killed while it has a write in its hands, and the next one is asked for the same again",
        ground: Ground::Host,
        disks: false,
        live: |plan, _| scenarios::parted::asked_again::<Dare>(plan),
    },
    Kind {
        name: "apus-disks",
        about: "apus on one host, with disks: what is acknowledged was kept before, and outlives the power loss of all",
        ground: Ground::Host,
        disks: true,
        live: |plan, settings| Cluster::<Apus, true>::new(plan, settings).live(),
    },
    Kind {
        name: "apus-disks-network",
        about: "the same on hosts with one-sided operations between them",
        ground: Ground::Network,
        disks: true,
        live: |plan, settings| Cluster::<Apus, false>::new(plan, settings).live(),
    },
    Kind {
        name: WARDENS,
        about: "primary-backup on a network, all of whose hosts have wardens",
        ground: Ground::Network,
        disks: false,
        live: |plan, settings| Cluster::<PrimaryBackup, false>::new(plan, settings).live(),
    },
    // These kinds differ only in clocks and randomness.
    Kind {
        name: "clocks",
        about: "primary-backup on one host; clocks drift, and the primary is stopped just after it has renewed its lease",
        ground: Ground::Host,
        disks: false,
        live: |plan, _| scenarios::stopped_after_renewal(plan),
    },
    Kind {
        name: "stopped-clock",
        about: "primary-backup on a network; the primary stops, and with it its clock, and it is asked for reads by quorum when another one leads",
        ground: Ground::Network,
        disks: false,
        live: |plan, _| scenarios::read_from_the_past::<PrimaryBackup>(plan, scenarios::Standstill::Unseen),
    },
    Kind {
        name: "stopped-writer",
        about: "the same, but it has writes in its hands, and is asked for another one when another one leads",
        ground: Ground::Network,
        disks: false,
        live: |plan, _| scenarios::read_from_the_past::<PrimaryBackup>(plan, scenarios::Standstill::UnseenWriting),
    },
    Kind {
        name: "hsuc-stopped-writer",
        about: "the same with hsuc, which takes nobody's lane away",
        ground: Ground::Network,
        disks: false,
        live: |plan, _| scenarios::read_from_the_past::<Hsuc>(plan, scenarios::Standstill::UnseenWriting),
    },
    Kind {
        name: "suspended-host",
        about: "primary-backup on a network; the primary's host is suspended, and it is asked for a read when another one leads",
        ground: Ground::Network,
        disks: false,
        live: |plan, _| scenarios::read_from_the_past::<PrimaryBackup>(plan, scenarios::Standstill::Suspended),
    },
    Kind {
        name: "stopped-machine",
        about: "the same in a virtual machine that is stopped, and its clock with it; that clocks have jumped is seen when it goes on",
        ground: Ground::Network,
        disks: false,
        live: |plan, _| scenarios::read_from_the_past::<PrimaryBackup>(plan, scenarios::Standstill::Noticed),
    },
    Kind {
        name: "two-end",
        about: "mu on one host, with slow disks; two of three replicas are asked to end at once, and the third one goes on alone",
        ground: Ground::Host,
        disks: true,
        live: |plan, _| scenarios::two_of_three_end(plan),
    },
];

impl Kind {
    /// The kind of that name.
    pub fn named(name: &str) -> Option<&'static Kind> {
        KINDS.iter().chain(SPECIAL).find(|kind| kind.name == name)
    }

    /// The kind that lives a seed's life if no kind is named.
    pub fn of(seed: u64) -> &'static Kind {
        &KINDS[(seed % KINDS.len() as u64) as usize]
    }

    /// The names of all kinds, for the error when a name is unknown.
    pub fn names() -> String {
        KINDS.iter().chain(SPECIAL).map(|kind| kind.name).collect::<Vec<_>>().join(", ")
    }

    /// Runs the life that a plan describes. If the plan says so, tells its story: a line for each view, kill, pause and so on.
    ///
    /// # Panics
    /// When a state machine finds one of its own invariants broken.
    pub fn live(&self, plan: &Plan) -> (Report, String) {
        (self.live)(plan, self.settings(plan))
    }

    fn settings(&self, plan: &Plan) -> Settings {
        let mut settings = Settings::drawn(&mut stream(plan.seed, "settings", 0), self.ground);
        settings.add_quorum_reads(&mut stream(plan.seed, "quorum reads", 0));
        settings.add_upgrades(&mut stream(plan.seed, "upgrades", 0));
        let mut chance = stream(plan.seed, "wardens", 0);
        if self.ground == Ground::Network && (chance.u8(..3) == 0 || self.name == WARDENS) {
            settings.add_wardens(&mut chance);
        }
        if self.disks {
            settings.add_disks(&mut stream(plan.seed, "disks", 0));
        }
        if RESIZING.contains(&self.name) {
            settings.add_resizes(&mut stream(plan.seed, "resizes", 0));
        }
        if self.name == ZOMBIES {
            settings.add_zombies(&mut stream(plan.seed, "zombies", 0));
        }
        if let Some(canary) = plan.canary {
            settings.canary = Some(canary);
            settings.set_every_ns(Fault::Pause, 200_000);
            settings.pause = Span(10_000, 600_000);
            if canary == Canary::WildClocks {
                // Long leases and quick suspicion, so that everything depends on the bounds of clocks.
                settings.lease_ns = 400_000;
                settings.unset(Fault::LeaseChange);
                settings.heartbeat_interval_ns = 10_000;
            }
        }
        settings.change(&plan.changes);
        settings
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl FromStr for &'static Kind {
    type Err = String;

    fn from_str(name: &str) -> Result<&'static Kind, String> {
        Kind::named(name).ok_or_else(|| format!("the kind of cluster is {name:?}; allowed are {}", Kind::names()))
    }
}

/// Runs the life of one seed on a host.
///
/// # Panics
/// When a state machine finds one of its own invariants broken.
pub fn run(seed: u64) -> Report {
    run_on(Ground::Host, seed)
}

/// Runs the life of one seed.
///
/// # Panics
/// When a state machine finds one of its own invariants broken.
pub fn run_on(ground: Ground, seed: u64) -> Report {
    tell(ground, seed, false).0
}

/// Runs the life of one seed. If `narrate` is set, tells its story: a line for each view, kill, pause and so on.
///
/// # Panics
/// When a state machine finds one of its own invariants broken.
pub fn tell(ground: Ground, seed: u64, narrate: bool) -> (Report, String) {
    let kind = KINDS.iter().find(|kind| kind.ground == ground).expect("a kind for every ground");
    kind.live(&Plan { narrate, ..Plan::new(seed) })
}
