//! A sign of life from the middle of long work.
//!
//! A process is considered dead when a counter in its memory stops moving. Its duty cycle advances that counter, so a thread that hangs falls silent.
//! But a thread that executes one long request does not return to its duty cycle for a while, and is alive all the same. So long work reports its
//! progress to a [`Pulse`]: the counter moves for each stretch of work that has been *done*. Work that gets nowhere reports nothing.
//!
//! Code that knows nothing of a pulse, such as a server that is run unmodified, reports nothing either. For such code, another thread that knows how
//! long the work may take [reports](Pulse::lives) that the process lives.
//!
//! A lease is not renewed here, since that takes the duty cycle: a thread that works for longer than its lease has no lease until it returns, and
//! releases no reply before it has another.

use std::cell::Cell;
use std::fmt::Debug;
use std::sync::Arc;

use crate::contract::{Fabric, LocalRegion, RegionName};
use crate::primitive::{AtomicU64, Ordering};

/// After this much work, in bytes copied, there is a sign of life: some ten microseconds.
pub const BEAT_BYTES: usize = 64 << 10;
/// A step, such as a look at one entry of a table, takes about as long as copying this many bytes.
pub const STEP_BYTES: usize = 256;

/// A word of our own memory that only this process writes, kept as long as it is in use.
pub(crate) trait OwnWord: Debug + Send + Sync {
    fn word(&self) -> &AtomicU64;
}

/// For tests, which count the beats.
impl OwnWord for Arc<AtomicU64> {
    fn word(&self) -> &AtomicU64 {
        self
    }
}

#[derive(Debug)]
struct Heart {
    words: Vec<Box<dyn OwnWord>>,
    /// Not 0 while the pulse may not beat.
    held: AtomicU64,
}

/// Counts work, and shows other processes that this one lives. Copies of it beat for the same process; each counts its own work, on one thread. The
/// default pulse shows nothing.
#[derive(Clone, Debug, Default)]
pub struct Pulse {
    heart: Option<Arc<Heart>>,
    /// Work since the last beat, in bytes.
    since: Cell<usize>,
    /// Work in all, in bytes.
    total: Cell<u64>,
}

impl Pulse {
    pub(crate) fn new(words: Vec<Box<dyn OwnWord>>) -> Pulse {
        Pulse { heart: Some(Arc::new(Heart { words, held: AtomicU64::new(0) })), ..Pulse::default() }
    }

    /// A pulse that beats in this word, for tests.
    pub fn in_word(word: Arc<AtomicU64>) -> Pulse {
        Pulse::new(vec![Box::new(word)])
    }

    /// Whether both beat for the same process.
    #[inline]
    pub fn is_of_same_heart(&self, other: &Pulse) -> bool {
        match (&self.heart, &other.heart) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            (a, b) => a.is_none() && b.is_none(),
        }
    }

    /// Sets, for all copies, whether this process may show that it lives. It may not while the duty cycle itself keeps its heart from beating.
    #[inline]
    pub fn allow(&self, may_beat: bool) {
        if let Some(heart) = &self.heart {
            // Only the flag itself matters: nothing is ordered by it.
            heart.held.store(u64::from(!may_beat), Ordering::Relaxed);
        }
    }

    /// This much work has been done, in bytes copied.
    #[inline]
    pub fn worked(&self, bytes: usize) {
        self.total.set(self.total.get().wrapping_add(bytes as u64));
        let since = self.since.get().saturating_add(bytes);
        if since < BEAT_BYTES {
            self.since.set(since);
        } else {
            self.since.set(0);
            self.beat();
        }
    }

    /// The process lives, whatever its acting thread is doing. For another thread, with a copy of its own, while the acting thread runs code that
    /// reports nothing. That other thread must fall silent once that code may hang.
    pub fn lives(&self) {
        self.beat_by(|word| {
            // The acting thread may beat at the same time.
            word.fetch_add(1, Ordering::Relaxed);
        });
    }

    /// A step has been done that copies nothing: an entry was looked at, changed or freed.
    #[inline]
    pub fn stepped(&self) {
        self.worked(STEP_BYTES);
    }

    /// How much work has been done in all, in bytes copied or their equivalent.
    #[inline]
    pub fn total(&self) -> u64 {
        self.total.get()
    }

    #[cold]
    #[inline(never)]
    fn beat(&self) {
        self.beat_by(beat);
    }

    fn beat_by(&self, beat: impl Fn(&AtomicU64)) {
        let Some(heart) = self.heart.as_ref().filter(|heart| heart.held.load(Ordering::Relaxed) == 0) else { return };
        heart.words.iter().for_each(|word| beat(word.word()));
    }

    /// Appends bytes, with signs of life between stretches of them.
    #[inline]
    pub fn append(&self, into: &mut Vec<u8>, bytes: &[u8]) {
        if bytes.len() <= BEAT_BYTES {
            into.extend_from_slice(bytes);
            return self.worked(bytes.len());
        }
        into.reserve(bytes.len());
        for part in bytes.chunks(BEAT_BYTES) {
            into.extend_from_slice(part);
            self.worked(part.len());
        }
    }

    /// Appends zeros in the same way.
    pub fn append_zeros(&self, into: &mut Vec<u8>, bytes: usize) {
        into.reserve(bytes);
        let end = into.len() + bytes;
        while into.len() < end {
            let part = (end - into.len()).min(BEAT_BYTES);
            into.resize(into.len() + part, 0);
            self.worked(part);
        }
    }

    /// Copies over the contents of `into`, which is as long as `bytes`, in the same way.
    #[inline]
    pub fn copy(&self, into: &mut [u8], bytes: &[u8]) {
        if bytes.len() <= BEAT_BYTES {
            into.copy_from_slice(bytes);
            return self.worked(bytes.len());
        }
        for (into, part) in into.chunks_mut(BEAT_BYTES).zip(bytes.chunks(BEAT_BYTES)) {
            into.copy_from_slice(part);
            self.worked(part.len());
        }
    }
}

