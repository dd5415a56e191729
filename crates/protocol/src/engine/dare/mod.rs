//! The `dare` engine: state machine replication by terms and direct access to logs (DARE, HPDC'15), with the parts that its authors left out.
//!
//! A majority elects a leader for a term. Each voter first takes away the old leader's access to its log, and makes its vote durable. The leader then adjusts
//! each log by its determinants, writes entries directly into it, and moves its tail pointer. What the tail pointers of a majority have reached in the leader's
//! own term is committed. The leader waits for no follower's processor. `docs/dare.md` has the protocol, the argument that nothing committed is lost, and the
//! differences from the paper.

mod access;
mod background;
mod config;
mod election;
mod engine;
mod follower;
mod handover;
pub mod layout;
mod leading;
mod log;
mod peers;
mod quorums;
mod recover;
mod resize;
mod roster;
#[cfg(feature = "fuzzing")]
pub(crate) mod samples;
#[cfg(test)]
mod tests;
mod zombie;

use std::collections::VecDeque;

use martlet_fabric::primitive::Ordering;
use martlet_fabric::ring::{self, Record};
use martlet_fabric::{Completion, Fabric, LocalRegion, PeerId, invariant};

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
use crate::replica::{Execution, Standing, StateMachine};

pub use config::{Config, MIN_RING_BYTES};
pub use election::Answered;

use access::Access;
use election::Election;
use layout::{Op, Request, Status, WORDS, control, words};
use leading::{Context, Reign};
use log::Log;
use peers::{Peer, at_control, tell};
use recover::{Reading, Serving};

/// The most turns in a row that put off everything else because they replicated something.
const MOST_PUT_OFF: u32 = 16;
/// Bytes that a follower takes from its leader's lane in one turn.
const DRAIN_BYTES: usize = 256 << 10;

/// Why a reign, or a candidacy, has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// Too few votes arrived in time.
    TimedOut,
    /// A higher term has been seen.
    Outdated,
    /// Another one reigns, or stands for a higher term.
    Superseded,
    /// Nothing could be committed for too long.
    Stuck,
    /// This process no longer belongs to the group.
    Removed,
    /// It has handed over.
    HandedOver,
}

/// A replica's engine. One thread drives it; it never blocks.
#[derive(Debug)]
pub struct Dare {
    me: ProcessId,
    config: Config,
    /// As of the last call that said so.
    now: Time,
    /// The highest term that it knows.
    term: u64,
    log: Log,
    peers: Vec<Peer>,
    access: Access,
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
    reading: Option<Reading>,
    serving: Option<Serving>,
    /// The peer that was served last; the others come first.
    served: Option<PeerId>,
    serving_record: Record,
    serving_buffer: Vec<u8>,
    /// The position after the content of the snapshot ring.
    snapshot_tail: u64,
    /// Outstanding reads of pieces of others' snapshots.
    snapshot_reads: u32,
    /// Whether a snapshot has ever been read here; if so, the machine is not a founder's empty one.
    lesson_begun: bool,
    /// When the state was last found to be unteachable, if that is not long ago.
    unteachable_since: Option<Time>,
    /// Since when it has looked for the state, without knowing yet that what it learned is recent enough.
    incomplete_since: Option<Time>,
    wishes: u64,
    roster: Roster,
    /// How many places an operator has asked for, as long as no entry says so; 0: as many as members.
    resizing: Option<u8>,
    /// Whether a process has been found to be gone since the leader was last determined.
    suspects_anew: bool,
    /// Whether a group that this process knew has listed it.
    listed: bool,
    /// How often followers have been asked for access.
    sessions: u64,
    events: VecDeque<Event>,
    nudges: Nudges,
    buffer: Vec<u8>,
    published: bool,
}

