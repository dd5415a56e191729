//! What can be set about the engine.

use martlet_fabric::ring;

use crate::basics::ProcessId;
use crate::detector::heartbeat::Thresholds;
use crate::replica::part::check_transfer_budget;
use crate::replica::record::command_room;
use crate::replica::{ConfigError, Durability, Execution};

/// The smallest ring that the engine works with.
pub const MIN_RING_BYTES: usize = 1024;

/// Settings of the engine; the same at every replica, as far as the rings, the execution and the durability are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Data bytes of the log and of each log lane: a power of two, at least [`MIN_RING_BYTES`].
    pub log_ring_bytes: usize,
    /// Data bytes of each lane by which the state is sent: a power of two, at least [`MIN_RING_BYTES`].
    pub state_ring_bytes: usize,
    /// Chance of which nobody outside the cluster knows: the salts of the lanes that this process keeps come from it. Each process draws its own.
    pub secret: u64,
    /// When the leader executes.
    pub execution: Execution,
    /// What an acknowledgement means; the same at every replica.
    pub durability: Durability,
    /// Bytes set aside for what is proposed and not yet in the log. At least 1.
    pub backlog_bytes: usize,
    /// Bytes of commands beyond which a record takes no further one. At least 1.
    pub batch_bytes: usize,
    /// When no record has been posted for this long, what is committed travels by itself (TRAPS 13). In nanoseconds.
    pub flush_idle_ns: u64,
    /// A leader asks how far a backup has read after so many records. At least 1.
    pub nudge_records: u32,
    /// The least time between two nudges of backups that nobody waits for, in nanoseconds.
    pub nudge_gap_ns: u64,
    /// The time between two reads of a peer's heartbeat, in nanoseconds; twice in that time a process's own heart beats.
    pub heartbeat_interval_ns: u64,
    /// The score's cap and thresholds.
    pub thresholds: Thresholds,
    /// A leader looks after everything but replication no more often than this, in nanoseconds.
    pub background_ns: u64,
    /// Beats after which the leader must have committed something, if there was something to commit, or its heart stops and its reign ends. At least 1.
    pub fate_beats: u32,
    /// A read of a peer's counter that has not returned for so long makes the peer presumed dead. In nanoseconds.
    pub silence_ns: u64,
    /// A gap between two turns beyond which this process blames nobody for what it saw before. In nanoseconds.
    pub stall_ns: u64,
    /// The least time between two looks at a peer's death words, in nanoseconds. 0: in every turn of a backup.
    pub death_interval_ns: u64,
    /// For how long a candidate waits for votes, at least. In nanoseconds; at least 1.
    pub election_ns: u64,
    /// So much later a backup stands for each one that is rather to lead. In nanoseconds.
    pub rank_ns: u64,
    /// A learning request that has not been met for so long is taken to somebody else, in nanoseconds.
    pub teach_patience_ns: u64,
    /// Bytes of state that are sent in one turn, about. At least 1, at most [`MAX_TRANSFER_BUDGET_BYTES`](crate::replica::MAX_TRANSFER_BUDGET_BYTES).
    pub transfer_budget_bytes: usize,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            log_ring_bytes: 4 << 20,
            state_ring_bytes: 256 << 10,
            secret: 0,
            execution: Execution::Committed,
            durability: Durability::Memory,
            backlog_bytes: 1 << 20,
            batch_bytes: 16 << 10,
            flush_idle_ns: 20_000,
            nudge_records: 8,
            nudge_gap_ns: 500_000,
            heartbeat_interval_ns: 50_000,
            thresholds: Thresholds { cap: 15, failure: 1, recovery: 7 },
            background_ns: 2_000,
            fate_beats: 10_000,
            silence_ns: 50_000_000,
            stall_ns: 25_000,
            death_interval_ns: 0,
            election_ns: 200_000,
            rank_ns: 100_000,
            teach_patience_ns: 50_000_000,
            transfer_budget_bytes: 32 << 10,
        }
    }
}

impl Config {
    /// Whether the engine can work with these settings.
    ///
    /// # Errors
    /// Names the first setting that it cannot work with, its value and what is allowed.
    pub fn validate(&self) -> Result<(), ConfigError> {
        for (key, bytes) in [("log_ring_bytes", self.log_ring_bytes), ("state_ring_bytes", self.state_ring_bytes)] {
            if !bytes.is_power_of_two() || bytes < MIN_RING_BYTES {
                return Err(ConfigError { key, value: bytes as u64, allowed: "a power of two, at least 1024" });
            }
        }
        for (key, value) in [
            ("backlog_bytes", self.backlog_bytes as u64),
            ("batch_bytes", self.batch_bytes as u64),
            ("nudge_records", u64::from(self.nudge_records)),
            ("heartbeat_interval_ns", self.heartbeat_interval_ns),
            ("fate_beats", u64::from(self.fate_beats)),
            ("election_ns", self.election_ns),
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

    /// The longest command that can be proposed, in bytes: it has to fit into one record of either lane.
    pub fn max_command_bytes(&self) -> usize {
        let most = ring::max_payload(self.log_ring_bytes).min(ring::max_payload(self.state_ring_bytes));
        command_room(most) - ring::RECORD_HEADER_BYTES
    }

    /// For how long something that may come back is waited for, in nanoseconds: so many of the longer timeouts.
    pub(super) fn patience_ns(&self) -> u64 {
        const TIMEOUTS: u64 = 4;
        TIMEOUTS * self.silence_ns
    }

    /// What a process is called in groups. With a journal it stays a member when it comes back from its disk as another process.
    pub(super) fn known_as(&self, process: ProcessId) -> ProcessId {
        if self.durability == Durability::Memory { process } else { process.birth() }
    }

    /// Records that are not known to be committed take at most this much of the log, so that a backup always has room for them.
    pub(super) fn open_bytes(&self) -> u64 {
        self.log_ring_bytes as u64 / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_setting_is_named_with_its_value_and_what_is_allowed() {
        assert_eq!(Config::default().validate(), Ok(()));
        let odd = Config { state_ring_bytes: 1000, ..Config::default() }.validate().expect_err("not a power of two");
        assert_eq!(odd.to_string(), "state_ring_bytes is 1000; allowed is a power of two, at least 1024");
        let none = Config { election_ns: 0, ..Config::default() }.validate().expect_err("zero");
        assert_eq!(none.to_string(), "election_ns is 0; allowed is at least 1");
        let thresholds = Thresholds { cap: 5, failure: 3, recovery: 3 };
        let flat = Config { thresholds, ..Config::default() }.validate().expect_err("no hysteresis");
        assert_eq!(flat.to_string(), "thresholds.recovery is 3; allowed is above `failure` and at most `cap`");
    }
}
