//! Promise 7, and the coming and going of peers.

use super::Harness;
use super::cluster::{Cluster, LANE, PUBLIC, bytes_of};
use crate::contract::{Fabric, LocalRegion, OpError, PeerEvent, PeerId};

/// Every process sees every other come up once, with its right identity, and never itself.
pub fn every_peer_comes_up_once<H: Harness>(round: u64) {
    let mut cluster = Cluster::<H>::connected(round, 4);
    for _ in 0..200 {
        cluster.harness.pass();
    }
    for of in 0..4 {
        cluster.observe(of);
        let mut seen = Vec::new();
        for event in &cluster.events[of] {
            let PeerEvent::Up { peer, identity } = *event else { panic!("nobody has gone: {event:?}") };
            assert_ne!(peer, PeerId::SELF);
            assert!(!seen.contains(&(peer, identity)));
            seen.push((peer, identity));
        }
        let others: Vec<_> = (0..4).filter(|t| *t != of).map(|t| cluster.harness.identity(t)).collect();
        assert_eq!(seen.len(), others.len());
        assert!(others.iter().all(|other| seen.iter().any(|(_, identity)| identity == other)));
    }
}

/// A later life of a node gets a number of its own.
pub fn peer_numbers_are_never_reused<H: Harness>(round: u64) {
    let mut cluster = Cluster::<H>::connected(round, 2);
    let mut numbers = vec![cluster.peer(0, 1)];
    let mut last = None;
    for _ in 0..3 {
        let Some(life) = cluster.harness.bystander(last) else { return };
        let number = cluster.wait_for_up(0, life);
        assert!(!numbers.contains(&number), "{number:?} has been used before: {numbers:?}");
        numbers.push(number);
        cluster.harness.crash(life);
        wait_for_gone(&mut cluster, 0, number);
        cluster.harness.fabric(0).forget(number);
        last = Some(life);
    }
}

/// The death of a process is reported as one event, with certainty if one kernel runs all processes; no other process is reported as gone.
pub fn a_crash_is_reported_once<H: Harness>(round: u64) {
    let mut cluster = Cluster::<H>::connected(round, 2);
    let Some(victim) = cluster.harness.bystander(None) else { return };
    let numbers = [cluster.wait_for_up(0, victim), cluster.wait_for_up(1, victim)];
    cluster.harness.crash(victim);
    for of in [0, 1] {
        let certain = wait_for_gone(&mut cluster, of, numbers[of]);
        assert!(certain || !H::Fabric::ZOMBIES_REACHABLE, "on one host the kernel vouches for a death");
    }
    for _ in 0..200 {
        cluster.harness.pass();
    }
    for of in [0, 1] {
        cluster.observe(of);
        let gone: Vec<_> = cluster.events[of].iter().filter(|event| matches!(event, PeerEvent::Gone { .. })).collect();
        assert_eq!(gone.len(), 1, "{gone:?}");
        assert!(matches!(gone[0], PeerEvent::Gone { peer, .. } if *peer == numbers[of]));
    }
}

/// Promise 7: either a dead process's memory can be used like a live one's, or every operation on it says that it is lost.
pub fn a_dead_peers_memory_is_a_zombie_or_lost<H: Harness>(round: u64) {
    let mut cluster = Cluster::<H>::connected(round, 2);
    let Some(victim) = cluster.harness.bystander(None) else { return };
    let numbers = [cluster.wait_for_up(0, victim), cluster.wait_for_up(1, victim)];
    let at = [cluster.public(0, victim, 0), cluster.public(1, victim, 0)];
    assert_eq!(cluster.write(0, at[0], &[41, 42]), Ok(0));
    cluster.harness.crash(victim);
    for of in [0, 1] {
        wait_for_gone(&mut cluster, of, numbers[of]);
    }
    let lane = cluster.lane(0, victim, 0);
    if H::Fabric::ZOMBIES_REACHABLE {
        assert_eq!(cluster.read(1, at[1], 2), Ok(vec![41, 42]));
        assert_eq!(cluster.write(1, at[1], &[43]), Ok(0));
        assert_eq!(cluster.swap(0, at[0], 43, 44), Ok(43));
        assert_eq!(cluster.read_word(1, at[1]), Ok(44));
        assert_eq!(cluster.write(0, lane, &[1; 8]), Ok(0));
        // That stays so for one peer when another gives it up.
        cluster.harness.fabric(0).forget(numbers[0]);
        assert_eq!(cluster.read_word(1, at[1]), Ok(44));
    } else {
        assert_eq!(cluster.read_word(1, at[1]), Err(OpError::PeerLost));
        assert_eq!(cluster.write(1, at[1], &[43]), Err(OpError::PeerLost));
        assert_eq!(cluster.swap(0, at[0], 43, 44), Err(OpError::PeerLost));
        assert_eq!(cluster.write(0, lane, &[1; 8]), Err(OpError::PeerLost));
    }
}

/// Forgetting a peer drops its lanes here. Operations in flight to it complete one way or the other, in order. All other memory and all other peers
/// stay.
pub fn forgetting_a_peer_drops_its_lanes_only<H: Harness>(round: u64) {
    let mut cluster = Cluster::<H>::connected(round, 3);
    let (lost, kept) = (cluster.peer(0, 1), cluster.peer(0, 2));
    let there = cluster.public(0, 1, 0);
    let tokens: Vec<_> = (0..20).map(|_| cluster.token()).collect();
    let fabric = cluster.harness.fabric(0);
    for token in &tokens {
        fabric.write(there, &bytes_of(&[token.0]), *token);
    }
    fabric.forget(lost);
    assert!(fabric.memory(LocalRegion::Lane { writer: lost, name: LANE }).is_none());
    assert!(fabric.memory(LocalRegion::Lane { writer: kept, name: LANE }).is_some());
    assert!(fabric.memory(LocalRegion::Public(PUBLIC)).is_some());
    cluster.until("all operations complete", |c| {
        c.observe(0);
        c.completions[0].len() == tokens.len()
    });
    let done = std::mem::take(&mut cluster.completions[0]);
    assert_eq!(done.iter().map(|d| d.token).collect::<Vec<_>>(), tokens);
    let lost_from = done.iter().take_while(|d| d.result.is_ok()).count();
    assert!(done[lost_from..].iter().all(|d| d.result == Err(OpError::PeerLost)), "{done:?}");
    for (of, target) in [(0, 2), (2, 0), (1, 2), (2, 1)] {
        let at = cluster.lane(of, target, 0);
        assert_eq!(cluster.write(of, at, &[5]), Ok(0));
        assert_eq!(cluster.lane_words(target, of, 1), [5]);
    }
}

/// Waits until `of` has been told that `peer` is gone. Returns whether this is certain.
fn wait_for_gone<H: Harness>(cluster: &mut Cluster<H>, of: usize, peer: PeerId) -> bool {
    let mut found = None;
    cluster.until(&format!("{peer:?} is gone at process {of}"), |c| {
        c.observe(of);
        found = c.events[of].iter().find_map(|event| match *event {
            PeerEvent::Gone { peer: gone, certain } if gone == peer => Some(certain),
            _ => None,
        });
        found.is_some()
    });
    found.expect("waited for")
}
