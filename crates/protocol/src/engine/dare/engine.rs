//! `dare` behind the interface of all engines.

use martlet_fabric::{Completion, Fabric, NodeId, PeerId, Pulse, RegionName, RegionSpec};

use super::layout::{self, term_of};
use super::leading::ring_of;
use super::log::{Log, Mark};
use super::{Config, Dare};
use crate::basics::layout::{LIFE, life};
use crate::basics::{LogIndex, ProcessId, Time, ViewNumber};
use crate::engine::{CommitRule, ConfigError, Durable, Engine, Event, Gathered, Leadership, Traits};
use crate::membership::View;
use crate::replica::group::Group;
use crate::replica::{Execution, HandOverError, HandOverState, ProposeError, ResizeError, Standing, StateMachine, Ticket};

impl Engine for Dare {
    type Config = Config;

    const TRAITS: Traits = Traits {
        name: "dare",
        leadership: Leadership::Election,
        commit: CommitRule::Majority,
        has_journal: false,
        hands_over_by_name: true,
        has_places: true,
        counts_zombies: true,
        executes_on_commit: true,
        prefers_lowest: false,
    };

    fn check(config: &Config) -> Result<(), ConfigError> {
        config.validate()
    }

    fn add_regions(spec: &mut RegionSpec, config: &Config) {
        layout::add_regions(spec, config);
    }

