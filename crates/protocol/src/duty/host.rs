//! A replica: a member, with an engine and a state on top of it; and how the application sees them.

use std::collections::VecDeque;

use martlet_fabric::{Fabric, NodeId, PeerId, Pulse};

use super::member::{Member, PeerChange};
use super::{Environment, Note, Pace};
use crate::basics::{LogIndex, ProcessId, Time, ViewNumber};
use crate::engine::{self, Engine, Leadership};
use crate::membership::{Core, LevelError, View};
use crate::replica::{
    ClientEvent, Execution, HandOverError, HandOverState, ProposeError, Replica, ResizeError, Standing, StateMachine, Ticket,
};

/// One incarnation of a replica. A [`DutyCycle`](super::DutyCycle) gives it its turns.
#[derive(Debug)]
pub struct Host<F, E, M> {
    /// Its endpoint and its membership.
    pub member: Member<F>,
    /// Its engine.
    pub engine: E,
    /// Its state.
    pub machine: M,
    /// Where long work shows that this process is alive.
    pub(super) pulse: Pulse,
    client_events: VecDeque<ClientEvent>,
    /// Clients that are gone, as the application knows or will be told in this turn: after that, their memory may be given up.
    departed_clients: Vec<(PeerId, Time)>,
    /// Members that the engine has let go of, but membership may not have.
    let_go: Vec<(PeerId, Time)>,
    /// Whether the application has sent a reply since this process began to lead.
    replied: bool,
    /// The engine cannot continue in this incarnation.
    pub unfit: bool,
    /// The application has executed something that cannot be replicated, and the observer has not been told yet.
    gave_up: bool,
    was_alone: bool,
    /// The leader that the engine last followed, if it elects.
    followed: Option<ProcessId>,
    /// The process has come back from its disk, and no view lists it: its engine takes no part, since others may have continued without it.
    pub dormant: bool,
    /// Too much waits for this node's disk: no more requests are taken until it is less.
    pub congested: bool,
}

impl<F: Fabric, E: Engine, M: StateMachine> Host<F, E, M> {
    /// A process that knows no other yet, at the time `now`.
    pub fn new(me: ProcessId, fabric: F, core: Core, mut engine: E, mut machine: M, now: Time) -> Self {
        let pulse = fabric.pulse(E::hearts());
        engine.keep_alive(pulse.clone());
        machine.keep_alive(&pulse);
        Host {
            member: Member::new(me, fabric, core, now),
            engine,
            machine,
            pulse,
            client_events: VecDeque::with_capacity(64),
            departed_clients: Vec::new(),
            let_go: Vec::new(),
            replied: false,
            unfit: false,
            gave_up: false,
            was_alone: false,
            followed: None,
            dormant: false,
            congested: false,
        }
    }

    /// Takes what the fabric has to say about peers. Returns how many events there were.
    pub fn take_peer_events(&mut self, env: &mut impl Environment<F>) -> usize {
        let mut taken = 0;
        while let Some((event, change)) = self.member.next_peer_event(env) {
            taken += 1;
            match change {
                PeerChange::ClientUp(peer) => self.client_events.push_back(ClientEvent::Up(peer)),
                PeerChange::ClientGone(peer, certain) => {
                    self.departed_clients.push((peer, self.member.now));
                    self.client_events.push_back(ClientEvent::Gone { peer, certain });
                }
                PeerChange::MemberUp(peer, process) => self.engine.handle_peer_up(peer, process, &mut self.member.fabric),
                PeerChange::MemberGone(peer, certain) => self.engine.handle_peer_gone(peer, certain),
            }
            self.member.handle_peer(event, change);
            self.take_membership_events(env);
        }
        taken
    }

    /// Acts on membership's events. Call this after each of its handlers, so that the observer is told of events when they happen.
    pub fn take_membership_events(&mut self, env: &mut impl Environment<F>) {
        while let Some(view) = self.member.poll_event(env) {
            let led = self.engine.standing() == Standing::Primary;
            self.engine.handle_view(&view);
            if led && self.engine.standing() != Standing::Primary {
                self.member.note(env, Note::SteppedDown);
            }
        }
    }

