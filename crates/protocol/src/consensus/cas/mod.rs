//! One-sided abortable consensus: the proposer (uKharon Algorithm 5).
//!
//! A proposer runs one slot. It prepares (one CAS per acceptor), then accepts (a WRITE of the value and one CAS per acceptor). Each phase ends when a
//! majority of acceptors has agreed, or aborts when a majority can no longer agree. Aborting is always safe (Lemma A.6): the caller tries again,
//! after a back-off if it has competition. A slot can be prepared ahead, without a value (section 5.3.1).
//!
//! Differences from the paper, and the reasons:
//! - A phase succeeds as soon as a majority has succeeded, even if another acceptor's CAS has failed; the paper aborts when any of the first majority
//!   has failed. Paxos decides by the acceptance of a majority, so waiting for more only costs retries.
//! - An accepted value is named by its proposer, and read from the acceptor's memory. A proposer keeps two records per slot and writes them in turn,
//!   each sealed with its ballot, so a proposer that dies while writing never destroys the value that a word refers to. A reader takes the record
//!   with the lowest ballot at or above the accepted one. That record is safe to adopt: its proposer had completed a prepare phase at that later
//!   ballot, so it agrees with whatever was decided at lower ballots.
//! - A value that makes no sense to the caller ([`Proposer::accepting`]) is not adopted: only a proposer that lies can get one accepted, and no other
//!   process will ever take it for decided.
//! - The decided value is the one that [`Outcome::Decided`] carries: if a value was adopted, it is the adopted one (TRAPS 1).

mod adoption;
mod fallback;

use std::collections::VecDeque;

use martlet_fabric::{Completion, Fabric, OpError, PeerId, Region, Remote, Token, invariant};

pub(super) use self::adoption::adoptable;
use super::rpc::{RpcBody, RpcRequest};
use crate::basics::ballot::{self, FROZEN, LAST_CAS_BALLOT, SlotState, SlotWord};
use crate::basics::layout::{Component, PROPOSALS, SLOT_WORDS, SLOTS, VIEW_RECORD_BYTES};
use crate::basics::{Canary, Mark, ViewNumber, sealed};

/// The purpose of a proposer's operation: part of its token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Op {
    /// A CAS of a slot word.
    Swap = 1,
    /// A WRITE of a value.
    Write = 2,
    /// A READ of an accepted value.
    Fetch = 3,
    /// A READ of a slot word.
    Look = 4,
}

/// The state of a proposer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Nothing under way.
    Idle,
    /// The prepare phase runs.
    Preparing,
    /// A majority has promised; any value that had been accepted is known and adopted.
    Prepared,
    /// A majority has promised; the accepted value is being read from acceptor `from`.
    Fetching { from: usize, accepted: SlotState },
    /// The accept phase runs.
    Accepting,
    /// The slot is decided.
    Decided,
}

/// The result of a completion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A majority has promised: the next [`Proposer::propose`] takes one phase.
    Prepared,
    /// A majority has accepted this value. It is not always the one that was proposed.
    Decided(Vec<u8>),
    /// This attempt failed; what was learned helps the next one.
    Aborted,
    /// The slot has been reused for a later view: this proposer is hopelessly behind, and must learn the views that it missed.
    Superseded,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Vote {
    Awaited,
    Yes,
    No,
}

/// How often unanswered requests are repeated in a phase in which some acceptor has refused.
pub const PATIENCE: u32 = 3;

/// Acceptors of which `count` have to promise, in addition to a majority, before a value of ours is written anywhere. They have to do so in the
/// attempt that writes the value, since an older promise does not show which acceptors are within reach now. An adopted value waits for none of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Required {
    /// One bit for each acceptor, by its position.
    pub of: u64,
    /// How many of them have to promise.
    pub count: usize,
}

