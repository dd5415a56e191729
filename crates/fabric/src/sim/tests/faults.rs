//! Each fault does what its name says.

use std::collections::BTreeSet;

use super::super::{DeathWords, Faults, Span, World};
use super::{LANE, PUBLIC, completion, identity, members, spec};
use crate::contract::{Completion, Fabric, LocalRegion, OpError, PeerEvent, PeerId, PeerKind, Region, Remote, Token};
use crate::primitive::Ordering;

const THREADS: [[usize; 2]; 2] = [[10, 11], [12, 13]];

fn public(peer: PeerId, word: usize) -> Remote {
    Remote { peer, region: Region::Public(PUBLIC), offset: word * 8 }
}

fn lane(peer: PeerId, word: usize) -> Remote {
    Remote { peer, region: Region::Lane(LANE), offset: word * 8 }
}

fn torn() -> Faults {
    Faults { tears: 900, tear_gap: Span(500, 1_000), ..Faults::calm() }
}

#[test]
fn long_writes_are_seen_half_landed_from_any_word_on() {
    let (mut world, mut endpoints, peers) = members::<true>(1, torn(), 2);
    let mut shapes = BTreeSet::new();
    for value in 1..200u64 {
        endpoints[0].write(public(peers[0][1], 0), &[value.to_le_bytes(); 4].concat(), Token(value));
        while endpoints[0].poll().is_none() {
            world.run_for(50);
            let memory = endpoints[1].memory(LocalRegion::Public(PUBLIC)).expect("declared");
            shapes.insert((0..4).map(|i| memory[i].load(Ordering::Relaxed) == value).collect::<Vec<_>>());
        }
    }
    assert!(shapes.contains(&vec![true, false, false, false]), "from the start");
    assert!(shapes.contains(&vec![false, false, false, true]), "from the end");
    assert!(shapes.contains(&vec![false, true, true, false]) || shapes.contains(&vec![true, false, false, true]), "from the middle");
}

#[test]
fn long_reads_mix_two_writes() {
    let (mut world, mut endpoints, peers) = members::<true>(1, torn(), 2);
    let mut mixed = 0;
    for value in 1..100u64 {
        for word in endpoints[1].memory(LocalRegion::Public(PUBLIC)).expect("declared")[..8].iter() {
            word.store(value, Ordering::Release);
        }
        let into = crate::Local { region: LocalRegion::Public(PUBLIC), offset: 512 };
        endpoints[0].read(public(peers[0][1], 0), into, 64, Token(value));
        world.run_for(900);
        for word in endpoints[1].memory(LocalRegion::Public(PUBLIC)).expect("declared")[..8].iter() {
            word.store(value + 1, Ordering::Release);
        }
        completion(&mut world, &mut endpoints[0]);
        let memory = endpoints[0].memory(LocalRegion::Public(PUBLIC)).expect("declared");
        let seen: BTreeSet<u64> = memory[64..72].iter().map(|word| word.load(Ordering::Acquire)).collect();
        assert!(seen.iter().all(|word| *word == value || *word == value + 1));
        mixed += usize::from(seen.len() == 2);
    }
    assert!(mixed > 5);
}

#[test]
fn queues_overtake_each_other() {
    let faults = Faults { latency: Span(100, 2_000), ..Faults::calm() };
    let (mut world, mut endpoints, peers) = members::<true>(1, faults, 3);
    let mut orders = BTreeSet::new();
    for _ in 0..50 {
        endpoints[0].write(public(peers[0][1], 0), &[1; 8], Token(1));
        endpoints[0].write(public(peers[0][2], 0), &[1; 8], Token(2));
        orders.insert([completion(&mut world, &mut endpoints[0]).token, completion(&mut world, &mut endpoints[0]).token]);
    }
    assert_eq!(orders.len(), 2);
}

