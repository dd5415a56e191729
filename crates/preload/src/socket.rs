//! What the kernel knows of a connection, whichever process holds it.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd as _, OwnedFd, RawFd};

pub use martlet_node::connections::socket::{Counts, SIOCINQ, Side, address, cookie, counts, port, queued};

use crate::sys::{self, Opening};

/// Whether an address is a Unix socket's.
pub fn is_unix(address: &[u8]) -> bool {
    address.first_chunk().is_some_and(|family| i32::from(u16::from_ne_bytes(*family)) == libc::AF_UNIX)
}

/// Whether a connection with this local address came through the listener with that address.
pub fn is_of(local: &[u8], listener: &[u8]) -> bool {
    match is_unix(local) {
        true => local == listener,
        false => port(local).is_some() && port(local) == port(listener),
    }
}

/// Takes a new connection from a listener, in non-blocking mode.
///
/// # Errors
/// As `accept4`.
pub fn accept(listener: RawFd) -> io::Result<OwnedFd> {
    let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: no address is asked for; the call makes a descriptor, which goes nowhere else.
    unsafe { sys::owned(libc::syscall(libc::SYS_accept4, listener, 0, 0, flags)) }
}

/// A socket that is connected to nothing, in place of a leader's that is connected.
///
/// # Errors
/// As `socket`.
pub fn placeholder() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: the call makes a descriptor, which goes nowhere else.
    unsafe { sys::owned(libc::syscall(libc::SYS_socket, libc::AF_INET, kind, 0)) }
}

/// The same descriptor under the lowest free number from `least` on.
///
/// # Errors
/// As `fcntl`.
pub fn duplicate_from(fd: &OwnedFd, least: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: the call makes a descriptor, which goes nowhere else.
    unsafe { sys::owned(libc::syscall(libc::SYS_fcntl, fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, least)) }
}

/// Receives without waiting.
///
/// # Errors
/// As `recv`.
pub fn receive(fd: RawFd, into: &mut [u8]) -> io::Result<usize> {
    receive_with(fd, into, 0)
}

/// Receives from a Unix socket without waiting, but leaves the bytes in the kernel until they are [consumed](consume). Until then [`unconsumed`] says how many
/// of them there are.
///
/// # Errors
/// As `recv`.
pub fn peek(fd: RawFd, into: &mut [u8]) -> io::Result<usize> {
    receive_with(fd, into, libc::MSG_PEEK)
}

/// Takes what has been peeked out of the kernel. Should the process die meanwhile, the kernel still knows how far this has come.
///
/// # Errors
/// As `recv`, and when there is less than that.
pub fn consume(fd: RawFd, mut bytes: usize) -> io::Result<()> {
    let mut waste = [0; 16 << 10];
    while bytes > 0 {
        let most = bytes.min(waste.len());
        match receive_with(fd, &mut waste[..most], 0)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            got => bytes -= got,
        }
    }
    Ok(())
}

/// How many bytes have been peeked from a Unix socket and not consumed.
///
/// # Errors
/// When it is none.
pub fn unconsumed(fd: RawFd) -> io::Result<usize> {
    let offset: i32 = sys::socket_option(fd, libc::SOL_SOCKET, libc::SO_PEEK_OFF)?;
    // -1: it has never been peeked.
    Ok(usize::try_from(offset).unwrap_or(0))
}

/// Makes the next peek begin with the first byte that is not consumed.
///
/// # Errors
/// When it is no Unix socket.
pub fn peek_from_first(fd: RawFd) -> io::Result<()> {
    let (zero, len) = (0i32, size_of::<i32>());
    // SAFETY: the pointer is to an int.
    sys::checked(unsafe { libc::syscall(libc::SYS_setsockopt, fd, libc::SOL_SOCKET, libc::SO_PEEK_OFF, &zero, len) }).map(drop)
}

fn receive_with(fd: RawFd, into: &mut [u8], flags: i32) -> io::Result<usize> {
    let flags = flags | libc::MSG_DONTWAIT;
    loop {
        // SAFETY: the pointer is to so many bytes; no address is asked for.
        let got = unsafe { libc::syscall(libc::SYS_recvfrom, fd, into.as_mut_ptr(), into.len(), flags, 0usize, 0usize) };
        match sys::checked(got) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other.map(|got| got as usize),
        }
    }
}

/// Sends without waiting, as much as the kernel takes.
///
/// # Errors
/// As `send`; it never raises a signal.
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

/// A pipe through which output goes into Unix sockets. The kernel does not count what is written to those, but it does know what is left in a pipe, whichever
/// process holds it.
#[derive(Debug)]
pub struct Pipe {
    /// Where it is read.
    pub out: OwnedFd,
    into: OwnedFd,
}

impl Pipe {
    /// The most that goes through at a time, in bytes: what a pipe holds unless it has been made smaller.
    pub const BYTES: usize = 16 << 10;

    /// An empty one.
    ///
    /// # Errors
    /// As `pipe2`.
    pub fn new() -> io::Result<Pipe> {
        let (mut ends, opening) = ([0i32; 2], Opening::begin());
        // SAFETY: the pointer is to two ints; the descriptors have just been made, for the caller.
        unsafe {
            sys::checked(libc::syscall(libc::SYS_pipe2, ends.as_mut_ptr(), libc::O_NONBLOCK | libc::O_CLOEXEC))?;
            let [out, into] = ends.map(|end| OwnedFd::from_raw_fd(end));
            Ok(Pipe { out: opening.kept(out)?, into: opening.kept(into)? })
        }
    }

