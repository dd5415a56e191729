//! The fallback when a slot's ballots no longer fit into its word (uKharon appendix A.6): ordinary Paxos by request and reply.
//!
//! A proposer whose next ballot would not fit *freezes* the acceptor's word with one last CAS (`min_proposal` = [`FROZEN`]), and sends its requests
//! to the acceptor itself from then on. The word of a frozen slot never changes again: no proposer swaps a frozen word. The acceptor starts from the
//! state in the word and keeps the rest in its own memory, with 64-bit ballots that are higher than any that a word can hold.

use martlet_fabric::primitive::Ordering;
use martlet_fabric::{Fabric, LocalRegion};

use super::cas::{adoptable, proposal_offset};
use crate::basics::ballot::{self, FROZEN, SlotWord};
use crate::basics::layout::{LAST_VIEW, MAX_MEMBERS, PROPOSALS, SLOT_WORDS};
use crate::basics::{Canary, Mark, ViewNumber};

/// What a proposer requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RpcBody {
    /// Promise this ballot.
    Prepare,
    /// Accept this value at this ballot.
    Accept(Vec<u8>),
}

/// A proposer's request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RpcRequest {
    /// The slot.
    pub view: ViewNumber,
    /// The proposer's ballot, always above [`FROZEN`].
    pub ballot: u64,
    /// What it requests.
    pub body: RpcBody,
}

/// An acceptor's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RpcReply {
    /// The request's slot.
    pub view: ViewNumber,
    /// The request's ballot.
    pub ballot: u64,
    /// The answer.
    pub verdict: RpcVerdict,
}

/// An acceptor's verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RpcVerdict {
    /// It promises. It had accepted `value` at ballot `accepted` (0: nothing).
    Promised {
        /// The ballot of the accepted value, 0 for none.
        accepted: u64,
        /// The accepted value; empty for none.
        value: Vec<u8>,
    },
    /// It has accepted.
    Accepted,
    /// It has promised a higher ballot.
    Rejected {
        /// The ballot that it has promised.
        min: u64,
    },
    /// Its word is not frozen: it must still be reached by CAS.
    NotFrozen {
        /// The word as it is now.
        word: u64,
    },
}

#[derive(Clone, Debug)]
struct Slot {
    view: ViewNumber,
    min: u64,
    accepted: u64,
    value: Vec<u8>,
}

/// The acceptor's side: one state per frozen slot, kept for the latest few views.
#[derive(Clone, Debug, Default)]
pub struct RpcAcceptor {
    slots: Vec<Slot>,
}

/// The number of slots kept. Views are decided one after the other, and no process proposes for a view whose successor is decided, except to learn.
const KEPT: usize = 8;

impl RpcAcceptor {
    /// Answers a request by the rules of Paxos. `None`: the acceptor cannot answer, because the value that the word names cannot be read, or because
    /// the slot was forgotten long ago. The proposer then continues without this acceptor.
    pub fn handle<F: Fabric>(&mut self, fabric: &F, request: RpcRequest) -> Option<RpcReply> {
        let RpcRequest { view, ballot, body } = request;
        let reply = |verdict| Some(RpcReply { view, ballot, verdict });
        let at = match self.slots.iter().position(|s| s.view == view) {
            Some(at) => at,
            None => match self.open(fabric, view)? {
                Ok(at) => at,
                Err(word) => {
                    Mark::RpcNotFrozen.reach();
                    return reply(RpcVerdict::NotFrozen { word });
                }
            },
        };
        let slot = &mut self.slots[at];
        match body {
            RpcBody::Prepare if ballot >= slot.min => {
                Mark::RpcPromised.reach();
                slot.min = ballot;
                reply(RpcVerdict::Promised { accepted: slot.accepted, value: slot.value.clone() })
            }
            RpcBody::Accept(value) if ballot >= slot.min || Canary::ForgottenPromise.is_planted() => {
                Mark::RpcAccepted.reach();
                (slot.min, slot.accepted, slot.value) = (ballot, ballot, value);
                reply(RpcVerdict::Accepted)
            }
            RpcBody::Prepare | RpcBody::Accept(_) => {
                Mark::RpcRejected.reach();
                reply(RpcVerdict::Rejected { min: slot.min })
            }
        }
    }

    /// Takes over a frozen slot from its word. `Err`: the slot is not frozen, and this is its word.
    fn open<F: Fabric>(&mut self, fabric: &F, view: ViewNumber) -> Option<Result<usize, u64>> {
        if view.0 > LAST_VIEW {
            return None; // beyond what a word can count: no view of ours
        }
        let words = fabric.memory(LocalRegion::Public(SLOT_WORDS))?;
        // Sequentially consistent, like every CAS on the word: a frozen word is seen to be frozen.
        let word = SlotWord(words[ballot::slot_of(view)].load(Ordering::SeqCst));
        let state = word.state_in(ballot::generation_of(view))?;
        if state.min != FROZEN {
            return Some(Err(word.0));
        }
        let mut value = Vec::new();
        if state.accepted != 0 {
            Mark::RpcOpenedAccepted.reach();
            let position = usize::from(state.value).checked_sub(1).filter(|p| *p < MAX_MEMBERS)?;
            let proposals = fabric.memory(LocalRegion::Public(PROPOSALS))?;
            value = adoptable(&proposals[proposal_offset(position, view, false) / 8..], view, state.accepted)?;
        }
        if self.slots.len() == KEPT {
            let oldest = (0..KEPT).min_by_key(|&i| self.slots[i].view).expect("not empty");
            if self.slots[oldest].view > view {
                return None;
            }
            self.slots.swap_remove(oldest);
        }
        Mark::RpcOpened.reach();
        self.slots.push(Slot { view, min: u64::from(FROZEN), accepted: u64::from(state.accepted), value });
        Some(Ok(self.slots.len() - 1))
    }
}
