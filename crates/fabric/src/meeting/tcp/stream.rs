//! Messages over TCP, for handshakes. Each is preceded by its length; neither reading nor writing ever blocks.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

/// The longest message.
const MAX_MESSAGE: usize = 16 * 1024;
/// A connection that has been silent for `IDLE` is probed at that interval, and is given up after `PROBES` probes without an answer: a host that dies
/// without a word is noticed within four seconds.
const IDLE: Duration = Duration::from_secs(1);
const PROBES: u32 = 3;

/// A connection.
#[derive(Debug)]
pub(crate) struct Stream {
    socket: TcpStream,
    input: Vec<u8>,
    output: Vec<u8>,
    connecting: bool,
}

/// What [`Stream::receive`] found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// Nothing whole yet.
    Nothing,
    /// The other end is closed.
    End,
    /// Longer than any message of ours.
    TooLong,
    Message(Vec<u8>),
}

impl Stream {
    /// The other end's address.
    pub(crate) fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.socket.peer_addr()
    }

    /// Takes a connection over.
    pub(crate) fn new(socket: TcpStream) -> io::Result<Stream> {
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)?;
        sockopt::set_socket_keepalive(&socket, true)?;
        sockopt::set_tcp_keepidle(&socket, IDLE)?;
        sockopt::set_tcp_keepintvl(&socket, IDLE)?;
        sockopt::set_tcp_keepcnt(&socket, PROBES)?;
        Ok(Stream { socket, input: Vec::new(), output: Vec::new(), connecting: false })
    }

    /// Begins to connect. What is sent meanwhile goes out once the connection is made.
    pub(crate) fn connect(to: SocketAddr) -> io::Result<Stream> {
        let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket: OwnedFd = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
        match rustix::net::connect(&socket, &to) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(Stream { connecting: true, ..Stream::new(TcpStream::from(socket))? })
    }

    /// Whether it waits for room to send, or for the connection to be made.
    pub(crate) fn wants_to_write(&self) -> bool {
        self.connecting || !self.output.is_empty()
    }

    /// Continues to connect and send, as far as that is possible now.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        if self.connecting {
            if let Some(error) = self.socket.take_error()? {
                return Err(error);
            }
            match self.socket.peer_addr() {
                Ok(_) => self.connecting = false,
                Err(error) if error.kind() == io::ErrorKind::NotConnected => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        while !self.output.is_empty() {
            match self.socket.write(&self.output) {
                Ok(sent) => drop(self.output.drain(..sent)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Sends a message, now or as soon as there is room.
    pub(crate) fn send(&mut self, message: &[u8]) -> io::Result<()> {
        self.output.extend_from_slice(&(message.len() as u32).to_le_bytes());
        self.output.extend_from_slice(message);
        self.flush()
    }

    /// Takes the next message.
    pub(crate) fn receive(&mut self) -> Received {
        loop {
            if let Some(found) = take(&mut self.input) {
                return found;
            }
            let mut buffer = [0; 4096];
            match self.socket.read(&mut buffer) {
                Ok(0) => return Received::End,
                Ok(count) => self.input.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Received::Nothing,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if self.connecting && error.kind() == io::ErrorKind::NotConnected => return Received::Nothing,
                Err(_) => return Received::End,
            }
        }
    }
}

/// Takes the next message out of what has arrived. `None`: none is complete yet.
fn take(input: &mut Vec<u8>) -> Option<Received> {
    let (len, rest) = input.split_first_chunk::<4>()?;
    let len = u32::from_le_bytes(*len) as usize;
    if len > MAX_MESSAGE {
        return Some(Received::TooLong);
    }
    let message = rest.get(..len)?.to_vec();
    input.drain(..4 + len);
    Some(Received::Message(message))
}

/// For the fuzz targets: checks that the same messages come out wherever the stream is cut, and that none is longer than allowed.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn check(bytes: &[u8]) {
    let messages = |pieces: &mut dyn Iterator<Item = &[u8]>| {
        let (mut input, mut found) = (Vec::new(), Vec::new());
        for piece in pieces {
            input.extend_from_slice(piece);
            while let Some(received) = take(&mut input) {
                let ends = received == Received::TooLong;
                found.push(received);
                if ends {
                    return found;
                }
            }
            assert!(input.len() < 4 + MAX_MESSAGE, "what has come is a message");
        }
        found
    };
    let Some((&size, bytes)) = bytes.split_first() else { return };
    let whole = messages(&mut std::iter::once(bytes));
    assert_eq!(messages(&mut bytes.chunks(usize::from(size).max(1))), whole, "cut every {size} bytes");
    for received in &whole {
        assert!(matches!(received, Received::TooLong) || matches!(received, Received::Message(message) if message.len() <= MAX_MESSAGE));
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Listens for others.
pub(crate) fn listen(at: SocketAddr) -> io::Result<TcpListener> {
    // The standard library lets a restarted process reuse its address at once.
    let listener = TcpListener::bind(at)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// The next connection that waits, if any.
pub(crate) fn accept(listener: &TcpListener) -> io::Result<Option<Stream>> {
    match listener.accept() {
        Ok((socket, _)) => Stream::new(socket).map(Some),
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two connected streams.
    fn pair() -> (Stream, Stream) {
        let listener = listen(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a port");
        let dialled = Stream::connect(listener.local_addr().expect("bound")).expect("begun");
        loop {
            if let Some(accepted) = accept(&listener).expect("accepted") {
                return (dialled, accepted);
            }
            std::thread::yield_now();
        }
    }

    fn next(stream: &mut Stream) -> Received {
        loop {
            match stream.receive() {
                Received::Nothing => std::thread::yield_now(),
                found => return found,
            }
        }
    }

    #[test]
    fn messages_keep_their_bounds() {
        let (mut dialled, mut accepted) = pair();
        for message in [&b"one"[..], b"", &[7; 10_000]] {
            dialled.send(message).expect("sent");
        }
        while dialled.wants_to_write() {
            dialled.flush().expect("sent");
        }
        for message in [&b"one"[..], b"", &[7; 10_000]] {
            assert_eq!(next(&mut accepted), Received::Message(message.to_vec()));
        }
        assert_eq!(accepted.receive(), Received::Nothing);
        drop(dialled);
        assert_eq!(next(&mut accepted), Received::End);
    }

    #[test]
    fn a_message_too_long_is_not_waited_for() {
        let (mut dialled, mut accepted) = pair();
        dialled.output.extend_from_slice(&(MAX_MESSAGE as u32 + 1).to_le_bytes());
        while dialled.wants_to_write() {
            dialled.flush().expect("sent");
        }
        assert_eq!(next(&mut accepted), Received::TooLong);
    }
}
