//! The group: the processes whose majority decides, and those that were removed (Mu section 5.4, DARE section 3.4).

use crate::basics::ballot::majority;
use crate::basics::layout::{LAST_VIEW, MAX_MEMBERS};
use crate::basics::{ProcessId, ViewNumber};
use martlet_fabric::{Incarnation, NodeId};

/// How many removed processes are remembered, so that the members ignore them.
const REMEMBERED: usize = 16;
const ID_BYTES: usize = 10;

/// How far a change of a group's size has come (DARE section 3.4).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// There is none.
    #[default]
    Stable,
    /// One more process is joining, for which there is no place yet. It recovers the state and takes part in nothing.
    Extended(ProcessId),
    /// Two groups decide, each by a majority of its own: the one before the change and the one after it. The members are those of both.
    Transitional {
        /// The members before the change.
        old: Vec<ProcessId>,
        /// The members after it.
        new: Vec<ProcessId>,
        /// The places after it; 0: as many as members.
        places: u8,
    },
}

/// A group of replicas. Two groups that follow each other in the log either differ by one process, so that their majorities meet, or one of them is in
/// [transition](Phase::Transitional).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    members: Vec<ProcessId>,
    removed: Vec<ProcessId>,
    view: ViewNumber,
    /// The member to which leadership was handed, while it belongs to the group.
    first: Option<ProcessId>,
    /// DARE's P; 0: as many as members.
    places: u8,
    /// How many places an operator has asked for; 0: as many as members.
    wanted: u8,
    phase: Phase,
}

impl Group {
    /// The group of these processes. Panics when there are more than [`MAX_MEMBERS`] or one is listed twice.
    pub fn new(mut members: Vec<ProcessId>) -> Group {
        members.sort_unstable();
        members.dedup();
        martlet_fabric::invariant!(members.len() <= MAX_MEMBERS, "a group of {} processes; at most {MAX_MEMBERS}", members.len());
        Group { members, ..Group::default() }
    }

    /// The same group, made as of this view.
    #[must_use]
    pub fn as_of(self, view: ViewNumber) -> Group {
        Group { view, ..self }
    }

    /// The same group, in which this member is preferred as leader.
    #[must_use]
    pub fn led_by(self, process: ProcessId) -> Group {
        martlet_fabric::invariant!(self.contains(process), "{process} is to lead a group to which it does not belong");
        Group { first: Some(process), ..self }
    }

    /// The member that is preferred as leader, whatever its id; `None`: the ids alone determine the order.
    pub fn first(&self) -> Option<ProcessId> {
        self.first
    }

    /// The same group, with its members' names replaced by those by which they are known.
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

    /// Whether this group, which is in force at `me`, needs a process that would like to end. A voter is needed until a group without it is committed; a leader
    /// that removes itself is needed until it has seen that. If none of the other members may go on, waiting is pointless.
    pub fn needs(&self, me: ProcessId, leads: bool, committed: Option<&Group>, mut fellows: impl Iterator<Item = ProcessId>) -> bool {
        let votes = self.contains(me) || committed.is_some_and(|group| group.contains(me));
        (leads || votes) && fellows.any(|fellow| self.contains(fellow))
    }

    /// Whether a process belongs to it.
    pub fn contains(&self, process: ProcessId) -> bool {
        self.members.binary_search(&process).is_ok()
    }

    /// Whether a process belonged to the group and was removed recently enough to be remembered.
    pub fn has_removed(&self, process: ProcessId) -> bool {
        self.removed.contains(&process)
    }

    /// How many make a majority of its places, filled or not (TRAPS 2). In transition, the larger of the two.
    pub fn majority(&self) -> usize {
        self.electorates().map(|(_, quorum)| quorum).max().expect("there is one electorate at least")
    }