/// On a host: half a record has landed, the writer is stopped, the owner revokes and reads, the writer goes on. It learns of its loss,
/// although its stores land (TRAPS 7, DESIGN section 3).
#[test]
fn the_stores_of_a_stopped_writer_land_after_the_revocation_and_do_not_count() {
    let mut landed_late = 0;
    for seed in 0..50 {
        let (mut world, mut endpoints, peers) = members::<true>(seed, torn(), 2);
        let own = LocalRegion::Lane { writer: peers[1][0], name: LANE };
        endpoints[0].write(lane(peers[0][1], 0), &[7; 64], Token(1));
        world.run_for(400 + seed * 40);
        world.pause(0);
        endpoints[1].revoke(peers[1][0], LANE, Token(2));
        assert_eq!(completion(&mut world, &mut endpoints[1]), Completion { token: Token(2), result: Ok(0) });
        let whole = |endpoint: &super::Endpoint<true>| {
            endpoint.memory(own).expect("not forgotten")[..8].iter().all(|word| word.load(Ordering::Acquire) == 0x0707_0707_0707_0707)
        };
        let at_revocation = whole(&endpoints[1]);
        world.run_for(1_000_000);
        assert_eq!(whole(&endpoints[1]), at_revocation, "a stopped CPU stores nothing");
        world.resume(0);
        let done = completion(&mut world, &mut endpoints[0]);
        assert_eq!(done.result, if at_revocation { Ok(0) } else { Err(OpError::AccessLost) });
        assert!(whole(&endpoints[1]));
        landed_late += usize::from(!at_revocation);
    }
    assert!((10..50).contains(&landed_late), "{landed_late}");
}

/// On a network, the memory is guarded: after the revocation, not a word lands.
#[test]
fn a_nic_lets_nothing_through_after_the_revocation() {
    let mut partly = 0;
    for seed in 0..50 {
        let (mut world, mut endpoints, peers) = members::<false>(seed, torn(), 2);
        let own = LocalRegion::Lane { writer: peers[1][0], name: LANE };
        let count = |endpoint: &super::Endpoint<false>| {
            endpoint.memory(own).expect("not forgotten")[..8].iter().filter(|word| word.load(Ordering::Acquire) != 0).count()
        };
        endpoints[0].write(lane(peers[0][1], 0), &[7; 64], Token(1));
        world.run_for(seed * 40);
        endpoints[1].revoke(peers[1][0], LANE, Token(2));
        completion(&mut world, &mut endpoints[1]);
        let landed = count(&endpoints[1]);
        let done = completion(&mut world, &mut endpoints[0]);
        assert_eq!(count(&endpoints[1]), landed);
        assert_eq!(done.result, if landed == 8 { Ok(0) } else { Err(OpError::AccessLost) });
        partly += usize::from((1..8).contains(&landed));
    }
    assert!(partly > 5, "{partly}");
}

/// A write that began before a revocation and ends after the next grant has been interrupted all the same.
#[test]
fn a_write_across_a_revocation_and_a_grant_loses_its_access() {
    let mut across = 0;
    for seed in 0..50 {
        let (mut world, mut endpoints, peers) = members::<true>(seed, torn(), 2);
        endpoints[0].write(lane(peers[0][1], 0), &[7; 64], Token(1));
        world.run_for(400);
        endpoints[1].revoke(peers[1][0], LANE, Token(2));
        completion(&mut world, &mut endpoints[1]);
        endpoints[1].grant(peers[1][0], LANE);
        let result = completion(&mut world, &mut endpoints[0]).result;
        // It may have begun only after the grant; it is then a write of the new epoch.
        across += usize::from(result == Err(OpError::AccessLost));
    }
    assert!(across > 10, "{across}");
}

