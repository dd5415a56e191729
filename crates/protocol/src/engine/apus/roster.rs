//! How the group follows the views of membership: see [`Roster`](crate::replica::roster::Roster).
//!
//! A leader changes nothing before everything with which it began is acknowledged under its own view id. Otherwise two successive leaders could each make a
//! change that the other does not know of, and the majorities of their groups need not meet.

use martlet_fabric::Fabric;

use super::leading::Reign;
use super::log::Log;
use super::peers::latest;
use super::{Apus, Ending, Event, Status};
use crate::basics::{LogIndex, Mark, ProcessId};
use crate::engine::DropReason;
use crate::membership::View;
use crate::replica::roster::Report;

impl Apus {
    /// A view has been decided. The replicas of the first view found the group.
    pub(super) fn take_view(&mut self, view: &View) {
        if !self.roster.take(view, self.me, self.peers.iter_mut().map(|p| (p.identity, &mut p.process))) {
            return;
        }
        // A process that has promised or learned anything before it learned of that view was reached first by another founder. It is treated like a newcomer.
        let untouched = self.log.tail().index == LogIndex(0) && self.log.promised() == 0 && !self.lesson_begun;
        let founders = self.roster.founders(view, self.me).filter(|_| untouched && self.log.group().is_none() && !self.listed);
        if founders.is_some() {
            let journal = self.log.journal.take();
            self.log = Log::new(self.config.log_ring_bytes, founders);
            if let Some(journal) = journal {
                self.log.begin_journal(journal);
            }
            (self.learning, self.listed, self.published) = (None, true, false);
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
        self.events.extend(level.into_iter().map(|id| Event::CaughtUp(self.roster.listed_as(id))));
        self.events.extend(out.into_iter().map(|id| Event::Drop { process: self.roster.listed_as(id), reason: DropReason::NotInGroup }));
    }

    /// Proposes the next wished change of the group, when it can be done: one at a time.
    pub(super) fn change_group(&mut self) {
        if !self.roster.has_wishes() {
            return;
        }
        let may_change = |reign: &&mut Reign| reign.may_change(&self.log) && !self.hand_over.yields();
        let Some(reign) = self.reign.as_mut().filter(may_change) else { return };
        // A leader that has removed itself leads until that is committed, and changes nothing more, because no other process would learn of such a change.
        let Some(group) = self.log.group().filter(|group| group.contains(self.me)) else { return };
        // As soon as a process is added, the group may need its state, and may need it to recover, which it cannot do before it has a snapshot.
        let is_kept =
            |id: ProcessId| latest(&self.peers, id).is_some_and(|p| matches!(p.watch.status, Some(Status::Backup | Status::Leader)));
        let committed = self.log.committed().index;
        let is_level = |id: ProcessId| reign.followers.iter().any(|f| f.process == id && f.held().is_some_and(|held| held >= committed));
        let Some(next) = self.roster.next_group(group, |id| is_level(id) && is_kept(id)) else { return };
        if next.members().len() > group.members().len() { Mark::ApusGrows } else { Mark::ApusShrinks }.reach();
        reign.propose_group(&next);
    }

    /// Checks whether this process belongs to the committed group, and stops leading once it does not.
    pub(super) fn watch_group<F: Fabric>(&mut self, fabric: &mut F) {
        let Some((since, group)) = self.log.committed_group() else { return };
        // A process that leads without being in the group was in an earlier group, perhaps in an earlier life.
        self.listed |= group.contains(self.me) || self.is_leading();
        let since = *since;
        // Another voter has to know that the group without this process is committed. A majority of the others has the entry, and the next leader commits it.
        let leads = |reign: &Reign| reign.is_leading();
        let told =
            self.reign.as_ref().is_none_or(|reign| !leads(reign) || reign.followers.iter().any(|f| f.votes && f.has_heard_of(since)));
        if self.is_removed() && self.reign.is_some() && told {
            self.end_reign(Ending::Removed, fabric);
        }
    }

    /// Whether it has been removed from the group, and has therefore stopped, unless the others [may need its log](Self::is_heir).
    pub(super) fn is_removed(&self) -> bool {
        self.listed && self.log.committed_group().is_some_and(|(_, group)| !group.contains(self.me)) && !self.is_heir()
    }
}