/// A CAS in flight.
#[derive(Clone, Copy, Debug)]
struct Swap {
    expected: u64,
    /// The attempt that it belongs to; from late completions of older attempts the proposer only learns the word.
    attempt: u32,
    for_accept: bool,
}

#[derive(Clone, Debug)]
struct Acceptor {
    /// `None` while it is not connected: then it cannot vote.
    peer: Option<PeerId>,
    /// The peer as which it is connected anew. It is not used until all swaps over the lost connection have completed, because completions are told
    /// apart by their order.
    next: Option<PeerId>,
    /// Our belief about the word: predicted, or as last seen.
    predicted: u64,
    in_flight: VecDeque<Swap>,
    /// Whether its word is being read.
    looked_at: bool,
    vote: Vote,
    /// In an RPC prepare phase: the value that the acceptor had accepted, with its ballot.
    promised: Option<(u64, Vec<u8>)>,
}

impl Acceptor {
    /// Puts its new connection into use, once nothing is in flight over the old one.
    fn settle(&mut self) {
        if self.in_flight.is_empty() {
            self.peer = self.next.take().or(self.peer);
        }
    }
}

/// A proposer for one slot. It is driven by:
/// - *commands*: [`Proposer::prepare`], [`Proposer::propose`], [`Proposer::withdraw`], [`Proposer::look`], [`Proposer::abandon`], [`Proposer::repeat`];
/// - *handlers*: [`Proposer::handle_completion`], [`Proposer::handle_reply`];
/// - *polls*: [`Proposer::poll_request`] for the RPC fallback;
/// - *queries*: [`Proposer::is_prepared`] and others.
#[derive(Clone, Debug)]
pub struct Proposer {
    view: ViewNumber,
    generation: u32,
    position: usize,
    acceptors: Vec<Acceptor>,
    ballot: u64,
    /// The highest ballot of others that was reported to us. Our own next ballot has to be higher.
    outbid: u64,
    attempt: u32,
    phase: Phase,
    /// What the caller wants decided; `None` while preparing ahead.
    value: Option<Vec<u8>>,
    adopted: Option<Vec<u8>>,
    /// The acceptors that have to promise before `value` is written anywhere.
    required: Required,
    /// Acceptors whose record of the accepted value has been tried in this attempt, one bit each,
    tried: u64,
    /// and those of them whose record made no sense.
    senseless: u64,
    /// How often requests have been repeated in this phase since an acceptor refused.
    refused: u32,
    /// Whether a value makes sense for a slot.
    makes_sense: fn(ViewNumber, &[u8]) -> bool,
    second_buffer: bool,
    record: Vec<u8>,
    requests: VecDeque<(usize, RpcRequest)>,
}

impl Proposer {
    /// A proposer for the slot of `view`. `acceptors` are the coordinators of the previous view, in their order; `position` is this process's
    /// position among them.
    pub fn new(view: ViewNumber, acceptors: &[Option<PeerId>], position: usize) -> Proposer {
        invariant!(position < acceptors.len(), "proposer {position} of {}", acceptors.len());
        let acceptor = |&peer| Acceptor {
            peer,
            next: None,
            predicted: 0,
            in_flight: VecDeque::with_capacity(4),
            looked_at: false,
            vote: Vote::Awaited,
            promised: None,
        };
        Proposer {
            view,
            generation: ballot::generation_of(view),
            position,
            acceptors: acceptors.iter().map(acceptor).collect(),
            ballot: 0,
            outbid: 0,
            attempt: 0,
            phase: Phase::Idle,
            value: None,
            adopted: None,
            required: Required::default(),
            tried: 0,
            senseless: 0,
            refused: 0,
            makes_sense: |_, _| true,
            second_buffer: false,
            record: Vec::with_capacity(VIEW_RECORD_BYTES),
            requests: VecDeque::new(),
        }
    }

    /// Restricts adoption to values that this function finds to make sense for the slot.
    #[must_use]
    pub fn accepting(self, makes_sense: fn(ViewNumber, &[u8]) -> bool) -> Proposer {
        Proposer { makes_sense, ..self }
    }

