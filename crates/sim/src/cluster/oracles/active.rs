//! At any instant of true time at most one view is active, and no view is active after a newer one has been (uKharon section 6.1).

use martlet_protocol::basics::{ProcessId, ViewNumber};

use super::views::Views;

/// The newest view that has been active.
#[derive(Debug, Default)]
pub struct OneActiveView {
    newest: ViewNumber,
    /// How many views have been active.
    pub count: u64,
}

impl OneActiveView {
    /// Whether this view is newer than all that have been active.
    pub fn is_news(&self, view: ViewNumber) -> bool {
        view > self.newest
    }

    /// No process is left that knew a view, so numbers may be used again.
    pub fn begin_anew(&mut self) {
        self.newest = ViewNumber(0);
    }

    /// `process` has found `view` active.
    pub fn judge(&mut self, views: &Views, process: ProcessId, view: ViewNumber) -> Result<(), String> {
        if view < self.newest && !views.carries_over(view, self.newest) {
            return Err(format!("view {view} is active at {process} after view {} has been active", self.newest));
        }
        if view > self.newest {
            self.newest = view;
            self.count += 1;
        }
        Ok(())
    }
}

/// Two processes could both act at this instant, each in its own view.
pub fn judge_pair(views: &Views, (one, view): (ProcessId, ViewNumber), (other, theirs): (ProcessId, ViewNumber)) -> Result<(), String> {
    if view == theirs || views.carries_over(view, theirs) {
        Ok(())
    } else {
        Err(format!("view {view} is active at {one} and view {theirs} at {other}"))
    }
}
