//! An acceptor whose connection is lost and made anew, and slots for which two proposers compete.

use martlet_fabric::primitive::{AtomicU64, Ordering};
use martlet_fabric::sim::{Endpoint, Faults, World};
use martlet_fabric::{Completion, Fabric, Identity, Incarnation, LocalRegion, NodeId, OpError, PeerEvent, PeerId, PeerKind};

use super::{Op, Outcome, Proposer, Required};
use crate::basics::ViewNumber;
use crate::basics::ballot::{self, FROZEN, SlotState, SlotWord};
use crate::basics::layout::{SLOT_WORDS, Sizes, regions, token_rest};

fn peer_up(endpoint: &mut Endpoint<false>) -> Option<PeerId> {
    while let Some(event) = endpoint.event() {
        if let PeerEvent::Up { peer, .. } = event {
            return Some(peer);
        }
    }
    None
}

fn meet(world: &mut World<false>) -> (Endpoint<false>, Endpoint<false>, PeerId) {
    let spec = regions(Sizes { log_ring_bytes: 4096, client_ring_bytes: 4096 });
    let mut start = |node| {
        let identity = Identity { node: NodeId(node), incarnation: Incarnation(1), kind: PeerKind::Member };
        world.spawn(identity, &spec).1
    };
    let (mut fabric, other) = (start(0), start(1));
    world.run_for(1_000_000);
    let peer = peer_up(&mut fabric).expect("the two meet");
    (fabric, other, peer)
}

/// The operation and the acceptor that a completion belongs to.
fn what_for(completion: &Completion) -> (Op, usize) {
    let rest = token_rest(completion.token);
    let op = match rest >> 48 {
        1 => Op::Swap,
        2 => Op::Write,
        4 => Op::Look,
        _ => Op::Fetch,
    };
    (op, (rest >> 40) as u8 as usize)
}

fn take(proposer: &mut Proposer, fabric: &mut Endpoint<false>, completion: Completion) -> Option<Outcome> {
    let (op, acceptor) = what_for(&completion);
    proposer.handle_completion(fabric, op, acceptor, completion)
}

/// Lets the world run for a while, and gives the proposer whatever completes in it.
fn run(world: &mut World<false>, proposer: &mut Proposer, fabric: &mut Endpoint<false>) -> Option<Outcome> {
    world.run_for(100_000);
    let mut outcome = None;
    while let Some(completion) = fabric.poll() {
        outcome = take(proposer, fabric, completion).or(outcome);
    }
    outcome
}

/// A proposer whose prepare swap at the second of three acceptors is applied, while the answer is lost together with the connection. The two have met
/// anew before the proposer has learned the result. The third acceptor is never there, so the second one's vote is needed.
fn connected_anew(world: &mut World<false>) -> (Proposer, Endpoint<false>, Endpoint<false>) {
    let (mut fabric, other, peer) = meet(world);
    let mut proposer = Proposer::new(ViewNumber(2), &[Some(PeerId::SELF), Some(peer), None], 0);
    world.block(1, 0);
    assert_eq!(proposer.prepare(&mut fabric), None);
    world.run_for(1_000_000);
    world.unblock(1, 0);
    world.run_for(1_000_000);
    let again = peer_up(&mut fabric).expect("the two meet again");
    assert_ne!(again, peer);
    proposer.connect(1, again);
    // A proposer that is in a hurry must not learn anything wrong from a late completion.
    proposer.abandon();
    (proposer, fabric, other)
}

#[test]
fn an_acceptor_that_is_connected_anew_votes_again() {
    let mut world = World::<false>::new(7, Faults::calm());
    let (mut proposer, mut fabric, _other) = connected_anew(&mut world);
    let mut outcome = proposer.propose(&mut fabric, b"a view, say");
    for _ in 0..10 {
        if matches!(outcome, Some(Outcome::Aborted)) {
            outcome = proposer.propose(&mut fabric, b"a view, say");
        }
        outcome = run(&mut world, &mut proposer, &mut fabric).or(outcome);
    }
    assert_eq!(outcome, Some(Outcome::Decided(b"a view, say".to_vec())));
}

