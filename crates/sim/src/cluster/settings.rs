//! The properties of a simulated life, drawn from its seed.

use fastrand::Rng;
use martlet_fabric::sim::{Faults, Span};
use martlet_protocol::duty::Pace;
use martlet_protocol::membership::{ClockBounds, Leases, Roles};
use martlet_protocol::replica::Execution;

use super::faults::{FAULTS, Fault};
use super::plan::{Canary, Changes, Ground};
use super::report::Temper;
use super::storage::disk::Disks;
use super::wardens::Wardens;

/// The properties of one life.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How wild it is.
    pub temper: Temper,
    /// Nodes of the cluster.
    pub nodes: u16,
    /// The least time that trouble lasts, in nanoseconds of true time. After it everything heals and the cluster has to recover.
    pub trouble_ns: u64,
    /// The most time that trouble lasts.
    pub trouble_most_ns: u64,
    /// Trouble goes on until this many requests have been made,
    pub least_requests: u64,
    /// and this many single faults have been injected.
    pub least_faults: u64,
    /// The most requests that are made during the trouble.
    pub most_requests: u64,
    /// The fabric's faults during the trouble.
    pub faults: Faults,
    /// How long leases last at first.
    pub lease_ns: u64,
    /// How inexact the clocks are.
    pub clocks: ClockBounds,
    /// The time between two reads of the monitored heartbeat.
    pub heartbeat_interval_ns: u64,
    /// The time between two broadcasts.
    pub broadcast_interval_ns: u64,
    /// How long silence may last.
    pub broadcast_timeout_ns: u64,
    /// Mean time between two faults of a kind; `None` for none.
    pub every_ns: [Option<u64>; FAULTS],
    /// The time from a kill, or an exclusion, to the next life of the node.
    pub restart: Span,
    /// How long a pause lasts: up to several leases.
    pub pause: Span,
    /// How long a partition lasts.
    pub partition: Span,
    /// Acting threads of each process.
    pub threads: usize,
    /// Clients, each with one request open at a time.
    pub clients: u64,
    /// Keys that they share.
    pub keys: u64,
    /// How long a client waits for a reply.
    pub patience_ns: u64,
    /// How long it waits before it sends the same request again, to another node.
    pub resend_ns: u64,
    /// The time between a reply and the client's next request.
    pub think: Span,
    /// Data bytes of each log lane: few, so that it wraps and fills often.
    pub log_ring_bytes: usize,
    /// When an idle primary sends its commit index unasked.
    pub flush_idle_ns: u64,
    /// What a backup takes from a lane in one turn.
    pub drain_budget_bytes: usize,
    /// How much is transferred to a learner in one turn.
    pub transfer_budget_bytes: usize,
    /// The longest that a process goes without a turn.
    pub idle_ns: u64,
    /// Each node's roles; the first node founds the cluster.
    pub roles: Vec<Roles>,
    /// The members that take leases.
    pub leases: Leases,
    /// How duty cycles divide their time.
    pub pace: Pace,
    /// How often, per thousand, a turn stops between two of its steps.
    pub broken_turns: u32,
    /// How long it then stops.
    pub break_ns: Span,
    /// How often, per thousand of those stops, the whole process stands still for as long as in a pause.
    pub long_breaks: u32,
    /// Whether the threads of a killed process may die some time apart.
    pub parted_deaths: bool,
    /// Whether processes sleep until they are nudged.
    pub sleepers: bool,
    /// Whether the ballots of all slots have been used up before the life begins.
    pub worn: bool,
    /// How many reads of clients, per thousand, go by quorum.
    pub quorum_reads: u32,
    /// Whether a majority has to serve alone before everything heals.
    pub alone: bool,
    /// When a leader's machine executes.
    pub execution: Execution,
    /// How many lives of nodes, per thousand, run a later build than the one that founded the cluster: the cluster is being upgraded.
    pub upgrades: u32,
    /// The wardens of the nodes' hosts, if they have any.
    pub wardens: Option<Wardens>,
    /// The nodes' disks, if they have any.
    pub disks: Option<Disks>,
    /// How long the memory of a dead process counts, in nanoseconds; 0: not at all.
    pub zombies_ns: u64,
    /// A deliberate mistake.
    pub canary: Option<Canary>,
}

