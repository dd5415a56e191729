//! A request that crashes the server, or from which the server does not come back: the replica that it kills notes it, and no other replica executes it.
//!
//! A server executes a request when it has read it. So a crash is blamed on the server's last read from a connection, if the server has written to no
//! connection since: that read returns the end of the connection at every other replica. Nothing that the crashed server executed after that read has been
//! answered. What the server executed before that read, in the same round, the others execute as well.
//!
//! Only the server's own faults count: those that the processor found, or that the server signalled to itself, as `abort` does. A process that is killed from
//! outside, with whatever signal, has been given nothing that would harm the others.
//!
//! A server that stays in one round until its replica is taken for dead is treated alike: its successor then finds it alive, not stopped, and long in that
//! round.

use std::ffi::{c_int, c_void};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use crate::board::UnderWay;
use crate::main_thread::in_server;
use crate::sys::{self, Real};

/// The signals that tell a process of its own faults.
const SIGNALS: [c_int; 6] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGABRT, libc::SIGSYS];
/// The size of the stack that the handler, and then the server's own handler, runs on, in bytes. It is separate so that a server that has used up its own stack
/// is noted as well.
const STACK_BYTES: usize = 256 << 10;

static SIGACTION: Real = Real::new(c"sigaction");

/// The round that the server executes; 0: none.
static ROUND: AtomicU64 = AtomicU64::new(0);
/// How often the server has read from connections in this round.
static READS: AtomicU64 = AtomicU64::new(0);
/// The connection of the last read; 0 if the server has written to a connection since.
static CONNECTION: AtomicU64 = AtomicU64::new(0);
/// Where the last read and faults are noted for others, if this replica executes what no other has executed before; null in replicas that only follow.
static NOTED_AT: AtomicPtr<UnderWay> = AtomicPtr::new(std::ptr::null_mut());

/// A read that is answered with the end of its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Void {
    /// The round.
    pub round: u64,
    /// The connection.
    pub connection: u64,
    /// Which of the round's reads, from 1 on.
    pub read: u64,
}

/// The server executes a round from here on.
pub fn begin(round: u64, now_ns: u64) {
    READS.store(0, Ordering::Relaxed);
    CONNECTION.store(0, Ordering::Relaxed);
    ROUND.store(round, Ordering::Relaxed);
    if let Some(words) = noted_at() {
        words.since_ns.store(now_ns, Ordering::Relaxed);
    }
}

/// The server has come back from the round.
pub fn end() {
    ROUND.store(0, Ordering::Relaxed);
    if let Some(words) = noted_at() {
        words.read.clear();
    }
}

/// The server reads from a connection. Returns which read that is.
pub fn reads(connection: u64) -> Void {
    let read = READS.load(Ordering::Relaxed) + 1;
    READS.store(read, Ordering::Relaxed);
    CONNECTION.store(connection, Ordering::Relaxed);
    let read = Void { round: ROUND.load(Ordering::Relaxed), connection, read };
    if let Some(words) = noted_at() {
        words.read.note(read);
    }
    read
}

/// Whether the server has read from a connection in this round, so that it may be executing a request. For any thread.
pub fn has_requests() -> bool {
    READS.load(Ordering::Relaxed) != 0
}

/// The server writes to a connection.
pub fn writes() {
    CONNECTION.store(0, Ordering::Relaxed);
    if let Some(words) = noted_at() {
        words.read.clear();
    }
}

fn noted_at() -> Option<&'static UnderWay> {
    // SAFETY: null, or of the board, which is never taken down.
    unsafe { NOTED_AT.load(Ordering::Acquire).as_ref() }
}

/// From here on reads and faults are noted there; `None`: nowhere.
pub fn note_at(words: Option<&'static UnderWay>) {
    NOTED_AT.store(words.map_or(std::ptr::null_mut(), |words| std::ptr::from_ref(words).cast_mut()), Ordering::Release);
}

/// What the server wants done on each of the signals.
struct Wanted([std::cell::UnsafeCell<libc::sigaction>; SIGNALS.len()]);

// SAFETY: only the captured thread reaches it: `wants` requires that it be called on that thread, and the handler checks that it runs there.
unsafe impl Sync for Wanted {}

// SAFETY: all zeros are a valid value, and mean the default.
static WANTED: Wanted = Wanted(unsafe { std::mem::zeroed() });
static IS_INSTALLED: AtomicBool = AtomicBool::new(false);

fn place(signal: c_int) -> Option<*mut libc::sigaction> {
    SIGNALS.iter().position(|known| *known == signal).map(|at| WANTED.0[at].get())
}

