//! What the next view looks like: the leader's wishes applied to the current view.

use super::view::{Departed, Evidence, Member, Roles, View};
use crate::basics::layout::MAX_MEMBERS;
use crate::basics::{Canary, ProcessId, ViewNumber, ballot};
use crate::consensus::Required;
use martlet_fabric::Levels;

/// What a leader has been asked for and has not got into a view yet.
#[derive(Clone, Debug, Default)]
pub struct Wishes {
    /// Members to remove, with the evidence against them.
    pub remove: Vec<(ProcessId, Evidence)>,
    /// Processes to take in.
    pub join: Vec<Member>,
    /// Learners that have the whole state.
    pub promote: Vec<ProcessId>,
    /// A new length of leases.
    pub lease_ns: Option<u64>,
    /// A higher feature level.
    pub level: Option<u8>,
    /// Members whose programs support other levels than the view says, according to the members themselves.
    pub levels: Vec<(ProcessId, Levels)>,
    /// Any further view will do: leases on the current one cannot be renewed, since the next slot is frozen and never looks empty again.
    pub renew: bool,
}

impl Wishes {
    /// Whether nothing is wished for.
    pub fn is_empty(&self) -> bool {
        let of_settings = self.lease_ns.is_none() && self.level.is_none() && self.levels.is_empty() && !self.renew;
        self.remove.is_empty() && self.join.is_empty() && self.promote.is_empty() && of_settings
    }

    /// Wishes for `process` to be removed. Stronger evidence replaces weaker, and an eviction replaces a presumption, since a presumption may be
    /// withdrawn.
    pub fn remove(&mut self, process: ProcessId, evidence: Evidence) {
        let presumed = |known| known == Evidence::Presumed && evidence == Evidence::Evicted;
        match self.remove.iter_mut().find(|(p, _)| *p == process) {
            Some((_, known)) if (evidence.releases_leases() && !known.releases_leases()) || presumed(*known) => *known = evidence,
            Some(_) => {}
            None => self.remove.push((process, evidence)),
        }
    }

    /// Removes members that are out of reach before those within reach: the last replica and the last coordinator are kept, and should be ones that
    /// can be asked.
    pub fn prefer(&mut self, in_reach: &[ProcessId]) {
        self.remove.sort_by_key(|(process, _)| in_reach.contains(process));
    }

    /// Wishes for `member` to be taken in.
    pub fn join(&mut self, member: Member) {
        match self.join.iter_mut().find(|m| m.id.node == member.id.node) {
            Some(known) if known.id.incarnation <= member.id.incarnation => *known = member,
            Some(_) => {}
            None => self.join.push(member),
        }
    }

    /// A member reports which levels its program can work at.
    pub fn note_levels(&mut self, process: ProcessId, levels: Levels) {
        self.levels.retain(|(p, _)| *p != process);
        self.levels.push((process, levels));
    }

    /// Wishes for a learner to be promoted to replica.
    pub fn promote(&mut self, process: ProcessId) {
        if !self.promote.contains(&process) {
            self.promote.push(process);
        }
    }

    /// Another primary leads: what its predecessor had seen of the learners no longer holds, since they learn anew.
    pub fn forget_promotions(&mut self) {
        self.promote.clear();
    }

    /// Drops wishes that `view` has fulfilled or made pointless.
    pub fn settle(&mut self, view: &View) {
        self.remove.retain(|(p, _)| view.member(*p).is_some());
        self.join.retain(|m| view.member(m.id).is_none() && !view.members.iter().any(|o| o.id.node == m.id.node && o.id > m.id));
        self.promote.retain(|p| view.member(*p).is_some_and(|m| m.roles.has(Roles::LEARNER)));
        self.lease_ns = self.lease_ns.filter(|ns| *ns != view.lease_ns);
        // A level that some member cannot work at is forgotten: once all can, the process that wants it asks again.
        self.level = self.level.filter(|level| *level > view.level && all_have(&view.members, *level));
        self.levels.retain(|(p, levels)| view.member(*p).is_some_and(|m| m.levels != *levels) && levels.has(view.level));
        self.renew = false;
    }
}

/// What the leader contributes to the view that it proposes, in addition to the wishes.
#[derive(Clone, Copy, Debug)]
pub struct Leader {
    /// The leader itself.
    pub id: ProcessId,
    /// It has known the current view for so long that no lease on an older one can be left.
    pub old_leases_over: bool,
    /// Another coordinator, which is not suspected here, can decide the leader's own removal.
    pub relieved: bool,
}

