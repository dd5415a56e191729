//! How large the group of an engine's replicas is, and which replicas count in it (`docs/dare.md`).

use martlet_fabric::FabricKind;
use martlet_protocol::engine::EngineKind;
use martlet_settings::{Checker, ConfigError};
use serde::{Deserialize, Serialize};

/// What makes a majority, with engines that leave that to the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GroupConfig {
    /// How many places the group has when the cluster is founded, filled or not: a majority is a majority of places. Later it is changed by `martlet cluster
    /// resize`. 0: as many as there are members.
    pub places: u16,
    /// For how long, in microseconds, a leader counts what it writes into the memory of a replica whose process is dead, when the living replicas are no
    /// majority. 0: not at all.
    pub zombies_us: u64,
}

impl GroupConfig {
    /// A minute: within that time an operator, or a program that restarts nodes, has brought up others.
    pub const MAX_ZOMBIES_US: u64 = 60_000_000;

    /// Whether it says nothing but the defaults.
    pub(super) fn is_default(&self) -> bool {
        *self == GroupConfig::default()
    }

    pub(super) fn validate(&self, engine: EngineKind, fabric: FabricKind, check: &Checker<'_>) -> Result<(), ConfigError> {
        if self.places > 0 && !engine.traits().has_places {
            let allowed =
                format_args!("0 with the engine {:?}; more with {}", engine.name(), EngineKind::names_with(|traits| traits.has_places));
            return Err(check.refuse("group.places", self.places, allowed));
        }
        check.number("group.places", self.places)?;
        if self.zombies_us > 0 && !engine.traits().counts_zombies {
            let allowed =
                format_args!("0 with the engine {:?}; more with {}", engine.name(), EngineKind::names_with(|traits| traits.counts_zombies));
            return Err(check.refuse("group.zombies_us", self.zombies_us, allowed));
        }
        if self.zombies_us > 0 && !fabric.traits().certain_deaths {
            let allowed = format_args!("0 where fabric is \"{fabric}\", since the memory of a dead node cannot be reached over it");
            return Err(check.refuse("group.zombies_us", self.zombies_us, allowed));
        }
        check.number("group.zombies_us", self.zombies_us)
    }
}
