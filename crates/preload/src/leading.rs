//! What a leader does: it collects what the kernel has for the server into a round, and gives the kernel what the server writes.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};

use crate::board::Board;
use crate::clock;
use crate::entry::{DRAINED_BYTES, End, READY_BYTES, Record, Writer};
use crate::replica::{Replica, Role};
use crate::socket::{self, Pipe, Side};
use crate::stream::{Seal, Stream, WINDOW_BYTES};
use crate::sys::die;
use crate::table::{Connection, FIRST_FD, Interest, Table};

/// The most that is received from a connection in a round, in bytes.
const INPUT_BYTES: usize = 64 << 10;
/// Room that is left in a round for what follows the input, in bytes: enough for as many ready descriptors and drained connections as a round may have.
const RESERVE_BYTES: usize = 64 << 10;
/// The most descriptors that are ready in a round.
const MOST_READY: usize = 1000;
/// The most connections that are accepted in a round.
const MOST_ACCEPTED: usize = 64;
/// The most connections whose output is noted in a round as drained.
const MOST_DRAINED: usize = 2000;
/// Each time that the kernel has taken so many more bytes of a connection's output, the log is told how far the connection is drained.
const DRAIN_BYTES: u64 = WINDOW_BYTES / 4;

const _: () = assert!(MOST_READY * READY_BYTES + MOST_DRAINED * DRAINED_BYTES <= RESERVE_BYTES, "they fit behind any input");

const IN: u32 = libc::EPOLLIN as u32;
const OUT: u32 = libc::EPOLLOUT as u32;

/// The descriptors that are ready, in order, each once.
#[derive(Default)]
struct Ready {
    order: Vec<(RawFd, u32)>,
    seen: std::collections::HashMap<RawFd, usize>,
    most: usize,
}

impl Ready {
    fn has_room(&self) -> bool {
        self.order.len() < self.most
    }

    fn add(&mut self, fd: RawFd, events: u32) {
        match self.seen.get(&fd) {
            Some(at) => self.order[*at].1 |= events,
            None if self.has_room() => {
                self.seen.insert(fd, self.order.len());
                self.order.push((fd, events));
            }
            None => {}
        }
    }

    fn has(&self, fd: RawFd, events: u32) -> bool {
        self.seen.get(&fd).is_some_and(|at| self.order[*at].1 & events == events)
    }
}

/// Adds what the round has room for: its room is reserved.
fn add(writer: &mut Writer<'_>, record: &Record<'_>) {
    if !writer.add(record) {
        die(&format!("broken invariant: a round has no room for {record:?}"));
    }
}

/// Keeps the first so many, and returns the others.
fn beyond(due: &mut BTreeSet<u32>, most: usize) -> BTreeSet<u32> {
    due.iter().nth(most).copied().map_or_else(BTreeSet::new, |first| due.split_off(&first))
}

impl Replica {
    /// Collects a round in this replica's stage. Returns its length in bytes, or `None` when there is nothing to wake the server for.
    pub fn collect(&mut self) -> Option<usize> {
        // SAFETY: this process is the replica of this node and leads; the only other reference to the stage is taken when this one is gone.
        let stage = unsafe { self.board.own_stage(self.node) };
        self.board.collect(self.node, self.round + 1);
        let stamp = clock::stamp();
        let mut writer = Writer::new(stage, self.round + 1, stamp);
        let mut ready = Ready { most: self.wait.most.min(MOST_READY), ..Ready::default() };
        let Role::Leads(lead) = &mut self.role else { return None };
        for number in std::mem::take(&mut lead.signals) {
            writer.add(&Record::Signal { number });
        }
        let inherited = std::mem::take(&mut lead.inherited);
        self.collect_children(&mut writer);
        self.admit(inherited, &mut writer, &mut ready);
        self.collect_recovered(&mut writer, &mut ready);
        self.collect_from_kernel(&mut writer, &mut ready);
        self.collect_unread(&mut ready);
        self.collect_room(&mut writer, &mut ready);
        for (fd, events) in ready.order {
            add(&mut writer, &Record::Ready { fd, events });
        }
        // Judged by the time that the server will see.
        let is_over = self.wait.until_ns.is_some_and(|until| stamp.monotonic_ns >= until);
        let Role::Leads(lead) = &mut self.role else { return None };
        // What this round has no room for comes in the next one.
        let due = std::mem::replace(&mut lead.is_due, !lead.drained.is_empty());
        (writer.records() > 0 || is_over || due).then(|| writer.len())
    }

