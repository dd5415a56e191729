//! Leases on views and `active` (uKharon section 6, Algorithms 2 and 6; DESIGN section 5).
//!
//! A lease on view `v` is taken when slot `v+1` is empty at a majority of the coordinators of `v`. It is counted from the moment *before* they were
//! asked. While it lasts, [`Lease::active`] costs two comparisons. The first lease on a view starts only when no process can hold one on an older
//! view:
//! - every process that might hold one has given it back, as its lease word shows, or is certainly dead; or
//! - the longest lease that may be outstanding has expired, counted from when this process learned that the view is decided. (The paper waits as long
//!   after its first check of the slots, which comes later still.)
//!
//! Why the lease words suffice: a holder stores its word, fences, and then reads the slot. The proposer swaps the slot before the view is decided,
//! and the word is read after that. So either the reader sees the word, or the holder saw that the slot was taken (as in Dekker's algorithm).

use crate::basics::{Canary, ProcessId, Time, ViewNumber};

/// How inaccurate clocks are allowed to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockBounds {
    /// How fast or slow a process's clock may run against true time, in parts per million (uKharon App. C measured 10 between two hosts). Processes
    /// on one host read the same clock.
    pub drift_ppm: u64,
    /// How far the clocks of two cores may differ, in nanoseconds (App. C).
    pub skew_ns: u64,
}

impl Default for ClockBounds {
    fn default() -> Self {
        ClockBounds { drift_ppm: 200, skew_ns: 500 }
    }
}

impl ClockBounds {
    /// How much of a lease of `ns` its holder may use: less by the drift, so that even on the slowest clock allowed no more than `ns` of true time go
    /// by.
    pub fn shortened(self, ns: u64) -> u64 {
        if Canary::NoClockMargin.is_planted() {
            return ns;
        }
        ns.saturating_sub(parts(ns, self.drift_ppm).saturating_add(2 * self.skew_ns))
    }

    /// How long others wait for a lease of `ns`: longer by the drift, so that even on the fastest clock allowed no less than `ns` of true time go by;
    /// and at least 1 % longer, as in the paper (App. C).
    pub fn lengthened(self, ns: u64) -> u64 {
        if Canary::NoClockMargin.is_planted() {
            return ns;
        }
        ns.saturating_add(parts(ns, self.drift_ppm.max(10_000))).saturating_add(2 * self.skew_ns)
    }
}

