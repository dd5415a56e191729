//! What the kernel knows of a connection, whoever holds it.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use crate::entry::MAX_ADDRESS_BYTES;
use crate::sys;

/// SO_COOKIE.
const SO_COOKIE: i32 = 57;
/// Where `struct tcp_info` has its numbers of bytes, and how long it is up to there.
const BYTES_ACKED: usize = 120;
const BYTES_RECEIVED: usize = 128;
const TCP_INFO_BYTES: usize = 136;
const TCP_ESTABLISHED: u8 = 1;
const TCP_CLOSE_WAIT: u8 = 8;
const SIOCINQ: u64 = 0x541b;
const SIOCOUTQ: u64 = 0x5411;

/// How far a connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counts {
    /// Both directions can be told to the byte.
    Exact {
        /// Bytes that have been read out of the kernel.
        read: u64,
        /// Bytes that have been written into it.
        written: u64,
    },
    /// The connection is over, or has been shut down on this side: there is nothing to go on with.
    Over,
}

/// A socket's cookie: the kernel gives each its own, and none twice.
///
/// # Errors
/// When it is no socket.
pub fn cookie(fd: RawFd) -> io::Result<u64> {
    sys::socket_option(fd, libc::SOL_SOCKET, SO_COOKIE)
}

fn queued(fd: RawFd, request: u64) -> io::Result<u64> {
    let mut bytes = 0i32;
    // SAFETY: both requests store a number of bytes where the pointer points.
    sys::checked(unsafe { libc::syscall(libc::SYS_ioctl, fd, request, &mut bytes) })?;
    Ok(bytes as u64)
}

/// How far a TCP connection has come that nobody reads or writes any more.
///
/// Its state is taken before and after the queues' lengths, until nothing has come between: an acknowledgement would shift the sums. A FIN that was received counts as one
/// byte.
///
/// # Errors
/// When it is no TCP connection.
pub fn counts(fd: RawFd) -> io::Result<Counts> {
    let info = || sys::socket_option::<[u8; TCP_INFO_BYTES]>(fd, libc::IPPROTO_TCP, libc::TCP_INFO);
    let number = |info: &[u8; TCP_INFO_BYTES], at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&info[at..at + 8]);
        u64::from_le_bytes(bytes)
    };
    let mut before = info()?;
    loop {
        let (unread, unacknowledged) = (queued(fd, SIOCINQ)?, queued(fd, SIOCOUTQ)?);
        let after = info()?;
        let same = |at| number(&before, at) == number(&after, at);
        if before[0] == after[0] && same(BYTES_ACKED) && same(BYTES_RECEIVED) {
            let (received, acked) = (number(&after, BYTES_RECEIVED), number(&after, BYTES_ACKED));
            let fin = match after[0] {
                TCP_ESTABLISHED => 0,
                TCP_CLOSE_WAIT => 1,
                _ => return Ok(Counts::Over),
            };
            return Ok(match received.checked_sub(fin + unread) {
                Some(read) => Counts::Exact { read, written: acked + unacknowledged },
                None => Counts::Over,
            });
        }
        before = after;
    }
}

/// Whose address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The other one's.
    Peer,
    /// Its own.
    Local,
}

/// A socket's address, as the kernel writes it; empty when there is none any more.
pub fn address(fd: RawFd, side: Side) -> Vec<u8> {
    let mut address = vec![0u8; MAX_ADDRESS_BYTES];
    let mut len = MAX_ADDRESS_BYTES as libc::socklen_t;
    let call = if side == Side::Peer { libc::SYS_getpeername } else { libc::SYS_getsockname };
    // SAFETY: the pointers are to so many bytes and to their number.
    let done = unsafe { libc::syscall(call, fd, address.as_mut_ptr(), &mut len) };
    address.truncate(if done == 0 { (len as usize).min(MAX_ADDRESS_BYTES) } else { 0 });
    address
}

/// The port in an address of the internet's families.
pub fn port(address: &[u8]) -> Option<u16> {
    let family = u16::from_ne_bytes([*address.first()?, *address.get(1)?]);
    let port = u16::from_be_bytes([*address.get(2)?, *address.get(3)?]);
    matches!(i32::from(family), libc::AF_INET | libc::AF_INET6).then_some(port)
}

/// Takes a new connection from a listener, to be used without waiting.
///
/// # Errors
/// As `accept4`.
pub fn accept(listener: RawFd) -> io::Result<OwnedFd> {
    let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: no address is asked for.
    sys::owned(unsafe { libc::syscall(libc::SYS_accept4, listener, 0, 0, flags) })
}

/// A socket that is connected to nothing, and stands where a leader's is connected.
///
/// # Errors
/// As `socket`.
pub fn placeholder() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: a plain system call.
    sys::owned(unsafe { libc::syscall(libc::SYS_socket, libc::AF_INET, kind, 0) })
}

/// The same descriptor under the lowest free number from `least` on.
///
/// # Errors
/// As `fcntl`.
pub fn duplicate_from(fd: &OwnedFd, least: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: a plain system call.
    sys::owned(unsafe { libc::syscall(libc::SYS_fcntl, fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, least) })
}

