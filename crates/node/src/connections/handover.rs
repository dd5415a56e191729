//! How a keeper gives a successor what it keeps: sockets, some in each message.
//!
//! The kernel may refuse a message at the moment: because the successor has not taken the earlier ones, or is stopped, or because the user's processes have as
//! many descriptors in flight as one process may have open. A successor that was given only a part would take the rest for lost. So what has not been sent is
//! sent later, and the keeper, which another successor may ask meanwhile, blocks in no call for it. Nothing that is called here allocates, as
//! [`keeper`](super::keeper) requires, and a message that is refused leaves no mark in errno.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::atomic::Ordering;

use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use super::keeper::{GIVEN, HIGHEST, Keeps, LEDGER, PIPE, SERVICE};
use super::socket;

/// Sockets in one message. The kernel takes 253 at most.
pub(super) const SOCKETS_A_MESSAGE: usize = if cfg!(test) { 4 } else { 128 };
/// How many descriptor numbers the kernel is asked about at once.
const LOOKED_AT_ONCE: usize = 256;
/// A connection that has just been accepted may have a number that is higher, by up to this much, than the highest that is known to be a connection's: it has
/// the lowest that was free.
pub(super) const NEWEST: RawFd = 64;
/// How long after the kernel has refused a message the next attempt is made, in milliseconds.
pub(super) const AGAIN_MS: i32 = 1;
/// After so many refusals of one message the successor is given nothing more: its end of the connection says so.
const MOST_REFUSALS: u32 = 10_000;

/// How far a keeper has got in giving its sockets to the successor that asked last.
pub(super) struct Handover {
    keeps: Keeps,
    /// The port of the service, or 0; the pipe, and the memory that belongs to the connections, or -1.
    port: u16,
    pipe: RawFd,
    ledger: RawFd,
    /// The first number that has not been given, and the last number of all.
    next: RawFd,
    last: RawFd,
    /// How often in a row the kernel has refused a message.
    refusals: u32,
}

/// The outcome of an attempt to give a successor what it lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Came {
    /// The successor has everything.
    All,
    /// The successor accepts no more until it has taken a message.
    Full,
    /// The kernel accepts no message at the moment.
    Refused,
    /// The successor is gone, or can be given nothing.
    Ended,
}

/// How the kernel answers a message.
enum Sent {
    Taken,
    Full,
    Refused,
    /// Something in it cannot be sent, for example because it has been closed.
    Unfit,
    /// No process is at the other end.
    Gone,
}

impl Handover {
    pub fn new(keeps: Keeps) -> Handover {
        let (service, ledger, pipe) = (SERVICE.load(Ordering::Acquire), LEDGER.load(Ordering::Acquire), PIPE.load(Ordering::Relaxed));
        let newest = if keeps == Keeps::Service { NEWEST } else { 0 };
        let last = HIGHEST.load(Ordering::Relaxed).max(pipe).max(ledger) + newest;
        Handover { keeps, port: if service >= 0 { local_port(service) } else { 0 }, pipe, ledger, next: 0, last, refusals: 0 }
    }

    fn is_wanted(&self, fd: RawFd) -> bool {
        match self.keeps {
            Keeps::All => is_connection(fd) || fd == self.pipe,
            Keeps::Service => fd == self.ledger || is_of_service(fd, self.port),
        }
    }

    /// Sends what the successor lacks, as far as the kernel accepts it, and an empty message after everything.
    pub fn go_on(&mut self, client: RawFd) -> Came {
        let (mut sockets, mut most) = ([0; SOCKETS_A_MESSAGE], SOCKETS_A_MESSAGE);
        loop {
            let (count, after) = self.find(&mut sockets[..most]);
            match send(client, GIVEN, &sockets[..count]) {
                Sent::Taken if count == 0 => return Came::All,
                Sent::Taken => (self.next, self.refusals, most) = (after, 0, SOCKETS_A_MESSAGE),
                Sent::Full => return Came::Full,
                Sent::Refused if self.refusals < MOST_REFUSALS => {
                    self.refusals += 1;
                    return Came::Refused;
                }
                // One socket that cannot be sent must not keep others from being sent.
                Sent::Unfit if count > 1 => most = count / 2,
                Sent::Unfit if count == 1 => self.next = after,
                _ => return Came::Ended,
            }
        }
    }

