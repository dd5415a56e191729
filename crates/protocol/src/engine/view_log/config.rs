//! The engine's settings.

use martlet_fabric::ring;

use super::layout::HEADER_BYTES;
use crate::engine::ConfigError;
use crate::replica::Execution;
use crate::replica::part::check_transfer_budget;

/// The smallest ring that the engine works with.
pub const MIN_RING_BYTES: usize = 512;
/// No fragment of an entry is longer.
const MOST_FRAGMENT_BYTES: usize = 256 << 10;

/// Settings of the engine; the same at every replica, as far as `log_ring_bytes` is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Data bytes of each log lane: a power of two, at least [`MIN_RING_BYTES`]. See `layout::Sizes`. Half of it should hold what the primary writes while a
    /// learner's progress report is on its way back. Otherwise the log overruns learners, and later waits for them.
    pub log_ring_bytes: usize,
    /// The number of bytes proposed but not yet committed beyond which [`has_room`](crate::engine::Engine::has_room) says no.
    pub backlog_bytes: usize,
    /// A backup that leaves this many entries untouched is nudged, since on small hosts backups sleep. At least 1.
    pub nudge_entries: u32,
    /// The least time between two nudges of one peer, in nanoseconds. Where cores are few, a peer that wakes up takes the core of the primary or of a client
    /// for longer than many writes take. With two peers, a nudge every 500 us affects fewer than one write in a hundred; a nudge every 100 us affects more.
    pub nudge_gap_ns: u64,
    /// The least time between asking one peer twice whether it attends to our lane, in nanoseconds.
    pub ask_gap_ns: u64,
    /// When nothing has been posted for this long, the commit index is sent on its own. In nanoseconds.
    pub flush_idle_ns: u64,
    /// Bytes that a backup takes from one lane in one turn. At least 1.
    pub drain_budget_bytes: usize,
    /// Bytes of state sent to one learner in one turn. At least 1, at most [`MAX_TRANSFER_BUDGET_BYTES`](crate::replica::MAX_TRANSFER_BUDGET_BYTES).
    pub transfer_budget_bytes: usize,
    /// How often the log overruns a learner, which then begins again, before the log waits for the learner as for a replica.
    pub learner_overruns: u32,
    /// Whether a departed process's lane here is revoked before a successor takes over from what is in it. Later writes to it fail, so the departed process
    /// acknowledges nothing that its successor has not found, whatever its clock says. Not needed where all processes read one clock.
    pub fences_departed: bool,
    /// When the primary executes.
    pub execution: Execution,
    /// A random number that is unknown outside the cluster, from which the salts of this process's log lanes are derived. Each process draws its own.
    pub secret: u64,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            log_ring_bytes: 4 << 20,
            backlog_bytes: 4 << 20,
            nudge_entries: 8,
            nudge_gap_ns: 500_000,
            ask_gap_ns: 100_000,
            flush_idle_ns: 20_000,
            drain_budget_bytes: 256 << 10,
            transfer_budget_bytes: 32 << 10,
            learner_overruns: 4,
            fences_departed: false,
            execution: Execution::Speculative,
            secret: 0,
        }
    }
}

impl Config {
    /// Whether the engine can work with these settings.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if !self.log_ring_bytes.is_power_of_two() || self.log_ring_bytes < MIN_RING_BYTES {
            return Err(ConfigError { key: "log_ring_bytes", value: self.log_ring_bytes as u64, allowed: "a power of two, at least 512" });
        }
        for (key, value) in [
            ("backlog_bytes", self.backlog_bytes as u64),
            ("nudge_entries", u64::from(self.nudge_entries)),
            ("drain_budget_bytes", self.drain_budget_bytes as u64),
        ] {
            if value == 0 {
                return Err(ConfigError { key, value, allowed: "at least 1" });
            }
        }
        check_transfer_budget(self.transfer_budget_bytes)?;
        Ok(())
    }

    /// The most bytes of an entry or part in one record: as many as fit, but few enough to be copied and sealed quickly. Between two records the process shows
    /// signs of life.
    pub(super) fn fragment_bytes(&self) -> usize {
        (ring::max_payload(self.log_ring_bytes) - HEADER_BYTES).min(MOST_FRAGMENT_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_setting_is_named_with_its_value_and_what_is_allowed() {
        assert_eq!(Config::default().validate(), Ok(()));
        let odd = Config { log_ring_bytes: 1000, ..Config::default() }.validate().expect_err("not a power of two");
        assert_eq!(odd.to_string(), "log_ring_bytes is 1000; allowed is a power of two, at least 512");
        let none = Config { nudge_entries: 0, ..Config::default() }.validate().expect_err("zero");
        assert_eq!(none.to_string(), "nudge_entries is 0; allowed is at least 1");
        for (transfer_budget_bytes, good) in [(0, false), (1, true), (128 << 20, true), ((128 << 20) + 1, false), (usize::MAX, false)] {
            let checked = Config { transfer_budget_bytes, ..Config::default() }.validate().map_err(|error| error.to_string());
            let refused = Err(format!("transfer_budget_bytes is {transfer_budget_bytes}; allowed is 1 to 134217728"));
            assert_eq!(checked, if good { Ok(()) } else { refused });
        }
    }
}