/// Counts one beat of the acting thread in a word that only its owner's process writes.
#[inline]
pub fn beat(word: &AtomicU64) {
    // Only the fact that it changes matters: nothing is ordered by it. Since every duty cycle does this, it is not a locked instruction. If another
    // thread reports for this one in between, a beat is lost.
    word.store(word.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
}

/// The acting thread has written or read this many bytes on a fabric. If they are many, that is a sign of life in these words of its own.
#[inline]
pub fn moved<F: Fabric>(fabric: &F, hearts: &[(RegionName, usize)], bytes: usize) {
    if bytes < BEAT_BYTES {
        return;
    }
    for &(name, at) in hearts {
        if let Some(own) = fabric.memory(LocalRegion::Public(name)) {
            beat(&own[at]);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn counted() -> (Pulse, Arc<AtomicU64>) {
        let word = Arc::new(AtomicU64::new(0));
        (Pulse::in_word(word.clone()), word)
    }

    #[test]
    fn there_is_a_beat_for_each_stretch_of_work_and_none_without_work() {
        let (pulse, word) = counted();
        let beats = || word.load(Ordering::Relaxed);
        pulse.worked(BEAT_BYTES - 1);
        assert_eq!(beats(), 0);
        pulse.worked(1);
        assert_eq!(beats(), 1);
        (0..4 * BEAT_BYTES / STEP_BYTES).for_each(|_| pulse.stepped());
        assert_eq!(beats(), 5);
        assert_eq!(pulse.total(), 5 * BEAT_BYTES as u64);
        pulse.worked(0);
        assert_eq!(beats(), 5);
        // Another thread reports for one that reports nothing.
        let copy = pulse.clone();
        std::thread::spawn(move || copy.lives()).join().expect("no panic");
        assert_eq!((beats(), pulse.total()), (6, 5 * BEAT_BYTES as u64));
    }

    #[test]
    fn long_copies_are_whole_and_beat_on_their_way() {
        let (pulse, word) = counted();
        let bytes: Vec<u8> = (0..10 * BEAT_BYTES + 7).map(|i| i as u8).collect();
        let mut copy = b"head".to_vec();
        pulse.append(&mut copy, &bytes);
        assert_eq!((&copy[..4], &copy[4..]), (&b"head"[..], &bytes[..]));
        assert_eq!(word.load(Ordering::Relaxed), 10);
        pulse.append_zeros(&mut copy, 3 * BEAT_BYTES + 1);
        assert!(copy[4 + bytes.len()..].iter().all(|b| *b == 0) && copy.len() == 4 + bytes.len() + 3 * BEAT_BYTES + 1);
        let at = copy.len() - bytes.len();
        pulse.copy(&mut copy[at..], &bytes);
        assert_eq!(copy[at..], bytes);
        assert!(word.load(Ordering::Relaxed) >= 23);
    }

    #[test]
    fn copies_show_the_same_process_and_none_beats_while_that_may_not() {
        let (pulse, word) = counted();
        let copy = pulse.clone();
        assert!(copy.is_of_same_heart(&pulse) && !copy.is_of_same_heart(&Pulse::default()) && !copy.is_of_same_heart(&counted().0));
        pulse.allow(false);
        copy.worked(10 * BEAT_BYTES);
        assert_eq!(word.load(Ordering::Relaxed), 0);
        pulse.allow(true);
        copy.worked(BEAT_BYTES);
        assert_eq!(word.load(Ordering::Relaxed), 1);
        Pulse::default().worked(10 * BEAT_BYTES);
    }
}
