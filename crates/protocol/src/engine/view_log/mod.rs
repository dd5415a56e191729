//! A log whose leader is determined by views, used by several engines: the first replica of the view is its primary, and an entry is committed when every
//! replica of the view holds it. Each engine's [`Rule`] defines what it means to hold an entry. This is uKharon-KV's replication (uKharon section 7.3), for any
//! number of failovers in a row.
//!
//! The primary executes a request at once, writes its effects into the memory of every backup, and sends the reply when the backups hold them and its view has
//! been active after that. Where it executes [on commit](crate::replica::Execution::Committed), it writes the request itself, and executes it before it
//! replies. A backup applies what it knows to be committed. When a view makes a backup primary, it waits for that view to be active, applies everything in its
//! memory, and makes every other replica hold the same.
//!
//! `docs/primary-backup.md` has the protocol and the argument that nothing acknowledged is lost; `docs/hsuc.md` has the differences where replicas acknowledge.

mod chain;
mod config;
mod engine;
mod follower;
mod following;
mod inbound;
pub mod layout;
mod leading;
mod peers;
mod queue;
mod quorum;
mod recovery;
mod rule;
#[cfg(feature = "fuzzing")]
pub(crate) mod samples;
#[cfg(test)]
pub(super) mod tests;
mod turns;

use std::collections::VecDeque;
use std::marker::PhantomData;

use martlet_fabric::ring::Record;
use martlet_fabric::{Fabric, PeerId, RegionName, invariant};

use crate::basics::layout::{LIFE, MAX_MEMBERS, life};
use crate::basics::{Canary, LogIndex, Mark, ProcessId, Time, ViewNumber};
use crate::engine::{ConfigError, Event};
use crate::membership::View;
use crate::replica::{Execution, StateMachine};

pub use config::{Config, MIN_RING_BYTES};
pub use layout::LaneFault;
pub use rule::{Holds, Rule};

use chain::{Chain, Origin};
use inbound::Phase;
use leading::Leading;
use peers::{Peer, lane_to};
use quorum::Quorum;
use turns::Turns;

/// The heartbeat word of such an engine; long work advances it too.
const HEARTS: &[(RegionName, usize)] = &[(LIFE, life::HEARTBEAT)];

/// A replica's engine. One thread drives it; it never blocks and, in steady state, never allocates.
///
/// Its methods, and the order of a turn, are those of all engines ([`Engine`](crate::engine::Engine)). Handling an event changes no memory that others see.
///
/// Views have to come from one membership service, which keeps the order of seniority: a member that was listed after another stays after it, and a process
/// that has once been primary is primary of every later view that lists it. A process joins as [`Roles::LEARNER`](crate::membership::Roles::LEARNER), except in
/// the first view.
#[derive(Debug)]
pub struct ViewLog<R> {
    me: ProcessId,
    config: Config,
    view: Option<View>,
    /// The replicas of that view, all of which have to hold what is committed.
    group: Vec<ProcessId>,
    role: Role,
    reign: u64,
    /// The view in which it last became primary.
    primary_since: ViewNumber,
    peers: Vec<Peer>,
    chain: Chain,
    turns: Turns,
    quorum: Quorum,
    /// Set once a view listed us; after that, a view that does not list us excludes us.
    listed: bool,
    /// Set once a view listed us as a learner: then we may not lead with the empty state.
    learner: bool,
    events: VecDeque<Event>,
    /// The record taken last, kept for its memory.
    buffer: Vec<u8>,
    /// For a future reign: a takeover must not wait for the kernel to provide memory.
    spare: Record,
    faults: u64,
    /// When a peer was last asked whether it reads our lane.
    asked: Time,
    /// The last acknowledgement: to which primary, and up to which entry.
    acknowledged: Option<(PeerId, LogIndex)>,
    rule: PhantomData<R>,
}

#[derive(Debug)]
enum Role {
    /// It follows, or waits.
    Backup,
    /// The newest view makes it primary, but has not been seen active.
    Candidate,
    /// It has applied everything that it holds, and brings the others up to date.
    TakingOver(Box<Leading>),
    Primary(Box<Leading>),
    Excluded,
}

impl<R: Rule> ViewLog<R> {
    /// Whether it can work with these settings.
    fn check_settings(config: &Config) -> Result<(), ConfigError> {
        if config.execution == Execution::Committed && !R::TRAITS.executes_on_commit {
            return Err(ConfigError { key: "execution", value: 1, allowed: "0 (speculative)" });
        }
        config.validate()
    }

