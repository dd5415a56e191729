//! All processes that a command starts, and all that those start. They are adopted when they lose their parent, and ended with the command, even when it is
//! interrupted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::limit;

/// Ends all of these processes when it is dropped.
pub struct Family {
    interrupted: Arc<AtomicBool>,
}

impl Family {
    /// Begins to adopt processes.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn found() -> Result<Family, String> {
        let interrupted = Arc::default();
        rustix::process::set_child_subreaper(Some(rustix::process::getpid())).map_err(|e| format!("orphans cannot be adopted: {e}"))?;
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&interrupted)).map_err(|e| format!("signals cannot be heard: {e}"))?;
        }
        Ok(Family { interrupted })
    }

    /// To be called wherever something is waited for.
    ///
    /// # Errors
    /// When the command has been asked to end.
    pub fn check(&self) -> Result<(), String> {
        if self.interrupted.load(Ordering::Relaxed) { Err("interrupted".into()) } else { Ok(()) }
    }

    /// What each of them is doing, in words.
    pub fn describe(&self) -> Vec<String> {
        limit::below(std::process::id()).iter().flat_map(limit::Process::describe).collect()
    }

    /// Kills all of them. Returns whether they are gone.
    pub fn end(&self) -> bool {
        limit::end_below(std::process::id())
    }
}

impl Drop for Family {
    fn drop(&mut self) {
        self.end();
    }
}
