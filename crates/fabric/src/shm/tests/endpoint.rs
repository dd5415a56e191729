//! What the contract leaves to this backend: peers that connect and go, parking, read-only clients.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::time::Duration;

use super::*;
use crate::PartyError;
use crate::contract::{Completion, LocalRegion, OpError, Region, Remote, Token};
use crate::host::WakeReason;
use crate::primitive::Ordering;
use crate::shm::{ParkWord, StartError};

fn public(peer: PeerId, offset: usize) -> Remote {
    Remote { peer, region: Region::Public(PUBLIC), offset }
}

#[test]
fn a_second_process_of_a_node_is_refused_and_the_name_comes_free() {
    let cluster = unique_cluster();
    let first = member(&cluster, 1);
    let error = ShmFabric::start(config(&cluster, 1, PeerKind::Member)).expect_err("taken");
    assert!(matches!(error, StartError::NameInUse { node: NodeId(1), .. }), "{error}");
    drop(first);
    drop(member(&cluster, 1));
}

#[test]
fn nobody_is_let_in_before_the_door_is_open() {
    let cluster = unique_cluster();
    let mut node = ShmFabric::start(ShmConfig { closed: true, ..config(&cluster, 1, PeerKind::Member) }).expect("started");
    let mut user = client(&cluster, 1);
    user.connect(NodeId(1));
    // Long enough for a handshake, if there were one.
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!((user.event(), node.event()), (None, None));
    node.open();
    assert_eq!(next_up(&mut user).1.node, NodeId(1));
    assert_eq!(next_up(&mut node).1.kind, PeerKind::Client);
}

#[test]
fn bad_configurations_are_named() {
    let good = config("c", 1, PeerKind::Member);
    let error = ShmFabric::start(ShmConfig { cluster: "a b".into(), ..good.clone() }).expect_err("name");
    assert!(error.to_string().contains("\"a b\""), "{error}");
    let error = ShmFabric::start(ShmConfig { key: b"short".to_vec(), ..good.clone() }).expect_err("key");
    assert_eq!(error.to_string(), "the cluster key has 5 bytes; allowed are 16 or more");
    let members = RegionSpec { public: vec![(PUBLIC, 12)], ..RegionSpec::default() };
    let error = ShmFabric::start(ShmConfig { members, ..good.clone() }).expect_err("region");
    assert!(error.to_string().contains("members' regions: public region 1 has 12 bytes"), "{error}");
    let error = ShmFabric::start(ShmConfig { listen: true, ..config("c", 1, PeerKind::Client) }).expect_err("client");
    assert!(matches!(error, StartError::Party(PartyError::ListeningClient)));
}

#[test]
fn members_that_dial_each_other_end_with_one_connection() {
    for _ in 0..20 {
        let cluster = unique_cluster();
        let (mut a, mut b) = (member(&cluster, 1), member(&cluster, 2));
        b.connect(NodeId(1));
        a.connect(NodeId(2));
        let (to_b, _) = next_up(&mut a);
        let (to_a, _) = next_up(&mut b);
        // The same connection works in both directions.
        a.write(public(to_b, 0), &5u64.to_le_bytes(), Token(1));
        assert_eq!(until(|| a.poll()), Completion { token: Token(1), result: Ok(0) });
        b.read_word(public(PeerId::SELF, 0), Token(2));
        assert_eq!(until(|| b.poll()), Completion { token: Token(2), result: Ok(5) });
        b.send(to_a, b"to a");
        let mut got = Vec::new();
        assert_eq!(until(|| a.receive(&mut got)), to_b);
        std::thread::sleep(Duration::from_millis(3));
        assert_eq!((a.event(), b.event()), (None, None));
        assert_eq!((a.bootstrap_counters().connected, b.bootstrap_counters().connected), (1, 1));
        assert_eq!((a.bootstrap_counters().refused, b.bootstrap_counters().refused), (0, 0));
    }
}

