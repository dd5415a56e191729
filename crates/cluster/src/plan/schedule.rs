//! The parameters of the periodic multicast (FiDe section 3.3 and appendix B): how large packets may be, how often they may be sent, and when they arrive.
//!
//! Requests are planned in the order of the file, each on top of the trees that exist already. When all trees exist, the parameters of all of them are computed
//! again, since a later request may take something away from an earlier one.
//!
//! **Sizes.** A port's queue must hold one packet of each tree that leaves by it, and the burst of any other traffic that shares the queue. Where it cannot,
//! the packets of all trees there are reduced in proportion.
//!
//! **Jitter.** A packet waits at a port for at most one packet of each other tree, for the shared burst, and for one frame of lower priority that is already
//! being sent. It is never more than one packet of each, because no tree sends its next packet before its last one has certainly arrived: a period is never
//! shorter than the jitter.
//!
//! **Periods.** If the trees of a link ask for more bandwidth than there is, the periods of all of them are lengthened in proportion.

use martlet_protocol::detector::planned::PathBounds;

use super::critical::Links;
use super::topology::{LinkKind, OVERHEAD_BYTES, Request, Topology};
use super::trees::{self, Cost, NotFound, Search, Tree};

/// Why there is no plan. Each message names the file and the request.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// No path leads to a receiver.
    #[error("{file}: request {number}: no usable link leads from {sender} to {receiver}; allowed are receivers that the sender can reach")]
    Unreachable {
        /// The topology's file.
        file: String,
        /// The number of the request, from 1 on.
        number: usize,
        /// The sender's name.
        sender: String,
        /// The receiver's name.
        receiver: String,
    },
    /// The network has fewer trees without a common switch.
    #[error(
        "{file}: request {number}, trees is {asked}; allowed: at most {most}, since by shortest ways there are no more from {sender} that have no switch in common"
    )]
    Fewer {
        /// The topology's file.
        file: String,
        /// The request, from 1 on.
        number: usize,
        /// The sender's name.
        sender: String,
        /// How many were asked for.
        asked: usize,
        /// How many there are.
        most: usize,
    },
    /// The search was given up.
    #[error(
        "{file}: request {number}: the network is too large, or too irregular, to search for the best trees; allowed are fewer receivers or fewer links (usable = false)"
    )]
    TooMuch {
        /// The topology's file.
        file: String,
        /// The request, from 1 on.
        number: usize,
    },
    /// A queue has no room for the packets of all trees that leave by it.
    #[error(
        "{file}: the queue from {from} to {to} has {room} bytes for {trees} trees; allowed is at least {OVERHEAD_BYTES} bytes for each (queue_bytes, limits.queue_percent, shared)"
    )]
    Queue {
        /// The topology's file.
        file: String,
        /// The port's switch.
        from: String,
        /// Where the port leads.
        to: String,
        /// How much is left for the plan, in bytes.
        room: u64,
        /// How many trees leave by it.
        trees: usize,
    },
    /// Other traffic leaves a link no bandwidth for the plan.
    #[error(
        "{file}: the link from {from} to {to} has no bandwidth left for the plan: {shared} of {all} Mbit/s are shared traffic; allowed is less (shared, limits.bandwidth_percent)"
    )]
    Bandwidth {
        /// The topology's file.
        file: String,
        /// Where the link begins.
        from: String,
        /// Where it ends.
        to: String,
        /// The shared traffic, in Mbit/s.
        shared: u64,
        /// The link's rate, in Mbit/s.
        all: u64,
    },
}

/// A request and what it has been given.
#[derive(Clone, Debug)]
pub struct Planned {
    /// The request.
    pub request: Request,
    /// Its trees.
    pub trees: Vec<Tree>,
    /// How they were found.
    pub search: Search,
    /// What they cost when they were chosen, in nanoseconds.
    pub cost_ns: u64,
    /// The largest packet, on the wire, in bytes.
    pub packet_bytes: u64,
    /// The shortest period, in nanoseconds.
    pub period_ns: u64,
    /// For each receiver, in the request's order, the bounds over each tree.
    pub paths: Vec<Vec<PathBounds>>,
}

impl Planned {
    /// The largest payload, in bytes: `pbsize`.
    pub fn payload_bytes(&self) -> u64 {
        self.packet_bytes - OVERHEAD_BYTES
    }

    /// The bounds to a receiver, by its index in the request, over all trees.
    pub fn bounds(&self, receiver: usize) -> PathBounds {
        PathBounds::of_redundant(&self.paths[receiver]).expect("a request has trees")
    }

    /// The timeout that a receiver may use, by its index in the request, in nanoseconds.
    pub fn timeout_ns(&self, receiver: usize) -> u64 {
        self.bounds(receiver).timeout_ns(self.period_ns)
    }

