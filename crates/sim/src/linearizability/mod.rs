//! Did the clients see a single store that executes their operations one at a time?
//!
//! A history is linearizable if every operation can be assigned an instant between its call and its return such that the sequential [`Model`], executing the
//! operations in the order of these instants, returns what the clients saw. An operation without a reply may have taken effect at any time after its call, or
//! never.
//!
//! The algorithm is Wing and Gong's search with Lowe's memoisation, as in the porcupine checker, with two additions that histories full of crashes need:
//!
//! - Operations without a reply are *optional*: the search takes one only when the next reply needs it, and a dead end with few of them taken also rules out
//!   all configurations with more. Without this, each crash doubles the work.
//! - Histories are split by key first: a history is linearizable exactly when its part for each key is (linearizability is local).
//!
//! A history that cannot be linearized is cut down to the shortest prefix that cannot. This names the reply that no order explains.

mod explain;
pub mod kv;
mod search;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::hash::Hash;

pub use explain::Violation;

/// One operation as its client saw it. Times are nanoseconds on one clock that all clients share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation<I, O> {
    /// The client that called. A client has at most one operation open at a time, but the checker does not rely on that.
    pub client: u64,
    /// Read before the request left the client.
    pub called_ns: u64,
    /// What was asked for.
    pub input: I,
    /// How it ended.
    pub outcome: Outcome<O>,
}

/// The end of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome<O> {
    /// A reply came.
    Returned {
        /// Read after the reply had arrived.
        at_ns: u64,
        /// What it said.
        output: O,
    },
    /// No reply: the operation may have taken effect at any time since its call, may still take effect, or may never.
    ///
    /// An operation that is *known* not to have taken effect (the server refused it) does not belong in a history.
    Unknown,
}

/// How the store should behave, one operation at a time.
pub trait Model {
    /// Operations with different keys do not affect each other.
    type Key: Ord + Clone + Debug;
    /// What one key holds.
    type State: Clone + Eq + Hash + Debug;
    /// A request.
    type Input: Debug + Clone + PartialEq;
    /// A reply.
    type Output: Debug + Clone;

    /// The key that a request is about.
    fn key(&self, input: &Self::Input) -> Self::Key;

    /// What a key holds at first.
    fn initial(&self, key: &Self::Key) -> Self::State;

    /// The state after `input`, or `None` when it cannot return `output` in `state`. If `output` is `None`, because no reply came, any return value is
    /// possible.
    fn step(&self, state: &Self::State, input: &Self::Input, output: Option<&Self::Output>) -> Option<Self::State>;
}

/// The operations of a model's history.
pub type OperationOf<M> = Operation<<M as Model>::Input, <M as Model>::Output>;

/// What the checker found.
#[derive(Debug)]
pub enum Verdict<M: Model> {
    /// There is an order that explains every reply.
    Linearizable,
    /// There is none.
    Violation(Box<Violation<M>>),
    /// The search gave up at one key after as many steps as it was allowed.
    Undecided {
        /// The key.
        key: M::Key,
        /// The steps taken there.
        steps: u64,
    },
}

impl<M: Model> Verdict<M> {
    /// Whether an order was found.
    pub fn is_linearizable(&self) -> bool {
        matches!(self, Verdict::Linearizable)
    }
}

/// Steps per key after which [`check`] gives up: some seconds of work, and far more than the history of a correct store needs.
pub const DEFAULT_STEPS: u64 = 30_000_000;

/// Judges a history. The order of its operations does not matter.
pub fn check<M: Model>(model: &M, history: &[OperationOf<M>]) -> Verdict<M> {
    check_within(model, history, DEFAULT_STEPS)
}

/// Judges a history, and gives up on a key after `steps` steps of the model.
///
/// # Panics
/// When an operation returns before it was called.
pub fn check_within<M: Model>(model: &M, history: &[OperationOf<M>], steps: u64) -> Verdict<M> {
    let mut by_key: BTreeMap<M::Key, Vec<&OperationOf<M>>> = BTreeMap::new();
    for operation in history {
        if let Outcome::Returned { at_ns, .. } = operation.outcome {
            assert!(at_ns >= operation.called_ns, "an operation returns before it is called: {operation:?}");
        }
        by_key.entry(model.key(&operation.input)).or_default().push(operation);
    }
    let mut undecided = None;
    for (key, operations) in by_key {
        match search::run(model, &key, &operations, steps).0 {
            search::Found::Order => {}
            search::Found::None => return Verdict::Violation(Box::new(explain::shortest(model, key, &operations, steps))),
            // A violation at another key says more, so keep looking.
            search::Found::GaveUp => undecided = undecided.or(Some(key)),
        }
    }
    match undecided {
        None => Verdict::Linearizable,
        Some(key) => Verdict::Undecided { key, steps },
    }
}
