//! Figures: the percentiles of what was measured, for people and for programs.

pub mod echo;
pub mod placement;
pub mod plot;
mod progress;
pub mod reference;
pub mod stolen;

use std::path::Path;

use hdrhistogram::Histogram;
use martlet_cluster::fail::Outcome;
use martlet_cluster::output::{Format, Table, WARN, styled};
use serde_json::{Map, Value, json};

pub use progress::Progress;

/// What the samples count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Time; recorded in nanoseconds and shown in nanoseconds.
    Nanoseconds,
    /// Time; recorded in nanoseconds and shown in microseconds.
    Microseconds,
    /// Work done a second, one sample for each interval.
    PerSecond,
    /// How often something happened, a minute: one sample for each interval.
    PerMinute,
    /// Memory.
    Bytes,
}

impl Unit {
    fn name(self) -> &'static str {
        match self {
            Unit::Nanoseconds => "ns",
            Unit::Microseconds => "us",
            Unit::PerSecond => "1/s",
            Unit::PerMinute => "1/min",
            Unit::Bytes => "B",
        }
    }

    fn scaled(self, recorded: u64) -> f64 {
        match self {
            Unit::Microseconds => recorded as f64 / 1e3,
            Unit::Nanoseconds | Unit::PerSecond | Unit::PerMinute | Unit::Bytes => recorded as f64,
        }
    }
}

/// One thing that was measured.
#[derive(Clone, Debug)]
pub struct Figure {
    bench: &'static str,
    metric: String,
    unit: Unit,
    samples: Histogram<u64>,
    /// What is special to this figure.
    settings: Map<String, Value>,
}

impl Figure {
    /// A figure without samples. Three digits are kept, up to the largest sample.
    pub fn new(bench: &'static str, metric: impl Into<String>, unit: Unit) -> Figure {
        let samples = Histogram::new(3).expect("three digits are supported");
        Figure { bench, metric: metric.into(), unit, samples, settings: Map::new() }
    }

    /// Says what is special to it.
    #[must_use]
    pub fn with(mut self, setting: &str, value: impl Into<Value>) -> Figure {
        self.settings.insert(setting.into(), value.into());
        self
    }

    /// Adds a sample.
    #[inline]
    pub fn record(&mut self, sample: u64) {
        // It resizes itself, so every u64 fits.
        self.samples.record(sample).expect("auto-resizing");
    }

    /// Adds all samples of another one.
    pub fn merge(&mut self, other: &Histogram<u64>) {
        self.samples.add(other).expect("auto-resizing");
    }

    /// How many samples there are.
    pub fn n(&self) -> u64 {
        self.samples.len()
    }

    /// A percentile, in the figure's unit.
    pub fn percentile(&self, percent: f64) -> f64 {
        self.unit.scaled(self.samples.value_at_percentile(percent))
    }

    fn max(&self) -> f64 {
        self.unit.scaled(self.samples.max())
    }

    /// The figure as a JSON object.
    pub fn json(&self, shared: &Map<String, Value>) -> Value {
        let mut settings = shared.clone();
        settings.extend(self.settings.clone());
        json!({
            "bench": self.bench,
            "metric": self.metric,
            "unit": self.unit.name(),
            "p50": self.percentile(50.0),
            "p90": self.percentile(90.0),
            "p99": self.percentile(99.0),
            "p999": self.percentile(99.9),
            "max": self.max(),
            "n": self.n(),
            "settings": settings,
        })
    }
}

/// The figures of one run.
#[derive(Debug)]
pub struct Report {
    format: Format,
    settings: Map<String, Value>,
    figures: Vec<Figure>,
    plots: Vec<plot::Plot>,
    stolen: stolen::Watch,
}

impl Report {
    /// A report that knows where it runs: cores, placement and versions are among its settings.
    pub fn new(format: Format) -> Report {
        Report { format, settings: placement::host(), figures: Vec::new(), plots: Vec::new(), stolen: stolen::Watch::start() }
    }

    /// How it is printed.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Notes a setting of the whole run.
    pub fn set(&mut self, setting: &str, value: impl Into<Value>) {
        self.settings.insert(setting.into(), value.into());
    }

    /// Adds a figure. Programs get it at once, people at the end. Its settings say how much of the cores' time a hypervisor has stolen since the run began.
    pub fn add(&mut self, figure: Figure) {
        self.note_stolen();
        self.format.object(|| figure.json(&self.settings));
        self.figures.push(figure);
    }

    /// Adds a drawing, for people.
    pub fn draw(&mut self, plot: plot::Plot) {
        self.plots.push(plot);
    }

    /// Adds a drawing, and saves it in that file if one is named.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn draw_and_save(&mut self, plot: plot::Plot, file: Option<&Path>) -> Outcome {
        if let Some(file) = file {
            plot.save(file)?;
        }
        self.draw(plot);
        Ok(())
    }

    /// Shows at a terminal how many of so many steps are done.
    pub fn progress(&self, what: &str, steps: u64) -> Progress {
        Progress::start(self.format, what, steps)
    }

    /// The figure of that name.
    pub fn figure(&self, metric: &str) -> Option<&Figure> {
        self.figures.iter().find(|figure| figure.metric == metric)
    }

    fn note_stolen(&mut self) -> Option<u64> {
        let percent = self.stolen.percent()?;
        self.set("stolen_percent", percent);
        Some(percent)
    }

    /// Prints the settings and all figures since the last call, for people.
    pub fn finish(&mut self) {
        let stolen = self.note_stolen();
        self.format.say(format_args!("{}\n", placement::describe(&self.settings)));
        self.format.say(self.table());
        if let Some(warning) = stolen.and_then(stolen::warning) {
            self.format.say(format_args!("\n{}", styled(WARN, warning)));
        }
        for plot in &self.plots {
            self.format.say(format_args!("\n{}", plot.text()));
        }
    }

    fn table(&self) -> Table {
        let mut table = Table::new(["metric", "unit", "p50", "p90", "p99", "p99.9", "max", "n"]);
        for figure in &self.figures {
            let at = |percent| number(figure.percentile(percent));
            table.row([
                figure.metric.clone(),
                figure.unit.name().into(),
                at(50.0),
                at(90.0),
                at(99.0),
                at(99.9),
                number(figure.max()),
                figure.n().to_string(),
            ]);
        }
        table
    }
}

/// Three digits at least, and no more decimals than help.
fn number(value: f64) -> String {
    match value {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_keeps_its_tail_and_says_its_unit() {
        let mut figure = Figure::new("kv", "put", Unit::Microseconds).with("clients", 2);
        (1..=1000).for_each(|i| figure.record(i * 1_000));
        figure.record(77_000_000);
        let json = figure.json(&Map::from_iter([("host".to_owned(), Value::from("h"))]));
        let close = |key: &str, wanted: f64| {
            let found = json[key].as_f64().expect("a number");
            assert!((found - wanted).abs() <= wanted * 0.002, "{key}: {found} is not {wanted}");
        };
        close("p50", 501.0);
        close("p99", 991.0);
        close("max", 77_000.0);
        assert_eq!(json["n"], 1001);
        assert_eq!((&json["bench"], &json["metric"], &json["unit"]), (&json!("kv"), &json!("put"), &json!("us")));
        assert_eq!(json["settings"], json!({"host": "h", "clients": 2}));
    }

    #[test]
    fn numbers_have_three_digits() {
        assert_eq!([0.5, 12.34, 1234.5].map(number), ["0.50", "12.3", "1234"]);
    }
}
