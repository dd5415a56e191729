//! Children, and what the server is told of its own process.

use std::ffi::{c_char, c_int, c_void};

use libc::{pid_t, rusage, size_t, ssize_t};

use crate::answers::Call;
use crate::birth::{self, with_run};
use crate::children;
use crate::main_thread::{InLibrary, in_server};
use crate::replica::{Replica, with};
use crate::sys::{self, Real, checked, complain, fail};

/// Runs the library's code for a call of a server that has replicas. `None`: it has none yet, or the caller is not the server.
pub fn replicated<R>(body: impl FnOnce(&mut Replica) -> R) -> Option<R> {
    if !in_server() || !birth::is_born() {
        return None;
    }
    let _library = InLibrary::enter();
    with(body)
}

/// What the C library returns for this outcome of a call.
pub fn returned(result: Result<i64, i32>) -> i64 {
    result.unwrap_or_else(|errno| fail(errno).into())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fork() -> pid_t {
    if !in_server() {
        // SAFETY: as the caller promises.
        return unsafe { sys::fork() };
    }
    let library = InLibrary::enter();
    if !birth::is_born() {
        if with_run(|_| ()).is_none() {
            // SAFETY: as the caller promises.
            return unsafe { sys::fork() };
        }
        complain(
            "the server wants to fork before it serves, which is not captured: the call fails. If the server leaves the foreground, tell it not to",
        );
        return fail(libc::ENOSYS);
    }
    match with(Replica::fork_child) {
        Some(Ok(0)) => {
            library.release();
            0
        }
        Some(Ok(pid)) => pid,
        Some(Err(errno)) => fail(errno),
        None => fail(libc::EAGAIN),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn vfork() -> pid_t {
    // SAFETY: as the caller promises; a child with a copy of the memory does all that one without may do.
    unsafe { fork() }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _exit(code: c_int) -> ! {
    if children::is_child() {
        children::ends(with(|replica| replica.board), code);
    }
    loop {
        kernel!(SYS_exit_group, code);
    }
}

/// The result of a write. A child goes on after the death of its leader: that no process reads what it writes is no reason for it to end.
pub fn unheard(fd: c_int, len: size_t, written: ssize_t) -> ssize_t {
    let is_unheard = || std::io::Error::last_os_error().raw_os_error() == Some(libc::EPIPE) && crate::socket::is_pipe(fd);
    if written < 0 && children::is_child() && is_unheard() { len as ssize_t } else { written }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn wait4(pid: pid_t, status: *mut c_int, options: c_int, usage: *mut rusage) -> pid_t {
    let waited = replicated(|replica| replica.wait_for(pid, options & libc::WNOHANG == 0));
    let Some(waited) = waited else { return kernel!(SYS_wait4, pid, status, options, usage) as pid_t };
    match waited {
        Ok(Some((pid, how))) => {
            // SAFETY: the caller gives places for both, or null.
            unsafe {
                if !status.is_null() {
                    *status = how;
                }
                if !usage.is_null() {
                    *usage = std::mem::zeroed();
                }
            }
            pid
        }
        Ok(None) => 0,
        Err(errno) => fail(errno),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn waitpid(pid: pid_t, status: *mut c_int, options: c_int) -> pid_t {
    // SAFETY: as the caller promises.
    unsafe { wait4(pid, status, options, std::ptr::null_mut()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn wait3(status: *mut c_int, options: c_int, usage: *mut rusage) -> pid_t {
    // SAFETY: as the caller promises.
    unsafe { wait4(-1, status, options, usage) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn wait(status: *mut c_int) -> pid_t {
    // SAFETY: as the caller promises.
    unsafe { wait4(-1, status, 0, std::ptr::null_mut()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn kill(pid: pid_t, signal: c_int) -> c_int {
    let sent = replicated(|replica| replica.children.has(pid).then(|| replica.signal_child(pid, signal)));
    if let Some(Some(sent)) = sent {
        return returned(sent) as c_int;
    }
    // The server knows itself under this number, at every replica.
    let pid = if in_server() && pid == birth::shown_pid() { kernel!(SYS_getpid) as pid_t } else { pid };
    kernel!(SYS_kill, pid, signal) as c_int
}

#[unsafe(no_mangle)]
unsafe extern "C" fn getpid() -> pid_t {
    if in_server() && birth::shown_pid() != 0 { birth::shown_pid() } else { kernel!(SYS_getpid) as pid_t }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn getrusage(who: c_int, usage: *mut rusage) -> c_int {
    let looked = replicated(|replica| {
        // SAFETY: the caller gives a place for the value, which is plain data.
        let into = unsafe { std::slice::from_raw_parts_mut(usage.cast::<u8>(), size_of::<rusage>()) };
        replica.look(Call::Usage, into, |bytes| checked(kernel!(SYS_getrusage, who, bytes.as_mut_ptr())))
    });
    looked.map_or_else(|| kernel!(SYS_getrusage, who, usage) as c_int, |looked| returned(looked) as c_int)
}

static MALLCTL: Real = Real::new(c"mallctl");

/// What jemalloc says of memory. What jemalloc is asked to do is done at each replica.
#[unsafe(no_mangle)]
unsafe extern "C" fn mallctl(name: *const c_char, old: *mut c_void, old_len: *mut size_t, new: *mut c_void, new_len: size_t) -> c_int {
    type Function = unsafe extern "C" fn(*const c_char, *mut c_void, *mut size_t, *mut c_void, size_t) -> c_int;
    // SAFETY: only a program that has it calls it, and there it has this type.
    let real: Function = unsafe { std::mem::transmute(MALLCTL.address()) };
    // SAFETY: as the caller promises.
    let done = unsafe { real(name, old, old_len, new, new_len) };
    if !old.is_null() && !old_len.is_null() {
        replicated(|replica| {
            // SAFETY: the caller gives so many bytes to be written.
            let into = unsafe { std::slice::from_raw_parts_mut(old.cast::<u8>(), *old_len) };
            replica.look(Call::Allocator, into, |_| Ok(0))
        });
    }
    done
}
