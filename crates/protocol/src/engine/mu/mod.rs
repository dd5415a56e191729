//! The `mu` engine: state machine replication at the cost of one write (Mu, OSDI'20), with the parts that its authors left out.
//!
//! A leader writes each request once into the memory of each follower. When the write has succeeded at a majority, the request is committed. A write can
//! succeed only while the follower gives its permission to this leader and to no other process. So two leaders never both succeed, and the leader waits for no
//! follower's CPU. `docs/mu.md` has the protocol and the argument that nothing committed is lost.

mod background;
mod config;
mod durable;
mod engine;
mod event;
mod follower;
mod handover;
mod journal;
pub mod layout;
mod leading;
mod learning;
mod log;
mod numbers;
mod peers;
mod permission;
mod recovery;
mod replay;
mod role;
mod roster;
#[cfg(feature = "fuzzing")]
pub(crate) mod samples;
mod teaching;
#[cfg(test)]
mod tests;
mod writing;

use std::collections::VecDeque;

use martlet_fabric::ring::{self, Record};
use martlet_fabric::{Fabric, LocalRegion, PeerId, invariant};

use crate::basics::layout::MAX_MEMBERS;
use crate::basics::{Canary, LogIndex, ProcessId, Time};
use crate::engine::Engine as _;
use crate::replica::StateMachine;

pub use crate::replica::group::Group;
pub use config::{Config, Durability, MIN_RING_BYTES};
pub use event::{AbortReason, Event};
pub use layout::LaneFault;

use crate::replica::backlog::Backlog;
use crate::replica::nudges::Nudges;
use crate::replica::release::Releases;
use crate::replica::roster::Roster;
use crate::replica::signs::Signs;
use crate::replica::state_transfer::Learning;
use durable::{Snapshot, Told};
use handover::HandOver;
use journal::Journal;
use layout::{Op, Status, WORDS};
use leading::{Reign, StrayLog};
use log::Log;
use peers::Peer;
use permission::Permission;
use replay::Inbound;

/// The most turns in a row that put off the background plane because they replicated something.
const MOST_PUT_OFF: u32 = 16;
/// Bytes that a follower takes from its leader's lane in one turn.
const DRAIN_BYTES: usize = 256 << 10;

/// A replica's engine. One thread drives it; it never blocks and, in steady state, never allocates.
///
/// Its methods, and the order of a turn, are those of all engines ([`Engine`](crate::engine::Engine)). They drive both planes of the paper, which share a
/// thread and therefore their fate.
#[derive(Debug)]
pub struct Mu {
    me: ProcessId,
    config: Config,
    log: Log,
    peers: Vec<Peer>,
    permission: Permission,
    inbound: Inbound,
    reign: Option<Reign>,
    /// The backlog while no reign has it: empty, or what the machine shows beyond the end of the log. In the latter case a leader that executes first has lost
    /// its role, and may get it back before any other process writes to its log.
    backlog: Backlog,
    /// When a leader next runs the background plane.
    background: Time,
    /// How many turns in a row have put that off.
    put_off: u32,
    /// The earliest moment of the next attempt to lead.
    retry: Time,
    /// Failed attempts to lead since this process last led.
    failures: u32,
    /// Whether a lesson has ever begun here; if so, the machine is not a founder's empty one.
    lesson_begun: bool,
    /// Since when this process should lead but has found only logs with which it cannot catch up.
    overrun_since: Option<Time>,
    /// The highest number that outbid a reign. In a small group a majority answers before all numbers have been read; without this, a leader would be outbid
    /// again and again by a process outside that majority.
    outbid: u64,
    /// It has been asked to give up leadership.
    steps_down: bool,
    hand_over: HandOver,
    reigns: u64,
    releases: Releases,
    signs: Signs,
    learning: Option<Learning>,
    /// When the state was last found to be unteachable, if that is not long ago.
    unteachable_since: Option<Time>,
    /// Reads of an earlier reign that may still land in the scratch memory to which logs are read.
    stray_log: Option<StrayLog>,
    /// The processes whose logs had overrun this one when that was last found; they can teach what it lacks.
    ahead: Vec<ProcessId>,
    /// Since when it has looked for a teacher.
    incomplete_since: Option<Time>,
    wishes: u64,
    roster: Roster,
    /// Whether a process has been found to be gone since the leader was last determined.
    suspects_anew: bool,
    /// Whether a group that this process knew has listed it.
    listed: bool,
    /// The committed change of the group that was last reported.
    group_seen: LogIndex,
    events: VecDeque<Event>,
    nudges: Nudges,
    buffer: Vec<u8>,
    spare: Record,
    teaching_record: Record,
    published: bool,
    told: Told,
    snapshot: Option<Snapshot>,
    /// Whether too much waits for the disk, so that the leader's records stay in its lane.
    holds_back: bool,
    /// The chain of the journal of which a snapshot is complete but not yet known to be stable.
    finished: Option<u64>,
}

