//! A drawing in the terminal.

use super::{Plot, axis};

/// Columns and rows between the axes.
const WIDTH: usize = 78;
const HEIGHT: usize = 20;
const GLYPHS: [char; 8] = ['●', '○', '▲', '△', '■', '□', '◆', '◇'];

impl Plot {
    /// The drawing as lines of text, with a legend.
    pub fn text(&self) -> String {
        let Some((x, y)) = self.scales() else { return format!("{}: nothing to draw", self.title) };
        let column = |value| x.place(value).map(|at| (at * (WIDTH - 1) as f64).round() as usize);
        let row = |value| y.place(value).map(|at| HEIGHT - 1 - (at * (HEIGHT - 1) as f64).round() as usize);
        let mut grid = vec![[' '; WIDTH]; HEIGHT];
        // Lines first, so that no line hides a point.
        for series in &self.series {
            let places: Vec<(usize, usize)> = series.points.iter().filter_map(|(px, py)| Some((column(*px)?, row(*py)?))).collect();
            for pair in places.windows(2) {
                join(&mut grid, pair[0], pair[1]);
            }
        }
        let marked: Vec<(usize, &str)> = self.events.iter().filter_map(|(x, what)| Some((column(*x)?, what.as_str()))).collect();
        for (at, _) in marked.iter().filter(|(at, _)| *at < WIDTH) {
            grid.iter_mut().filter(|cells| cells[*at] == ' ').for_each(|cells| cells[*at] = '┆');
        }
        for (series, glyph) in self.series.iter().zip(GLYPHS.into_iter().cycle()) {
            for (at, up) in series.points.iter().filter_map(|(px, py)| Some((column(*px)?, row(*py)?))) {
                grid[up][at] = glyph;
            }
        }
        let names: Vec<(usize, String)> = y.ticks.iter().filter_map(|tick| Some((row(*tick)?, axis::name(*tick)))).collect();
        let margin = names.iter().map(|(_, name)| name.len()).max().unwrap_or(0);
        let mut text = format!("{}\n{}\n", self.title, self.y.label);
        for (at, cells) in grid.iter().enumerate() {
            let name = names.iter().find(|(row, _)| *row == at).map_or("", |(_, name)| name);
            let line: String = cells.iter().collect();
            text += &format!("{name:>margin$} {}{}\n", if name.is_empty() { '│' } else { '┤' }, line.trim_end());
        }
        text += &format!("{:margin$} └{}\n", "", "─".repeat(WIDTH));
        text +=
            &format!("{:margin$}  {}  {}\n", "", under(x.ticks.iter().filter_map(|t| Some((column(*t)?, axis::name(*t))))), self.x.label);
        for (series, glyph) in self.series.iter().zip(GLYPHS.into_iter().cycle()) {
            text += &format!("{:margin$}  {glyph} {}\n", "", series.name);
        }
        for (number, (_, what)) in (1..).zip(marked) {
            text += &format!("{:margin$}  ┆ {number}: {what}\n", "");
        }
        text
    }
}

/// Dots on the straight way from one cell to another, where nothing stands yet.
fn join(grid: &mut [[char; WIDTH]], from: (usize, usize), to: (usize, usize)) {
    let steps = from.0.abs_diff(to.0).max(from.1.abs_diff(to.1));
    for step in 1..steps {
        let between = |a: usize, b: usize| (a as f64 + (b as f64 - a as f64) * step as f64 / steps as f64).round() as usize;
        let cell = &mut grid[between(from.1, to.1)][between(from.0, to.0)];
        if *cell == ' ' {
            *cell = '·';
        }
    }
}

/// Names under their columns, as far as each has room.
fn under(names: impl Iterator<Item = (usize, String)>) -> String {
    let mut line = String::new();
    for (column, name) in names {
        let from = column.saturating_sub(name.len() / 2);
        if line.is_empty() || from > line.len() {
            line = format!("{line:from$}{name}");
        }
    }
    line
}