    /// An acceptor that was missing is connected now, or one whose connection was lost is connected anew. Its memory is the same.
    pub fn connect(&mut self, acceptor: usize, peer: PeerId) {
        if let Some(a) = self.acceptors.get_mut(acceptor)
            && a.peer != Some(peer)
        {
            (a.peer, a.next) = (None, Some(peer));
            a.settle();
        }
    }

    /// The view whose slot this is.
    pub fn view(&self) -> ViewNumber {
        self.view
    }

    /// Whether a majority has promised and nothing is under way.
    pub fn is_prepared(&self) -> bool {
        self.phase == Phase::Prepared
    }

    /// Whether nothing is under way: the next command starts an attempt.
    pub fn is_idle(&self) -> bool {
        self.phase == Phase::Idle
    }

    /// Whether a majority has promised, and the value waits for the promises of required acceptors: it may still be replaced by another value.
    pub fn is_waiting(&self) -> bool {
        self.phase == Phase::Preparing && self.votes(Vote::Yes) >= ballot::majority(self.acceptors.len())
    }

    /// How many attempts have been started.
    pub fn attempts(&self) -> u32 {
        self.attempt
    }

    /// Predicts every acceptor's word to be what the proposer at `position` leaves when it prepares the slot ahead with its first ballot: this is
    /// what a new leader finds after its predecessor's death (section 5.3.1).
    pub fn predict_prepared_by(&mut self, position: usize) {
        let first = ballot::next_ballot(position, self.acceptors.len(), 0);
        let state = SlotState { min: first as u16, ..SlotState::default() };
        for acceptor in &mut self.acceptors {
            acceptor.predicted = SlotWord::new(state, self.generation).0;
        }
    }

    /// Predicts this very word at every acceptor: what an earlier use of the slot left there.
    pub fn predict_word(&mut self, word: u64) {
        for acceptor in &mut self.acceptors {
            acceptor.predicted = word;
        }
    }

    /// Prepares the slot ahead, if nothing is under way, and without a value of ours even if an earlier attempt had one. There is an immediate
    /// outcome only if too few acceptors can be asked. A slot whose ballots have run out is left alone: if it were frozen, no process could take a
    /// lease on the previous view.
    pub fn prepare<F: Fabric>(&mut self, fabric: &mut F) -> Option<Outcome> {
        if self.phase != Phase::Idle {
            return None;
        }
        self.value = None;
        self.start(fabric)
    }

    /// Whether there is a value of ours that no acceptor has seen in this attempt, so that [`Proposer::withdraw`] can withdraw it.
    pub fn is_revocable(&self) -> bool {
        self.phase == Phase::Preparing && self.value.is_some()
    }

    /// Withdraws a value that is [revocable](Proposer::is_revocable): then the slot is prepared without one.
    pub fn withdraw<F: Fabric>(&mut self, fabric: &mut F) -> Option<Outcome> {
        if !self.is_revocable() {
            return None;
        }
        self.value = None;
        self.count(fabric)
    }

    /// Starts an attempt, with or without a value.
    fn start<F: Fabric>(&mut self, fabric: &mut F) -> Option<Outcome> {
        self.choose_ballot();
        if self.by_rpc() && self.value.is_none() {
            return None;
        }
        self.attempt += 1;
        self.adopted = None;
        (self.tried, self.senseless, self.refused) = (0, 0, 0);
        self.phase = Phase::Preparing;
        for i in 0..self.acceptors.len() {
            self.acceptors[i].vote = Vote::Awaited;
            self.acceptors[i].promised = None;
            let state = SlotWord(self.acceptors[i].predicted).state_in(self.generation);
            let Some(state) = state.filter(|_| self.acceptors[i].peer.is_some()) else {
                self.acceptors[i].vote = Vote::No;
                continue;
            };
            match (self.by_rpc(), state.min == FROZEN) {
                (true, true) => {
                    Mark::RpcFoundFrozen.reach();
                    self.ask(i, RpcBody::Prepare);
                }
                (true, false) => self.swap(fabric, i, SlotState { min: FROZEN, ..state }, false),
                (false, false) => self.swap(fabric, i, SlotState { min: self.ballot as u16, ..state }, false),
                (false, true) => self.acceptors[i].vote = Vote::No,
            }
        }
        self.count(fabric)
    }

