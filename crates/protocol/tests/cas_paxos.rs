//! Every schedule of CAS Paxos at a small size: two proposers and three acceptors, the production proposer against a memory in which each
//! operation takes effect, and each completion arrives, at any moment that the contract of the fabric allows. A proposer may stop for good
//! at any of these moments, simply by never being scheduled again.
//!
//! Checked in every state: agreement (no two decisions differ) and validity (what is decided was proposed).

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

use martlet_fabric::primitive::{AtomicU64, Ordering};
use martlet_fabric::{Completion, Fabric, Local, LocalRegion, Memory, OpError, PeerId, Region, Remote, Token};
use martlet_protocol::basics::ViewNumber;
use martlet_protocol::basics::ballot::{LAST_CAS_BALLOT, SlotState, SlotWord, slot_of};
use martlet_protocol::basics::layout::{SCRATCH, SLOT_WORDS, VIEW_RECORD_BYTES, token_rest};
use martlet_protocol::consensus::cas::PATIENCE;
use martlet_protocol::consensus::rpc::{RpcAcceptor, RpcReply, RpcRequest, RpcVerdict};
use martlet_protocol::consensus::{Op, Outcome, Proposer};

const ACCEPTORS: usize = 3;

#[derive(Clone, Debug, Hash)]
enum Posted {
    Write(usize, Vec<u8>),
    Swap(u64, u64),
    Read(usize, usize),
    Look,
}

/// One proposer's endpoint: what it has posted, per acceptor.
#[derive(Debug)]
struct Endpoint {
    queues: [VecDeque<(Token, Posted)>; ACCEPTORS],
    scratch: Vec<AtomicU64>,
}

impl Endpoint {
    fn new() -> Endpoint {
        let scratch = (0..ACCEPTORS * 2 * VIEW_RECORD_BYTES / 8).map(|_| AtomicU64::new(0)).collect();
        Endpoint { queues: Default::default(), scratch }
    }
}

impl Clone for Endpoint {
    fn clone(&self) -> Self {
        let scratch = self.scratch.iter().map(|w| AtomicU64::new(w.load(Ordering::Relaxed))).collect();
        Endpoint { queues: self.queues.clone(), scratch }
    }
}

impl Fabric for Endpoint {
    const ZOMBIES_REACHABLE: bool = true;

    fn memory(&self, region: LocalRegion) -> Option<&Memory> {
        (region == LocalRegion::Public(SCRATCH)).then_some(&self.scratch)
    }
    fn write(&mut self, at: Remote, bytes: &[u8], token: Token) {
        self.queues[at.peer.0 as usize].push_back((token, Posted::Write(at.offset, bytes.to_vec())));
    }
    fn read(&mut self, from: Remote, into: Local, len: usize, token: Token) {
        assert_eq!(len, 2 * VIEW_RECORD_BYTES);
        self.queues[from.peer.0 as usize].push_back((token, Posted::Read(from.offset, into.offset)));
    }
    fn read_word(&mut self, at: Remote, token: Token) {
        assert_eq!(at.region, Region::Public(SLOT_WORDS));
        self.queues[at.peer.0 as usize].push_back((token, Posted::Look));
    }
    fn compare_and_swap(&mut self, at: Remote, expected: u64, new: u64, token: Token) {
        assert_eq!(at.region, Region::Public(SLOT_WORDS));
        self.queues[at.peer.0 as usize].push_back((token, Posted::Swap(expected, new)));
    }
    martlet_fabric::idle!(poll, send, multicast, receive, event, grant, revoke, nudge, forget);
}

#[derive(Clone, Debug, Default)]
struct Acceptor {
    word: u64,
    records: BTreeMap<usize, Vec<u8>>,
}

