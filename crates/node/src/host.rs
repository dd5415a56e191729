//! What one process is made of: its endpoint, its membership, its engine, its state; and the application's view of them.

use std::collections::VecDeque;

use martlet_fabric::{Completion, Fabric, Identity, LocalRegion, Memory, NodeId, PeerEvent, PeerId, PeerKind};
use martlet_protocol::basics::layout::{COUNTERS, MAX_MEMBERS};
use martlet_protocol::basics::{LogIndex, ProcessId, Time, ViewNumber};
use martlet_protocol::engine::{self, Engine, Leadership};
use martlet_protocol::membership::{self, Core, Milestone, Roles, View};
use martlet_protocol::replica::{
    ClientEvent, HandOverError, HandOverState, MAX_PART_BYTES, ProposeError, Replica, Standing, StateMachine, Ticket,
};

use crate::counters::{Counter, Counters, Event, EventKind};

/// How long memory is kept that nobody needs any more, in nanoseconds.
const FORGET_AFTER_NS: u64 = 5_000_000;

/// One life of a node, on any fabric. The [`Agent`](crate::agent::Agent) drives it.
pub(crate) struct Host<F, E, M> {
    pub me: ProcessId,
    pub fabric: F,
    pub core: Core,
    pub engine: E,
    pub machine: M,
    pub now: Time,
    pub counters: Counters,
    pub clock: fn() -> Time,
    /// Connected members that are not gone.
    pub members: Vec<(PeerId, ProcessId)>,
    /// Set when that list changes, or whose death this process is to be woken by; whoever acts on it clears it.
    pub members_changed: bool,
    client_events: VecDeque<ClientEvent>,
    clients: Vec<PeerId>,
    /// Clients whose going the application has been told of, or will be in this turn: their memory can go after it.
    departed_clients: Vec<PeerId>,
    /// Members that the engine has let go of, but membership perhaps not.
    let_go: Vec<(PeerId, Time)>,
    /// Boards that a founder has asked for.
    pub boards_read: Vec<Completion>,
    /// Whether the application has sent a reply in this reign.
    replied: bool,
    /// The newest view whose decision stands in the timeline.
    decided: ViewNumber,
    /// Membership says that this process is out.
    pub excluded: bool,
    /// The engine can't go on in this life.
    pub unfit: bool,
    /// This process ends in order. Its counters say so.
    pub leaving: bool,
    was_alone: bool,
    /// Whom the engine has last taken for the leader, where it elects.
    followed: Option<ProcessId>,
    /// It has come back from its disk, and no view lists it: its engine takes no part. Others may have gone on without it.
    pub dormant: bool,
    /// Too much waits for this node's disk: no more requests are taken until there is less.
    pub congested: bool,
}

impl<F: Fabric, E: Engine, M: StateMachine> Host<F, E, M> {
    /// A process that knows nobody yet.
    pub fn new(me: ProcessId, fabric: F, core: Core, engine: E, machine: M, counters: Counters, clock: fn() -> Time) -> Self {
        let mut host = Host {
            me,
            fabric,
            core,
            engine,
            machine,
            now: clock(),
            counters,
            clock,
            members: Vec::with_capacity(MAX_MEMBERS),
            members_changed: false,
            client_events: VecDeque::with_capacity(64),
            clients: Vec::with_capacity(64),
            departed_clients: Vec::new(),
            let_go: Vec::new(),
            boards_read: Vec::new(),
            replied: false,
            decided: ViewNumber(0),
            excluded: false,
            unfit: false,
            leaving: false,
            was_alone: false,
            followed: None,
            dormant: false,
            congested: false,
        };
        // What an earlier life was is over.
        for counter in [Counter::Standing, Counter::View, Counter::ActiveView, Counter::Primary, Counter::Members, Counter::Replicas] {
            host.counters.set(counter, 0);
        }
        host.counters.set(Counter::Node, u64::from(me.node.0));
        host.counters.set(Counter::Incarnation, me.incarnation.0);
        if let Some(region) = host.fabric.memory(LocalRegion::Public(COUNTERS)) {
            host.counters.open(region);
        }
        host.record(EventKind::Started, Some(me), 0);
        host
    }

    pub fn clock(&self) -> Time {
        (self.clock)()
    }

    /// Stamps an event and shows it.
    pub fn record(&mut self, kind: EventKind, process: Option<ProcessId>, detail: u64) {
        self.record_in(kind, self.core.view_number(), process, detail);
    }

    fn record_in(&mut self, kind: EventKind, view: ViewNumber, process: Option<ProcessId>, detail: u64) {
        self.record_at(self.clock(), kind, view, process, detail);
    }

