//! An ear for descriptors: the bootstrap thread listens to them while the endpoint's thread sleeps on words in memory.
//!
//! The bootstrap thread waits in poll(2) anyway. A separate thread for these few descriptors would be one more thread that a SIGKILL has to wake, and
//! the process that kills waits for that, as does whatever runs on the core where that thread is woken.
//!
//! | endpoint's thread | bootstrap thread |
//! |---|---|
//! | arms; stirs the bootstrap thread if that has stopped listening | listens while armed |
//! | looks at everything once more | hears something: disarms, and rings the bell |
//! | sleeps | |
//! | disarms | hears something: stops listening until armed |
//!
//! While nothing arrives, the bootstrap thread stays in its wait across many sleeps of the endpoint's thread, and arming is one exchange.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::shared::{Command, Shared};

const DISARMED: u32 = 0;
const ARMED: u32 = 1;
/// Disarmed, and the bootstrap thread no longer listens.
const AWAITED: u32 = 2;

/// Whether to listen, as both threads see it.
#[derive(Debug)]
pub(super) struct Attention(AtomicU32);

impl Attention {
    pub(super) const fn new() -> Attention {
        Attention(AtomicU32::new(DISARMED))
    }

    /// For the endpoint's thread, before its last look. Returns whether the bootstrap thread has to be stirred.
    fn arm(&self) -> bool {
        // SeqCst: the look that follows must not come before this, and this must be ordered against the listener's exchanges.
        self.0.swap(ARMED, Ordering::SeqCst) == AWAITED
    }

    /// For the endpoint's thread, once it is awake again.
    fn disarm(&self) {
        let _ = self.0.compare_exchange(ARMED, DISARMED, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// For the bootstrap thread, before it waits: whether to listen. If not, it will be stirred when that changes.
    pub(super) fn is_wanted(&self) -> bool {
        match self.0.compare_exchange(DISARMED, AWAITED, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => false,
            Err(now) => now == ARMED,
        }
    }

    /// For the bootstrap thread, when it has heard something: whether to tell the endpoint's thread. A thread that has disarmed is awake, and looks
    /// before it sleeps again.
    pub(super) fn is_heard(&self) -> bool {
        self.0.compare_exchange(ARMED, DISARMED, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }
}

/// The endpoint's ear: while it is armed, a readable descriptor rings the endpoint's bell. A descriptor that is at its end or broken counts as
/// readable; the thread that is woken will find out. Dropping the ear ends the listening.
#[derive(Debug)]
pub struct Ear(Arc<Shared>);

impl Ear {
    pub(super) fn new(shared: Arc<Shared>, descriptors: Vec<OwnedFd>) -> Ear {
        shared.ask(Command::Listen(descriptors));
        Ear(shared)
    }

    /// To be called between [`super::ShmFabric::announce`] and the last look at everything.
    pub fn arm(&self) {
        if self.0.attention.arm() {
            self.0.stir();
        }
    }

    /// To be called when the thread is awake again.
    pub fn disarm(&self) {
        self.0.attention.disarm();
    }
}

impl Drop for Ear {
    fn drop(&mut self) {
        self.0.attention.disarm();
        self.0.ask(Command::Listen(Vec::new()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_is_armed_is_told_once_and_who_is_awake_is_left_alone() {
        let attention = Attention::new();
        assert!(!attention.is_wanted(), "asleep to it");
        assert!(attention.arm(), "has to be stirred");
        assert!(attention.is_wanted());
        assert!(attention.is_heard());
        assert!(!attention.is_heard(), "told already");
        assert!(!attention.is_wanted());
        assert!(attention.arm());
        attention.disarm();
        assert!(!attention.is_heard(), "awake");
        assert!(!attention.arm(), "it has not stopped listening");
        assert!(attention.is_wanted());
    }
}
