//! The engine's settings.

use std::ops::{Deref, DerefMut};

use crate::basics::layout::MAX_MEMBERS;
use crate::replica::{ConfigError, Settings};

/// The smallest ring that the engine works with.
pub const MIN_RING_BYTES: usize = 2048;

/// Settings of the engine: those that it [shares](Settings) with other engines, which are read and set like its own, and its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// What engines with a log and a leader share.
    pub shared: Settings,
    /// The least time that a candidate waits for votes, and a voter for the candidate for which it has voted. In nanoseconds; at least 1.
    pub election_ns: u64,
    /// How much longer a server waits before it stands, for each server that should rather lead. In nanoseconds.
    pub rank_ns: u64,
    /// How many places a new group has (DARE section 3.4); 0: as many as members. At most 16.
    pub places: usize,
    /// How long a server that is certainly dead counts for log writes as a zombie (DARE section 5), by the leader's clock, from when the leader noticed the
    /// death. In nanoseconds; 0: not at all. Only where [the memory of the dead answers](martlet_fabric::Fabric::ZOMBIES_REACHABLE).
    pub zombies_ns: u64,
}

impl Default for Config {
    fn default() -> Self {
        Config { shared: Settings::default(), election_ns: 200_000, rank_ns: 100_000, places: 0, zombies_ns: 0 }
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
        self.shared.validate(MIN_RING_BYTES, "a power of two, at least 2048")?;
        if self.places > MAX_MEMBERS {
            return Err(ConfigError { key: "places", value: self.places as u64, allowed: "a number from 0 to 16" });
        }
        match self.election_ns {
            0 => Err(ConfigError { key: "election_ns", value: 0, allowed: "at least 1" }),
            _ => Ok(()),
        }
    }

    /// The most bytes of the log after its head that commands may take; the rest is for a leader's own entries.
    pub(super) fn command_bytes(&self) -> u64 {
        self.log_ring_bytes as u64 / 4 * 3
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_setting_is_named_with_its_value_and_what_is_allowed() {
        assert_eq!(Config::default().validate(), Ok(()));
        let shared = Settings { state_ring_bytes: 1024, ..Settings::default() };
        let small = Config { shared, ..Config::default() }.validate().expect_err("too small");
        assert_eq!(small.to_string(), "state_ring_bytes is 1024; allowed is a power of two, at least 2048");
        let crowd = Config { places: 17, ..Config::default() }.validate().expect_err("too many");
        assert_eq!(crowd.to_string(), "places is 17; allowed is a number from 0 to 16");
        let none = Config { election_ns: 0, ..Config::default() }.validate().expect_err("zero");
        assert_eq!(none.to_string(), "election_ns is 0; allowed is at least 1");
    }
}
