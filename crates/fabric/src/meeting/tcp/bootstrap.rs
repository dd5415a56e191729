//! The bootstrap thread: it listens, dials, shakes hands over TCP and watches the connections. It also logs what the carrier's device reports.
//!
//! It blocks nowhere but in its wait for something to happen, so no peer can hold up another: all handshakes proceed at once, each with its own
//! deadline.
//!
//! A connection's socket stays open as long as the connection, because its end is how a peer's death is noticed. Where the peers of a connection can
//! ask each other without the socket, the socket's end is only a hint, and another socket takes its place.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use super::Carrier;
use super::handshake::{Handshake, Progress};
use super::shared::{Command, Note, Shared};
use super::stream::{self, Received, Stream};
use crate::contract::{Identity, NodeId, PeerId, PeerKind};
use crate::host::{LULL, errand};
use crate::meeting::admission;
use crate::meeting::attempts::{self, Attempts, Times};
use crate::meeting::handshakes::{End, Failure};
use crate::meeting::watch::Watch;
use crate::meeting::wire::Message;
use crate::meeting::{Party, Refusal, log_of};

const TIMES: Times =
    Times { handshake: Duration::from_secs(30), first_pause: Duration::from_millis(2), longest_pause: Duration::from_millis(200) };

/// How long a connection that has resumed on a socket refuses to change to yet another one while this one looks open. When a connection loses its
/// socket, both ends may dial; if both dials were accepted, each end could keep the socket that the other one closes.
const SETTLED: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Connection {
    peer: PeerId,
    identity: Identity,
    socket: Socket,
    /// When it last resumed on another socket.
    resumed: Option<Instant>,
    /// Its socket has something to be read, which is only a hint where peers can be asked. It is read at this time and not before.
    left_alone: Option<Instant>,
}

/// The TCP connection on which a connection was agreed.
#[derive(Debug)]
enum Socket {
    Open(Stream),
    /// The socket has ended, but the connection lasts until the endpoint says otherwise.
    Ended,
    /// The connection has ended.
    Lost,
}

impl Connection {
    fn stream(&self) -> Option<&Stream> {
        if let Socket::Open(stream) = &self.socket { Some(stream) } else { None }
    }

    fn stream_mut(&mut self) -> Option<&mut Stream> {
        if let Socket::Open(stream) = &mut self.socket { Some(stream) } else { None }
    }

    fn stands(&self) -> bool {
        !matches!(self.socket, Socket::Lost)
    }

    /// Whether it has a socket with no sign that the other end has closed it.
    fn is_open(&self) -> bool {
        self.stream().is_some() && self.left_alone.is_none()
    }

    /// The time until which its socket is not read, if that is still to come.
    fn is_left_alone(&self, now: Instant) -> Option<Instant> {
        self.left_alone.filter(|until| now < *until)
    }

    /// Its socket has something to be read. Whether to read it now: where it is only a hint (`asks`), other things go first.
    fn is_to_be_heard(&mut self, asks: bool, now: Instant) -> bool {
        let was_left_alone = self.left_alone.take().is_some();
        self.left_alone = (asks && !was_left_alone).then(|| now + LULL);
        self.left_alone.is_none()
    }

    /// Whether its socket is so new that it is kept rather than replaced by another.
    fn is_settling(&self, now: Instant) -> bool {
        self.resumed.is_some_and(|resumed| now.duration_since(resumed) < SETTLED)
    }
}

/// What a poll entry stands for.
#[derive(Clone, Copy, Debug)]
enum Source {
    Wake,
    Device,
    Listener,
    Handshake(usize),
    Connection(usize),
}

/// The thread's state.
pub(crate) struct Bootstrap<C: Carrier> {
    party: Party,
    carrier: C,
    shared: Arc<Shared<C::Peer>>,
    listener: Option<TcpListener>,
    max_clients: usize,
    attempts: Attempts<Handshake<C>, SocketAddr>,
    connections: Vec<Connection>,
    next_peer: u32,
}

