//! Taking and renewing the lease (Algorithms 2 and 6), in the background of whoever acts under it.

use martlet_fabric::{Fabric, OpError, PeerId, Region, Remote};

use super::{Core, Milestone, Read, read_token, remote_life};
use crate::basics::ballot::{self, FROZEN, SlotState, SlotWord};
use crate::basics::layout::{Component, SLOT_WORDS, life};
use crate::basics::{Canary, Mark, Time, ViewNumber};
use crate::membership::message::Message;

/// A question to the coordinators whether the view has been superseded.
#[derive(Clone, Debug, Default)]
pub(super) struct Renewal {
    /// Tells one round of questions from another; the low 40 bits stand in tokens.
    serial: u64,
    asked: Option<Time>,
    answered: u32,
    empty: u32,
    /// The view is known to be superseded, or its next slot is being fought for: ask again later only.
    taken_until: Time,
    /// A majority has confirmed the view at least once.
    confirmed: Option<Time>,
    /// Lease words asked for and not answered.
    words_asked: u32,
    /// The first lease carries over from the view before.
    carries_over: bool,
}

impl Renewal {
    pub fn cancel(&mut self) {
        self.asked = None;
        self.confirmed = None;
    }

    /// Gives up the round under way: the next tick asks everybody again.
    pub fn ask_anew(&mut self) {
        self.asked = None;
    }

    pub fn restart(&mut self, carries_over: bool) {
        *self = Renewal { serial: self.serial, carries_over, ..Renewal::default() };
    }
}

impl Core {
    pub(super) fn renewal_due(&self) -> Time {
        match &self.view {
            Some(view) if self.lease.view() == view.number => Time(self.lease.end().0.saturating_sub(view.lease_ns / 2)),
            _ => Time(0),
        }
    }

    /// Goes on with getting or renewing the lease, as far as it can be gone on with.
    pub(super) fn renew<F: Fabric>(&mut self, now: Time, fabric: &mut F) {
        let Some(view) = self.view.as_ref().filter(|v| v.member(self.config.me).is_some()) else { return };
        let (number, lease_ns) = (view.number, view.lease_ns);
        if self.excluded || self.leaving {
            return;
        }
        self.ask_for_lease_words(fabric);
        // An unanswered round is given up after a lease's time: too late to be of use.
        let under_way = self.renewal.asked.is_some_and(|at| now.since(at) < lease_ns.max(1_000_000));
        if !under_way && now >= self.renewal_due() && now >= self.renewal.taken_until {
            if !Canary::LateLeaseWord.is_planted() || self.lease.view() == number {
                self.store_lease_word(fabric, number);
            }
            self.renewal.serial = (self.renewal.serial + 1) & 0xff_ffff_ffff;
            (self.renewal.asked, self.renewal.answered, self.renewal.empty) = (Some(now), 0, 0);
            let offset = ballot::slot_of(number.next()) * 8;
            for (i, peer) in self.coordinators.iter().enumerate() {
                if let Some(peer) = *peer {
                    let at = Remote { peer, region: Region::Public(SLOT_WORDS), offset };
                    let rest = ((Read::Slot as u64) << 48) | ((i as u64) << 40) | self.renewal.serial;
                    fabric.read_word(at, Component::Membership.token(rest));
                }
            }
        }
        self.start_lease(now);
    }

