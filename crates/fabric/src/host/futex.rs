//! Sleeping on words in shared memory, and waking those that sleep there.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

use rustix::io::Errno;
use rustix::thread::futex;
use rustix::time::{ClockId, Timespec};

use crate::primitive::AtomicU64;

/// Why a sleep on words ended. Whatever it says, it is only a hint: look at everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeReason {
    /// There was already something to do.
    Work,
    /// A peer rang, or the wait ended for no reason.
    Nudged,
    /// The word at this index no longer has its expected value.
    Word(usize),
    /// The time was up.
    TimedOut,
}

/// The low half of a word as the kernel's futex calls expect it. Only its address is used.
pub(crate) fn low_half(word: &AtomicU64) -> *mut AtomicU32 {
    // The low half comes first, since this module is only for little-endian machines.
    std::ptr::from_ref(word).cast::<AtomicU32>().cast_mut()
}

/// Sleeps while the low half of `word` is as expected, but no longer than `at_most`. It may return early.
pub(crate) fn wait_on_word(word: &AtomicU64, expected: u32, at_most: Option<Duration>) -> WakeReason {
    let timeout = at_most.map(|t| Timespec {
        tv_sec: i64::try_from(t.as_secs()).unwrap_or(i64::MAX / 4).min(i64::MAX / 4),
        tv_nsec: i64::from(t.subsec_nanos()),
    });
    // SAFETY: `low_half` points into `word`, which is borrowed. The reference only carries the address to the kernel.
    let half = unsafe { &*low_half(word) };
    match futex::wait(half, futex::Flags::empty(), expected, timeout.as_ref()) {
        Err(Errno::TIMEDOUT) => WakeReason::TimedOut,
        _ => WakeReason::Nudged,
    }
}

/// A wait on the low half of a word, shared between processes.
pub(crate) fn wait_on(word: &AtomicU64, expected: u32) -> futex::Wait {
    let mut wait = futex::Wait::new();
    wait.val = u64::from(expected);
    wait.uaddr = futex::WaitPtr::new(low_half(word).cast());
    wait.flags = futex::WaitFlags::SIZE_U32;
    wait
}

/// The most words that one thread can sleep on: the kernel's limit.
pub const MAX_SLEEP_WORDS: usize = 128;
/// The longest sleep on several words on a kernel without `futex_waitv` (before 5.16).
pub(crate) const WITHOUT_WAITV: Duration = Duration::from_millis(1);

/// The time `after` from now, in the form of the kernel's calls with a deadline.
pub(crate) fn deadline(after: Duration) -> Timespec {
    let now = rustix::time::clock_gettime(ClockId::Monotonic);
    let ns = now.tv_nsec + i64::from(after.subsec_nanos());
    let seconds = i64::try_from(after.as_secs()).unwrap_or(i64::MAX / 4).min(i64::MAX / 4);
    Timespec { tv_sec: now.tv_sec + seconds + ns / 1_000_000_000, tv_nsec: ns % 1_000_000_000 }
}

/// Sleeps while the low half of every word is as expected, but no longer than `at_most`. It may return early. Words beyond the first
/// [`MAX_SLEEP_WORDS`] do not end the sleep. On a kernel without `futex_waitv`, the sleep takes at most a millisecond.
pub fn sleep_on(words: &[(&AtomicU64, u32)], at_most: Option<Duration>) -> WakeReason {
    let waits: Vec<_> = words.iter().take(MAX_SLEEP_WORDS).map(|&(word, expected)| wait_on(word, expected)).collect();
    let until = at_most.map(deadline);
    match futex::waitv(&waits, futex::WaitvFlags::empty(), until.as_ref(), ClockId::Monotonic) {
        Ok(place) => WakeReason::Word(place),
        Err(Errno::TIMEDOUT) => WakeReason::TimedOut,
        Err(Errno::NOSYS) => {
            std::thread::sleep(at_most.map_or(WITHOUT_WAITV, |time| time.min(WITHOUT_WAITV)));
            WakeReason::Nudged
        }
        _ => WakeReason::Nudged,
    }
}

/// Wakes all threads that wait on a word.
pub fn wake_word(word: &AtomicU64) {
    // SAFETY: `low_half` points into a live word. The reference only carries the address to the kernel.
    let _ = futex::wake(unsafe { &*low_half(word) }, futex::Flags::empty(), i32::MAX as u32);
}