/// The least number of requests in every life, if its clients get the chance.
const REQUESTS: u64 = 500;
/// The least number of single faults in a life that is not calm.
const FAULTS_WHERE_NOT_CALM: u64 = 20;
/// This many of the easy faults together are due within this many nanoseconds, even where only two kinds of them happen: so there are enough in time.
const FAULTS_DUE: (u64, u64) = (24, 5_000_000);
/// The easy faults: they can hit any process at any time.
const EASY: [Fault; 3] = [Fault::Pause, Fault::Slow, Fault::LeaseChange];

/// Draws the mean time between two single faults of a kind; `None` for none.
fn mean_ns(chance: &mut Rng, temper: Temper, ground: Ground, fault: Fault) -> Option<u64> {
    let (least, most) = match fault {
        Fault::Nic | Fault::LostCompletion => (1_000_000, 4_000_000),
        Fault::HostCrash | Fault::Leave => (300_000, 2_000_000),
        _ => (150_000, 1_500_000),
    };
    let mean = chance.u64(least..=most);
    let (of_8, mean) = match temper {
        Temper::Calm => (2, mean * 3),
        Temper::Rough => (4, mean),
        Temper::Hell => (6, least + (mean - least) / 3),
    };
    // Memory on one host cannot be partitioned.
    let possible = ground == Ground::Network || !fault.needs_network();
    (chance.u8(..8) < of_8 && possible).then_some(mean)
}

/// Draws how duty cycles divide their time. In half of all lives no turn serves only requests.
fn drawn_pace(chance: &mut Rng) -> Pace {
    let expects_requests_ns = if chance.bool() { 0 } else { 100 * chance.u64(1..500) };
    let short = chance.u64(200..5_000);
    let forget_after_ns = 4 * short;
    Pace {
        expects_requests_ns,
        short_turns_ns: 4 * short,
        patience_ns: 2 * short,
        forget_after_ns,
        forget_while_busy_after_ns: 4 * forget_after_ns,
    }
}

