//! Processes, and which of the server's descriptors are closed in a child.

use std::io;
use std::os::fd::RawFd;

pub use martlet_node::connections::process::{Found, Watched, make_sure_of_death, runs, started};

use crate::sys;

/// Closes those of this process's descriptors that lead to something whose name begins with one of `starts`, and for which `wanted` returns true.
///
/// # Errors
/// When the kernel does not say which descriptors there are.
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
