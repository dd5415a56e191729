//! The `mu` engine: state machine replication at the price of one write (Mu, OSDI'20), with what its authors left out.
//!
//! A leader writes each request once into the memory of each follower; when that has succeeded at a majority, the request is committed. It
//! can succeed only while the follower gives this leader, and nobody else, its permission: so two leaders never both succeed, and no
//! follower's CPU is waited for. `docs/mu.md` has the protocol, with the argument why nothing committed is lost.

mod background;
mod backlog;
mod config;
mod durable;
mod engine;
mod event;
mod follower;
mod group;
mod handover;
mod journal;
pub mod layout;
mod leading;
mod learning;
mod log;
mod permission;
mod release;
mod replay;
mod roster;
mod teaching;
#[cfg(test)]
mod tests;
mod writing;

use std::collections::VecDeque;

use martlet_fabric::ring::{self, Reader, Record, Writer};
use martlet_fabric::{Completion, Fabric, LocalRegion, PeerId, Region, Remote, invariant};

use crate::basics::layout::{LOG_LANE, MAX_MEMBERS};
use crate::basics::{Canary, LogIndex, Mark, ProcessId, Time};
use crate::replica::{ProposeError, Standing, StateMachine, Ticket};

pub use config::{Config, Durability, Execution, MIN_RING_BYTES};
pub use durable::{RecoverError, SnapshotStep};
pub use event::{AbortReason, Event};
pub use group::Group;
pub use layout::LaneFault;

use background::{Heart, Schedule, Watch};
use backlog::Backlog;
use durable::{Snapshot, Told};
use follower::Follower;
use handover::HandOver;
use journal::Journal;
use layout::{Op, Status, WORDS, permission as lane_words};
use leading::{Context, Reign};
use learning::Learning;
use log::Log;
use permission::Permission;
use release::Releases;
use replay::Inbound;
use roster::Roster;
use teaching::Lesson;

/// How often the time between two attempts to lead is doubled, at most.
const MOST_DOUBLINGS: u32 = 8;
/// So many turns in a row that replicate something put off the background plane, at most.
const MOST_PUT_OFF: u32 = 16;
/// Bytes that a follower takes from its leader's lane in one turn.
const DRAIN_BYTES: usize = 256 << 10;

/// A replica's engine. One thread drives it; it never blocks and, in steady state, never allocates.
///
/// Its methods are of four kinds:
/// - *queries* take `&self` and tell how things stand;
/// - *`handle_*`* take what came from outside: peers and completions;
/// - *commands* make it act: [`propose`](Self::propose), [`add`](Self::add), [`remove`](Self::remove), [`post`](Self::post),
///   [`advance`](Self::advance), [`reset`](Self::reset);
/// - *`poll_event`* hands out what the node has to do or to report.
///
/// A turn of the node: the application takes requests and proposes; [`post`](Self::post); poll the fabric to the end and
/// [`handle_completion`](Self::handle_completion); [`advance`](Self::advance); the application releases the replies up to
/// [`released`](Self::released). Both planes of the paper are in these calls: where they share a thread, they share their fate.
#[derive(Debug)]
pub struct Mu {
    me: ProcessId,
    config: Config,
    log: Log,
    peers: Vec<Peer>,
    permission: Permission,
    inbound: Inbound,
    reign: Option<Reign>,
    /// What is in no reign's hands: emptied, or what the machine shows beyond the end of the log. A leader that executes first has lost its role
    /// then, and may have it again before anybody else writes to its log.
    backlog: Backlog,
    /// When a leader looks after the background plane next.
    background: Time,
    /// How many turns in a row have put that off.
    put_off: u32,
    /// The earliest moment of the next attempt to lead.
    retry: Time,
    /// Attempts that have come to nothing since this process last led.
    failures: u32,
    /// It has been asked to give up the lead.
    steps_down: bool,
    hand_over: HandOver,
    reigns: u64,
    releases: Releases,
    heart: Heart,
    schedule: Schedule,
    learning: Option<Learning>,
    /// Since when it has looked for a teacher.
    incomplete_since: Option<Time>,
    wishes: u64,
    roster: Roster,
    /// Somebody has been found to be gone since the last look at who leads.
    suspects_anew: bool,
    /// Changes of the group that are wished for.
    adding: Vec<ProcessId>,
    removing: Vec<ProcessId>,
    /// Whether a group that this process knew has listed it.
    listed: bool,
    /// The committed change of the group that was last reported.
    group_seen: LogIndex,
    events: VecDeque<Event>,
    nudges: Vec<PeerId>,
    buffer: Vec<u8>,
    spare: Record,
    teaching_record: Record,
    published: bool,
    told: Told,
    snapshot: Option<Snapshot>,
    /// Of which chain of the journal a snapshot is whole, and not yet known to be stable.
    finished: Option<u64>,
}