    /// Takes a coordinator's word of the next view's slot.
    pub(super) fn note_slot<F: Fabric>(&mut self, now: Time, fabric: &mut F, _i: usize, serial: u64, result: Result<u64, OpError>) {
        let Some(number) = self.view.as_ref().map(|v| v.number) else { return };
        let stale = serial != self.renewal.serial && !Canary::StaleEvidence.is_planted();
        if stale || self.renewal.asked.is_none() {
            return;
        }
        let generation = ballot::generation_of(number.next());
        let Ok(word) = result else { return };
        self.renewal.answered += 1;
        // Evidence for this slot and no other (TRAPS 3).
        let state = SlotWord(word).state_in(generation);
        if state.is_some_and(SlotState::is_empty) {
            self.renewal.empty += 1;
        }
        if state.is_some_and(|s| s.min == FROZEN) && !self.wishes.renew {
            // It will never look empty again, whatever is decided there: ask for a view after which another slot counts.
            Mark::LeaseFrozen.reach();
            self.wishes.renew = true;
            self.tell_leader(now, fabric, &Message::Frozen { view: number });
        }
        let (Some(view), Some(asked)) = (&self.view, self.renewal.asked) else { return };
        if view.number != number {
            return; // that view has just been decided
        }
        let majority = ballot::majority(self.coordinators.len()) as u32;
        if self.renewal.answered < majority {
            return;
        }
        self.renewal.asked = None;
        // The paper asks that all replies of the majority be empty. A further reply of the same round is no longer looked at.
        self.renewal.serial = (self.renewal.serial + 1) & 0xff_ffff_ffff;
        if self.renewal.empty < self.renewal.answered {
            // Superseded, perhaps. Find out, and don't hammer the slot meanwhile.
            Mark::LeaseRefused.reach();
            self.renewal.taken_until = now.after(20_000);
            self.pull(fabric);
            return;
        }
        let start = if Canary::LeaseFromAnswers.is_planted() { now } else { asked };
        let end = start.after(self.config.clocks.shortened(view.lease_ns));
        self.renewal.confirmed = Some(end);
        Mark::LeaseConfirmed.reach();
        if self.lease.view() == view.number {
            Mark::LeaseExtended.reach();
            self.lease.extend(end);
        } else {
            self.start_lease(now);
        }
    }

    /// Starts the first lease on the view once it is confirmed and nobody can hold an older one.
    fn start_lease(&mut self, now: Time) {
        let Some(view) = &self.view else { return };
        let number = view.number;
        let Some(end) = self.renewal.confirmed.filter(|_| self.lease.view() != number) else { return };
        if self.renewal.carries_over || self.handover.is_over(now) {
            if !self.renewal.carries_over && self.handover.awaited().next().is_some() {
                Mark::LeaseRanOut.reach();
            }
            Mark::LeaseBegun.reach();
            self.lease.begin(number, now, end);
            self.milestone(Milestone::Acknowledged(number));
            self.milestone(Milestone::Active(number));
        } else if end <= now {
            // The confirmation is stale by the time that the others are out: ask again.
            self.renewal.confirmed = None;
        }
    }

    /// Asks for the lease words of those who may hold an older lease.
    fn ask_for_lease_words<F: Fabric>(&mut self, fabric: &mut F) {
        if self.renewal.words_asked > 0 || self.renewal.carries_over {
            return;
        }
        let Some(view) = &self.view else { return };
        if self.lease.view() == view.number {
            return;
        }
        let round = lease_word_round(view.number);
        for process in self.handover.awaited() {
            if let Some(peer) = self.peers.of(process) {
                self.renewal.words_asked += 1;
                fabric.read_word(remote_life(peer, life::LEASE), read_token(Read::LeaseWord, round, peer));
            }
        }
    }

    /// Takes a lease word. Only one that was asked for under this view counts: an older answer was read before the view was decided.
    pub(super) fn note_lease_word(&mut self, now: Time, round: usize, peer: PeerId, result: Result<u64, OpError>) {
        let number = self.view_number();
        if round != lease_word_round(number) {
            return;
        }
        self.renewal.words_asked = self.renewal.words_asked.saturating_sub(1);
        let (Some(process), Ok(word)) = (self.peers.process(peer), result) else { return };
        if word == 0 || ViewNumber(word) >= number {
            Mark::LeaseWordReleased.reach();
            self.handover.release(process);
            self.start_lease(now);
        }
    }
}

/// Marks in a token under which view a lease word was asked for. Eight bits are enough: a queue never holds an operation for 256 views.
fn lease_word_round(view: ViewNumber) -> usize {
    (view.0 & 0xff) as usize
}
