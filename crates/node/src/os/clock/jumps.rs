//! What happens to clocks that no drift explains: the host was suspended, its wall clock was set, or its virtual machine was stopped, moved, or started from a
//! snapshot.
//!
//! A lease is a promise about time. So a holder gives its lease up at the first sign that its clock was wrong about the time, and asks the coordinators again.
//!
//! | what happened | the sign of it |
//! |---|---|
//! | the host was suspended | CLOCK_BOOTTIME has advanced and CLOCK_MONOTONIC has not. Leases count that time anyway |
//! | a virtual machine stood still, and its wall clock was set right, by a time daemon, or an agent of the hypervisor | the wall clock has changed against CLOCK_BOOTTIME. The kernel slews all clocks alike, so they differ by steps only. A person who sets the clock, and a leap second, are taken for the same |
//! | a virtual machine was moved, stopped and saved, or started from a snapshot, and its hypervisor says so in `/dev/vmclock0` (Linux 6.13) | the marker there, before any process of the guest runs again: the only sign that cannot be late |
//! | a virtual machine was started from a snapshot or cloned, and its hypervisor has a generation number (VMGENID) | the kernel announces it as an event of the device (Linux 6.9). The number itself is not shown to processes |
//!
//! Without any of these signs it goes unnoticed: for example, a virtual machine was stopped and continued without its wall clock being set right, under a
//! hypervisor that says nothing. A program that must not depend on that asks a quorum (`docs/membership.md`, "Clocks").

use std::fmt;
use std::path::Path;

use martlet_protocol::basics::Time;
use rustix::time::ClockId;

use super::read;
use super::uevents::Uevents;
use super::vmclock::VmClock;

/// How often the clocks are compared, in nanoseconds. This takes three readings and a system call; the hypervisor's marker is checked at each look.
const INTERVAL_NS: u64 = 1_000_000;
/// Differences up to this count as none: each clock is computed for itself, and rounded.
const TOLERANCE_NS: i64 = 1_000;

/// Where a hypervisor tells its guest what it has done to it.
const VM_CLOCK: &str = "/dev/vmclock0";

/// Something that clocks do not do by themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Jump {
    /// The host was suspended for so long, in nanoseconds.
    Suspended(u64),
    /// The wall clock was set, ahead or back, by so much, in nanoseconds.
    WallSet(i64),
    /// The hypervisor says that the virtual machine's time was disrupted.
    Disrupted,
    /// The virtual machine is not the one that it was, by its hypervisor's generation number.
    Generation,
}

impl Jump {
    /// By how much, in nanoseconds; 0 where that is not known.
    pub fn size_ns(self) -> u64 {
        match self {
            Jump::Suspended(ns) => ns,
            Jump::WallSet(ns) => ns.unsigned_abs(),
            Jump::Disrupted | Jump::Generation => 0,
        }
    }
}

impl fmt::Display for Jump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Jump::Suspended(ns) => write!(f, "the host was suspended for {} us", ns / 1_000),
            Jump::WallSet(ns) => {
                let way = if *ns < 0 { "back" } else { "ahead" };
                write!(f, "the wall clock was set {way} by {} us", ns.unsigned_abs() / 1_000)
            }
            Jump::Disrupted => write!(f, "the hypervisor says in {VM_CLOCK} that time was disrupted"),
            Jump::Generation => f.write_str("the virtual machine has a new generation number"),
        }
    }
}

/// What the clocks showed at one look, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    /// CLOCK_BOOTTIME, before the others were read.
    pub before: u64,
    /// CLOCK_MONOTONIC.
    pub monotonic: u64,
    /// CLOCK_REALTIME.
    pub wall: u64,
    /// CLOCK_BOOTTIME, after the others were read.
    pub after: u64,
}

