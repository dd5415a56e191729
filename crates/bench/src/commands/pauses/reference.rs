//! A thread beside the leader's, on the same core and before it in rank, that does nothing but to sleep for a moment and to read the clock. What keeps
//! it from running is no thread of ours: so when it is late, it was the machine.

use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use martlet_node::clock;
use martlet_node::config::{Idle, Priority};
use martlet_node::sched::{self, Placement};
use martlet_protocol::basics::Time;
use rustix::thread::{ClockId, Timespec, clock_nanosleep_absolute};

use super::record::Span;

/// How long it sleeps, in nanoseconds: so much of a stop of the core it does not see.
pub const PERIOD_NS: u64 = 200_000;
/// From here on it was late, in nanoseconds.
const LATE_NS: u64 = 50_000;

/// What the thread saw.
#[derive(Debug)]
pub struct Seen {
    /// When it was late.
    pub late: Vec<Span>,
    /// Where it ran, and in which class.
    pub placement: Placement,
}

/// Looks at the clock on this core until `stop`.
pub fn watch(core: Option<u16>, stop: &AtomicBool, seen: &Mutex<Option<io::Result<Seen>>>) {
    let looked = sched::place_current_thread(core, Priority::Fifo, Idle::Park).map(|placement| {
        let mut late = Vec::with_capacity(1 << 16);
        let mut due = clock::now().after(PERIOD_NS);
        while !stop.load(Ordering::Relaxed) {
            sleep_until(due);
            let now = clock::now();
            let by = now.since(due);
            if by >= LATE_NS {
                late.push(Span { at: due.0, ns: by, waited_ns: 0 });
            }
            due = now.after(PERIOD_NS);
        }
        Seen { late, placement }
    });
    if let Ok(mut seen) = seen.lock() {
        *seen = Some(looked);
    }
}

fn sleep_until(due: Time) {
    let at = Timespec { tv_sec: (due.0 / 1_000_000_000) as i64, tv_nsec: (due.0 % 1_000_000_000) as i64 };
    // Interrupted or not, the clock says when it is.
    let _ = clock_nanosleep_absolute(ClockId::Boottime, &at);
}
