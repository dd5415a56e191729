//! Calls to the system that bypass the library's own entry points.
//!
//! What the library, and through it the server, asks of the kernel is passed on by `syscall`, which nothing interposes. The few functions that are more than a
//! system call are looked up in the C library.

use std::ffi::{CStr, c_int, c_long, c_void};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

pub use martlet_fabric::host::descriptors::Opening;
pub use martlet_node::connections::sys::{checked, owned, socket_option};

use crate::table::{OF_CONNECTIONS, OF_LIBRARY};

/// Sets the calling thread's errno.
pub fn set_errno(errno: c_int) {
    // SAFETY: the C library gives a pointer to the calling thread's own variable.
    unsafe { *libc::__errno_location() = errno };
}

/// Returns -1 with this errno, as the C library's functions do.
pub fn fail(errno: c_int) -> c_int {
    set_errno(errno);
    -1
}

/// The errno of an error. An error that has none is treated as one of the system's.
pub fn errno_of(error: io::Error) -> c_int {
    error.raw_os_error().unwrap_or(libc::EIO)
}

/// A function of the C library that this library interposes. It is looked up on first use.
#[derive(Debug)]
pub struct Real {
    name: &'static CStr,
    version: Option<&'static CStr>,
    address: AtomicPtr<c_void>,
}

