//! The key-value store as it should behave: keys that hold bytes or nothing.

use std::fmt;
use std::sync::Arc;

use super::Model;

/// Bytes of a key or a value, shared between a history's operations.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub Arc<[u8]>);

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 48;
        let (head, more) = self.0.split_at(self.0.len().min(SHOWN));
        write!(f, "\"{}\"", head.escape_ascii())?;
        if more.is_empty() { Ok(()) } else { write!(f, " and {} bytes more", more.len()) }
    }
}

impl<T: AsRef<[u8]> + ?Sized> From<&T> for Bytes {
    fn from(bytes: &T) -> Bytes {
        Bytes(bytes.as_ref().into())
    }
}

/// A request about one key.
#[derive(Clone, PartialEq, Eq)]
pub struct Input {
    /// The key.
    pub key: Bytes,
    /// What to do with it.
    pub action: Action,
}

impl fmt::Debug for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.action)
    }
}

/// What to do with a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Read it. Returns [`Output::Value`].
    Get,
    /// Set it. Returns [`Output::Done`].
    Put(Bytes),
    /// Remove it. Returns [`Output::Changed`]: whether it was there.
    Delete,
    /// Set it to `new` if it holds `expected`. Returns [`Output::Changed`].
    CompareAndSwap {
        /// What it must hold; `None`: nothing.
        expected: Option<Bytes>,
        /// What it then holds.
        new: Bytes,
    },
    /// Add to the decimal number that it holds (an absent value counts as 0). Returns [`Output::Number`], or [`Output::Refused`] when it does not hold a number
    /// or the sum does not fit.
    Add(i64),
    /// Append. Returns [`Output::Length`].
    Append(Bytes),
}

/// A reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// The value that the key holds.
    Value(Option<Bytes>),
    /// It is done.
    Done,
    /// Whether it was changed.
    Changed(bool),
    /// The sum.
    Number(i64),
    /// The length after the change, in bytes.
    Length(u64),
    /// The key's value does not allow it; nothing has changed.
    Refused,
}

/// The model of one store.
#[derive(Clone, Copy, Debug, Default)]
pub struct Store;

impl Model for Store {
    type Key = Bytes;
    type State = Option<Bytes>;
    type Input = Input;
    type Output = Output;

    fn key(&self, input: &Input) -> Bytes {
        input.key.clone()
    }

    fn initial(&self, _key: &Bytes) -> Option<Bytes> {
        None
    }

    fn step(&self, state: &Option<Bytes>, input: &Input, output: Option<&Output>) -> Option<Option<Bytes>> {
        // The most frequent case comes first, and copies no value.
        if let (Action::Get, Some(Output::Value(seen))) = (&input.action, output) {
            return (seen == state).then(|| state.clone());
        }
        let (next, expected) = execute(state, &input.action);
        output.is_none_or(|seen| *seen == expected).then_some(next)
    }
}

/// The store's result for one action.
pub(super) fn execute(state: &Option<Bytes>, action: &Action) -> (Option<Bytes>, Output) {
    match action {
        Action::Get => (state.clone(), Output::Value(state.clone())),
        Action::Put(value) => (Some(value.clone()), Output::Done),
        Action::Delete => (None, Output::Changed(state.is_some())),
        Action::CompareAndSwap { expected, new } if expected == state => (Some(new.clone()), Output::Changed(true)),
        Action::CompareAndSwap { .. } => (state.clone(), Output::Changed(false)),
        Action::Add(by) => match number(state).and_then(|n| n.checked_add(*by)) {
            Some(sum) => (Some(Bytes::from(sum.to_string().as_bytes())), Output::Number(sum)),
            None => (state.clone(), Output::Refused),
        },
        Action::Append(more) => {
            let mut value = state.as_ref().map_or(Vec::new(), |held| held.0.to_vec());
            value.extend_from_slice(&more.0);
            let length = value.len() as u64;
            (Some(Bytes(value.into())), Output::Length(length))
        }
    }
}

fn number(state: &Option<Bytes>) -> Option<i64> {
    match state {
        None => Some(0),
        Some(held) => std::str::from_utf8(&held.0).ok()?.parse().ok(),
    }
}
