//! Handing leadership over: the leader names another replica in the log, which from then on is preferred as leader, whatever its id.
//!
//! The name is part of the group, so that every process that knows the log knows it. Safety does not depend on which process leads, so the argument in
//! `docs/mu.md` is unchanged. The leader continues until its successor is following. Then it proposes the name and accepts no further proposals, so that the
//! successor catches up: everything before the name is committed when the name is. The leader steps aside when its successor's memory says that the name is
//! committed, since before that the successor would wait for the leader.
//!
//! If leadership is lost on the way, some processes may know the name while the named process does not. Then the named process takes the one with the lowest id
//! for the leader, while that one takes the named process for the leader. So the process with the lowest id waits for the named process only as long as it
//! would wait for a dead one.

use martlet_fabric::NodeId;

use crate::basics::{Mark, ProcessId, Time};
use crate::replica::{HandOverError, HandOverState};

use super::layout::Status;
use super::{Group, Mu};
use crate::replica::patience::{Patience, discounted};

/// A leader's request to hand over, and the outcome of earlier ones.
#[derive(Debug, Default)]
pub(super) struct HandOver {
    /// The successor, as long as the log does not name it.
    wish: Option<ProcessId>,
    /// The log of this leader names another process that could lead.
    yields: bool,
    /// Since when the named process could lead but does not, as seen by the process that would lead otherwise.
    idle_since: Option<Time>,
    /// The last request made of this process. It outlives the reign, because the outcome may still be asked for.
    asked: Option<Asked>,
}

#[derive(Clone, Copy, Debug)]
struct Asked {
    to: ProcessId,
    /// For a process that does not lead: how long it waits for the outcome.
    patience: Patience,
}

impl HandOver {
    /// Whether no further proposals are to be accepted.
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

    /// The requested successor, if it can be put into the log now; from here on no further proposals are accepted.
    pub fn take_wish(&mut self, level: impl Fn(ProcessId) -> bool) -> Option<ProcessId> {
        let wish = self.wish.take_if(|to| level(*to));
        if wish.is_some() {
            Mark::MuNamed.reach();
            self.yields = true;
        }
        wish
    }

    /// This process was itself stalled for `ns`, which does not count as waiting.
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
    /// Hands leadership over: to the replica of this node, or to the lowest id among those that hold the state. [`hand_over_state`](Self::hand_over_state)
    /// reports the outcome.
    ///
    /// # Errors
    /// When this process does not lead, no requested process can succeed it, or a hand-over to another one is under way.
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

    /// The state of the last [`hand_over`](Self::hand_over) that was not refused; `None` if there was none in this life.
    ///
    /// A reign can be lost before the name is committed. If the name is in the log, the next leader either commits it or removes it; if not, the next leader
    /// leads for other reasons. Which of these happened shows when a process leads, and that takes a majority. So this process waits for that, but not for
    /// ever.
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

    /// Notes how long a requested hand-over has been without an outcome.
    fn mind_asked(&mut self, now: Time) {
        let leads = self.is_leading();
        if let Some(asked) = self.hand_over.asked.as_mut().filter(|_| !leads) {
            asked.patience.try_on(now, self.config.patience_ns());
        }
    }

    /// Whether a member is worth waiting for. A member that was taught the state follows as soon as it learns that it belongs to the group, and it takes some
    /// time until that is seen here.
    fn could_succeed(&self, id: ProcessId) -> bool {
        self.seen_alive(id).is_some_and(|status| status != Some(Status::Incomplete))
    }

    /// Whether it is on its way to hand leadership over.
    pub fn is_handing_over(&self) -> bool {
        self.hand_over.is_wished() || self.hand_over.yields
    }

    /// Whether this process is to lead, or to continue leading.
    pub(super) fn is_to_lead(&mut self, now: Time) -> bool {
        self.mind_asked(now);
        if self.hand_over.wish.is_some_and(|to| !self.could_succeed(to)) {
            Mark::MuSuccessorLost.reach();
            self.hand_over.wish = None;
        }
        let leads = self.is_leading();
        let other = |named: &ProcessId| *named != self.me && self.could_lead(*named);
        // Named in the log, even if that is not committed yet.
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
