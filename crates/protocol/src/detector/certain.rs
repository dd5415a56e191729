//! Certain death: the kernel's own word (uKharon section 4.2, userspace failures; DESIGN section 4).
//!
//! Every thread that may act for a process holds a robust futex word for each watcher. When the thread dies, by SIGKILL too, the kernel
//! itself marks the word, before it tears the process's memory down. Death counts per thread: a sibling that still runs could still act, so
//! the process is dead only when every word says so (TRAPS 32). A clean end clears the word first: that is a leave, not a crash (TRAPS 28).

use crate::basics::layout::life::{OWNER_DIED, TID_MASK};
use crate::basics::{Canary, Mark};

/// What a process's death words say about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    /// Some acting thread lives, or nothing is known yet.
    Alive,
    /// Every acting thread is gone, and at least one did not end by itself.
    Dead,
    /// Every acting thread ended by itself.
    Ended,
}

/// Judges the words of all acting threads of a process, as one watcher reads them.
pub fn judge(words: &[u64]) -> Sign {
    let (mut died, mut lives) = (false, false);
    for word in words {
        if word & OWNER_DIED != 0 {
            died = true;
        } else if word & TID_MASK != 0 {
            lives = true;
        }
    }
    if lives && died {
        Mark::PartialDeath.reach();
    }
    if lives && !(died && Canary::OneThreadDead.is_planted()) {
        return Sign::Alive;
    }
    match (words.is_empty(), died) {
        (true, _) => Sign::Alive,
        (false, true) => {
            Mark::CertainDeath.reach();
            Sign::Dead
        }
        (false, false) => {
            Mark::CleanEnd.reach();
            Sign::Ended
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::basics::layout::life::WAITERS;

    const ALIVE: u64 = WAITERS | 4711;
    const DIED: u64 = WAITERS | OWNER_DIED;

    #[test]
    fn trap_32_a_process_is_dead_when_its_last_acting_thread_is() {
        assert_eq!(judge(&[DIED, ALIVE]), Sign::Alive);
        assert_eq!(judge(&[DIED, DIED]), Sign::Dead);
    }

    #[test]
    fn trap_28_a_clean_end_is_no_crash() {
        assert_eq!(judge(&[0, 0]), Sign::Ended);
        assert_eq!(judge(&[0, DIED]), Sign::Dead, "one thread ended, the other was killed");
    }

    #[test]
    fn no_words_are_no_evidence() {
        assert_eq!(judge(&[]), Sign::Alive);
    }
}