#[derive(Clone)]
struct World {
    acceptors: [Acceptor; ACCEPTORS],
    proposers: Vec<(Proposer, Endpoint)>,
    /// Completions on their way: per proposer, per acceptor, in order.
    done: Vec<[VecDeque<Completion>; ACCEPTORS]>,
    decided: Option<Vec<u8>>,
    attempts: Vec<u32>,
    /// How often the first proposer may still look at a slot that it has prepared.
    looks: u32,
    /// Above 0 while a look is under way that began after a majority had accepted a value: how many of its answers are still to come.
    late_look: usize,
    /// How many acceptors answer; the others are silent from here on.
    present: usize,
    /// A canary: acceptors swap their words without comparing them.
    blind: bool,
}

fn value(proposer: usize) -> Vec<u8> {
    vec![b'a' + proposer as u8; 9]
}

impl World {
    fn new(proposers: usize, words: u64) -> World {
        let peers: Vec<_> = (0..ACCEPTORS).map(|i| Some(PeerId(i as u32))).collect();
        World {
            acceptors: std::array::from_fn(|_| Acceptor { word: words, records: BTreeMap::new() }),
            proposers: (0..proposers).map(|p| (Proposer::new(ViewNumber(1), &peers, p), Endpoint::new())).collect(),
            done: vec![Default::default(); proposers],
            decided: None,
            attempts: vec![0; proposers],
            looks: 0,
            late_look: 0,
            present: ACCEPTORS,
            blind: false,
        }
    }

    fn digest(&self) -> u64 {
        let mut h = DefaultHasher::new();
        for a in &self.acceptors {
            (a.word, &a.records).hash(&mut h);
        }
        for (proposer, endpoint) in &self.proposers {
            format!("{proposer:?}").hash(&mut h);
            endpoint.queues.hash(&mut h);
            // The scratch only matters between a read and its completion; hashing it keeps the states apart.
            if !endpoint.scratch.is_empty() {
                endpoint.scratch.iter().map(|w| w.load(Ordering::Relaxed)).filter(|w| *w != 0).for_each(|w| w.hash(&mut h));
            }
        }
        for done in &self.done {
            done.iter().flatten().for_each(|c| (c.token, c.result.is_ok(), c.result.unwrap_or(0)).hash(&mut h));
        }
        (&self.decided, &self.attempts, self.looks, self.late_look).hash(&mut h);
        h.finish()
    }

    fn note(&mut self, outcome: Option<Outcome>) {
        if let Some(Outcome::Decided(v)) = outcome {
            assert!((0..self.proposers.len()).any(|p| v == value(p)), "validity: {v:?} was never proposed");
            match &self.decided {
                Some(known) => assert_eq!(*known, v, "agreement"),
                None => self.decided = Some(v),
            }
        }
    }

    /// The states that one step leads to.
    fn successors(&self, max_attempts: [u32; 2]) -> Vec<World> {
        let mut next = Vec::new();
        for (p, most) in (0..self.proposers.len()).zip(max_attempts) {
            let proposer = &self.proposers[p].0;
            if p == 0 && proposer.is_prepared() && self.looks > 0 {
                let mut w = self.clone();
                w.look();
                next.push(w);
            }
            if (proposer.is_idle() || proposer.is_prepared()) && self.attempts[p] < most {
                let mut w = self.clone();
                w.attempts[p] += 1;
                let (proposer, endpoint) = &mut w.proposers[p];
                let outcome = proposer.propose(endpoint, &value(p));
                w.note(outcome);
                next.push(w);
            }
            for a in 0..self.present {
                if !self.proposers[p].1.queues[a].is_empty() {
                    let mut w = self.clone();
                    w.take_effect(p, a);
                    next.push(w);
                }
                if !self.done[p][a].is_empty() {
                    let mut w = self.clone();
                    w.complete(p, a);
                    next.push(w);
                }
            }
        }
        next
    }