#[test]
fn a_short_partition_delays_and_a_long_one_loses_the_peer_for_good() {
    for (length, expected) in [(50_000, Ok(0)), (200_000, Err(OpError::PeerLost))] {
        let (mut world, mut endpoints, peers) = members::<true>(3, Faults::calm(), 3);
        world.partition(&[0], &[1, 2]);
        endpoints[0].write(public(peers[0][1], 0), &[1; 8], Token(1));
        endpoints[0].write(public(peers[0][1], 1), &[1; 8], Token(2));
        world.run_for(length);
        world.heal();
        let done = [completion(&mut world, &mut endpoints[0]), completion(&mut world, &mut endpoints[0])];
        assert_eq!(done.map(|d| (d.token.0, d.result)), [(1, expected), (2, expected)]);
        endpoints[0].write(public(peers[0][1], 2), &[1; 8], Token(3));
        assert_eq!(completion(&mut world, &mut endpoints[0]).result, expected, "what is lost stays lost");
        let gone = expected.is_err().then_some(PeerEvent::Gone { peer: peers[0][1], certain: false });
        assert_eq!(endpoints[0].event(), gone);
        let memory = endpoints[1].memory(LocalRegion::Public(PUBLIC)).expect("declared");
        let landed = memory[..3].iter().filter(|word| word.load(Ordering::Acquire) != 0).count();
        assert_eq!(landed, if expected.is_ok() { 3 } else { 0 });
    }
}

/// On a network: a process that lives and reaches the other again connects to it anew, under another number and with empty lanes.
#[test]
fn two_that_lost_each_other_meet_anew_once_both_know() {
    for (way, seed) in [((0, 1), 3), ((1, 0), 4)] {
        let (mut world, mut endpoints, peers) = members::<false>(seed, Faults::calm(), 2);
        endpoints[0].write(lane(peers[0][1], 0), &[1; 8], Token(1));
        assert_eq!(completion(&mut world, &mut endpoints[0]).result, Ok(0));
        world.block(way.0, way.1);
        endpoints[0].write(lane(peers[0][1], 1), &[2; 8], Token(2));
        assert_eq!(completion(&mut world, &mut endpoints[0]).result, Err(OpError::PeerLost));
        assert!(!world.are_connected(0, 1));
        world.run_for(1_000_000);
        assert!(!world.are_connected(0, 1), "nothing heals by itself");
        world.unblock(way.0, way.1);
        world.run_for(1_000_000);
        assert!(world.are_connected(0, 1));
        assert_eq!(world.counts().reconnections, 1);
        let mut again = [PeerId::SELF; 2];
        for (at, endpoint) in endpoints.iter_mut().enumerate() {
            let other = peers[at][1 - at];
            assert_eq!(endpoint.event(), Some(PeerEvent::Gone { peer: other, certain: false }));
            let Some(PeerEvent::Up { peer, identity: who }) = endpoint.event() else { panic!("no connection") };
            assert!(peer != other && who == identity(1 - at as u16, 1, PeerKind::Member));
            assert_eq!(endpoint.event(), None);
            again[at] = peer;
        }
        let word = |endpoint: &super::Endpoint<false>, writer, word: usize| {
            let lane = endpoint.memory(LocalRegion::Lane { writer, name: LANE }).expect("not forgotten");
            lane[word].load(Ordering::Acquire)
        };
        assert_eq!(word(&endpoints[1], again[1], 0), 0, "a fresh lane");
        assert_eq!(word(&endpoints[1], peers[1][0], 0), u64::from_le_bytes([1; 8]), "the old one is kept until it is forgotten");
        endpoints[0].write(lane(peers[0][1], 0), &[3; 8], Token(3));
        assert_eq!(completion(&mut world, &mut endpoints[0]).result, Err(OpError::PeerLost), "what is lost stays lost");
        endpoints[0].write(lane(again[0], 0), &[4; 8], Token(4));
        assert_eq!(completion(&mut world, &mut endpoints[0]).result, Ok(0));
        assert_eq!(word(&endpoints[1], again[1], 0), u64::from_le_bytes([4; 8]));
    }
}

