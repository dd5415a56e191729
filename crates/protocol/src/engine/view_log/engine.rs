//! The log behind views behind the interface of all engines. The methods are those of [`ViewLog`] itself.

use martlet_fabric::{Completion, Fabric, NodeId, PeerId, Pulse, RegionName, RegionSpec, ring};

use super::chain::Origin;
use super::{Config, Event, HEARTS, Role, Rule, ViewLog};
use crate::basics::layout::LOG_LANE;
use crate::basics::{LogIndex, ProcessId, Time, ViewNumber};
use crate::engine::{self, ConfigError, Durable, Engine, Gathered, Traits};
use crate::membership::{Proof, Round, View};
use crate::replica::{Execution, HandOverError, HandOverState, ProposeError, Standing, StateMachine, Ticket};

impl<R: Rule> Engine for ViewLog<R> {
    type Config = Config;

    const TRAITS: Traits = R::TRAITS;

    fn check(config: &Config) -> Result<(), ConfigError> {
        Self::check_settings(config)
    }

    fn add_regions(spec: &mut RegionSpec, config: &Config) {
        spec.member_lanes.retain(|(name, _)| *name != LOG_LANE);
        spec.member_lanes.push((LOG_LANE, ring::lane_bytes(config.log_ring_bytes)));
    }

    fn new(me: ProcessId, config: Config) -> Self {
        ViewLog::new(me, config)
    }

    fn hearts() -> &'static [(RegionName, usize)] {
        HEARTS
    }

    fn execution(&self) -> Execution {
        self.config.execution
    }

    fn keep_alive(&mut self, pulse: Pulse) {
        self.chain.keep_alive(pulse);
    }

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

    fn released_by_quorum(&self) -> Ticket {
        self.released_by_quorum()
    }

    fn wants_round(&self) -> bool {
        self.wants_round()
    }

    fn ticket_by_quorum(&mut self) -> Ticket {
        self.ticket_by_quorum()
    }

    fn note_round(&mut self, round: Round) {
        self.note_round(round);
    }

    fn handle_proof(&mut self, proof: Proof) {
        self.handle_proof(proof);
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
        match &self.role {
            Role::TakingOver(_) | Role::Primary(_) => true,
            Role::Excluded => false,
            Role::Backup | Role::Candidate => self.chain.origin() != Origin::Learning,
        }
    }

    fn shows_committed(&self) -> bool {
        self.shows_committed()
    }

    fn has_room(&self, bytes: usize) -> bool {
        self.has_room(bytes)
    }

    /// Any: entries travel in fragments.
    fn max_proposal_bytes(&self) -> usize {
        usize::MAX
    }

    fn is_alone(&self) -> bool {
        self.is_alone()
    }

    /// Never by itself: what is left to do follows from what comes, or from the node's own deadlines.
    fn deadline(&self) -> Time {
        Time(u64::MAX)
    }

    fn handle_peer_up<F: Fabric>(&mut self, peer: PeerId, process: ProcessId, _: &mut F) {
        self.handle_peer_up(peer, process);
    }

    fn handle_peer_gone(&mut self, peer: PeerId, _: bool) {
        self.handle_peer_gone(peer);
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

    fn advance<F: Fabric, S: StateMachine>(&mut self, now: Time, active: Option<ViewNumber>, fabric: &mut F, machine: &mut S) {
        self.advance(now, active, fabric, machine);
    }

    fn expect_to_lead<F: Fabric>(&self, fabric: &F) {
        self.expect_to_lead(fabric);
    }

    fn hand_over(&mut self, _: Option<NodeId>) -> Result<(), HandOverError> {
        Err(HandOverError::ByLeaving)
    }

    fn hand_over_state(&self) -> Option<HandOverState> {
        None
    }

    fn gather<F: Fabric, S: StateMachine>(&mut self, fabric: &mut F, machine: &mut S) -> Option<Gathered> {
        self.gather_all(fabric, machine)
    }

    fn go_on_from(me: ProcessId, config: Config, gathered: &Gathered) -> Self {
        ViewLog::begun_with(me, config, gathered)
    }

    fn reset<S: StateMachine>(&mut self, me: ProcessId, machine: &mut S) {
        self.reset(me, machine);
    }

    fn poll_event(&mut self) -> Option<engine::Event> {
        Some(match self.poll_event()? {
            Event::CaughtUp { process, .. } => engine::Event::CaughtUp(process),
            Event::Drop { process, .. } => engine::Event::Drop(process),
            Event::Unteachable { process, bytes } => engine::Event::Unteachable { process, bytes },
            Event::Forget(peer) => engine::Event::Forget(peer),
            Event::TookOver { recovered, .. } => engine::Event::TookOver { recovered },
            Event::LaneFault { peer, fault } => {
                let process = self.peers.iter().find(|p| p.id == peer).map(|p| p.process);
                let primary = self.view.as_ref().and_then(View::primary).map(|m| m.id);
                engine::Event::LaneFault { peer, fault: fault.to_string(), stuck: process.is_some() && process == primary }
            }
            Event::Unfit { .. } => engine::Event::Unfit,
        })
    }
}

/// It has no journal.
impl<R: Rule> Durable for ViewLog<R> {}
