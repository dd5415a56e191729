//! Processes by their descriptors, which never come to refer to another process.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};

use martlet_fabric::host::stat::Stat;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::time::Timespec;

/// A descriptor of the process with that number.
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

/// The number of the process that a descriptor names, in this PID namespace; 0 if it has none here, or has ended.
pub(crate) fn pid_of(pidfd: &OwnedFd) -> io::Result<u32> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd()))?;
    let pid = info.lines().find_map(|line| line.strip_prefix("Pid:"));
    let pid = pid.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the descriptor names no process"))?;
    Ok(pid.trim().parse().unwrap_or(0))
}

/// The name that a process has given itself.
pub(crate) fn name_of(pid: u32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).map(|name| name.trim().to_owned()).unwrap_or_default()
}

/// How many numbers a process has: one for each PID namespace that it is in, as far as this one can see them. `None` if that cannot be found out.
pub(crate) fn numbers_of(pid: u32) -> Option<usize> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("NSpid:")).map(|numbers| numbers.split_whitespace().count())
}

/// Whether all threads of a process are over, though the process has not ended, because it dumps core for example. The caller has to check afterwards that the
/// number is still the same process's.
pub(crate) fn is_over(pid: u32) -> bool {
    let threads = || -> Option<Vec<String>> {
        let entries = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?;
        entries.map(|entry| Some(entry.ok()?.file_name().to_str()?.to_owned())).collect()
    };
    let is_over = |thread: &String| Stat::of_thread(pid, thread).is_ok_and(|stat| stat.is_over());
    // A thread that was not over yet may have started another one during the look.
    threads()
        .filter(|threads| !threads.is_empty() && threads.iter().all(is_over))
        .is_some_and(|before| threads().is_some_and(|now| now == before))
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
