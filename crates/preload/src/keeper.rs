//! Keeps a replica's sockets for its successor.
//!
//! The kernel closes a process's descriptors when it dies, and so ends its connections. So a replica has a second process, its *keeper*, which shares its memory and its
//! table of descriptors and does nothing: `kill -9` of the replica leaves both. The replica that succeeds asks it for the sockets, and lets it go when it has
//! no more use for it. A socket that was accepted just before the death is there as well, since there is no copying that it could be too early for.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use crate::board::Holder;
use crate::sys;

const NAME: &std::ffi::CStr = c"martlet-keeper";
const STACK_BYTES: usize = 64 << 10;
/// How often it looks whether its replica is still there, in milliseconds.
const LOOK_MS: i32 = 1_000;
/// After so many looks without a successor it ends: there is none.
pub const PATIENCE: u32 = 30;
/// Sockets in one message. The kernel takes 253 at most.
const SOCKETS_A_MESSAGE: usize = 128;
/// What a successor says that has no more use for it.
const DISMISSED: u8 = b'd';

/// The highest descriptor of a connection so far, in this replica.
pub static HIGHEST: AtomicI32 = AtomicI32::new(0);

/// Where the pipe is read through which this replica's output goes into Unix sockets; -1: it has none.
pub static PIPE: AtomicI32 = AtomicI32::new(-1);

/// Whether this replica has ever held connections.
pub static HOLDS: AtomicBool = AtomicBool::new(false);

/// What the keeper's process goes by.
#[derive(Clone, Copy)]
struct Charge {
    listener: RawFd,
    replica: libc::pid_t,
}

/// An abstract address. Returns its length, too.
pub fn abstract_address(name: &str) -> (libc::sockaddr_un, libc::socklen_t) {
    // SAFETY: all zeros are a valid value.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    // The first byte stays 0.
    for (to, from) in address.sun_path[1..].iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    let len = size_of::<libc::sa_family_t>() + 1 + name.len();
    (address, len as libc::socklen_t)
}

/// A socket for messages, which may wait or not.
///
/// # Errors
/// As `socket`.
pub fn message_socket() -> io::Result<OwnedFd> {
    // SAFETY: a plain system call.
    sys::owned(unsafe { libc::syscall(libc::SYS_socket, libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0) })
}

fn name_of(holder: Holder) -> String {
    format!("martlet-keeper-{}-{}", holder.pid, holder.started)
}

/// Gives this process a keeper, which ends with it or, where it leaves connections behind, when its successor has them.
///
/// # Errors
/// When the kernel refuses.
pub fn start(holder: Holder) -> io::Result<()> {
    let listener = message_socket()?;
    let (address, len) = abstract_address(&name_of(holder));
    // SAFETY: the pointers are to an address of that length, and to memory of the size asked for; the rest are plain system calls.
    let stack = unsafe {
        sys::checked(libc::syscall(libc::SYS_bind, listener.as_raw_fd(), &address, len))?;
        sys::checked(libc::syscall(libc::SYS_listen, listener.as_raw_fd(), 4))?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK;
        libc::mmap(std::ptr::null_mut(), STACK_BYTES, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
    };
    if stack == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let charge = Box::into_raw(Box::new(Charge { listener: listener.as_raw_fd(), replica: holder.pid }));
    // SAFETY: the sets are initialised by the calls that take them; the stack is large enough for what `keep` calls, and is never unmapped, nor is what it goes by
    // freed. `keep` argues for what is shared beside that. All signals are blocked in it: a handler would run on memory that the replica believes its own.
    unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &all, &mut before);
        let pid = libc::clone(keep, stack.byte_add(STACK_BYTES), libc::CLONE_VM | libc::CLONE_FILES, charge.cast());
        let error = io::Error::last_os_error();
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        if pid < 0 {
            return Err(error);
        }
    }
    // The keeper's, and closed by nobody.
    std::mem::forget(listener);
    Ok(())
}

