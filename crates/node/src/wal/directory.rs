//! A node's data directory. One process at a time has it open, and each life of the node has a log of its own there.
//!
//! A new life begins with nothing and is taught by the others. Until they have accepted it, the older life's log is the valid one; so that log stays until
//! [`Directory::keep_only`] says that it is superfluous. If power is lost before that, several lives have left logs, and the logs say which is valid.

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};

use martlet_fabric::host::lock::FileLock;

use super::disk::{Disk, SystemDisk};
use super::error::{Operation, WalError, refused};
use super::log::{Log, Style, parse_name};
use super::recovery::{Recovered, recover};

fn return_name(life: u64, count: u64) -> String {
    format!("return-{life:016x}-{count:04x}")
}

/// The life to which a file of [`Directory::count_return`] belongs, and the number in its name.
fn parse_return(name: &str) -> Option<(u64, u64)> {
    let (life, count) = name.strip_prefix("return-")?.split_once('-')?;
    let (life, count) = (u64::from_str_radix(life, 16).ok()?, u64::from_str_radix(count, 16).ok()?);
    (return_name(life, count) == name).then_some((life, count))
}

/// The file that says in which generation of the cluster a life began; if there is none, it began before any recovery.
fn generation_name(life: u64, generation: u64) -> String {
    format!("generation-{life:016x}-{generation}")
}

/// The life to which such a file belongs, and the generation in its name.
fn parse_generation(name: &str) -> Option<(u64, u64)> {
    let (life, generation) = name.strip_prefix("generation-")?.split_once('-')?;
    let (life, generation) = (u64::from_str_radix(life, 16).ok()?, generation.parse().ok()?);
    (generation_name(life, generation) == name).then_some((life, generation))
}

/// An open data directory. It is released when this is dropped.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    style: Style,
    _lock: FileLock,
}

fn life_name(life: u64) -> String {
    format!("life-{life:016x}")
}

fn parse_life(name: &str) -> Option<u64> {
    let life = u64::from_str_radix(name.strip_prefix("life-")?, 16).ok()?;
    (life_name(life) == name).then_some(life)
}

/// Makes the directory, and those above it that are missing, and makes each stable in the directory that holds it: otherwise the loss of a directory's entry at
/// a power failure would also lose everything in it.
fn make_stable(path: &Path) -> Result<(), WalError> {
    let missing: Vec<&Path> = path.ancestors().take_while(|above| !above.as_os_str().is_empty() && !above.exists()).collect();
    fs::create_dir_all(path).map_err(refused(path, Operation::Create))?;
    for made in missing {
        let holder = made.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
        SystemDisk.sync_dir(holder).map_err(refused(holder, Operation::Sync))?;
    }
    Ok(())
}

impl Directory {
    /// Opens the directory; makes it if it is not there.
    ///
    /// # Errors
    /// When the disk refuses, or another process has it open.
    pub fn open(path: &Path, style: Style) -> Result<Directory, WalError> {
        make_stable(path)?;
        let lock = path.join("lock");
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(&lock).map_err(refused(&lock, Operation::Create))?;
        match FileLock::take(file).map_err(refused(&lock, Operation::Lock))? {
            Some(lock) => Ok(Directory { path: path.to_owned(), style, _lock: lock }),
            None => Err(WalError::InUse { path: path.to_owned() }),
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The directory of the log of a life.
    pub fn life_path(&self, life: u64) -> PathBuf {
        self.path.join(life_name(life))
    }

    /// Every life that has a log here, the oldest first.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn lives(&self) -> Result<Vec<u64>, WalError> {
        let names = SystemDisk.list(&self.path).map_err(refused(&self.path, Operation::Read))?;
        Ok(names.iter().filter_map(|name| parse_life(name)).collect())
    }

    /// The lives as which a node could return after all nodes have lost power, the oldest first: those with a whole snapshot.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn lives_to_recover(&self) -> Result<Vec<u64>, WalError> {
        let mut whole = Vec::new();
        for life in self.lives()? {
            let dir = self.life_path(life);
            let names = SystemDisk.list(&dir).map_err(refused(&dir, Operation::Read))?;
            if names.iter().any(|name| parse_name(name).is_some_and(|(kind, _)| kind == super::format::FileKind::Snapshot)) {
                whole.push(life);
            }
        }
        Ok(whole)
    }