impl Dare {
    /// The engine of the process `me`. With a `group` it is a founding member, and holds the empty state like all the others. Without one it holds nothing, and
    /// waits until a leader adds it.
    ///
    /// Panics when `config` does not [validate](Config::validate), or the group does not list `me`.
    pub fn new(me: ProcessId, config: Config, group: Option<Group>) -> Dare {
        let valid = config.validate();
        invariant!(valid.is_ok(), "the engine's settings: {valid:?}");
        invariant!(group.as_ref().is_none_or(|group| group.contains(me)), "{me} founds a group without itself");
        let room = ring::max_payload(config.log_ring_bytes);
        Dare {
            me,
            config,
            now: Time(0),
            term: 0,
            listed: group.is_some(),
            log: Log::new(config.log_ring_bytes, group),
            peers: Vec::with_capacity(MAX_MEMBERS),
            access: Access::default(),
            election: Election::default(),
            reign: None,
            spare: (Record::with_capacity(room), Backlog::new(config.backlog_bytes, config.batch_bytes, config.max_command_bytes())),
            background: Time(0),
            put_off: 0,
            hand_over: HandOver::default(),
            reigns: 0,
            releases: Releases::default(),
            signs: Signs::new(me, &background::SIGNS),
            reading: None,
            serving: None,
            served: None,
            serving_record: Record::default(),
            serving_buffer: Vec::new(),
            snapshot_tail: 0,
            snapshot_reads: 0,
            lesson_begun: false,
            unteachable_since: None,
            incomplete_since: None,
            wishes: 0,
            roster: Roster::default(),
            resizing: None,
            suspects_anew: false,
            sessions: 0,
            events: VecDeque::with_capacity(64),
            nudges: Nudges::default(),
            buffer: Vec::with_capacity(room.max(layout::RUNS_BYTES)),
            published: false,
        }
    }

    // Queries.

    fn is_leading(&self) -> bool {
        self.reign.as_ref().is_some_and(Reign::is_leading)
    }

    fn what_it_is(&self) -> Standing {
        match &self.reign {
            Some(reign) if reign.is_leading() => Standing::Primary,
            _ if self.is_removed() => Standing::Excluded,
            _ => Standing::Backup { primary: self.leader() },
        }
    }

    /// The highest term that it knows.
    pub fn term(&self) -> u64 {
        self.term
    }

    /// The group in force, as far as this process knows.
    pub fn group(&self) -> Option<&Group> {
        self.log.group()
    }

    /// The entry that introduced the group in force, as far as this process knows; 0 for the first group.
    pub fn group_since(&self) -> Option<LogIndex> {
        self.log.group_since()
    }

