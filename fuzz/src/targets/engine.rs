//! Log lanes whose writers may do anything: they contain sealed records of any kind in any order, with views in between. A lane that makes no sense is named
//! and read no further. Entries are applied in order, and nothing is held to be committed that is not there.

use martlet_fabric::fuzz::Input;
use martlet_fabric::primitive::Ordering;
use martlet_fabric::ring::{self, Record, Writer, lane_bytes};
use martlet_fabric::{Fabric, Incarnation, LocalRegion, NodeId, OpError, PeerId, Region, Remote, Token};
use martlet_protocol::basics::layout::LOG_LANE;
use martlet_protocol::basics::{LogIndex, ProcessId, Time, ViewNumber};
use martlet_protocol::engine::primary_backup::Config;
use martlet_protocol::engine::primary_backup::layout::{HEADER_BYTES, Header, Kind};
use martlet_protocol::engine::{Engine as _, Event, PrimaryBackup};
use martlet_protocol::membership::{Member, Roles, View};
use martlet_protocol::replica::Standing;

use super::machine::{Gaps, Machine};
use super::memory::OwnMemory;

const ME: u16 = 2;
const RING_BYTES: usize = 1024;

pub(super) fn run(data: &[u8]) {
    let mut input = Input(data);
    let config = Config {
        log_ring_bytes: RING_BYTES,
        backlog_bytes: 2000,
        drain_budget_bytes: 300,
        transfer_budget_bytes: 100,
        learner_overruns: 1,
        ..Config::default()
    };
    let mut world = World {
        fabric: OwnMemory::default(),
        engine: PrimaryBackup::new(process(ME), config),
        machine: Machine::new(Gaps::None),
        writers: Vec::new(),
        now: Time(1),
        view: 0,
        faults: 0,
    };
    for peer in 1..=2 {
        let lane = LocalRegion::Lane { writer: PeerId(peer), name: LOG_LANE };
        world.fabric.add(lane, lane_bytes(RING_BYTES));
        world.engine.handle_peer_up(PeerId(peer), process(peer as u16 - 1), &mut world.fabric);
        // A member knows the salt of its lane.
        let salt = ring::salt(config.secret, u64::from(peer));
        let lane = Remote { peer: PeerId(peer), region: Region::Lane(LOG_LANE), offset: 0 };
        world.writers.push(Writer::salted(lane, RING_BYTES, salt));
    }
    let roles = [Roles::REPLICA, Roles::LEARNER][usize::from(input.u8()) % 2];
    world.learn(&mut input, roles);
    while !input.is_empty() {
        world.step(&mut input, roles);
    }
    for _ in 0..20 {
        world.turn(None);
    }
}

fn process(node: u16) -> ProcessId {
    ProcessId { node: NodeId(node), incarnation: Incarnation(1) }
}

struct World {
    fabric: OwnMemory,
    engine: PrimaryBackup,
    machine: Machine,
    /// The writing ends of our lanes. The input writes with them.
    writers: Vec<Writer>,
    now: Time,
    view: u64,
    faults: u64,
}

impl World {
    fn step(&mut self, input: &mut Input<'_>, roles: Roles) {
        match input.u8() % 12 {
            0..=4 => self.write(input),
            5 | 6 => self.turn(None),
            7 => self.turn(Some(ViewNumber(self.view))),
            8 => self.learn(input, roles),
            9 => {
                let result = match input.u8() {
                    0 => Err(OpError::PeerLost),
                    1 => Err(OpError::AccessLost),
                    word => Ok(u64::from(word) - 2),
                };
                if let Some(completion) = self.fabric.complete(result, &[]) {
                    self.engine.handle_completion(completion);
                }
            }
            10 => self.engine.handle_peer_gone(PeerId(u32::from(input.u8()) % 2 + 1), false),
            _ => {
                // Words that no writer of ours wrote.
                let lane = LocalRegion::Lane { writer: PeerId(u32::from(input.u8()) % 2 + 1), name: LOG_LANE };
                self.fabric.scribble(lane, 8 + usize::from(input.u8()), input.u64());
            }
        }
    }

