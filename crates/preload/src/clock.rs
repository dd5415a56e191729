//! The time that a server sees.
//!
//! It starts at the stamp of the round that the server executes, and advances by [`READING_NS`] at each reading. When the leader's server takes longer over a
//! round than that, the time [leaps](Leap) to what the kernel says, and the other replicas leap at the same reading. So the time is the same at every replica;
//! what takes long is seen to take long; and a loop that waits by the clock ends. The time never goes back: a leader stamps its next round with the real time,
//! or with the time that its server has seen if that is later.

use std::cell::Cell;

use crate::entry::Stamp;
use crate::main_thread::{Confined, InLibrary};
use crate::replica;
use crate::sys;

/// By how much the time advances at each reading, in nanoseconds.
pub const READING_NS: u64 = 100;
/// How far the time that a server sees may lag behind the kernel's before it leaps, in nanoseconds.
const LEAP_NS: u64 = 1_000_000;

/// A reading at which time leaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leap {
    /// The number of this reading among all of the server's readings, from 1 on: all replicas count alike.
    pub reading: u64,
    /// The time that this reading returns.
    pub to: Stamp,
}

static NOW: Confined<Cell<Stamp>> = Confined::new(Cell::new(Stamp { monotonic_ns: 0, wall_ns: 0 }));
/// How many readings there have been. A fork goes on counting.
static READINGS: Confined<Cell<u64>> = Confined::new(Cell::new(0));

/// When the round began, by the server's monotonic clock.
static BEGAN_NS: Confined<Cell<u64>> = Confined::new(Cell::new(0));

fn later(stamp: Stamp, ns: u64) -> Stamp {
    Stamp { monotonic_ns: stamp.monotonic_ns + ns, wall_ns: stamp.wall_ns + ns }
}

/// A reading by the server; `None` before the first round, when the server sees the kernel's time.
pub fn read() -> Option<Stamp> {
    let now = NOW.get().get();
    if now == Stamp::default() {
        return None;
    }
    let (now, reading) = (later(now, READING_NS), READINGS.get().get() + 1);
    READINGS.get().set(reading);
    let _library = InLibrary::enter();
    let since_ns = now.monotonic_ns.saturating_sub(BEGAN_NS.get().get());
    let leap = replica::with(|replica| replica.leaps(reading, || leap(reading, now, since_ns, monotonic_ns(), real))).flatten();
    let now = leap.map_or(now, |leap| latest(now, leap.to));
    NOW.get().set(now);
    Some(now)
}

/// A reading of a coarse clock. The kernel's coarse clocks stand still for some milliseconds at a time; this one stands still until the next reading of another
/// clock, or the next round. It is not counted, because the allocator reads that clock too, at other moments in each replica. `None` as for [`read`].
pub fn read_coarsely() -> Option<Stamp> {
    Some(NOW.get().get()).filter(|now| *now != Stamp::default())
}

/// How many readings the server has made.
pub fn readings() -> u64 {
    READINGS.get().get()
}

/// The leap that a leader's server makes at a reading that would otherwise return `now`, `since_ns` after its round has begun, while the kernel's monotonic
/// clock is at `real_ns`; `None`: no leap.
///
/// In a round that takes long it leaps less often: followers are told of all its leaps only when it has come back, so there must not be too many.
fn leap(reading: u64, now: Stamp, since_ns: u64, real_ns: u64, real: impl Fn() -> Stamp) -> Option<Leap> {
    (real_ns > now.monotonic_ns + LEAP_NS.max(since_ns / 1_000)).then(|| Leap { reading, to: latest(now, real()) })
}

fn latest(one: Stamp, other: Stamp) -> Stamp {
    Stamp { monotonic_ns: one.monotonic_ns.max(other.monotonic_ns), wall_ns: one.wall_ns.max(other.wall_ns) }
}

/// The time that the server has last seen; before the first round, the kernel's time.
pub fn shown() -> Stamp {
    let now = NOW.get().get();
    if now == Stamp::default() { real() } else { now }
}

/// The stamp of a leader's next round.
pub fn stamp() -> Stamp {
    latest(NOW.get().get(), real())
}

/// Sets the time to that of this round.
pub fn set(stamp: Stamp) {
    let now = latest(NOW.get().get(), stamp);
    NOW.get().set(now);
    BEGAN_NS.get().set(now.monotonic_ns);
}

/// The kernel's monotonic clock.
pub fn monotonic_ns() -> u64 {
    sys::nanoseconds(libc::CLOCK_MONOTONIC)
}

/// What the kernel says.
pub fn real() -> Stamp {
    Stamp { monotonic_ns: monotonic_ns(), wall_ns: sys::nanoseconds(libc::CLOCK_REALTIME) }
}

/// A time in seconds and in parts of `of_ns` nanoseconds each. A time that is too long to be represented becomes the longest that can be; `None`: it is
/// negative.
pub fn nanoseconds(seconds: i64, parts: i64, of_ns: u64) -> Option<u64> {
    let (seconds, parts) = (u64::try_from(seconds).ok()?, u64::try_from(parts).ok()?);
    Some(seconds.saturating_mul(1_000_000_000).saturating_add(parts.saturating_mul(of_ns)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_time_is_too_long_and_none_is_negative() {
        assert_eq!(nanoseconds(2, 3, 1_000), Some(2_000_003_000));
        assert_eq!(nanoseconds(i64::MAX, 0, 1), Some(u64::MAX));
        assert_eq!(nanoseconds(0, i64::MAX, 1_000), Some(u64::MAX));
        assert_eq!((nanoseconds(-1, 0, 1), nanoseconds(0, -1, 1)), (None, None));
    }

    #[test]
    fn time_leaps_where_it_is_far_behind_and_never_goes_back() {
        let at = |monotonic_ns, wall_ns| Stamp { monotonic_ns, wall_ns };
        let leap_at = |real_ns, wall_ns| leap(7, at(100, 50), 0, real_ns, || at(real_ns, wall_ns));
        assert_eq!(leap_at(100 + LEAP_NS, 60), None);
        assert_eq!(leap_at(101 + LEAP_NS, 60), Some(Leap { reading: 7, to: at(101 + LEAP_NS, 60) }));
        assert_eq!(leap_at(101 + LEAP_NS, 40), Some(Leap { reading: 7, to: at(101 + LEAP_NS, 50) }), "the wall clock was set back");
        // A round that takes a day has some ten thousand leaps.
        let second = 1_000_000_000;
        let after =
            |since_ns, behind_ns| leap(7, at(since_ns, 0), since_ns, since_ns + behind_ns, || at(since_ns + behind_ns, 0)).is_some();
        assert!(after(second, LEAP_NS + 1) && !after(100 * second, LEAP_NS + 1) && after(100 * second, second / 10 + 1));
    }
}
