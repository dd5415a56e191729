//! One seed, one life.

use super::super::{Faults, World};
use super::members;
use crate::contract::{Fabric, PeerEvent, PeerId, PeerKind, Region, Remote, Token};

/// A busy life with a bit of everything, driven by turns. Returns its trace and its digest.
fn life(seed: u64) -> (Vec<u8>, u64) {
    let mut chance = fastrand::Rng::with_seed(seed);
    let faults = Faults::drawn(&mut chance);
    let mut world = World::<true>::new(seed, faults);
    world.keep_trace();
    let mut endpoints = Vec::new();
    let mut peers: Vec<Vec<PeerId>> = Vec::new();
    for node in 0..4 {
        endpoints.push(world.spawn(super::identity(node, 1, PeerKind::Member), &super::spec()).1);
        peers.push(Vec::new());
    }
    let (mut token, mut datagram) = (0, Vec::new());
    for _ in 0..3000 {
        let limit = world.now() + 5_000;
        let Some(process) = world.next_turn(limit) else {
            match chance.u8(..8) {
                0 => world.pause(chance.usize(0..endpoints.len())),
                1 => (0..endpoints.len()).for_each(|p| world.resume(p)),
                2 => world.block(chance.usize(0..endpoints.len()), chance.usize(0..endpoints.len())),
                3 => world.heal(),
                4 if endpoints.len() < 8 => {
                    let victim = chance.usize(0..endpoints.len());
                    world.kill(victim, None);
                    let identity = super::identity(endpoints.len() as u16, 1, PeerKind::Member);
                    endpoints.push(world.spawn(identity, &super::spec()).1);
                    peers.push(Vec::new());
                }
                _ => world.wake(chance.usize(0..endpoints.len())),
            }
            continue;
        };
        let fabric = &mut endpoints[process];
        while let Some(event) = fabric.event() {
            if let PeerEvent::Up { peer, .. } = event {
                peers[process].push(peer);
            }
        }
        while fabric.poll().is_some() {}
        while fabric.receive(&mut datagram).is_some() {}
        let Some(&peer) = chance.choice(&peers[process]) else { continue };
        token += 1;
        let word = chance.usize(0..64) * 8;
        let (lane, public) = (
            Remote { peer, region: Region::Lane(super::LANE), offset: word },
            Remote { peer, region: Region::Public(super::PUBLIC), offset: word },
        );
        match chance.u8(..6) {
            0 => fabric.write(lane, &[token as u8; 256], Token(token)),
            1 => fabric.compare_and_swap(public, 0, token, Token(token)),
            2 => fabric.read_word(public, Token(token)),
            3 => fabric.multicast(&token.to_le_bytes()),
            4 => fabric.revoke(peer, super::LANE, Token(token)),
            _ => fabric.grant(peer, super::LANE),
        }
        world.wake_at(process, world.now() + chance.u64(..3_000));
    }
    (world.trace(), world.digest())
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    for seed in 0..20 {
        let (trace, digest) = life(seed);
        assert!(trace.len() > 100_000, "seed {seed}: {} bytes are no life", trace.len());
        assert!((trace, digest) == life(seed), "seed {seed} gave two lives");
    }
}

#[test]
fn different_seeds_give_different_traces() {
    let digests: std::collections::BTreeSet<u64> = (0..50).map(|seed| life(seed).1).collect();
    assert_eq!(digests.len(), 50);
}

/// A caller that looks at the world without touching it changes nothing.
#[test]
fn a_poll_without_effect_leaves_no_trace() {
    let run = |look: bool| {
        let (mut world, mut endpoints, _) = members::<true>(5, Faults::calm(), 2);
        for _ in 0..100 {
            world.run_for(100);
            if look {
                assert_eq!((endpoints[0].poll(), endpoints[0].event(), endpoints[0].receive(&mut Vec::new())), (None, None, None));
            }
        }
        world.digest()
    };
    assert_eq!(run(false), run(true));
}
