//! How a node is asked to end: by a signal, by a command of a client, or by the program that embeds it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use rustix::event::{EventfdFlags, eventfd};

/// The handle that the process's signals ask.
static SIGNALLED: OnceLock<Stop> = OnceLock::new();

/// Asks the node that has this process's signals to end, unless somebody has. May be called in a signal handler.
pub(super) fn request_once_by_signal() {
    if let Some(stop) = SIGNALLED.get() {
        stop.request_once();
    }
}

/// A handle by which a node is asked to end. All clones are one.
///
/// The first request makes the node leave its cluster in order; a second one makes it end without waiting for that.
#[derive(Clone, Debug)]
pub struct Stop(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    requests: AtomicU32,
    /// Readable from the first request on, so that a sleeping node notices.
    wake: OwnedFd,
}

impl Stop {
    /// A handle that nobody has used yet.
    pub fn new() -> io::Result<Stop> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Stop(Arc::new(Inner { requests: AtomicU32::new(0), wake })))
    }

    /// Asks the node to end. May be called from any thread, and from a signal handler.
    pub fn request(&self) {
        // Release pairs with the acquire in `requests`: what the caller did before is seen by the node that ends.
        self.0.requests.fetch_add(1, Ordering::Release);
        // It fails only when the counter is full, and then it is readable as well. No std I/O: this may be a signal handler.
        let _ = rustix::io::write(&self.0.wake, &1u64.to_ne_bytes());
    }

    /// Asks the node to end, unless somebody has: what would cut its orderly end short is a second request, and this is none.
    pub fn request_once(&self) {
        if self.0.requests.compare_exchange(0, 1, Ordering::Release, Ordering::Relaxed).is_ok() {
            let _ = rustix::io::write(&self.0.wake, &1u64.to_ne_bytes());
        }
    }

    /// How often the node has been asked.
    pub fn requests(&self) -> u32 {
        self.0.requests.load(Ordering::Acquire)
    }

    /// Makes SIGTERM and SIGINT ask this node to end, and SIGPIPE harmless. One handle in a process can have the signals.
    ///
    /// # Errors
    /// When another handle has them, or the system refuses.
    pub fn on_signals(&self) -> io::Result<()> {
        extern "C" fn on_signal(_signal: libc::c_int) {
            // SAFETY: __errno_location points to the thread's errno for as long as the thread lives.
            let errno = unsafe { *libc::__errno_location() };
            // A load, an addition and a write(2): all that a handler may.
            if let Some(stop) = SIGNALLED.get() {
                stop.request();
            }
            // SAFETY: as above.
            unsafe { *libc::__errno_location() = errno };
        }

        let ours = SIGNALLED.get_or_init(|| self.clone());
        if !Arc::ptr_eq(&ours.0, &self.0) {
            return Err(io::Error::other("another node of this process handles its signals already"));
        }
        for (signal, handler) in [
            (libc::SIGTERM, on_signal as extern "C" fn(libc::c_int) as usize),
            (libc::SIGINT, on_signal as extern "C" fn(libc::c_int) as usize),
            (libc::SIGPIPE, libc::SIG_IGN),
        ] {
            // SAFETY: an all-zero sigaction is a valid value.
            let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
            action.sa_sigaction = handler;
            action.sa_flags = libc::SA_RESTART;
            // SAFETY: the action is initialised and outlives the call; the handler does only what a handler may.
            if unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) } != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    }
}

impl AsFd for Stop {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.wake.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;

    #[test]
    fn a_request_is_counted_and_wakes_whoever_polls() {
        let stop = Stop::new().expect("an eventfd");
        let readable = |stop: &Stop| {
            let mut fds = [PollFd::new(stop, PollFlags::IN)];
            poll(&mut fds, Some(&rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 })).expect("poll") == 1
        };
        assert_eq!((stop.requests(), readable(&stop)), (0, false));
        stop.clone().request();
        assert_eq!((stop.requests(), readable(&stop)), (1, true));
        stop.request();
        assert_eq!((stop.requests(), readable(&stop)), (2, true));
    }

    #[test]
    fn who_asks_once_does_not_ask_a_second_time() {
        let stop = Stop::new().expect("an eventfd");
        stop.request_once();
        stop.request_once();
        assert_eq!(stop.requests(), 1, "a second request would cut an orderly end short");
        stop.request();
        stop.request_once();
        assert_eq!(stop.requests(), 2);
    }

    #[test]
    fn a_signal_is_a_request_and_one_handle_has_the_signals() {
        let (stop, other) = (Stop::new().expect("an eventfd"), Stop::new().expect("an eventfd"));
        stop.on_signals().expect("free");
        stop.on_signals().expect("ours");
        assert!(other.on_signals().is_err());
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TERM).expect("ourselves");
        // The kernel may hand the signal to another thread of this process: the poll waits for it.
        let mut fds = [PollFd::new(&stop, PollFlags::IN)];
        while !matches!(poll(&mut fds, None), Ok(1)) {}
        assert_eq!((stop.requests(), other.requests()), (1, 0));
    }
}
