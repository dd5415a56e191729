//! The search for multicast trees (FiDe appendix B): for one sender, several trees to the same receivers, none of which has a switch in common with another, all
//! by shortest ways, so that the sum of their costs is least.
//!
//! A tree costs the latest arrival at any of its receivers, and what it makes the packets of trees that are there already wait.
//!
//! | search | for | how |
//! |---|---|---|
//! | `regular` | networks of data centres, which are regular | layer by layer from the receivers, as the paper does it |
//! | `exhaustive` | what is irregular, as after failures | every set of trees that is not already dearer than the best |
//!
//! The first finds the least cost of all trees that pass each layer towards the same receivers by one switch, so that no packet is sent twice over the links above.
//! The second finds the least of all trees. Tests compare both with every set of trees there is, in small networks.

mod exhaustive;
mod regular;
#[cfg(test)]
mod tests;

use super::topology::{Request, Topology};

/// A multicast tree: its arcs, by their numbers in the topology, each behind the one that leads to where it begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    /// The arcs.
    pub arcs: Vec<usize>,
}

/// What the use of an arc costs, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// A packet is this much later at the arc's end, and behind the node there, at the latest.
    pub latest: u64,
    /// Packets of trees that are there already are this much later, together.
    pub others: u64,
}

/// How the trees were found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Search {
    /// Layer by layer, in networks that are regular.
    Regular,
    /// Of every set of trees.
    Exhaustive,
}

impl Search {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Search::Regular => "regular",
            Search::Exhaustive => "exhaustive",
        }
    }
}

/// The best trees.
#[derive(Clone, Debug)]
pub struct Found {
    /// The trees, as many as were asked for.
    pub trees: Vec<Tree>,
    /// The sum of their costs, in nanoseconds.
    pub cost: u64,
    /// How they were found.
    pub search: Search,
}

/// Why there are no trees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotFound {
    /// No way leads to this receiver.
    Unreachable(usize),
    /// There are not as many; this many there are.
    Fewer(usize),
    /// The network is too large, or too irregular, to say.
    TooMuch,
}

/// After so many steps a search gives up: seconds, and some hundred megabytes at most.
const MAX_STEPS: u64 = 4_000_000;

/// The shortest ways of a request: where they lead from each node.
struct Ways<'a> {
    topology: &'a Topology,
    request: &'a Request,
    cost: &'a [Cost],
    /// How far each node is from the sender, in links.
    distance: Vec<usize>,
    /// To which receivers a shortest way leads through each node, a bit each.
    receivers: Vec<u64>,
}

const FAR: usize = usize::MAX;

impl<'a> Ways<'a> {
    /// # Errors
    /// A receiver that no way leads to.
    fn new(topology: &'a Topology, request: &'a Request, cost: &'a [Cost]) -> Result<Ways<'a>, usize> {
        let distance = distances(topology, request.sender);
        let mut receivers = vec![0; topology.nodes.len()];
        for (bit, &receiver) in request.receivers.iter().enumerate() {
            if distance[receiver] == FAR {
                return Err(receiver);
            }
            // Links lead both ways, so distances do too.
            let back = distances(topology, receiver);
            for (node, set) in receivers.iter_mut().enumerate() {
                let through = distance[node].checked_add(back[node]);
                let forwards = node == request.sender || node == receiver || !topology.nodes[node].is_host();
                if forwards && through == Some(distance[receiver]) {
                    *set |= 1 << bit;
                }
            }
        }
        Ok(Ways { topology, request, cost, distance, receivers })
    }

    /// The arcs from a node that lead to all the receivers of a set, by shortest ways, with the nodes at their ends.
    fn onward(&self, node: usize, set: u64) -> impl Iterator<Item = (usize, usize)> {
        let arcs = self.topology.leaving[node].iter().map(|&arc| (arc, self.topology.arcs[arc].to));
        arcs.filter(move |&(_, to)| self.distance[to] == self.distance[node] + 1 && self.receivers[to] & set == set)
    }

    /// The receiver that a node is, as a bit; 0 for others.
    fn bit(&self, node: usize) -> u64 {
        self.request.receivers.iter().position(|&receiver| receiver == node).map_or(0, |at| 1 << at)
    }

    /// All receivers.
    fn all(&self) -> u64 {
        u64::MAX >> (64 - self.request.receivers.len())
    }
}

/// How far each node is from one, in links. Hosts forward nothing.
fn distances(topology: &Topology, from: usize) -> Vec<usize> {
    let mut distance = vec![FAR; topology.nodes.len()];
    distance[from] = 0;
    let mut layer = vec![from];
    for far in 1.. {
        let mut next = Vec::new();
        for &node in layer.iter().filter(|&&node| node == from || !topology.nodes[node].is_host()) {
            for to in topology.leaving[node].iter().map(|&arc| topology.arcs[arc].to) {
                if distance[to] == FAR {
                    distance[to] = far;
                    next.push(to);
                }
            }
        }
        if next.is_empty() {
            break;
        }
        layer = next;
    }
    distance
}

/// Finds the best trees of a request. `cost` says what each arc costs.
///
/// # Errors
/// When there are none.
pub fn find(topology: &Topology, request: &Request, cost: &[Cost]) -> Result<Found, NotFound> {
    let ways = Ways::new(topology, request, cost).map_err(NotFound::Unreachable)?;
    let search = |trees| match regular::find(&ways, trees) {
        Ok(found) => Ok(found.map(|(trees, cost)| Found { trees, cost, search: Search::Regular })),
        Err(regular::Unfit::Irregular) => {
            let found = exhaustive::find(&ways, trees).map_err(|exhaustive::TooMuch| NotFound::TooMuch)?;
            Ok(found.map(|(trees, cost)| Found { trees, cost, search: Search::Exhaustive }))
        }
        Err(regular::Unfit::TooMuch) => Err(NotFound::TooMuch),
    };
    match search(request.trees)? {
        Some(found) => Ok(found),
        None => {
            for trees in (1..request.trees).rev() {
                if search(trees)?.is_some() {
                    return Err(NotFound::Fewer(trees));
                }
            }
            Err(NotFound::Fewer(0))
        }
    }
}
