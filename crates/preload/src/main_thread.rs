//! The thread on which a server executes requests, and what belongs to it alone.

use std::cell::Cell;

thread_local! {
    /// Whether the calling thread is the captured one, and executes the server's code just now.
    static SERVER: Cell<bool> = const { Cell::new(false) };
}

/// Whether the server's own code runs here: on the captured thread, and outside the library.
#[inline]
pub fn in_server() -> bool {
    SERVER.get()
}

/// Captures the calling thread, which executes the server's code from here on.
pub fn capture() {
    SERVER.set(true);
}

/// From here on the calling thread's calls go to the system as they are: it belongs to no replica any more, or is about to end.
pub fn release() {
    SERVER.set(false);
}

/// While this value lives, the library's code runs on the captured thread, and its calls go to the system as they are.
#[derive(Debug)]
pub struct InLibrary(());

impl InLibrary {
    /// Enters the library from the server's code, on the captured thread.
    pub fn enter() -> InLibrary {
        SERVER.set(false);
        InLibrary(())
    }
}

impl InLibrary {
    /// Returns to the server's code, which is not captured any more.
    pub fn release(self) {
        std::mem::forget(self);
    }
}

impl Drop for InLibrary {
    fn drop(&mut self) {
        SERVER.set(true);
    }
}

/// A value that belongs to the captured thread.
#[derive(Debug)]
pub struct Confined<T>(T);

// SAFETY: only the captured thread reaches it: the entry points check `in_server` first, which is true on that thread alone, and the library's own code runs
// there.
unsafe impl<T> Sync for Confined<T> {}

impl<T> Confined<T> {
    /// Wraps a value.
    pub const fn new(value: T) -> Confined<T> {
        Confined(value)
    }

    /// The value. For the captured thread.
    #[inline]
    pub fn get(&self) -> &T {
        &self.0
    }
}
