//! The `apus` engine: persist, then acknowledge (APUS, SoCC'17, section 4), with the parts that its authors left open.
//!
//! A leader writes each record once into a lane of each backup. The backup takes it into its own log, keeps it as durability requires, and acknowledges it in
//! the leader's reply words. What a majority acknowledges is committed. A new leader is elected under a view id, on the same queues and words, and its log
//! replaces the others' logs. `docs/apus.md` has the protocol, the argument that nothing committed is lost, and the differences from the paper.

mod background;
mod backup;
mod config;
mod durable;
mod election;
mod engine;
mod follower;
mod handover;
mod journal;
pub mod layout;
mod leading;
mod learning;
mod log;
mod peers;
mod roster;
#[cfg(feature = "fuzzing")]
pub(crate) mod samples;
mod sending;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use martlet_fabric::primitive::Ordering;
use martlet_fabric::ring::{self, Record};
use martlet_fabric::{Completion, Fabric, LocalRegion, invariant};

use crate::basics::layout::MAX_MEMBERS;
use crate::basics::{LogIndex, Mark, ProcessId, Time};
use crate::engine::Event;
use crate::replica::backlog::Backlog;
use crate::replica::group::Group;
use crate::replica::handover::HandOver;
use crate::replica::nudges::Nudges;
use crate::replica::release::Releases;
use crate::replica::roster::Roster;
use crate::replica::signs::Signs;
use crate::replica::state_transfer::Learning;
use crate::replica::{Durability, Execution, Standing, StateMachine};

pub use config::{Config, MIN_RING_BYTES};

use backup::Inbound;
use durable::Snapshot;
use election::Election;
use journal::Journal;
use layout::{Op, Status, WORDS, words};
use leading::{Context, Reign};
use log::Log;
use peers::Peer;

/// The most turns in a row that put off everything else because they replicated something.
const MOST_PUT_OFF: u32 = 16;
/// Bytes that a backup takes from its leader's lane in one turn.
const DRAIN_BYTES: usize = 256 << 10;

/// Why a reign, or a candidacy, has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// Too few have agreed in time.
    TimedOut,
    /// A later view has been promised by another process.
    Outdated,
    /// Another one leads, or stands for a later view.
    Superseded,
    /// Nothing could be committed for too long.
    Stuck,
    /// This process belongs to the group no longer.
    Removed,
    /// It has handed over.
    HandedOver,
}

/// A replica's engine. One thread drives it; it never blocks and, in steady state, never allocates.
#[derive(Debug)]
pub struct Apus {
    /// As groups call it.
    me: ProcessId,
    config: Config,
    /// As of the last call that said so.
    now: Time,
    log: Log,
    peers: Vec<Peer>,
    inbound: Inbound,
    election: Election,
    reign: Option<Reign>,
    /// What the next reign begins with, empty.
    spare: (Record, Backlog),
    /// When a leader next does everything other than replication, and how many turns in a row have put that off.
    background: Time,
    put_off: u32,
    hand_over: HandOver,
    reigns: u64,
    releases: Releases,
    signs: Signs,
    learning: Option<Learning>,
    sending_record: Record,
    /// Whether a state transfer to this process has ever begun; if so, the machine is not a founder's empty one.
    lesson_begun: bool,
    /// When the state was last found to be unteachable, if that is not long ago.
    unteachable_since: Option<Time>,
    /// Since when it has looked for the state.
    incomplete_since: Option<Time>,
    requests: u64,
    roster: Roster,
    /// Whether a process has been found to be gone since the leader was last determined.
    suspects_anew: bool,
    /// Whether a group that this process knew has listed it.
    listed: bool,
    /// How often others have been asked to take this process's entries.
    asks: u64,
    events: VecDeque<Event>,
    nudges: Nudges,
    buffer: Vec<u8>,
    published: bool,
    snapshot: Option<Snapshot>,
    /// Whether too much waits for the disk, so that the leader's records stay in its lane.
    holds_back: bool,
    /// The chain of the journal of which a snapshot is complete but not yet known to be stable.
    finished: Option<u64>,
}

