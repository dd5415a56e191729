//! What a driver does to a world as a whole, and what it can see of it.

use super::super::{Counts, Faults, Span, World};
use super::{PUBLIC, completion, identity, members, spec};
use crate::contract::{Fabric, OpError, PeerEvent, PeerKind, Region, Remote, Token};
use crate::primitive::Ordering;

/// When a process dies with its host, those that want something of it notice; the others notice when their connection is found dead.
#[test]
fn the_end_of_a_host_is_told_to_nobody() {
    let faults = Faults { last_gasp: Span(5_000, 5_000), ..Faults::calm() };
    let (mut world, mut endpoints, peers) = members::<false>(1, faults.clone(), 3);
    let word = |of: usize| Remote { peer: peers[of][0], region: Region::Public(PUBLIC), offset: 0 };
    endpoints[0].write(Remote { peer: peers[0][1], region: Region::Public(PUBLIC), offset: 0 }, &[1; 8], Token(1));
    world.crash(0);
    endpoints[1].read_word(word(1), Token(2));
    world.run_for(2 * faults.peer_lost_after_ns);
    assert_eq!(world.look(1, PUBLIC, |words| words[0].load(Ordering::Acquire)), 0, "nothing leaves a host that has stopped");
    assert_eq!(endpoints[1].poll().expect("given up").result, Err(OpError::PeerLost));
    assert!(matches!(endpoints[1].event(), Some(PeerEvent::Gone { certain: false, .. })));
    assert_eq!(endpoints[2].event(), None, "who wants nothing of it hears nothing");
    world.run_for(25 * faults.peer_lost_after_ns);
    assert!(matches!(endpoints[2].event(), Some(PeerEvent::Gone { certain: false, .. })));
    assert_eq!(world.counts().lost_notices, 2);
    assert!(world.counts() == Counts { lost_notices: 2, ..Counts::default() }, "{:?}", world.counts());
}

#[test]
#[should_panic(expected = "shares its host")]
fn a_host_does_not_outlive_its_own_end() {
    let (mut world, _, _) = members::<true>(1, Faults::calm(), 2);
    world.crash(0);
}

#[test]
fn harm_is_counted_and_a_calm_world_does_none() {
    for (faults, harmed) in [
        (Faults::calm(), false),
        (
            Faults { tears: 500, spikes: 500, spike_ns: 1_000, drops: 300, repeats: 300, stalls: 500, stall_ns: 1_000, ..Faults::calm() },
            true,
        ),
    ] {
        let (mut world, mut endpoints, peers) = members::<true>(3, faults, 2);
        for token in 0..50 {
            let at = Remote { peer: peers[0][1], region: Region::Public(PUBLIC), offset: 0 };
            endpoints[0].write(at, &[1; 64], Token(token));
            endpoints[0].send(peers[0][1], &[7; 8]);
            completion(&mut world, &mut endpoints[0]);
        }
        let counts = world.counts();
        for count in [counts.tears, counts.spikes, counts.drops, counts.repeats, counts.stalls] {
            assert_eq!(count > 5, harmed, "{counts:?}");
        }
    }
}

/// A swap took effect, and the completion that says so is lost with the connection.
#[test]
fn a_completion_that_is_lost_is_counted() {
    let (mut world, mut endpoints, peers) = members::<false>(1, Faults::calm(), 2);
    world.block(1, 0);
    endpoints[0].compare_and_swap(Remote { peer: peers[0][1], region: Region::Public(PUBLIC), offset: 8 }, 0, 9, Token(1));
    assert_eq!(completion(&mut world, &mut endpoints[0]).result, Err(OpError::PeerLost));
    assert_eq!(world.look(1, PUBLIC, |words| words[1].load(Ordering::Acquire)), 9);
    assert_eq!(world.counts().lost_completions, 1);
}

/// One event at a time or turn by turn: the same life.
#[test]
fn events_make_up_the_turns() {
    let turns = |by_event: bool| {
        let mut world = World::<true>::new(5, Faults::calm());
        let mut endpoints: Vec<_> = (0..2).map(|node| world.spawn(identity(node, 1, PeerKind::Member), &spec()).1).collect();
        let mut turns = Vec::new();
        let limit = 500_000;
        loop {
            let turn = if by_event {
                match world.next_event(limit) {
                    Some(Some(process)) => process,
                    Some(None) => continue,
                    None => break,
                }
            } else {
                match world.next_turn(limit) {
                    Some(process) => process,
                    None => break,
                }
            };
            turns.push((world.now(), turn));
            while let Some(event) = endpoints[turn].event() {
                if let PeerEvent::Up { peer, .. } = event {
                    endpoints[turn].send(peer, &[1; 8]);
                }
            }
            world.wake_at(turn, world.now() + 10_000);
        }
        assert_eq!(world.now(), limit);
        assert!(world.events() > turns.len() as u64 && world.held() > 0);
        (turns, world.events(), world.digest())
    };
    let one = turns(true);
    assert!(one.0.len() > 50);
    assert_eq!(one, turns(false));
}
