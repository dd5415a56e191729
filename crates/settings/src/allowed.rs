//! What each key of a file may be.

use std::fmt;

/// What a key may be: for numbers, the range that does not depend on other keys; for every key, a description.
#[derive(Clone, Copy, Debug)]
pub enum Allowed {
    /// A whole number in this range, whatever the other keys are.
    Number(u64, u64),
    /// `true` or `false`.
    Truth,
    /// What these words describe.
    Words(&'static str),
    /// One of these names.
    Names(&'static [&'static str]),
    /// What words describe that are put together on request.
    Made(fn() -> String),
    /// What these words describe; the value is not shown, since messages end up in logs.
    Hidden(&'static str),
    /// A table of that name.
    Table(&'static str),
}

use Allowed::{Hidden, Made, Names, Number, Table, Truth, Words};

impl fmt::Display for Allowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Number(from, to) => write!(f, "a whole number from {from} to {to}"),
            Truth => f.write_str("true or false"),
            Words(words) | Hidden(words) => f.write_str(words),
            Names(names) => f.write_str(&quoted(names.iter().copied())),
            Made(make) => f.write_str(&make()),
            Table(name) => write!(f, "a table that begins with {name}"),
        }
    }
}

/// Names as they are in a file, one of which is to be chosen.
pub fn quoted<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<String> = names.map(|name| format!("{name:?}")).collect();
    match names.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => names.concat(),
    }
}

/// The most that a number in a TOML file can be.
pub const MOST: u64 = i64::MAX as u64;

/// The key of a setting, and what it may be. The keys of a list of tables have `[..]` after the list's name.
pub type Setting = (&'static str, Allowed);

/// A file whose keys are known.
pub trait Keys {
    /// All keys, in several parts.
    const PARTS: &'static [&'static [Setting]];

    /// All keys.
    fn keys() -> impl Iterator<Item = &'static Setting> {
        Self::PARTS.iter().copied().flatten()
    }
}

/// What the key of that name may be.
pub(crate) fn allowed_for(parts: &[&'static [Setting]], key: &str) -> Option<Allowed> {
    parts.iter().copied().flatten().find_map(|(known, allowed)| is_named(known, key).then_some(*allowed))
}

/// Whether a key is the one known by that name: any place in a list is `[..]`.
pub(crate) fn is_named(known: &str, key: &str) -> bool {
    match known.split_once("[..]") {
        None => known == key,
        Some((list, rest)) => key
            .strip_prefix(list)
            .and_then(|key| key.strip_prefix('['))
            .and_then(|key| key.split_once(']'))
            .is_some_and(|(_, key)| key == rest),
    }
}
