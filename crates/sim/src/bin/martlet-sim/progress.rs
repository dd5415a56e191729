//! A line on the terminal that says how far a run is.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use martlet_protocol::basics::Mark;
use martlet_sim::coverage::Coverage;
use martlet_sim::hunt::Summary;

/// The line, if there is a terminal to show it on.
#[derive(Debug)]
pub struct Progress {
    shown: bool,
    due: Duration,
}

/// Between two lines.
const EVERY: Duration = Duration::from_millis(200);

impl Progress {
    /// Shows nothing where standard error is no terminal, or nobody wants it.
    pub fn new(wanted: bool) -> Progress {
        Progress { shown: wanted && std::io::stderr().is_terminal(), due: EVERY }
    }

    /// Shows how far it is.
    pub fn show(&mut self, summary: &Summary) {
        if !self.shown || summary.elapsed < self.due {
            return;
        }
        self.due = summary.elapsed + EVERY;
        let of = summary.wanted.map_or(String::new(), |wanted| format!(" of {wanted}"));
        let marks = if Coverage::MEASURED { format!(", marks hit {}/{}", summary.coverage.hit(), Mark::ALL.len()) } else { String::new() };
        let line = format!(
            "{}{of} lives, {:.0} a second, {:.4} virtual hours, {} faults, {} views{marks}",
            summary.lives,
            summary.lives_a_second(),
            summary.virtual_hours(),
            summary.faults.events(),
            summary.views
        );
        // Nothing depends on it.
        let _ = write!(std::io::stderr(), "\r{line:<100}");
    }

    /// Takes the line away.
    pub fn clear(&self) {
        if self.shown {
            let _ = write!(std::io::stderr(), "\r{:<100}\r", "");
        }
    }
}