    /// Gives membership its tick.
    pub(super) fn tend_membership(&mut self, env: &mut impl Environment<F>) {
        self.member.tick();
        self.take_membership_events(env);
    }

    /// Acts on the engine's events.
    pub fn take_engine_events(&mut self, env: &mut impl Environment<F>) {
        while let Some(event) = self.engine.poll_event() {
            let member = &mut self.member;
            match event {
                engine::Event::CaughtUp(process) => {
                    member.note(env, Note::CaughtUp(process));
                    member.core.promote(member.now, &mut member.fabric, process);
                }
                engine::Event::Drop { process, reason } => {
                    member.note(env, Note::Dropped { process, reason });
                    member.core.evict(member.now, &mut member.fabric, process);
                }
                engine::Event::Unteachable { process, bytes } => member.note(env, Note::Unteachable { process, bytes }),
                engine::Event::Forget(peer) => self.let_go.push((peer, member.now)),
                engine::Event::AskedPermission => member.note(env, Note::AskedPermission),
                engine::Event::Permitted => member.note(env, Note::Permitted),
                engine::Event::TookOver { recovered } => {
                    self.replied = false;
                    member.members_changed = true;
                    member.note(env, Note::TookOver { view: self.engine.view(), recovered });
                }
                engine::Event::SteppedDown => {
                    member.members_changed = true;
                    member.note(env, Note::SteppedDown);
                }
                engine::Event::LaneFault { peer, fault, stuck } => {
                    let process = member.process_of(peer);
                    member.note(env, Note::LaneFault { peer, process, fault: &fault, stuck });
                    self.unfit |= stuck;
                }
                engine::Event::Unfit => {
                    member.note(env, Note::Unfit(self.engine.view()));
                    self.unfit = true;
                }
            }
            self.take_membership_events(env);
        }
        if E::TRAITS.elects()
            && let Some(leader) = self.leader()
            && self.followed.replace(leader) != Some(leader)
        {
            // Which deaths this process has to be told of depends on which replica leads.
            self.member.members_changed = true;
        }
        let alone = self.engine.is_alone();
        if alone && !self.was_alone {
            self.member.note(env, Note::Alone);
        }
        self.was_alone = alone;
        if std::mem::take(&mut self.gave_up) {
            self.member.note(env, Note::GaveUp);
        }
        self.unfit |= self.engine.standing() == Standing::Excluded && !self.member.excluded;
        self.mind_the_unreadable(env);
    }

    /// If the machine could not read an entry, its state must not be shown to clients: the replica serves none from now on, and leaves. Call this
    /// wherever entries have been applied, before replies go out.
    #[inline]
    pub(super) fn mind_the_unreadable(&mut self, env: &mut impl Environment<F>) {
        if let Some(entry) = self.machine.unreadable().filter(|_| !self.unfit) {
            self.member.note(env, Note::Unreadable(entry));
            self.unfit = true;
        }
    }

    /// Whether the death of `process` should wake this process. The leader is woken by every member's death. Each other member is woken by the death
    /// of the member before it, whose place it takes: in seniority or, if the engine elects, in the order of ids, with the leader first. If all were
    /// woken at once, they would be in each other's way just when it matters. A member that is not woken learns of the death from the next view, and
    /// in any case looks at the others' signs of life in each whole turn.
    pub fn is_ours_to_watch(&self, process: ProcessId) -> bool {
        let (core, me) = (&self.member.core, self.member.me);
        let Some(view) = core.view() else { return true };
        let mut order: Vec<ProcessId> = view.members.iter().map(|m| m.id).collect();
        let leads = match E::TRAITS.leadership {
            Leadership::Views => core.is_leader(),
            Leadership::Election => {
                let leader = self.leader();
                // A leader that was designated may have any id.
                order.sort_unstable_by_key(|id| (Some(*id) != leader, *id));
                leader == Some(me)
            }
        };
        let place = |id: ProcessId| order.iter().position(|m| *m == id);
        match (place(me), place(process)) {
            (Some(mine), Some(theirs)) => leads || theirs + 1 == mine,
            _ => true,
        }
    }

