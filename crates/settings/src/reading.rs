//! Reading a file, and saying in its own terms what the parser refuses.

use std::io::Read as _;
use std::ops::Range;
use std::path::Path;

use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::allowed::{Allowed, Keys, allowed_for, is_named};
use crate::error::ConfigError;

/// A larger file is none of settings.
pub const MAX_FILE_BYTES: u64 = 1 << 20;

/// The longest value that is repeated as it is, in bytes.
const MAX_SHOWN_BYTES: usize = 120;

/// The text of a file of at most so many bytes.
///
/// # Errors
/// [`ConfigError::Read`].
pub fn read_text(file: &Path, most: u64) -> Result<String, ConfigError> {
    let failed = |error| ConfigError::Read { file: file.to_owned(), error };
    let mut text = String::new();
    let n = std::fs::File::open(file).map_err(failed)?.take(most + 1).read_to_string(&mut text).map_err(failed)?;
    if n as u64 > most {
        let error = std::io::Error::other(format!("it is longer than {most} bytes, the most that is allowed"));
        return Err(failed(error));
    }
    Ok(text)
}

/// Reads a file of at most [`MAX_FILE_BYTES`]. Also returns its text, with which later errors can be given a line.
///
/// # Errors
/// As for [`read_text`] and [`read`].
pub fn load<T: DeserializeOwned + Keys>(file: &Path) -> Result<(T, String), ConfigError> {
    let text = read_text(file, MAX_FILE_BYTES)?;
    Ok((read(file, &text)?, text))
}

/// Reads the text of a file. `file` is for errors; it is empty if the text comes from none.
///
/// # Errors
/// When the text is not TOML, or a key is unknown, missing, given twice or of a wrong type.
pub fn read<T: DeserializeOwned + Keys>(file: &Path, text: &str) -> Result<T, ConfigError> {
    toml::from_str(text).map_err(|error| {
        let place = error.span();
        let at = place.clone().unwrap_or(0..0);
        let whole = DeTable::parse(text);
        let known = match &whole {
            Err(_) => given_twice(text, &at, &error),
            Ok(whole) => {
                let root = Table { content: whole.get_ref(), path: String::new() };
                unknown_key::<T>(&root, text, &at, &error)
                    .or_else(|| missing_key::<T>(&root, &at, &error))
                    .or_else(|| wrong_value::<T>(&root, text, &at))
            }
        };
        let (file, line) = (file.to_owned(), line_at_byte(text, at.start));
        if let Some(Wrong { has_place, key, value, allowed }) = known {
            return ConfigError::Value { file, line: has_place.then_some(line), key, value, allowed };
        }
        let says = error.message().replace('\n', ", ");
        let message = if whole.is_ok() { says } else { format!("{} is not TOML: {says}", shown_line::<T>(text, line)) };
        ConfigError::Parse { file, line: place.map(|_| line), message }
    })
}

/// A line of the text, unless it is long. Of a file that may have secrets, only a known key or heading is shown: the name of a secret's key may be misspelt,
/// and a line be part of a secret text of several lines.
fn shown_line<T: Keys>(text: &str, line: usize) -> String {
    let written = text.lines().nth(line - 1).unwrap_or_default();
    let has_secrets = T::keys().any(|(_, allowed)| matches!(allowed, Allowed::Hidden(_)));
    let is_known = |name: &str| T::keys().any(|(key, _)| key.rsplit('.').next() == Some(name));
    let shown = match written.split_once('=') {
        _ if !has_secrets => Some(written.to_owned()),
        Some((key, _)) if !is_known(key.trim()) => None,
        Some((key, value)) => Some(format!("{key}={}", if value.trim().is_empty() { "" } else { " ..." })),
        None => is_known(written.trim().trim_matches(['[', ']'])).then(|| written.to_owned()),
    };
    shown.filter(|shown| shown.len() <= MAX_SHOWN_BYTES).map_or_else(|| "it".to_owned(), |shown| format!("{shown:?}"))
}

/// What is wrong with a key.
struct Wrong {
    /// Whether the place that the parser names is where it is wrong.
    has_place: bool,
    key: String,
    value: String,
    allowed: String,
}

/// A table of a file, and its key.
struct Table<'t, 'd> {
    content: &'t DeTable<'d>,
    path: String,
}

