//! Leadership handed over to another replica: the leader takes nothing more, waits until its successor acknowledges everything and knows that it is committed, ends its reign so that
//! nobody hears it any more, and has the successor stand at once. The others agree to it as to anybody.

use martlet_fabric::{Fabric, NodeId};

use super::layout::control;
use super::leading::Reign;
use super::peers::tell;
use super::{Apus, Ending};
use crate::basics::{Mark, ProcessId, Time};
use crate::replica::patience::Patience;
use crate::replica::{HandOverError, HandOverState};

/// A leader's wish to hand over, and what has become of the last one.
#[derive(Debug, Default)]
pub(super) struct HandOver {
    /// To whom, as long as this process leads.
    wish: Option<ProcessId>,
    asked: Option<Asked>,
}

#[derive(Clone, Copy, Debug)]
struct Asked {
    to: ProcessId,
    /// Until what could still come is not waited for, once this process leads no more.
    patience: Patience,
    outcome: Option<HandOverState>,
}

impl HandOver {
    /// Whether nothing more is to be taken.
    pub fn yields(&self) -> bool {
        self.wish.is_some()
    }

    /// This process was itself stalled for so long, and has waited for nobody.
    pub fn discount(&mut self, gap_ns: u64, now: Time) {
        if let Some(asked) = &mut self.asked {
            asked.patience.discount(gap_ns, now);
        }
    }

    /// The reign is over.
    pub fn end(&mut self) {
        self.wish = None;
    }
}

impl Apus {
    /// Hands leadership over: to the replica of this node, or to the one whose log has come the furthest.
    ///
    /// # Errors
    /// When this process does not lead, nobody can succeed it who is asked for, or it is handing over to another one.
    pub(super) fn begin_hand_over(&mut self, to: Option<NodeId>) -> Result<(), HandOverError> {
        let Some(reign) = self.reign.as_ref().filter(|reign| reign.is_leading()) else { return Err(HandOverError::NotLeading) };
        let able = reign.followers.iter().filter(|f| f.votes && f.held().is_some() && to.is_none_or(|node| f.process.node == node));
        let able = able.filter(|f| self.peer(f.peer).is_some_and(|peer| peer.watch.is_alive()));
        let best = able.max_by_key(|f| (f.held(), std::cmp::Reverse(f.process))).map(|f| f.process);
        let Some(to) = best else { return Err(HandOverError::NoSuccessor) };
        if self.hand_over.wish.is_some_and(|other| other != to) {
            return Err(HandOverError::UnderWay);
        }
        self.hand_over = HandOver { wish: Some(to), asked: Some(Asked { to, patience: Patience::default(), outcome: None }) };
        Ok(())
    }

    /// Goes on with a hand-over, and sees what has come of the last one.
    pub(super) fn mind_hand_over<F: Fabric>(&mut self, now: Time, fabric: &mut F) {
        let (leader, leads) = (self.leader(), self.is_leading());
        let (patience_ns, listed_as) = (self.config.patience_ns(), |id| Some(self.roster.listed_as(id)));
        if let Some(asked) = self.hand_over.asked.as_mut().filter(|asked| asked.outcome.is_none()) {
            match leader {
                _ if leads && self.hand_over.wish.is_some() => {}
                // It has led anew since.
                _ if leads && asked.patience.is_tried() => asked.outcome = Some(HandOverState::Overtaken(listed_as(self.me))),
                _ if leads => asked.outcome = Some(HandOverState::SuccessorLost),
                Some(leader) if leader == asked.to => asked.outcome = Some(HandOverState::Done),
                Some(leader) => asked.outcome = Some(HandOverState::Overtaken(listed_as(leader))),
                None if asked.patience.try_on(now, patience_ns) => asked.outcome = Some(HandOverState::Overtaken(None)),
                None => {}
            }
        }
        let Some(to) = self.hand_over.wish else { return };
        let Some(reign) = self.reign.as_ref().filter(|reign| reign.is_leading()) else { return };
        let alive = self.peer_of(to).filter(|peer| peer.watch.is_alive()).map(|peer| peer.id);
        let follower = reign.followers.iter().find(|f| Some(f.peer) == alive && f.votes);
        let (Some(successor), Some(follower)) = (alive, follower) else {
            Mark::ApusSuccessorLost.reach();
            self.hand_over.wish = None;
            return;
        };
        let committed = self.log.committed();
        let level = committed == self.log.tail() && committed.index == reign.last() && follower.held() == Some(committed.index);
        if level && follower.has_heard_of(committed.index) {
            Mark::ApusHandsOver.reach();
            let view = reign.view;
            self.end_reign(Ending::HandedOver, fabric);
            tell(fabric, successor, control::STAND, view + 1);
            self.nudges.at_once(successor);
            // The successor has the others to itself.
            self.election.yield_to_others(now.after(4 * self.config.election_ns));
        }
    }

    /// What has come of the last hand-over that was not refused; `None` if there was none in this life.
    pub(super) fn state_of_hand_over(&self) -> Option<HandOverState> {
        Some(self.hand_over.asked?.outcome.unwrap_or(HandOverState::UnderWay))
    }

    /// Whether this process leads.
    pub(super) fn is_leading(&self) -> bool {
        self.reign.as_ref().is_some_and(Reign::is_leading)
    }
}