    fn record_at(&mut self, at: Time, kind: EventKind, view: ViewNumber, process: Option<ProcessId>, detail: u64) {
        if let Some(region) = counters_region(&self.fabric) {
            self.counters.record(region, Event { at, kind, view, process, detail });
        }
    }

    /// Takes what the fabric has to say about peers. Returns how much that was.
    pub fn take_peer_events(&mut self) -> usize {
        let mut taken = 0;
        while let Some(event) = self.fabric.event() {
            taken += 1;
            self.now = self.clock();
            match event {
                PeerEvent::Up { peer, identity: Identity { kind: PeerKind::Client, .. } } => {
                    self.clients.push(peer);
                    self.client_events.push_back(ClientEvent::Up(peer));
                }
                PeerEvent::Gone { peer, certain } if self.clients.contains(&peer) => {
                    self.clients.retain(|c| *c != peer);
                    self.departed_clients.push(peer);
                    self.client_events.push_back(ClientEvent::Gone { peer, certain });
                }
                PeerEvent::Up { peer, identity } => {
                    let process = ProcessId { node: identity.node, incarnation: identity.incarnation };
                    self.members.push((peer, process));
                    self.members_changed = true;
                    self.record(EventKind::PeerUp, Some(process), 0);
                    self.engine.handle_peer_up(peer, process, &mut self.fabric);
                    self.core.handle_peer(self.now, &mut self.fabric, event);
                }
                PeerEvent::Gone { peer, certain } => {
                    self.members.retain(|(p, _)| *p != peer);
                    self.members_changed = true;
                    self.engine.handle_peer_gone(peer, certain);
                    self.core.handle_peer(self.now, &mut self.fabric, event);
                }
            }
            self.take_membership_events();
        }
        taken
    }

    /// Acts on what membership says. To be called after each of its handlers, so that the stamps are true.
    pub fn take_membership_events(&mut self) {
        while let Some(event) = self.core.poll_event() {
            match event {
                membership::Event::View(view) => self.enter(&view),
                membership::Event::Excluded => {
                    self.excluded = true;
                    self.record(EventKind::Excluded, Some(self.me), 0);
                }
                membership::Event::Milestone(Milestone::DeathSeen(process, evidence)) => {
                    let kind = if evidence.releases_leases() { EventKind::DeathSeen } else { EventKind::Suspected };
                    // It was seen before all that membership has done about it meanwhile.
                    self.record_at(self.now, kind, self.core.view_number(), Some(process), evidence as u64);
                }
                membership::Event::Milestone(Milestone::Proposed(view)) => self.record_in(EventKind::ViewProposed, view, None, 0),
                membership::Event::Milestone(Milestone::Decided(view)) => {
                    self.decided = view;
                    self.record_in(EventKind::ViewDecided, view, None, 0);
                }
                membership::Event::Milestone(Milestone::Acknowledged(view)) => {
                    self.record_in(EventKind::ViewAcknowledged, view, None, 0);
                }
                membership::Event::Milestone(Milestone::Active(view)) => {
                    self.counters.set(Counter::ActiveView, view.0);
                    self.record_in(EventKind::ViewActive, view, None, 0);
                }
            }
        }
    }

    fn enter(&mut self, view: &View) {
        // Whose death to be woken by depends on the view.
        self.members_changed = true;
        if self.decided < view.number {
            self.decided = view.number;
            self.record_in(EventKind::ViewDecided, view.number, None, 0);
        }
        let led = self.engine.standing() == Standing::Primary;
        self.engine.handle_view(view);
        if led && self.engine.standing() != Standing::Primary {
            self.record(EventKind::SteppedDown, Some(self.me), 0);
        }
        let by_view = !E::TRAITS.elects();
        let primary = view.primary().map(|m| m.id);
        let count = &mut self.counters;
        count.set(Counter::View, view.number.0);
        count.set(Counter::Members, view.members.len() as u64);
        count.set(Counter::Replicas, view.with_roles(Roles::REPLICA).count() as u64);
        if by_view {
            count.set(Counter::Primary, primary.map_or(0, |p| u64::from(p.node.0) + 1));
        }
        count.set(Counter::LeaseNs, view.lease_ns);
        if by_view && primary.is_none() {
            tracing::error!(view = view.number.0, "no replica is left: the state is lost, and the cluster has to be started anew");
        }
    }

