//! Drawings of what was measured: in the terminal, and as SVG.
//!
//! Both are drawn from one description, on axes that choose their own ticks. A library that draws either would be larger than this module, and none
//! draws both.

mod axis;
mod svg;
mod text;

use std::path::Path;

pub use axis::Axis;

use martlet_cluster::fail::{Context as _, Outcome};

/// How points are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Style {
    /// Each by itself, and joined with its neighbours.
    Line,
    /// Joined only: for more of them than can be told apart.
    Trace,
}

/// What shares a name and a colour.
#[derive(Clone, Debug)]
pub struct Series {
    name: String,
    style: Style,
    points: Vec<(f64, f64)>,
}

impl Series {
    /// Points, joined by a line.
    pub fn line(name: impl Into<String>) -> Series {
        Series { name: name.into(), style: Style::Line, points: Vec::new() }
    }

    /// A line without its points, for very many of them.
    pub fn trace(name: impl Into<String>) -> Series {
        Series { style: Style::Trace, ..Series::line(name) }
    }

    /// A histogram: how many of the samples fall into each of the bins of this width, from the first that has any to the last. Each bin is drawn as
    /// wide as it is.
    pub fn histogram(name: impl Into<String>, samples: &[f64], bin: f64) -> Series {
        let mut series = Series::trace(name);
        let number = |sample: &f64| (sample / bin).floor() as i64;
        let (Some(first), Some(last)) = (samples.iter().map(number).min(), samples.iter().map(number).max()) else { return series };
        let mut counts = vec![0u32; (last - first) as usize + 1];
        samples.iter().for_each(|sample| counts[(number(sample) - first) as usize] += 1);
        series.push(first as f64 * bin, 0.0);
        for (at, count) in (first..).zip(counts) {
            series.push(at as f64 * bin, f64::from(count));
            series.push((at + 1) as f64 * bin, f64::from(count));
        }
        series.push((last + 1) as f64 * bin, 0.0);
        series
    }

    /// Adds a point behind the last. What an axis cannot show (zero on a logarithmic one, say) is left out of the drawing.
    pub fn push(&mut self, x: f64, y: f64) {
        self.points.push((x, y));
    }
}

/// A drawing.
#[derive(Clone, Debug)]
pub struct Plot {
    title: String,
    x: Axis,
    y: Axis,
    series: Vec<Series>,
    /// Where on the axis of x something happened, and what.
    events: Vec<(f64, String)>,
}

impl Plot {
    /// A drawing without anything in it.
    pub fn new(title: impl Into<String>, x: Axis, y: Axis) -> Plot {
        Plot { title: title.into(), x, y, series: Vec::new(), events: Vec::new() }
    }

    /// Adds a series.
    #[must_use]
    pub fn with(mut self, series: Series) -> Plot {
        self.series.push(series);
        self
    }

    /// Marks a place on the axis of x.
    pub fn mark(&mut self, x: f64, what: impl Into<String>) {
        self.events.push((x, what.into()));
    }

    /// Writes it into a file, as SVG.
    pub fn save(&self, file: &Path) -> Outcome {
        std::fs::write(file, self.svg()).context(format_args!("cannot write {}", file.display()))
    }

    /// The axes' scales over everything that is drawn; `None` when that is nothing.
    fn scales(&self) -> Option<(axis::Scale, axis::Scale)> {
        let points = || self.series.iter().flat_map(|series| &series.points);
        let x = self.x.scale(points().map(|(x, _)| *x))?;
        let y = self.y.scale(points().map(|(_, y)| *y))?;
        Some((x, y))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot() -> Plot {
        let mut line = Series::line("a < b");
        [(1.0, 10.0), (2.0, 1000.0), (3.0, 0.0), (4.0, 100.0)].into_iter().for_each(|(x, y)| line.push(x, y));
        Plot::new("One & all", Axis::linear("x"), Axis::log("y")).with(line)
    }

    #[test]
    fn the_terminal_shows_each_point_between_its_axes() {
        let text = plot().text();
        assert_eq!(text.matches('●').count(), 3 + 1, "three points, since zero has no place on the axis, and the legend:\n{text}");
        for wanted in ["One & all", "● a < b", "1000", "10 "] {
            assert!(text.contains(wanted), "{wanted} is missing:\n{text}");
        }
        // The highest point stands above the others, and its row is the axis's highest.
        let rows: Vec<&str> = text.lines().filter(|row| row.contains('●')).collect();
        assert!(rows[0].trim_start().starts_with("1000"), "{text}");
    }

    #[test]
    fn the_svg_is_well_formed_as_far_as_counting_tells() {
        let svg = plot().svg();
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"), "{svg}");
        assert!(svg.contains("One &amp; all") && svg.contains("a &lt; b") && !svg.contains("a < b"), "{svg}");
        assert_eq!(svg.matches("<text").count(), svg.matches("</text>").count());
        assert_eq!(svg.matches("<circle").count(), 3);
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }

    #[test]
    fn a_histogram_has_a_step_for_each_bin_and_nothing_beyond() {
        let series = Series::histogram("h", &[12.0, 18.0, 31.0], 10.0);
        assert_eq!(series.points, [(10.0, 0.0), (10.0, 2.0), (20.0, 2.0), (20.0, 0.0), (30.0, 0.0), (30.0, 1.0), (40.0, 1.0), (40.0, 0.0)]);
        assert!(Series::histogram("h", &[], 10.0).points.is_empty());
    }

    #[test]
    fn events_are_marked_and_a_trace_has_no_points_of_its_own() {
        let mut trace = Series::trace("t");
        (0..1000).for_each(|x| trace.push(f64::from(x), 1.0));
        let mut plot = Plot::new("t", Axis::linear("x"), Axis::linear("y")).with(trace);
        plot.mark(500.0, "a < b");
        let svg = plot.svg();
        assert!(!svg.contains("<circle") && svg.contains("a &lt; b") && svg.contains("stroke-dasharray"), "{svg}");
        let text = plot.text();
        assert!(text.contains('┆') && text.contains("1: a < b"), "{text}");
    }

    #[test]
    fn nothing_to_draw_is_said_and_no_mistake() {
        let empty = Plot::new("t", Axis::linear("x"), Axis::log("y"));
        assert!(empty.text().contains("nothing") && empty.svg().contains("nothing"));
        let mut one = Series::line("one");
        one.push(1.0, 1.0);
        let single = Plot::new("t", Axis::linear("x"), Axis::log("y")).with(one);
        assert!(single.text().contains('●') && !single.svg().contains("NaN"), "{}", single.text());
    }
}
