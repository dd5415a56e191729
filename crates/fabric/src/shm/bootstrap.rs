//! The bootstrap thread: listens, dials, shakes hands, and watches the processes it has connected.
//!
//! One thread, and nothing in it blocks but the wait for something to happen, so that no peer can hold up another: all handshakes go on at
//! once, each with its own deadline.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use super::handshake::{Handshake, Ours, Progress};
use super::peer::Peer;
use super::shared::{Command, Note, Shared};
use super::socket::{self, MAX_MESSAGE, Received};
use crate::contract::{Identity, NodeId, PeerId, PeerKind};
use crate::meeting::wire::{Code, Message};
use crate::meeting::{Refusal, describe};

/// How long a handshake may take in all.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// The most accepted connections that shake hands at once; a newcomer displaces the one that has been silent longest.
const MAX_HANDSHAKES: usize = 64;
/// The most member connections, live or not yet forgotten.
const MAX_MEMBERS: usize = 256;
/// The first and the longest pause between two attempts to reach a node.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);
/// How long after the end of its socket a process may take to end, before the connection counts as lost with the process alive. A dying
/// process closes its sockets first.
const DYING: Duration = Duration::from_secs(1);
/// How long accepting rests after an error such as a shortage of descriptors.
const ACCEPT_REST: Duration = Duration::from_millis(100);

/// A node to be connected with, whenever it is not.
#[derive(Debug)]
struct Target {
    next: Instant,
    pause: Duration,
}

/// How a connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    Live,
    /// The socket has ended; the process has this long to end as well.
    Dying(Instant),
    /// Reported as gone, the process alive as far as known; still watched.
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

/// What a poll entry stands for.
#[derive(Clone, Copy, Debug)]
enum Source {
    Wake,
    Listener,
    Handshake(usize),
    Socket(usize),
    Process(usize),
}

/// How a handshake fails.
enum Failure {
    Refused(Refusal),
    /// The other end died, or gave up.
    HungUp,
}

/// The thread's state.
pub(super) struct Bootstrap {
    pub(super) ours: Ours,
    pub(super) shared: Arc<Shared>,
    pub(super) listener: Option<OwnedFd>,
    pub(super) max_clients: usize,
    targets: HashMap<NodeId, Target>,
    handshakes: Vec<Handshake>,
    connections: Vec<Connection>,
    next_peer: u32,
    /// Whether connections are accepted; until then they wait in the listener.
    open: bool,
    accept_again: Option<Instant>,
    buffer: Box<[u8; MAX_MESSAGE]>,
}

impl Bootstrap {
    pub(super) fn new(ours: Ours, shared: Arc<Shared>, listener: Option<OwnedFd>, max_clients: usize, open: bool) -> Bootstrap {
        Bootstrap {
            ours,
            shared,
            listener,
            max_clients,
            targets: HashMap::new(),
            handshakes: Vec::new(),
            connections: Vec::new(),
            next_peer: 1,
            open,
            accept_again: None,
            buffer: Box::new([0; MAX_MESSAGE]),
        }
    }

    /// Runs until told to stop.
    pub(super) fn run(mut self) {
        loop {
            let ready = match self.wait() {
                Ok(ready) => ready,
                Err(error) => {
                    // Out of kernel memory, or a descriptor limit below what we hold: wait for better times.
                    tracing::error!(%error, "cannot wait for peers");
                    std::thread::sleep(ACCEPT_REST);
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
                }
            }
            self.shake_hands(&handshakes);
            self.pass_time(Instant::now());
            // Only here do positions change, after all that was named by position has been dealt with.
            self.connections.retain(|c| c.peer != PeerId::SELF);
        }
    }

