//! Ctrl-C: a flag that long-running commands check, so that they can clean up.

use std::io::{self, Read as _};
use std::ops::RangeInclusive;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use signal_hook::consts::{SIGALRM, SIGHUP, SIGINT, SIGIO, SIGPROF, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGVTALRM, SIGXCPU};

use crate::fail::{Fail, Kind, Outcome};
use crate::scratch;

/// The flag of the running command; a process has only one.
static SIGNALLED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Whether a signal has asked the running command to end.
pub fn was_signalled() -> bool {
    SIGNALLED.get().is_some_and(|flag| flag.load(Ordering::Relaxed))
}

/// Whether the user wants the command to end.
#[derive(Clone, Debug)]
pub struct Interrupt {
    flag: Arc<AtomicBool>,
    /// A signal has arrived that has not been [taken](Interrupt::take) yet.
    again: Arc<AtomicBool>,
    /// The command does nothing but print, so it may end when its output is no longer read.
    is_watching: bool,
}

/// The signals with which a user ends a command. SIGHUP, from a terminal that is closed, is not among them if it is ignored when the command starts, as under
/// `nohup`.
fn asking() -> impl Iterator<Item = i32> {
    let is_ignored = std::fs::read_to_string("/proc/self/status").is_ok_and(|status| ignores(&status, SIGHUP));
    [SIGINT, SIGTERM].into_iter().chain((!is_ignored).then_some(SIGHUP))
}

/// The real-time signals that the C library does not keep for itself.
const REAL_TIME: RangeInclusive<i32> = 34..=64;

/// Whether a process with this status, as in /proc, ignores a signal.
fn ignores(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

impl Interrupt {
    /// From now on Ctrl-C, SIGTERM, and SIGHUP unless that is ignored, raise the flag. A second signal ends the process as soon as everything that would
    /// outlive it is cleaned up: its [directories](scratch::Scratch), and the processes that use them. A third signal does not wait for that.
    pub fn install() -> io::Result<Interrupt> {
        let (flag, hurries) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (came, comes) = UnixStream::pair()?;
        for signal in asking() {
            // The order matters: the signal that makes the process hurry must not yet find it in a hurry.
            signal_hook::flag::register_conditional_shutdown(signal, Kind::Interrupted as i32, Arc::clone(&hurries))?;
            signal_hook::flag::register(signal, Arc::clone(&flag))?;
            signal_hook::low_level::pipe::register(signal, comes.try_clone()?)?;
        }
        std::thread::Builder::new().name("martlet-hurry".into()).spawn(move || hurry(came, &hurries))?;
        let _ = SIGNALLED.set(Arc::clone(&flag));
        Ok(Interrupt { flag, again: Arc::default(), is_watching: false })
    }

    /// The same for every signal that ends a process and can be caught, but none of them ends this one, however often it arrives. This is for a command that
    /// has to restore something first, such as the terminal, or that leaves processes behind. What ends commands often signals them more than once: `timeout`,
    /// for example, signals the command and then its group.
    pub fn install_without_end() -> io::Result<Interrupt> {
        let (flag, again) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        // By SIGPWR, and by real-time signals, an init is told to shut down, and so is what runs in its place in a container.
        let of_machines = [Signal::POWER, Signal::STKFLT].map(Signal::as_raw);
        let rest = [SIGQUIT, SIGALRM, SIGUSR1, SIGUSR2, SIGVTALRM, SIGPROF, SIGXCPU, SIGIO];
        for signal in asking().chain(rest).chain(of_machines).chain(REAL_TIME) {
            signal_hook::flag::register(signal, Arc::clone(&flag))?;
            signal_hook::flag::register(signal, Arc::clone(&again))?;
        }
        let _ = SIGNALLED.set(Arc::clone(&flag));
        Ok(Interrupt { flag, again, is_watching: false })
    }

    /// The same for a command that only shows what it observes: the flag is also raised as soon as the output is no longer read, even if there is nothing new
    /// to print.
    pub fn for_watching(self) -> Interrupt {
        Interrupt { is_watching: true, ..self }
    }

    /// Whether a signal has arrived since the last call: for a command that [no signal ends](Interrupt::install_without_end), and that passes each signal on.
    pub fn take(&self) -> bool {
        self.again.swap(false, Ordering::Relaxed)
    }

    /// Whether the flag is raised, or standard output takes no more.
    pub fn is_raised(&self) -> bool {
        self.flag.load(Ordering::Relaxed) || crate::output::is_broken() || self.is_watching && crate::output::has_lost_reader()
    }

    /// An error once the flag is raised.
    pub fn check(&self) -> Outcome {
        if self.is_raised() { Err(Fail::interrupted()) } else { Ok(()) }
    }

    /// Waits; ends early, with an error, if the flag is raised.
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

/// Waits for a second signal (each signal sends one byte), and then ends the process. The thread that cleans up after the first signal may be blocked by
/// anything.
fn hurry(mut came: UnixStream, hurries: &AtomicBool) {
    if came.read_exact(&mut [0; 2]).is_ok() {
        hurries.store(true, Ordering::Relaxed);
        let _none_is_made = scratch::put_away();
        signal_hook::low_level::exit(Kind::Interrupted as i32);
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
