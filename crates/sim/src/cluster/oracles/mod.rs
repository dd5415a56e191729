//! What must hold in every life, judged by an observer that knows the true time and sees into every process at once. One file for each oracle.

mod acknowledged;
mod active;
mod agreement;
mod broadcast;
mod fencing;
mod lease;
mod level;
pub mod linearizable;
mod log;
pub mod memory;
mod once;
pub mod replicas;
pub mod story;
mod views;
mod votes;
mod watch;

use martlet_protocol::basics::{LogIndex, ProcessId, ViewNumber};
use martlet_protocol::membership::View;

use super::node::machine::{Machine, Taken};
use super::report::{Property, Violation};
pub use broadcast::Acceptor;
use story::Story;
use views::Views;

/// What is known about all processes together, and the oracles that judge it.
#[derive(Debug, Default)]
pub struct Oracles {
    pub views: Views,
    active: active::OneActiveView,
    lease: lease::LeaseWithinView,
    broadcast: broadcast::DecidedIsBroadcast,
    log: log::LogAgreement,
    fencing: fencing::Fencing,
    pub levels: level::FeatureLevels,
    pub once: once::ExactlyOnce,
    pub acknowledged: acknowledged::Acknowledged,
    pub memory: memory::BoundedMemory,
    pub story: Story,
    violation: Option<Violation>,
    /// How often a replica became primary.
    pub takeovers: u64,
}

impl Oracles {
    /// Notes the first violation; any that follow may be its consequences.
    pub fn violated(&mut self, at_ns: u64, property: Property, what: String) {
        if self.violation.is_none() {
            self.story.tell(at_ns, || format!("VIOLATED {property}: {what}"));
            self.violation = Some(Violation { at_ns, property, what });
        }
    }

    fn judge(&mut self, at_ns: u64, property: Property, verdict: Result<(), String>) {
        if let Err(what) = verdict {
            self.violated(at_ns, property, what);
        }
    }

    /// Every process that knew a view is gone. The views that follow belong to another life of the cluster, and are numbered anew. The log continues.
    pub fn views_forgotten(&mut self) {
        self.views = Views::default();
        self.active.begin_anew();
    }

    /// The first violation.
    pub fn violation(&self) -> Option<&Violation> {
        self.violation.as_ref()
    }

    /// How many views have been active.
    pub fn active_views(&self) -> u64 {
        self.active.count
    }

    /// How many views' decisions have been seen in the acceptors' memory.
    pub fn decisions_seen(&self) -> u64 {
        self.broadcast.seen
    }

    /// A process has learned a view. `acceptors` shows the memory of the previous view's coordinators.
    pub fn learned(&mut self, at_ns: u64, by: ProcessId, view: &View, acceptors: impl Fn(ProcessId) -> Option<Acceptor>) {
        let verdict = agreement::judge(&self.views, by, view);
        self.judge(at_ns, Property::ViewAgreement, verdict);
        if !self.views.note(at_ns, view) {
            return;
        }
        self.story.learned(at_ns, by, view);
        let verdict = self.levels.judge(self.views.get(view.number.0.saturating_sub(1)), view);
        self.judge(at_ns, Property::FeatureLevel, verdict);
        if let Some(before) = self.views.get(view.number.0.saturating_sub(1)) {
            let verdict = self.broadcast.judge(before, view, acceptors);
            self.judge(at_ns, Property::DecidedIsBroadcast, verdict);
        }
    }

    /// `process` has found `view` active; `others` are the other processes that could act at this instant, and their views.
    pub fn active(&mut self, at_ns: u64, process: ProcessId, view: ViewNumber, others: impl Iterator<Item = (ProcessId, ViewNumber)>) {
        if self.active.is_news(view) {
            self.story.tell(at_ns, || format!("view {view} is active at {process}"));
        }
        let mut verdict = self.active.judge(&self.views, process, view);
        let mut leases = self.lease.judge(&self.views, at_ns, process, view);
        for (other, theirs) in others {
            verdict = verdict.and_then(|()| active::judge_pair(&self.views, (process, view), (other, theirs)));
            leases = leases.and_then(|()| self.lease.judge(&self.views, at_ns, other, theirs));
        }
        self.judge(at_ns, Property::OneActiveView, verdict);
        self.judge(at_ns, Property::LeaseWithinView, leases);
    }

    /// A process knows this entry to be committed, and has applied or executed it.
    pub fn committed(&mut self, at_ns: u64, by: ProcessId, entry: Taken) {
        let verdict = self.log.judge(by, entry);
        self.judge(at_ns, Property::LogAgreement, verdict);
        let verdict = self.once.judge(by, entry);
        self.judge(at_ns, Property::ExactlyOnce, verdict);
    }

    /// A leader acknowledges a write that it has proposed at this index of the log, under this token.
    pub fn replied(&mut self, at_ns: u64, by: ProcessId, index: LogIndex, token: u64) {
        let verdict = self.fencing.judge(by, index, token);
        self.judge(at_ns, Property::FencingTokens, verdict);
    }

    /// All is quiet, and this is a replica's state.
    pub fn settled(&mut self, at_ns: u64, replica: ProcessId, machine: &Machine) {
        let verdict = self.acknowledged.judge(replica, machine);
        self.judge(at_ns, Property::Acknowledged, verdict);
    }

    /// All is quiet, and this is how long a node's description is.
    pub fn footprint(&mut self, at_ns: u64, of: ProcessId, footprint: memory::Footprint) {
        let verdict = self.memory.judge(of, footprint);
        self.judge(at_ns, Property::BoundedMemory, verdict);
    }
}
