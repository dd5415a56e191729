//! Directories that go away.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A fresh directory. It goes away, with all in it, when the value is dropped.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// One among the system's temporary ones, whose name tells what it is for.
    pub fn new(purpose: &str) -> io::Result<Scratch> {
        Scratch::within(&std::env::temp_dir(), purpose)
    }

    /// The same in that directory, and not among the system's temporary ones.
    pub fn within(parent: &Path, purpose: &str) -> io::Result<Scratch> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("martlet-{purpose}-{}-{number}", std::process::id()));
        // One of that name was left by a process of our number that was killed.
        match std::fs::remove_dir_all(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        std::fs::create_dir(&path)?;
        Ok(Scratch(path))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What cannot be removed here cannot be reported either.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
