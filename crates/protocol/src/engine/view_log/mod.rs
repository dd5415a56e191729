//! The log behind views, which several engines keep: the first replica of the view is its primary, and an entry is committed when every replica of the view holds it.
//! When a replica counts as holding one is an engine's [`Rule`]. It is uKharon-KV's replication (uKharon section 7.3), for any number of failovers in a row.
//!
//! The primary executes a request at once, writes its effects into the memory of every backup, and lets the reply go when they are held there
//! and the view in which it is primary is active after that. Where it executes [on commit](crate::replica::Execution::Committed) it writes the request, and executes it
//! in between. A backup applies what it knows to be committed. When a view makes it primary it
//! waits for that view to be active, applies whatever stands in its memory, and sees to it that every other replica holds the same.
//!
//! `docs/primary-backup.md` has the protocol with the argument why nothing acknowledged is lost; `docs/hsuc.md` says what is different where replicas acknowledge.

mod chain;
mod config;
mod engine;
mod event;
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
use martlet_fabric::{Completion, Fabric, PeerId, RegionName, invariant, ring};

use crate::basics::layout::{LIFE, MAX_MEMBERS, life};
use crate::basics::{Canary, LogIndex, Mark, ProcessId, Time, ViewNumber};
use crate::engine::ConfigError;
use crate::membership::{Proof, Roles, Round, View};
use crate::replica::{Execution, ProposeError, Standing, StateMachine, Ticket};

pub use config::{Config, MIN_RING_BYTES};
pub use event::{DropReason, Event};
pub use layout::LaneFault;
pub use rule::{Holds, Rule};

use chain::{Chain, Origin};
use follower::Op;
use inbound::{Inbound, Phase};
use leading::Leading;
use peers::{Access, Outbound, Peer, lane_number, lane_to};
use quorum::Quorum;
use turns::Turns;

/// The word that moves while such an engine lives; long work counts in it too.
const HEARTS: &[(RegionName, usize)] = &[(LIFE, life::HEARTBEAT)];

/// A replica's engine. One thread drives it; it never blocks and, in steady state, never allocates.
///
/// Its methods are of four kinds:
/// - *queries* take `&self` and tell how things stand;
/// - *`handle_*`* take what came from outside: peers, views, completions. They change nothing in memory that others see;
/// - *commands* make it act: [`propose`](Self::propose), [`post`](Self::post), [`advance`](Self::advance), [`reset`](Self::reset);
/// - *`poll_event`* hands out what the node has to do.
///
/// A turn of the node: the application executes requests on the machine and proposes their effects; [`post`](Self::post); poll the fabric to
/// the end and [`handle_completion`](Self::handle_completion); read the clock; ask whether [`view`](Self::view) is active;
/// [`advance`](Self::advance); the application releases the replies up to [`released`](Self::released). The order is what makes a reply safe:
/// the check comes after everything that the reply depends on (TRAPS 7).
///
/// Views have to come from one membership service, which keeps the order of seniority: a member that was behind another stays behind it, and
/// a process that has once been primary is primary of every view that lists it. A process joins as [`Roles::LEARNER`], except in the first view.
#[derive(Debug)]
pub struct ViewLog<R> {
    me: ProcessId,
    config: Config,
    view: Option<View>,
    role: Role,
    reign: u64,
    /// The view in which it last became primary.
    primary_since: ViewNumber,
    peers: Vec<Peer>,
    chain: Chain,
    turns: Turns,
    quorum: Quorum,
    /// Set once a view listed us; then a view that does not excludes us.
    listed: bool,
    /// Set once a view listed us as a learner: then the empty state is not ours to lead with.
    learner: bool,
    events: VecDeque<Event>,
    /// The record taken last, kept for its memory.
    buffer: Vec<u8>,
    /// For a reign to come: a takeover must not wait for the kernel to find it memory.
    spare: Record,
    faults: u64,
    /// When a peer was last asked whether it reads our lane.
    asked: Time,
    /// To which primary what was last acknowledged.
    acknowledged: Option<(PeerId, LogIndex)>,
    rule: PhantomData<R>,
}

#[derive(Debug)]
enum Role {
    /// It follows, or waits.
    Backup,
    /// The newest view makes it primary, but has not been seen active.
    Candidate,
    /// It has applied everything it holds, and the others are being brought level.
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

