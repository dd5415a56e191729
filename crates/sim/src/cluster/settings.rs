//! What a simulated life is like, drawn from its seed.

use fastrand::Rng;
use martlet_fabric::sim::{Faults, Span};
use martlet_protocol::membership::{ClockBounds, Leases, Roles};

use super::{Canary, Ground};

/// The temper of one life.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Nodes of the cluster.
    pub nodes: u16,
    /// How long trouble lasts, in nanoseconds of true time. After it everything heals and the cluster has to recover.
    pub trouble_ns: u64,
    /// What the fabric does while there is trouble.
    pub faults: Faults,
    /// How long leases last at first.
    pub lease_ns: u64,
    /// How inexact the clocks are.
    pub clocks: ClockBounds,
    /// Between two reads of the monitored heartbeat.
    pub heartbeat_interval_ns: u64,
    /// Between two broadcasts.
    pub broadcast_interval_ns: u64,
    /// How long silence may last.
    pub broadcast_timeout_ns: u64,
    /// Mean time between two kills; `None` for none. The others alike.
    pub kill_every_ns: Option<u64>,
    /// Mean time between two processes that leave of their own will.
    pub leave_every_ns: Option<u64>,
    /// From a kill, or an exclusion, to the next life of the node.
    pub restart: Span,
    /// Mean time between two pauses.
    pub pause_every_ns: Option<u64>,
    /// How long a pause lasts: up to several leases.
    pub pause: Span,
    /// Mean time between two partitions. Only on a network.
    pub partition_every_ns: Option<u64>,
    /// How long a partition lasts.
    pub partition: Span,
    /// Mean time between two dead NICs. Only on a network.
    pub nic_every_ns: Option<u64>,
    /// Mean time between two changes of the length of leases.
    pub lease_change_every_ns: Option<u64>,
    /// Acting threads of each process.
    pub threads: usize,
    /// Clients, each with one request open at a time.
    pub clients: u64,
    /// Keys that they share.
    pub keys: u64,
    /// How long a client waits for a reply.
    pub patience_ns: u64,
    /// Between a reply and the client's next request.
    pub think: Span,
    /// Data bytes of each log lane: small, so that it wraps and fills often.
    pub log_ring_bytes: usize,
    /// When an idle primary sends its commit index by itself.
    pub flush_idle_ns: u64,
    /// What a backup takes from a lane in one turn.
    pub drain_budget_bytes: usize,
    /// What a learner gets in one turn.
    pub transfer_budget_bytes: usize,
    /// The longest time that a process lets pass without a turn.
    pub idle_ns: u64,
    /// What each node does; the first founds the cluster.
    pub roles: Vec<Roles>,
    /// Who takes leases.
    pub leases: Leases,
    /// How often, per thousand, a turn stops between two of its steps.
    pub broken_turns: u32,
    /// How long it stops.
    pub break_ns: Span,
    /// Whether processes sleep until they are nudged.
    pub sleepers: bool,
    /// Whether the ballots of all slots have been used up before the life begins.
    pub worn: bool,
    /// A mistake made on purpose.
    pub canary: Option<Canary>,
}

impl Settings {
    /// Draws a life on a host, or on a network. Each kind of trouble is absent from some lives.
    pub fn drawn(chance: &mut Rng, ground: Ground) -> Settings {
        let mut faults = Faults::drawn(chance);
        // A turn costs a node of ours at least this long; lives would otherwise consist of polling.
        faults.turn = Span(400, chance.u64(500..3_000));
        let lease_ns = chance.u64(20_000..150_000);
        let mut every = |least: u64, most: u64| chance.bool().then(|| chance.u64(least..=most));
        let kill_every_ns = every(150_000, 1_500_000);
        let leave_every_ns = every(300_000, 2_000_000);
        let pause_every_ns = every(200_000, 1_500_000);
        // Memory on one host does not come apart.
        let partition_every_ns = every(200_000, 2_000_000).filter(|_| ground == Ground::Network);
        let nic_every_ns = every(1_000_000, 3_000_000).filter(|_| ground == Ground::Network);
        let lease_change_every_ns = every(200_000, 2_000_000);
        let nodes = chance.u16(2..=5);
        let both = Roles::COORDINATOR.with(Roles::REPLICA);
        let mixed = chance.u8(..4) == 0;
        let roles = (0..nodes).map(|node| match chance.u8(..4) {
            0 if mixed && node > 0 => Roles::COORDINATOR,
            1 if mixed && node > 0 => Roles::REPLICA,
            _ => both,
        });
        let roles = roles.collect();
        Settings {
            nodes,
            roles,
            leases: if chance.u8(..6) == 0 { Leases::Everybody } else { Leases::Primary },
            broken_turns: if chance.bool() { 0 } else { chance.u32(1..300) },
            break_ns: Span(0, chance.u64(1_000..20_000)),
            sleepers: chance.bool(),
            worn: chance.u8(..8) == 0,
            trouble_ns: chance.u64(1_000_000..4_000_000),
            lease_ns,
            clocks: ClockBounds { drift_ppm: 200, skew_ns: chance.u64(0..500) },
            heartbeat_interval_ns: chance.u64(10_000..60_000),
            broadcast_interval_ns: chance.u64(50_000..150_000),
            broadcast_timeout_ns: chance.u64(500_000..1_500_000),
            kill_every_ns,
            leave_every_ns,
            restart: Span(20_000, chance.u64(50_000..600_000)),
            pause_every_ns,
            pause: Span(10_000, chance.u64(20_000..6 * lease_ns)),
            partition_every_ns,
            // Most are shorter than what breaks a connection, some are longer.
            partition: Span(1_000, chance.u64(5_000..faults.peer_lost_after_ns * 3 / 2)),
            nic_every_ns,
            lease_change_every_ns,
            threads: chance.usize(1..=2),
            clients: chance.u64(1..=6),
            keys: chance.u64(1..=8),
            patience_ns: chance.u64(100_000..500_000),
            think: Span(0, chance.u64(1_000..50_000)),
            log_ring_bytes: 1 << chance.u32(10..=14),
            flush_idle_ns: chance.u64(1_000..20_000),
            drain_budget_bytes: chance.usize(1..2_000),
            transfer_budget_bytes: chance.usize(1..2_000),
            idle_ns: chance.u64(2_000..20_000),
            canary: None,
            faults,
        }
    }
}