    /// Puts bytes into it while it is empty. Returns how many.
    ///
    /// # Errors
    /// As `write`.
    pub fn fill(&self, bytes: &[u8]) -> io::Result<usize> {
        let bytes = &bytes[..bytes.len().min(Self::BYTES)];
        // SAFETY: the pointer is to so many bytes.
        let put = unsafe { libc::syscall(libc::SYS_write, self.into.as_raw_fd(), bytes.as_ptr(), bytes.len()) };
        sys::checked(put).map(|put| put as usize)
    }

    /// Moves up to so many of its bytes into a socket, without waiting.
    ///
    /// # Errors
    /// As `splice`; it never raises a signal inside [`without_broken_pipes`].
    pub fn move_to(&self, fd: RawFd, bytes: usize) -> io::Result<usize> {
        let flags = libc::SPLICE_F_NONBLOCK | libc::SPLICE_F_MOVE;
        // SAFETY: no offsets are given.
        let moved = unsafe { libc::syscall(libc::SYS_splice, self.out.as_raw_fd(), 0usize, fd, 0usize, bytes, flags) };
        sys::checked(moved).map(|moved| moved as usize)
    }

    /// Empties it.
    pub fn drain(&self) {
        let mut waste = [0u8; Self::BYTES];
        // SAFETY: the pointer is to so many bytes.
        while unsafe { libc::syscall(libc::SYS_read, self.out.as_raw_fd(), waste.as_mut_ptr(), waste.len()) } > 0 {}
    }
}

/// How many bytes are left in a pipe.
///
/// # Errors
/// When it is none.
pub fn left_in_pipe(out: RawFd) -> io::Result<u64> {
    queued(out, SIOCINQ)
}

/// Whether a descriptor is a pipe's.
pub fn is_pipe(fd: RawFd) -> bool {
    // SAFETY: all zeros are a valid value; the pointer is to it.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        libc::fstat(fd, &mut stat) == 0 && stat.st_mode & libc::S_IFMT == libc::S_IFIFO
    }
}

/// Runs `body` so that a SIGPIPE, which `splice` raises when a client is gone, does not reach the server.
pub fn without_broken_pipes<R>(body: impl FnOnce() -> R) -> R {
    // SAFETY: the sets are initialised by the calls that take them; only a signal that `body` has raised is taken away.
    unsafe {
        let (mut set, mut before, mut pending): (libc::sigset_t, libc::sigset_t, libc::sigset_t) =
            (std::mem::zeroed(), std::mem::zeroed(), std::mem::zeroed());
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGPIPE);
        libc::pthread_sigmask(libc::SIG_BLOCK, &set, &mut before);
        libc::sigpending(&mut pending);
        let waited_before = libc::sigismember(&pending, libc::SIGPIPE) == 1;
        let result = body();
        let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        if !waited_before {
            libc::sigtimedwait(&set, std::ptr::null_mut(), &at_once);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        result
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
        // SAFETY: the call makes a descriptor, which goes nowhere else.
        unsafe { sys::owned(libc::syscall(libc::SYS_epoll_create1, libc::EPOLL_CLOEXEC)) }.map(Poller)
    }

    /// Watches `fd` for `events`, reported with its number; 0: stops watching it. `before`: what it was watched for so far.
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

    use super::*;

    #[test]
    fn of_a_unix_socket_what_was_peeked_and_what_is_in_the_pipe_say_how_far_it_has_come() {
        use std::os::unix::net::UnixStream;
        let (mut client, server) = UnixStream::pair().expect("a pair");
        let (fd, mut buffer) = (server.as_raw_fd(), [0; 64]);
        peek_from_first(fd).expect("a Unix socket");
        client.write_all(b"abcdefgh").expect("sent");
        assert_eq!((peek(fd, &mut buffer[..5]).expect("there"), unconsumed(fd).expect("one")), (5, 5));
        assert_eq!(&buffer[..5], b"abcde");
        consume(fd, 2).expect("there");
        assert_eq!(unconsumed(fd).expect("one"), 3, "a death may stand between two bytes");
        consume(fd, 3).expect("there");
        assert_eq!((peek(fd, &mut buffer).expect("there"), &buffer[..3]), (3, &b"fgh"[..]));
        peek_from_first(fd).expect("a Unix socket");
        assert_eq!(peek(fd, &mut buffer).expect("there"), 3, "once more");
        consume(fd, 3).expect("there");
        assert_eq!(peek(fd, &mut buffer).expect_err("nothing").kind(), io::ErrorKind::WouldBlock);

        let pipe = Pipe::new().expect("a pipe");
        assert!(is_pipe(pipe.out.as_raw_fd()) && !is_pipe(fd));
        assert_eq!(pipe.fill(b"answer").expect("room"), 6);
        assert_eq!(pipe.move_to(fd, 2).expect("room"), 2);
        assert_eq!(left_in_pipe(pipe.out.as_raw_fd()).expect("a pipe"), 4);
        pipe.drain();
        assert_eq!(left_in_pipe(pipe.out.as_raw_fd()).expect("a pipe"), 0);
        client.read_exact(&mut buffer[..2]).expect("sent");
        assert_eq!(&buffer[..2], b"an");
        drop(client);
        pipe.fill(b"x").expect("room");
        let sent = without_broken_pipes(|| pipe.move_to(fd, 1));
        assert_eq!(sent.expect_err("nobody reads").kind(), io::ErrorKind::BrokenPipe);
    }
}
