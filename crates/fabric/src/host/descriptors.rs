//! The numbers of this process's own descriptors.
//!
//! A library in a foreign program shares that program's table of descriptors. The kernel gives out the lowest free number, so whatever the library
//! opens would change the numbers that the program's own descriptors get. To avoid that, such a process [has](keep_within) what the library opens
//! moved to a range of its own.
//!
//! Until a descriptor is moved there, it has the number that the program would get if it opened something on another thread at that moment. So only
//! one thread at a time opens something, be it for the library or for the program: it holds an [`Opening`].

use std::cell::Cell;
use std::io;
use std::marker::PhantomData;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, IntoRawFd as _, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use rustix::io::Errno;

/// The first number, and the one after the last. As long as the second is 0, any number will do.
static OWN: [AtomicI32; 2] = [AtomicI32::new(0), AtomicI32::new(0)];

/// From now on, descriptors that this process opens and keeps have these numbers.
pub fn keep_within(numbers: Range<RawFd>) {
    OWN[0].store(numbers.start, Ordering::Relaxed);
    OWN[1].store(numbers.end, Ordering::Relaxed);
}

static ONE_OPENS: Mutex<()> = Mutex::new(());

thread_local! {
    /// Whether this thread holds an [`Opening`], or is about to.
    static OPENS: Cell<bool> = const { Cell::new(false) };
}

/// As long as this exists, no other thread of this process opens anything that requires one. A process that forks holds one while it does: otherwise
/// its child might wait for a thread that the child does not have.
#[derive(Debug)]
pub struct Opening {
    /// `None`: this thread already holds one, outside of the signal handler in which it is now.
    _held: Option<MutexGuard<'static, ()>>,
    _of_this_thread: PhantomData<*const ()>,
}

impl Opening {
    /// Waits until no other thread holds one.
    #[must_use]
    pub fn begin() -> Opening {
        let held = (!OPENS.replace(true)).then(|| ONE_OPENS.lock().unwrap_or_else(PoisonError::into_inner));
        Opening { _held: held, _of_this_thread: PhantomData }
    }

    /// Moves the descriptor to a number that this process's own may have.
    ///
    /// # Errors
    /// When none of these numbers is free, or the process may not have as many descriptors.
    pub fn kept(&self, fd: OwnedFd) -> io::Result<OwnedFd> {
        kept_within(fd, own())
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        if self._held.take().is_some() {
            OPENS.set(false);
        }
    }
}

/// Opens something in a process that shares its memory and its table of descriptors with another process, while no thread of that other process
/// opens anything. Nothing that belongs to one of that process's threads alone is touched, not even the errno. Once `waits` says no, that process is
/// no longer waited for: it has been killed, perhaps in the middle of an opening. If no number of the range is free, the descriptor keeps the one
/// that the kernel gave it.
///
/// # Errors
/// Those of `make`.
pub fn open_beside(waits: impl Fn() -> bool, make: impl FnOnce() -> Result<OwnedFd, Errno>) -> Result<RawFd, Errno> {
    let _held = loop {
        match ONE_OPENS.try_lock() {
            Ok(held) => break Some(held),
            Err(TryLockError::Poisoned(held)) => break Some(held.into_inner()),
            Err(TryLockError::WouldBlock) if waits() => rustix::thread::sched_yield(),
            Err(TryLockError::WouldBlock) => break None,
        }
    };
    let (fd, own) = (make()?.into_raw_fd(), own());
    if own.end == 0 || own.contains(&fd) {
        return Ok(fd);
    }
    // SAFETY: both have just been opened, and no other code knows them. They are closed without the C library, whose errno belongs to another thread.
    unsafe {
        let Ok(moved) = rustix::io::fcntl_dupfd_cloexec(BorrowedFd::borrow_raw(fd), own.start).map(OwnedFd::into_raw_fd) else {
            return Ok(fd);
        };
        let (stays, goes) = if own.contains(&moved) { (moved, fd) } else { (fd, moved) };
        rustix::io::close(goes);
        Ok(stays)
    }
}

fn own() -> Range<RawFd> {
    let [start, end] = [&OWN[0], &OWN[1]].map(|bound| bound.load(Ordering::Relaxed));
    start..end
}

/// Opens something, under a number that this process's own descriptors may have.
///
/// # Errors
/// Those of `make`, and those of [`Opening::kept`].
pub fn open<E: Into<io::Error>>(make: impl FnOnce() -> Result<OwnedFd, E>) -> io::Result<OwnedFd> {
    let opening = Opening::begin();
    opening.kept(make().map_err(Into::into)?)
}

/// Another descriptor of the same thing, under such a number.
///
/// # Errors
/// Those of [`Opening::kept`], and when the system refuses.
pub fn duplicate(fd: impl AsFd) -> io::Result<OwnedFd> {
    open(|| fd.as_fd().try_clone_to_owned())
}