impl Mu {
    /// The engine of the process `me`. With a `group` it is a founding member, and holds the empty state like all the others. Without one it holds nothing,
    /// asks to be taught, and waits until a leader [adds](Self::add) it.
    ///
    /// Panics when `config` does not [validate](Config::validate), or the group does not list `me`.
    pub fn new(me: ProcessId, config: Config, group: Option<Group>) -> Mu {
        let valid = config.validate();
        invariant!(valid.is_ok(), "the engine's settings: {valid:?}");
        let (me, group) = (config.durability.known_as(me), group.map(|group| group.known_by(|id| config.durability.known_as(id))));
        invariant!(group.as_ref().is_none_or(|g| g.contains(me)), "{me} founds a group without itself");
        let record = || Record::with_capacity(ring::max_payload(config.log_ring_bytes));
        let listed = group.is_some();
        let mut log = Log::new(config.log_ring_bytes, group);
        if config.durability != Durability::Memory {
            log.begin_journal(Box::new(Journal::new(0)));
        }
        Mu {
            me,
            config,
            listed,
            log,
            peers: Vec::with_capacity(MAX_MEMBERS),
            permission: Permission::default(),
            inbound: Inbound::default(),
            reign: None,
            backlog: Backlog::new(config.backlog_bytes, config.batch_bytes, config.max_command_bytes()),
            background: Time(0),
            put_off: 0,
            retry: Time(0),
            failures: 0,
            lesson_begun: false,
            overrun_since: None,
            outbid: 0,
            steps_down: false,
            hand_over: HandOver::default(),
            reigns: 0,
            releases: Releases::default(),
            signs: Signs::new(me, &background::SIGNS),
            learning: None,
            unteachable_since: None,
            stray_log: None,
            ahead: Vec::new(),
            incomplete_since: None,
            wishes: 0,
            roster: Roster::new(config.durability),
            suspects_anew: false,
            group_seen: LogIndex(0),
            events: VecDeque::with_capacity(64),
            nudges: Nudges::default(),
            buffer: Vec::with_capacity(ring::max_payload(config.log_ring_bytes)),
            spare: record(),
            teaching_record: record(),
            published: false,
            told: Told::default(),
            snapshot: None,
            holds_back: false,
            finished: None,
        }
    }

    // Queries.

    /// The proposal number under which this process leads, or last accepted a log.
    pub fn ballot(&self) -> u64 {
        self.reign.as_ref().map_or(self.log.last_ballot(), Reign::ballot)
    }

    /// The group in force, as far as this process knows.
    pub fn group(&self) -> Option<&Group> {
        self.log.group()
    }

    /// The entry that introduced the group in force, as far as this process knows; 0 for the first group.
    pub fn group_since(&self) -> Option<LogIndex> {
        self.log.group_since()
    }

    /// Whether it has been removed from the group, and has therefore stopped.
    pub fn is_removed(&self) -> bool {
        self.listed && self.log.committed_group().is_some_and(|(_, g)| !g.contains(self.me))
    }

    /// Whether the replication plane is inside a call to propose (Mu section 5.1, fate sharing).
    fn is_inside_propose(&self) -> bool {
        self.reign.as_ref().is_some_and(Reign::is_waiting)
    }

    // What comes from outside.

    /// Takes the late completion of an operation that an ended reign posted.
    #[cold]
    fn handle_stray(&mut self, op: Op, round: u64, peer: PeerId) {
        match (op, &mut self.stray_log) {
            (Op::Words, _) => {
                if let Some(peer) = self.peers.iter_mut().find(|p| p.id == peer) {
                    invariant!(peer.stray_reads > 0, "numbers of {} that nobody has asked for come home", peer.process);
                    peer.stray_reads -= 1;
                }
            }
            (Op::CatchUp, Some(stray)) if stray.from == peer && stray.round == round => {
                stray.pieces -= 1;
                if stray.pieces == 0 {
                    self.stray_log = None;
                }
            }
            _ => {}
        }
    }

