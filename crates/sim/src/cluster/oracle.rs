//! What must hold in every life, as somebody sees it who knows the true time and looks into every process at once.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use martlet_protocol::basics::{ProcessId, ViewNumber};
use martlet_protocol::membership::{Roles, View};

/// Something that must never happen has happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Virtual nanoseconds since the beginning.
    pub at_ns: u64,
    /// What.
    pub what: String,
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "at {} ns: {}", self.at_ns, self.what)
    }
}

/// What is known of all processes together.
#[derive(Debug, Default)]
pub struct Oracle {
    views: BTreeMap<u64, View>,
    /// Who has been active in which view, with the newest so far.
    newest_active: ViewNumber,
    violation: Option<Violation>,
    /// A line for everything worth telling, if somebody wants to hear it.
    transcript: Option<String>,
    /// How many views have been active.
    pub active_views: u64,
    /// How often a replica became primary.
    pub takeovers: u64,
}

impl Oracle {
    /// Tells the whole life from now on.
    pub fn narrate(&mut self) {
        self.transcript.get_or_insert_default();
    }

    /// What has been told.
    pub fn transcript(&self) -> &str {
        self.transcript.as_deref().unwrap_or_default()
    }

    /// Tells something that has happened.
    pub fn tell(&mut self, at_ns: u64, what: impl FnOnce() -> String) {
        if let Some(transcript) = &mut self.transcript {
            let _ = writeln!(transcript, "{at_ns:>9}  {}", what());
        }
    }

    /// Notes the first violation; what follows it may be its consequence.
    pub fn violated(&mut self, at_ns: u64, what: String) {
        self.violation.get_or_insert(Violation { at_ns, what });
    }

    /// The first violation.
    pub fn violation(&self) -> Option<&Violation> {
        self.violation.as_ref()
    }

    /// The newest view that anybody has learned.
    pub fn newest(&self) -> Option<&View> {
        self.views.values().next_back()
    }

    /// Views that have been learned by anybody.
    pub fn view_count(&self) -> u64 {
        self.views.len() as u64
    }

    /// A process has learned a view: everybody who learns one of this number learns the same (agreement), and it follows from its predecessor.
    pub fn learned(&mut self, at_ns: u64, by: ProcessId, view: &View) {
        match self.views.get(&view.number.0) {
            Some(known) if known == view => return,
            Some(known) => {
                let what = format!("{by} learned a view {} that is not the one that others did: {view:?} and {known:?}", view.number);
                return self.violated(at_ns, what);
            }
            None => {}
        }
        for replica in view.with_roles(Roles::REPLICA) {
            let before = view.number.0.checked_sub(1).and_then(|before| self.views.get(&before)).and_then(|v| v.member(replica.id));
            // Where the predecessor is not known here yet, its own learner checks the step.
            let known = view.number.0 == 1 || self.views.contains_key(&(view.number.0 - 1));
            if known && view.number.0 > 1 && before.is_none() {
                self.violated(at_ns, format!("view {} makes {} a replica that was no member before", view.number, replica.id));
            }
        }
        self.tell(at_ns, || {
            let members: Vec<String> = view.members.iter().map(|m| format!("{} {}", m.id, m.roles)).collect();
            let departed: Vec<String> = view.departed.iter().map(|d| format!("{} {}", d.id, d.evidence)).collect();
            format!("{by} learns view {} first: {}; departed: {}", view.number, members.join(", "), departed.join(", "))
        });
        self.views.insert(view.number.0, view.clone());
    }

    /// `process` holds that `view` is active, and the others that could act hold what `others` says. At most one view is active at any
    /// instant, and none after a newer one has been (uKharon section 6.1).
    pub fn active(&mut self, at_ns: u64, process: ProcessId, view: ViewNumber, others: impl Iterator<Item = (ProcessId, ViewNumber)>) {
        if view < self.newest_active && !self.carries_over(view, self.newest_active) {
            let newest = self.newest_active;
            self.violated(at_ns, format!("view {view} is active at {process} after view {newest} has been active"));
        }
        if view > self.newest_active {
            self.tell(at_ns, || format!("view {view} is active at {process}"));
            self.newest_active = view;
            self.active_views += 1;
        }
        for (other, theirs) in others {
            if theirs != view && !self.carries_over(view, theirs) {
                self.violated(at_ns, format!("view {view} is active at {process} and view {theirs} at {other}"));
            }
        }
    }

    /// Whether the views between the two differ in nothing but the length of leases: their leases carry over, so they are one (section 6.3).
    fn carries_over(&self, one: ViewNumber, other: ViewNumber) -> bool {
        let (older, newer) = (one.min(other), one.max(other));
        (older.0 + 1..=newer.0).all(|n| self.views.get(&n).is_some_and(|v| v.compatible))
    }
}
