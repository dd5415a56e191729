//! Which node the client takes for the leader, and what makes it turn to another one.

use martlet_fabric::{Fabric, NodeId};
use martlet_protocol::basics::{Time, ViewNumber};

use super::Client;

impl<F: Fabric> Client<F> {
    /// Sends everything that has no reply again, from the first request on.
    pub(super) fn start_over(&mut self) {
        self.sent = 0;
        self.epoch = self.epoch.wrapping_add(1);
    }

    /// Takes `node` for the leader, and sends it everything that has no reply.
    pub(super) fn follow(&mut self, node: Option<NodeId>, view: ViewNumber) {
        self.primary = node;
        self.chosen_in = view;
        self.start_over();
        self.send();
    }

    pub(super) fn redirected(&mut self, from: NodeId, view: ViewNumber, to: Option<NodeId>, now: Time) {
        if self.primary != Some(from) {
            return;
        }
        self.view = self.view.max(view);
        match to {
            Some(to) if to != from && view >= self.view && view > self.chosen_in => self.follow(Some(to), view),
            // That node has not yet heard that it leads, or two nodes redirect to each other, or no node knows the leader. The new primary will tell us, or we
            // ask around, but not in a tight loop.
            _ => {
                self.primary = None;
                self.heard_at = now;
            }
        }
    }

    /// Asks the next node, when no leader is known or the supposed leader has been silent for long.
    pub(super) fn look_elsewhere(&mut self, now: Time) {
        if self.nodes.is_empty() {
            return;
        }
        let unreachable = self.primary.is_none_or(|p| !self.nodes.iter().any(|n| n.id == p && !n.broken));
        let patience = if unreachable { self.config.probe_ns } else { self.config.silence_ns };
        let never = self.primary.is_none() && self.view == ViewNumber(0) && self.chosen_in == ViewNumber(0) && self.probe == 0;
        if never || now.since(self.heard_at) >= patience {
            self.heard_at = now;
            self.probe += 1;
            let node = self.nodes[self.probe % self.nodes.len()].id;
            // This node was chosen at random, so news from any view is newer.
            self.follow(Some(node), ViewNumber(0));
        }
    }
}
