//! The one thread that a server executes requests on, and what belongs to it alone.

use std::cell::Cell;

thread_local! {
    /// Whether the calling thread is the captured one, and executes the server's code just now.
    static SERVER: Cell<bool> = const { Cell::new(false) };
}

/// Whether the server's code runs here: on the captured thread, and not in the library.
#[inline]
pub fn in_server() -> bool {
    SERVER.get()
}

/// The calling thread is the one to capture; from its start it executes the server's code.
pub fn capture() {
    SERVER.set(true);
}

/// The calling thread asks the system as it is from here on: it is of no replica any more, or at its end.
pub fn release() {
    SERVER.set(false);
}

/// While it lives, the library's code runs on the captured thread, and asks the system as it is.
#[derive(Debug)]
pub struct InLibrary(());

impl InLibrary {
    /// From the server's code, on the captured thread.
    pub fn enter() -> InLibrary {
        SERVER.set(false);
        InLibrary(())
    }
}

impl InLibrary {
    /// The server's code, to which this returns, is not captured any more.
    pub fn release(self) {
        std::mem::forget(self);
    }
}

impl Drop for InLibrary {
    fn drop(&mut self) {
        SERVER.set(true);
    }
}

/// A value of the captured thread's.
#[derive(Debug)]
pub struct Confined<T>(T);

// SAFETY: only the captured thread reaches it: the entry points look at `in_server` first, which is true on that thread alone, and the library's own code runs there.
unsafe impl<T> Sync for Confined<T> {}

impl<T> Confined<T> {
    /// Of this value.
    pub const fn new(value: T) -> Confined<T> {
        Confined(value)
    }

    /// The value. For the captured thread.
    #[inline]
    pub fn get(&self) -> &T {
        &self.0
    }
}