    /// Chooses our next ballot above everything that we know to be promised (lines 15 and 16).
    fn choose_ballot(&mut self) {
        let promised = |a: &Acceptor| match SlotWord(a.predicted).state_in(self.generation) {
            Some(state) if state.min == FROZEN => LAST_CAS_BALLOT,
            Some(state) => u64::from(state.min),
            None => 0,
        };
        let floor = self.acceptors.iter().map(promised).max().unwrap_or(0).max(self.ballot).max(self.outbid);
        self.ballot = ballot::next_ballot(self.position, self.acceptors.len(), floor);
        if self.ballot > LAST_CAS_BALLOT && Canary::WrappedBallot.is_planted() {
            self.ballot = ballot::next_ballot(self.position, self.acceptors.len(), self.ballot - LAST_CAS_BALLOT);
        }
        if self.ballot > LAST_CAS_BALLOT {
            Mark::RpcBallot.reach();
            // Ballots of RPC proposals are above everything that a word can hold.
            self.ballot = self.ballot.max(ballot::next_ballot(self.position, self.acceptors.len(), u64::from(FROZEN)));
        }
    }

    /// Proposes `value` for decision. Takes one phase if the slot is prepared, and two otherwise. When an attempt aborts, call it again. There is an
    /// immediate outcome only if too few acceptors can be asked.
    pub fn propose<F: Fabric>(&mut self, fabric: &mut F, value: &[u8]) -> Option<Outcome> {
        self.propose_requiring(fabric, value, Required::default())
    }

    /// Like [`propose`](Self::propose), but nothing is written before the `required` acceptors have promised. That takes a prepare phase of its own
    /// even if the slot is prepared, since promises made long ago do not show which acceptors are within reach now.
    pub fn propose_requiring<F: Fabric>(&mut self, fabric: &mut F, value: &[u8], required: Required) -> Option<Outcome> {
        invariant!(value.len() + sealed::HEADER_BYTES <= VIEW_RECORD_BYTES, "value of {} bytes", value.len());
        if self.value.as_deref() != Some(value) {
            self.value = Some(value.to_vec());
        }
        self.required = required;
        match self.phase {
            Phase::Idle => self.start(fabric),
            Phase::Preparing if self.is_waiting() => self.count(fabric),
            Phase::Prepared if self.adopted.is_none() && (required.count > 0 || self.is_outbid()) => {
                self.phase = Phase::Idle;
                self.start(fabric)
            }
            Phase::Prepared => {
                self.accept(fabric);
                self.count(fabric)
            }
            Phase::Preparing | Phase::Fetching { .. } | Phase::Accepting | Phase::Decided => None,
        }
    }

    /// If the prepare phase has adopted a value, gets it decided: it is another process's proposal, which may be decided already.
    pub fn finish<F: Fabric>(&mut self, fabric: &mut F) -> Option<Outcome> {
        if self.phase != Phase::Prepared || self.adopted.is_none() {
            return None;
        }
        self.accept(fabric);
        self.count(fabric)
    }

