//! What can be set about the engine.

use std::ops::{Deref, DerefMut};

use crate::replica::{ConfigError, Durability, Settings};

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
    /// The least time that a candidate waits for votes. In nanoseconds; at least 1.
    pub election_ns: u64,
    /// How much longer a backup waits before it stands, for each process that should rather lead. In nanoseconds.
    pub rank_ns: u64,
}

impl Default for Config {
    fn default() -> Self {
        Config { shared: Settings::default(), secret: 0, durability: Durability::Memory, election_ns: 200_000, rank_ns: 100_000 }
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
        self.shared.validate(MIN_RING_BYTES, "a power of two, at least 1024")?;
        match self.election_ns {
            0 => Err(ConfigError { key: "election_ns", value: 0, allowed: "at least 1" }),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detector::heartbeat::Thresholds;

    #[test]
    fn a_bad_setting_is_named_with_its_value_and_what_is_allowed() {
        let with = |shared| Config { shared, ..Config::default() }.validate();
        assert_eq!(Config::default().validate(), Ok(()));
        let odd = with(Settings { state_ring_bytes: 1000, ..Settings::default() }).expect_err("not a power of two");
        assert_eq!(odd.to_string(), "state_ring_bytes is 1000; allowed is a power of two, at least 1024");
        let none = Config { election_ns: 0, ..Config::default() }.validate().expect_err("zero");
        assert_eq!(none.to_string(), "election_ns is 0; allowed is at least 1");
        let thresholds = Thresholds { cap: 5, failure: 3, recovery: 3 };
        let flat = with(Settings { thresholds, ..Settings::default() }).expect_err("no hysteresis");
        assert_eq!(flat.to_string(), "thresholds.recovery is 3; allowed is above `failure` and at most `cap`");
    }
}
