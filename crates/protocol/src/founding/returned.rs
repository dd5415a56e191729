//! What a process that has come back from its disk shows to the others before any view connects them.

use crate::basics::ballot::majority;
use crate::basics::layout::{LAST_VIEW, MAX_MEMBERS, returned};
use crate::basics::{Canary, LogIndex, ProcessId, ViewNumber, is_number};
use crate::membership::{Member, Roles};
use martlet_fabric::primitive::Ordering;
use martlet_fabric::{Incarnation, Memory, NodeId};

/// A log with which a process has come back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Returned {
    /// The number under which the log was accepted.
    pub ballot: u64,
    /// Its last entry.
    pub last: LogIndex,
    /// The newest view that its group reflects.
    pub view: ViewNumber,
    /// The group.
    pub members: Vec<ProcessId>,
}

/// The words say nothing yet, or make no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("these words do not say what their owner has come back with")]
pub struct Unreadable;

impl Returned {
    /// Writes the log, or that there is none, where the others read it.
    pub fn store(this: Option<&Returned>, region: &Memory) {
        let put = |at: usize, word: u64| region[at].store(word, Ordering::Relaxed);
        if let Some(Returned { ballot, last, view, members }) = this {
            put(returned::BALLOT, *ballot);
            put(returned::LAST, last.0);
            put(returned::VIEW, view.0);
            put(returned::MEMBERS, members.len() as u64);
            for (n, id) in members.iter().enumerate() {
                put(returned::FIRST + 2 * n, id.node.0.into());
                put(returned::FIRST + 2 * n + 1, id.incarnation.0);
            }
        }
        let state = if this.is_some() { returned::LOG } else { returned::NOTHING };
        // Release: for processes that read this word first. No peer is let in before it is stored.
        region[returned::STATE].store(state, Ordering::Release);
    }

    /// What a process's words say.
    ///
    /// # Errors
    /// When they say nothing yet, or make no sense.
    pub fn parse(words: &[u64; returned::WORDS]) -> Result<Option<Returned>, Unreadable> {
        match words[returned::STATE] {
            returned::NOTHING => return Ok(None),
            returned::LOG => {}
            _ => return Err(Unreadable),
        }
        // A cluster is founded again in the view after this one.
        let sane = words[returned::VIEW] < LAST_VIEW && [returned::BALLOT, returned::LAST].iter().all(|at| is_number(words[*at]));
        if !sane {
            return Err(Unreadable);
        }
        let count = usize::try_from(words[returned::MEMBERS]).ok().filter(|count| (1..=MAX_MEMBERS).contains(count)).ok_or(Unreadable)?;
        let ids = words[returned::FIRST..].chunks_exact(2).take(count);
        let members =
            ids.map(|id| Ok(ProcessId { node: NodeId(u16::try_from(id[0]).map_err(|_| Unreadable)?), incarnation: Incarnation(id[1]) }));
        Ok(Some(Returned {
            ballot: words[returned::BALLOT],
            last: LogIndex(words[returned::LAST]),
            view: ViewNumber(words[returned::VIEW]),
            members: members.collect::<Result<_, Unreadable>>()?,
        }))
    }
}

/// How a cluster is founded again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refounding {
    /// The first view's number.
    pub number: ViewNumber,
    /// The members of the best log's group that are present and, if none of them has that log, the process that has come back with it.
    pub members: Vec<ProcessId>,
    /// The one of them that is not a member of the group, and is included because it alone has the best log.
    pub guest: Option<ProcessId>,
    /// Whether the whole group is present.
    pub complete: bool,
}

impl Refounding {
    /// The members of the first view; `configured` says how each process is configured, if it is. The guest gets no vote that others depend on: it
    /// ends when the others have its log, and coordinators that needed its vote could not decide on a view without it.
    pub fn view_members(&self, configured: impl FnMut(ProcessId) -> Option<Member>) -> Vec<Member> {
        let mut members: Vec<Member> = self.members.iter().copied().filter_map(configured).collect();
        let is_guest = |id: ProcessId| Some(id) == self.guest;
        if members.iter().any(|m| !is_guest(m.id) && m.roles.has(Roles::COORDINATOR)) {
            members.iter_mut().filter(|m| is_guest(m.id)).for_each(|m| m.roles = m.roles.without(Roles::COORDINATOR));
        }
        members
    }
}

