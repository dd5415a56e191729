//! TCP connections that something on the way ends, between two processes that are alive.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use martlet_fabric::ethernet::{EthernetConfig, EthernetFabric};
use martlet_fabric::{
    Completion, Fabric, Identity, Incarnation, LocalRegion, NodeId, PeerEvent, PeerId, PeerKind, Region, RegionName, RegionSpec, Remote,
    Token,
};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::sockopt::set_socket_linger;

const WORDS: RegionName = RegionName(1);
const LANE: RegionName = RegionName(2);
const HERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

fn start(node: u16) -> EthernetFabric {
    let identity = Identity { node: NodeId(node), incarnation: Incarnation(1), kind: PeerKind::Member };
    let members = RegionSpec { public: vec![(WORDS, 64)], member_lanes: vec![(LANE, 64)], ..RegionSpec::default() };
    let usual = EthernetConfig::new("ended", super::KEY, identity, members, RegionSpec::default());
    EthernetFabric::start(EthernetConfig { listen: Some(HERE), ..usual }).expect("started")
}

/// A relay between processes that connect to it and the addresses that it leads to. When told so, it resets all their connections in one step. Once
/// it has been dropped, it lets no connection through any more.
struct Way {
    resets: UnixStream,
    /// How many connections go through it.
    open: Arc<AtomicUsize>,
}

impl Way {
    /// The relay, and for each end that it leads to, the address at which it is entered.
    fn to<const N: usize>(ends: [SocketAddr; N]) -> (Way, [SocketAddr; N]) {
        let entries = ends.map(|end| (TcpListener::bind(HERE).expect("a port"), end));
        let at = entries.each_ref().map(|(listener, _)| listener.local_addr().expect("bound"));
        let (resets, told) = UnixStream::pair().expect("a pair");
        let open = Arc::new(AtomicUsize::new(0));
        let pairs = Arc::clone(&open);
        std::thread::spawn(move || relay(&entries, told, &pairs));
        (Way { resets, open }, at)
    }

    fn reset(&mut self) {
        self.tell(BOTH);
    }

    fn tell(&mut self, which: u8) {
        self.resets.write_all(&[which]).expect("it listens");
    }
}

/// Which ends notice a reset: both, or those that have dialled. The other ends keep their sockets, on which nothing arrives any more.
const BOTH: u8 = 0;
const DIALLED: u8 = 1;

fn relay(entries: &[(TcpListener, SocketAddr)], mut told: UnixStream, open: &AtomicUsize) {
    let mut pairs: Vec<[TcpStream; 2]> = Vec::new();
    let mut mute = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        open.store(pairs.len(), Ordering::SeqCst);
        let mut fds = vec![PollFd::new(&told, PollFlags::IN)];
        fds.extend(entries.iter().map(|(listener, _)| PollFd::new(listener, PollFlags::IN)));
        fds.extend(pairs.iter().flatten().map(|socket| PollFd::new(socket, PollFlags::IN)));
        poll(&mut fds, None).expect("it waits");
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        let (is_told, ready) = ready.split_first().expect("the first is always there");
        let (at_entries, at_sockets) = ready.split_at(entries.len());
        if *is_told {
            let mut which = [BOTH];
            let goes_on = told.read(&mut which).expect("it is told") == 1;
            for [dialled, accepted] in pairs.drain(..) {
                set_socket_linger(&dialled, Some(Duration::ZERO)).expect("set");
                if which[0] == BOTH {
                    set_socket_linger(&accepted, Some(Duration::ZERO)).expect("set");
                } else {
                    mute.push(accepted);
                }
            }
            if !goes_on {
                return;
            }
            continue;
        }
        let mut ended = Vec::new();
        for at in (0..at_sockets.len()).filter(|at| at_sockets[*at]) {
            let [from, to] = [at % 2, 1 - at % 2].map(|n| &pairs[at / 2][n]);
            let len = { from }.read(&mut buffer).unwrap_or(0);
            if len == 0 || { to }.write_all(&buffer[..len]).is_err() {
                ended.push(at / 2);
            }
        }
        let mut at = 0;
        pairs.retain(|_| {
            at += 1;
            !ended.contains(&(at - 1))
        });
        for ((listener, end), _) in entries.iter().zip(at_entries).filter(|(_, ready)| **ready) {
            let (dialled, _) = listener.accept().expect("one waits");
            pairs.extend(TcpStream::connect(end).map(|accepted| [dialled, accepted]));
        }
    }
}

/// Two connected members, and the number by which each knows the other. The first has dialled the second through a relay.
struct Two {
    way: Option<Way>,
    /// Where the relay to the first one is entered.
    to_first: SocketAddr,
    fabrics: [EthernetFabric; 2],
    peers: [PeerId; 2],
    tokens: u64,
}

impl Two {
    fn meet() -> Two {
        Two::meet_as([1, 2])
    }

    /// The first one dials, and the one with the smaller number decides whether they may connect.
    fn meet_as(nodes: [u16; 2]) -> Two {
        let fabrics = nodes.map(start);
        let ends = fabrics.each_ref().map(|fabric| fabric.listens_at().expect("it listens"));
        let (way, [to_first, to_second]) = Way::to(ends);
        fabrics[0].connect(NodeId(nodes[1]), to_second);
        let mut two = Two { way: Some(way), to_first, fabrics, peers: [PeerId(0); 2], tokens: 0 };
        two.peers = [0, 1].map(|n| two.until_up(n));
        two
    }

    /// A turn of one of them.
    fn turn(&mut self, n: usize) -> (Option<PeerEvent>, Option<Completion>) {
        (self.fabrics[n].event(), self.fabrics[n].poll())
    }

