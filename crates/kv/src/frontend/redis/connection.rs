//! One connection: what has arrived and is not executed, what is executed and has not gone.

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
    /// It has come to the service of the cluster, and goes on there.
    pub(super) is_of_service: bool,
    /// What is noted of it for a successor.
    pub(super) tracked: Option<Tracked>,
    /// A line that is of no use any more.
    untracked: Option<Line>,
}

/// What is noted of a connection for a successor.
#[derive(Debug)]
pub(super) struct Tracked {
    pub(super) line: Line,
    /// Up to where its requests are executed.
    executed: u64,
    /// The same, but at the beginning of a transaction that is open: its requests are asked for again there.
    pub(super) place: Place,
    /// So many bytes of the output that comes next has its client been sent, or is about to be.
    repeats: u64,
    /// The state that is noted.
    state: Vec<u8>,
    flags: (u8, ReplyMode),
}

impl Tracked {
    /// Of a connection that is so far, as its line says; `client` is what commands know of it, as the line has it.
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

    /// How far its requests are executed that the output answers.
    pub(super) fn place(&self) -> Place {
        self.tracked.as_ref().map_or_else(Place::default, |tracked| tracked.place)
    }

    /// Whether its next request may be executed. One that has changed what is kept of the connection is settled first, where there is no room to note more.
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

    /// Notes that a request of so many bytes has been executed, whose reply stands from `at` on. `is_data`: it was one of those that leave the client as it is.
    pub(super) fn note_executed(&mut self, bytes: u64, at: usize, is_data: bool, client: &Client) {
        let Some(tracked) = &mut self.tracked else { return };
        tracked.executed += bytes;
        let in_transaction = client.transaction.is_some();
        if tracked.repeats > 0 {
            tracked.repeats -= self.output.suppress(at, tracked.repeats);
            // What is answered now must be what was answered then.
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

    /// Notes what commands know of it, if that has changed.
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

    /// Notes that it takes no more requests: all that has been read of it is dropped. Its reply, if any, stands from `at` on.
    pub(super) fn note_closing(&mut self, at: usize, client: &Client) {
        let Some(tracked) = &mut self.tracked else { return };
        tracked.executed = tracked.line.received();
        if !tracked.line.may_change() || tracked.repeats > 0 || !tracked.line.produce(self.output.since(at)) {
            return self.end_tracking();
        }
        tracked.place = Place { input: tracked.executed, output: tracked.line.produced() };
        self.note_state(false, client);
    }

    /// Notes how far it is settled. To be called before anything is sent.
    pub(super) fn note_settled(&mut self) {
        if let Some(tracked) = &mut self.tracked {
            tracked.line.settle(self.output.settled());
        }
    }

    /// No successor will go on with it.
    fn end_tracking(&mut self) {
        if let Some(tracked) = &self.tracked {
            tracked.line.hide();
        }
        self.untracked = self.tracked.take().map(|tracked| tracked.line);
    }

    /// Takes it apart: its socket, and the line of it that may be in use.
    pub(super) fn into_parts(self) -> (OwnedFd, Option<Line>) {
        let line = self.tracked.map(|tracked| tracked.line).or(self.untracked);
        (self.fd, line)
    }

    /// Ends it for its client, whoever else holds its socket.
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
