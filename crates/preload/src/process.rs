//! Processes: what of the server's is closed in a fork.

use std::io;
use std::os::fd::RawFd;

pub use martlet_node::connections::process::{Found, make_sure_of_death, runs, started};

use crate::sys;

/// Closes this process's descriptors that lead to something whose name begins so, where `wanted` says yes.
///
/// # Errors
/// When the kernel does not say which there are.
pub fn close_what_links_to(starts: &[&str], wanted: impl Fn(RawFd) -> bool) -> io::Result<()> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let entry = entry?;
        let Some(fd) = entry.file_name().to_str().and_then(|name| name.parse::<RawFd>().ok()) else { continue };
        let Ok(what) = std::fs::read_link(entry.path()) else { continue };
        let what = what.to_string_lossy();
        if starts.iter().any(|start| what.starts_with(start)) && wanted(fd) {
            all.push(fd);
        }
    }
    for fd in all {
        sys::close(fd);
    }
    Ok(())
}

/// What a counter of this process's (`eventfd`) counts.
///
/// # Errors
/// When the kernel does not say so.
pub fn counted(fd: RawFd) -> io::Result<u32> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}"))?;
    let count = info.lines().find_map(|line| line.strip_prefix("eventfd-count:"));
    let count = count.and_then(|count| u32::from_str_radix(count.trim(), 16).ok());
    count.ok_or_else(|| io::Error::other(format!("descriptor {fd} is no counter of less than 2^32: {info:?}")))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;

    use super::*;

    #[test]
    fn what_a_counter_counts_is_known_and_what_is_none_is_refused() {
        for count in [0, 1, 0x1f, u32::MAX] {
            let counter = sys::counter(count, libc::EFD_NONBLOCK).expect("a counter");
            assert_eq!(counted(counter.as_raw_fd()).expect("it is one"), count);
        }
        assert!(counted(0).is_err());
    }
}
