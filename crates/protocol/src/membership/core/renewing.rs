//! Taking and renewing the lease (Algorithms 2 and 6), in the background of whoever acts under it.

use martlet_fabric::{Fabric, OpError, PeerId};

use super::inquiry::{Finding, Inquiry};
use super::{Core, Milestone, Read, read_token, remote_life};
use crate::basics::ballot::{self, FROZEN, SlotState, SlotWord};
use crate::basics::layout::life;
use crate::basics::{Canary, Mark, Time, ViewNumber};
use crate::membership::message::Message;

/// How long to leave a slot alone that was found taken, in nanoseconds.
pub(super) const TAKEN_NS: u64 = 20_000;

/// The state of getting and renewing the lease.
#[derive(Clone, Debug, Default)]
pub(super) struct Renewal {
    inquiry: Inquiry,
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
        self.inquiry.give_up();
        self.confirmed = None;
    }

    /// Gives up the round under way: the next tick asks everybody again.
    pub fn ask_anew(&mut self) {
        self.inquiry.give_up();
    }

    pub fn restart(&mut self, carries_over: bool) {
        self.inquiry.restart();
        *self = Renewal { inquiry: std::mem::take(&mut self.inquiry), carries_over, ..Renewal::default() };
    }
}

impl Core {
    /// How often a majority of the coordinators was asked about the lease, and confirmed it.
    pub fn renewals_by_majority(&self) -> u64 {
        self.renewal.inquiry.won()
    }

    /// When the coordinators are to be asked again. Who renews through a cache leaves it more time.
    pub(super) fn renewal_due(&self) -> Time {
        match &self.view {
            Some(view) if self.lease.view() == view.number => {
                let margin_ns = if self.borrowing.works() { view.lease_ns / 3 } else { view.lease_ns / 2 };
                Time(self.lease.end().0.saturating_sub(margin_ns))
            }
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
        self.ask_cache(now, fabric);
        let under_way = self.renewal.inquiry.is_under_way(now, lease_ns);
        if !under_way && now >= self.renewal_due() && now >= self.renewal.taken_until {
            if !Canary::LateLeaseWord.is_planted() || self.lease.view() == number {
                self.store_lease_word(fabric, number);
            }
            self.renewal.inquiry.ask(now, fabric, Read::Slot, number, &self.coordinators);
        }
        self.start_lease(now);
    }

    /// Takes a coordinator's word of the next view's slot, asked for by the lease's round of that serial.
    pub(super) fn note_slot<F: Fabric>(&mut self, now: Time, fabric: &mut F, serial: u64, result: Result<u64, OpError>) {
        let Some(number) = self.view.as_ref().map(|v| v.number) else { return };
        let Some(word) = result.ok().filter(|_| self.renewal.inquiry.awaits(serial)) else { return };
        let finding = self.renewal.inquiry.note(is_empty(word, number), self.coordinators.len());
        self.mind_frozen(now, fabric, word, number);
        let Some(view) = self.view.as_ref().filter(|v| v.number == number) else { return }; // the next has just been decided
        match finding {
            None => {}
            Some(Finding::Taken) => {
                // Superseded, perhaps. Find out, and don't hammer the slot meanwhile.
                Mark::LeaseRefused.reach();
                self.renewal.taken_until = now.after(TAKEN_NS);
                self.pull(fabric);
            }
            Some(Finding::Stands(asked)) => {
                let start = if Canary::LeaseFromAnswers.is_planted() { now } else { asked };
                let end = start.after(self.config.clocks.shortened(view.lease_ns));
                self.renewal.confirmed = Some(end);
                Mark::LeaseConfirmed.reach();
                if self.lease.view() == number {
                    Mark::LeaseExtended.reach();
                    self.lease.extend(end);
                } else {
                    self.start_lease(now);
                }
            }
        }
    }

    /// A frozen slot will never look empty again, whatever is decided there: asks for a view after which another slot counts.
    pub(super) fn mind_frozen<F: Fabric>(&mut self, now: Time, fabric: &mut F, word: u64, number: ViewNumber) {
        let frozen = SlotWord(word).state_in(ballot::generation_of(number.next())).is_some_and(|s| s.min == FROZEN);
        if frozen && !self.wishes.renew {
            Mark::LeaseFrozen.reach();
            self.wishes.renew = true;
            self.tell_leader(now, fabric, &Message::Frozen { view: number });
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

/// Whether this word says that nothing was accepted for the view after `number`: evidence for that slot and no other (TRAPS 3).
pub(super) fn is_empty(word: u64, number: ViewNumber) -> bool {
    SlotWord(word).state_in(ballot::generation_of(number.next())).is_some_and(SlotState::is_empty)
}

/// Marks in a token under which view a lease word was asked for. Eight bits are enough: a queue never holds an operation for 256 views.
fn lease_word_round(view: ViewNumber) -> usize {
    (view.0 & 0xff) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::basics::layout::SLOTS;

    /// A place is used again for a later view, and what the word says there is of that one.
    #[test]
    fn trap_3_that_a_slot_is_empty_says_nothing_of_another() {
        let asked = ViewNumber(7);
        let accepted = |view: ViewNumber| SlotWord::new(SlotState { min: 3, accepted: 3, value: 1 }, ballot::generation_of(view)).0;
        let promised = |view: ViewNumber| SlotWord::new(SlotState { min: 3, accepted: 0, value: 0 }, ballot::generation_of(view)).0;
        assert!(is_empty(promised(asked.next()), asked));
        assert!(!is_empty(accepted(asked.next()), asked), "the next view may be decided");
        let a_lap_later = ViewNumber(asked.0 + SLOTS as u64);
        assert!(
            !is_empty(promised(a_lap_later.next()), asked),
            "the slot of a view a lap later is empty, and the one asked about was decided long ago"
        );
        assert!(!is_empty(accepted(a_lap_later.next()), asked));
        assert!(is_empty(accepted(asked.next()), a_lap_later), "what an earlier lap left is no acceptance in this one");
    }
}
