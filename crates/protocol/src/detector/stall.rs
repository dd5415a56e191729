//! How a detector notices that it was itself asleep, and for how long.

use crate::basics::Time;

/// Measures how late an agent is for its duty cycles.
#[derive(Clone, Debug)]
pub struct StallMeter {
    last: Time,
    due: Time,
}

impl StallMeter {
    /// Starts measuring.
    pub fn new(now: Time) -> StallMeter {
        StallMeter { last: now, due: now }
    }

    /// A duty cycle starts. Returns the gap since the previous one, in nanoseconds, excluding time in which the agent had nothing to do and was free
    /// to sleep.
    pub fn tick(&mut self, now: Time) -> u64 {
        let late = now.since(self.last.max(self.due));
        (self.last, self.due) = (now, now);
        late
    }

    /// A duty cycle ends, and the agent may sleep until `due`. For an agent that never calls this, the whole gap is lateness.
    pub fn sleep_until(&mut self, due: Time) {
        self.due = due;
    }

    /// When the latest duty cycle started.
    pub fn last(&self) -> Time {
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_sleeps_as_long_as_it_may_is_not_stalled() {
        let mut meter = StallMeter::new(Time(100));
        assert_eq!(meter.tick(Time(110)), 10);
        meter.sleep_until(Time(1_110));
        assert_eq!(meter.tick(Time(500)), 0, "woken early");
        meter.sleep_until(Time(1_110));
        assert_eq!(meter.tick(Time(1_115)), 5);
        assert_eq!(meter.tick(Time(1_135)), 20, "what it may sleep is said anew after each duty cycle");
        meter.sleep_until(Time(0));
        assert_eq!(meter.tick(Time(1_138)), 3, "due at once");
    }
}