impl Table<'_, '_> {
    fn key(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// Calls `visit` with everything in it, from the outside inwards.
    fn walk(&self, visit: &mut dyn FnMut(&Found<'_>)) {
        for (name, value) in self.content {
            Found { place: name.span(), table: &self.path, key: self.key(name.get_ref()), value }.walk(visit);
        }
    }
}

/// A value of a file.
struct Found<'t> {
    /// Where its key is, or, in a list, the value itself.
    place: Range<usize>,
    /// The key of the table that contains it.
    table: &'t str,
    key: String,
    value: &'t Spanned<DeValue<'t>>,
}

impl Found<'_> {
    fn walk(self, visit: &mut dyn FnMut(&Found<'_>)) {
        visit(&self);
        let Found { table, key, value, .. } = self;
        match value.get_ref() {
            DeValue::Table(content) => Table { content, path: key }.walk(visit),
            DeValue::Array(list) => {
                let values = list.iter().enumerate();
                values.for_each(|(i, value)| Found { place: value.span(), table, key: format!("{key}[{i}]"), value }.walk(visit));
            }
            _ => {}
        }
    }
}

/// A key that stands twice in one table, or a table that begins twice.
fn given_twice(text: &str, at: &Range<usize>, error: &toml::de::Error) -> Option<Wrong> {
    let is_twice = error.message().starts_with("duplicate key");
    let key = text.get(at.clone()).filter(|key| is_twice && !key.is_empty() && !key.contains('\n'))?;
    // The table's heading, unless the key stands in one itself.
    let heading = |line: &str| line.trim().strip_prefix('[').map(|rest| rest.trim_matches(['[', ']']).trim().to_owned());
    let of_list = |line: &str| line.trim_start().starts_with("[[");
    let before = text.get(..at.start).unwrap_or_default();
    let is_heading = before.rsplit('\n').next().is_some_and(|line| line.trim_start().starts_with('['));
    let table = before.lines().rev().find(|line| heading(line).is_some()).filter(|_| !is_heading).and_then(|line| {
        let name = heading(line)?;
        let earlier = before.lines().filter(|other| of_list(other) && heading(other).as_ref() == Some(&name)).count();
        Some(if of_list(line) { format!("{name}[{}]", earlier - 1) } else { name })
    });
    let key = table.map_or_else(|| key.to_owned(), |table| format!("{table}.{key}"));
    Some(Wrong { has_place: true, key, value: "given twice".into(), allowed: "once".into() })
}

fn unknown_key<T: Keys>(root: &Table<'_, '_>, text: &str, at: &Range<usize>, error: &toml::de::Error) -> Option<Wrong> {
    if !error.message().starts_with("unknown field") {
        return None;
    }
    let mut found = None;
    root.walk(&mut |Found { place, table, key, .. }| {
        // A date in a list is read as a table, too, but is no key.
        if place == at && !key.ends_with(']') {
            found = Some((*table).to_owned());
        }
    });
    let table = found?;
    // As it is written: in quotes, it can be any text.
    let name = text.get(at.clone()).unwrap_or_default();
    let name = if name.len() <= MAX_SHOWN_BYTES { name.to_owned() } else { format!("a key of {} bytes", name.len()) };
    let key = if table.is_empty() { name } else { format!("{table}.{name}") };
    let beside = |known: &str| {
        let (of, name) = known.rsplit_once('.').unwrap_or(("", known));
        (!name.ends_with(']') && (of == table || is_named(of, &table))).then(|| name.to_owned())
    };
    let allowed: Vec<String> = T::keys().filter_map(|(known, _)| beside(known)).collect();
    Some(Wrong { has_place: true, key, value: "an unknown key".into(), allowed: allowed.join(", ") })
}

fn missing_key<T: Keys>(root: &Table<'_, '_>, at: &Range<usize>, error: &toml::de::Error) -> Option<Wrong> {
    let name = error.message().strip_prefix("missing field `")?.split('`').next()?;
    let mut table = None;
    root.walk(&mut |Found { key, value, .. }| {
        if value.span() == *at && value.get_ref().is_table() {
            table = Some(key.clone());
        }
    });
    let key = table.as_ref().map_or_else(|| name.to_owned(), |table| format!("{table}.{name}"));
    let allowed = allowed_for(T::PARTS, &key)?.to_string();
    Some(Wrong { has_place: table.is_some(), key, value: "missing".into(), allowed })
}

/// The value at that place, if its key is known: the innermost such value.
fn wrong_value<T: Keys>(root: &Table<'_, '_>, text: &str, at: &Range<usize>) -> Option<Wrong> {
    let mut found = None;
    root.walk(&mut |Found { key, value, .. }| {
        let span = value.span();
        // A table's own place is that of its heading, so its content is looked at in any case.
        if span.start > at.start || at.end > span.end {
            return;
        }
        // A value in a list, or in a table where there should be none, is reported under the key that holds the list or table.
        if let Some(allowed) = allowed_for(T::PARTS, key) {
            let shown = shown(text, value, matches!(allowed, Allowed::Hidden(_)));
            // Inside a table that may be one, something else is wrong.
            let is_right = value.get_ref().is_table() && (matches!(allowed, Allowed::Table(_)) || key.ends_with(']'));
            let wrong = || Wrong { has_place: true, key: key.clone(), value: shown, allowed: allowed.to_string() };
            found = (!is_right).then(wrong);
        }
    });
    found
}

/// A value as it is in the file, or a description of it.
fn shown(text: &str, value: &Spanned<DeValue<'_>>, secret: bool) -> String {
    let what = match value.get_ref() {
        DeValue::String(_) => "a text",
        DeValue::Integer(_) | DeValue::Float(_) => "a number",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    };
    let written = text.get(value.span()).unwrap_or_default();
    let is_short = !written.is_empty() && written.len() <= MAX_SHOWN_BYTES && !written.contains('\n');
    // If a table has a heading, the text at its place is only that heading.
    let has_heading = match value.get_ref() {
        DeValue::Table(_) => true,
        DeValue::Array(list) => list.iter().any(|value| value.get_ref().is_table()),
        _ => false,
    };
    let is_whole = is_short && !has_heading;
    if is_whole && !secret { written.to_owned() } else { what.to_owned() }
}

/// The line of a place in a text, from 1 on.
fn line_at_byte(text: &str, at: usize) -> usize {
    text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1
}

/// The line on which a key stands, or the table that it would stand in, from 1 on.
pub(crate) fn line_of(text: &str, key: &str) -> Option<usize> {
    let whole = DeTable::parse(text).ok()?;
    let (mut found, mut best) = (None, 0);
    Table { content: whole.get_ref(), path: String::new() }.walk(&mut |Found { place, key: known, .. }| {
        let rest = key.strip_prefix(known.as_str());
        if known.len() > best && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.')) {
            (found, best) = (Some(line_at_byte(text, place.start)), known.len());
        }
    });
    found
}
