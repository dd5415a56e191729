//! Keeps the tear-down of a dying node's memory from delaying its clients' notice of the death.
//!
//! A client of the Redis protocol learns that a node has died when its connection ends. The kernel ends a process in this order: death words, memory,
//! descriptors. Tearing down the page tables of tens of mebibytes of shared rings takes milliseconds, and only then are the sockets closed: two milliseconds
//! after the others have elected a new primary (TRAPS 33).
//!
//! The memory goes with the last process that uses it. So a node has a second process, which shares its memory and nothing else, and only looks now and then
//! whether the node is still there. When the node dies, its descriptors are closed at once. The second process finds itself an orphan, lets the failover pass,
//! and ends, which tears the memory down. It waits because on kernels that do not preempt themselves a tear-down occupies a core for hundreds of microseconds
//! at a stretch, and the new primary may need that core. Nor does it ask the kernel to be told of the death, since that would wake it in the middle of the
//! failover: a client that spins on that core would lose it, first to this process and then to the dead one's helpers. It holds no descriptor, and outlives the
//! node by at most [`LOOK_FOR_DEATH`] and that wait, however the node ends.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use martlet_fabric::host::process::stand_aside;
use rustix::process::{Pid, getpid, getppid};
use rustix::thread::futex;
use rustix::time::Timespec;

/// The name of the second process in lists of processes. The kernel takes 15 bytes.
const NAME: &std::ffi::CStr = c"martlet-mourner";
/// How often it looks whether the node is still there.
const LOOK_FOR_DEATH: Duration = Duration::from_millis(100);
/// How long it lets others work before it ends, and the kernel tears the memory down.
const MOURNING: Duration = Duration::from_millis(10);
/// The second process only makes system calls.
const STACK_BYTES: usize = 64 << 10;
/// How often a start checks whether the second process has come to an early end.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

const STARTING: u32 = 0;
const READY: u32 = 1;
/// Something was refused; the errno is above the lowest byte.
const REFUSED: u32 = 2;

/// What the two processes share, besides all other memory: how far the second one has come.
struct Plot {
    state: AtomicU32,
    parent: Pid,
    stack: Box<[u128]>,
}

/// The second process. It ends when this is dropped, and when the process that started it ends.
#[derive(Debug)]
pub(crate) struct Undertaker {
    pid: libc::pid_t,
    plot: *mut Plot,
}

impl Undertaker {
    /// Starts the second process, which ends soon after this one.
    ///
    /// # Errors
    /// When the kernel refuses: it has no `close_range` (before Linux 5.9), or a sandbox forbids one of the calls.
    pub(crate) fn start() -> io::Result<Undertaker> {
        let stack = vec![0u128; STACK_BYTES / size_of::<u128>()].into_boxed_slice();
        let plot = Box::into_raw(Box::new(Plot { state: AtomicU32::new(STARTING), parent: getpid(), stack }));
        // SAFETY: `plot` has just been leaked; until the other process exists it is ours alone.
        let top = unsafe { (*plot).stack.as_mut_ptr_range().end };
        // All signals are blocked in the second process for ever: what is sent to a whole process group is meant for the first process, and a handler would run
        // on memory that the first believes to be its own.
        // SAFETY: both sets are initialised by the calls that take them; the calls only change the calling thread's mask.
        let before = unsafe {
            let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
            libc::sigfillset(&mut all);
            libc::pthread_sigmask(libc::SIG_BLOCK, &all, &mut before);
            before
        };
        // The second process shares neither descriptors nor signal handlers: it has a copy of the descriptors, which it closes at once. No signal is sent when
        // it ends, so a program that waits for its children never hears of this one.
        // SAFETY: the stack is large enough for what `tend` calls, aligned, and lives until the process has ended, like the rest of the
        // plot. The process shares this thread's thread-local storage; `tend` argues for that.
        let pid = unsafe { libc::clone(tend, top.cast(), libc::CLONE_VM, plot.cast()) };
        let error = io::Error::last_os_error();
        // SAFETY: puts back the mask that the first call gave.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut()) };
        if pid < 0 {
            // SAFETY: leaked above, and nothing else knows of it.
            drop(unsafe { Box::from_raw(plot) });
            return Err(error);
        }
        let undertaker = Undertaker { pid, plot };
        undertaker.await_ready()?;
        Ok(undertaker)
    }

    /// Waits until the second process only sleeps: what it does before that may change this thread's errno.
    fn await_ready(&self) -> io::Result<()> {
        // SAFETY: the plot lives as long as `self`, and its state is reached only as an atomic while the process runs.
        let state = unsafe { &(*self.plot).state };
        loop {
            match state.load(Ordering::Acquire) {
                STARTING => {
                    let _ = futex::wait(state, futex::Flags::PRIVATE, STARTING, Some(&LOOK));
                    if state.load(Ordering::Acquire) == STARTING && self.has_ended() {
                        return Err(io::Error::other("its process was killed before it was ready"));
                    }
                }
                READY => return Ok(()),
                refused => return Err(io::Error::from_raw_os_error((refused >> 8) as i32)),
            }
        }
    }

    /// Whether the second process has ended. It can still be waited for, unless something else in this process has done that.
    pub(crate) fn has_ended(&self) -> bool {
        // SAFETY: an all-zero siginfo is a valid value, which the call fills; it names our own child.
        unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT | libc::__WALL;
            match libc::waitid(libc::P_PID, self.pid as libc::id_t, &mut info, options) {
                0 => info.si_pid() == self.pid,
                _ => io::Error::last_os_error().raw_os_error() == Some(libc::ECHILD),
            }
        }
    }
}