    /// The processes that decide, and how many of them are needed: one pair, or in transition two, the group before the change first (DARE section 3.4).
    pub fn electorates(&self) -> impl Iterator<Item = (&[ProcessId], usize)> {
        let of = |members: &[ProcessId], places: u8| majority(if places == 0 { members.len() } else { usize::from(places) });
        let (first, second) = match &self.phase {
            Phase::Transitional { old, new, places } => ((&old[..], of(old, self.places)), Some((&new[..], of(new, *places)))),
            Phase::Stable | Phase::Extended(_) => ((&self.members[..], of(&self.members, self.places)), None),
        };
        [Some(first), second].into_iter().flatten()
    }

    /// Whether those that satisfy `of` are a majority; in transition, of both groups.
    pub fn is_majority(&self, of: impl Fn(ProcessId) -> bool) -> bool {
        self.electorates().all(|(members, quorum)| members.iter().filter(|id| of(**id)).count() >= quorum)
    }

    /// How many places there are: DARE's P. In transition, the number before the change.
    pub fn places(&self) -> usize {
        let members = if let Phase::Transitional { old, .. } = &self.phase { old } else { &self.members };
        if self.places == 0 { members.len() } else { self.places.into() }
    }

    /// Whether places remain when processes leave. Otherwise there are as many as members.
    pub fn has_places(&self) -> bool {
        self.places > 0
    }

    /// How many places an operator has asked for; 0: as many as members.
    pub fn wanted(&self) -> u8 {
        self.wanted
    }

    /// Whether it has more places than an operator has asked for, or has places of its own although there should be as many as members.
    pub fn is_larger_than_wanted(&self) -> bool {
        self.has_places() && (self.wanted == 0 || self.places() > self.wanted.into())
    }

    /// How far a change of its size has come.
    pub fn phase(&self) -> &Phase {
        &self.phase
    }

    /// The same group, marked to have `wanted` places, or as many as members if that is 0. The number of places in force does not change.
    #[must_use]
    pub fn wanting(&self, wanted: u8) -> Group {
        let places = if wanted == 0 && self.places() == self.members.len() { 0 } else { self.places() as u8 };
        Group { wanted, places, ..self.clone() }
    }

    /// The first phase of adding a process to a full group: the process can recover. `None` when there is room for it, a change is under way, or it [cannot
    /// join](Group::with).
    pub fn extended(&self, process: ProcessId) -> Option<Group> {
        let full = self.phase == Phase::Stable && self.places() == self.members.len();
        let may_come = !self.contains(process) && !self.has_removed(process) && self.members.len() < MAX_MEMBERS;
        (full && may_come).then(|| Group { phase: Phase::Extended(process), ..self.clone() })
    }

    /// The second phase: majorities of both the group with and the group without the joining process. `None` when none is joining.
    pub fn enlarged(&self) -> Option<Group> {
        let Phase::Extended(process) = self.phase else { return None };
        let mut members = self.members.clone();
        members.push(process);
        members.sort_unstable();
        let places = if self.places == 0 { 0 } else { self.places + 1 };
        let phase = Phase::Transitional { old: self.members.clone(), new: members.clone(), places };
        Some(Group { members, phase, ..self.clone() })
    }

    /// The first phase of decreasing the size to so many places, or to as many as members if that is 0. Processes for which there is no place are removed, from
    /// the end, and `last` only after all others. `None` when there are not more places now, or a change is under way.
    pub fn decreased(&self, places: u8, last: ProcessId) -> Option<Group> {
        let left = if places == 0 { self.members.len() } else { places.into() };
        if self.phase != Phase::Stable || self.places() < left || (self.places() == left && !(places == 0 && self.has_places())) {
            return None;
        }
        let mut new = self.members.clone();
        while new.len() > left {
            let at = new.iter().rposition(|id| *id != last)?;
            new.remove(at);
        }
        Some(Group { phase: Phase::Transitional { old: self.members.clone(), new, places }, ..self.clone() })
    }

    /// The last phase: only the group after the change, or, if a process was still recovering, the group without it. `None` when no change is under way.
    pub fn stabilised(&self) -> Option<Group> {
        let Phase::Transitional { old, new, places } = &self.phase else {
            return (self.phase != Phase::Stable).then(|| Group { phase: Phase::Stable, ..self.clone() });
        };
        let mut group = Group { members: new.clone(), places: *places, phase: Phase::Stable, ..self.clone() };
        group.first = group.first.filter(|first| new.contains(first));
        old.iter().filter(|id| !new.contains(id)).for_each(|id| group.note_removed(*id));
        Some(group)
    }