/// Only the way back is blocked: the swap takes effect, and its poster is told that the peer is lost.
#[test]
fn a_swap_takes_effect_and_its_completion_is_lost() {
    let (mut world, mut endpoints, peers) = members::<false>(3, Faults::calm(), 2);
    world.block(1, 0);
    endpoints[0].compare_and_swap(public(peers[0][1], 0), 0, 9, Token(1));
    assert_eq!(completion(&mut world, &mut endpoints[0]).result, Err(OpError::PeerLost));
    assert_eq!(endpoints[1].memory(LocalRegion::Public(PUBLIC)).expect("declared")[0].load(Ordering::Acquire), 9);
    // Blocked the other way, nothing takes effect.
    let (mut world, mut endpoints, peers) = members::<false>(3, Faults::calm(), 2);
    world.block(0, 1);
    endpoints[0].compare_and_swap(public(peers[0][1], 0), 0, 9, Token(1));
    assert_eq!(completion(&mut world, &mut endpoints[0]).result, Err(OpError::PeerLost));
    assert_eq!(endpoints[1].memory(LocalRegion::Public(PUBLIC)).expect("declared")[0].load(Ordering::Acquire), 0);
}

#[test]
fn a_dead_nic_isolates_a_process_that_lives_on() {
    let (mut world, mut endpoints, peers) = members::<false>(3, Faults::calm(), 2);
    world.kill_nic(1);
    endpoints[0].read_word(public(peers[0][1], 0), Token(1));
    endpoints[1].read_word(public(peers[1][0], 0), Token(2));
    endpoints[1].read_word(public(PeerId::SELF, 0), Token(3));
    endpoints[1].send(peers[1][0], b"hello");
    assert_eq!(completion(&mut world, &mut endpoints[0]).result, Err(OpError::PeerLost));
    for _ in 0..2 {
        assert_eq!(completion(&mut world, &mut endpoints[1]).result, Err(OpError::PeerLost));
    }
    assert_eq!(endpoints[0].receive(&mut Vec::new()), None);
    assert!(world.is_alive(1));
    world.wake(1);
    assert_eq!(world.next_turn(world.now() + 10_000), Some(1));
}

/// The writes of a dead process land up to some point in each queue, in order, the last one perhaps in part, and none after its kernel
/// has set its death words.
#[test]
fn a_dying_process_leaves_a_prefix_of_its_writes() {
    let mut prefixes = BTreeSet::new();
    for seed in 0..200 {
        let faults = Faults { last_gasp: Span(0, 2_000), tears: 500, tear_gap: Span(50, 100), ..Faults::calm() };
        let (mut world, mut endpoints, peers) = members::<true>(seed, faults, 2);
        let words = [LocalRegion::Public(PUBLIC), LocalRegion::Lane { writer: peers[1][0], name: LANE }];
        endpoints[0].memory(words[0]).expect("declared")[THREADS[0][0]].store(0x8000_0000 | 42, Ordering::Relaxed);
        for i in 0..10 {
            endpoints[0].write(lane(peers[0][1], i * 4), &[i as u8 + 1; 32], Token(0));
        }
        world.kill(0, Some(DeathWords { region: PUBLIC, threads: vec![vec![THREADS[0][0]]] }));
        let landed = |endpoint: &super::Endpoint<true>| -> Vec<bool> {
            endpoint.memory(words[1]).expect("not forgotten")[..40].iter().map(|word| word.load(Ordering::Acquire) != 0).collect()
        };
        let mut at_death = None;
        for _ in 0..4000 {
            world.run_for(10);
            if at_death.is_none() && endpoints[0].memory(words[0]).expect("declared")[THREADS[0][0]].load(Ordering::Acquire) == 0xc000_0000
            {
                at_death = Some(landed(&endpoints[1]));
            }
        }
        let records: Vec<usize> = landed(&endpoints[1]).chunks(4).map(|record| record.iter().filter(|word| **word).count()).collect();
        assert_eq!(at_death.expect("the kernel sets the word"), landed(&endpoints[1]), "a store after certain death");
        let whole = records.iter().take_while(|words| **words == 4).count();
        assert!(records[whole..].iter().skip(1).all(|words| *words == 0), "{records:?}");
        prefixes.insert(whole);
        assert_eq!(endpoints[0].poll(), None, "the dead hear nothing");
    }
    assert!(prefixes.len() > 5 && prefixes.contains(&10), "{prefixes:?}");
}

