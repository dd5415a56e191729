//! Leadership handed over to another replica: the leader names it in the log, and from then on it leads before all others, whatever its id.
//!
//! The name is part of the group, so that everybody who knows the log knows it; who leads is no matter of safety, so nothing of the argument in
//! `docs/mu.md` changes. The leader goes on until its successor follows. Then it proposes the name, and takes nothing more, so that the successor gets level:
//! everything before the name is committed when the name is. It steps aside when it stands in its successor's memory that the name is committed, since before
//! that the successor would wait for it.
//!
//! If leadership gets lost on the way, some know the name and the one who is named does not: it takes a lower id for the leader, which takes it for the
//! leader. So the lowest id waits for whom the others name only for as long as it would wait for somebody who is dead.

use martlet_fabric::NodeId;

use crate::basics::{Mark, ProcessId, Time};
use crate::replica::{HandOverError, HandOverState};

use super::layout::Status;
use super::{Group, Mu};
use crate::replica::patience::{Patience, discounted};

/// A leader's wish to hand over, and what has become of earlier ones.
#[derive(Debug, Default)]
pub(super) struct HandOver {
    /// To whom, as long as that is not in the log.
    wish: Option<ProcessId>,
    /// The log of this leader names somebody else who could lead.
    yields: bool,
    /// Since when the one who is named could lead and does not, as the process sees it that would lead otherwise.
    idle_since: Option<Time>,
    /// What this process was last asked for; it outlives the reign, as whoever asked wants to know what has come of it.
    asked: Option<Asked>,
}

#[derive(Clone, Copy, Debug)]
struct Asked {
    to: ProcessId,
    /// Of a process that does not lead: until what could still come is not waited for.
    patience: Patience,
}

impl HandOver {
    /// Whether nothing more is to be taken.
    #[inline]
    pub fn yields(&self) -> bool {
        self.yields
    }

    pub fn is_wished(&self) -> bool {
        self.wish.is_some()
    }

    pub fn wish(&self) -> Option<ProcessId> {
        self.wish
    }

    /// The wish, if it can be put into the log now: nothing more is taken from here on.
    pub fn take_wish(&mut self, level: impl Fn(ProcessId) -> bool) -> Option<ProcessId> {
        let wish = self.wish.take_if(|to| level(*to));
        if wish.is_some() {
            Mark::MuNamed.reach();
            self.yields = true;
        }
        wish
    }

    /// This process was itself stalled for so long, and has waited for nobody.
    pub fn discount(&mut self, ns: u64, now: Time) {
        self.idle_since = self.idle_since.map(|since| discounted(since, ns, now));
        if let Some(asked) = &mut self.asked {
            asked.patience.discount(ns, now);
        }
    }

    /// The reign is over.
    pub fn end(&mut self) {
        *self = HandOver { asked: self.asked, ..HandOver::default() };
    }
}

impl Mu {
    /// Hands leadership over: to the replica of this node, or to the lowest id among those that hold the state.
    /// [`hand_over_state`](Self::hand_over_state) tells what comes of it.
    ///
    /// # Errors
    /// When this process does not lead, nobody can succeed it who is asked for, or it is handing over to another one.
    pub fn hand_over(&mut self, to: Option<NodeId>) -> Result<(), HandOverError> {
        if !self.is_leading() {
            return Err(HandOverError::NotLeading);
        }
        let Some((_, group)) = self.log.committed_group() else { return Err(HandOverError::NoSuccessor) };
        let asked_for = |id: &ProcessId| *id != self.me && to.is_none_or(|node| id.node == node) && self.could_succeed(*id);
        let candidates = || group.members().iter().copied().filter(asked_for);
        let Some(to) = candidates().find(|id| self.could_lead(*id)).or_else(|| candidates().next()) else {
            return Err(HandOverError::NoSuccessor);
        };
        let under_way = self.hand_over.wish.or(self.log.group().and_then(Group::first).filter(|_| self.hand_over.yields));
        if under_way.is_some_and(|other| other != to) {
            return Err(HandOverError::UnderWay);
        }
        if !self.hand_over.yields {
            self.hand_over.wish = Some(to);
        }
        self.hand_over.asked = Some(Asked { to, patience: Patience::default() });
        Ok(())
    }

