//! How fast a snapshot may be written: when its next slice is due. Pure: the time is an argument.

use martlet_protocol::basics::Time;

/// Makes slices due at such times that no more than a budget of bytes is written per second.
///
/// If a disk is given a whole state at once, its queue is full of it, and anything that the log writes waits at the end of that queue. So each slice puts the
/// next one off by the time that its bytes take at the budget, and between the two the disk is free for the log. Time in which nothing was written is not saved
/// up: that would allow a burst after a pause, which is the very thing to avoid.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    bytes_per_s: u64,
    due: Time,
}

impl Pace {
    /// At most so many bytes per second, at least 1. The first slice is due at once.
    pub fn new(bytes_per_s: u64) -> Pace {
        Pace { bytes_per_s: bytes_per_s.max(1), due: Time(0) }
    }

    /// Nothing is ever put off.
    pub fn unbounded() -> Pace {
        Pace::new(u64::MAX)
    }

    /// When the next slice may be written.
    pub fn due(&self) -> Time {
        self.due
    }

    /// So many bytes begin to be written at `now`. The time that the disk takes for them counts as part of their share: otherwise a slow disk would be left
    /// alone for longer than the budget says.
    pub fn spend(&mut self, now: Time, bytes: u64) {
        let ns = u128::from(bytes) * 1_000_000_000 / u128::from(self.bytes_per_s);
        self.due = now.after(u64::try_from(ns).unwrap_or(u64::MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn each_slice_puts_the_next_one_off_by_its_bytes_at_the_budget() {
        let mut pace = Pace::new(64 << 20);
        assert_eq!(pace.due(), Time(0), "the first is due at once");
        let start = Time(5 * MS);
        pace.spend(start, 256 << 10);
        assert_eq!(pace.due(), start.after(1_000_000_000 / 256), "256 KiB at 64 MiB a second");
        pace.spend(pace.due(), 64 << 10);
        assert_eq!(pace.due(), start.after(1_000_000_000 / 256 + 1_000_000_000 / 1024), "a shorter slice, a shorter wait");
    }

    #[test]
    fn a_state_takes_as_long_as_its_bytes_at_the_budget_by_a_clock_of_any_beat() {
        let mut pace = Pace::new(10 << 20);
        let (mut now, mut written) = (Time(77), 0u64);
        while written < 20 << 20 {
            if now >= pace.due() {
                pace.spend(now, 1 << 20);
                written += 1 << 20;
            }
            now = now.after(3 * MS);
        }
        // 19 waits of 100 ms, each noticed up to 3 ms late; never early.
        let took = now.since(Time(77));
        assert!((1900 * MS..=1960 * MS).contains(&took), "{took}");
    }

    #[test]
    fn what_was_not_written_is_not_made_up_for() {
        let mut pace = Pace::new(1 << 20);
        pace.spend(Time(0), 1 << 20);
        let late = Time(60_000 * MS);
        pace.spend(late, 1 << 20);
        assert_eq!(pace.due(), late.after(1000 * MS));
    }

    #[test]
    fn no_number_is_too_large() {
        let mut pace = Pace::new(0);
        pace.spend(Time(1), u64::MAX);
        assert_eq!(pace.due(), Time(u64::MAX), "saturates");
        let mut pace = Pace::unbounded();
        pace.spend(Time(9), 1 << 30);
        assert_eq!(pace.due(), Time(9));
    }
}
