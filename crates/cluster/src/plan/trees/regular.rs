//! The paper's search, from the receivers to the sender. It is for networks in which any two nodes at the same distance from the sender lead either to the same
//! receivers or to no common ones.
//!
//! Nodes that are at the same distance and lead to the same receivers are a *class*. Every tree passes through each class on the way to the class's receivers,
//! and each tree uses a different node of it. For each way to assign one of a class's nodes to each tree, the best trees below these nodes are found from those
//! of the classes below.
//!
//! The paper takes the best trees of each class below by themselves ("the choices are independent"). That does not give the least cost: a tree costs the
//! *latest* arrival at any of its receivers, so a choice that is dearer by itself costs nothing where the same tree is late elsewhere anyway. So this search
//! keeps every choice that no other beats both in all its trees and in how long others wait (its Pareto front), and takes the least sum only at the sender. In
//! a network whose switches are alike, one choice is left for each.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::{MAX_STEPS, Tree, Ways};

/// Why this search cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfit {
    /// Two nodes lead to some common receivers, but not to the same ones.
    Irregular,
    /// It takes too many steps.
    TooMuch,
}

/// A set of trees below nodes of a class, one tree below each node.
#[derive(Clone)]
struct Choice {
    /// The latest arrival at any receiver, counted from each of the nodes.
    latest: Vec<u64>,
    /// How long packets of other trees wait.
    others: u64,
    /// The arcs that the trees take, one list for each class below.
    parts: Option<Rc<Part>>,
}

/// How the trees enter one of the classes below, and the parts before this one.
struct Part {
    before: Option<Rc<Part>>,
    /// For each tree, the arc that it takes, and the index of its node in the choice below.
    arcs: Vec<(usize, usize)>,
    below: Option<Rc<Part>>,
}

/// A way for the trees to enter a class: its cost, including everything below, and its arcs, as in [`Part`].
struct Entry {
    choice: Choice,
    arcs: Vec<(usize, usize)>,
}

impl Choice {
    /// Trees that consist of a single node each.
    fn none(trees: usize) -> Choice {
        Choice { latest: vec![0; trees], others: 0, parts: None }
    }

    /// Whether the other choice is better in nothing.
    fn beats(&self, other: &Choice) -> bool {
        self.others <= other.others && self.latest.iter().zip(&other.latest).all(|(ours, theirs)| ours <= theirs)
    }
}

/// Adds a choice unless another one beats it, and drops those that it beats.
fn keep(choices: &mut Vec<Choice>, new: Choice) {
    if !choices.iter().any(|choice| choice.beats(&new)) {
        choices.retain(|choice| !new.beats(choice));
        choices.push(new);
    }
}

struct Search<'a> {
    ways: &'a Ways<'a>,
    /// For each distance, its classes: the receivers, and the nodes.
    layers: Vec<BTreeMap<u64, Vec<usize>>>,
    /// The results so far, for each assignment of a class's nodes.
    known: BTreeMap<Vec<usize>, Rc<Vec<Choice>>>,
    steps: u64,
}

/// Finds the best set of this many trees, and its cost. Returns `None` when there are fewer.
pub fn find(ways: &Ways<'_>, trees: usize) -> Result<Option<(Vec<Tree>, u64)>, Unfit> {
    let mut search = Search { ways, layers: classes(ways)?, known: BTreeMap::new(), steps: 0 };
    // All trees begin at the sender.
    let roots = vec![ways.request.sender; trees];
    let choices = search.below(&roots, ways.all(), 0)?;
    let cost = |choice: &Choice| choice.latest.iter().sum::<u64>() + choice.others;
    let Some(best) = choices.iter().min_by_key(|choice| cost(choice)) else { return Ok(None) };
    let mut found = vec![Tree { arcs: Vec::new() }; trees];
    let places: Vec<usize> = (0..trees).collect();
    collect(best.parts.as_deref(), &places, &mut found);
    Ok(Some((found, cost(best))))
}

/// The classes of each layer.
fn classes(ways: &Ways<'_>) -> Result<Vec<BTreeMap<u64, Vec<usize>>>, Unfit> {
    let farthest = ways.request.receivers.iter().map(|&receiver| ways.distance[receiver]).max().expect("a request has receivers");
    let mut layers = vec![BTreeMap::<u64, Vec<usize>>::new(); farthest + 1];
    for (node, &set) in ways.receivers.iter().enumerate().filter(|(_, set)| **set != 0) {
        layers[ways.distance[node]].entry(set).or_default().push(node);
    }
    for layer in &layers {
        let mut seen = 0;
        for set in layer.keys() {
            if seen & set != 0 {
                return Err(Unfit::Irregular);
            }
            seen |= set;
        }
    }
    Ok(layers)
}