/// The view after `view` that fulfils the wishes, or `None` when they change nothing.
///
/// - No leader decides its own removal while another coordinator can: see "Removing a coordinator" in `docs/membership.md`.
/// - A leader that leaves removes no process that may be alive while another coordinator can: otherwise, where processes presume each other dead, the
///   departing leader would choose which of them keeps the state.
/// - Only as many new coordinators are taken in as the remaining ones can do without: see "How many new coordinators at once" there. The others wait.
///
/// `have_met`: whether a newcomer and a member, in this order, can use each other's memory. A newcomer that has not met all members waits.
///
/// `asked`: which view a newcomer knew in its latest request, if that is recent. A newcomer without a recent request waits, and so does one that
/// would be the second coordinator and did not know `view`.
pub fn next(
    view: &View,
    wishes: &Wishes,
    leader: Leader,
    have_met: impl Fn(ProcessId, ProcessId) -> bool,
    asked: impl Fn(ProcessId) -> Option<ViewNumber>,
) -> Option<View> {
    let old_leases_over = leader.old_leases_over;
    let leaves = wishes.remove.contains(&(leader.id, Evidence::Left));
    // While another coordinator can decide, a leaving leader removes no process that may take over from it: the other coordinator judges which
    // processes stay.
    let defers = leaves && leader.relieved;
    // A leader that is about to leave cannot be relied on as a coordinator or replica.
    let is_the_last = |members: &[Member], at| is_the_last(members, at, leader.id, leaves);
    let mut members = view.members.clone();
    let mut departed = view.departed.clone();
    if old_leases_over {
        departed.clear();
    } else {
        departed.retain(|d| !d.evidence.releases_leases());
    }
    // Members that are certainly gone come first: after that, one that is only presumed dead may turn out to hold the only state that is left.
    let others = wishes.remove.iter().filter(|(process, _)| *process != leader.id);
    let (certain, doubtful): (Vec<_>, Vec<_>) = others.partition(|(_, evidence)| evidence.releases_leases());
    for (process, evidence) in certain.into_iter().chain(doubtful) {
        if let Some(at) = members.iter().position(|m| m.id == process) {
            if !evidence.releases_leases() && (defers || is_the_last(&members, at) || !has_room(&departed)) {
                continue;
            }
            departed.push(Departed { id: members.remove(at).id, evidence });
        }
    }
    if leaves
        && !leader.relieved
        && let Some(at) = members.iter().position(|m| m.id == leader.id)
    {
        departed.push(Departed { id: members.remove(at).id, evidence: Evidence::Left });
    }
    for newcomer in &wishes.join {
        let Some(known) = asked(newcomer.id) else { continue };
        if !newcomer.levels.has(view.level) {
            continue;
        }
        let has_seat = |members: &[Member], replaced| has_seat(view, members, replaced, known == view.number);
        if !members.iter().all(|m| m.id.node == newcomer.id.node || have_met(newcomer.id, m.id)) {
            continue;
        }
        if let Some(at) = members.iter().position(|m| m.id.node == newcomer.id.node) {
            if members[at].id >= newcomer.id || members[at].id == leader.id {
                continue;
            }
            if is_the_last(&members, at) || !has_room(&departed) {
                continue;
            }
            let waits = newcomer.roles.has(Roles::COORDINATOR) && !has_seat(&members, Some(at));
            if waits && !goes_first(view, &members, at) {
                continue;
            }
            // A new incarnation of a node proves nothing about the old one, which may merely be paused.
            departed.push(Departed { id: members.remove(at).id, evidence: Evidence::Evicted });
            if waits {
                continue;
            }
        } else if newcomer.roles.has(Roles::COORDINATOR) && !has_seat(&members, None) {
            continue;
        }
        if members.len() < MAX_MEMBERS {
            members.push(newcomer.clone());
        }
    }
    for process in &wishes.promote {
        if let Some(at) = members.iter().position(|m| m.id == *process && m.roles.has(Roles::LEARNER)) {
            // To the end of the list: a process that became primary while this one learned stays primary.
            let mut member = members.remove(at);
            member.roles = member.roles.without(Roles::LEARNER).with(Roles::REPLICA);
            members.push(member);
        }
    }
    for (process, levels) in wishes.levels.iter().filter(|(_, levels)| levels.has(view.level)) {
        if let Some(member) = members.iter_mut().find(|m| m.id == *process) {
            member.levels = *levels;
        }
    }
    // The list has limited room. Processes that may still hold a lease stay on it; of those that are certainly dead, the oldest are dropped. At
    // worst, a process then waits for a lease that no process holds.
    while departed.len() > MAX_MEMBERS {
        let certain = departed.iter().position(|d| d.evidence.releases_leases());
        departed.remove(certain.expect("there is room for the others"));
    }
    let lease_ns = wishes.lease_ns.unwrap_or(view.lease_ns);
    let level = wishes.level.filter(|level| *level > view.level && all_have(&members, *level)).unwrap_or(view.level);
    let changed = members != view.members || level != view.level;
    if !changed && lease_ns == view.lease_ns && !wishes.renew {
        return None;
    }
    let fence_ns = if old_leases_over { view.lease_ns } else { view.lease_ns.max(view.fence_ns) };
    let compatible = !changed;
    // Leases carry over to a compatible view, so leases on the current view must be waited for as well.
    Some(View { number: view.number.next(), lease_ns, fence_ns, compatible, level, members, departed })
}

