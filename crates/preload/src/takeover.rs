//! How a follower becomes the leader: the previous leader is dead, its sockets are fetched, and each connection continues at the byte where the kernel says
//! that it stopped.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};

use martlet_node::connections::keeper::{self, Left};
use martlet_node::embed::Here;
use martlet_protocol::basics::Time;

use crate::board::{Holder, Line};
use crate::entry::received;
use crate::machine::{Machine, with_replay};
use crate::process::Found;
use crate::replica::{Lead, Replica, Role};
use crate::socket::{self, Counts, Pipe};
use crate::stream::Seal;
use crate::sys::{complain, die, move_to};
use crate::table::{Connection, Table};
use crate::{clock, fault, files, heart};

impl Replica {
    /// Makes this replica the next leader: from here on it executes what is committed, including what earlier leaders may not have survived. Those are dead
    /// when this returns. A request that one of them died of, or did not come back from, is executed by no replica any more.
    ///
    /// Should this replica die on the way, the next one finds the sockets with the keepers of the replicas that held them before, and with this one's keeper.
    pub fn succeed(&mut self) {
        let before: Vec<Holder> = self.board.holders().into_iter().filter(|holder| *holder != self.own).collect();
        let mut faults = Vec::new();
        for holder in &before {
            // A leader that is only presumed dead would go on writing to its clients.
            let found = self
                .leaders
                .make_sure_of_death(*holder)
                .unwrap_or_else(|error| die(&format!("it cannot take over from process {}: {error}", holder.pid)));
            faults.extend(self.board.fault(holder.node));
            // It has been at one request for longer than any may take, and so would this replica be.
            if found == Found::AtWork {
                faults.extend(self.board.hung(holder.node, clock::monotonic_ns(), heart::longest_ns()));
            }
        }
        // The keepers look for what they keep while this replica does other things. When something is left to execute, they are asked after that: the sockets
        // that they send would count among the descriptors in flight, whose number is limited.
        let is_level = with_replay(|replay| replay.upcoming()).is_none();
        let before = before.into_iter().map(|holder| (holder, is_level.then(|| self.leaders.ask_keeper(holder)))).collect();
        // The processes that this message wakes run while this replica waits for the keepers.
        self.tell(&format!("succeeds {}", self.node));
        self.board.hold(self.own);
        keeper::HOLDS.store(true, std::sync::atomic::Ordering::Relaxed);
        for fault in faults {
            let is_known = self.board.voids(fault.round).contains(&fault);
            if fault.round > self.board.survived() && !is_known {
                self.board.avoid(fault);
            }
        }
        fault::note_at(Some(self.board.under_way(self.node)));
        files::open_all();
        self.role = Role::Succeeds(before);
    }

    /// Takes over. Everything that is committed has been executed here.
    pub fn take_over(&mut self, before: Vec<(Holder, Asked)>) {
        self.check_answers();
        // What is opened here has to come first: the received sockets take the lowest free numbers, the library's among them, until each is given its own.
        let pipe = Pipe::new().unwrap_or_else(|error| die(&format!("it cannot make a pipe: {error}")));
        let asked: Vec<(Holder, io::Result<Left>)> =
            before.into_iter().map(|(holder, asked)| (holder, asked.unwrap_or_else(|| self.leaders.ask_keeper(holder)))).collect();
        let mut left: Vec<(Holder, Option<Left>)> = Vec::new();
        for (holder, asked) in asked {
            let gone =
                |error: &io::Error| complain(&format!("cannot take over the connections of process {}: {error}. They end", holder.pid));
            let kept = asked
                .and_then(Left::receive)
                // The keeper may have closed the connection that this replica had from before, just as this replica asked over it.
                .or_else(|error| match error.kind() {
                    io::ErrorKind::TimedOut => Err(error),
                    _ => self.leaders.ask_keeper(holder).and_then(Left::receive),
                })
                .and_then(|left| left.ok_or_else(|| io::Error::other("its keeper says that it lives")))
                .inspect_err(gone);
            left.push((holder, kept.ok()));
        }
        let sockets: Vec<(u16, OwnedFd)> = left
            .iter_mut()
            .filter_map(|(holder, left)| left.as_mut().map(|left| (holder.node, std::mem::take(&mut left.sockets))))
            .flat_map(|(node, sockets)| sockets.into_iter().map(move |socket| (node, socket)))
            .collect();
        let stages: Vec<&'static [u8]> = left
            .iter()
            // SAFETY: the holder is dead, as `succeed` has made sure; its number is given to another replica only after this one has said that it leads.
            .map(|(holder, _)| unsafe { self.board.dead_stage(holder.node) })
            .collect();
        let (pipes, sockets) = sockets.into_iter().partition::<Vec<(u16, OwnedFd)>, _>(|(_, fd)| socket::is_pipe(fd.as_raw_fd()));
        let sockets = sockets.into_iter().map(|(_, socket)| socket).collect();
        keeper::PIPE.store(pipe.out.as_raw_fd(), std::sync::atomic::Ordering::Relaxed);
        // A leader that had begun to collect the round after the committed ones had taken everything before that round out of the kernel.
        let consumed = left.iter().any(|(holder, _)| self.board.collected(holder.node) > self.round);
        self.role = Role::Leads(Box::new(Lead::new(left, pipe)));
        self.adopt(sockets, &Remains { stages, pipes, consumed });
        let listeners: Vec<_> = self.table.listeners.keys().copied().collect();
        listeners.into_iter().for_each(|fd| self.watch_listener(fd, false));
        crate::birth::show_output(true);
    }