impl Search<'_> {
    /// The choices of trees below these nodes, which are all at this distance: one tree for each node, to all of these receivers.
    fn below(&mut self, roots: &[usize], set: u64, distance: usize) -> Result<Rc<Vec<Choice>>, Unfit> {
        if let Some(known) = self.known.get(roots) {
            return Ok(known.clone());
        }
        let mut choices = vec![Choice::none(roots.len())];
        let classes: Vec<(u64, Vec<usize>)> =
            self.layers[distance + 1].iter().filter(|(below, _)| *below & set != 0).map(|(below, nodes)| (*below, nodes.clone())).collect();
        for (below, nodes) in classes {
            let options = self.enter_class(roots, below, &nodes, distance + 1)?;
            let mut joined = Vec::new();
            for choice in &choices {
                for Entry { choice: option, arcs } in &options {
                    self.step()?;
                    keep(
                        &mut joined,
                        Choice {
                            latest: choice.latest.iter().zip(&option.latest).map(|(a, b)| *a.max(b)).collect(),
                            others: choice.others + option.others,
                            parts: Some(Rc::new(Part { before: choice.parts.clone(), arcs: arcs.clone(), below: option.parts.clone() })),
                        },
                    );
                }
            }
            choices = joined;
        }
        let choices = Rc::new(choices);
        self.known.insert(roots.to_vec(), choices.clone());
        Ok(choices)
    }

    /// All ways for the trees to get from these nodes into one class below, and onward from there.
    fn enter_class(&mut self, roots: &[usize], set: u64, nodes: &[usize], distance: usize) -> Result<Vec<Entry>, Unfit> {
        let mut entries: Vec<Entry> = Vec::new();
        let is_leaf = self.ways.bit(nodes[0]) != 0;
        let mut ways = Vec::new();
        self.assign(roots, set, is_leaf, &mut Vec::new(), &mut ways)?;
        for arcs in ways {
            let ends: Vec<usize> = arcs.iter().map(|&arc| self.ways.topology.arcs[arc].to).collect();
            // What is below is the same, whichever tree takes which node.
            let mut sorted = ends.clone();
            sorted.sort_unstable();
            let (below, places): (_, Vec<usize>) = match is_leaf {
                true => (Rc::new(vec![Choice::none(ends.len())]), (0..ends.len()).collect()),
                false => {
                    let places = ends.iter().map(|end| sorted.binary_search(end).expect("one of them")).collect();
                    (self.below(&sorted, set, distance)?, places)
                }
            };
            let cost = |arc: usize| self.ways.cost[arc];
            for choice in below.iter() {
                let latest = arcs.iter().zip(&places).map(|(&arc, &place)| cost(arc).latest + choice.latest[place]).collect();
                let others = choice.others + arcs.iter().map(|&arc| cost(arc).others).sum::<u64>();
                let new = Choice { latest, others, parts: choice.parts.clone() };
                if !entries.iter().any(|entry| entry.choice.beats(&new)) {
                    entries.retain(|entry| !new.beats(&entry.choice));
                    entries.push(Entry { choice: new, arcs: arcs.iter().copied().zip(places.iter().copied()).collect() });
                }
            }
        }
        Ok(entries)
    }

    /// Every way to take one arc from each root into a class: to different nodes, unless the class is a receiver.
    fn assign(
        &mut self,
        roots: &[usize],
        set: u64,
        is_leaf: bool,
        taken: &mut Vec<usize>,
        into: &mut Vec<Vec<usize>>,
    ) -> Result<(), Unfit> {
        self.step()?;
        let Some(&root) = roots.get(taken.len()) else {
            into.push(taken.clone());
            return Ok(());
        };
        let ways = self.ways;
        for (arc, to) in ways.onward(root, set) {
            if is_leaf || taken.iter().all(|&other| ways.topology.arcs[other].to != to) {
                taken.push(arc);
                self.assign(roots, set, is_leaf, taken, into)?;
                taken.pop();
            }
        }
        Ok(())
    }

    fn step(&mut self) -> Result<(), Unfit> {
        self.steps += 1;
        if self.steps > MAX_STEPS { Err(Unfit::TooMuch) } else { Ok(()) }
    }
}

/// Gathers the arcs of a choice into trees. `places[t]` is the index in the choice of the node of tree `t`.
fn collect(part: Option<&Part>, places: &[usize], into: &mut [Tree]) {
    let Some(part) = part else { return };
    collect(part.before.as_deref(), places, into);
    let mut below = Vec::new();
    for (tree, &place) in into.iter_mut().zip(places) {
        let (arc, place_below) = part.arcs[place];
        tree.arcs.push(arc);
        below.push(place_below);
    }
    collect(part.below.as_deref(), &below, into);
}
