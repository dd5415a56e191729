//! A disk in memory that can lose power, fill up and break.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use super::super::disk::Disk;

/// How an operation fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A write takes only a part, and the next write says that the disk is full.
    Full,
    /// The operation fails, and whatever was not stable before is lost.
    Broken,
}

#[derive(Clone, Debug, Default)]
struct Content {
    bytes: Vec<u8>,
    /// How many bytes are stable.
    stable: usize,
}

#[derive(Clone, Debug, Default)]
pub struct State {
    next: u64,
    files: BTreeMap<u64, Content>,
    /// The names as processes see them, and as they would be after a loss of power.
    names: BTreeMap<PathBuf, u64>,
    stable_names: BTreeMap<PathBuf, u64>,
    /// How many operations have changed something so far.
    pub operations: u64,
    /// The operation that fails, and how.
    pub fault: Option<(u64, Fault)>,
    pub syncs: u64,
    /// The bytes of each push.
    pub pushed: Vec<u64>,
    /// An operation has failed. From then on every operation that changes something is counted.
    failed: bool,
    pub after_failure: u64,
}

/// Clones share the same disk.
#[derive(Clone, Debug, Default)]
pub struct MemoryDisk(pub Arc<Mutex<State>>);

impl MemoryDisk {
    pub fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().expect("no test panics within")
    }

    /// Another disk with the present content of this one.
    pub fn copy(&self) -> MemoryDisk {
        MemoryDisk(Arc::new(Mutex::new(self.state().clone())))
    }

    /// Removes what was not stable, wholly or in part, or replaces it by other bytes.
    pub fn lose_power(&self, rng: &mut fastrand::Rng) {
        let mut state = self.state();
        let State { files, names, stable_names, failed, fault, .. } = &mut *state;
        (*failed, *fault) = (false, None);
        // A name may have become stable by itself.
        for (path, file) in names.iter() {
            if rng.bool() {
                stable_names.entry(path.clone()).or_insert(*file);
            }
        }
        *names = stable_names.clone();
        for content in files.values_mut() {
            let keep = rng.usize(content.stable..=content.bytes.len());
            content.bytes.truncate(keep);
            // Blocks reach the disk in any order: those that did not are as they were before.
            if rng.bool() {
                for byte in &mut content.bytes[content.stable..] {
                    *byte = if rng.u8(..) < 20 { 0 } else { *byte };
                }
            }
            content.stable = content.bytes.len();
        }
    }

    pub fn alter(&self, name: &str, at: usize) {
        self.rewrite(name, |bytes| bytes[at] ^= 1);
    }

    pub fn rewrite(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let mut state = self.state();
        let file = *state.names.iter().find(|(path, _)| path.ends_with(name)).expect("a file of that name").1;
        change(&mut state.files.get_mut(&file).expect("named").bytes);
    }

    pub fn names(&self) -> Vec<String> {
        self.state().names.keys().map(|path| path.file_name().expect("a file").to_string_lossy().into_owned()).collect()
    }

    pub fn len(&self, name: &str) -> usize {
        let state = self.state();
        state.files[state.names.iter().find(|(path, _)| path.ends_with(name)).expect("a file of that name").1].bytes.len()
    }
}

impl State {
    /// Counts an operation. Returns `Err` for the one that fails.
    fn begin(&mut self) -> Result<(), Fault> {
        self.operations += 1;
        self.after_failure += u64::from(self.failed);
        match self.fault {
            Some((at, fault)) if self.operations >= at => {
                self.failed = true;
                Err(fault)
            }
            _ => Ok(()),
        }
    }

    fn attempt(&mut self) -> io::Result<()> {
        self.begin().map_err(|fault| match fault {
            Fault::Full => io::ErrorKind::StorageFull.into(),
            Fault::Broken => io::Error::from_raw_os_error(5),
        })
    }
}

impl Disk for MemoryDisk {
    type File = u64;

