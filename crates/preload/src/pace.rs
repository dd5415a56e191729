//! How fast a leader collects rounds while a replica that is being born is far behind.
//!
//! A newcomer is told all rounds since its fork, while more come. If the server were given rounds faster than the newcomer is told them, the newcomer would
//! never catch up. So the leader collects one round for every two that the newcomer has been told, until the newcomer lacks less. Meanwhile clients wait a
//! little longer.

/// A newcomer may lack so many bytes of rounds without any effect on the leader.
const FAR_BEHIND_BYTES: usize = 16 << 20;
/// A newcomer that makes no progress for so long is not waited for any longer, in nanoseconds: it may be dead.
const PATIENCE_NS: u64 = 200_000_000;
/// How many rounds a newcomer is told for each that is collected.
const TOLD_A_ROUND: u64 = 2;

/// What a leader has seen of the newcomer that lacks most.
#[derive(Debug, Default)]
pub struct Pace {
    /// The first round that it lacked at the last look; 0: no newcomer was far behind.
    lacked: u64,
    /// When that last changed.
    moved_ns: u64,
    /// Rounds that it has been told and that no collected round has been set off against.
    told: u64,
}

impl Pace {
    /// Whether the next round may be collected now, while a newcomer lacks the rounds from `lacked` on, which have so many bytes. `None`: there is no newcomer.
    pub fn permits(&mut self, now_ns: u64, lacked: Option<(u64, usize)>) -> bool {
        let Some((lacked, _)) = lacked.filter(|(_, bytes)| *bytes > FAR_BEHIND_BYTES) else {
            *self = Pace::default();
            return true;
        };
        if lacked != self.lacked {
            // If `lacked` is less, this is another newcomer; if it was 0 before, this is the first look.
            self.told += if self.lacked == 0 { 0 } else { lacked.saturating_sub(self.lacked) };
            (self.lacked, self.moved_ns) = (lacked, now_ns);
        }
        self.told >= TOLD_A_ROUND || now_ns.saturating_sub(self.moved_ns) > PATIENCE_NS
    }

    /// A round has been collected.
    pub fn collected(&mut self) {
        self.told = self.told.saturating_sub(TOLD_A_ROUND);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAR: usize = FAR_BEHIND_BYTES + 1;

    #[test]
    fn nothing_is_slowed_down_by_a_newcomer_that_is_near() {
        let mut pace = Pace::default();
        assert!(pace.permits(0, None) && pace.permits(0, Some((7, FAR_BEHIND_BYTES))));
        assert!(!pace.permits(0, Some((7, FAR))));
        assert!(pace.permits(0, Some((8, FAR_BEHIND_BYTES))) && pace.permits(0, None));
    }

    #[test]
    fn one_that_is_far_behind_is_told_twice_as_much_as_comes() {
        let (mut pace, mut next, mut lacked, mut now) = (Pace::default(), 1_000, 1, 0);
        while lacked < 500 {
            now += 1;
            if pace.permits(now, Some((lacked, FAR))) {
                pace.collected();
                next += 1;
            } else {
                lacked += 1;
            }
        }
        assert_eq!(next - 1_000, (lacked - 1) / TOLD_A_ROUND);
    }

    #[test]
    fn one_that_does_not_get_on_is_waited_for_no_longer() {
        let mut pace = Pace::default();
        assert!(!pace.permits(5, Some((7, FAR))));
        assert!(!pace.permits(5 + PATIENCE_NS, Some((7, FAR))));
        assert!(pace.permits(6 + PATIENCE_NS, Some((7, FAR))));
        // Until it does.
        assert!(!pace.permits(7 + PATIENCE_NS, Some((8, FAR))));
        // Another one's coming says nothing of what has been told.
        assert!(!pace.permits(8 + PATIENCE_NS, Some((3, FAR))));
        assert!(pace.permits(9 + PATIENCE_NS, Some((4, FAR))), "two, with the one before");
    }
}