impl Apus {
    /// The engine of the process `me`. With a `group` it is a founding member, and holds the empty state like all the others. Without one it holds nothing, and
    /// waits until a leader adds it.
    ///
    /// Panics when `config` does not [validate](Config::validate), or the group does not list `me`.
    pub fn new(me: ProcessId, config: Config, group: Option<Group>) -> Apus {
        let valid = config.validate();
        invariant!(valid.is_ok(), "the engine's settings: {valid:?}");
        let (me, group) = (config.durability.known_as(me), group.map(|group| group.known_by(|id| config.durability.known_as(id))));
        invariant!(group.as_ref().is_none_or(|group| group.contains(me)), "{me} founds a group without itself");
        let room = ring::max_payload(config.log_ring_bytes).max(ring::max_payload(config.state_ring_bytes));
        let listed = group.is_some();
        let mut log = Log::new(config.log_ring_bytes, group);
        if config.durability != Durability::Memory {
            log.begin_journal(Box::new(Journal::default()));
        }
        Apus {
            me,
            config,
            now: Time(0),
            log,
            peers: Vec::with_capacity(MAX_MEMBERS),
            inbound: Inbound::default(),
            election: Election::default(),
            reign: None,
            spare: (Record::with_capacity(room), Backlog::new(config.backlog_bytes, config.batch_bytes, config.max_command_bytes())),
            background: Time(0),
            put_off: 0,
            hand_over: HandOver::default(),
            reigns: 0,
            releases: Releases::default(),
            signs: Signs::new(me, &background::SIGNS),
            learning: None,
            sending_record: Record::default(),
            lesson_begun: false,
            unteachable_since: None,
            incomplete_since: None,
            requests: 0,
            roster: Roster::new(config.durability),
            suspects_anew: false,
            listed,
            asks: 0,
            events: VecDeque::with_capacity(64),
            nudges: Nudges::default(),
            buffer: Vec::with_capacity(room),
            published: false,
            snapshot: None,
            holds_back: false,
            finished: None,
        }
    }

    // Queries.

    /// Whether this process leads.
    fn is_leading(&self) -> bool {
        self.reign.as_ref().is_some_and(Reign::is_leading)
    }

    fn what_it_is(&self) -> Standing {
        match &self.reign {
            Some(reign) if reign.is_leading() => Standing::Primary,
            _ if self.is_removed() => Standing::Excluded,
            _ => Standing::Backup { primary: self.leader().map(|id| self.roster.listed_as(id)) },
        }
    }

    /// The group in force, as far as this process knows.
    pub fn group(&self) -> Option<&Group> {
        self.log.group()
    }

    /// The entry that introduced the group in force, as far as this process knows; 0 for the first group.
    pub fn group_since(&self) -> Option<LogIndex> {
        self.log.group_since()
    }

    /// The last entry that this replica holds, or has proposed.
    fn last_proposed(&self) -> LogIndex {
        match &self.reign {
            Some(reign) if reign.is_leading() => reign.last(),
            _ => self.log.tail().index,
        }
    }

    /// Its state in one line, for debugging.
    pub fn in_words(&self) -> String {
        let reign = self.reign.as_ref().map(|reign| {
            let followers =
                reign.followers.iter().map(|f| format!("{} {:?} ask {} holds {:?} votes {}", f.process, f.phase, f.ask, f.held(), f.votes));
            format!("{:?} of view {:x}: {}", reign.stage(), reign.view, followers.collect::<Vec<_>>().join(", "))
        });
        format!(
            "promised {:x}, {:?}, complete {}, log of view {:x} to {:?}, committed {:?}, applied {:?}, inbound {:?}, hears {:?}, election {:?}, learning {}, reign {:?}",
            self.log.promised(),
            self.what_it_is(),
            self.log.is_complete(),
            self.log.accepted(),
            self.log.tail(),
            self.log.committed(),
            self.log.applied(),
            self.inbound,
            self.election.leader,
            self.election,
            self.learning.is_some(),
            reign
        )
    }

    // What comes from outside.

    fn take_completion(&mut self, completion: Completion) {
        let (op, round, peer) = Op::parse(completion.token);
        let result = completion.result;
        match op {
            Op::Log | Op::Consumed => {
                if let Some(reign) = &mut self.reign {
                    reign.handle_completion(op, round, peer, result, &mut self.nudges);
                }
            }
            // A peer that can no longer be reached is detected through its counter.
            Op::Control | Op::State => {}
            Op::Revoke => self.inbound.revoking -= 1,
            Op::Look => self.handle_look(round, peer, result),
            Op::StateConsumed => {
                if let (Some(peer), Ok(position)) = (self.peers.iter_mut().find(|p| p.id == peer), result) {
                    peer.state_lane.handle_consumed(position);
                }
            }
            Op::Heartbeat | Op::Status | Op::Threads | Op::Death => self.handle_sign(op, round, peer, result),
        }
    }

