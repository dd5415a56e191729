//! How the group follows the views of membership: see [`Roster`](crate::replica::roster::Roster).

use martlet_fabric::Fabric;

use super::follower::Follower;
use super::layout::Status;
use super::log::Log;
use super::peers::latest;
use super::{AbortReason, Durability, Event, Group, Mu};
use crate::basics::{LogIndex, Mark, ProcessId, ViewNumber};
use crate::membership::View;
use crate::replica::roster::Report;

impl Mu {
    /// The newest view that it has been told; 0 for none.
    pub fn view(&self) -> ViewNumber {
        self.roster.view()
    }

    /// A view has been decided. Numbers may skip; a view that is not newer is ignored. The replicas of the first view found the group. Later views replace all
    /// requests by [`add`](Self::add) and [`remove`](Self::remove).
    pub fn handle_view(&mut self, view: &View) {
        if !self.roster.take(view, self.me, self.peers.iter_mut().map(|p| (p.identity, &mut p.process))) {
            return;
        }
        // A process that has promised or accepted anything, or been taught, before it learned of that view was reached first by another founder. It is taught
        // like a newcomer.
        let untouched = self.log.tail().index == LogIndex(0) && self.log.min_proposal() == 0 && !self.lesson_begun;
        let founders = self.roster.founders(view, self.me).filter(|_| untouched && self.log.group().is_none() && !self.listed);
        if let Some(group) = founders {
            self.found(group);
        }
        // A process that is listed as recovered goes by the name of an earlier life, whose connection may not have been seen to end.
        for at in 0..self.peers.len() {
            let name = self.peers[at].process;
            if self.peers[at + 1..].iter().any(|later| later.process == name) {
                self.note_death(at, false);
            }
        }
        self.follow_roster();
    }

    /// Founds the group, with this process in it, which holds the empty state.
    fn found(&mut self, group: Group) {
        let journal = self.log.journal.take();
        self.log = Log::new(self.config.log_ring_bytes, Some(group));
        if let Some(journal) = journal {
            self.log.begin_journal(journal);
        }
        self.learning = None;
        self.listed = true;
        self.published = false;
    }

    /// Determines how the group should change, from the newest view and from what is known of the dead.
    pub(super) fn follow_roster(&mut self) {
        if let Some(group) = self.log.group() {
            self.roster.follow(self.me, group, |id| latest(&self.peers, id).map(|p| p.watch.patience.is_over()));
        }
    }

    /// As leader, tells membership how far its wishes have been fulfilled.
    pub(super) fn report_group(&mut self) {
        let Some((since, group)) = self.log.committed_group().filter(|_| self.is_leading()) else { return };
        let report = self.roster.report(*since, group, |id| latest(&self.peers, id).map(|p| p.watch.patience.is_over()));
        let Some(Report { level, out }) = report else { return };
        self.events.extend(level.into_iter().map(Event::CaughtUp));
        self.events.extend(out.into_iter().map(Event::Drop));
    }

    /// Proposes the next wished change of the group, when it can be done: one at a time (Mu section 5.4).
    #[inline]
    pub(super) fn change_group(&mut self) {
        if self.roster.has_wishes() || self.hand_over.is_wished() || self.names_itself() {
            self.change_group_as_wished();
        }
    }

    /// Whether this leader should stay leader, but the group does not say so yet.
    pub(super) fn names_itself(&self) -> bool {
        self.config.leader_stays && !self.is_handing_over() && self.log.group().is_some_and(|group| group.first() != Some(self.me))
    }

    #[cold]
    fn change_group_as_wished(&mut self) {
        // As soon as a process is added, the group may need its state, and may need it to recover, which it cannot do before it has a snapshot. The status that
        // it had when it was asked for its permission may be out of date, since the log may have overrun it.
        let holds = |id: ProcessId| {
            latest(&self.peers, id).is_some_and(|p| matches!(p.watch.status, Some(Status::Follower | Status::Leader | Status::Taught)))
        };
        let names_itself = self.names_itself();
        let successor_knows = self.hand_over.wish().is_some_and(|to| self.could_lead(to));
        let Some(reign) = self.reign.as_mut().filter(|r| r.may_change(&self.log)) else { return };
        // A leader that has removed itself leads until that is committed, and changes nothing more, because no other process would learn of such a change.
        let Some(group) = self.log.group().filter(|group| group.contains(self.me)) else { return };
        let committed = self.log.committed().index;
        // With `sync` the group would wait for that process's disk as soon as it counts.
        let keeps = |f: &Follower| self.config.durability != Durability::Sync || f.stable.is_some();
        let level = |id: ProcessId| reign.followers.iter().any(|f| f.process == id && f.acked.is_some_and(|a| a >= committed) && keeps(f));
        let next = self.roster.next_group(group, |id| level(id) && holds(id));
        // Under load a slightly slower follower would never be fully up to date; what it lacks is at most what its lane holds.
        let follows = |id: ProcessId| reign.followers.iter().any(|f| f.process == id && f.acked.is_some() && keeps(f));
        if let Some(to) = self.hand_over.take_wish(|to| successor_knows && group.contains(to) && follows(to)) {
            // The choice of a leader is not a request by membership, which has the view of this group already.
            reign.propose_group(&group.clone().led_by(to));
            return;
        }
        if names_itself {
            // This happens before a process with a lower id joins. A living process that was named before would be leading instead.
            reign.propose_group(&group.clone().led_by(self.me));
            return;
        }
        if let Some(next) = next {
            if next.members().len() > group.members().len() { Mark::MuGrows } else { Mark::MuShrinks }.reach();
            reign.propose_group(&next);
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
