//! Which numbers this process's own descriptors have.
//!
//! A library in a foreign program shares that program's table of descriptors. The kernel gives the lowest number that is free, so what the library opens would decide which
//! numbers the program's own have. So such a process [has](keep_within) what it opens moved to a range of their own.
//!
//! Until it is moved there it has the number that the program would be given if it asked for one just then on another thread. So one thread opens something at a time, of the
//! library's or of the program's: it holds an [`Opening`].

use std::cell::Cell;
use std::io;
use std::marker::PhantomData;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, IntoRawFd as _, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use rustix::io::Errno;

/// The first number, and the one behind the last. As long as the second is 0 any will do.
static OWN: [AtomicI32; 2] = [AtomicI32::new(0), AtomicI32::new(0)];

/// From here on what this process opens and keeps has these numbers.
pub fn keep_within(numbers: Range<RawFd>) {
    OWN[0].store(numbers.start, Ordering::Relaxed);
    OWN[1].store(numbers.end, Ordering::Relaxed);
}

static ONE_OPENS: Mutex<()> = Mutex::new(());

thread_local! {
    /// Whether this thread holds it, or is about to.
    static OPENS: Cell<bool> = const { Cell::new(false) };
}

/// While it lives no other thread of this process opens anything for which it would have to begin one. Where this process forks it holds one, or its fork would wait for a thread that it
/// does not have.
#[derive(Debug)]
pub struct Opening {
    /// `None`: this thread holds another, below a handler of a signal that has come meanwhile.
    _held: Option<MutexGuard<'static, ()>>,
    _of_this_thread: PhantomData<*const ()>,
}

impl Opening {
    /// Waits for that.
    #[must_use]
    pub fn begin() -> Opening {
        let held = (!OPENS.replace(true)).then(|| ONE_OPENS.lock().unwrap_or_else(PoisonError::into_inner));
        Opening { _held: held, _of_this_thread: PhantomData }
    }

    /// The descriptor under a number that this process's own may have.
    ///
    /// # Errors
    /// When none of them is free, or the process may not have as many descriptors.
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

/// Opens something while no thread of another process does that shares its memory and its table of descriptors with this one, and what is one of its threads' alone: nothing of that is
/// touched, the errno included. That process is not waited for any more once `waits` says no: it has been killed, perhaps meanwhile. Where there is no other number it keeps that which
/// the kernel has given it.
///
/// # Errors
/// As `make`.
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
    // SAFETY: both have just been opened, and nobody else knows them. They are closed past the C library, whose errno is another's.
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

/// Opens something, under a number that this process's own may have.
///
/// # Errors
/// As `make`, and as [`Opening::kept`].
pub fn open<E: Into<io::Error>>(make: impl FnOnce() -> Result<OwnedFd, E>) -> io::Result<OwnedFd> {
    let opening = Opening::begin();
    opening.kept(make().map_err(Into::into)?)
}

/// Another descriptor for the same, under such a number.
///
/// # Errors
/// As [`Opening::kept`], and when the system refuses.
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
        // A table of descriptors that other tests have nothing to do with.
        std::thread::spawn(|| {
            // SAFETY: what this thread opens from here on it closes itself.
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

    /// It shares the memory of a process whose threads are gone, perhaps in the midst of it.
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
