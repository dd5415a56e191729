//! The right to write a lane: the grant word, as in shared memory, together with the queue pair for which it holds.
//!
//! A word is `epoch << 25 | granted << 24 | queue pair`. Only the lane's owner writes it. The writer reads it one-sidedly when it has reason to doubt
//! its grant, and is told of changes by a notice, a word in its own memory that the owner writes.
//!
//! Each grant has a queue pair of its own at the owner. So a writer that has slept through a revocation and a new grant sends to a number that no
//! longer answers. If the number stayed the same, the writer's old packets could be taken for retransmissions, and be acknowledged although they
//! store nothing.

/// A grant, or the absence of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grant {
    /// Counts the changes; a fresh lane has 1.
    pub(super) epoch: u64,
    pub(super) granted: bool,
    /// The owner's queue pair, 24 bits.
    pub(super) queue_pair: u32,
}

impl Grant {
    /// The grant of a fresh lane.
    pub(super) fn first(queue_pair: u32) -> Grant {
        Grant { epoch: 1, granted: true, queue_pair }
    }

    pub(super) fn word(self) -> u64 {
        self.epoch << 25 | u64::from(self.granted) << 24 | u64::from(self.queue_pair & 0xff_ffff)
    }

    /// Decodes a word. Zero, which memory holds before the first notice, decodes to epoch 0, not granted.
    pub(super) fn of(word: u64) -> Grant {
        Grant { epoch: word >> 25, granted: word >> 24 & 1 == 1, queue_pair: (word & 0xff_ffff) as u32 }
    }

    /// The next one.
    pub(super) fn next(self, granted: bool, queue_pair: u32) -> Grant {
        Grant { epoch: self.epoch + 1, granted, queue_pair }
    }

    /// The first packet number. The first packet numbers of successive grants are half the number space apart, so that leftover packets of the
    /// previous grant are neither new nor awaited.
    pub(super) fn psn(self) -> u32 {
        ((self.epoch << 22) as u32 + 1) & 0xff_ffff
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_carry_all_of_a_grant() {
        for grant in [Grant::first(0xff_ffff), Grant { epoch: (1 << 39) - 1, granted: false, queue_pair: 0 }] {
            assert_eq!(Grant::of(grant.word()), grant);
        }
        assert_eq!(Grant::of(0), Grant { epoch: 0, granted: false, queue_pair: 0 });
    }

    #[test]
    fn successive_grants_start_half_the_space_apart() {
        let first = Grant::first(1);
        let second = first.next(false, 1).next(true, 2);
        assert_eq!(second.psn().wrapping_sub(first.psn()) & 0xff_ffff, 1 << 23);
        assert!(second.psn() <= 0xff_ffff);
    }
}
