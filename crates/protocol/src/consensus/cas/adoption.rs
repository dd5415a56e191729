//! Adoption: a proposer that wins a prepare phase proposes what was accepted at the highest ballot (line 27 of Algorithm 5). It reads that value from
//! an acceptor's memory.

use martlet_fabric::{Fabric, Local, LocalRegion, Memory, OpError, Region, Remote};

use super::{Acceptor, Op, Outcome, Phase, Proposer, Vote, proposal_offset};
use crate::basics::ballot::{SlotState, SlotWord};
use crate::basics::layout::{PROPOSALS, SCRATCH, VIEW_RECORD_BYTES};
use crate::basics::{Canary, Mark, ViewNumber, sealed};

impl Proposer {
    /// The prepare phase is won: adopts what was accepted at the highest ballot, if anything was.
    pub(super) fn adopt<F: Fabric>(&mut self, fabric: &mut F) -> Option<Outcome> {
        let promising = |a: &&mut Acceptor| a.vote == Vote::Yes;
        if self.by_rpc() {
            // An acceptor that is reached by RPC reports the value itself.
            let reported = self.acceptors.iter_mut().filter(promising).filter_map(|a| a.promised.take());
            let (view, makes_sense) = (self.view, self.makes_sense);
            let sound = reported.filter(|(accepted, value)| *accepted > 0 && makes_sense(view, value));
            let highest = sound.max_by_key(|(accepted, _)| *accepted);
            self.adopted = highest.map(|(_, value)| value);
            if self.adopted.is_some() {
                Mark::RpcAdopted.reach();
            }
            return self.prepared(fabric);
        }
        let states = self.acceptors.iter().filter(|a| a.vote == Vote::Yes);
        let highest = states.filter_map(|a| SlotWord(a.predicted).state_in(self.generation)).max_by_key(|s| s.accepted).unwrap_or_default();
        if highest.accepted == 0 || Canary::SkippedAdoption.is_planted() {
            return self.prepared(fabric);
        }
        Mark::CasFetching.reach();
        self.fetch(fabric, highest)
    }

    /// Reads the accepted value from the next acceptor that holds it and has not been tried.
    fn fetch<F: Fabric>(&mut self, fabric: &mut F, accepted: SlotState) -> Option<Outcome> {
        let holds = |a: &Acceptor| {
            let state = SlotWord(a.predicted).state_in(self.generation);
            a.peer.is_some() && state.is_some_and(|s| (s.accepted, s.value) == (accepted.accepted, accepted.value))
        };
        let next = (0..self.acceptors.len()).find(|&i| self.tried & (1 << i) == 0 && holds(&self.acceptors[i]));
        let proposer = usize::from(accepted.value).checked_sub(1).filter(|p| *p < self.acceptors.len());
        let (Some(i), Some(proposer)) = (next, proposer) else {
            if self.tried != 0 && self.tried == self.senseless {
                // No proposer will ever decide the accepted value: go on as if there were none.
                return self.prepared(fabric);
            }
            self.phase = Phase::Idle;
            return Some(Outcome::Aborted);
        };
        self.tried |= 1 << i;
        self.phase = Phase::Fetching { from: i, accepted };
        let offset = proposal_offset(proposer, self.view, false);
        let peer = self.acceptors[i].peer.expect("its word has been seen");
        let from = Remote { peer, region: Region::Public(PROPOSALS), offset };
        let into = Local { region: LocalRegion::Public(SCRATCH), offset: i * 2 * VIEW_RECORD_BYTES };
        let token = self.token(Op::Fetch, i);
        fabric.read(from, into, 2 * VIEW_RECORD_BYTES, token);
        None
    }

    pub(super) fn handle_fetch<F: Fabric>(&mut self, fabric: &mut F, i: usize, result: Result<u64, OpError>) -> Option<Outcome> {
        let Phase::Fetching { from, accepted } = self.phase else { return None };
        if from != i {
            return None;
        }
        let mut found = None;
        if result.is_ok() {
            let scratch = fabric.memory(LocalRegion::Public(SCRATCH)).expect("every process has a scratch region");
            found = adoptable(&scratch[i * 2 * VIEW_RECORD_BYTES / 8..], self.view, accepted.accepted);
        }
        if found.take_if(|value| !(self.makes_sense)(self.view, value)).is_some() {
            self.senseless |= 1 << i;
        }
        match found {
            Some(value) => {
                Mark::CasAdopted.reach();
                self.adopted = Some(value);
                self.prepared(fabric)
            }
            None => {
                Mark::CasFetchFailed.reach();
                self.fetch(fabric, accepted)
            }
        }
    }
}

/// The value that a slot word with this accepted ballot refers to, from the two records of its proposer. The [module](super) explains why it is the
/// record with the lowest ballot at or above the accepted one.
pub(in crate::consensus) fn adoptable(records: &Memory, view: ViewNumber, accepted: u16) -> Option<Vec<u8>> {
    let (first, rest) = records.split_at(VIEW_RECORD_BYTES / 8);
    let second = &rest[..VIEW_RECORD_BYTES / 8];
    let whole = [first, second].into_iter().filter_map(sealed::read);
    let fitting = whole.filter(|r| r.subject == view.0 && r.ballot >= u64::from(accepted));
    fitting.min_by_key(|r| r.ballot).map(|r| r.payload)
}