    /// Puts the next sockets that are wanted into `sockets`. Returns how many there are, and the number after the last of them.
    ///
    /// The kernel reports on many numbers at once: a successor waits for this, and most numbers are not in use.
    fn find(&self, sockets: &mut [RawFd]) -> (usize, RawFd) {
        let mut count = 0;
        for first in (self.next..=self.last).step_by(LOOKED_AT_ONCE) {
            let mut looks: [libc::pollfd; LOOKED_AT_ONCE] =
                std::array::from_fn(|at| libc::pollfd { fd: first + at as RawFd, events: 0, revents: 0 });
            // SAFETY: the pointer is to so many values.
            let looked = unsafe { libc::syscall(libc::SYS_poll, looks.as_mut_ptr(), looks.len(), 0) };
            // If the kernel refuses, each of them may be open.
            let is_open = |look: &&libc::pollfd| look.fd <= self.last && (looked < 0 || look.revents & libc::POLLNVAL == 0);
            for look in looks.iter().filter(is_open).filter(|look| self.is_wanted(look.fd)) {
                sockets[count] = look.fd;
                count += 1;
                if count == sockets.len() {
                    return (count, look.fd + 1);
                }
            }
        }
        (count, self.last + 1)
    }
}

/// Sends a message of one byte, with no more sockets than a message has room for. `false`: the kernel has not accepted it.
pub(super) fn say(client: RawFd, byte: u8, sockets: &[RawFd]) -> bool {
    matches!(send(client, byte, sockets), Sent::Taken)
}

fn send(client: RawFd, byte: u8, sockets: &[RawFd]) -> Sent {
    // SAFETY: they are open for as long as this takes; if one is not, the kernel says so.
    let borrowed = |fd: RawFd| unsafe { BorrowedFd::borrow_raw(fd) };
    // Numbers after those that are sent fill the array and are not sent.
    let all: [BorrowedFd<'_>; SOCKETS_A_MESSAGE] = std::array::from_fn(|at| borrowed(sockets.get(at).copied().unwrap_or(client)));
    let sockets = &all[..sockets.len()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SOCKETS_A_MESSAGE))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !sockets.is_empty() && !control.push(SendAncillaryMessage::ScmRights(sockets)) {
        return Sent::Unfit;
    }
    match sendmsg(borrowed(client), &[IoSlice::new(&[byte])], &mut control, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
        Ok(_) => Sent::Taken,
        Err(Errno::AGAIN) => Sent::Full,
        // Either this user has as many descriptors in flight as a process may have open, or there is no memory.
        Err(Errno::TOOMANYREFS | Errno::NOBUFS | Errno::NOMEM | Errno::INTR) => Sent::Refused,
        Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => Sent::Gone,
        Err(_) => Sent::Unfit,
    }
}

/// Whether this is a connection, or a socket that is about to be one. Some of those over Unix sockets may be the process's own: the successor that is given
/// them recognises them by their addresses.
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

/// The port of a socket's own address; 0: it has none.
pub(super) fn local_port(fd: RawFd) -> u16 {
    let mut address = [0u8; socket::MAX_ADDRESS_BYTES];
    let mut len = socket::MAX_ADDRESS_BYTES as libc::socklen_t;
    // SAFETY: the pointers are to so many bytes and to their number.
    let done = unsafe { libc::syscall(libc::SYS_getsockname, fd, address.as_mut_ptr(), &mut len) };
    if done == 0 { socket::port(&address).unwrap_or(0) } else { 0 }
}

/// Whether a descriptor is a connection to the service.
pub(super) fn is_of_service(fd: RawFd, port: u16) -> bool {
    port != 0 && local_port(fd) == port && is_connection(fd)
}