    /// The first proposer looks at its slot.
    fn look(&mut self) {
        let accepted = |a: &Acceptor| SlotWord(a.word).state().accepted;
        let highest = self.acceptors.iter().map(accepted).max().unwrap_or(0);
        let decided = highest > 0 && self.acceptors.iter().filter(|a| accepted(a) == highest).count() > ACCEPTORS / 2;
        self.looks -= 1;
        self.late_look = if decided { ACCEPTORS } else { 0 };
        let (proposer, endpoint) = &mut self.proposers[0];
        assert_eq!(proposer.look(endpoint), None);
    }

    /// Lets every acceptor do the next thing that a proposer asks of it, and answer.
    fn answer(&mut self, p: usize) {
        for a in 0..ACCEPTORS {
            self.take_effect(p, a);
            self.complete(p, a);
        }
    }

    fn take_effect(&mut self, p: usize, a: usize) {
        let endpoint = &mut self.proposers[p].1;
        let (token, posted) = endpoint.queues[a].pop_front().expect("not empty");
        let acceptor = &mut self.acceptors[a];
        let result = match posted {
            Posted::Write(offset, bytes) => {
                // The proposer does nothing with a WRITE's completion, so it need not be scheduled.
                acceptor.records.insert(offset, bytes);
                return;
            }
            Posted::Swap(expected, new) => {
                let found = if self.blind { expected } else { acceptor.word };
                if found == expected {
                    acceptor.word = new;
                }
                found
            }
            Posted::Look => acceptor.word,
            Posted::Read(from, into) => {
                for half in 0..2 {
                    let at = (into + half * VIEW_RECORD_BYTES) / 8;
                    endpoint.scratch[at..at + VIEW_RECORD_BYTES / 8].iter().for_each(|w| w.store(0, Ordering::Relaxed));
                    if let Some(record) = acceptor.records.get(&(from + half * VIEW_RECORD_BYTES)) {
                        for (i, bytes) in record.chunks_exact(8).enumerate() {
                            endpoint.scratch[at + i].store(u64::from_le_bytes(bytes.try_into().unwrap()), Ordering::Relaxed);
                        }
                    }
                }
                0
            }
        };
        self.done[p][a].push_back(Completion { token, result: Ok(result) });
    }

    fn complete(&mut self, p: usize, a: usize) {
        let completion = self.done[p][a].pop_front().expect("not empty");
        let op = match token_rest(completion.token) >> 48 {
            1 => Op::Swap,
            2 => Op::Write,
            3 => Op::Fetch,
            4 => Op::Look,
            other => panic!("operation {other}"),
        };
        let (proposer, endpoint) = &mut self.proposers[p];
        let outcome = proposer.handle_completion(endpoint, op, a, completion);
        if op == Op::Look && self.late_look > 0 {
            self.late_look -= 1;
            assert!(self.late_look > 0 || !proposer.is_prepared(), "a look has overlooked a decision");
        }
        self.note(outcome);
    }
}

/// Visits every reachable state. Returns how many there are, and how many of them know a decision.
fn explore(world: World, max_attempts: [u32; 2]) -> (usize, usize) {
    let mut seen = HashSet::from([world.digest()]);
    let mut stack = vec![world];
    let mut decided = 0;
    while let Some(world) = stack.pop() {
        decided += usize::from(world.decided.is_some());
        for next in world.successors(max_attempts) {
            if seen.insert(next.digest()) {
                stack.push(next);
            }
        }
    }
    (seen.len(), decided)
}

/// A fixed schedule: everything that one proposer does takes effect and completes at once.
fn run_alone(world: &mut World, p: usize) -> Option<Vec<u8>> {
    for _ in 0..2 * ACCEPTORS {
        let (proposer, endpoint) = &mut world.proposers[p];
        if proposer.is_idle() || proposer.is_prepared() {
            let outcome = proposer.propose(endpoint, &value(p));
            world.note(outcome);
        }
        while let Some(a) = (0..ACCEPTORS).find(|&a| !world.proposers[p].1.queues[a].is_empty()) {
            world.take_effect(p, a);
            while !world.done[p][a].is_empty() {
                world.complete(p, a);
            }
        }
        if world.decided.is_some() {
            break;
        }
    }
    world.decided.clone()
}

