//! The engine's settings.

use std::ops::{Deref, DerefMut};

use crate::replica::{ConfigError, Settings};

pub use crate::replica::Durability;

/// The smallest ring that the engine works with.
pub const MIN_RING_BYTES: usize = 1024;

/// Settings of the engine: those that it [shares](Settings) with other engines, which are read and set like its own, and its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// What engines with a log and a leader share.
    pub shared: Settings,
    /// A random number that is unknown outside the cluster, from which the salts of this process's lanes are derived. Each process draws its own.
    pub secret: u64,
    /// What an acknowledgement means; the same at every replica.
    pub durability: Durability,
    /// How long after an abort the leader asks for permission again, in nanoseconds.
    pub retry_ns: u64,
    /// A leader names itself in the group, and so continues to lead when a replica with a lower id joins. The same at every replica.
    pub leader_stays: bool,
}

impl Default for Config {
    fn default() -> Self {
        Config { shared: Settings::default(), secret: 0, durability: Durability::Memory, retry_ns: 20_000, leader_stays: false }
    }
}

impl Deref for Config {
    type Target = Settings;

    #[inline]
    fn deref(&self) -> &Settings {
        &self.shared
    }
}

impl DerefMut for Config {
    fn deref_mut(&mut self) -> &mut Settings {
        &mut self.shared
    }
}

impl Config {
    /// Whether the engine can work with these settings.
    ///
    /// # Errors
    /// Names the first setting that it cannot work with, its value and what is allowed.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.shared.validate(MIN_RING_BYTES, "a power of two, at least 1024")
    }
}