    /// The leader, as the engine sees it.
    pub fn leader(&self) -> Option<ProcessId> {
        match self.engine.standing() {
            Standing::Primary => Some(self.member.me),
            Standing::Backup { primary } => primary,
            Standing::Excluded => None,
        }
    }

    /// The application has sent `sent` replies.
    pub(super) fn note_replies(&mut self, env: &mut impl Environment<F>, sent: usize) {
        if sent > 0 && !self.replied && self.engine.standing() == Standing::Primary {
            self.replied = true;
            self.member.note(env, Note::FirstReply);
        }
    }

    /// Gives up the memory of peers that is no longer needed, together with their queue pairs if there are any. This waits until it is in the way of
    /// nothing, since unmapping takes a while, and when a member has died, a failover has usually just taken place. In a turn with work (`busy`) it
    /// is done for one peer at most, and only if its memory has been kept for long.
    #[inline]
    pub(super) fn forget_the_gone(&mut self, pace: &Pace, busy: bool) {
        if !self.departed_clients.is_empty() || !self.let_go.is_empty() {
            self.forget_some(pace, busy);
        }
    }

    #[cold]
    fn forget_some(&mut self, pace: &Pace, busy: bool) {
        let Member { core, fabric, now, .. } = &mut self.member;
        let mut left = if busy { 1 } else { usize::MAX };
        let mut is_time = |since: Time, after_ns: u64, may: &mut dyn FnMut() -> bool| {
            let after_ns = if busy { pace.forget_while_busy_after_ns } else { after_ns };
            let go = left > 0 && now.since(since) >= after_ns && may();
            left -= usize::from(go);
            go
        };
        self.departed_clients.retain(|(client, since)| {
            let go = is_time(*since, 0, &mut || true);
            if go {
                fabric.forget(*client);
            }
            !go
        });
        self.let_go.retain(|(peer, since)| {
            let go = is_time(*since, pace.forget_after_ns, &mut || core.forget(*peer));
            if go {
                fabric.forget(*peer);
            }
            !go
        });
    }

    /// What holds between any two turns, whatever arrived in them. Panics if it does not hold: a replica that contradicts itself must not continue.
    pub fn invariants(&self) {
        let (engine, member) = (&self.engine, &self.member);
        assert!(engine.committed() <= engine.last() || !engine.is_complete(), "committed {} of {}", engine.committed(), engine.last());
        assert!(engine.applied() <= engine.last() || !engine.is_complete(), "applied {} of {}", engine.applied(), engine.last());
        assert!(engine.view() <= member.core.view_number(), "view {} of {}", engine.view(), member.core.view_number());
        assert!(engine.released() <= engine.ticket(), "released {:?} of {:?}", engine.released(), engine.ticket());
        let leads = engine.standing() == Standing::Primary;
        assert!(!leads || engine.is_complete(), "a leader without the whole state");
        assert!(!leads || engine.fencing_token().is_some_and(|token| token > 0), "a leader without a fencing token");
    }

    /// How many peers are still remembered although they are gone, or the engine has let go of them.
    pub fn awaiting_forgetting(&self) -> usize {
        self.departed_clients.len() + self.let_go.len()
    }

    /// Tells the application that every client is gone: this incarnation ends.
    pub fn dismiss_clients(&mut self) {
        self.client_events.extend(self.member.clients.drain(..).map(|peer| ClientEvent::Gone { peer, certain: false }));
    }
}

impl<F: Fabric, E: Engine, M: StateMachine> Replica for Host<F, E, M> {
    type Fabric = F;
    type Machine = M;

    fn now(&self) -> Time {
        self.member.now
    }

    fn standing(&self) -> Standing {
        if self.member.excluded || self.unfit { Standing::Excluded } else { self.engine.standing() }
    }

