//! Views as advice: they say which processes should be members, and the leader changes the group accordingly, through the log and one process at a time.
//!
//! Two groups that follow each other differ by one process, so that their majorities meet. A group says as of which view it was made, and a leader that knows
//! only an older view changes nothing, because it might undo what a later view asked for. There is one exception: a leader removes itself once a view no longer
//! lists it. No later view lists it again, and it may never learn of one.

use super::Durability;
use super::group::Group;
use super::patience::Patience;
use crate::basics::{LogIndex, Mark, ProcessId, Time, ViewNumber};
use crate::membership::{Roles, View};

/// The newest view, as far as it matters to a replica, and the changes of the group that it calls for.
#[derive(Debug, Default)]
pub struct Roster {
    /// Determines the names of processes in groups.
    durability: Durability,
    view: ViewNumber,
    /// A view listed this process, and a later one did not.
    departed: bool,
    /// Replicas and learners, as the view calls them.
    listed: Vec<ProcessId>,
    /// The same, as groups do.
    members: Vec<ProcessId>,
    learners: Vec<ProcessId>,
    /// What membership was last told: as of which view and which change of the group, and how many processes were out of reach.
    told: (ViewNumber, LogIndex, usize),
    /// Members without a connection: there was none yet, or it was lost and forgotten before the view arrived.
    unmet: Vec<(ProcessId, Patience)>,
    /// Changes of the group that are wished for.
    adding: Vec<ProcessId>,
    removing: Vec<ProcessId>,
}

/// How far the group follows membership's wishes, by the names that groups use.
#[derive(Debug, PartialEq, Eq)]
pub struct Report {
    /// Learners that belong to the group.
    pub level: Vec<ProcessId>,
    /// Listed processes that no longer belong to the group, and those that will never get into it as they are, since they have been out of reach for too long.
    pub out: Vec<ProcessId>,
}

impl Roster {
    /// No view yet. With a journal, groups name processes by their births.
    pub fn new(durability: Durability) -> Roster {
        Roster { durability, ..Roster::default() }
    }

    /// The newest view; 0 for none.
    pub fn view(&self) -> ViewNumber {
        self.view
    }

    /// Whether the newest view lists this member of a group, as a replica or a learner.
    pub fn lists(&self, member: ProcessId) -> bool {
        self.members.contains(&member)
    }

    /// What the newest view calls a member of the group, if it lists it.
    pub fn listed_as(&self, member: ProcessId) -> ProcessId {
        self.members.iter().position(|id| *id == member).map_or(member, |at| self.listed[at])
    }

    /// The name of a process in groups. A process that has recovered from its disk goes by its birth. The exception is a process that the newest view no longer
    /// lists, even if that process does not know this yet: it is no longer the same member.
    pub fn name_of(&self, identity: ProcessId) -> ProcessId {
        let unlisted = self.view > ViewNumber(0) && !self.listed.contains(&identity);
        if unlisted { identity } else { self.durability.known_as(identity) }
    }

