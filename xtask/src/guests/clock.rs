//! Measures how fast the clocks of virtual machines go, compared with this machine's clock.

use std::time::{Duration, Instant};

/// The word before the time in a line in which a machine says what its clock shows.
pub const WORD: &str = "clock";
/// No rate is taken over a shorter time than this, because a line may come some milliseconds late.
const ENOUGH: Duration = Duration::from_secs(2);

/// What has been observed of the machines' clocks.
pub struct Rates {
    /// What each clock last showed, in seconds, and when.
    last: Vec<Option<(Instant, f64)>>,
    /// The same, at the beginning of the time over which rates are taken.
    began: Vec<Option<(Instant, f64)>>,
    seen: Option<(f64, f64)>,
}

impl Rates {
    /// For this many machines.
    pub fn new(machines: usize) -> Rates {
        Rates { last: vec![None; machines], began: vec![None; machines], seen: None }
    }

    /// Notes a line. `false`: the line is about something else.
    pub fn note(&mut self, machine: usize, at: Instant, line: &str) -> bool {
        let shown = line.strip_prefix(WORD).and_then(|rest| rest.trim().parse().ok());
        match (self.last.get_mut(machine), shown) {
            (Some(last), Some(shown)) => {
                *last = Some((at, shown));
                true
            }
            _ => false,
        }
    }

    /// Begins to take rates.
    pub fn begin(&mut self) {
        self.began.clone_from(&self.last);
    }

    /// Ends taking rates, except for the machine that was paused.
    pub fn end(&mut self, but: Option<usize>) {
        let moving = (0..self.last.len()).filter(|machine| Some(*machine) != but);
        let rates = moving.filter_map(|machine| rate(self.began[machine]?, self.last[machine]?));
        self.seen = rates.fold(self.seen, |seen, rate| {
            let (slowest, fastest) = seen.unwrap_or((rate, rate));
            Some((slowest.min(rate), fastest.max(rate)))
        });
    }

    /// The slowest and the fastest clock, as multiples of this machine's clock, if any rate was taken.
    pub fn seen(&self) -> Option<(f64, f64)> {
        self.seen
    }
}

fn rate(from: (Instant, f64), to: (Instant, f64)) -> Option<f64> {
    let took = to.0.duration_since(from.0);
    (took >= ENOUGH).then(|| (to.1 - from.1) / took.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_and_the_fastest_of_those_that_move_are_kept() {
        let mut rates = Rates::new(3);
        let now = Instant::now();
        let later = now + Duration::from_secs(4);
        (0..3).for_each(|machine| assert!(rates.note(machine, now, "clock 10.00")));
        assert!(!rates.note(0, now, "clockwork") && !rates.note(3, now, "clock 1.0"));
        rates.begin();
        for (machine, shown) in [(0, "clock 13.6"), (1, "clock 14.4"), (2, "clock 10.0")] {
            assert!(rates.note(machine, later, shown));
        }
        rates.end(Some(2));
        let (slowest, fastest) = rates.seen().expect("taken");
        assert!((slowest - 0.9).abs() < 1e-6 && (fastest - 1.1).abs() < 1e-6, "{slowest} {fastest}");
    }

    #[test]
    fn over_too_little_time_no_rate_is_taken() {
        let mut rates = Rates::new(1);
        let now = Instant::now();
        rates.note(0, now, "clock 1.0");
        rates.begin();
        rates.note(0, now + Duration::from_secs(1), "clock 9.0");
        rates.end(None);
        assert_eq!(rates.seen(), None);
    }
}