    /// The engine of the process `me`, which holds the empty state. Panics when `config` does not [validate](Config::validate).
    pub fn new(me: ProcessId, config: Config) -> ViewLog<R> {
        let valid = Self::check_settings(&config);
        invariant!(valid.is_ok(), "the engine's settings: {valid:?}");
        ViewLog {
            me,
            config,
            view: None,
            group: Vec::with_capacity(MAX_MEMBERS),
            role: Role::Backup,
            reign: 0,
            primary_since: ViewNumber(0),
            peers: Vec::with_capacity(MAX_MEMBERS),
            chain: Chain::new(config.execution),
            turns: Turns::new(),
            quorum: Quorum::default(),
            listed: false,
            learner: false,
            events: VecDeque::new(),
            buffer: Vec::new(),
            spare: spare_record(&config),
            faults: 0,
            asked: Time(0),
            acknowledged: None,
            rule: PhantomData,
        }
    }

    // Queries.

    /// Whether the state that a backup holds is whole, so that it can lead with it.
    fn is_whole(&self) -> bool {
        match self.chain.origin() {
            Origin::Whole => true,
            Origin::Genesis => !self.learner,
            Origin::Learning => false,
        }
    }

    /// Replicas that hold up the log: not connected, lane broken, or lane full.
    pub fn lagging(&self) -> impl Iterator<Item = ProcessId> {
        let followers = match &self.role {
            Role::TakingOver(leading) | Role::Primary(leading) => leading.followers.as_slice(),
            _ => &[],
        };
        followers.iter().filter(|f| f.counts() && (f.peer.is_none() || f.broken.is_some() || f.is_full())).map(|f| f.process)
    }

    /// Lanes found to make no sense, ever.
    pub fn lane_faults(&self) -> u64 {
        self.faults
    }

    // What comes from outside.

    /// Excludes this process if it no longer reads the lane of the view's primary, which would count on records that are never taken.
    fn mind_deafness(&mut self, view: &View) {
        let primary = view.primary().and_then(|m| self.peers.iter().find(|p| p.process == m.id));
        if primary.is_some_and(|p| p.inbound.phase == Phase::Faulty) && matches!(self.role, Role::Backup) {
            self.events.push_back(Event::Unfit);
            self.exclude();
        }
    }

    // Commands.

    // Polling.

    /// A reign begins or ends: waiting replies will not be released.
    fn break_off(&mut self) {
        self.turns.break_off();
        self.quorum.break_off();
    }

    fn exclude(&mut self) {
        if matches!(self.role, Role::Primary(_)) {
            Mark::Deposed.reach();
            self.reign += 1;
            self.break_off();
        }
        self.role = Role::Excluded;
    }

    /// The view that makes us primary is active, so everything acknowledged in an earlier view is in our memory by now. And no process that led in an earlier
    /// view can write here any more, so nothing that is not here will be acknowledged in one.
    fn begin_takeover<F: Fabric, S: StateMachine>(&mut self, now: Time, fabric: &mut F, machine: &mut S) {
        let Some(view) = self.view.take() else { return };
        if !Canary::UnreadLanes.is_planted() {
            self.drain(fabric, machine, usize::MAX);
        }
        if self.is_whole() {
            let (base, uncommitted) = self.chain.take_over(machine);
            (if uncommitted.is_empty() { Mark::TookOverLevel } else { Mark::TookOverTail }).reach();
            for peer in &mut self.peers {
                peer.inbound.stop(Phase::Retired);
            }
            let peers = &self.peers;
            let spare = std::mem::take(&mut self.spare);
            let mut leading =
                Box::new(Leading::new(self.me, self.config, R::HOLDS, &view, base, uncommitted, spare, |p| lane_to(peers, p)));
            leading.post(now, fabric, machine, &mut self.events);
            self.role = Role::TakingOver(leading);
        } else {
            self.events.push_back(Event::Unfit);
            self.exclude();
        }
        self.view = Some(view);
        self.forget_departed();
    }
}

/// A record with room for its usual content, whose memory has been touched.
fn spare_record(config: &Config) -> Record {
    let mut record = Record::with_capacity(config.fragment_bytes().min(64 << 10) + layout::HEADER_BYTES);
    record.fill(|bytes| bytes.resize(bytes.capacity(), 0));
    record.clear();
    record
}
