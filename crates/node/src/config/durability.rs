//! What an acknowledgement means, and where the data is kept (`docs/durability.md`).

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use martlet_protocol::replica::Durability;
use martlet_settings::{Checker, ConfigError};
use serde::{Deserialize, Serialize};

use super::EngineKind;

/// What an acknowledgement means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DurabilityKind {
    /// The request is in the memory of a majority. Nothing is written to a disk.
    #[default]
    Memory,
    /// The same; the log is written to disk afterwards.
    Async,
    /// It is also on stable storage at a majority.
    Sync,
}

impl DurabilityKind {
    /// All variants.
    pub const ALL: [DurabilityKind; 3] = [DurabilityKind::Memory, DurabilityKind::Async, DurabilityKind::Sync];

    /// Its name in files and on command lines.
    pub const fn name(self) -> &'static str {
        match self {
            DurabilityKind::Memory => "memory",
            DurabilityKind::Async => "async",
            DurabilityKind::Sync => "sync",
        }
    }

    /// The same, in the engines' terms.
    pub const fn meaning(self) -> Durability {
        match self {
            DurabilityKind::Memory => Durability::Memory,
            DurabilityKind::Async => Durability::Async,
            DurabilityKind::Sync => Durability::Sync,
        }
    }
}

impl fmt::Display for DurabilityKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for DurabilityKind {
    type Err = String;

    fn from_str(name: &str) -> Result<DurabilityKind, String> {
        DurabilityKind::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| {
            let names = DurabilityKind::ALL.map(DurabilityKind::name).join(", ");
            format!("the durability is {name:?}; allowed are {names}")
        })
    }
}

/// What survives a loss of power at all nodes at once, and where.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DurabilityConfig {
    /// What an acknowledgement means.
    pub mode: DurabilityKind,
    /// Where the nodes keep their data: node `N` in the directory `node-N` there, unless its own file says otherwise. Relative to this file's directory.
    pub directory: PathBuf,
    /// When a segment of a node's log has grown to so many bytes, the next one begins. When so many bytes, and as many as the last snapshot took, have been
    /// written since that snapshot began, another snapshot begins.
    pub segment_bytes: u64,
    /// When so many bytes wait for the disk, a leader takes no more requests until there are fewer, and a follower accepts nothing from it. With `async` this
    /// is how much a loss of power may cost.
    pub max_pending_bytes: u64,
    /// A snapshot is written at no more than so many bytes per second, so that the disk has time for the log. Half of what the disk can write, shared among the
    /// nodes that have one on it, is a good number. A node that joins counts only when its first snapshot is on its disk, and waits that long.
    pub snapshot_bytes_per_s: u64,
}

impl Default for DurabilityConfig {
    fn default() -> Self {
        DurabilityConfig {
            mode: DurabilityKind::Memory,
            directory: "data".into(),
            segment_bytes: 64 << 20,
            max_pending_bytes: 64 << 20,
            snapshot_bytes_per_s: 32 << 20,
        }
    }
}

impl DurabilityConfig {
    /// Whether it says nothing but the defaults.
    pub(super) fn is_default(&self) -> bool {
        *self == DurabilityConfig::default()
    }

    /// Whether something is written to a disk.
    pub fn writes(&self) -> bool {
        self.mode != DurabilityKind::Memory
    }

    pub(super) fn validate(&self, engine: EngineKind, check: &Checker<'_>) -> Result<(), ConfigError> {
        if self.writes() && !engine.traits().has_journal {
            return Err(check.refuse(
                "durability.mode",
                format_args!("{:?}", self.mode.name()),
                format_args!(
                    "\"memory\" with the engine {engine:?}, which has no journal; \"async\" and \"sync\" with {}",
                    EngineKind::names_with(|traits| traits.has_journal),
                    engine = engine.name()
                ),
            ));
        }
        if self.directory == Path::new("") {
            return Err(check.refuse("durability.directory", "\"\"", "the path of a directory"));
        }
        check.number("durability.segment_bytes", self.segment_bytes)?;
        check.number("durability.max_pending_bytes", self.max_pending_bytes)?;
        check.number("durability.snapshot_bytes_per_s", self.snapshot_bytes_per_s)
    }
}
