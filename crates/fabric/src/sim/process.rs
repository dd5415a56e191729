//! A simulated process, as the world keeps it.

use std::collections::VecDeque;
use std::rc::Rc;

use super::memory::Block;
use crate::contract::{Completion, Identity, PeerEvent, PeerId, Region, RegionName, RegionSpec};

/// Where a process keeps its robust futex words. Its simulated kernel needs this.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeathWords {
    /// The public region that they are in.
    pub region: RegionName,
    /// For each thread, the indexes of its words. The kernel marks all words of one thread at once; threads die one by one (TRAPS 32).
    pub threads: Vec<Vec<usize>>,
}

/// The lane that a process keeps for one writer.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) writer: PeerId,
    pub(super) name: RegionName,
    pub(super) memory: Rc<Block>,
    pub(super) granted: bool,
    /// Counts grants and revocations.
    pub(super) epoch: u64,
}

/// What a process may address at a peer.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) region: Region,
    pub(super) memory: Rc<Block>,
    /// For a lane: its number in its owner's table.
    pub(super) lane: Option<u32>,
    pub(super) writable: bool,
}

/// A peer, as one process sees it.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) process: u32,
    /// The link for our operations on it.
    pub(super) link: u32,
    /// The number by which it knows us over the same connection.
    pub(super) back: PeerId,
    pub(super) targets: Vec<Target>,
    pub(super) is_member: bool,
    /// The number of the newest datagram that has arrived from it.
    pub(super) newest_datagram: u64,
    pub(super) gone: bool,
    pub(super) forgotten: bool,
}

/// One life of one node.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) identity: Identity,
    pub(super) spec: RegionSpec,
    pub(super) alive: bool,
    pub(super) paused: bool,
    pub(super) nic_dead: bool,
    pub(super) public: Vec<(RegionName, Rc<Block>)>,
    pub(super) lanes: Vec<Lane>,
    /// Peers by their number here; 0 is the process itself.
    pub(super) slots: Vec<Slot>,
    pub(super) completions: VecDeque<Completion>,
    pub(super) events: VecDeque<PeerEvent>,
    /// Datagrams that have arrived: slots of the world's table.
    pub(super) inbox: VecDeque<u32>,
    pub(super) death: Option<DeathWords>,
    pub(super) turn_entered: bool,
    pub(super) timer_at: u64,
    /// Something happened while the process was paused.
    pub(super) missed: bool,
}

impl Process {
    pub(super) fn new(identity: Identity, spec: RegionSpec) -> Process {
        let public = spec.public.iter().map(|(name, bytes)| (*name, Block::zeroed(*bytes))).collect();
        Process {
            identity,
            spec,
            alive: true,
            paused: false,
            nic_dead: false,
            public,
            lanes: Vec::new(),
            slots: Vec::new(),
            completions: VecDeque::new(),
            events: VecDeque::new(),
            inbox: VecDeque::new(),
            death: None,
            turn_entered: false,
            timer_at: u64::MAX,
            missed: false,
        }
    }

    /// The latest number by which this process knows `process`.
    pub(super) fn peer_of(&self, process: u32) -> Option<PeerId> {
        self.slots.iter().rposition(|slot| slot.process == process).map(|at| PeerId(at as u32))
    }

    /// The number in the table of the lane of that name that is kept for `writer`.
    pub(super) fn lane_of(&self, writer: PeerId, name: RegionName) -> Option<u32> {
        self.lanes.iter().position(|lane| lane.writer == writer && lane.name == name).map(|at| at as u32)
    }
}