    /// What has come of the last [`hand_over`](Self::hand_over) that was not refused; `None` if there was none in this life.
    ///
    /// A reign can be lost before the name is committed. If the name is in the log, the next leader either commits it or takes it out; if not, whoever
    /// leads next does so for other reasons. Both show when somebody leads, which takes a majority: so that is waited for, but not without end.
    pub fn hand_over_state(&self) -> Option<HandOverState> {
        let Asked { to, patience } = self.hand_over.asked?;
        if self.is_leading() {
            return Some(match patience.is_tried() {
                _ if self.is_handing_over() => HandOverState::UnderWay,
                true => HandOverState::Overtaken(Some(self.roster.listed_as(self.me))),
                false => HandOverState::SuccessorLost,
            });
        }
        let leads = |id: ProcessId| self.seen_alive(id) == Some(Some(Status::Leader));
        let named = self.log.committed_group().and_then(|(_, group)| group.first());
        if named == Some(to) || leads(to) {
            return Some(HandOverState::Done);
        }
        let leader = self.peers.iter().map(|p| p.process).find(|id| leads(*id));
        let may_be_named = self.log.group().and_then(Group::first) == Some(to);
        Some(match leader {
            _ if may_be_named && !patience.is_over() => HandOverState::UnderWay,
            None if !patience.is_over() => HandOverState::UnderWay,
            leader => HandOverState::Overtaken(leader.map(|id| self.roster.listed_as(id))),
        })
    }

    /// Notes for how long whoever asked for a hand-over has been without an answer.
    fn mind_asked(&mut self, now: Time) {
        let leads = self.is_leading();
        if let Some(asked) = self.hand_over.asked.as_mut().filter(|_| !leads) {
            asked.patience.try_on(now, self.config.patience_ns());
        }
    }

    /// Whether a member is worth waiting for. One that was taught the state and belongs to the group follows as soon as it hears that it does, and some time
    /// passes before that is seen here.
    fn could_succeed(&self, id: ProcessId) -> bool {
        self.seen_alive(id).is_some_and(|status| status != Some(Status::Incomplete))
    }

    /// Whether it is on its way to hand leadership over.
    pub fn is_handing_over(&self) -> bool {
        self.hand_over.is_wished() || self.hand_over.yields
    }

    /// Whether this process is to lead, or to go on.
    pub(super) fn is_to_lead(&mut self, now: Time) -> bool {
        self.mind_asked(now);
        if self.hand_over.wish.is_some_and(|to| !self.could_succeed(to)) {
            Mark::MuSuccessorLost.reach();
            self.hand_over.wish = None;
        }
        let leads = self.is_leading();
        let other = |named: &ProcessId| *named != self.me && self.could_lead(*named);
        // Named in the log, if not for good yet.
        let yields = leads && self.log.group().and_then(Group::first).as_ref().is_some_and(other);
        let named = self.log.committed_group().and_then(|(index, group)| Some((*index, group.first().filter(other)?)));
        self.hand_over.yields = yields;
        let Some((index, named)) = named else {
            self.hand_over.idle_since = None;
            return self.leader() == Some(self.me);
        };
        if leads {
            let follower = self.reign.as_ref().and_then(|reign| reign.followers.iter().rev().find(|f| f.process == named));
            let heard = follower.is_some_and(|f| f.has_heard_of(index));
            if heard {
                Mark::MuHandedOver.reach();
            }
            return !heard;
        }
        let reigns = self.peers.iter().any(|p| p.process == named && p.watch.status == Some(Status::Leader));
        let group = self.log.committed_group().map(|(_, group)| group);
        let lowest = group.and_then(|g| g.members().iter().copied().find(|id| self.could_lead(*id)));
        if reigns || lowest != Some(self.me) {
            self.hand_over.idle_since = None;
            return false;
        }
        let since = *self.hand_over.idle_since.get_or_insert(now);
        let in_vain = now.since(since) > u64::from(self.config.thresholds.cap) * self.config.heartbeat_interval_ns;
        if in_vain {
            Mark::MuNamedInVain.reach();
        }
        in_vain
    }
}