    fn note_removed(&mut self, process: ProcessId) {
        if self.removed.len() == REMEMBERED {
            self.removed.remove(0);
        }
        self.removed.push(process);
    }

    /// The group with one more process; `None` when it is a member already, was removed, or there is no room.
    pub fn with(&self, process: ProcessId) -> Option<Group> {
        let full = self.members.len() == MAX_MEMBERS || (self.has_places() && self.members.len() >= self.places());
        if self.contains(process) || self.has_removed(process) || full || self.phase != Phase::Stable {
            return None;
        }
        let mut group = self.clone();
        group.members.push(process);
        group.members.sort_unstable();
        Some(group)
    }

    /// The group without this process; `None` when it is no member or the last one, or a change of the size is under way.
    pub fn without(&self, process: ProcessId) -> Option<Group> {
        let at = self.members.binary_search(&process).ok()?;
        if self.members.len() == 1 || self.phase != Phase::Stable {
            return None;
        }
        let mut group = self.clone();
        group.members.remove(at);
        group.first = group.first.filter(|first| *first != process);
        group.note_removed(process);
        Some(group)
    }

    /// Appends it to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        // Encoded as its place in the list, so that it is always a member.
        let first = self.first.and_then(|first| self.members.binary_search(&first).ok()).map_or(0, |at| at as u8 + 1);
        out.extend([self.members.len() as u8, self.removed.len() as u8, first]);
        out.extend_from_slice(&self.view.0.to_le_bytes());
        self.members.iter().chain(&self.removed).for_each(|id| encode_id(*id, out));
        if self.places == 0 && self.wanted == 0 && self.phase == Phase::Stable {
            return;
        }
        out.extend([self.places, self.wanted]);
        match &self.phase {
            Phase::Stable => {}
            Phase::Extended(process) => encode_id(*process, out),
            Phase::Transitional { old, new, places } => {
                out.push(*places);
                out.extend([old, new].map(|these| self.places_of(these)).map(u16::to_le_bytes).as_flattened());
            }
        }
    }

    /// Which members these are, a bit each.
    fn places_of(&self, these: &[ProcessId]) -> u16 {
        self.members.iter().enumerate().filter(|(_, id)| these.contains(id)).map(|(at, _)| 1 << at).sum()
    }

    /// Reads what [`Group::encode`] wrote; `None` for anything else.
    pub fn decode(bytes: &[u8]) -> Option<Group> {
        let (&[members, removed, first], rest) = bytes.split_first_chunk()?;
        let (view, rest) = rest.split_first_chunk()?;
        let view = ViewNumber(u64::from_le_bytes(*view));
        let (members, removed, first) = (usize::from(members), usize::from(removed), usize::from(first));
        let bounded = (1..=MAX_MEMBERS).contains(&members) && removed <= REMEMBERED && first <= members && view.0 <= LAST_VIEW;
        if !bounded || rest.len() < (members + removed) * ID_BYTES {
            return None;
        }
        let (ids, rest) = rest.split_at((members + removed) * ID_BYTES);
        let mut ids: Vec<ProcessId> = ids.as_chunks().0.iter().map(decode_id).collect();
        let removed = ids.split_off(members);
        let first = first.checked_sub(1).map(|at| ids[at]);
        let group = Group { members: ids, removed, view, first, ..Group::default() };
        if group.members.is_sorted_by(|a, b| a < b) { group.with_size(rest) } else { None }
    }

    /// The same group, with the size that these bytes encode.
    fn with_size(self, bytes: &[u8]) -> Option<Group> {
        let Some((&[places, wanted], rest)) = bytes.split_first_chunk() else { return bytes.is_empty().then_some(self) };
        let fits = |members: usize, places: u8| places == 0 || (members..=MAX_MEMBERS).contains(&places.into());
        let phase = match *rest {
            [] => Phase::Stable,
            [places, old0, old1, new0, new1] => {
                let these = |bits: u16| self.members.iter().enumerate().filter(move |(at, _)| bits >> at & 1 == 1).map(|(_, id)| *id);
                let (old, new) = (u16::from_le_bytes([old0, old1]), u16::from_le_bytes([new0, new1]));
                let known = u16::MAX >> (MAX_MEMBERS - self.members.len());
                if old == 0 || new == 0 || old | new != known || !fits(new.count_ones() as usize, places) {
                    return None;
                }
                Phase::Transitional { old: these(old).collect(), new: these(new).collect(), places }
            }
            _ => {
                let process = decode_id(rest.try_into().ok()?);
                if self.contains(process) || self.members.len() == MAX_MEMBERS {
                    return None;
                }
                Phase::Extended(process)
            }
        };
        let group = Group { places, wanted, phase, ..self };
        let before = if let Phase::Transitional { old, .. } = &group.phase { old.len() } else { group.members.len() };
        let changed = places > 0 || wanted > 0 || group.phase != Phase::Stable;
        (changed && fits(before, places) && usize::from(wanted) <= MAX_MEMBERS).then_some(group)
    }
}