fn kept_within(fd: OwnedFd, numbers: Range<RawFd>) -> io::Result<OwnedFd> {
    if numbers.end == 0 || numbers.contains(&fd.as_raw_fd()) {
        return Ok(fd);
    }
    let refused = |why: &dyn std::fmt::Display| {
        let (start, last) = (numbers.start, numbers.end - 1);
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let limit = limit.map_or("no limit".to_owned(), |limit| limit.to_string());
        io::Error::other(format!("no descriptor from {start} to {last} is to be had: {why}; RLIMIT_NOFILE is {limit}"))
    };
    match rustix::io::fcntl_dupfd_cloexec(&fd, numbers.start) {
        Ok(moved) if numbers.contains(&moved.as_raw_fd()) => Ok(moved),
        Ok(_) => Err(refused(&"all are in use")),
        Err(error) => Err(refused(&error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn any() -> OwnedFd {
        std::fs::File::open("/dev/null").expect("it opens").into()
    }

    #[test]
    fn what_a_program_opens_has_the_lowest_number_whatever_the_library_opens_beside() {
        /// How often the program opens something.
        const TIMES: usize = 20_000;
        // A table of descriptors that other tests do not use.
        std::thread::spawn(|| {
            // SAFETY: this thread closes everything that it opens from here on.
            assert_eq!(unsafe { libc::unshare(libc::CLONE_FILES) }, 0, "it needs no privilege");
            let (lowest, ends) = (any().as_raw_fd(), AtomicI32::new(0));
            let library = || {
                while ends.load(Ordering::Relaxed) == 0 {
                    let opening = Opening::begin();
                    drop(kept_within(any(), 900..902).expect("it is free"));
                    drop(opening);
                }
            };
            std::thread::scope(|scope| {
                scope.spawn(library);
                let numbers = (0..TIMES).map(|_| {
                    let opening = Opening::begin();
                    let fd = any();
                    drop(opening);
                    fd.as_raw_fd()
                });
                let others = numbers.filter(|number| *number != lowest).count();
                ends.store(1, Ordering::Relaxed);
                assert_eq!(others, 0, "of {TIMES} descriptors so many have another number");
            });
        })
        .join()
        .expect("as above");
    }

    #[test]
    fn a_handler_that_opens_something_does_not_wait_for_the_thread_that_it_interrupts() {
        std::thread::spawn(|| {
            let opening = Opening::begin();
            drop(open(|| Ok::<OwnedFd, io::Error>(any())).expect("it opens"));
            assert!(OPENS.get(), "the first one is still held");
            drop(opening);
            assert!(!OPENS.get());
        })
        .join()
        .expect("as above");
    }

    /// It shares the memory of a process whose threads are gone, one of them perhaps in the middle of an opening.
    #[test]
    fn a_process_beside_opens_alone_and_does_not_wait_for_one_that_is_dead() {
        let opening = Opening::begin();
        let opened = |fd: Result<RawFd, Errno>| {
            // SAFETY: it has just been opened, for this test.
            unsafe { rustix::io::close(fd.expect("it opens")) }
        };
        opened(open_beside(|| false, || Ok(any())));
        let (waits, had) = (AtomicI32::new(0), AtomicI32::new(0));
        std::thread::scope(|scope| {
            let beside = scope.spawn(|| {
                let make = || {
                    had.store(1, Ordering::SeqCst);
                    Ok(any())
                };
                opened(open_beside(|| waits.fetch_add(1, Ordering::SeqCst) >= 0, make));
            });
            while waits.load(Ordering::SeqCst) < 2 && !beside.is_finished() {
                std::thread::yield_now();
            }
            assert_eq!(had.load(Ordering::SeqCst), 0, "another one opens");
            drop(opening);
            beside.join().expect("it has had its turn");
        });
    }

    #[test]
    fn descriptors_have_numbers_of_the_range_or_are_refused_with_the_limit() {
        let fd = any();
        let number = fd.as_raw_fd();
        assert_eq!(kept_within(fd, 0..0).expect("any will do").as_raw_fd(), number);
        let numbers = 900..902;
        let first = kept_within(any(), numbers.clone()).expect("it is free");
        assert_eq!(first.as_raw_fd(), 900);
        assert_eq!(kept_within(first, numbers.clone()).expect("it is there").as_raw_fd(), 900);
        let both = [(); 2].map(|()| kept_within(any(), numbers.clone()).expect("it is free"));
        assert_eq!(both.each_ref().map(|fd| fd.as_raw_fd()), [900, 901]);
        let error = kept_within(any(), numbers).expect_err("there are two").to_string();
        assert!(error.contains("from 900 to 901") && error.contains("in use") && error.contains("RLIMIT_NOFILE"), "{error}");
        // More than a process may have.
        let error = kept_within(any(), RawFd::MAX - 1..RawFd::MAX).expect_err("there are fewer").to_string();
        assert!(error.contains("RLIMIT_NOFILE"), "{error}");
    }
}