/// Why no cluster can be founded yet.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Lack {
    /// No process that is present has a log.
    #[error("no node that runs has any data")]
    Logs,
    /// Too few of the processes that have to confirm the best log are present.
    #[error("of nodes {group:?}, the group of the newest log, only {present:?} are here with their data, but {needed} are needed")]
    Majority {
        /// The nodes of the group.
        group: Vec<u16>,
        /// Those of them that are present.
        present: Vec<u16>,
        /// How many are needed.
        needed: usize,
    },
}

/// The best of these logs, by the engine's own criterion: the one with the highest number, then the longest. And the process that has it: of several
/// lives of one member, the latest.
pub(super) fn best(present: &[(ProcessId, Returned)]) -> Option<(ProcessId, &Returned)> {
    present.iter().map(|(id, log)| (*id, log)).max_by_key(|(id, log)| (log.ballot, log.last, *id))
}

/// What the processes that are present can found. A majority of the best log's group has to be present, since no smaller set is sure to know of
/// everything that was acknowledged.
///
/// A leader that has removed itself from the group may have ended before any other process knew. Then only its log holds the change, and by their own
/// logs the remaining members still need its vote. So the leader has to be there for them to read its log, and it belongs to the first view until
/// they have.
///
/// # Errors
/// When no process can found the cluster for now.
pub fn refound(present: &[(ProcessId, Returned)]) -> Result<Refounding, Lack> {
    let (owner, best) = best(present).ok_or(Lack::Logs)?;
    let is_member = |id: &ProcessId| best.members.contains(&id.birth());
    let mut members: Vec<ProcessId> = present.iter().map(|(id, _)| *id).filter(is_member).collect();
    // A member has one vote: an earlier return of it may still be listed while it dies.
    members.sort_unstable_by(|a, b| b.cmp(a));
    members.dedup_by_key(|id| id.birth());
    members.reverse();
    let needed = majority(best.members.len());
    if members.len() < needed {
        let nodes = |ids: &[ProcessId]| ids.iter().map(|id| id.node.0).collect();
        return Err(Lack::Majority { group: nodes(&best.members), present: nodes(&members), needed });
    }
    let newest = present.iter().map(|(_, log)| log.view).max().unwrap_or_default();
    let complete = members.len() == best.members.len();
    let has_it = |(id, log): &(ProcessId, Returned)| members.contains(id) && (log.ballot, log.last) == (best.ballot, best.last);
    let guest = (!present.iter().any(has_it) && !Canary::BestLogLeftOut.is_planted()).then_some(owner);
    members.extend(guest);
    members.sort_unstable();
    Ok(Refounding { number: newest.next(), complete, members, guest })
}

#[cfg(test)]
mod tests {
    use martlet_fabric::primitive::AtomicU64;

    use super::*;

    fn born(node: u16) -> ProcessId {
        ProcessId { node: NodeId(node), incarnation: Incarnation(u64::from(node + 1) << 16) }
    }

    fn back(node: u16) -> ProcessId {
        ProcessId { incarnation: Incarnation(born(node).incarnation.0 + 3), ..born(node) }
    }

    fn log(ballot: u64, last: u64, group: &[u16]) -> Returned {
        Returned { ballot, last: LogIndex(last), view: ViewNumber(ballot + 10), members: group.iter().map(|n| born(*n)).collect() }
    }

    #[test]
    fn what_is_shown_is_read_and_nonsense_is_refused() {
        let region: Vec<AtomicU64> = (0..returned::WORDS).map(|_| AtomicU64::new(0)).collect();
        let words = || std::array::from_fn(|at| region[at].load(Ordering::Relaxed));
        assert_eq!(Returned::parse(&words()), Err(Unreadable), "it has not said anything");
        Returned::store(None, &region);
        assert_eq!(Returned::parse(&words()), Ok(None));
        let shown = log(7, 99, &[0, 2, 5]);
        Returned::store(Some(&shown), &region);
        assert_eq!(Returned::parse(&words()), Ok(Some(shown)));
        for (word, bad) in [
            (returned::STATE, 3),
            (returned::BALLOT, 1 << 62),
            (returned::LAST, u64::MAX),
            (returned::VIEW, u64::MAX),
            (returned::MEMBERS, 0),
            (returned::MEMBERS, 17),
            (returned::FIRST + 2, 1 << 16),
        ] {
            let mut words: [u64; returned::WORDS] = words();
            words[word] = bad;
            assert_eq!(Returned::parse(&words), Err(Unreadable));
        }
    }