/// `sigaction` of the C library.
///
/// # Safety
/// As for `sigaction`.
pub unsafe fn real_sigaction(signal: c_int, action: *const libc::sigaction, before: *mut libc::sigaction) -> c_int {
    type Function = unsafe extern "C" fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int;
    // SAFETY: it is the C library's function of that name, which has this type.
    let real: Function = unsafe { std::mem::transmute(SIGACTION.address()) };
    // SAFETY: as the caller promises.
    unsafe { real(signal, action, before) }
}

/// Notes what the server wants done on a signal that this module handles first. `None`: it is not such a signal.
///
/// # Safety
/// As for `sigaction`, on the captured thread.
pub unsafe fn wants(signal: c_int, action: *const libc::sigaction, before: *mut libc::sigaction) -> Option<c_int> {
    let place = place(signal).filter(|_| IS_INSTALLED.load(Ordering::Relaxed))?;
    // SAFETY: the place is this thread's; the pointers are the caller's, or null.
    unsafe {
        if !before.is_null() {
            *before = *place;
        }
        if !action.is_null() {
            *place = *action;
        }
    }
    Some(0)
}

/// From here on handles faults of the captured thread. What the program has wanted done until now is done after that.
///
/// # Errors
/// When there is no memory for a stack.
pub fn install() -> io::Result<()> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK;
    // SAFETY: the kernel chooses a free range, which is never unmapped and becomes this thread's second stack for signals. The action is initialised.
    unsafe {
        let base = libc::mmap(std::ptr::null_mut(), STACK_BYTES, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let stack = libc::stack_t { ss_sp: base, ss_flags: 0, ss_size: STACK_BYTES };
        sys::checked(libc::sigaltstack(&stack, std::ptr::null_mut()).into())?;
        for signal in SIGNALS {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handle as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
            if let Some(place) = place(signal) {
                sys::checked(real_sigaction(signal, &action, place).into())?;
            }
        }
    }
    IS_INSTALLED.store(true, Ordering::Relaxed);
    Ok(())
}

/// Notes the fault, and does what the server wants done.
extern "C" fn handle(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel gives a valid info.
    let own = unsafe { (*info).si_code > 0 || i64::from((*info).si_pid()) == libc::syscall(libc::SYS_getpid) };
    let (round, connection) = (ROUND.load(Ordering::Relaxed), CONNECTION.load(Ordering::Relaxed));
    if own
        && in_server()
        && round != 0
        && connection != 0
        && let Some(words) = noted_at()
    {
        words.fault.note(Void { round, connection, read: READS.load(Ordering::Relaxed) });
    }
    // What a server does at its end is its own: no other replica is told of it or repeats it.
    crate::main_thread::release();
    crate::threads::fault();
    let Some(place) = place(signal) else { return };
    // SAFETY: `wants` writes the place on the captured thread, and only outside of this handler. On another thread, the action was noted before that thread was
    // started.
    let wanted = unsafe { *place };
    // SAFETY: the action is one that the server has asked for, or the default. From here on the signal is the server's: one whose action is the default is
    // raised again by its cause, by `abort`, or here.
    unsafe {
        IS_INSTALLED.store(false, Ordering::Relaxed);
        real_sigaction(signal, &wanted, std::ptr::null_mut());
        match wanted.sa_sigaction {
            libc::SIG_DFL | libc::SIG_IGN if (*info).si_code <= 0 => {
                libc::syscall(libc::SYS_tgkill, libc::syscall(libc::SYS_getpid), libc::syscall(libc::SYS_gettid), signal);
            }
            libc::SIG_DFL | libc::SIG_IGN => {}
            // The server's handler wants the stack that the fault was on, and may need more than there is on this one. The kernel calls it there, with the same
            // information, as soon as this handler has returned.
            _ if wanted.sa_flags & libc::SA_ONSTACK == 0 => {
                let (pid, thread) = (libc::syscall(libc::SYS_getpid), libc::syscall(libc::SYS_gettid));
                libc::syscall(libc::SYS_rt_tgsigqueueinfo, pid, thread, signal, info);
            }
            handler if wanted.sa_flags & libc::SA_SIGINFO != 0 => {
                if wanted.sa_flags & libc::SA_RESETHAND != 0 {
                    let default: libc::sigaction = std::mem::zeroed();
                    real_sigaction(signal, &default, std::ptr::null_mut());
                }
                let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = std::mem::transmute(handler);
                handler(signal, info, context);
            }
            handler => {
                let handler: extern "C" fn(c_int) = std::mem::transmute(handler);
                handler(signal);
            }
        }
    }
}