    /// Acts on what the engine says.
    pub fn take_engine_events(&mut self) {
        while let Some(event) = self.engine.poll_event() {
            match event {
                engine::Event::CaughtUp(process) => {
                    self.record(EventKind::Caught, Some(process), 0);
                    self.core.promote(self.now, &mut self.fabric, process);
                }
                engine::Event::Drop(process) => {
                    tracing::warn!(%process, "it cannot follow, and is removed");
                    self.core.evict(self.now, &mut self.fabric, process);
                }
                engine::Event::Unteachable { process, bytes } => {
                    tracing::error!(
                        %process,
                        bytes,
                        "it cannot be taught the state, of which this one part is longer than {MAX_PART_BYTES} bytes, the most that is taken"
                    );
                }
                engine::Event::Forget(peer) => self.let_go.push((peer, self.now)),
                engine::Event::AskedPermission => self.record(EventKind::PermissionAsked, Some(self.me), 0),
                engine::Event::Permitted => self.record(EventKind::PermissionHeld, Some(self.me), 0),
                engine::Event::TookOver { recovered } => {
                    self.replied = false;
                    self.members_changed = true;
                    self.record(EventKind::TookOver, Some(self.me), recovered);
                }
                engine::Event::SteppedDown => {
                    self.members_changed = true;
                    self.record(EventKind::SteppedDown, Some(self.me), 0);
                }
                engine::Event::LaneFault { peer, fault, stuck } => {
                    let process = self.process_of(peer);
                    tracing::error!(?process, fault, "a peer wrote what makes no sense");
                    self.unfit |= stuck;
                }
                engine::Event::Unfit => {
                    tracing::error!(view = self.engine.view().0, "made primary without the whole state: starting over");
                    self.unfit = true;
                }
            }
            self.take_membership_events();
        }
        if E::TRAITS.elects()
            && let Some(leader) = self.leader()
            && self.followed.replace(leader) != Some(leader)
        {
            // Whose death to be woken by depends on who leads.
            self.members_changed = true;
        }
        let alone = self.engine.is_alone();
        if alone && !self.was_alone {
            self.record(EventKind::Alone, Some(self.me), 0);
        }
        self.was_alone = alone;
        self.unfit |= self.engine.standing() == Standing::Excluded && !self.excluded;
    }

    /// Whether this process should be woken by the death of `process`: the leader by anybody's, everybody else by the death of the one before
    /// it in seniority, or where the engine elects in the order of ids behind the leader, whose place it takes. If all were woken at once they would be in each other's way just when it matters; who is not woken
    /// hears of the death in the next view, and looks at everybody's signs in each whole turn anyway.
    pub fn is_ours_to_watch(&self, process: ProcessId) -> bool {
        let Some(view) = self.core.view() else { return true };
        let mut order: Vec<ProcessId> = view.members.iter().map(|m| m.id).collect();
        let leads = match E::TRAITS.leadership {
            Leadership::Views => self.core.is_leader(),
            Leadership::Election => {
                let leader = self.leader();
                // Whoever leads may have been named, and have any id.
                order.sort_unstable_by_key(|id| (Some(*id) != leader, *id));
                leader == Some(self.me)
            }
        };
        let place = |id: ProcessId| order.iter().position(|m| *m == id);
        match (place(self.me), place(process)) {
            (Some(mine), Some(theirs)) => leads || theirs + 1 == mine,
            _ => true,
        }
    }

    /// Whom the engine takes for the leader.
    fn leader(&self) -> Option<ProcessId> {
        match self.engine.standing() {
            Standing::Primary => Some(self.me),
            Standing::Backup { primary } => primary,
            Standing::Excluded => None,
        }
    }

    fn process_of(&self, peer: PeerId) -> Option<ProcessId> {
        let view = self.core.view()?;
        view.members.iter().map(|m| m.id).find(|id| self.core.peer_of(*id) == Some(peer))
    }

    /// The application has sent replies as primary.
    pub fn note_replies(&mut self, sent: usize) {
        if sent > 0 && !self.replied && self.engine.standing() == Standing::Primary {
            self.replied = true;
            self.record(EventKind::FirstReply, Some(self.me), 0);
        }
    }

    /// Gives up the memory of those whom nobody needs any more, once that is not in anybody's way: to unmap it takes a while, and
    /// who has died has usually just been succeeded.
    pub fn forget_the_gone(&mut self) {
        for client in self.departed_clients.drain(..) {
            self.fabric.forget(client);
        }
        if self.let_go.is_empty() {
            return;
        }
        let (core, fabric, now) = (&mut self.core, &mut self.fabric, self.now);
        self.let_go.retain(|(peer, since)| {
            let go = now.since(*since) >= FORGET_AFTER_NS && core.forget(*peer);
            if go {
                fabric.forget(*peer);
            }
            !go
        });
    }