impl Reading {
    /// This host's clocks, now.
    pub fn of_this_host() -> Reading {
        Reading {
            before: read(ClockId::Boottime),
            monotonic: read(ClockId::Monotonic),
            wall: read(ClockId::Realtime),
            after: read(ClockId::Boottime),
        }
    }

    fn suspended(&self) -> Between {
        let against = |boot: u64| boot as i64 - self.monotonic as i64;
        Between { least: against(self.before), most: against(self.after) }
    }

    fn wall(&self) -> Between {
        let against = |boot: u64| self.wall as i64 - boot as i64;
        Between { least: against(self.after), most: against(self.before) }
    }
}

/// What is known of the difference between two clocks: bounds on it.
#[derive(Clone, Copy, Debug)]
struct Between {
    least: i64,
    most: i64,
}

impl Between {
    /// Takes another look. Returns by how much the difference has changed at least, if it has.
    fn narrow(&mut self, seen: Between) -> Option<i64> {
        let change = if seen.least > self.most { seen.least - self.most } else { (seen.most - self.least).min(0) };
        let known = *self;
        let both = Between { least: known.least.max(seen.least), most: known.most.min(seen.most) };
        *self = if both.least <= both.most { both } else { seen };
        (change.abs() > TOLERANCE_NS).then_some(change)
    }
}

/// Compares clocks from one look to the next. It reads no clock itself.
#[derive(Debug)]
pub struct Comparison {
    suspended: Between,
    wall: Between,
}

impl Comparison {
    /// Later looks are compared with this one.
    pub fn new(first: &Reading) -> Comparison {
        Comparison { suspended: first.suspended(), wall: first.wall() }
    }

    /// Takes another look. If there are two jumps at once, the suspension is reported: the wall clock counts a suspension as CLOCK_BOOTTIME does.
    pub fn compare(&mut self, reading: &Reading) -> Option<Jump> {
        let suspended = self.suspended.narrow(reading.suspended());
        let wall = self.wall.narrow(reading.wall());
        suspended.map(|ns| Jump::Suspended(ns.unsigned_abs())).or(wall.map(Jump::WallSet))
    }
}

/// Looks for jumps, again and again.
#[derive(Debug)]
pub struct JumpWatch {
    clocks: fn() -> Reading,
    comparison: Comparison,
    compared: Time,
    vm_clock: Option<VmClock>,
    uevents: Option<Uevents>,
}

impl JumpWatch {
    /// A watch on this host, by all the signs that it offers.
    pub fn of_this_host() -> JumpWatch {
        let vm_clock = VmClock::open(Path::new(VM_CLOCK)).inspect_err(|error| tracing::debug!(%error, "no {VM_CLOCK}")).ok();
        let uevents = Uevents::listen().inspect_err(|error| tracing::debug!(%error, "no events of devices")).ok();
        JumpWatch { vm_clock, uevents, ..JumpWatch::of(Reading::of_this_host) }
    }

    /// A watch by these clocks only.
    pub fn of(clocks: fn() -> Reading) -> JumpWatch {
        let first = clocks();
        JumpWatch { clocks, comparison: Comparison::new(&first), compared: Time(first.after), vm_clock: None, uevents: None }
    }

    /// What has happened since the last look, if anything has; `now` was just read.
    #[inline]
    pub fn look(&mut self, now: Time) -> Option<Jump> {
        if let Some(vm_clock) = &mut self.vm_clock
            && vm_clock.has_changed()
        {
            return Some(Jump::Disrupted);
        }
        if now.since(self.compared) < INTERVAL_NS { None } else { self.compare(now) }
    }

