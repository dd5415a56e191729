//! The search for an order, over the operations of one key.
//!
//! A configuration is the set of operations that have been placed in the order so far, together with the state after them. A step places one more operation
//! with a reply, and before it the operations without a reply that it needs. Two facts keep crashes from doubling the work:
//!
//! - An operation without a reply is worth placing only directly before a reply that depends on it. If the reply is possible without the operation and leads to
//!   the same state, or to a state after which the operation can still follow, the operation is left for later.
//! - A configuration that differs from an earlier one only by having used up *more* operations without a reply leads nowhere new.
//!
//! The search itself is in [`depth`]; this module has the configurations that it goes through.

mod depth;

use std::cell::Cell;
use std::hash::Hash;
use std::rc::Rc;

use hashbrown::HashMap;

use super::{Model, OperationOf, Outcome};

pub(super) use depth::Longest;

/// The result of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// An order that explains every reply.
    Order,
    /// No order does.
    None,
    /// Undecided: the search used all of the steps it was allowed.
    GaveUp,
}

/// Searches for an order of `operations`, and returns the longest one that it found.
pub(super) fn run<M: Model>(model: &M, key: &M::Key, operations: &[&OperationOf<M>], steps: u64) -> (Found, Longest<M::State>) {
    depth::run(&Problem::new(model, key, operations, steps))
}

/// An operation with a reply.
struct Returned<'a, M: Model> {
    place: usize,
    called: u64,
    returned: u64,
    input: &'a M::Input,
    output: &'a M::Output,
}

/// An operation without a reply. It is optional, since no client saw it take effect.
struct Optional<'a, M: Model> {
    place: usize,
    called: u64,
    input: &'a M::Input,
    /// The previous operation, by call, that asks for the same. The twin is used first: the two have the same effect, and the twin became possible earlier.
    twin: Option<usize>,
}

/// The operations, and how many steps of the model may still be taken.
struct Problem<'a, M: Model> {
    model: &'a M,
    initial: M::State,
    /// Sorted by call.
    returned: Vec<Returned<'a, M>>,
    /// Sorted by call.
    optional: Vec<Optional<'a, M>>,
    steps_left: Cell<u64>,
}

/// A set of optional operations, sorted.
type Set = Rc<[usize]>;

/// Optional operations in the order in which they take effect.
type Chain = Vec<usize>;

/// What has been placed in the order so far: all operations with a reply below `reach` except the `open` ones, and the optional ones that are `used`.
///
/// The open operations overlap each other, so there are never more of them than clients, however long the history is.
#[derive(Clone)]
struct Configuration<S> {
    spot: Spot<S>,
    used: Set,
}

/// A configuration without its set of used optional operations.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Spot<S> {
    /// One more than the highest operation with a reply that has been placed.
    reach: usize,
    /// The operations below `reach` that have not been placed, sorted.
    open: Vec<usize>,
    /// The state after the order.
    state: S,
}

/// For tables that look a spot up before they store a copy of it.
impl<S: Clone> From<&Spot<S>> for Spot<S> {
    fn from(spot: &Spot<S>) -> Spot<S> {
        spot.clone()
    }
}

/// One way to continue: a chain, then an operation with a reply, and the state after them.
struct Choice<S> {
    chain: Chain,
    returned: usize,
    state: S,
}

/// What can be tried from a configuration.
struct Frame<S> {
    /// Only operations called no later than this can come next.
    earliest_return: u64,
    /// Operations with a reply that can come next.
    next: Vec<usize>,
    /// Ways to continue, best last.
    choices: Vec<Choice<S>>,
    /// Where chains of the length tried so far lead.
    chains: Vec<(S, Chain)>,
    /// For each state, the smallest sets of optional operations with which chains have led to it.
    chained: HashMap<S, Vec<Set>>,
}