/// Which coordinators of `view` have to answer before `next` is proposed as its successor: of those that stay, as many as make a majority of the
/// coordinators of `next`, or all of them if they are fewer. None, if the only change is that certainly dead coordinators go. See "Coordinators that
/// answer" in `docs/membership.md`.
pub fn required(view: &View, next: &View) -> Required {
    let is_in = |of: &View, id| of.coordinators().any(|c| c.id == id);
    let certain = |id| next.departed.iter().any(|d| d.id == id && d.evidence == Evidence::Certain);
    let goes = view.coordinators().any(|c| !is_in(next, c.id) && !certain(c.id));
    let comes = next.coordinators().any(|c| !is_in(view, c.id));
    if !goes && !comes {
        return Required::default();
    }
    let of = view.coordinators().enumerate().filter(|(_, c)| is_in(next, c.id)).fold(0, |of, (at, _)| of | 1 << at);
    Required { of, count: ballot::majority(next.coordinators().count()).min(u64::count_ones(of) as usize) }
}

/// Whether one more new coordinator may be taken in, in place of the member at `replaced` if there is one. That is allowed if those that stay are
/// then a majority of all coordinators. It is also allowed if this is the only change among the coordinators and the newcomer is `aware` of the
/// current view: it has to be, since those that stay can then decide nothing without it.
fn has_seat(view: &View, members: &[Member], replaced: Option<usize>, aware: bool) -> bool {
    let after = members.iter().enumerate().filter(|(at, m)| Some(*at) != replaced && m.roles.has(Roles::COORDINATOR));
    let (stay, new): (Vec<_>, Vec<_>) = after.partition(|(_, m)| view.coordinators().any(|c| c.id == m.id));
    let goes = view.coordinators().any(|c| members.iter().enumerate().all(|(at, m)| Some(at) == replaced || m.id != c.id));
    (new.is_empty() && !goes && aware) || stay.len() >= ballot::majority(stay.len() + new.len() + 1)
}

/// Whether the old incarnation at `at`, whose seat the node's next incarnation wants, is to be removed in a view of its own. That is so if it is one
/// of two coordinators, because the other one may have to wait for its vote on this view. If the next incarnation ended meanwhile, the other
/// coordinator would be left with no partner to decide with.
fn goes_first(view: &View, members: &[Member], at: usize) -> bool {
    let of_two = view.coordinators().count() == 2 && view.coordinators().any(|c| c.id == members[at].id);
    of_two && view.coordinators().map(|c| c.id).eq(members.iter().filter(|m| m.roles.has(Roles::COORDINATOR)).map(|m| m.id))
}

/// Whether all `members` can work at a feature level.
pub(super) fn all_have(members: &[Member], level: u8) -> bool {
    Canary::EarlyLevel.is_planted() || members.iter().all(|m| m.levels.has(level))
}

/// Whether there is room to list one more departed process that may hold a lease. If there is none, that process is removed once those leases are
/// over.
fn has_room(departed: &[Departed]) -> bool {
    departed.iter().filter(|d| !d.evidence.releases_leases()).count() < MAX_MEMBERS
}

/// Whether this member is the last replica or the last coordinator, not counting a leader that leaves. No other member can take over from it, so it
/// is not cut off while it may still be alive: otherwise the state, or the means to decide another view, would be lost for a mere suspicion.
fn is_the_last(members: &[Member], at: usize, leader: ProcessId, leaves: bool) -> bool {
    let others = |role| members.iter().filter(move |m| m.roles.has(role) && m.id != members[at].id && !(leaves && m.id == leader));
    let last = |role| members[at].roles.has(role) && others(role).next().is_none();
    last(Roles::REPLICA) || last(Roles::COORDINATOR)
}

