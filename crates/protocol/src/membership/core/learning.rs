//! Learning views (boards, pushes, pulls), and what follows from a new view.

use martlet_fabric::primitive::Ordering;
use martlet_fabric::{Fabric, Local, LocalRegion, OpError, PeerId, Region, Remote, invariant};

use super::peers::Peer;
use super::{Core, Event, Leases, Read, is_view, read_token};
use crate::basics::layout::{BOARD, MAX_MEMBERS, SCRATCH, VIEW_RECORD_BYTES};
use crate::basics::{Canary, Mark, ProcessId, Time, ViewNumber, ballot, sealed};
use crate::consensus::Proposer;
use crate::membership::lease::Handover;
use crate::membership::message::Message;
use crate::membership::view::{Evidence, Roles, View};

/// Layout of a board: the number is in word 0, and the two records start here.
const RECORDS_AT: usize = 64;

impl Core {
    /// Takes a view that another process says is decided. Older and known views change nothing.
    pub(super) fn learn<F: Fabric>(&mut self, now: Time, fabric: &mut F, view: View) {
        if self.excluded {
            return;
        }
        match &self.view {
            Some(known) if known.number > view.number => {}
            Some(known) if known.number == view.number => {
                // Consensus decides one view per number, so some process lies, or was lied to. The view that is known here is kept: if a peer's word
                // were enough to stop this process, one liar could stop all of them.
                self.contradictions += u64::from(*known != view);
            }
            _ => self.install(now, fabric, view),
        }
    }

    /// A newer decided view is known.
    pub(super) fn install<F: Fabric>(&mut self, now: Time, fabric: &mut F, view: View) {
        let me = self.config.me;
        let before = self.view.take();
        let was_member = before.as_ref().is_some_and(|v| v.member(me).is_some());
        let successor = before.as_ref().is_some_and(|v| v.number.next() == view.number);
        let was_active = successor && before.as_ref().is_some_and(|v| self.lease.view() == v.number);
        match before.as_ref() {
            Some(_) if successor => Mark::LearnedNext.reach(),
            Some(_) => Mark::LearnedLater.reach(),
            None => {}
        }
        self.learned = now;
        self.publish(fabric, &view);
        self.wishes.settle(&view);
        if self.decided_here != Some(view.number) {
            // A process whose wish to join was noted here while another process led may have been taken in, and have died, in views that this process
            // never saw. A process that is still waiting asks again.
            self.wishes.join.clear();
        }
        if before.as_ref().and_then(View::primary).map(|m| m.id) != view.primary().map(|m| m.id) {
            self.wishes.forget_promotions();
        }
        for member in &view.members {
            // The leader that took this member in did not know yet that it was gone.
            let goes = |evidence: &Evidence| self.config.authority.cuts_off(member.roles, *evidence);
            if let Some(evidence) = self.peers.suspicion(member.id).filter(goes) {
                self.wishes.remove(member.id, evidence);
            }
        }
        self.peers.forget_reports();
        self.proposing = None;
        self.taken_back = false;
        self.apart.clear();
        self.failures = 0;
        self.backoff_until = now;

        // The members that may hold an older lease. If only primaries take leases, no other member has ever had one, since a primary stays first in
        // seniority until it departs. Otherwise, a process that was active in the previous view knows that only members of that view can hold one.
        let carries_over = view.compatible && was_active;
        let old_members: Vec<ProcessId> = match (self.config.leases, before.as_ref().filter(|_| was_active)) {
            (Leases::Primary, _) => Vec::new(),
            (Leases::Everybody, Some(v)) => v.members.iter().map(|m| m.id).collect(),
            (Leases::Everybody, None) => view.members.iter().map(|m| m.id).collect(),
        };
        let departed =
            view.departed.iter().filter(|d| !d.evidence.releases_leases() && !Canary::UnawaitedPrimary.is_planted()).map(|d| d.id);
        let gone_for_certain = |p: &ProcessId| view.departed.iter().any(|d| d.id == *p && d.evidence.releases_leases());
        let holders = old_members.iter().copied().filter(|p| !gone_for_certain(p));
        let known_dead = |p: &ProcessId| self.peers.suspicion(*p).is_some_and(Evidence::releases_leases);
        let mut awaited: Vec<ProcessId> = holders.chain(departed).filter(|p| *p != me && !carries_over && !known_dead(p)).collect();
        awaited.sort_unstable();
        awaited.dedup();
        self.handover = Handover::new(awaited.into_iter(), now.after(self.config.clocks.lengthened(view.fence_ns)));

        self.coordinators = view.coordinators().map(|m| self.peers.of(m.id)).collect();
        let position = view.coordinators().position(|m| m.id == me);
        self.proposer = position.map(|position| {
            let mut proposer = Proposer::new(view.number.next(), &self.coordinators, position).accepting(is_view);
            if position != 0 {
                proposer.predict_prepared_by(0);
            } else if let Some(word) = self.word_of_earlier_lap(fabric, view.number.next()) {
                proposer.predict_word(word);
            }
            proposer
        });
        if carries_over {
            Mark::CarriedOver.reach();
        } else {
            self.lease.drop_it();
        }
        self.renewal.restart(carries_over);
        self.borrowing.restart();
        self.caching.restart(view.number, now);
        let listed = view.member(me).is_some();
        self.has_counted |= view.member(me).is_some_and(|member| !member.roles.has(Roles::LEARNER));
        let departed_me = view.departed.iter().any(|d| d.id == me);
        if listed {
            self.joining.wanted = false;
        } else if self.joining.wanted {
            // Ask anew, now as a process that knows this view.
            self.ask_soon(now);
        }
        {
            let (handover, view) = (&self.handover, &view);
            self.peers.note_listed(view);
            // Departed processes are kept. If one departed without certainty but is known here to be dead, the next view must not wait for it.
            let departed = |p| view.departed.iter().any(|d| d.id == p);
            let keep = |p| view.member(p).is_some() || departed(p) || handover.awaited().any(|a| a == p);
            self.peers.prune(now, self.config.broadcast_timeout_ns, keep);
        }
        let primary = view.primary().map(|m| m.id);
        self.view = Some(view.clone());
        let level = view.level;
        self.events.push_back(Event::View(view));
        if before.as_ref().is_some_and(|before| before.level < level) {
            Mark::LevelRaised.reach();
        }
        if !self.config.levels.has(level) {
            Mark::WasUnsuited.reach();
            self.unsuited = Some(level);
            self.give_back(fabric);
            self.exclude();
            return;
        }
        if (was_member && !listed) || departed_me {
            self.give_back(fabric);
            self.exclude();
            return;
        }
        if self.is_leader()
            && let Some(proposer) = &mut self.proposer
        {
            // One slot is always prepared ahead (section 5.3.1).
            let outcome = proposer.prepare(fabric);
            self.handle_outcome(now, fabric, outcome);
        }
        let wanted = match self.config.leases {
            Leases::Primary => primary == Some(me),
            Leases::Everybody => listed,
        };
        if self.lease_wanted && !wanted {
            self.give_back(fabric);
        }
        self.lease_wanted = wanted && !self.leaving;
        if self.lease_wanted {
            self.renew(now, fabric);
        }
    }