    // A turn.

    fn post_all<F: Fabric, S: StateMachine>(&mut self, now: Time, fabric: &mut F, machine: &mut S) -> bool {
        self.now = now;
        let led = self.is_leading();
        // Proposals go first. A leader takes the common path in every turn, and does the rest now and then.
        let mut moved = led && self.lead(fabric, machine);
        let put_off = moved && self.put_off < MOST_PUT_OFF;
        let steady = led && (put_off || now < self.background);
        self.put_off = if put_off { self.put_off + 1 } else { 0 };
        if !steady {
            moved |= self.follow(fabric, machine);
            if !led && self.is_leading() {
                moved |= self.lead(fabric, machine);
            }
            self.background = now.after(self.config.background_ns);
            moved |= self.assist(fabric, machine, moved);
        }
        self.nudges.send(now, self.config.nudge_gap_ns, fabric);
        moved
    }

    fn conclude<F: Fabric, S: StateMachine>(&mut self, now: Time, fabric: &mut F, machine: &mut S) {
        self.now = now;
        if std::mem::take(&mut self.suspects_anew) {
            // A process whose turn it is stands now, not when it next checks.
            self.hear(now, fabric);
        }
        if !self.is_leading() {
            self.elect(fabric, machine);
        }
        self.step(false, fabric, machine);
        if let Some(reign) = self.reign.as_mut().filter(|reign| reign.is_leading()) {
            reign.release(&mut self.releases, &self.log);
        }
        self.nudges.send(now, self.config.nudge_gap_ns, fabric);
    }

    /// Replicates what has been proposed, and has lanes probed where a reply waits for that. Returns whether anything was posted.
    fn lead<F: Fabric, S: StateMachine>(&mut self, fabric: &mut F, machine: &mut S) -> bool {
        let (turn, asked) = (self.releases.turn(), self.releases.is_asked());
        let mut posted = false;
        self.with_reign(fabric, machine, |reign, cx| {
            posted = reign.post(turn, cx);
            if asked {
                reign.probe(turn, cx.fabric);
            }
            false
        });
        let last = self.last_proposed();
        self.releases.end(last);
        posted
    }

    /// Continues an election, as far as possible.
    fn elect<F: Fabric, S: StateMachine>(&mut self, fabric: &mut F, machine: &mut S) -> bool {
        let now = self.now;
        let mut moved = self.act_on_closed(fabric, machine);
        moved |= self.act_on_pledge(now, fabric);
        self.mind_candidacy(now, fabric);
        self.mind_election(now, fabric);
        moved
    }

    /// Takes what the leader has written and acknowledges it, hears the others, and takes part in elections.
    #[inline(never)]
    fn follow<F: Fabric, S: StateMachine>(&mut self, fabric: &mut F, machine: &mut S) -> bool {
        let now = self.now;
        let drained = !self.holds_back && self.drain(DRAIN_BYTES, fabric, machine);
        self.published &= !drained;
        self.acknowledge(fabric);
        self.tick(now, fabric);
        self.hear(now, fabric);
        let mut moved = drained | self.elect(fabric, machine);
        moved |= self.step(true, fabric, machine);
        self.mind_hand_over(now, fabric);
        moved
    }

    /// Learns, sends the state, and shows the others the result of this turn.
    #[inline(never)]
    fn assist<F: Fabric, S: StateMachine>(&mut self, fabric: &mut F, machine: &mut S, moved: bool) -> bool {
        let now = self.now;
        let mut moved = moved;
        moved |= self.learn(now, fabric, machine);
        moved |= self.send_states(now, fabric, machine);
        self.watch_group(fabric);
        self.follow_roster();
        self.report_group();
        if let Some(reign) = self.reign.as_ref().filter(|reign| reign.is_elected()) {
            // Those that have come up since do not know.
            let word = reign.view << 1 | 1;
            self.peers.iter_mut().filter(|p| !p.watch.dead).for_each(|peer| peer.tell_reign(word, fabric));
        }
        if !self.published || moved {
            self.publish(fabric);
        }
        self.forget_departed();
        moved
    }

