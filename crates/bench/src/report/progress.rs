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
    /// Of so many steps, drawn from here on.
    pub(crate) fn start(format: Format, what: &str, steps: u64) -> Progress {
        let is_seen = format == Format::Text
            && io::stderr().is_terminal()
            && std::env::var("TERM").is_ok_and(|term| term != "dumb" && !term.is_empty());
        let target = if is_seen { ProgressDrawTarget::stderr_with_hz(DRAWN_HZ) } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(steps), target);
        bar.set_style(style(0));
        bar.set_message(what.to_owned());
        // Drawn at once: the first step may take long.
        bar.tick();
        Progress(bar)
    }

    /// One step more is done.
    pub fn step(&self) {
        if self.0.position() == 0 {
            self.0.set_style(style(1));
        }
        self.0.inc(1);
    }

    /// Prints something above it.
    pub fn above<T>(&self, print: impl FnOnce() -> T) -> T {
        self.0.suspend(print)
    }
}

/// What is shown once so many steps are done. How long the rest takes is not known before the first.
fn template(done: u64) -> String {
    let rest = if done == 0 { "" } else { ", about {eta} left" };
    format!("{{msg}} [{{bar:30}}] {{pos}} of {{len}}, {{elapsed}} gone{rest}")
}

fn style(done: u64) -> ProgressStyle {
    ProgressStyle::with_template(&template(done)).expect("a template of known parts").progress_chars("=> ")
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_said_of_the_rest_before_the_first_step() {
        assert_eq!(template(0), "{msg} [{bar:30}] {pos} of {len}, {elapsed} gone");
        assert_eq!(template(1), "{msg} [{bar:30}] {pos} of {len}, {elapsed} gone, about {eta} left");
        assert!([0, 1].map(style).iter().all(|style| !style.get_tick_str(0).is_empty()), "both are valid");
        let progress = Progress::start(Format::Json, "a trial", 2);
        progress.step();
        assert_eq!(progress.0.position(), 1);
    }
}
