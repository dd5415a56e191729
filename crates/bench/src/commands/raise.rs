//! Threads that end with whoever started them.

use std::sync::atomic::{AtomicBool, Ordering};

/// Raises a flag at its end.
pub struct Raise<'a>(pub &'a AtomicBool);

impl Drop for Raise<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
