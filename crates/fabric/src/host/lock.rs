//! A file that one process at a time has locked.

use std::fs::File;
use std::io;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::{Pid, getpid};

/// A file that this process has locked. It is unlocked when this is dropped, or when the process ends.
///
/// A process that is being started has copies of all descriptors until it executes its program. Closing the file alone would leave it locked for as long, and
/// this process could not lock it again meanwhile. So it is unlocked explicitly; but not by a forked process that drops what it has inherited.
#[derive(Debug)]
pub struct FileLock {
    file: File,
    owner: Pid,
}

impl FileLock {
    /// Locks the file; `None` if another process, or another opening of the file in this one, has locked it.
    ///
    /// # Errors
    /// When the system refuses for another reason.
    pub fn take(file: File) -> io::Result<Option<FileLock>> {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(FileLock { file, owner: getpid() })),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        if self.owner == getpid() {
            // If it fails, the lock goes with the last copy of the descriptor.
            let _ = flock(&self.file, FlockOperation::Unlock);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(path: &std::path::Path) -> File {
        File::options().create(true).truncate(false).write(true).open(path).expect("our own file")
    }

    #[test]
    fn a_lock_that_is_dropped_is_free_though_a_copy_of_its_descriptor_is_open() {
        let path = std::env::temp_dir().join(format!("martlet-lock-{}", std::process::id()));
        let file = open(&path);
        // As a process that is being started has one.
        let _copy = file.try_clone().expect("a descriptor");
        let lock = FileLock::take(file).expect("it can be locked").expect("free");
        assert!(FileLock::take(open(&path)).expect("it can be told").is_none());
        drop(lock);
        assert!(FileLock::take(open(&path)).expect("it can be told").is_some());
        std::fs::remove_file(&path).expect("our own file");
    }

    #[test]
    fn what_a_forked_process_drops_stays_locked() {
        let path = std::env::temp_dir().join(format!("martlet-lock-inherited-{}", std::process::id()));
        let file = open(&path);
        let _original = file.try_clone().expect("a descriptor");
        let mut inherited = FileLock::take(file).expect("it can be locked").expect("free");
        inherited.owner = Pid::from_raw(inherited.owner.as_raw_pid() + 1).expect("a process id");
        drop(inherited);
        assert!(FileLock::take(open(&path)).expect("it can be told").is_none());
        std::fs::remove_file(&path).expect("our own file");
    }
}
