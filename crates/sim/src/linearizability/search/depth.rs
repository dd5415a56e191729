//! Depth-first search that tries the likeliest step first, with Lowe's memo of where the search has been.

use hashbrown::HashMap;

use super::{Chain, Configuration, Found, Frame, Model, Problem, Set, Spot, note_smallest};

/// The longest order that was found: operations (as indices into the slice that the search was given), and the state after them.
pub(in super::super) struct Longest<S> {
    pub(in super::super) order: Vec<usize>,
    pub(in super::super) state: S,
}

/// A configuration on the current path.
struct Stop<M: Model> {
    configuration: Configuration<M::State>,
    frame: Frame<M::State>,
    /// What was placed to get here; nothing at the start.
    step: Option<(Chain, usize)>,
}

/// Searches until it finds an order, has tried everything, or has no steps left.
pub(super) fn run<M: Model>(problem: &Problem<'_, M>) -> (Found, Longest<M::State>) {
    let start = problem.start();
    let mut longest = Longest { order: Vec::new(), state: start.spot.state.clone() };
    if problem.complete(&start.spot) {
        return (Found::Order, longest);
    }
    // For each spot, the smallest sets of used optional operations with which it was entered.
    let mut entered: HashMap<Spot<M::State>, Vec<Set>> = HashMap::new();
    let frame = problem.frame(&start.spot);
    let mut path: Vec<Stop<M>> = vec![Stop { configuration: start, frame, step: None }];
    let mut longest_path = 0;
    while let Some(here) = path.last_mut() {
        if problem.out_of_steps() {
            return (Found::GaveUp, longest);
        }
        if let Some(choice) = here.frame.choices.pop() {
            let configuration = problem.after(&here.configuration, &choice);
            let complete = problem.complete(&configuration.spot);
            if note_smallest(entered.entry_ref(&configuration.spot).or_default(), &configuration.used, || configuration.used.clone()) {
                let frame = problem.frame(&configuration.spot);
                path.push(Stop { configuration, frame, step: Some((choice.chain, choice.returned)) });
            }
            if complete {
                return (Found::Order, order(problem, &path));
            }
        } else if !problem.lengthen_chains(&here.configuration.used, &mut here.frame) && !problem.out_of_steps() {
            // Only at dead ends, so that a long path without any costs no copies.
            if path.len() > longest_path {
                longest_path = path.len();
                longest = order(problem, &path);
            }
            path.pop();
        }
    }
    (Found::None, longest)
}

/// The order that a path stands for.
fn order<M: Model>(problem: &Problem<'_, M>, path: &[Stop<M>]) -> Longest<M::State> {
    let mut order = Vec::new();
    for (chain, returned) in path.iter().filter_map(|stop| stop.step.as_ref()) {
        order.extend(chain.iter().map(|&optional| problem.optional[optional].place));
        order.push(problem.returned[*returned].place);
    }
    let state = path.last().map_or_else(|| problem.initial.clone(), |stop| stop.configuration.spot.state.clone());
    Longest { order, state }
}
