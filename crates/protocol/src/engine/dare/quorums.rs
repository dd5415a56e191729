//! The majorities that a leader needs: that of the group in force, or, while the group's size changes, those of two groups (DARE section 3.4).

use super::follower::Follower;
use super::log::Log;
use crate::basics::{Canary, ProcessId};
use crate::replica::electorate::{Needed, reached_by_majority};
use crate::replica::group::Phase;

/// The groups that decide, determined again whenever the group in force changes.
#[derive(Debug, Default)]
pub(super) struct Quorums {
    /// As of which version of the log's group.
    called: Option<u64>,
    /// What a majority takes in each group, the one before a change first.
    needed: [Option<Needed>; 2],
}

impl Quorums {
    /// Followers have come or gone.
    pub fn forget(&mut self) {
        self.called = None;
    }

    /// The highest value that a majority of each group has reached; `mine` is that of `me`, the leader, which no follower's exceeds. Afterwards, each follower
    /// is marked with the groups in which it votes.
    #[inline]
    pub fn reached(&mut self, me: ProcessId, log: &Log, followers: &mut [Follower], mine: u64, of: impl Fn(&Follower) -> u64) -> u64 {
        if self.called != Some(log.group_version()) {
            self.call(me, log, followers);
        }
        let [first, second] = self.needed;
        let reached =
            |needed: Needed, group: u8| reached_by_majority(needed, mine, followers.iter().filter(|f| f.groups & group != 0).map(&of));
        let first = first.map_or(0, |needed| reached(needed, 1));
        let both = second.map(|needed| reached(needed, 2));
        both.map_or(first, |second| if Canary::DareOneMajority.is_planted() { second } else { first.min(second) })
    }

    #[cold]
    fn call(&mut self, me: ProcessId, log: &Log, followers: &mut [Follower]) {
        self.needed = [None, None];
        followers.iter_mut().for_each(|f| f.groups = 0);
        let Some(group) = log.group() else { return };
        let extended = match group.phase() {
            Phase::Extended(process) if Canary::DareExtendedVotes.is_planted() => Some(*process),
            _ => None,
        };
        for (at, (members, quorum)) in group.electorates().enumerate() {
            for place in 0..followers.len() {
                let process = followers[place].process;
                // One vote a process, that of its latest connection.
                let latest = followers[place + 1..].iter().all(|other| other.process != process);
                let votes = latest && followers[place].counts && (members.contains(&process) || extended == Some(process));
                followers[place].groups |= u8::from(votes) << at;
            }
            let me = members.contains(&me);
            self.needed[at] = Some(Needed { followers: quorum - usize::from(me), me });
        }
        self.called = Some(log.group_version());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::test_cluster::id;
    use crate::replica::group::Group;
    use martlet_fabric::PeerId;

    fn reached(group: Group, me: usize, held: &[(usize, u64)]) -> u64 {
        let log = Log::new(2048, Some(group));
        let follower = |n: usize| Follower::new(id(n), PeerId(n as u32 + 1), 0, 0, 2048);
        let mut followers: Vec<Follower> = held.iter().map(|(n, _)| follower(*n)).collect();
        let of = |f: &Follower| held.iter().find(|(n, _)| id(*n) == f.process).expect("one of them").1;
        Quorums::default().reached(id(me), &log, &mut followers, 9, of)
    }

    #[test]
    fn dare_3_4_transitional_needs_both_majorities_and_extended_counts_nobody_more() {
        let group = Group::new((0..3).map(id).collect());
        assert_eq!(reached(group.clone(), 0, &[(1, 7), (2, 3)]), 7);
        let extended = group.extended(id(3)).expect("full");
        assert_eq!(reached(extended.clone(), 0, &[(1, 4), (2, 3), (3, 8)]), 4, "who recovers counts for nothing");
        let both = extended.enlarged().expect("it comes");
        assert_eq!(reached(both.clone(), 0, &[(1, 4), (2, 3), (3, 8)]), 4);
        assert_eq!(reached(both, 0, &[(1, 2), (2, 1), (3, 8)]), 2, "a majority of four, and none of the three");
        let fewer = Group::new((0..5).map(id).collect()).wanting(3).decreased(3, id(0)).expect("more");
        assert_eq!(reached(fewer.clone(), 0, &[(1, 0), (2, 0), (3, 8), (4, 8)]), 0, "three of five, and one of the three that stay");
        assert_eq!(reached(fewer.clone(), 0, &[(1, 8), (2, 0), (3, 0), (4, 0)]), 0, "two of the three that stay, two of five");
        assert_eq!(reached(fewer, 4, &[(0, 8), (1, 6), (2, 0), (3, 5)]), 6, "a leader that goes counts for the old group only");
    }

    #[test]
    fn dare_3_4_a_leader_that_is_removed_does_not_count_itself() {
        let group = Group::new((1..4).map(id).collect());
        assert_eq!(reached(group, 0, &[(1, 5), (2, 0), (3, 0)]), 0);
    }
}
