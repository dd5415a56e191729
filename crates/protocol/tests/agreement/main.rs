//! The agreement primitives of FiDe (section 4, appendix A), each for one message or one decision, and models of them: few processes, every order of events.
//! They show that the paper's algorithms, with the differences that `docs/fide.md` lists, keep their promises. The engines `hsuc` and `huc` keep a log by the
//! same rules, in memory that replicas share, and use none of this code.
//!
//! | module | the paper's name | what it promises |
//! |---|---|---|
//! | [`osrb`] | optimistic stabilizing reliable broadcast, algorithm 2 | what one correct process delivers, all correct processes deliver |
//! | [`fcurb`] | fail-consistent uniform reliable broadcast, appendix A.4 | what any process delivers, all correct processes deliver, before they are told that its sender is gone |
//! | [`hsuc`] | hierarchical stabilizing uniform consensus, algorithm 3 | all decide the same value; three message delays |
//! | [`huc`] | heartbeat uniform consensus, algorithm 4 | the same, with the leader's choice sent by [`fcurb`] |
//!
//! **Views replace the paper's perfect failure detector.** As printed, one false suspicion makes HSUC and HUC decide two values (TRAPS 25). Here a process
//! never hears of a suspicion: it *enters* views, which membership decides, one after another. To enter a view means to shut out all processes that are not in
//! it, before sending anything in it. Messages from a process outside the view are void. So a view that excludes a living process does no harm.
//!
//! **A machine does nothing by itself.** Its caller passes it requests (`propose`, `broadcast`), messages (`handle`) and views (`enter`), and takes the outputs
//! from `poll` until there are none left. Messages between two processes that live and are in each other's views arrive, in any order.

mod broadcast;
mod consensus;
mod explore;
mod fcurb;
mod hsuc;
mod huc;
mod osrb;
mod places;

pub use places::{Place, Places};

/// A view, as far as these machines go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct View {
    /// Its number, larger than that of every earlier view. The paper's round.
    pub round: u64,
    /// Its members, a subset of those of the view before; the first member leads.
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
    /// When it may not: the caller entered views in another order than they were decided, or let in a process that a view excludes.
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