fn encode_id(id: ProcessId, out: &mut Vec<u8>) {
    out.extend_from_slice(&id.node.0.to_le_bytes());
    out.extend_from_slice(&id.incarnation.0.to_le_bytes());
}

fn decode_id(bytes: &[u8; ID_BYTES]) -> ProcessId {
    let ([node @ .., _, _, _, _, _, _, _, _], [_, _, incarnation @ ..]) = (bytes, bytes);
    ProcessId { node: NodeId(u16::from_le_bytes(*node)), incarnation: Incarnation(u64::from_le_bytes(*incarnation)) }
}

const _: () = assert!(MAX_MEMBERS == u16::BITS as usize, "a bit for each member");

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
    fn dare_3_4_removing_is_one_phase_and_keeps_the_places() {
        let group = Group::new((0..5).map(id).collect()).wanting(5);
        assert_eq!((group.places(), group.wanted(), group.majority()), (5, 5, 3));
        let three = group.without(id(1)).and_then(|group| group.without(id(3))).expect("they were there");
        assert_eq!((three.places(), three.majority(), three.members().len()), (5, 3, 3), "all that are left have to agree");
        let four = three.with(id(7)).expect("there is a place");
        assert_eq!((four.places(), four.phase()), (5, &Phase::Stable));
        assert_eq!(group.with(id(7)), None, "a full group has to be extended");
        assert_eq!(three.extended(id(7)), None, "one with a place has not");
    }

    #[test]
    fn dare_3_4_adding_to_a_full_group_is_three_phases_and_takes_both_majorities_between() {
        for wanted in [0, 4] {
            let group = Group::new((0..3).map(id).collect()).wanting(wanted);
            let extended = group.extended(id(9)).expect("it is full");
            assert_eq!((extended.majority(), extended.contains(id(9))), (2, false), "the new one takes part in nothing");
            assert_eq!(extended.extended(id(8)), None, "one at a time");
            assert_eq!(extended.without(id(1)), None, "from a stable group only");
            let both = extended.enlarged().expect("it comes");
            let agree = |these: &[u16]| both.is_majority(|member| these.iter().any(|n| id(*n) == member));
            assert!(!agree(&[0, 1]), "no majority of four");
            assert!(!agree(&[0, 9]) && agree(&[0, 1, 9]) && agree(&[0, 1, 2]));
            let stable = both.stabilised().expect("it ends");
            assert_eq!((stable.places(), stable.members().len(), stable.majority(), stable.phase()), (4, 4, 3, &Phase::Stable));
            assert_eq!(extended.stabilised(), Some(group), "one that does not come leaves no trace");
        }
    }

    #[test]
    fn dare_3_4_shrinks_from_the_end_and_the_leader_last() {
        let group = Group::new((0..5).map(id).collect()).wanting(3);
        let both = group.decreased(3, id(4)).expect("there are more");
        let agree = |these: &[u16]| both.is_majority(|member| these.iter().any(|n| id(*n) == member));
        assert!(agree(&[0, 1, 2]) && !agree(&[0, 1]) && !agree(&[0, 2, 3]), "two of the three that stay, and three of the five");
        let three = both.stabilised().expect("it ends");
        assert_eq!((three.members(), three.places(), three.majority()), (&[id(0), id(1), id(4)][..], 3, 2));
        assert!(three.has_removed(id(2)) && three.has_removed(id(3)));
        assert_eq!(three.decreased(3, id(4)), None, "it is done");
        // Empty places are removed first; then the group's size follows its members again.
        let empty = group.without(id(0)).and_then(|group| group.without(id(1))).expect("they were there");
        let follows = empty.wanting(0).decreased(0, id(4)).and_then(|both| both.stabilised()).expect("two places are empty");
        assert_eq!((follows.members().len(), follows.majority(), follows.has_places()), (3, 2, false));
    }

    /// Whatever phase follows another, no two disjoint sets of processes can both decide, in any group of up to five with whatever places.
    #[test]
    fn dare_3_4_majorities_of_any_two_groups_that_follow_each_other_meet() {
        let all: Vec<ProcessId> = (0..6).map(id).collect();
        let deciding = |group: &Group| -> Vec<u32> {
            let has = |set: u32, member: ProcessId| all.iter().position(|id| *id == member).is_some_and(|at| set >> at & 1 == 1);
            (0..1u32 << all.len()).filter(|set| group.is_majority(|member| has(*set, member))).collect()
        };
        let mut groups: Vec<Group> = Vec::new();
        for n in 1..=5u16 {
            for wanted in 0..=6 {
                groups.push(Group::new((0..n).map(id).collect()).wanting(wanted));
            }
        }
        let (mut at, mut pairs) = (0, 0);
        while at < groups.len() {
            let group = groups[at].clone();
            at += 1;
            let mut next: Vec<Group> = vec![group.wanting(0), group.wanting(5)];
            next.extend(all.iter().flat_map(|id| [group.with(*id), group.without(*id), group.extended(*id)]).flatten());
            next.extend([group.enlarged(), group.stabilised()].into_iter().flatten());
            next.extend((0..=5).filter_map(|places| group.decreased(places, id(0))));
            let before = deciding(&group);
            for after in next {
                assert!(deciding(&after).iter().all(|b| before.iter().all(|a| a & b != 0)), "{group:?} and {after:?}");
                pairs += 1;
                // The removed processes are forgotten, so that the search ends.
                let known = Group { removed: Vec::new(), ..after };
                if !groups.contains(&known) && groups.len() < 600 {
                    groups.push(known);
                }
            }
        }
        assert!(pairs > 3000, "{pairs}");
    }

    #[test]
    fn groups_of_any_size_and_phase_come_back_as_they_went() {
        let group = Group::new((0..3).map(id).collect());
        let fixed = group.wanting(3);
        let extended = group.extended(id(7)).expect("full");
        let both = fixed.wanting(5).extended(id(7)).and_then(|group| group.enlarged()).expect("full");
        let fewer = Group::new((0..16).map(id).collect()).wanting(2).decreased(2, id(1)).expect("more");
        for group in [group, fixed, extended, both, fewer] {
            let mut bytes = Vec::new();
            group.encode(&mut bytes);
            assert_eq!(Group::decode(&bytes), Some(group.clone()));
            bytes.push(1);
            assert_eq!(Group::decode(&bytes), None, "{group:?} with a byte more");
        }
        let mut bytes = Vec::new();
        Group::new((0..3).map(id).collect()).encode(&mut bytes);
        for rest in [&[0u8, 0][..], &[2, 2], &[17, 3], &[3, 17], &[0, 0, 3, 7, 0, 8, 0], &[0, 0, 3, 0, 0, 7, 0], &[0, 0, 2, 7, 0, 7, 0]] {
            assert_eq!(Group::decode(&[&bytes[..], rest].concat()), None, "{rest:?}");
        }
    }

    #[test]
    fn one_that_leads_first_does_so_as_long_as_it_belongs_to_it() {
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
