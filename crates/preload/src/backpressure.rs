//! How far followers lag behind what the system has told the leader, and for which of them the leader waits.
//!
//! The [board](crate::board) keeps only the last words, and a follower that needs older ones ends. Nothing else makes the leader wait for a follower: the
//! leader may collect rounds as long as a majority holds them, even while a follower that gets too little of a core executes none. So once words are told
//! faster than they are heard, the leader collects no more until the followers that are far behind have caught up some way. They execute what the leader has
//! executed, and need nothing new for that.

use crate::board::{Holder, TOLD_WORDS};

/// A follower may be so many words behind without any effect on the leader. The rest of the board has room for what is told in one more round, and in the
/// present one.
const FAR_BEHIND: u64 = TOLD_WORDS as u64 / 2;
/// Each time so many more words have been told, the leader looks which followers are far behind.
const LOOK_WORDS: u64 = TOLD_WORDS as u64 / 16;
/// A follower that makes no progress for so long is not waited for any longer, in nanoseconds: it is stopped, or hangs. A leader that is silent for as long
/// would be taken for dead.
const PATIENCE_NS: u64 = 5_000_000_000;

/// A follower, and how far it has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Follower {
    /// Its process.
    pub process: Holder,
    /// How far it has heard the leader's words.
    pub heard: u64,
    /// The first round that it has not been told. A replica that is being taught hears its words only afterwards.
    pub next: u64,
}

/// What a leader has seen of followers that are far behind its words.
#[derive(Debug, Default)]
pub struct Backpressure {
    /// No follower is looked at before so many words have been told.
    look_at: u64,
    /// Those that were far behind at the last look, and since when each has made no progress.
    far: Vec<(Follower, u64)>,
}

impl Backpressure {
    /// Whether the next round may be collected now, when `told` words have been told.
    ///
    /// `followers` are those that have begun and are not known to be dead. `runs` asks the kernel, and is called only for those that would be waited for.
    pub fn permits(&mut self, now_ns: u64, told: u64, followers: impl FnOnce() -> Vec<Follower>, runs: impl Fn(Holder) -> bool) -> bool {
        if told < self.look_at {
            return true;
        }
        // A follower for which words are already lost ends when it gets to them, whatever is done here.
        let is_far = |follower: &Follower| (FAR_BEHIND..TOLD_WORDS as u64).contains(&told.saturating_sub(follower.heard));
        let since = |follower: Follower| {
            let before = self.far.iter().find(|(before, _)| *before == follower);
            (follower, before.map_or(now_ns, |(_, since_ns)| *since_ns))
        };
        self.far = followers().into_iter().filter(is_far).map(since).collect();
        let waits = self.far.iter().any(|(follower, since_ns)| now_ns.saturating_sub(*since_ns) <= PATIENCE_NS && runs(follower.process));
        if !waits {
            self.look_at = told + LOOK_WORDS;
        }
        !waits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn follower(node: u16, heard: u64) -> Follower {
        Follower { process: Holder { node, pid: 10 + i32::from(node), started: 5 }, heard, next: 7 }
    }

    #[test]
    fn followers_that_are_near_are_looked_at_now_and_then() {
        let mut backpressure = Backpressure::default();
        let near = || vec![follower(1, 1), follower(2, FAR_BEHIND)];
        assert!(backpressure.permits(0, FAR_BEHIND, near, |_| unreachable!("they are near")));
        let never = || unreachable!("few words more have been told");
        assert!(backpressure.permits(0, FAR_BEHIND + LOOK_WORDS - 1, never, |_| true));
        assert!(!backpressure.permits(0, FAR_BEHIND + LOOK_WORDS, near, |_| true));
    }

    #[test]
    fn one_that_is_far_behind_is_waited_for_as_long_as_it_gets_on() {
        let (mut backpressure, told) = (Backpressure::default(), 3 * FAR_BEHIND);
        let mut now = 0;
        for heard in 2 * FAR_BEHIND - 5..=2 * FAR_BEHIND {
            assert!(!backpressure.permits(now, told, || vec![follower(1, told), follower(2, heard)], |_| true));
            now += PATIENCE_NS;
        }
        assert!(backpressure.permits(now, told, || vec![follower(2, 2 * FAR_BEHIND + 1)], |_| true));
        // A follower that is still being taught rounds is waited for, too.
        let told = 4 * FAR_BEHIND;
        for next in 7..20 {
            now += PATIENCE_NS;
            assert!(!backpressure.permits(now, told, || vec![Follower { next, ..follower(2, 3 * FAR_BEHIND) }], |_| true));
        }
    }

    #[test]
    fn one_that_gets_on_by_nothing_is_waited_for_once() {
        let mut backpressure = Backpressure::default();
        let stopped = || vec![follower(2, 1)];
        let mut told = FAR_BEHIND + 1;
        assert!(!backpressure.permits(10, told, stopped, |_| true));
        assert!(!backpressure.permits(10 + PATIENCE_NS, told, stopped, |_| true));
        while told < TOLD_WORDS as u64 {
            assert!(backpressure.permits(11 + PATIENCE_NS, told, stopped, |_| true));
            told += LOOK_WORDS;
        }
        // Another follower has a time of its own.
        assert!(!backpressure.permits(11 + PATIENCE_NS, told, || vec![follower(1, told - FAR_BEHIND), follower(2, 1)], |_| true));
        // When it goes on, it is waited for again.
        let told = FAR_BEHIND + 1 + LOOK_WORDS;
        let mut backpressure = Backpressure::default();
        assert!(!backpressure.permits(10, told, stopped, |_| true) && backpressure.permits(11 + PATIENCE_NS, told, stopped, |_| true));
        assert!(!backpressure.permits(11 + PATIENCE_NS, told + LOOK_WORDS, || vec![follower(2, 2)], |_| true));
    }

    #[test]
    fn nobody_waits_for_one_that_is_dead_or_has_lost_words() {
        let mut backpressure = Backpressure::default();
        assert!(backpressure.permits(10, FAR_BEHIND + 1, || vec![follower(2, 1)], |_| false));
        let told = TOLD_WORDS as u64 + 1;
        assert!(backpressure.permits(10, told, || vec![follower(2, 1)], |_| unreachable!("it has lost words")));
    }
}
