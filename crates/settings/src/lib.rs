//! Files of settings, in TOML; not the settings themselves: what each key may be, and an answer to each mistake that names the file, the line, the key, the value and what is allowed.
//!
//! A kind of file has a table of its keys ([`Keys`]) beside the type that it is read into. [`read`] answers what the parser refuses: a key that is unknown,
//! missing or given twice, and a value of a wrong type. What only the content can tell is checked afterwards, by a [`Checker`], which knows the same table.

#![forbid(unsafe_code)]

mod allowed;
mod error;
mod reading;

pub use allowed::{Allowed, Keys, MOST, Setting, quoted};
pub use error::{Checker, ConfigError};
pub use reading::{MAX_FILE_BYTES, load, read, read_text};

#[cfg(test)]
mod tests;