    /// What this replica is. A new primary is still [`Standing::Backup`], without a primary to redirect to, until its takeover is complete.
    pub fn standing(&self) -> Standing {
        match &self.role {
            Role::Primary(_) => Standing::Primary,
            Role::Excluded => Standing::Excluded,
            Role::Candidate | Role::TakingOver(_) => Standing::Backup { primary: None },
            Role::Backup => {
                Standing::Backup { primary: self.view.as_ref().and_then(View::primary).map(|m| m.id).filter(|p| *p != self.me) }
            }
        }
    }

    /// The newest view that it has been told; 0 for none. It is the one whose activity [`advance`](Self::advance) wants to know.
    pub fn view(&self) -> ViewNumber {
        self.view.as_ref().map_or(ViewNumber(0), |v| v.number)
    }

    /// Counts the times that this process became or ceased to be primary. Tickets mean nothing across a change.
    pub fn reign(&self) -> u64 {
        self.reign
    }

    /// While it is primary: the view in which it became so. The next primary is first in a later one.
    pub fn fencing_token(&self) -> Option<u64> {
        matches!(self.role, Role::Primary(_)).then_some(self.primary_since.0)
    }

    /// The ticket for replies computed in this turn, which lasts until the next [`advance`](Self::advance).
    pub fn ticket(&self) -> Ticket {
        self.turns.ticket()
    }

    /// Replies with tickets up to this one may go out, if they were computed in this reign.
    pub fn released(&self) -> Ticket {
        self.turns.released()
    }

    /// Replies whose ticket was [asked for by quorum](Self::ticket_by_quorum) may go out up to this one, if they were computed in this reign. They are
    /// [released](Self::released) as well.
    pub fn released_by_quorum(&self) -> Ticket {
        if Canary::UnaskedQuorum.is_planted() {
            return self.released();
        }
        self.quorum.released()
    }

    /// Whether replies wait for a round of questions to the coordinators that has not begun, or not been won. Those that wait for their entries want none yet.
    #[inline]
    pub fn wants_round(&self) -> bool {
        self.quorum.wants_round(self.turns.released())
    }

    /// The highest index that this replica knows to be committed.
    pub fn committed(&self) -> LogIndex {
        match &self.role {
            Role::TakingOver(leading) | Role::Primary(leading) => leading.committed(),
            _ => self.chain.committed(),
        }
    }

    /// The last entry that this replica holds, or has proposed.
    pub fn last(&self) -> LogIndex {
        match &self.role {
            Role::TakingOver(leading) | Role::Primary(leading) => leading.last(),
            _ => self.chain.last(),
        }
    }

    /// Up to which entry the machine holds the log's effects.
    pub fn applied(&self) -> LogIndex {
        match &self.role {
            Role::TakingOver(leading) | Role::Primary(leading) => leading.applied(),
            _ => self.chain.applied(),
        }
    }

    /// Whether it is a backup whose machine shows the state after some committed entry. A learner's does not: what it has been given was shown by the primary, and is
    /// committed only when the learner is promoted. Nor does a candidate's: the entries that it takes over may yet be lost with it.
    pub fn shows_committed(&self) -> bool {
        let counts = self.view.as_ref().and_then(|view| view.member(self.me)).is_some_and(|me| me.roles.has(Roles::REPLICA));
        counts && matches!(self.role, Role::Backup) && self.is_whole()
    }

    /// Whether the state that a backup holds is one to go on from.
    fn is_whole(&self) -> bool {
        match self.chain.origin() {
            Origin::Whole => true,
            Origin::Genesis => !self.learner,
            Origin::Learning => false,
        }
    }

    /// Whether proposals of `bytes` in all would find room now. Always, when nothing waits: an entry may be of any length.
    pub fn has_room(&self, bytes: usize) -> bool {
        let backlog = self.turns.backlog_bytes();
        matches!(self.role, Role::Primary(_)) && (backlog == 0 || backlog + bytes as u64 <= self.config.backlog_bytes as u64)
    }