impl Drop for Undertaker {
    fn drop(&mut self) {
        // SAFETY: plain system calls about our own child, whose number is not given to another process before we have waited for it.
        let ended = unsafe {
            libc::kill(self.pid, libc::SIGKILL);
            let mut status = 0;
            loop {
                let rc = libc::waitpid(self.pid, &mut status, libc::__WALL);
                if rc >= 0 || io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
                    break rc == self.pid;
                }
            }
        };
        if ended {
            // SAFETY: leaked in `start`, and the process that used it is gone.
            drop(unsafe { Box::from_raw(self.plot) });
        } else {
            // Something else has waited for it. It has ended, too, but it is not known since when, so its stack is kept.
            tracing::warn!("another part of this program has waited for the end of the node's second process (martlet-mourner)");
        }
    }
}

/// The second process's whole life.
///
/// It shares the memory of the thread that started it, including that thread's thread-local storage. So it calls nothing that allocates, panics or logs; and
/// while it makes system calls that may fail, and so leave a mark in errno, that thread waits for it.
extern "C" fn tend(plot: *mut libc::c_void) -> libc::c_int {
    // SAFETY: the plot outlives this process; its state is an atomic and the rest is not written any more.
    let (state, parent) = unsafe {
        let plot = plot.cast::<Plot>();
        (&(*plot).state, (*plot).parent)
    };
    let refused = prepare().err();
    state.store(refused.map_or(READY, |errno| errno << 8 | REFUSED), Ordering::Release);
    let _ = futex::wake(state, futex::Flags::PRIVATE, 1);
    if refused.is_some() {
        return 1;
    }
    while getppid() == Some(parent) {
        sleep(LOOK_FOR_DEATH);
    }
    sleep(MOURNING);
    // SAFETY: it ends this process, and nothing else: it shares its thread group with no other process.
    unsafe { libc::_exit(0) }
}

fn sleep(time: Duration) {
    let time = libc::timespec { tv_sec: 0, tv_nsec: time.as_nanos() as i64 };
    // SAFETY: a plain system call that reads a live value. It does not fail, and so leaves no mark in errno: no signal ends it, since all are blocked, and the
    // kernel continues it after a stop.
    unsafe { libc::syscall(libc::SYS_nanosleep, &raw const time, 0) };
}

/// Gives up everything but the memory. The error is an errno.
fn prepare() -> Result<(), u32> {
    // SAFETY: __errno_location points to the thread's errno, which is the waiting thread's.
    let errno = || unsafe { *libc::__errno_location() } as u32;
    // SAFETY: the descriptors are this process's own copies, which nothing in it uses.
    if unsafe { libc::syscall(libc::SYS_close_range, 0, u32::MAX, 0) } != 0 {
        return Err(errno());
    }
    // When that matters, others have work to do, and the second process lets them go first.
    stand_aside();
    // SAFETY: the name ends with a zero byte and is only read.
    unsafe { libc::prctl(libc::PR_SET_NAME, NAME.as_ptr()) };
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn it_ends_with_the_value() {
        let undertaker = Undertaker::start().expect("a process");
        assert!(!undertaker.has_ended());
        let comm = std::fs::read_to_string(format!("/proc/{}/comm", undertaker.pid)).expect("it runs");
        assert_eq!(comm.trim_end(), NAME.to_str().expect("ASCII"));
        let pid = undertaker.pid;
        drop(undertaker);
        // SAFETY: signal 0 only asks whether there is such a process.
        assert_eq!(unsafe { libc::kill(pid, 0) }, -1, "it is gone and has been waited for");
    }

    /// Marks the process that the next test kills.
    const VICTIM: &str = "MARTLET_TEST_UNDERTAKER";

    #[test]
    fn it_ends_after_the_process_that_started_it() {
        if std::env::var_os(VICTIM).is_some() {
            let undertaker = Undertaker::start().expect("a process");
            println!("undertaker {}", undertaker.pid);
            // SAFETY: a plain system call about this process.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
        let mut command = std::process::Command::new(std::env::current_exe().expect("this program"));
        command.args(["--exact", "os::undertaker::tests::it_ends_after_the_process_that_started_it", "--nocapture"]).env(VICTIM, "1");
        let killed = command.output().expect("it runs");
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&killed.status), Some(libc::SIGKILL));
        let said = String::from_utf8_lossy(&killed.stdout);
        let pid: u32 = said.split_once("undertaker ").and_then(|(_, pid)| pid.lines().next()?.trim().parse().ok()).expect("a number");
        // Its name goes with it, even if its number has been reused. The test cannot wait for an orphan.
        let runs = || {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let (name, rest) = stat.rsplit_once(')').unwrap_or_default();
            name.ends_with(NAME.to_str().expect("ASCII")) && !rest.trim_start().starts_with(['Z', 'X'])
        };
        while runs() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn it_holds_no_descriptor_so_that_a_closed_connection_ends_while_it_lives() {
        let (ours, mut theirs) = UnixStream::pair().expect("sockets");
        let undertaker = Undertaker::start().expect("a process");
        drop(ours);
        assert_eq!(theirs.read(&mut [0; 8]).expect("an end, and no error"), 0);
        assert_eq!(std::fs::read_dir(format!("/proc/{}/fd", undertaker.pid)).expect("it runs").count(), 0);
    }

    #[test]
    fn signals_to_the_group_leave_it_alone() {
        let undertaker = Undertaker::start().expect("a process");
        // SAFETY: a plain system call about our own child.
        assert_eq!(unsafe { libc::kill(undertaker.pid, libc::SIGTERM) }, 0);
        // A second one can only be started and made ready after the signal has been delivered, which is immediate.
        drop(Undertaker::start().expect("another"));
        assert!(!undertaker.has_ended());
    }
}