    /// How many links of each kind each tree has.
    pub fn links(&self, topology: &Topology) -> Vec<Links> {
        let count = |tree: &Tree, kind| tree.arcs.iter().filter(|&&arc| topology.arcs[arc].kind == kind).count() as u64;
        self.trees.iter().map(|tree| Links { trunk: count(tree, LinkKind::Trunk), core: count(tree, LinkKind::Core) }).collect()
    }
}

/// What the plan puts on an arc.
#[derive(Clone, Debug)]
pub struct Load {
    /// The arc, as an index into the topology.
    pub arc: usize,
    /// How many trees take it.
    pub trees: usize,
    /// The size of one packet of each tree, added up, in bytes.
    pub queued_bytes: u64,
    /// How much the plan may put into the queue there, in bytes; `None` at a host, which decides itself when to send.
    pub room_bytes: Option<u64>,
    /// The share of the link's bandwidth that its packets take, in hundredths of a percent, rounded up.
    pub share: u64,
}

/// A plan.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The requests, in the file's order.
    pub planned: Vec<Planned>,
    /// Every arc that a tree takes.
    pub loads: Vec<Load>,
}

impl Plan {
    /// Plans all requests of a topology.
    ///
    /// # Errors
    /// When one of them cannot be met.
    pub fn new(topology: &Topology) -> Result<Plan, PlanError> {
        let mut planned = Vec::new();
        for (number, request) in (1..).zip(&topology.requests) {
            let cost = costs(topology, &planned, request);
            let found = trees::find(topology, request, &cost).map_err(|why| explain(topology, number, request, why))?;
            planned.push(Planned {
                request: request.clone(),
                trees: found.trees,
                search: found.search,
                cost_ns: found.cost,
                packet_bytes: request.packet_bytes,
                period_ns: request.period_ns,
                paths: Vec::new(),
            });
        }
        adjust(topology, planned)
    }
}

fn explain(topology: &Topology, number: usize, request: &Request, why: NotFound) -> PlanError {
    let (file, sender) = (topology.file.display().to_string(), topology.name(request.sender).to_owned());
    match why {
        NotFound::Unreachable(receiver) => PlanError::Unreachable { file, number, sender, receiver: topology.name(receiver).to_owned() },
        NotFound::Fewer(most) => PlanError::Fewer { file, number, sender, asked: request.trees, most },
        NotFound::TooMuch => PlanError::TooMuch { file, number },
    }
}

/// For each arc, the requests of the trees that take it, once for each tree.
fn packets<'a>(topology: &Topology, planned: &'a [Planned]) -> Vec<Vec<&'a Planned>> {
    let mut takers = vec![Vec::new(); topology.arcs.len()];
    for one in planned {
        one.trees.iter().flat_map(|tree| &tree.arcs).for_each(|&arc| takers[arc].push(one));
    }
    takers
}

/// How long a packet may wait at an arc, behind packets of so many bytes, in nanoseconds.
fn queueing_ns(topology: &Topology, arc: usize, bytes: u64) -> u64 {
    topology.waiting_ns(arc, bytes + topology.arcs[arc].shared_burst_bytes + topology.frame_bytes)
}

/// What each arc costs a new request on top of the existing trees.
fn costs(topology: &Topology, planned: &[Planned], request: &Request) -> Vec<Cost> {
    let takers = packets(topology, planned);
    let cost = |(number, takers): (usize, &Vec<&Planned>)| {
        let arc = &topology.arcs[number];
        let ahead = takers.iter().map(|one| one.packet_bytes).sum();
        let node = &topology.nodes[arc.to];
        Cost {
            latest: arc.latency_ns
                + arc.jitter_ns
                + topology.transmission_ns(number, request.packet_bytes)
                + queueing_ns(topology, number, ahead)
                + node.latency_ns
                + node.jitter_ns,
            others: takers.len() as u64 * topology.waiting_ns(number, request.packet_bytes),
        }
    };
    takers.iter().enumerate().map(cost).collect()
}

