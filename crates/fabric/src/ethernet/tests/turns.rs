//! Turns of an endpoint over the loopback device: which peers they look at, and what else.

use std::net::SocketAddr;

use crate::contract::{
    Fabric, Identity, Incarnation, LocalRegion, NodeId, PeerEvent, PeerId, PeerKind, Region, RegionName, RegionSpec, Remote, Token,
};
use crate::ethernet::{EthernetConfig, EthernetFabric};
use crate::primitive::Ordering;

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

/// Turns that looked only for answers would never see the request: the stand-in is for threads that have no turns.
#[test]
fn a_member_that_always_waits_for_an_answer_serves_others_all_the_same() {
    let (mut member, mut other) = (endpoint(0, PeerKind::Member), endpoint(1, PeerKind::Member));
    other.connect(NodeId(0), member.listens_at().expect("it listens"));
    let (mut to_other, mut to_member) = (None, None);
    while to_other.is_none() || to_member.is_none() {
        for (endpoint, peer) in [(&mut member, &mut to_other), (&mut other, &mut to_member)] {
            if let Some(PeerEvent::Up { peer: id, .. }) = endpoint.event() {
                *peer = Some(id);
            }
            assert_eq!(endpoint.poll(), None);
        }
        std::thread::yield_now();
    }
    let word = |peer: Option<PeerId>| Remote { peer: peer.expect("both have met"), region: Region::Public(RegionName(1)), offset: 0 };
    other.compare_and_swap(word(to_member), 0, 7, Token(0));
    // The request is then on its way. If this thread was without a core for a while, the member's stand-in may even have answered.
    let _ = other.poll();
    let own = LocalRegion::Public(RegionName(1));
    member.read_word(word(to_other), Token(0));
    for turn in 0.. {
        if member.memory(own).expect("a region of its own")[0].load(Ordering::Relaxed) == 7 {
            break;
        }
        assert!(turn < 1_000_000, "nothing was served in so many turns");
        if member.poll().is_some() {
            member.read_word(word(to_other), Token(0));
        }
    }
}

#[test]
fn what_a_turn_has_brought_is_handed_out_before_the_next_turn_unless_something_was_posted_meanwhile() {
    let (mut member, mut other) = (endpoint(0, PeerKind::Member), endpoint(1, PeerKind::Member));
    other.connect(NodeId(0), member.listens_at().expect("it listens"));
    let peer = loop {
        assert_eq!((member.poll(), other.poll()), (None, None));
        if let Some(PeerEvent::Up { peer, .. }) = member.event() {
            break peer;
        }
        std::thread::yield_now();
    };
    let word = Remote { peer, region: Region::Public(RegionName(1)), offset: 0 };
    for posts_meanwhile in [false, true] {
        member.read_word(word, Token(1));
        while member.poll().is_none() {
            assert_eq!(other.poll(), None);
        }
        let before = member.turns();
        if posts_meanwhile {
            member.read_word(word, Token(2));
        }
        // The other endpoint's stand-in may have answered.
        let answered = member.poll().is_some();
        assert!(posts_meanwhile || !answered);
        assert_eq!(member.turns() - before, u64::from(posts_meanwhile), "what is posted is on its way when there is nothing more");
        if !answered {
            let _ = member.poll();
            assert_eq!(member.turns() - before, u64::from(posts_meanwhile) + 1);
        }
    }
}