#[test]
fn theorem_a_7_no_schedule_of_two_proposers_breaks_agreement_or_validity() {
    let (states, decided) = explore(World::new(2, 0), [1, 1]);
    assert!(states > 1_000 && decided > 0, "{states} states, {decided} with a decision: the exploration is not one");
}

#[test]
#[should_panic(expected = "agreement")]
fn canary_a_swap_that_does_not_compare_is_found() {
    explore(World { blind: true, ..World::new(2, 0) }, [1, 1]);
}

/// The moment that matters most: every acceptor has promised to the first proposer and any part of its accept phase is on its way, when the second one tries,
/// and tries again.
#[test]
fn theorem_a_7_a_takeover_during_the_accept_phase_agrees_with_it() {
    let mut world = World::new(2, 0);
    let (proposer, endpoint) = &mut world.proposers[0];
    proposer.propose(endpoint, &value(0));
    world.answer(0);
    world.attempts[0] = 1;
    world.proposers[1].0.predict_prepared_by(0);
    let (states, decided) = explore(world, [1, 2]);
    assert!(states > 1_000 && decided > 0, "{states} states, {decided} with a decision: the exploration is not one");
}

/// The first proposer has prepared a slot ahead, and may look at it once.
fn prepared_ahead() -> World {
    let mut world = World { looks: 1, ..World::new(2, 0) };
    let (proposer, endpoint) = &mut world.proposers[0];
    proposer.prepare(endpoint);
    world.answer(0);
    assert!(world.proposers[0].0.is_prepared());
    world.proposers[1].0.predict_prepared_by(0);
    world
}

/// Another proposer comes and gets its value decided, or accepted by some, while the first one looks.
#[test]
fn a_look_that_begins_after_a_decision_does_not_overlook_it() {
    let (states, decided) = explore(prepared_ahead(), [0, 1]);
    assert!(states > 1_000 && decided > 0, "{states} states, {decided} with a decision: the exploration is not one");
}

/// The slot is promised to another proposer, and its accept phase is on its way, while the first one looks and then has something to propose. One acceptor is
/// silent: with three that answer, there are too many schedules.
#[test]
fn what_a_look_has_found_breaks_nothing() {
    let mut world = prepared_ahead();
    let (proposer, endpoint) = &mut world.proposers[1];
    proposer.propose(endpoint, &value(1));
    world.answer(1);
    world.attempts[1] = 1;
    world.present = 2;
    let (states, decided) = explore(world, [1, 1]);
    assert!(states > 1_000 && decided > 0, "{states} states, {decided} with a decision: the exploration is not one");
}

/// All of it with a retry: 3.4 million states, which takes minutes in a release build.
#[test]
#[ignore = "takes minutes: cargo test --release -p martlet-protocol --test cas_paxos -- --ignored"]
fn theorem_a_7_with_a_retry() {
    let (states, decided) = explore(World::new(2, 0), [1, 2]);
    assert!(states > 1_000_000 && decided > 100_000, "{states} states, {decided} with a decision");
}

#[test]
fn lemma_a_3_a_proposer_that_runs_alone_decides_its_own_value() {
    assert_eq!(run_alone(&mut World::new(2, 0), 1), Some(value(1)));
}

#[test]
fn trap_1_a_proposer_decides_what_it_adopted_and_says_so() {
    let mut world = World::new(2, 0);
    // Proposer 0 gets its value accepted by acceptor 0 alone, and then does nothing more.
    let (proposer, endpoint) = &mut world.proposers[0];
    assert_eq!(proposer.propose(endpoint, &value(0)), None);
    world.answer(0);
    world.take_effect(0, 0); // the WRITE
    world.take_effect(0, 0); // the CAS
    assert_eq!(run_alone(&mut world, 1), Some(value(0)));
}

