//! Simulated memory.

use std::cell::RefCell;
use std::rc::Rc;

use crate::contract::Memory;
use crate::invariant;
use crate::primitive::AtomicU64;

/// One region or lane. It lives as long as anybody maps it, so a zombie's memory outlives it.
#[derive(Debug)]
pub(super) struct Block {
    words: Box<[AtomicU64]>,
    /// A bit for each word that has ever been the target of a compare-and-swap; empty while none has.
    swapped: RefCell<Vec<u64>>,
}

impl Block {
    /// `bytes` of zeros. Pages that nobody touches cost nothing, which matters since a cluster's regions are large and its lives short.
    pub(super) fn zeroed(bytes: usize) -> Rc<Block> {
        const { assert!(align_of::<u64>() == align_of::<AtomicU64>(), "the simulator runs where words are aligned alike") };
        invariant!(bytes.is_multiple_of(8), "a region of {bytes} bytes is no number of words");
        let words: Box<[u64]> = vec![0; bytes / 8].into_boxed_slice();
        // SAFETY: AtomicU64 has the same in-memory representation as u64 and, as asserted above, the same alignment, so the allocation
        // has the layout with which the new box will free it; it comes from `into_raw` and nobody else holds it.
        let words = unsafe { Box::from_raw(Box::into_raw(words) as *mut [AtomicU64]) };
        Rc::new(Block { words, swapped: RefCell::new(Vec::new()) })
    }

    pub(super) fn words(&self) -> &Memory {
        &self.words
    }

    pub(super) fn note_swap(&self, word: usize) {
        let mut swapped = self.swapped.borrow_mut();
        if swapped.is_empty() {
            swapped.resize(self.words.len().div_ceil(64), 0);
        }
        swapped[word / 64] |= 1 << (word % 64);
    }

    /// Promise 4: whoever writes plainly where others swap has a mistake that real NICs would punish at random (TRAPS 5).
    pub(super) fn check_plain_write(&self, from: usize, words: usize) {
        let swapped = self.swapped.borrow();
        if !swapped.is_empty() {
            for word in from..from + words {
                invariant!(swapped[word / 64] >> (word % 64) & 1 == 0, "word {word} is swapped by some and written by others");
            }
        }
    }
}