    /// Checks whether a slot that was prepared ahead has been used since: another proposer may have been promised it and have had a value decided,
    /// without any word of it reaching this process.
    ///
    /// The attempt ends if a word that is read shows that another proposer has got a value accepted. It also ends if the word has been frozen since,
    /// because what is decided by RPC does not show in words. A mere promise to another proposer ends nothing. By itself it decides nothing, and its
    /// holder may be looking as well; the two would take the slot from each other, one ballot at a time. The promise is noted, so that a proposal
    /// begins with a higher ballot.
    pub fn look<F: Fabric>(&mut self, fabric: &mut F) -> Option<Outcome> {
        if self.phase != Phase::Prepared || self.adopted.is_some() {
            return None;
        }
        if self.by_rpc() {
            self.phase = Phase::Idle;
            return self.prepare(fabric);
        }
        for i in 0..self.acceptors.len() {
            let token = self.token(Op::Look, i);
            let acceptor = &mut self.acceptors[i];
            if let Some(peer) = acceptor.peer.filter(|_| !acceptor.looked_at) {
                acceptor.looked_at = true;
                fabric.read_word(Remote { peer, region: Region::Public(SLOT_WORDS), offset: ballot::slot_of(self.view) * 8 }, token);
            }
        }
        None
    }

    fn handle_look(&mut self, i: usize, result: Result<u64, OpError>) -> Option<Outcome> {
        let acceptor = self.acceptors.get_mut(i)?;
        acceptor.looked_at = false;
        let found = result.ok().filter(|_| acceptor.in_flight.is_empty())?;
        if self.phase != Phase::Prepared || self.adopted.is_some() {
            return None;
        }
        let known = SlotWord(acceptor.predicted).state_in(self.generation).unwrap_or_default();
        acceptor.predicted = found;
        // Whatever was decided below our ballot, we have adopted. An acceptance above our ballot ends the attempt, whether it is new or was there
        // when our own swap arrived.
        let outcome = match SlotWord(found).state_in(self.generation) {
            None => Outcome::Superseded,
            Some(now) if u64::from(now.accepted) > self.ballot || (now.min == FROZEN && known.min != FROZEN) => Outcome::Aborted,
            Some(_) => return None,
        };
        Mark::CasOvertaken.reach();
        self.phase = Phase::Idle;
        Some(outcome)
    }

    /// Whether too few of the acceptors that promised still keep their promise, as far as is known: an accept phase would then depend on acceptors
    /// that have not answered.
    fn is_outbid(&self) -> bool {
        let stands = |a: &&Acceptor| {
            let state = SlotWord(a.predicted).state_in(self.generation);
            a.vote == Vote::Yes && state.is_some_and(|s| u64::from(s.min) <= self.ballot)
        };
        self.acceptors.iter().filter(stands).count() < ballot::majority(self.acceptors.len())
    }

    /// Whether the proposer has adopted a value, and nothing is under way.
    pub fn has_adopted(&self) -> bool {
        self.phase == Phase::Prepared && self.adopted.is_some()
    }

    /// Gives up what is under way: completions still in flight only teach us the words.
    pub fn abandon(&mut self) {
        if self.phase != Phase::Decided {
            self.phase = Phase::Idle;
        }
    }

    /// A hint that a value of about `bytes` may be proposed soon: the memory that the proposal will write is brought into the cache, where the fabric
    /// can do so.
    pub fn expect_to_propose<F: Fabric>(&self, fabric: &F, bytes: usize) {
        let word = ballot::slot_of(self.view) * 8;
        let record = proposal_offset(self.position, self.view, self.second_buffer);
        for peer in self.acceptors.iter().filter_map(|a| a.peer) {
            fabric.expect_write(Remote { peer, region: Region::Public(SLOT_WORDS), offset: word }, 8);
            fabric.expect_write(Remote { peer, region: Region::Public(PROPOSALS), offset: record }, bytes.next_multiple_of(8));
        }
    }

    /// Whether its ballots have reached those that no slot word can hold: then it freezes the slot, and sends its requests by RPC.
    pub fn by_rpc(&self) -> bool {
        self.ballot > LAST_CAS_BALLOT
    }

    fn token(&self, op: Op, acceptor: usize) -> Token {
        Component::Membership.token(((op as u64) << 48) | ((acceptor as u64) << 40) | (self.view.0 & 0xff_ffff_ffff))
    }

