//! How requests end: completions, in order, and the end of a connection.

use std::time::{Duration, Instant};

use super::posting::{KIND_LOOK, KIND_NOTICE, KIND_OP, plane_of};
use super::revocation::{close, look};
use super::{Entry, VerbsFabric};
use crate::contract::{OpError, PeerId};
use crate::invariant;
use crate::meeting::log_of;
use crate::meeting::tcp::shared::Command;
use crate::verbs::ffi::{self, Wc};
use crate::verbs::line::{Channel, Line, State};

/// Completions taken from a queue at once.
const BATCH: usize = 32;

impl Entry {
    /// Whether notices to a peer that is not lost are under way.
    fn awaits_notices(&self) -> bool {
        !self.line.broken && self.peer.ours.iter().any(|lane| lane.notices > 0)
    }
}

impl VerbsFabric {
    /// Works on all lines once: hands over what can be, takes completions, looks at notices.
    pub(super) fn progress(&mut self) {
        let passed = if self.active.is_empty() { None } else { self.attention.turn(Instant::now) };
        for at in 0..self.active.len() {
            self.hand_over(self.active[at]);
        }
        self.take_completions();
        let mut at = 0;
        while at < self.active.len() {
            let id = self.active[at];
            self.heed_notice(id);
            self.release(id);
            // What waited for another queue pair, or for room, may go out now.
            self.hand_over(id);
            if let Some(passed) = passed {
                self.find_overdue(id, passed);
            }
            let Some(entry) = self.entries[id.0 as usize].as_deref_mut() else {
                self.active.swap_remove(at);
                continue;
            };
            if entry.line.is_empty() && entry.line.look.is_none() && !entry.notices_due && !entry.awaits_notices() {
                entry.active = false;
                self.active.swap_remove(at);
            } else {
                at += 1;
            }
        }
    }

    /// Gives a peer up if the device should have ended a request to it long ago. `passed` is the time that counts since the last look.
    fn find_overdue(&mut self, id: PeerId, passed: Duration) {
        let patience = self.card.patience;
        let Some(entry) = self.entries[id.0 as usize].as_deref_mut() else { return };
        if entry.line.broken {
            return;
        }
        let notices = entry.awaits_notices();
        if let Some(lasted) = entry.silences.overdue(&entry.line, notices, entry.peer.packet, patience, passed) {
            self.give_up(id, &format!("the device has said nothing of its requests for {lasted:.1?}, and should have ended them"));
        }
    }

    fn take_completions(&mut self) {
        let mut wcs = [Wc::EMPTY; BATCH];
        for (plane, queue) in [(1, self.card.replication.clone()), (0, self.card.background.clone())] {
            loop {
                let count = queue.poll(&mut wcs);
                for wc in &wcs[..count] {
                    self.completed(wc, plane);
                }
                if count < BATCH {
                    break;
                }
            }
        }
    }

