//! Presumed death: a counter in the target's memory stopped (uKharon section 4.2, kernel failures; Mu section 5.1).
//!
//! A monitor reads its target's heartbeat counter one-sidedly and keeps a score: a read that finds the counter advanced raises the score, a read that
//! finds it unchanged lowers it. The target is presumed dead when the score falls to the failure threshold, and alive again only when it has risen to
//! the recovery threshold, so that a borderline target does not flicker. Since the *target's* counter is compared, slow reads or a slow network
//! cannot cause a suspicion; only a stalled target can (Mu section 5.1, "pull-score").

use crate::basics::Mark;

/// The scale of a score and its thresholds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    /// The highest score, where a target starts.
    pub cap: u8,
    /// At or below it the target is presumed dead.
    pub failure: u8,
    /// At or above it a presumed-dead target is alive again. Above `failure`, at most `cap`.
    pub recovery: u8,
}

impl Default for Thresholds {
    fn default() -> Self {
        Thresholds { cap: 6, failure: 1, recovery: 4 }
    }
}

/// The score of one target.
#[derive(Clone, Debug)]
pub struct Score {
    thresholds: Thresholds,
    score: u8,
    last: Option<u64>,
    failed: bool,
}

impl Score {
    /// A target of which nothing is known yet: presumed alive.
    pub fn new(thresholds: Thresholds) -> Score {
        Score { thresholds, score: thresholds.cap, last: None, failed: false }
    }

    /// Takes a counter that was read. Returns whether the target is now presumed dead.
    pub fn observe(&mut self, counter: u64) -> bool {
        match self.last {
            Some(last) if last == counter => self.score = self.score.saturating_sub(1),
            Some(_) => self.score = self.score.saturating_add(1).min(self.thresholds.cap),
            None => {}
        }
        self.last = Some(counter);
        if self.score <= self.thresholds.failure {
            if !self.failed {
                Mark::HeartStopped.reach();
            }
            self.failed = true;
        } else if self.score >= self.thresholds.recovery {
            if self.failed {
                Mark::HeartRecovered.reach();
            }
            self.failed = false;
        }
        self.failed
    }

    /// The target has shown by other means than its counter that it is alive. It is no longer presumed dead; its counter has to stand still for
    /// several reads before it is presumed dead again.
    pub fn take_back(&mut self) {
        if self.failed {
            Mark::HeartRecovered.reach();
            (self.failed, self.score) = (false, self.thresholds.recovery);
        }
    }

    /// Whether the target is presumed dead.
    pub fn is_failed(&self) -> bool {
        self.failed
    }

    /// The monitor was itself stalled: its last reading is too old to blame the target by. A target that is already presumed dead keeps its state,
    /// since it is not blamed for anything further, and an advance is a sign of life however late it is read: otherwise a monitor that stalls often
    /// would never withdraw a presumption.
    pub fn forget_last(&mut self) {
        if !self.failed {
            self.last = None;
            self.score = self.thresholds.cap;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mu_5_1_a_stopped_counter_is_failure_and_recovery_takes_longer() {
        let mut s = Score::new(Thresholds { cap: 4, failure: 1, recovery: 3 });
        assert!(!s.observe(7));
        assert!(!s.observe(7));
        assert!(!s.observe(7));
        assert!(s.observe(7), "three reads without progress");
        assert!(s.observe(8), "one beat is not enough to recover");
        assert!(!s.observe(9));
    }

    #[test]
    fn the_highest_cap_is_a_score_like_any_other() {
        let mut s = Score::new(Thresholds { cap: u8::MAX, failure: 1, recovery: 4 });
        assert!((0..3).all(|beat| !s.observe(beat)), "it beats");
        assert_eq!((0..300).find(|_| s.observe(2)), Some(253), "it stands still: cap - failure reads");
    }

    #[test]
    fn what_a_target_does_is_a_sign_of_life() {
        let mut s = Score::new(Thresholds { cap: 6, failure: 1, recovery: 4 });
        (0..9).for_each(|_| _ = s.observe(7));
        assert!(s.is_failed());
        s.take_back();
        assert!(!s.is_failed());
        assert!(!s.observe(7) && !s.observe(7), "it is given as many reads as lie between the thresholds");
        assert!(s.observe(7));
    }

    #[test]
    fn a_stalled_monitor_blames_nobody() {
        let mut s = Score::new(Thresholds { cap: 2, failure: 1, recovery: 2 });
        s.observe(1);
        for _ in 0..10 {
            s.forget_last();
            assert!(!s.observe(1));
        }
    }

    #[test]
    fn a_stalled_monitor_takes_back_a_target_that_beats() {
        let mut s = Score::new(Thresholds { cap: 4, failure: 1, recovery: 3 });
        (0..3).for_each(|_| _ = s.observe(1));
        assert!(s.observe(1), "it stood still");
        for (beat, dead) in [(2, true), (3, false)] {
            s.forget_last();
            assert_eq!(s.observe(beat), dead, "beat {beat}");
        }
    }
}
