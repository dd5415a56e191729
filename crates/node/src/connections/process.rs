//! Processes: how they are identified, and how to make sure that they are dead.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};

use martlet_fabric::host::descriptors;
use martlet_fabric::host::stat::{Stat, is_gone};

use super::{Holder, sys};

/// How long a process that was sent SIGKILL may take to die, in milliseconds.
const DEATH_MS: i32 = 10_000;

/// When a process started, in clock ticks since the host started. Together with the process's number this identifies it beyond doubt.
///
/// # Errors
/// When there is none of that number.
pub fn started(pid: i32) -> io::Result<u64> {
    Ok(Stat::of(pid)?.started)
}

/// Whether the process that started at that time may be running. A process that has ended and waits for its parent to notice is not running. A process is not
/// taken for dead because this one could not ask, for want of a descriptor or of memory.
pub fn runs(pid: i32, started: u64) -> bool {
    runs_by(Stat::of(pid), started)
}

fn runs_by(stat: io::Result<Stat>, started: u64) -> bool {
    match stat {
        Ok(stat) => !stat.has_ended() && stat.started == started,
        Err(error) => !is_gone(&error),
    }
}

/// What state a process was found in when its death was made sure of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// It had died, or was about to.
    Dead,
    /// It was stopped, for example by SIGSTOP.
    Stopped,
    /// It was running, or waiting for something.
    AtWork,
}

impl Found {
    /// What the kernel says of a process's first thread.
    fn by(stat: Stat) -> Found {
        match stat {
            _ if stat.is_over() => Found::Dead,
            _ if stat.is_stopped() => Found::Stopped,
            _ => Found::AtWork,
        }
    }
}

/// A process that lived, and a descriptor for it, so that its death can be made sure of at once.
#[derive(Debug)]
pub struct Watched {
    holder: Holder,
    pidfd: OwnedFd,
}

impl Watched {
    /// Watches a process; `None`: it is dead, and its number is free or belongs to another process.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn new(holder: Holder) -> io::Result<Option<Watched>> {
        Ok(open(holder)?.map(|pidfd| Watched { holder, pidfd }))
    }

    /// Which process it is.
    pub fn holder(&self) -> Holder {
        self.holder
    }

    /// As [`make_sure_of_death`].
    ///
    /// # Errors
    /// As there.
    pub fn make_sure_of_death(&self) -> io::Result<Found> {
        see_to_death(self.holder, &self.pidfd)
    }
}

/// A descriptor for this process; `None`: it is dead, and its number is free or belongs to another process.
fn open(holder: Holder) -> io::Result<Option<OwnedFd>> {
    // SAFETY: the call makes a descriptor, which goes nowhere else.
    let pidfd = match descriptors::open(|| unsafe { sys::owned(libc::syscall(libc::SYS_pidfd_open, holder.pid, 0)) }) {
        Ok(pidfd) => pidfd,
        // The last two: the number is no process's any more, but that of a group of processes, such as that of its keeper, or of a thread. Which, depends on
        // the kernel.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ESRCH | libc::EINVAL | libc::ENOENT)) => return Ok(None),
        Err(error) => return Err(error),
    };
    // The descriptor keeps its meaning, but the number may have been given to another process before the descriptor was opened.
    match started(holder.pid) {
        Ok(ticks) => Ok((ticks == holder.started).then_some(pidfd)),
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Makes sure that this process is dead with all its threads: kills it, unless it has died, and waits for its death. Returns what state it was found in.
///
/// # Errors
/// When it does not die, or the kernel refuses.
pub fn make_sure_of_death(holder: Holder) -> io::Result<Found> {
    match open(holder)? {
        Some(pidfd) => see_to_death(holder, &pidfd),
        None => Ok(Found::Dead),
    }
}

/// What has come of a kill without a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Killed {
    /// The process was dead before.
    Before,
    /// It is dead with all its threads now.
    Now,
    /// It has been sent SIGKILL, and is not dead yet.
    NotYet,
}

/// Kills this process, unless it has died, and does not wait for its death. If it is not dead yet, the caller goes on with other work and calls this again: the
/// memory of a large process is torn down before it counts as dead, and a process that waits for a device may not die for long.
///
/// # Errors
/// When the kernel refuses.
pub fn kill(holder: Holder) -> io::Result<Killed> {
    let Some(pidfd) = open(holder)? else { return Ok(Killed::Before) };
    if has_ended(&pidfd) {
        return Ok(Killed::Before);
    }
    // SAFETY: a plain system call.
    let sent = sys::checked(unsafe { libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), libc::SIGKILL, 0, 0) });
    match (sent, has_ended(&pidfd)) {
        (_, true) => Ok(Killed::Now),
        (Ok(_), false) => Ok(Killed::NotYet),
        (Err(error), false) => Err(error),
    }
}