    fn create(&mut self, path: &Path) -> io::Result<u64> {
        let mut state = self.state();
        state.attempt()?;
        if state.names.contains_key(path) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        state.next += 1;
        let file = state.next;
        state.files.insert(file, Content::default());
        state.names.insert(path.to_owned(), file);
        Ok(file)
    }

    fn write(&mut self, file: &mut u64, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.state();
        let full = state.failed && state.fault.is_some_and(|(_, fault)| fault == Fault::Full);
        let begun = state.begin();
        let content = state.files.get_mut(file).expect("open");
        match begun {
            Err(Fault::Full) if !full => {
                let part = bytes.len() / 2;
                content.bytes.extend_from_slice(&bytes[..part]);
                if part == 0 { Err(io::ErrorKind::StorageFull.into()) } else { Ok(part) }
            }
            Err(Fault::Full) => Err(io::ErrorKind::StorageFull.into()),
            Err(Fault::Broken) => Err(io::Error::from_raw_os_error(5)),
            // A write may take less than it was given, at any time.
            Ok(()) if bytes.len() > 40 => {
                content.bytes.extend_from_slice(&bytes[..40]);
                Ok(40)
            }
            Ok(()) => {
                content.bytes.extend_from_slice(bytes);
                Ok(bytes.len())
            }
        }
    }

    fn sync(&mut self, file: &mut u64) -> io::Result<()> {
        let mut state = self.state();
        state.syncs += 1;
        let done = state.attempt();
        let content = state.files.get_mut(file).expect("open");
        match done {
            Ok(()) => content.stable = content.bytes.len(),
            // As the kernel does: the pages count as clean, but are not written.
            Err(_) => content.bytes.truncate(content.stable),
        }
        done
    }

    fn push(&mut self, file: &mut u64, from: u64) -> io::Result<()> {
        let mut state = self.state();
        let length = state.files[file].bytes.len() as u64 - from;
        state.pushed.push(length);
        state.attempt()
    }

    fn shorten(&mut self, path: &Path, bytes: u64) -> io::Result<()> {
        let mut state = self.state();
        state.attempt()?;
        let file = state.names[path];
        let content = state.files.get_mut(&file).expect("named");
        content.bytes.truncate(bytes as usize);
        content.stable = content.bytes.len();
        Ok(())
    }

    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.state();
        state.attempt()?;
        let file = state.names.remove(from).ok_or(io::ErrorKind::NotFound)?;
        state.names.insert(to.to_owned(), file);
        Ok(())
    }

    fn remove(&mut self, path: &Path) -> io::Result<()> {
        let mut state = self.state();
        state.attempt()?;
        state.names.remove(path).map(drop).ok_or(io::ErrorKind::NotFound.into())
    }

    fn create_dir(&mut self, _: &Path) -> io::Result<()> {
        self.state().attempt()
    }

    fn remove_dir(&mut self, _: &Path) -> io::Result<()> {
        self.state().attempt()
    }

    fn sync_dir(&mut self, dir: &Path) -> io::Result<()> {
        let mut state = self.state();
        state.attempt()?;
        let State { names, stable_names, .. } = &mut *state;
        stable_names.retain(|path, _| path.parent() != Some(dir));
        stable_names.extend(names.iter().filter(|(path, _)| path.parent() == Some(dir)).map(|(path, file)| (path.clone(), *file)));
        Ok(())
    }

    fn list(&mut self, dir: &Path) -> io::Result<Vec<String>> {
        let state = self.state();
        let inside = state.names.keys().filter(|path| path.parent() == Some(dir));
        Ok(inside.map(|path| path.file_name().expect("a file").to_string_lossy().into_owned()).collect())
    }

    fn read(&mut self, path: &Path) -> io::Result<Vec<u8>> {
        let state = self.state();
        let file = state.names.get(path).ok_or(io::ErrorKind::NotFound)?;
        Ok(state.files[file].bytes.clone())
    }
}
