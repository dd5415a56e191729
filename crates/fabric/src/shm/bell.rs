//! The doorbell: how an idle process is woken, at the cost of one load while it is awake.
//!
//! Every process has one word that its peers can write: [`AWAKE`] or [`PARKED`]. The protocol is Dekker's:
//!
//! | sleeper | waker |
//! |---|---|
//! | stores `PARKED` | stores what the sleeper is to see |
//! | full fence | full fence |
//! | looks for work once more | loads the word; if `PARKED`: stores `AWAKE`, then wakes |
//! | waits while the word is `PARKED` | |
//!
//! Either the waker sees `PARKED`, or the sleeper sees the work. If the waker comes between the sleeper's look and its wait, the wait finds another
//! value in the word and returns at once.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

use rustix::io::Errno;
use rustix::thread::futex;
use rustix::time::{ClockId, Timespec};

use crate::host::futex::{WITHOUT_WAITV, WakeReason, deadline, low_half, wait_on, wait_on_word};
use crate::host::memory::Area;
use crate::invariant;
use crate::primitive::{AtomicU64, Ordering, fence};

const AWAKE: u64 = 0;
const PARKED: u64 = 1;

/// The most words that a sleeper can watch besides its bell. The kernel takes 128 in all, and a [`Vigil`] needs one for itself.
pub const MAX_PARK_WORDS: usize = 126;

/// One end of a doorbell.
#[derive(Clone, Debug)]
pub(super) struct Bell(Area);

impl Bell {
    /// The bell in the first word of `area`.
    pub(super) fn new(area: Area) -> Bell {
        Bell(area)
    }

    fn word(&self) -> &AtomicU64 {
        &self.0.memory()[0]
    }

    /// Wakes the owner if it sleeps. The caller has already fenced what the owner is to see.
    #[inline]
    pub(super) fn ring(&self) {
        if self.word().load(Ordering::Relaxed) != AWAKE {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        if self.word().swap(AWAKE, Ordering::SeqCst) != AWAKE {
            // SAFETY: `low_half` points into a word that `self` keeps mapped. The reference only carries the address to the kernel.
            let word = unsafe { &*low_half(self.word()) };
            // Wakes the owner, and a thread that keeps its vigil. A failure would mean that the address is bad, which it is not; and a lost wake-up
            // costs the sleeper no more than its timeout.
            let _ = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
        }
    }

    /// Announces that the owner is about to sleep. What it looks at afterwards is newer than the announcement.
    pub(super) fn announce(&self) {
        self.word().store(PARKED, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Withdraws the announcement.
    pub(super) fn awake(&self) {
        self.word().store(AWAKE, Ordering::SeqCst);
    }

    /// Sleeps until the bell rings, one of `words` (each with the expected value of its low half) changes, or `timeout` has passed. To be called
    /// between [`Bell::announce`] and [`Bell::awake`].
    pub(super) fn wait<'a>(
        &self,
        words: impl ExactSizeIterator<Item = Option<(&'a AtomicU64, u32)>>,
        timeout: Option<Duration>,
    ) -> WakeReason {
        if words.len() == 0 {
            return self.wait_alone(timeout);
        }
        let mut waits = [futex::Wait::new(); MAX_PARK_WORDS + 1];
        // Which of the caller's words each place belongs to.
        let mut origin = [0usize; MAX_PARK_WORDS + 1];
        waits[0] = wait_on(self.word(), PARKED as u32);
        let mut used = 1;
        for (index, (word, expected)) in words.enumerate().filter_map(|(i, w)| w.map(|w| (i, w))) {
            waits[used] = wait_on(word, expected);
            origin[used] = index;
            used += 1;
        }
        // futex_waitv takes the time at which to stop, not how long to wait.
        let until = timeout.map(deadline);
        match futex::waitv(&waits[..used], futex::WaitvFlags::empty(), until.as_ref(), ClockId::Monotonic) {
            Ok(place) if (1..used).contains(&place) => WakeReason::Word(origin[place]),
            Err(Errno::TIMEDOUT) => WakeReason::TimedOut,
            Err(Errno::NOSYS) => match self.wait_alone(Some(timeout.map_or(WITHOUT_WAITV, |t| t.min(WITHOUT_WAITV)))) {
                // The caller has not slept as long as it wished to; it will look at its words and come back.
                WakeReason::TimedOut if timeout.is_none_or(|t| t > WITHOUT_WAITV) => WakeReason::Nudged,
                reason => reason,
            },
            // It was rung or interrupted, or a word had changed before we slept.
            _ => WakeReason::Nudged,
        }
    }

    fn wait_alone(&self, timeout: Option<Duration>) -> WakeReason {
        wait_on_word(self.word(), PARKED as u32, timeout)
    }
}

/// What an endpoint's sleep would wait for: its bell and some words. With it, another thread of the process can wait in the owner's place while the
/// owner sleeps on something else. It keeps the words' memory mapped.
#[derive(Clone, Debug)]
pub struct Vigil {
    bell: Bell,
    words: Vec<(Area, usize, u32)>,
}

impl Vigil {
    pub(super) fn new(bell: Bell, words: Vec<(Area, usize, u32)>) -> Vigil {
        invariant!(words.len() <= MAX_PARK_WORDS, "{} words to watch, at most {MAX_PARK_WORDS} beside the bell", words.len());
        Vigil { bell, words }
    }

    /// Waits until the bell is rung after the owner has announced its sleep, until a word no longer has its expected value, or until another thread
    /// wakes `state`, a word of this process. Returns at once if the owner is awake, a word has changed, or `state` is not `expected`; it also
    /// returns now and then for no reason. If the owner wakes by itself and goes back to sleep, the wait goes on.
    pub fn keep(&self, state: &AtomicU32, expected: u32) {
        let mut waits = Vec::with_capacity(self.words.len() + 2);
        waits.push(wait_on(self.bell.word(), PARKED as u32));
        waits.extend(self.words.iter().map(|(area, at, expected)| wait_on(&area.memory()[*at], *expected)));
        let mut own = futex::Wait::new();
        own.val = u64::from(expected);
        own.uaddr = futex::WaitPtr::new(std::ptr::from_ref(state).cast_mut().cast());
        own.flags = futex::WaitFlags::SIZE_U32 | futex::WaitFlags::PRIVATE;
        waits.push(own);
        if futex::waitv(&waits, futex::WaitvFlags::empty(), None, ClockId::Monotonic) == Err(Errno::NOSYS) {
            let moment = Timespec { tv_sec: 0, tv_nsec: i64::from(WITHOUT_WAITV.subsec_nanos()) };
            let _ = futex::wait(state, futex::Flags::PRIVATE, expected, Some(&moment));
        }
    }
}