    /// Whether it leads and no other replica holds the state: one more crash and the service ends.
    pub fn is_alone(&self) -> bool {
        matches!(&self.role, Role::Primary(leading) if !leading.followers.iter().any(|f| f.counts()))
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

    /// A member's process is connected. Its lanes, in both directions, are fresh. Clients are none of the engine's business.
    pub fn handle_peer_up(&mut self, peer: PeerId, process: ProcessId) {
        if self.peers.iter().any(|p| p.id == peer) {
            return;
        }
        let listed = self.view.as_ref().is_some_and(|v| v.member(process).is_some());
        self.peers.push(Peer {
            id: peer,
            process,
            listed,
            gone: false,
            read_out: false,
            outbound: Outbound::Unknown(Time(0)),
            attended: false,
            access: Access::Granted,
            inbound: Inbound::new(ring::salt(self.config.secret, lane_number(peer, process))),
        });
    }

    /// A peer's process is gone, or its connection. What stands in its lane still counts, and where zombies are reachable so does what is
    /// written to it, until a view excludes it (TRAPS 20).
    pub fn handle_peer_gone(&mut self, peer: PeerId) {
        if let Some(peer) = self.peers.iter_mut().find(|p| p.id == peer) {
            peer.gone = true;
        }
        self.forget_departed();
    }

    /// A view has been decided. Numbers may skip; what is not newer is ignored.
    pub fn handle_view(&mut self, view: &View) {
        if view.number <= self.view() || matches!(self.role, Role::Excluded) {
            return;
        }
        self.view = Some(view.clone());
        for peer in &mut self.peers {
            peer.listed |= view.member(peer.process).is_some();
        }
        let roles = view.member(self.me).map(|m| m.roles);
        if roles.is_none() && self.listed {
            self.exclude();
        }
        self.listed |= roles.is_some();
        self.learner |= roles.is_some_and(|r| r.has(Roles::LEARNER));
        let first = view.primary().is_some_and(|m| m.id == self.me);
        let peers = &self.peers;
        match &mut self.role {
            Role::Excluded => {}
            Role::TakingOver(leading) | Role::Primary(leading) if first => {
                Mark::LeadsOn.reach();
                leading.enter(view, |p| lane_to(peers, p));
            }
            // It has executed what may never have been committed, so its state is void.
            Role::TakingOver(_) | Role::Primary(_) => self.exclude(),
            role @ (Role::Backup | Role::Candidate) => {
                if first && matches!(role, Role::Backup) {
                    Mark::Candidate.reach();
                }
                *role = if first { Role::Candidate } else { Role::Backup };
            }
        }
        self.mind_deafness(view);
        self.forget_departed();
    }

    /// Whether the primary of a view is one whose lane is read no further: it would count on what this process does not take.
    fn mind_deafness(&mut self, view: &View) {
        let primary = view.primary().and_then(|m| self.peers.iter().find(|p| p.process == m.id));
        if primary.is_some_and(|p| p.inbound.phase == Phase::Faulty) && matches!(self.role, Role::Backup) {
            self.events.push_back(Event::Unfit { view: view.number });
            self.exclude();
        }
    }

    /// An operation with a token of [`Component::Engine`](crate::basics::layout::Component::Engine) has completed.
    pub fn handle_completion(&mut self, completion: Completion) {
        let (op, peer) = follower::parse_token(completion.token);
        match op {
            Op::Attended => return self.handle_attended(peer, completion.result),
            Op::Revoked => return self.handle_revoked(peer),
            // A primary that cannot be reached is found out by others' means.
            Op::Acknowledged => return,
            Op::Write | Op::Consumed => {}
        }
        if let Role::TakingOver(leading) | Role::Primary(leading) = &mut self.role {
            leading.handle_completion(op, peer, completion.result);
        }
    }

    // Commands.

    /// The ticket for replies computed in this turn that are to depend on no clock: they wait for [`released_by_quorum`](Self::released_by_quorum).
    pub fn ticket_by_quorum(&mut self) -> Ticket {
        let ticket = self.turns.ticket();
        self.quorum.wait(ticket);
        ticket
    }

    /// A round of questions to the coordinators has just begun.
    pub fn note_round(&mut self, round: Round) {
        self.quorum.note_round(round, self.turns.released());
    }

    /// A round of questions was won, perhaps some time ago. It counts if the view is still the newest: of another one it says nothing (TRAPS 3).
    pub fn handle_proof(&mut self, proof: Proof) {
        if proof.view == self.view() && matches!(self.role, Role::Primary(_)) {
            self.quorum.handle_proof(proof.round, self.turns.released());
        }
    }

    /// Takes the effects of one request, which the machine already shows, into the log. They are posted by the next [`post`](Self::post) and
    /// as soon as there is room; they may be of any length.
    ///
    /// # Errors
    /// When this process is not [`Standing::Primary`].
    pub fn propose(&mut self, effects: &[u8]) -> Result<LogIndex, ProposeError> {
        let Role::Primary(leading) = &mut self.role else { return Err(ProposeError::NotLeading) };
        self.turns.note_proposal((layout::HEADER_BYTES + effects.len()) as u64);
        Ok(leading.propose(effects))
    }

    /// Does what needs no lease: as primary posts what waits, as backup takes what came and applies what is committed. Returns whether there
    /// was anything to do.
    ///
    /// As primary the machine has to show exactly the effects of everything proposed.
    pub fn post<F: Fabric, S: StateMachine>(&mut self, now: Time, fabric: &mut F, machine: &mut S) -> bool {
        self.attend(now, fabric);
        self.fence_departed(fabric);
        match &mut self.role {
            Role::Excluded => false,
            Role::TakingOver(leading) | Role::Primary(leading) => leading.post(now, fabric, machine, &mut self.events),
            Role::Backup | Role::Candidate => {
                let mut any = self.drain(fabric, machine, self.config.drain_budget_bytes);
                for at in 0..self.peers.len() {
                    if self.peers[at].gone && !self.peers[at].read_out {
                        self.drain_lane(at, fabric, machine, usize::MAX);
                        self.peers[at].read_out = true;
                        any = true;
                    }
                }
                self.publish(fabric);
                self.acknowledge(fabric);
                if any {
                    self.forget_departed();
                }
                any
            }
        }
    }

    /// Draws the conclusions of a turn. `active` is the view that the lease said to be active at `now`, and `now` was read after every
    /// completion handed in so far; anything but [`view`](Self::view) counts as no. Takes over where that is due: the first records to the
    /// other replicas are posted at once.
    pub fn advance<F: Fabric, S: StateMachine>(&mut self, now: Time, active: Option<ViewNumber>, fabric: &mut F, machine: &mut S) {
        let active = active.is_some_and(|v| v == self.view());
        if active && matches!(self.role, Role::Candidate) {
            // The view may have been learned a moment ago.
            self.fence_departed(fabric);
            if self.is_fenced() {
                self.begin_takeover(now, fabric, machine);
            }
        }
        if active && let Role::TakingOver(leading) = &mut self.role {
            leading.take_acknowledgements(fabric);
            if !leading.conclude(&mut self.events) {
                return;
            }
            leading.execute(machine);
            let recovered = leading.recovered_entries();
            let Role::TakingOver(leading) = std::mem::replace(&mut self.role, Role::Backup) else { return };
            Mark::Leads.reach();
            self.role = Role::Primary(leading);
            self.reign += 1;
            self.primary_since = self.view();
            self.break_off();
            self.events.push_back(Event::TookOver { view: self.view(), recovered });
            return;
        }
        if let Role::Primary(leading) = &mut self.role {
            self.turns.end(leading.last());
            if !active {
                Mark::CheckFailed.reach();
            }
            if active || Canary::NoSecondCheck.is_planted() {
                leading.take_acknowledgements(fabric);
                leading.conclude(&mut self.events);
                leading.execute(machine);
                self.turns.release(leading.committed());
            }
        }
    }

    /// Starts over as the new incarnation `me`, with an empty machine and fresh lanes: every peer has to come up anew. Tickets and
    /// [`reign`](Self::reign) go on.
    pub fn reset<S: StateMachine>(&mut self, me: ProcessId, machine: &mut S) {
        machine.clear();
        self.exclude();
        let mut fresh = ViewLog::new(me, self.config);
        fresh.reign = self.reign;
        std::mem::swap(&mut fresh.turns, &mut self.turns);
        std::mem::swap(&mut fresh.quorum, &mut self.quorum);
        fresh.faults = self.faults;
        *self = fresh;
    }

    // Polling.

    /// The next thing that the node has to know.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// A reign begins or ends: what waits will not be released.
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

    /// The view that makes us primary is active, so whatever was acknowledged in an earlier one stands in our memory by now. And no process that led in one can write here any
    /// more, so nothing will be acknowledged in one that does not stand here.
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
            self.events.push_back(Event::Unfit { view: view.number });
            self.exclude();
        }
        self.view = Some(view);
        self.forget_departed();
    }
}

/// A record with room for all that it usually holds, whose memory has been touched.
fn spare_record(config: &Config) -> Record {
    let mut record = Record::with_capacity(config.fragment_bytes().min(64 << 10) + layout::HEADER_BYTES);
    record.fill(|bytes| bytes.resize(bytes.capacity(), 0));
    record.clear();
    record
}
