//! The clocks of processes, which differ from true time.

use fastrand::Rng;
use martlet_protocol::basics::Time;

/// A process's monotonic clock: it starts anywhere, runs a little fast or slow, and shows different times on different cores.
#[derive(Clone, Debug)]
pub struct Clock {
    /// What it shows when the world begins.
    offset: u64,
    /// How much faster than true time it runs, in parts per million.
    ppm: i64,
    /// How far a core can be behind the core that is furthest ahead.
    skew_ns: u64,
    /// When it stopped, in true time; a stopped clock is outside the model.
    stopped_at: Option<u64>,
    /// For how long it has stood still in the past, in true time.
    stood_ns: u64,
}

impl Clock {
    /// A clock that runs fast or slow by at most `drift_ppm`.
    pub fn drawn(chance: &mut Rng, drift_ppm: u64, skew_ns: u64) -> Clock {
        let most = drift_ppm as i64;
        Clock { offset: chance.u64(1_000_000..1_000_000_000), ppm: chance.i64(-most..=most), skew_ns, stopped_at: None, stood_ns: 0 }
    }

    /// From now on the clock stands still, as when a host is suspended and its clock does not count that time.
    pub fn stop(&mut self, now: u64) {
        self.stopped_at = Some(now);
    }

    /// Continues from where it stopped.
    pub fn go_on(&mut self, now: u64) {
        self.stood_ns += self.stopped_at.take().map_or(0, |at| now.saturating_sub(at));
    }

    /// Whether it has ever stopped, and so is outside the model.
    pub fn has_stopped(&self) -> bool {
        self.stopped_at.is_some()
    }

    fn at(&self, now: u64) -> u64 {
        let now = now.min(self.stopped_at.unwrap_or(now)).saturating_sub(self.stood_ns);
        (self.offset as i64 + now as i64 + now as i64 * self.ppm / 1_000_000) as u64
    }

    /// What the process reads at the true time `now`, on whichever core it happens to run.
    pub fn read(&self, now: u64, chance: &mut Rng) -> Time {
        Time(self.at(now) - chance.u64(0..=self.skew_ns))
    }

    /// The earliest and the latest time that a core of the process shows at the true time `now`.
    pub fn bounds(&self, now: u64) -> (Time, Time) {
        (Time(self.at(now) - self.skew_ns), Time(self.at(now)))
    }

    /// The true time at which every core shows at least `local`; it may be a little later than necessary.
    pub fn true_time(&self, local: Time) -> u64 {
        let ahead = local.0.saturating_sub(self.offset).saturating_add(self.skew_ns);
        let speed = (1_000_000 + self.ppm) as u128;
        u64::try_from((u128::from(ahead) * 1_000_000).div_ceil(speed) + 1).unwrap_or(u64::MAX).saturating_add(self.stood_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_stays_within_its_bounds() {
        let mut chance = Rng::with_seed(1);
        for _ in 0..100 {
            let clock = Clock::drawn(&mut chance, 200, 500);
            for now in [0, 1_000, 1_000_000, 1_000_000_000] {
                let (least, most) = clock.bounds(now);
                let read = clock.read(now, &mut chance);
                assert!(least <= read && read <= most);
                let drift = (most.0 - clock.offset).abs_diff(now);
                assert!(drift <= now / 5_000, "{drift} in {now}");
                let later = clock.true_time(read);
                assert!(clock.bounds(later).0 >= read, "woken before it is time");
            }
            let mut clock = clock;
            let (_, before) = clock.bounds(1_000_000);
            clock.stop(1_000_000);
            assert_eq!(clock.bounds(9_000_000).1, before);
            clock.go_on(9_000_000);
            assert_eq!(clock.bounds(9_000_000).1, before, "from where it stood");
            assert!(clock.bounds(clock.true_time(before.after(5_000))).0 >= before.after(5_000));
        }
    }
}
