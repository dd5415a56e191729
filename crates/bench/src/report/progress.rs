//! How far a long measurement has come, for whoever waits for it at a terminal.

use std::io::{self, IsTerminal as _};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use martlet_cluster::output::Format;

/// How often a second it is drawn anew, at most.
const DRAWN_HZ: u8 = 10;

/// A bar on standard error, which goes away with the value; nothing where that is no terminal that can be drawn on, and nothing for programs. It is drawn by the thread
/// that calls [`Progress::step`], at most ten times a second, so that nothing runs beside a measurement: steps are to be told between samples.
#[derive(Debug)]
pub struct Progress(ProgressBar);

impl Progress {
    pub(super) fn start(format: Format, what: &str, steps: u64) -> Progress {
        let is_seen = format == Format::Text
            && io::stderr().is_terminal()
            && std::env::var("TERM").is_ok_and(|term| term != "dumb" && !term.is_empty());
        let target = if is_seen { ProgressDrawTarget::stderr_with_hz(DRAWN_HZ) } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(steps), target);
        let style = ProgressStyle::with_template("{msg} [{bar:30}] {pos} of {len}, {elapsed} gone, about {eta} left");
        bar.set_style(style.expect("a template of known parts").progress_chars("=> "));
        bar.set_message(what.to_owned());
        // Drawn at once: the first step may take long.
        bar.tick();
        Progress(bar)
    }

    /// One step more is done.
    pub fn step(&self) {
        self.0.inc(1);
    }

    /// Prints something above it.
    pub fn above<T>(&self, print: impl FnOnce() -> T) -> T {
        self.0.suspend(print)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