    fn swap<F: Fabric>(&mut self, fabric: &mut F, i: usize, state: SlotState, for_accept: bool) {
        let new = SlotWord::new(state, self.generation).0;
        let token = self.token(Op::Swap, i);
        let acceptor = &mut self.acceptors[i];
        let expected = acceptor.predicted;
        let peer = acceptor.peer.expect("only connected acceptors are asked");
        let at = Remote { peer, region: Region::Public(SLOT_WORDS), offset: ballot::slot_of(self.view) * 8 };
        fabric.compare_and_swap(at, expected, new, token);
        acceptor.in_flight.push_back(Swap { expected, attempt: self.attempt, for_accept });
        // Optimistic: a wrong guess only costs an abort (App. A.5).
        acceptor.predicted = new;
    }

    fn accept<F: Fabric>(&mut self, fabric: &mut F) {
        let Some(value) = self.adopted.as_ref().or(self.value.as_ref()) else { return };
        self.phase = Phase::Accepting;
        self.refused = 0;
        for acceptor in &mut self.acceptors {
            acceptor.vote = Vote::Awaited;
        }
        if self.by_rpc() {
            let body = RpcBody::Accept(value.clone());
            (0..self.acceptors.len()).for_each(|i| self.ask(i, body.clone()));
            return;
        }
        sealed::encode(self.view.0, self.ballot, value, &mut self.record);
        let offset = proposal_offset(self.position, self.view, self.second_buffer);
        self.second_buffer = !self.second_buffer;
        let ballot = self.ballot as u16;
        let accepted = SlotState { min: ballot, accepted: ballot, value: self.position as u8 + 1 };
        for i in 0..self.acceptors.len() {
            match (self.acceptors[i].peer, SlotWord(self.acceptors[i].predicted).state_in(self.generation)) {
                (Some(peer), Some(state)) if state.min <= ballot => {
                    // One queue, in order: a process that sees the word sees the record as well (section 5.3.1).
                    let at = Remote { peer, region: Region::Public(PROPOSALS), offset };
                    let token = self.token(Op::Write, i);
                    fabric.write(at, &self.record, token);
                    self.swap(fabric, i, accepted, true);
                }
                _ => self.acceptors[i].vote = Vote::No,
            }
        }
    }

    /// Takes the completion of an operation that this proposer posted; `op` and `acceptor` come from its token.
    pub fn handle_completion<F: Fabric>(&mut self, fabric: &mut F, op: Op, acceptor: usize, completion: Completion) -> Option<Outcome> {
        match op {
            // If a write fails, its swap, which follows on the same queue, fails too.
            Op::Write => None,
            Op::Swap => self.handle_swap(fabric, acceptor, completion.result),
            Op::Fetch => self.handle_fetch(fabric, acceptor, completion.result),
            Op::Look => self.handle_look(acceptor, completion.result),
        }
    }

    fn handle_swap<F: Fabric>(&mut self, fabric: &mut F, i: usize, result: Result<u64, OpError>) -> Option<Outcome> {
        let acceptor = self.acceptors.get_mut(i)?;
        let swap = acceptor.in_flight.pop_front()?;
        acceptor.settle();
        let mut vote = Vote::No;
        match result {
            Ok(found) if found == swap.expected => vote = Vote::Yes,
            Ok(_) if Canary::ReusedPrediction.is_planted() => acceptor.predicted = swap.expected,
            Ok(found) => {
                Mark::CasMispredicted.reach();
                acceptor.predicted = found;
            }
            // The swap may have been applied nevertheless; the next attempt finds out.
            Err(_) => Mark::CasLost.reach(),
        }
        if result.is_ok_and(|found| SlotWord(found).generation() > self.generation) {
            Mark::CasSuperseded.reach();
            self.phase = Phase::Idle;
            return Some(Outcome::Superseded);
        }
        let current = match self.phase {
            Phase::Preparing => !swap.for_accept,
            Phase::Accepting => swap.for_accept,
            Phase::Idle | Phase::Prepared | Phase::Fetching { .. } | Phase::Decided => false,
        };
        if !current || swap.attempt != self.attempt {
            return None;
        }
        if self.by_rpc() && vote == Vote::Yes {
            Mark::RpcFroze.reach();
            // The word is frozen now; the promise itself is requested by RPC.
            self.ask(i, RpcBody::Prepare);
            return None;
        }
        self.acceptors[i].vote = vote;
        self.count(fabric)
    }

