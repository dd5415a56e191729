//! What the kernel knows of a connection, whichever process holds it.

use std::io;
use std::os::fd::RawFd;

use super::sys;

/// The longest socket address, in bytes: `sizeof(struct sockaddr_storage)`.
pub const MAX_ADDRESS_BYTES: usize = 128;
/// SO_COOKIE.
const SO_COOKIE: i32 = 57;
/// Where `struct tcp_info` has its numbers of bytes, and how long it is up to there.
const BYTES_ACKED: usize = 120;
const BYTES_RECEIVED: usize = 128;
const TCP_INFO_BYTES: usize = 136;
const TCP_ESTABLISHED: u8 = 1;
const TCP_CLOSE_WAIT: u8 = 8;
/// Asks how much there is to read.
pub const SIOCINQ: u64 = 0x541b;
/// Asks how much that was written has not been acknowledged.
pub const SIOCOUTQ: u64 = 0x5411;

/// How far a connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counts {
    /// How far both directions have come is known to the byte.
    Exact {
        /// Bytes that have been read from the kernel.
        read: u64,
        /// Bytes that have been written into it.
        written: u64,
    },
    /// The connection is over, or has been shut down on this side: it cannot be continued.
    Over,
}

/// A socket's cookie. The kernel gives each socket one of its own, and none twice.
///
/// # Errors
/// When it is no socket.
pub fn cookie(fd: RawFd) -> io::Result<u64> {
    sys::socket_option(fd, libc::SOL_SOCKET, SO_COOKIE)
}

/// How many bytes are in one of the queues of a socket or a pipe: `request` is [`SIOCINQ`] or [`SIOCOUTQ`].
///
/// # Errors
/// When it has none.
pub fn queued(fd: RawFd, request: u64) -> io::Result<u64> {
    let mut bytes = 0i32;
    // SAFETY: both requests store a number of bytes where the pointer points.
    sys::checked(unsafe { libc::syscall(libc::SYS_ioctl, fd, request, &mut bytes) })?;
    Ok(bytes as u64)
}

/// How far a TCP connection has come that no process reads or writes any more.
///
/// Its state is taken before and after the queues' lengths, and again until nothing has come between: an acknowledgement in between would falsify the sums. A
/// FIN that was received counts as one byte.
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

/// Which side's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The other side's.
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

/// The port in an address of the internet families.
pub fn port(address: &[u8]) -> Option<u16> {
    let family = u16::from_ne_bytes([*address.first()?, *address.get(1)?]);
    let port = u16::from_be_bytes([*address.get(2)?, *address.get(3)?]);
    matches!(i32::from(family), libc::AF_INET | libc::AF_INET6).then_some(port)
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::os::fd::AsRawFd as _;

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