/// The kernel keeps the waiters bit, drops the thread id, sets the died bit, and leaves words that nobody held; one thread after the other.
#[test]
fn death_words_are_set_as_the_kernel_sets_them() {
    let mut first = BTreeSet::new();
    for seed in 0..20 {
        let (mut world, endpoints, _) = members::<true>(seed, Faults::calm(), 2);
        let memory = endpoints[0].memory(LocalRegion::Public(PUBLIC)).expect("declared");
        for (word, value) in [(10, 0x8000_0007), (11, 7), (12, 0x8000_0008), (13, 0)] {
            memory[word].store(value, Ordering::Relaxed);
        }
        let death = DeathWords { region: PUBLIC, threads: THREADS.map(Vec::from).to_vec() };
        world.kill(0, Some(death));
        let word = |at: usize| memory[at].load(Ordering::Acquire);
        while word(10) == 0x8000_0007 && word(12) == 0x8000_0008 {
            world.run_for(1);
        }
        first.insert([word(10), word(12)]);
        world.run_for(1_000_000);
        assert_eq!([word(10), word(11), word(12), word(13)], [0xc000_0000, 0x4000_0000, 0xc000_0000, 0]);
    }
    assert!(first.len() > 1, "threads die in either order: {first:?}");
}

#[test]
fn datagrams_are_lost_repeated_and_reordered() {
    let faults = Faults { drops: 300, repeats: 300, datagram: Span(100, 5_000), ..Faults::calm() };
    let (mut world, mut endpoints, peers) = members::<true>(1, faults, 2);
    let mut heard = Vec::new();
    for i in 0..200u64 {
        endpoints[0].send(peers[0][1], &i.to_le_bytes());
        world.run_for(100);
    }
    world.run_for(100_000);
    let mut datagram = Vec::new();
    while let Some(from) = endpoints[1].receive(&mut datagram) {
        assert_eq!(from, peers[1][0]);
        heard.push(u64::from_le_bytes(datagram[..].try_into().expect("8 bytes")));
    }
    let distinct: BTreeSet<u64> = heard.iter().copied().collect();
    assert!(distinct.len() < 180, "some are lost");
    assert!(heard.len() > distinct.len(), "some are repeated");
    assert!(!heard.is_sorted(), "some overtake others");
}

#[test]
fn a_flood_of_datagrams_is_bounded() {
    let (mut world, mut endpoints, peers) = members::<true>(1, Faults::calm(), 2);
    for _ in 0..10_000 {
        endpoints[0].send(peers[0][1], &[0; 8]);
    }
    world.run_for(1_000_000);
    let mut heard = 0;
    while endpoints[1].receive(&mut Vec::new()).is_some() {
        heard += 1;
    }
    assert_eq!(heard, 1024);
}

