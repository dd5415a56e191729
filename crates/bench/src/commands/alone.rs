//! Replicas without a node around them: what an engine costs by itself. Each has an endpoint of its own, all are in this process.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use martlet_cluster::fail::{Context as _, Fail, Outcome};
use martlet_fabric::{Fabric, Incarnation, LocalRegion, NodeId, PeerEvent, PeerId, Traits, ring};
use martlet_node::config::{DetectorConfig, DurabilityKind};
use martlet_node::sched::OnCore;
use martlet_node::wal::format::Owner;
use martlet_node::wal::{self, Pace, Style, Wal};
use martlet_node::{clock, sched};
use martlet_protocol::basics::layout::{LIFE, MAX_WATCHERS, life};
use martlet_protocol::basics::{LogIndex, ProcessId, Time, ViewNumber};
use martlet_protocol::engine::Engine as _;
use martlet_protocol::engine::view_log::{self, Rule, ViewLog};
use martlet_protocol::engine::{Apus, Dare, Durable, Mu, apus, dare, mu};
use martlet_protocol::membership::{Member, Roles, View};
use martlet_protocol::replica::backlog::{COMMAND_HEADER_BYTES, HEADER_BYTES};
use martlet_protocol::replica::group::Group;
use martlet_protocol::replica::journal::SnapshotStep;
use martlet_protocol::replica::{Durability, Execution, Settings, Standing, StateMachine, UnreadablePart};

use super::endpoint::{self, Endpoint, Place};
use super::lane_reader::{RAW_LANE, RAW_LANE_BYTES};
use super::raise::Raise;
use crate::report::placement::two_cores;

/// Replicas of the group, where nothing else is said.
pub const NODES: u16 = 3;
/// The one that is to lead.
const MEASURED: NodeId = NodeId(0);
/// How long things may take that have no reason to take long.
const PATIENCE: Duration = Duration::from_secs(30);

/// A machine that has nothing to do: only replication is measured.
#[derive(Debug, Default)]
pub struct Idle {
    commands: u64,
}

impl StateMachine for Idle {
    fn apply(&mut self, _: LogIndex, _: &[u8]) {
        self.commands += 1;
    }

    fn transfer(&self, _: u64, _: usize, out: &mut Vec<u8>) -> Option<u64> {
        out.extend_from_slice(&self.commands.to_le_bytes());
        None
    }

    fn install(&mut self, part: &[u8]) -> Result<(), UnreadablePart> {
        self.commands = u64::from_le_bytes(part.try_into().map_err(|_| UnreadablePart)?);
        Ok(())
    }

    fn clear(&mut self) {
        self.commands = 0;
    }

    fn digest(&self) -> u64 {
        self.commands
    }
}

/// The process that runs as that node.
fn process(node: u16) -> ProcessId {
    ProcessId { node: NodeId(node), incarnation: Incarnation(1) }
}

/// An engine that can run without a node.
pub trait Alone: Durable {
    /// Whether what is proposed together travels as one record.
    const BATCHES: bool;

    /// How long the record is that carries one request of so many bytes.
    fn record_bytes(request: usize) -> usize;

    /// Usual settings on such a fabric, with chance of its own. Engines without a journal know durability in memory only.
    fn settings(secret: u64, durability: DurabilityKind, fabric: Traits) -> Self::Config;

    /// The engine of one of the `nodes` that everything begins with.
    fn founding(node: u16, nodes: u16, config: Self::Config) -> Self;

    /// Takes what it has to write to its log on disk, and tells it what is stable.
    #[inline]
    fn attend_disk<F: Fabric>(&mut self, disk: &mut Disk, fabric: &F, machine: &Idle) {
        self.handle_stable(disk.wal.stable());
        take(self, &mut disk.wal);
        disk.wal.hand_over();
        if !disk.begun {
            disk.begun = true;
            disk.wal.begin_snapshot();
            self.begin_snapshot(fabric);
            take(self, &mut disk.wal);
        } else if !disk.based {
            let mut part = Vec::new();
            match self.snapshot_step(machine, 1 << 20, &mut part) {
                SnapshotStep::Part => disk.wal.add_part(&mut part),
                SnapshotStep::Whole => disk.wal.finish_snapshot(part),
                SnapshotStep::Wait | SnapshotStep::Void | SnapshotStep::TooLong(_) => {}
            }
            if disk.wal.snapshots() > 0 {
                disk.based = true;
                self.handle_snapshot_stable();
            }
        }
    }
}

