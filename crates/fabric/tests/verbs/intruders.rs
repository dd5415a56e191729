//! Intruders at the TCP sockets where processes connect: half a word, endless bytes, wrong lengths, silence, at either end. None of them holds a node
//! up, takes it down, or gets a key.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};

use martlet_fabric::verbs::VerbsFabric;
use martlet_fabric::{Fabric, NodeId, PeerEvent, PeerKind, RegionSpec};

use crate::cluster::{identity, start, unique_cluster, until};

/// The types of messages that are used here (`meeting::wire`), and the longest message.
const HELLO: u8 = 1;
const OFFER: u8 = 3;
const COMMIT: u8 = 4;
const REFUSE: u8 = 5;
const LONGEST: usize = 16 * 1024;

fn spec() -> RegionSpec {
    RegionSpec { public: vec![(martlet_fabric::RegionName(1), 4096)], ..RegionSpec::default() }
}

fn member(cluster: &str, node: u16) -> VerbsFabric {
    start(cluster, identity(node, 1, PeerKind::Member), spec(), RegionSpec::default())
}

fn at(fabric: &VerbsFabric) -> SocketAddr {
    fabric.listens_at().expect("it listens")
}

/// A message preceded by its length.
fn framed(message: &[u8]) -> Vec<u8> {
    [&(message.len() as u32).to_le_bytes()[..], message].concat()
}

/// A raw connection to where a node listens.
fn knock(fabric: &VerbsFabric) -> TcpStream {
    TcpStream::connect(at(fabric)).expect("it listens")
}

/// The next message; `None` at the end of the connection, even if that was reset.
fn answer(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut len = [0; 4];
    stream.read_exact(&mut len).ok()?;
    let mut message = vec![0; u32::from_le_bytes(len) as usize];
    stream.read_exact(&mut message).ok()?;
    Some(message)
}

/// What a refusal says.
fn refusal(stream: &mut TcpStream) -> String {
    let message = answer(stream).expect("an answer before the end");
    assert_eq!(message[0], REFUSE, "{message:?}");
    String::from_utf8_lossy(&message[2..]).into_owned()
}

/// A Hello of that cluster, as anyone hears it that is dialled, or listens on the way: it takes no key to send it again.
fn overheard(cluster: &str, node: u16) -> Vec<u8> {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let dialer = member(cluster, node);
    dialer.connect(NodeId(99), listener.local_addr().expect("bound"));
    let hello = answer(&mut listener.accept().expect("dialled").0).expect("it speaks first");
    assert_eq!(hello[0], HELLO);
    hello
}

/// Whether a node still accepts a proper member.
fn still_serves(cluster: &str, node: &mut VerbsFabric, visitor: u16) {
    let mut member = member(cluster, visitor);
    member.connect(NodeId(0), at(node));
    let up = |event| match event {
        PeerEvent::Up { peer, identity } => Some((peer, identity.node)),
        PeerEvent::Gone { .. } => None,
    };
    assert_eq!(until(|| member.event().and_then(up)).1, NodeId(0));
    let (peer, who) = until(|| node.event().and_then(up));
    assert_eq!(who, NodeId(visitor));
    drop(member);
    assert_eq!(until(|| node.event()), PeerEvent::Gone { peer, certain: false });
}

#[test]
fn garbage_gets_an_answer_and_hurts_nobody() {
    let cluster = unique_cluster();
    let mut node = member(&cluster, 0);
    let too_long = (LONGEST as u32 + 1).to_le_bytes().to_vec();
    for (garbage, why) in [
        (framed(&[]), "ends too early"),
        (framed(&[0; 100]), "type 0"),
        (framed(&[HELLO]), "ends too early"),
        (framed(&[HELLO; 200]), "does not speak"),
        (framed(&[255; LONGEST]), "type 255"),
        (framed(&[COMMIT]), "Commit while Hello"),
        (framed(&[OFFER; 33]), "Offer while Hello"),
        (too_long, "too long"),
        (vec![255; 4], "too long"),
    ] {
        let mut stream = knock(&node);
        stream.write_all(&garbage).expect("sent");
        let text = refusal(&mut stream);
        assert!(text.contains(why), "{text}");
        assert_eq!(answer(&mut stream), None, "and then the end");
    }
    still_serves(&cluster, &mut node, 1);
    assert_eq!(node.bootstrap_counters().connected, 1);
}

