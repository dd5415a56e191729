//! How long to wait for something that may come back.

use crate::basics::Time;

/// Since when something has lasted, not counting a stall of this process for `gap_ns` until `now`. What began within the gap begins now: a replica that stood
/// still until it got its first view has a gap as long as its clock.
pub fn discounted(since: Time, gap_ns: u64, now: Time) -> Time {
    since.after(gap_ns).min(now)
}

/// Since when something has been away, and whether it is given up. Once given up, it stays so.
#[derive(Clone, Copy, Debug, Default)]
pub struct Patience {
    since: Option<Time>,
    is_over: bool,
}

impl Patience {
    /// It is still away, and is given up after `length_ns`. Returns whether it has just been given up.
    pub fn try_on(&mut self, now: Time, length_ns: u64) -> bool {
        let since = *self.since.get_or_insert(now);
        let ends = !self.is_over && now.since(since) > length_ns;
        self.is_over |= ends;
        ends
    }

    /// It will certainly not come back.
    pub fn end(&mut self) {
        self.is_over = true;
    }

    /// This process was itself stalled for `gap_ns`, which does not count as waiting. The stall is discounted; if the wait were restarted instead, a process
    /// that stalls every now and then would wait for ever.
    pub fn discount(&mut self, gap_ns: u64, now: Time) {
        self.since = self.since.map(|since| discounted(since, gap_ns, now));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stall_that_began_before_the_wait_ends_no_later_than_it_does() {
        const LENGTH_NS: u64 = 1_000_000;
        let mut patience = Patience::default();
        let now = Time(1_000_000_000_000);
        assert!(!patience.try_on(now, LENGTH_NS));
        // The first look of its own at the clock, which has run since the host was booted.
        let now = now.after(5);
        patience.discount(now.0, now);
        assert!(!patience.try_on(now.after(LENGTH_NS), LENGTH_NS));
        assert!(patience.try_on(now.after(LENGTH_NS + 1), LENGTH_NS), "it has waited since the stall's end");
        assert_eq!(discounted(Time(100), 30, Time(500)), Time(130), "of a stall within the wait nothing else counts");
    }
}
