//! The clocks: one for everything that is ordered or timed, and one for wall time; and how a node notices when they do what clocks should not do.
//!
//! [`now`] reads CLOCK_BOOTTIME. It serves both as the protocol's [`Time`] and as the stamp of events, so the stamps of all processes of one host are on one
//! axis and a failover can be shown as one timeline. It advances while the host is suspended, as the other hosts' clocks do: a lease that was held before the
//! suspension is over after it. CLOCK_MONOTONIC stands still meanwhile, and costs as much to read: 22 ns each through the vDSO (under a hypervisor, Linux
//! 6.18). Reading the time-stamp counter directly would save about 10 ns, but would leave to us what the kernel does: keep the cores' counters in step, notice
//! when they are not, and follow a migration of the virtual machine.
//!
//! No clock of a virtual machine counts the time that its hypervisor withholds: a pause, a migration, the time that a snapshot has lain on a disk. [`jumps`]
//! looks for the signs that can be seen afterwards.

pub mod discipline;
pub mod jumps;
mod skew;
mod uevents;
mod vmclock;

use martlet_protocol::basics::Time;
use rustix::time::{ClockId, clock_gettime};

pub use skew::{Skew, cross_core_skew, skew_among};

fn read(clock: ClockId) -> u64 {
    let t = clock_gettime(clock);
    u64::try_from(t.tv_sec).unwrap_or(0) * 1_000_000_000 + t.tv_nsec as u64
}

/// Now, on the host's clock since the host started, including suspensions, in nanoseconds. Every process of this host has the same axis. It never goes
/// backwards within a thread, and between threads on different cores by no more than [`cross_core_skew`] finds. A process that starts later on this host reads
/// a greater time.
#[inline]
pub fn now() -> Time {
    let t = clock_gettime(ClockId::Boottime);
    Time(t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64)
}

/// The wall clock in nanoseconds since 1970. For expiry of keys and for people. It can be set, forward or back, at any time.
pub fn wall_ns() -> u64 {
    read(ClockId::Realtime)
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

    /// Tells a test that it is the one that runs within a namespace of the test of that name.
    const INSIDE: &str = "MARTLET_TEST_TIME_NAMESPACE";

    /// The host was suspended for ten days, as far as processes in a namespace can tell.
    #[test]
    fn time_goes_on_while_the_host_is_suspended() {
        const SUSPENDED_S: u64 = 864_000;
        if std::env::var_os(INSIDE).is_some() {
            let ahead = now().0 - read(ClockId::Monotonic);
            assert!(ahead >= (SUSPENDED_S - 60) * 1_000_000_000, "{ahead}");
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
}
