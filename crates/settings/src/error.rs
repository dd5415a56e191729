//! Why a file of settings is refused.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::allowed::{Allowed, Keys, Setting, allowed_for};
use crate::reading::line_of;

/// Why a configuration is refused. Each message names the file, the line if it is known, the key, its value, and what is allowed.
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
    /// The file is not TOML.
    #[error("{}{message}", at(file, *line))]
    Parse {
        /// The file.
        file: PathBuf,
        /// The line, from 1 on.
        line: Option<usize>,
        /// The text in question, and what the parser says about it.
        message: String,
    },
    /// A key is unknown, missing or given twice, or has a value that is not allowed or not of its type.
    #[error("{}{key} is {value}; allowed: {allowed}", at(file, *line))]
    Value {
        /// The file.
        file: PathBuf,
        /// The line, from 1 on, if it is known.
        line: Option<usize>,
        /// The key, with the tables that contain it.
        key: String,
        /// The value found; for a secret, a description of it.
        value: String,
        /// What it may be.
        allowed: String,
    },
}

/// How a message begins. A text that comes from no file has no name.
fn at(file: &Path, line: Option<usize>) -> String {
    let name = file.display();
    match (file.as_os_str().is_empty(), line) {
        (true, None) => String::new(),
        (true, Some(line)) => format!("line {line}: "),
        (false, None) => format!("{name}: "),
        (false, Some(line)) => format!("{name}, line {line}: "),
    }
}

impl ConfigError {
    /// The same error, with the line of the text on which its key stands.
    #[must_use]
    pub fn in_text(mut self, text: &str) -> ConfigError {
        if let ConfigError::Value { line, key, .. } = &mut self
            && line.is_none()
        {
            *line = line_of(text, key);
        }
        self
    }
}

/// Makes [`ConfigError::Value`]s for one file.
#[derive(Clone, Copy, Debug)]
pub struct Checker<'a> {
    file: &'a Path,
    parts: &'static [&'static [Setting]],
}

impl<'a> Checker<'a> {
    /// A checker for a file with the keys of `T`.
    pub fn of<T: Keys>(file: &'a Path) -> Checker<'a> {
        Checker { file, parts: T::PARTS }
    }

    /// The error for one key.
    pub fn refuse(&self, key: impl fmt::Display, value: impl fmt::Display, allowed: impl fmt::Display) -> ConfigError {
        let (file, key) = (self.file.to_owned(), key.to_string());
        ConfigError::Value { file, line: None, key, value: value.to_string(), allowed: allowed.to_string() }
    }

    /// The error for a key whose value is not what the table says.
    ///
    /// # Panics
    /// If the table does not have the key.
    pub fn refuse_known(&self, key: &str, value: impl fmt::Display) -> ConfigError {
        self.refuse(key, value, self.allowed(key))
    }

    /// Refuses a number that its key may not have, whatever the other keys are.
    ///
    /// # Panics
    /// If the table does not say of the key that it is a number.
    pub fn number(&self, key: &str, value: impl Into<u64>) -> Result<(), ConfigError> {
        let Allowed::Number(from, to) = self.allowed(key) else { panic!("broken invariant: {key} is no number") };
        self.range(key, value.into(), from..=to)
    }

    /// Refuses a number outside of a range.
    pub fn range(&self, key: impl fmt::Display, value: u64, range: std::ops::RangeInclusive<u64>) -> Result<(), ConfigError> {
        if range.contains(&value) { Ok(()) } else { Err(self.refuse(key, value, format_args!("{} to {}", range.start(), range.end()))) }
    }

    fn allowed(&self, key: &str) -> Allowed {
        allowed_for(self.parts, key).unwrap_or_else(|| panic!("broken invariant: it is not known what {key} may be"))
    }
}
