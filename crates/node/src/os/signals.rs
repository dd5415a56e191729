//! The signals of a process that is a node and nothing else. `docs/operating.md` has the table.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{sched, stop};

/// Signals that end a process which does not expect them, and mean nothing to a node: SIGHUP as Redis does, SIGPIPE and SIGXFSZ because the call that they come of
/// fails as well and says more, the rest because no one can mean them.
const IGNORED: [libc::c_int; 11] = [
    libc::SIGHUP,
    libc::SIGPIPE,
    libc::SIGXFSZ,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGALRM,
    libc::SIGVTALRM,
    libc::SIGPROF,
    libc::SIGIO,
    libc::SIGPWR,
    libc::SIGSTKFLT,
];

/// The limit of processor time has been reached.
static TIME_IS_UP: AtomicBool = AtomicBool::new(false);

/// Takes the signals of this process: those that are to end a node ask `stop`, and those that must not end one do nothing. What something else in the process has
/// set is left alone, but for SIGTERM, SIGINT and SIGXCPU.
///
/// # Errors
/// When another handle has them, or the system refuses.
pub(crate) fn take(stop: &stop::Stop) -> io::Result<()> {
    stop.on_signals()?;
    for signal in IGNORED {
        ignore_if_unset(signal)?;
    }
    expect_processor_time()
}

/// Lets a write beyond the limit of a file's size (`ulimit -f`) fail with an error, where it would end the process: for commands.
///
/// # Errors
/// When the system refuses.
pub fn ignore_file_size_signal() -> io::Result<()> {
    ignore_if_unset(libc::SIGXFSZ)
}

fn ignore_if_unset(signal: libc::c_int) -> io::Result<()> {
    // SAFETY: an all-zero sigaction is a valid value, which the call fills.
    let mut now: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a live sigaction; nothing is set.
    if unsafe { libc::sigaction(signal, std::ptr::null(), &mut now) } != 0 {
        return Err(io::Error::last_os_error());
    }
    if now.sa_sigaction == libc::SIG_DFL { set(signal, libc::SIG_IGN) } else { Ok(()) }
}

fn set(signal: libc::c_int, handler: libc::sighandler_t) -> io::Result<()> {
    // SAFETY: an all-zero sigaction is a valid value.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: the action is initialised and outlives the call; handlers that are given do only what a handler may.
    if unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// In the calling thread only, a write beyond the limit of a file's size fails with an error and brings no signal that would end the process.
pub(crate) fn expect_full_files() {
    // SAFETY: the set is initialised by the first call; the calls only change the calling thread's mask.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGXFSZ);
        libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
    }
}

/// SIGXCPU comes when a thread of SCHED_FIFO has run for too long at a stretch, and when the process has used up its processor time.
pub(super) fn expect_processor_time() -> io::Result<()> {
    set(libc::SIGXCPU, on_processor_time as extern "C" fn(libc::c_int) as libc::sighandler_t)
}

extern "C" fn on_processor_time(_signal: libc::c_int) {
    // A signal handler: atomics and system calls only, and errno as it was.
    // SAFETY: __errno_location points to the thread's errno for as long as the thread lives.
    let errno = unsafe { *libc::__errno_location() };
    sched::end_budget();
    if is_time_up() {
        TIME_IS_UP.store(true, Ordering::Relaxed);
        stop::request_once_by_signal();
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

fn is_time_up() -> bool {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    let mut used = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: both calls fill live values, and may be made in a handler.
    let known = unsafe {
        libc::getrlimit(libc::RLIMIT_CPU, &mut limit) == 0 && libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut used) == 0
    };
    // With the signal the kernel raises the limit by a second.
    known && limit.rlim_cur != libc::RLIM_INFINITY && used.tv_sec as u64 + 1 >= limit.rlim_cur
}

/// Whether a node was asked to end because its processor time is used up.
pub(crate) fn has_used_up_its_time() -> bool {
    TIME_IS_UP.load(Ordering::Relaxed)
}
