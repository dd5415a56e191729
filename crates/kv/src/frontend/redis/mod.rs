//! The Redis protocol over TCP and Unix sockets, on one thread that never waits.
//!
//! A turn looks at the sockets with one system call. It skips that while the fabric's clients keep the node busy and the last look found nothing. It reads each
//! ready connection once, executes the requests that have arrived whole, and keeps the replies until the turn's ticket is released. Then the replies of each
//! connection leave in one write. So a request costs two system calls, however many requests were pipelined into one read.
//!
//! Where the nodes of one host serve one address, its connections outlive each of the nodes. `succession` describes how, and [`martlet_node::connections`]
//! describes what that builds on.
//!
//! A connection's memory is bounded in both directions: an argument by its stated length, a request by its sum, and replies by how fast the client reads them.
//! A client that sends without reading is not read from, and a client for which a single reply is too much is disconnected.

mod connection;
mod listener;
mod output;
mod succession;
mod tracked;

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use martlet_node::connections::ledger::Scratch;
use martlet_protocol::basics::Time;
use martlet_protocol::replica::{NODES_OWN, Replica};
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};

use self::connection::{Arrival, Connection, Linger, Tracked};
pub use self::listener::ListenError;
use self::listener::Listener;
use self::succession::Succession;
pub(crate) use self::tracked::Mark;
use crate::commands::{Client, ClientSlot, Shared};
use crate::config::KvConfig;
use crate::resp::{Limits, Reply};
use crate::store::KvMachine;
use crate::turn::{REPLY_BYTES, Released, Turn};

/// How much one read takes at most.
const READ_BYTES: usize = 256 << 10;
/// How many events one look at the sockets takes at most.
const EVENTS: usize = 512;
/// How many connections are accepted in one turn.
const ACCEPTS: usize = 128;
/// Event data from here on identifies a listener.
const LISTENERS: u64 = 1 << 40;
/// A look that does not wait.
const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
/// After an accept that failed for lack of descriptors, when to try again, in nanoseconds.
const ACCEPT_RETRY_NS: u64 = 10_000_000;
/// How long a client may go on sending beyond its limit, so that it can read the error when it is done, in nanoseconds. 100 MiB take a second on a gigabit
/// network.
const LINGER_NS: u64 = 1_000_000_000;
/// How often the log says that no connection can be accepted, in nanoseconds.
const COMPLAINT_NS: u64 = 1_000_000_000;

/// The front end.
pub struct RedisFront {
    events: OwnedFd,
    found: Vec<epoll::Event>,
    listeners: Vec<Listener>,
    /// Listeners that may have connections waiting.
    accepting: Vec<usize>,
    accept_again_at: Time,
    /// When the log may next say that connections cannot be accepted.
    complain_at: Time,
    connections: Vec<Option<Connection>>,
    free: Vec<usize>,
    /// Connections with something to read or to execute.
    ready: VecDeque<usize>,
    /// Connections with output.
    writers: Vec<usize>,
    /// Connections that linger after their last request, ordered by when their time is up.
    lingering: VecDeque<(Time, usize)>,
    /// What one read fills; shared, since nothing stays in it.
    scratch: Box<[u8]>,
    next_look: Time,
    /// The sockets were just looked at, during a sleep.
    looked: bool,
    /// The service of the cluster, if there is one.
    succession: Option<Succession>,
}

impl std::fmt::Debug for RedisFront {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisFront").field("listeners", &self.listeners).field("ready", &self.ready.len()).finish_non_exhaustive()
    }
}

