//! What a server does with captured descriptors. It is the same at every replica.

use std::collections::BTreeMap;
use std::os::fd::RawFd;

use crate::board::Line;
use crate::fault;
use crate::replica::{Replica, Role};
use crate::stream::Found;
use crate::sys::{self, complain, die};
use crate::table::{Interest, POLLED, Table, Withdrawn};
use crate::wording::Words;

/// What `epoll_ctl` is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Add(Interest),
    Modify(Interest),
    Delete,
}

impl Replica {
    /// Reads from a connection.
    pub fn read(&mut self, slot: u32, into: &mut [u8]) -> Found {
        let Some(connection) = self.table.get_mut(slot) else { return Found::Closed };
        let read = fault::reads(connection.stream.connection);
        let is_void = self.voids.contains(&read);
        if is_void {
            if matches!(self.role, Role::Succeeds(_)) {
                let name = connection.stream.connection;
                complain(&format!(
                    "connection {name} ends: its last request has crashed the server, or was never done, and no other replica executes it"
                ));
            }
            connection.stream.avoid();
        }
        let found = connection.stream.read(into);
        if is_void && matches!(self.role, Role::Succeeds(_)) {
            self.forget_answers();
        }
        found
    }

    /// Writes to a connection. Returns how much was taken, or the errno why nothing was.
    pub fn write(&mut self, slot: u32, parts: &[&[u8]]) -> Result<usize, i32> {
        let board = self.board;
        let Some(connection) = self.table.get_mut(slot) else { return Err(libc::EBADF) };
        let stream = &mut connection.stream;
        let wanted: usize = parts.iter().map(|part| part.len()).sum();
        let (mut taken, has_asked) = (stream.takes(wanted), stream.has_asked());
        fault::writes();
        let words = if taken > 0 && has_asked { self.words_for(parts) } else { Words::Its };
        match words {
            Words::Its => {}
            // The leader's words may be longer than this server's own: so they are taken as a whole, or not at all.
            Words::Leaders(_) => taken = wanted,
            Words::None => taken = 0,
        }
        if taken < wanted && self.table.interests.get(&Table::fd_of(slot)).is_some_and(|interest| interest.writes()) {
            self.table.wants_room.insert(slot);
        }
        let Some(connection) = self.table.get_mut(slot) else { return Err(libc::EBADF) };
        let stream = &mut connection.stream;
        if taken == 0 {
            return if wanted == 0 { Ok(0) } else { Err(libc::EAGAIN) };
        }
        if let Words::Leaders(words) = words {
            stream.produce(&[&words]);
        } else if taken == wanted {
            stream.produce(parts);
        } else {
            let mut left = taken;
            let cut: Vec<&[u8]> = parts
                .iter()
                .map(|part| {
                    let len = part.len().min(left);
                    left -= len;
                    &part[..len]
                })
                .collect();
            stream.produce(&cut);
        }
        if matches!(self.role, Role::Leads(_)) {
            self.send(slot);
        } else if let Line::Its { written, .. } = board.line(slot, stream.connection) {
            stream.forget_below(written);
        }
        Ok(taken)
    }

    /// Accepts a connection, if one waits. Returns its slot.
    pub fn accept_next(&mut self, listener: RawFd) -> Option<u32> {
        self.table.listeners.get_mut(&listener)?.pop_front()
    }

    /// Closes a connection.
    pub fn close(&mut self, slot: u32) {
        let fd = Table::fd_of(slot);
        let Some(mut connection) = self.table.take(slot) else { return };
        let sends = connection.stream.has_unsent() && !connection.broken;
        if matches!(self.role, Role::Leads(_)) {
            let wanted = if sends { libc::EPOLLOUT as u32 } else { 0 };
            let _ = self.poller.watch(fd, connection.watched, wanted);
            connection.watched = wanted;
            if sends {
                self.table.lingering.push((slot, connection));
            } else {
                sys::close(fd);
            }
            return;
        }
        sys::close(fd);
        let board = self.board;
        let lacks = |slot: u32, stream: &crate::stream::Stream| match board.line(slot, stream.connection) {
            Line::Unborn => true,
            Line::Its { written, .. } => written < stream.produced(),
            Line::Gone => false,
        };
        self.table.lingering.retain(|(slot, connection)| lacks(*slot, &connection.stream));
        if lacks(slot, &connection.stream) {
            self.table.lingering.push((slot, connection));
        }
    }