impl<C: Carrier> Bootstrap<C> {
    pub(crate) fn new(
        party: Party,
        carrier: C,
        shared: Arc<Shared<C::Peer>>,
        listener: Option<TcpListener>,
        max_clients: usize,
        open: bool,
    ) -> Bootstrap<C> {
        Bootstrap {
            party,
            carrier,
            shared,
            listener,
            max_clients,
            attempts: Attempts::new(TIMES, open),
            connections: Vec::new(),
            next_peer: 1,
        }
    }

    /// Runs until told to stop.
    pub(crate) fn run(mut self) {
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
                    Source::Device => self.carrier.hear_device(),
                    Source::Listener => self.accept(),
                    Source::Handshake(at) => handshakes.push(at),
                    Source::Connection(at) => self.hear(at),
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
        let mut watch = Watch::new();
        watch.add(Source::Wake, PollFd::new(&self.shared.wake, PollFlags::IN));
        if let Some(device) = self.carrier.device() {
            watch.add(Source::Device, PollFd::from_borrowed_fd(device, PollFlags::IN));
        }
        self.attempts.watch(&mut watch, self.listener.as_ref().map(AsFd::as_fd), Source::Listener);
        let interest = |stream: &Stream| if stream.wants_to_write() { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        for (at, handshake) in self.attempts.handshakes.iter().enumerate() {
            watch.add(Source::Handshake(at), PollFd::from_borrowed_fd(handshake.stream.as_fd(), interest(&handshake.stream)));
        }
        let now = Instant::now();
        for (at, connection) in self.connections.iter().enumerate() {
            if let Some(until) = connection.is_left_alone(now) {
                watch.at_latest(until);
            } else if let Some(stream) = connection.stream() {
                watch.add(Source::Connection(at), PollFd::from_borrowed_fd(stream.as_fd(), interest(stream)));
            }
        }
        if let Some(when) = self.attempts.dialer.next(|node| self.wants_dial(node)) {
            watch.at_latest(when);
        }
        watch.wait()
    }

    /// Whether a node should be dialled when its pause is over.
    fn wants_dial(&self, node: NodeId) -> bool {
        let connected =
            self.connections.iter().any(|c| c.stream().is_some() && c.identity.kind == PeerKind::Member && c.identity.node == node);
        !connected && !self.attempts.handshakes.dials(node)
    }

    /// Carries out commands; `true` to stop.
    fn obey(&mut self) -> bool {
        for command in self.shared.commands() {
            match command {
                Command::Open => self.attempts.open = true,
                Command::Connect(node, at) => self.attempts.connect(node, at),
                Command::Disconnect(node) => self.attempts.dialer.unwant(node),
                Command::Cut(peer) => {
                    if let Some(at) = self.connections.iter().position(|c| c.peer == peer) {
                        self.lose(at, "it does not answer");
                    }
                }
                Command::Forget(peer, kept) => {
                    // Tell the peer before its requests meet keys that no longer exist.
                    if let Some(connection) = self.connections.iter_mut().find(|c| c.peer == peer) {
                        if let Socket::Open(mut stream) = std::mem::replace(&mut connection.socket, Socket::Lost) {
                            let _ = stream.send(&Message::Bye.encode());
                        }
                        self.carrier.lost(peer);
                        // Marks it for removal: no connected peer has the number SELF.
                        connection.peer = PeerId::SELF;
                    }
                    drop(kept);
                }
                Command::Stop => return true,
            }
        }
        false
    }

    /// Tells every peer that we close the connection of our own will.
    fn part(&mut self) {
        for stream in self.connections.iter_mut().filter_map(Connection::stream_mut) {
            let _ = stream.send(&Message::Bye.encode());
        }
    }

    fn accept(&mut self) {
        let Some(listener) = &self.listener else { return };
        if let Some(stream) = self.attempts.accepted(stream::accept(listener)) {
            self.begin(stream, None);
        }
    }

    fn begin(&mut self, stream: Stream, target: Option<NodeId>) {
        let number = PeerId(self.next_peer);
        self.next_peer = self.next_peer.checked_add(1).expect("four thousand million handshakes in one life");
        match Handshake::start(&self.party, stream, target, number) {
            Ok(handshake) => self.attempts.handshakes.add(handshake, Instant::now()),
            // Usually the node is not up yet.
            Err(_) => self.attempts.failed(target),
        }
    }

    fn shake_hands(&mut self, ready: &[usize]) {
        let (mut ended, now) = (0, Instant::now());
        for at in ready {
            // If the handshake resumes a connection, that connection's present socket is no reason to refuse this one, unless it is new: the other
            // end may have lost the present one.
            let is_taken = move |c: &Connection, resumes: bool| c.is_open() && (!resumes || c.is_settling(now));
            let others = |resumes: bool| self.connections.iter().map(move |c| (c.identity, is_taken(c, resumes)));
            let admit = |identity, resumes| admission::admit(self.party.identity, self.max_clients, others(resumes), identity);
            let step = self.attempts.handshakes.advance(at - ended, |handshake| advance(handshake, &self.party, &self.carrier, admit));
            let Some((handshake, end)) = step else { continue };
            ended += 1;
            match end {
                End::Connected(peer) => self.connected(handshake, peer),
                End::Refused(refusal) => self.attempts.refused(&self.shared, &handshake, &refusal),
                End::Abandoned(why) => self.attempts.abandoned(&self.shared, &handshake, why),
            }
        }
    }

    fn connected(&mut self, handshake: Handshake<C>, mut peer: Box<C::Peer>) {
        let (id, identity) = (handshake.number, handshake.meeting.peer().expect("connected with it").0);
        if let Some(standing) = C::resumes(&peer) {
            return self.resume(standing, handshake);
        }
        // The peer no longer has the earlier connection. What it sent to end it may still be on its way, since packets of this connection may
        // overtake it.
        let same = |c: &Connection| c.stands() && c.identity == identity;
        while let Some(at) = self.connections.iter().position(same) {
            self.lose(at, "it knows nothing of the connection any more, and has come anew");
        }
        // A later life of a node ends an earlier one, of whose death we may not have heard.
        let earlier = |c: &Connection| {
            c.stands()
                && (c.identity.node, c.identity.kind) == (identity.node, identity.kind)
                && c.identity.incarnation < identity.incarnation
        };
        if identity.kind == PeerKind::Member {
            while let Some(at) = self.connections.iter().position(earlier) {
                self.lose(at, "a later life of it has come");
            }
        }
        log_of!(info, identity, id, "connected with {}");
        self.connections.push(Connection { peer: id, identity, socket: Socket::Open(handshake.stream), resumed: None, left_alone: None });
        self.carrier.connected(id, &mut peer);
        self.shared.count_connected();
        self.tell(Note::Up(id, peer));
    }

    /// Both ends hold a connection and have met again: the connection continues on this socket.
    fn resume(&mut self, standing: PeerId, handshake: Handshake<C>) {
        let Some(connection) = self.connections.iter_mut().find(|c| c.peer == standing && c.stands()) else {
            // We have given the connection up since we said that we hold it. The peer will ask, get no answer, and connect anew.
            return self.attempts.abandoned(&self.shared, &handshake, "the connection that it was to carry has ended meanwhile");
        };
        log_of!(info, connection.identity, standing, "met {} anew: the connection stands");
        connection.socket = Socket::Open(handshake.stream);
        (connection.resumed, connection.left_alone) = (Some(Instant::now()), None);
        self.shared.count_resumed();
        self.tell(Note::Sure(standing));
    }

    fn tell(&self, note: Note<C::Peer>) {
        self.shared.leave(note);
        self.carrier.ring();
    }

    /// The socket of a connection has something to be read: a farewell, or its end.
    fn hear(&mut self, at: usize) {
        let connection = &mut self.connections[at];
        let is_to_be_heard = connection.is_to_be_heard(C::ASKS, Instant::now());
        let Some(stream) = connection.stream_mut() else { return };
        let _ = stream.flush();
        if !is_to_be_heard {
            return;
        }
        let why = match stream.receive() {
            Received::Nothing => return,
            Received::End => "its end of the connection is gone",
            Received::Message(message) if matches!(Message::decode(&message), Ok(Message::Bye)) => "it has closed the connection",
            Received::Message(_) | Received::TooLong => "it breaks the protocol after the handshake",
        };
        if !C::ASKS {
            return self.lose(at, why);
        }
        let connection = &mut self.connections[at];
        connection.socket = Socket::Ended;
        let (peer, identity) = (connection.peer, connection.identity);
        log_of!(info, identity, peer, "{} is asked whether it is there: {}", why);
        self.tell(Note::Doubt(peer));
        self.dial_soon(identity);
    }

    /// A connection has ended. If its node is wanted, it is dialled again at once, with the shortest pauses.
    fn lose(&mut self, at: usize, why: &str) {
        let connection = &mut self.connections[at];
        if let Socket::Lost = std::mem::replace(&mut connection.socket, Socket::Lost) {
            return;
        }
        let (peer, identity) = (connection.peer, connection.identity);
        log_of!(info, identity, peer, "{} is gone: {}", why);
        self.carrier.lost(peer);
        self.tell(Note::Gone(peer));
        self.dial_soon(identity);
    }

    fn dial_soon(&mut self, identity: Identity) {
        if identity.kind == PeerKind::Member {
            self.attempts.dialer.eager(identity.node, Instant::now());
        }
    }

    /// Does what is due.
    fn pass_time(&mut self, now: Instant) {
        self.attempts.pass_time(&self.shared, now);
        for (node, at) in self.attempts.dialer.due(now) {
            if self.wants_dial(node) {
                match Stream::connect(at) {
                    Ok(stream) => self.begin(stream, Some(node)),
                    Err(_) => self.attempts.failed(Some(node)),
                }
            }
        }
    }
}

/// Takes what has arrived for one handshake. The handshake's steps limit this to a few messages.
fn advance<C: Carrier>(
    handshake: &mut Handshake<C>,
    party: &Party,
    carrier: &C,
    admit: impl Fn(Identity, bool) -> Result<(), Refusal>,
) -> Result<Option<Box<C::Peer>>, Failure> {
    handshake.stream.flush().map_err(|_| Failure::HungUp)?;
    loop {
        let message = match handshake.stream.receive() {
            Received::Nothing => return Ok(None),
            Received::Message(message) => message,
            Received::TooLong => return Err(Failure::Refused("its message is too long".to_owned().into())),
            Received::End => return Err(Failure::HungUp),
        };
        if let Progress::Connected(peer) = handshake.handle(party, carrier, &message, &admit).map_err(Failure::Refused)? {
            return Ok(Some(peer));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::thread::JoinHandle;

    use super::*;
    use crate::contract::{Incarnation, RegionSpec};
    use crate::meeting::tcp::Introduction;
    use crate::speech::Protocol;

    /// A carrier that keeps nothing.
    struct Plain;

    impl Carrier for Plain {
        type Kept = ();
        type Peer = Identity;

        fn keep(&self, _: PeerKind, _: Identity, _: &RegionSpec) -> Result<(), Refusal> {
            Ok(())
        }

        fn offer(&self, _: &(), _: PeerKind, _: PeerId) -> Vec<u8> {
            Vec::new()
        }

        fn connect(&self, _: (), introduction: Introduction<'_>) -> Result<Identity, Refusal> {
            Ok(introduction.identity)
        }
    }

    /// A member with its bootstrap thread.
    struct Member {
        shared: Arc<Shared<Identity>>,
        at: SocketAddr,
        thread: Option<JoinHandle<()>>,
    }

    impl Member {
        fn start(node: u16) -> Member {
            let party = Party {
                protocol: Protocol::private(),
                identity: Identity { node: NodeId(node), incarnation: Incarnation(1), kind: PeerKind::Member },
                cluster: "plain".into(),
                members: RegionSpec::default(),
                clients: RegionSpec::default(),
                key: vec![7; 32],
            };
            let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
            listener.set_nonblocking(true).expect("a listener");
            let at = listener.local_addr().expect("bound");
            let shared = Arc::new(Shared::new().expect("a descriptor"));
            let bootstrap = Bootstrap::new(party, Plain, Arc::clone(&shared), Some(listener), 1, true);
            Member { shared, at, thread: Some(std::thread::spawn(move || bootstrap.run())) }
        }

        fn next(&self) -> Note<Identity> {
            loop {
                match self.shared.note() {
                    Some(note) => return note,
                    None => std::thread::yield_now(),
                }
            }
        }

        fn up(&self) -> PeerId {
            match self.next() {
                Note::Up(peer, _) => peer,
                other => panic!("{other:?}"),
            }
        }
    }

    impl Drop for Member {
        fn drop(&mut self) {
            self.shared.ask(Command::Stop);
            self.thread.take().map(JoinHandle::join);
        }
    }

    /// An address that leads to a member but never passes on the end of a connection, as if its packet were lost again and again.
    fn way_that_loses_ends(to: SocketAddr) -> SocketAddr {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let at = listener.local_addr().expect("bound");
        std::thread::spawn(move || {
            let mut kept = Vec::new();
            for dialled in listener.incoming().map_while(Result::ok) {
                let on = TcpStream::connect(to).expect("it listens");
                for (from, into) in [(&dialled, &on), (&on, &dialled)] {
                    let (mut from, mut into) = (from.try_clone().expect("a socket"), into.try_clone().expect("a socket"));
                    std::thread::spawn(move || {
                        let mut bytes = [0; 4096];
                        while let Ok(count @ 1..) = from.read(&mut bytes) {
                            if into.write_all(&bytes[..count]).is_err() {
                                break;
                            }
                        }
                    });
                }
                kept.push((dialled, on));
            }
        });
        at
    }

    #[test]
    fn a_peer_that_comes_anew_has_gone_before_though_the_end_of_its_connection_is_lost_on_the_way() {
        let (one, other) = (Member::start(0), Member::start(1));
        one.shared.ask(Command::Connect(NodeId(1), way_that_loses_ends(other.at)));
        let (mut to_other, mut to_one) = (one.up(), other.up());
        for _ in 0..3 {
            one.shared.ask(Command::Cut(to_other));
            assert!(matches!(one.next(), Note::Gone(peer) if peer == to_other));
            assert!(matches!(other.next(), Note::Gone(peer) if peer == to_one), "first what was is over");
            (to_other, to_one) = (one.up(), other.up());
        }
    }

    /// A connection, and the other end of its socket.
    fn connection() -> (Connection, TcpStream) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let other = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
        let (socket, _) = listener.accept().expect("it has been dialled");
        let identity = Identity { node: NodeId(1), incarnation: Incarnation(1), kind: PeerKind::Member };
        let socket = Socket::Open(Stream::new(socket).expect("a socket"));
        (Connection { peer: PeerId(1), identity, socket, resumed: None, left_alone: None }, other)
    }

    #[test]
    fn the_end_of_a_socket_is_looked_at_when_those_who_act_on_a_death_have_had_their_time() {
        let (mut connection, _other) = connection();
        let now = Instant::now();
        assert_eq!((connection.is_left_alone(now), connection.is_open()), (None, true));
        assert!(!connection.is_to_be_heard(true, now));
        let until = now + LULL;
        assert_eq!(connection.is_left_alone(now), Some(until), "the thread sleeps until then");
        assert_eq!(connection.is_left_alone(until - Duration::from_nanos(1)), Some(until));
        assert!(!connection.is_open(), "another socket may take its place meanwhile");
        assert_eq!(connection.is_left_alone(until), None);
        assert!(connection.is_to_be_heard(true, until), "once");
        assert_eq!((connection.is_left_alone(until), connection.is_open()), (None, true));
    }

    #[test]
    fn the_end_of_a_socket_that_is_all_that_is_known_of_a_peer_is_looked_at_at_once() {
        let (mut connection, _other) = connection();
        assert!(connection.is_to_be_heard(false, Instant::now()));
    }
}