impl RedisFront {
    /// Listens where the configuration says.
    pub fn new(config: &KvConfig) -> Result<RedisFront, ListenError> {
        let mut listeners = Vec::new();
        if let Some(address) = config.listen {
            listeners.push(Listener::tcp(address)?);
        }
        if let Some(path) = &config.unix_socket {
            listeners.push(Listener::unix(path)?);
        }
        let events = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|e| ListenError::Events(e.into()))?;
        for (i, listener) in listeners.iter().enumerate() {
            epoll::add(&events, listener, epoll::EventData::new_u64(LISTENERS + i as u64), epoll::EventFlags::IN | epoll::EventFlags::ET)
                .map_err(|e| ListenError::Events(e.into()))?;
        }
        Ok(RedisFront {
            events,
            found: Vec::with_capacity(EVENTS),
            listeners,
            accepting: Vec::new(),
            accept_again_at: Time(0),
            complain_at: Time(0),
            connections: Vec::new(),
            free: Vec::new(),
            ready: VecDeque::new(),
            writers: Vec::new(),
            lingering: VecDeque::new(),
            scratch: vec![0; READ_BYTES].into_boxed_slice(),
            next_look: Time(0),
            looked: false,
            succession: None,
        })
    }

    /// The TCP address it listens on.
    pub fn address(&self) -> Option<std::net::SocketAddr> {
        self.listeners.iter().find(|l| l.is_tcp && !l.is_of_service).and_then(Listener::address)
    }

    /// Readable when a socket needs attention: for a node that parks.
    pub fn events(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    /// Whether nothing is left to do until [`RedisFront::events`] is readable or a ticket is released.
    pub fn is_idle(&self) -> bool {
        self.ready.is_empty() && self.accepting.is_empty() && self.succession.as_ref().is_none_or(Succession::is_idle)
    }

    /// Sleeps until a socket or a descriptor of the node's needs attention, but no longer than given. Returns `false` if the kernel refused, in which case it
    /// has not slept.
    pub fn sleep(&mut self, at_most_ns: u64) -> bool {
        let timeout = Timespec { tv_sec: (at_most_ns / 1_000_000_000) as i64, tv_nsec: (at_most_ns % 1_000_000_000) as i64 };
        let slept = self.look(&timeout);
        // The sleep has collected the events that there were.
        self.looked = slept.is_some();
        slept.is_some()
    }

    /// Takes and executes requests.
    pub(crate) fn poll<R: Replica<Machine = KvMachine>>(&mut self, turn: &mut Turn<'_, R>) {
        let now = turn.replica.now();
        self.succeed(turn);
        if std::mem::take(&mut self.looked) {
            self.next_look = now.after(turn.shared.env.config.socket_poll_ns);
        } else if now >= self.next_look {
            let found = self.look(&AT_ONCE).unwrap_or(false);
            if !found && self.ready.is_empty() {
                self.next_look = now.after(turn.shared.env.config.socket_poll_ns);
            }
        }
        if !self.accepting.is_empty() && now >= self.accept_again_at {
            self.accept(turn.shared, now, turn.clock.now_ms());
        }
        self.end_lingering(turn.shared, now);
        for _ in 0..self.ready.len() {
            if !turn.takes(0) {
                break;
            }
            let Some(at) = self.ready.pop_front() else { break };
            let Some(mut connection) = self.connections[at].take() else { continue };
            connection.queued = false;
            let scratch = match &mut self.succession {
                Some(succession) if connection.tracked.is_some() => Buffer::Noted(&mut succession.scratch),
                _ => Buffer::Own(&mut self.scratch),
            };
            serve(&mut connection, scratch, turn);
            self.put_back(at, connection, turn.shared);
            if std::mem::take(&mut turn.shared.killed) {
                self.close_killed(turn.shared);
            }
        }
    }

    /// The earliest time at which a lingering connection is due to be closed.
    pub fn deadline(&self) -> Time {
        self.lingering.front().map_or(Time(u64::MAX), |(until, _)| *until)
    }

    /// Closes the connections whose time is up.
    fn end_lingering(&mut self, shared: &mut Shared, now: Time) {
        while let Some((until, at)) = self.lingering.front().copied().filter(|(until, _)| *until <= now) {
            self.lingering.pop_front();
            // Another connection may have its slot by now.
            let Some(connection) = self.connections[at].as_mut().filter(|c| c.lingers.is_some_and(|l| l.until == until)) else { continue };
            connection.lingers = None;
            if connection.is_finished() {
                self.close(at, shared);
            }
        }
    }

    /// CLIENT KILL: connections that are not being served at the moment end before anything else is executed.
    fn close_killed(&mut self, shared: &mut Shared) {
        for at in 0..self.connections.len() {
            if self.connections[at].as_ref().is_some_and(|c| shared.clients.get(c.slot).killed) {
                self.close(at, shared);
            }
        }
    }

    /// Looks at the event set once, waiting no longer than `timeout`. Returns whether there was anything, or `None` when the kernel refuses.
    fn look(&mut self, timeout: &Timespec) -> Option<bool> {
        self.found.clear();
        match epoll::wait(&self.events, spare_capacity(&mut self.found), Some(timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => {
                tracing::error!(%error, "cannot wait at the sockets");
                return None;
            }
        }
        for i in 0..self.found.len() {
            let (data, flags) = (self.found[i].data.u64(), self.found[i].flags);
            if data == NODES_OWN {
                continue;
            }
            if data >= LISTENERS {
                let listener = (data - LISTENERS) as usize;
                if !self.accepting.contains(&listener) {
                    self.accepting.push(listener);
                }
                continue;
            }
            let at = data as usize;
            let Some(connection) = self.connections.get_mut(at).and_then(Option::as_mut) else { continue };
            if flags.contains(epoll::EventFlags::OUT) && connection.blocked {
                connection.blocked = false;
                if !connection.listed {
                    connection.listed = true;
                    self.writers.push(at);
                }
            }
            let ended = flags.intersects(epoll::EventFlags::HUP | epoll::EventFlags::ERR | epoll::EventFlags::RDHUP);
            if ended || flags.contains(epoll::EventFlags::IN) {
                connection.readable = true;
                connection.ended |= ended;
                if !connection.queued && !connection.paused {
                    connection.queued = true;
                    self.ready.push_back(at);
                }
            }
        }
        Some(!self.found.is_empty())
    }

    fn accept(&mut self, shared: &mut Shared, now: Time, now_ms: u64) {
        let mut left = ACCEPTS;
        while let Some(&listener) = self.accepting.last() {
            if left == 0 {
                return;
            }
            left -= 1;
            match self.listeners[listener].accept() {
                Ok((fd, from)) => self.admit(fd, from, listener, shared, now_ms),
                Err(error) => match Errno::from_io_error(&error) {
                    Some(Errno::INTR | Errno::CONNABORTED) => {}
                    Some(Errno::AGAIN) => {
                        self.accepting.pop();
                    }
                    _ => {
                        // Most likely no descriptor is left. The connection stays in the kernel's queue until one is free.
                        shared.stats.connections_rejected += 1;
                        if now >= self.complain_at {
                            self.complain_at = now.after(COMPLAINT_NS);
                            tracing::warn!(%error, listener = %self.listeners[listener].name, "cannot accept a connection");
                        }
                        self.accept_again_at = now.after(ACCEPT_RETRY_NS);
                        return;
                    }
                },
            }
        }
    }

    fn admit(&mut self, fd: OwnedFd, from: String, listener: usize, shared: &mut Shared, now_ms: u64) {
        if shared.stats.connections as usize >= shared.env.config.max_clients {
            shared.stats.connections_rejected += 1;
            // Best effort: the message fits into the empty buffer of a fresh socket.
            let _ = send(&fd, b"-ERR max number of clients reached\r\n", SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
            return;
        }
        let at = self.place();
        if let Err(error) = self.watch(&fd, at) {
            tracing::warn!(%error, "cannot watch a connection");
            shared.stats.connections_rejected += 1;
            self.free.push(at);
            return;
        }
        shared.stats.connections_received += 1;
        shared.stats.connections += 1;
        let authenticated = shared.env.config.password.is_none();
        let client = Client { fd: fd.as_raw_fd(), ..Client::new(from, self.listeners[listener].name.clone(), authenticated, now_ms) };
        let tracked = if self.listeners[listener].is_of_service { self.track_new(&fd, &client) } else { None };
        let slot = shared.clients.add(client);
        let mut connection = Connection::new(fd, slot);
        if self.listeners[listener].is_of_service {
            connection.is_of_service = true;
            connection.output = output::Output::tracked(Default::default(), Vec::new());
        }
        connection.tracked = tracked;
        connection.queued = true;
        self.connections[at] = Some(connection);
        self.ready.push_back(at);
    }

    /// A slot for a connection.
    fn place(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.connections.push(None);
            self.connections.len() - 1
        })
    }

    /// Registers the connection in that slot with the event set.
    fn watch(&self, fd: &OwnedFd, at: usize) -> rustix::io::Result<()> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
        epoll::add(&self.events, fd, epoll::EventData::new_u64(at as u64), flags)
    }

    /// After a connection has been served, puts it back on the lists where it belongs, or ends it.
    fn put_back(&mut self, at: usize, mut connection: Connection, shared: &mut Shared) {
        let over = connection.output.pending() > shared.env.config.output_limit_bytes;
        if over {
            shared.stats.output_limit_disconnections += 1;
        }
        if over || connection.is_finished() {
            self.connections[at] = Some(connection);
            self.close(at, shared);
            return;
        }
        if connection.output.pending() > 0 && !connection.listed {
            connection.listed = true;
            self.writers.push(at);
        }
        if let Some(linger) = connection.lingers.filter(|_| !connection.listed_lingering) {
            connection.listed_lingering = true;
            self.lingering.push_back((linger.until, at));
        }
        let wanted = !connection.closing || connection.lingers.is_some();
        let more = wanted && !connection.paused && (connection.readable || connection.unfinished);
        if more && !connection.queued {
            connection.queued = true;
            self.ready.push_back(at);
        }
        self.connections[at] = Some(connection);
    }

    fn close(&mut self, at: usize, shared: &mut Shared) {
        if let Some(connection) = self.connections[at].take() {
            shared.clients.remove(connection.slot, &shared.pulse);
            shared.stats.connections -= 1;
            self.free.push(at);
            self.end_of_service(connection);
            // A descriptor is free again.
            self.accept_again_at = Time(0);
        }
    }

    /// Sends what may be sent. Returns how many connections sent something.
    pub(crate) fn release(&mut self, released: Released, shared: &mut Shared) -> usize {
        if let Some(succession) = &mut self.succession {
            succession.release(released);
        }
        let mut sent = 0;
        let mut kept = 0;
        let mut bytes = 0;
        for i in 0..self.writers.len() {
            let at = self.writers[i];
            let Some(connection) = self.connections[at].as_mut() else { continue };
            connection.output.release(released);
            connection.note_settled();
            if bytes > REPLY_BYTES {
                // The remaining connections follow in the next turn, in their order. There will be a next turn, since this one sent something.
                self.writers[kept] = at;
                kept += 1;
                continue;
            }
            match connection.write(REPLY_BYTES) {
                Ok(n) => {
                    bytes += n;
                    shared.stats.output_bytes += n as u64;
                    sent += usize::from(n > 0);
                }
                Err(_) => {
                    self.close(at, shared);
                    continue;
                }
            }
            if connection.is_finished() {
                self.close(at, shared);
                continue;
            }
            if connection.paused && connection.output.pending() <= shared.env.config.output_pause_bytes / 2 {
                connection.paused = false;
                if !connection.queued {
                    connection.queued = true;
                    self.ready.push_back(at);
                }
            }
            // A connection that waits for its socket is listed again when the event set tells; one that waits for a ticket stays on the list.
            connection.listed = connection.output.is_held() || !connection.output.sendable().is_empty() && !connection.blocked;
            if connection.listed {
                self.writers[kept] = at;
                kept += 1;
            }
        }
        self.writers.truncate(kept);
        sent
    }

    /// This node became primary or ceased to be. Replies that wait are void, and their clients are disconnected, since they must learn that the outcome is
    /// unknown. The other connections stay; those of the service are taken over by the next leader.
    pub(crate) fn reign_changed(&mut self, shared: &mut Shared) {
        self.let_go_of_service(shared);
        for at in 0..self.connections.len() {
            if self.connections[at].as_ref().is_some_and(|c| c.output.is_held()) {
                shared.stats.voided_connections += 1;
                self.close(at, shared);
            }
        }
        shared.clients.break_all_watches();
    }
}