#[cfg(test)]
mod tests {
    use super::*;
    use martlet_fabric::{Incarnation, Levels, NodeId};

    fn id(node: u16, life: u64) -> ProcessId {
        ProcessId { node: NodeId(node), incarnation: Incarnation(life) }
    }

    fn member(node: u16, life: u64, roles: Roles) -> Member {
        Member::new(id(node, life), roles)
    }

    fn all_have_met(_: ProcessId, _: ProcessId) -> bool {
        true
    }

    /// Every newcomer knows view `three`.
    fn all_know(_: ProcessId) -> Option<ViewNumber> {
        Some(ViewNumber(7))
    }

    /// The next view as decided by a leader that the wishes do not concern.
    fn next(view: &View, wishes: &Wishes, old_leases_over: bool, have_met: impl Fn(ProcessId, ProcessId) -> bool) -> Option<View> {
        super::next(view, wishes, Leader { id: id(15, 1), old_leases_over, relieved: true }, have_met, |_| Some(view.number))
    }

    fn three() -> View {
        let roles = Roles::COORDINATOR.with(Roles::REPLICA);
        let members = (0..3).map(|n| member(n, 1, roles)).collect();
        View { number: ViewNumber(7), lease_ns: 10, fence_ns: 30, compatible: false, level: 1, members, departed: vec![] }
    }

    #[test]
    fn a_dead_primary_makes_the_next_in_seniority_primary() {
        let mut wishes = Wishes::default();
        wishes.remove(id(0, 1), Evidence::Presumed);
        wishes.remove(id(0, 1), Evidence::Certain);
        let next = next(&three(), &wishes, false, all_have_met).unwrap();
        assert_eq!((next.number, next.primary().unwrap().id), (ViewNumber(8), id(1, 1)));
        assert_eq!(next.departed, [Departed { id: id(0, 1), evidence: Evidence::Certain }]);
        assert_eq!(next.fence_ns, 30, "older and longer leases are still waited for");
        wishes.settle(&next);
        assert!(wishes.remove.is_empty());
    }

    #[test]
    fn the_only_coordinator_that_is_left_takes_in_nobody_until_the_others_have_gone() {
        let mut wishes = Wishes::default();
        [0, 2].iter().for_each(|node| wishes.remove(id(*node, 1), Evidence::Presumed));
        wishes.join(member(3, 1, Roles::COORDINATOR.with(Roles::LEARNER)));
        let alone = next(&three(), &wishes, false, all_have_met).unwrap();
        assert_eq!(
            alone.members.iter().map(|m| m.id).collect::<Vec<_>>(),
            [id(1, 1)],
            "others may be asked for their votes on this view, and that takes its time"
        );
        wishes.settle(&alone);
        let two = next(&alone, &wishes, false, all_have_met).unwrap();
        assert_eq!(two.members.iter().map(|m| m.id).collect::<Vec<_>>(), [id(1, 1), id(3, 1)], "on this it decides by itself");
    }

    #[test]
    fn the_second_coordinator_has_to_know_the_view_that_stands() {
        let mut alone = three();
        alone.members.truncate(1);
        let mut wishes = Wishes::default();
        wishes.join(member(3, 1, Roles::COORDINATOR.with(Roles::LEARNER)));
        let leader = Leader { id: id(0, 1), old_leases_over: true, relieved: false };
        let take_in =
            |view: &View, known: Option<u64>| super::next(view, &wishes, leader, all_have_met, |_| known.map(ViewNumber)).is_some();
        assert_eq!(
            [None, Some(6), Some(7)].map(|known| take_in(&alone, known)),
            [false, false, true],
            "what it asked before the view was decided says nothing of now"
        );
        assert_eq!([None, Some(0)].map(|known| take_in(&three(), known)), [false, true], "three go on without it");
    }

    #[test]
    fn a_decision_to_cut_off_stands_where_a_presumption_may_be_withdrawn() {
        let mut wishes = Wishes::default();
        wishes.remove(id(0, 1), Evidence::Presumed);
        wishes.remove(id(0, 1), Evidence::Evicted);
        assert_eq!(wishes.remove, [(id(0, 1), Evidence::Evicted)]);
        wishes.remove(id(0, 1), Evidence::Presumed);
        assert_eq!(wishes.remove, [(id(0, 1), Evidence::Evicted)]);
        wishes.remove(id(0, 1), Evidence::Certain);
        assert_eq!(wishes.remove, [(id(0, 1), Evidence::Certain)]);
    }