fn see_to_death(holder: Holder, pidfd: &OwnedFd) -> io::Result<Found> {
    // Usually it is dead already: that its thread is dead was known before.
    if has_ended(pidfd) {
        return Ok(Found::Dead);
    }
    let found = Stat::of(holder.pid).map_or(Found::Dead, Found::by);
    // SAFETY: plain system calls; the pointer is to one live value.
    unsafe {
        libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), libc::SIGKILL, 0, 0);
        let mut waits = libc::pollfd { fd: pidfd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        loop {
            match sys::checked(libc::syscall(libc::SYS_poll, &mut waits, 1, DEATH_MS)) {
                Ok(0) => return Err(io::Error::other(format!("process {} does not die", holder.pid))),
                Ok(_) => return Ok(found),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Whether this process is dead with all its threads. A process that the kernel cannot be asked about counts as alive.
pub fn is_dead(holder: Holder) -> bool {
    let pidfd = match open(holder) {
        Ok(Some(pidfd)) => pidfd,
        Ok(None) => return true,
        Err(_) => return false,
    };
    has_ended(&pidfd)
}

fn has_ended(pidfd: &OwnedFd) -> bool {
    let mut waits = libc::pollfd { fd: pidfd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: the pointer is to one live value.
    unsafe { libc::syscall(libc::SYS_poll, &mut waits, 1, 0) == 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_cannot_be_asked_about_is_not_taken_for_dead() {
        let stat = |state: &str, ticks: u64| {
            let line = format!("17 (a) name) {state} 1 17 17 0 -1 0 0 0 0 0 9 9 0 0 20 0 4 0 {ticks} 0");
            Ok(Stat::parse(&line).expect("it is complete"))
        };
        assert!(runs_by(stat("S", 12345), 12345));
        assert!(!runs_by(stat("S", 12346), 12345), "another one of its number");
        assert!(!runs_by(stat("Z", 12345), 12345));
        for (errno, runs) in [(libc::EMFILE, true), (libc::ENFILE, true), (libc::ENOMEM, true), (libc::ENOENT, false), (libc::ESRCH, false)]
        {
            assert_eq!(runs_by(Err(io::Error::from_raw_os_error(errno)), 12345), runs, "{errno}");
        }
    }

    #[test]
    fn a_process_that_is_killed_without_a_wait_is_dead_sooner_or_later() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().expect("it runs");
        let pid = child.id() as i32;
        let holder = Holder { node: 0, pid, started: started(pid).expect("it runs") };
        let before = Holder { started: holder.started - 1, ..holder };
        assert_eq!(kill(before).expect("it was dead"), Killed::Before);
        assert!(!is_dead(holder), "another process of its number is left alone");
        assert_ne!(kill(holder).expect("it may be killed"), Killed::Before, "the caller learns that it is this call that ends the process");
        while kill(holder).expect("it may be killed") == Killed::NotYet {
            std::thread::yield_now();
        }
        assert!(is_dead(holder));
        child.wait().expect("its parent notices");
        assert_eq!(kill(holder).expect("its number is free, or another one's by now"), Killed::Before);
    }

    #[test]
    fn a_process_is_dead_though_others_of_its_group_live() {
        use std::os::unix::process::CommandExt as _;
        let mut child = std::process::Command::new("sh");
        // The shell waits for the end of its input, and the other one for longer.
        child.args(["-c", "sleep 1000 <&- >&- 2>&- & echo $!; read line"]).process_group(0);
        let mut child = child.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped()).spawn().expect("it runs");
        let mut said = String::new();
        let mut out = std::io::BufReader::new(child.stdout.take().expect("piped"));
        std::io::BufRead::read_line(&mut out, &mut said).expect("it says it");
        let other = rustix::process::Pid::from_raw(said.trim().parse().expect("a number")).expect("a process");
        let pid = child.id() as i32;
        let holder = Holder { node: 0, pid, started: started(pid).expect("it runs") };
        child.kill().and_then(|()| child.wait()).expect("ours");
        let found = (make_sure_of_death(holder), kill(holder), is_dead(holder));
        rustix::process::kill_process(other, rustix::process::Signal::KILL).expect("it lives");
        assert!(matches!(found, (Ok(Found::Dead), Ok(Killed::Before), true)), "{found:?}");
    }

    #[test]
    fn a_process_that_is_made_sure_of_is_dead_and_one_of_another_time_always_was() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().expect("it runs");
        let pid = child.id() as i32;
        let holder = Holder { node: 0, pid, started: started(pid).expect("it runs") };
        let before = Holder { started: holder.started - 1, ..holder };
        assert_eq!((is_dead(holder), is_dead(before), runs(pid, holder.started)), (false, true, true));
        assert_eq!(make_sure_of_death(before).expect("it was dead"), Found::Dead);
        assert!(!is_dead(holder), "another process of its number is left alone");
        let watched = Watched::new(holder).expect("the kernel knows it").expect("it lives");
        assert!(Watched::new(before).expect("the kernel knows it").is_none());
        assert_eq!(make_sure_of_death(holder).expect("it dies"), Found::AtWork);
        assert_eq!(watched.make_sure_of_death().expect("it is dead"), Found::Dead);
        assert!(is_dead(holder) && !runs(pid, holder.started), "though its parent has not noticed");
        child.wait().expect("its parent notices");
        assert_eq!(watched.make_sure_of_death().expect("it is dead"), Found::Dead, "its number may be another one's by now");
        assert!(is_dead(holder));
        assert_eq!(make_sure_of_death(holder).expect("it is dead"), Found::Dead);
    }
}
