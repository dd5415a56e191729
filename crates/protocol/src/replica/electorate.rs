//! The voters of the group in force, and what a majority of them has reached.

use super::entries::Entries;
use super::record::RecordKind;
use crate::basics::ProcessId;

/// The most followers that a leader has.
pub const MAX_FOLLOWERS: usize = 32;

/// A follower, as far as it votes.
pub trait Voter {
    /// Which process it is.
    fn process(&self) -> ProcessId;

    /// Whether it belongs to the group in force and this is its latest connection, as of the electorate's last call.
    fn votes(&mut self) -> &mut bool;
}

/// What makes a majority, besides the followers that vote.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needed {
    /// How many followers it takes: one less than a majority if this process votes too.
    pub followers: usize,
    /// Whether this process votes.
    pub me: bool,
}

impl Needed {
    /// How many processes make a majority. Without a group there are no voters.
    pub fn majority(self) -> usize {
        self.followers + usize::from(self.me)
    }
}

/// The voters of the group in force, determined again whenever that changes.
#[derive(Debug, Default)]
pub struct Electorate {
    /// The [`Entries::group_version`] as of which this was determined, and the result.
    called: Option<(u64, Needed)>,
}

impl Electorate {
    /// Followers have come or gone.
    pub fn forget(&mut self) {
        self.called = None;
    }

    /// What a majority takes for `me`, the leader. Afterwards, each of `followers` is marked as voting or not.
    #[inline]
    pub fn needed<K: RecordKind, V: Voter>(&mut self, me: ProcessId, log: &Entries<K>, followers: &mut [V]) -> Needed {
        match self.called {
            Some((version, needed)) if version == log.group_version() => needed,
            _ => self.call(me, log, followers),
        }
    }

    #[cold]
    fn call<K: RecordKind, V: Voter>(&mut self, me: ProcessId, log: &Entries<K>, followers: &mut [V]) -> Needed {
        let Some(group) = log.group() else { return Needed::default() };
        for at in 0..followers.len() {
            let process = followers[at].process();
            // One vote per process, that of its latest connection, however many it has.
            let votes = group.contains(process) && followers[at + 1..].iter().all(|other| other.process() != process);
            *followers[at].votes() = votes;
        }
        let me = group.contains(me);
        let needed = Needed { followers: group.majority() - usize::from(me), me };
        self.called = Some((log.group_version(), needed));
        needed
    }
}

/// The highest value that a majority has reached, like [`reached_by_majority`], but followers may have got further than this process.
#[inline]
pub fn reached_by_any_majority(needed: Needed, mine: u64, voters: impl Iterator<Item = u64>) -> u64 {
    let mut values = [0u64; MAX_FOLLOWERS + 1];
    voters.chain(needed.me.then_some(mine)).zip(&mut values).for_each(|(voter, value)| *value = voter);
    values.sort_unstable_by(|a, b| b.cmp(a));
    // Without a group there are no voters.
    needed.majority().checked_sub(1).map_or(0, |at| values[at])
}

/// The highest value that a majority has reached, where `voters` are the values of the followers that vote, none of which exceeds `mine`.
#[inline]
pub fn reached_by_majority(needed: Needed, mine: u64, voters: impl Iterator<Item = u64>) -> u64 {
    match needed.followers {
        0 if needed.me => mine,
        0 => 0,
        // Groups of two and three, the common ones.
        1 => voters.max().unwrap_or(0),
        n => {
            let mut values = [0u64; MAX_FOLLOWERS];
            voters.zip(&mut values).for_each(|(voter, value)| *value = voter);
            values.sort_unstable_by(|a, b| b.cmp(a));
            values[n - 1]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_majority_has_reached_what_all_but_the_minority_has() {
        let reached = |followers, me, voters: &[u64]| reached_by_majority(Needed { followers, me }, 9, voters.iter().copied());
        assert_eq!(reached(0, true, &[]), 9, "alone");
        assert_eq!(reached(0, false, &[4]), 0, "of no group");
        assert_eq!(reached(1, true, &[3, 7]), 7, "one of two others, and this process");
        assert_eq!(reached(2, true, &[3, 7, 5, 1]), 5);
        assert_eq!(reached(2, true, &[7]), 0, "too few");
        assert_eq!(reached(2, false, &[3, 7, 5]), 5, "a leader that does not vote itself");
    }

    #[test]
    fn a_majority_need_not_have_this_process_in_it() {
        let reached = |followers, me, mine, voters: &[u64]| reached_by_any_majority(Needed { followers, me }, mine, voters.iter().copied());
        assert_eq!(reached(0, false, 9, &[4]), 0, "of no group");
        assert_eq!(reached(1, true, 9, &[3, 7]), 7);
        assert_eq!(reached(1, true, 5, &[3, 7]), 5, "one follower alone is no majority");
        assert_eq!(reached(1, true, 2, &[3, 7]), 3, "the two others");
        assert_eq!(reached(2, false, 9, &[3, 7, 5]), 5, "a leader that does not vote itself");
    }
}
