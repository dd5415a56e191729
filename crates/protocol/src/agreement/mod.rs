//! The agreement primitives of FiDe (section 4, appendix A), each for one message or one decision: pure state machines behind views.
//!
//! | module | the paper's name | what it promises |
//! |---|---|---|
//! | [`osrb`] | optimistic stabilizing reliable broadcast, algorithm 2 | what one correct process delivers, all correct processes deliver |
//! | [`fcurb`] | fail-consistent uniform reliable broadcast, appendix A.4 | what any process delivers, all correct processes deliver, and before they hear that its sender is gone |
//! | [`hsuc`] | hierarchical stabilizing uniform consensus, algorithm 3 | all decide the same value; three message delays |
//! | [`huc`] | heartbeat uniform consensus, algorithm 4 | the same, with the leader's choice sent by [`fcurb`] |
//!
//! **Views stand where the paper has a perfect detector.** As printed, one false suspicion makes HSUC and HUC decide two values (TRAPS 25). Here a process never hears
//! of a suspicion: it *enters* views, which membership decides, one after another. To enter a view is to shut out all that are not in it, before anything is said in it.
//! Whatever comes from a process outside the view is void. So it does no harm that a view excludes a process that lives.
//!
//! **A machine does nothing by itself.** Its caller hands it requests (`propose`, `broadcast`), messages (`handle`) and views (`enter`), and takes what follows from
//! `poll` until there is nothing more. Messages between two processes that live and are in each other's views arrive, in any order.

pub mod fcurb;
pub mod hsuc;
pub mod huc;
pub mod osrb;
mod places;
#[cfg(test)]
mod tests;

pub use places::{Place, Places};

/// A view, as far as these machines go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct View {
    /// Which: each view has a larger number than those before it. The paper's round.
    pub round: u64,
    /// Its members. Each view has some of those of the view before it; its first member leads.
    pub members: Places,
}

impl View {
    /// The process that leads in it.
    ///
    /// # Panics
    /// When it has no members.
    pub fn leader(&self) -> Place {
        self.members.first().expect("a view has members")
    }

    /// Checks that another view may follow.
    ///
    /// # Panics
    /// When it may not: the caller lets views be entered in another order than they were decided, or lets in a process that a view excludes.
    fn precedes(&self, next: &View, me: Place) {
        assert!(next.round > self.round, "round {} after round {}", next.round, self.round);
        assert!(self.members.contains_all(next.members), "{:?} after {:?}", next.members, self.members);
        assert!(next.members.contains(me), "process {me} enters {:?}, which excludes it", next.members);
    }
}

/// Names a broadcast message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId {
    /// The process that broadcast it.
    pub sender: Place,
    /// Which of its messages, from 0 on.
    pub number: u64,
}
