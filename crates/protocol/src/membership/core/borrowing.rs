//! Renewing the lease through a lease cache (uKharon section 6.3): one READ instead of one a coordinator.
//!
//! The holder reads a cache's word again and again. Once a word proves that the cache has begun and won a whole round since an earlier reading, the
//! lease is extended *counting from that earlier reading*, because the coordinators were asked after it. Such a lease is equivalent to one for which
//! the holder itself had asked the coordinators at the moment of that reading: this holds both for the lease word and for the time that others wait.
//! No clock but the holder's own is involved, and the age of the cache's word does not matter.
//!
//! The first lease on a view is requested from the coordinators directly, so no failover waits for a cache. When a cache proves nothing, the
//! coordinators are asked in time, as if there were no cache.

use martlet_fabric::{Fabric, OpError, PeerId};

use super::{Core, Read, remote_life};
use crate::basics::layout::{Component, life};
use crate::basics::{Canary, Mark, ProcessId, Time};
use crate::membership::cache::CacheWord;
use crate::membership::view::Roles;

/// How often a holder reads a cache's word during one lease.
const READS_A_LEASE: u64 = 4;

/// A reading of a cache's word, and the time at which it began.
#[derive(Clone, Copy, Debug)]
struct Reading {
    cache: PeerId,
    at: Time,
    word: CacheWord,
}

/// The state of renewing through a cache.
#[derive(Clone, Debug, Default)]
pub(super) struct Borrowing {
    /// Tells one reading from another; tokens carry its low 40 bits.
    reading: u64,
    asked: Option<(PeerId, Time)>,
    /// The reading that later words are compared with. It was taken under the present lease.
    base: Option<Reading>,
    /// The last reading proved something.
    proves: bool,
    /// Readings that proved something, ever.
    proofs: u64,
    next: Time,
}

impl Borrowing {
    /// The lease has been replaced or lost: what was read under the old one proves nothing for the new one.
    pub fn restart(&mut self) {
        *self = Borrowing { reading: self.reading, proofs: self.proofs, ..Borrowing::default() };
    }

    /// Whether the cache can be relied on, judging by the latest readings.
    pub fn works(&self) -> bool {
        self.proves
    }
}

impl Core {
    /// The lease cache through which this process renews its lease, if it takes leases: a cache that is not suspected, and not this process. Holders
    /// are spread over the caches.
    pub fn lease_cache(&self) -> Option<ProcessId> {
        let view = self.view.as_ref().filter(|_| self.lease_wanted)?;
        let caches = || view.with_roles(Roles::LEASE_CACHE).filter(|m| m.id != self.config.me && !self.peers.is_suspect(m.id));
        let place = view.members.iter().position(|m| m.id == self.config.me)?;
        caches().nth(place % caches().count().max(1)).map(|m| m.id)
    }

    /// How often the lease was renewed through a cache.
    pub fn renewals_through_cache(&self) -> u64 {
        self.borrowing.proofs
    }

    fn holds_lease_on_view(&self) -> bool {
        self.view.as_ref().is_some_and(|view| self.lease.view() == view.number)
    }

    /// When the cache is to be read next, if there is a cache and a lease to renew.
    pub(super) fn reading_due(&self) -> Option<Time> {
        (self.holds_lease_on_view() && self.lease_cache().is_some()).then_some(self.borrowing.next)
    }

    /// Reads the cache's word when it is time. The lease word was stored, and fenced, before the lease that is to be extended was first requested.
    pub(super) fn ask_cache<F: Fabric>(&mut self, now: Time, fabric: &mut F) {
        let Some(lease_ns) = self.view.as_ref().map(|view| view.lease_ns).filter(|_| self.holds_lease_on_view()) else { return };
        let under_way = self.borrowing.asked.is_some_and(|(_, at)| now.since(at) < lease_ns.max(1_000_000));
        if under_way || now < self.borrowing.next {
            return;
        }
        self.borrowing.next = now.after((self.config.clocks.shortened(lease_ns) / READS_A_LEASE).max(1));
        let Some(cache) = self.lease_cache().and_then(|cache| self.peers.of(cache)) else {
            self.borrowing.restart();
            return;
        };
        self.borrowing.reading = (self.borrowing.reading + 1) & 0xff_ffff_ffff;
        self.borrowing.asked = Some((cache, now));
        let token = Component::Membership.token(((Read::Cache as u64) << 48) | self.borrowing.reading);
        fabric.read_word(remote_life(cache, life::CACHE), token);
    }

    /// Takes a cache's word.
    pub(super) fn note_cache<F: Fabric>(&mut self, now: Time, fabric: &mut F, reading: u64, result: Result<u64, OpError>) {
        if reading != self.borrowing.reading {
            return;
        }
        let Some((cache, at)) = self.borrowing.asked.take() else { return };
        let (Some(view), Ok(word)) = (self.view.as_ref().filter(|view| self.lease.view() == view.number), result) else {
            self.borrowing.restart();
            return;
        };
        let (number, lease_ns) = (view.number, view.lease_ns);
        let fresh = Reading { cache, at, word: CacheWord(word) };
        if fresh.word.view() > number {
            Mark::CacheAhead.reach();
            self.pull_from(fabric, cache);
        }
        let Some(base) = self.borrowing.base.filter(|base| base.cache == cache) else {
            (self.borrowing.base, self.borrowing.proves) = (Some(fresh), false);
            return;
        };
        self.borrowing.proves = fresh.word.proves(number, base.word);
        if self.borrowing.proves {
            Mark::LeaseBorrowed.reach();
            self.borrowing.proofs += 1;
            let from = if Canary::BorrowedFromAnswer.is_planted() { at } else { base.at };
            self.lease.extend(from.after(self.config.clocks.shortened(lease_ns)));
            self.borrowing.base = Some(fresh);
        } else if now.since(base.at) >= self.config.clocks.shortened(lease_ns) / 2 {
            // Whatever the word proves would come too late to be of use.
            Mark::CacheStands.reach();
            self.borrowing.base = Some(fresh);
        }
    }
}
