//! How the group follows the views of membership (DARE section 3.4): see [`Roster`](crate::replica::roster::Roster).
//!
//! A leader changes nothing before an entry of its own term is committed. Otherwise two successive leaders could each make a change that the other does not
//! know of, and the majorities of their groups need not meet.

use martlet_fabric::Fabric;

use super::leading::Reign;
use super::log::Log;
use super::peers::{Peer, latest};
use super::resize::{Wishes, next_phase};
use super::{Dare, Ending, Event};
use crate::basics::{LogIndex, ProcessId, ViewNumber};
use crate::engine::DropReason;
use crate::membership::View;
use crate::replica::group::Phase;
use crate::replica::roster::Report;

impl Dare {
    /// A view has been decided. The replicas of the first view found the group.
    pub(super) fn take_view(&mut self, view: &View) {
        if !self.roster.take(view, self.me, std::iter::empty()) {
            return;
        }
        // A process that has voted, supported or learned before it learned of that view was reached first by another founder. It is treated like a newcomer.
        let untouched = self.log.tail().index == LogIndex(0) && self.term == 0 && !self.lesson_begun;
        let founders = self.roster.founders(view, self.me).filter(|_| untouched && self.log.group().is_none() && !self.listed);
        if let Some(group) = founders {
            let wanted = self.config.places as u8;
            self.log = Log::new(self.config.log_ring_bytes, Some(group.wanting(wanted)));
            (self.reading, self.listed, self.published) = (None, true, false);
        }
        self.follow_roster();
    }

    /// Determines how the group should change, from the newest view and from what is known of the dead.
    pub(super) fn follow_roster(&mut self) {
        let Some(group) = self.log.group().filter(|_| self.roster.view() > ViewNumber(0)) else { return };
        self.roster.follow(self.me, group, |id| latest(&self.peers, id).map(|p| p.watch.patience.is_over()));
        if let Some(slow) = self.laggard() {
            self.roster.remove(slow);
        }
    }

    /// The server that keeps the log from being pruned, if it has done so for too long and the others suffice without it (DARE section 3.3.2).
    fn laggard(&self) -> Option<ProcessId> {
        let reign = self.reign.as_ref().filter(|reign| reign.is_leading())?;
        let (head, since) = reign.head_stuck?;
        if self.now.since(since) < self.config.silence_ns {
            return None;
        }
        let group = self.log.group()?;
        let slow = reign
            .followers
            .iter()
            .filter(|f| f.votes() && !f.is_zombie() && (!f.is_following() || f.applied() <= head))
            .map(|f| f.process)
            .next()?;
        let committed = self.log.committed().index;
        let level = |id: ProcessId| {
            id == self.me
                || reign.followers.iter().any(|f| f.process == id && !f.is_zombie() && f.held().is_some_and(|held| held >= committed))
        };
        group.is_majority(|id| id != slow && level(id)).then_some(slow)
    }

    /// As leader, tells membership how far its wishes have been fulfilled.
    pub(super) fn report_group(&mut self) {
        let Some((since, group)) = self.log.committed_group().filter(|_| self.is_leading()) else { return };
        let report = self.roster.report(*since, group, |id| latest(&self.peers, id).map(|p| p.watch.patience.is_over()));
        let Some(Report { level, out }) = report else { return };
        self.events.extend(level.into_iter().map(Event::CaughtUp));
        self.events.extend(out.into_iter().map(|process| Event::Drop { process, reason: DropReason::NotInGroup }));
    }

    /// Proposes the next phase of a wished change of the group, when it can be done: one at a time.
    pub(super) fn change_group(&mut self) {
        let Some(group) = self.log.group() else { return };
        if !self.roster.has_wishes() && self.resizing.is_none() && *group.phase() == Phase::Stable && !group.is_larger_than_wanted() {
            return;
        }
        let may_change = |reign: &&mut Reign| reign.may_change(&self.log) && !self.hand_over.yields();
        let Some(reign) = self.reign.as_mut().filter(may_change) else { return };
        // A leader that has removed itself leads until that is committed, and changes nothing more, because no other process would learn of such a change.
        let Some(group) = self.log.group().filter(|group| group.contains(self.me)) else { return };
        let committed = self.log.committed().index;
        let is_level = |id: ProcessId| {
            reign.followers.iter().any(|f| f.process == id && !f.is_zombie() && f.held().is_some_and(|held| held >= committed))
        };
        self.resizing = self.resizing.filter(|places| *places != group.wanted());
        let wanted = self.resizing.unwrap_or(group.wanted());
        let view = self.roster.view().max(group.view());
        let is_alive = |peer| self.peers.iter().any(|p: &Peer| p.id == peer && p.watch.is_alive());
        let (removing, adding) = self.roster.wishes(group);
        let removing: Vec<ProcessId> = removing.iter().copied().filter(|id| reign.may_remove(*id, group, committed, is_alive)).collect();
        let Some(next) = next_phase(group, self.me, &Wishes { wanted, removing: &removing, adding }, is_level) else { return };
        reign.propose_group(&next.as_of(view));
    }

    /// Checks whether this process belongs to the committed group, and stops leading once it does not.
    pub(super) fn watch_group<F: Fabric>(&mut self, fabric: &mut F) {
        let Some((since, group)) = self.log.committed_group() else { return };
        self.listed |= group.contains(self.me);
        let since = *since;
        // Another voter has to know that the group without this process is committed. A majority of the others has the entry, and the next leader commits it.
        let told = self.reign.as_ref().is_none_or(|reign| {
            !reign.is_leading() || reign.followers.iter().any(|f| f.votes() && !f.is_zombie() && f.has_heard_of(since))
        });
        if self.is_removed() && self.reign.is_some() && told {
            self.end_reign(Ending::Removed, fabric);
        }
    }

    /// Whether it has been removed from the group, and has therefore stopped.
    pub(super) fn is_removed(&self) -> bool {
        self.listed && self.log.committed_group().is_some_and(|(_, group)| !group.contains(self.me))
    }
}
