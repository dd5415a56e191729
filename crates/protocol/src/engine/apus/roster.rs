//! Views of membership as advice: they say who is there, and the leader makes it so, through the log and one process at a time.
//!
//! Two groups that follow each other differ by one process, so that their majorities meet. A leader changes nothing before all that it began with is acknowledged under its own view
//! id: two leaders in turn could each change what the other does not know of, and the majorities of their groups need not meet.

use martlet_fabric::{Fabric, invariant};

use super::leading::Reign;
use super::log::Log;
use super::{Apus, Ending, Event, Status};
use crate::basics::{LogIndex, Mark, ProcessId, Time, ViewNumber};
use crate::membership::{Roles, View};
use crate::replica::group::Group;
use crate::replica::patience::Patience;

/// The newest view, as far as it matters here.
#[derive(Debug, Default)]
pub(super) struct Roster {
    /// Its number; 0 for none.
    pub view: ViewNumber,
    /// Replicas and learners, as the view calls them.
    listed: Vec<ProcessId>,
    /// The same, as groups do.
    members: Vec<ProcessId>,
    learners: Vec<ProcessId>,
    /// As of which view, which change of the group, and how many out of reach, membership was last told.
    told: (ViewNumber, LogIndex, usize),
    /// Members with whom there is no connection, be it that there was none yet, or that it was lost and forgotten before the view came.
    unmet: Vec<(ProcessId, Patience)>,
    /// Changes of the group that are wished for.
    adding: Vec<ProcessId>,
    removing: Vec<ProcessId>,
}

impl Roster {
    /// Whether the newest view lists this member of a group, as a replica or a learner.
    pub fn lists(&self, member: ProcessId) -> bool {
        self.members.contains(&member)
    }

    /// What the newest view calls a member of the group, if it lists it.
    pub fn listed_as(&self, member: ProcessId) -> ProcessId {
        self.members.iter().position(|id| *id == member).map_or(member, |at| self.listed[at])
    }

    /// Gives up those members that have not been met for too long.
    pub fn mind_unmet(&mut self, now: Time, patience_ns: u64, is_known: impl Fn(ProcessId) -> bool) {
        let Roster { members, unmet, .. } = self;
        unmet.retain(|(id, _)| members.contains(id) && !is_known(*id));
        for member in members.iter().copied().filter(|id| !is_known(*id)) {
            if !unmet.iter().any(|(id, _)| *id == member) {
                unmet.push((member, Patience::default()));
            }
        }
        for (_, patience) in unmet {
            if patience.try_on(now, patience_ns) {
                Mark::ApusGivenUp.reach();
            }
        }
    }

    /// For a while this process saw nothing: that does not count as patience.
    pub fn discount(&mut self, gap_ns: u64, now: Time) {
        self.unmet.iter_mut().for_each(|(_, patience)| patience.discount(gap_ns, now));
    }
}

impl Apus {
    /// Whether a process is gone for certain, or has been out of reach for so long that it is given up.
    fn is_gone(&self, id: ProcessId) -> bool {
        match self.peer_of(id) {
            Some(peer) => peer.watch.patience.is_over(),
            None => self.roster.unmet.iter().any(|(unmet, patience)| *unmet == id && patience.is_over()),
        }
    }

    /// What a process is called in groups. One that has come back from its disk goes by its birth; but not where those that have a view go on without it, and it has yet to find
    /// that out: it is not the member then that it was.
    pub(super) fn name_of(&self, identity: ProcessId) -> ProcessId {
        let unlisted = self.roster.view > ViewNumber(0) && !self.roster.listed.contains(&identity);
        if unlisted { identity } else { self.config.durability.known_as(identity) }
    }

    /// A view has been decided. The replicas of the first view found the group.
    pub(super) fn take_view(&mut self, view: &View) {
        if view.number <= self.roster.view {
            return;
        }
        let config = self.config;
        let listed = |role| view.with_roles(role).map(|m| m.id);
        let ids = |role| listed(role).map(|id| config.durability.known_as(id));
        let founds = view.number == ViewNumber(1) && ids(Roles::REPLICA).any(|id| id == self.me);
        // A process that has promised or learned anything before it heard of that view was found first by another founder: it is a newcomer.
        let untouched = self.log.tail().index == LogIndex(0) && self.log.promised() == 0 && !self.lesson_begun;
        if founds && untouched && self.log.group().is_none() && !self.listed {
            let group = Group::new(ids(Roles::REPLICA).collect()).as_of(view.number);
            invariant!(group.contains(self.me), "{} founds a group without itself", self.me);
            let journal = self.log.journal.take();
            self.log = Log::new(config.log_ring_bytes, Some(group));
            if let Some(journal) = journal {
                self.log.begin_journal(journal);
            }
            (self.learning, self.listed, self.published) = (None, true, false);
        }
        let first = self.roster.view == ViewNumber(0);
        self.roster.view = view.number;
        self.roster.learners = ids(Roles::LEARNER).collect();
        self.roster.listed = listed(Roles::REPLICA).chain(listed(Roles::LEARNER)).collect();
        self.roster.members = ids(Roles::REPLICA).chain(ids(Roles::LEARNER)).collect();
        for at in 0..self.peers.len() {
            let identity = self.peers[at].identity;
            // A process that was taken for a member stays one until the group has removed it: its vote may be needed for that.
            if first || self.roster.listed.contains(&identity) {
                self.peers[at].process = self.name_of(identity);
            }
        }
        // A process that is listed as come back goes by the name of an earlier life, whose connection may not have been seen to end.
        for at in 0..self.peers.len() {
            let name = self.peers[at].process;
            if self.peers[at + 1..].iter().any(|later| later.process == name) {
                self.note_death(at, false);
            }
        }
        self.follow_roster();
    }

