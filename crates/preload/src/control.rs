//! What a replica and the process that started the server, `martlet run`, tell each other: each message is a line of text. The messages are not documented in
//! `docs/run.md`, because both sides come from one build.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};

use martlet_node::connections::keeper::{abstract_address, is_ours, message_socket};

use crate::sys;

/// The longest message, in bytes.
const MESSAGE_BYTES: usize = 1024;

/// A replica's connection.
#[derive(Debug)]
pub struct Control(OwnedFd);

/// What `martlet run` may ask of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// To fork a replica for this node.
    Fork(u16),
    /// To give all servers this signal.
    Signal(i32),
}

impl Order {
    fn parse(text: &str) -> Option<Order> {
        let (verb, number) = text.split_once(' ')?;
        match verb {
            "fork" => number.parse().ok().map(Order::Fork),
            "signal" => number.parse().ok().map(Order::Signal),
            _ => None,
        }
    }
}

impl Control {
    /// Connects to the process that started the run of this name.
    ///
    /// # Errors
    /// When that process is gone, or a process of another user has taken its name since.
    pub fn connect(run: &str) -> io::Result<Control> {
        let socket = message_socket()?;
        let (address, len) = abstract_address(&format!("martlet-run-{run}"));
        // SAFETY: the pointer is to an address of that length.
        sys::checked(unsafe { libc::syscall(libc::SYS_connect, socket.as_raw_fd(), &address, len) })?;
        if !is_ours(socket.as_raw_fd()) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        Ok(Control(socket))
    }

    /// Its descriptor.
    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Sends a line. It is no error if it is not received: servers go on without the process that started them.
    pub fn tell(&self, line: &str) {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the pointer is to so many bytes.
        unsafe { libc::syscall(libc::SYS_sendto, self.fd(), line.as_ptr(), line.len(), flags, 0usize, 0usize) };
    }

    /// The next order; `None`: there is none at the moment. `Err`: there will be none any more.
    pub fn order(&self) -> Result<Option<Order>, ()> {
        let mut buffer = [0u8; MESSAGE_BYTES];
        // SAFETY: the pointer is to so many bytes.
        let got =
            unsafe { libc::syscall(libc::SYS_recvfrom, self.fd(), buffer.as_mut_ptr(), buffer.len(), libc::MSG_DONTWAIT, 0usize, 0usize) };
        match sys::checked(got) {
            Ok(0) => Err(()),
            Ok(got) => Ok(std::str::from_utf8(&buffer[..got as usize]).ok().and_then(Order::parse)),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(None),
            Err(_) => Err(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_read_and_anything_else_is_none() {
        assert_eq!(Order::parse("fork 3"), Some(Order::Fork(3)));
        assert_eq!(Order::parse("signal 15"), Some(Order::Signal(15)));
        for text in ["", "fork", "fork x", "fork 70000", "halt 1"] {
            assert_eq!(Order::parse(text), None, "{text:?}");
        }
    }
}
