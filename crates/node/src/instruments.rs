//! What a node shows of its duty cycle: counters, the timeline of failovers, and the log; and the clock that the node uses.

use martlet_fabric::{Fabric, LocalRegion, Memory};
use martlet_protocol::basics::layout::COUNTERS;
use martlet_protocol::basics::{LogIndex, ProcessId, Time, ViewNumber};
use martlet_protocol::duty::{Environment, Host, Note, Turn};
use martlet_protocol::engine::Engine;
use martlet_protocol::membership::{Roles, View};
use martlet_protocol::replica::{MAX_PART_BYTES, Service, Standing, StateMachine};

use crate::clock;
use crate::clock::jumps::JumpWatch;
use crate::counters::{Counter, Counters, Event, EventKind};

/// One life's onlooker.
pub(crate) struct Instruments {
    pub counters: Counters,
    pub clock: fn() -> Time,
    /// Watches for jumps of that clock; a rehearsal's stage does not.
    pub jumps: Option<JumpWatch>,
    me: ProcessId,
    /// Whether views say which replica leads.
    by_view: bool,
    /// The newest view whose decision is in the timeline.
    decided: ViewNumber,
    /// The last entry that the node held when its counters were last written out.
    held: Option<LogIndex>,
    /// This process is ending in order. Its counters say so.
    pub leaving: bool,
}

impl Instruments {
    /// For the process `me` with the engine `E` at this endpoint, whose life begins now.
    pub fn new<F: Fabric, E: Engine>(me: ProcessId, fabric: &F, mut counters: Counters, clock: fn() -> Time) -> Self {
        // An earlier life's values no longer apply.
        for counter in [Counter::Standing, Counter::View, Counter::ActiveView, Counter::Primary, Counter::Members, Counter::Replicas] {
            counters.set(counter, 0);
        }
        counters.set(Counter::Node, u64::from(me.node.0));
        counters.set(Counter::Incarnation, me.incarnation.0);
        if let Some(region) = region(fabric) {
            counters.open(region);
        }
        let mut instruments = Instruments {
            counters,
            clock,
            jumps: None,
            me,
            by_view: !E::TRAITS.elects(),
            decided: ViewNumber(0),
            held: None,
            leaving: false,
        };
        instruments.record(fabric, EventKind::Started, ViewNumber(0), Some(me), 0);
        instruments
    }

    /// What the clock shows.
    pub fn clock(&self) -> Time {
        (self.clock)()
    }

    /// Stamps an event and shows it.
    pub fn record<F: Fabric>(&mut self, fabric: &F, kind: EventKind, view: ViewNumber, process: Option<ProcessId>, detail: u64) {
        self.record_at(fabric, self.clock(), kind, view, process, detail);
    }

    fn record_at<F: Fabric>(&mut self, fabric: &F, at: Time, kind: EventKind, view: ViewNumber, process: Option<ProcessId>, detail: u64) {
        if let Some(region) = region(fabric) {
            self.counters.record(region, Event { at, kind, view, process, detail });
        }
    }

    fn learned<F: Fabric>(&mut self, fabric: &F, view: &View) {
        if self.decided < view.number {
            self.decided = view.number;
            self.record(fabric, EventKind::ViewDecided, view.number, None, 0);
        }
        let primary = view.primary().map(|m| m.id);
        let count = &mut self.counters;
        count.set(Counter::View, view.number.0);
        count.set(Counter::Members, view.members.len() as u64);
        count.set(Counter::Replicas, view.with_roles(Roles::REPLICA).count() as u64);
        if self.by_view {
            count.set(Counter::Primary, primary.map_or(0, |p| u64::from(p.node.0) + 1));
        }
        count.set(Counter::LeaseNs, view.lease_ns);
        if self.by_view && primary.is_none() {
            tracing::error!(view = view.number.0, "no replica is left: the state is lost. Stop all nodes and start the cluster again");
        }
    }

    /// Counts what a turn has done.
    #[inline]
    pub fn count(&mut self, turn: &Turn) {
        let count = &mut self.counters;
        count.add(Counter::Requests, turn.taken as u64);
        count.add(Counter::Replies, turn.sent as u64);
        count.add(Counter::ActiveChecks, u64::from(turn.active_checks));
        count.add(Counter::InactiveChecks, u64::from(turn.inactive_checks));
        count.add(Counter::Turns, 1);
        count.add(Counter::BusyTurns, u64::from(turn.worked));
    }

    /// Takes in what a leader reports of its service.
    pub fn tell_of(&mut self, service: &Service) {
        let count = &mut self.counters;
        count.set(Counter::ServesSinceNs, service.since.0);
        count.set(Counter::Connections, service.connections);
        count.set(Counter::Takeovers, service.takeovers);
        count.set(Counter::LastTakeoverNs, service.last_takeover_ns);
        count.set(Counter::ReplacedReplicas, service.replaced);
    }