    fn votes(&self, vote: Vote) -> usize {
        self.acceptors.iter().filter(|a| a.vote == vote).count()
    }

    fn count_required(&self, fit: impl Fn(&Acceptor) -> bool) -> usize {
        self.acceptors.iter().enumerate().filter(|(i, a)| self.required.of >> i & 1 == 1 && fit(a)).count()
    }

    /// With a majority's promises, whether the accept phase may begin: the required acceptors have promised too, or there is a value to adopt, or
    /// there is no value of ours to propose.
    fn is_fit_to_accept(&self) -> bool {
        let accepted = |a: &Acceptor| {
            let word = SlotWord(a.predicted).state_in(self.generation).is_some_and(|s| s.accepted > 0);
            a.vote == Vote::Yes && if self.by_rpc() { a.promised.as_ref().is_some_and(|(ballot, _)| *ballot > 0) } else { word }
        };
        self.value.is_none() || self.count_required(|a| a.vote == Vote::Yes) >= self.required.count || self.acceptors.iter().any(accepted)
    }

    /// Ends the phase if its majority is complete, or can no longer be reached.
    fn count<F: Fabric>(&mut self, fabric: &mut F) -> Option<Outcome> {
        let majority = ballot::majority(self.acceptors.len());
        if self.votes(Vote::Yes) >= majority {
            return match self.phase {
                Phase::Preparing if !self.is_fit_to_accept() => {
                    Mark::CasAwaits.reach();
                    let open = |a: &Acceptor| a.vote != Vote::No;
                    if self.count_required(open) >= self.required.count {
                        return None;
                    }
                    Mark::CasAborted.reach();
                    self.phase = Phase::Idle;
                    Some(Outcome::Aborted)
                }
                Phase::Preparing => self.adopt(fabric),
                Phase::Accepting => {
                    Mark::CasDecided.reach();
                    self.phase = Phase::Decided;
                    if Canary::OwnProposal.is_planted() && self.value.is_some() {
                        self.adopted = None;
                    }
                    let value = self.adopted.take().or_else(|| self.value.take());
                    Some(Outcome::Decided(value.expect("an accept phase has a value")))
                }
                Phase::Idle | Phase::Prepared | Phase::Fetching { .. } | Phase::Decided => None,
            };
        }
        if self.votes(Vote::No) > self.acceptors.len() - majority {
            Mark::CasAborted.reach();
            self.phase = Phase::Idle;
            return Some(Outcome::Aborted);
        }
        None
    }

    fn prepared<F: Fabric>(&mut self, fabric: &mut F) -> Option<Outcome> {
        self.phase = Phase::Prepared;
        if self.adopted.is_none() {
            Mark::CasPrepared.reach();
        }
        if self.value.is_none() {
            return Some(Outcome::Prepared);
        }
        self.accept(fabric);
        // Acceptors may have been lost for this phase already.
        self.count(fabric)
    }
}

/// Where in an acceptor's [`PROPOSALS`] the proposer at `position` keeps its records for `view`; the two records are adjacent.
pub fn proposal_offset(position: usize, view: ViewNumber, second: bool) -> usize {
    ((position * SLOTS + ballot::slot_of(view)) * 2 + usize::from(second)) * VIEW_RECORD_BYTES
}