    /// Sleeps until something is ready or due.
    fn wait(&self) -> io::Result<Vec<Source>> {
        let mut sources = vec![Source::Wake];
        let mut fds = vec![PollFd::new(&self.shared.wake, PollFlags::IN)];
        let mut due: Option<Instant> = None;
        let mut at_latest = |when: Instant| due = Some(due.map_or(when, |d| d.min(when)));
        if let Some(listener) = self.listener.as_ref().filter(|_| self.open) {
            match self.accept_again {
                Some(when) => at_latest(when),
                None => {
                    sources.push(Source::Listener);
                    fds.push(PollFd::new(listener, PollFlags::IN));
                }
            }
        }
        for (at, handshake) in self.handshakes.iter().enumerate() {
            sources.push(Source::Handshake(at));
            fds.push(PollFd::new(&handshake.socket, PollFlags::IN));
            at_latest(handshake.deadline);
        }
        for (at, connection) in self.connections.iter().enumerate() {
            if let Some(socket) = &connection.socket {
                sources.push(Source::Socket(at));
                fds.push(PollFd::new(socket, PollFlags::IN));
            }
            if connection.link != Link::Dead {
                sources.push(Source::Process(at));
                fds.push(PollFd::from_borrowed_fd(connection.pidfd.as_fd(), PollFlags::IN));
            }
            if let Link::Dying(until) = connection.link {
                at_latest(until);
            }
        }
        for (node, target) in &self.targets {
            if self.wants_dial(*node) {
                at_latest(target.next);
            }
        }
        let timeout = due.map(|when| {
            let left = when.saturating_duration_since(Instant::now());
            rustix::time::Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) }
        });
        match rustix::event::poll(&mut fds, timeout.as_ref()) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        }
        let mut ready: Vec<Source> = sources.into_iter().zip(&fds).filter(|(_, fd)| !fd.revents().is_empty()).map(|(s, _)| s).collect();
        // The end of a process before the end of its socket, so that a death is reported as what it is.
        ready.sort_by_key(|source| !matches!(source, Source::Process(_)));
        Ok(ready)
    }

    /// Whether a node should be dialled when its pause is over.
    fn wants_dial(&self, node: NodeId) -> bool {
        let connected =
            self.connections.iter().any(|c| c.link == Link::Live && c.identity.kind == PeerKind::Member && c.identity.node == node);
        !connected && !self.handshakes.iter().any(|h| h.meeting.target == Some(node))
    }

    /// Carries out commands; `true` to stop.
    fn obey(&mut self) -> bool {
        for command in self.shared.commands() {
            match command {
                Command::Open => self.open = true,
                Command::Connect(node) => {
                    self.open = true;
                    self.targets.entry(node).or_insert(Target { next: Instant::now(), pause: FIRST_PAUSE });
                }
                Command::Disconnect(node) => {
                    self.targets.remove(&node);
                }
                Command::Forget(peer, mapped) => {
                    drop(mapped);
                    if let Some(connection) = self.connections.iter_mut().find(|c| c.peer == peer) {
                        if let Some(socket) = connection.socket.take() {
                            let _ = socket::send(&socket, &Message::Bye.encode(), &[]);
                        }
                        connection.link = Link::Dead;
                        // Marks it for removal: nobody connected is called SELF.
                        connection.peer = PeerId::SELF;
                    }
                }
                Command::Stop => return true,
            }
        }
        false
    }

    /// Tells everybody that we go of our own will.
    fn part(&mut self) {
        for connection in &self.connections {
            if let Some(socket) = &connection.socket {
                let _ = socket::send(socket, &Message::Bye.encode(), &[]);
            }
        }
    }

    fn accept(&mut self) {
        let Some(listener) = &self.listener else { return };
        match socket::accept(listener) {
            Ok(None) => {}
            Ok(Some(socket)) => {
                if self.handshakes.iter().filter(|h| h.meeting.target.is_none()).count() >= MAX_HANDSHAKES {
                    // The list is in order of arrival.
                    let silent = self.handshakes.iter().position(Handshake::is_silent);
                    let oldest = silent.or(self.handshakes.iter().position(|h| h.meeting.target.is_none()));
                    if let Some(at) = oldest {
                        self.handshakes[at].deadline = Instant::now();
                    }
                }
                self.begin(socket, None);
            }
            Err(error) => {
                tracing::error!(%error, "cannot accept connections for now");
                self.accept_again = Some(Instant::now() + ACCEPT_REST);
            }
        }
    }

    fn begin(&mut self, socket: OwnedFd, target: Option<NodeId>) {
        match Handshake::start(&self.ours, socket, target, Instant::now() + HANDSHAKE) {
            Ok(handshake) => self.handshakes.push(handshake),
            Err(refusal) => {
                let who = target.map_or("an unknown process".into(), |node| format!("member {node}"));
                self.refused(&who, target, &refusal);
            }
        }
    }

    /// Whether a process may be connected now. Only the authority of a pair asks.
    fn admit(ours: &Ours, connections: &[Connection], max_clients: usize, identity: Identity) -> Result<(), Refusal> {
        if connections.iter().any(|c| c.link == Link::Live && c.identity == identity) {
            return Err(Refusal::new(Code::Duplicate, "the two are connected already"));
        }
        let count = connections.iter().filter(|c| c.identity.kind == identity.kind).count();
        let (limit, what) = match identity.kind {
            PeerKind::Client => (max_clients, "clients"),
            PeerKind::Member => (MAX_MEMBERS, "members"),
        };
        if count >= limit {
            let us = describe(ours.party.identity);
            return Err(Refusal::new(Code::Full, format!("{us} serves {count} {what} already, at most {limit} are allowed")));
        }
        Ok(())
    }

    fn shake_hands(&mut self, ready: &[usize]) {
        let mut going_on = Vec::with_capacity(self.handshakes.len());
        for (at, mut handshake) in std::mem::take(&mut self.handshakes).into_iter().enumerate() {
            if !ready.contains(&at) {
                going_on.push(handshake);
                continue;
            }
            match self.advance(&mut handshake) {
                Ok(Some(peer)) => self.connected(handshake, peer),
                Ok(None) => going_on.push(handshake),
                Err(Failure::Refused(refusal)) => {
                    handshake.turn_down(&refusal);
                    self.refused(&handshake.meeting.peer_name(), handshake.meeting.target, &refusal);
                }
                Err(Failure::HungUp) => self.abandoned(&handshake, "it hung up"),
            }
        }
        self.handshakes.append(&mut going_on);
    }

    /// Takes what has arrived for one handshake; a few messages at most, by its steps.
    fn advance(&mut self, handshake: &mut Handshake) -> Result<Option<Box<Peer>>, Failure> {
        loop {
            let (len, fds) = match socket::receive(&handshake.socket, &mut self.buffer) {
                Received::Nothing => return Ok(None),
                Received::Message(len, fds) => (len, fds),
                Received::TooLong => {
                    let text = format!("its message is longer than {MAX_MESSAGE} bytes");
                    return Err(Failure::Refused(text.into()));
                }
                Received::End => return Err(Failure::HungUp),
            };
            let (ours, connections, max_clients) = (&self.ours, &self.connections, self.max_clients);
            let admit = |identity| Bootstrap::admit(ours, connections, max_clients, identity);
            if let Progress::Connected(peer) = handshake.handle(ours, &self.buffer[..len], fds, admit).map_err(Failure::Refused)? {
                return Ok(Some(peer));
            }
        }
    }

    fn connected(&mut self, handshake: Handshake, peer: Box<Peer>) {
        let id = PeerId(self.next_peer);
        self.next_peer = self.next_peer.checked_add(1).expect("four thousand million connections in one life");
        let identity = peer.identity;
        tracing::info!(peer = id.0, "connected with {}", describe(identity));
        self.connections.push(Connection { peer: id, identity, socket: Some(handshake.socket), pidfd: handshake.pidfd, link: Link::Live });
        self.shared.connected.fetch_add(1, Ordering::Relaxed);
        self.shared.tell(Note::Up(id, peer));
    }

    fn refused(&mut self, who: &str, target: Option<NodeId>, refusal: &Refusal) {
        if refusal.code == Code::Duplicate {
            // Both had dialled; nothing is wrong.
            tracing::debug!("no second connection with {who}: {}", refusal.text);
        } else {
            let text = format!("no connection with {who}: {}", refusal.text);
            // A node that keeps trying is reported once, not ten times a second.
            if self.shared.note_refusal(&text) {
                tracing::warn!("{text}");
            } else {
                tracing::debug!("{text}");
            }
        }
        if let Some(node) = target {
            self.pause(node);
        }
    }

    /// A handshake came to nothing without anybody having decided so.
    fn abandoned(&mut self, handshake: &Handshake, why: &str) {
        tracing::debug!("no connection with {}: {why}", handshake.meeting.peer_name());
        self.shared.abandoned.fetch_add(1, Ordering::Relaxed);
        if let Some(node) = handshake.meeting.target {
            self.pause(node);
        }
    }

    /// Puts off the next attempt to reach a node.
    fn pause(&mut self, node: NodeId) {
        if let Some(target) = self.targets.get_mut(&node) {
            target.next = Instant::now() + target.pause;
            target.pause = (target.pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Something stands in the socket of a connection: a farewell, or its end.
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
            tracing::info!(peer = peer.0, "{} has closed its connection", describe(connection.identity));
            self.shared.tell(Note::Gone { peer, certain: false });
        } else {
            connection.link = Link::Dying(Instant::now() + DYING);
        }
        self.dial_soon(at);
    }

    /// The process of a connection has ended, says its kernel.
    fn ended(&mut self, at: usize) {
        let connection = &mut self.connections[at];
        if connection.link == Link::Dead {
            return;
        }
        connection.link = Link::Dead;
        connection.socket = None;
        let peer = connection.peer;
        tracing::info!(peer = peer.0, "the process of {} has ended", describe(connection.identity));
        self.shared.tell(Note::Gone { peer, certain: true });
        self.dial_soon(at);
    }

    /// A connection is no more: if its node is wanted, try at once, and eagerly.
    fn dial_soon(&mut self, at: usize) {
        let identity = self.connections[at].identity;
        if identity.kind == PeerKind::Member
            && let Some(target) = self.targets.get_mut(&identity.node)
        {
            *target = Target { next: Instant::now(), pause: FIRST_PAUSE };
        }
    }

    /// Does what is due.
    fn pass_time(&mut self, now: Instant) {
        if self.accept_again.is_some_and(|when| when <= now) {
            self.accept_again = None;
        }
        for handshake in self.handshakes.extract_if(.., |h| h.deadline <= now).collect::<Vec<_>>() {
            let why = format!("the handshake was not over in {HANDSHAKE:?}, or too many were under way");
            self.abandoned(&handshake, &why);
            handshake.turn_down(&Refusal::new(Code::Mismatch, why));
        }
        for connection in &mut self.connections {
            if matches!(connection.link, Link::Dying(until) if until <= now) {
                connection.link = Link::Lost;
                tracing::warn!("the connection with {} is lost, its process lives", describe(connection.identity));
                self.shared.tell(Note::Gone { peer: connection.peer, certain: false });
            }
        }
        let due: Vec<NodeId> = self.targets.iter().filter(|(_, target)| target.next <= now).map(|(node, _)| *node).collect();
        for node in due {
            if self.wants_dial(node) {
                match socket::connect(&self.ours.party.cluster, node) {
                    Ok(socket) => self.begin(socket, Some(node)),
                    // Nobody is there yet, or too many are knocking.
                    Err(_) => self.pause(node),
                }
            }
        }
    }
}
