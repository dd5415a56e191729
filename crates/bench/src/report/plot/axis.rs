//! Axes: which values stand where, and which are named.

/// One of the two axes of a drawing.
#[derive(Clone, Debug)]
pub struct Axis {
    pub(super) label: String,
    log: bool,
}

impl Axis {
    /// Equal distances are equal differences. It begins at 0.
    pub fn linear(label: impl Into<String>) -> Axis {
        Axis { label: label.into(), log: false }
    }

    /// Equal distances are equal ratios.
    pub fn log(label: impl Into<String>) -> Axis {
        Axis { label: label.into(), log: true }
    }

    /// The scale on which all these values have a place, but for those that this kind of axis cannot show; `None` if that leaves none.
    pub(super) fn scale(&self, values: impl Iterator<Item = f64>) -> Option<Scale> {
        let shown = values.filter(|v| v.is_finite() && (!self.log || *v > 0.0));
        let (low, high) = shown.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)));
        if low > high {
            return None;
        }
        let ticks = if self.log { log_ticks(low, high) } else { linear_ticks(low.min(0.0), high) };
        Some(Scale { log: self.log, low: ticks[0], high: ticks[ticks.len() - 1], ticks })
    }
}

/// An axis over a range of values.
#[derive(Clone, Debug)]
pub(super) struct Scale {
    log: bool,
    low: f64,
    high: f64,
    /// Values to be named, ascending; the first and the last are the ends.
    pub(super) ticks: Vec<f64>,
}

impl Scale {
    /// Where a value stands, from 0 to 1; `None` if it has no place here.
    pub(super) fn place(&self, value: f64) -> Option<f64> {
        let at = |v: f64| if self.log { v.log10() } else { v };
        if !value.is_finite() || (self.log && value <= 0.0) {
            return None;
        }
        Some((at(value) - at(self.low)) / (at(self.high) - at(self.low)))
    }
}

/// At most about six steps of 1, 2 or 5 times a power of ten.
fn linear_ticks(low: f64, high: f64) -> Vec<f64> {
    let span = if high > low { high - low } else { 1.0 };
    let power = 10f64.powf((span / 6.0).log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|m| m * power).into_iter().find(|step| span / step <= 6.0).unwrap_or(10.0 * power);
    let (first, last) = ((low / step).floor() as i64, ((low + span) / step).ceil() as i64);
    (first..=last).map(|n| n as f64 * step).collect()
}

/// Powers of ten, and twice and five times these where there are few.
fn log_ticks(low: f64, high: f64) -> Vec<f64> {
    let all = |within: &[f64]| -> Vec<f64> {
        let decades = (low.log10().floor() as i32)..=(high.log10().ceil() as i32);
        let ticks: Vec<f64> = decades.flat_map(|d| within.iter().map(move |m| m * 10f64.powi(d))).collect();
        // From the last that is not above the lowest to the first that is not below the highest.
        let first = ticks.iter().rposition(|t| *t <= low).unwrap_or(0);
        let last = ticks.iter().position(|t| *t >= high).unwrap_or(ticks.len() - 1).max(first + 1).min(ticks.len() - 1);
        ticks[first..=last].to_vec()
    };
    if (high / low).log10() > 3.0 { all(&[1.0]) } else { all(&[1.0, 2.0, 5.0]) }
}

/// A tick's name: as short as it can be told from its neighbours.
pub(super) fn name(value: f64) -> String {
    let text = format!("{value:.3}");
    match text.trim_end_matches('0').trim_end_matches('.') {
        "" | "-0" => "0".into(),
        short => short.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_hold_everything_between_them() {
        assert_eq!(linear_ticks(0.0, 53.0), [0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0]);
        assert_eq!(log_ticks(16.0, 4096.0), [10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0]);
        assert_eq!(log_ticks(0.2, 3e6).len(), 9, "powers of ten only");
        let mut rng = fastrand::Rng::with_seed(1);
        for _ in 0..10_000 {
            let (a, b) = (10f64.powf(rng.f64() * 12.0 - 3.0), 10f64.powf(rng.f64() * 12.0 - 3.0));
            for axis in [Axis::linear(""), Axis::log("")] {
                let scale = axis.scale([a, b].into_iter()).expect("two values");
                assert!(scale.ticks.is_sorted() && scale.ticks.len() >= 2, "{a} {b}: {:?}", scale.ticks);
                for value in [a, b] {
                    let at = scale.place(value).expect("a place");
                    assert!((-1e-9..=1.0 + 1e-9).contains(&at), "{value} stands at {at} of {:?}", scale.ticks);
                }
            }
        }
    }

    #[test]
    fn names_are_short() {
        assert_eq!([0.0, 0.05, 1000.0, 2.5, 100.0].map(name), ["0", "0.05", "1000", "2.5", "100"]);
    }
}
