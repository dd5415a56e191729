//! Serving as a lease cache (uKharon section 6.3): a cache asks the coordinators whether the view is still current, on behalf of the lease holders
//! that read its word.
//!
//! The word promises only that the cache asked, and in which order: see [`CacheWord`]. A cache holds no lease and vouches for no time, so it may
//! stall, sleep or die at any moment, and its word may be read at any time.

use martlet_fabric::primitive::{Ordering, fence};
use martlet_fabric::{Fabric, OpError};

use super::inquiry::{Finding, Inquiry};
use super::renewing::{TAKEN_NS, is_empty};
use super::{Core, Read, own_life};
use crate::basics::layout::life;
use crate::basics::{Canary, Mark, Time, ViewNumber};
use crate::membership::cache::CacheWord;
use crate::membership::view::{Roles, View};

/// How many rounds a cache makes during one lease: enough that a whole round lies between two readings of a holder that renews through it. Those
/// readings are a quarter of a lease apart.
const ROUNDS_A_LEASE: u64 = 6;

/// The state of serving.
#[derive(Clone, Debug, Default)]
pub(super) struct Caching {
    inquiry: Inquiry,
    word: CacheWord,
    next: Time,
}

impl Caching {
    /// Another view: what was learned about the old one no longer applies.
    pub fn restart(&mut self, view: ViewNumber, now: Time) {
        self.inquiry.restart();
        (self.word, self.next) = (CacheWord::new(view), now);
    }
}

impl Core {
    fn serves(&self) -> Option<&View> {
        let view = self.view.as_ref()?;
        view.member(self.config.me).filter(|m| m.roles.has(Roles::LEASE_CACHE)).map(|_| view)
    }

    /// When the next round is due, if this process is a cache.
    pub(super) fn round_due(&self) -> Option<Time> {
        self.serves().map(|_| self.caching.next)
    }

    /// Begins a round when it is time.
    pub(super) fn serve_leases<F: Fabric>(&mut self, now: Time, fabric: &mut F) {
        let Some((number, lease_ns)) = self.serves().map(|view| (view.number, view.lease_ns)) else { return };
        if now < self.caching.next || self.caching.inquiry.is_under_way(now, lease_ns) {
            return;
        }
        let Some(begun) = self.caching.word.begun() else { return };
        self.caching.next = now.after((self.config.clocks.shortened(lease_ns) / ROUNDS_A_LEASE).max(1));
        self.show(fabric, begun);
        if Canary::CacheServesOn.is_planted() {
            self.show(fabric, begun.confirmed());
            return;
        }
        self.caching.inquiry.ask(now, fabric, Read::CacheSlot, number, &self.coordinators);
    }

    /// Takes a coordinator's slot word for the next view, requested in the cache's round with that serial.
    pub(super) fn note_cache_slot<F: Fabric>(&mut self, now: Time, fabric: &mut F, serial: u64, result: Result<u64, OpError>) {
        let Some(number) = self.serves().map(|view| view.number) else { return };
        let Some(word) = result.ok().filter(|_| self.caching.inquiry.awaits(serial)) else { return };
        match self.caching.inquiry.note(is_empty(word, number), self.coordinators.len()) {
            None => {}
            Some(Finding::Taken) => {
                Mark::CacheRefused.reach();
                self.caching.next = self.caching.next.max(now.after(TAKEN_NS));
                self.pull(fabric);
            }
            Some(Finding::Stands(_)) => {
                Mark::CacheConfirmed.reach();
                let confirmed = self.caching.word.confirmed();
                self.show(fabric, confirmed);
            }
        }
        self.mind_frozen(now, fabric, word, number);
    }

    /// Stores the word. The fence keeps a round's questions behind the word that announces the round. That word is in turn stored after the word that
    /// confirms the previous round, so a process that still reads the older word has read it before the coordinators are asked. The fence pairs with
    /// the one in [`store_lease_word`](Self::store_lease_word), which precedes such a reading.
    fn show<F: Fabric>(&mut self, fabric: &mut F, word: CacheWord) {
        self.caching.word = word;
        own_life(fabric)[life::CACHE].store(word.0, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }
}