/// Where a read puts what it reads.
enum Buffer<'b> {
    Own(&'b mut [u8]),
    /// Where a successor finds what was read.
    Noted(&'b mut Scratch),
}

impl Buffer<'_> {
    fn of(&mut self, tracked: Option<&Tracked>) -> &mut [u8] {
        match (self, tracked) {
            (Buffer::Noted(scratch), Some(tracked)) => scratch.of(&tracked.line),
            (Buffer::Noted(scratch), None) => scratch.of_nobody(),
            (Buffer::Own(bytes), _) => bytes,
        }
    }
}

/// Reads a connection once and executes the requests that have arrived whole.
fn serve<R: Replica<Machine = KvMachine>>(connection: &mut Connection, mut buffer: Buffer<'_>, turn: &mut Turn<'_, R>) {
    if connection.closing {
        return connection.discard(buffer.of(None));
    }
    turn.clock.forget();
    if connection.unfinished {
        connection.unfinished = false;
        let input = std::mem::take(&mut connection.input);
        let taken = execute_all(connection, &input, turn);
        connection.input = input;
        connection.consume(taken);
    }
    if connection.readable && !connection.unfinished && !connection.paused && !connection.closing {
        let scratch = buffer.of(connection.tracked.as_ref());
        match connection.read(scratch) {
            Arrival::Nothing => connection.readable = false,
            Arrival::End => {
                // Requests that arrived before the end are still answered.
                connection.readable = false;
                connection.closing = true;
            }
            Arrival::Bytes(n) => {
                turn.shared.stats.input_bytes += n as u64;
                connection.note_input(&scratch[..n]);
                // What has arrived was sent before this.
                turn.clock.forget();
                // A short read has emptied the socket, and the event set will tell when there is more, unless it has already told of the end.
                connection.readable = n == scratch.len() || connection.ended;
                if connection.input.is_empty() {
                    let taken = execute_all(connection, &scratch[..n], turn);
                    connection.input.extend_from_slice(&scratch[taken..n]);
                } else {
                    connection.input.extend_from_slice(&scratch[..n]);
                    let input = std::mem::take(&mut connection.input);
                    let taken = execute_all(connection, &input, turn);
                    connection.input = input;
                    connection.consume(taken);
                }
            }
        }
    }
    let client = turn.shared.clients.get_mut(connection.slot);
    client.input_bytes = connection.input.len();
    client.output_bytes = connection.output.pending();
}

