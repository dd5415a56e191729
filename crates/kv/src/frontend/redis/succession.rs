//! How the connections of the cluster's service pass from one leader to the next.
//!
//! A node that begins to lead announces in the log that its process may hold connections ([`Hold`]). When that is committed, it asks each process that has
//! announced itself before for the connections it holds. A dead process has left them with its keeper. A process that is alive lets go when it learns that it
//! no longer leads, and is killed if it does not: no two processes may write to the same socket. Then the new leader continues each connection from where the
//! log, the ledgers and the kernel say. It ends the holds of the other processes, and when that is committed, it dismisses them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::Duration;

use martlet_node::connections::keeper::{self, Left, Mended, Said};
use martlet_node::connections::ledger::{Ledger, Line, Remainder, Remains, Scratch, Settled, own_file};
use martlet_node::connections::process::{self, Killed};
use martlet_node::connections::service::Service;
use martlet_node::connections::socket::{Counts, cookie, counts};
use martlet_protocol::basics::Time;
use martlet_protocol::replica::{Replica, Ticket};
use rustix::event::epoll;
use rustix::fs::{FileType, fstat};
use rustix::net::{Shutdown, getpeername, shutdown};

use super::connection::{Connection, Tracked};
use super::listener::Listener;
use super::output::Output;
use super::tracked::{Hold, Mark, read_state, write_state};
use super::{LISTENERS, RedisFront};
use crate::commands::{Client, Shared};
use crate::store::{Effect, KvMachine, SessionId};
use crate::turn::{Released, Turn};

/// How long a process may keep its connections that is alive and no longer leads, in nanoseconds. It learns that it no longer leads within microseconds, unless
/// it is not running.
const PATIENCE_NS: u64 = 100_000_000;
/// How often such a process is asked, in nanoseconds.
const ASK_NS: u64 = 200_000;
/// How long this thread waits for a keeper's first answer. A keeper that has a core answers within microseconds, and may need the core of this thread.
const FIRST_ANSWER: Duration = Duration::from_millis(1);
/// How long it waits for an answer that did not come then, each time it looks.
const LATER_ANSWER: Duration = Duration::from_micros(100);
/// How often a node checks that its keeper is alive, in nanoseconds.
const KEEPER_LOOK_NS: u64 = 100_000_000;

/// Where this node is in taking over the service.
#[derive(Debug)]
enum Phase {
    /// It does not lead, or has not announced its hold.
    Away,
    /// It has announced that it may hold connections, and waits until that is committed.
    Announced(Ticket),
    /// It asks the earlier holders.
    Collecting { waiting: Vec<Earlier>, got: Vec<(Hold, Option<Left>)>, since: Time, ask_at: Time },
    /// It serves. The earlier holders can be dismissed when this is committed.
    Settling(Ticket, Vec<Left>),
    /// It serves.
    Serving,
}

/// An earlier holder that has not handed over its connections yet. This thread never waits for it for long: the holder, or its keeper, may be stopped, and the
/// lease of this node runs on.
#[derive(Debug)]
struct Earlier {
    hold: Hold,
    /// Its keeper's answer, as far as that has come.
    asked: Option<Left>,
    /// When its keeper was first asked, or last gave something.
    heard_at: Time,
    /// It has no keeper any more.
    is_lost: bool,
    /// The log says that it is killed.
    is_told: bool,
}

impl Earlier {
    fn new(hold: Hold, now: Time) -> Earlier {
        Earlier { hold, asked: None, heard_at: now, is_lost: false, is_told: false }
    }

    /// Asks it, or goes on asking. Returns what it has left, when that is known and when no two processes can write to one socket any more.
    fn hand_over(&mut self, name: &str, now: Time, is_late: bool) -> Option<Option<Left>> {
        if !self.is_lost {
            match self.hear(name, now) {
                Ok(Some(left)) => return Some(Some(left)),
                Ok(None) => {}
                Err(error) => {
                    self.is_lost = true;
                    let process = self.hold.holder.pid;
                    tracing::warn!(%error, process, "an earlier leader's process has left no connections, or has no keeper that could hand them over");
                }
            }
        }
        if !is_late && !self.is_lost {
            return None;
        }
        let is_dead = self.kill();
        if is_dead && !self.is_lost && now >= self.heard_at.after(keeper::SILENCE.as_nanos() as u64) {
            self.is_lost = true;
            tracing::warn!(
                process = self.hold.holder.pid,
                seconds = keeper::SILENCE.as_secs(),
                "the keeper (martlet-keeper) of an earlier leader's process does not answer, as if it were stopped: its connections are not taken over"
            );
        }
        (is_dead && self.is_lost).then_some(None)
    }