/// A replica's log on disk.
pub struct Disk {
    wal: Wal,
    /// The snapshot that everything goes on from has been begun, and is stable.
    begun: bool,
    based: bool,
}

impl Disk {
    /// In a directory of its own there.
    pub fn start(path: &Path, node: u16) -> Outcome<Disk> {
        let style = Style { owner: Owner { cluster: 1, node }, segment_bytes: 1 << 30, chance: fastrand::u64(..) };
        let started = || {
            let directory = wal::Directory::open(&path.join(format!("node-{node}")), style)?;
            Wal::start(directory.begin(1, 0)?, &directory.life_path(1), Pace::unbounded(), || {})
        };
        Ok(Disk { wal: started().map_err(Fail::failed)?, begun: false, based: false })
    }
}

/// Settings under which nothing is executed, before or after.
fn unexecuted(fabric: Traits) -> Settings {
    let settings = Settings { execution: Execution::Speculative, ..Settings::default() };
    if !fabric.spans_hosts {
        return settings;
    }
    // Between hosts a look at a peer is a request, and nodes look as often as their detector is set to. To look all the time, as in memory, would be most of what is measured.
    let DetectorConfig { heartbeat_us, broadcast_timeout_us, .. } = DetectorConfig::default();
    let beat_ns = heartbeat_us * 1_000;
    Settings {
        heartbeat_interval_ns: beat_ns,
        death_interval_ns: beat_ns,
        stall_ns: 2 * beat_ns,
        silence_ns: broadcast_timeout_us * 1_000,
        ..settings
    }
}

/// For how long a candidate waits for votes, and how much later one stands for each that is rather to lead: no less than `usual`, and no less than a heart tells.
fn election(shared: &Settings, usual: (u64, u64)) -> (u64, u64) {
    let beat_ns = shared.heartbeat_interval_ns;
    ((4 * beat_ns).max(usual.0), beat_ns.max(usual.1))
}

impl Alone for Mu {
    const BATCHES: bool = true;

    fn record_bytes(request: usize) -> usize {
        ring::record_bytes(HEADER_BYTES + COMMAND_HEADER_BYTES + request)
    }

    fn settings(secret: u64, durability: DurabilityKind, fabric: Traits) -> mu::Config {
        let durability = durability.meaning();
        let mut config = mu::Config { shared: unexecuted(fabric), secret, durability, ..mu::Config::default() };
        // A reign begins with a sync: it must not end for a pause that is shorter than that.
        if durability != Durability::Memory {
            (config.heartbeat_interval_ns, config.stall_ns) = (20_000_000, 10_000_000);
        }
        config
    }

    fn founding(node: u16, nodes: u16, config: mu::Config) -> Mu {
        Mu::new(process(node), config, Some(Group::new((0..nodes).map(process).collect())))
    }
}

impl Alone for Dare {
    const BATCHES: bool = true;

    fn record_bytes(request: usize) -> usize {
        ring::record_bytes(HEADER_BYTES + COMMAND_HEADER_BYTES + request)
    }

    fn settings(_: u64, _: DurabilityKind, fabric: Traits) -> dare::Config {
        let (shared, usual) = (unexecuted(fabric), dare::Config::default());
        let (election_ns, rank_ns) = election(&shared, (usual.election_ns, usual.rank_ns));
        dare::Config { shared, election_ns, rank_ns, ..usual }
    }

    fn founding(node: u16, nodes: u16, config: dare::Config) -> Dare {
        Dare::new(process(node), config, Some(Group::new((0..nodes).map(process).collect())))
    }
}

impl Alone for Apus {
    const BATCHES: bool = true;

    fn record_bytes(request: usize) -> usize {
        ring::record_bytes(HEADER_BYTES + COMMAND_HEADER_BYTES + request)
    }

    fn settings(secret: u64, durability: DurabilityKind, fabric: Traits) -> apus::Config {
        let durability = durability.meaning();
        let (shared, usual) = (unexecuted(fabric), apus::Config::default());
        let (election_ns, rank_ns) = election(&shared, (usual.election_ns, usual.rank_ns));
        let mut config = apus::Config { shared, secret, durability, election_ns, rank_ns };
        // So does a reign of this one, and each promise.
        if durability != Durability::Memory {
            (config.shared.heartbeat_interval_ns, config.shared.stall_ns, config.election_ns) = (20_000_000, 10_000_000, 80_000_000);
        }
        config
    }

