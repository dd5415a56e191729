//! Calls that make descriptors other than files and connections. Those have the same numbers at every replica: the lowest free ones.

use std::collections::BTreeSet;
use std::ffi::{c_char, c_int, c_long, c_uint};
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::RawFd;

use super::refuse;
use crate::birth::{self, with_run};
use crate::main_thread::{InLibrary, in_server};
use crate::replica::{Replica, with};
use crate::sys::{self, Opening, checked, fail};
use crate::table::{OF_CONNECTIONS, OF_LIBRARY, Table};
use crate::{files, own, threads, turnstile};

/// The flags of `close_range`, which are the same everywhere.
const CLOSE_RANGE_UNSHARE: c_int = libc::CLOSE_RANGE_UNSHARE as c_int;
const CLOSE_RANGE_CLOEXEC: c_int = libc::CLOSE_RANGE_CLOEXEC as c_int;

/// Opens something for the server, under a number that the server may have. If that fails, the caller's call fails.
pub fn numbered(open: impl FnOnce() -> c_int) -> c_int {
    if !in_server() {
        return open();
    }
    let fd = alone(open);
    if fd < 0 { fd } else { sys::numbered(fd).unwrap_or_else(|error| fail(sys::errno_of(error))) }
}

/// Opens something for the server, while the library opens nothing.
pub fn alone(open: impl FnOnce() -> c_int) -> c_int {
    let _opening = in_server().then(Opening::begin);
    open()
}

/// Whether the server may not put a descriptor under this number. A replica cannot do without what the library has there: replacing it would leave clients
/// waiting for ever. Nor could it be moved, since its users have noted its number. So the server is told what it would be told of a number beyond its limit
/// (`RLIMIT_NOFILE`), whatever the library happens to have there, which differs between replicas.
fn is_withheld(to: c_int, call: &str) -> bool {
    if !in_server() {
        return false;
    }
    let _library = InLibrary::enter();
    let is_withheld = own::is_withheld(to);
    if is_withheld {
        sys::complain(&format!(
            "the server calls {call} onto descriptor {to}, which is the library's or a connection's: the call fails with EBADF; allowed are 0 to {}, and those from {} on",
            OF_LIBRARY.start - 1,
            OF_CONNECTIONS.end
        ));
    }
    is_withheld
}

/// Gives a descriptor a second name under a number, by this system call.
fn put_under(fd: c_int, to: c_int, call: &str, put: impl FnOnce() -> c_int) -> c_int {
    refuse(fd, call);
    refuse(to, call);
    if is_withheld(to, call) { fail(libc::EBADF) } else { alone(put) }
}

/// Closes the server's descriptors with these numbers: its connections and listeners as [`super::close`] does, others by the kernel, which may refuse, and then
/// has closed nothing. The library's descriptors were not opened by the server, so they are not the server's to close. For the library's code.
fn close_all(numbers: RangeInclusive<RawFd>) -> io::Result<()> {
    let withheld = (OF_LIBRARY.start..OF_CONNECTIONS.end).filter(|fd| birth::is_born() && own::is_withheld(*fd));
    let listeners =
        |replica: &mut Replica| replica.table.listeners.keys().chain(replica.table.withdrawn.keys()).copied().collect::<Vec<_>>();
    let listeners = with(listeners).unwrap_or_default();
    let left_out: BTreeSet<RawFd> = withheld.chain(listeners.iter().copied()).collect();
    for part in own::parts_without(numbers.clone(), left_out) {
        checked(kernel!(SYS_close_range, *part.start(), *part.end(), 0))?;
        own::forget(&part);
        files::forget_all(&part);
    }
    with(|replica| {
        let slots: Vec<u32> = replica.table.iter().map(|(slot, _)| slot).filter(|slot| numbers.contains(&Table::fd_of(*slot))).collect();
        slots.into_iter().for_each(|slot| replica.close(slot));
        for listener in listeners.into_iter().filter(|fd| numbers.contains(fd)) {
            replica.close_listener(listener);
        }
    });
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    let (unshares, sets_flag) = (flags & CLOSE_RANGE_UNSHARE != 0, flags & CLOSE_RANGE_CLOEXEC != 0);
    // If it is not a valid call, the kernel says so.
    if !in_server() || flags & !(CLOSE_RANGE_UNSHARE | CLOSE_RANGE_CLOEXEC) != 0 || first > last {
        return kernel!(SYS_close_range, first, last, flags) as c_int;
    }
    let _library = InLibrary::enter();
    // The keeper, which hands over the server's connections, shares its table of descriptors. A server with one thread shares it with no other thread of its own,
    // and need not be given a separate table.
    if unshares && (threads::has_helpers() || turnstile::is_on()) {
        sys::complain(
            "the server calls close_range with CLOSE_RANGE_UNSHARE while it has several threads, which is not captured: the call fails with EINVAL",
        );
        return fail(libc::EINVAL);
    }
    // Nothing is captured of a program that the server executes after this.
    if sets_flag {
        return kernel!(SYS_close_range, first, last, CLOSE_RANGE_CLOEXEC) as c_int;
    }
    let Ok(first) = RawFd::try_from(first) else { return 0 };
    close_all(first..=RawFd::try_from(last).unwrap_or(RawFd::MAX)).map_or_else(|error| fail(sys::errno_of(error)), |()| 0)
}

