//! What the targets of engines that elect their leaders share: one server's surroundings, and numbers that they all take from the input.

use martlet_fabric::fuzz::Input;
use martlet_fabric::ring::Record;
use martlet_fabric::{Incarnation, LocalRegion, NodeId, OpError, RegionSpec};
use martlet_protocol::basics::layout::{LIFE, life};
use martlet_protocol::basics::{ProcessId, RETURN_BITS, ViewNumber};
use martlet_protocol::membership::{Member, Roles, View};
use martlet_protocol::replica::group::Group;
use martlet_protocol::replica::{Execution, Settings};

use super::memory::OwnMemory;

/// The node under test.
pub(super) const ME: u16 = 1;
/// The most connections in one life: each belongs to a life of a peer, and these are few.
pub(super) const MOST_PEERS: u32 = 8;

pub(super) fn process(node: u16) -> ProcessId {
    ProcessId { node: NodeId(node), incarnation: Incarnation(1 << RETURN_BITS) }
}

/// Small rings and short timeouts.
pub(super) fn settings(ring_bytes: usize, execution: Execution) -> Settings {
    Settings {
        log_ring_bytes: ring_bytes,
        state_ring_bytes: ring_bytes,
        execution,
        backlog_bytes: 1000,
        batch_bytes: 100,
        flush_idle_ns: 10_000,
        nudge_records: 4,
        heartbeat_interval_ns: 10_000,
        background_ns: 1_000,
        fate_beats: 100,
        silence_ns: 1_000_000,
        stall_ns: 100_000,
        death_interval_ns: 4_000,
        teach_patience_ns: 100_000,
        transfer_budget_bytes: 100,
        ..Settings::default()
    }
}

/// What a server offers; `engine` says what its engine adds.
pub(super) fn memory(engine: impl FnOnce(&mut RegionSpec)) -> OwnMemory {
    let mut fabric = OwnMemory::default();
    let mut spec = RegionSpec::default();
    spec.own([(LIFE, life::WORDS * 8)]);
    engine(&mut spec);
    for (name, bytes) in spec.public {
        fabric.add(LocalRegion::Public(name), bytes);
    }
    fabric
}

/// Some processes, usually with this one among them.
pub(super) fn group(input: &mut Input<'_>) -> Group {
    let (choice, extra) = (input.u8(), input.u8());
    let members: Vec<ProcessId> = (0..4).filter(|n| choice >> n & 1 == 0).map(process).collect();
    let group = Group::new(if members.is_empty() { vec![process(ME)] } else { members });
    match extra {
        255 => group.as_of(ViewNumber(input.u64())),
        _ => group,
    }
}

/// A view after the one with this `number`, which is set to the new view's.
pub(super) fn view(number: &mut u64, input: &mut Input<'_>) -> View {
    let choice = input.u8();
    *number += 1 + u64::from(choice >> 6);
    let role = |n| if choice >> n & 1 == 0 { Roles::REPLICA } else { Roles::LEARNER };
    let members = (0..4u16).filter(|n| u16::from(choice >> 4 & 3) != *n).map(|n| Member::new(process(n), role(n)));
    View {
        number: ViewNumber(*number),
        lease_ns: 1,
        fence_ns: 1,
        compatible: false,
        level: 1,
        members: members.collect(),
        departed: Vec::new(),
    }
}

/// The outcome of an operation, and the words that it reads.
pub(super) fn outcome(input: &mut Input<'_>) -> (Result<u64, OpError>, Vec<u64>) {
    let result = match input.u8() {
        0 => Err(OpError::PeerLost),
        1 => Err(OpError::AccessLost),
        2 => Ok(input.u64()),
        word => Ok(u64::from(word) - 3),
    };
    (result, (0..input.u8() % 16).map(|_| input.number()).collect())
}

/// One to three commands, each after its length. `count` is set to how many.
pub(super) fn put_commands(count: &mut u32, input: &mut Input<'_>, body: &mut Vec<u8>) {
    *count = *count % 3 + 1;
    for _ in 0..*count {
        let len = usize::from(input.u8()) % 64;
        body.extend_from_slice(&(len as u32).to_le_bytes());
        body.resize(body.len() + len, 7);
    }
}

/// Now and then cuts a body off, and puts something in place of the rest.
pub(super) fn spoil(body: &mut Vec<u8>, input: &mut Input<'_>) {
    let spoilt = input.u8();
    if spoilt > 250 {
        body.truncate(usize::from(input.u8()));
        let len = usize::from(spoilt - 250);
        body.extend_from_slice(input.bytes(len));
    }
}

/// A record with this head and body.
pub(super) fn record(head: impl Fn(&mut Vec<u8>), body: &[u8]) -> Record {
    let mut record = Record::default();
    record.fill(|out| {
        head(out);
        out.extend_from_slice(body);
    });
    record
}