    #[cold]
    fn compare(&mut self, now: Time) -> Option<Jump> {
        self.compared = now;
        let jump = self.comparison.compare(&(self.clocks)());
        let generation = self.uevents.as_mut().is_some_and(Uevents::tell_of_a_generation);
        jump.or(generation.then_some(Jump::Generation))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// The clocks of a host at `now`, which it took `took` to read.
    fn reading(now: u64, took: u64, suspended: u64, wall: u64) -> Reading {
        let boot = now + suspended;
        Reading { before: boot, monotonic: now + took / 2, wall: wall + boot + took / 2, after: boot + took }
    }

    #[test]
    fn clocks_that_are_slewed_alike_and_read_slowly_have_not_jumped() {
        let mut chance = fastrand::Rng::with_seed(7);
        let mut comparison = Comparison::new(&reading(SECOND, 60, 0, 1_700_000_000 * SECOND));
        for step in 2..2_000 {
            // A thread that is preempted between two readings sees a wide difference and concludes nothing; what was known remains known.
            let took = if chance.u32(0..10) == 0 { chance.u64(0..50_000_000) } else { chance.u64(20..200) };
            let rounding = chance.u64(0..3);
            assert_eq!(comparison.compare(&reading(step * SECOND + rounding, took, 0, 1_700_000_000 * SECOND)), None);
        }
    }

    #[test]
    fn a_suspension_is_what_one_clock_counts_and_the_other_does_not() {
        let mut comparison = Comparison::new(&reading(SECOND, 60, 0, 0));
        assert_eq!(comparison.compare(&reading(2 * SECOND, 60, 0, 0)), None);
        let Some(Jump::Suspended(ns)) = comparison.compare(&reading(3 * SECOND, 60, 7 * SECOND, 0)) else { panic!("not noticed") };
        assert!(ns.abs_diff(7 * SECOND) < 1_000, "{ns}");
        assert_eq!(comparison.compare(&reading(4 * SECOND, 60, 7 * SECOND, 0)), None, "it is told once");
        assert!(
            matches!(comparison.compare(&reading(5 * SECOND, 60, 7 * SECOND + 50_000, 0)), Some(Jump::Suspended(_))),
            "nor is 50 us nothing"
        );
    }

    #[test]
    fn a_wall_clock_that_is_set_has_jumped_in_either_direction() {
        let mut comparison = Comparison::new(&reading(SECOND, 60, 0, 100 * SECOND));
        let Some(Jump::WallSet(ns)) = comparison.compare(&reading(2 * SECOND, 60, 0, 130 * SECOND)) else { panic!("not noticed") };
        assert!((ns - 30 * SECOND as i64).abs() < 1_000, "{ns}");
        let Some(Jump::WallSet(ns)) = comparison.compare(&reading(3 * SECOND, 60, 0, 129 * SECOND)) else { panic!("not noticed") };
        assert!((ns + SECOND as i64).abs() < 1_000, "{ns}: a leap second, say");
        assert_eq!(comparison.compare(&reading(4 * SECOND, 60, 0, 129 * SECOND)), None);
    }

    #[test]
    fn a_jump_that_is_read_slowly_is_told_as_soon_as_it_can_be() {
        let mut comparison = Comparison::new(&reading(SECOND, 60, 0, 0));
        // Reading the clocks took longer than the jump was.
        assert_eq!(comparison.compare(&reading(2 * SECOND, SECOND, SECOND / 4, 0)), None);
        assert!(matches!(comparison.compare(&reading(4 * SECOND, 60, SECOND / 4, 0)), Some(Jump::Suspended(_))));
    }

    #[test]
    fn this_host_is_looked_at_once_in_a_while() {
        let mut watch = JumpWatch::of_this_host();
        let start = super::super::now();
        // This test cannot know whether the host jumps meanwhile. It checks that the clocks are compared no more often than they should be.
        watch.look(start.after(2 * INTERVAL_NS));
        let compared = watch.compared;
        assert_eq!(compared, start.after(2 * INTERVAL_NS));
        watch.look(compared.after(INTERVAL_NS - 1));
        assert_eq!(watch.compared, compared);
        watch.look(compared.after(INTERVAL_NS));
        assert_eq!(watch.compared, compared.after(INTERVAL_NS));
    }
}
