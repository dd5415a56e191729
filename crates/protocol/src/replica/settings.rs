//! The settings of engines that keep a log, judge which processes live, and elect their leader.

use martlet_fabric::ring;

use super::part::check_transfer_budget;
use super::record::command_room;
use super::{ConfigError, Execution};
use crate::detector::heartbeat::Thresholds;

/// Settings that such engines share. Those of the rings and of the execution must be the same at every replica. An engine adds its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Data bytes of the log and of each log lane: a power of two, at least what the engine says.
    pub log_ring_bytes: usize,
    /// Data bytes of each ring by which the state is transferred: a power of two, at least what the engine says.
    pub state_ring_bytes: usize,
    /// When the leader executes.
    pub execution: Execution,
    /// Bytes set aside for what is proposed and not yet in the log. At least 1.
    pub backlog_bytes: usize,
    /// Bytes of commands beyond which a record takes no further one. At least 1.
    pub batch_bytes: usize,
    /// When no record has been posted for this long, the commit index is sent on its own (TRAPS 13). In nanoseconds.
    pub flush_idle_ns: u64,
    /// A follower that leaves this many records untouched is nudged, since on small hosts followers sleep. At least 1.
    pub nudge_records: u32,
    /// The least time between two nudges of followers for which no request waits, in nanoseconds.
    pub nudge_gap_ns: u64,
    /// The time between two reads of a peer's heartbeat, in nanoseconds; twice in that time a process's own heart beats. At least 1.
    pub heartbeat_interval_ns: u64,
    /// The score's cap and thresholds (Mu section 5.1).
    pub thresholds: Thresholds,
    /// The least time between two rounds in which a leader does everything other than replication (requests for access, signs of life, learners), in
    /// nanoseconds.
    pub background_ns: u64,
    /// Beats after which the leader must have committed something, if there was something to commit; otherwise its heart stops (Mu section 5.1, fate sharing).
    /// At least 1.
    pub fate_beats: u32,
    /// A read of a peer's counter that has not returned for so long makes the peer presumed dead (Mu section 5.1, the long timeout). In nanoseconds.
    pub silence_ns: u64,
    /// A gap between two turns beyond which this process blames no peer for what it saw before. In nanoseconds.
    pub stall_ns: u64,
    /// The least time between two looks at a peer's death words, in nanoseconds. 0: in every turn of a follower.
    pub death_interval_ns: u64,
    /// A request for the state that has not been fulfilled for so long is sent to another replica, in nanoseconds.
    pub teach_patience_ns: u64,
    /// About how many bytes of state are sent in one turn. At least 1, at most [`MAX_TRANSFER_BUDGET_BYTES`](super::MAX_TRANSFER_BUDGET_BYTES).
    pub transfer_budget_bytes: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            log_ring_bytes: 4 << 20,
            state_ring_bytes: 256 << 10,
            execution: Execution::Committed,
            backlog_bytes: 1 << 20,
            batch_bytes: 16 << 10,
            flush_idle_ns: 20_000,
            nudge_records: 8,
            nudge_gap_ns: 500_000,
            heartbeat_interval_ns: 50_000,
            background_ns: 2_000,
            // Mu section 5.1: 15; below 2; above 6.
            thresholds: Thresholds { cap: 15, failure: 1, recovery: 7 },
            fate_beats: 10_000,
            silence_ns: 50_000_000,
            stall_ns: 25_000,
            death_interval_ns: 0,
            teach_patience_ns: 50_000_000,
            transfer_budget_bytes: 32 << 10,
        }
    }
}

impl Settings {
    /// Whether an engine whose rings need at least `least_ring_bytes` can work with these settings; `allowed` states that minimum in words.
    ///
    /// # Errors
    /// Names the first setting that it cannot work with, its value and what is allowed.
    pub fn validate(&self, least_ring_bytes: usize, allowed: &'static str) -> Result<(), ConfigError> {
        for (key, bytes) in [("log_ring_bytes", self.log_ring_bytes), ("state_ring_bytes", self.state_ring_bytes)] {
            if !bytes.is_power_of_two() || bytes < least_ring_bytes {
                return Err(ConfigError { key, value: bytes as u64, allowed });
            }
        }
        for (key, value) in [
            ("backlog_bytes", self.backlog_bytes as u64),
            ("batch_bytes", self.batch_bytes as u64),
            ("nudge_records", u64::from(self.nudge_records)),
            ("heartbeat_interval_ns", self.heartbeat_interval_ns),
            ("fate_beats", u64::from(self.fate_beats)),
        ] {
            if value == 0 {
                return Err(ConfigError { key, value, allowed: "at least 1" });
            }
        }
        check_transfer_budget(self.transfer_budget_bytes)?;
        let Thresholds { cap, failure, recovery } = self.thresholds;
        if recovery <= failure || recovery > cap {
            return Err(ConfigError { key: "thresholds.recovery", value: recovery.into(), allowed: "above `failure` and at most `cap`" });
        }
        Ok(())
    }

    /// The longest command that can be proposed, in bytes: it has to fit into one record, and whatever precedes it in the log, there must be room for it once
    /// that is committed and applied.
    pub fn max_command_bytes(&self) -> usize {
        let most = ring::max_payload(self.log_ring_bytes).min(ring::max_payload(self.state_ring_bytes));
        command_room(most) - ring::RECORD_HEADER_BYTES
    }

    /// The most bytes of the log that records not known to be committed may take, so that followers always have room for them.
    pub fn open_bytes(&self) -> u64 {
        self.log_ring_bytes as u64 / 2
    }

    /// How long to wait for something that may come back, in nanoseconds: a multiple of the longer timeout.
    pub fn patience_ns(&self) -> u64 {
        const TIMEOUTS: u64 = 4;
        TIMEOUTS * self.silence_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_setting_is_named_with_its_value_and_what_is_allowed() {
        let validate = |settings: Settings| settings.validate(1024, "a power of two, at least 1024");
        assert_eq!(validate(Settings::default()), Ok(()));
        let odd = validate(Settings { state_ring_bytes: 1000, ..Settings::default() }).expect_err("not a power of two");
        assert_eq!(odd.to_string(), "state_ring_bytes is 1000; allowed is a power of two, at least 1024");
        let none = validate(Settings { fate_beats: 0, ..Settings::default() }).expect_err("zero");
        assert_eq!(none.to_string(), "fate_beats is 0; allowed is at least 1");
        for (transfer_budget_bytes, good) in [(0, false), (1, true), (128 << 20, true), ((128 << 20) + 1, false), (usize::MAX, false)] {
            let checked = validate(Settings { transfer_budget_bytes, ..Settings::default() }).map_err(|error| error.to_string());
            let refused = Err(format!("transfer_budget_bytes is {transfer_budget_bytes}; allowed is 1 to 134217728"));
            assert_eq!(checked, if good { Ok(()) } else { refused });
        }
        let thresholds = Thresholds { cap: 5, failure: 3, recovery: 3 };
        let flat = validate(Settings { thresholds, ..Settings::default() }).expect_err("no hysteresis");
        assert_eq!(flat.to_string(), "thresholds.recovery is 3; allowed is above `failure` and at most `cap`");
    }
}