    fn until_up(&mut self, n: usize) -> PeerId {
        loop {
            if let (Some(PeerEvent::Up { peer, .. }), _) = self.turn(n) {
                return peer;
            }
        }
    }

    /// Lets both go on until `what` holds. Until then, neither may get an event.
    fn until(&mut self, what: impl Fn(&Two) -> bool) {
        while !what(self) {
            for n in 0..2 {
                assert_eq!(self.turn(n), (None, None), "at {n}");
            }
        }
    }

    /// The first writes into the second's memory, and both go on until that is done.
    fn write(&mut self, region: Region, value: u64) {
        self.tokens += 1;
        let (at, token) = (Remote { peer: self.peers[0], region, offset: 8 }, Token(self.tokens));
        self.fabrics[0].write(at, &value.to_le_bytes(), token);
        loop {
            assert_eq!(self.turn(1), (None, None));
            match self.turn(0) {
                (None, None) => {}
                found => break assert_eq!(found, (None, Some(Completion { token, result: Ok(0) }))),
            }
        }
        let local = match region {
            Region::Public(name) => LocalRegion::Public(name),
            Region::Lane(name) => LocalRegion::Lane { writer: self.peers[1], name },
        };
        let word = &self.fabrics[1].memory(local).expect("it is there")[1];
        assert_eq!(word.load(Ordering::SeqCst), value);
    }

    fn resumed(&self) -> u64 {
        self.fabrics.iter().map(|fabric| fabric.bootstrap_counters().resumed).min().expect("two")
    }
}

#[test]
fn an_attacker_that_ends_tcp_connections_takes_nobody_away() {
    let mut two = Two::meet();
    for round in 1..=20 {
        two.way.as_mut().expect("open").reset();
        two.write(Region::Public(WORDS), round);
        two.write(Region::Lane(LANE), round);
        two.until(|two| two.resumed() >= round);
    }
    assert_eq!(two.fabrics.each_ref().map(|fabric| fabric.bootstrap_counters().connected), [1, 1]);
}

/// The socket of the dialled member looks open, and keeps looking so.
#[test]
fn one_end_whose_tcp_connection_is_reset_gets_another_one() {
    for nodes in [[1, 2], [2, 1]] {
        let mut two = Two::meet_as(nodes);
        // If the deciding member still has a socket, this takes a second each time.
        for round in 1..=3 {
            two.way.as_mut().expect("open").tell(DIALLED);
            two.write(Region::Lane(LANE), round);
            two.until(|two| two.resumed() >= round);
        }
        assert_eq!(two.fabrics.each_ref().map(|fabric| fabric.bootstrap_counters().connected), [1, 1]);
    }
}

/// Both dial once they have lost their connection.
#[test]
fn a_connection_that_both_ends_have_lost_goes_on_with_one_socket() {
    let mut two = Two::meet();
    two.fabrics[1].connect(NodeId(1), two.to_first);
    for round in 1..=20 {
        two.way.as_mut().expect("open").reset();
        two.write(Region::Lane(LANE), round);
        // A handshake that should be refused may still be accepted by an end that has just lost its socket again. So all handshakes are over before
        // the next reset.
        two.until(|two| two.resumed() >= round && two.way.as_ref().expect("open").open.load(Ordering::SeqCst) == 1);
    }
    assert_eq!(two.fabrics.each_ref().map(|fabric| fabric.bootstrap_counters().resumed), [20, 20]);
    assert_eq!(two.fabrics.each_ref().map(|fabric| fabric.bootstrap_counters().connected), [1, 1]);
}

#[test]
fn an_attacker_that_lets_no_tcp_connection_by_takes_nobody_away_and_a_death_is_noticed_all_the_same() {
    let mut two = Two::meet();
    let mut way = two.way.take().expect("open");
    way.reset();
    drop(way);
    // With nothing else under way, these are answers to the question whether the peer is there. Each is followed by a pause, in which both stay
    // connected.
    let answers = |two: &Two| two.fabrics[0].packet_counters().taken;
    let before = answers(&two);
    two.until(|two| answers(two) >= before + 3);
    two.write(Region::Public(WORDS), 7);
    let [mut first, second] = two.fabrics;
    drop(second);
    let gone = loop {
        if let Some(event) = first.event() {
            break event;
        }
        assert_eq!(first.poll(), None);
    };
    assert_eq!(gone, PeerEvent::Gone { peer: two.peers[0], certain: false });
}

/// One of them has given up the connection, and the other still holds it when they connect again.
#[test]
fn a_connection_that_one_end_has_let_go_is_not_resumed() {
    let mut two = Two::meet();
    let [of_second, of_first] = two.peers;
    two.write(Region::Lane(LANE), 1);
    two.fabrics[0].forget(of_second);
    // The second has no turn, so that it still holds the connection.
    two.peers[0] = two.until_up(0);
    // The first one may learn of the new connection before the second one's bootstrap thread has said anything.
    let heard = loop {
        match two.turn(1) {
            (None, None) => {}
            heard => break heard,
        }
    };
    assert_eq!(heard, (Some(PeerEvent::Gone { peer: of_first, certain: false }), None));
    two.peers[1] = two.until_up(1);
    // What it does to the lane of the ended connection does not affect the other one.
    two.fabrics[1].revoke(of_first, LANE, Token(99));
    while two.turn(1).1.is_none() {}
    two.write(Region::Lane(LANE), 2);
    two.fabrics[1].forget(of_first);
    two.write(Region::Lane(LANE), 3);
    assert_eq!(two.resumed(), 0);
}
