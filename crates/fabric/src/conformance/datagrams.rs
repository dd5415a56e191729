//! Promise 8: datagrams. And nudges, which promise even less.

use super::Harness;
use super::cluster::{Cluster, PUBLIC, client_spec, words_of};
use crate::contract::{Fabric, LocalRegion, MAX_DATAGRAM_BYTES, PeerId};

/// The contents of `sender`'s datagram number `i`: its length and bytes follow from the two.
fn content(sender: usize, i: usize) -> Vec<u8> {
    let len = [0, 1, 7, 8, 9, 63, 64, 100, 1000, MAX_DATAGRAM_BYTES - 1, MAX_DATAGRAM_BYTES][i % 11].max(3);
    let mut bytes: Vec<u8> = (0..len).map(|at| (at * 31 + i * 7 + sender) as u8).collect();
    bytes[0] = sender as u8;
    bytes[1..3].copy_from_slice(&(i as u16).to_le_bytes());
    bytes
}

/// Promise 8: what arrives was sent, byte for byte, by the peer that is named as its sender; and sending again and again gets through.
pub fn datagrams_are_whole_and_come_from_peers<H: Harness>(round: u64) {
    const ENOUGH: usize = 30;
    let mut cluster = Cluster::<H>::connected(round, 3);
    let peers: Vec<Vec<PeerId>> = (0..3).map(|of| (0..3).map(|target| cluster.peer(of, target)).collect()).collect();
    let mut received = [[0usize; 3]; 3];
    let mut sent = 0;
    let mut datagram = vec![1, 2, 3]; // must be cleared by `receive`
    cluster.until("enough datagrams have come through", |c| {
        for (of, numbers) in peers.iter().enumerate() {
            for target in (0..3).filter(|target| *target != of) {
                c.harness.fabric(of).send(numbers[target], &content(of, sent));
            }
        }
        sent += 1;
        for (of, numbers) in peers.iter().enumerate() {
            while let Some(from) = c.harness.fabric(of).receive(&mut datagram) {
                let sender = numbers.iter().position(|peer| *peer == from).expect("the sender is a peer");
                assert_ne!(sender, of);
                let i = usize::from(u16::from_le_bytes([datagram[1], datagram[2]]));
                assert_eq!(datagram, content(sender, i), "altered, or ascribed to the wrong sender");
                assert!(i < sent, "never sent");
                received[of][sender] += 1;
            }
        }
        (0..3).all(|of| (0..3).all(|sender| sender == of || received[of][sender] >= ENOUGH))
    });
}

/// A multicast goes to the members that are connected, not to clients, and not back to its sender.
pub fn multicast_reaches_members_but_not_the_sender<H: Harness>(round: u64) {
    let mut cluster = Cluster::<H>::connected(round, 3);
    let client = cluster.harness.client(&client_spec());
    if let Some(client) = client {
        cluster.wait_for_up(0, client);
        cluster.wait_for_up(client, 0);
    }
    let (sender, mut heard, mut sent) = ([cluster.peer(1, 0), cluster.peer(2, 0)], [0, 0], 0);
    let mut datagram = Vec::new();
    cluster.until("both members have heard enough", |c| {
        c.harness.fabric(0).multicast(&content(0, sent));
        sent += 1;
        assert_eq!(c.harness.fabric(0).receive(&mut datagram), None, "the sender hears itself");
        if let Some(client) = client {
            assert_eq!(c.harness.fabric(client).receive(&mut datagram), None, "a client hears it");
        }
        for member in [1, 2] {
            while let Some(from) = c.harness.fabric(member).receive(&mut datagram) {
                assert_eq!(from, sender[member - 1]);
                let i = usize::from(u16::from_le_bytes([datagram[1], datagram[2]]));
                assert_eq!(datagram, content(0, i));
                heard[member - 1] += 1;
            }
        }
        heard.iter().all(|n| *n >= 20)
    });
}

/// A nudge is a hint: it makes no event, no datagram, no completion, and changes no memory.
pub fn a_nudge_changes_nothing<H: Harness>(round: u64) {
    let mut cluster = Cluster::<H>::connected(round, 2);
    let (there, back) = (cluster.peer(0, 1), cluster.peer(1, 0));
    let mut datagram = Vec::new();
    for _ in 0..100 {
        cluster.harness.fabric(0).nudge(there);
        cluster.harness.fabric(1).nudge(back);
        cluster.harness.pass();
    }
    for of in [0, 1] {
        cluster.observe(of);
        assert_eq!(cluster.events[of].len(), 1, "only the other's coming");
        assert!(cluster.completions[of].is_empty());
        assert_eq!(cluster.harness.fabric(of).receive(&mut datagram), None);
        assert!(words_of(cluster.memory(of, LocalRegion::Public(PUBLIC))).iter().all(|word| *word == 0));
    }
    let at = cluster.public(0, 1, 0);
    assert_eq!(cluster.write(0, at, &[1]), Ok(0));
}
