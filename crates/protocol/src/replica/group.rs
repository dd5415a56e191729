//! The group: the processes whose majority decides, and those who were removed (Mu section 5.4, DARE section 3.4).

use crate::basics::ballot::majority;
use crate::basics::layout::{LAST_VIEW, MAX_MEMBERS};
use crate::basics::{ProcessId, ViewNumber};
use martlet_fabric::{Incarnation, NodeId};

/// Removed processes that are remembered, so that nobody listens to them any more.
const REMEMBERED: usize = 16;
const ID_BYTES: usize = 10;

/// A group of replicas. Two groups that follow each other in the log differ by one process, so that their majorities meet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    members: Vec<ProcessId>,
    removed: Vec<ProcessId>,
    view: ViewNumber,
    /// Whom leadership was handed to, while it belongs to the group.
    first: Option<ProcessId>,
}

impl Group {
    /// The group of these processes. Panics when there are more than [`MAX_MEMBERS`] or one stands there twice.
    pub fn new(mut members: Vec<ProcessId>) -> Group {
        members.sort_unstable();
        members.dedup();
        martlet_fabric::invariant!(members.len() <= MAX_MEMBERS, "a group of {} processes; at most {MAX_MEMBERS}", members.len());
        Group { members, removed: Vec::new(), view: ViewNumber(0), first: None }
    }

    /// The same group, made as of this view.
    #[must_use]
    pub fn as_of(self, view: ViewNumber) -> Group {
        Group { view, ..self }
    }

    /// The same group, in which this one of its processes leads before all others.
    #[must_use]
    pub fn led_by(self, process: ProcessId) -> Group {
        martlet_fabric::invariant!(self.contains(process), "{process} is to lead a group to which it does not belong");
        Group { first: Some(process), ..self }
    }

    /// The member that leads before all others, whatever its id; `None`: the ids alone say.
    pub fn first(&self) -> Option<ProcessId> {
        self.first
    }

    /// The same group, by the names that its members go by.
    #[must_use]
    pub fn known_by(self, known: impl Fn(ProcessId) -> ProcessId) -> Group {
        Group { view: self.view, first: self.first.map(&known), ..Group::new(self.members.into_iter().map(&known).collect()) }
    }

    /// The view that its maker knew; 0 for none.
    pub fn view(&self) -> ViewNumber {
        self.view
    }

    /// Its processes, by id.
    pub fn members(&self) -> &[ProcessId] {
        &self.members
    }

    /// Whether a process belongs to it.
    pub fn contains(&self, process: ProcessId) -> bool {
        self.members.binary_search(&process).is_ok()
    }

    /// Whether a process has belonged to it, and not long ago was removed.
    pub fn has_removed(&self, process: ProcessId) -> bool {
        self.removed.contains(&process)
    }

    /// How many make a majority (TRAPS 2).
    pub fn majority(&self) -> usize {
        majority(self.members.len())
    }

    /// The group with one process more; `None` when it is there already, was removed, or there is no room.
    pub fn with(&self, process: ProcessId) -> Option<Group> {
        if self.contains(process) || self.has_removed(process) || self.members.len() == MAX_MEMBERS {
            return None;
        }
        let mut group = self.clone();
        group.members.push(process);
        group.members.sort_unstable();
        Some(group)
    }

    /// The group with one process less; `None` when it is not there, or the last.
    pub fn without(&self, process: ProcessId) -> Option<Group> {
        let at = self.members.binary_search(&process).ok()?;
        if self.members.len() == 1 {
            return None;
        }
        let mut group = self.clone();
        group.members.remove(at);
        group.first = group.first.filter(|first| *first != process);
        if group.removed.len() == REMEMBERED {
            group.removed.remove(0);
        }
        group.removed.push(process);
        Some(group)
    }