/// A restarted writer gets a lane of its own; what its earlier life has on the way lands in the earlier lane (TRAPS 28).
#[test]
fn late_stores_of_an_old_life_stay_out_of_the_new_ones_lane() {
    let mut late = 0;
    for seed in 0..50 {
        let faults = Faults { latency: Span(0, 20_000), last_gasp: Span(20_000, 40_000), connect: Span(0, 1_000), ..Faults::calm() };
        let (mut world, mut endpoints, peers) = members::<true>(seed, faults, 2);
        endpoints[0].write(lane(peers[0][1], 0), &[1; 64], Token(1));
        world.kill(0, None);
        let (_, mut second) = world.spawn(identity(0, 2, PeerKind::Member), &spec());
        world.run_for(2_000);
        let Some(PeerEvent::Up { peer, identity }) = endpoints[1].event() else { panic!("the new life is up") };
        assert_eq!(identity.incarnation.0, 2);
        assert!(matches!(second.event(), Some(PeerEvent::Up { .. })));
        let word =
            |writer| endpoints[1].memory(LocalRegion::Lane { writer, name: LANE }).expect("both are kept")[0].load(Ordering::Acquire);
        let before = word(peers[1][0]);
        world.run_for(100_000);
        assert_eq!(word(peer), 0);
        late += usize::from(before == 0 && word(peers[1][0]) != 0);
    }
    assert!(late > 5, "{late}");
}

#[test]
fn a_client_writes_its_lanes_and_nothing_else() {
    let (mut world, mut endpoints, _) = members::<true>(1, Faults::calm(), 1);
    let (_, mut client) = world.spawn(identity(9, 1, PeerKind::Client), &spec());
    world.run_for(100_000);
    let Some(PeerEvent::Up { peer, .. }) = client.event() else { panic!("connected") };
    assert!(matches!(endpoints[0].event(), Some(PeerEvent::Up { .. })));
    client.write(public(peer, 0), &[1; 8], Token(1));
    client.compare_and_swap(public(peer, 0), 0, 1, Token(2));
    client.write(lane(peer, 0), &[1; 8], Token(3));
    client.read_word(public(peer, 0), Token(4));
    let results: Vec<_> = (0..4).map(|_| completion(&mut world, &mut client).result).collect();
    assert_eq!(results, [Err(OpError::AccessLost), Err(OpError::AccessLost), Ok(0), Ok(0)]);
}

#[test]
#[should_panic(expected = "word 3 is swapped by some and written by others")]
fn writing_where_others_swap_is_a_mistake() {
    let (mut world, mut endpoints, peers) = members::<true>(1, Faults::calm(), 2);
    endpoints[0].compare_and_swap(public(peers[0][1], 3), 0, 1, Token(1));
    completion(&mut world, &mut endpoints[0]);
    endpoints[1].write(public(PeerId::SELF, 0), &[0; 64], Token(2));
}

#[test]
fn a_paused_process_gets_no_turn_until_it_goes_on() {
    let (mut world, mut endpoints, peers) = members::<true>(1, Faults::calm(), 2);
    world.pause(1);
    endpoints[0].write(public(peers[0][1], 0), &[1; 8], Token(1));
    while let Some(process) = world.next_turn(1_500_000) {
        assert_eq!(process, 0);
    }
    assert!(world.is_paused(1));
    world.resume(1);
    assert_eq!(world.next_turn(1_600_000), Some(1));
}

#[test]
fn a_process_is_woken_when_it_asked_to_be() {
    let mut world = World::<true>::new(1, Faults::calm());
    world.spawn(identity(0, 1, PeerKind::Member), &spec());
    world.wake_at(0, 10_000);
    world.wake_at(0, 20_000);
    assert_eq!(world.next_turn(9_999), None);
    assert_eq!(world.now(), 9_999);
    assert_eq!(world.next_turn(15_000), Some(0));
    assert_eq!(world.next_turn(50_000), None, "one request at a time");
}

#[test]
fn a_sleeper_is_woken_by_a_nudge_and_not_by_a_store() {
    let (mut world, mut endpoints, peers) = members::<true>(1, Faults::calm(), 2);
    world.let_stores_wake(false);
    endpoints[0].write(public(peers[0][1], 0), &[1; 8], Token(1));
    assert_eq!(world.next_turn(1_500_000), Some(0), "its completion has come");
    assert_eq!(world.next_turn(1_500_000), None);
    endpoints[0].nudge(peers[0][1]);
    assert_eq!(world.next_turn(1_600_000), Some(1));
}