    /// A request has completed, successfully or not. It may have been given up meanwhile.
    fn completed(&mut self, wc: &Wc, plane: usize) {
        let id = PeerId((wc.wr_id >> 32) as u32);
        let (kind, low) = (wc.wr_id >> 30 & 3, wc.wr_id as u32 & 0x3fff_ffff);
        let Some(entry) = self.entries.get_mut(id.0 as usize).and_then(Option::as_deref_mut) else { return };
        #[cfg(feature = "conformance")]
        if self.deaf_to == Some(id) {
            return;
        }
        let Entry { peer, line, silences, .. } = entry;
        if plane == 0 {
            silences.completed += 1;
        }
        let well = wc.status == ffi::WC_SUCCESS;
        match kind {
            KIND_OP => {
                let Some(request) = line.under_way(low) else { return };
                let plane = plane_of(line.channel);
                let before = line.outstanding();
                if well {
                    line.settle(request + 1, &peer.stage);
                    self.under_way[plane] -= before - line.outstanding();
                    return;
                }
                // Requests complete in order, so those before the first failed one were successful.
                line.settle(request, &peer.stage);
                let lost = matches!(wc.status, ffi::WC_REM_INV_REQ_ERR | ffi::WC_REM_ACCESS_ERR);
                match line.channel {
                    Channel::Lane(lane) => {
                        tracing::debug!(peer = id.0, lane, status = wc.status, "a write into a lane has failed");
                        line.end_posted(if lost { State::Done(Err(OpError::AccessLost)) } else { State::Undecided });
                        self.under_way[plane] -= before;
                        let failed = if lost { close(&mut peer.theirs[usize::from(lane)]) } else { look(peer, line, id, lane) };
                        if let Err(error) = failed {
                            self.give_up(id, &format!("its lane cannot be examined ({error})"));
                        }
                    }
                    Channel::Background => {
                        if lost && let Some(op) = line.owner_mut(request) {
                            op.state = State::Done(Err(OpError::AccessLost));
                        }
                        line.end_posted(State::Done(Err(OpError::PeerLost)));
                        self.under_way[plane] -= before;
                        self.give_up(id, &format!("a request has failed with status {}", wc.status));
                    }
                }
            }
            KIND_LOOK if line.look.is_some_and(|look| Line::low(look.number) == low) => {
                if well {
                    self.looked(id);
                } else {
                    self.give_up(id, &format!("its grant cannot be read (status {})", wc.status));
                }
            }
            KIND_NOTICE if well => {
                if let Some(lane) = peer.ours.iter_mut().find(|lane| lane.grant_word == low as usize) {
                    lane.notices -= 1;
                }
            }
            // When a connection ends, requests are flushed. The code that ended it knows why.
            KIND_NOTICE if !well && wc.status != ffi::WC_WR_FLUSH_ERR => {
                self.give_up(id, &format!("a notice has failed with status {}", wc.status));
            }
            _ => {}
        }
    }

    /// Moves what is done, in order, to the completions.
    pub(super) fn release(&mut self, id: PeerId) {
        if let Some(entry) = self.entries[id.0 as usize].as_deref_mut() {
            while let Some(completion) = entry.line.pop() {
                self.ready.push_back(completion);
            }
        }
    }

    /// Nothing more can be done with a peer: ends its operations and its connection.
    pub(super) fn give_up(&mut self, id: PeerId, why: &str) {
        let Some(entry) = self.entries[id.0 as usize].as_deref_mut() else { return };
        if entry.line.broken {
            return;
        }
        // No peer and no setting leads here. What this process asks of itself never leaves its card: it concerns words of its own public regions,
        // which exist as long as the process does, over two queue pairs in which nobody else has a part. A process keeps no lane for itself, so there
        // is no grant, look, notice or closing. A card that exhausts its patience with itself, forgets a request, or has no memory left for a few
        // bytes serves the other peers no better. And the process cannot do without itself: a coordinator's own acceptor would count as lost for as
        // long as the process lives.
        invariant!(id != PeerId::SELF, "the card does not serve us: {why}");
        log_of!(warn, entry.peer.identity, id, "the connection with {} is given up: {}", why);
        self.end_line(id);
        self.shared.ask(Command::Cut(id));
    }

    pub(super) fn end_line(&mut self, id: PeerId) {
        let Some(entry) = self.entries[id.0 as usize].as_deref_mut() else { return };
        let plane = plane_of(entry.line.channel);
        self.under_way[plane] -= entry.line.outstanding();
        entry.line.give_up();
        entry.notices_due = false;
        // The card need not go on trying. What READs bring must not land after they have completed as lost, since the memory is then the caller's
        // again. The error state would not prevent that.
        entry.peer.background.end();
        // If this fails, the queue pair has already failed.
        for lane in &mut entry.peer.theirs {
            let _ = close(lane);
        }
        if !entry.active {
            entry.active = true;
            self.active.push(id);
        }
    }
}