    #[test]
    fn trap_28_a_restarted_process_replaces_its_old_life_as_a_learner_at_the_end() {
        let mut wishes = Wishes::default();
        wishes.join(member(0, 2, Roles::LEARNER));
        let next = next(&three(), &wishes, true, all_have_met).unwrap();
        assert_eq!(next.members.last().unwrap().id, id(0, 2));
        assert_eq!(next.departed, [Departed { id: id(0, 1), evidence: Evidence::Evicted }]);
        assert_eq!(next.primary().unwrap().id, id(1, 1));
    }

    #[test]
    fn the_last_replica_is_cut_off_only_when_it_is_certainly_gone() {
        let mut view = three();
        view.members[1].roles = Roles::COORDINATOR.with(Roles::LEARNER);
        view.members[2].roles = Roles::COORDINATOR;
        for evidence in [Evidence::Presumed, Evidence::Evicted] {
            let mut wishes = Wishes::default();
            wishes.remove(id(0, 1), evidence);
            assert_eq!(next(&view, &wishes, true, all_have_met), None);
        }
        view.members[1].roles = Roles::COORDINATOR.with(Roles::REPLICA);
        let mut wishes = Wishes::default();
        wishes.remove(id(0, 1), Evidence::Presumed);
        wishes.remove(id(1, 1), Evidence::Left);
        assert_eq!(next(&view, &wishes, true, all_have_met).unwrap().primary().unwrap().id, id(0, 1), "whatever the order of the wishes");
        view.members[1].roles = Roles::COORDINATOR.with(Roles::LEARNER);
        let mut wishes = Wishes::default();
        wishes.join(member(0, 2, Roles::LEARNER));
        assert_eq!(next(&view, &wishes, true, all_have_met), None, "nor for the sake of its own next life");
        wishes.remove(id(0, 1), Evidence::Certain);
        let without = next(&view, &wishes, true, all_have_met).unwrap();
        assert_eq!((without.primary(), without.members.len()), (None, 3));
    }

    #[test]
    fn the_last_coordinator_is_cut_off_only_when_it_is_certainly_gone() {
        let mut view = three();
        view.members[1].roles = Roles::REPLICA;
        view.members[2].roles = Roles::REPLICA;
        let mut wishes = Wishes::default();
        wishes.remove(id(0, 1), Evidence::Presumed);
        assert_eq!(next(&view, &wishes, true, all_have_met), None, "no view would ever follow");
    }

    #[test]
    fn an_older_life_never_replaces_a_newer_one() {
        let mut wishes = Wishes::default();
        wishes.join(member(0, 0, Roles::LEARNER));
        assert_eq!(next(&three(), &wishes, true, all_have_met), None);
    }

    #[test]
    fn ukharon_6_3_only_a_new_lease_length_is_compatible() {
        let wishes = Wishes { lease_ns: Some(99), ..Wishes::default() };
        let longer = next(&three(), &wishes, true, all_have_met).unwrap();
        assert!(longer.compatible);
        let after = next(&longer, &Wishes { promote: vec![], lease_ns: Some(1), ..Wishes::default() }, false, all_have_met).unwrap();
        assert_eq!(after.fence_ns, 99);
    }

    #[test]
    fn a_learner_that_is_promoted_stands_behind_those_who_were_replicas_before() {
        let mut view = three();
        view.members[0].roles = Roles::COORDINATOR.with(Roles::LEARNER);
        let mut wishes = Wishes::default();
        wishes.promote(id(0, 1));
        let next = next(&view, &wishes, true, all_have_met).unwrap();
        assert_eq!(next.primary().unwrap().id, id(1, 1));
        assert_eq!(next.members.last().unwrap().id, id(0, 1));
    }

    #[test]
    fn one_that_may_still_hold_a_lease_stays_listed_until_it_can_not() {
        let mut view = three();
        view.departed =
            vec![Departed { id: id(8, 1), evidence: Evidence::Presumed }, Departed { id: id(9, 1), evidence: Evidence::Certain }];
        let mut wishes = Wishes::default();
        wishes.remove(id(2, 1), Evidence::Left);
        let kept = next(&view, &wishes, false, all_have_met).unwrap().departed;
        assert_eq!(kept.iter().map(|d| d.id.node.0).collect::<Vec<_>>(), [8, 2]);
        assert_eq!(next(&view, &wishes, true, all_have_met).unwrap().departed.len(), 1);
    }

