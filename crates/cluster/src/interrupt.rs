//! Ctrl-C: a flag that long commands look at, so that they can clean up.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGALRM, SIGHUP, SIGINT, SIGIO, SIGPROF, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGVTALRM, SIGXCPU};

use crate::fail::{Fail, Outcome};

/// The flag of the command that runs; there is one in a process.
static SIGNALLED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Whether a signal has asked the command that runs to end.
pub fn was_signalled() -> bool {
    SIGNALLED.get().is_some_and(|flag| flag.load(Ordering::Relaxed))
}

/// Whether the user wants us to end.
#[derive(Clone, Debug)]
pub struct Interrupt {
    flag: Arc<AtomicBool>,
    /// A signal has come that nobody has [taken](Interrupt::take).
    again: Arc<AtomicBool>,
}

/// The signals that a user ends a command by. Of a terminal that is closed it is to know nothing where SIGHUP is ignored as it starts, as `nohup` has it.
fn asking() -> impl Iterator<Item = i32> {
    let is_ignored = std::fs::read_to_string("/proc/self/status").is_ok_and(|status| ignores(&status, SIGHUP));
    [SIGINT, SIGTERM].into_iter().chain((!is_ignored).then_some(SIGHUP))
}

/// Whether a process of this status, as /proc has it, ignores a signal.
fn ignores(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

impl Interrupt {
    /// From now on Ctrl-C, SIGTERM and SIGHUP, unless that is ignored, raise the flag, and a second one ends the process at once.
    pub fn install() -> io::Result<Interrupt> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in asking() {
            // In this order: the first signal finds the flag down, the second one finds it up.
            signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&flag))?;
            signal_hook::flag::register(signal, Arc::clone(&flag))?;
        }
        let _ = SIGNALLED.set(Arc::clone(&flag));
        Ok(Interrupt { flag, again: Arc::default() })
    }

    /// The same for every signal that ends a process and can be caught, and none of them does, however often it comes: for a command that has to put something back first, such
    /// as the terminal, or leaves processes behind. What ends commands often signals them more than once, as `timeout` does: the command, and then its group.
    pub fn install_without_end() -> io::Result<Interrupt> {
        let (flag, again) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let rest = [SIGQUIT, SIGALRM, SIGUSR1, SIGUSR2, SIGVTALRM, SIGPROF, SIGXCPU, SIGIO];
        for signal in asking().chain(rest) {
            signal_hook::flag::register(signal, Arc::clone(&flag))?;
            signal_hook::flag::register(signal, Arc::clone(&again))?;
        }
        let _ = SIGNALLED.set(Arc::clone(&flag));
        Ok(Interrupt { flag, again })
    }

    /// Whether a signal has come since it was last asked: for a command that [no signal ends](Interrupt::install_without_end), and that passes each on.
    pub fn take(&self) -> bool {
        self.again.swap(false, Ordering::Relaxed)
    }

    /// Whether it is up, or standard output takes nothing more.
    pub fn is_raised(&self) -> bool {
        self.flag.load(Ordering::Relaxed) || crate::output::is_broken()
    }

    /// An error once it is up.
    pub fn check(&self) -> Outcome {
        if self.is_raised() { Err(Fail::interrupted()) } else { Ok(()) }
    }

    /// Waits, and ends early with an error when it is raised.
    pub fn sleep(&self, duration: Duration) -> Outcome {
        let until = Instant::now() + duration;
        loop {
            self.check()?;
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(Duration::from_millis(20)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_ignores_stands_in_its_status() {
        let status = "Name:\tmartlet\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\nSigCgt:\t0000000000004202\n";
        assert!(ignores(status, SIGHUP) && ignores(status, rustix::process::Signal::PIPE.as_raw()));
        assert!(!ignores(status, SIGINT) && !ignores(status, SIGTERM));
        assert!(!ignores("Name:\tmartlet\n", SIGHUP));
    }
}