/// Operations on two connections have no common order: one on the lost connection may complete after one on the new connection.
#[test]
fn what_comes_home_late_over_a_lost_connection_is_not_taken_for_the_answer_over_the_new_one() {
    let mut world = World::<false>::new(7, Faults::calm());
    let (mut proposer, mut fabric, _other) = connected_anew(&mut world);
    let _ = proposer.propose(&mut fabric, b"a view, say");
    let mut late = Vec::new();
    for _ in 0..10 {
        world.run_for(100_000);
        while let Some(completion) = fabric.poll() {
            if completion.result == Err(OpError::PeerLost) {
                late.push(completion);
            } else {
                take(&mut proposer, &mut fabric, completion);
            }
        }
    }
    assert_eq!(late.iter().map(what_for).collect::<Vec<_>>(), [(Op::Swap, 1)], "the case that this test is about");
    for completion in late {
        take(&mut proposer, &mut fabric, completion);
    }
    // Nothing wrong has been learned about the acceptor's word: from here on, one attempt is enough.
    proposer.abandon();
    assert_eq!(proposer.propose(&mut fabric, b"a view, say"), None);
    let outcome = (0..10).fold(None, |outcome, _| outcome.or(run(&mut world, &mut proposer, &mut fabric)));
    assert_eq!(outcome, Some(Outcome::Decided(b"a view, say".to_vec())));
}

#[test]
fn a_slot_is_prepared_ahead_without_the_value_of_an_earlier_attempt() {
    let mut world = World::<false>::new(7, Faults::calm());
    let (mut fabric, _other, peer) = meet(&mut world);
    let mut proposer = Proposer::new(ViewNumber(2), &[Some(PeerId::SELF), None, None], 0);
    assert_eq!(proposer.propose(&mut fabric, b"a view, say"), Some(Outcome::Aborted));
    proposer.connect(1, peer);
    let mut outcome = None;
    for _ in 0..10 {
        if proposer.is_idle() {
            outcome = proposer.prepare(&mut fabric);
        }
        outcome = run(&mut world, &mut proposer, &mut fabric).or(outcome);
    }
    assert_eq!(outcome, Some(Outcome::Prepared), "nobody wants that value any more");
}

#[test]
fn an_acceptor_that_was_missing_votes_once_it_is_connected() {
    let mut world = World::<false>::new(7, Faults::calm());
    let (mut fabric, _other, peer) = meet(&mut world);
    let mut proposer = Proposer::new(ViewNumber(2), &[Some(PeerId::SELF), None, None], 0);
    assert_eq!(proposer.propose(&mut fabric, b"a view, say"), Some(Outcome::Aborted), "one of three is no majority");
    // No operation to it is in flight that would have to complete first.
    proposer.connect(1, peer);
    let mut outcome = None;
    for _ in 0..10 {
        if proposer.is_idle() {
            outcome = proposer.propose(&mut fabric, b"a view, say");
        }
        outcome = run(&mut world, &mut proposer, &mut fabric).or(outcome);
    }
    assert_eq!(outcome, Some(Outcome::Decided(b"a view, say".to_vec())));
}

/// A view that removes the only other acceptor within reach would be decided by that acceptor's vote, and then no further view could be decided.
#[test]
fn a_value_that_others_have_to_answer_for_is_written_nowhere_before_they_have() {
    let mut world = World::<false>::new(7, Faults::calm());
    let (mut fabric, _other, peer) = meet(&mut world);
    let spec = regions(Sizes { log_ring_bytes: 4096, client_ring_bytes: 4096 });
    let identity = Identity { node: NodeId(2), incarnation: Incarnation(1), kind: PeerKind::Member };
    let (third, _third) = world.spawn(identity, &spec);
    world.run_for(1_000_000);
    let silent = peer_up(&mut fabric).expect("the third is met");
    let acceptors = [Some(PeerId::SELF), Some(peer), Some(silent)];
    let mut proposer = Proposer::new(ViewNumber(2), &acceptors, 0);
    let mut outcome = None;
    let mut drain = |proposer: &mut Proposer, fabric: &mut Endpoint<false>, world: &mut World<false>| {
        for _ in 0..10 {
            world.run_for(1_000);
            while let Some(completion) = fabric.poll() {
                outcome = take(proposer, fabric, completion).or(outcome.take());
            }
        }
        outcome.take()
    };
    // Prepared ahead by all three, which says nothing about the present.
    assert_eq!(proposer.prepare(&mut fabric), None);
    assert_eq!(drain(&mut proposer, &mut fabric, &mut world), Some(Outcome::Prepared));
    world.block(third, 0);
    assert_eq!(proposer.propose_requiring(&mut fabric, b"without the second", Required { of: 0b101, count: 2 }), None);
    assert_eq!(drain(&mut proposer, &mut fabric, &mut world), None);
    assert!(proposer.is_waiting(), "a majority has promised, and it is not the one that counts");

    // Once withdrawn, the value is not proposed any more, whichever acceptor answers.
    assert_eq!(proposer.withdraw(&mut fabric), Some(Outcome::Prepared));
    world.unblock(third, 0);
    assert_eq!(drain(&mut proposer, &mut fabric, &mut world), None);
    assert!(proposer.is_prepared(), "no value of its own is left to be proposed");
    // The same before a majority has answered.
    assert_eq!(proposer.propose_requiring(&mut fabric, b"without the second", Required { of: 0b101, count: 2 }), None);
    assert!(!proposer.is_waiting() && proposer.is_revocable());
    assert_eq!(proposer.withdraw(&mut fabric), None);
    assert_eq!(drain(&mut proposer, &mut fabric, &mut world), Some(Outcome::Prepared));
    assert!(proposer.is_prepared() && !proposer.is_revocable());
    world.block(third, 0);
    assert_eq!(proposer.propose_requiring(&mut fabric, b"without the second", Required { of: 0b101, count: 2 }), None);
    assert_eq!(drain(&mut proposer, &mut fabric, &mut world), None);
    assert!(proposer.is_waiting());

    // A value that requires only the first acceptor may be proposed.
    assert_eq!(proposer.propose_requiring(&mut fabric, b"without both", Required { of: 0b001, count: 1 }), None);
    let decided = drain(&mut proposer, &mut fabric, &mut world);
    assert_eq!(decided, Some(Outcome::Decided(b"without both".to_vec())), "nobody has accepted the other value");
}