    #[test]
    fn one_that_may_hold_a_lease_and_finds_no_room_on_the_list_of_those_who_departed_goes_later() {
        let mut view = three();
        let listed = |evidence| (20..).map(move |node| Departed { id: id(node, 1), evidence });
        view.departed = listed(Evidence::Presumed).take(MAX_MEMBERS - 1).collect();
        let mut wishes = Wishes::default();
        wishes.remove(id(1, 1), Evidence::Presumed);
        wishes.remove(id(2, 1), Evidence::Evicted);
        let full = next(&view, &wishes, false, all_have_met).unwrap();
        assert_eq!(full.members.iter().map(|m| m.id.node.0).collect::<Vec<_>>(), [0, 2]);
        assert_eq!(full.departed.len(), MAX_MEMBERS);
        wishes.settle(&full);
        assert_eq!(next(&full, &wishes, false, all_have_met), None, "their leases may not be over");
        let mut replaced = Wishes::default();
        replaced.join(member(2, 2, Roles::LEARNER));
        assert_eq!(next(&full, &replaced, false, all_have_met), None, "nor goes who is replaced");
        let mut certain = Wishes::default();
        certain.remove(id(2, 1), Evidence::Certain);
        let without = next(&full, &certain, false, all_have_met).unwrap();
        assert_eq!((without.members.len(), &without.departed), (1, &full.departed), "of whom it is certain nobody has to be told");
        let later = next(&full, &wishes, true, all_have_met).unwrap();
        assert_eq!((later.members.len(), later.departed.len()), (1, 1));
    }

    #[test]
    fn one_of_two_coordinators_goes_before_its_next_life_comes() {
        let both = Roles::COORDINATOR.with(Roles::LEARNER);
        let mut view = three();
        view.members.truncate(2);
        let mut wishes = Wishes::default();
        wishes.join(member(1, 2, both));
        let alone = next(&view, &wishes, true, all_have_met).unwrap();
        assert_eq!(
            alone.members.iter().map(|m| m.id).collect::<Vec<_>>(),
            [id(0, 1)],
            "it may take long to decide this, and the next life may end meanwhile"
        );
        assert_eq!(alone.departed, [Departed { id: id(1, 1), evidence: Evidence::Evicted }]);
        wishes.settle(&alone);
        let two = next(&alone, &wishes, true, all_have_met).unwrap();
        assert_eq!(two.members.iter().map(|m| m.id).collect::<Vec<_>>(), [id(0, 1), id(1, 2)]);
        // A member that does not vote is replaced at once.
        let mut wishes = Wishes::default();
        wishes.join(member(1, 2, Roles::LEARNER));
        let replaced = next(&view, &wishes, true, all_have_met).unwrap();
        assert_eq!(replaced.members.iter().map(|m| m.id).collect::<Vec<_>>(), [id(0, 1), id(1, 2)]);
    }

    #[test]
    fn nobody_decides_on_its_own_removal_whom_another_can_relieve_of_it() {
        let leader = |relieved| Leader { id: id(0, 1), old_leases_over: true, relieved };
        for evidence in [Evidence::Left, Evidence::Evicted] {
            let mut wishes = Wishes::default();
            wishes.remove(id(0, 1), evidence);
            assert_eq!(super::next(&three(), &wishes, leader(true), all_have_met, all_know), None);
            wishes.remove(id(1, 1), Evidence::Certain);
            let next = super::next(&three(), &wishes, leader(true), all_have_met, all_know).unwrap();
            assert_eq!(next.members.iter().map(|m| m.id.node.0).collect::<Vec<_>>(), [0, 2], "it goes on deciding on others");
        }
        let mut wishes = Wishes::default();
        wishes.join(member(0, 2, Roles::LEARNER));
        assert_eq!(super::next(&three(), &wishes, leader(false), all_have_met, all_know), None, "nor for its own next life");
    }

    #[test]
    fn one_that_leaves_and_hears_of_no_other_coordinator_decides_so_itself_and_cuts_off_nobody_who_may_take_over() {
        let leader = Leader { id: id(0, 1), old_leases_over: true, relieved: false };
        let mut wishes = Wishes::default();
        wishes.remove(id(1, 1), Evidence::Presumed);
        wishes.remove(id(2, 1), Evidence::Certain);
        wishes.remove(id(0, 1), Evidence::Left);
        let without = super::next(&three(), &wishes, leader, all_have_met, all_know).unwrap();
        assert_eq!(without.members.iter().map(|m| m.id.node.0).collect::<Vec<_>>(), [1], "it may be alive, and has the state");
        wishes.remove(id(1, 1), Evidence::Certain);
        let without = super::next(&three(), &wishes, leader, all_have_met, all_know).unwrap();
        assert_eq!(without.members, [], "all are gone");
    }