    /// Writes a sealed record. Most of its numbers are plausible, some are not.
    fn write(&mut self, input: &mut Input<'_>) {
        let (choice, flags, skew) = (input.u8(), input.u8(), input.u8());
        let kinds = [Kind::Start, Kind::Entry, Kind::Flush, Kind::Part, Kind::End];
        let kind = kinds[usize::from(choice) % kinds.len()];
        let last = self.engine.last().0;
        let index = match skew & 3 {
            0 => last,
            1 => last + 1,
            2 => last.saturating_sub(1),
            _ => input.number(),
        };
        let header = Header {
            more: flags & 1 != 0 && matches!(kind, Kind::Entry | Kind::Part),
            learner: flags & 2 != 0 && kind == Kind::Start,
            count: if kind == Kind::Start && flags & 2 == 0 { u32::from(flags >> 4) } else { 0 },
            view: ViewNumber(if skew & 4 == 0 { self.view.max(1) } else { input.number() }),
            ..Header::new(
                kind,
                LogIndex(index),
                ViewNumber(1),
                LogIndex(if skew & 8 == 0 { index.saturating_sub(1) } else { input.number() }),
            )
        };
        let content = match kind {
            Kind::Entry | Kind::Part => {
                let len = usize::from(input.u8()) % 64;
                input.bytes(len)
            }
            _ => input.bytes(usize::from(flags & 4 != 0)),
        };
        let peer = usize::from(choice >> 6) % 2;
        let mut record = Record::default();
        record.fill(|out| {
            header.encode(out);
            if flags & 8 != 0 {
                // Any bits in the first word.
                let at = out.len() - HEADER_BYTES;
                out[at..at + 8].copy_from_slice(&input.u64().to_le_bytes());
            }
            out.extend_from_slice(content);
        });
        let lane = LocalRegion::Lane { writer: PeerId(peer as u32 + 1), name: LOG_LANE };
        let consumed = self.fabric.memory(lane).map(|m| m[0].load(Ordering::Relaxed));
        self.writers[peer].note_consumed(consumed.unwrap_or(0));
        self.fabric.written = Some(lane);
        self.writers[peer].push(&mut self.fabric, &mut record, Token(0));
        self.fabric.written = None;
    }

    fn learn(&mut self, input: &mut Input<'_>, roles: Roles) {
        let choice = input.u8();
        self.view += 1 + u64::from(choice >> 6);
        // Seniority lasts, as membership promises: members leave, and none overtakes another.
        let mut members: Vec<Member> = (0..2).filter(|n| choice >> n & 1 == 0).map(|n| member(n, Roles::REPLICA)).collect();
        let promoted = roles == Roles::LEARNER && choice & 8 != 0;
        if choice & 4 == 0 {
            members.push(member(ME, if promoted { Roles::REPLICA } else { roles }));
        }
        let view =
            View { number: ViewNumber(self.view), lease_ns: 1, fence_ns: 1, compatible: false, level: 1, members, departed: Vec::new() };
        self.engine.handle_view(&view);
    }

    fn turn(&mut self, active: Option<ViewNumber>) {
        self.now = self.now.after(1_000);
        self.engine.post(self.now, &mut self.fabric, &mut self.machine);
        self.engine.advance(self.now, active, &mut self.fabric, &mut self.machine);
        while let Some(event) = self.engine.poll_event() {
            match event {
                Event::LaneFault { fault, .. } => {
                    self.faults += 1;
                    assert!(!fault.is_empty());
                }
                Event::Forget(peer) => self.fabric.forget(peer),
                _ => {}
            }
        }
        assert_eq!(self.engine.lane_faults(), self.faults, "every fault is told, once");
        assert!(self.faults <= 2, "a lane that made no sense is read no further");
        assert!(self.engine.applied() <= self.engine.last(), "applied {} of {}", self.engine.applied(), self.engine.last());
        assert!(self.engine.committed() <= self.engine.last(), "committed {} of {}", self.engine.committed(), self.engine.last());
        if self.engine.standing() == Standing::Primary {
            let command = [7; 30];
            if self.engine.has_room(command.len()) {
                self.engine.propose(&command).expect("it is primary");
            }
        }
    }
}

fn member(node: u16, roles: Roles) -> Member {
    Member::new(process(node), roles)
}
