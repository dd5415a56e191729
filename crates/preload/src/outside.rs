//! Signals that another process sends to a replica's own process, and for which the server has a handler.
//!
//! The signals that `martlet run` passes on come by the log, and each replica raises them itself. A handler that runs at one replica alone parts its server from
//! the others; and a leader whose server ends over such a signal would look as if the server had ended by itself, as it does at all replicas when a client asks
//! it to. So a replica that is sent one ends at once instead, as by `kill -9`.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::children;
use crate::fault::real_sigaction;
use crate::sys;

/// The signals by which people and programs tell a server something.
const SIGNALS: [(c_int, &str); 6] = [
    (libc::SIGHUP, "SIGHUP"),
    (libc::SIGINT, "SIGINT"),
    (libc::SIGQUIT, "SIGQUIT"),
    (libc::SIGUSR1, "SIGUSR1"),
    (libc::SIGUSR2, "SIGUSR2"),
    (libc::SIGTERM, "SIGTERM"),
];

/// The server's handler of a signal. The captured thread writes both words, in [`wants`].
struct Handler {
    /// Where it is; 0: there has been none. A handler of this module, on any thread, calls what is there: stored with release, loaded with acquire.
    address: AtomicUsize,
    /// Whether the server has asked for it with SA_SIGINFO. Only the captured thread reads it.
    takes_info: AtomicBool,
}

/// The server's handlers, each at the place of its signal.
static HANDLERS: [Handler; SIGNALS.len()] =
    [const { Handler { address: AtomicUsize::new(0), takes_info: AtomicBool::new(false) } }; SIGNALS.len()];
/// Whether the server has replicas. Written once, before any is forked, by the captured thread; nothing else depends on it.
static HAS_REPLICAS: AtomicBool = AtomicBool::new(false);

/// From here on the server has replicas.
pub fn note_birth() {
    HAS_REPLICAS.store(true, Ordering::Relaxed);
}

/// `sigaction` for these signals. `None`: it is another one.
///
/// # Safety
/// As for `sigaction`.
pub unsafe fn wants(signal: c_int, action: *const libc::sigaction, before: *mut libc::sigaction) -> Option<c_int> {
    let handler = &HANDLERS[SIGNALS.iter().position(|(known, _)| *known == signal)?];
    let last = (handler.address.load(Ordering::Relaxed), handler.takes_info.load(Ordering::Relaxed));
    // SAFETY: the caller gives pointers to actions, or null; `handle` is a handler of the type that the flag says.
    unsafe {
        let mut ours = action.as_ref().copied();
        if let Some(wanted) = ours.as_mut().filter(|wanted| !matches!(wanted.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN)) {
            handler.takes_info.store(wanted.sa_flags & libc::SA_SIGINFO != 0, Ordering::Relaxed);
            handler.address.store(wanted.sa_sigaction, Ordering::Release);
            (wanted.sa_sigaction, wanted.sa_flags) = (handle as *const () as usize, wanted.sa_flags | libc::SA_SIGINFO);
        }
        let result = real_sigaction(signal, ours.as_ref().map_or(std::ptr::null(), std::ptr::from_ref), before);
        if result == 0
            && let Some(before) = before.as_mut().filter(|before| before.sa_sigaction == handle as *const () as usize)
        {
            before.sa_sigaction = last.0;
            if !last.1 {
                before.sa_flags &= !libc::SA_SIGINFO;
            }
        }
        Some(result)
    }
}

/// Does what the server wants done, unless the signal is from elsewhere and the other replicas do not get it.
extern "C" fn handle(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel gives a valid info. A signal that a process has sent names that process.
    let is_own = unsafe { (*info).si_code <= 0 && i64::from((*info).si_pid()) == libc::syscall(libc::SYS_getpid) };
    let Some(at) = SIGNALS.iter().position(|(known, _)| *known == signal) else { return };
    if !is_own && HAS_REPLICAS.load(Ordering::Relaxed) && !children::is_child() {
        end(SIGNALS[at].1);
    }
    // SAFETY: it is what the server has given for this signal. Like the kernel, this gives three arguments also to a handler that takes only the first.
    unsafe {
        let handler = HANDLERS[at].address.load(Ordering::Acquire);
        let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = std::mem::transmute(handler);
        handler(signal, info, context);
    }
}

/// Says why, and ends this process. The signal may have interrupted an allocation.
fn end(signal: &str) -> ! {
    let parts: [&[u8]; 3] = [
        b"martlet: a replica ends, as by kill -9: it alone was sent ",
        signal.as_bytes(),
        b" (send it to `martlet run`, which tells all replicas)\n",
    ];
    let lines = parts.map(|part| libc::iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() });
    // SAFETY: plain system calls; the pointers are to so many bytes, which are only read.
    unsafe {
        libc::syscall(libc::SYS_writev, sys::MESSAGES.load(Ordering::Relaxed), lines.as_ptr(), lines.len());
        libc::syscall(libc::SYS_kill, libc::syscall(libc::SYS_getpid), libc::SIGKILL);
        libc::_exit(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static HEARD: AtomicUsize = AtomicUsize::new(0);

    extern "C" fn hears(_: c_int) {
        HEARD.fetch_add(1, Ordering::Relaxed);
    }

    #[test]
    fn the_server_sees_its_own_handler_and_gets_what_it_sends_itself() {
        // SAFETY: all zeros are a valid action; the pointers are to live values, and the handler does nothing that it may not do.
        unsafe {
            let (mut action, mut before): (libc::sigaction, libc::sigaction) = (std::mem::zeroed(), std::mem::zeroed());
            assert_eq!(wants(libc::SIGUSR2, std::ptr::null(), &mut before), Some(0));
            assert_eq!(before.sa_sigaction, libc::SIG_DFL);
            (action.sa_sigaction, action.sa_flags) = (hears as *const () as usize, libc::SA_RESTART);
            assert_eq!(wants(libc::SIGUSR2, &action, &mut before), Some(0));
            assert_eq!(before.sa_sigaction, libc::SIG_DFL);
            note_birth();
            libc::raise(libc::SIGUSR2);
            assert_eq!(HEARD.load(Ordering::Relaxed), 1);
            action.sa_sigaction = libc::SIG_IGN;
            assert_eq!(wants(libc::SIGUSR2, &action, &mut before), Some(0));
            assert_eq!((before.sa_sigaction, before.sa_flags & libc::SA_SIGINFO), (hears as *const () as usize, 0));
            libc::raise(libc::SIGUSR2);
            assert_eq!((HEARD.load(Ordering::Relaxed), wants(libc::SIGSEGV, &action, &mut before)), (1, None));
        }
    }
}
