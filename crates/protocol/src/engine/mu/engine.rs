//! `mu` behind the interface of all engines.

use martlet_fabric::{Completion, Fabric, NodeId, PeerId, Pulse, RegionName, RegionSpec};

use super::layout::{self, Op};
use super::leading::Reign;
use super::{Config, Event, MOST_PUT_OFF, Mu};
use crate::basics::layout::{LIFE, life};
use crate::basics::{Canary, LogIndex, ProcessId, Time, ViewNumber};
use crate::engine::{self, CommitRule, ConfigError, DropReason, Engine, Gathered, Leadership, Traits};
use crate::membership::View;
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

    /// An entry is no longer than the log, and so is copied quickly.
    fn keep_alive(&mut self, _: Pulse) {}

    /// A leader is primary once it has taken over, and, where leaders stay, once its log names it: later proposals are committed only together with its name.
    fn standing(&self) -> Standing {
        match &self.reign {
            _ if self.is_removed() => Standing::Excluded,
            Some(reign) if reign.is_leading() && !self.names_itself() => Standing::Primary,
            _ => Standing::Backup { primary: self.leader().filter(|l| *l != self.me).map(|l| self.roster.listed_as(l)) },
        }
    }

    fn view(&self) -> ViewNumber {
        self.view()
    }

    fn reign(&self) -> u64 {
        self.reigns
    }

    /// Its proposal number. It is at a majority, no two leaders have the same, and the next leader has to find a majority's numbers below its own.
    fn fencing_token(&self) -> Option<u64> {
        self.reign.as_ref().filter(|reign| reign.is_leading()).map(Reign::ballot)
    }

    fn ticket(&self) -> Ticket {
        self.releases.ticket()
    }

    fn released(&self) -> Ticket {
        self.releases.released()
    }

    /// A majority gives its permission to every reply.
    fn released_by_quorum(&self) -> Ticket {
        self.released()
    }

    fn ticket_by_quorum(&mut self) -> Ticket {
        self.ticket()
    }

    fn committed(&self) -> LogIndex {
        self.log.committed().index
    }

    fn last(&self) -> LogIndex {
        match &self.reign {
            Some(reign) if reign.is_leading() => reign.last(),
            _ => self.log.tail().index,
        }
    }

    fn applied(&self) -> LogIndex {
        self.log.applied().index
    }

    fn is_complete(&self) -> bool {
        self.log.is_complete()
    }

    /// Not if the machine shows what it executed in an earlier reign and no other process has, or what it was taught and does not know to be committed.
    fn shows_committed(&self) -> bool {
        let log = &self.log;
        self.reign.is_none() && !self.is_removed() && log.is_complete() && !log.is_beyond() && log.applied().index <= log.committed().index
    }

    fn has_room(&self, bytes: usize) -> bool {
        if self.hand_over.yields() {
            return false;
        }
        if Canary::MuUncheckedSpace.is_planted() && self.reign.as_ref().is_some_and(Reign::is_leading) {
            return true;
        }
        self.reign.as_ref().is_some_and(|r| r.has_room(bytes, &self.log, &self.config))
    }

    fn max_proposal_bytes(&self) -> usize {
        self.config.max_command_bytes()
    }

    fn is_alone(&self) -> bool {
        let committed = self.log.committed().index;
        let reign = self.reign.as_ref().filter(|r| r.is_leading());
        reign.is_some_and(|r| !r.followers.iter().any(|f| f.held().is_some_and(|held| held >= committed)))
    }

    fn is_needed(&self) -> bool {
        if Canary::MuEarlyFarewell.is_planted() && !self.is_leading() {
            return false;
        }
        let committed = self.log.committed_group().map(|(_, group)| group);
        let fellows = self.peers.iter().filter(|p| p.watch.may_go_on()).map(|p| p.process);
        !self.is_removed() && self.log.group().is_some_and(|group| group.needs(self.me, self.is_leading(), committed, fellows))
    }

    fn committed_group(&self) -> &[ProcessId] {
        self.log.committed_group().map_or(&[], |(_, group)| group.members())
    }

    fn goes_on(&self) -> bool {
        self.permission.is_to_grant() && !self.inbound.broken
    }

    fn deadline(&self) -> Time {
        let next = self.signs.next();
        self.nudges.due().map_or(next, |due| due.min(next))
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

    #[inline]
    fn handle_completion(&mut self, completion: Completion) {
        let (op, round, peer) = Op::parse(completion.token);
        match op {
            Op::Log | Op::Consumed | Op::Words | Op::CatchUp => match &mut self.reign {
                Some(reign) if round == reign.round() & 0xffff => {
                    reign.handle_completion(op, peer, completion.result, &mut self.nudges);
                }
                _ => self.handle_stray(op, round, peer),
            },
            Op::Revoke => self.permission.revoking -= 1,
            Op::StateConsumed => {
                if let (Some(peer), Ok(position)) = (self.peers.iter_mut().find(|p| p.id == peer), completion.result) {
                    peer.state_lane.handle_consumed(position);
                }
            }
            // A process that can no longer be reached is detected through its counter.
            Op::Permission | Op::State => {}
            Op::Heartbeat | Op::Status | Op::Threads | Op::Death => self.handle_sign(op, round, peer, completion.result),
        }
    }

    #[inline]
    fn propose(&mut self, command: &[u8]) -> Result<LogIndex, ProposeError> {
        let allowed = self.config.max_command_bytes();
        if command.len() > allowed {
            return Err(ProposeError::TooLong { bytes: command.len(), allowed });
        }
        let Some(reign) = self.reign.as_mut().filter(|r| r.is_leading()) else { return Err(ProposeError::NotLeading) };
        Ok(reign.propose(command, &self.config))
    }

    #[inline]
    fn post<F: Fabric, S: StateMachine>(&mut self, now: Time, fabric: &mut F, machine: &mut S) -> bool {
        let led = self.is_leading();
        // Proposals go first: on a fabric that keeps the order of all operations on a follower, reads of its signs of life would delay the record.
        let mut moved = led && self.lead(now, fabric, machine);
        // A leader takes the common path in every turn, and does the rest now and then: preferably between two records rather than just after one, whose
        // completion would then be seen later.
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
        self.nudges.send(now, self.config.nudge_gap_ns, fabric);
        moved
    }

    /// Whether a view is active makes no difference: a majority's permission gives the right to lead.
    #[inline]
    fn advance<F: Fabric, S: StateMachine>(&mut self, now: Time, _: Option<ViewNumber>, fabric: &mut F, machine: &mut S) {
        if std::mem::take(&mut self.suspects_anew) {
            // A process that should lead takes the role now, not when it next checks.
            self.take_role(now, fabric, machine);
        }
        self.step(now, fabric, machine);
        if let Some(reign) = self.reign.as_mut().filter(|r| r.is_leading()) {
            reign.release(&mut self.releases, &self.log);
        }
        self.nudges.send(now, self.config.nudge_gap_ns, fabric);
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
        machine.clear();
        let mut fresh = Mu::new(me, self.config, None);
        fresh.reigns = self.reigns + 1;
        std::mem::swap(&mut fresh.releases, &mut self.releases);
        fresh.releases.break_off();
        *self = fresh;
    }

    fn poll_event(&mut self) -> Option<engine::Event> {
        loop {
            return Some(match self.poll_event()? {
                Event::CaughtUp(member) => engine::Event::CaughtUp(self.roster.listed_as(member)),
                Event::Drop(member) => engine::Event::Drop { process: self.roster.listed_as(member), reason: DropReason::NotInGroup },
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
