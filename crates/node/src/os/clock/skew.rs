//! How far the clocks of two cores differ.

use crate::clock::now;

/// What is known about the difference between the clocks of two cores, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Skew {
    /// The second core's clock is ahead of the first's by at least this much.
    pub lower_ns: i64,
    /// The second core's clock is ahead of the first's by at most this much.
    pub upper_ns: i64,
}

impl Skew {
    /// No two reads, one on each core, are further from the truth than this, in nanoseconds. It is half a cross-core round trip if the clocks agree: messages
    /// cannot show anything more precise.
    pub fn bound_ns(self) -> u64 {
        self.lower_ns.unsigned_abs().max(self.upper_ns.unsigned_abs())
    }
}

/// Measures the difference between the clocks of two cores: a word travels to the other core and back `rounds` times, and each trip bounds the difference from
/// both sides (the clock there was read between the two readings here).
///
/// # Errors
/// When a thread cannot be started or bound to its core, or the two cores are one.
pub fn cross_core_skew(first: u16, second: u16, rounds: u32) -> std::io::Result<Skew> {
    use std::sync::atomic::{AtomicU64, Ordering};

    if first == second {
        return Err(std::io::Error::other(format!("the clock of core {first} cannot differ from itself: name two cores")));
    }
    // Even: ours to write. Odd: the other's. The time read on the other core is stored beside it.
    let (turn, there, failed) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let wait = |wanted: u64| {
        let mut spins = 0u32;
        // Acquire: pairs with the release that passes the turn.
        while turn.load(Ordering::Acquire) != wanted {
            if failed.load(Ordering::Relaxed) != 0 {
                return false;
            }
            spins += 1;
            if spins.is_multiple_of(1 << 12) {
                std::thread::yield_now(); // the other one may need this core to start
            }
            std::hint::spin_loop();
        }
        true
    };
    let pinned = |core| crate::sched::pin_current_thread(core).inspect_err(|_| failed.store(1, Ordering::Relaxed));
    std::thread::scope(|scope| {
        let answering = std::thread::Builder::new().name("skew-there".into()).spawn_scoped(scope, || {
            pinned(second)?;
            for round in 0..u64::from(rounds) {
                if !wait(2 * round + 1) {
                    break;
                }
                there.store(now().0, Ordering::Relaxed);
                turn.store(2 * round + 2, Ordering::Release);
            }
            Ok::<_, std::io::Error>(())
        })?;
        let asking = std::thread::Builder::new().name("skew-here".into()).spawn_scoped(scope, || {
            pinned(first)?;
            let mut skew = Skew { lower_ns: i64::MIN, upper_ns: i64::MAX };
            for round in 0..u64::from(rounds) {
                let before = now().0 as i64;
                turn.store(2 * round + 1, Ordering::Release);
                if !wait(2 * round + 2) {
                    break;
                }
                let after = now().0 as i64;
                let other = there.load(Ordering::Relaxed) as i64;
                skew.lower_ns = skew.lower_ns.max(other - after);
                skew.upper_ns = skew.upper_ns.min(other - before);
            }
            Ok::<_, std::io::Error>(skew)
        });
        let asking = asking.inspect_err(|_| failed.store(1, Ordering::Relaxed))?;
        let there = answering.join().map_err(|_| std::io::Error::other("the measuring thread panicked"))?;
        let here = asking.join().map_err(|_| std::io::Error::other("the measuring thread panicked"))?;
        there.and(here)
    })
}

/// How far reads on any two of these cores may be apart, in nanoseconds, measured by trips between the first core and each of the others. Two others may each
/// be off by their own bound.
///
/// # Errors
/// See [`cross_core_skew`].
pub fn skew_among(cores: &[u16], rounds: u32) -> std::io::Result<u64> {
    let Some((first, others)) = cores.split_first() else { return Ok(0) };
    let mut largest = [0; 2];
    for other in others {
        let bound = cross_core_skew(*first, *other, rounds)?.bound_ns();
        largest = [largest[0].max(bound), largest[1].max(bound.min(largest[0]))];
    }
    Ok(largest[0] + largest[1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clocks_of_two_cores_bound_each_other() {
        let cores = crate::sched::allowed_cores().expect("a process may ask for its own cores");
        let [a, b, ..] = cores[..] else { return }; // nothing to compare on one core
        let skew = cross_core_skew(a, b, 2_000).expect("both cores are allowed");
        // The truth is one number, so the bounds from the trips must not contradict each other.
        assert!(skew.lower_ns <= skew.upper_ns, "{skew:?}");
    }

    #[test]
    fn a_core_that_does_not_exist_is_an_error_and_not_a_hang() {
        let cores = crate::sched::allowed_cores().expect("a process may ask for its own cores");
        let missing = crate::sched::MAX_CORE;
        assert!(!cores.contains(&missing));
        assert!(cross_core_skew(cores[0], missing, 10).is_err());
        assert!(cross_core_skew(missing, cores[0], 10).is_err());
        assert!(cross_core_skew(cores[0], cores[0], 10).is_err());
    }
}
