//! Intruders: wrong keys, other declarations, garbage, silence.

use std::os::fd::{AsFd, OwnedFd};

use super::*;
use crate::host::socket;
use crate::meeting::wire::{Hello, Message, Preface, Prover, Said, prove};
use crate::shm::Rendezvous;
use crate::speech::{Levels, Protocol};

/// A raw connection to a member's bootstrap socket.
fn knock(cluster: &str, node: u16) -> OwnedFd {
    until(|| Rendezvous::Names.connect(cluster, NodeId(node), &mut None).ok())
}

/// What comes back next; `None` at the end of the connection.
fn answer(socket: &OwnedFd) -> Option<Vec<u8>> {
    let mut buffer = Box::new([0; socket::MAX_MESSAGE]);
    until(|| match socket::receive(socket, &mut buffer) {
        socket::Received::Nothing => None,
        socket::Received::Message(len, _) => Some(Some(buffer[..len].to_vec())),
        _ => Some(None),
    })
}

fn refusal(socket: &OwnedFd) -> String {
    let bytes = answer(socket).expect("an answer before the end");
    match Message::decode(&bytes).expect("a message") {
        Message::Refuse { text, .. } => text,
        other => panic!("{other:?}"),
    }
}

fn hello(cluster: &str) -> Hello {
    let preface = Preface { protocol: Protocol::private(), identity: identity(9, 1, PeerKind::Client), cluster: cluster.into() };
    Hello { preface, nonce: [1; 32], members: member_spec(), clients: client_spec() }
}

/// Whether the member still accepts a proper client.
fn still_serves(cluster: &str, node: &mut ShmFabric) {
    let mut user = client(cluster, 50);
    user.connect(NodeId(1));
    next_up(&mut user);
    let (peer, who) = next_up(node);
    assert_eq!(who.node, NodeId(50));
    drop(user);
    assert_eq!(next_event(node), PeerEvent::Gone { peer, certain: false });
}

#[test]
fn a_wrong_key_is_refused_at_both_ends() {
    let cluster = unique_cluster();
    let mut a = member(&cluster, 1);
    let key = b"another key, just as long as needed".to_vec();
    let mut b = ShmFabric::start(ShmConfig { key, ..config(&cluster, 2, PeerKind::Member) }).expect("started");
    b.connect(NodeId(1));
    for (fabric, other) in [(&a, "n2"), (&b, "n1")] {
        let why = until(|| fabric.last_refusal());
        assert!(why.contains("different cluster keys") && why.contains(other), "{why}");
        assert!(fabric.bootstrap_counters().refused > 0);
    }
    assert_eq!((a.event(), b.event()), (None, None));
    assert_eq!(a.bootstrap_counters().connected + b.bootstrap_counters().connected, 0);
}

#[test]
fn other_region_sizes_are_refused_at_both_ends() {
    let cluster = unique_cluster();
    let mut a = member(&cluster, 1);
    let members = RegionSpec { public: vec![(PUBLIC, 8192)], ..member_spec() };
    let mut b = ShmFabric::start(ShmConfig { members, ..config(&cluster, 2, PeerKind::Member) }).expect("started");
    a.connect(NodeId(2));
    let why = until(|| a.last_refusal());
    assert!(why.contains("8192") && why.contains("4096"), "{why}");
    let why = until(|| b.last_refusal());
    assert!(why.contains("public region 1 has 8192 bytes here and 4096 there"), "{why}");
    assert_eq!((a.event(), b.event()), (None, None));
}

#[test]
fn two_members_of_one_number_are_refused() {
    let cluster = unique_cluster();
    let a = member(&cluster, 1);
    let b = ShmFabric::start(ShmConfig { listen: false, ..config(&cluster, 1, PeerKind::Member) }).expect("started");
    b.connect(NodeId(1));
    let why = until(|| b.last_refusal());
    assert!(why.contains("both are member n1"), "{why}");
    drop(a);
}

/// A member of a cluster that runs another build.
fn of_build(cluster: &str, node: u16, version: u32, levels: Levels, build: &'static str) -> ShmFabric {
    let protocol = Protocol { version, levels, build: build.into() };
    ShmFabric::start(ShmConfig { protocol, ..config(cluster, node, PeerKind::Member) }).expect("started")
}

#[test]
fn builds_that_do_not_understand_each_other_part_and_both_say_so() {
    let one = Levels::only(1);
    for ((version, levels), other) in
        [((2, one), "version 2, feature levels 1)"), ((1, Levels { least: 2, most: 3 }), "version 1, feature levels 2 to 3)")]
    {
        let cluster = unique_cluster();
        let mut a = of_build(&cluster, 1, 1, one, "martlet 0.1.0");
        let mut b = of_build(&cluster, 2, version, levels, "martlet 0.2.0");
        b.connect(NodeId(1));
        for (fabric, peer) in [(&a, "n2"), (&b, "n1")] {
            let why = until(|| fabric.misfit(Duration::from_secs(3600)));
            assert!(why.starts_with(&format!("no connection with member {peer}")), "{why}");
            assert!(why.contains("runs martlet 0.1.0 (protocol version 1, feature levels 1)"), "{why}");
            assert!(why.contains(&format!("runs martlet 0.2.0 (protocol {other}")), "{why}");
            assert_eq!(fabric.misfit(Duration::ZERO), None);
            assert!(fabric.bootstrap_counters().misfits > 0);
        }
        assert_eq!((a.event(), b.event()), (None, None));
    }
}