    /// Lets the application know that every client is gone: this life ends.
    pub fn dismiss_clients(&mut self) {
        self.client_events.extend(self.clients.drain(..).map(|peer| ClientEvent::Gone { peer, certain: false }));
    }

    /// Writes the counters where others read them.
    pub fn publish_counters(&mut self) {
        let standing = match (self.excluded, self.core.is_member(), self.engine.standing()) {
            (true, ..) | (_, _, Standing::Excluded) => 3,
            _ if self.leaving => 4,
            (_, false, _) => 0,
            (.., Standing::Primary) => 2,
            (.., Standing::Backup { .. }) => 1,
        };
        if E::TRAITS.elects() {
            let leader = self.leader();
            self.counters.set(Counter::Primary, leader.map_or(0, |p| u64::from(p.node.0) + 1));
            if leader == Some(self.me) {
                self.counters.set(Counter::ActiveView, self.engine.view().0);
            }
        }
        let count = &mut self.counters;
        count.set(Counter::Standing, standing);
        count.set(Counter::Reign, self.engine.reign());
        count.set(Counter::CacheRenewals, self.core.renewals_through_cache());
        count.set(Counter::ProposedIndex, self.engine.last().0);
        count.set(Counter::CommittedIndex, self.engine.committed().0);
        count.set(Counter::AppliedIndex, self.engine.applied().0);
        let group = self.engine.committed_group();
        count.set(Counter::Group, group.iter().fold(0, |nodes, id| nodes | 1_u64 << (id.node.0 % 64)));
        count.set(Counter::GroupProcesses, group.len() as u64);
        count.set(Counter::Clients, self.clients.len() as u64);
        count.set(Counter::PublishedNs, (self.clock)().0);
        if let Some(region) = counters_region(&self.fabric) {
            self.counters.publish(region);
        }
    }
}

fn counters_region<F: Fabric>(fabric: &F) -> Option<&Memory> {
    fabric.memory(LocalRegion::Public(COUNTERS))
}

impl<F: Fabric, E: Engine, M: StateMachine> Replica for Host<F, E, M> {
    type Fabric = F;
    type Machine = M;

    fn now(&self) -> Time {
        self.now
    }

    fn standing(&self) -> Standing {
        if self.excluded || self.unfit { Standing::Excluded } else { self.engine.standing() }
    }

    fn view(&self) -> ViewNumber {
        self.core.view_number()
    }

    fn current_view(&self) -> Option<&View> {
        self.core.view()
    }

    fn address_of(&self, process: ProcessId) -> Option<&str> {
        let member = self.core.view()?.member(process)?;
        (!member.address.is_empty()).then_some(member.address.as_str())
    }

    fn reign(&self) -> u64 {
        self.engine.reign()
    }

    fn fencing_token(&self) -> Option<u64> {
        self.engine.fencing_token()
    }

    fn shows_committed(&self) -> bool {
        !self.excluded && !self.unfit && self.engine.shows_committed()
    }

    fn machine(&self) -> &M {
        &self.machine
    }

    fn machine_mut(&mut self) -> &mut M {
        &mut self.machine
    }

    fn has_room(&self, bytes: usize) -> bool {
        !self.congested && self.engine.has_room(bytes)
    }

    fn propose(&mut self, effects: &[u8]) -> Result<LogIndex, ProposeError> {
        self.engine.propose(effects)
    }

    fn max_proposal_bytes(&self) -> usize {
        self.engine.max_proposal_bytes()
    }

    fn hand_over(&mut self, to: Option<NodeId>) -> Result<(), HandOverError> {
        self.engine.hand_over(to)
    }

    fn hand_over_state(&self) -> Option<HandOverState> {
        self.engine.hand_over_state()
    }

    fn hands_over(&self) -> bool {
        E::TRAITS.hands_over_by_name
    }

    fn give_up(&mut self) {
        tracing::error!("what was executed cannot be replicated: starting over");
        self.unfit = true;
    }

    fn ticket(&self) -> Ticket {
        self.engine.ticket()
    }

    fn released(&self) -> Ticket {
        self.engine.released()
    }

    fn ticket_by_quorum(&mut self) -> Ticket {
        self.engine.ticket_by_quorum()
    }

    fn released_by_quorum(&self) -> Ticket {
        self.engine.released_by_quorum()
    }

    fn fabric(&mut self) -> &mut F {
        &mut self.fabric
    }

    fn client_event(&mut self) -> Option<ClientEvent> {
        self.client_events.pop_front()
    }
}
