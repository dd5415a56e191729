//! An acceptor whose connection is lost, and made anew.

use martlet_fabric::sim::{Endpoint, Faults, World};
use martlet_fabric::{Fabric, Identity, Incarnation, NodeId, PeerEvent, PeerId, PeerKind};

use super::{Op, Outcome, Proposer};
use crate::basics::ViewNumber;
use crate::basics::layout::{Sizes, regions, token_rest};

fn peer_up(endpoint: &mut Endpoint<false>) -> Option<PeerId> {
    while let Some(event) = endpoint.event() {
        if let PeerEvent::Up { peer, .. } = event {
            return Some(peer);
        }
    }
    None
}

/// Of three acceptors one is never there, so that the other's vote is needed.
#[test]
fn an_acceptor_that_is_connected_anew_votes_again() {
    let mut world = World::<false>::new(7, Faults::calm());
    let spec = regions(Sizes { log_ring_bytes: 4096, client_ring_bytes: 4096 });
    let mut start = |node| {
        let identity = Identity { node: NodeId(node), incarnation: Incarnation(1), kind: PeerKind::Member };
        world.spawn(identity, &spec).1
    };
    let (mut fabric, _other) = (start(0), start(1));
    world.run_for(1_000_000);
    let peer = peer_up(&mut fabric).expect("the two meet");
    let mut proposer = Proposer::new(ViewNumber(2), &[Some(PeerId::SELF), Some(peer), None], 0);

    // Its answer is lost, and with it the connection; they meet anew before the proposer has taken what became of its question.
    world.block(1, 0);
    assert_eq!(proposer.prepare(&mut fabric), None);
    world.run_for(1_000_000);
    world.unblock(1, 0);
    world.run_for(1_000_000);
    let again = peer_up(&mut fabric).expect("the two meet again");
    assert_ne!(again, peer);
    proposer.connect(1, again);
    // Whoever is in a hurry learns nothing wrong from what comes home late.
    proposer.abandon();
    let mut outcome = proposer.propose(&mut fabric, b"a view, say");
    for _ in 0..10 {
        if matches!(outcome, Some(Outcome::Aborted)) {
            outcome = proposer.propose(&mut fabric, b"a view, say");
        }
        world.run_for(100_000);
        while let Some(completion) = fabric.poll() {
            let rest = token_rest(completion.token);
            let op = match rest >> 48 {
                1 => Op::Swap,
                2 => Op::Write,
                _ => Op::Fetch,
            };
            outcome = proposer.handle_completion(&mut fabric, op, (rest >> 40) as u8 as usize, completion).or(outcome);
        }
    }
    assert_eq!(outcome, Some(Outcome::Decided(b"a view, say".to_vec())));
}
