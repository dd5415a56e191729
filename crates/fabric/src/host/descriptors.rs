//! Which numbers this process's own descriptors have.
//!
//! A library in a foreign program shares that program's table of descriptors. The kernel gives the lowest number that is free, so what the library opens would decide which
//! numbers the program's own have. So such a process [has](keep_within) what it opens for long moved to a range of their own.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering};

/// The first number, and the one behind the last. As long as the second is 0 any will do.
static OWN: [AtomicI32; 2] = [AtomicI32::new(0), AtomicI32::new(0)];

/// From here on what this process opens and keeps has these numbers.
pub fn keep_within(numbers: Range<RawFd>) {
    OWN[0].store(numbers.start, Ordering::Relaxed);
    OWN[1].store(numbers.end, Ordering::Relaxed);
}

/// The same descriptor under a number that this process's own may have.
///
/// # Errors
/// When none of them is free, or the process may not have as many descriptors.
pub fn kept(fd: OwnedFd) -> io::Result<OwnedFd> {
    let [start, end] = [&OWN[0], &OWN[1]].map(|bound| bound.load(Ordering::Relaxed));
    kept_within(fd, start..end)
}

/// Another descriptor for the same, under such a number.
///
/// # Errors
/// As [`kept`], and when the system refuses.
pub fn duplicate(fd: impl AsFd) -> io::Result<OwnedFd> {
    kept(fd.as_fd().try_clone_to_owned()?)
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
