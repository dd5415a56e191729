//! Endpoints of one process, connected to each other.

use super::*;
use crate::contract::{LocalRegion, Region, Remote, Token};
use crate::primitive::Ordering;

const FIRST: usize = 0;
const SECOND: usize = 1;
const USER: usize = 2;

/// Two members and a client.
fn three() -> [ShmFabric; 3] {
    let processes = [
        (identity(1, 1, PeerKind::Member), member_spec()),
        (identity(2, 1, PeerKind::Member), member_spec()),
        (identity(1, 1, PeerKind::Client), client_spec()),
    ];
    ShmFabric::private(&processes).expect("memory").try_into().expect("one each")
}

fn peer(place: usize) -> PeerId {
    PeerId(place as u32 + 1)
}

fn public(place: usize) -> Remote {
    Remote { peer: peer(place), region: Region::Public(PUBLIC), offset: 64 }
}

fn lane(place: usize) -> Remote {
    Remote { region: Region::Lane(LANE), ..public(place) }
}

/// The word that the process at index `writer` writes, in our public region and in the lane that we keep for it.
fn words(fabric: &ShmFabric, writer: usize) -> (u64, u64) {
    let load = |region| fabric.memory(region).expect("declared")[8].load(Ordering::Acquire);
    (load(LocalRegion::Public(PUBLIC)), load(LocalRegion::Lane { writer: peer(writer), name: LANE }))
}

fn ups(fabric: &mut ShmFabric) -> Vec<PeerId> {
    std::iter::from_fn(|| fabric.event())
        .map(|event| match event {
            PeerEvent::Up { peer, .. } => peer,
            gone => panic!("{gone:?}"),
        })
        .collect()
}

fn write(fabric: &mut ShmFabric, at: Remote, value: u64) {
    fabric.write(at, &value.to_le_bytes(), Token(value));
    assert_eq!(fabric.poll().map(|c| (c.token, c.result.is_ok())), Some((Token(value), true)));
}

#[test]
fn they_reach_each_other_and_nobody_else() {
    let (mut these, mut others) = (three(), three());
    let seen: Vec<_> = these.iter_mut().map(ups).collect();
    assert_eq!(seen, [vec![peer(SECOND), peer(USER)], vec![peer(FIRST), peer(USER)], vec![peer(FIRST), peer(SECOND)]]);
    others.iter_mut().for_each(|fabric| drop(ups(fabric)));
    write(&mut these[FIRST], public(SECOND), 5);
    write(&mut these[FIRST], lane(SECOND), 6);
    write(&mut these[USER], lane(SECOND), 7);
    assert_eq!(words(&these[SECOND], FIRST), (5, 6));
    assert_eq!(words(&these[SECOND], USER), (5, 7));
    assert_eq!(words(&these[FIRST], SECOND), (0, 0));
    for writer in [FIRST, USER] {
        assert_eq!(words(&others[SECOND], writer), (0, 0), "another private fabric of the same processes");
    }
    these[FIRST].send(peer(SECOND), b"hello");
    let mut got = Vec::new();
    assert_eq!((these[SECOND].receive(&mut got), &got[..]), (Some(peer(FIRST)), &b"hello"[..]));
    assert_eq!(others[SECOND].receive(&mut got), None);
}

#[test]
fn one_that_is_rewound_has_just_been_connected_with_members_and_keeps_its_clients() {
    let [mut first, mut second, mut user] = three();
    // Neither has been told of the other yet.
    first.rewind();
    second.rewind();
    assert_eq!(ups(&mut first), [peer(USER), peer(SECOND)]);
    assert_eq!(ups(&mut second), [peer(USER), peer(FIRST)]);
    assert_eq!(ups(&mut user), [peer(FIRST), peer(SECOND)]);
    for round in 1..=3 {
        write(&mut first, public(SECOND), 5);
        write(&mut first, lane(SECOND), 6);
        write(&mut user, lane(SECOND), 6 + round);
        first.send(peer(SECOND), b"late mail");
        first.send(PeerId::SELF, b"to oneself");
        first.read_word(public(SECOND), Token(9));
        second.revoke(peer(FIRST), LANE, Token(1));
        first.write(lane(SECOND), &[1; 8], Token(2));
        first.rewind();
        second.rewind();
        assert_eq!((first.poll(), second.poll()), (None, None), "what was under way");
        let mut got = Vec::new();
        assert_eq!((first.receive(&mut got), second.receive(&mut got)), (None, None));
        assert_eq!((ups(&mut first), ups(&mut second)), (vec![peer(SECOND)], vec![peer(FIRST)]));
        assert_eq!(words(&second, FIRST), (5, 0), "public memory stays, a lane is fresh");
        assert_eq!(words(&second, USER).1, 6 + round, "clients notice nothing");
        assert_eq!(ups(&mut user), []);
    }
    write(&mut first, lane(SECOND), 6);
    second.send(peer(FIRST), b"mail");
    assert_eq!(first.receive(&mut Vec::new()), Some(peer(SECOND)), "mail comes as before");
}