#[test]
fn a_slot_prepared_ahead_in_which_another_has_decided_since_is_found_so_by_a_look() {
    let mut world = World::<false>::new(7, Faults::calm());
    let (mut fabric, mut other, peer) = meet(&mut world);
    let mut proposer = Proposer::new(ViewNumber(2), &[Some(PeerId::SELF), Some(peer)], 0);
    proposer.prepare(&mut fabric);
    assert_eq!(run(&mut world, &mut proposer, &mut fabric), Some(Outcome::Prepared));
    assert_eq!(proposer.look(&mut fabric), None);
    assert_eq!(run(&mut world, &mut proposer, &mut fabric), None, "it stands as it stood");
    assert!(proposer.is_prepared());

    let back = peer_up(&mut other).expect("the two have met");
    let mut rival = Proposer::new(ViewNumber(2), &[Some(back), Some(PeerId::SELF)], 1);
    let mut outcome = None;
    while !matches!(outcome, Some(Outcome::Decided(_))) {
        outcome = rival.propose(&mut other, b"a view, say");
        outcome = run(&mut world, &mut rival, &mut other).or(outcome);
    }
    assert_eq!(proposer.prepare(&mut fabric), None, "nothing tells it");
    assert_eq!(run(&mut world, &mut proposer, &mut fabric), None);

    proposer.look(&mut fabric);
    assert_eq!(run(&mut world, &mut proposer, &mut fabric), Some(Outcome::Aborted));
    while !proposer.has_adopted() {
        proposer.prepare(&mut fabric);
        run(&mut world, &mut proposer, &mut fabric);
    }
    proposer.finish(&mut fabric);
    assert_eq!(run(&mut world, &mut proposer, &mut fabric), Some(Outcome::Decided(b"a view, say".to_vec())));
}

/// A proposer that has nothing to propose and looks at its slot again and again, like a leader whose wishes cannot be fulfilled.
struct Looking {
    proposer: Proposer,
    fabric: Endpoint<false>,
}

/// Two of them, at the first and the second of three acceptors. They are cut off from each other, so both need the third acceptor, which is returned.
fn two_who_cannot_see_each_other(world: &mut World<false>) -> ([Looking; 2], Endpoint<false>) {
    let spec = regions(Sizes { log_ring_bytes: 4096, client_ring_bytes: 4096 });
    let [first, second, third] = [0, 1, 2].map(|node| {
        let identity = Identity { node: NodeId(node), incarnation: Incarnation(1), kind: PeerKind::Member };
        world.spawn(identity, &spec).1
    });
    world.run_for(1_000_000);
    world.partition(&[0], &[1]);
    let looking = |(position, mut fabric): (usize, Endpoint<false>)| {
        let mut acceptors = [None; 3];
        acceptors[position] = Some(PeerId::SELF);
        while let Some(event) = fabric.event() {
            if let PeerEvent::Up { peer, identity } = event {
                acceptors[usize::from(identity.node.0)] = Some(peer);
            }
        }
        assert!(acceptors.iter().all(Option::is_some), "all have met");
        Looking { proposer: Proposer::new(ViewNumber(2), &acceptors, position), fabric }
    };
    ([(0, first), (1, second)].map(looking), third)
}

fn word_of(acceptor: &Endpoint<false>) -> &AtomicU64 {
    &acceptor.memory(LocalRegion::Public(SLOT_WORDS)).expect("every process offers slots")[ballot::slot_of(ViewNumber(2))]
}

impl Looking {
    /// Gives it what has completed. If the proposer then has nothing under way, it prepares the slot, like a leader.
    fn run(&mut self, world: &mut World<false>) -> Option<Outcome> {
        let outcome = run(world, &mut self.proposer, &mut self.fabric);
        if self.proposer.is_idle() {
            self.proposer.prepare(&mut self.fabric);
        }
        outcome
    }
}

