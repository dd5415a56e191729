//! One connection: what has arrived and is not executed, what is executed and has not gone.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use martlet_protocol::basics::Time;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};

use super::output::Output;
use crate::commands::ClientSlot;
use crate::resp::RequestParser;

/// Above so many bytes an emptied input buffer is given back.
const KEPT_BYTES: usize = 16 << 10;

/// What a read found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// So many bytes.
    Bytes(usize),
    /// Nothing at the moment.
    Nothing,
    /// The client will send no more.
    End,
}

/// How long a connection stays that is not listened to any more.
#[derive(Clone, Copy, Debug)]
pub(super) struct Linger {
    /// So many bytes more are read.
    pub(super) bytes: usize,
    /// And nothing from then on.
    pub(super) until: Time,
}

/// A client's connection.
#[derive(Debug)]
pub(super) struct Connection {
    fd: OwnedFd,
    /// What commands know of it.
    pub(super) slot: ClientSlot,
    pub(super) parser: RequestParser,
    /// What arrived and is not executed yet. Usually empty: what is read whole is executed where it was read.
    pub(super) input: Vec<u8>,
    pub(super) output: Output,
    /// Something may be there to read; the event set tells only once.
    pub(super) readable: bool,
    /// The other end has ended, or broken off: after what there is to read comes nothing, of which the event set does not tell again.
    pub(super) ended: bool,
    /// It waits in the queue of those to serve.
    pub(super) queued: bool,
    /// It is on the list of those that linger.
    pub(super) listed_lingering: bool,
    /// It is on the list of those with output.
    pub(super) listed: bool,
    /// The socket took no more; the event set will tell.
    pub(super) blocked: bool,
    /// Too many replies wait for the client; it is not served until they have gone.
    pub(super) paused: bool,
    /// Whole requests may stand in its input: the turn's budget, or the client's reading, ended before they did.
    pub(super) unfinished: bool,
    /// No more requests; it ends when its output has gone.
    pub(super) closing: bool,
    /// The client is sending more than it may: for a while what comes is read and dropped. To close the connection at once would reset it, and the client,
    /// which sends all of its value before it reads, would be told of that, and not of its mistake.
    pub(super) lingers: Option<Linger>,
    /// The other end has been told that nothing more comes.
    shut: bool,
}

impl Connection {
    pub(super) fn new(fd: OwnedFd, slot: ClientSlot) -> Connection {
        Connection {
            fd,
            slot,
            parser: RequestParser::new(),
            input: Vec::new(),
            output: Output::default(),
            readable: true,
            ended: false,
            queued: false,
            listed_lingering: false,
            listed: false,
            blocked: false,
            paused: false,
            unfinished: false,
            closing: false,
            lingers: None,
            shut: false,
        }
    }

    /// Reads once into `into`. An error is an end.
    pub(super) fn read(&self, into: &mut [u8]) -> Arrival {
        loop {
            return match recv(&self.fd, &mut *into, RecvFlags::DONTWAIT) {
                Ok((_, 0)) => Arrival::End,
                Ok((_, n)) => Arrival::Bytes(n),
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => Arrival::Nothing,
                Err(_) => Arrival::End,
            };
        }
    }

    /// Sends what may go, as far as the socket takes it, and so many bytes at most: whoever reads as fast as this writes gets the rest in the next turn. Returns
    /// how many bytes went.
    pub(super) fn write(&mut self, most: usize) -> io::Result<usize> {
        let mut total = 0;
        while !self.blocked && total < most && !self.output.sendable().is_empty() {
            let sendable = self.output.sendable();
            // The other end may be gone: an error, not a signal.
            match send(&self.fd, &sendable[..sendable.len().min(most - total)], SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(n) => {
                    self.output.sent(n);
                    total += n;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.blocked = true,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(total)
    }

    /// Drops the first `n` bytes of the input.
    pub(super) fn consume(&mut self, n: usize) {
        if n == self.input.len() {
            self.input.clear();
            self.input.shrink_to(KEPT_BYTES);
            self.parser.shrink();
        } else {
            self.input.drain(..n);
        }
    }

    /// Reads what is to be dropped. What the client sent before its end, or more than it may, needs no answer.
    pub(super) fn discard(&mut self, into: &mut [u8]) {
        let Some(linger) = self.lingers else { return };
        match self.read(into) {
            Arrival::Bytes(n) => {
                self.readable = n == into.len() || self.ended;
                self.lingers = linger.bytes.checked_sub(n).map(|bytes| Linger { bytes, ..linger });
            }
            Arrival::Nothing => self.readable = false,
            Arrival::End => self.lingers = None,
        }
    }

    /// Whether everything is done that can be done. A client that is not read any more, and has been sent everything, is told that this was all.
    pub(super) fn is_finished(&mut self) -> bool {
        let finished = self.closing && self.output.pending() == 0;
        if finished && self.lingers.is_some() && !self.shut {
            self.shut = true;
            // If the other end is gone, that is seen when it is read.
            let _ = shutdown(&self.fd, Shutdown::Write);
        }
        finished && self.lingers.is_none()
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
