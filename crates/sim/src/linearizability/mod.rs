//! Did the clients see one store that executes their operations one at a time?
//!
//! A history is linearizable when every operation can be given one instant between its call and its return such that, executed in that
//! order, the sequential [`Model`] returns what the clients saw. An operation without a reply may have taken effect at any time after its
//! call, or never.
//!
//! The algorithm is Wing and Gong's search with Lowe's memoisation, as in the porcupine checker, with two additions that histories full of
//! crashes need:
//!
//! - Operations without a reply are *optional*: the search takes one only when the next reply needs it, and a dead end with few of them
//!   taken also rules out all those with more. Without this, each crash doubles the work.
//! - Histories are split by key first: a history is linearizable exactly when its part for each key is (linearizability is local).
//!
//! A history that cannot be linearized is cut down to its shortest prefix that cannot, which names the reply that no order explains.

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
    /// The client that called. One client has at most one operation open at a time; the checker does not rely on it.
    pub client: u64,
    /// Read before the request left the client.
    pub called_ns: u64,
    /// What was asked for.
    pub input: I,
    /// What came of it.
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
    /// No reply: the operation may have taken effect at any time since its call, may still do so, or never.
    ///
    /// An operation that is *known* not to have taken effect (the server refused it) does not belong into a history.
    Unknown,
}

/// What the store should do, one operation at a time.
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

    /// The state after `input`, or `None` when it cannot return `output` in `state`. Without an output (no reply came) any return is fine.
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
    /// The search was given up at one key after as many steps as it was allowed.
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

/// Steps per key after which [`check`] gives up: some seconds of work, and far more than a history of a correct store needs.
pub const DEFAULT_STEPS: u64 = 30_000_000;

/// Judges a history. The order of its operations does not matter.
pub fn check<M: Model>(model: &M, history: &[OperationOf<M>]) -> Verdict<M> {
    check_within(model, history, DEFAULT_STEPS)
}

/// Judges a history and gives up on a key after `steps` steps of the model.
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
            // A violation elsewhere says more: keep looking.
            search::Found::GaveUp => undecided = undecided.or(Some(key)),
        }
    }
    match undecided {
        None => Verdict::Linearizable,
        Some(key) => Verdict::Undecided { key, steps },
    }
}