impl Settings {
    /// Draws a life on a host, or on a network. Each kind of trouble is absent from some lives, since troubles hide one another.
    pub fn drawn(chance: &mut Rng, ground: Ground) -> Settings {
        let temper = match chance.u8(..8) {
            0 => Temper::Calm,
            1..3 => Temper::Rough,
            _ => Temper::Hell,
        };
        let mut faults = Faults::drawn(chance);
        // A turn costs one of our nodes at least this long; otherwise lives would consist of polling.
        faults.turn = Span(400, chance.u64(500..3_000));
        if chance.u8(..4) == 0 {
            faults.death_words = Span(0, chance.u64(30_000..500_000));
        }
        let lease_ns = chance.u64(20_000..150_000);
        let mut every_ns = [None; FAULTS];
        let drawn_later = [Fault::HandOver, Fault::PowerLoss, Fault::Shutdown, Fault::Forgery, Fault::Resize, Fault::Zombies];
        for fault in Fault::ALL.into_iter().filter(|fault| fault.is_event() && !drawn_later.contains(fault)) {
            every_ns[fault as usize] = mean_ns(chance, temper, ground, fault);
        }
        if temper == Temper::Calm {
            faults = Faults { turn: faults.turn, connect: faults.connect, ..Faults::calm() };
        }
        let nodes = chance.u16(2..=5);
        let both = Roles::COORDINATOR.with(Roles::REPLICA);
        let mixed = chance.u8(..4) == 0;
        let roles = (0..nodes).map(|node| match chance.u8(..4) {
            0 if mixed && node > 0 => Roles::COORDINATOR,
            1 if mixed && node > 0 => Roles::REPLICA,
            _ => both,
        });
        let roles = roles.collect();
        let trouble_ns = chance.u64(1_000_000..3_000_000);
        let patience_ns = chance.u64(100_000..500_000);
        let mut settings = Settings {
            temper,
            nodes,
            roles,
            leases: if chance.u8(..6) == 0 { Leases::Everybody } else { Leases::Primary },
            pace: drawn_pace(chance),
            broken_turns: if temper == Temper::Calm || chance.bool() { 0 } else { chance.u32(1..300) },
            break_ns: Span(0, chance.u64(1_000..20_000)),
            long_breaks: 0,
            parted_deaths: false,
            sleepers: chance.bool(),
            worn: chance.u8(..8) < 2,
            trouble_ns,
            trouble_most_ns: 8_000_000,
            least_requests: REQUESTS,
            least_faults: if temper == Temper::Calm { 0 } else { FAULTS_WHERE_NOT_CALM },
            most_requests: u64::MAX,
            lease_ns,
            clocks: ClockBounds { drift_ppm: 200, skew_ns: chance.u64(0..500) },
            heartbeat_interval_ns: chance.u64(10_000..60_000),
            broadcast_interval_ns: chance.u64(50_000..150_000),
            broadcast_timeout_ns: chance.u64(500_000..1_500_000),
            every_ns,
            restart: Span(20_000, chance.u64(50_000..600_000)),
            pause: Span(10_000, chance.u64(20_000..6 * lease_ns)),
            // Most are too short to break a connection, some are long enough.
            partition: Span(1_000, chance.u64(5_000..faults.peer_lost_after_ns * 3 / 2)),
            threads: chance.usize(1..=2),
            clients: chance.u64(2..=8),
            keys: chance.u64(1..=8),
            patience_ns,
            resend_ns: chance.u64(patience_ns / 8..patience_ns * 2),
            think: Span(0, chance.u64(1_000..30_000)),
            log_ring_bytes: 1 << chance.u32(10..=14),
            flush_idle_ns: chance.u64(1_000..20_000),
            drain_budget_bytes: chance.usize(1..2_000),
            transfer_budget_bytes: chance.usize(1..2_000),
            idle_ns: chance.u64(2_000..20_000),
            quorum_reads: 0,
            alone: false,
            execution: Execution::Speculative,
            upgrades: 0,
            wardens: None,
            disks: None,
            zombies_ns: 0,
            canary: None,
            faults,
        };
        if temper != Temper::Calm && chance.bool() {
            settings.strain(chance);
        }
        // Drawn last, so that lives without caches stay what they were before there were caches.
        if chance.u8(..3) == 0 {
            settings.add_lease_caches(chance);
        }
        settings.alone = chance.bool();
        // Drawn last as well, so that the rest of a life stays what it was before leaders handed over.
        settings.every_ns[Fault::HandOver as usize] = mean_ns(chance, temper, ground, Fault::HandOver);
        if temper != Temper::Calm {
            settings.hasten();
        }
        // If a replica of `mu` goes longer than that without a duty cycle, it takes this for a stall of its own, and suspects no other.
        settings.idle_ns = settings.idle_ns.min(settings.heartbeat_interval_ns / 3);
        settings
    }

    /// Gives the nodes disks. Now and then the power goes, and now and then all nodes end in an orderly way. This has its own randomness, so lives without
    /// disks stay what they were.
    pub fn add_disks(&mut self, chance: &mut Rng) {
        let slowest = chance.u64(1_000..30_000);
        self.disks = Some(Disks {
            sync: Span(500, slowest),
            segment_bytes: chance.usize(500..20_000),
            part_bytes: chance.usize(50..2_000),
            dark: Span(10_000, chance.u64(20_000..300_000)),
            late: chance.u8(0..3),
        });
        self.set_every_ns(Fault::PowerLoss, chance.u64(600_000..3_000_000));
        self.set_every_ns(Fault::Shutdown, chance.u64(600_000..3_000_000));
        // A first view has only members of the group, and one of them has to decide the next view.
        for roles in self.roles.iter_mut().filter(|roles| roles.has(Roles::REPLICA)) {
            *roles = roles.with(Roles::COORDINATOR);
        }
        // Used slots would say that the cluster has been founded already.
        self.worn = false;
    }

    /// In some lives some reads, or all, go by quorum. This has its own randomness, so other lives stay what they were before.
    pub fn add_quorum_reads(&mut self, chance: &mut Rng) {
        self.quorum_reads = match chance.u8(..6) {
            0 => chance.u32(1..1000),
            1 => 1000,
            _ => 0,
        };
    }