    /// Gives each connection its socket.
    fn adopt(&mut self, sockets: Vec<OwnedFd>, remains: &Remains) {
        let slots: BTreeMap<u64, u32> = self.table.iter().map(|(slot, connection)| (connection.stream.cookie, slot)).collect();
        let (mut seen, mut found) = (BTreeSet::new(), BTreeSet::new());
        let mut lingering = std::mem::take(&mut self.table.lingering);
        let mut inherited = Vec::new();
        for socket in sockets {
            let Ok(cookie) = socket::cookie(socket.as_raw_fd()) else { continue };
            if !seen.insert(cookie) {
                continue;
            }
            if let Some(slot) = slots.get(&cookie).copied() {
                found.insert(slot);
                self.adopt_one(slot, socket, remains);
            } else if let Some(at) = lingering.iter().position(|(_, connection)| connection.stream.cookie == cookie) {
                let (slot, connection) = lingering.swap_remove(at);
                self.adopt_lingering(slot, connection, socket, remains);
            } else if !self.table.has_closed(cookie) {
                inherited.push(socket);
            }
        }
        let all: Vec<u32> = slots.into_values().collect();
        for slot in all {
            if !found.contains(&slot)
                && let Some(connection) = self.table.get_mut(slot)
            {
                connection.lost = true;
            }
            self.resume(slot);
        }
        if let Role::Leads(lead) = &mut self.role {
            lead.inherited = inherited;
        }
    }

    fn adopt_one(&mut self, slot: u32, socket: OwnedFd, remains: &Remains) {
        let fd = socket.as_raw_fd();
        let Some(connection) = self.table.get_mut(slot) else { return };
        let line = self.board.line(slot, connection.stream.connection);
        match goes_on(connection, fd, line, remains) {
            Ok(recovered) => connection.recovered = recovered,
            Err(why) => {
                if let Some(why) = why {
                    complain(&format!("connection {} ends: {why}", connection.stream.connection));
                }
                connection.lost = true;
                connection.broken = true;
            }
        }
        if let Err(error) = move_to(socket, Table::fd_of(slot)) {
            die(&format!("a connection cannot be given its descriptor: {error}"));
        }
        keeper::HIGHEST.fetch_max(Table::fd_of(slot), std::sync::atomic::Ordering::Relaxed);
    }

    /// Takes over a connection that the server has closed and whose client still lacks some of what was written.
    fn adopt_lingering(&mut self, slot: u32, mut connection: Connection, socket: OwnedFd, remains: &Remains) {
        let line = self.board.line(slot, connection.stream.connection);
        if goes_on(&mut connection, socket.as_raw_fd(), line, remains).is_err() || !connection.stream.has_unsent() {
            return;
        }
        let fd = Table::fd_of(slot);
        if self.table.get(slot).is_some() || move_to(socket, fd).is_err() {
            return;
        }
        connection.watched = libc::EPOLLOUT as u32;
        if self.poller.watch(fd, 0, connection.watched).is_ok() {
            let stream = &connection.stream;
            self.board.resume_line(slot, stream.connection, Seal::of(stream.produced(), stream.checksum()), stream.kept_from());
            self.table.lingering.push((slot, connection));
        }
    }

    /// Sends what the client lacks, and watches the connection from here on.
    fn resume(&mut self, slot: u32) {
        let Some(connection) = self.table.get_mut(slot) else { return };
        connection.noted = true;
        let stream = &connection.stream;
        self.board.resume_line(slot, stream.connection, Seal::of(stream.produced(), stream.checksum()), stream.kept_from());
        if let Role::Leads(lead) = &mut self.role {
            lead.readable.push(slot);
        }
        self.send(slot);
    }