    /// What its keeper has handed over; `None`: not everything yet.
    fn hear(&mut self, name: &str, now: Time) -> std::io::Result<Option<Left>> {
        let ask = || match keeper::Connection::new(name) {
            // It has no room for another connection at the moment.
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(None),
            connection => connection?.begin_to_ask().map(Some),
        };
        let had = self.asked.as_ref().map_or(0, |left| left.sockets.len());
        let (before, wait) = match self.asked.take() {
            Some(left) => (Ok(Some(left)), LATER_ANSWER),
            None => (ask(), FIRST_ANSWER),
        };
        let hear = |left: Option<Left>| left.map(|left| left.hear(wait)).transpose();
        // A keeper that has died as it was asked is replaced, if its process lives.
        match before.and_then(hear).or_else(|_| ask().and_then(hear))? {
            Some(Said::All(left)) => return Ok(Some(left)),
            Some(Said::Less(left)) => {
                if left.sockets.len() > had {
                    self.heard_at = now;
                }
                self.asked = Some(left);
            }
            Some(Said::NotNow) => self.heard_at = now,
            None => {}
        }
        Ok(None)
    }

    /// Sees to its death, without waiting for it. Returns whether it is dead.
    fn kill(&mut self) -> bool {
        let process = self.hold.holder.pid;
        let killed = process::kill(self.hold.holder);
        if !matches!(killed, Ok(Killed::Before)) && !std::mem::replace(&mut self.is_told, true) {
            match &killed {
                Ok(_) => tracing::warn!(process, "an earlier leader's process does not give up its connections: it is killed"),
                // It is asked again, and its connections wait: better than having two processes write to one socket.
                Err(error) => {
                    tracing::error!(%error, process, "cannot make sure that an earlier leader's process is dead: its connections wait");
                }
            }
        }
        matches!(killed, Ok(Killed::Before | Killed::Now))
    }
}

/// The service, as this node has it.
#[derive(Debug)]
pub(super) struct Succession {
    service: Service,
    pub(super) scratch: Scratch,
    /// Its index among the listeners.
    listener: usize,
    phase: Phase,
    /// The order of the hold that this process announced last.
    order: u64,
    /// Connections that this process held when it last ceased to lead.
    parked: Vec<(OwnedFd, Option<Line>)>,
    /// Connections that have ended, and may have marks in the log.
    ended: Vec<u64>,
    /// No other node would succeed this one.
    is_alone: bool,
    /// When to check next that the keeper is alive.
    look_at: Time,
    /// The keeper is dead, and there is no other in its place.
    lacks_keeper: bool,
}

impl Succession {
    /// Whether nothing is left to do until something is committed.
    pub(super) fn is_idle(&self) -> bool {
        !matches!(self.phase, Phase::Collecting { .. }) && self.ended.is_empty()
    }

    /// Replaces the keeper if it has died: without a keeper, connections end with this process.
    fn mind_keeper(&mut self) {
        let address = self.service.address;
        match keeper::mend() {
            None => {}
            Some(Mended::Replaced) => {
                self.lacks_keeper = false;
                tracing::warn!(%address, "the keeper of this node (martlet-keeper) had died; another one has taken its place");
            }
            Some(Mended::Lost(error)) if !std::mem::replace(&mut self.lacks_keeper, true) => {
                tracing::error!(
                    %address,
                    %error,
                    "the keeper of this node (martlet-keeper) has died, and there is no other so far: connections at the service's address end if this node dies while it leads"
                );
            }
            // That has been said.
            Some(Mended::Lost(_)) => {}
        }
    }

