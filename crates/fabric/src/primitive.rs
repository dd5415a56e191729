//! The one place where atomics come from, so that loom can take their place in its tests.

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Panics, in release builds too, when something that the program itself guarantees does not hold.
///
/// It is for our own mistakes only: a peer's bytes, a file or a flag never reach one of these.
#[macro_export]
macro_rules! invariant {
    ($cond:expr, $($why:tt)+) => {
        if !$cond {
            panic!("broken invariant: {}", format_args!($($why)+));
        }
    };
}
