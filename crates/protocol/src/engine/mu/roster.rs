//! Views as advice: they say who is there, and the leader makes it so, through the log and one process at a time.
//!
//! A group says as of which view it was made. A leader that knows only an older view changes nothing: it might undo what a later one asked for.

use martlet_fabric::{Fabric, invariant};

use super::follower::Follower;
use super::layout::Status;
use super::log::Log;
use super::{AbortReason, Config, Durability, Event, Group, Mu, Peer};
use crate::basics::{LogIndex, Mark, ProcessId, Time, ViewNumber};
use crate::membership::{Roles, View};
use crate::replica::patience::Patience;

/// The newest view, as far as it matters here.
#[derive(Debug, Default)]
pub(super) struct Roster {
    view: ViewNumber,
    /// Replicas and learners, as the view calls them.
    listed: Vec<ProcessId>,
    /// The same, as groups do.
    members: Vec<ProcessId>,
    learners: Vec<ProcessId>,
    /// As of which view, which change of the group, and how many out of reach, membership was last told.
    told: (ViewNumber, LogIndex, usize),
    /// Members with whom there is no connection, be it that there was none yet, or that it was lost and forgotten before the view came.
    unmet: Vec<(ProcessId, Patience)>,
}

impl Roster {
    /// The newest view; 0 for none.
    pub fn view(&self) -> ViewNumber {
        self.view
    }

    /// What the newest view calls a member of the group, if it lists it.
    pub fn listed_as(&self, member: ProcessId) -> ProcessId {
        self.members.iter().position(|id| *id == member).map_or(member, |at| self.listed[at])
    }

    /// Whether the newest view lists this process, as a replica or a learner.
    pub fn lists(&self, process: ProcessId) -> bool {
        self.members.contains(&process)
    }

    /// Gives up those members who have not been met for too long.
    pub fn mind_unmet(&mut self, now: Time, config: &Config, is_known: impl Fn(ProcessId) -> bool) {
        let Roster { members, unmet, .. } = self;
        unmet.retain(|(id, _)| members.contains(id) && !is_known(*id));
        for member in members.iter().copied().filter(|id| !is_known(*id)) {
            if !unmet.iter().any(|(id, _)| *id == member) {
                unmet.push((member, Patience::default()));
            }
        }
        for (_, patience) in unmet {
            if patience.try_on(now, config.patience_ns()) {
                Mark::MuGivenUp.reach();
            }
        }
    }

    /// For a while this process saw nothing: that does not count as patience.
    pub fn discount(&mut self, gap_ns: u64, now: Time) {
        self.unmet.iter_mut().for_each(|(_, patience)| patience.discount(gap_ns, now));
    }

    /// Whether a process is gone for certain, or has been out of reach for so long that it is given up.
    fn is_gone(&self, peers: &[Peer], id: ProcessId) -> bool {
        match peers.iter().rev().find(|p| p.process == id) {
            Some(peer) => peer.watch.patience.is_over(),
            None => self.unmet.iter().any(|(unmet, patience)| *unmet == id && patience.is_over()),
        }
    }
}

impl Mu {
    /// The newest view that it has been told; 0 for none.
    pub fn view(&self) -> ViewNumber {
        self.roster.view
    }

