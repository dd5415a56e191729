//! A node's process that begins again in place, for who asks it over the network: its host's service manager goes on with the process that it knows, and where there is
//! none, nobody else is needed.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};

use martlet_node::stop::Stop;

use crate::fail::{Context as _, Fail, Outcome};
use crate::log;

/// For a thread that only waits, and then replaces the process.
const STACK: usize = 64 << 10;
/// What one start of a node is told of its surroundings, and is not true for ever: the cluster may have nodes on other hosts by now.
const OF_ONE_START: &str = "--all-here";

/// By which another host asks this node to begin again.
#[derive(Clone, Debug)]
pub struct Restart {
    executable: PathBuf,
    stop: Stop,
    asked: Arc<AtomicBool>,
}

/// The other end, for the process itself. The thread is as the process was when it began: what the node's own thread gets, such as a core of its own, is not passed on.
#[derive(Debug)]
pub struct Successor {
    restart: Restart,
    go: Sender<()>,
    thread: JoinHandle<Fail>,
}

impl Successor {
    /// Before the calling thread is given anything. `stop`: by which the node ends.
    ///
    /// # Errors
    /// When this executable cannot be found, or no thread be started.
    pub fn prepare(stop: &Stop) -> Outcome<Successor> {
        // Now: once another build has been put in its place, the system names the one that is gone.
        let executable = std::env::current_exe().context("cannot find this command's own executable")?;
        let restart = Restart { executable, stop: stop.clone(), asked: Arc::default() };
        let (go, told) = channel();
        let mut command = Command::new(&restart.executable);
        command.args(arguments(std::env::args_os().skip(1)));
        let name = thread::Builder::new().name("martlet-again".into()).stack_size(STACK);
        let thread = name.spawn(move || match told.recv() {
            Ok(()) => {
                let error = command.exec();
                Fail::failed(format_args!("cannot restart as {}: {error}", command.get_program().display()))
            }
            Err(_) => Fail::failed("nobody begins again"),
        });
        Ok(Successor { restart, go, thread: thread.context("cannot start the thread that restarts the node")? })
    }

    /// What others ask by.
    pub fn handle(&self) -> Restart {
        self.restart.clone()
    }

    /// The node has ended in order: begins again, if that is what it was asked for, and for nothing else since.
    ///
    /// # Errors
    /// When the executable cannot be run.
    pub fn begin_again(self) -> Outcome {
        if !self.restart.is_under_way() {
            return Ok(());
        }
        // A signal that nobody would look at any more has to end the process.
        self.restart.stop.give_signals_back().context("cannot give the signals back")?;
        if !self.restart.is_under_way() {
            return Ok(());
        }
        tracing::info!(executable = %self.restart.executable.display(), "restarting");
        // Nothing that is not written yet outlives what follows.
        log::finish();
        self.go.send(()).expect("it waits");
        Err(self.thread.join().expect("it does not panic"))
    }
}

impl Restart {
    /// Whether the node would end in order and begin again.
    ///
    /// # Errors
    /// Why it will not.
    pub(super) fn check(&self) -> Result<(), String> {
        // One that ended and could not begin again would be missed.
        std::fs::metadata(&self.executable).map_err(|error| format!("{} cannot be run: {error}", self.executable.display()))?;
        match (self.stop.requests(), self.asked.load(Ordering::Acquire)) {
            (0, _) => Ok(()),
            (_, true) => Err("it has been asked before, and is about to restart".into()),
            (_, false) => Err("it is about to end".into()),
        }
    }

    /// Whether the process, when its node has ended, begins again.
    pub fn is_under_way(&self) -> bool {
        self.asked.load(Ordering::Acquire) && self.stop.requests() == 1
    }

    /// Has it end in order, and not begin again.
    pub(super) fn end(&self) {
        self.stop.request_once();
    }

    /// Has it do so.
    pub(super) fn ask(&self) {
        // A signal that came first has asked it to end, and not to begin again.
        if !self.asked.swap(true, Ordering::AcqRel) && !self.stop.request_once() {
            self.asked.store(false, Ordering::Release);
        }
    }
}

fn arguments(of_this: impl Iterator<Item = OsString>) -> Vec<OsString> {
    of_this.filter(|argument| argument != OF_ONE_START).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_true_at_one_start_only_is_not_passed_on() {
        let given = ["node", "--config", "node-0.toml", "--all-here"].map(OsString::from);
        assert_eq!(arguments(given.into_iter()), ["node", "--config", "node-0.toml"]);
    }

    #[test]
    fn one_that_ends_does_not_begin_again() {
        let stop = Stop::new().expect("a handle");
        let successor = Successor::prepare(&stop).expect("a thread");
        assert_eq!(successor.handle().check(), Ok(()));
        successor.handle().ask();
        let twice = successor.handle().check().expect_err("once is enough");
        assert!(twice.contains("asked before"), "{twice}");
        successor.handle().ask();
        assert_eq!(stop.requests(), 1, "a second request would cut its end short");
        // As by SIGTERM, while it is on its way out.
        stop.request();
        assert!(successor.begin_again().is_ok(), "or this test would begin again");

        let stop = Stop::new().expect("a handle");
        let successor = Successor::prepare(&stop).expect("a thread");
        stop.request();
        let ends = successor.handle().check().expect_err("it ends");
        assert!(ends.contains("about to end"), "{ends}");
        // The signal came after the look.
        successor.handle().ask();
        assert_eq!((stop.requests(), successor.handle().is_under_way()), (1, false));
        assert!(successor.begin_again().is_ok());

        let mut gone = Successor::prepare(&Stop::new().expect("a handle")).expect("a thread").handle();
        gone.executable = "/no/such/martlet".into();
        let why = gone.check().expect_err("it could not come back");
        assert!(why.contains("/no/such/martlet cannot be run"), "{why}");
    }
}
