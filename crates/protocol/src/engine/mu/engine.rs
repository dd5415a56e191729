//! `mu` behind the interface of all engines. The methods are those of [`Mu`] itself.

use martlet_fabric::{Completion, Fabric, NodeId, PeerId, Pulse, RegionName, RegionSpec};

use super::{Config, Event, Mu, layout};
use crate::basics::layout::{LIFE, life};
use crate::basics::{LogIndex, ProcessId, Time, ViewNumber};
use crate::engine::{self, CommitRule, ConfigError, Durable, Engine, Gathered, Leadership, Traits};
use crate::founding::Returned;
use crate::membership::View;
use crate::replica::journal::{RecoverError, SnapshotStep};
use crate::replica::{Execution, HandOverError, HandOverState, ProposeError, Standing, StateMachine, Ticket};

impl Engine for Mu {
    type Config = Config;

    const TRAITS: Traits = Traits {
        name: "mu",
        leadership: Leadership::Election,
        commit: CommitRule::Majority,
        has_journal: true,
        hands_over_by_name: true,
        has_places: false,
        counts_zombies: false,
        executes_on_commit: true,
        prefers_lowest: true,
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
        Mu::new(me, config, None)
    }

    fn execution(&self) -> Execution {
        self.config.execution
    }

    fn may_beat(&self) -> bool {
        !self.signs.has_stopped()
    }

    /// An entry is no longer than its log, and copied in no time.
    fn keep_alive(&mut self, _: Pulse) {}

    fn standing(&self) -> Standing {
        self.standing()
    }

    fn view(&self) -> ViewNumber {
        self.view()
    }

    fn reign(&self) -> u64 {
        self.reign()
    }

    fn fencing_token(&self) -> Option<u64> {
        self.fencing_token()
    }

    fn ticket(&self) -> Ticket {
        self.ticket()
    }

    fn released(&self) -> Ticket {
        self.released()
    }

    /// A majority gives its permission to every reply.
    fn released_by_quorum(&self) -> Ticket {
        self.released()
    }

    fn ticket_by_quorum(&mut self) -> Ticket {
        self.ticket()
    }

    fn committed(&self) -> LogIndex {
        self.committed()
    }

    fn last(&self) -> LogIndex {
        self.last()
    }

    fn applied(&self) -> LogIndex {
        self.applied()
    }

    fn is_complete(&self) -> bool {
        self.is_complete()
    }

    fn shows_committed(&self) -> bool {
        self.shows_committed()
    }

    fn has_room(&self, bytes: usize) -> bool {
        self.has_room(bytes)
    }

    fn max_proposal_bytes(&self) -> usize {
        self.config.max_command_bytes()
    }

    fn is_alone(&self) -> bool {
        self.is_alone()
    }

    fn is_needed(&self) -> bool {
        self.is_needed()
    }

    fn committed_group(&self) -> &[ProcessId] {
        self.log.committed_group().map_or(&[], |(_, group)| group.members())
    }

    fn goes_on(&self) -> bool {
        self.permission.is_to_grant() && !self.inbound.broken
    }

    fn deadline(&self) -> Time {
        self.deadline()
    }

    fn handle_peer_up<F: Fabric>(&mut self, peer: PeerId, process: ProcessId, fabric: &mut F) {
        self.handle_peer_up(peer, process, fabric);
    }

    fn handle_peer_gone(&mut self, peer: PeerId, certain: bool) {
        self.handle_peer_gone(peer, certain);
    }

    fn handle_view(&mut self, view: &View) {
        self.handle_view(view);
    }

    fn handle_completion(&mut self, completion: Completion) {
        self.handle_completion(completion);
    }

    fn propose(&mut self, effects: &[u8]) -> Result<LogIndex, ProposeError> {
        self.propose(effects)
    }

    fn post<F: Fabric, S: StateMachine>(&mut self, now: Time, fabric: &mut F, machine: &mut S) -> bool {
        self.post(now, fabric, machine)
    }