#[test]
fn appendix_a_5_a_right_prediction_saves_a_round() {
    let mut world = prepared_ahead();
    let (proposer, endpoint) = &mut world.proposers[1];
    proposer.propose(endpoint, &value(1));
    world.answer(1);
    assert_eq!(world.proposers[1].0.attempts(), 1, "the first attempt went through");
    assert_eq!(run_alone(&mut world, 1), Some(value(1)));
}

/// An acceptor process for the fallback: its memory as the RPC acceptor reads it.
struct Own {
    words: Vec<AtomicU64>,
}

impl Own {
    fn with_word(word: u64) -> Own {
        let words: Vec<_> = (0..256).map(|_| AtomicU64::new(0)).collect();
        words[slot_of(ViewNumber(1))].store(word, Ordering::Relaxed);
        Own { words }
    }
}

impl Fabric for Own {
    const ZOMBIES_REACHABLE: bool = true;
    fn memory(&self, region: LocalRegion) -> Option<&Memory> {
        (region == LocalRegion::Public(SLOT_WORDS)).then_some(&self.words)
    }
    fn write(&mut self, _: Remote, _: &[u8], _: Token) {}
    fn read(&mut self, _: Remote, _: Local, _: usize, _: Token) {}
    fn read_word(&mut self, _: Remote, _: Token) {}
    fn compare_and_swap(&mut self, _: Remote, _: u64, _: u64, _: Token) {}
    martlet_fabric::idle!(poll, send, multicast, receive, event, grant, revoke, nudge, forget);
}

/// Runs a proposer alone, by CAS or by RPC, as it asks.
fn run_with_rpc(world: &mut World, rpc: &mut [RpcAcceptor; ACCEPTORS], p: usize) -> Option<Vec<u8>> {
    for _ in 0..20 {
        run_alone(world, p);
        while let Some((a, request)) = world.proposers[p].0.poll_request() {
            let own = Own::with_word(world.acceptors[a].word);
            if let Some(reply) = rpc[a].handle(&own, request) {
                let (proposer, endpoint) = &mut world.proposers[p];
                let outcome = proposer.handle_reply(endpoint, a, reply);
                world.note(outcome);
            }
        }
        if world.decided.is_some() {
            break;
        }
    }
    world.decided.clone()
}

#[test]
fn trap_4_appendix_a_6_ballots_that_run_out_go_on_by_rpc() {
    // The last attempts before the wrap: every acceptor has promised a ballot so high that a proposer cannot exceed it within the word.
    let worn = SlotWord::new(SlotState { min: LAST_CAS_BALLOT as u16, accepted: 0, value: 0 }, 0).0;
    let mut world = World::new(2, worn);
    let mut rpc: [RpcAcceptor; ACCEPTORS] = Default::default();
    assert_eq!(run_with_rpc(&mut world, &mut rpc, 0), Some(value(0)));
    for a in &world.acceptors {
        assert!(!SlotWord(a.word).state_in(0).unwrap().is_empty(), "a frozen slot must not look empty to `active`");
    }
    // The other proposer finds the decision, by RPC as well.
    assert_eq!(run_with_rpc(&mut world, &mut rpc, 1), Some(value(0)));
}

#[test]
fn appendix_a_6_an_acceptor_whose_word_is_not_frozen_says_so() {
    let word = SlotWord::new(SlotState { min: 5, accepted: 0, value: 0 }, 0).0;
    let request = RpcRequest { view: ViewNumber(1), ballot: 70_000, body: martlet_protocol::consensus::rpc::RpcBody::Prepare };
    let reply = RpcAcceptor::default().handle(&Own::with_word(word), request).unwrap();
    assert_eq!(reply, RpcReply { view: ViewNumber(1), ballot: 70_000, verdict: RpcVerdict::NotFrozen { word } });
}

