//! The RPC fallback, for ballots that no slot word can hold (App. A.6), on the proposer's side: its requests, their repetition, and the replies.

use martlet_fabric::Fabric;

use super::{Outcome, PATIENCE, Phase, Proposer, Vote};
use crate::basics::Mark;
use crate::basics::ballot::{FROZEN, SlotWord};
use crate::consensus::rpc::{RpcBody, RpcReply, RpcRequest, RpcVerdict};

impl Proposer {
    pub(super) fn ask(&mut self, i: usize, body: RpcBody) {
        self.requests.push_back((i, RpcRequest { view: self.view, ballot: self.ballot, body }));
    }

    /// The next request of the RPC fallback to send, and the position of the acceptor to send it to. Requests may be lost: see [`Proposer::repeat`].
    pub fn poll_request(&mut self) -> Option<(usize, RpcRequest)> {
        self.requests.pop_front()
    }

    /// Repeats the requests of the RPC fallback that have not been answered, which is harmless. If some acceptor has refused and others do not
    /// answer, the attempt ends after [`PATIENCE`] repetitions: the others may be dead, and then the attempt would never win its majority, nor know
    /// that it cannot. What was learned makes the next attempt better.
    pub fn repeat(&mut self) -> Option<Outcome> {
        if !self.by_rpc() || !self.requests.is_empty() {
            return None;
        }
        let body = match self.phase {
            Phase::Preparing => RpcBody::Prepare,
            Phase::Accepting => RpcBody::Accept(self.adopted.as_ref().or(self.value.as_ref())?.clone()),
            Phase::Idle | Phase::Prepared | Phase::Fetching { .. } | Phase::Decided => return None,
        };
        for a in self.acceptors.iter_mut().filter(|a| a.vote == Vote::Awaited && a.in_flight.is_empty()) {
            let frozen = SlotWord(a.predicted).state_in(self.generation).is_some_and(|s| s.min == FROZEN);
            if !frozen {
                // It was sent a request because an earlier attempt's swap was expected to freeze its word. That swap has since failed, so the next
                // attempt has to freeze the word.
                a.vote = Vote::No;
            }
        }
        if self.acceptors.iter().any(|a| a.vote == Vote::No) {
            self.refused += 1;
            if self.refused > PATIENCE {
                Mark::RpcGivenUp.reach();
                self.phase = Phase::Idle;
                return Some(Outcome::Aborted);
            }
        }
        for i in 0..self.acceptors.len() {
            let a = &self.acceptors[i];
            let frozen = SlotWord(a.predicted).state_in(self.generation).is_some_and(|s| s.min == FROZEN);
            if a.vote == Vote::Awaited && frozen && a.in_flight.is_empty() {
                Mark::RpcRepeated.reach();
                self.ask(i, body.clone());
            }
        }
        None
    }

    /// Takes an acceptor's reply to a request of the RPC fallback.
    pub fn handle_reply<F: Fabric>(&mut self, fabric: &mut F, acceptor: usize, reply: RpcReply) -> Option<Outcome> {
        if reply.view != self.view || reply.ballot != self.ballot {
            return None;
        }
        let a = self.acceptors.get_mut(acceptor)?;
        match (self.phase, reply.verdict) {
            (Phase::Preparing, RpcVerdict::Promised { accepted, value }) => {
                a.vote = Vote::Yes;
                a.promised = Some((accepted, value));
            }
            (Phase::Accepting, RpcVerdict::Accepted) => a.vote = Vote::Yes,
            (Phase::Preparing | Phase::Accepting, RpcVerdict::Rejected { min }) => {
                a.vote = Vote::No;
                self.outbid = self.outbid.max(min);
            }
            (Phase::Preparing | Phase::Accepting, RpcVerdict::NotFrozen { word }) => {
                a.vote = Vote::No;
                a.predicted = word;
            }
            _ => return None,
        }
        self.count(fabric)
    }
}
