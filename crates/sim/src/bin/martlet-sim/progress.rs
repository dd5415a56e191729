//! Shows how far a run has come: on a terminal a line that is updated in place, elsewhere a line now and then.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use martlet_protocol::basics::Mark;
use martlet_sim::coverage::Coverage;
use martlet_sim::hunt::Summary;

/// The time between two updates on a terminal.
const ON_TERMINAL: Duration = Duration::from_millis(200);
/// The time between two lines in a file.
const IN_FILE: Duration = Duration::from_secs(30);
/// The width assumed for a terminal that does not say how wide it is.
const COLUMNS: u16 = 80;

/// Moves to the start of the line, and clears to its end.
const CLEAR: &str = "\r\x1b[K";

/// Shows on standard error how far a run has come.
#[derive(Debug)]
pub struct Progress {
    is_wanted: bool,
    is_terminal: bool,
    due: Duration,
}

impl Progress {
    /// Shows nothing unless that is wanted.
    pub fn new(is_wanted: bool) -> Progress {
        let is_terminal = std::io::stderr().is_terminal();
        Progress { is_wanted, is_terminal, due: if is_terminal { ON_TERMINAL } else { IN_FILE } }
    }

    /// Shows how far the run has come.
    pub fn show(&mut self, summary: &Summary) {
        if !self.is_wanted || summary.elapsed < self.due {
            return;
        }
        let line = line(summary);
        let (text, every) = if self.is_terminal { (in_place(&line, columns()), ON_TERMINAL) } else { (format!("{line}\n"), IN_FILE) };
        self.due = summary.elapsed + every;
        // If it cannot be written, nothing is lost.
        let _ = write!(std::io::stderr(), "{text}");
    }

    /// Removes the line.
    pub fn clear(&self) {
        if self.is_wanted && self.is_terminal {
            let _ = write!(std::io::stderr(), "{CLEAR}");
        }
    }
}

fn columns() -> u16 {
    let size = rustix::termios::tcgetwinsize(std::io::stderr());
    size.ok().map(|size| size.ws_col).filter(|columns| *columns > 0).unwrap_or(COLUMNS)
}

fn line(summary: &Summary) -> String {
    let of = summary.wanted.map_or(String::new(), |wanted| format!(" of {wanted}"));
    let marks = if Coverage::MEASURED { format!(", marks hit {}/{}", summary.coverage.hit(), Mark::ALL.len()) } else { String::new() };
    format!(
        "{}{of} lives, {:.0} a second, {:.4} virtual hours, {} faults, {} views{marks}",
        summary.lives,
        summary.lives_a_second(),
        summary.virtual_hours(),
        summary.faults.events(),
        summary.views
    )
}

/// The text that replaces the previous line. If the last column were used, some terminals would continue in the next row.
fn in_place(line: &str, columns: u16) -> String {
    let fits: String = line.chars().take(usize::from(columns).saturating_sub(1)).collect();
    format!("{CLEAR}{fits}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_takes_one_row_of_any_terminal() {
        let mut summary = Summary::default();
        (summary.lives, summary.wanted, summary.elapsed, summary.views) = (99_999, Some(100_000), Duration::from_secs(2000), 2_500_000);
        let line = line(&summary);
        assert!(line.starts_with("99999 of 100000 lives, 50 a second") && line.len() > 80, "{line}");
        for columns in [1, 20, 80] {
            let shown = in_place(&line, columns);
            let text = shown.strip_prefix(CLEAR).expect("what stood there is taken away");
            assert_eq!(text, &line[..usize::from(columns) - 1]);
        }
        assert_eq!(in_place(&line, 300), format!("{CLEAR}{line}"));
    }
}
