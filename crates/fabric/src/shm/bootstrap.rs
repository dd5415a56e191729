//! The bootstrap thread: it listens, dials, shakes hands, watches the processes that it has connected, and listens to descriptors for the endpoint.
//!
//! It blocks nowhere but in its wait for something to happen, so no peer can hold up another: all handshakes proceed at once, each with its own
//! deadline.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use super::handshake::{Handshake, Ours, Progress};
use super::peer::Peer;
use super::rendezvous::{Listener, Rendezvous};
use super::shared::{Command, Note, Shared};
use crate::contract::{Identity, NodeId, PeerId, PeerKind};
use crate::host::socket::{self, MAX_MESSAGE, Received};
use crate::host::{LULL, errand};
use crate::meeting::admission;
use crate::meeting::attempts::{self, Attempts, Times};
use crate::meeting::handshakes::{End, Failure};
use crate::meeting::watch::Watch;
use crate::meeting::wire::Message;
use crate::meeting::{Refusal, describe, log_of};

/// How long attempts may take, and the pauses between them. No process looks for a client, so a client looks often. A member that starts looks for all the
/// others itself: to look for it beforehand is only a safety net, and would wake an idle process many times a second where most of the numbers that a
/// cluster may have are free.
fn times(kind: PeerKind) -> Times {
    let longest_pause = Duration::from_millis(if kind == PeerKind::Member { 1_000 } else { 100 });
    Times { handshake: Duration::from_secs(5), first_pause: Duration::from_millis(1), longest_pause }
}

/// How long a process may take to end after its socket has ended, before the connection counts as lost with the process alive. A dying process closes
/// its sockets first.
const DYING: Duration = Duration::from_secs(1);

/// The state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    Live,
    /// The socket or the process was seen to end at this time. From then on, the process has [`DYING`] to end as well.
    Dying(Instant),
    /// Reported as gone. The process is alive as far as known, and is still watched.
    Lost,
    /// Reported as certainly gone.
    Dead,
}

#[derive(Debug)]
struct Connection {
    peer: PeerId,
    identity: Identity,
    socket: Option<OwnedFd>,
    pidfd: OwnedFd,
    link: Link,
}

impl Connection {
    /// The connection has ended, although no death is known.
    fn lose(&mut self, shared: &Shared) {
        self.link = Link::Lost;
        log_of!(warn, self.identity, self.peer, "the connection with {} is lost, its process lives");
        shared.tell(Note::Gone { peer: self.peer, certain: false });
    }
}

/// What a poll entry stands for.
#[derive(Clone, Copy, Debug)]
enum Source {
    Wake,
    Listener,
    Handshake(usize),
    Socket(usize),
    Process(usize),
    /// One of the descriptors that the endpoint listens to.
    Outside,
}

/// The thread's state.
pub(super) struct Bootstrap {
    ours: Ours,
    shared: Arc<Shared>,
    rendezvous: Rendezvous,
    listener: Option<Listener>,
    max_clients: usize,
    attempts: Attempts<Handshake, ()>,
    /// A socket with which an attempt failed, for the next attempt.
    spare: Option<OwnedFd>,
    connections: Vec<Connection>,
    next_peer: u32,
    /// The descriptors that the endpoint listens to while it sleeps on words.
    outside: Vec<OwnedFd>,
    buffer: Box<[u8; MAX_MESSAGE]>,
}

impl Bootstrap {
    pub(super) fn new(
        ours: Ours,
        shared: Arc<Shared>,
        (rendezvous, listener): (Rendezvous, Option<Listener>),
        max_clients: usize,
        open: bool,
    ) -> Bootstrap {
        let attempts = Attempts::new(times(ours.party.identity.kind), open);
        Bootstrap {
            ours,
            shared,
            rendezvous,
            listener,
            max_clients,
            attempts,
            spare: None,
            connections: Vec::new(),
            next_peer: 1,
            outside: Vec::new(),
            buffer: Box::new([0; MAX_MESSAGE]),
        }
    }

