//! Why a configuration is refused.

use std::fmt;
use std::path::{Path, PathBuf};

use super::allowed::{Allowed, Keys, Setting};

/// Why a configuration is refused. Each message names the file and, if it concerns a key, the key, its value, and what is allowed.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: cannot be read: {error}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// The file is not TOML, lacks a key, or has one too many. The parser's message shows the line and what it expected.
    #[error("{}: {message}", file.display())]
    Parse {
        /// The file.
        file: PathBuf,
        /// The parser's message, with line, column and an excerpt.
        message: String,
    },
    /// A key has a value that is not allowed, or not of its type.
    #[error("{}: {key} is {value}; allowed: {allowed}", file.display())]
    Value {
        /// The file.
        file: PathBuf,
        /// The key, with the tables that contain it.
        key: String,
        /// The value found; for a secret, a description of it.
        value: String,
        /// What it may be.
        allowed: String,
    },
}

/// Makes [`ConfigError::Value`]s for one file.
pub(super) struct Checker<'a> {
    file: &'a Path,
    settings: [&'static [Setting]; 2],
}

impl<'a> Checker<'a> {
    /// A checker for a file with the keys of `T`.
    pub(super) fn of<T: Keys>(file: &'a Path) -> Checker<'a> {
        Checker { file, settings: [T::KEYS, T::OF_FABRICS] }
    }

    /// The error for one key.
    pub(super) fn refuse(&self, key: impl fmt::Display, value: impl fmt::Display, allowed: impl fmt::Display) -> ConfigError {
        ConfigError::Value { file: self.file.to_owned(), key: key.to_string(), value: value.to_string(), allowed: allowed.to_string() }
    }

    /// Refuses a number that its key may not have, whatever the other keys are.
    pub(super) fn number(&self, key: &str, value: impl Into<u64>) -> Result<(), ConfigError> {
        let range = self.settings.into_iter().flatten().find_map(|(known, allowed)| match allowed {
            Allowed::Number(from, to) if *known == key => Some(*from..=*to),
            _ => None,
        });
        self.range(key, value.into(), range.unwrap_or_else(|| panic!("broken invariant: it is not known what the number {key} may be")))
    }

    /// Refuses a number outside of a range.
    pub(super) fn range(&self, key: impl fmt::Display, value: u64, range: std::ops::RangeInclusive<u64>) -> Result<(), ConfigError> {
        if range.contains(&value) { Ok(()) } else { Err(self.refuse(key, value, format_args!("{} to {}", range.start(), range.end()))) }
    }
}