    fn founding(node: u16, nodes: u16, config: apus::Config) -> Apus {
        Apus::new(process(node), config, Some(Group::new((0..nodes).map(process).collect())))
    }
}

/// The engine whose replication DARE's authors model.
pub type Modelled = Dare;

#[inline]
fn take(engine: &mut impl Durable, wal: &mut Wal) {
    if !engine.journal().is_empty() {
        let ticket = wal.append(engine.journal());
        engine.note_taken(ticket);
    }
}

/// The only view of those that need one. It is active all the time: nobody here can fall out of it.
const VIEW: ViewNumber = ViewNumber(1);

impl<R: Rule> Alone for ViewLog<R> {
    const BATCHES: bool = false;

    fn record_bytes(request: usize) -> usize {
        ring::record_bytes(view_log::layout::HEADER_BYTES + request)
    }

    fn settings(secret: u64, _: DurabilityKind, _: Traits) -> view_log::Config {
        view_log::Config { secret, ..view_log::Config::default() }
    }

    fn founding(node: u16, nodes: u16, config: view_log::Config) -> ViewLog<R> {
        let member = |node| Member::new(process(node), Roles::REPLICA);
        let members = (0..nodes).map(member).collect();
        let (lease_ns, fence_ns) = (u64::MAX, u64::MAX);
        let mut engine = ViewLog::new(process(node), config);
        engine.handle_view(&View { number: VIEW, lease_ns, fence_ns, compatible: false, level: 1, members, departed: Vec::new() });
        engine
    }
}

/// One replica, on an endpoint of its own.
pub struct Replica<F, E> {
    pub engine: E,
    pub fabric: F,
    pub machine: Idle,
    pub peers: Vec<PeerId>,
    /// How many of the engine's operations have completed.
    pub completed: u64,
    /// Its log on disk, where the durability asks for one.
    disk: Option<Disk>,
}

impl<F: Endpoint, E: Alone> Replica<F, E> {
    /// Starts one of the `nodes`. `data`: what it acknowledges has that durability, on a disk there.
    pub fn start(place: &Place, node: u16, nodes: u16, data: (DurabilityKind, &Path)) -> Outcome<Replica<F, E>> {
        let (durability, path) = data;
        let config = E::settings(fastrand::u64(..), durability, place.fabric);
        let disk = if durability == DurabilityKind::Memory { None } else { Some(Disk::start(path, node)?) };
        let mut regions = endpoint::regions();
        E::add_regions(&mut regions, &config);
        regions.member_lanes.push((RAW_LANE, RAW_LANE_BYTES));
        let fabric = F::start(place, node, regions)?;
        // All replicas are this process: the kernel need not watch it for them, and its words say as long as they are there that a thread of it lives.
        let signs = fabric.memory(LocalRegion::Public(LIFE)).expect("every process offers signs of life");
        (0..MAX_WATCHERS).for_each(|watcher| signs[life::death(0, watcher)].store(life::WAITERS | 1, Ordering::Relaxed));
        signs[life::THREADS].store(life::counting(0, 0), Ordering::Release);
        (0..nodes).filter(|other| *other != node).for_each(|other| fabric.connect(place, other));
        Ok(Replica { engine: E::founding(node, nodes, config), fabric, machine: Idle::default(), peers: Vec::new(), completed: 0, disk })
    }

    /// Everything that is due: who came and went, the engine, the consequences.
    pub fn turn(&mut self) {
        self.attend();
        let now = clock::now();
        self.engine.post(now, &mut self.fabric, &mut self.machine);
        self.conclude(now);
        while self.engine.poll_event().is_some() {}
    }

    fn attend(&mut self) {
        while let Some(event) = self.fabric.event() {
            match event {
                PeerEvent::Up { peer, identity } => {
                    let process = ProcessId { node: identity.node, incarnation: identity.incarnation };
                    self.engine.handle_peer_up(peer, process, &mut self.fabric);
                    self.peers.push(peer);
                }
                PeerEvent::Gone { peer, certain } => {
                    self.engine.handle_peer_gone(peer, certain);
                    self.peers.retain(|known| *known != peer);
                }
            }
        }
    }

