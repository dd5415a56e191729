//! The entry points: functions of the C library that a server calls, and finds here instead.
//!
//! Each first checks whether it is the server's own code that calls, on the captured thread. Calls from the library itself, and from other threads, go to the
//! kernel. So do calls for descriptors that are not captured.

/// # Safety
/// As for the system call.
macro_rules! kernel {
    ($call:ident $(, $argument:expr)*) => {
        // SAFETY: the arguments are the caller's, who keeps to what the call asks for.
        unsafe { libc::syscall(libc::$call $(, $argument)*) }
    };
}

mod descriptors;
mod files;
mod processes;
mod threads;
mod waits;

use std::ffi::{c_int, c_void};
use std::os::fd::RawFd;

use libc::{clockid_t, iovec, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t, timespec, timeval};

use self::descriptors::numbered;
use crate::birth::{self, with_run};
use crate::main_thread::{InLibrary, in_server};
use crate::replica::with;
use crate::stream::Found;
use crate::sys::{die, fail, set_errno};
use crate::table::Table;
use crate::threads as helpers;
use crate::{clock, fault, outside, own, socket, sys, turnstile};

/// Runs the library's code for a captured connection: `body` gets the replica and the connection's slot. `None`: the descriptor is not captured.
fn on_connection<R>(fd: RawFd, body: impl FnOnce(&mut crate::replica::Replica, u32) -> R) -> Option<R> {
    if !in_server() || fd < crate::table::FIRST_FD {
        if crate::table::OF_CONNECTIONS.contains(&fd) && helpers::is_helper() {
            die(
                "the server uses a client's connection on another thread than the one that waits for its clients: this version replicates servers with one thread for requests",
            );
        }
        return None;
    }
    let _library = InLibrary::enter();
    with(|replica| replica.table.slot_of(fd).map(|slot| body(replica, slot))).flatten()
}

/// Whether this is a captured descriptor. For the library's code.
fn is_captured(fd: RawFd) -> bool {
    with(|replica| replica.table.captures(fd)).or_else(|| with_run(|run| run.early.captures(fd))) == Some(true)
}

/// A call that is not captured would take effect at one replica only, so that the replicas would differ.
fn refuse(fd: RawFd, call: &str) {
    if in_server() {
        let _library = InLibrary::enter();
        if is_captured(fd) {
            die(&format!("the server calls {call} on a connection, which this version does not capture"));
        }
    }
}

fn read_into(fd: c_int, buffer: *mut c_void, len: size_t) -> Option<ssize_t> {
    let found = on_connection(fd, |replica, slot| {
        // SAFETY: the caller gives so many bytes to be written.
        let into = if buffer.is_null() { &mut [] } else { unsafe { std::slice::from_raw_parts_mut(buffer.cast::<u8>(), len) } };
        replica.read(slot, into)
    })?;
    Some(match found {
        Found::Bytes(bytes) => bytes as ssize_t,
        Found::Closed => 0,
        Found::Nothing => fail(libc::EAGAIN) as ssize_t,
        Found::Failed(errno) => fail(errno) as ssize_t,
    })
}

fn write_from(fd: c_int, parts: &[&[u8]]) -> Option<ssize_t> {
    let taken = on_connection(fd, |replica, slot| replica.write(slot, parts))?;
    Some(taken.map_or_else(|errno| fail(errno) as ssize_t, |taken| taken as ssize_t))
}

/// # Safety
/// `buffer` is a pointer to so many bytes, or null.
unsafe fn bytes<'a>(buffer: *const c_void, len: size_t) -> &'a [u8] {
    // SAFETY: as the caller promises.
    if buffer.is_null() { &[] } else { unsafe { std::slice::from_raw_parts(buffer.cast(), len) } }
}

