//! What commands print: text for people, with colours on a terminal, or one JSON object per line.

use std::io::{self, Write as _};
use std::sync::OnceLock;

use anstyle::{AnsiColor, Style};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::Value;

use crate::fail::{Fail, Outcome};
use crate::log;

/// Why standard output takes no more.
static BROKEN: OnceLock<io::Error> = OnceLock::new();

/// Whether standard output takes no more: its reader has gone (`martlet ... | head`), or the disk is full. A command that would run forever ends then.
pub fn is_broken() -> bool {
    BROKEN.get().is_some()
}

/// Whether standard output is a pipe or a socket that is no longer read, or a terminal that is gone. This is found out without writing to it. From then on
/// nothing more is written.
pub fn has_lost_reader() -> bool {
    let stdout = io::stdout();
    let mut look = [PollFd::new(&stdout, PollFlags::empty())];
    let gone =
        poll(&mut look, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok() && look[0].revents().intersects(PollFlags::ERR | PollFlags::HUP);
    if gone {
        let _ = BROKEN.set(io::ErrorKind::BrokenPipe.into());
    }
    is_broken()
}

/// Whether everything that was to be printed could be. It is no error of the command if its reader has gone.
///
/// # Errors
/// When output is missing for another reason.
pub fn check() -> Outcome {
    match BROKEN.get() {
        Some(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Fail::failed(format_args!("cannot write to standard output: {error}")))
        }
        _ => Ok(()),
    }
}

/// Writes data byte for byte, wherever standard output goes, and nothing more once that has failed. At the end of the command, [`check`] reports it.
pub fn raw(bytes: &[u8]) {
    write(io::stdout().lock(), bytes);
}

/// Writes our own text with its colours: they are left out where standard output is no terminal that shows them, and so is everything else that is no text.
pub fn coloured(text: impl std::fmt::Display) {
    write(anstream::stdout().lock(), text.to_string().as_bytes());
}

fn write(mut out: impl io::Write, bytes: &[u8]) {
    if is_broken() {
        return;
    }
    if let Err(error) = out.write_all(bytes).and_then(|()| out.flush()) {
        let _ = BROKEN.set(error);
    }
}

/// Writes to standard error. If that fails there is nowhere else to report it.
pub fn complain(text: impl std::fmt::Display) {
    let text = format!("{text}\n");
    // The text goes behind what has been logged; and a log that is not read must not keep the process from ending.
    let logged = if io::IsTerminal::is_terminal(&io::stderr()) { log::say(&text) } else { log::say(&plain(&text)) };
    if !logged {
        let _ = anstream::stderr().lock().write_all(text.as_bytes());
    }
}

fn line(text: impl std::fmt::Display) {
    coloured(format_args!("{text}\n"));
}

/// An object is data: nothing in its strings is a colour of ours.
fn object_line(object: &Value) {
    raw(format!("{object}\n").as_bytes());
}

/// How to print.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}

impl Format {
    /// Prints `text` for people, or `object` for programs.
    pub fn print(self, text: impl std::fmt::Display, object: impl FnOnce() -> Value) {
        match self {
            Format::Text => line(text),
            Format::Json => object_line(&object()),
        }
    }

    /// Prints something that is only for people.
    pub fn say(self, text: impl std::fmt::Display) {
        if self == Format::Text {
            line(text);
        }
    }

    /// Prints an object that is only for programs.
    pub fn object(self, object: impl FnOnce() -> Value) {
        if self == Format::Json {
            object_line(&object());
        }
    }
}

/// Something that went well.
pub const GOOD: Style = AnsiColor::Green.on_default().bold();
/// Something to look at.
pub const WARN: Style = AnsiColor::Yellow.on_default();
/// Something that went wrong.
pub const BAD: Style = AnsiColor::Red.on_default().bold();
/// A heading.
pub const HEAD: Style = Style::new().bold();
/// Something less important.
pub const DIM: Style = Style::new().dimmed();

/// A text in a style.
pub fn styled(style: Style, text: impl std::fmt::Display) -> String {
    format!("{style}{text}{style:#}")
}

/// Rows in aligned columns; numbers are aligned to the right.
#[derive(Debug, Default)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these headings.
    pub fn new<const N: usize>(headings: [&str; N]) -> Table {
        Table { rows: vec![headings.map(str::to_owned).to_vec()] }
    }

    /// Adds a row.
    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.to_vec());
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let columns = self.rows[0].len();
        let width = |column: usize| self.rows.iter().map(|row| shown_width(&row[column])).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let numeric = |column: usize| {
            let mut cells = self.rows[1..].iter().map(|row| plain(&row[column])).filter(|cell| !cell.is_empty()).peekable();
            cells.peek().is_some() && cells.all(|cell| cell.starts_with(|c: char| c.is_ascii_digit()) && !cell.contains(':'))
        };
        let right: Vec<bool> = (0..columns).map(numeric).collect();
        for (number, row) in self.rows.iter().enumerate() {
            if number > 0 {
                writeln!(f)?;
            }
            let mut line = String::new();
            for (column, cell) in row.iter().enumerate() {
                let gap = " ".repeat(widths[column] - shown_width(cell));
                let cell = if number == 0 { styled(HEAD, cell) } else { cell.clone() };
                let last = column + 1 == columns;
                match (right[column], last) {
                    (true, _) => line += &format!("{gap}{cell}"),
                    (false, true) => line += &cell,
                    (false, false) => line += &format!("{cell}{gap}"),
                }
                line += if last { "" } else { "  " };
            }
            f.write_str(line.trim_end())?;
        }
        Ok(())
    }
}

/// The text without its colours.
fn plain(text: &str) -> String {
    anstream::adapter::strip_str(text).to_string()
}

fn shown_width(text: &str) -> usize {
    plain(text).chars().count()
}

/// Nanoseconds, formatted for people.
pub fn duration(ns: u64) -> String {
    let fraction = |unit_ns: u64, unit: &str| format!("{:.1} {unit}", ns as f64 / unit_ns as f64);
    let two = |unit_s: u64, unit: &str, part_s: u64, part: &str| {
        let seconds = ns / 1_000_000_000;
        format!("{} {unit} {} {part}", seconds / unit_s, seconds % unit_s / part_s)
    };
    match ns {
        0..999_950 => fraction(1_000, "us"),
        999_950..999_950_000 => fraction(1_000_000, "ms"),
        999_950_000..60_000_000_000 => fraction(1_000_000_000, "s"),
        60_000_000_000..3_600_000_000_000 => two(60, "min", 1, "s"),
        3_600_000_000_000..86_400_000_000_000 => two(3_600, "h", 60, "min"),
        _ => two(86_400, "d", 3_600, "h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_whatever_their_colours() {
        let mut table = Table::new(["node", "p50", "state"]);
        table.row(["0".into(), "1.5".into(), styled(GOOD, "up")]);
        table.row(["10".into(), "12.5".into(), "down".into()]);
        assert_eq!(plain(&table.to_string()), "node   p50  state\n   0   1.5  up\n  10  12.5  down");
    }

    #[test]
    fn times_are_short() {
        for (ns, text) in [
            (0, "0.0 us"),
            (45_500, "45.5 us"),
            (999_949, "999.9 us"),
            (999_950, "1.0 ms"),
            (125_000_000, "125.0 ms"),
            (59_000_000_000, "59.0 s"),
            (61_000_000_000, "1 min 1 s"),
            (3_723_000_000_000, "1 h 2 min"),
            (200_000_000_000_000, "2 d 7 h"),
            (u64::MAX, "213503 d 23 h"),
        ] {
            assert_eq!(duration(ns), text);
        }
    }
}