/// More connections than may shake hands at once. They begin and do not go on: with nothing, half a length, a length, half a Hello, or a Hello and no
/// more.
#[test]
fn one_that_stalls_keeps_nobody_out() {
    let cluster = unique_cluster();
    let mut node = member(&cluster, 0);
    let hello = framed(&overheard(&cluster, 9));
    let mut stalled: Vec<TcpStream> = Vec::new();
    for begun in [0, 2, 4, hello.len() / 2, hello.len()] {
        for _ in 0..50 {
            let mut stream = knock(&node);
            // The node may already have closed it, to make room.
            let _ = stream.write_all(&hello[..begun]);
            stalled.push(stream);
        }
    }
    still_serves(&cluster, &mut node, 1);
    // The first had to make room.
    let mut last_word = Vec::new();
    match stalled[0].read_to_end(&mut last_word) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
    }
    for stream in &mut stalled {
        let _ = stream.shutdown(Shutdown::Write);
    }
    still_serves(&cluster, &mut node, 2);
}

/// A flood of bytes is a message that is too long, or the wrong one; the connection ends with the first.
#[test]
fn endless_bytes_are_not_listened_to() {
    let cluster = unique_cluster();
    let mut node = member(&cluster, 0);
    let hello = framed(&overheard(&cluster, 9));
    let floods = [vec![0; 4096], vec![1; 4096], framed(&[COMMIT; 100]), hello];
    std::thread::scope(|scope| {
        for flood in &floods {
            let mut stream = knock(&node);
            // Until the node hangs up. If it never did, this would hang.
            scope.spawn(move || while stream.write_all(flood).is_ok() {});
        }
        still_serves(&cluster, &mut node, 1);
    });
    still_serves(&cluster, &mut node, 2);
}

#[test]
fn a_hello_that_was_overheard_gets_no_keys() {
    let cluster = unique_cluster();
    let mut node = member(&cluster, 0);
    let mut stream = knock(&node);
    stream.write_all(&framed(&overheard(&cluster, 9))).expect("sent");
    assert_eq!(answer(&mut stream).expect("an answer")[0], 2, "the node proves itself to whoever asks");
    stream.write_all(&framed(&[&[OFFER][..], &[0; 400]].concat())).expect("sent");
    assert!(refusal(&mut stream).contains("different cluster keys"));
    assert_eq!(answer(&mut stream), None);
    still_serves(&cluster, &mut node, 1);
    assert_eq!(node.bootstrap_counters().connected, 1);
}

/// What a node dials may be any process: one that hangs up, one that says nothing, one that never stops, one that sends back what it hears, or one
/// that has no key.
#[test]
fn one_that_dials_intruders_still_reaches_the_others() {
    let cluster = unique_cluster();
    let mut node = member(&cluster, 0);
    let good = member(&cluster, 1);
    let hello = overheard(&cluster, 9);
    let listeners: Vec<TcpListener> = (0..5).map(|_| TcpListener::bind("127.0.0.1:0").expect("a port")).collect();
    for (listener, number) in listeners.iter().zip(5..) {
        node.connect(NodeId(number), listener.local_addr().expect("bound"));
    }
    let mut accepted: Vec<TcpStream> = listeners.iter().map(|listener| listener.accept().expect("dialled").0).collect();
    let mut no_key = accepted.pop().expect("five");
    let mut mirror = accepted.pop().expect("five");
    let mut endless = accepted.pop().expect("five");
    let silent = accepted.pop().expect("five");
    drop(accepted);
    std::thread::scope(|scope| {
        scope.spawn(move || while endless.write_all(&[0; 4096]).is_ok() {});
        let heard = answer(&mut mirror).expect("a Hello");
        mirror.write_all(&framed(&heard)).expect("sent");
        assert!(refusal(&mut mirror).contains("Hello while Answer"));
        answer(&mut no_key).expect("a Hello");
        no_key.write_all(&framed(&[&[2][..], &[0; 32], &hello[1..]].concat())).expect("sent");
        assert!(refusal(&mut no_key).contains("different cluster keys"));
        node.connect(NodeId(1), at(&good));
        let who = until(|| match node.event() {
            Some(PeerEvent::Up { identity, .. }) => Some(identity.node),
            _ => None,
        });
        assert_eq!(who, NodeId(1));
    });
    drop(silent);
    assert_eq!(node.bootstrap_counters().connected, 1);
}
