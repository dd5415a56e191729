//! The search for an order, over the operations of one key.
//!
//! A configuration is the set of operations that stand in the order so far, with the state after them. A step places one more operation
//! with a reply, and before it those without a reply that it needs. Two facts keep crashes from doubling the work:
//!
//! - An operation without a reply is worth placing only directly before a reply that depends on it. If the reply is possible without it and
//!   ends in the same state, or in a state from which it can still follow, then it is left for later.
//! - A configuration that differs from an earlier one only by *more* of them used up leads nowhere else.
//!
//! The search itself is [`depth`]; here is what it goes through.

mod depth;

use std::cell::Cell;
use std::hash::Hash;
use std::rc::Rc;

use hashbrown::HashMap;

use super::{Model, OperationOf, Outcome};

pub(super) use depth::Longest;

/// What came of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// An order that explains every reply.
    Order,
    /// No order does.
    None,
    /// Neither, after as many steps as were allowed.
    GaveUp,
}

/// Searches for an order of `operations`, and returns the longest that it got to.
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

/// An operation without one: optional, since nobody saw it take effect.
struct Optional<'a, M: Model> {
    place: usize,
    called: u64,
    input: &'a M::Input,
    /// The one called before it that asks for the same. It is used first: the two are worth the same, and it has been there longer.
    twin: Option<usize>,
}

/// The operations, and how many steps of the model may still be taken.
struct Problem<'a, M: Model> {
    model: &'a M,
    initial: M::State,
    /// By call.
    returned: Vec<Returned<'a, M>>,
    /// By call.
    optional: Vec<Optional<'a, M>>,
    steps_left: Cell<u64>,
}

/// A set of optional operations, sorted.
type Set = Rc<[usize]>;

/// Optional operations in the order in which they take effect.
type Chain = Vec<usize>;

/// What stands in the order so far: all operations with a reply below `reach` but the `open` ones, and the optional ones that are `used`.
///
/// The open ones overlap each other, so there are never more of them than clients, however long the history is.
#[derive(Clone)]
struct Configuration<S> {
    spot: Spot<S>,
    used: Set,
}

/// A configuration but for the optional operations used.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Spot<S> {
    /// One more than the highest operation with a reply that is in the order.
    reach: usize,
    /// Those below `reach` that are not, sorted.
    open: Vec<usize>,
    /// The state after the order.
    state: S,
}

/// For tables that look a spot up before they keep a copy of it.
impl<S: Clone> From<&Spot<S>> for Spot<S> {
    fn from(spot: &Spot<S>) -> Spot<S> {
        spot.clone()
    }
}

/// One way to go on: a chain, then an operation with a reply, with the state after them.
struct Choice<S> {
    chain: Chain,
    returned: usize,
    state: S,
}

/// What could be tried from a configuration.
struct Frame<S> {
    /// Operations called no later than this can come next.
    earliest_return: u64,
    /// Operations with a reply that can come next.
    next: Vec<usize>,
    /// Ways to go on, best last.
    choices: Vec<Choice<S>>,
    /// Where chains of the length tried so far lead.
    chains: Vec<(S, Chain)>,
    /// The smallest sets of optional operations by which chains have led to a state.
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

    /// Whether every operation with a reply has its place.
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

    /// What can come next, without optional operations so far.
    fn frame(&self, from: &Spot<M::State>) -> Frame<M::State> {
        // What was called after the earliest return among the operations without a place cannot come next.
        let mut earliest = from.open.iter().map(|&at| self.returned[at].returned).min().unwrap_or(u64::MAX);
        let mut beyond = from.reach;
        while let Some(op) = self.returned.get(beyond).filter(|op| op.called <= earliest) {
            earliest = earliest.min(op.returned);
            beyond += 1;
        }
        let mut next: Vec<usize> = from.open.iter().copied().chain(from.reach..beyond).collect();
        next.retain(|&at| self.returned[at].called <= earliest);
        // The earliest return is tried first: most stores execute in about the order in which they reply.
        next.sort_by_key(|&at| std::cmp::Reverse(self.returned[at].returned));
        let direct = |&at: &usize| Some(Choice { chain: Chain::new(), returned: at, state: self.reply(&from.state, at)? });
        let choices = next.iter().filter_map(direct).collect();
        let chains = vec![(from.state.clone(), Chain::new())];
        Frame { earliest_return: earliest, next, choices, chains, chained: HashMap::new() }
    }

    /// Makes the chains of a configuration longer by one, and notes which replies become possible by them. `false`: there are none left.
    fn lengthen_chains(&self, used: &Set, frame: &mut Frame<M::State>) -> bool {
        let callable = self.optional.partition_point(|op| op.called <= frame.earliest_return);
        let shorter = std::mem::take(&mut frame.chains);
        if frame.chained.is_empty() {
            frame.chained.extend(shorter.iter().map(|(state, _)| (state.clone(), vec![Set::default()])));
        }
        // Used again for each, since most turn out to lead nowhere new.
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

/// Adds `set` to the smallest ones known, unless one of them is part of it already: whoever came with fewer could still do all that we can.
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
