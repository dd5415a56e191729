//! One connection: input that has arrived and is not executed yet, and output that has not been sent yet.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use martlet_node::connections::ledger::Line;
use martlet_protocol::basics::Time;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};

use super::output::Output;
use super::tracked::{Place, flags, write_state};
use crate::commands::{Client, ClientSlot, ReplyMode};
use crate::resp::RequestParser;

/// An emptied input buffer above this size is given back to the allocator.
const KEPT_BYTES: usize = 16 << 10;

/// What a read found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// This many bytes.
    Bytes(usize),
    /// Nothing at the moment.
    Nothing,
    /// The client will send no more.
    End,
}

/// How long a connection is kept whose input is ignored.
#[derive(Clone, Copy, Debug)]
pub(super) struct Linger {
    /// How many more bytes are read.
    pub(super) bytes: usize,
    /// From this time on nothing more is read.
    pub(super) until: Time,
}

/// A client's connection.
#[derive(Debug)]
pub(super) struct Connection {
    fd: OwnedFd,
    /// What commands know of it.
    pub(super) slot: ClientSlot,
    pub(super) parser: RequestParser,
    /// What arrived and is not executed yet. Usually empty, since a request that is read whole is executed where it was read.
    pub(super) input: Vec<u8>,
    pub(super) output: Output,
    /// There may be something to read; the event set tells of it only once.
    pub(super) readable: bool,
    /// The other end has closed or broken off. Nothing follows what there is left to read, and the event set will not tell of it again.
    pub(super) ended: bool,
    /// It waits in the queue of those to serve.
    pub(super) queued: bool,
    /// It is on the list of those that linger.
    pub(super) listed_lingering: bool,
    /// It is on the list of those with output.
    pub(super) listed: bool,
    /// The socket took no more; the event set will tell when it does.
    pub(super) blocked: bool,
    /// Too many replies wait for the client; its requests are not served until those have been sent.
    pub(super) paused: bool,
    /// There may be whole requests left in the input: the turn ran out of budget, or the client did not read its replies.
    pub(super) unfinished: bool,
    /// It takes no more requests, and ends when its output has been sent.
    pub(super) closing: bool,
    /// The client is sending more than it may: for a while its input is read and dropped. Closing the connection at once would reset it. A client that sends
    /// all of its value before it reads would then see the reset and not the error.
    pub(super) lingers: Option<Linger>,
    /// The other end has been told that nothing more comes.
    shut: bool,
    /// It was accepted at the cluster's service, and outlives this node.
    pub(super) is_of_service: bool,
    /// What is noted about it for a successor.
    pub(super) tracked: Option<Tracked>,
    /// A line that is no longer of use.
    untracked: Option<Line>,
}

/// What is noted about a connection for a successor.
#[derive(Debug)]
pub(super) struct Tracked {
    pub(super) line: Line,
    /// The position in the input up to which its requests are executed.
    executed: u64,
    /// The same, except that while a transaction is open this stays where the transaction begins: a successor executes its requests again from there.
    pub(super) place: Place,
    /// How many bytes of the next output the client has been sent already, or is about to be.
    repeats: u64,
    /// The state that is noted.
    state: Vec<u8>,
    flags: (u8, ReplyMode),
}

impl Tracked {
    /// For a connection that has come as far as its line says. `client` is the client's state according to the line.
    pub(super) fn new(line: Line, client: &Client, closing: bool) -> Tracked {
        let settled = line.settled();
        let mut state = Vec::new();
        write_state(client, closing, &mut state);
        Tracked {
            executed: settled.input,
            place: Place { input: settled.input, output: settled.output },
            repeats: settled.sent - settled.output,
            state,
            flags: flags(client, closing),
            line,
        }
    }
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
            is_of_service: false,
            tracked: None,
            untracked: None,
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