    /// A view has been decided. Numbers may skip; a view that is not newer is ignored. Returns whether it is newer. `me`: this process, as groups call it.
    /// `met`: connected processes, each by the name that it gives itself and by the name in groups as this process knows it, which is corrected.
    pub fn take<'a>(&mut self, view: &View, me: ProcessId, met: impl Iterator<Item = (ProcessId, &'a mut ProcessId)>) -> bool {
        if view.number <= self.view {
            return false;
        }
        let durability = self.durability;
        let listed = |role| view.with_roles(role).map(|m| m.id);
        let ids = |role| listed(role).map(|id| durability.known_as(id));
        let first = self.view == ViewNumber(0);
        let was_listed = self.departed || self.lists(me);
        self.view = view.number;
        self.learners.clear();
        self.learners.extend(ids(Roles::LEARNER));
        self.listed.clear();
        self.listed.extend(listed(Roles::REPLICA).chain(listed(Roles::LEARNER)));
        self.members.clear();
        self.members.extend(ids(Roles::REPLICA).chain(ids(Roles::LEARNER)));
        self.departed = was_listed && !self.lists(me);
        for (identity, name) in met {
            // A process that was taken for a member stays one until the group has removed it: its vote may be needed for that.
            if first || self.listed.contains(&identity) {
                *name = self.name_of(identity);
            }
        }
        true
    }

    /// The group that this view's replicas found, if it is the first view and `me`, as groups call it, is one of them.
    pub fn founders(&self, view: &View, me: ProcessId) -> Option<Group> {
        let replicas: Vec<ProcessId> = view.with_roles(Roles::REPLICA).map(|m| self.durability.known_as(m.id)).collect();
        (view.number == ViewNumber(1) && replicas.contains(&me)).then(|| Group::new(replicas).as_of(view.number))
    }

    /// Gives up the members that have been without a connection for too long, and reaches the mark for each.
    pub fn mind_unmet(&mut self, now: Time, patience_ns: u64, given_up: Mark, is_known: impl Fn(ProcessId) -> bool) {
        let Roster { members, unmet, .. } = self;
        unmet.retain(|(id, _)| members.contains(id) && !is_known(*id));
        for member in members.iter().copied().filter(|id| !is_known(*id)) {
            if !unmet.iter().any(|(id, _)| *id == member) {
                unmet.push((member, Patience::default()));
            }
        }
        for (_, patience) in unmet {
            if patience.try_on(now, patience_ns) {
                given_up.reach();
            }
        }
    }

    /// This process was itself stalled for `gap_ns`, which does not count as waiting.
    pub fn discount(&mut self, gap_ns: u64, now: Time) {
        self.unmet.iter_mut().for_each(|(_, patience)| patience.discount(gap_ns, now));
    }

    /// Wishes a process into the group, as groups call it.
    pub fn add(&mut self, process: ProcessId) {
        if !self.adding.contains(&process) {
            self.adding.push(process);
        }
    }

    /// Wishes a process out of the group.
    pub fn remove(&mut self, process: ProcessId) {
        if !self.removing.contains(&process) {
            self.removing.push(process);
        }
    }

    /// Whether a process is wished into the group.
    pub fn is_wished(&self, process: ProcessId) -> bool {
        self.adding.contains(&process)
    }

    /// Whether a change of the group is wished for.
    pub fn has_wishes(&self) -> bool {
        !self.adding.is_empty() || !self.removing.is_empty()
    }

    /// Determines how the group in force should change, from the newest view and from what is known of the dead; without a view this is left to others. For a
    /// process that is or was connected, `given_up` says whether it is certainly gone or has been out of reach for too long.
    pub fn follow(&mut self, me: ProcessId, group: &Group, given_up: impl Fn(ProcessId) -> Option<bool>) {
        if self.view == ViewNumber(0) {
            return;
        }
        let Roster { view, departed, members, unmet, adding, removing, .. } = self;
        adding.clear();
        removing.clear();
        if *view >= group.view() {
            let is_gone = |id: &ProcessId| is_gone(*id, unmet, &given_up);
            adding.extend(members.iter().filter(|id| !group.contains(**id) && !group.has_removed(**id) && !is_gone(id)));
            removing.extend(group.members().iter().filter(|id| !members.contains(id) || is_gone(id)));
        } else if *departed && group.contains(me) {
            removing.push(me);
        }
    }

    /// What the leader is to tell membership about its wishes, as of the entry that introduced the committed group; only the leader does so, since one report
    /// is enough. `None`: nothing new. `given_up` as for [`follow`](Self::follow).
    pub fn report(&mut self, since: LogIndex, group: &Group, given_up: impl Fn(ProcessId) -> Option<bool>) -> Option<Report> {
        let is_out = |id: &&ProcessId| !group.contains(**id) && (group.has_removed(**id) || is_gone(**id, &self.unmet, &given_up));
        let out = self.members.iter().filter(is_out);
        let state = (self.view, since, out.clone().count());
        if self.told == state {
            return None;
        }
        let level = self.learners.iter().filter(|id| group.contains(**id));
        let report = Report { level: level.copied().collect(), out: out.copied().collect() };
        self.told = state;
        Some(report)
    }

    /// The processes that are to leave this group, and those that are to join. Wishes that the group fulfils already are forgotten.
    pub fn wishes(&mut self, group: &Group) -> (&[ProcessId], &[ProcessId]) {
        self.adding.retain(|id| !group.contains(*id) && !group.has_removed(*id));
        self.removing.retain(|id| group.contains(*id) && group.members().len() > 1);
        (&self.removing, &self.adding)
    }

    /// The next wished-for group that differs by one process, which leaves, or joins and is `ready`; as of the newest view. Wishes that this group fulfils
    /// already are forgotten.
    pub fn next_group(&mut self, group: &Group, ready: impl Fn(ProcessId) -> bool) -> Option<Group> {
        let (removing, adding) = self.wishes(group);
        let next = match (removing.first(), adding.iter().find(|id| ready(**id))) {
            (Some(id), _) => group.without(*id),
            (None, Some(id)) => group.with(*id),
            (None, None) => None,
        };
        next.map(|next| next.as_of(self.view.max(group.view())))
    }
}