    /// Takes note of what has been committed.
    pub(super) fn release(&mut self, released: Released) {
        match std::mem::replace(&mut self.phase, Phase::Serving) {
            Phase::Announced(ticket) if released.usual >= ticket => {
                self.phase = Phase::Collecting { waiting: Vec::new(), got: Vec::new(), since: Time(0), ask_at: Time(0) };
            }
            Phase::Settling(ticket, left) if released.usual >= ticket => left.into_iter().for_each(Left::dismiss),
            other => self.phase = other,
        }
    }
}

/// A socket that an earlier holder had. Unless it is [kept](Handed::keep), its connection ends for its client when this is dropped, though other processes may hold
/// duplicates of it: a stopped keeper, for one. A client would wait for as long as they do.
struct Handed(Option<OwnedFd>);

impl Handed {
    fn keep(mut self) -> OwnedFd {
        self.0.take().expect("it is taken once")
    }
}

impl Deref for Handed {
    type Target = OwnedFd;
    fn deref(&self) -> &OwnedFd {
        self.0.as_ref().expect("it is here until it is kept")
    }
}

impl Drop for Handed {
    fn drop(&mut self) {
        if let Some(socket) = &self.0 {
            // If the other end is gone, so is the connection.
            let _ = shutdown(socket, Shutdown::Both);
        }
    }
}

/// What one of the earlier holders has left.
struct Source {
    order: u64,
    remains: Option<Remains>,
}

impl RedisFront {
    /// Serves the cluster's service as well, whenever this node leads.
    pub(crate) fn serve_service(&mut self, mut service: Service) -> std::io::Result<()> {
        let scratch = service.ledger.scratch();
        self.listeners.push(Listener::of_service(service.listener.try_clone()?, service.address));
        self.succession = Some(Succession {
            service,
            scratch,
            listener: self.listeners.len() - 1,
            phase: Phase::Away,
            order: 0,
            parked: Vec::new(),
            ended: Vec::new(),
            is_alone: false,
            look_at: Time(0),
            lacks_keeper: false,
        });
        Ok(())
    }

    /// Does this turn's work for the service.
    pub(super) fn succeed<R: Replica<Machine = KvMachine>>(&mut self, turn: &mut Turn<'_, R>) {
        let now = turn.replica.now();
        let Some(succession) = &mut self.succession else { return };
        if now >= succession.look_at {
            succession.look_at = now.after(KEEPER_LOOK_NS);
            succession.mind_keeper();
        }
        if keeper::SUCCEEDED.swap(false, Ordering::SeqCst) {
            for (_, line) in std::mem::take(&mut succession.parked) {
                line.into_iter().for_each(|line| succession.service.ledger.end(line));
            }
            keeper::HOLDS.store(false, Ordering::SeqCst);
        }
        succession.is_alone = turn.shared.env.is_alone();
        if !turn.shared.env.is_primary {
            // The next leader ends the marks of connections that are gone.
            succession.ended.clear();
            // A node that is about to leave stops leading before its reign is over.
            if !matches!(succession.phase, Phase::Away) {
                self.let_go_of_service(turn.shared);
            }
            return;
        }
        for cookie in std::mem::take(&mut succession.ended) {
            let session = SessionId::of_connection(cookie);
            if turn.replica.machine().sessions().is_known(session) {
                turn.perform(Effect::End { session });
            }
        }
        match &succession.phase {
            Phase::Away => {
                let latest = holds(turn).map(|hold| hold.order).max().unwrap_or(0);
                let hold = Hold { order: latest + 1, holder: succession.service.holder };
                hold.with(|effect| turn.perform(effect));
                turn.propose();
                succession.phase = Phase::Announced(turn.replica.ticket());
            }
            Phase::Collecting { .. } => self.collect(turn),
            Phase::Announced(_) | Phase::Settling(..) | Phase::Serving => {}
        }
    }