/// Computes the parameters of all trees, once all of them exist.
fn adjust(topology: &Topology, mut planned: Vec<Planned>) -> Result<Plan, PlanError> {
    let file = || topology.file.display().to_string();
    let name = |node: usize| topology.name(node).to_owned();
    let rooms: Vec<Option<u64>> = topology.arcs.iter().map(|arc| room(topology, arc.from, arc.shared_burst_bytes)).collect();
    let takers = packets(topology, &planned);
    let asked: Vec<u64> = takers.iter().map(|takers| takers.iter().map(|one| one.packet_bytes).sum()).collect();
    for (number, arc) in topology.arcs.iter().enumerate() {
        let trees = takers[number].len();
        if let Some(room) = rooms[number].filter(|room| *room < OVERHEAD_BYTES * trees as u64) {
            return Err(PlanError::Queue { file: file(), from: name(arc.from), to: name(arc.to), room, trees });
        }
        if trees > 0 && bandwidth(topology, number) == 0 {
            let (shared, all) = (arc.shared_mbit_per_s, arc.mbit_per_s);
            return Err(PlanError::Bandwidth { file: file(), from: name(arc.from), to: name(arc.to), shared, all });
        }
    }
    let counts: Vec<u64> = takers.iter().map(|takers| takers.len() as u64).collect();
    for one in &mut planned {
        let fits = |&arc: &usize| match rooms[arc] {
            // The header always fits, as checked above. The rest is divided in proportion to what is asked besides the header.
            Some(room) if room < asked[arc] => {
                let headers = counts[arc] * OVERHEAD_BYTES;
                OVERHEAD_BYTES + (one.packet_bytes - OVERHEAD_BYTES) * (room - headers) / (asked[arc] - headers)
            }
            _ => one.packet_bytes,
        };
        one.packet_bytes = one.trees.iter().flat_map(|tree| &tree.arcs).map(fits).min().expect("a tree has arcs");
    }
    let takers = packets(topology, &planned);
    let queued: Vec<u64> = takers.iter().map(|takers| takers.iter().map(|one| one.packet_bytes).sum()).collect();
    // In the same unit as bandwidth: bits per 1,000 ns are megabits per second.
    let rate = |one: &Planned, period_ns: u64| (one.packet_bytes * 8_000) as f64 / period_ns as f64;
    let stretch: Vec<f64> = (0..takers.len())
        .map(|arc| takers[arc].iter().map(|one| rate(one, one.request.period_ns)).sum::<f64>() / bandwidth(topology, arc).max(1) as f64)
        .collect();
    let mut granted = Vec::new();
    for one in &planned {
        let paths: Vec<Vec<PathBounds>> = one
            .request
            .receivers
            .iter()
            .map(|&receiver| one.trees.iter().map(|tree| path_bounds(topology, one, tree, receiver, &queued)).collect())
            .collect();
        let jitter = paths.iter().flatten().map(|path| path.jitter_ns).max().expect("a request has receivers");
        let stretched = one.trees.iter().flat_map(|tree| &tree.arcs).map(|&arc| stretch[arc]).fold(1.0, f64::max);
        let period_ns = ((one.request.period_ns as f64 * stretched).ceil() as u64).max(jitter);
        granted.push((paths, period_ns));
    }
    for (one, (paths, period_ns)) in planned.iter_mut().zip(granted) {
        (one.paths, one.period_ns) = (paths, period_ns);
    }
    let takers = packets(topology, &planned);
    let load = |arc: usize| {
        let share = takers[arc].iter().map(|one| rate(one, one.period_ns)).sum::<f64>() / topology.arcs[arc].mbit_per_s as f64;
        Load { arc, trees: takers[arc].len(), queued_bytes: queued[arc], room_bytes: rooms[arc], share: (share * 10_000.0).ceil() as u64 }
    };
    let loads = (0..takers.len()).filter(|&arc| !takers[arc].is_empty()).map(load).collect();
    Ok(Plan { planned, loads })
}

/// How much the plan may put into the queue of a switch's port, in bytes.
fn room(topology: &Topology, from: usize, burst: u64) -> Option<u64> {
    let all = topology.nodes[from].queue_bytes?;
    Some((all * topology.queue_percent / 100).saturating_sub(burst))
}

/// How much of an arc's bandwidth the plan may take, in megabits per second.
fn bandwidth(topology: &Topology, arc: usize) -> u64 {
    let arc = &topology.arcs[arc];
    (arc.mbit_per_s * topology.bandwidth_percent / 100).saturating_sub(arc.shared_mbit_per_s)
}

/// When packets of a tree arrive at a receiver.
fn path_bounds(topology: &Topology, one: &Planned, tree: &Tree, receiver: usize, queued: &[u64]) -> PathBounds {
    let sender = &topology.nodes[one.request.sender];
    let mut bounds = PathBounds { latency_ns: sender.latency_ns, jitter_ns: sender.jitter_ns };
    let mut at = receiver;
    while at != one.request.sender {
        let number = *tree.arcs.iter().find(|&&arc| topology.arcs[arc].to == at).expect("a tree leads to its receivers");
        let (arc, node) = (&topology.arcs[number], &topology.nodes[at]);
        let fastest = topology.transmission_ns(number, OVERHEAD_BYTES);
        // The earliest packet to arrive is one without payload, and the latest is the largest.
        bounds.latency_ns += arc.latency_ns + fastest + node.latency_ns;
        bounds.jitter_ns += arc.jitter_ns
            + node.jitter_ns
            + (topology.transmission_ns(number, one.packet_bytes) - fastest)
            + queueing_ns(topology, number, queued[number] - one.packet_bytes);
        at = arc.from;
    }
    bounds
}

#[cfg(test)]
mod tests;
