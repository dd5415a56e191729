//! How a node is asked to end: by a signal, by a client's command, or by the program that embeds it.

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use martlet_fabric::host::descriptors::open;
use rustix::event::{EventfdFlags, eventfd};

/// The handle that the process's signals ask: from `Arc::into_raw`, or null. A handle that has been stored here is never freed, since a signal handler may be
/// using it.
static SIGNALLED: AtomicPtr<Inner> = AtomicPtr::new(std::ptr::null_mut());
/// Held while `SIGNALLED` changes.
static CHANGING: Mutex<()> = Mutex::new(());

/// The handle that the process's signals ask, if there is one. May be called in a signal handler.
fn signalled() -> Option<&'static Inner> {
    // SAFETY: null, or an `Inner` that is never freed.
    unsafe { SIGNALLED.load(Ordering::Acquire).as_ref() }
}

/// Asks the node that handles this process's signals to end, unless it has been asked already. May be called in a signal handler.
pub(super) fn request_once_by_signal() {
    if let Some(stop) = signalled() {
        stop.request_once();
    }
}

/// A handle by which a node is asked to end. All clones are the same handle.
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

impl Inner {
    fn request(&self) {
        // Release pairs with the acquire in `requests`: the node that ends sees what the caller did before.
        self.requests.fetch_add(1, Ordering::Release);
        // It fails only when the counter is full, and then it is readable as well. No std I/O: this may be a signal handler.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    fn request_once(&self) -> bool {
        let is_first = self.requests.compare_exchange(0, 1, Ordering::Release, Ordering::Relaxed).is_ok();
        if is_first {
            let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        }
        is_first
    }
}

impl Stop {
    /// A handle that has not been used yet.
    pub fn new() -> io::Result<Stop> {
        let wake = open(|| eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK))?;
        Ok(Stop(Arc::new(Inner { requests: AtomicU32::new(0), wake })))
    }

    /// Asks the node to end. May be called from any thread, and from a signal handler.
    pub fn request(&self) {
        self.0.request();
    }

    /// Asks the node to end, unless it has been asked already: a second request would cut its orderly end short. Returns whether this was the first request.
    pub fn request_once(&self) -> bool {
        self.0.request_once()
    }

    /// How often the node has been asked.
    pub fn requests(&self) -> u32 {
        self.0.requests.load(Ordering::Acquire)
    }

    /// Makes SIGTERM and SIGINT ask this node to end, and SIGPIPE harmless. Only one handle in a process can have the signals, until all its clones are
    /// dropped.
    ///
    /// # Errors
    /// When another handle has them, or the system refuses.
    pub fn on_signals(&self) -> io::Result<()> {
        extern "C" fn on_signal(_signal: libc::c_int) {
            // SAFETY: __errno_location points to the thread's errno for as long as the thread lives.
            let errno = unsafe { *libc::__errno_location() };
            // A load, an addition and a write(2): all that a handler may.
            if let Some(stop) = signalled() {
                stop.request();
            }
            // SAFETY: as above.
            unsafe { *libc::__errno_location() = errno };
        }

        let changing = CHANGING.lock().unwrap_or_else(PoisonError::into_inner);
        let before = SIGNALLED.load(Ordering::Acquire);
        if before.cast_const() != Arc::as_ptr(&self.0) {
            // SAFETY: it came from `Arc::into_raw`, and that reference is kept for ever: this one only borrows it.
            let in_use = !before.is_null() && Arc::strong_count(&ManuallyDrop::new(unsafe { Arc::from_raw(before) })) > 1;
            if in_use {
                return Err(io::Error::other("another node of this process handles its signals already"));
            }
            SIGNALLED.store(Arc::into_raw(Arc::clone(&self.0)).cast_mut(), Ordering::Release);
        }
        drop(changing);
        for signal in ASKING {
            handle(signal, on_signal as extern "C" fn(libc::c_int) as usize)?;
        }
        handle(libc::SIGPIPE, libc::SIG_IGN)
    }

    /// From now on SIGTERM and SIGINT end the process, as they do by default. For a process whose node has ended, and which checks one last time whether it was
    /// asked again before it executes another program in its place. A signal that came before is counted when the main thread, which handles such signals,
    /// checks; a later signal ends the process, and is not lost with it.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn give_signals_back(&self) -> io::Result<()> {
        ASKING.into_iter().try_for_each(|signal| handle(signal, libc::SIG_DFL))
    }
}

/// The signals that ask a node to end.
const ASKING: [libc::c_int; 2] = [libc::SIGTERM, libc::SIGINT];

/// `handler`: a valid value for a sigaction, which does only what a handler may.
fn handle(signal: libc::c_int, handler: libc::sighandler_t) -> io::Result<()> {
    // SAFETY: an all-zero sigaction is a valid value.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: the action is initialised and outlives the call; the handler is one of this file, or one of the system's two.
    if unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

impl AsFd for Stop {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.wake.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::{Command, exit};

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
    fn one_that_asks_once_does_not_ask_a_second_time() {
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
        // The kernel may deliver the signal to another thread of this process: the poll waits for that.
        let mut fds = [PollFd::new(&stop, PollFlags::IN)];
        while !matches!(poll(&mut fds, None), Ok(1)) {}
        assert_eq!((stop.requests(), other.requests()), (1, 0));
        let clone = stop.clone();
        drop(stop);
        assert!(other.on_signals().is_err(), "somebody still has the first");
        drop(clone);
        other.on_signals().expect("nobody has the first any more");
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TERM).expect("ourselves");
        let mut fds = [PollFd::new(&other, PollFlags::IN)];
        while !matches!(poll(&mut fds, None), Ok(1)) {}
        assert_eq!(other.requests(), 1);
    }

    /// Runs in a process of its own, which the signal ends.
    #[test]
    fn signals_that_were_given_back_end_the_process() {
        const CHILD: &str = "MARTLET_TEST_SIGNALS_GIVEN_BACK";
        let term = || rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TERM).expect("ourselves");
        if std::env::var_os(CHILD).is_some() {
            let stop = Stop::new().expect("an eventfd");
            stop.on_signals().expect("free");
            term();
            while !matches!(poll(&mut [PollFd::new(&stop, PollFlags::IN)], None), Ok(1)) {}
            stop.give_signals_back().expect("ours");
            assert_eq!(stop.requests(), 1);
            term();
            exit(0);
        }
        let this = std::env::current_exe().expect("this test");
        let name = "os::stop::tests::signals_that_were_given_back_end_the_process";
        let ended = Command::new(this).args(["--exact", name]).env(CHILD, "").output().expect("it runs");
        assert_eq!(ended.status.signal(), Some(libc::SIGTERM), "{ended:?}");
    }
}
