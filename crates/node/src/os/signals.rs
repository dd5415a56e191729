//! The signals of a process that is a node and nothing else. `docs/operating.md` has the table.

use std::io::{self, Write as _};
use std::mem::MaybeUninit;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::Timespec;

use super::{sched, stop};

/// Signals that would end a process that does not expect them, and that mean nothing to a node. SIGHUP is ignored as Redis does; SIGPIPE and SIGXFSZ because
/// the call that raises them fails too, with a more precise error; the rest because they cannot be meant for a node. All real-time signals are ignored as well,
/// except the two that the C library reserves.
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

/// Signals that end a node, because of a fault or because a core dump is wanted, and their names: the node's log says which one it was.
const FATAL: [(libc::c_int, &str); 8] = [
    (libc::SIGQUIT, "SIGQUIT"),
    (libc::SIGILL, "SIGILL"),
    (libc::SIGTRAP, "SIGTRAP"),
    (libc::SIGABRT, "SIGABRT"),
    (libc::SIGBUS, "SIGBUS"),
    (libc::SIGFPE, "SIGFPE"),
    (libc::SIGSEGV, "SIGSEGV"),
    (libc::SIGSYS, "SIGSYS"),
];

/// What was set for them before: the runtime's handler for a stack overflow.
static BEFORE: [OnceLock<libc::sigaction>; FATAL.len()] = [const { OnceLock::new() }; FATAL.len()];

/// How many seconds of processor time the process may use before it is asked to end; 0: no limit has been given.
static SECONDS: AtomicU64 = AtomicU64::new(0);
/// The limit of processor time has been reached.
static TIME_IS_UP: AtomicBool = AtomicBool::new(false);

/// Handles the signals of this process: those that are to end a node ask `stop`, and those that must not end one do nothing. What something else in the process
/// has set is left alone, except for SIGTERM, SIGINT and SIGXCPU.
///
/// # Errors
/// When another handle has them, or the system refuses.
pub(crate) fn take(stop: &stop::Stop) -> io::Result<()> {
    stop.on_signals()?;
    for signal in IGNORED.into_iter().chain(libc::SIGRTMIN()..=libc::SIGRTMAX()) {
        ignore_if_unset(signal)?;
    }
    for ((signal, _), before) in FATAL.iter().zip(&BEFORE) {
        if before.get().is_none() {
            let _ = before.set(current(*signal)?);
            set(*signal, on_fatal as extern "C" fn(_, _, _) as libc::sighandler_t, libc::SA_SIGINFO | libc::SA_ONSTACK)?;
        }
    }
    expect_processor_time()
}

/// Makes a write beyond the limit of a file's size (`ulimit -f`) fail with an error instead of ending the process. For commands.
///
/// # Errors
/// When the system refuses.
pub fn ignore_file_size_signal() -> io::Result<()> {
    ignore_if_unset(libc::SIGXFSZ)
}

fn current(signal: libc::c_int) -> io::Result<libc::sigaction> {
    let mut now = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: the pointer is to a place for a sigaction; nothing is set.
    if unsafe { libc::sigaction(signal, std::ptr::null(), now.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: all zeros are a valid value, which the call has filled.
    Ok(unsafe { now.assume_init() })
}

fn ignore_if_unset(signal: libc::c_int) -> io::Result<()> {
    if current(signal)?.sa_sigaction == libc::SIG_DFL { set(signal, libc::SIG_IGN, 0) } else { Ok(()) }
}

fn set(signal: libc::c_int, handler: libc::sighandler_t, flags: libc::c_int) -> io::Result<()> {
    // SAFETY: an all-zero sigaction is a valid value.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler;
    action.sa_flags = libc::SA_RESTART | flags;
    // SAFETY: the action is initialised and outlives the call; handlers that are given do only what a handler may.
    if unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// In the calling thread only: a write beyond the limit of a file's size fails with an error, and raises no signal that would end the process.
pub(crate) fn expect_full_files() {
    // SAFETY: the set is initialised by the first call; the calls only change the calling thread's mask.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGXFSZ);
        libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
    }
}

/// SIGXCPU comes when a SCHED_FIFO thread has run for too long at a stretch, and when the process has used up its processor time.
pub(super) fn expect_processor_time() -> io::Result<()> {
    set(libc::SIGXCPU, on_processor_time as extern "C" fn(libc::c_int) as libc::sighandler_t, 0)
}

/// Reports which signal ends the process, and then lets it end.
extern "C" fn on_fatal(signal: libc::c_int, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    let at = FATAL.iter().position(|(number, _)| *number == signal);
    let name = at.map_or("a signal", |at| FATAL[at].1);
    // SAFETY: the kernel gives a handler with SA_SIGINFO a valid siginfo; which of its fields are filled follows from the code.
    let (sent, pid, address) = unsafe { ((*info).si_code <= 0, (*info).si_pid(), (*info).si_addr()) };
    let mut text = [0u8; 160];
    let mut line = io::Cursor::new(&mut text[..]);
    let me = std::process::id();
    let _ = match sent {
        false => writeln!(line, "martlet: process {me} ends by {name}, a fault at {address:p}"),
        true if pid as u32 == me => writeln!(line, "martlet: process {me} ends by {name}, of its own doing"),
        true => writeln!(line, "martlet: process {me} ends by {name}, which process {pid} has sent"),
    };
    let length = line.position() as usize;
    say_unless_it_blocks(&text[..length]);
    // Another thread's fault may be handled here at the same time; each of them ends the process.
    let before = at.and_then(|at| BEFORE[at].get()).filter(|_| !sent);
    // SAFETY: an all-zero sigaction is a valid value: the default. The other is what the system has reported. Both calls may be made in a handler.
    unsafe {
        let default: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, before.unwrap_or(&default), std::ptr::null_mut());
        // A fault recurs as soon as this returns, and then has its usual effect. A signal that was sent has to be sent again, and is pending until then.
        if sent {
            libc::raise(signal);
        }
    }
}

/// Writes to standard error from a signal handler, but not if that would mean waiting for a reader, since other processes wait for this one to be gone.
fn say_unless_it_blocks(text: &[u8]) {
    // SAFETY: the number of standard error, which is not closed here. Where the program has closed it, the calls fail.
    let stderr = unsafe { std::os::fd::BorrowedFd::borrow_raw(2) };
    let mut fds = [PollFd::new(&stderr, PollFlags::OUT)];
    if poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(1) && fds[0].revents().contains(PollFlags::OUT) {
        let _ = rustix::io::write(stderr, text);
    }
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

/// Arranges for SIGXCPU to come when the process has used so many seconds, and to be taken for the end of its processor time.
pub(crate) fn end_after(seconds: u64) -> io::Result<()> {
    let maximum = getrlimit(Resource::Cpu).maximum;
    SECONDS.store(seconds, Ordering::Relaxed);
    Ok(setrlimit(Resource::Cpu, Rlimit { current: Some(seconds), maximum })?)
}

fn is_time_up() -> bool {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call fills a live value, and may be made in a handler.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_CPU, &mut limit) == 0 };
    let ours = SECONDS.load(Ordering::Relaxed);
    // With the signal the kernel raises the limit by a second. No clock shows what the kernel has counted: it charges whole ticks.
    known && ours > 0 && limit.rlim_cur > ours
}

/// Whether a node was asked to end because its processor time is used up.
pub(crate) fn has_used_up_its_time() -> bool {
    TIME_IS_UP.load(Ordering::Relaxed)
}