    /// Takes the connections that the previous leader had accepted and that are in no round.
    fn admit(&mut self, sockets: Vec<OwnedFd>, writer: &mut Writer<'_>, ready: &mut Ready) {
        for socket in sockets {
            let local = socket::address(socket.as_raw_fd(), Side::Local);
            let accepts = |listener: &&RawFd| socket::is_of(&local, &socket::address(**listener, Side::Local));
            if let Some(listener) = self.table.listeners.keys().find(accepts).copied() {
                self.announce(socket, listener, writer, ready);
            }
        }
    }

    /// Puts a new connection where the server will find it, and into the round.
    fn announce(&mut self, socket: OwnedFd, listener: RawFd, writer: &mut Writer<'_>, ready: &mut Ready) {
        let Role::Leads(lead) = &mut self.role else { return };
        let taken: BTreeSet<u32> = lead.placed.iter().map(|placed| (placed.as_raw_fd() - FIRST_FD) as u32).collect();
        let slot = self.table.free_slot(&taken);
        let Ok(cookie) = socket::cookie(socket.as_raw_fd()) else { return };
        if slot as usize >= crate::board::SLOTS {
            return;
        }
        // When no descriptor is left, the client sees its connection end, as it would beyond a server's own limit.
        let Ok(placed) = socket::duplicate_from(&socket, Table::fd_of(slot)) else { return };
        if placed.as_raw_fd() != Table::fd_of(slot) {
            die(&format!("descriptor {}, which a connection is to have, is something else here", Table::fd_of(slot)));
        }
        martlet_node::connections::keeper::HIGHEST.fetch_max(placed.as_raw_fd(), std::sync::atomic::Ordering::Relaxed);
        let (peer, local) = (socket::address(placed.as_raw_fd(), Side::Peer), socket::address(placed.as_raw_fd(), Side::Local));
        if socket::is_unix(&local) && socket::peek_from_first(placed.as_raw_fd()).is_err() {
            return;
        }
        let connection = self.table.connections + 1;
        if writer.add(&Record::Accept { slot, connection, cookie, listener, peer: &peer, local: &local }) {
            self.table.connections = connection;
            lead.placed.push(placed);
            if self.table.reads(listener) {
                ready.add(listener, IN);
            }
        }
    }

    /// Puts into the round what the previous leader had received and not proposed, and which connections were lost with that leader.
    fn collect_recovered(&mut self, writer: &mut Writer<'_>, ready: &mut Ready) {
        let Role::Leads(lead) = &self.role else { return };
        // There is any only in a leader's first rounds.
        if lead.is_settled {
            return;
        }
        let slots: Vec<u32> =
            self.table.iter().filter(|(_, connection)| connection.lost || !connection.recovered.is_empty()).map(|(slot, _)| slot).collect();
        for slot in slots {
            let Some(connection) = self.table.get_mut(slot) else { continue };
            let (name, offset, len) = (connection.stream.connection, connection.stream.logged(), connection.recovered.len());
            let Some(room) = writer.begin_input(slot, name, offset, len.max(1), RESERVE_BYTES) else { break };
            if room.len() < len {
                break;
            }
            room[..len].copy_from_slice(&connection.recovered);
            let end = if std::mem::take(&mut connection.lost) { End::Failed(libc::ECONNRESET) } else { End::Open };
            connection.recovered.clear();
            writer.end_input(len, end);
            ready.add(Table::fd_of(slot), IN);
        }
    }

    fn collect_from_kernel(&mut self, writer: &mut Writer<'_>, ready: &mut Ready) {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 512];
        let events = match self.poller.ready(&mut events) {
            Ok(events) => events,
            Err(error) => die(&format!("epoll_wait: {error}")),
        };
        for event in events {
            let (fd, events) = (event.u64 as RawFd, event.events);
            if let Some(slot) = self.table.slot_of(fd) {
                if events & OUT != 0 {
                    self.send(slot);
                }
                if events & !OUT != 0 && ready.has_room() {
                    self.receive(slot, writer, ready);
                }
            } else if self.table.listeners.contains_key(&fd) {
                for _ in 0..MOST_ACCEPTED {
                    if !ready.has_room() {
                        break;
                    }
                    match socket::accept(fd) {
                        Ok(socket) => self.announce(socket, fd, writer, ready),
                        Err(_) => break,
                    }
                }
            } else {
                self.send_lingering(fd);
            }
        }
    }

