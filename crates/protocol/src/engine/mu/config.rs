//! What can be set about the engine.

use std::ops::{Deref, DerefMut};

use crate::replica::{ConfigError, Settings};

pub use crate::replica::Durability;

/// The smallest ring that the engine works with.
pub const MIN_RING_BYTES: usize = 1024;

/// Settings of the engine: those that it [shares](Settings) with others, which are read and set as if they were its own, and those that are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// What engines with a log and a leader share.
    pub shared: Settings,
    /// Chance of which nobody outside the cluster knows: the salts of the lanes that this process keeps come from it. Each process draws its own.
    pub secret: u64,
    /// What an acknowledgement means; the same at every replica.
    pub durability: Durability,
    /// After an abort the leader asks for permission again when so much time has gone by, in nanoseconds.
    pub retry_ns: u64,
    /// A leader names itself in the group, and so leads on though a replica with a lower id joins. The same at every replica.
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