/// Whether a process is certainly gone, or has been out of reach for so long that it is given up.
fn is_gone(id: ProcessId, unmet: &[(ProcessId, Patience)], given_up: &impl Fn(ProcessId) -> Option<bool>) -> bool {
    given_up(id).unwrap_or_else(|| unmet.iter().any(|(unmet, patience)| *unmet == id && patience.is_over()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use martlet_fabric::{Incarnation, NodeId};

    fn id(n: u16) -> ProcessId {
        ProcessId { node: NodeId(n), incarnation: Incarnation(1 << 16) }
    }

    fn group(ids: &[u16]) -> Group {
        Group::new(ids.iter().map(|n| id(*n)).collect()).as_of(ViewNumber(2))
    }

    /// A roster of view 3, that lists these members; all of them replicas.
    fn of(members: &[u16]) -> Roster {
        let members: Vec<ProcessId> = members.iter().map(|n| id(*n)).collect();
        Roster { view: ViewNumber(3), listed: members.clone(), members, ..Roster::default() }
    }

    #[test]
    fn a_group_changes_by_one_process_and_the_gone_go_before_others_come() {
        let mut roster = of(&[0, 1, 3, 4]);
        roster.follow(id(0), &group(&[0, 1, 2]), |n| Some(n == id(4)));
        assert_eq!((&roster.adding[..], &roster.removing[..]), (&[id(3)][..], &[id(2)][..]), "whoever is given up does not come");
        let next = roster.next_group(&group(&[0, 1, 2]), |_| true).expect("one goes");
        assert_eq!(next.members(), [id(0), id(1)]);
        assert_eq!(roster.next_group(&next, |_| false), None, "nobody is ready, and who has gone is not wished away again");
        assert_eq!(roster.next_group(&next, |_| true).expect("one comes").members(), [id(0), id(1), id(3)]);
        let newer = group(&[0, 1, 2]).as_of(ViewNumber(4));
        roster.follow(id(0), &newer, |_| Some(false));
        assert!(!roster.has_wishes(), "a newer view may have asked for that group");
    }

    #[test]
    fn membership_is_told_once_of_what_has_come_of_its_wishes() {
        let mut roster = of(&[0, 1, 2]);
        roster.learners = vec![id(1)];
        let told = roster.report(LogIndex(7), &group(&[0, 1]), |n| Some(n == id(2)));
        assert_eq!(told, Some(Report { level: vec![id(1)], out: vec![id(2)] }));
        assert_eq!(roster.report(LogIndex(7), &group(&[0, 1]), |n| Some(n == id(2))), None);
        assert!(roster.report(LogIndex(9), &group(&[0, 1]), |_| Some(false)).is_some_and(|report| report.out.is_empty()));
    }

    #[test]
    fn a_member_that_is_never_met_is_given_up() {
        let mut roster = of(&[0, 1]);
        let unmet = |roster: &mut Roster, now| roster.mind_unmet(Time(now), 100, Mark::MuGivenUp, |n| n == id(0));
        unmet(&mut roster, 0);
        roster.follow(id(0), &group(&[0, 1]), |n| (n == id(0)).then_some(false));
        assert!(!roster.has_wishes());
        roster.discount(50, Time(100));
        unmet(&mut roster, 150);
        roster.follow(id(0), &group(&[0, 1]), |n| (n == id(0)).then_some(false));
        assert!(!roster.has_wishes(), "a stall is no patience");
        unmet(&mut roster, 151);
        roster.follow(id(0), &group(&[0, 1]), |n| (n == id(0)).then_some(false));
        assert_eq!(roster.removing, [id(1)]);
    }
}
