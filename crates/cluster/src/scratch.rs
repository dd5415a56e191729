//! Temporary directories.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::process;

/// The temporary directories of this process.
static LIVE: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn live() -> MutexGuard<'static, Vec<PathBuf>> {
    LIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How often to try to remove a directory in which files are still being created.
const ATTEMPTS: u32 = 100;

/// Removes all temporary directories of this process. Before that, kills the process's children, which work in these directories, and their children. This is
/// for a process that is about to end, whatever its threads are doing. While the returned value is held, no other temporary directory is created.
pub(crate) fn put_away() -> impl Sized {
    let live = live();
    if !live.is_empty() {
        process::end_children();
    }
    for path in &*live {
        // A thread may be about to create a file there.
        let _ = (0..ATTEMPTS).find(|_| !matches!(std::fs::remove_dir_all(path), Err(error) if error.kind() != io::ErrorKind::NotFound));
    }
    live
}

/// A new directory. It is removed, with everything in it, when the value is dropped.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// Creates one among the system's temporary directories; its name says what it is for.
    pub fn new(purpose: &str) -> io::Result<Scratch> {
        Scratch::within(&std::env::temp_dir(), purpose)
    }

    /// Creates one in that directory instead.
    pub fn within(parent: &Path, purpose: &str) -> io::Result<Scratch> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("martlet-{purpose}-{}-{number}", std::process::id()));
        let mut live = live();
        // A directory with that name was left by a killed process that had our number.
        match std::fs::remove_dir_all(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        std::fs::create_dir(&path)?;
        live.push(path.clone());
        Ok(Scratch(path))
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let mut live = live();
        // If this fails, there is no way to report it.
        let _ = std::fs::remove_dir_all(&self.0);
        live.retain(|path| *path != self.0);
    }
}
