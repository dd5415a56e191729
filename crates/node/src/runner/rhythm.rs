//! The rhythm of the acting thread: how the scheduler treats it in its role, and whether it was kept from running.

use martlet_protocol::basics::Time;

use crate::counters::{Counter, Counters};
use crate::idle::Rest;
use crate::sched::{self, Class};
use martlet_protocol::duty::Turn;

/// How long a new role lasts before the thread's scheduling is adapted to it, in nanoseconds.
const SETTLE_NS: u64 = 1_000_000;

/// How the thread is scheduled in its role. The adaptation to a new role comes a while after the change: it is not urgent, and a failover is.
pub(super) struct Posture {
    class: Class,
    /// Whether the other nodes run on this host, so that the dead one and this one may have shared a core.
    shares_host: bool,
    /// Whether the others elect the leader by a heartbeat that they watch closely.
    watched: bool,
    leads: bool,
    /// The end of the last turn in which the posture suited the role.
    since: Time,
}

impl Posture {
    /// The posture of a thread that got `class` and has no role yet.
    pub(super) fn new(class: Class, shares_host: bool, watched: bool, now: Time) -> Posture {
        Posture { class, shares_host, watched, leads: false, since: now }
    }

    /// Whether the thread leads, and has for less than `SETTLE_NS`, on a cluster where that makes a difference. Between hosts it does not: the dead leader ran
    /// on a core of another host, and a new primary waits for others' answers, which wake it.
    pub(super) fn is_new(&self, leads: bool) -> bool {
        leads && !self.leads && self.shares_host
    }

    /// What the thread does in place of `rest`, which it would usually do. `busy`: there is work, or work is expected at once.
    ///
    /// A new primary whose clients come by sockets yields the core that it may share with the dead leader, because the end of a connection is what tells those
    /// clients of the death. Yielding also keeps the primary awake for when they come. A sleep would cost its own wake-up then, and that of a helper that
    /// listens meanwhile, on a core that the clients need.
    pub(super) fn rest(&self, rest: Rest, busy: bool, leads: bool) -> Rest {
        // A SCHED_FIFO thread does not yield to threads of the normal class.
        if !busy && self.is_new(leads) && self.class != Class::Fifo { Rest::Yield } else { rest }
    }

    pub(super) fn after_turn(&mut self, turn: &Turn, leads: bool) {
        if self.leads == leads {
            self.since = turn.now;
        } else if !turn.worked && turn.now.since(self.since) >= SETTLE_NS {
            if let Err(error) = sched::suit_role(self.class, leads, self.watched) {
                tracing::debug!(%error, leads, "cannot change how the thread is scheduled");
            }
            (self.leads, self.since) = (leads, turn.now);
        }
    }
}

/// The gaps between turns in which the thread did not mean to sleep.
pub(super) struct Gaps {
    /// The end of the last turn, or the time at which the thread meant to be awake again.
    last: Time,
    stall_ns: u64,
}

impl Gaps {
    pub(super) fn new(now: Time, stall_ns: u64) -> Gaps {
        Gaps { last: now, stall_ns }
    }

    /// A turn has ended. Returns the gap before it if that was a stall.
    pub(super) fn turn(&mut self, now: Time, counters: &mut Counters) -> Option<u64> {
        let gap = now.since(self.last);
        self.last = now;
        if gap > counters.get(Counter::LongestGapNs) {
            counters.set(Counter::LongestGapNs, gap);
        }
        if gap < self.stall_ns {
            return None;
        }
        counters.add(Counter::Stalls, 1);
        Some(gap)
    }

    /// The thread is awake again; it meant to be awake at `until` at the latest.
    pub(super) fn slept(&mut self, now: Time, until: Time) {
        self.last = now.min(until);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_primary_without_work_yields_until_its_role_has_settled() {
        let mut posture = Posture::new(Class::Normal, true, false, Time(0));
        let turn = |now| Turn { now: Time(now), ..Turn::default() };
        posture.after_turn(&turn(5), false);
        assert_eq!(posture.rest(Rest::Park, false, false), Rest::Park, "a backup sleeps");
        posture.after_turn(&turn(10), true);
        assert_eq!(posture.rest(Rest::Park, false, true), Rest::Yield);
        assert_eq!(posture.rest(Rest::None, false, true), Rest::Yield, "nor does it spin");
        assert_eq!(posture.rest(Rest::None, true, true), Rest::None, "work comes first");
        posture.after_turn(&turn(5 + SETTLE_NS), true);
        assert_eq!(posture.rest(Rest::Park, false, true), Rest::Park, "nobody has come");
        let mut elsewhere = Posture::new(Class::Normal, false, false, Time(0));
        elsewhere.after_turn(&turn(5), false);
        assert_eq!(elsewhere.rest(Rest::Park, false, true), Rest::Park, "the dead one was on another host");
        let fifo = Posture::new(Class::Fifo, true, false, Time(0));
        assert_eq!(fifo.rest(Rest::Park, false, true), Rest::Park, "its yielding would help nobody");
    }

    #[test]
    fn a_sleep_that_was_meant_is_no_stall_and_oversleeping_is() {
        let mut counters = Counters::default();
        let mut gaps = Gaps::new(Time(0), 100);
        assert_eq!(gaps.turn(Time(50), &mut counters), None);
        gaps.slept(Time(1_000), Time(2_000));
        assert_eq!(gaps.turn(Time(1_010), &mut counters), None, "woken before its time");
        gaps.slept(Time(2_150), Time(2_000));
        assert_eq!(gaps.turn(Time(2_160), &mut counters), Some(160), "overslept");
        assert_eq!(gaps.turn(Time(2_360), &mut counters), Some(200), "did not run");
        assert_eq!((counters.get(Counter::LongestGapNs), counters.get(Counter::Stalls)), (200, 2));
    }
}
