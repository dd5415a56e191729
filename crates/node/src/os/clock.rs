//! The clocks: one for everything that is ordered or timed, one for the wall.
//!
//! [`now`] reads CLOCK_BOOTTIME. It serves both as the protocol's [`Time`] and as the stamp of events, so the stamps of all processes of one
//! host stand on one axis and a failover can be shown as one timeline. It goes on while the host is suspended, as the other hosts' clocks do: a lease that was
//! held before is over after it. CLOCK_MONOTONIC stands still meanwhile, and costs as much to read: 22 ns each through the vDSO (under a hypervisor, Linux 6.18).
//! Reading the time-stamp counter directly would save about 10 of them, and would leave to us what the kernel does: to keep the cores' counters in step, to notice
//! when they are not, and to follow a migration of the virtual machine.

use martlet_protocol::basics::Time;
use rustix::time::{ClockId, clock_gettime};

/// Now, on the host's clock since its start, suspensions included, in nanoseconds. The same axis in every process of this host; never goes backwards in one thread, and
/// between threads on different cores by no more than [`cross_core_skew`] finds.
#[inline]
pub fn now() -> Time {
    let t = clock_gettime(ClockId::Boottime);
    Time(t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64)
}

/// The wall clock in nanoseconds since 1970. For expiry of keys and for people; it can be set, in both directions, at any time.
pub fn wall_ns() -> u64 {
    let t = clock_gettime(ClockId::Realtime);
    u64::try_from(t.tv_sec).unwrap_or(0) * 1_000_000_000 + t.tv_nsec as u64
}

/// What is known about the difference between the clocks of two cores, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Skew {
    /// The second core's clock is ahead of the first's by at least this much.
    pub lower_ns: i64,
    /// The second core's clock is ahead of the first's by at most this much.
    pub upper_ns: i64,
}

impl Skew {
    /// No two reads, one on each core, are further from the truth than this, in nanoseconds. Half a cross-core round trip where the clocks
    /// agree: nothing better can be told by messages.
    pub fn bound_ns(self) -> u64 {
        self.lower_ns.unsigned_abs().max(self.upper_ns.unsigned_abs())
    }
}

/// Measures the difference between the clocks of two cores: a word travels to the other core and back `rounds` times, and each trip bounds
/// the difference from both sides (the clock there lies between the two readings here).
///
/// # Errors
/// When a thread cannot be started or bound to its core, or the two cores are one.
pub fn cross_core_skew(first: u16, second: u16, rounds: u32) -> std::io::Result<Skew> {
    use std::sync::atomic::{AtomicU64, Ordering};

    if first == second {
        return Err(std::io::Error::other(format!("the clock of core {first} cannot differ from itself: name two cores")));
    }
    // Even: ours to write. Odd: the other's. The time read there stands beside it.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_never_goes_back_in_a_thread() {
        let mut last = now();
        for _ in 0..100_000 {
            let next = now();
            assert!(next >= last);
            last = next;
        }
    }

    /// Says to a test that it is the one within a namespace of the test of that name.
    const INSIDE: &str = "MARTLET_TEST_TIME_NAMESPACE";

    /// A host that was suspended for ten days, as far as processes in a namespace can tell.
    #[test]
    fn time_goes_on_while_the_host_is_suspended() {
        const SUSPENDED_S: u64 = 864_000;
        if std::env::var_os(INSIDE).is_some() {
            let monotonic = clock_gettime(ClockId::Monotonic);
            let ahead_s = now().0 / 1_000_000_000 - monotonic.tv_sec as u64;
            assert!(ahead_s >= SUSPENDED_S - 60, "{ahead_s}");
            return;
        }
        let (_, module) = module_path!().split_once("::").expect("the crate's name comes first");
        let name = format!("{module}::time_goes_on_while_the_host_is_suspended");
        let this = std::env::current_exe().expect("the test's own file");
        let mut inside = std::process::Command::new("unshare");
        inside.args(["--time", "--boottime", &SUSPENDED_S.to_string(), "--fork"]).arg(this).args(["--exact", &name]).env(INSIDE, "1");
        let ended = inside.output();
        let refused = |ended: &std::process::Output| String::from_utf8_lossy(&ended.stderr).contains("unshare:");
        match ended {
            Ok(ended) if refused(&ended) => eprintln!("not tried: it takes the right to make a namespace"),
            Ok(ended) => {
                let said = String::from_utf8_lossy(&ended.stdout);
                assert!(ended.status.success() && said.contains("1 passed"), "{said}");
            }
            Err(error) => eprintln!("not tried: {error}"),
        }
    }

    #[test]
    fn the_clocks_of_two_cores_bound_each_other() {
        let cores = crate::sched::allowed_cores().expect("a process may ask for its own cores");
        let [a, b, ..] = cores[..] else { return }; // nothing to compare on one core
        let skew = cross_core_skew(a, b, 2_000).expect("both cores are allowed");
        // The truth is one number: the bounds from the trips must not contradict each other.
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