#[test]
fn builds_that_share_a_level_connect() {
    let cluster = unique_cluster();
    let mut a = of_build(&cluster, 1, 1, Levels::only(1), "martlet 0.1.0");
    let mut b = of_build(&cluster, 2, 1, Levels { least: 1, most: 2 }, "martlet 0.2.0");
    b.connect(NodeId(1));
    assert_eq!((next_up(&mut a).1.node, next_up(&mut b).1.node), (NodeId(2), NodeId(1)));
}

#[test]
fn a_build_from_before_the_versions_is_told_what_it_is() {
    let cluster = unique_cluster();
    let mut node = of_build(&cluster, 1, 1, Levels::only(1), "martlet 0.1.0");
    let socket = knock(&cluster, 1);
    // What every Hello began with then: the magic, the handshake's version, a nonce.
    let old = [&b"MARTLET1"[..], &3u32.to_le_bytes(), &[7; 32], &[0; 40]].concat();
    socket::send(&socket, &Message::Hello(&old).encode(), &[]).expect("sent");
    let text = refusal(&socket);
    assert!(text.contains("martlet 0.1.0 (protocol version 1, feature levels 1)"), "{text}");
    assert!(text.contains("a build that does not say what it is; the handshake is of version 5 here and 3 there"), "{text}");
    assert_eq!((answer(&socket), node.event()), (None, None));
    assert!(until(|| node.misfit(Duration::from_secs(3600))).contains("an unknown process"));
}

#[test]
fn garbage_gets_an_answer_and_hurts_nobody() {
    let cluster = unique_cluster();
    let mut node = member(&cluster, 1);
    for (garbage, why) in [
        (vec![], ""),
        (vec![0; 100], "type 0"),
        (vec![1], "ends too early"),
        (vec![1; 200], "does not speak"),
        (vec![255; socket::MAX_MESSAGE], "type 255"),
        (vec![1; socket::MAX_MESSAGE + 1], "longer than"),
        (Message::Commit.encode(), "Commit while Hello"),
        (Message::Offer { proof: &[0; 32], body: b"" }.encode(), "Offer while Hello"),
    ] {
        let socket = knock(&cluster, 1);
        let sent = rustix::net::send(&socket, &garbage, rustix::net::SendFlags::NOSIGNAL);
        assert_eq!(sent, Ok(garbage.len()));
        if garbage.is_empty() {
            // An empty message looks like the end.
            assert_eq!(answer(&socket), None);
        } else {
            let text = refusal(&socket);
            assert!(text.contains(why), "{text}");
            assert_eq!(answer(&socket), None, "and then the end");
        }
    }
    still_serves(&cluster, &mut node);
}

#[test]
fn a_proof_without_the_key_gets_no_memory() {
    let cluster = unique_cluster();
    let mut node = member(&cluster, 1);
    let mine = hello(&cluster).encode();
    let socket = knock(&cluster, 1);
    socket::send(&socket, &Message::Hello(&mine).encode(), &[]).expect("sent");
    let bytes = answer(&socket).expect("an answer");
    let Message::Answer { hello: theirs, .. } = Message::decode(&bytes).expect("a message") else { panic!("{bytes:?}") };
    let proof = prove(b"not the cluster's key", Prover::Dialer, Said { dialer: &mine, acceptor: theirs, body: b"" });
    socket::send(&socket, &Message::Offer { proof: &proof, body: b"" }.encode(), &[]).expect("sent");
    assert!(refusal(&socket).contains("different cluster keys"));
    assert_eq!(answer(&socket), None);
    assert_eq!(node.event(), None);
}

/// Goes through the handshake with the right key, but offers these descriptors. Returns what the refusal says.
fn offer(cluster: &str, fds: &[std::os::fd::BorrowedFd<'_>]) -> String {
    let mine = hello(cluster).encode();
    let socket = knock(cluster, 1);
    socket::send(&socket, &Message::Hello(&mine).encode(), &[]).expect("sent");
    let bytes = answer(&socket).expect("an answer");
    let Message::Answer { hello: theirs, .. } = Message::decode(&bytes).expect("a message") else { panic!("{bytes:?}") };
    let proof = prove(KEY, Prover::Dialer, Said { dialer: &mine, acceptor: theirs, body: b"" });
    socket::send(&socket, &Message::Offer { proof: &proof, body: b"" }.encode(), fds).expect("sent");
    // The member's own offer may come first.
    loop {
        let bytes = answer(&socket).expect("a refusal before the end");
        if let Message::Refuse { text, .. } = Message::decode(&bytes).expect("a message") {
            return text;
        }
    }
}

#[test]
fn memory_that_is_not_as_agreed_is_refused() {
    let cluster = unique_cluster();
    let mut node = member(&cluster, 1);
    assert!(offer(&cluster, &[]).contains("0 descriptors, not 4"));
    let small = crate::host::memory::create("martlet-test", 8).expect("memfd");
    let text = offer(&cluster, &[small.as_fd(); 4]);
    assert!(text.contains("public memory has 8 bytes, 4096 were agreed"), "{text}");
    let unsealed = rustix::fs::memfd_create("martlet-test", rustix::fs::MemfdFlags::CLOEXEC).expect("memfd");
    rustix::fs::ftruncate(&unsealed, 4096).expect("size");
    assert!(offer(&cluster, &[unsealed.as_fd(); 4]).contains("not sealed"));
    assert_eq!(node.event(), None);
    still_serves(&cluster, &mut node);
}

#[test]
fn silent_connections_do_not_keep_others_out() {
    let cluster = unique_cluster();
    let mut node = member(&cluster, 1);
    // More connections than may shake hands at once, all of them silent.
    let silent: Vec<_> = (0..150).map(|_| knock(&cluster, 1)).collect();
    still_serves(&cluster, &mut node);
    drop(silent);
    still_serves(&cluster, &mut node);
}