    /// Whether a view is active makes no difference: a majority's permission entitles to lead.
    fn advance<F: Fabric, S: StateMachine>(&mut self, now: Time, _: Option<ViewNumber>, fabric: &mut F, machine: &mut S) {
        self.advance(now, fabric, machine);
    }

    fn hand_over(&mut self, to: Option<NodeId>) -> Result<(), HandOverError> {
        self.hand_over(to)
    }

    fn hand_over_state(&self) -> Option<HandOverState> {
        self.hand_over_state()
    }

    fn gather<F: Fabric, S: StateMachine>(&mut self, fabric: &mut F, machine: &mut S) -> Option<Gathered> {
        self.gather_all(fabric, machine)
    }

    fn go_on_from(me: ProcessId, config: Config, gathered: &Gathered) -> Self {
        Mu::begun_with(me, config, gathered)
    }

    fn reset<S: StateMachine>(&mut self, me: ProcessId, machine: &mut S) {
        self.reset(me, machine);
    }

    fn poll_event(&mut self) -> Option<engine::Event> {
        loop {
            return Some(match self.poll_event()? {
                Event::CaughtUp(member) => engine::Event::CaughtUp(self.roster.listed_as(member)),
                Event::Drop(member) => engine::Event::Drop(self.roster.listed_as(member)),
                Event::Unteachable { process, bytes } => engine::Event::Unteachable { process: self.roster.listed_as(process), bytes },
                Event::Forget(peer) => engine::Event::Forget(peer),
                Event::Asked => engine::Event::AskedPermission,
                Event::Permitted => engine::Event::Permitted,
                Event::Led { recovered, .. } => engine::Event::TookOver { recovered },
                Event::Aborted { led: true, .. } => engine::Event::SteppedDown,
                Event::LaneFault { peer, fault, stuck } => engine::Event::LaneFault { peer, fault: fault.to_string(), stuck },
                Event::Suspected { .. }
                | Event::Recovered(_)
                | Event::Aborted { led: false, .. }
                | Event::GroupChanged { .. }
                | Event::Learning { .. }
                | Event::Learned { .. } => continue,
            });
        }
    }
}

impl Durable for Mu {
    fn journal(&self) -> &[u8] {
        self.journal()
    }

    fn note_taken(&mut self, ticket: u64) {
        self.note_taken(ticket);
    }

    fn handle_stable(&mut self, ticket: u64) {
        self.handle_stable(ticket);
    }

    fn hold_back(&mut self, holds: bool) {
        self.hold_back(holds);
    }

    fn stable(&self) -> Option<LogIndex> {
        self.stable()
    }

    fn lacks_snapshot(&self) -> bool {
        self.lacks_snapshot()
    }

    fn begin_snapshot<F: Fabric>(&mut self, fabric: &F) -> bool {
        self.begin_snapshot(fabric)
    }

    fn snapshot_step<S: StateMachine>(&mut self, machine: &S, budget: usize, out: &mut Vec<u8>) -> SnapshotStep {
        self.snapshot_step(machine, budget, out)
    }

    fn handle_snapshot_stable(&mut self) {
        self.handle_snapshot_stable();
    }

    fn is_settled(&self) -> bool {
        self.is_settled()
    }

    fn returned(&self) -> Option<Returned> {
        let group = self.group()?;
        Some(Returned { ballot: self.ballot(), last: self.last(), view: group.view(), members: group.members().to_vec() })
    }

    fn belonged(me: ProcessId, config: &Config, last: &[u8], journal: &[u8]) -> Result<bool, RecoverError> {
        Mu::belonged(me, config, last, journal)
    }

    fn written(_: ProcessId, config: &Config, last: &[u8], journal: &[u8]) -> Result<Option<Returned>, RecoverError> {
        Mu::written(config, last, journal)
    }

    fn recover<F: Fabric, S: StateMachine>(
        me: ProcessId,
        config: Config,
        parts: &[Vec<u8>],
        last: &[u8],
        journal: &[u8],
        fabric: &F,
        machine: &mut S,
    ) -> Result<Option<Mu>, RecoverError> {
        Mu::recover(me, config, parts, last, journal, fabric, machine).map(Some)
    }
}