/// Executes the whole requests at the start of `input`. Returns how many bytes they took.
fn execute_all<R: Replica<Machine = KvMachine>>(connection: &mut Connection, input: &[u8], turn: &mut Turn<'_, R>) -> usize {
    let limits: Limits = turn.shared.env.config.limits;
    let pause = turn.shared.env.config.output_pause_bytes;
    let slot: ClientSlot = connection.slot;
    let mut taken = 0;
    let (mut data, mut by_quorum) = (false, false);
    turn.clock.begin();
    let client = turn.shared.clients.get_mut(slot);
    client.last_ms = turn.clock.now_ms();
    (client.input_bytes, client.output_bytes) = (input.len(), connection.output.pending());
    while taken < input.len() {
        if connection.output.pending() > pause {
            (connection.paused, connection.unfinished) = (true, true);
            break;
        }
        if !connection.may_execute() {
            connection.unfinished = true;
            break;
        }
        let rest = &input[taken..];
        let authenticated = turn.shared.clients.get(slot).authenticated;
        match connection.parser.parse(rest, &limits, authenticated) {
            Ok(None) => break,
            // The parser will find it again in the next turn.
            Ok(Some(n)) if !turn.takes(n) => {
                connection.unfinished = true;
                break;
            }
            Ok(Some(n)) => {
                let args = connection.parser.args(rest);
                taken += n;
                let at = connection.output.end();
                if args.is_empty() {
                    connection.note_executed(n as u64, at, true, turn.shared.clients.get(slot));
                    continue;
                }
                let executed = turn.execute(slot, args, connection.output.buffer());
                connection.note_executed(n as u64, at, executed.data, turn.shared.clients.get(slot));
                if let (true, Some(tracked)) = (turn.changed, &connection.tracked) {
                    turn.mark = Some(Mark { cookie: tracked.line.cookie(), place: tracked.place });
                }
                turn.finish_request();
                data |= executed.data;
                let default = turn.shared.env.config.reads_by_quorum;
                by_quorum |= executed.data && turn.shared.clients.get(slot).reads_by_quorum(default);
                if turn.shared.clients.get(slot).quit || turn.shared.shutdown {
                    connection.closing = true;
                    taken = input.len();
                    connection.note_closing(connection.output.end(), turn.shared.clients.get(slot));
                }
                if connection.closing {
                    break;
                }
            }
            Err(error) => {
                turn.shared.stats.protocol_errors += 1;
                turn.shared.stats.errors += 1;
                turn.shared.calls.told(b"ERR");
                let protocol = turn.shared.clients.get(slot).protocol;
                let at = connection.output.end();
                Reply::new(connection.output.buffer(), protocol).error(&format!("ERR {error}"));
                connection.closing = true;
                connection.note_closing(at, turn.shared.clients.get(slot));
                // Linger only for a client that exceeds a limit: where no request can start, or before the password, there is nothing to wait for.
                if error.is_excess() && authenticated {
                    connection.lingers = Some(Linger { bytes: limits.max_request_bytes, until: turn.replica.now().after(LINGER_NS) });
                }
                taken = input.len();
            }
        }
    }
    turn.shared.calls.settle(turn.clock);
    turn.put_mark();
    connection.output.hold(data.then(|| turn.wait(by_quorum)), connection.place());
    connection.note_settled();
    taken
}
