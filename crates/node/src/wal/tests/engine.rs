//! The log with the engine that it is for: a replica of `mu`, alone in its group, through losses of power.

use martlet_fabric::sim::{Endpoint, Faults, World};
use martlet_fabric::{Fabric as _, Identity, Incarnation, NodeId, PeerKind, RegionSpec};
use martlet_protocol::basics::{LogIndex, ProcessId, RETURN_BITS, Time};
use martlet_protocol::engine::mu::{Config, Durability, Group, Mu};
use martlet_protocol::engine::{Durable as _, Engine as _};
use martlet_protocol::replica::journal::SnapshotStep;
use martlet_protocol::replica::{Settings, Standing, StateMachine, UnreadablePart};

use super::super::{Log, Pace, Wal, recover};
use super::memory::MemoryDisk;
use super::{LIFE, STYLE, create, dir};

const ME: ProcessId = ProcessId { node: NodeId(3), incarnation: Incarnation(1 << RETURN_BITS) };

/// Keeps every command.
#[derive(Debug, Default, PartialEq)]
struct List(Vec<u8>);

impl StateMachine for List {
    fn apply(&mut self, _: LogIndex, command: &[u8]) {
        self.0.extend_from_slice(command);
    }
    fn transfer(&self, cursor: u64, _: usize, out: &mut Vec<u8>) -> Option<u64> {
        // In two parts, the second of which is the state.
        if cursor == 0 {
            return Some(1);
        }
        out.extend_from_slice(&self.0);
        None
    }
    fn install(&mut self, part: &[u8]) -> Result<(), UnreadablePart> {
        self.0 = part.to_vec();
        Ok(())
    }
    fn clear(&mut self) {
        self.0.clear();
    }
    fn digest(&self) -> u64 {
        self.0.len() as u64
    }
}

struct Alone {
    world: World<true>,
    fabric: Endpoint<true>,
    engine: Mu,
    machine: List,
    wal: Wal,
}

fn config() -> Config {
    let shared = Settings { log_ring_bytes: 4096, state_ring_bytes: 4096, ..Settings::default() };
    Config { shared, durability: Durability::Sync, ..Config::default() }
}

fn world() -> (World<true>, Endpoint<true>) {
    let mut world = World::new(1, Faults::calm());
    let mut spec = RegionSpec::default();
    Mu::add_regions(&mut spec, &config());
    let (_, fabric) = world.spawn(Identity { node: ME.node, incarnation: ME.incarnation, kind: PeerKind::Member }, &spec);
    (world, fabric)
}

impl Alone {
    fn start(log: Log<MemoryDisk>, world: World<true>, fabric: Endpoint<true>, engine: Mu, machine: List) -> Alone {
        let wal = Wal::start(log, dir(), Pace::unbounded(), || {}).expect("a thread");
        Alone { world, fabric, engine, machine, wal }
    }

    fn founded(disk: &MemoryDisk) -> Alone {
        let (world, fabric) = world();
        let engine = Mu::new(ME, config(), Some(Group::new(vec![ME])));
        Alone::start(create(disk), world, fabric, engine, List::default())
    }

    fn recovered(disk: &MemoryDisk) -> Alone {
        let (world, fabric) = world();
        let (found, log) = recover(disk.clone(), dir(), STYLE, LIFE).expect("what it has written");
        let (snapshot, mut machine) = (found.snapshot.expect("one is stable"), List::default());
        let journal = found.frames.concat();
        let engine = Mu::recover(ME, config(), &snapshot.parts, &snapshot.last, &journal, &fabric, &mut machine);
        let engine = engine.expect("what it has written").expect("it keeps a journal");
        Alone::start(log, world, fabric, engine, machine)
    }

    fn turn(&mut self) {
        let now = Time(self.world.now());
        self.engine.post(now, &mut self.fabric, &mut self.machine);
        while let Some(completion) = self.fabric.poll() {
            self.engine.handle_completion(completion);
        }
        self.engine.advance(now, None, &mut self.fabric, &mut self.machine);
        while self.engine.poll_event().is_some() {}
        self.take();
        self.wal.hand_over();
        self.engine.handle_stable(self.wal.stable());
        // The disk's thread runs by another clock: the disk's delay must not look like a leader that makes no progress.
        self.world.wake_at(0, now.0 + 10);
        self.world.next_turn(u64::MAX);
        std::thread::yield_now();
    }

    fn take(&mut self) {
        if !self.engine.journal().is_empty() {
            let ticket = self.wal.append(self.engine.journal());
            self.engine.note_taken(ticket);
        }
    }

    fn until(&mut self, done: impl Fn(&Alone) -> bool) {
        while !done(self) {
            assert!(!self.wal.has_failed());
            self.turn();
        }
    }

    fn snapshot(&mut self) {
        let before = self.wal.snapshots();
        self.take();
        self.wal.begin_snapshot();
        assert!(self.engine.begin_snapshot(&self.fabric));
        self.take();
        loop {
            let mut part = Vec::new();
            match self.engine.snapshot_step(&self.machine, 100, &mut part) {
                SnapshotStep::Part => self.wal.add_part(&mut part),
                SnapshotStep::Wait => {}
                SnapshotStep::Whole => {
                    self.wal.finish_snapshot(part);
                    break;
                }
                SnapshotStep::Void | SnapshotStep::TooLong(_) => panic!("nobody else leads, and the state is small"),
            }
            self.turn();
        }
        self.until(|alone| alone.wal.snapshots() > before);
        self.engine.handle_snapshot_stable();
    }

    /// Proposes a command as soon as that is possible.
    fn propose(&mut self, command: &[u8]) -> LogIndex {
        self.until(|alone| alone.engine.standing() == Standing::Primary && alone.engine.has_room(command.len()));
        self.engine.propose(command).expect("it leads, and has room")
    }
}

#[test]
fn what_was_committed_is_there_after_the_power_has_gone() {
    let mut rng = fastrand::Rng::with_seed(11);
    let mut disk = MemoryDisk::default();
    let mut alone = Alone::founded(&disk);
    alone.snapshot();
    let mut all = Vec::new();
    for life in 0..20u8 {
        let mut acknowledged = LogIndex(0);
        for n in 0..rng.u8(1..60) {
            let command = vec![life ^ n; rng.usize(1..30)];
            let index = alone.propose(&command);
            all.extend_from_slice(&command);
            if rng.u8(0..4) == 0 {
                alone.until(|alone| alone.engine.committed() >= index);
                acknowledged = index;
            }
            if rng.u8(0..40) == 0 {
                alone.snapshot();
            }
        }
        let certain = alone.machine.0.len();
        // The disk as it is at this moment, whatever its thread is doing.
        let left = disk.copy();
        left.lose_power(&mut rng);
        drop(alone);
        disk = left;
        alone = Alone::recovered(&disk);
        alone.until(|alone| alone.engine.standing() == Standing::Primary);
        assert!(alone.engine.committed() >= acknowledged, "life {life}");
        let known = &alone.machine.0;
        assert!(known.len() >= certain && all.starts_with(known), "life {life}: {} bytes of {certain} to {}", known.len(), all.len());
        all.truncate(known.len());
    }
    assert!(all.len() > 5_000);
}
