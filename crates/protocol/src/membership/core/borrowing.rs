//! Renewing the lease through a lease cache (uKharon section 6.3): one READ instead of one a coordinator.
//!
//! The holder reads a cache's word again and again. Once a word proves that the cache has begun and won a whole round since an earlier reading, the lease
//! is extended *from that earlier reading on*: the coordinators were asked after it. So a lease that is got this way is what it would be if the
//! holder had asked them itself at that moment, for the lease word as well as for the time that others wait; no clock but the holder's own is
//! involved, and it does not matter how old the cache's word is.
//!
//! The first lease on a view is asked of the coordinators, so no failover waits for a cache. And when a cache proves nothing, the coordinators are asked
//! in time, as if there were none.

use martlet_fabric::{Fabric, OpError, PeerId};

use super::{Core, Read, remote_life};
use crate::basics::layout::{Component, life};
use crate::basics::{Canary, Mark, ProcessId, Time};
use crate::membership::cache::CacheWord;
use crate::membership::view::Roles;

/// How often a holder reads a cache's word in a lease's time.
const READS_A_LEASE: u64 = 4;

/// A reading of a cache's word, begun at that time.
#[derive(Clone, Copy, Debug)]
struct Reading {
    cache: PeerId,
    at: Time,
    word: CacheWord,
}

/// The state of renewing through a cache.
#[derive(Clone, Debug, Default)]
pub(super) struct Borrowing {
    /// Tells one reading from another; the low 40 bits stand in tokens.
    reading: u64,
    asked: Option<(PeerId, Time)>,
    /// What later words are compared with. It was read under the present lease.
    base: Option<Reading>,
    /// The last reading proved something.
    proves: bool,
    /// Readings that proved something, ever.
    proofs: u64,
    next: Time,
}

impl Borrowing {
    /// The lease is another, or none: what was read under the old one proves nothing for the new.
    pub fn restart(&mut self) {
        *self = Borrowing { reading: self.reading, proofs: self.proofs, ..Borrowing::default() };
    }

    /// Whether the cache can be counted on, as far as was seen lately.
    pub fn works(&self) -> bool {
        self.proves
    }
}

impl Core {
    /// The lease cache that this process renews through, if it takes leases: one that is not suspected, and not itself. Holders are spread over the caches.
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

    /// When the cache is to be read next, if there is one and a lease to be renewed.
    pub(super) fn reading_due(&self) -> Option<Time> {
        (self.holds_lease_on_view() && self.lease_cache().is_some()).then_some(self.borrowing.next)
    }

    /// Reads the cache's word when it is time. The lease word was stored, and fenced, before the lease that is to be extended was first asked for.
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
            // Whatever it proves would come too late to be of use.
            Mark::CacheStands.reach();
            self.borrowing.base = Some(fresh);
        }
    }
}