    /// Asks the processes that may hold connections, and takes the connections over when all have answered.
    fn collect<R: Replica<Machine = KvMachine>>(&mut self, turn: &mut Turn<'_, R>) {
        let now = turn.replica.now();
        let Some(succession) = &mut self.succession else { return };
        let Phase::Collecting { waiting, got, since, ask_at } = &mut succession.phase else { return };
        let own = Hold { order: 0, holder: succession.service.holder }.session();
        if *since == Time(0) {
            // From here on this process holds connections.
            keeper::HOLDS.store(true, Ordering::SeqCst);
            keeper::LET_GO.store(false, Ordering::SeqCst);
            (*since, *ask_at) = (now, now);
            *waiting = holds(turn).filter(|hold| hold.session() != own).map(|hold| Earlier::new(hold, now)).collect();
        }
        if now < *ask_at {
            return;
        }
        *ask_at = now.after(ASK_NS);
        let is_late = now >= since.after(PATIENCE_NS);
        for mut earlier in std::mem::take(waiting) {
            match earlier.hand_over(&succession.service.keeper_of(earlier.hold.holder), now, is_late) {
                Some(left) => got.push((earlier.hold, left)),
                None => waiting.push(earlier),
            }
        }
        if waiting.is_empty() {
            let got = std::mem::take(got);
            self.adopt(got, turn);
        }
    }

