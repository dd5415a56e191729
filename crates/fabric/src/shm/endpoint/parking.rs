//! Sleeping until there is something to do.

use std::os::fd::OwnedFd;
use std::time::Duration;

use super::ShmFabric;
use super::posting::{check_range, load};
use crate::contract::{PeerId, Region, Remote};
use crate::host::WakeReason;
use crate::host::memory::Area;
use crate::invariant;
use crate::shm::bell::{MAX_PARK_WORDS, Vigil};
use crate::shm::ear::Ear;

/// A word to be watched while the endpoint is parked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParkWord {
    /// Where it is: in a public region of a peer or of our own ([`PeerId::SELF`]), or in a lane.
    pub at: Remote,
    /// What its low 32 bits hold while there is nothing to do. A thread that changes them has to wake the futex. The kernel does so when it sets
    /// FUTEX_OWNER_DIED in a robust futex word that has its waiters bit set, but wakes only one waiter for each word.
    pub expected: u32,
}

impl ShmFabric {
    /// Sleeps until there is something to do: a nudge, a datagram, an event, a change of one of `words`, or the end of `timeout`.
    ///
    /// It first announces the sleep, issues a full fence, and then looks: at events, mail, completions and `words` by itself, and at whatever else
    /// the caller checks in `has_work` (above all, lanes). So if a peer writes, fences and then nudges, either this look sees the write or the nudge
    /// ends the sleep. At most [`MAX_PARK_WORDS`] words. Words of peers that are unknown or forgotten are not watched. Give a timeout: nothing else
    /// notices a wake-up that a dying peer never sent.
    pub fn park(&mut self, words: &[ParkWord], timeout: Option<Duration>, has_work: impl FnOnce(&ShmFabric) -> bool) -> WakeReason {
        self.announce();
        self.look_and_sleep(words, timeout, has_work)
    }

    /// The first half of [`ShmFabric::park`], for callers whose look for work needs the endpoint itself: announces the sleep and fences. After it,
    /// look, and then call either [`ShmFabric::sleep`] or [`ShmFabric::stay_awake`]. Meanwhile a nudge costs a peer a system call.
    pub fn announce(&mut self) {
        self.own.bell.announce();
        self.dirty = false;
    }

    /// Withdraws [`ShmFabric::announce`]: the look has found work.
    pub fn stay_awake(&mut self) {
        self.own.bell.awake();
    }

    /// The second half of [`ShmFabric::park`]: sleeps, unless a peer has rung since [`ShmFabric::announce`], one of `words` has changed, or
    /// there are completions, events or mail.
    pub fn sleep(&mut self, words: &[ParkWord], timeout: Option<Duration>) -> WakeReason {
        self.look_and_sleep(words, timeout, |_| false)
    }

    fn look_and_sleep(&mut self, words: &[ParkWord], timeout: Option<Duration>, has_work: impl FnOnce(&ShmFabric) -> bool) -> WakeReason {
        let reason = match self.find_work(words) {
            Some(reason) => reason,
            None if has_work(self) => WakeReason::Work,
            None => {
                let watched = words.iter().map(|w| self.area_of(w.at).map(|area| (&area.memory()[w.at.offset / 8], w.expected)));
                self.own.bell.wait(watched, timeout)
            }
        };
        self.own.bell.awake();
        reason
    }

    /// Listens to `descriptors` whenever the ear is armed: a descriptor that becomes readable then rings our bell. There is only one ear; a new one
    /// replaces the earlier one.
    pub fn ear(&self, descriptors: Vec<OwnedFd>) -> Ear {
        Ear::new(self.shared.clone(), descriptors)
    }

    /// What [`ShmFabric::sleep`] would wait for, so that another thread of the process can wait for it. Words of unknown peers are not watched.
    pub fn vigil(&self, words: &[ParkWord]) -> Vigil {
        let areas = words.iter().filter_map(|w| self.area_of(w.at).map(|area| (area.clone(), w.at.offset / 8, w.expected)));
        Vigil::new(self.own.bell.clone(), areas.collect())
    }

    /// Replaces [`ShmFabric::sleep`], after [`ShmFabric::announce`], for a thread that sleeps elsewhere while another thread keeps a
    /// [`ShmFabric::vigil`] for these words. Returns a reason not to sleep, if there is one. In either case, [`ShmFabric::stay_awake`] must follow.
    pub fn find_work(&self, words: &[ParkWord]) -> Option<WakeReason> {
        invariant!(words.len() <= MAX_PARK_WORDS, "{} words to park on, at most {MAX_PARK_WORDS} beside the bell", words.len());
        // The words first: a death is marked there before its event arrives.
        if let Some(changed) = words.iter().position(|w| self.word(w.at).is_some_and(|now| now as u32 != w.expected)) {
            return Some(WakeReason::Word(changed));
        }
        let idle = self.queue.is_empty() && self.is_empty_of_events() && self.is_empty_of_mail();
        (!idle).then_some(WakeReason::Work)
    }

    /// The memory that a watched word is in.
    fn area_of(&self, at: Remote) -> Option<&Area> {
        let area = match (at.peer, at.region) {
            (PeerId::SELF, Region::Public(name)) => self.own.public(name),
            (PeerId::SELF, Region::Lane(_)) => None,
            (_, Region::Public(name)) => self.peer(at.peer)?.public(name),
            (_, Region::Lane(name)) => self.peer(at.peer)?.theirs.iter().find(|l| l.name == name).map(|l| &l.area),
        }?;
        check_range(at, 8, area);
        Some(area)
    }

    fn word(&self, at: Remote) -> Option<u64> {
        self.area_of(at).map(|area| load(&area.memory()[at.offset / 8]))
    }
}
