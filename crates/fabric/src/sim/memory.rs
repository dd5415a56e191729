//! Simulated memory.

use std::cell::RefCell;
use std::rc::Rc;

use crate::contract::Memory;
use crate::invariant;
use crate::primitive::AtomicU64;

/// One region or lane. It lives as long as any process maps it, so a zombie's memory outlives the process.
#[derive(Debug)]
pub(super) struct Block {
    words: Words,
    /// A bit for each word that has ever been the target of a compare-and-swap; empty while there is none.
    swapped: RefCell<Vec<u64>>,
}

/// Where a block's words are.
#[derive(Debug)]
enum Words {
    Heap(Box<[AtomicU64]>),
    #[cfg(all(target_os = "linux", not(miri)))]
    Mapped(pages::Pages),
}

/// Blocks of at least this length are mapped from the kernel. The heap would reuse what an earlier life has freed and clear all of it, for the few
/// records that a short life writes.
#[cfg(all(target_os = "linux", not(miri)))]
const MAPPED_BYTES: usize = 128 << 10;

impl Block {
    /// `bytes` of zeros. In a large block, pages that are never touched cost nothing. This matters, since a cluster's regions are large and its lives
    /// short.
    pub(super) fn zeroed(bytes: usize) -> Rc<Block> {
        invariant!(bytes.is_multiple_of(8), "a region of {bytes} bytes is no number of words");
        Rc::new(Block { words: Words::zeroed(bytes), swapped: RefCell::new(Vec::new()) })
    }

    #[inline]
    pub(super) fn words(&self) -> &Memory {
        match &self.words {
            Words::Heap(words) => words,
            #[cfg(all(target_os = "linux", not(miri)))]
            Words::Mapped(pages) => pages.words(),
        }
    }

    pub(super) fn note_swap(&self, word: usize) {
        let mut swapped = self.swapped.borrow_mut();
        if swapped.is_empty() {
            swapped.resize(self.words().len().div_ceil(64), 0);
        }
        swapped[word / 64] |= 1 << (word % 64);
    }

    /// Promise 4: code that writes plainly to words that others swap has a bug, which real NICs would punish at random (TRAPS 5).
    pub(super) fn check_plain_write(&self, from: usize, words: usize) {
        let swapped = self.swapped.borrow();
        if !swapped.is_empty() {
            for word in from..from + words {
                invariant!(swapped[word / 64] >> (word % 64) & 1 == 0, "word {word} is swapped by some and written by others");
            }
        }
    }
}

impl Words {
    fn zeroed(bytes: usize) -> Words {
        #[cfg(all(target_os = "linux", not(miri)))]
        if bytes >= MAPPED_BYTES {
            return Words::Mapped(pages::Pages::zeroed(bytes));
        }
        const { assert!(align_of::<u64>() == align_of::<AtomicU64>(), "the simulator runs where words are aligned alike") };
        let words: Box<[u64]> = vec![0; bytes / 8].into_boxed_slice();
        // SAFETY: AtomicU64 has the same in-memory representation as u64 and, as asserted above, the same alignment, so the allocation has the layout
        // with which the new box will free it. The pointer comes from `into_raw` and nothing else holds it.
        Words::Heap(unsafe { Box::from_raw(Box::into_raw(words) as *mut [AtomicU64]) })
    }
}

/// Memory from the kernel, allocated page by page as it is touched.
#[cfg(all(target_os = "linux", not(miri)))]
mod pages {
    use std::ptr::NonNull;

    use rustix::mm::{MapFlags, ProtFlags};

    use crate::contract::Memory;
    use crate::invariant;
    use crate::primitive::AtomicU64;

    /// A private mapping without a file; unmapped when dropped.
    #[derive(Debug)]
    pub(super) struct Pages {
        words: NonNull<AtomicU64>,
        len: usize,
    }

    impl Pages {
        /// `bytes` of zeros, a multiple of 8 and not 0.
        pub(super) fn zeroed(bytes: usize) -> Pages {
            // No memory is reserved for pages that are never touched.
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
            // SAFETY: the kernel chooses a free range, so that no existing mapping is touched.
            let base = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, flags) };
            let words = base.ok().and_then(|base| NonNull::new(base.cast::<AtomicU64>()));
            invariant!(words.is_some(), "the kernel gives no {bytes} bytes: {base:?}");
            Pages { words: words.expect("checked"), len: bytes / 8 }
        }

        #[inline]
        pub(super) fn words(&self) -> &Memory {
            // SAFETY: a mapping begins at a page, so `words` is aligned, and it points to `len` words that stay mapped, readable and writable, for as
            // long as `self` lives. The kernel has filled them with zeros, any bits are a valid AtomicU64, and they are accessed only as atomics.
            unsafe { std::slice::from_raw_parts(self.words.as_ptr(), self.len) }
        }
    }

    impl Drop for Pages {
        fn drop(&mut self) {
            // SAFETY: the range is ours alone. A borrow of its words is a borrow of `self`, so nothing points into it any more.
            let unmapped = unsafe { rustix::mm::munmap(self.words.as_ptr().cast(), self.len * 8) };
            invariant!(unmapped.is_ok(), "munmap of our own mapping: {unmapped:?}");
        }
    }
}