impl Real {
    /// The next function of that name after this library's own.
    pub const fn new(name: &'static CStr) -> Real {
        Real { name, version: None, address: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// The same with a version, when there are several.
    pub const fn versioned(name: &'static CStr, version: &'static CStr) -> Real {
        Real { name, version: Some(version), address: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// Its address.
    ///
    /// # Panics
    /// When the C library has no such function.
    pub fn address(&self) -> *mut c_void {
        let known = self.address.load(Ordering::Relaxed);
        if !known.is_null() {
            return known;
        }
        // SAFETY: both take texts that end with a zero byte, and look up a symbol.
        let found = unsafe {
            match self.version {
                None => libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()),
                Some(version) => dlvsym(libc::RTLD_NEXT, self.name.as_ptr(), version.as_ptr()),
            }
        };
        assert!(!found.is_null(), "the C library has no {:?}", self.name);
        self.address.store(found, Ordering::Relaxed);
        found
    }
}

unsafe extern "C" {
    fn dlvsym(handle: *mut c_void, name: *const libc::c_char, version: *const libc::c_char) -> *mut c_void;
}

static CLOCK_GETTIME: Real = Real::new(c"clock_gettime");
static FORK: Real = Real::new(c"fork");

/// The time of one of the kernel's clocks, as `clock_gettime` gives it.
///
/// # Safety
/// As for `clock_gettime`: `time` points to a place for the time.
pub unsafe fn clock_gettime(clock: libc::clockid_t, time: *mut libc::timespec) -> c_int {
    type Function = unsafe extern "C" fn(libc::clockid_t, *mut libc::timespec) -> c_int;
    // SAFETY: it is the C library's function of that name, which has this type.
    let real: Function = unsafe { std::mem::transmute(CLOCK_GETTIME.address()) };
    // SAFETY: as the caller promises.
    unsafe { real(clock, time) }
}

/// A clock in nanoseconds.
pub fn nanoseconds(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: it points to a place for the time.
    unsafe { clock_gettime(clock, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// `fork`, with everything that the C library does around it.
///
/// # Safety
/// As for `fork`: of the threads only the calling one is in the child.
pub unsafe fn fork() -> libc::pid_t {
    // SAFETY: it is the C library's function of that name, which has this type.
    let real: unsafe extern "C" fn() -> libc::pid_t = unsafe { std::mem::transmute(FORK.address()) };
    // Threads that do not exist in the child are not in the middle of opening anything there.
    let _opening = Opening::begin();
    // SAFETY: as the caller promises.
    unsafe { real() }
}

/// Waits for so long.
pub fn sleep(ns: u64) {
    let time = libc::timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 };
    // SAFETY: it points to a time, and nothing is written.
    unsafe { libc::syscall(libc::SYS_nanosleep, &time, 0usize) };
}

/// Finds what is ready at an epoll instance, without waiting. Returns how many of `events` are filled.
pub fn ready_at(epoll: RawFd, events: &mut [libc::epoll_event]) -> usize {
    // SAFETY: it points to so many events.
    let ready = unsafe { libc::syscall(libc::SYS_epoll_pwait, epoll, events.as_mut_ptr(), events.len(), 0, 0usize, 8usize) };
    usize::try_from(ready).unwrap_or(0)
}

/// A counter (`eventfd`) that begins with this count.
///
/// # Errors
/// As `eventfd`.
pub fn counter(count: u32, flags: c_int) -> io::Result<OwnedFd> {
    // SAFETY: the call makes a descriptor, which goes nowhere else.
    unsafe { owned(libc::syscall(libc::SYS_eventfd2, count, flags)) }
}

/// Closes a descriptor.
pub fn close(fd: RawFd) -> c_long {
    // SAFETY: the caller owns the descriptor.
    unsafe { libc::syscall(libc::SYS_close, fd) }
}

/// Whether a descriptor is in use.
pub fn is_open(fd: RawFd) -> bool {
    // SAFETY: it only looks at the table of descriptors.
    unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_GETFD) >= 0 }
}

/// Gives a descriptor of the server's another number, above all of them, when the kernel has given it a number that is the library's or a connection's.
///
/// # Errors
/// EMFILE, when the server may not have a descriptor of so high a number.
pub fn numbered(fd: RawFd) -> io::Result<RawFd> {
    if !(OF_LIBRARY.start..OF_CONNECTIONS.end).contains(&fd) {
        return Ok(fd);
    }
    // SAFETY: plain system calls.
    let moved = unsafe {
        let closes = libc::syscall(libc::SYS_fcntl, fd, libc::F_GETFD) as c_int & libc::FD_CLOEXEC != 0;
        let copy = if closes { libc::F_DUPFD_CLOEXEC } else { libc::F_DUPFD };
        checked(libc::syscall(libc::SYS_fcntl, fd, copy, OF_CONNECTIONS.end))
    };
    close(fd);
    moved.map(|fd| fd as RawFd).map_err(|_| io::Error::from_raw_os_error(libc::EMFILE))
}

/// Makes the system call that opens something for the server, in the server's place, and gives the descriptor a number that the server may have.
///
/// # Errors
/// As the call, and as [`numbered`].
pub fn open(make: impl FnOnce() -> c_long) -> io::Result<RawFd> {
    let opening = Opening::begin();
    let fd = checked(make())?;
    drop(opening);
    numbered(fd as RawFd)
}

/// How many descriptors this process may have.
pub fn most_descriptors() -> u64 {
    let mut limit = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: it points to a place for the limit; nothing is changed.
    unsafe { libc::syscall(libc::SYS_prlimit64, 0, libc::RLIMIT_NOFILE, 0usize, &mut limit) };
    limit.rlim_cur
}

/// Lets this process have that many descriptors, or as many as its hard limit allows, if it may have fewer now.
pub fn raise_most_descriptors(to: u64) {
    let mut limit = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: it points to a place for the limit, and then to the limit. If the kernel refuses, it remains as it is.
    unsafe {
        libc::syscall(libc::SYS_prlimit64, 0, libc::RLIMIT_NOFILE, 0usize, &mut limit);
        if limit.rlim_cur < to.min(limit.rlim_max) {
            limit.rlim_cur = to.min(limit.rlim_max);
            libc::syscall(libc::SYS_prlimit64, 0, libc::RLIMIT_NOFILE, &limit, 0usize);
        }
    }
}

/// Makes `fd` another name of `of`, and closes `of`.
pub fn move_to(of: OwnedFd, fd: RawFd) -> io::Result<()> {
    // SAFETY: `of` is the caller's; what was `fd` before is closed, as the caller wants.
    checked(unsafe { libc::syscall(libc::SYS_dup3, of.as_raw_fd(), fd, libc::O_CLOEXEC) }).map(drop)
}

/// Where messages go: standard error, under a number that keeps its meaning.
pub static MESSAGES: AtomicI32 = AtomicI32::new(2);

/// Writes a line for people.
pub fn complain(text: &str) {
    let line = format!("martlet: {text}\n");
    // SAFETY: it points to so many bytes.
    unsafe { libc::syscall(libc::SYS_write, MESSAGES.load(Ordering::Relaxed), line.as_ptr(), line.len()) };
}

/// Says why, and ends this process at once, as `kill -9` would: none of its code may run any more.
pub fn die(why: &str) -> ! {
    complain(&format!("replica of process {} ends: {why}", std::process::id()));
    // SAFETY: plain system calls.
    unsafe {
        libc::syscall(libc::SYS_kill, libc::syscall(libc::SYS_getpid), libc::SIGKILL);
        libc::_exit(1)
    }
}
