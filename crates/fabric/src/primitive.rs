//! The one place that atomics come from, so that loom's can replace them in its tests.

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Has the processor fetch the cache lines of these words for writing, while the caller goes on.
#[inline]
pub(crate) fn prefetch_for_write(words: &[AtomicU64]) {
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    for line in words.chunks(8) {
        // SAFETY: a prefetch changes no value, whatever the address, and this address is that of a live word. It is written in assembly because the
        // compiler's own becomes a prefetch for reading unless the whole program is compiled for processors that have this instruction; others treat
        // it as a nop.
        unsafe {
            std::arch::asm!("prefetchw [{}]", in(reg) line.as_ptr(), options(nostack, preserves_flags, readonly));
        }
    }
    #[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
    let _ = words;
}

/// Stores bytes, a multiple of 8, into as many words. Each word is stored as a whole, in no particular order: these are relaxed stores. Order them
/// against others by fences, or by a release store after them.
#[inline]
pub(crate) fn store_words(words: &[AtomicU64], bytes: &[u8]) {
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    if bytes.len() >= WIDE_FROM && words.as_ptr().addr().is_multiple_of(16) {
        return wide::store(words, bytes);
    }
    store_each(words, bytes);
}

/// Loads as many words into bytes, a multiple of 8. Each word is loaded as a whole, in no particular order: these are relaxed loads.
#[inline]
pub(crate) fn load_words(words: &[AtomicU64], bytes: &mut [u8]) {
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    if bytes.len() >= WIDE_FROM && words.as_ptr().addr().is_multiple_of(16) {
        return wide::load(words, bytes);
    }
    load_each(words, bytes);
}

#[inline]
fn load_each(words: &[AtomicU64], bytes: &mut [u8]) {
    for (chunk, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *chunk = word.load(Ordering::Relaxed).to_le_bytes();
    }
}

/// From this many bytes on, the other way of storing, and of loading, is faster.
#[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
const WIDE_FROM: usize = 256;

#[inline]
fn store_each(words: &[AtomicU64], bytes: &[u8]) {
    for (word, chunk) in words.iter().zip(bytes.as_chunks::<8>().0) {
        word.store(u64::from_le_bytes(*chunk), Ordering::Relaxed);
    }
}

/// Two words at a time. A small record then takes half as many places in the processor's store buffer, which fills while the first line is still on
/// its way from another core; and a large record is stored in half the time.
#[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
mod wide {
    use super::{AtomicU64, load_each, store_each};

    #[inline]
    pub(super) fn store(words: &[AtomicU64], bytes: &[u8]) {
        let pairs = (words.len().min(bytes.len() / 8)) / 2;
        let (from, to) = (bytes.as_ptr(), words.as_ptr());
        // SAFETY: `bytes` and `words` both hold `pairs` times 16 bytes from their starts, and the loop accesses no others. `to` is aligned to 16,
        // which the caller has checked and movaps requires. In terms of the language, the block is a sequence of relaxed stores of the words: an
        // aligned store of 16 bytes stores each of its two words as a whole (both are in the same cache line; since AVX, Intel and AMD guarantee it
        // for all 16 bytes), and it may be seen in parts, as two stores may.
        unsafe {
            std::arch::asm!(
                "test {n}, {n}",
                "jz 3f",
                "2:",
                "movups {x}, xmmword ptr [{from} + {at}]",
                "movaps xmmword ptr [{to} + {at}], {x}",
                "add {at}, 16",
                "dec {n}",
                "jnz 2b",
                "3:",
                n = inout(reg) pairs => _,
                at = inout(reg) 0usize => _,
                from = in(reg) from,
                to = in(reg) to,
                x = out(xmm_reg) _,
                options(nostack),
            );
        }
        store_each(&words[2 * pairs..], &bytes[16 * pairs..]);
    }

    /// A cache line at a time: the compiler does not join loads of atomics, and takes one word at a time.
    #[inline]
    pub(super) fn load(words: &[AtomicU64], bytes: &mut [u8]) {
        let lines = words.len().min(bytes.len() / 8) / 8;
        let (from, to) = (words.as_ptr(), bytes.as_mut_ptr());
        // SAFETY: `words` and `bytes` both hold `lines` times 64 bytes from their starts, and the loop accesses no others. `from` is aligned to 16,
        // which the caller has checked and movaps requires; `bytes` is ours alone. In terms of the language, the block is a sequence of relaxed loads
        // of the words: an aligned load of 16 bytes loads each of its two words as a whole, for the reasons above. Other accesses are not moved
        // across the block, since it may access any memory.
        unsafe {
            std::arch::asm!(
                "test {n}, {n}",
                "jz 3f",
                "2:",
                "movaps {a}, xmmword ptr [{from} + {at}]",
                "movaps {b}, xmmword ptr [{from} + {at} + 16]",
                "movaps {c}, xmmword ptr [{from} + {at} + 32]",
                "movaps {d}, xmmword ptr [{from} + {at} + 48]",
                "movups xmmword ptr [{to} + {at}], {a}",
                "movups xmmword ptr [{to} + {at} + 16], {b}",
                "movups xmmword ptr [{to} + {at} + 32], {c}",
                "movups xmmword ptr [{to} + {at} + 48], {d}",
                "add {at}, 64",
                "dec {n}",
                "jnz 2b",
                "3:",
                n = inout(reg) lines => _,
                at = inout(reg) 0usize => _,
                from = in(reg) from,
                to = in(reg) to,
                a = out(xmm_reg) _,
                b = out(xmm_reg) _,
                c = out(xmm_reg) _,
                d = out(xmm_reg) _,
                options(nostack),
            );
        }
        load_each(&words[8 * lines..], &mut bytes[64 * lines..]);
    }
}

/// Panics, in release builds too, if something that the program itself guarantees does not hold.
///
/// It is only for our own mistakes: bytes from a peer, a file or a flag must never be able to trigger it.
#[macro_export]
macro_rules! invariant {
    ($cond:expr, $($why:tt)+) => {
        if !$cond {
            panic!("broken invariant: {}", format_args!($($why)+));
        }
    };
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn words_are_stored_and_loaded_at_any_length_and_place_and_nothing_beside_them() {
        let memory: Vec<AtomicU64> = (0..200).map(|_| AtomicU64::new(0)).collect();
        for from in 0..4 {
            for count in 0..150 {
                memory.iter().for_each(|word| word.store(u64::MAX, Ordering::Relaxed));
                let bytes: Vec<u8> = (0..8 * count).map(|at| (at * 7 + count + from) as u8).collect();
                store_words(&memory[from..from + count], &bytes);
                // With room around it, which must stay unchanged.
                let mut loaded = vec![0xee; 8 * count + 32];
                load_words(&memory[from..from + count], &mut loaded[16..16 + 8 * count]);
                assert_eq!(loaded[16..16 + 8 * count], bytes, "{count} words from {from}");
                assert!(loaded[..16].iter().chain(&loaded[16 + 8 * count..]).all(|byte| *byte == 0xee), "{count} words from {from}");
                let beside = memory[..from].iter().chain(&memory[from + count..]);
                assert!(beside.into_iter().all(|word| word.load(Ordering::Relaxed) == u64::MAX), "{count} words from {from}");
            }
        }
    }
}