    fn hearts() -> &'static [(RegionName, usize)] {
        &[(LIFE, life::HEARTBEAT), (layout::WORDS, layout::words::HEARTBEAT)]
    }

    fn new(me: ProcessId, config: Config) -> Self {
        Dare::new(me, config, None)
    }

    fn execution(&self) -> Execution {
        self.config.execution
    }

    fn may_beat(&self) -> bool {
        !self.signs.has_stopped()
    }

    /// An entry is no longer than the log, and so is copied quickly.
    fn keep_alive(&mut self, _: Pulse) {}

    fn standing(&self) -> Standing {
        self.what_it_is()
    }

    fn view(&self) -> ViewNumber {
        self.roster.view()
    }

    fn reign(&self) -> u64 {
        self.reigns
    }

    /// Its term: only one process leads in it, and a later reign has a higher one.
    fn fencing_token(&self) -> Option<u64> {
        self.reign.as_ref().filter(|reign| reign.is_leading()).map(|reign| reign.term)
    }

    fn ticket(&self) -> Ticket {
        self.releases.ticket()
    }

    fn released(&self) -> Ticket {
        self.releases.released()
    }

    /// Every reply waits for the terms of a majority.
    fn released_by_quorum(&self) -> Ticket {
        self.releases.released()
    }

    fn ticket_by_quorum(&mut self) -> Ticket {
        self.releases.ticket()
    }

    fn committed(&self) -> LogIndex {
        self.log.committed().index
    }

    fn last(&self) -> LogIndex {
        self.last_proposed()
    }

    fn applied(&self) -> LogIndex {
        self.log.applied().index
    }

    fn is_complete(&self) -> bool {
        self.log.is_complete()
    }

    fn shows_committed(&self) -> bool {
        let log = &self.log;
        self.reign.is_none() && !self.is_removed() && log.is_complete() && log.applied().index <= log.committed().index
    }

    fn has_room(&self, bytes: usize) -> bool {
        !self.hand_over.yields() && self.reign.as_ref().is_some_and(|reign| reign.has_room(bytes, &self.log, &self.config))
    }

    fn max_proposal_bytes(&self) -> usize {
        self.config.max_command_bytes()
    }

    fn is_alone(&self) -> bool {
        let committed = self.log.committed().index;
        let reign = self.reign.as_ref().filter(|reign| reign.is_leading());
        reign.is_some_and(|reign| !reign.followers.iter().any(|f| !f.is_zombie() && f.held().is_some_and(|held| held >= committed)))
    }

    fn is_needed(&self) -> bool {
        let committed = self.log.committed_group().map(|(_, group)| group);
        let fellows = self.peers.iter().filter(|p| p.watch.may_go_on()).map(|p| p.process);
        !self.is_removed() && self.log.group().is_some_and(|group| group.needs(self.me, self.is_leading(), committed, fellows))
    }

    fn committed_group(&self) -> &[ProcessId] {
        self.log.committed_group().map_or(&[], |(_, group)| group.members())
    }

    fn goes_on(&self) -> bool {
        self.access.is_exclusive()
    }

    fn deadline(&self) -> Time {
        let mut next = self.signs.next().min(self.election.deadline(self.defers_until()));
        if let Some(reign) = self.reign.as_ref().filter(|reign| !reign.is_elected()) {
            next = next.min(reign.until);
        }
        if self.reading.is_some() {
            next = next.min(self.now.after(self.config.flush_idle_ns));
        }
        self.nudges.due().map_or(next, |due| due.min(next))
    }

    fn handle_peer_up<F: Fabric>(&mut self, peer: PeerId, process: ProcessId, fabric: &mut F) {
        self.meet(peer, process, fabric);
    }

    fn handle_peer_gone(&mut self, peer: PeerId, certain: bool) {
        if let Some(at) = self.peers.iter().position(|p| p.id == peer) {
            self.note_death(at, certain);
        }
    }

    fn handle_view(&mut self, view: &View) {
        self.take_view(view);
    }

    fn handle_completion(&mut self, completion: Completion) {
        self.take_completion(completion);
    }

    fn propose(&mut self, effects: &[u8]) -> Result<LogIndex, ProposeError> {
        let allowed = self.config.max_command_bytes();
        if effects.len() > allowed {
            return Err(ProposeError::TooLong { bytes: effects.len(), allowed });
        }
        let Some(reign) = self.reign.as_mut().filter(|reign| reign.is_leading()) else { return Err(ProposeError::NotLeading) };
        Ok(reign.propose(effects, &self.config))
    }

    fn post<F: Fabric, S: StateMachine>(&mut self, now: Time, fabric: &mut F, machine: &mut S) -> bool {
        self.post_all(now, fabric, machine)
    }

    /// Whether a view is active makes no difference: a majority's terms give the right to lead.
    fn advance<F: Fabric, S: StateMachine>(&mut self, now: Time, _: Option<ViewNumber>, fabric: &mut F, machine: &mut S) {
        self.conclude(now, fabric, machine);
    }

    fn hand_over(&mut self, to: Option<NodeId>) -> Result<(), HandOverError> {
        self.begin_hand_over(to)
    }

    fn resize(&mut self, places: usize) -> Result<(), ResizeError> {
        self.begin_resize(places)
    }

    fn places(&self) -> Option<(usize, usize)> {
        self.log.group().filter(|group| group.has_places()).map(|group| (group.places(), group.wanted().into()))
    }

    fn hand_over_state(&self) -> Option<HandOverState> {
        self.hand_over.state()
    }

    /// Everything acknowledged that is here at all is in the log or in the lane of the leader that had access. All of that is taken as committed.
    fn gather<F: Fabric, S: StateMachine>(&mut self, fabric: &mut F, machine: &mut S) -> Option<Gathered> {
        while self.drain(usize::MAX, fabric, machine) {}
        let Mark { index, position } = self.log.tail();
        self.log.advance(ring_of(fabric), machine, index);
        let number = self.term.max(term_of(self.access.grant));
        self.log.is_complete().then_some(Gathered { last: index, position, number, view: self.roster.view() })
    }

    fn go_on_from(me: ProcessId, config: Config, gathered: &Gathered) -> Self {
        let group = Group::new(vec![me]).as_of(gathered.first_view());
        let mut dare = Dare::new(me, config, Some(group.clone()));
        let term = gathered.later_number().min(layout::MAX_TERM / 2);
        dare.log = Log::behind(config.log_ring_bytes, group, Mark { index: gathered.last, position: gathered.position }, term);
        dare.term = term;
        dare
    }

    fn reset<S: StateMachine>(&mut self, me: ProcessId, machine: &mut S) {
        machine.clear();
        let mut fresh = Dare::new(me, self.config, None);
        fresh.reigns = self.reigns + 1;
        std::mem::swap(&mut fresh.releases, &mut self.releases);
        fresh.releases.break_off();
        *self = fresh;
    }

    fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }
}

/// The log is kept in memory only: raw replication (DARE section 3.1.1).
impl Durable for Dare {}