    /// Our own slot word from the previous lap: a good guess at what the others' slots hold.
    fn word_of_earlier_lap<F: Fabric>(&self, fabric: &F, view: ViewNumber) -> Option<u64> {
        let words = fabric.memory(LocalRegion::Public(crate::basics::layout::SLOT_WORDS))?;
        Some(words[ballot::slot_of(view)].load(Ordering::SeqCst))
    }

    /// Puts the view on our board: first the record, in the place that does not hold the newest one, then the number.
    fn publish<F: Fabric>(&mut self, fabric: &mut F, view: &View) {
        let mut bytes = Vec::with_capacity(VIEW_RECORD_BYTES);
        view.encode(&mut bytes);
        let mut record = Vec::with_capacity(VIEW_RECORD_BYTES);
        sealed::encode(view.number.0, 0, &bytes, &mut record);
        invariant!(record.len() <= VIEW_RECORD_BYTES, "view of {} bytes", record.len());
        let board = fabric.memory(LocalRegion::Public(BOARD)).expect("every process has a board");
        let at = record_at(view.number) / 8;
        sealed::store(&board[at..at + VIEW_RECORD_BYTES / 8], &record);
        // Release: a process that reads the number (acquire, in the fabric) also sees the record. A torn record fails its seal and is read again.
        board[0].store(view.number.0, Ordering::Release);
    }

    /// A hint that a view with that number will soon be put on our board.
    pub(super) fn expect_to_publish<F: Fabric>(&self, fabric: &F, number: ViewNumber, bytes: usize) {
        let offset = record_at(number);
        fabric.expect_write(Remote { peer: PeerId::SELF, region: Region::Public(BOARD), offset }, bytes);
    }

