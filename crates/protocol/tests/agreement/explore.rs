//! Every run of a small model: each reachable state is examined once.

use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::fmt::Debug;
use std::hash::{Hash, Hasher};

/// Something whose runs are explored.
pub trait Model {
    /// A state of the whole.
    type State: Clone + Hash;
    /// What can happen next.
    type Action: Clone + Debug;

    /// Where every run begins.
    fn initial(&self) -> Self::State;

    /// What can happen in a state, and the resulting states.
    fn next(&self, state: &Self::State) -> Vec<(Self::Action, Self::State)>;

    /// Whether an action makes the run progress by itself: a crash or a suspicion does not, and need never happen.
    fn is_progress(&self, action: &Self::Action) -> bool;

    /// What is wrong with a state. `ended`: no action makes progress from here.
    fn check(&self, state: &Self::State, ended: bool) -> Result<(), String>;
}

/// What was found.
#[derive(Debug)]
pub struct Explored {
    /// How many states there are, or were seen before the first wrong one.
    pub states: usize,
    /// What is wrong in the first wrong state, and how to get there in the fewest steps.
    pub wrong: Option<(String, Vec<String>)>,
}

impl Explored {
    /// Demands that nothing was wrong. Returns the number of states.
    pub fn right(&self) -> usize {
        if let Some((what, steps)) = &self.wrong {
            panic!("{what}, after {} steps:\n  {}", steps.len(), steps.join("\n  "));
        }
        self.states
    }

    /// Demands that this was found wrong. Returns the number of steps to it.
    pub fn wrong(&self, what: &str) -> usize {
        let (found, steps) = self.wrong.as_ref().expect("something is wrong");
        assert!(found.contains(what), "{found}, after {} steps:\n  {}", steps.len(), steps.join("\n  "));
        steps.len()
    }
}

/// States are told apart by 128 bits of hash: among ten million, two are confused with a probability of 10^-25.
fn fingerprint(state: &impl Hash) -> u128 {
    let half = |salt: u64| {
        let mut hasher = DefaultHasher::new();
        salt.hash(&mut hasher);
        state.hash(&mut hasher);
        u128::from(hasher.finish())
    };
    half(0) << 64 | half(1)
}

/// Looks at all states, those that take fewer steps first.
///
/// # Panics
/// When there are more than `most`.
pub fn explore<M: Model>(model: &M, most: usize) -> Explored {
    let mut seen = HashMap::new();
    // For each state: the one before it, and which of its actions led here.
    let mut from: Vec<(usize, usize)> = vec![(0, 0)];
    let initial = model.initial();
    seen.insert(fingerprint(&initial), 0);
    let mut layer = vec![(0usize, initial)];
    while !layer.is_empty() {
        let mut next_layer = Vec::new();
        for (number, state) in layer {
            let next = model.next(&state);
            let ended = !next.iter().any(|(action, _)| model.is_progress(action));
            if let Err(what) = model.check(&state, ended) {
                return Explored { states: from.len(), wrong: Some((what, steps(model, &from, number))) };
            }
            for (at, (_, state)) in next.into_iter().enumerate() {
                let new = from.len();
                if let std::collections::hash_map::Entry::Vacant(entry) = seen.entry(fingerprint(&state)) {
                    entry.insert(new);
                    from.push((number, at));
                    next_layer.push((new, state));
                }
            }
            assert!(from.len() <= most, "more than {most} states");
        }
        layer = next_layer;
    }
    Explored { states: from.len(), wrong: None }
}

/// The actions that lead to a state.
fn steps<M: Model>(model: &M, from: &[(usize, usize)], mut number: usize) -> Vec<String> {
    let mut choices = Vec::new();
    while number != 0 {
        let (before, at) = from[number];
        choices.push(at);
        number = before;
    }
    let mut state = model.initial();
    let mut steps = Vec::new();
    for at in choices.into_iter().rev() {
        let (action, next) = model.next(&state).swap_remove(at);
        steps.push(format!("{action:?}"));
        state = next;
    }
    steps
}

/// The documentation states the number of states of each model.
pub fn is_on_the_page(model: &str, processes: u8, states: usize) {
    let (thousands, rest) = (states / 1000, states % 1000);
    let row = format!("| {model} | {processes} | {thousands},{rest:03} |");
    assert!(include_str!("../../../../docs/fide.md").contains(&row), "docs/fide.md does not say: {row}");
}