/// The keeper's whole life.
///
/// It shares the replica's memory, the thread-local storage of its captured thread included. So it calls nothing that allocates or panics; and while the replica lives
/// it only sleeps, in a call that does not fail, so that it leaves no mark in that thread's errno.
extern "C" fn keep(charge: *mut libc::c_void) -> libc::c_int {
    // SAFETY: it was leaked for this process.
    let Charge { listener, replica } = unsafe { *charge.cast::<Charge>() };
    // SAFETY: the name ends with a zero byte.
    unsafe { libc::syscall(libc::SYS_prctl, libc::PR_SET_NAME, NAME.as_ptr(), 0, 0, 0) };
    let mut looks = 0;
    loop {
        let mut waits = libc::pollfd { fd: listener, events: libc::POLLIN, revents: 0 };
        // SAFETY: plain system calls on this process's own table, with pointers to live values.
        unsafe {
            let came = libc::syscall(libc::SYS_poll, &mut waits, 1, LOOK_MS);
            let lives = libc::syscall(libc::SYS_getppid) == libc::c_long::from(replica);
            if came <= 0 {
                looks = if lives { 0 } else { looks + 1 };
                if looks > PATIENCE || (looks > 0 && !HOLDS.load(Ordering::Relaxed)) {
                    libc::syscall(libc::SYS_exit_group, 0);
                }
                continue;
            }
            let client = libc::syscall(libc::SYS_accept4, listener, 0, 0, libc::SOCK_CLOEXEC) as RawFd;
            if client < 0 {
                continue;
            }
            if !lives && is_ours(client) {
                hand_out(client);
                let mut said = 0u8;
                if libc::syscall(libc::SYS_read, client, &mut said, 1) == 1 && said == DISMISSED {
                    libc::syscall(libc::SYS_exit_group, 0);
                }
            }
            libc::syscall(libc::SYS_close, client);
        }
    }
}

/// Whether the process at the other end runs as the same user.
pub fn is_ours(client: RawFd) -> bool {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the pointers are to a place for the value and to its length.
    unsafe {
        libc::syscall(libc::SYS_getsockopt, client, libc::SOL_SOCKET, libc::SO_PEERCRED, &mut peer, &mut len) == 0
            && libc::c_long::from(peer.uid) == libc::syscall(libc::SYS_geteuid)
    }
}

/// A connection, or a socket that is about to be one. Among those over Unix sockets may be some of the library's own: who is given them tells them by their addresses.
fn is_connection(fd: RawFd) -> bool {
    let option = |name: i32| -> i32 {
        let (mut value, mut len) = (-1i32, size_of::<i32>() as libc::socklen_t);
        // SAFETY: the pointers are to a place for the value and to its length.
        unsafe { libc::syscall(libc::SYS_getsockopt, fd, libc::SOL_SOCKET, name, &mut value, &mut len) };
        value
    };
    matches!(option(libc::SO_DOMAIN), libc::AF_INET | libc::AF_INET6 | libc::AF_UNIX)
        && option(libc::SO_TYPE) == libc::SOCK_STREAM
        && option(libc::SO_ACCEPTCONN) == 0
}

/// Sends all connections, in messages of some, and an empty message behind them.
fn hand_out(client: RawFd) {
    let last = HIGHEST.load(Ordering::Relaxed).max(crate::table::FIRST_FD).max(PIPE.load(Ordering::Relaxed));
    let (mut sockets, mut count) = ([0 as RawFd; SOCKETS_A_MESSAGE], 0);
    for fd in 0..=last {
        if is_connection(fd) || fd == PIPE.load(Ordering::Relaxed) {
            sockets[count] = fd;
            count += 1;
            if count == SOCKETS_A_MESSAGE {
                send(client, &sockets);
                count = 0;
            }
        }
    }
    if count > 0 {
        send(client, &sockets[..count]);
    }
    send(client, &[]);
}

#[repr(C, align(16))]
struct Control([u8; Control::BYTES]);

impl Control {
    const BYTES: usize = 64 + 4 * SOCKETS_A_MESSAGE;
}

