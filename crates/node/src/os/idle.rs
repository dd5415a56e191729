//! What a thread does when there is no work.

use martlet_protocol::basics::Time;

use crate::config::{Idle, ThreadsConfig};

/// What to do before the next turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// Nothing: look again at once.
    None,
    /// Let other threads of this core run.
    Yield,
    /// Sleep until the thread is rung or the next deadline comes.
    Park,
}

/// Decides what an acting thread does between two turns. It reads no clock: the turn's time is an argument.
#[derive(Clone, Debug)]
pub struct Idler {
    idle: Idle,
    spin_ns: u64,
    last_work: Time,
}

impl Idler {
    /// An idler as configured. A thread that starts at `now` counts as having worked then.
    pub fn new(threads: &ThreadsConfig, now: Time) -> Idler {
        Idler { idle: threads.idle, spin_ns: threads.spin_us * 1_000, last_work: now }
    }

    /// A turn that began at `now` found work (`worked`) or did not. `near`: requests are sent to this node, and an awake thread finds the next one sooner.
    #[inline]
    pub fn after_turn(&mut self, now: Time, worked: bool, near: bool) -> Rest {
        if worked {
            self.last_work = now;
            return Rest::None;
        }
        match self.idle {
            Idle::Spin => Rest::None,
            Idle::Yield => Rest::Yield,
            Idle::Park => Rest::Park,
            Idle::Adaptive if near && now.since(self.last_work) < self.spin_ns => Rest::None,
            Idle::Adaptive => Rest::Park,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn idler(idle: Idle) -> Idler {
        Idler::new(&ThreadsConfig { idle, spin_us: 5, ..ThreadsConfig::default() }, Time(1_000))
    }

    #[test]
    fn work_is_never_followed_by_rest() {
        for idle in [Idle::Spin, Idle::Yield, Idle::Park, Idle::Adaptive] {
            assert_eq!(idler(idle).after_turn(Time(1_000_000), true, true), Rest::None);
        }
    }

    #[test]
    fn each_strategy_rests_in_its_way() {
        for (idle, rest) in [(Idle::Spin, Rest::None), (Idle::Yield, Rest::Yield), (Idle::Park, Rest::Park)] {
            assert_eq!(idler(idle).after_turn(Time(1_000), false, true), rest);
        }
    }

    #[test]
    fn the_adaptive_one_spins_for_a_while_after_the_last_work() {
        let mut idler = idler(Idle::Adaptive);
        assert_eq!(idler.after_turn(Time(5_999), false, true), Rest::None, "as at the start");
        assert_eq!(idler.after_turn(Time(6_000), false, true), Rest::Park);
        assert_eq!(idler.after_turn(Time(7_000), true, true), Rest::None);
        assert_eq!(idler.after_turn(Time(11_999), false, true), Rest::None);
        assert_eq!(idler.after_turn(Time(11_999), false, false), Rest::Park, "a backup leaves the core to others");
        assert_eq!(idler.after_turn(Time(12_000), false, true), Rest::Park);
    }
}