/// As in the C library: failing would leave the caller with descriptors that it believes to be closed.
#[unsafe(no_mangle)]
unsafe extern "C" fn closefrom(first: c_int) {
    let first = first.max(0);
    // SAFETY: as the caller promises; the server's own descriptors are its to close.
    if unsafe { close_range(first as c_uint, c_uint::MAX, 0) } != 0 {
        (first..RawFd::try_from(sys::most_descriptors()).unwrap_or(RawFd::MAX)).for_each(|fd| {
            // SAFETY: as above.
            unsafe { super::close(fd) };
        });
    }
}

/// The keeper, which hands over the server's connections, shares its table of descriptors.
#[unsafe(no_mangle)]
unsafe extern "C" fn unshare(flags: c_int) -> c_int {
    if flags & libc::CLONE_FILES != 0 && in_server() && birth::is_born() {
        let _library = InLibrary::enter();
        sys::complain("the server calls unshare with CLONE_FILES while it serves, which is not captured: the call fails with EINVAL");
        return fail(libc::EINVAL);
    }
    kernel!(SYS_unshare, flags) as c_int
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dup(fd: c_int) -> c_int {
    refuse(fd, "dup");
    numbered(|| kernel!(SYS_dup, fd) as c_int)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dup2(fd: c_int, to: c_int) -> c_int {
    put_under(fd, to, "dup2", || kernel!(SYS_dup2, fd, to) as c_int)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
    put_under(fd, to, "dup3", || kernel!(SYS_dup3, fd, to, flags) as c_int)
}

/// In C the argument after the command has many types, or is missing. On the machines that this is for, it is passed as this one is.
#[unsafe(no_mangle)]
unsafe extern "C" fn fcntl(fd: c_int, command: c_int, argument: c_long) -> c_int {
    if !matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) {
        return kernel!(SYS_fcntl, fd, command, argument) as c_int;
    }
    refuse(fd, "fcntl with F_DUPFD");
    numbered(|| kernel!(SYS_fcntl, fd, command, argument) as c_int)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fcntl64(fd: c_int, command: c_int, argument: c_long) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { fcntl(fd, command, argument) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_create1(flags: c_int) -> c_int {
    numbered(|| kernel!(SYS_epoll_create1, flags) as c_int)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_create(size: c_int) -> c_int {
    if size > 0 { numbered(|| kernel!(SYS_epoll_create1, 0) as c_int) } else { fail(libc::EINVAL) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn signalfd(fd: c_int, signals: *const libc::sigset_t, flags: c_int) -> c_int {
    // The number of bytes for all signals that the kernel has.
    numbered(|| kernel!(SYS_signalfd4, fd, signals, size_of::<u64>(), flags) as c_int)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn inotify_init1(flags: c_int) -> c_int {
    numbered(|| kernel!(SYS_inotify_init1, flags) as c_int)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn inotify_init() -> c_int {
    numbered(|| kernel!(SYS_inotify_init1, 0) as c_int)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memfd_create(name: *const c_char, flags: c_uint) -> c_int {
    numbered(|| kernel!(SYS_memfd_create, name, flags) as c_int)
}

/// The server's threads wake each other through counters. Each replica has its own.
#[unsafe(no_mangle)]
unsafe extern "C" fn eventfd(first: c_uint, flags: c_int) -> c_int {
    let fd = numbered(|| kernel!(SYS_eventfd2, first, flags) as c_int);
    if fd >= 0 && in_server() {
        let _library = InLibrary::enter();
        with_run(|run| run.counters.insert(fd, flags));
    }
    fd
}

/// Each replica has its own timers, but what is read from them is what the leader has read.
#[unsafe(no_mangle)]
unsafe extern "C" fn timerfd_create(clock: c_int, flags: c_int) -> c_int {
    let fd = numbered(|| kernel!(SYS_timerfd_create, clock, flags) as c_int);
    if fd >= 0 && in_server() {
        crate::files::keep_told(fd, None);
    }
    fd
}

#[unsafe(no_mangle)]
unsafe extern "C" fn socketpair(domain: c_int, kind: c_int, protocol: c_int, ends: *mut c_int) -> c_int {
    let made = alone(|| kernel!(SYS_socketpair, domain, kind, protocol, ends) as c_int);
    if made != 0 || !in_server() {
        return made;
    }
    let _library = InLibrary::enter();
    // SAFETY: the caller gives room for two, which the kernel has filled.
    let done = unsafe { number_ends(ends) };
    if let Ok(ends) = done {
        crate::own::note_pair(ends);
    }
    done.map_or_else(fail, |_| 0)
}

/// Does the same for both ends of something. If one of them cannot have such a number, both are closed.
///
/// # Safety
/// `ends` is a pointer to two descriptors, which have just been opened for the caller.
pub unsafe fn number_ends(ends: *mut c_int) -> Result<[RawFd; 2], c_int> {
    // SAFETY: as the caller promises.
    let both = unsafe { [*ends, *ends.add(1)] }.map(sys::numbered);
    match both {
        [Ok(first), Ok(second)] => {
            // SAFETY: as the caller promises.
            unsafe { (*ends, *ends.add(1)) = (first, second) };
            Ok([first, second])
        }
        both => {
            for fd in both.into_iter().flatten() {
                sys::close(fd);
            }
            Err(libc::EMFILE)
        }
    }
}
