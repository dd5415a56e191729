//! What lives have reached: which transitions of the state machines, and how often.

use std::ops::AddAssign;

use martlet_fabric::probe;
use martlet_protocol::basics::Mark;

/// How often each mark was reached. All zeros in a build without the feature `marks`; see [`Coverage::MEASURED`].
#[derive(Clone, Debug)]
pub struct Coverage([u64; probe::MAX_MARKS]);

/// Marks that default lives reach too rarely to demand them of a few thousand lives, with the reason. A hundred thousand lives reach each of them. What default
/// lives never do has a scene instead ([`SCENARIOS`](crate::cluster::SCENARIOS)).
pub const RARE: &[(Mark, &str)] = &[
    (Mark::WasRefused, "who will not be taken in has read so on a board, as a rule, before anybody's refusal arrives"),
    (Mark::MuCatchUpFailed, "the owner of a log has to be lost within the one read of it"),
    (
        Mark::MuAwaitsStray,
        "a reign would have to end within the one read of a log, and the next one to prefer another log before that read is over",
    ),
    (
        Mark::DareNoRoom,
        "what clients of a life may have under way is less than three quarters of the smallest log; tests of the engine fill it",
    ),
    (Mark::ApusNoRoom, "as with dare"),
    (Mark::DareZombies, "zombies count where the settings say for how long, which those of default lives do not"),
    (Mark::DareZombiesCount, "as with having one"),
    (Mark::DareZombieEnds, "as with having one"),
    (Mark::DareDecreases, "nobody asks for another number of places but in the kinds that resize"),
    (Mark::DareResizes, "as with its decreases"),
    (Mark::CertifiedAlive, "a warden would have to lie, which costs safety; a test of membership has one that does"),
    (Mark::TornBoard, "both records of a board have to be overwritten while they are read: two views within one transfer"),
];

impl Coverage {
    /// Whether this build counts anything.
    pub const MEASURED: bool = cfg!(feature = "marks");

    /// What this thread has reached since the last call.
    pub fn take() -> Coverage {
        #[cfg(feature = "marks")]
        return Coverage(probe::take_reached());
        #[cfg(not(feature = "marks"))]
        Coverage::default()
    }

    /// How often this mark was reached.
    pub fn of(&self, mark: Mark) -> u64 {
        self.0[mark as usize]
    }

    /// How many marks were reached.
    pub fn hit(&self) -> usize {
        Mark::ALL.iter().filter(|mark| self.of(**mark) > 0).count()
    }

    /// Marks that were never reached.
    pub fn missed(&self) -> Vec<Mark> {
        Mark::ALL.iter().copied().filter(|mark| self.of(*mark) == 0).collect()
    }
}

impl Default for Coverage {
    fn default() -> Coverage {
        Coverage([0; probe::MAX_MARKS])
    }
}

impl AddAssign for Coverage {
    fn add_assign(&mut self, other: Coverage) {
        for (count, more) in self.0.iter_mut().zip(other.0) {
            *count += more;
        }
    }
}
