//! A sign of life from the middle of long work.
//!
//! A process is taken for dead when a counter in its memory stands still. Its duty cycle counts there, so a thread that hangs falls silent. A thread that
//! executes one long request does not come back to its duty cycle for a while, and is alive all the same. So long work reports its progress to a [`Pulse`]:
//! for each stretch of work that has been *done* the counter moves. Work that gets nowhere reports nothing. Code that knows nothing of a pulse, such as a
//! server's that is run unchanged, reports nothing either: a thread beside it that knows how long it may take [says for it](Pulse::lives) that it lives.
//! A lease is not renewed here, since that takes the duty cycle: a thread that works for longer than its lease has none until it is back, and
//! releases no reply before it has another.

use std::cell::Cell;
use std::fmt::Debug;
use std::sync::Arc;

use crate::contract::{Fabric, LocalRegion, RegionName};
use crate::primitive::{AtomicU64, Ordering};

/// After so much work, in bytes copied, there is a sign of life: some ten microseconds.
pub const BEAT_BYTES: usize = 64 << 10;
/// A step, such as a look at one entry of a table, takes about as long as copying so many bytes.
pub const STEP_BYTES: usize = 256;

/// A word of our own memory that only this process writes, kept for as long as somebody holds it.
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
    /// Not 0 while it may not beat.
    held: AtomicU64,
}

/// Takes note of work, and shows the others that the process lives. Copies of it show the same process; each counts its own work, on one thread. The default
/// one shows nothing to anybody.
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

    /// One that beats in this word, for tests.
    pub fn in_word(word: Arc<AtomicU64>) -> Pulse {
        Pulse::new(vec![Box::new(word)])
    }

    /// Whether both show the same process.
    #[inline]
    pub fn is_of_same_heart(&self, other: &Pulse) -> bool {
        match (&self.heart, &other.heart) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            (a, b) => a.is_none() && b.is_none(),
        }
    }

    /// Whether this process may show that it lives, for all copies: not while the duty cycle itself keeps its heart from beating.
    #[inline]
    pub fn allow(&self, may_beat: bool) {
        if let Some(heart) = &self.heart {
            // The flag alone carries meaning: nothing is ordered by it.
            heart.held.store(u64::from(!may_beat), Ordering::Relaxed);
        }
    }

    /// So much work has been done, in bytes copied.
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

    /// The process lives, whatever its acting thread is at. For another thread, with a copy of its own, while code has the acting one that reports nothing: it
    /// is to fall silent when that code may have taken to hang.
    pub fn lives(&self) {
        self.beat_by(|word| {
            // The acting thread may beat at the same time.
            word.fetch_add(1, Ordering::Relaxed);
        });
    }

    /// A step has been done that is no copying: an entry was looked at, or changed, or freed.
    #[inline]
    pub fn stepped(&self) {
        self.worked(STEP_BYTES);
    }

    /// How much work has been done in all, in bytes copied or their equal.
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

    /// Copies over what stands there, which is as long, in the same way.
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
    // That it moves alone carries meaning: nothing is ordered by it. It is in every duty cycle, so it is no locked step: where a thread that says for this one that it lives
    // beats in between, a beat is lost.
    word.store(word.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
}

/// So many bytes have been written or read on a fabric by the thread that acts: if they are many, that is a sign of life in these words of its own.
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
        // Another thread says so for one that reports nothing.
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
