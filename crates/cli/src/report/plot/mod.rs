//! Drawings of what was measured: in the terminal, and as SVG.
//!
//! Both are drawn from one description, on axes that choose their own ticks. A library that draws either would be larger than this module, and none
//! draws both.

mod axis;
mod svg;
mod text;

use std::path::Path;

pub use axis::Axis;

use crate::fail::{Context as _, Outcome};

/// What shares a name and a colour.
#[derive(Clone, Debug)]
pub struct Series {
    name: String,
    points: Vec<(f64, f64)>,
}

impl Series {
    /// Points, joined by a line.
    pub fn line(name: impl Into<String>) -> Series {
        Series { name: name.into(), points: Vec::new() }
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
}

impl Plot {
    /// A drawing without anything in it.
    pub fn new(title: impl Into<String>, x: Axis, y: Axis) -> Plot {
        Plot { title: title.into(), x, y, series: Vec::new() }
    }

    /// Adds a series.
    #[must_use]
    pub fn with(mut self, series: Series) -> Plot {
        self.series.push(series);
        self
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
    fn nothing_to_draw_is_said_and_no_mistake() {
        let empty = Plot::new("t", Axis::linear("x"), Axis::log("y"));
        assert!(empty.text().contains("nothing") && empty.svg().contains("nothing"));
        let mut one = Series::line("one");
        one.push(1.0, 1.0);
        let single = Plot::new("t", Axis::linear("x"), Axis::log("y")).with(one);
        assert!(single.text().contains('●') && !single.svg().contains("NaN"), "{}", single.text());
    }
}
