//! The lock of a directory, and the directories that are created for it.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use super::Directory;
use crate::fail::{Context as _, Fail, Outcome};

/// Directories that were created for something that may fail. Those that are empty then are removed.
#[derive(Debug)]
struct Made(Vec<PathBuf>);

impl Made {
    /// Creates the directory at that path, and any missing parents.
    ///
    /// # Errors
    /// When one of them cannot be created; those that were are then removed again.
    fn all(path: &Path) -> Outcome<Made> {
        let missing: Vec<&Path> = path.ancestors().take_while(|path| !path.as_os_str().is_empty() && !path.exists()).collect();
        let mut made = Made(Vec::new());
        for next in missing.into_iter().rev() {
            match fs::create_dir(next) {
                Ok(()) => made.0.push(next.to_path_buf()),
                // Another command has just created it.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error).context(format_args!("cannot make {}", path.display())),
            }
        }
        match path.is_dir() {
            true => Ok(made),
            false => Err(Fail::failed(format_args!("cannot make {}: it exists, but is not a directory", path.display()))),
        }
    }

    /// Whether the last of them was created.
    fn is_new(&self) -> bool {
        !self.0.is_empty()
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        for path in self.0.iter().rev() {
            // A directory that holds anything is not removed.
            let _ = fs::remove_dir(path);
        }
    }
}

/// While this exists, no other command changes the directory. If nothing else has been created there when it is dropped, it removes its own file and the
/// directories that were created for it.
#[derive(Debug)]
pub struct Lock {
    /// Locked for as long as it is open.
    _file: OwnedFd,
    directory: Directory,
    /// The directories that were created for it.
    made: Made,
}

impl Lock {
    /// Whether the directory did not exist before.
    pub fn is_new(&self) -> bool {
        self.made.is_new()
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        let Directory(path) = &self.directory;
        let is_alone =
            fs::read_dir(path).is_ok_and(|mut entries| entries.all(|entry| entry.is_ok_and(|entry| entry.file_name() == "lock")));
        if is_alone {
            // Only here is the lock's file removed.
            let _ = fs::remove_file(path.join("lock"));
        }
    }
}

impl Directory {
    /// Creates the directory, if it does not exist, and waits for its lock.
    ///
    /// # Errors
    /// As for [`lock`](Directory::lock), and when it cannot be created.
    pub fn make(&self) -> Outcome<Lock> {
        loop {
            let made = Made::all(&self.0)?;
            match self.lock() {
                // The command that had the lock has removed the directory.
                Err(_) if !self.0.exists() => {}
                Ok(mut lock) => {
                    lock.made = made;
                    return Ok(lock);
                }
                failed => return failed,
            }
        }
    }

    /// Waits for the directory's lock.
    ///
    /// # Errors
    /// When `martlet run` has the lock: it releases it only when its server ends.
    pub fn lock(&self) -> Outcome<Lock> {
        loop {
            match self.lock_if_free()? {
                Ok(lock) => return Ok(lock),
                Err(taken) => {
                    if let Some(server) = self.server() {
                        let path = self.0.display();
                        return Err(Fail::failed(format_args!(
                            "martlet run runs {server:?} in {path}; choose another directory with --dir"
                        )));
                    }
                    rustix::fs::flock(&taken, rustix::fs::FlockOperation::LockExclusive).context(self.locking())?;
                    if let Some(lock) = self.locked(taken) {
                        return Ok(lock);
                    }
                }
            }
        }
    }

    /// Takes the directory's lock without waiting, for a caller that others wait for.
    ///
    /// # Errors
    /// When another command has it.
    pub fn try_lock(&self) -> Outcome<Lock> {
        let taken = |_| {
            Fail::failed(format_args!(
                "another martlet command is changing the cluster in {}; try again when it has ended",
                self.0.display()
            ))
        };
        self.lock_if_free()?.map_err(taken)
    }

    fn locking(&self) -> String {
        format!("cannot lock {}", self.lock_file().display())
    }

    /// The lock, or the file that another command has locked.
    fn lock_if_free(&self) -> Outcome<Result<Lock, OwnedFd>> {
        loop {
            let file = OpenOptions::new().create(true).truncate(false).write(true).open(self.lock_file()).context(self.locking())?;
            match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
                Err(rustix::io::Errno::WOULDBLOCK) => return Ok(Err(file.into())),
                locked => locked.context(self.locking())?,
            }
            if let Some(lock) = self.locked(file.into()) {
                return Ok(Ok(lock));
            }
        }
    }

    /// Turns this file, which is locked, into the lock. `None`: the previous holder has removed the file, and another file may be locked by now.
    fn locked(&self, file: OwnedFd) -> Option<Lock> {
        let of = |stat: rustix::fs::Stat| (stat.st_dev, stat.st_ino);
        let is_there =
            rustix::fs::stat(self.lock_file()).is_ok_and(|there| rustix::fs::fstat(&file).is_ok_and(|ours| of(ours) == of(there)));
        is_there.then(|| Lock { _file: file, directory: self.clone(), made: Made(Vec::new()) })
    }

    pub(super) fn lock_file(&self) -> PathBuf {
        self.0.join("lock")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn a_lock_leaves_nothing_where_nothing_was_made_and_whoever_waited_for_it_has_one_that_is_there() {
        let scratch = Scratch::new("directory").expect("a directory");
        let directory = Directory::new(&scratch.path().join("c"));
        drop(directory.make().expect("made"));
        assert!(!directory.path().exists(), "it was not there before");
        fs::create_dir(directory.path()).expect("made");
        drop(directory.make().expect("there"));
        assert_eq!(fs::read_dir(directory.path()).expect("it was there before").count(), 0);

        let lock = directory.make().expect("nobody else has it");
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let lock = directory.lock().expect("it is given back");
                assert!(directory.try_lock().is_err(), "the file that it has locked is the one that others find");
                lock
            });
            // The kernel's list shows a waiter after the lock that it waits for.
            let inode = std::os::unix::fs::MetadataExt::ino(&fs::metadata(directory.lock_file()).expect("there"));
            let is_waited_for = || {
                let locks = fs::read_to_string("/proc/locks").expect("the kernel lists them");
                locks.lines().any(|line| line.contains("-> FLOCK") && line.contains(&format!(":{inode} ")))
            };
            while !is_waited_for() {
                std::thread::yield_now();
            }
            drop(lock);
            let lock = waiting.join().expect("it has the lock");
            fs::write(directory.cluster_file(), "").expect("written");
            drop(lock);
        });
        assert!(directory.lock_file().exists(), "there is a cluster");
    }

    #[test]
    fn directories_that_were_made_for_nothing_go_again() {
        let scratch = Scratch::new("directory").expect("a directory");
        let (a, ab) = (scratch.path().join("a"), scratch.path().join("a/b"));
        let made = Made::all(&ab).expect("made");
        assert!(made.is_new() && ab.is_dir());
        drop(made);
        assert!(!a.exists() && scratch.path().exists());
        fs::create_dir_all(&ab).expect("made");
        assert!(!Made::all(&ab).expect("there").is_new() && ab.is_dir(), "what was there stays");
        let made = Made::all(&ab.join("c/d")).expect("made");
        fs::write(ab.join("c/mine"), "").expect("written");
        drop(made);
        assert!(!ab.join("c/d").exists() && ab.join("c").exists(), "what holds something stays");
        let on_a_file = ab.join("c/mine/e/f");
        assert!(
            Made::all(&on_a_file).is_err() && Made::all(&ab.join("c/mine")).expect_err("a file").to_string().contains("is not a directory")
        );
    }
}
