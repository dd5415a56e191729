//! Directories that go away.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::process;

/// Those of this process.
static LIVE: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn live() -> MutexGuard<'static, Vec<PathBuf>> {
    LIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How often a directory is removed in which somebody makes files meanwhile.
const ATTEMPTS: u32 = 100;

/// Removes all directories of this process that are to go away, and kills its children before, which work in them, and theirs: for a process that ends next, whatever its threads are at.
/// While what this returns is held no other one is made.
pub(crate) fn put_away() -> impl Sized {
    let live = live();
    if !live.is_empty() {
        process::end_children();
    }
    for path in &*live {
        // A thread may be about to write a file there.
        let _ = (0..ATTEMPTS).find(|_| !matches!(std::fs::remove_dir_all(path), Err(error) if error.kind() != io::ErrorKind::NotFound));
    }
    live
}

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
        let mut live = live();
        // One of that name was left by a process of our number that was killed.
        match std::fs::remove_dir_all(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        std::fs::create_dir(&path)?;
        live.push(path.clone());
        Ok(Scratch(path))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let mut live = live();
        // What cannot be removed here cannot be reported either.
        let _ = std::fs::remove_dir_all(&self.0);
        live.retain(|path| *path != self.0);
    }
}