    fn receive(&mut self, slot: u32, writer: &mut Writer<'_>, ready: &mut Ready) {
        let fd = Table::fd_of(slot);
        let Some(connection) = self.table.get(slot) else { return };
        if connection.stream.has_ended() || !connection.recovered.is_empty() || ready.has(fd, IN) {
            return;
        }
        let stream = &connection.stream;
        let Some(room) = writer.begin_input(slot, stream.connection, stream.logged(), INPUT_BYTES, RESERVE_BYTES) else { return };
        let received = if connection.is_unix { socket::peek(fd, room) } else { socket::receive(fd, room) };
        match received {
            Ok(0) => writer.end_input(0, End::Closed),
            Ok(bytes) => writer.end_input(bytes, End::Open),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(error) => writer.end_input(0, End::Failed(error.raw_os_error().unwrap_or(libc::ECONNRESET))),
        }
        ready.add(fd, IN);
    }

    /// Reports input that the server has not read yet, and connections that it has not accepted yet, as ready again.
    fn collect_unread(&mut self, ready: &mut Ready) {
        let Role::Leads(lead) = &mut self.role else { return };
        let table = &mut self.table;
        lead.readable.retain(|slot| {
            let Some(connection) = table.get_mut(*slot) else { return false };
            if !connection.stream.is_readable() {
                connection.noted = false;
                return false;
            }
            let fd = Table::fd_of(*slot);
            let interest = table.interests.get(&fd).copied().filter(|interest| interest.reads());
            if interest.is_some() {
                ready.add(fd, IN);
            }
            let is_told = interest.is_some_and(Interest::is_edge) && ready.has(fd, IN);
            if let (true, Some(connection)) = (is_told, table.get_mut(*slot)) {
                connection.noted = false;
            }
            !is_told
        });
        table.ready_listeners().for_each(|fd| ready.add(fd, IN));
    }

    /// Reports the room that the kernel has made by taking output, and that the server waits for on some connections.
    fn collect_room(&mut self, writer: &mut Writer<'_>, ready: &mut Ready) {
        let Role::Leads(lead) = &mut self.role else { return };
        let mut due = std::mem::take(&mut lead.drained);
        due.extend(self.table.wants_room.iter().filter(|slot| {
            self.table
                .get(**slot)
                .is_some_and(|connection| !connection.stream.is_writable() && connection.stream.kept_from() > connection.stream.drained())
        }));
        lead.drained = beyond(&mut due, MOST_DRAINED);
        let mut made = BTreeSet::new();
        for slot in due {
            if let Some(connection) = self.table.get(slot) {
                let stream = &connection.stream;
                // A connection whose client is gone has all the room there is until the server hears that the client is gone.
                let offset = if connection.broken { stream.produced() } else { stream.kept_from() };
                add(writer, &Record::Drained { slot, connection: stream.connection, offset });
                made.insert(slot);
            }
        }
        for slot in &self.table.wants_room {
            if made.contains(slot) || self.table.get(*slot).is_some_and(|connection| connection.stream.is_writable()) {
                ready.add(Table::fd_of(*slot), OUT);
            }
        }
    }

    /// Gives the kernel as much of a connection's output as it takes.
    pub fn send(&mut self, slot: u32) {
        let board = self.board;
        let Role::Leads(lead) = &self.role else { return };
        let Some(connection) = self.table.get_mut(slot) else { return };
        send_kept(&board, (self.node, &lead.pipe), slot, Table::fd_of(slot), connection);
        let stream = &connection.stream;
        let is_due = stream.kept_from() >= stream.drained() + DRAIN_BYTES || (connection.broken && stream.produced() > stream.drained());
        if let (Role::Leads(lead), true) = (&mut self.role, is_due) {
            lead.drained.insert(slot);
        }
        self.watch(slot);
    }

