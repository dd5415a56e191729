//! Sleeping on words in shared memory, and waking who sleeps there.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

use rustix::io::Errno;
use rustix::thread::futex;
use rustix::time::Timespec;

use crate::primitive::AtomicU64;

/// Why a sleep on words ended. Whatever it says, look at everything: it is a hint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeReason {
    /// There was something to do already.
    Work,
    /// A peer rang, or the wait ended for no reason.
    Nudged,
    /// The word of this index no longer has the value expected.
    Word(usize),
    /// The time was up.
    TimedOut,
}

/// The low half of a word as the kernel's futex calls want it. Only its address is used.
pub(crate) fn low_half(word: &AtomicU64) -> *mut AtomicU32 {
    // The low half lies first: this module is for little-endian machines.
    std::ptr::from_ref(word).cast::<AtomicU32>().cast_mut()
}

/// Sleeps while the low half of `word` is as expected, for so long at most; it may return early.
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

/// Wakes all who wait on a word.
pub(crate) fn wake_word(word: &AtomicU64) {
    // SAFETY: `low_half` points into a live word. The reference only carries the address to the kernel.
    let _ = futex::wake(unsafe { &*low_half(word) }, futex::Flags::empty(), i32::MAX as u32);
}
