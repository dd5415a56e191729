//! What a peer costs that asks for nothing: a node may have a thousand of them.

use std::net::SocketAddr;

use crate::contract::{Fabric, Identity, Incarnation, NodeId, PeerEvent, PeerId, PeerKind, Region, RegionName, RegionSpec, Remote, Token};
use crate::ethernet::endpoint::Entry;
use crate::ethernet::packet::LARGEST_PACKET;
use crate::ethernet::requester::{Requester, Target, Work};
use crate::ethernet::seal::{Opener, Secret};
use crate::ethernet::serving::Served;
use crate::ethernet::{EthernetConfig, EthernetFabric};

/// What an idle peer may take, but for the lanes that are kept for it, whose memory is taken when they are written.
const MOST: usize = 8 << 10;

#[test]
fn an_idle_peer_takes_less_than_8_kib_and_so_does_one_that_is_answered_now_and_then() {
    let opener = Opener::new(Secret([7; 32]));
    let fixed = size_of::<Entry>() + size_of::<Served>() + 2 * opener.heap_bytes();
    let mut requester = Requester::new(LARGEST_PACKET);
    assert!(fixed + requester.heap_bytes() <= MOST, "{fixed} bytes, and {} besides", requester.heap_bytes());
    // As a client is whose request is answered, with what its lane's ring is told.
    let target = Target { lane: true, region: RegionName(17), offset: 0, epoch: 1 };
    for _ in 0..2 {
        requester.post(Token(1), Ok(target), Work::Write, 128, &[7; 128]);
    }
    assert!(fixed + requester.heap_bytes() <= MOST, "{fixed} bytes, and {} besides", requester.heap_bytes());
}

fn endpoint(node: u16, kind: PeerKind) -> EthernetFabric {
    let who = Identity { node: NodeId(node), incarnation: Incarnation(1), kind };
    let spec = RegionSpec { public: vec![(RegionName(1), 64)], ..RegionSpec::default() };
    let listen = (kind == PeerKind::Member).then(|| SocketAddr::from(([127, 0, 0, 1], 0)));
    let usual = EthernetConfig::new("idle", b"the key of the tests' cluster", who, spec.clone(), spec);
    EthernetFabric::start(EthernetConfig { listen, ..usual }).expect("started")
}

#[test]
fn a_turn_looks_at_peers_with_something_under_way_and_at_no_other() {
    let mut member = endpoint(0, PeerKind::Member);
    let at = member.listens_at().expect("it listens");
    // Their stand-ins answer.
    let clients: Vec<_> = (1..=8).map(|node| endpoint(node, PeerKind::Client)).collect();
    clients.iter().for_each(|client| client.connect(NodeId(0), at));
    let mut peers = Vec::new();
    while peers.len() < clients.len() {
        if let Some(PeerEvent::Up { peer, .. }) = member.event() {
            peers.push(peer);
        }
        assert_eq!(member.poll(), None);
        std::thread::yield_now();
    }
    let read = |member: &mut EthernetFabric, from: &[PeerId]| {
        for peer in from {
            member.read_word(Remote { peer: *peer, region: Region::Public(RegionName(1)), offset: 0 }, Token(u64::from(peer.0)));
        }
        let mut looked_at: Vec<_> = member.active().to_vec();
        looked_at.sort();
        assert_eq!(looked_at, from);
        for _ in from {
            while member.poll().is_none() {
                std::thread::yield_now();
            }
        }
        assert_eq!(member.poll(), None);
        assert_eq!(member.active(), [], "all is answered");
    };
    peers.sort();
    read(&mut member, &peers);
    read(&mut member, &peers[3..=3]);
}