/// Receives without waiting.
///
/// # Errors
/// As `recv`.
pub fn receive(fd: RawFd, into: &mut [u8]) -> io::Result<usize> {
    loop {
        // SAFETY: the pointer is to so many bytes; no address is asked for.
        let got = unsafe { libc::syscall(libc::SYS_recvfrom, fd, into.as_mut_ptr(), into.len(), libc::MSG_DONTWAIT, 0usize, 0usize) };
        match sys::checked(got) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other.map(|got| got as usize),
        }
    }
}

/// Sends without waiting, as much as the kernel takes.
///
/// # Errors
/// As `send`; never a signal.
pub fn send(fd: RawFd, bytes: &[u8]) -> io::Result<usize> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    loop {
        // SAFETY: the pointer is to so many bytes.
        let sent = unsafe { libc::syscall(libc::SYS_sendto, fd, bytes.as_ptr(), bytes.len(), flags, 0usize, 0usize) };
        match sys::checked(sent) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other.map(|sent| sent as usize),
        }
    }
}

/// An epoll instance of the library's own.
#[derive(Debug)]
pub struct Poller(pub OwnedFd);

impl Poller {
    /// An empty one.
    ///
    /// # Errors
    /// As `epoll_create1`.
    pub fn new() -> io::Result<Poller> {
        // SAFETY: a plain system call.
        sys::owned(unsafe { libc::syscall(libc::SYS_epoll_create1, libc::EPOLL_CLOEXEC) }).map(Poller)
    }

    /// Watches `fd` for `events`, reported with its number; 0: no longer. `before`: what it was watched for.
    ///
    /// # Errors
    /// As `epoll_ctl`.
    pub fn watch(&self, fd: RawFd, before: u32, events: u32) -> io::Result<()> {
        let operation = match (before, events) {
            (before, events) if before == events => return Ok(()),
            (0, _) => libc::EPOLL_CTL_ADD,
            (_, 0) => libc::EPOLL_CTL_DEL,
            _ => libc::EPOLL_CTL_MOD,
        };
        let mut event = libc::epoll_event { events, u64: fd as u64 };
        // SAFETY: the pointer is to an event.
        sys::checked(unsafe { libc::syscall(libc::SYS_epoll_ctl, self.0.as_raw_fd(), operation, fd, &mut event) }).map(drop)
    }

    /// What is ready just now.
    ///
    /// # Errors
    /// As `epoll_wait`.
    pub fn ready<'e>(&self, events: &'e mut [libc::epoll_event]) -> io::Result<&'e [libc::epoll_event]> {
        // SAFETY: the pointer is to so many events.
        let got = unsafe { libc::syscall(libc::SYS_epoll_pwait, self.0.as_raw_fd(), events.as_mut_ptr(), events.len(), 0, 0usize, 8usize) };
        match sys::checked(got) {
            Ok(got) => Ok(&events[..got as usize]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(&[]),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{Shutdown, TcpListener, TcpStream};

    use super::*;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let client = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
        (client, listener.accept().expect("accepted").0)
    }

    /// Until the kernel has all of it.
    fn counts_once(server: &TcpStream, wanted: Counts) {
        while counts(server.as_raw_fd()).expect("a connection") != wanted {
            std::thread::yield_now();
        }
    }

    #[test]
    fn the_kernel_says_how_far_a_connection_has_come() {
        let (mut client, mut server) = pair();
        let exact = |read, written| Counts::Exact { read, written };
        assert_eq!(counts(server.as_raw_fd()).expect("a connection"), exact(0, 0));
        client.write_all(&[1; 100]).expect("sent");
        server.read_exact(&mut [0; 40]).expect("received");
        counts_once(&server, exact(40, 0));
        server.write_all(&[2; 30]).expect("sent");
        counts_once(&server, exact(40, 30));
        client.shutdown(Shutdown::Write).expect("shut down");
        while sys::socket_option::<[u8; TCP_INFO_BYTES]>(server.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO).expect("tcp")[0]
            == TCP_ESTABLISHED
        {
            std::thread::yield_now();
        }
        counts_once(&server, exact(40, 30));
        server.read_exact(&mut [0; 60]).expect("received");
        counts_once(&server, exact(100, 30));
        assert_eq!(server.read(&mut [0; 1]).expect("the end"), 0);
        counts_once(&server, exact(100, 30));
        server.shutdown(Shutdown::Write).expect("shut down");
        counts_once(&server, Counts::Over);
    }

    #[test]
    fn a_cookie_and_an_address_are_the_sockets_whoever_holds_it() {
        let (client, server) = pair();
        let again = server.try_clone().expect("a duplicate");
        let cookie_of = |socket: &TcpStream| cookie(socket.as_raw_fd()).expect("a socket");
        assert_eq!(cookie_of(&server), cookie_of(&again));
        assert_ne!(cookie_of(&server), cookie_of(&client));
        let peer = address(server.as_raw_fd(), Side::Peer);
        assert_eq!(peer, address(client.as_raw_fd(), Side::Local));
        assert_eq!(port(&peer), Some(client.local_addr().expect("bound").port()));
        assert_eq!(port(b""), None);
    }
}