/// `ppm` millionths of `ns`, rounded up.
fn parts(ns: u64, ppm: u64) -> u64 {
    u64::try_from((u128::from(ns) * u128::from(ppm)).div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// The lease of one process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lease {
    view: ViewNumber,
    start: Time,
    end: Time,
}

impl Lease {
    /// Whether `view` is active at `now`: no process acts in an older or a newer one. Read `now` after the effects that this check guards are in
    /// place, and before they become visible (TRAPS 7).
    #[inline]
    pub fn active(&self, view: ViewNumber, now: Time) -> bool {
        self.view == view && now >= self.start && now < self.end
    }

    /// When the lease ends; a time in the past when there is none. An effect that becomes visible later has to be fenced by other means.
    pub fn end(&self) -> Time {
        self.end
    }

    /// The view that the lease is on; 0 for none.
    pub fn view(&self) -> ViewNumber {
        self.view
    }

    /// Gives it back.
    pub(super) fn drop_it(&mut self) {
        *self = Lease::default();
    }

    /// Begins the first lease on a view, usable from `start` on.
    pub(super) fn begin(&mut self, view: ViewNumber, start: Time, end: Time) {
        *self = Lease { view, start, end };
    }

    /// Lengthens it.
    pub(super) fn extend(&mut self, end: Time) {
        self.end = self.end.max(end);
    }
}

/// The state of taking the first lease on a view: which processes may still hold an older one.
#[derive(Clone, Debug, Default)]
pub struct Handover {
    holders: Vec<(ProcessId, bool)>,
    /// When the longest older lease has expired in any case.
    over: Time,
}

impl Handover {
    /// Starts waiting for `holders`, at most until `over`.
    pub fn new(holders: impl Iterator<Item = ProcessId>, over: Time) -> Handover {
        Handover { holders: holders.map(|p| (p, false)).collect(), over }
    }

    /// Extends the wait for the processes still awaited until `over`, if that is later.
    pub fn wait_until(&mut self, over: Time) {
        self.over = self.over.max(over);
    }

    /// `process` can no longer hold an older lease. Returns whether that was news.
    pub fn release(&mut self, process: ProcessId) -> bool {
        match self.holders.iter_mut().find(|(p, _)| *p == process) {
            Some((_, released)) => !std::mem::replace(released, true),
            None => false,
        }
    }

    /// The processes that are still awaited.
    pub fn awaited(&self) -> impl Iterator<Item = ProcessId> + '_ {
        self.holders.iter().filter(|(_, released)| !released).map(|(p, _)| *p)
    }

    /// Whether no process can hold an older lease at `now`.
    pub fn is_over(&self, now: Time) -> bool {
        Canary::NoStartDelay.is_planted() || now >= self.over || self.holders.iter().all(|(_, released)| *released)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use martlet_fabric::{Incarnation, NodeId};

    #[test]
    fn algorithm_2_a_lease_holds_from_its_start_to_before_its_end() {
        let mut lease = Lease::default();
        lease.begin(ViewNumber(3), Time(100), Time(200));
        let at = |t| lease.active(ViewNumber(3), Time(t));
        assert_eq!([99, 100, 199, 200].map(at), [false, true, true, false]);
        assert!(!lease.active(ViewNumber(2), Time(150)) && !lease.active(ViewNumber(4), Time(150)));
    }

    #[test]
    fn trap_8_holders_use_less_and_others_wait_longer() {
        let c = ClockBounds { drift_ppm: 1000, skew_ns: 64 };
        assert_eq!(c.shortened(1_000_000), 1_000_000 - 1000 - 128);
        assert!(c.lengthened(1_000_000) >= 1_010_000);
        assert_eq!(c.shortened(100), 0, "a lease shorter than the clocks' error is none");
    }

    /// Whatever the bound, in true time the holder on the slowest clock stops before the waiter on the fastest clock acts.
    #[test]
    fn trap_8_the_slowest_holder_is_done_before_the_fastest_waits_no_longer() {
        for drift_ppm in [0, 1, 10, 200, 5_000, 10_000, 83_333, 101_200, 250_000, 500_000] {
            let bounds = ClockBounds { drift_ppm, skew_ns: 0 };
            for ns in [50_000, 99_999, 1_000_003, 10_000_000, 60_000_000_000] {
                let (million, drift) = (1_000_000_f64, drift_ppm as f64);
                let used = bounds.shortened(ns) as f64 * million / (million - drift);
                let waited = bounds.lengthened(ns) as f64 * million / (million + drift);
                assert!(used <= ns as f64 && ns as f64 <= waited, "{drift_ppm} ppm, {ns} ns: {used} used, {waited} waited");
            }
        }
    }

    #[test]
    fn certain_death_and_returned_leases_end_the_wait_at_once() {
        let p = |n| ProcessId { node: NodeId(n), incarnation: Incarnation(1) };
        let mut h = Handover::new([p(1), p(2)].into_iter(), Time(1000));
        assert!(!h.is_over(Time(10)));
        h.release(p(1));
        assert!(!h.is_over(Time(10)));
        h.release(p(2));
        assert!(h.is_over(Time(10)));
    }

    #[test]
    fn silence_ends_the_wait_after_a_whole_lease() {
        let p = ProcessId { node: NodeId(1), incarnation: Incarnation(1) };
        let h = Handover::new([p].into_iter(), Time(1000));
        assert!(!h.is_over(Time(999)) && h.is_over(Time(1000)));
    }
}