    // Commands.

    /// Asks for a process to join the group. The leader adds it when it is connected and holds the state. A request to another process, or to a leader that
    /// loses its role, is void.
    pub fn add(&mut self, process: ProcessId) {
        self.roster.add(self.config.durability.known_as(process));
    }

    /// Asks for the removal of a process, possibly the leader itself, from the group; see [`add`](Self::add).
    pub fn remove(&mut self, process: ProcessId) {
        self.roster.remove(self.config.durability.known_as(process));
    }

    /// Gives up leadership, if this process has it. The living process with the lowest id leads next, which may be this process again.
    pub fn step_down(&mut self) {
        self.steps_down = true;
    }

    /// The next thing that the node has to do or report, in order.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    // Inside.

    #[inline]
    fn is_leading(&self) -> bool {
        self.reign.as_ref().is_some_and(Reign::is_leading)
    }

    /// Replicates what has been proposed, and, where a reply waits for it, checks that the followers still give their permission. Returns whether anything was
    /// posted.
    #[inline]
    fn lead<F: Fabric, S: StateMachine>(&mut self, now: Time, fabric: &mut F, machine: &mut S) -> bool {
        let turn = self.releases.turn();
        let asked = self.releases.is_asked();
        let mut posted = false;
        self.with_reign(now, fabric, machine, |reign, cx| {
            posted = reign.post(turn, cx);
            if asked {
                reign.probe(turn, cx.fabric);
            }
            Ok(false)
        });
        let last = self.last();
        self.releases.end(last);
        posted
    }

    /// Serves requests for permission, replays, reads the others' signs of life, and takes or gives up the leader's role.
    #[inline(never)]
    fn follow<F: Fabric, S: StateMachine>(&mut self, now: Time, fabric: &mut F, machine: &mut S) -> bool {
        let mut moved = self.serve(fabric, machine);
        if let Some(holder) = self.permission.holder.filter(|h| *h != PeerId::SELF && !self.holds_back) {
            let drained = self.drain(holder, DRAIN_BYTES, fabric, machine);
            self.published &= !drained;
            moved |= drained;
        }
        self.tell_stable(fabric);
        self.check_backlog();
        self.tick(now, fabric);
        self.mind_lost(now);
        self.take_role(now, fabric, machine);
        moved |= self.step(now, fabric, machine);
        moved
    }

    /// Learns and teaches, and shows the others the result of this turn.
    #[inline(never)]
    fn assist<F: Fabric, S: StateMachine>(&mut self, fabric: &mut F, now: Time, machine: &mut S, moved: bool) -> bool {
        let mut moved = moved;
        moved |= self.learn(now, fabric, machine);
        moved |= self.teach(now, fabric, machine);
        self.watch_group(fabric);
        self.follow_roster();
        self.report_group();
        if !self.published || moved {
            self.publish(fabric);
        }
        self.forget_departed();
        moved
    }

    /// What was proposed but is not in the log is dropped when the reign ends, unless the machine shows it.
    fn check_backlog(&mut self) {
        if self.reign.is_none() && !self.log.is_beyond() && !self.backlog.is_empty() {
            self.backlog.clear();
        }
    }

    fn publish<F: Fabric>(&mut self, fabric: &F) {
        let status = match &self.reign {
            _ if !self.log.is_complete() || self.is_removed() => Status::Incomplete,
            Some(reign) if reign.is_leading() => Status::Leader,
            // Only a process that knows that it belongs to the group can lead. If the others took it for their leader before that, every process would wait for
            // another one.
            _ if self.log.committed_group().is_some_and(|(_, g)| g.contains(self.me)) => Status::Follower,
            _ if self.log.group().is_some_and(|g| g.contains(self.me)) && Canary::MuUnawareMember.is_planted() => Status::Follower,
            _ if !self.is_kept() => Status::Unkept,
            _ => Status::Taught,
        };
        self.log.publish(fabric.memory(LocalRegion::Public(WORDS)).expect("every process offers its numbers"), status);
        self.published = true;
    }
}