    /// The first round of this leader is committed and executed: nothing of earlier leaders is needed any more.
    ///
    /// This comes after the clients have their answers: dismissing keepers and telling `martlet run` wakes processes, which would take the core that the server
    /// is to answer on.
    pub fn finish_takeover(&mut self, here: &mut Here<'_, Machine>) {
        let Role::Leads(lead) = &mut self.role else { return };
        if lead.is_settled || !lead.has_begun {
            return;
        }
        let recovering = self.table.iter().any(|(_, connection)| connection.lost || !connection.recovered.is_empty());
        if recovering {
            lead.is_due = true;
            return;
        }
        lead.is_settled = true;
        let events = here.metrics().map_or_else(|_| Vec::new(), |metrics| metrics.events);
        let led = |node: u16| lead.left.iter().any(|(holder, _)| holder.node == node);
        self.board.service().serve(Time(here.now_ns()), &events, led);
        for (holder, left) in lead.left.drain(..) {
            self.board.let_go(holder);
            if let Some(left) = left {
                left.dismiss();
            }
        }
        let connections = self.table.iter().count();
        self.tell(&format!("leads {} {connections}", self.node));
        self.show(here);
    }
}

/// The outcome of asking a dead leader's keeper; `None`: it is still to be asked.
pub type Asked = Option<io::Result<Left>>;

/// What dead leaders have left besides their sockets.
struct Remains {
    /// The memory in which they collected rounds.
    stages: Vec<&'static [u8]>,
    /// Their pipes, by node.
    pipes: Vec<(u16, OwnedFd)>,
    /// Whether all committed input had been taken out of Unix sockets.
    consumed: bool,
}

impl Remains {
    /// How far a connection over a Unix socket has come. `logged` bytes of its input are in the log; those of them that are still in the kernel are taken out.
    fn counts(&self, logged: u64, fd: i32, line: Line) -> io::Result<Counts> {
        if !self.consumed {
            socket::consume(fd, socket::unconsumed(fd)?)?;
        }
        socket::peek_from_first(fd)?;
        let written = match line {
            Line::Its { piped: Some((end, node)), .. } => {
                let (_, pipe) = self
                    .pipes
                    .iter()
                    .find(|(whose, _)| *whose == node)
                    .ok_or_else(|| io::Error::other("its leader's pipe is not there"))?;
                end - socket::left_in_pipe(pipe.as_raw_fd())?
            }
            Line::Its { written, .. } => written,
            // Its leader has sent nothing.
            Line::Unborn | Line::Gone => 0,
        };
        Ok(Counts::Exact { read: logged, written })
    }
}

/// Compares a connection, as the server has left it here, with what the kernel says. Returns the input that had been received beyond what is in the log, and
/// forgets the output that the kernel has.
///
/// # Errors
/// When the connection cannot continue; with the reason, unless the connection is simply over.
fn goes_on(connection: &mut Connection, fd: i32, line: Line, remains: &Remains) -> Result<Vec<u8>, Option<String>> {
    let counts = if connection.is_unix { remains.counts(connection.stream.logged(), fd, line) } else { socket::counts(fd) };
    let counts = counts.map_err(|error| Some(format!("the kernel does not say how far it has come: {error}")))?;
    let Counts::Exact { read, written } = counts else { return Err(None) };
    let stream = &mut connection.stream;
    if written > stream.produced() || written < stream.kept_from() {
        let (kept, produced) = (stream.kept_from(), stream.produced());
        return Err(Some(format!("its client was sent {written} bytes, and this replica has those from {kept} to {produced}")));
    }
    // When the line is not this connection's, its leader had sent nothing.
    let seal = if let Line::Its { seal, .. } = line { seal } else { Seal::of(0, 0) };
    if !stream.agrees_with(seal) {
        return Err(Some("what its client was sent differs from what this replica would have sent".into()));
    }
    let logged = stream.logged();
    let missing = read.checked_sub(logged).ok_or_else(|| Some(format!("{read} bytes were read of it, and the log has {logged}")))?;
    let recovered = match missing {
        0 => Vec::new(),
        _ => {
            let stored = remains
                .stages
                .iter()
                .find_map(|stage| received(stage, stream.connection, logged).filter(|bytes| bytes.len() as u64 >= missing));
            stored.ok_or_else(|| Some(format!("{missing} bytes that were read of it are not there")))?[..missing as usize].to_vec()
        }
    };
    stream.forget_below(written);
    Ok(recovered)
}