#[test]
fn two_who_look_at_one_slot_and_have_nothing_to_propose_leave_each_other_the_ballots() {
    let mut world = World::<false>::new(7, Faults::calm());
    let (mut both, third) = two_who_cannot_see_each_other(&mut world);
    for _ in 0..10 {
        both.iter_mut().for_each(|l| _ = l.run(&mut world));
    }
    assert!(both.iter().all(|l| l.proposer.is_prepared()));
    let promised = word_of(&third).load(Ordering::SeqCst);
    for _ in 0..100 {
        for looking in &mut both {
            assert_eq!(looking.proposer.look(&mut looking.fabric), None);
            looking.run(&mut world);
        }
    }
    assert_eq!(word_of(&third).load(Ordering::SeqCst), promised, "a look takes no ballot");

    // A proposer that has been outbid and then has something to propose begins with a higher ballot. It does not wait for the other one, which it
    // cannot see: no operation is lost here.
    world.set_faults(Faults { peer_lost_after_ns: 1 << 40, ..Faults::calm() });
    // The first proposer's ballots are 1, 4, 7 and so on.
    if SlotWord(promised).state().min % 3 == 1 {
        both.reverse();
    }
    let [outbid, other] = &mut both;
    assert_eq!(outbid.proposer.propose(&mut outbid.fabric, b"a view, say"), None);
    let outcome = (0..10).find_map(|_| run(&mut world, &mut outbid.proposer, &mut outbid.fabric));
    assert_eq!(outcome, Some(Outcome::Decided(b"a view, say".to_vec())));

    // And the other proposer's next look finds that a value has been decided.
    assert_eq!(other.proposer.look(&mut other.fabric), None);
    assert_eq!((0..10).find_map(|_| run(&mut world, &mut other.proposer, &mut other.fabric)), Some(Outcome::Aborted));
    while !other.proposer.has_adopted() {
        other.run(&mut world);
    }
    other.proposer.finish(&mut other.fabric);
    let outcome = (0..10).find_map(|_| run(&mut world, &mut other.proposer, &mut other.fabric));
    assert_eq!(outcome, Some(Outcome::Decided(b"a view, say".to_vec())));
}

/// By RPC, a value is decided without any word showing it: a look can see only that a proposer has used RPC.
#[test]
fn a_slot_that_somebody_froze_is_not_taken_for_one_that_is_still_prepared() {
    let mut world = World::<false>::new(7, Faults::calm());
    let ([mut one, _], third) = two_who_cannot_see_each_other(&mut world);
    (0..10).for_each(|_| _ = one.run(&mut world));
    assert!(one.proposer.is_prepared());
    word_of(&third).store(SlotWord::new(SlotState { min: FROZEN, ..SlotState::default() }, 0).0, Ordering::SeqCst);
    one.proposer.look(&mut one.fabric);
    assert_eq!((0..10).find_map(|_| run(&mut world, &mut one.proposer, &mut one.fabric)), Some(Outcome::Aborted));
}

/// The acceptance was there when our own swap arrived, too late: a majority without this acceptor had promised. What was decided with its vote may be
/// known to no other process that is left.
#[test]
fn what_was_accepted_above_our_ballot_is_found_by_a_look_however_early_it_came() {
    let mut world = World::<false>::new(7, Faults::calm());
    let ([mut one, _], third) = two_who_cannot_see_each_other(&mut world);
    world.heal();
    let theirs = SlotState { min: 5, accepted: 5, value: 2 };
    word_of(&third).store(SlotWord::new(theirs, 0).0, Ordering::SeqCst);
    (0..10).for_each(|_| _ = one.run(&mut world));
    assert!(one.proposer.is_prepared() && !one.proposer.has_adopted(), "by the votes of the two others");
    one.proposer.look(&mut one.fabric);
    assert_eq!((0..10).find_map(|_| run(&mut world, &mut one.proposer, &mut one.fabric)), Some(Outcome::Aborted));
}

#[test]
fn an_attempt_ends_when_those_who_have_to_answer_are_out_of_reach() {
    let mut world = World::<false>::new(7, Faults::calm());
    let (mut fabric, _other, peer) = meet(&mut world);
    let mut proposer = Proposer::new(ViewNumber(2), &[Some(PeerId::SELF), Some(peer), None], 0);
    let mut outcome = proposer.propose_requiring(&mut fabric, b"a view, say", Required { of: 0b101, count: 2 });
    for _ in 0..10 {
        world.run_for(100_000);
        while let Some(completion) = fabric.poll() {
            outcome = take(&mut proposer, &mut fabric, completion).or(outcome);
        }
    }
    assert_eq!(outcome, Some(Outcome::Aborted));
}