    /// The server stops listening. The listener is kept until the server next waits: should the server find that it can have no other address, it comes back to
    /// this one. Returns whether the descriptor is a listener.
    pub fn close_listener(&mut self, fd: RawFd) -> bool {
        if let Some(withdrawn) = self.table.withdrawn.get_mut(&fd) {
            withdrawn.is_taken = false;
            return true;
        }
        let Some(queue) = self.table.listeners.remove(&fd) else { return false };
        let watched = self.table.interests.remove(&fd).is_some_and(Interest::reads);
        self.watch_listener(fd, watched);
        self.table.withdrawn.insert(fd, Withdrawn { queue, is_taken: false });
        true
    }

    /// The server wants a new socket. If it has closed a listener of that kind, it is given that one, under the same number at every replica.
    pub fn take_withdrawn(&mut self, domain: i32, kind: i32) -> Option<RawFd> {
        let is_such = |fd: RawFd| {
            let is = |option, value| sys::socket_option::<i32>(fd, libc::SOL_SOCKET, option).is_ok_and(|own| own == value);
            is(libc::SO_DOMAIN, domain) && is(libc::SO_TYPE, kind)
        };
        let (fd, withdrawn) = self.table.withdrawn.iter_mut().find(|(fd, withdrawn)| !withdrawn.is_taken && is_such(**fd))?;
        withdrawn.is_taken = true;
        Some(*fd)
    }

    /// The server listens again at the address where it did before. Returns whether this is so.
    pub fn listen_again(&mut self, fd: RawFd) -> bool {
        let Some(withdrawn) = self.table.withdrawn.remove(&fd) else { return false };
        self.table.listeners.insert(fd, withdrawn.queue);
        true
    }

    /// Closes for good what the server has closed. A client that has connected, and has not been accepted, sees its connection end when the last replica has
    /// closed the listener.
    pub fn close_withdrawn(&mut self) {
        self.table.withdrawn.retain(|fd, withdrawn| {
            if !withdrawn.is_taken {
                sys::close(*fd);
            }
            withdrawn.is_taken
        });
    }

    /// From here on the server waits for exactly these. Returns what it has waited for so far.
    pub fn wait_only_for(&mut self, wanted: &BTreeMap<RawFd, Interest>) -> BTreeMap<RawFd, Interest> {
        let before = self.table.interests.clone();
        for (fd, interest) in self.table.changes_to(wanted) {
            let change = match interest {
                None => Change::Delete,
                Some(interest) if before.contains_key(&fd) => Change::Modify(interest),
                Some(interest) => Change::Add(interest),
            };
            if let Err(errno) = self.change_interest(fd, change) {
                die(&format!("the server cannot wait for descriptor {fd}: error {errno}"));
            }
        }
        before
    }

    /// The server waits at its epoll instance, and no longer for what it has polled.
    pub fn stop_polling(&mut self) {
        if std::mem::take(&mut self.table.is_polled) {
            let mut rest = self.table.interests.clone();
            rest.retain(|_, interest| interest.epoll != POLLED);
            self.wait_only_for(&rest);
        }
    }

    /// Changes what the server waits for. Returns the errno why not.
    pub fn change_interest(&mut self, fd: RawFd, change: Change) -> Result<(), i32> {
        let before = self.table.interests.get(&fd).copied();
        let wanted = match (change, before) {
            (Change::Add(_), Some(before)) if before.epoll != POLLED => return Err(libc::EEXIST),
            (Change::Modify(_) | Change::Delete, None) => return Err(libc::ENOENT),
            (Change::Add(interest) | Change::Modify(interest), _) => Some(interest),
            (Change::Delete, _) => None,
        };
        self.table.set_interest(fd, wanted);
        match self.table.slot_of(fd) {
            Some(slot) => {
                if let (Role::Leads(lead), Some(connection)) = (&mut self.role, self.table.get_mut(slot))
                    && connection.stream.is_readable()
                    && !std::mem::replace(&mut connection.noted, true)
                {
                    lead.readable.push(slot);
                }
                self.watch(slot);
            }
            None => self.watch_listener(fd, before.is_some_and(Interest::reads)),
        }
        Ok(())
    }
}