    /// Takes what has completed, and draws the conclusions.
    #[inline]
    pub fn conclude(&mut self, now: Time) {
        while let Some(completion) = self.fabric.poll() {
            self.engine.handle_completion(completion);
            self.completed += 1;
        }
        if let Some(disk) = &mut self.disk {
            self.engine.attend_disk(disk, &self.fabric, &self.machine);
        }
        self.engine.advance(now, Some(VIEW), &mut self.fabric, &mut self.machine);
    }

    /// Takes turns until something is so.
    pub fn until(&mut self, what: &str, done: impl Fn(&Replica<F, E>) -> bool) -> Outcome {
        let until = Instant::now() + PATIENCE;
        while !done(self) {
            self.turn();
            if Instant::now() > until {
                return Err(Fail::failed(format_args!("not within {} s: {what}", PATIENCE.as_secs())));
            }
        }
        Ok(())
    }

    /// Replies to one request, which `proposes` so many bytes, or reads, and executes nothing: how long it took until the reply was released, in nanoseconds.
    /// `None`: the lead was lost on the way.
    pub fn reply(&mut self, proposes: Option<&[u8]>) -> Outcome<Option<u64>> {
        // Between two requests, so that it is not in the way of one: beats, and whatever else is due.
        self.turn();
        self.until("it leads, and has room", |leader| leader.engine.has_room(proposes.map_or(0, <[u8]>::len)))?;
        let reign = self.engine.reign();
        let start = clock::now();
        let ticket = self.engine.ticket();
        if let Some(effects) = proposes {
            self.engine.propose(effects).map_err(Fail::failed)?;
        }
        self.engine.post(start, &mut self.fabric, &mut self.machine);
        self.conclude(start);
        while self.engine.released() < ticket && self.engine.reign() == reign {
            self.turn();
        }
        let took = clock::now().since(start);
        Ok((self.engine.reign() == reign).then_some(took))
    }

    /// Takes turns until it leads and is connected with `peers` others.
    pub fn until_it_leads(&mut self, peers: usize) -> Outcome {
        self.until("it leads", |leader| leader.engine.standing() == Standing::Primary)?;
        self.until("all are connected", |leader| leader.peers.len() == peers)
    }
}

/// Runs `act` with one of `nodes` replicas, which leads, and gets the lead back when it has lost it; the others take their turns on another core, where there
/// is one. `besides`: what each of these does after every turn.
pub fn among<F: Endpoint, E: Alone + Send, T>(
    place: &Place,
    nodes: u16,
    data: (DurabilityKind, &Path),
    besides: impl FnMut(usize, &Replica<F, E>) + Send,
    act: impl FnOnce(Replica<F, E>) -> Outcome<T>,
) -> Outcome<T> {
    let cores = two_cores();
    let _here = cores.map(|(here, _)| OnCore::enter(here)).transpose().context("cannot bind the measuring thread")?;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // The followers end with us, however we end.
        let _stop = Raise(&stop);
        let followers = (1..nodes).map(|node| Replica::<F, E>::start(place, node, nodes, data)).collect::<Outcome<Vec<_>>>()?;
        let stopped = &stop;
        scope.spawn(move || follow(followers, cores.map(|(_, there)| there), stopped, besides));
        let mut replica = Replica::<F, E>::start(place, 0, nodes, data)?;
        replica.until_it_leads(usize::from(nodes) - 1)?;
        act(replica)
    })
}

/// The followers' thread: their turns, one after the other, until it is told to stop. `besides`: what each does after every turn.
fn follow<F: Endpoint, E: Alone>(
    mut followers: Vec<Replica<F, E>>,
    core: Option<u16>,
    stop: &AtomicBool,
    mut besides: impl FnMut(usize, &Replica<F, E>),
) {
    if let Some(core) = core {
        // Without it the figures are worse, and still true.
        let _ = sched::pin_current_thread(core);
    }
    while !stop.load(Ordering::Relaxed) {
        for (nth, follower) in followers.iter_mut().enumerate() {
            follower.turn();
            // Those that are there first may have elected one of them, or do so when the measuring thread has been stalled.
            if E::TRAITS.elects() && !E::TRAITS.prefers_lowest && follower.engine.standing() == Standing::Primary {
                // Where that cannot be just now, it can be in a later turn.
                let _ = follower.engine.hand_over(Some(MEASURED));
            }
            besides(nth, follower);
        }
        if core.is_none() {
            std::thread::yield_now();
        }
    }
}
