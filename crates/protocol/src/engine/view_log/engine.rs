//! The log behind views, with the interface of all engines.

use martlet_fabric::{Completion, Fabric, NodeId, PeerId, Pulse, RegionName, RegionSpec, ring};

use super::chain::Origin;
use super::follower::{self, Op};
use super::inbound::Inbound;
use super::peers::{Access, Outbound, Peer, lane_number, lane_to};
use super::{Config, HEARTS, Role, Rule, ViewLog, layout};
use crate::basics::layout::LOG_LANE;
use crate::basics::{Canary, LogIndex, Mark, ProcessId, Time, ViewNumber};
use crate::engine::{ConfigError, Durable, Engine, Event, Gathered, Traits};
use crate::membership::{Proof, Roles, Round, View};
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

    /// A new primary is still a backup, without a primary to redirect to, until its takeover is complete.
    fn standing(&self) -> Standing {
        match &self.role {
            Role::Primary(_) => Standing::Primary,
            Role::Excluded => Standing::Excluded,
            Role::Candidate | Role::TakingOver(_) => Standing::Backup { primary: None },
            Role::Backup => {
                Standing::Backup { primary: self.view.as_ref().and_then(View::primary).map(|m| m.id).filter(|p| *p != self.me) }
            }
        }
    }

    fn view(&self) -> ViewNumber {
        self.view.as_ref().map_or(ViewNumber(0), |v| v.number)
    }

    fn reign(&self) -> u64 {
        self.reign
    }

    /// The view in which it became primary. The next primary is first in a later one.
    fn fencing_token(&self) -> Option<u64> {
        matches!(self.role, Role::Primary(_)).then_some(self.primary_since.0)
    }

    fn ticket(&self) -> Ticket {
        self.turns.ticket()
    }

    fn released(&self) -> Ticket {
        self.turns.released()
    }

    /// They are [released](Self::released) as well.
    fn released_by_quorum(&self) -> Ticket {
        if Canary::UnaskedQuorum.is_planted() {
            return self.released();
        }
        self.quorum.released()
    }

    /// Replies that still wait for their entries need no round yet.
    #[inline]
    fn wants_round(&self) -> bool {
        self.quorum.wants_round(self.turns.released())
    }

    fn ticket_by_quorum(&mut self) -> Ticket {
        let ticket = self.turns.ticket();
        self.quorum.wait(ticket);
        ticket
    }

    fn note_round(&mut self, round: Round) {
        self.quorum.note_round(round, self.turns.released());
    }

    /// The proof counts only if its view is still the newest: it says nothing about another one (TRAPS 3).
    fn handle_proof(&mut self, proof: Proof) {
        if proof.view == self.view() && matches!(self.role, Role::Primary(_)) {
            self.quorum.handle_proof(proof.round, self.turns.released());
        }
    }

    fn committed(&self) -> LogIndex {
        match &self.role {
            Role::TakingOver(leading) | Role::Primary(leading) => leading.committed(),
            _ => self.chain.committed(),
        }
    }

    fn last(&self) -> LogIndex {
        match &self.role {
            Role::TakingOver(leading) | Role::Primary(leading) => leading.last(),
            _ => self.chain.last(),
        }
    }

    fn applied(&self) -> LogIndex {
        match &self.role {
            Role::TakingOver(leading) | Role::Primary(leading) => leading.applied(),
            _ => self.chain.applied(),
        }
    }

    fn is_complete(&self) -> bool {
        match &self.role {
            Role::TakingOver(_) | Role::Primary(_) => true,
            Role::Excluded => false,
            Role::Backup | Role::Candidate => self.chain.origin() != Origin::Learning,
        }
    }

    /// A learner's machine does not: it shows what the primary had executed, which is known to be committed only when the learner is promoted. Nor does a
    /// candidate's: the entries that it takes over may yet be lost with it.
    fn shows_committed(&self) -> bool {
        let counts = self.view.as_ref().and_then(|view| view.member(self.me)).is_some_and(|me| me.roles.has(Roles::REPLICA));
        counts && matches!(self.role, Role::Backup) && self.is_whole()
    }

    /// When nothing waits, there is room for an entry of any length, unless a learner has to get its next part first.
    fn has_room(&self, bytes: usize) -> bool {
        let backlog = self.turns.backlog_bytes();
        matches!(&self.role, Role::Primary(leading) if !leading.owes_part())
            && (backlog == 0 || backlog + bytes as u64 <= self.config.backlog_bytes as u64)
    }

    fn committed_group(&self) -> &[ProcessId] {
        &self.group
    }

    /// Any: entries travel in fragments.
    fn max_proposal_bytes(&self) -> usize {
        usize::MAX
    }

    fn is_alone(&self) -> bool {
        matches!(&self.role, Role::Primary(leading) if !leading.followers.iter().any(|f| f.counts()))
    }

    /// Never without input: all work follows from what arrives, or from the node's own deadlines.
    fn deadline(&self) -> Time {
        Time(u64::MAX)
    }

    fn handle_peer_up<F: Fabric>(&mut self, peer: PeerId, process: ProcessId, _: &mut F) {
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

    /// Until a view excludes it, what is in its lane still counts, and, where zombies are reachable, so does what is written to it (TRAPS 20).
    fn handle_peer_gone(&mut self, peer: PeerId, _: bool) {
        if let Some(peer) = self.peers.iter_mut().find(|p| p.id == peer) {
            peer.gone = true;
        }
        self.forget_departed();
    }

    fn handle_view(&mut self, view: &View) {
        if view.number <= self.view() || matches!(self.role, Role::Excluded) {
            return;
        }
        self.view = Some(view.clone());
        self.group.clear();
        self.group.extend(view.with_roles(Roles::REPLICA).map(|member| member.id));
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
            // It has executed entries that may never be committed, so its state is void.
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

    fn handle_completion(&mut self, completion: Completion) {
        let (op, peer) = follower::parse_token(completion.token);
        match op {
            Op::Attended => return self.handle_attended(peer, completion.result),
            Op::Revoked => return self.handle_revoked(peer),
            // A primary that cannot be reached is detected by other means.
            Op::Acknowledged => return,
            Op::Write | Op::Consumed => {}
        }
        if let Role::TakingOver(leading) | Role::Primary(leading) = &mut self.role {
            leading.handle_completion(op, peer, completion.result);
        }
    }

    fn propose(&mut self, effects: &[u8]) -> Result<LogIndex, ProposeError> {
        let Role::Primary(leading) = &mut self.role else { return Err(ProposeError::NotLeading) };
        self.turns.note_proposal((layout::HEADER_BYTES + effects.len()) as u64);
        Ok(leading.propose(effects))
    }

    fn post<F: Fabric, S: StateMachine>(&mut self, now: Time, fabric: &mut F, machine: &mut S) -> bool {
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

    fn advance<F: Fabric, S: StateMachine>(&mut self, now: Time, active: Option<ViewNumber>, fabric: &mut F, machine: &mut S) {
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
            self.events.push_back(Event::TookOver { recovered });
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
        machine.clear();
        self.exclude();
        let mut fresh = ViewLog::new(me, self.config);
        fresh.reign = self.reign;
        std::mem::swap(&mut fresh.turns, &mut self.turns);
        std::mem::swap(&mut fresh.quorum, &mut self.quorum);
        fresh.faults = self.faults;
        *self = fresh;
    }

    fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }
}

/// It has no journal.
impl<R: Rule> Durable for ViewLog<R> {}