    fn step<F: Fabric, S: StateMachine>(&mut self, whole: bool, fabric: &mut F, machine: &mut S) -> bool {
        if self.reign.is_none() {
            return false;
        }
        let was = self.is_leading();
        let members = std::mem::take(&mut self.roster);
        let moved = self.with_reign(fabric, machine, |reign, cx| {
            let wanted = |peer: &Peer, log: &Log| {
                let group = log.group();
                let belongs = group.is_some_and(|group| group.contains(peer.process));
                let may_come = members.lists(peer.process) && !group.is_some_and(|group| group.has_removed(peer.process));
                belongs || may_come
            };
            reign.step(whole, cx, wanted)
        });
        self.roster = members;
        if !was && self.is_leading() {
            self.reigns += 1;
            self.releases.break_off();
            self.published = false;
            self.election.failures = 0;
        }
        self.change_group();
        moved
    }

    fn with_reign<F: Fabric, S: StateMachine>(
        &mut self,
        fabric: &mut F,
        machine: &mut S,
        act: impl FnOnce(&mut Reign, &mut Context<F, S>) -> bool,
    ) -> bool {
        let Some(reign) = &mut self.reign else { return false };
        let mut cx = Context {
            now: self.now,
            config: &self.config,
            log: &mut self.log,
            fabric,
            machine,
            events: &mut self.events,
            nudges: &mut self.nudges,
            buffer: &mut self.buffer,
            peers: &mut self.peers,
            asks: &mut self.asks,
        };
        act(reign, &mut cx)
    }

    /// Only the log outlives a reign (TRAPS 11).
    fn end_reign<F: Fabric>(&mut self, ending: Ending, fabric: &mut F) {
        let Some(mut reign) = self.reign.take() else { return };
        let (view, led, elected) = (reign.view, reign.is_leading(), reign.is_elected());
        let mark = match ending {
            Ending::TimedOut => Some(Mark::ApusTimedOut),
            Ending::Outdated => Some(Mark::ApusOutdated),
            Ending::Superseded => Some(Mark::ApusSuperseded),
            Ending::Stuck => Some(Mark::ApusStuck),
            // No simulated life reaches this: a leader that leaves hands over first.
            Ending::Removed => None,
            Ending::HandedOver => Some(Mark::ApusHandedOver),
        };
        if let Some(mark) = mark {
            mark.reach();
        }
        if led && self.config.execution == Execution::Speculative {
            reign.keep_executed(&mut self.log);
            if reign.backlog.has_commands() {
                // The machine shows what is in no log.
                self.log.void();
            }
        }
        if elected {
            self.election.lost_view = self.election.lost_view.max(view);
            for peer in self.peers.iter_mut().filter(|p| !p.watch.dead) {
                peer.tell_reign(view << 1, fabric);
                self.nudges.at_once(peer.id);
            }
        }
        if led {
            self.reigns += 1;
            self.releases.break_off();
            self.hand_over.end();
            self.events.push_back(Event::SteppedDown);
        } else {
            self.election.failures = self.election.failures.saturating_add(1);
        }
        let (record, mut backlog, writers) = reign.into_parts();
        backlog.clear();
        self.spare = (record, backlog);
        for (id, writer) in writers {
            if let Some(peer) = self.peers.iter_mut().find(|p| p.id == id) {
                peer.writer = Some(writer);
            }
        }
        self.published = false;
    }

    fn publish<F: Fabric>(&mut self, fabric: &F) {
        let own = fabric.memory(LocalRegion::Public(WORDS)).expect("every process offers its words");
        let reign = self.reign.as_ref().filter(|reign| reign.is_elected());
        let status = match reign {
            _ if !self.log.is_complete() || self.is_removed() => Status::Incomplete,
            Some(reign) if reign.is_leading() => Status::Leader,
            _ if !self.is_kept() => Status::Unkept,
            _ => Status::Backup,
        };
        let hears = reign.map(|reign| reign.view).or(self.election.leader.map(|(_, view)| view)).unwrap_or(0);
        for (at, value) in [
            (words::PROMISED, self.log.promised()),
            (words::HEARS, hears),
            (words::ACCEPTED, self.log.accepted()),
            (words::LAST, self.log.tail().index.0),
            (words::STATUS, status as u64),
        ] {
            own[at].store(value, Ordering::Release);
        }
        self.published = true;
    }
}