    /// In some lives the cluster is upgraded: nodes start again with a later build, and an operator asks for a higher feature level, sometimes too early. This
    /// has its own randomness, so other lives stay what they were before.
    pub fn add_upgrades(&mut self, chance: &mut Rng) {
        if chance.u8(..4) == 0 {
            self.upgrades = chance.u32(200..900);
            if self.every_ns(Fault::LeaseChange).is_none() {
                self.set_every_ns(Fault::LeaseChange, chance.u64(150_000..500_000));
            }
        }
    }

    /// In some lives on a network each host has a warden, and an attacker forges certificates. This has its own randomness, so other lives stay what they were
    /// before.
    pub fn add_wardens(&mut self, chance: &mut Rng) {
        self.wardens =
            Some(Wardens { silent: chance.u32(..500), repeated: chance.u32(..300), late_ns: chance.u64(1_000..3 * self.lease_ns) });
        if self.temper != Temper::Calm {
            self.set_every_ns(Fault::Forgery, chance.u64(50_000..400_000));
        }
    }

    /// An operator changes the group's number of places, again and again. There are enough nodes for that.
    pub fn add_resizes(&mut self, chance: &mut Rng) {
        self.set_every_ns(Fault::Resize, chance.u64(100_000..800_000));
        let both = Roles::COORDINATOR.with(Roles::REPLICA);
        self.roles.resize(self.roles.len().max(chance.usize(4..=6)), both);
        self.nodes = self.roles.len() as u16;
    }

    /// The memory of dead processes counts. In half of the lives it does so too briefly, perhaps, to be of use; in the others so many die at once that it has
    /// to. This has its own randomness.
    pub fn add_zombies(&mut self, chance: &mut Rng) {
        let both = Roles::COORDINATOR.with(Roles::REPLICA);
        self.nodes = chance.u16(3..=5);
        self.roles = vec![both; usize::from(self.nodes)];
        // The living ones decide views by themselves.
        self.worn = false;
        if chance.bool() {
            self.zombies_ns = chance.u64(20_000..200_000);
            self.set_every_ns(Fault::Kill, chance.u64(150_000..400_000));
            self.set_every_ns(Fault::Pause, chance.u64(50_000..150_000));
        } else {
            self.zombies_ns = 50_000_000;
            self.set_every_ns(Fault::Zombies, chance.u64(150_000..600_000));
        }
    }

    /// Makes the easy faults more frequent where too few would happen.
    fn hasten(&mut self) {
        let (least, within_ns) = FAULTS_DUE;
        // In hundredths of a fault.
        let due: u64 = EASY.iter().filter_map(|fault| Some(within_ns * 100 / self.every_ns(*fault)?)).sum();
        if due == 0 {
            self.set_every_ns(Fault::Pause, within_ns / least);
        }
        for fault in EASY {
            if let Some(mean) = self.every_ns(fault).filter(|_| (1..least * 100).contains(&due)) {
                self.set_every_ns(fault, mean * due / (least * 100));
            }
        }
    }

    /// Some nodes renew leases for others, and perhaps one more does nothing else. Mostly all members take leases, which is what caches are for.
    fn add_lease_caches(&mut self, chance: &mut Rng) {
        for roles in &mut self.roles {
            if chance.bool() {
                *roles = roles.with(Roles::LEASE_CACHE);
            }
        }
        if chance.bool() {
            self.roles.push(Roles::LEASE_CACHE);
            self.nodes += 1;
        }
        if chance.u8(..4) != 0 {
            self.leases = Leases::Everybody;
        }
    }

    /// Takes the bounds of the model to their limits: clocks that drift far more than real ones do, so that it matters to leases of microseconds; turns that
    /// stop for as long as a pause; threads of one process that die some time apart (TRAPS 7, 8 and 32).
    fn strain(&mut self, chance: &mut Rng) {
        self.clocks.drift_ppm = chance.u64(200..100_000);
        self.long_breaks = chance.u32(1..30);
        self.parted_deaths = true;
    }