    /// Sends what may be sent, as far as the socket takes it and at most `most` bytes, so that a client which reads as fast as this writes does not occupy the
    /// turn: it gets the rest in the next one. Returns how many bytes were sent.
    pub(super) fn write(&mut self, most: usize) -> io::Result<usize> {
        let mut total = 0;
        while !self.blocked && total < most && !self.output.sendable().is_empty() {
            let sendable = self.output.sendable();
            // The other end may be gone: get an error, not a signal.
            match send(&self.fd, &sendable[..sendable.len().min(most - total)], SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(n) => {
                    self.output.sent(n);
                    if let Some(tracked) = &mut self.tracked {
                        tracked.line.written(self.output.taken());
                    }
                    total += n;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.blocked = true,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(total)
    }

    /// How far the requests are executed that the output answers.
    pub(super) fn place(&self) -> Place {
        self.tracked.as_ref().map_or_else(Place::default, |tracked| tracked.place)
    }

    /// Whether the connection's next request may be executed. Where there is no room to note another change of the client's state, the last such change has to
    /// be settled first.
    pub(super) fn may_execute(&self) -> bool {
        self.tracked.as_ref().is_none_or(|tracked| tracked.line.may_change())
    }

    /// Notes what has been read.
    pub(super) fn note_input(&mut self, bytes: &[u8]) {
        if let Some(tracked) = &mut self.tracked
            && !tracked.line.receive(bytes)
        {
            self.end_tracking();
        }
    }

    /// Notes that a request of so many bytes has been executed, and that its reply starts at `at`. `is_data`: it was one of the commands that leave the
    /// client's state unchanged.
    pub(super) fn note_executed(&mut self, bytes: u64, at: usize, is_data: bool, client: &Client) {
        let Some(tracked) = &mut self.tracked else { return };
        tracked.executed += bytes;
        let in_transaction = client.transaction.is_some();
        if tracked.repeats > 0 {
            tracked.repeats -= self.output.suppress(at, tracked.repeats);
            // These replies must be the ones that the client was sent before.
            let differs = client.transaction.as_ref().map_or(tracked.repeats > 0, |transaction| transaction.broken);
            if differs {
                self.closing = true;
                return self.end_tracking();
            }
        }
        if !tracked.line.produce(self.output.since(at)) {
            return self.end_tracking();
        }
        if !in_transaction {
            tracked.place = Place { input: tracked.executed, output: tracked.line.produced() };
        }
        self.note_state(is_data, client);
    }

    /// Notes the client's state, if it has changed.
    fn note_state(&mut self, is_data: bool, client: &Client) {
        let Some(tracked) = &mut self.tracked else { return };
        let flags = flags(client, self.closing);
        if is_data && flags == tracked.flags {
            return;
        }
        let mut state = Vec::new();
        let fits = write_state(client, self.closing, &mut state);
        tracked.flags = flags;
        if fits && state != tracked.state {
            tracked.line.change(tracked.executed, &state);
            tracked.state = state;
        }
        if !fits {
            self.end_tracking();
        }
    }

    /// Notes that the connection takes no more requests, so everything read from it is dropped. Its last reply, if any, starts at `at`.
    pub(super) fn note_closing(&mut self, at: usize, client: &Client) {
        let Some(tracked) = &mut self.tracked else { return };
        tracked.executed = tracked.line.received();
        if !tracked.line.may_change() || tracked.repeats > 0 || !tracked.line.produce(self.output.since(at)) {
            return self.end_tracking();
        }
        tracked.place = Place { input: tracked.executed, output: tracked.line.produced() };
        self.note_state(false, client);
    }

    /// Notes how far it is settled. Must be called before anything is sent.
    pub(super) fn note_settled(&mut self) {
        if let Some(tracked) = &mut self.tracked {
            tracked.line.settle(self.output.settled());
        }
    }

    /// From here on no successor can take it over.
    fn end_tracking(&mut self) {
        if let Some(tracked) = &self.tracked {
            tracked.line.hide();
        }
        self.untracked = self.tracked.take().map(|tracked| tracked.line);
    }

    /// Takes it apart: its socket, and its line, if it has one.
    pub(super) fn into_parts(self) -> (OwnedFd, Option<Line>) {
        let line = self.tracked.map(|tracked| tracked.line).or(self.untracked);
        (self.fd, line)
    }

    /// Ends the connection for its client, even if other processes hold the socket.
    pub(super) fn shut_down(&self) {
        // If the other end is gone, so is the connection.
        let _ = shutdown(&self.fd, Shutdown::Both);
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

    /// Reads input that is to be dropped: what a client sent before its end, or beyond its limit, needs no answer.
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

    /// Whether nothing is left to do. A client whose input is no longer read, and which has been sent everything, is told that nothing more follows.
    pub(super) fn is_finished(&mut self) -> bool {
        let finished = self.closing && self.output.pending() == 0;
        if finished && self.lingers.is_some() && !self.shut {
            self.shut = true;
            // If the other end is gone, the next read says so.
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