    /// Appends it to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        // By its place, so that it is one of them.
        let first = self.first.and_then(|first| self.members.binary_search(&first).ok()).map_or(0, |at| at as u8 + 1);
        out.extend([self.members.len() as u8, self.removed.len() as u8, first]);
        out.extend_from_slice(&self.view.0.to_le_bytes());
        for id in self.members.iter().chain(&self.removed) {
            out.extend_from_slice(&id.node.0.to_le_bytes());
            out.extend_from_slice(&id.incarnation.0.to_le_bytes());
        }
    }

    /// Reads what [`Group::encode`] wrote; `None` for anything else.
    pub fn decode(bytes: &[u8]) -> Option<Group> {
        let (&[members, removed, first], rest) = bytes.split_first_chunk()?;
        let (view, rest) = rest.split_first_chunk()?;
        let view = ViewNumber(u64::from_le_bytes(*view));
        let (members, removed, first) = (usize::from(members), usize::from(removed), usize::from(first));
        let bounded = (1..=MAX_MEMBERS).contains(&members) && removed <= REMEMBERED && first <= members && view.0 <= LAST_VIEW;
        if !bounded || rest.len() != (members + removed) * ID_BYTES {
            return None;
        }
        let mut ids: Vec<ProcessId> = rest
            .chunks_exact(ID_BYTES)
            .map(|id| ProcessId {
                node: NodeId(u16::from_le_bytes(id[..2].try_into().expect("2 bytes"))),
                incarnation: Incarnation(u64::from_le_bytes(id[2..].try_into().expect("8 bytes"))),
            })
            .collect();
        let removed = ids.split_off(members);
        let first = first.checked_sub(1).map(|at| ids[at]);
        ids.is_sorted_by(|a, b| a < b).then_some(Group { members: ids, removed, view, first })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u16) -> ProcessId {
        ProcessId { node: NodeId(n), incarnation: Incarnation(u64::from(n) + 100) }
    }

    #[test]
    fn it_changes_by_one_and_remembers_who_left() {
        let group = Group::new(vec![id(3), id(1), id(2)]);
        assert_eq!(group.majority(), 2);
        assert_eq!(group.with(id(1)), None, "it is there already");
        let four = group.with(id(0)).expect("room");
        assert_eq!((four.majority(), four.members()[0]), (3, id(0)));
        let three = four.without(id(2)).expect("it was there");
        assert!(three.has_removed(id(2)) && !three.contains(id(2)));
        assert_eq!(three.with(id(2)), None, "who was removed comes back as a new incarnation only");
        assert_eq!(Group::new(vec![id(1)]).without(id(1)), None, "nobody would be left");
    }

    #[test]
    fn who_leads_first_does_so_as_long_as_it_belongs_to_it() {
        let group = Group::new((0..3).map(id).collect()).led_by(id(2));
        assert_eq!(group.with(id(3)).and_then(|g| g.without(id(1))).and_then(|g| g.first()), Some(id(2)));
        assert_eq!(group.without(id(2)).expect("it was there").first(), None);
    }

    #[test]
    fn it_comes_back_as_it_went_and_nonsense_does_not() {
        let group = Group::new((0..5).map(id).collect()).without(id(2)).expect("it was there").as_of(ViewNumber(9)).led_by(id(4));
        let mut bytes = Vec::new();
        group.encode(&mut bytes);
        assert_eq!(Group::decode(&bytes), Some(group));
        for cut in 0..bytes.len() {
            assert_eq!(Group::decode(&bytes[..cut]), None);
        }
        let mut ahead = bytes.clone();
        ahead[3..11].fill(0xff);
        assert_eq!(Group::decode(&ahead), None, "as of a view that never comes");
        bytes[2] = 5;
        assert_eq!(Group::decode(&bytes), None, "the fifth of four leads");
        bytes[2] = 4;
        bytes.swap(11, 11 + ID_BYTES);
        assert_eq!(Group::decode(&bytes), None, "out of order");
        let mut rng = fastrand::Rng::with_seed(5);
        for _ in 0..10_000 {
            let bytes: Vec<u8> = (0..rng.usize(0..60)).map(|_| rng.u8(0..4)).collect();
            let _ = Group::decode(&bytes);
        }
    }
}