/// A connected process.
#[derive(Debug)]
struct Peer {
    id: PeerId,
    /// As groups call it: see [`Mu::name_of`].
    process: ProcessId,
    /// As it calls itself.
    identity: ProcessId,
    watch: Watch,
    /// The writing end of the log lane that it keeps for us; a reign has it while it lasts.
    writer: Option<Writer>,
    /// The reading end of the lane that we keep for it.
    reader: Reader,
    /// Its last request that was granted.
    served: u64,
    /// What we teach it.
    lesson: Lesson,
    state_reader: Reader,
}

impl Mu {
    /// The engine of the process `me`. With a `group` it is a founding member, and holds the empty state like all the others; without, it
    /// holds nothing, has itself taught, and waits until a leader [adds](Self::add) it.
    ///
    /// Panics when `config` does not [validate](Config::validate), or the group does not list `me`.
    pub fn new(me: ProcessId, config: Config, group: Option<Group>) -> Mu {
        let valid = config.validate();
        invariant!(valid.is_ok(), "the engine's settings: {valid:?}");
        let (me, group) = (config.known_as(me), group.map(|group| group.known_to(&config)));
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
            backlog: Backlog::new(&config),
            background: Time(0),
            put_off: 0,
            retry: Time(0),
            failures: 0,
            steps_down: false,
            hand_over: HandOver::default(),
            reigns: 0,
            releases: Releases::new(),
            heart: Heart::new(),
            schedule: Schedule::new(),
            learning: None,
            incomplete_since: None,
            wishes: 0,
            roster: Roster::default(),
            suspects_anew: false,
            adding: Vec::new(),
            removing: Vec::new(),
            group_seen: LogIndex(0),
            events: VecDeque::with_capacity(64),
            nudges: Vec::with_capacity(4 * MAX_MEMBERS),
            buffer: Vec::with_capacity(ring::max_payload(config.log_ring_bytes)),
            spare: record(),
            teaching_record: record(),
            published: false,
            told: Told::default(),
            snapshot: None,
            finished: None,
        }
    }

    // Queries.

    /// What this replica is. A leader is [`Standing::Primary`] once it has taken over.
    pub fn standing(&self) -> Standing {
        match &self.reign {
            _ if self.is_removed() => Standing::Excluded,
            Some(reign) if reign.is_leading() => Standing::Primary,
            _ => Standing::Backup { primary: self.leader().filter(|l| *l != self.me).map(|l| self.roster.listed_as(l)) },
        }
    }

    /// Counts the times that this process became or ceased to be leader. Tickets mean nothing across a change.
    pub fn reign(&self) -> u64 {
        self.reigns
    }

    /// The proposal number under which this process leads, or last accepted a log.
    pub fn ballot(&self) -> u64 {
        self.reign.as_ref().map_or(self.log.last_ballot(), Reign::ballot)
    }

    /// The ticket for replies computed in this turn, which lasts until the next [`post`](Self::post).
    pub fn ticket(&self) -> Ticket {
        self.releases.ticket()
    }

    /// Replies with tickets up to this one may go out, if they were computed in this reign.
    pub fn released(&self) -> Ticket {
        self.releases.released()
    }

    /// The highest index that this replica knows to be committed.
    pub fn committed(&self) -> LogIndex {
        self.log.committed().index
    }

    /// The last entry that this replica holds, or has proposed.
    pub fn last(&self) -> LogIndex {
        match &self.reign {
            Some(reign) if reign.is_leading() => reign.last(),
            _ => self.log.tail().index,
        }
    }

    /// Up to which entry the machine shows the log, if it is [complete](Self::is_complete).
    pub fn applied(&self) -> LogIndex {
        self.log.applied().index
    }

    /// Whether the machine holds the state.
    pub fn is_complete(&self) -> bool {
        self.log.is_complete()
    }

    /// The group in force, as far as this process knows.
    pub fn group(&self) -> Option<&Group> {
        self.log.group()
    }

    /// The entry by which the group in force came about, as far as this process knows; 0 for the first.
    pub fn group_since(&self) -> Option<LogIndex> {
        self.log.group_since()
    }

    /// Whether it has been removed from the group, and so stopped.
    pub fn is_removed(&self) -> bool {
        self.listed && self.log.committed_group().is_some_and(|(_, g)| !g.contains(self.me))
    }

    /// Whether proposals of `bytes` in all would find room in the log at once. If not, they wait.
    pub fn has_room(&self, bytes: usize) -> bool {
        if self.hand_over.yields() {
            return false;
        }
        if Canary::MuUncheckedSpace.is_planted() && self.reign.as_ref().is_some_and(Reign::is_leading) {
            return true;
        }
        self.reign.as_ref().is_some_and(|r| r.has_room(bytes, &self.log, &self.config))
    }

    /// Whether it leads and nobody else holds everything that it knows to be committed.
    pub fn is_alone(&self) -> bool {
        let committed = self.log.committed().index;
        let reign = self.reign.as_ref().filter(|r| r.is_leading());
        reign.is_some_and(|r| !r.followers.iter().any(|f| f.held().is_some_and(|held| held >= committed)))
    }

    /// When [`post`](Self::post) has something to do by itself, at the latest.
    pub fn deadline(&self) -> Time {
        self.schedule.next(&self.heart)
    }

    /// Whether the replication plane is inside a call to propose (Mu section 5.1, fate sharing).
    fn is_inside_propose(&self) -> bool {
        self.reign.as_ref().is_some_and(Reign::is_waiting)
    }

    // What comes from outside.

    /// A member's process is connected; its lanes, in both directions, are fresh. Clients are none of the engine's business.
    ///
    /// It may be connected anew: then it is served, asked and read like one that comes for the first time, since nothing of an earlier connection lands in the
    /// new lanes. It is still one process, with one vote.
    pub fn handle_peer_up<F: Fabric>(&mut self, peer: PeerId, process: ProcessId, fabric: &mut F) {
        if self.peers.iter().any(|p| p.id == peer) {
            return;
        }
        let name = self.name_of(process);
        for at in 0..self.peers.len() {
            if self.peers[at].process == name {
                Mark::MuReconnected.reach();
                self.note_death(at, false);
            }
        }
        // A fresh lane is granted from the start; here nobody has permission who has not asked for it.
        self.permission.revoking += 1;
        fabric.revoke(peer, LOG_LANE, Op::Revoke.token(0, peer));
        let lane = Remote { peer, region: Region::Lane(LOG_LANE), offset: 0 };
        // What stands in records may come from outside (TRAPS 14): only who knows the salt can write one.
        let salt = |lane: u64| ring::salt(self.config.secret, 2 * u64::from(peer.0) + lane);
        let (log_salt, state_salt) = (salt(0), salt(1));
        permission::tell(fabric, peer, lane_words::LOG_SALT, log_salt);
        permission::tell(fabric, peer, lane_words::STATE_SALT, state_salt);
        self.peers.push(Peer {
            id: peer,
            process: name,
            identity: process,
            watch: Watch::new(&self.config),
            writer: Some(Writer::new(lane, self.config.log_ring_bytes)),
            reader: Reader::salted(log_salt),
            served: 0,
            lesson: Lesson::new(peer, &self.config),
            state_reader: Reader::salted(state_salt),
        });
    }

    /// A peer's process is gone, or its connection.
    pub fn handle_peer_gone(&mut self, peer: PeerId, certain: bool) {
        if let Some(at) = self.peers.iter().position(|p| p.id == peer) {
            self.note_death(at, certain);
        }
    }

    /// A process is gone for certain: somebody who knows says so. It may have come back from its disk since, which is another life of the same member.
    pub fn handle_death(&mut self, process: ProcessId) {
        for at in 0..self.peers.len() {
            if self.peers[at].identity == process {
                self.note_death(at, true);
            }
        }
    }

    /// An operation with a token of [`Component::Engine`](crate::basics::layout::Component::Engine) has completed.
    #[inline]
    pub fn handle_completion(&mut self, completion: Completion) {
        let (op, round, peer) = Op::parse(completion.token);
        match op {
            Op::Log | Op::Consumed | Op::Words | Op::CatchUp => {
                if let Some(reign) = &mut self.reign {
                    reign.handle_completion(op, round, peer, completion.result, &mut self.nudges);
                }
            }
            Op::Revoke => self.permission.revoking -= 1,
            Op::StateConsumed => {
                if let (Some(peer), Ok(position)) = (self.peers.iter_mut().find(|p| p.id == peer), completion.result) {
                    peer.lesson.handle_consumed(position);
                }
            }
            // Who can no longer be reached is found out by its counter.
            Op::Permission | Op::State => {}
            Op::Heartbeat | Op::Status | Op::Threads | Op::Death => self.handle_sign(op, round, peer, completion.result),
        }
    }

    // Commands.

    /// Takes a command into the log, to be posted by the next [`post`](Self::post) and as soon as there is room. With
    /// [`Execution::Speculative`] the machine shows its effects already.
    ///
    /// # Errors
    /// When this process is not [`Standing::Primary`], or the command is longer than [`Config::max_command_bytes`].
    #[inline]
    pub fn propose(&mut self, command: &[u8]) -> Result<LogIndex, ProposeError> {
        let allowed = self.config.max_command_bytes();
        if command.len() > allowed {
            return Err(ProposeError::TooLong { bytes: command.len(), allowed });
        }
        let Some(reign) = self.reign.as_mut().filter(|r| r.is_leading()) else { return Err(ProposeError::NotLeading) };
        Ok(reign.propose(command, &self.config))
    }

    /// Wishes a process into the group. The leader takes it in when it is connected and holds the state; a wish made elsewhere, or to a leader
    /// that loses its role, is void.
    pub fn add(&mut self, process: ProcessId) {
        let process = self.config.known_as(process);
        if !self.adding.contains(&process) {
            self.adding.push(process);
        }
    }

    /// Wishes a process out of the group, the leader itself included. As [`add`](Self::add).
    pub fn remove(&mut self, process: ProcessId) {
        let process = self.config.known_as(process);
        if !self.removing.contains(&process) {
            self.removing.push(process);
        }
    }

    /// Gives up the lead, if this process has it. Whoever has the lowest id among those alive leads next: this process again, if that is so.
    pub fn step_down(&mut self) {
        self.steps_down = true;
    }

    /// Does what has to be done: serves requests for permission, replays or replicates, reads the others' signs of life. Returns whether there
    /// was anything to do beside the latter.
    #[inline]
    pub fn post<F: Fabric, S: StateMachine>(&mut self, now: Time, fabric: &mut F, machine: &mut S) -> bool {
        let led = self.is_leading();
        // What has been proposed goes first: on a fabric that keeps the order of all that goes to a follower, reads of its signs of life would stand
        // in the way of the record.
        let mut moved = led && self.lead(now, fabric, machine);
        // A leader is on the common path in every turn, and looks after the rest now and then: rather between two records than behind one, whose
        // completion would be seen later for it.
        let put_off = moved && self.put_off < MOST_PUT_OFF;
        let steady = led && (put_off || now < self.background);
        self.put_off = if put_off { self.put_off + 1 } else { 0 };
        if !steady {
            moved |= self.follow(now, fabric, machine);
            if !led && self.is_leading() {
                moved |= self.lead(now, fabric, machine);
            }
            self.background = now.after(self.config.background_ns);
            moved |= self.assist(fabric, now, machine, moved);
        }
        self.ring_bells(fabric);
        moved
    }

    /// Draws the conclusions of what has completed: takes over, commits, releases.
    #[inline]
    pub fn advance<F: Fabric, S: StateMachine>(&mut self, now: Time, fabric: &mut F, machine: &mut S) {
        if std::mem::take(&mut self.suspects_anew) {
            // Whose place that is takes it now, and not when it next looks.
            self.take_role(now, fabric, machine);
        }
        self.step(now, fabric, machine);
        if let Some(reign) = self.reign.as_mut().filter(|r| r.is_leading()) {
            reign.release(&mut self.releases, &self.log);
        }
        self.ring_bells(fabric);
    }

    /// Starts over as the new incarnation `me`, with an empty machine and fresh lanes: every peer has to come up anew. Tickets and
    /// [`reign`](Self::reign) go on.
    pub fn reset<S: StateMachine>(&mut self, me: ProcessId, machine: &mut S) {
        machine.clear();
        let mut fresh = Mu::new(me, self.config, None);
        fresh.reigns = self.reigns + 1;
        std::mem::swap(&mut fresh.releases, &mut self.releases);
        fresh.releases.break_off();
        *self = fresh;
    }

    /// What the node has to do or to report, in order.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    // Inside.

    #[inline]
    fn is_leading(&self) -> bool {
        self.reign.as_ref().is_some_and(Reign::is_leading)
    }

    /// Replicates what has been proposed, and has the followers asked whether they still give their permission where a reply waits for that. Whether
    /// anything was posted.
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

    /// Serves requests for permission, replays, reads the others' signs of life, and takes or leaves the lead.
    #[inline(never)]
    fn follow<F: Fabric, S: StateMachine>(&mut self, now: Time, fabric: &mut F, machine: &mut S) -> bool {
        let mut moved = self.serve(fabric, machine);
        if let Some(holder) = self.permission.holder.filter(|h| *h != PeerId::SELF) {
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

    /// Learns and teaches, and shows the others what has come of this turn.
    #[inline(never)]
    fn assist<F: Fabric, S: StateMachine>(&mut self, fabric: &mut F, now: Time, machine: &mut S, moved: bool) -> bool {
        let mut moved = moved;
        moved |= self.learn(now, fabric, machine);
        moved |= self.teach(fabric, machine);
        self.watch_group(fabric);
        self.follow_roster();
        self.report_group();
        if !self.published || moved {
            self.publish(fabric);
        }
        self.forget_departed();
        moved
    }

    /// Takes or leaves the leader's role, as the estimate says (Mu section 5.1: it determines whether to execute as leader or follower).
    fn take_role<F: Fabric, S: StateMachine>(&mut self, now: Time, fabric: &mut F, machine: &mut S) {
        let leads = self.is_to_lead(now) && !self.is_removed();
        match &self.reign {
            Some(_) if !leads || std::mem::take(&mut self.steps_down) => self.end_reign(AbortReason::NotLeader, fabric),
            None if leads && now >= self.retry => {
                self.retry = now.after(self.back_off_ns());
                self.permission.requested += 1;
                self.steps_down = false;
                self.learning = None;
                let record = std::mem::take(&mut self.spare);
                self.reign = Some(Reign::new(self.me, self.permission.requested, record, std::mem::take(&mut self.backlog)));
                self.events.push_back(Event::Asked);
            }
            _ => {}
        }
        self.ask(fabric);
        // Our own permission is asked for like anybody's.
        if self.reign.is_some() {
            self.serve(fabric, machine);
        }
    }

    /// How long after the beginning of an attempt the next one may begin. Who gets nowhere has no majority, or company: the longer that lasts, the
    /// longer it waits, and who stands further back in the group waits longer than those before it.
    fn back_off_ns(&self) -> u64 {
        let place = self.log.group().map_or(0, |g| g.members().iter().filter(|id| **id < self.me).count() as u64);
        (self.config.retry_ns << self.failures.min(MOST_DOUBLINGS)) * if self.failures == 0 { 1 } else { place + 1 }
    }

    /// Asks for the permission of everybody in the group, and of those who are to be taken in (Mu section 4.1; growing the confirmed
    /// followers, section 4.2).
    fn ask<F: Fabric>(&mut self, fabric: &mut F) {
        let Some(reign) = &mut self.reign else { return };
        let Some(group) = self.log.group() else { return };
        for follower in reign.drop_superseded(|f| self.peers.iter().any(|p| p.process == f.process && !p.watch.dead)) {
            if let Some(peer) = self.peers.iter_mut().find(|p| p.id == follower.peer) {
                peer.writer = Some(follower.writer);
            }
        }
        for peer in &mut self.peers {
            let holds = matches!(peer.watch.status, Some(Status::Follower | Status::Taught));
            let joins = reign.is_leading() && holds && self.adding.contains(&peer.process);
            // Somebody may have been taken into the group without our having heard of it, and the others may be gone.
            let may_belong = !reign.is_leading() && holds && self.roster.lists(peer.process);
            if peer.watch.dead || !reign.may_ask(peer.id) || !(joins || may_belong || group.contains(peer.process)) {
                continue;
            }
            let Some(writer) = peer.writer.take() else { continue };
            Mark::MuAsked.reach();
            permission::tell(fabric, peer.id, lane_words::START, writer.tail());
            permission::tell(fabric, peer.id, lane_words::REQUEST, reign.round());
            self.nudges.push(peer.id);
            reign.ask(peer.process, peer.id, writer);
        }
    }

    #[inline]
    fn step<F: Fabric, S: StateMachine>(&mut self, now: Time, fabric: &mut F, machine: &mut S) -> bool {
        let was = self.reign.as_ref().is_some_and(Reign::is_leading);
        let moved = self.with_reign(now, fabric, machine, Reign::step);
        if !was && self.reign.as_ref().is_some_and(Reign::is_leading) {
            self.reigns += 1;
            self.failures = 0;
            self.releases.break_off();
            self.published = false;
        }
        self.change_group();
        moved
    }

    #[inline]
    fn with_reign<F: Fabric, S: StateMachine>(
        &mut self,
        now: Time,
        fabric: &mut F,
        machine: &mut S,
        act: impl FnOnce(&mut Reign, &mut Context<F, S>) -> Result<bool, AbortReason>,
    ) -> bool {
        let Some(reign) = &mut self.reign else { return false };
        let mut cx = Context {
            now,
            config: &self.config,
            log: &mut self.log,
            fabric,
            machine,
            events: &mut self.events,
            nudges: &mut self.nudges,
            buffer: &mut self.buffer,
            self_granted: self.permission.self_granted,
        };
        match act(reign, &mut cx) {
            Ok(moved) => moved,
            Err(reason) => {
                self.end_reign(reason, fabric);
                true
            }
        }
    }

    /// Whatever let this process lead without preparing is over (TRAPS 11): the next reign begins from nothing.
    fn end_reign<F: Fabric>(&mut self, reason: AbortReason, fabric: &F) {
        let Some(mut reign) = self.reign.take() else { return };
        if self.config.execution == Execution::Speculative {
            reign.keep_executed(leading::ring_of(fabric), &mut self.log, &self.config);
        }
        let mark = match reason {
            AbortReason::AccessLost(_) => Mark::MuAccessLost,
            AbortReason::Granted(_) => Mark::MuGrantedAway,
            AbortReason::NotLeader => Mark::MuStepsAside,
            AbortReason::Outbid => Mark::MuOutbid,
            AbortReason::CatchUp => Mark::MuCatchUpFailed,
            AbortReason::TooOld => Mark::MuTooOld,
            AbortReason::Removed => Mark::MuRemoved,
        };
        mark.reach();
        self.events.push_back(Event::Aborted { reason, led: reign.is_leading() });
        if reign.is_leading() {
            self.reigns += 1;
            self.releases.break_off();
            self.hand_over.end();
        } else {
            self.failures = self.failures.saturating_add(1);
        }
        let (followers, record, backlog) = reign.into_parts();
        self.backlog = backlog;
        if reason == AbortReason::TooOld {
            self.log.void();
        }
        self.log.set_beyond(self.log.is_complete() && self.config.execution == Execution::Speculative && !self.backlog.is_empty());
        self.check_backlog();
        self.spare = record;
        for follower in followers {
            if let Some(peer) = self.peers.iter_mut().find(|p| p.id == follower.peer) {
                peer.writer = Some(follower.writer);
            }
        }
        self.published = false;
    }

    /// Proposes the next wished change of the group, when it can be done: one at a time (Mu section 5.4).
    #[inline]
    fn change_group(&mut self) {
        if !self.adding.is_empty() || !self.removing.is_empty() || self.hand_over.is_wished() {
            self.change_group_as_wished();
        }
    }

    #[cold]
    fn change_group_as_wished(&mut self) {
        let successor_knows = self.hand_over.wish().is_some_and(|to| self.could_lead(to));
        let Some(reign) = self.reign.as_mut().filter(|r| r.may_change(&self.log)) else { return };
        let Some(group) = self.log.group() else { return };
        self.adding.retain(|id| !group.contains(*id) && !group.has_removed(*id));
        self.removing.retain(|id| group.contains(*id) && group.members().len() > 1);
        let committed = self.log.committed().index;
        // With `sync` the group would wait for its disk as soon as it counts.
        let keeps = |f: &Follower| self.config.durability != Durability::Sync || f.stable.is_some();
        let level =
            |id: &ProcessId| reign.followers.iter().any(|f| f.process == *id && f.acked.is_some_and(|a| a >= committed) && keeps(f));
        // Under load a follower that is a little slower would never be level at any moment; what it lacks is at most what its lane holds.
        let follows = |id: ProcessId| reign.followers.iter().any(|f| f.process == id && f.acked.is_some() && keeps(f));
        if let Some(to) = self.hand_over.take_wish(|to| successor_knows && group.contains(to) && follows(to)) {
            // Who leads is no wish of membership's, which knows this group's view.
            reign.propose_group(&group.clone().led_by(to));
            return;
        }
        let next = match (self.removing.first(), self.adding.iter().find(|id| level(id))) {
            (Some(id), _) => group.without(*id),
            (None, Some(id)) => group.with(*id),
            (None, None) => None,
        };
        if let Some(next) = next {
            if next.members().len() > group.members().len() { Mark::MuGrows } else { Mark::MuShrinks }.reach();
            reign.propose_group(&next.as_of(self.roster.view()));
        }
    }

    /// Unless the machine shows it, what is proposed and not in the log is forgotten with the reign.
    fn check_backlog(&mut self) {
        if self.reign.is_none() && !self.log.is_beyond() && !self.backlog.is_empty() {
            self.backlog.clear();
        }
    }

    fn watch_group<F: Fabric>(&mut self, fabric: &F) {
        let Some((index, group)) = self.log.committed_group() else { return };
        self.listed |= group.contains(self.me);
        if *index > self.group_seen {
            self.group_seen = *index;
            self.events.push_back(Event::GroupChanged { index: *index });
        }
        if self.is_removed() && self.reign.is_some() {
            self.end_reign(AbortReason::Removed, fabric);
        }
    }

    fn publish<F: Fabric>(&mut self, fabric: &F) {
        let status = match &self.reign {
            _ if !self.log.is_complete() || self.is_removed() => Status::Incomplete,
            Some(reign) if reign.is_leading() => Status::Leader,
            // Only who knows that it belongs can lead: if the others took it for their leader before, everybody would wait for somebody else.
            _ if self.log.committed_group().is_some_and(|(_, g)| g.contains(self.me)) => Status::Follower,
            _ if self.log.group().is_some_and(|g| g.contains(self.me)) && Canary::MuUnawareMember.is_planted() => Status::Follower,
            _ => Status::Taught,
        };
        self.log.publish(fabric.memory(LocalRegion::Public(WORDS)).expect("every process offers its numbers"), status);
        self.published = true;
    }

    /// Lets go of the dead who belong to nothing any more, neither to the group nor to the view, and of lost connections with who is connected anew.
    fn forget_departed(&mut self) {
        if !self.peers.iter().any(|p| p.watch.dead) {
            return;
        }
        let Mu { peers, log, permission, roster, events, .. } = self;
        let living: Vec<ProcessId> = peers.iter().filter(|p| !p.watch.dead).map(|p| p.process).collect();
        peers.retain(|p| {
            // Whom the view lists membership has to be told of, once it is given up.
            let listed = log.group().is_none_or(|g| g.contains(p.process)) || roster.lists(p.process);
            let belongs = listed && !living.contains(&p.process);
            let keep = !p.watch.dead || belongs || permission.holder == Some(p.id) || p.writer.is_none();
            if !keep {
                events.push_back(Event::Forget(p.id));
            }
            keep
        });
    }

    #[inline]
    fn ring_bells<F: Fabric>(&mut self, fabric: &mut F) {
        for peer in self.nudges.drain(..) {
            fabric.nudge(peer);
        }
    }
}
