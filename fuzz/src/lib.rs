//! What must hold for any bytes that come from outside: from configuration files, from clients, and from peers, which write into our memory.
//!
//! A [`Target`] is a function of bytes that panics when a property does not hold. Three drivers call the same functions:
//! - `tests/corpus.rs`, in the normal suite, over the committed seeds in `corpus/` and over mutations of them;
//! - `fuzz-blind`, over mutations drawn from one seed, for a given time;
//! - `fuzz-guided`, under libFuzzer, which keeps every input that reaches code not reached before.
//!
//! `cargo xtask fuzz` runs them. `docs/verification.md` says whose bytes each target takes; the target's module says what it checks.

#![forbid(unsafe_code)]

pub mod encodings;
mod targets;

use std::fs;
use std::io;
use std::path::PathBuf;

/// A function that takes bytes from outside.
#[derive(Clone, Copy)]
pub struct Target {
    /// Its name, on the command line and in `corpus/`.
    pub name: &'static str,
    /// Where the bytes come from and what is checked, in one line.
    pub about: &'static str,
    /// The longest input worth trying, in bytes.
    pub max_bytes: usize,
    /// Panics when a property does not hold for these bytes.
    pub run: fn(&[u8]),
}

/// Every target, by name.
pub const TARGETS: &[Target] = targets::ALL;

/// The target of that name.
pub fn find(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}

impl Target {
    /// The directory of its committed seeds.
    pub fn corpus_dir(&self) -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("corpus").join(self.name)
    }

    /// Its committed seeds and their names, in order of name.
    pub fn corpus(&self) -> io::Result<Vec<(String, Vec<u8>)>> {
        let mut seeds = Vec::new();
        for entry in fs::read_dir(self.corpus_dir())? {
            let path = entry?.path();
            let name = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
            seeds.push((name, fs::read(&path)?));
        }
        seeds.sort();
        Ok(seeds)
    }
}