impl<'a, M: Model> Problem<'a, M> {
    fn new(model: &'a M, key: &M::Key, operations: &[&'a OperationOf<M>], steps: u64) -> Problem<'a, M> {
        let mut returned = Vec::new();
        let mut optional: Vec<Optional<'a, M>> = Vec::new();
        for (place, operation) in operations.iter().enumerate() {
            let (called, input) = (operation.called_ns, &operation.input);
            match &operation.outcome {
                Outcome::Returned { at_ns, output } => returned.push(Returned { place, called, returned: *at_ns, input, output }),
                Outcome::Unknown => optional.push(Optional { place, called, input, twin: None }),
            }
        }
        returned.sort_by_key(|op| (op.called, op.returned));
        optional.sort_by_key(|op| op.called);
        for at in 0..optional.len() {
            optional[at].twin = optional[..at].iter().rposition(|earlier| earlier.input == optional[at].input);
        }
        Problem { model, initial: model.initial(key), returned, optional, steps_left: Cell::new(steps) }
    }

    fn start(&self) -> Configuration<M::State> {
        let spot = Spot { reach: 0, open: Vec::new(), state: self.initial.clone() };
        Configuration { spot, used: Set::default() }
    }

    /// Whether every operation with a reply has been placed.
    fn complete(&self, spot: &Spot<M::State>) -> bool {
        spot.reach == self.returned.len() && spot.open.is_empty()
    }

    fn out_of_steps(&self) -> bool {
        self.steps_left.get() == 0
    }

    /// The state after an operation with a reply, if it is possible.
    fn reply(&self, state: &M::State, at: usize) -> Option<M::State> {
        self.steps_left.set(self.steps_left.get().saturating_sub(1));
        self.model.step(state, self.returned[at].input, Some(self.returned[at].output))
    }

    /// The state after an optional operation.
    fn effect(&self, state: &M::State, at: usize) -> Option<M::State> {
        self.steps_left.set(self.steps_left.get().saturating_sub(1));
        self.model.step(state, self.optional[at].input, None)
    }

    /// The configuration after a choice.
    fn after(&self, from: &Configuration<M::State>, choice: &Choice<M::State>) -> Configuration<M::State> {
        let Spot { mut reach, mut open, .. } = from.spot.clone();
        if choice.returned < reach {
            open.retain(|&open| open != choice.returned);
        } else {
            open.extend(reach..choice.returned);
            reach = choice.returned + 1;
        }
        let used = if choice.chain.is_empty() { Rc::clone(&from.used) } else { union(&from.used, &choice.chain).into() };
        Configuration { spot: Spot { reach, open, state: choice.state.clone() }, used }
    }

    /// What can come next, without any optional operations so far.
    fn frame(&self, from: &Spot<M::State>) -> Frame<M::State> {
        // Among the operations not yet placed, one that was called after the earliest return cannot come next.
        let mut earliest = from.open.iter().map(|&at| self.returned[at].returned).min().unwrap_or(u64::MAX);
        let mut beyond = from.reach;
        while let Some(op) = self.returned.get(beyond).filter(|op| op.called <= earliest) {
            earliest = earliest.min(op.returned);
            beyond += 1;
        }
        let mut next: Vec<usize> = from.open.iter().copied().chain(from.reach..beyond).collect();
        next.retain(|&at| self.returned[at].called <= earliest);
        // Try the operation with the earliest return first: most stores execute roughly in the order in which they reply.
        next.sort_by_key(|&at| std::cmp::Reverse(self.returned[at].returned));
        let direct = |&at: &usize| Some(Choice { chain: Chain::new(), returned: at, state: self.reply(&from.state, at)? });
        let choices = next.iter().filter_map(direct).collect();
        let chains = vec![(from.state.clone(), Chain::new())];
        Frame { earliest_return: earliest, next, choices, chains, chained: HashMap::new() }
    }

    /// Makes the chains of a configuration longer by one operation, and notes which replies become possible. Returns `false` if there are no more chains.
    fn lengthen_chains(&self, used: &Set, frame: &mut Frame<M::State>) -> bool {
        let callable = self.optional.partition_point(|op| op.called <= frame.earliest_return);
        let shorter = std::mem::take(&mut frame.chains);
        if frame.chained.is_empty() {
            frame.chained.extend(shorter.iter().map(|(state, _)| (state.clone(), vec![Set::default()])));
        }
        // Reused for each chain, since most of them turn out to lead nowhere new.
        let mut sorted = Vec::new();
        for (state, chain) in &shorter {
            let used = |at: usize| used.binary_search(&at).is_ok() || chain.contains(&at);
            for last in 0..callable {
                if used(last) || self.optional[last].twin.is_some_and(|twin| !used(twin)) {
                    continue;
                }
                if self.out_of_steps() {
                    return false;
                }
                let Some(after) = self.effect(state, last) else { continue };
                sorted.clear();
                sorted.extend_from_slice(chain);
                sorted.push(last);
                sorted.sort_unstable();
                if !note_smallest(frame.chained.entry(after.clone()).or_default(), &sorted, || sorted[..].into()) {
                    continue;
                }
                let chain: Chain = chain.iter().copied().chain([last]).collect();
                for &at in &frame.next {
                    let Some(end) = self.reply(&after, at) else { continue };
                    let dispensable = match self.reply(state, at) {
                        None => false,
                        Some(without) => without == end || self.effect(&without, last).is_some_and(|later| later == end),
                    };
                    if !dispensable {
                        frame.choices.push(Choice { chain: chain.clone(), returned: at, state: end });
                    }
                }
                frame.chains.push((after, chain));
            }
        }
        !frame.chains.is_empty()
    }
}

/// Adds `set` to the smallest known sets, unless one of them is a subset of it already: with fewer operations used, everything is still possible that is
/// possible now.
fn note_smallest(known: &mut Vec<Set>, set: &[usize], kept: impl FnOnce() -> Set) -> bool {
    if known.iter().any(|earlier| subset(earlier, set)) {
        return false;
    }
    known.retain(|earlier| !subset(set, earlier));
    known.push(kept());
    true
}

fn union(set: &[usize], more: &[usize]) -> Vec<usize> {
    let mut union = Vec::with_capacity(set.len() + more.len());
    union.extend_from_slice(set);
    union.extend_from_slice(more);
    union.sort_unstable();
    union
}

/// Whether every element of `a` is in `b`; both sorted.
fn subset(a: &[usize], b: &[usize]) -> bool {
    a.len() <= b.len() && a.iter().all(|x| b.binary_search(x).is_ok())
}