    /// Writes the counters where others read them.
    pub fn publish<F: Fabric, E: Engine, M: StateMachine>(&mut self, host: &Host<F, E, M>) {
        let (member, engine) = (&host.member, &host.engine);
        let standing = match (member.excluded, member.core.is_member(), engine.standing()) {
            (true, ..) | (_, _, Standing::Excluded) => 3,
            _ if self.leaving => 4,
            (_, false, _) => 0,
            (.., Standing::Primary) => 2,
            (.., Standing::Backup { .. }) => 1,
        };
        if !self.by_view {
            let leader = host.leader();
            self.counters.set(Counter::Primary, leader.map_or(0, |p| u64::from(p.node.0) + 1));
            if leader == Some(self.me) {
                self.counters.set(Counter::ActiveView, engine.view().0);
            }
        }
        let count = &mut self.counters;
        count.set(Counter::Standing, standing);
        count.set(Counter::Reign, engine.reign());
        count.set(Counter::CacheRenewals, member.core.renewals_through_cache());
        count.set(Counter::Level, member.core.view().map_or(0, |view| view.level.into()));
        count.set(Counter::MalformedMessages, member.core.malformed());
        count.set(Counter::MalformedViews, member.core.malformed_boards());
        count.set(Counter::Contradictions, member.core.contradictions());
        count.set(Counter::DisbelievedCertificates, member.core.disbelieved());
        let last = engine.last();
        count.set(Counter::ProposedIndex, last.0);
        if self.held != Some(last) {
            self.held = Some(last);
            count.set(Counter::HeldAtNs, clock::wall_ns());
        }
        count.set(Counter::Whole, u64::from(engine.is_complete()));
        count.set(Counter::CommittedIndex, engine.committed().0);
        count.set(Counter::AppliedIndex, engine.applied().0);
        let group = engine.committed_group();
        count.set(Counter::Group, group.iter().fold(0, |nodes, id| nodes | 1_u64 << (id.node.0 % 64)));
        count.set(Counter::GroupProcesses, group.len() as u64);
        count.set(Counter::Clients, member.clients.len() as u64);
        count.set(Counter::PublishedNs, (self.clock)().0);
        if let Some(region) = region(&member.fabric) {
            self.counters.publish(region);
        }
    }
}

fn region<F: Fabric>(fabric: &F) -> Option<&Memory> {
    fabric.memory(LocalRegion::Public(COUNTERS))
}

impl<F: Fabric> Environment<F> for Instruments {
    #[inline]
    fn now(&mut self) -> Time {
        (self.clock)()
    }

    #[inline]
    fn clock_jumped(&mut self, now: Time) -> Option<u64> {
        let jump = self.jumps.as_mut()?.look(now)?;
        tracing::warn!("{jump}");
        Some(jump.size_ns())
    }

    fn note(&mut self, fabric: &F, view: ViewNumber, note: Note<'_>) {
        let me = Some(self.me);
        match note {
            Note::PeerUp(process) => self.record(fabric, EventKind::PeerUp, view, Some(process), 0),
            Note::DeathSeen { process, evidence, at } => {
                let kind = if evidence.releases_leases() { EventKind::DeathSeen } else { EventKind::Suspected };
                self.record_at(fabric, at, kind, view, Some(process), evidence as u64);
            }
            Note::Proposed(view) => self.record(fabric, EventKind::ViewProposed, view, None, 0),
            Note::Decided(view) => {
                self.decided = view;
                self.record(fabric, EventKind::ViewDecided, view, None, 0);
            }
            Note::Acknowledged(view) => self.record(fabric, EventKind::ViewAcknowledged, view, None, 0),
            Note::Active(view) => {
                self.counters.set(Counter::ActiveView, view.0);
                self.record(fabric, EventKind::ViewActive, view, None, 0);
            }
            Note::Learned(view) => self.learned(fabric, view),
            Note::Excluded => self.record(fabric, EventKind::Excluded, view, me, 0),
            Note::CaughtUp(process) => self.record(fabric, EventKind::Caught, view, Some(process), 0),
            Note::Dropped { process, reason } => tracing::warn!(%process, %reason, "this node asks for the removal of a member"),
            Note::Unteachable { process, bytes } => tracing::error!(
                %process,
                bytes,
                "cannot send the state to this process: one part of it, such as a key with its value, is longer than {MAX_PART_BYTES} bytes, the most that is allowed"
            ),
            Note::AskedPermission => self.record(fabric, EventKind::PermissionAsked, view, me, 0),
            Note::Permitted => self.record(fabric, EventKind::PermissionHeld, view, me, 0),
            Note::TookOver { recovered, .. } => self.record(fabric, EventKind::TookOver, view, me, recovered),
            Note::SteppedDown => self.record(fabric, EventKind::SteppedDown, view, me, 0),
            Note::FirstReply => self.record(fabric, EventKind::FirstReply, view, me, 0),
            Note::Alone => self.record(fabric, EventKind::Alone, view, me, 0),
            Note::LaneFault { process, fault, .. } => {
                self.counters.add(Counter::LaneFaults, 1);
                tracing::error!(?process, fault, "another process wrote something invalid into this node's memory");
            }
            Note::Unreadable(entry) => {
                tracing::error!("{entry}: another build has written it. This node ends, and the others go on without it")
            }
            Note::Unfit(view) => {
                tracing::error!(view = view.0, "this node was made the primary, but does not have the whole state: it starts over")
            }
            Note::ClockJumped { by_ns, held } => {
                if held {
                    tracing::warn!("the clock has jumped: this node gives its lease up and asks the coordinators again");
                }
                self.counters.add(Counter::ClockJumps, 1);
                self.record(fabric, EventKind::ClockJumped, view, me, by_ns);
            }
            Note::GaveUp => tracing::error!("this node has executed requests that it cannot replicate any more: it starts over"),
        }
    }
}
