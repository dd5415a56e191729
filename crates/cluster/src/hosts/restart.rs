//! Restarts a node's process in place when this is asked for over the network. The host's service manager keeps the process that it knows, and where there is
//! no service manager, none is needed.

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

/// The stack of a thread that only waits, and then replaces the process.
const STACK: usize = 64 << 10;
/// An argument that describes the surroundings of a single start of a node, and need not stay true: the cluster may have nodes on other hosts by now.
const OF_ONE_START: &str = "--all-here";

/// The handle through which another host asks this node to restart.
#[derive(Clone, Debug)]
pub struct Restart {
    executable: PathBuf,
    stop: Stop,
    asked: Arc<AtomicBool>,
}

/// The other end, for the process itself. Its thread keeps the settings that the process had when it began: what the node's own thread gets later, such as a
/// core of its own, is not passed on.
#[derive(Debug)]
pub struct Successor {
    restart: Restart,
    go: Sender<()>,
    thread: JoinHandle<Fail>,
}

impl Successor {
    /// Call this before the calling thread is given anything. `stop` ends the node.
    ///
    /// # Errors
    /// When this executable cannot be found, or no thread can be started.
    pub fn prepare(stop: &Stop) -> Outcome<Successor> {
        // Find it now: once another build has replaced the file, the system names the one that is gone.
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

    /// The handle through which others ask for a restart.
    pub fn handle(&self) -> Restart {
        self.restart.clone()
    }

    /// The node has ended in an orderly way: starts it again, if the restart is what it was asked to end for, and nothing else since.
    ///
    /// # Errors
    /// When the executable cannot be run.
    pub fn begin_again(self) -> Outcome {
        if !self.restart.is_under_way() {
            return Ok(());
        }
        // From here on nothing would look at a signal, so a signal has to end the process.
        self.restart.stop.give_signals_back().context("cannot give the signals back")?;
        if !self.restart.is_under_way() {
            return Ok(());
        }
        tracing::info!(executable = %self.restart.executable.display(), "restarting");
        // Log lines that are not written yet would be lost.
        log::finish();
        self.go.send(()).expect("it waits");
        Err(self.thread.join().expect("it does not panic"))
    }
}

impl Restart {
    /// Whether the node is able to end and start again.
    ///
    /// # Errors
    /// Why it will not.
    pub(super) fn check(&self) -> Result<(), String> {
        // A node that ended and could not start again would be missing.
        std::fs::metadata(&self.executable).map_err(|error| format!("{} cannot be run: {error}", self.executable.display()))?;
        match (self.stop.requests(), self.asked.load(Ordering::Acquire)) {
            (0, _) => Ok(()),
            (_, true) => Err("it has been asked before, and is about to restart".into()),
            (_, false) => Err("it is about to end".into()),
        }
    }

    /// Whether the process will start again when its node has ended.
    pub fn is_under_way(&self) -> bool {
        self.asked.load(Ordering::Acquire) && self.stop.requests() == 1
    }

    /// Makes the node end in an orderly way, and not start again.
    pub(super) fn end(&self) {
        self.stop.request_once();
    }

    /// Makes the node end in an orderly way, and start again.
    pub(super) fn ask(&self) {
        // If a signal came first, it has asked the node to end, and not to start again.
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
        // As SIGTERM does, while the node is already ending.
        stop.request();
        assert!(successor.begin_again().is_ok(), "or this test would begin again");

        let stop = Stop::new().expect("a handle");
        let successor = Successor::prepare(&stop).expect("a thread");
        stop.request();
        let ends = successor.handle().check().expect_err("it ends");
        assert!(ends.contains("about to end"), "{ends}");
        // The signal came after that check.
        successor.handle().ask();
        assert_eq!((stop.requests(), successor.handle().is_under_way()), (1, false));
        assert!(successor.begin_again().is_ok());

        let mut gone = Successor::prepare(&Stop::new().expect("a handle")).expect("a thread").handle();
        gone.executable = "/no/such/martlet".into();
        let why = gone.check().expect_err("it could not come back");
        assert!(why.contains("/no/such/martlet cannot be run"), "{why}");
    }
}