fn send(client: RawFd, sockets: &[RawFd]) {
    let (mut byte, mut control) = (0u8, Control([0; Control::BYTES]));
    let mut vector = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    // SAFETY: all zeros are a valid header. The control buffer is aligned and has room for one message of so many descriptors, which is written within it.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        (message.msg_iov, message.msg_iovlen) = (&mut vector, 1);
        if !sockets.is_empty() {
            let bytes = size_of_val(sockets) as u32;
            message.msg_control = control.0.as_mut_ptr().cast();
            message.msg_controllen = libc::CMSG_SPACE(bytes) as usize;
            let header = libc::CMSG_FIRSTHDR(&message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(bytes) as usize;
            std::ptr::copy_nonoverlapping(sockets.as_ptr().cast::<u8>(), libc::CMSG_DATA(header), bytes as usize);
        }
        libc::syscall(libc::SYS_sendmsg, client, &message, libc::MSG_NOSIGNAL);
    }
}

/// The sockets that a dead replica left, and its keeper, which keeps them until it is [dismissed](Left::dismiss), or whoever holds this dies.
#[derive(Debug)]
pub struct Left {
    keeper: OwnedFd,
    /// The sockets, some of them perhaps twice.
    pub sockets: Vec<OwnedFd>,
}

/// Asks the keeper of a replica that is certainly dead.
///
/// # Errors
/// When it has none any more: then its connections are lost. So they are where a process of another user has taken its name since.
pub fn ask(holder: Holder) -> io::Result<Left> {
    let keeper = message_socket()?;
    let (address, len) = abstract_address(&name_of(holder));
    // SAFETY: the pointer is to an address of that length.
    sys::checked(unsafe { libc::syscall(libc::SYS_connect, keeper.as_raw_fd(), &address, len) })?;
    if !is_ours(keeper.as_raw_fd()) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let mut left = Left { keeper, sockets: Vec::new() };
    while left.take()? {}
    Ok(left)
}

impl Left {
    /// Takes one message. Returns whether there is more.
    fn take(&mut self) -> io::Result<bool> {
        let (mut byte, mut control) = (0u8, Control([0; Control::BYTES]));
        let mut vector = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
        // SAFETY: all zeros are a valid header; the pointers are to live buffers of the lengths given. What the kernel has written there is walked as it says.
        unsafe {
            let mut message: libc::msghdr = std::mem::zeroed();
            (message.msg_iov, message.msg_iovlen) = (&mut vector, 1);
            (message.msg_control, message.msg_controllen) = (control.0.as_mut_ptr().cast(), Control::BYTES);
            let got = sys::checked(libc::syscall(libc::SYS_recvmsg, self.keeper.as_raw_fd(), &mut message, libc::MSG_CMSG_CLOEXEC))?;
            if got == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let before = self.sockets.len();
            let mut header = libc::CMSG_FIRSTHDR(&message);
            while !header.is_null() {
                if ((*header).cmsg_level, (*header).cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                    let count = ((*header).cmsg_len - libc::CMSG_LEN(0) as usize) / size_of::<RawFd>();
                    for at in 0..count {
                        let fd = std::ptr::read_unaligned(libc::CMSG_DATA(header).cast::<RawFd>().add(at));
                        self.sockets.push(OwnedFd::from_raw_fd(fd));
                    }
                }
                header = libc::CMSG_NXTHDR(&message, header);
            }
            if message.msg_flags & libc::MSG_CTRUNC != 0 {
                return Err(io::Error::other("this process may open no more descriptors"));
            }
            Ok(self.sockets.len() > before)
        }
    }

    /// All that the dead replica held is here, or of no use: its keeper ends, and its memory goes.
    pub fn dismiss(self) {
        // SAFETY: the pointer is to one byte.
        unsafe { libc::syscall(libc::SYS_sendto, self.keeper.as_raw_fd(), &DISMISSED, 1, libc::MSG_NOSIGNAL, 0usize, 0usize) };
    }
}