#[test]
fn one_that_leaves_is_gone_without_certainty_and_may_come_back() {
    let (cluster, mut a, to_b, b, _) = pair();
    drop(b);
    assert_eq!(next_event(&mut a), PeerEvent::Gone { peer: to_b, certain: false });
    assert!(a.is_gone(to_b));
    let who = identity(2, 2, PeerKind::Member);
    let mut again = ShmFabric::start(ShmConfig { identity: who, ..config(&cluster, 2, PeerKind::Member) }).expect("started");
    let (peer, identity) = next_up(&mut a);
    assert_ne!(peer, to_b);
    assert_eq!(identity, who);
    assert_eq!(next_up(&mut again).1.node, NodeId(1));
}

#[test]
fn forgetting_a_live_peer_ends_the_connection() {
    let (_, mut a, to_b, mut b, to_a) = pair();
    a.disconnect(NodeId(2));
    a.forget(to_b);
    assert_eq!(next_event(&mut b), PeerEvent::Gone { peer: to_a, certain: false });
    a.read_word(public(to_b, 0), Token(1));
    assert_eq!(a.poll(), Some(Completion { token: Token(1), result: Err(OpError::PeerLost) }));
    assert_eq!(a.peer_identity(to_b), None);
}

#[test]
fn a_client_reads_public_memory_and_cannot_write_it() {
    let cluster = unique_cluster();
    let (mut node, mut user) = (member(&cluster, 1), client(&cluster, 1));
    user.connect(NodeId(1));
    let (to_node, _) = next_up(&mut user);
    let (to_user, who) = next_up(&mut node);
    assert_eq!(who.kind, PeerKind::Client);
    node.memory(LocalRegion::Public(PUBLIC)).expect("declared")[1].store(77, Ordering::Release);
    user.read_word(public(to_node, 8), Token(1));
    assert_eq!(until(|| user.poll()).result, Ok(77));
    user.write(public(to_node, 8), &[0; 8], Token(2));
    assert_eq!(until(|| user.poll()).result, Err(OpError::AccessLost));
    user.compare_and_swap(public(to_node, 8), 77, 78, Token(3));
    assert_eq!(until(|| user.poll()).result, Err(OpError::AccessLost));
    assert_eq!(node.memory(LocalRegion::Public(PUBLIC)).expect("declared")[1].load(Ordering::Acquire), 77);
    // Its own lane is writable; datagrams are for members.
    user.write(Remote { peer: to_node, region: Region::Lane(LANE), offset: 0 }, &[1; 8], Token(4));
    assert_eq!(until(|| user.poll()).result, Ok(0));
    node.send(to_user, b"lost");
    assert_eq!(node.datagram_counters().dropped, 1);
}

#[test]
fn clients_beyond_the_limit_are_refused_until_one_is_forgotten() {
    let cluster = unique_cluster();
    let mut node = ShmFabric::start(ShmConfig { max_clients: 2, ..config(&cluster, 1, PeerKind::Member) }).expect("started");
    let mut clients: Vec<_> = (1..=3).map(|n| client(&cluster, n)).collect();
    for user in &mut clients[..2] {
        user.connect(NodeId(1));
        next_up(user);
    }
    clients[2].connect(NodeId(1));
    let why = until(|| clients[2].last_refusal());
    assert!(why.contains("serves 2 clients already, at most 2 are allowed"), "{why}");
    assert!(until(|| node.last_refusal()).contains("client 1"));
    let [(first, _), (second, _)] = [next_up(&mut node), next_up(&mut node)];
    drop(clients.remove(0));
    let gone = match next_event(&mut node) {
        PeerEvent::Gone { peer, certain: false } if peer == first || peer == second => peer,
        other => panic!("{other:?}"),
    };
    // Its memory can still be read here, so its place is still taken.
    let before = node.bootstrap_counters().refused;
    until(|| (node.bootstrap_counters().refused > before).then_some(()));
    assert_eq!(node.event(), None);
    node.forget(gone);
    assert_eq!(next_up(&mut node).1.node, NodeId(3));
    next_up(&mut clients[1]);
}