/// The parts of what a server gives in parts. A null pointer with a count of 0 is legal; what else the kernel refuses is left to the kernel.
///
/// # Safety
/// `vectors` is a pointer to so many vectors, each of which gives so many bytes, or null.
unsafe fn parts<'a>(vectors: *const iovec, count: usize) -> Vec<&'a [u8]> {
    if vectors.is_null() {
        return Vec::new();
    }
    // SAFETY: as the caller promises.
    unsafe { std::slice::from_raw_parts(vectors, count).iter().map(|vector| bytes(vector.iov_base, vector.iov_len)).collect() }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn read(fd: c_int, buffer: *mut c_void, len: size_t) -> ssize_t {
    // SAFETY: as the caller promises.
    let answered = || read_into(fd, buffer, len).or_else(|| unsafe { files::read(fd, buffer, len) });
    answered().unwrap_or_else(|| kernel!(SYS_read, fd, buffer, len) as ssize_t)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn recv(fd: c_int, buffer: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
    if flags & !(libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) != 0 {
        refuse(fd, "recv with such flags");
    }
    read_into(fd, buffer, len).unwrap_or_else(|| kernel!(SYS_recvfrom, fd, buffer, len, flags, 0usize, 0usize) as ssize_t)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn recvfrom(
    fd: c_int,
    buffer: *mut c_void,
    len: size_t,
    flags: c_int,
    from: *mut sockaddr,
    from_len: *mut socklen_t,
) -> ssize_t {
    refuse(fd, "recvfrom");
    kernel!(SYS_recvfrom, fd, buffer, len, flags, from, from_len) as ssize_t
}

#[unsafe(no_mangle)]
unsafe extern "C" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    refuse(fd, "recvmsg");
    kernel!(SYS_recvmsg, fd, message, flags) as ssize_t
}

#[unsafe(no_mangle)]
unsafe extern "C" fn readv(fd: c_int, vectors: *const iovec, count: c_int) -> ssize_t {
    if in_server() && fd >= crate::table::FIRST_FD {
        // SAFETY: the caller gives so many vectors.
        let mut vectors = (0..usize::try_from(count).unwrap_or(0)).map(|at| unsafe { *vectors.add(at) });
        // A read may return less than there is room for.
        let first = vectors.find(|vector| vector.iov_len > 0);
        if let Some(got) = first.and_then(|first| read_into(fd, first.iov_base, first.iov_len)) {
            return got;
        }
    }
    kernel!(SYS_readv, fd, vectors, count) as ssize_t
}

#[unsafe(no_mangle)]
unsafe extern "C" fn write(fd: c_int, buffer: *const c_void, len: size_t) -> ssize_t {
    // SAFETY: the caller gives so many bytes.
    let given = unsafe { bytes(buffer, len) };
    let taken = write_from(fd, &[given]).or_else(|| files::write(fd, given));
    taken.unwrap_or_else(|| processes::unheard(fd, len, kernel!(SYS_write, fd, buffer, len) as ssize_t))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn send(fd: c_int, buffer: *const c_void, len: size_t, flags: c_int) -> ssize_t {
    if flags & !(libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) != 0 {
        refuse(fd, "send with such flags");
    }
    // SAFETY: the caller gives so many bytes.
    write_from(fd, &[unsafe { bytes(buffer, len) }])
        .unwrap_or_else(|| kernel!(SYS_sendto, fd, buffer, len, flags, 0usize, 0usize) as ssize_t)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn writev(fd: c_int, vectors: *const iovec, count: c_int) -> ssize_t {
    if in_server() && fd >= crate::table::FIRST_FD {
        // SAFETY: the caller gives so many vectors, each of so many bytes.
        let parts = unsafe { parts(vectors, usize::try_from(count).unwrap_or(0)) };
        if let Some(written) = write_from(fd, &parts) {
            return written;
        }
    } else if in_server() {
        // SAFETY: as above.
        let parts = unsafe { parts(vectors, usize::try_from(count).unwrap_or(0)) };
        if let Some(written) = files::write(fd, &parts.concat()) {
            return written;
        }
    }
    kernel!(SYS_writev, fd, vectors, count) as ssize_t
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sendto(
    fd: c_int,
    buffer: *const c_void,
    len: size_t,
    flags: c_int,
    to: *const sockaddr,
    to_len: socklen_t,
) -> ssize_t {
    refuse(fd, "sendto");
    kernel!(SYS_sendto, fd, buffer, len, flags, to, to_len as usize) as ssize_t
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the caller gives a message, whose vectors are so many, each of so many bytes.
    let given = unsafe { message.as_ref() }
        .filter(|message| message.msg_controllen == 0 && flags & !(libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) == 0);
    if let Some(given) = given.filter(|_| in_server() && fd >= crate::table::FIRST_FD) {
        // SAFETY: as above.
        let parts = unsafe { parts(given.msg_iov, given.msg_iovlen) };
        if let Some(written) = write_from(fd, &parts) {
            return written;
        }
    }
    refuse(fd, "sendmsg");
    kernel!(SYS_sendmsg, fd, message, flags) as ssize_t
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sendfile(to: c_int, from: c_int, offset: *mut off_t, len: size_t) -> ssize_t {
    // SAFETY: as the caller promises.
    unsafe { send_file(to, from, offset, len) }.unwrap_or_else(|| kernel!(SYS_sendfile, to, from, offset, len) as ssize_t)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sendfile64(to: c_int, from: c_int, offset: *mut off_t, len: size_t) -> ssize_t {
    // SAFETY: as the caller promises.
    unsafe { sendfile(to, from, offset, len) }
}

/// Sends part of a file on a connection: every replica reads it here, and writes it. `None`: it is not a connection.
///
/// # Safety
/// `offset` is a pointer to a place in the file, or null.
unsafe fn send_file(to: c_int, from: c_int, offset: *mut off_t, len: size_t) -> Option<ssize_t> {
    const PART_BYTES: usize = 128 << 10;
    on_connection(to, |_, _| ())?;
    // SAFETY: as the caller promises; a plain system call.
    let at = if offset.is_null() { kernel!(SYS_lseek, from, 0, libc::SEEK_CUR) } else { unsafe { offset.read() } };
    let mut part = vec![0_u8; len.min(PART_BYTES)];
    let got = kernel!(SYS_pread64, from, part.as_mut_ptr(), part.len(), at);
    let Ok(got) = usize::try_from(got) else { return Some(-1) };
    let sent = write_from(to, &[&part[..got]])?;
    if sent > 0 {
        if offset.is_null() {
            kernel!(SYS_lseek, from, at + sent as i64, libc::SEEK_SET);
        } else {
            // SAFETY: as the caller promises.
            unsafe { offset.write(at + sent as i64) };
        }
    }
    Some(sent)
}

/// A connection that the server has shut down on its own side cannot be handed over, since the kernel's counts for it no longer fit. So the server is told that
/// the connection is over, and closes it.
#[unsafe(no_mangle)]
unsafe extern "C" fn shutdown(fd: c_int, how: c_int) -> c_int {
    match on_connection(fd, |_, _| ()) {
        Some(()) => fail(libc::ENOTCONN),
        None => kernel!(SYS_shutdown, fd, how) as c_int,
    }
}

/// What is in the log says how much there is to read.
#[unsafe(no_mangle)]
unsafe extern "C" fn ioctl(fd: c_int, request: std::ffi::c_ulong, argument: *mut c_void) -> c_int {
    if request == libc::FIONREAD
        && let Some(unread) = on_connection(fd, |replica, slot| replica.table.get(slot).map_or(0, |connection| connection.stream.unread()))
    {
        // SAFETY: the caller gives room for an int.
        unsafe { argument.cast::<c_int>().write_unaligned(c_int::try_from(unread).unwrap_or(c_int::MAX)) };
        return 0;
    }
    kernel!(SYS_ioctl, fd, request, argument) as c_int
}

#[unsafe(no_mangle)]
unsafe extern "C" fn close(fd: c_int) -> c_int {
    if on_connection(fd, |replica, slot| replica.close(slot)).is_some() {
        return 0;
    }
    if in_server() {
        let _library = InLibrary::enter();
        if with(|replica| replica.close_listener(fd)) == Some(true) {
            return 0;
        }
        // Servers close all numbers that there may be in a loop. Under these, the library's descriptors were not opened by the server, and a connection that
        // the server has closed may still have output to send.
        if birth::is_born() && own::is_withheld(fd) {
            return fail(libc::EBADF);
        }
        own::forget(&(fd..=fd));
    }
    if !crate::children::is_child() {
        crate::files::forget(fd);
    }
    kernel!(SYS_close, fd) as c_int
}

#[unsafe(no_mangle)]
unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    let plain = kind & !(libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK);
    match processes::replicated(|replica| replica.take_withdrawn(domain, plain)) {
        Some(Some(fd)) => fd,
        _ => numbered(|| kernel!(SYS_socket, domain, kind, protocol) as c_int),
    }
}

/// Whether the server prepares a listener that it has closed for new use. The listener keeps its options.
fn is_withdrawn(fd: c_int) -> bool {
    processes::replicated(|replica| replica.table.withdrawn.contains_key(&fd)) == Some(true)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int {
    if is_withdrawn(fd) {
        return 0;
    }
    kernel!(SYS_setsockopt, fd, level, name, value, len) as c_int
}

/// A server that serves is told that no other address is available than those that it has: there is one of each address, and each replica would ask for it.
#[unsafe(no_mangle)]
unsafe extern "C" fn bind(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
    // SAFETY: as the caller promises.
    let wanted = unsafe { bytes(address.cast(), len as usize) };
    if is_withdrawn(fd) {
        return if socket::address(fd, socket::Side::Local) == wanted { 0 } else { fail(libc::EADDRNOTAVAIL) };
    }
    // If the server leaves the port to the kernel, it does not mean to listen.
    let is_certain = match wanted.first_chunk::<4>().map(|[a, b, c, d]| (c_int::from(u16::from_ne_bytes([*a, *b])), [*c, *d])) {
        Some((libc::AF_INET | libc::AF_INET6, port)) => port != [0, 0],
        Some((libc::AF_UNIX, _)) => true,
        _ => false,
    };
    if is_certain && in_server() && birth::is_born() {
        let _library = InLibrary::enter();
        sys::complain("the server wants to listen at one more address after its start, which is not captured: the call fails");
        return fail(libc::EADDRNOTAVAIL);
    }
    kernel!(SYS_bind, fd, address, len) as c_int
}

/// Connections that a server opens are not its clients': each replica would open one.
#[unsafe(no_mangle)]
unsafe extern "C" fn connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
    if in_server() && birth::is_born() {
        let _library = InLibrary::enter();
        sys::complain("the server wants to open a connection, which is not captured: the call fails");
        return fail(libc::EACCES);
    }
    kernel!(SYS_connect, fd, address, len) as c_int
}

#[unsafe(no_mangle)]
unsafe extern "C" fn listen(fd: c_int, backlog: c_int) -> c_int {
    if processes::replicated(|replica| replica.listen_again(fd)) == Some(true) {
        return 0;
    }
    let result = kernel!(SYS_listen, fd, backlog) as c_int;
    if result != 0 || !in_server() {
        return result;
    }
    let _library = InLibrary::enter();
    let kind = |option| sys::socket_option::<c_int>(fd, libc::SOL_SOCKET, option).unwrap_or(-1);
    with_run(|run| match kind(libc::SO_DOMAIN) {
        libc::AF_INET | libc::AF_INET6 | libc::AF_UNIX if !birth::is_born() => {
            run.early.listeners.insert(fd, Default::default());
        }
        _ => die("the server listens at one more address after its start, which this version does not capture"),
    });
    0
}

/// Gives an address to a caller.
///
/// # Safety
/// `address` is a pointer to `*len` bytes, or null.
unsafe fn give_address(known: &[u8], address: *mut sockaddr, len: *mut socklen_t) {
    if address.is_null() || len.is_null() {
        return;
    }
    // SAFETY: as the caller promises; no more is copied than there is room for.
    unsafe {
        let room = (*len as usize).min(known.len());
        std::ptr::copy_nonoverlapping(known.as_ptr(), address.cast::<u8>(), room);
        *len = known.len() as socklen_t;
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn accept4(fd: c_int, address: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int {
    if in_server() {
        let _library = InLibrary::enter();
        let accepted = with(|replica| {
            replica.table.listeners.contains_key(&fd).then(|| {
                let slot = replica.accept_next(fd)?;
                // SAFETY: as the caller promises.
                replica.table.get(slot).inspect(|connection| unsafe { give_address(&connection.stream.peer, address, len) })?;
                Some(Table::fd_of(slot))
            })
        });
        if let Some(Some(accepted)) = accepted {
            return accepted.unwrap_or_else(|| fail(libc::EAGAIN));
        }
    }
    kernel!(SYS_accept4, fd, address, len, flags) as c_int
}

#[unsafe(no_mangle)]
unsafe extern "C" fn accept(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { accept4(fd, address, len, 0) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn getpeername(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
    let known = on_connection(fd, |replica, slot| replica.table.get(slot).map(|connection| connection.stream.peer.clone()));
    match known.flatten() {
        Some(known) => {
            // SAFETY: as the caller promises.
            unsafe { give_address(&known, address, len) };
            0
        }
        None => kernel!(SYS_getpeername, fd, address, len) as c_int,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn getsockname(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
    let known = on_connection(fd, |replica, slot| replica.table.get(slot).map(|connection| connection.stream.local.clone()));
    match known.flatten() {
        Some(known) => {
            // SAFETY: as the caller promises.
            unsafe { give_address(&known, address, len) };
            0
        }
        None => kernel!(SYS_getsockname, fd, address, len) as c_int,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int {
    // The error of a connection is given to the server when it reads, as the log says.
    if (level, name) == (libc::SOL_SOCKET, libc::SO_ERROR) && on_connection(fd, |_, _| ()).is_some() {
        // SAFETY: the caller gives room for an int, and says so.
        unsafe {
            value.cast::<c_int>().write_unaligned(0);
            *len = size_of::<c_int>() as socklen_t;
        }
        return 0;
    }
    kernel!(SYS_getsockopt, fd, level, name, value, len) as c_int
}

/// Memory without a file that the server means to share with its children. Replicas are forks, too, and must not share it with each other.
#[unsafe(no_mangle)]
unsafe extern "C" fn mmap(address: *mut c_void, len: size_t, protection: c_int, flags: c_int, fd: c_int, offset: off_t) -> *mut c_void {
    let mut flags = flags;
    if flags & libc::MAP_ANONYMOUS != 0 && flags & libc::MAP_TYPE == libc::MAP_SHARED && in_server() {
        flags = flags & !libc::MAP_TYPE | libc::MAP_PRIVATE;
    }
    kernel!(SYS_mmap, address, len, protection, flags, fd, offset) as *mut c_void
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mmap64(address: *mut c_void, len: size_t, protection: c_int, flags: c_int, fd: c_int, offset: off_t) -> *mut c_void {
    // SAFETY: as the caller promises.
    unsafe { mmap(address, len, protection, flags, fd, offset) }
}

fn seconds_of(ns: u64) -> (i64, i64) {
    ((ns / 1_000_000_000) as i64, (ns % 1_000_000_000) as i64)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn clock_gettime(clock: clockid_t, time: *mut timespec) -> c_int {
    let is_wall = matches!(clock, libc::CLOCK_REALTIME | libc::CLOCK_REALTIME_COARSE);
    let is_monotonic =
        matches!(clock, libc::CLOCK_MONOTONIC | libc::CLOCK_MONOTONIC_COARSE | libc::CLOCK_MONOTONIC_RAW | libc::CLOCK_BOOTTIME);
    if (is_wall || is_monotonic)
        && in_server()
        && let Some(stamp) =
            if matches!(clock, libc::CLOCK_REALTIME_COARSE | libc::CLOCK_MONOTONIC_COARSE) { clock::read_coarsely() } else { clock::read() }
    {
        let (tv_sec, tv_nsec) = seconds_of(if is_wall { stamp.wall_ns } else { stamp.monotonic_ns });
        // SAFETY: the caller gives a place for the time.
        unsafe { time.write(timespec { tv_sec, tv_nsec }) };
        return 0;
    }
    // SAFETY: as the caller promises.
    unsafe { sys::clock_gettime(clock, time) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn gettimeofday(time: *mut timeval, zone: *mut c_void) -> c_int {
    let _ = zone;
    let ns = if in_server() { clock::read().map(|stamp| stamp.wall_ns) } else { None };
    let (tv_sec, nanoseconds) = seconds_of(ns.unwrap_or_else(|| sys::nanoseconds(libc::CLOCK_REALTIME)));
    if !time.is_null() {
        // SAFETY: the caller gives a place for the time.
        unsafe { time.write(timeval { tv_sec, tv_usec: nanoseconds / 1_000 }) };
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn time(time: *mut libc::time_t) -> libc::time_t {
    let ns = if in_server() { clock::read().map(|stamp| stamp.wall_ns) } else { None };
    let seconds = seconds_of(ns.unwrap_or_else(|| sys::nanoseconds(libc::CLOCK_REALTIME))).0;
    if !time.is_null() {
        // SAFETY: the caller gives a place for the time.
        unsafe { time.write(seconds) };
    }
    seconds
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pthread_cond_wait(condition: *mut libc::pthread_cond_t, mutex: *mut libc::pthread_mutex_t) -> c_int {
    if let Some(_library) = takes_turns() {
        // SAFETY: as the caller promises.
        return unsafe { turnstile::wait_for(condition, mutex) };
    }
    // SAFETY: as the caller promises.
    unsafe { helpers::wait(condition, mutex) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_cond_signal(condition: *mut libc::pthread_cond_t) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { wake(condition, false) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_cond_broadcast(condition: *mut libc::pthread_cond_t) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { wake(condition, true) }
}

/// # Safety
/// As for `pthread_cond_signal`.
unsafe fn wake(condition: *mut libc::pthread_cond_t, all: bool) -> c_int {
    if let Some(_library) = takes_turns() {
        turnstile::wake(condition, all);
        return 0;
    }
    // SAFETY: as the caller promises.
    unsafe { helpers::wake(condition, all) }
}

/// Enters the library, if the server's threads take turns and one of them calls.
fn takes_turns() -> Option<InLibrary> {
    let library = in_server().then(InLibrary::enter)?;
    turnstile::is_on().then_some(library)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_mutex_lock(mutex: *mut libc::pthread_mutex_t) -> c_int {
    if let Some(_library) = takes_turns() {
        // SAFETY: as the caller promises.
        return unsafe { turnstile::lock(mutex) };
    }
    // SAFETY: as the caller promises.
    unsafe { turnstile::real_lock(mutex) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn usleep(us: libc::useconds_t) -> c_int {
    let ns = u64::from(us) * 1_000;
    match takes_turns() {
        Some(_library) => turnstile::sleep(ns),
        None => sys::sleep(ns),
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_setname_np(thread: libc::pthread_t, name: *const std::ffi::c_char) -> c_int {
    static REAL: sys::Real = sys::Real::new(c"pthread_setname_np");
    type Function = unsafe extern "C" fn(libc::pthread_t, *const std::ffi::c_char) -> c_int;
    // SAFETY: the caller gives a text that ends with a zero byte; it is the C library's function of that name, which has this type.
    unsafe {
        if takes_turns().is_some() {
            return 0;
        }
        if thread == libc::pthread_self() {
            helpers::name(std::ffi::CStr::from_ptr(name).to_bytes());
        }
        std::mem::transmute::<*mut c_void, Function>(REAL.address())(thread, name)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sigaction(signal: c_int, action: *const libc::sigaction, before: *mut libc::sigaction) -> c_int {
    if in_server() {
        // SAFETY: as the caller promises; this is the captured thread.
        if let Some(result) = unsafe { fault::wants(signal, action, before).or_else(|| outside::wants(signal, action, before)) } {
            return result;
        }
    }
    // SAFETY: as the caller promises.
    unsafe { fault::real_sigaction(signal, action, before) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn signal(number: c_int, handler: libc::sighandler_t) -> libc::sighandler_t {
    // SAFETY: all zeros are a valid value; what `signal` means is said in terms of `sigaction`, and the pointers are to live values.
    unsafe {
        let (mut action, mut before): (libc::sigaction, libc::sigaction) = (std::mem::zeroed(), std::mem::zeroed());
        (action.sa_sigaction, action.sa_flags) = (handler, libc::SA_RESTART);
        if sigaction(number, &action, &mut before) == 0 { before.sa_sigaction } else { libc::SIG_ERR }
    }
}

/// Runs when the library is loaded, before the server's `main`.
extern "C" fn load() {
    let (Ok(name), Ok(cluster)) = (std::env::var("MARTLET_RUN"), std::env::var("MARTLET_RUN_CLUSTER")) else { return };
    // Programs that the server starts are no replicas, so they must not find these variables.
    let refused = std::env::var("MARTLET_RUN_REFUSED").ok();
    let wording = std::env::var("MARTLET_RUN_WORDING").ok();
    if std::env::var_os("MARTLET_RUN_TURNSTILE").is_some() {
        turnstile::enable();
    }
    let longest = std::env::var("MARTLET_RUN_LONGEST_S").ok();
    for variable in [
        "MARTLET_RUN",
        "MARTLET_RUN_CLUSTER",
        "MARTLET_RUN_REFUSED",
        "MARTLET_RUN_WORDING",
        "MARTLET_RUN_TURNSTILE",
        "MARTLET_RUN_LONGEST_S",
        "LD_PRELOAD",
    ] {
        // SAFETY: this process has one thread so far.
        unsafe { std::env::remove_var(variable) };
    }
    birth::capture(name, &cluster);
    match longest.map(|seconds| seconds.parse::<u32>().map_err(|_| seconds)) {
        Some(Ok(seconds)) => crate::heart::set_longest(u64::from(seconds) * 1_000_000_000),
        Some(Err(text)) => die(&format!("a request may take {text:?} seconds, which is no number")),
        None => {}
    }
    if let Some(Err(error)) = refused.map(|refused| crate::requests::refuse(&refused)) {
        die(&error);
    }
    if let Some(Err(error)) = wording.map(|wording| crate::wording::know_by(&wording)) {
        die(&error);
    }
    if let Err(error) = fault::install() {
        die(&format!("faults of the server cannot be noted: {error}"));
    }
    helpers::capture();
    crate::main_thread::capture();
    set_errno(0);
}

#[used]
#[unsafe(link_section = ".init_array")]
static LOAD: extern "C" fn() = load;