    /// Found in simulated life 80020978: a primary that left removed a living replica on a presumption, and the other replica was dead.
    #[test]
    fn one_that_leaves_decides_on_nobody_who_may_take_over_while_another_coordinator_can() {
        let leader = |relieved| Leader { id: id(0, 1), old_leases_over: true, relieved };
        for evidence in [Evidence::Presumed, Evidence::Evicted] {
            let mut wishes = Wishes::default();
            wishes.remove(id(0, 1), Evidence::Left);
            wishes.remove(id(1, 1), evidence);
            assert_eq!(super::next(&three(), &wishes, leader(true), all_have_met, all_know), None);
            let by_itself = super::next(&three(), &wishes, leader(false), all_have_met, all_know).unwrap();
            assert_eq!(by_itself.members.iter().map(|m| m.id.node.0).collect::<Vec<_>>(), [2]);
            wishes.remove(id(1, 1), Evidence::Certain);
            let without = super::next(&three(), &wishes, leader(true), all_have_met, all_know).unwrap();
            assert_eq!(without.members.iter().map(|m| m.id.node.0).collect::<Vec<_>>(), [0, 2]);
        }
    }

    #[test]
    fn a_view_takes_in_only_so_many_coordinators_that_those_who_stay_are_a_majority() {
        let both = Roles::COORDINATOR.with(Roles::LEARNER);
        // The number of coordinators; how many of them are removed in the same view because they are `dead`; how many processes want to be taken in;
        // how many are.
        for (coordinators, dead, newcomers, taken_in) in
            [(1, 0, 2, 1), (2, 0, 2, 1), (2, 1, 2, 0), (3, 0, 3, 2), (3, 1, 2, 1), (3, 2, 3, 0), (4, 0, 4, 3), (5, 2, 3, 2)]
        {
            let mut view = three();
            view.members = (0..coordinators).map(|node| member(node, 1, Roles::COORDINATOR.with(Roles::REPLICA))).collect();
            let mut wishes = Wishes::default();
            for node in coordinators - dead..coordinators {
                wishes.remove(id(node, 1), Evidence::Certain);
            }
            for node in 0..newcomers {
                wishes.join(member(8 + node, 1, both));
            }
            let case = format!("{coordinators} coordinators, {dead} dead, {newcomers} newcomers");
            let after = next(&view, &wishes, true, all_have_met).unwrap();
            assert_eq!(after.coordinators().count(), usize::from(coordinators - dead + taken_in), "{case}");
            wishes.settle(&after);
            assert_eq!(wishes.join.len(), usize::from(newcomers - taken_in), "{case}: the others wait for the next view");
        }
    }

    #[test]
    fn new_lives_of_two_coordinators_of_three_are_taken_in_one_after_the_other() {
        let both = Roles::COORDINATOR.with(Roles::LEARNER);
        let mut wishes = Wishes::default();
        wishes.join(member(1, 2, both));
        wishes.join(member(2, 2, both));
        let first = next(&three(), &wishes, true, all_have_met).unwrap();
        assert_eq!(
            first.members.iter().map(|m| m.id).collect::<Vec<_>>(),
            [id(0, 1), id(2, 1), id(1, 2)],
            "the old life keeps its seat till then"
        );
        wishes.settle(&first);
        let second = next(&first, &wishes, true, all_have_met).unwrap();
        assert_eq!(second.members.iter().map(|m| m.id).collect::<Vec<_>>(), [id(0, 1), id(1, 2), id(2, 2)]);
    }

    #[test]
    fn one_that_does_not_vote_is_taken_in_whenever_it_comes() {
        let mut view = three();
        view.members.truncate(1);
        let mut wishes = Wishes::default();
        for node in 1..5 {
            wishes.join(member(node, 1, Roles::LEARNER));
        }
        assert_eq!(next(&view, &wishes, true, all_have_met).unwrap().members.len(), 5);
    }

    #[test]
    fn no_wish_no_view() {
        assert_eq!(next(&three(), &Wishes::default(), true, all_have_met), None);
    }