    /// What is to change about the group, by the newest view and by what is known of the dead.
    pub(super) fn follow_roster(&mut self) {
        let Some(group) = self.log.group().filter(|_| self.roster.view > ViewNumber(0)) else { return };
        let (mut adding, mut removing) = (Vec::new(), Vec::new());
        // A leader that knows only an older view might undo what a later one asked for.
        if self.roster.view >= group.view() {
            let members = self.roster.members.iter().copied();
            adding.extend(members.filter(|id| !group.contains(*id) && !group.has_removed(*id) && !self.is_gone(*id)));
            removing.extend(group.members().iter().copied().filter(|id| !self.roster.lists(*id) || self.is_gone(*id)));
        }
        (self.roster.adding, self.roster.removing) = (adding, removing);
    }

    /// Tells membership what has come of its wishes: as leader, since one voice is enough.
    pub(super) fn report_group(&mut self) {
        let Some((index, group)) = self.log.committed_group() else { return };
        if !self.is_leading() {
            return;
        }
        let is_out = |id: &ProcessId| !group.contains(*id) && (group.has_removed(*id) || self.is_gone(*id));
        let out: Vec<ProcessId> = self.roster.members.iter().copied().filter(is_out).collect();
        let state = (self.roster.view, *index, out.len());
        if self.roster.told == state {
            return;
        }
        let level = self.roster.learners.iter().filter(|id| group.contains(**id));
        self.events.extend(level.map(|id| Event::CaughtUp(self.roster.listed_as(*id))));
        self.events.extend(out.into_iter().map(|id| Event::Drop(self.roster.listed_as(id))));
        self.roster.told = state;
    }

    /// Proposes the next wished change of the group, when it can be done: one at a time.
    pub(super) fn change_group(&mut self) {
        let Roster { adding, removing, .. } = &self.roster;
        if adding.is_empty() && removing.is_empty() {
            return;
        }
        let Some(reign) = self.reign.as_ref().filter(|reign| reign.may_change(&self.log) && !self.hand_over.yields()) else { return };
        // A leader that has taken itself out leads on up to where that is committed, and changes nothing more: nobody else would hear of it.
        let Some(group) = self.log.group().filter(|group| group.contains(self.me)) else { return };
        // As soon as it is taken in the group may need its state, and may need it to come back, which it can't before it has a snapshot.
        let is_kept = |id: ProcessId| self.peer_of(id).is_some_and(|p| matches!(p.watch.status, Some(Status::Backup | Status::Leader)));
        let committed = self.log.committed().index;
        let is_level = |id: ProcessId| reign.followers.iter().any(|f| f.process == id && f.held().is_some_and(|held| held >= committed));
        let goes = removing.iter().find(|id| group.contains(**id) && group.members().len() > 1);
        let comes = adding.iter().find(|id| !group.contains(**id) && !group.has_removed(**id) && is_level(**id) && is_kept(**id));
        let next = match (goes, comes) {
            (Some(id), _) => group.without(*id),
            (None, Some(id)) => group.with(*id),
            (None, None) => None,
        };
        let Some(next) = next else { return };
        if next.members().len() > group.members().len() { Mark::ApusGrows } else { Mark::ApusShrinks }.reach();
        let next = next.as_of(self.roster.view.max(group.view()));
        if let Some(reign) = &mut self.reign {
            reign.propose_group(&next);
        }
    }

    /// Sees whether this process belongs to the group that is committed, and stops leading once it does not.
    pub(super) fn watch_group<F: Fabric>(&mut self, fabric: &mut F) {
        let Some((since, group)) = self.log.committed_group() else { return };
        self.listed |= group.contains(self.me);
        let since = *since;
        // The others have to hear that it is committed without it: a majority of them has the entry, and the next leader commits it.
        let leads = |reign: &Reign| reign.is_leading();
        let told =
            self.reign.as_ref().is_none_or(|reign| !leads(reign) || reign.followers.iter().any(|f| f.votes && f.has_heard_of(since)));
        if self.is_removed() && self.reign.is_some() && told {
            self.end_reign(Ending::Removed, fabric);
        }
    }

    /// Whether it has been removed from the group, and so stopped.
    pub(super) fn is_removed(&self) -> bool {
        self.listed && self.log.committed_group().is_some_and(|(_, group)| !group.contains(self.me))
    }
}