    /// A view has been decided. Numbers may skip; what is not newer is ignored. The replicas of the first view found the group; later views replace
    /// whatever was wished for by [`add`](Self::add) and [`remove`](Self::remove).
    pub fn handle_view(&mut self, view: &View) {
        if view.number <= self.roster.view {
            return;
        }
        let config = self.config;
        let listed = |role| view.with_roles(role).map(|m| m.id);
        let ids = |role| listed(role).map(|id| config.durability.known_as(id));
        let founds = view.number == ViewNumber(1) && ids(Roles::REPLICA).any(|id| id == self.me);
        // A process that has promised or accepted anything, or been taught, before it heard of that view was found first by another founder: it is taught, as a
        // newcomer is.
        let untouched = self.log.tail().index == LogIndex(0) && self.log.min_proposal() == 0 && !self.lesson_begun;
        if founds && untouched && self.log.group().is_none() && !self.listed {
            self.found(Group::new(ids(Roles::REPLICA).collect()).as_of(view.number));
        }
        let first = self.roster.view == ViewNumber(0);
        self.roster.view = view.number;
        self.roster.learners.clear();
        self.roster.learners.extend(ids(Roles::LEARNER));
        self.roster.listed.clear();
        self.roster.listed.extend(listed(Roles::REPLICA).chain(listed(Roles::LEARNER)));
        self.roster.members.clear();
        self.roster.members.extend(ids(Roles::REPLICA).chain(ids(Roles::LEARNER)));
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

    /// What a process is called in groups. One that has come back from its disk goes by its birth; but not where those who have a view go on without it, and it
    /// has yet to find that out: it is not the member then that it was.
    pub(super) fn name_of(&self, identity: ProcessId) -> ProcessId {
        let unlisted = self.roster.view > ViewNumber(0) && !self.roster.listed.contains(&identity);
        if unlisted { identity } else { self.config.durability.known_as(identity) }
    }

    /// The group begins with this process in it, which holds the empty state.
    fn found(&mut self, group: Group) {
        invariant!(group.contains(self.me), "{} founds a group without itself", self.me);
        let journal = self.log.journal.take();
        self.log = Log::new(self.config.log_ring_bytes, Some(group));
        if let Some(journal) = journal {
            self.log.begin_journal(journal);
        }
        self.learning = None;
        self.listed = true;
        self.published = false;
    }

    /// What is to change about the group, by the newest view and by what is known of the dead.
    pub(super) fn follow_roster(&mut self) {
        let Some(group) = self.log.group().filter(|_| self.roster.view > ViewNumber(0)) else { return };
        self.adding.clear();
        self.removing.clear();
        if self.roster.view < group.view() {
            return;
        }
        let peers = &self.peers;
        let gone = |id: ProcessId| self.roster.is_gone(peers, id);
        let listed = |id: &ProcessId| self.roster.members.contains(id);
        self.adding.extend(self.roster.members.iter().filter(|id| !group.contains(**id) && !group.has_removed(**id) && !gone(**id)));
        self.removing.extend(group.members().iter().filter(|id| !listed(id) || gone(**id)));
    }

    /// Tells membership what has come of its wishes: as leader, since one voice is enough. A learner that is out of reach before it belongs to the group
    /// will never get into it as it is.
    pub(super) fn report_group(&mut self) {
        let Some((index, group)) = self.log.committed_group() else { return };
        if !self.reign.as_ref().is_some_and(|r| r.is_leading()) {
            return;
        }
        let peers = &self.peers;
        let is_out = |id: &ProcessId| !group.contains(*id) && (group.has_removed(*id) || self.roster.is_gone(peers, *id));
        let state = (self.roster.view, *index, self.roster.members.iter().filter(|id| is_out(id)).count());
        if self.roster.told == state {
            return;
        }
        let level = self.roster.learners.iter().filter(|id| group.contains(**id));
        self.events.extend(level.map(|id| Event::CaughtUp(*id)));
        let expelled = self.roster.members.iter().filter(|id| is_out(id));
        self.events.extend(expelled.map(|id| Event::Drop(*id)));
        self.roster.told = state;
    }

    /// Proposes the next wished change of the group, when it can be done: one at a time (Mu section 5.4).
    #[inline]
    pub(super) fn change_group(&mut self) {
        if !self.adding.is_empty() || !self.removing.is_empty() || self.hand_over.is_wished() {
            self.change_group_as_wished();
        }
    }

    #[cold]
    fn change_group_as_wished(&mut self) {
        // As soon as it is taken in the group may need its state, and may need it to come back, which it can't before it has a snapshot. What it was when its
        // permission was asked for may have been overrun since.
        let latest = |id: &ProcessId| self.peers.iter().rev().find(|p| p.process == *id);
        let holds =
            |id: &ProcessId| latest(id).is_some_and(|p| matches!(p.watch.status, Some(Status::Follower | Status::Leader | Status::Taught)));
        let successor_knows = self.hand_over.wish().is_some_and(|to| self.could_lead(to));
        let Some(reign) = self.reign.as_mut().filter(|r| r.may_change(&self.log)) else { return };
        // A leader that has taken itself out goes on leading up to where that is committed, and changes nothing more: nobody else would hear of it.
        let Some(group) = self.log.group().filter(|group| group.contains(self.me)) else { return };
        self.adding.retain(|id| !group.contains(*id) && !group.has_removed(*id));
        self.removing.retain(|id| group.contains(*id) && group.members().len() > 1);
        let committed = self.log.committed().index;
        // With `sync` the group would wait for its disk as soon as it counts.
        let keeps = |f: &Follower| self.config.durability != Durability::Sync || f.stable.is_some();
        let level =
            |id: &ProcessId| reign.followers.iter().any(|f| f.process == *id && f.acked.is_some_and(|a| a >= committed) && keeps(f));
        // Under load a follower that is a little slower would never be level at any moment; what it lacks is at most what its lane holds.
        let follows = |id: ProcessId| reign.followers.iter().any(|f| f.process == id && f.acked.is_some() && keeps(f));
        if let Some(to) = self.hand_over.take_wish(|to| successor_knows && group.contains(to) && follows(to)) {
            // The choice of a leader is no wish of membership's, which knows this group's view.
            reign.propose_group(&group.clone().led_by(to));
            return;
        }
        let next = match (self.removing.first(), self.adding.iter().find(|id| level(id) && holds(id))) {
            (Some(id), _) => group.without(*id),
            (None, Some(id)) => group.with(*id),
            (None, None) => None,
        };
        if let Some(next) = next {
            if next.members().len() > group.members().len() { Mark::MuGrows } else { Mark::MuShrinks }.reach();
            reign.propose_group(&next.as_of(self.roster.view()));
        }
    }

    pub(super) fn watch_group<F: Fabric>(&mut self, fabric: &F) {
        let Some((index, group)) = self.log.committed_group() else { return };
        self.listed |= group.contains(self.me);
        if *index > self.group_seen {
            self.group_seen = *index;
            self.events.push_back(Event::GroupChanged { index: *index });
        }
        if self.is_removed() && self.reign.is_some() {
            self.end_reign(AbortReason::Removed, fabric);
        }
    }
}
