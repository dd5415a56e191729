//! The search for multicast trees (FiDe appendix B): for one sender, several trees to the same receivers, along shortest paths, such that no two trees share a
//! switch and the sum of their costs is least.
//!
//! The cost of a tree is the latest arrival at any of its receivers, plus how long it makes the packets of existing trees wait.
//!
//! | search | for | how |
//! |---|---|---|
//! | `regular` | networks of data centres, which are regular | layer by layer from the receivers, as the paper does it |
//! | `exhaustive` | irregular networks, for example after failures | every set of trees that is not already dearer than the best |
//!
//! The first finds the least cost among trees that pass each layer through one switch towards the same receivers, so that no packet is sent twice over the
//! links above. The second finds the least cost among all trees. Tests compare both with every possible set of trees, in small networks.

mod exhaustive;
mod regular;
#[cfg(test)]
mod tests;

use super::topology::{Request, Topology};

/// A multicast tree: its arcs, as indices into the topology. Each arc comes after the one that leads to its beginning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    /// The arcs.
    pub arcs: Vec<usize>,
}

/// The cost of using an arc, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// The most time that a packet needs to cross the arc and the node at its end.
    pub latest: u64,
    /// How much later packets of existing trees are, added up.
    pub others: u64,
}

/// How the trees were found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Search {
    /// Layer by layer, in networks that are regular.
    Regular,
    /// By trying every set of trees.
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
    /// No path leads to this receiver.
    Unreachable(usize),
    /// There are only this many.
    Fewer(usize),
    /// The network is too large, or too irregular, to find out.
    TooMuch,
}

/// A search gives up after this many steps: that is seconds, and some hundred megabytes at most.
const MAX_STEPS: u64 = 4_000_000;

/// The shortest paths of a request: where they lead from each node.
struct Ways<'a> {
    topology: &'a Topology,
    request: &'a Request,
    cost: &'a [Cost],
    /// How far each node is from the sender, in links.
    distance: Vec<usize>,
    /// For each node, the receivers to which a shortest path leads through it, one bit each.
    receivers: Vec<u64>,
}

const FAR: usize = usize::MAX;

impl<'a> Ways<'a> {
    /// # Errors
    /// A receiver that no path leads to.
    fn new(topology: &'a Topology, request: &'a Request, cost: &'a [Cost]) -> Result<Ways<'a>, usize> {
        let distance = distances(topology, request.sender);
        let mut receivers = vec![0; topology.nodes.len()];
        for (bit, &receiver) in request.receivers.iter().enumerate() {
            if distance[receiver] == FAR {
                return Err(receiver);
            }
            // Links work in both directions, so distances are symmetric.
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

    /// The arcs from a node that lead to all receivers of a set along shortest paths, with the nodes at their ends.
    fn onward(&self, node: usize, set: u64) -> impl Iterator<Item = (usize, usize)> {
        let arcs = self.topology.leaving[node].iter().map(|&arc| (arc, self.topology.arcs[arc].to));
        arcs.filter(move |&(_, to)| self.distance[to] == self.distance[node] + 1 && self.receivers[to] & set == set)
    }

    /// The bit of the receiver that a node is; 0 for other nodes.
    fn bit(&self, node: usize) -> u64 {
        self.request.receivers.iter().position(|&receiver| receiver == node).map_or(0, |at| 1 << at)
    }

    /// All receivers.
    fn all(&self) -> u64 {
        u64::MAX >> (64 - self.request.receivers.len())
    }
}

/// The distance of each node from one, in links. Hosts forward nothing.
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

/// Finds the best trees of a request. `cost` gives the cost of each arc.
///
/// # Errors
/// When there are no such trees.
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