    #[test]
    fn the_last_replica_that_stays_is_one_in_reach() {
        let mut view = three();
        view.members[2].roles = Roles::COORDINATOR;
        let mut wishes = Wishes::default();
        wishes.remove(id(1, 1), Evidence::Presumed);
        wishes.remove(id(0, 1), Evidence::Presumed);
        wishes.prefer(&[id(1, 1), id(2, 1)]);
        let next = next(&view, &wishes, false, all_have_met).unwrap();
        assert_eq!(next.members.iter().map(|m| m.id).collect::<Vec<_>>(), [id(1, 1), id(2, 1)], "the other one may be dead");
    }

    #[test]
    fn one_that_stays_has_to_answer_unless_coordinators_only_go_that_are_certainly_dead() {
        let view = three();
        let without = |evidence| {
            let mut wishes = Wishes::default();
            wishes.remove(id(1, 1), evidence);
            next(&view, &wishes, false, all_have_met).unwrap()
        };
        assert_eq!(required(&view, &without(Evidence::Certain)), Required::default());
        for evidence in [Evidence::Presumed, Evidence::Evicted, Evidence::Left] {
            assert_eq!(required(&view, &without(evidence)), Required { of: 0b101, count: 2 }, "both of those who stay are needed then");
        }
        let mut wishes = Wishes::default();
        wishes.join(member(3, 1, Roles::COORDINATOR.with(Roles::LEARNER)));
        let four = next(&view, &wishes, false, all_have_met).unwrap();
        assert_eq!(required(&view, &four), Required { of: 0b111, count: 3 }, "a majority of four");
        let mut alone = three();
        alone.members.truncate(1);
        let two = next(&alone, &wishes, false, all_have_met).unwrap();
        assert_eq!(required(&alone, &two), Required { of: 0b1, count: 1 }, "there is nobody else to ask");
        let mut wishes = Wishes { lease_ns: Some(77), ..Wishes::default() };
        wishes.join(member(4, 1, Roles::LEARNER));
        let same = next(&view, &wishes, false, all_have_met).unwrap();
        assert_eq!(required(&view, &same), Required::default(), "coordinators stay as they are");
    }

    fn of_levels(most: &[u8]) -> View {
        let mut view = three();
        view.members.iter_mut().zip(most).for_each(|(member, most)| member.levels = Levels { least: 1, most: *most });
        view
    }

    #[test]
    fn the_feature_level_rises_once_all_members_can_work_at_it() {
        let wishes = Wishes { level: Some(2), ..Wishes::default() };
        assert_eq!(next(&of_levels(&[2, 2, 1]), &wishes, true, all_have_met), None, "not before");
        let risen = next(&of_levels(&[2, 3, 2]), &wishes, true, all_have_met).expect("a view");
        assert_eq!((risen.level, risen.compatible), (2, false));
        let mut settled = wishes.clone();
        settled.settle(&risen);
        assert!(settled.is_empty(), "once");
        let lower = Wishes { level: Some(1), ..Wishes::default() };
        assert_eq!(next(&risen, &lower, true, all_have_met), None, "it never falls");
    }

    #[test]
    fn a_newcomer_that_cannot_work_at_the_level_is_not_taken_in_and_keeps_it_from_rising_if_it_was() {
        let mut wishes = Wishes { level: Some(2), ..Wishes::default() };
        wishes.join(Member { levels: Levels::only(1), ..member(3, 1, Roles::LEARNER) });
        let view = next(&of_levels(&[2, 2, 2]), &wishes, true, all_have_met).expect("a view");
        assert_eq!((view.level, view.members.len()), (1, 4), "it came first");
        wishes.settle(&view);
        assert_eq!(wishes.level, None, "and is forgotten: it has to be asked for again");
        let risen = View { level: 2, ..of_levels(&[2, 2, 2]) };
        wishes.join(Member { levels: Levels::only(1), ..member(3, 1, Roles::LEARNER) });
        assert_eq!(next(&risen, &wishes, true, all_have_met), None);
    }

    #[test]
    fn a_member_that_is_taken_for_another_build_is_listed_as_what_it_is() {
        let mut wishes = Wishes::default();
        wishes.note_levels(id(1, 1), Levels { least: 1, most: 2 });
        let view = next(&of_levels(&[2, 1, 2]), &wishes, true, all_have_met).expect("a view");
        assert_eq!(view.members[1].levels, Levels { least: 1, most: 2 });
        wishes.settle(&view);
        assert!(wishes.is_empty());
        wishes.note_levels(id(1, 1), Levels { least: 3, most: 4 });
        assert_eq!(next(&view, &wishes, true, all_have_met), None, "a range without the level in force is not believed");
    }
}
