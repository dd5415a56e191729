//! How long something that may come back is waited for.

use super::Config;
use crate::basics::Time;

/// How many of the longer timeouts it may be away before it is given up.
const TIMEOUTS: u64 = 4;

/// Since when something has been away, and whether it is given up. What is given up stays so.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Patience {
    since: Option<Time>,
    is_over: bool,
}

impl Patience {
    /// How long it lasts, in nanoseconds.
    pub fn length_ns(config: &Config) -> u64 {
        TIMEOUTS * config.silence_ns
    }

    /// It is away, now as before. Returns whether it is given up for that, which is news.
    pub fn try_on(&mut self, now: Time, config: &Config) -> bool {
        let since = *self.since.get_or_insert(now);
        let ends = !self.is_over && now.since(since) > Patience::length_ns(config);
        self.is_over |= ends;
        ends
    }

    /// It will not come back: that is certain.
    pub fn end(&mut self) {
        self.is_over = true;
    }

    /// This process was itself stalled for so long, and has waited for nothing: discounted, not begun anew, or who is stalled every now and then would wait for ever.
    pub fn discount(&mut self, gap_ns: u64) {
        self.since = self.since.map(|since| since.after(gap_ns));
    }

    /// Whether it has ever been away.
    pub fn is_tried(&self) -> bool {
        self.since.is_some()
    }

    /// Whether it is given up.
    pub fn is_over(&self) -> bool {
        self.is_over
    }
}
