//! Processes by their descriptors, which never name another one.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::time::Timespec;

/// A descriptor of the process of that number.
///
/// # Errors
/// When there is none.
pub(crate) fn pidfd_of(pid: i32) -> io::Result<OwnedFd> {
    let none = || io::Error::new(io::ErrorKind::InvalidInput, "allowed are numbers of processes, from 1 on");
    let number = if pid > 0 { Pid::from_raw(pid) } else { None }.ok_or_else(none)?;
    Ok(pidfd_open(number, PidfdFlags::empty())?)
}

/// Whether the process of a descriptor has ended.
pub(crate) fn has_ended(pidfd: impl AsFd) -> bool {
    let pidfd = pidfd.as_fd();
    let mut fds = [PollFd::new(&pidfd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
}

/// The number of the process that a descriptor names, in this PID namespace; 0 where it has none, or has ended.
pub(crate) fn pid_of(pidfd: &OwnedFd) -> io::Result<u32> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd()))?;
    let pid = info.lines().find_map(|line| line.strip_prefix("Pid:"));
    let pid = pid.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the descriptor names no process"))?;
    Ok(pid.trim().parse().unwrap_or(0))
}

/// What a process calls itself.
pub(crate) fn name_of(pid: u32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).map(|name| name.trim().to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_of_no_process_is_told_from_one_that_is() {
        let own = pidfd_of(std::process::id() as i32).expect("our own");
        assert_eq!(pid_of(&own).expect("a process"), std::process::id());
        assert!(!has_ended(&own));
        let other = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).expect("a descriptor");
        assert_eq!(pid_of(&other).expect_err("none").to_string(), "the descriptor names no process");
    }
}