    /// Runs until told to stop.
    pub(super) fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        let _errands = errand::on_duty(Arc::new(move || shared.stir()));
        loop {
            let ready = match self.wait() {
                Ok(ready) => ready,
                Err(error) => {
                    // We are out of kernel memory, or the descriptor limit is below what we hold: wait until that changes.
                    tracing::error!(%error, "cannot wait for peers");
                    std::thread::sleep(attempts::REST);
                    continue;
                }
            };
            let mut handshakes = Vec::new();
            for source in ready {
                match source {
                    Source::Wake => {
                        if self.obey() {
                            self.part();
                            return;
                        }
                    }
                    Source::Listener => self.accept(),
                    Source::Handshake(at) => handshakes.push(at),
                    Source::Socket(at) => self.hear(at),
                    Source::Process(at) => self.ended(at),
                    Source::Outside => {
                        if self.shared.attention.is_heard() {
                            self.shared.wake();
                        }
                    }
                }
            }
            self.shake_hands(&handshakes);
            self.pass_time(Instant::now());
            // Connections change their positions only here, after everything that was named by its position has been dealt with.
            self.connections.retain(|c| c.peer != PeerId::SELF);
        }
    }

    /// Sleeps until something is ready or due.
    fn wait(&self) -> io::Result<Vec<Source>> {
        let now = Instant::now();
        let mut watch = Watch::new();
        watch.add(Source::Wake, PollFd::new(&self.shared.wake, PollFlags::IN));
        if !self.outside.is_empty() && self.shared.attention.is_wanted() {
            self.outside.iter().for_each(|fd| watch.add(Source::Outside, PollFd::new(fd, PollFlags::IN)));
        }
        self.attempts.watch(&mut watch, self.listener.as_ref().map(AsFd::as_fd), Source::Listener);
        for (at, handshake) in self.attempts.handshakes.iter().enumerate() {
            watch.add(Source::Handshake(at), PollFd::new(&handshake.socket, PollFlags::IN));
        }
        for (at, connection) in self.connections.iter().enumerate() {
            if let Some(socket) = &connection.socket {
                watch.add(Source::Socket(at), PollFd::new(socket, PollFlags::IN));
            }
            match connection.link {
                Link::Dead => continue,
                Link::Dying(since) if now < since + LULL => {
                    watch.at_latest(since + LULL);
                    continue;
                }
                Link::Dying(since) => watch.at_latest(since + DYING),
                Link::Live | Link::Lost => {}
            }
            watch.add(Source::Process(at), PollFd::from_borrowed_fd(connection.pidfd.as_fd(), PollFlags::IN));
        }
        if let Some(when) = self.attempts.dialer.next(|node| self.wants_dial(node)) {
            watch.at_latest(when);
        }
        let mut ready = watch.wait()?;
        // The end of a process before the end of its socket, so that a death is reported as a death.
        ready.sort_by_key(|source| !matches!(source, Source::Process(_)));
        Ok(ready)
    }

    /// Whether a node should be dialled when its pause is over.
    fn wants_dial(&self, node: NodeId) -> bool {
        let connected =
            self.connections.iter().any(|c| c.link == Link::Live && c.identity.kind == PeerKind::Member && c.identity.node == node);
        !connected && !self.attempts.handshakes.dials(node)
    }

    /// Carries out commands; `true` to stop.
    fn obey(&mut self) -> bool {
        for command in self.shared.commands() {
            match command {
                Command::Open => self.attempts.open = true,
                Command::Connect(node) => self.attempts.connect(node, ()),
                Command::Disconnect(node) => self.attempts.dialer.unwant(node),
                Command::Listen(descriptors) => self.outside = descriptors,
                Command::Forget(peer, mapped) => {
                    drop(mapped);
                    if let Some(connection) = self.connections.iter_mut().find(|c| c.peer == peer) {
                        if let Some(socket) = connection.socket.take() {
                            let _ = socket::send(&socket, &Message::Bye.encode(), &[]);
                        }
                        connection.link = Link::Dead;
                        // Marks it for removal: no connected peer has the number SELF.
                        connection.peer = PeerId::SELF;
                    }
                }
                Command::Stop => return true,
            }
        }
        false
    }

    /// Tells every peer that we close the connection of our own will.
    fn part(&mut self) {
        for connection in &self.connections {
            if let Some(socket) = &connection.socket {
                let _ = socket::send(socket, &Message::Bye.encode(), &[]);
            }
        }
    }

    fn accept(&mut self) {
        let Some(listener) = &self.listener else { return };
        if let Some(socket) = self.attempts.accepted(socket::accept(listener)) {
            self.begin(socket, None);
        }
    }

    fn begin(&mut self, socket: OwnedFd, target: Option<NodeId>) {
        match Handshake::start(&self.ours, socket, target) {
            Ok(handshake) => self.attempts.handshakes.add(handshake, Instant::now()),
            Err(refusal) => {
                let who = target.map_or("an unknown process".into(), |node| format!("member {node}"));
                self.shared.report_refusal(&who, &refusal);
                self.attempts.failed(target);
            }
        }
    }

    fn shake_hands(&mut self, ready: &[usize]) {
        let mut ended = 0;
        for at in ready {
            let others = self.connections.iter().map(|c| (c.identity, c.link == Link::Live));
            let admit = |identity| admission::admit(self.ours.party.identity, self.max_clients, others.clone(), identity);
            let step = self.attempts.handshakes.advance(at - ended, |handshake| advance(handshake, &self.ours, &mut self.buffer, admit));
            let Some((handshake, end)) = step else { continue };
            ended += 1;
            match end {
                End::Connected(peer) => self.connected(handshake, peer),
                End::Refused(refusal) => self.attempts.refused(&self.shared, &handshake, &refusal),
                End::Abandoned(why) => self.attempts.abandoned(&self.shared, &handshake, why),
            }
        }
    }

    fn connected(&mut self, handshake: Handshake, peer: Box<Peer>) {
        let id = PeerId(self.next_peer);
        self.next_peer = self.next_peer.checked_add(1).expect("four thousand million connections in one life");
        let identity = peer.identity;
        // A process that connects anew is alive, whatever the end of its earlier socket looked like, and no longer has the earlier connection.
        for connection in &mut self.connections {
            if connection.identity == identity && matches!(connection.link, Link::Live | Link::Dying(_)) {
                connection.lose(&self.shared);
            }
        }
        log_of!(info, identity, id, "connected with {}");
        self.connections.push(Connection { peer: id, identity, socket: Some(handshake.socket), pidfd: handshake.pidfd, link: Link::Live });
        self.shared.count_connected();
        self.shared.tell(Note::Up(id, peer));
    }

    /// The socket of a connection has something to be read: a farewell, or its end.
    fn hear(&mut self, at: usize) {
        let connection = &mut self.connections[at];
        let Some(socket) = &connection.socket else { return };
        let farewell = match socket::receive(socket, &mut self.buffer) {
            Received::Nothing => return,
            Received::End => false,
            Received::Message(len, _) => match Message::decode(&self.buffer[..len]) {
                Ok(Message::Bye) => true,
                other => {
                    tracing::warn!("{} breaks the protocol after the handshake: {other:?}", describe(connection.identity));
                    true
                }
            },
            Received::TooLong => true,
        };
        connection.socket = None;
        if connection.link != Link::Live {
            return;
        }
        if farewell {
            connection.link = Link::Lost;
            let peer = connection.peer;
            log_of!(info, connection.identity, peer, "{} has closed its connection");
            self.shared.tell(Note::Gone { peer, certain: false });
            self.dial(at, Instant::now());
        } else {
            let now = Instant::now();
            connection.link = Link::Dying(now);
            self.dial(at, now + LULL);
        }
    }

    /// The kernel says that the process of a connection has ended.
    fn ended(&mut self, at: usize) {
        let connection = &mut self.connections[at];
        match connection.link {
            Link::Dead => return,
            // If another process shares its descriptors, its socket has not ended before.
            Link::Live => {
                let now = Instant::now();
                connection.link = Link::Dying(now);
                return self.dial(at, now + LULL);
            }
            Link::Dying(_) | Link::Lost => {}
        }
        connection.link = Link::Dead;
        connection.socket = None;
        let peer = connection.peer;
        log_of!(info, connection.identity, peer, "the process of {} has ended");
        self.shared.tell(Note::Gone { peer, certain: true });
        self.dial(at, Instant::now());
    }

    /// A connection has ended. If its node is wanted, it is dialled from `when` on, with the shortest pauses.
    fn dial(&mut self, at: usize, when: Instant) {
        let identity = self.connections[at].identity;
        if identity.kind == PeerKind::Member {
            self.attempts.dialer.eager(identity.node, when);
        }
    }

    /// Does what is due.
    fn pass_time(&mut self, now: Instant) {
        self.attempts.pass_time(&self.shared, now);
        for connection in &mut self.connections {
            if matches!(connection.link, Link::Dying(since) if since + DYING <= now) {
                connection.lose(&self.shared);
            }
        }
        for (node, ()) in self.attempts.dialer.due(now) {
            if self.wants_dial(node) {
                match self.rendezvous.connect(&self.ours.party.cluster, node, &mut self.spare) {
                    Ok(socket) => self.begin(socket, Some(node)),
                    // The node is not up yet, or too many processes are dialling it.
                    Err(_) => self.attempts.failed(Some(node)),
                }
            }
        }
    }
}

/// Takes what has arrived for one handshake. The handshake's steps limit this to a few messages.
fn advance(
    handshake: &mut Handshake,
    ours: &Ours,
    buffer: &mut [u8; MAX_MESSAGE],
    admit: impl Fn(Identity) -> Result<(), Refusal>,
) -> Result<Option<Box<Peer>>, Failure> {
    loop {
        let (len, fds) = match socket::receive(&handshake.socket, buffer) {
            Received::Nothing => return Ok(None),
            Received::Message(len, fds) => (len, fds),
            Received::TooLong => {
                let text = format!("its message is longer than {MAX_MESSAGE} bytes");
                return Err(Failure::Refused(text.into()));
            }
            Received::End => return Err(Failure::HungUp),
        };
        if let Progress::Connected(peer) = handshake.handle(ours, &buffer[..len], fds, &admit).map_err(Failure::Refused)? {
            return Ok(Some(peer));
        }
    }
}