    /// Takes over all connections that were left.
    fn adopt<R: Replica<Machine = KvMachine>>(&mut self, got: Vec<(Hold, Option<Left>)>, turn: &mut Turn<'_, R>) {
        let Some(succession) = &mut self.succession else { return };
        let own = Hold { order: 0, holder: succession.service.holder }.session();
        let mut sockets: BTreeMap<u64, OwnedFd> = BTreeMap::new();
        let mut sources = Vec::new();
        let mut lines: BTreeMap<u64, Line> = BTreeMap::new();
        if !succession.parked.is_empty() {
            let remains = own_file(&succession.service.ledger).and_then(Remains::read);
            sources.push(Source { order: succession.order, remains: remains.inspect_err(tell_unread).ok() });
            for (socket, line) in std::mem::take(&mut succession.parked) {
                if let Ok(cookie) = cookie(socket.as_raw_fd()) {
                    sockets.insert(cookie, socket);
                    lines.extend(line.map(|line| (cookie, line)));
                }
            }
        }
        let (mut ended, mut left) = (Vec::new(), Vec::new());
        for (hold, its) in got {
            ended.push(hold.session());
            let Some(mut its) = its else { continue };
            let mut remains = None;
            for socket in std::mem::take(&mut its.sockets) {
                if fstat(&socket).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile) {
                    remains = Remains::read(socket).inspect_err(tell_unread).ok();
                } else if let Ok(cookie) = cookie(socket.as_raw_fd()) {
                    sockets.entry(cookie).or_insert(socket);
                }
            }
            sources.push(Source { order: hold.order, remains });
            left.push(its);
        }
        sources.sort_by_key(|source| std::cmp::Reverse(source.order));
        succession.order = holds(turn).find(|hold| hold.session() == own).map_or(0, |hold| hold.order);
        let sessions = turn.replica.machine().sessions().from(SessionId::default());
        let marks: BTreeMap<u64, Mark> =
            sessions.filter_map(|(id, session)| Mark::of(id, session)).map(|mark| (mark.cookie, mark)).collect();
        let now_ms = turn.clock.now_ms();
        let (mut taken, mut lost) = (BTreeSet::new(), 0u64);
        for (cookie, socket) in sockets {
            turn.shared.pulse.stepped();
            let goes_on = self.go_on(cookie, socket, marks.get(&cookie), &sources, turn.shared, now_ms);
            if let Some(succession) = &mut self.succession {
                lines.remove(&cookie).into_iter().for_each(|line| succession.service.ledger.end(line));
            }
            match goes_on {
                Ok(true) => drop(taken.insert(cookie)),
                Ok(false) => {}
                Err(why) => {
                    lost += 1;
                    tracing::warn!(%why, "a connection cannot be continued, and ends");
                }
            }
        }
        turn.shared.stats.connections_taken_over += taken.len() as u64;
        turn.shared.stats.connections_lost += lost;
        if !ended.is_empty() {
            tracing::info!(connections = taken.len(), lost, "connections of clients have been taken over");
        }
        ended.extend(marks.keys().filter(|cookie| !taken.contains(cookie)).map(|cookie| SessionId::of_connection(*cookie)));
        ended.into_iter().for_each(|session| turn.perform(Effect::End { session }));
        turn.propose();
        let ticket = turn.replica.ticket();
        let Some(succession) = &mut self.succession else { return };
        succession.phase = Phase::Settling(ticket, left);
        let at = succession.listener;
        let data = epoll::EventData::new_u64(LISTENERS + at as u64);
        if let Err(error) = epoll::add(&self.events, &self.listeners[at], data, epoll::EventFlags::IN | epoll::EventFlags::ET) {
            tracing::error!(%error, "cannot wait for connections to the service");
        }
    }

    /// Takes over one connection, unless that is not possible: then it ends for its client too. Returns whether it did: `false` means that the connection is
    /// simply over.
    fn go_on(
        &mut self,
        cookie: u64,
        socket: OwnedFd,
        mark: Option<&Mark>,
        sources: &[Source],
        shared: &mut Shared,
        now_ms: u64,
    ) -> Result<bool, String> {
        let socket = Handed(Some(socket));
        let Counts::Exact { read, written } = counts(socket.as_raw_fd()).map_err(|error| error.to_string())? else { return Ok(false) };
        let its = sources.iter().filter_map(|source| source.remains.as_ref()).find(|remains| remains.has(cookie));
        let Some(remains) = its else {
            if (read, written) != (0, 0) {
                // It could not be handed on, or its ledger is lost.
                return Err(format!("{read} bytes were read of it and {written} written, and nothing is noted"));
            }
            let from = peer_of(&socket);
            let Some(at) = self.succession.as_ref().map(|succession| succession.listener) else { return Ok(false) };
            self.admit(socket.keep(), from, at, shared, now_ms);
            return Ok(true);
        };
        let mark = mark.map(|mark| (mark.place.input, mark.place.output));
        let Remainder { settled, state, input, output } = remains.of(cookie, (read, written), mark).map_err(|error| error.to_string())?;
        let Some(succession) = &mut self.succession else { return Ok(false) };
        let local = self.listeners[succession.listener].name.clone();
        let mut client = Client { fd: socket.as_raw_fd(), ..Client::new(peer_of(&socket), local, false, now_ms) };
        let closing = read_state(&state, &mut client).ok_or("its state is not understood")?;
        let mut line = succession.service.ledger.begin(cookie, settled, written, &state).ok_or("there are too many")?;
        if !line.receive(&input) || !line.produce(&output) {
            succession.service.ledger.end(line);
            return Err("more of it is under way than is kept".into());
        }
        let at = self.place();
        if let Err(error) = self.watch(&socket, at) {
            self.free.push(at);
            if let Some(succession) = &mut self.succession {
                succession.service.ledger.end(line);
            }
            return Err(error.to_string());
        }
        Ledger::show(&line);
        keeper::HIGHEST.fetch_max(socket.as_raw_fd(), Ordering::SeqCst);
        shared.stats.connections_received += 1;
        shared.stats.connections += 1;
        let tracked = Tracked::new(line, &client, closing);
        let slot = shared.clients.add(client);
        let mut connection = Connection::new(socket.keep(), slot);
        connection.output = Output::tracked(settled, output);
        (connection.tracked, connection.is_of_service, connection.closing) = (Some(tracked), true, closing);
        (connection.unfinished, connection.input) = (!input.is_empty(), input);
        connection.queued = true;
        self.ready.push_back(at);
        if connection.output.pending() > 0 {
            connection.listed = true;
            self.writers.push(at);
        }
        self.connections[at] = Some(connection);
        Ok(true)
    }

    /// Begins to note what a new connection of the service does.
    pub(super) fn track_new(&mut self, fd: &OwnedFd, client: &Client) -> Option<Tracked> {
        let succession = self.succession.as_mut()?;
        let mut state = Vec::new();
        write_state(client, false, &mut state);
        let cookie = cookie(fd.as_raw_fd())
            .inspect_err(|error| tracing::warn!(%error, "cannot tell a client's connection from others: it ends if this node dies"))
            .ok()?;
        keeper::HIGHEST.fetch_max(fd.as_raw_fd(), Ordering::SeqCst);
        let line = succession.service.ledger.begin(cookie, Settled::default(), 0, &state)?;
        Ledger::show(&line);
        Some(Tracked::new(line, client, false))
    }

    /// A connection has ended.
    pub(super) fn end_of_service(&mut self, connection: Connection) {
        let Some(succession) = self.succession.as_mut().filter(|_| connection.is_of_service) else { return };
        // Other processes may hold duplicates of the socket.
        connection.shut_down();
        let (_socket, line) = connection.into_parts();
        if let Some(line) = line {
            succession.ended.push(line.cookie());
            succession.service.ledger.end(line);
        }
    }

    /// This node became primary or ceased to be. It touches no connection of the service until it has taken over from any node that led in between.
    pub(super) fn let_go_of_service(&mut self, shared: &mut Shared) {
        let Some(succession) = &mut self.succession else { return };
        if !matches!(succession.phase, Phase::Away | Phase::Announced(_) | Phase::Collecting { .. }) {
            let _ = epoll::delete(&self.events, &self.listeners[succession.listener]);
            self.accepting.retain(|at| *at != succession.listener);
        }
        succession.phase = Phase::Away;
        for at in 0..self.connections.len() {
            if self.connections[at].as_ref().is_some_and(|connection| connection.is_of_service)
                && let Some(connection) = self.connections[at].take()
            {
                let _ = epoll::delete(&self.events, &connection);
                shared.clients.remove(connection.slot, &shared.pulse);
                shared.stats.connections -= 1;
                self.free.push(at);
                succession.parked.push(connection.into_parts());
            }
        }
        keeper::SUCCEEDED.store(false, Ordering::SeqCst);
        keeper::LET_GO.store(true, Ordering::SeqCst);
    }
}

