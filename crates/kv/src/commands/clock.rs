//! The time, as commands see it.

use crate::app::WallClock;

/// A command's time is read after its request has arrived, so it is later than the client's sending: what is to expire at `now + 10 s` by the client's clock
/// has at most that long to go. The time stands still during a command, and during a transaction. The clock is read when the time is first asked for, since
/// most commands do not ask. Requests that arrived together may share a reading.
pub struct Clock {
    wall: WallClock,
    /// The last reading, while it still counts as now.
    latest: Option<u64>,
    /// The time of the command being executed, once it has asked.
    command: Option<u64>,
}

impl std::fmt::Debug for Clock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Clock").field("latest", &self.latest).field("command", &self.command).finish_non_exhaustive()
    }
}

impl Clock {
    /// A clock that reads `wall`.
    pub fn new(wall: WallClock) -> Clock {
        Clock { wall, latest: None, command: None }
    }

    /// A clock that stands still.
    pub fn standing_at_ms(now_ms: u64) -> Clock {
        Clock::new(Box::new(move || now_ms * 1_000_000))
    }

    /// Requests may have arrived, or time may have passed, so the last reading no longer counts as now.
    #[inline]
    pub fn forget(&mut self) {
        (self.latest, self.command) = (None, None);
    }

    /// A command begins. Its request arrived before the last [`Clock::forget`].
    #[inline]
    pub fn begin(&mut self) {
        self.command = None;
    }

    /// The command's time, in nanoseconds of Unix time.
    #[inline]
    pub fn now_ns(&mut self) -> u64 {
        match self.command {
            Some(now) => now,
            None => {
                let now = self.latest();
                self.command = Some(now);
                now
            }
        }
    }

    /// The same in milliseconds.
    #[inline]
    pub fn now_ms(&mut self) -> u64 {
        self.now_ns() / 1_000_000
    }

    /// The last reading, or a new one: for the beginning of something that is being timed.
    #[inline]
    pub fn latest(&mut self) -> u64 {
        match self.latest {
            Some(latest) => latest,
            None => self.read(),
        }
    }

    /// Reads the clock now: for the end of something that is being timed.
    #[inline]
    pub fn read(&mut self) -> u64 {
        let now = (self.wall)();
        self.latest = Some(now);
        now
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn a_commands_time_stands_still_and_is_not_older_than_its_arrival() {
        let (ticks, read) = (Arc::new(AtomicU64::new(1)), Arc::new(AtomicU64::new(0)));
        let (wall, reads) = (ticks.clone(), read.clone());
        let mut clock = Clock::new(Box::new(move || {
            reads.fetch_add(1, Ordering::Relaxed);
            wall.load(Ordering::Relaxed) * 1_000_000
        }));
        clock.begin();
        assert_eq!(read.load(Ordering::Relaxed), 0, "nobody has asked");
        assert_eq!(clock.now_ms(), 1);
        ticks.store(2, Ordering::Relaxed);
        assert_eq!((clock.now_ms(), clock.latest()), (1, 1_000_000));
        assert_eq!(clock.read(), 2_000_000);
        assert_eq!(clock.now_ms(), 1, "the command is the same");
        clock.begin();
        ticks.store(3, Ordering::Relaxed);
        assert_eq!(clock.now_ms(), 2, "its request came with the last one's");
        clock.forget();
        assert_eq!(clock.now_ms(), 3);
        assert_eq!(read.load(Ordering::Relaxed), 3);
    }
}