    fn send_lingering(&mut self, fd: RawFd) {
        let Some(at) = self.table.lingering.iter().position(|(slot, _)| Table::fd_of(*slot) == fd) else { return };
        let board = self.board;
        let Role::Leads(lead) = &self.role else { return };
        let (slot, connection) = &mut self.table.lingering[at];
        send_kept(&board, (self.node, &lead.pipe), *slot, fd, connection);
        if connection.broken || !connection.stream.has_unsent() {
            let watched = connection.watched;
            let _ = self.poller.watch(fd, watched, 0);
            self.table.lingering.swap_remove(at);
            crate::sys::close(fd);
        }
    }

    /// Has the poller watch a connection for the events that matter now.
    pub fn watch(&mut self, slot: u32) {
        if !matches!(self.role, Role::Leads(_)) {
            return;
        }
        let fd = Table::fd_of(slot);
        let reads = self.table.reads(fd);
        let Some(connection) = self.table.get_mut(slot) else { return };
        let receives = if reads && !connection.stream.has_ended() { IN } else { 0 };
        let sends = if connection.stream.has_unsent() && !connection.broken { OUT } else { 0 };
        let wanted = receives | sends;
        if let Err(error) = self.poller.watch(fd, connection.watched, wanted) {
            die(&format!("connection {} cannot be watched: {error}", connection.stream.connection));
        }
        connection.watched = wanted;
    }

    /// Has the poller watch a listener, if the server does.
    pub fn watch_listener(&mut self, fd: RawFd, watched: bool) {
        if matches!(self.role, Role::Leads(_)) {
            let wanted = self.table.reads(fd);
            let bits = |wanted| if wanted { IN } else { 0 };
            if let Err(error) = self.poller.watch(fd, bits(watched), bits(wanted)) {
                die(&format!("listener {fd} cannot be watched: {error}"));
            }
        }
    }
}

/// Sends the kept output. Notes on the board beforehand how far sending may go, and afterwards how far it went.
fn send_kept(board: &Board, pipe: (u16, &Pipe), slot: u32, fd: RawFd, connection: &mut Connection) {
    let stream = &mut connection.stream;
    if connection.broken {
        return stream.forget_below(stream.produced());
    }
    board.intend(slot, Seal::of(stream.produced(), stream.checksum()));
    while stream.has_unsent() {
        let sent = match connection.is_unix {
            true => send_through(board, pipe, slot, fd, stream),
            false => socket::send(fd, stream.unsent().0),
        };
        match sent {
            Ok(sent) => stream.forget_below(stream.kept_from() + sent as u64),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            // The server learns of the failure through the connection's input, as the log says it.
            Err(_) => {
                connection.broken = true;
                return stream.forget_below(stream.produced());
            }
        }
    }
    board.written(slot, stream.kept_from());
}

/// Sends part of a connection's output into its Unix socket, through a pipe. Returns how much was sent, which is on the board by then. Should this process die
/// on the way, what is left in the pipe says how much has gone.
fn send_through(board: &Board, (node, pipe): (u16, &Pipe), slot: u32, fd: RawFd, stream: &Stream) -> io::Result<usize> {
    let put = pipe.fill(stream.unsent().0)?;
    board.piped(slot, stream.kept_from() + put as u64, node);
    let mut gone = 0;
    let mut failed = None;
    while gone < put && failed.is_none() {
        match socket::without_broken_pipes(|| pipe.move_to(fd, put - gone)) {
            Ok(moved) => gone += moved,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => failed = Some(error),
        }
    }
    board.written(slot, stream.kept_from() + gone as u64);
    if gone < put {
        pipe.drain();
    }
    match failed {
        Some(error) if gone == 0 => Err(error),
        _ => Ok(gone),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_round_has_no_room_for_comes_in_later_ones() {
        let mut due: BTreeSet<u32> = (0..2 * MOST_DRAINED as u32 + 3).collect();
        let mut noted = Vec::new();
        for expected in [MOST_DRAINED, MOST_DRAINED, 3] {
            let later = beyond(&mut due, MOST_DRAINED);
            assert_eq!(due.len(), expected);
            noted.extend(std::mem::replace(&mut due, later));
        }
        assert!(due.is_empty() && noted.into_iter().eq(0..2 * MOST_DRAINED as u32 + 3));
    }
}
