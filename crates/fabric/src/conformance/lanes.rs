//! Lanes belong to one writer, in one of its lives.

use super::Harness;
use super::cluster::{Cluster, LANE, OWNED, client_spec, words_of};
use crate::contract::{LocalRegion, OpError, PeerId, PeerKind, Region, Remote};

/// Two writers of lanes with the same name at one owner never interfere; neither do the lanes that an owner and its peer keep for each other.
pub fn lanes_are_apart_for_each_writer<H: Harness>(round: u64) {
    let mut cluster = Cluster::<H>::connected(round, 3);
    for of in 0..3 {
        for target in (0..3).filter(|t| *t != of) {
            let at = cluster.lane(of, target, 3);
            assert_eq!(cluster.write(of, at, &[10 * of as u64 + target as u64]), Ok(0));
        }
    }
    for of in 0..3 {
        for target in (0..3).filter(|t| *t != of) {
            assert_eq!(cluster.lane_words(target, of, 4), [0, 0, 0, 10 * of as u64 + target as u64]);
            let at = cluster.lane(of, target, 3);
            assert_eq!(cluster.read_word(of, at), Ok(10 * of as u64 + target as u64));
        }
    }
}

/// A restarted process offers fresh lanes and fresh memory; what is written to its old life stays there (TRAPS 28).
pub fn lanes_are_fresh_for_each_life<H: Harness>(round: u64) {
    let mut cluster = Cluster::<H>::connected(round, 1);
    let Some(first) = cluster.harness.bystander(None) else { return };
    cluster.wait_for_up(0, first);
    let (old_lane, old_public) = (cluster.lane(0, first, 0), cluster.public(0, first, 0));
    assert_eq!(cluster.write(0, old_lane, &[1; 4]), Ok(0));
    assert_eq!(cluster.write(0, old_public, &[2; 4]), Ok(0));
    cluster.harness.crash(first);
    let second = cluster.harness.bystander(Some(first)).expect("the backend made one before");
    let (old, new) = (cluster.harness.identity(first), cluster.harness.identity(second));
    assert_eq!((old.node, old.kind), (new.node, new.kind));
    assert!(new.incarnation > old.incarnation, "a later life has a larger incarnation");
    cluster.wait_for_up(0, second);
    // Late stores of a process that has not yet noticed.
    let _ = cluster.write(0, old_lane, &[3; 4]);
    let _ = cluster.write(0, old_public, &[4; 4]);
    let (lane, public) = (cluster.lane(0, second, 0), cluster.public(0, second, 0));
    assert_eq!(cluster.read(0, lane, 4), Ok(vec![0; 4]));
    assert_eq!(cluster.read(0, public, 4), Ok(vec![0; 4]));
    assert_eq!(cluster.lane_words(0, second, 4), [0; 4], "and the lane kept for the new life is fresh too");
}

/// A client writes its lane at a member, reads its public memory, and offers the member a lane for the replies.
pub fn clients_and_members_have_lanes_for_each_other<H: Harness>(round: u64) {
    let mut cluster = Cluster::<H>::connected(round, 2);
    let Some(client) = cluster.harness.client(&client_spec()) else { return };
    assert_eq!(cluster.harness.identity(client).kind, PeerKind::Client);
    for member in [0, 1] {
        cluster.wait_for_up(client, member);
        cluster.wait_for_up(member, client);
    }
    for member in [0, 1] {
        let value = 100 + member as u64;
        let request = cluster.lane(client, member, 0);
        assert_eq!(cluster.write(client, request, &[value; 8]), Ok(0));
        assert_eq!(cluster.lane_words(member, client, 8), [value; 8]);
        let reply = Remote { peer: cluster.peer(member, client), region: Region::Lane(LANE), offset: 8 };
        assert_eq!(cluster.write(member, reply, &[value; 8]), Ok(0));
        assert_eq!(cluster.lane_words(client, member, 9)[1..], [value; 8]);
        let own = cluster.public(member, member, 0);
        assert_eq!(cluster.write(member, own, &[value + 1]), Ok(0));
        let public = cluster.public(client, member, 0);
        assert_eq!(cluster.read_word(client, public), Ok(value + 1));
    }
}

/// A member can read what only its owner writes. Its writes and swaps there change nothing and report that; the owner's own take effect.
pub fn what_only_its_owner_writes_peers_can_read_and_not_change<H: Harness>(round: u64) {
    let mut cluster = Cluster::<H>::connected(round, 2);
    let there = Remote { region: Region::Public(OWNED), ..cluster.public(0, 1, 2) };
    let own = Remote { peer: PeerId::SELF, ..there };
    assert_eq!(cluster.write(1, own, &[7, 8]), Ok(0));
    assert_eq!(cluster.read_word(0, there), Ok(7));
    assert_eq!(cluster.write(0, there, &[1, 2]), Err(OpError::AccessLost));
    assert_eq!(cluster.swap(0, there, 7, 9), Err(OpError::AccessLost));
    assert_eq!(cluster.swap(1, Remote { offset: 8, ..own }, 0, 3), Ok(0));
    // Only the region is closed, not the peer.
    let public = cluster.public(0, 1, 2);
    assert_eq!(cluster.write(0, public, &[4]), Ok(0));
    assert_eq!(words_of(&cluster.memory(1, LocalRegion::Public(OWNED))[..4]), [0, 3, 7, 8]);
}