    /// Sends the view to all peers.
    pub(super) fn push<F: Fabric>(&mut self, fabric: &mut F) {
        self.push_due = None;
        if let Some(view) = &self.view {
            Mark::Pushed.reach();
            Message::View(view.clone()).encode(&mut self.message);
            fabric.multicast(&self.message);
        }
    }

    /// Reads every peer's board, now and then. If the last look at a board is still under way, it will do: over a bad link, reads would otherwise be
    /// posted faster than they are answered, and all traffic to that peer would queue behind more and more of them.
    pub(super) fn look_at_boards<F: Fabric>(&mut self, fabric: &mut F) {
        if !Canary::NoPull.is_planted() {
            self.peers.iter_mut().filter(|p| !p.number_asked).for_each(|p| read_number(fabric, p));
        }
    }

    /// Reads every peer's board as it is from now on.
    pub(super) fn pull<F: Fabric>(&mut self, fabric: &mut F) {
        if !Canary::NoPull.is_planted() {
            self.peers.iter_mut().for_each(|p| want_number(fabric, p));
        }
    }

    pub(super) fn pull_from<F: Fabric>(&mut self, fabric: &mut F, peer: PeerId) {
        if !Canary::NoPull.is_planted()
            && let Some(peer) = self.peers.get(peer)
        {
            want_number(fabric, peer);
        }
    }

    pub(super) fn note_board_number<F: Fabric>(&mut self, fabric: &mut F, id: PeerId, result: Result<u64, OpError>) {
        let known = self.view_number();
        let Some(peer) = self.peers.get(id) else { return };
        peer.number_asked = false;
        let wanted = std::mem::take(&mut peer.number_wanted);
        let Ok(number) = result else { return };
        if wanted {
            read_number(fabric, peer);
        }
        peer.board = ViewNumber(number);
        if number <= known.0 || peer.board_asked {
            return;
        }
        peer.board_asked = true;
        let from = Remote { peer: id, region: Region::Public(BOARD), offset: RECORDS_AT };
        let into = Local { region: LocalRegion::Public(SCRATCH), offset: board_scratch(id) };
        fabric.read(from, into, 2 * VIEW_RECORD_BYTES, read_token(Read::BoardRecords, 0, id));
    }

    pub(super) fn note_board_records<F: Fabric>(&mut self, now: Time, fabric: &mut F, id: PeerId, result: Result<u64, OpError>) {
        let Some(peer) = self.peers.get(id) else { return };
        peer.board_asked = false;
        if result.is_err() {
            return;
        }
        let scratch = fabric.memory(LocalRegion::Public(SCRATCH)).expect("every process has a scratch region");
        let at = board_scratch(id) / 8;
        let words = VIEW_RECORD_BYTES / 8;
        let newest = (0..2).filter_map(|i| sealed::read(&scratch[at + i * words..at + (i + 1) * words])).max_by_key(|r| r.subject);
        // There is no whole record: one is being written. The next pull finds it.
        let Some(record) = newest else {
            Mark::TornBoard.reach();
            return;
        };
        match View::decode(&record.payload) {
            Ok(view) if view.number.0 == record.subject => {
                Mark::LearnedFromBoard.reach();
                self.learn(now, fabric, view);
            }
            _ => self.malformed_boards += 1,
        }
    }
}

/// Where a board keeps the record of a view, as an offset in bytes.
fn record_at(number: ViewNumber) -> usize {
    RECORDS_AT + (number.0 % 2) as usize * VIEW_RECORD_BYTES
}

fn read_number<F: Fabric>(fabric: &mut F, peer: &mut Peer) {
    peer.number_asked = true;
    fabric.read_word(Remote { peer: peer.id, region: Region::Public(BOARD), offset: 0 }, read_token(Read::BoardNumber, 0, peer.id));
}

/// Reads the number on a board as it is from now on: a read that is already under way may return an older one.
fn want_number<F: Fabric>(fabric: &mut F, peer: &mut Peer) {
    if peer.number_asked { peer.number_wanted = true } else { read_number(fabric, peer) }
}

/// Two peers may share a scratch area. If one overwrites the other's record, the record either fails its seal or is just as good.
fn board_scratch(peer: PeerId) -> usize {
    (MAX_MEMBERS + peer.0 as usize % MAX_MEMBERS) * 2 * VIEW_RECORD_BYTES
}