impl Drop for RedisFront {
    /// When a node ends in an orderly way, the connections of the service are kept for the next leader, if there is one.
    fn drop(&mut self) {
        let Some(mut succession) = self.succession.take() else { return };
        let ending = succession.service.ending();
        let serves_any = self.connections.iter().flatten().any(|connection| connection.is_of_service);
        if succession.is_alone || !serves_any && succession.parked.is_empty() {
            keeper::HOLDS.store(false, Ordering::SeqCst);
        } else {
            let serving = self.connections.iter_mut().filter(|c| c.as_ref().is_some_and(|c| c.is_of_service));
            let sockets = serving.filter_map(Option::take).map(|connection| connection.into_parts().0);
            // They are the keeper's from here on: it shares the table of descriptors.
            sockets.chain(succession.parked.drain(..).map(|(socket, _)| socket)).for_each(std::mem::forget);
            // And so are the listener and the ledger.
            std::mem::forget(succession);
            keeper::LET_GO.store(true, Ordering::SeqCst);
        }
        ending.end();
    }
}

/// The processes that may hold connections.
fn holds<'t, R: Replica<Machine = KvMachine>>(turn: &'t Turn<'_, R>) -> impl Iterator<Item = Hold> + 't {
    turn.replica.machine().sessions().from(SessionId::of_process(0)).filter_map(|(id, session)| Hold::of(id, session))
}

fn tell_unread(error: &std::io::Error) {
    tracing::error!(%error, "cannot read what is noted about clients' connections");
}

fn peer_of(socket: &OwnedFd) -> String {
    let peer = getpeername(socket).ok().flatten().and_then(|peer| std::net::SocketAddr::try_from(peer).ok());
    peer.map_or_else(|| "?:0".to_owned(), |peer| peer.to_string())
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_connection_that_is_not_continued_ends_for_its_client_though_a_stopped_keeper_holds_it() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut client = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
        let held_elsewhere = OwnedFd::from(listener.accept().expect("it has connected").0);
        let kept = Handed(Some(held_elsewhere.try_clone().expect("a descriptor"))).keep();
        client.set_nonblocking(true).expect("a socket");
        let error = client.read(&mut [0]).expect_err("it stands");
        assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
        drop(Handed(Some(kept)));
        client.set_nonblocking(false).expect("a socket");
        assert_eq!(client.read(&mut [0]).expect("it ends in order"), 0);
        drop(held_elsewhere);
    }
}