#[test]
fn a_nudge_wakes_who_is_parked_and_nobody_sleeps_through_one() {
    let (_, mut a, to_b, mut b, to_a) = pair();
    const TURNS: u64 = 3000;
    // Each one, parked, waits for the other's next number: a lost wake-up is a hang.
    let play = |fabric: &mut ShmFabric, other: PeerId, first: bool| {
        for turn in 1..=TURNS {
            if first {
                fabric.write(public(other, 0), &turn.to_le_bytes(), Token(turn));
                assert_eq!(fabric.poll().map(|c| c.result), Some(Ok(0)));
                fabric.nudge(other);
            }
            while fabric.memory(LocalRegion::Public(PUBLIC)).expect("declared")[0].load(Ordering::Acquire) < turn {
                fabric.park(&[], None, |f| f.memory(LocalRegion::Public(PUBLIC)).expect("declared")[0].load(Ordering::Acquire) >= turn);
            }
            if !first {
                fabric.write(public(other, 0), &turn.to_le_bytes(), Token(turn));
                assert_eq!(fabric.poll().map(|c| c.result), Some(Ok(0)));
                fabric.nudge(other);
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| play(&mut a, to_b, true));
        scope.spawn(|| play(&mut b, to_a, false));
    });
}

#[test]
fn a_readable_descriptor_wakes_who_has_armed_its_ear_and_nobody_sleeps_through_one() {
    let (_, mut a, _, _b, _) = pair();
    let event = || rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).expect("an eventfd");
    let events = [event(), event()];
    let make_readable = |at: usize| rustix::io::write(&events[at], &1u64.to_ne_bytes()).expect("a fresh eventfd");
    let ear = a.ear(events.iter().map(|fd| fd.try_clone().expect("a duplicate")).collect());
    for turn in 0..1_000 {
        a.announce();
        // Before it is armed as well as after: a wake-up that is lost in either order would be a hang.
        if turn % 3 == 0 {
            make_readable(turn % 2);
        }
        ear.arm();
        if turn % 3 != 0 {
            make_readable(turn % 2);
        }
        assert_eq!(a.sleep(&[], None), WakeReason::Nudged);
        ear.disarm();
        rustix::io::read(&events[turn % 2], &mut [0; 8]).expect("it was readable");
    }
    // An endpoint that is awake, or no longer has an ear, is not rung for: it sleeps for its full time.
    let ms = Some(Duration::from_millis(1));
    make_readable(0);
    assert_eq!(a.park(&[], ms, |_| false), WakeReason::TimedOut);
    drop(ear);
    make_readable(1);
    assert_eq!(a.park(&[], ms, |_| false), WakeReason::TimedOut);
}

#[test]
fn parking_ends_with_its_reason() {
    let (cluster, mut a, to_b, mut b, to_a) = pair();
    let ms = Some(Duration::from_millis(1));
    assert_eq!(a.park(&[], ms, |_| false), WakeReason::TimedOut);
    assert_eq!(a.park(&[], None, |_| true), WakeReason::Work);
    let word = ParkWord { at: public(to_b, 24), expected: 0 };
    assert_eq!(a.park(&[word], ms, |_| false), WakeReason::TimedOut);
    let other = ParkWord { at: public(to_b, 16), expected: 1 };
    assert_eq!(a.park(&[word, other], None, |_| false), WakeReason::Word(1));
    let unknown = ParkWord { at: public(PeerId(999), 16), expected: 1 };
    assert_eq!(a.park(&[unknown, word], ms, |_| false), WakeReason::TimedOut);
    // Mail, an event and a completion each count as work without being asked for.
    b.send(to_a, b"hello");
    assert_eq!(a.park(&[word], None, |_| false), WakeReason::Work);
    let mut got = Vec::new();
    assert_eq!(a.receive(&mut got), Some(to_b));
    assert_eq!(got, b"hello");
    let mut third = member(&cluster, 3);
    third.connect(NodeId(1));
    next_up(&mut third);
    until(|| (!a.is_empty_of_events()).then_some(()));
    assert_eq!(a.park(&[], None, |_| false), WakeReason::Work);
    next_up(&mut a);
    a.write(public(to_b, 0), &[0; 8], Token(1));
    assert_eq!(a.park(&[], None, |_| false), WakeReason::Work);
    assert!(a.poll().is_some());
}

