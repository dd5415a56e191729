//! Handing leadership over to another replica: the leader accepts no further proposals, waits until its successor acknowledges everything and knows that it is
//! committed, ends its reign so that no process hears it any more, and has the successor stand at once. The others hold back for the successor as long as it
//! lives, and agree to it as to any candidate.

use martlet_fabric::{Fabric, NodeId};

use super::layout::{control, next_view};
use super::peers::tell;
use super::{Apus, Ending};
use crate::basics::{Mark, Time};
use crate::replica::HandOverError;

impl Apus {
    /// Hands leadership over: to the replica of this node, or to the one with the longest log.
    ///
    /// # Errors
    /// When this process does not lead, no requested process can succeed it, or a hand-over to another one is under way.
    pub(super) fn begin_hand_over(&mut self, to: Option<NodeId>) -> Result<(), HandOverError> {
        let Some(reign) = self.reign.as_ref().filter(|reign| reign.is_leading()) else { return Err(HandOverError::NotLeading) };
        let able = reign.followers.iter().filter(|f| f.votes && f.held().is_some());
        let able = able.filter(|f| self.peers.iter().any(|p| p.id == f.peer && p.watch.is_alive()));
        self.hand_over.begin(to, able.map(|f| (f.process, f.held())))
    }

    /// Continues a hand-over, and determines the outcome of the last one.
    pub(super) fn mind_hand_over<F: Fabric>(&mut self, now: Time, fabric: &mut F) {
        let (me, leader) = (self.is_leading().then_some(self.me), self.leader());
        self.hand_over.judge(now, self.config.patience_ns(), me, leader, |id| self.roster.listed_as(id));
        let Some(to) = self.hand_over.wish() else { return };
        let Some(reign) = self.reign.as_ref().filter(|reign| reign.is_leading()) else { return };
        let alive = self.peer_of(to).filter(|peer| peer.watch.is_alive()).map(|peer| peer.id);
        let follower = reign.followers.iter().find(|f| Some(f.peer) == alive && f.votes);
        let (Some(successor), Some(follower)) = (alive, follower) else {
            Mark::ApusSuccessorLost.reach();
            self.hand_over.end();
            return;
        };
        let committed = self.log.committed();
        let level = committed == self.log.tail() && committed.index == reign.last() && follower.held() == Some(committed.index);
        if level && follower.has_heard_of(committed.index) {
            Mark::ApusHandsOver.reach();
            let Some(next) = next_view(reign.view, to.node.0) else {
                // No number is left to lead under.
                self.hand_over.end();
                return;
            };
            self.end_reign(Ending::HandedOver, fabric);
            for peer in self.peers.iter().filter(|p| !p.watch.dead) {
                tell(fabric, peer.id, control::STAND, next);
            }
            self.nudges.at_once(successor);
            self.election.deference.begin(next, to.node, now.after(self.config.silence_ns));
        }
    }
}