#[test]
fn section_5_1_a_lost_peer_is_a_lost_vote_and_a_majority_still_decides() {
    let mut world = World::new(1, 0);
    let (proposer, endpoint) = &mut world.proposers[0];
    proposer.propose(endpoint, &value(0));
    let (token, _) = world.proposers[0].1.queues[2].pop_front().unwrap();
    world.done[0][2].push_back(Completion { token, result: Err(OpError::PeerLost) });
    world.complete(0, 2);
    assert_eq!(run_alone(&mut world, 0), Some(value(0)));
}

#[test]
fn a_rejection_never_lends_its_ballot() {
    let worn = SlotWord::new(SlotState { min: LAST_CAS_BALLOT as u16, accepted: 0, value: 0 }, 0).0;
    let mut world = World::new(2, worn);
    run_alone(&mut world, 0);
    let (proposer, endpoint) = &mut world.proposers[0];
    let asked: Vec<(usize, RpcRequest)> = std::iter::from_fn(|| proposer.poll_request()).collect();
    let own = asked.first().expect("the words are frozen, so the acceptors are asked").1.ballot;
    assert!(asked.iter().all(|(_, request)| request.ballot == own));
    // One acceptor has promised a higher ballot to the other proposer. The remaining acceptors are asked again, at this proposer's ballot and not at that one:
    // two proposers that use one ballot can get two values decided.
    let rejected = RpcReply { view: ViewNumber(1), ballot: own, verdict: RpcVerdict::Rejected { min: own + 1 } };
    assert_eq!(proposer.handle_reply(endpoint, 0, rejected), None);
    proposer.repeat();
    let again: Vec<u64> = std::iter::from_fn(|| proposer.poll_request()).map(|(_, request)| request.ballot).collect();
    assert_eq!(again, [own, own]);
    // The next attempt uses a ballot above any that the proposer has heard of.
    proposer.abandon();
    proposer.prepare(endpoint);
    run_alone(&mut world, 0);
    let next = world.proposers[0].0.poll_request().expect("asked anew").1.ballot;
    assert!(next > own + 1);
}

#[test]
fn appendix_a_6_an_attempt_that_is_refused_ends_although_the_rest_never_answers() {
    let worn = SlotWord::new(SlotState { min: LAST_CAS_BALLOT as u16, accepted: 0, value: 0 }, 0).0;
    let mut world = World::new(2, worn);
    run_alone(&mut world, 0);
    let (proposer, endpoint) = &mut world.proposers[0];
    let own = proposer.poll_request().expect("the words are frozen, so the acceptors are asked").1.ballot;
    while proposer.poll_request().is_some() {}
    let rejected = RpcReply { view: ViewNumber(1), ballot: own, verdict: RpcVerdict::Rejected { min: own + 1 } };
    assert_eq!(proposer.handle_reply(endpoint, 0, rejected), None, "the other two may still promise");
    for _ in 0..PATIENCE {
        assert_eq!(proposer.repeat(), None);
        assert_eq!(std::iter::from_fn(|| proposer.poll_request()).count(), 2);
    }
    assert_eq!(proposer.repeat(), Some(Outcome::Aborted));
    proposer.prepare(endpoint);
    run_alone(&mut world, 0);
    assert!(world.proposers[0].0.poll_request().expect("asked anew").1.ballot > own + 1);
}

#[test]
fn a_value_that_makes_no_sense_is_not_adopted() {
    // In the first case, the value that the first proposer got accepted makes no sense to the second.
    let lies: fn(ViewNumber, &[u8]) -> bool = |_, bytes| bytes != value(0);
    for (makes_sense, decided) in [(lies, value(1)), (|_, _| true, value(0))] {
        let mut world = World::new(2, 0);
        assert_eq!(run_alone(&mut world, 0), Some(value(0)));
        world.decided = None;
        world.proposers[1].0 = world.proposers[1].0.clone().accepting(makes_sense);
        assert_eq!(run_alone(&mut world, 1), Some(decided));
    }
}