    fn view(&self) -> ViewNumber {
        self.member.core.view_number()
    }

    fn current_view(&self) -> Option<&View> {
        self.member.core.view()
    }

    fn address_of(&self, process: ProcessId) -> Option<&str> {
        let member = self.member.core.view()?.member(process)?;
        (!member.address.is_empty()).then_some(member.address.as_str())
    }

    fn reign(&self) -> u64 {
        self.engine.reign()
    }

    fn fencing_token(&self) -> Option<u64> {
        self.engine.fencing_token()
    }

    fn shows_committed(&self) -> bool {
        !self.member.excluded && !self.unfit && self.engine.shows_committed()
    }

    fn pulse(&self) -> &Pulse {
        &self.pulse
    }

    fn machine(&self) -> &M {
        &self.machine
    }

    fn execution(&self) -> Execution {
        self.engine.execution()
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

    fn resize(&mut self, places: usize) -> Result<(), ResizeError> {
        self.engine.resize(places)
    }

    fn places(&self) -> Option<(usize, usize)> {
        self.engine.places()
    }

    fn resizes(&self) -> bool {
        E::TRAITS.has_places
    }

    fn evict(&mut self, process: ProcessId) {
        self.member.core.evict(self.member.now, &mut self.member.fabric, process);
    }

    fn raise_level(&mut self, level: u8) -> Result<(), LevelError> {
        self.member.core.raise_level(self.member.now, &mut self.member.fabric, level)
    }

    fn hands_over(&self) -> bool {
        E::TRAITS.hands_over_by_name
    }

    fn give_up(&mut self) {
        self.unfit = true;
        self.gave_up = true;
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
        &mut self.member.fabric
    }

    fn client_event(&mut self) -> Option<ClientEvent> {
        self.client_events.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use martlet_fabric::Incarnation;
    use martlet_fabric::double::Nobody;

    use super::*;
    use crate::engine::PrimaryBackup;
    use crate::engine::primary_backup::Config;
    use crate::membership::{self, Roles};
    use crate::replica::NoState;

    fn host(now: Time) -> Host<Nobody, PrimaryBackup, NoState> {
        let me = ProcessId { node: NodeId(0), incarnation: Incarnation(1) };
        let core = Core::new(now, membership::Config::new(me, Roles::COORDINATOR.with(Roles::REPLICA)));
        Host::new(me, Nobody, core, PrimaryBackup::new(me, Config::default()), NoState, now)
    }

    /// Over a network, this is what removes a departed process's queue pairs.
    #[test]
    fn a_process_that_is_busy_gives_up_what_is_needed_no_more_before_long_and_bit_by_bit() {
        let (start, pace) = (Time(1_000_000), Pace::default());
        let mut host = host(start);
        host.departed_clients.push((PeerId(7), start));
        host.let_go.extend([(PeerId(8), start), (PeerId(9), start)]);
        let mut kept = |later_ns: u64| {
            host.member.now = start.after(later_ns);
            host.forget_the_gone(&pace, true);
            host.awaiting_forgetting()
        };
        assert_eq!(kept(pace.forget_while_busy_after_ns - 1), 3, "there may be a turn without work soon");
        let in_turns =
            [kept(pace.forget_while_busy_after_ns), kept(pace.forget_while_busy_after_ns), kept(pace.forget_while_busy_after_ns)];
        assert_eq!(in_turns, [2, 1, 0]);
    }

    #[test]
    fn a_turn_without_work_gives_up_all_that_is_needed_no_more() {
        let (start, pace) = (Time(1_000_000), Pace::default());
        let mut host = host(start);
        host.departed_clients.push((PeerId(7), start));
        host.let_go.extend([(PeerId(8), start), (PeerId(9), start.after(1))]);
        host.forget_the_gone(&pace, false);
        assert_eq!(host.awaiting_forgetting(), 2, "a failover may be under way");
        host.member.now = start.after(pace.forget_after_ns);
        host.forget_the_gone(&pace, false);
        assert_eq!(host.awaiting_forgetting(), 1);
    }
}
