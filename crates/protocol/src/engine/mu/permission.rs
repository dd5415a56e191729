//! Permission management (Mu section 5.2): at any time one process may write into this replica's log, and requests are served one by one,
//! in order of the requesters' ids.
//!
//! The permission is that of the fabric's [`LOG_LANE`]s. A change has three steps. First the old holder's permission is revoked. When that has completed,
//! everything that the old holder wrote successfully is there (promise 6 of the fabric), and is taken from its lane into the log. Then the new holder's
//! permission is granted, in a new epoch, and acknowledged. So a process that reads this log after the acknowledgement finds everything that any earlier leader
//! may have counted on.

use martlet_fabric::primitive::Ordering;
use martlet_fabric::{Fabric, LocalRegion, Memory, PeerId, Region, Remote};

use crate::basics::layout::LOG_LANE;
use crate::basics::{Canary, Mark};
use crate::replica::StateMachine;

use super::background::hear;
use super::layout::{LaneFault, Op, PERMISSION_LANE, is_position, permission};
use super::replay::Inbound;
use super::{AbortReason, Event, Mu};

/// The holder of this log's permission, and the process whose request is being served.
#[derive(Debug, Default)]
pub(super) struct Permission {
    /// [`PeerId::SELF`] when this process may write its own log.
    pub holder: Option<PeerId>,
    serving: Option<(PeerId, u64)>,
    /// Revocations that have not completed.
    pub revoking: u32,
    /// The numbers of our own latest request, and of the latest that we granted ourselves.
    pub requested: u64,
    pub self_granted: u64,
}

impl Permission {
    /// Whether the old holder's permission has been revoked and the new holder's has not been granted yet.
    pub fn is_to_grant(&self) -> bool {
        self.serving.is_some() && self.revoking == 0
    }
}

/// A word of the lane that `peer` writes here.
pub(super) fn word_from<F: Fabric>(fabric: &F, peer: PeerId, word: usize) -> u64 {
    let lane: Option<&Memory> = fabric.memory(LocalRegion::Lane { writer: peer, name: PERMISSION_LANE });
    // Pairs with the release of the peer's writes.
    lane.map_or(0, |lane| lane[word].load(Ordering::Acquire))
}

/// Writes a word into the lane that `peer` keeps for us.
pub(super) fn tell<F: Fabric>(fabric: &mut F, peer: PeerId, word: usize, value: u64) {
    let at = Remote { peer, region: Region::Lane(PERMISSION_LANE), offset: word * 8 };
    fabric.write(at, &value.to_le_bytes(), Op::Permission.token(0, peer));
}

impl Mu {
    /// Serves requests, one after the other. Returns whether anything has moved.
    pub(super) fn serve<F: Fabric, S: StateMachine>(&mut self, fabric: &mut F, machine: &mut S) -> bool {
        let mut moved = false;
        loop {
            if self.permission.serving.is_none() {
                let Some((peer, request)) = self.next_request(fabric) else { return moved };
                moved = true;
                self.permission.serving = Some((peer, request));
                if let Some(holder) = self.permission.holder.filter(|h| *h != PeerId::SELF) {
                    Mark::MuRevoked.reach();
                    self.permission.revoking += 1;
                    fabric.revoke(holder, LOG_LANE, Op::Revoke.token(0, holder));
                }
            }
            let Some((peer, request)) =
                self.permission.serving.filter(|_| self.permission.revoking == 0 || Canary::MuEarlyGrant.is_planted())
            else {
                return moved;
            };
            moved = true;
            if let Some(holder) = self.permission.holder.filter(|h| *h != PeerId::SELF) {
                self.drain(holder, usize::MAX, fabric, machine);
            }
            // The next process to read this log would miss what the holder counts on.
            if self.inbound.broken {
                return moved;
            }
            self.permission.serving = None;
            self.permission.holder = Some(peer);
            self.inbound = Inbound::default();
            if peer == PeerId::SELF {
                Mark::MuGrantedSelf.reach();
                self.permission.self_granted = request;
                continue;
            }
            let Some(requester) = self.peers.iter_mut().find(|p| p.id == peer) else {
                self.permission.holder = None;
                continue;
            };
            requester.served = request;
            // The requester lives, and can lead. If the present leader took it for dead, or thought that it lacks the state, the two would depose each other
            // again and again, until the requester's score has risen or its next heartbeat is read.
            if hear(&mut requester.watch) {
                self.events.push_back(Event::Recovered(requester.process));
            }
            let start = word_from(fabric, peer, permission::START);
            if !is_position(start) {
                self.permission.holder = None;
                self.events.push_back(Event::LaneFault { peer, fault: LaneFault::Start(start), stuck: false });
                continue;
            }
            Mark::MuGranted.reach();
            let process = requester.process;
            requester.reader.move_to(start);
            if let Some(lane) = fabric.memory(LocalRegion::Lane { writer: peer, name: LOG_LANE }) {
                requester.reader.publish(lane);
            }
            if self.reign.is_some() {
                self.end_reign(AbortReason::Granted(process), fabric);
            }
            fabric.grant(peer, LOG_LANE);
            self.publish(fabric);
            tell(fabric, peer, permission::ACK, request);
            self.nudges.at_once(peer);
        }
    }

    /// The pending request of the lowest id.
    fn next_request<F: Fabric>(&self, fabric: &F) -> Option<(PeerId, u64)> {
        if self.is_removed() || self.inbound.broken {
            return None;
        }
        let removed = |process| self.log.group().is_some_and(|g| g.has_removed(process));
        let others = self.peers.iter().filter(|p| !p.watch.dead && !removed(p.process)).filter_map(|p| {
            let request = word_from(fabric, p.id, permission::REQUEST);
            (request > p.served).then_some((p.process, p.id, request))
        });
        let own = (self.permission.requested > self.permission.self_granted && self.reign.is_some()).then_some((
            self.me,
            PeerId::SELF,
            self.permission.requested,
        ));
        others.chain(own).min().map(|(_, peer, request)| (peer, request))
    }
}