    #[test]
    fn the_best_log_s_group_says_who_is_needed_and_who_is_in() {
        let all = [0, 1, 2];
        let of = |logs: &[(u16, Returned)]| refound(&logs.iter().map(|(node, log)| (back(*node), log.clone())).collect::<Vec<_>>());
        assert_eq!(of(&[]), Err(Lack::Logs));
        let Err(lack) = of(&[(1, log(4, 50, &all))]) else { panic!("one of three is no majority") };
        assert_eq!(
            lack.to_string(),
            "of nodes [0, 1, 2], the group of the newest log, only [1] are here with their data, but 2 are needed"
        );
        let two = of(&[(1, log(4, 50, &all)), (0, log(3, 80, &all))]).expect("a majority");
        assert_eq!((two.members, two.number, two.complete), (vec![back(0), back(1)], ViewNumber(15), false));
        // A higher number takes precedence over a longer log: in the end, node 2 was alone.
        let left = of(&[(0, log(4, 90, &all)), (1, log(4, 90, &all)), (2, log(6, 60, &[2]))]).expect("it is its own majority");
        assert_eq!((left.members, left.number, left.complete), (vec![back(2)], ViewNumber(17), true));
        let Err(_) = of(&[(0, log(4, 90, &[1, 2])), (1, log(4, 91, &[1, 2]))]) else { panic!("node 0 had been removed") };
        // A process that has begun another log since is not the process that the group lists.
        let other = ProcessId { incarnation: Incarnation(9 << 16), ..born(1) };
        let mixed = refound(&[(back(0), log(4, 50, &all)), (other, log(4, 50, &all))]);
        assert!(matches!(mixed, Err(Lack::Majority { .. })));
    }

    #[test]
    fn one_that_has_the_best_log_is_in_until_a_member_of_its_group_has_it_too() {
        let of = |logs: &[(u16, Returned)]| refound(&logs.iter().map(|(node, log)| (back(*node), log.clone())).collect::<Vec<_>>());
        // Node 0 led, and removed itself from the group of two; node 1 had ended before it heard of it.
        let alone = of(&[(0, log(4, 91, &[1])), (1, log(4, 90, &[0, 1])), (2, log(4, 80, &[0, 1, 2]))]).expect("node 1 is the whole group");
        assert_eq!((&alone.members[..], alone.complete, alone.guest), (&[back(0), back(1)][..], true, Some(back(0))));
        // Node 0 ends as soon as node 1 has its log, and node 1 must then be able to decide alone.
        let both = Roles::COORDINATOR.with(Roles::REPLICA);
        let roles = |of: Roles| {
            alone
                .view_members(|id| Some(Member::new(id, if id == back(1) { of } else { both })))
                .iter()
                .map(|m| m.roles)
                .collect::<Vec<_>>()
        };
        assert_eq!(roles(both), [Roles::REPLICA, both]);
        assert_eq!(roles(Roles::REPLICA), [both, Roles::REPLICA], "no other member is a coordinator");
        let Err(_) = of(&[(0, log(4, 91, &[1])), (2, log(4, 80, &[0, 1, 2]))]) else { panic!("nobody can go on without node 1") };
        let known = of(&[(0, log(4, 91, &[1])), (1, log(4, 91, &[1]))]).expect("node 1 is the whole group");
        assert_eq!((&known.members[..], known.guest), (&[back(1)][..], None), "it has the log itself");
        // An earlier return of the log's owner may still be listed while it dies.
        let again = ProcessId { incarnation: Incarnation(back(0).incarnation.0 + 1), ..back(0) };
        let twice = [(again, log(4, 91, &[1])), (back(0), log(4, 91, &[1])), (back(1), log(4, 90, &[0, 1]))];
        assert_eq!(refound(&twice).expect("node 1 is the whole group").members, [again, back(1)]);
    }

    #[test]
    fn a_member_that_is_connected_twice_has_one_voice() {
        let again = |n: u64| ProcessId { incarnation: Incarnation(born(2).incarnation.0 + n), ..born(2) };
        let group = log(5, 9, &[1, 2, 3, 4, 5]);
        let present = [(back(1), group.clone()), (again(1), group.clone()), (again(2), group.clone())];
        let Err(Lack::Majority { present: counted, .. }) = refound(&present) else { panic!("two of five") };
        assert_eq!(counted, [1, 2]);
        let founded = refound(&[&present[..], &[(back(3), group)]].concat()).expect("three of five");
        assert_eq!(founded.members, [back(1), again(2), back(3)], "the latest return of each");
    }
}
