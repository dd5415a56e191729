//! The time that a server sees.
//!
//! It is the stamp of the round that the server executes, and moves on by [`READING_NS`] at each reading. So it is the same at every replica, and a loop that waits for
//! its end by the clock does end. It never goes back: a leader stamps its next round with the real time, or with this one if that is later.

use std::cell::Cell;

use crate::entry::Stamp;
use crate::main_thread::Confined;
use crate::sys;

/// How much later it is at each reading, in nanoseconds.
pub const READING_NS: u64 = 100;

static NOW: Confined<Cell<Stamp>> = Confined::new(Cell::new(Stamp { monotonic_ns: 0, wall_ns: 0 }));

fn later(stamp: Stamp, ns: u64) -> Stamp {
    Stamp { monotonic_ns: stamp.monotonic_ns + ns, wall_ns: stamp.wall_ns + ns }
}

/// A server's reading; `None` before the first round, when it is what the kernel says.
pub fn read() -> Option<Stamp> {
    let now = NOW.get().get();
    if now == Stamp::default() {
        return None;
    }
    let now = later(now, READING_NS);
    NOW.get().set(now);
    Some(now)
}

/// The time that the server has seen last; before the first round what the kernel says.
pub fn shown() -> Stamp {
    let now = NOW.get().get();
    if now == Stamp::default() { real() } else { now }
}

/// The stamp of a leader's next round.
pub fn stamp() -> Stamp {
    let (shown, real) = (NOW.get().get(), real());
    Stamp { monotonic_ns: real.monotonic_ns.max(shown.monotonic_ns), wall_ns: real.wall_ns.max(shown.wall_ns) }
}

/// The time is that of this round.
pub fn set(stamp: Stamp) {
    let shown = NOW.get().get();
    NOW.get().set(Stamp { monotonic_ns: stamp.monotonic_ns.max(shown.monotonic_ns), wall_ns: stamp.wall_ns.max(shown.wall_ns) });
}

/// What the kernel says.
pub fn real() -> Stamp {
    Stamp { monotonic_ns: sys::nanoseconds(libc::CLOCK_MONOTONIC), wall_ns: sys::nanoseconds(libc::CLOCK_REALTIME) }
}
