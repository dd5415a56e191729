//! Numbers on the command lines of developers' commands.

use std::fmt::Display;
use std::str::FromStr;

/// Reads the value of an option: a number from 1 to `most`.
///
/// # Errors
/// What is allowed, and the command's usage.
pub fn number<T: FromStr + PartialOrd + Display + From<u8>>(option: &str, text: &str, most: T, usage: &str) -> Result<T, String> {
    let number = text.parse().ok().filter(|number| *number >= T::from(1) && *number <= most);
    number.ok_or_else(|| format!("{option} is {text:?}; allowed are 1 to {most}\n\n{usage}"))
}