#[test]
fn a_watched_word_wakes_the_sleeper() {
    let (_, mut a, to_b, b, _) = pair();
    let regions = b.own_regions();
    let registered = AtomicBool::new(false);
    let parked = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let held = regions.region(PUBLIC).expect("declared").register_death_words(&[16]).expect("registered");
            registered.store(true, Ordering::SeqCst);
            until(|| parked.load(Ordering::SeqCst).then_some(()));
            // Ends without giving it back: a death.
            std::mem::forget(held);
        });
        until(|| registered.load(Ordering::SeqCst).then_some(()));
        let now = a.peer_memory(to_b, PUBLIC).expect("mapped")[16].load(Ordering::Acquire);
        let word = ParkWord { at: public(to_b, 128), expected: now as u32 };
        let reason = a.park(&[word], None, |_| {
            parked.store(true, Ordering::SeqCst);
            false
        });
        // Before the wait or during it, it is this word either way.
        assert!(matches!(reason, WakeReason::Word(0) | WakeReason::Nudged), "{reason:?}");
        until(|| (a.peer_memory(to_b, PUBLIC).expect("mapped")[16].load(Ordering::Acquire) & crate::host::OWNER_DIED != 0).then_some(()));
    });
}

#[test]
fn datagrams_to_a_full_ring_are_dropped_and_counted() {
    let (_, mut a, to_b, mut b, _) = pair();
    let datagram = [9; crate::contract::MAX_DATAGRAM_BYTES];
    for _ in 0..100 {
        a.send(to_b, &datagram);
    }
    let counters = a.datagram_counters();
    assert_eq!(counters.sent + counters.dropped, 100);
    assert!(counters.dropped > 0);
    let mut got = Vec::new();
    for _ in 0..counters.sent {
        assert!(b.receive(&mut got).is_some());
        assert_eq!(got, datagram);
    }
    assert_eq!(b.receive(&mut got), None);
    a.send(PeerId::SELF, b"note to self");
    assert_eq!(a.receive(&mut got), Some(PeerId::SELF));
    assert_eq!(got, b"note to self");
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "a plain write to a word that has been swapped")]
fn a_plain_write_to_a_swapped_word_is_a_broken_invariant() {
    let (_, mut a, to_b, _b, _) = pair();
    a.compare_and_swap(public(to_b, 8), 0, 1, Token(1));
    a.write(public(to_b, 0), &[0; 24], Token(2));
}

#[test]
fn a_vigil_ends_by_a_nudge_a_death_a_word_or_its_keepers_state() {
    let (_, mut a, to_b, mut b, to_a) = pair();
    let state = AtomicU32::new(1);
    let word = |offset, expected| ParkWord { at: public(to_b, offset), expected };
    // Awake: there is nothing to keep.
    a.vigil(&[word(24, 0)]).keep(&state, 1);
    a.announce();
    a.vigil(&[word(24, 0)]).keep(&state, 2);
    a.vigil(&[word(24, 0), word(32, 5)]).keep(&state, 1);
    assert_eq!(a.find_work(&[word(24, 0), word(32, 5)]), Some(WakeReason::Word(1)));
    assert_eq!(a.find_work(&[word(24, 0)]), None);

    let regions = b.own_regions();
    let (told, tid) = std::sync::mpsc::channel();
    let (die, dying) = std::sync::mpsc::channel::<()>();
    let victim = std::thread::spawn(move || {
        let held = regions.region(PUBLIC).expect("declared").register_death_words(&[16]).expect("registered");
        told.send(held.value()).expect("it listens");
        // Ends without giving it back: a death.
        std::mem::forget(held);
        dying.recv().expect("told to");
    });
    let words = [word(24, 0), word(128, tid.recv().expect("registered") as u32)];
    let (vigil, ended) = (a.vigil(&words), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 1..=3 {
                vigil.keep(&state, 1);
                ended.store(number, Ordering::SeqCst);
                // Until the owner has seen it.
                until(|| (ended.load(Ordering::SeqCst) == 0).then_some(()));
            }
        });
        let mut ends = |number| {
            until(|| (ended.load(Ordering::SeqCst) == number).then_some(()));
            a.announce();
            ended.store(0, Ordering::SeqCst);
        };
        b.nudge(to_a);
        ends(1);
        b.nudge(to_a);
        ends(2);
        die.send(()).expect("it listens");
        ends(3);
    });
    victim.join().expect("it ends");
    assert_eq!(a.find_work(&words), Some(WakeReason::Word(1)));
}