    /// A life in which nothing goes wrong by itself, for scripts: three nodes, two clients, one acting thread each.
    pub fn scripted() -> Settings {
        let both = Roles::COORDINATOR.with(Roles::REPLICA);
        Settings {
            temper: Temper::Calm,
            nodes: 3,
            roles: vec![both; 3],
            leases: Leases::Primary,
            pace: Pace {
                expects_requests_ns: 0,
                patience_ns: 5_000,
                forget_after_ns: 5_000,
                forget_while_busy_after_ns: 20_000,
                ..Pace::default()
            },
            broken_turns: 0,
            break_ns: Span(0, 0),
            long_breaks: 0,
            parted_deaths: false,
            sleepers: false,
            worn: false,
            trouble_ns: 0,
            trouble_most_ns: 0,
            least_requests: 0,
            least_faults: 0,
            most_requests: u64::MAX,
            lease_ns: 100_000,
            clocks: ClockBounds { drift_ppm: 200, skew_ns: 100 },
            heartbeat_interval_ns: 25_000,
            broadcast_interval_ns: 100_000,
            broadcast_timeout_ns: 1_000_000,
            every_ns: [None; FAULTS],
            restart: Span(100_000, 100_000),
            pause: Span(300_000, 300_000),
            partition: Span(50_000, 50_000),
            threads: 1,
            clients: 2,
            keys: 2,
            patience_ns: 500_000,
            resend_ns: 100_000,
            think: Span(5_000, 15_000),
            log_ring_bytes: 1 << 14,
            flush_idle_ns: 5_000,
            drain_budget_bytes: 2_000,
            transfer_budget_bytes: 2_000,
            idle_ns: 10_000,
            quorum_reads: 0,
            alone: false,
            execution: Execution::Speculative,
            upgrades: 0,
            wardens: None,
            disks: None,
            zombies_ns: 0,
            canary: None,
            faults: Faults { turn: Span(400, 600), ..Faults::calm() },
        }
    }

    /// The mean time between two faults of a kind; `None` if there are none.
    pub fn every_ns(&self, fault: Fault) -> Option<u64> {
        self.every_ns[fault as usize]
    }

    /// Makes a kind of fault happen this often, on average.
    pub fn set_every_ns(&mut self, fault: Fault, mean_ns: u64) {
        self.every_ns[fault as usize] = Some(mean_ns);
    }

    /// Makes a kind of fault not happen any more.
    pub fn unset(&mut self, fault: Fault) {
        self.every_ns[fault as usize] = None;
    }

    /// Leaves out what the changes leave out.
    pub fn change(&mut self, changes: &Changes) {
        let calm = Faults::calm();
        for fault in Fault::ALL.into_iter().filter(|fault| changes.lacks(*fault)) {
            match fault {
                Fault::Drop => self.faults.drops = 0,
                Fault::Repeat => self.faults.repeats = 0,
                Fault::Delay => self.faults.datagram = calm.datagram,
                Fault::Tear => self.faults.tears = 0,
                Fault::Spike => self.faults.spikes = 0,
                Fault::Stall => self.faults.stalls = 0,
                Fault::BrokenTurn => self.broken_turns = 0,
                Fault::Sleep => self.sleepers = false,
                Fault::LateDeath => (self.faults.death_words, self.faults.gone) = (calm.death_words, calm.gone),
                Fault::LostNotice => self.faults.lost_notices = 0,
                Fault::FullLog => self.log_ring_bytes = 1 << 18,
                Fault::WornBallots => self.worn = false,
                Fault::Drift => self.clocks.skew_ns = 0,
                // A node that ends always starts again, so without ends there are no restarts.
                Fault::Restart => {}
                event => self.every_ns[event as usize] = None,
            }
        }
        if let Some(trouble_ns) = changes.trouble_ns {
            (self.trouble_ns, self.trouble_most_ns) = (trouble_ns, trouble_ns);
        }
        self.most_requests = changes.operations.unwrap_or(self.most_requests);
        if let Some(nodes) = changes.nodes {
            self.nodes = self.nodes.min(nodes.max(1));
            self.roles.truncate(usize::from(self.nodes));
        }
        self.clients = self.clients.min(changes.clients.unwrap_or(u64::MAX).max(1));
        self.keys = self.keys.min(changes.keys.unwrap_or(u64::MAX).max(1));
    }
}
