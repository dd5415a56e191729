//! What a simulated node needs of a replication engine. A new engine joins the simulator with an implementation here and a line in
//! [`KINDS`](super::KINDS).

use std::fmt::Debug;

use martlet_fabric::{Completion, Fabric, PeerId};
use martlet_protocol::basics::{LogIndex, ProcessId, Time, ViewNumber};
use martlet_protocol::engine::{PrimaryBackup, primary_backup};
use martlet_protocol::membership::View;
use martlet_protocol::replica::{Standing, StateMachine, Ticket};

use super::settings::Settings;

/// What an engine asks of its node, or tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EngineEvent {
    /// This learner has the whole state.
    CaughtUp(ProcessId),
    /// This learner cannot follow.
    Drop(ProcessId),
    /// This peer's memory is no longer needed.
    Forget(PeerId),
    /// It leads now, with so many entries found that were not known to be committed.
    TookOver {
        /// The view.
        view: ViewNumber,
        /// The entries.
        recovered: u64,
    },
    /// Nonsense stands in a lane.
    LaneFault(String),
    /// It should lead, and does not hold the state.
    Unfit(ViewNumber),
}

/// A replication engine that executes requests at once and replicates their effects. The methods mean what those of [`PrimaryBackup`] mean.
pub trait Engine: Debug {
    /// The engine of a process that holds the empty state.
    fn new(me: ProcessId, settings: &Settings) -> Self;
    /// A member's process is connected.
    fn handle_peer_up(&mut self, peer: PeerId, process: ProcessId);
    /// It is gone.
    fn handle_peer_gone(&mut self, peer: PeerId);
    /// A view has been decided.
    fn handle_view(&mut self, view: &View);
    /// An operation of the engine has completed.
    fn handle_completion(&mut self, completion: Completion);
    /// What this replica is.
    fn standing(&self) -> Standing;
    /// The newest view that it has been told.
    fn view(&self) -> ViewNumber;
    /// Counts the times that it became or ceased to be primary.
    fn reign(&self) -> u64;
    /// The ticket for replies computed in this turn.
    fn ticket(&self) -> Ticket;
    /// Replies up to this one may go out.
    fn released(&self) -> Ticket;
    /// The highest index known to be committed.
    fn committed(&self) -> LogIndex;
    /// Up to which entry the machine holds the log's effects.
    fn applied(&self) -> LogIndex;
    /// Whether there is room for so many bytes.
    fn has_room(&self, bytes: usize) -> bool;
    /// Takes the effects of a request into the log.
    fn propose(&mut self, effects: &[u8]) -> LogIndex;
    /// Posts what waits, applies what is committed.
    fn post<F: Fabric, S: StateMachine>(&mut self, now: Time, fabric: &mut F, machine: &mut S);
    /// Draws the conclusions of a turn.
    fn advance<F: Fabric, S: StateMachine>(&mut self, now: Time, active: Option<ViewNumber>, fabric: &mut F, machine: &mut S);
    /// What the node has to know next.
    fn poll_event(&mut self) -> Option<EngineEvent>;
    /// How it stands, in a line, for somebody who looks for a mistake.
    fn describe(&self) -> String;
}

impl Engine for PrimaryBackup {
    fn new(me: ProcessId, settings: &Settings) -> Self {
        let config = primary_backup::Config {
            log_ring_bytes: settings.log_ring_bytes,
            backlog_bytes: settings.log_ring_bytes,
            nudge_entries: 4,
            nudge_gap_ns: 1_000,
            flush_idle_ns: settings.flush_idle_ns,
            drain_budget_bytes: settings.drain_budget_bytes,
            transfer_budget_bytes: settings.transfer_budget_bytes,
            ..primary_backup::Config::default()
        };
        PrimaryBackup::new(me, config)
    }

    fn handle_peer_up(&mut self, peer: PeerId, process: ProcessId) {
        self.handle_peer_up(peer, process);
    }

    fn handle_peer_gone(&mut self, peer: PeerId) {
        self.handle_peer_gone(peer);
    }

    fn handle_view(&mut self, view: &View) {
        self.handle_view(view);
    }

    fn handle_completion(&mut self, completion: Completion) {
        self.handle_completion(completion);
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

    fn ticket(&self) -> Ticket {
        self.ticket()
    }

    fn released(&self) -> Ticket {
        self.released()
    }

    fn committed(&self) -> LogIndex {
        self.committed()
    }

    fn applied(&self) -> LogIndex {
        self.applied()
    }

    fn has_room(&self, bytes: usize) -> bool {
        self.has_room(bytes)
    }

    fn propose(&mut self, effects: &[u8]) -> LogIndex {
        self.propose(effects)
    }

    fn post<F: Fabric, S: StateMachine>(&mut self, now: Time, fabric: &mut F, machine: &mut S) {
        self.post(now, fabric, machine);
    }

    fn advance<F: Fabric, S: StateMachine>(&mut self, now: Time, active: Option<ViewNumber>, fabric: &mut F, machine: &mut S) {
        self.advance(now, active, fabric, machine);
    }

    fn poll_event(&mut self) -> Option<EngineEvent> {
        Some(match self.poll_event()? {
            primary_backup::Event::CaughtUp { process, .. } => EngineEvent::CaughtUp(process),
            primary_backup::Event::Drop { process, .. } => EngineEvent::Drop(process),
            primary_backup::Event::Forget(peer) => EngineEvent::Forget(peer),
            primary_backup::Event::TookOver { view, recovered } => EngineEvent::TookOver { view, recovered },
            primary_backup::Event::LaneFault { peer, fault } => EngineEvent::LaneFault(format!("the lane of {peer:?}: {fault:?}")),
            primary_backup::Event::Unfit { view } => EngineEvent::Unfit(view),
        })
    }

    fn describe(&self) -> String {
        format!(
            "view {}, {:?}, applied {} of {}, committed {}, alone {}, lagging {:?}",
            self.view(),
            self.standing(),
            self.applied(),
            self.last(),
            self.committed(),
            self.is_alone(),
            self.lagging().collect::<Vec<_>>()
        )
    }
}
