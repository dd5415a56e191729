//! A detector's view of itself: how long it was asleep.

use crate::basics::Time;

/// Measures the gaps between the duty cycles of one agent.
#[derive(Clone, Debug)]
pub struct StallMeter {
    last: Time,
    longest_ns: u64,
}

impl StallMeter {
    /// Starts measuring.
    pub fn new(now: Time) -> StallMeter {
        StallMeter { last: now, longest_ns: 0 }
    }

    /// A duty cycle starts. Returns the gap since the one before, in nanoseconds.
    pub fn tick(&mut self, now: Time) -> u64 {
        let gap = now.since(self.last);
        self.last = now;
        self.longest_ns = self.longest_ns.max(gap);
        gap
    }

    /// When the latest duty cycle started.
    pub fn last(&self) -> Time {
        self.last
    }

    /// The longest gap so far, in nanoseconds.
    pub fn longest_ns(&self) -> u64 {
        self.longest_ns
    }
}