    /// How many places an operator has asked for, as far as this process knows; 0: as many as members.
    pub fn wanted_places(&self) -> u8 {
        self.resizing.unwrap_or(self.log.group().map_or(0, Group::wanted))
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
            let followers = reign.followers.iter().map(|f| format!("{} {:?} {:x} {:?}", f.process, f.phase, f.grant, f.held()));
            format!("{:?} of term {}: {}", reign.stage(), reign.term, followers.collect::<Vec<_>>().join(", "))
        });
        format!(
            "term {}, {:?}, complete {}, log of term {} to {:?}, committed {:?}, applied {:?}, head {}, holder {:?} by {:x}, wants {:?} ({} revoking), hears {:?}, election {:?}, reign {:?}",
            self.term,
            self.what_it_is(),
            self.log.is_complete(),
            self.log.last_term(),
            self.log.tail(),
            self.log.committed(),
            self.log.applied(),
            self.log.head(),
            self.access.holder,
            self.access.grant,
            self.access.purpose,
            self.access.revoking,
            self.election.leader,
            self.election,
            reign
        )
    }

    // What comes from outside.

    fn take_completion(&mut self, completion: Completion) {
        let (op, round, peer) = Op::parse(completion.token);
        let result = completion.result;
        match op {
            Op::Log | Op::Consumed | Op::Runs | Op::Check => {
                if op == Op::Runs {
                    self.note_read(peer);
                }
                if let Some(reign) = &mut self.reign {
                    reign.handle_completion(op, round, peer, result, &mut self.nudges);
                }
            }
            // A peer that can no longer be reached is detected through its counter.
            Op::Control => {}
            Op::Private => self.handle_private(round, peer, result),
            Op::Revoke => self.access.revoking -= 1,
            Op::Look => self.handle_look(round, peer, result),
            Op::SnapshotTail | Op::Snapshot => self.handle_snapshot(op, round, peer, result),
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
            // A server whose turn it is stands now, not when it next checks.
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

    /// Replicates what has been proposed, and has terms read where a reply waits for that. Returns whether anything was posted.
    fn lead<F: Fabric, S: StateMachine>(&mut self, fabric: &mut F, machine: &mut S) -> bool {
        let (turn, asked) = (self.releases.turn(), self.releases.is_asked());
        let mut posted = false;
        self.with_reign(fabric, machine, |reign, cx| {
            posted = reign.post(turn, cx);
            if asked {
                reign.check(turn, cx.fabric);
            }
            Ok(false)
        });
        let last = self.last_proposed();
        self.releases.end(last);
        posted
    }

    /// Continues an election, as far as possible.
    fn elect<F: Fabric, S: StateMachine>(&mut self, fabric: &mut F, machine: &mut S) -> bool {
        let now = self.now;
        let mut moved = self.use_access(fabric, machine);
        moved |= self.act_on_decision(now, fabric);
        self.mind_candidacy(now, fabric);
        self.mind_election(now, fabric);
        moved
    }

    /// Takes what the leader has written, hears the others, and takes part in elections.
    #[inline(never)]
    fn follow<F: Fabric, S: StateMachine>(&mut self, fabric: &mut F, machine: &mut S) -> bool {
        let now = self.now;
        let drained = self.drain(DRAIN_BYTES, fabric, machine);
        self.published &= !drained;
        self.tick(now, fabric);
        self.hear(now, fabric);
        let mut moved = drained | self.elect(fabric, machine);
        moved |= self.step(true, fabric, machine);
        self.mind_hand_over(now, fabric);
        moved
    }

    /// Learns and serves, and shows the others the result of this turn.
    #[inline(never)]
    fn assist<F: Fabric, S: StateMachine>(&mut self, fabric: &mut F, machine: &mut S, moved: bool) -> bool {
        let now = self.now;
        let mut moved = moved;
        moved |= self.learn(now, fabric, machine);
        moved |= self.serve(now, fabric, machine);
        self.watch_group(fabric);
        self.follow_roster();
        self.report_group();
        self.show_reign(fabric);
        if !self.published || moved {
            self.publish(fabric);
        }
        self.show_consumed(fabric);
        self.forget_departed();
        moved
    }

    /// Tells newly connected peers whether this process leads.
    fn show_reign<F: Fabric>(&mut self, fabric: &mut F) {
        let Some(reign) = self.reign.as_ref().filter(|reign| reign.is_elected()) else { return };
        let beat = reign.term << 1 | 1;
        for peer in self.peers.iter_mut().filter(|p| !p.watch.dead && p.beat != beat) {
            peer.beat = beat;
            tell(fabric, peer.id, control::BEAT, beat);
        }
    }

    fn step<F: Fabric, S: StateMachine>(&mut self, whole: bool, fabric: &mut F, machine: &mut S) -> bool {
        let was = self.is_leading();
        let is_candidate = self.reign.as_ref().is_some_and(|reign| !reign.is_elected());
        if is_candidate && self.is_removed() {
            // It stood because it did not know that its removal was committed.
            self.end_reign(Ending::Removed, fabric);
        }
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
            self.end_search();
        }
        self.change_group();
        moved
    }

    fn with_reign<F: Fabric, S: StateMachine>(
        &mut self,
        fabric: &mut F,
        machine: &mut S,
        act: impl FnOnce(&mut Reign, &mut Context<F, S>) -> Result<bool, Ending>,
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
            sessions: &mut self.sessions,
        };
        match act(reign, &mut cx) {
            Ok(moved) => moved,
            Err(ending) => {
                self.end_reign(ending, fabric);
                true
            }
        }
    }

    /// A candidate's own decision is durable, so it asks the others for their votes.
    fn begin_reign<F: Fabric>(&mut self, term: u64, until: Time, fabric: &mut F) {
        let quorum = self.log.group().map_or(1, Group::majority);
        Request { term, last_term: self.log.last_term(), last: self.log.tail().index, quorum }.encode(&mut self.buffer);
        let group = self.log.group();
        for peer in self.peers.iter().filter(|p| !p.watch.dead && group.is_some_and(|group| group.contains(p.process))) {
            fabric.write(at_control(peer.id, control::REQUEST), &self.buffer, Op::Control.token(0, peer.id));
            self.nudges.at_once(peer.id);
        }
        let (record, backlog) = std::mem::take(&mut self.spare);
        self.reading = None;
        self.reign = Some(Reign::new(self.me, term, until, record, backlog));
    }

    /// Only the log outlives a reign (TRAPS 11).
    fn end_reign<F: Fabric>(&mut self, ending: Ending, fabric: &mut F) {
        let Some(mut reign) = self.reign.take() else { return };
        let (term, led, elected) = (reign.term, reign.is_leading(), reign.is_elected());
        let mark = match ending {
            Ending::TimedOut => Some(Mark::DareTimedOut),
            Ending::Outdated => Some(Mark::DareOutdated),
            Ending::Superseded => Some(Mark::DareSuperseded),
            Ending::Stuck => Some(Mark::DareStuck),
            // No simulated life reaches this: a leader that leaves hands over first.
            Ending::Removed => None,
            Ending::HandedOver => Some(Mark::DareHandedOver),
        };
        if let Some(mark) = mark {
            mark.reach();
        }
        if led && self.config.execution == Execution::Speculative {
            reign.keep_executed(leading::ring_of(fabric), &mut self.log);
            if reign.backlog.has_commands() {
                // The machine shows what is in no log.
                self.log.void();
            }
        }
        if elected {
            self.election.lost_term = self.election.lost_term.max(term);
            for peer in self.peers.iter_mut().filter(|p| !p.watch.dead) {
                peer.beat = term << 1;
                tell(fabric, peer.id, control::BEAT, term << 1);
                self.nudges.at_once(peer.id);
            }
        }
        if led {
            self.reigns += 1;
            self.releases.break_off();
            self.hand_over.end();
            self.resizing = None;
            self.events.push_back(Event::SteppedDown);
        } else {
            self.election.failures = self.election.failures.saturating_add(1);
        }
        let (record, mut backlog) = reign.into_parts();
        backlog.clear();
        self.spare = (record, backlog);
        self.published = false;
    }

    fn publish<F: Fabric>(&mut self, fabric: &F) {
        let own = fabric.memory(LocalRegion::Public(WORDS)).expect("every process offers its words");
        let reign = self.reign.as_ref().filter(|reign| reign.is_elected());
        let status = match reign {
            Some(reign) if reign.is_leading() => Status::Leader,
            _ if !self.log.is_complete() || self.is_removed() => Status::Incomplete,
            _ => Status::Idle,
        };
        let supports = reign.map(|reign| reign.term).or(self.election.leader.map(|(_, term)| term)).unwrap_or(0);
        for (at, value) in [
            (words::TERM, self.term),
            (words::SUPPORTS, supports),
            (words::LAST_TERM, self.log.last_term()),
            (words::LAST_INDEX, self.log.tail().index.0),
            (words::STATUS, status as u64),
        ] {
            own[at].store(value, Ordering::Release);
        }
        self.published = true;
    }
}