    /// Begins the log of a new life, in that generation of the cluster.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn begin(&self, life: u64, generation: u64) -> Result<Log<SystemDisk>, WalError> {
        // This comes first: a log without this file belongs to a cluster that was never founded again.
        if generation > 0 {
            let path = self.path.join(generation_name(life, generation));
            SystemDisk.create(&path).map_err(refused(&path, Operation::Create))?;
            SystemDisk.sync_dir(&self.path).map_err(refused(&self.path, Operation::Sync))?;
        }
        Log::create(SystemDisk, &self.life_path(life), self.style, life)
    }

    /// The generation of the cluster in which a life began.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn generation(&self, life: u64) -> Result<u64, WalError> {
        let names = SystemDisk.list(&self.path).map_err(refused(&self.path, Operation::Read))?;
        let of_life = names.iter().filter_map(|name| parse_generation(name)).filter(|(of, _)| *of == life);
        Ok(of_life.map(|(_, generation)| generation).max().unwrap_or(0))
    }

    fn returns(&self, life: u64) -> Result<Vec<u64>, WalError> {
        let names = SystemDisk.list(&self.path).map_err(refused(&self.path, Operation::Read))?;
        Ok(names.iter().filter_map(|name| parse_return(name)).filter(|(of, _)| *of == life).map(|(_, count)| count).collect())
    }

    /// The number of the next return with the log of this life, from 1 on. It stays the same until it is [counted](Self::count_return).
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn next_return(&self, life: u64) -> Result<u64, WalError> {
        Ok(self.returns(life)?.into_iter().max().map_or(1, |last| last + 1))
    }

    /// Counts that return: whatever happens next, its number is not used again.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn count_return(&self, life: u64, count: u64) -> Result<(), WalError> {
        let before = self.returns(life)?;
        let path = self.path.join(return_name(life, count));
        SystemDisk.create(&path).map_err(refused(&path, Operation::Create))?;
        SystemDisk.sync_dir(&self.path).map_err(refused(&self.path, Operation::Sync))?;
        for path in before.iter().map(|count| self.path.join(return_name(life, *count))) {
            SystemDisk.remove(&path).map_err(refused(&path, Operation::Remove))?;
        }
        Ok(())
    }

    /// Reads the log of a life, and opens it to continue.
    ///
    /// # Errors
    /// See [`recover`].
    pub fn recover(&self, life: u64) -> Result<(Recovered, Log<SystemDisk>), WalError> {
        recover(SystemDisk, &self.life_path(life), self.style, life)
    }

    /// Removes the logs of all lives but one.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn keep_only(&self, life: u64) -> Result<(), WalError> {
        for other in self.lives()?.into_iter().filter(|other| *other != life) {
            let dir = self.life_path(other);
            // Snapshots first: without a snapshot a node cannot return with a log, wherever this is interrupted, even by a loss of power.
            let names = SystemDisk.list(&dir).map_err(refused(&dir, Operation::Read))?;
            let (snapshots, others): (Vec<_>, Vec<_>) = names.iter().partition(|name| name.starts_with("snapshot"));
            for names in [snapshots, others] {
                for path in names.into_iter().map(|name| dir.join(name)) {
                    SystemDisk.remove(&path).map_err(refused(&path, Operation::Remove))?;
                }
                SystemDisk.sync_dir(&dir).map_err(refused(&dir, Operation::Sync))?;
            }
            SystemDisk.remove_dir(&dir).map_err(refused(&dir, Operation::Remove))?;
        }
        let names = SystemDisk.list(&self.path).map_err(refused(&self.path, Operation::Read))?;
        let of_another = |name: &str| parse_return(name).or(parse_generation(name)).is_some_and(|(of, _)| of != life);
        for path in names.iter().filter(|name| of_another(name)).map(|name| self.path.join(name)) {
            SystemDisk.remove(&path).map_err(refused(&path, Operation::Remove))?;
        }
        SystemDisk.sync_dir(&self.path).map_err(refused(&self.path, Operation::Sync))
    }
}
