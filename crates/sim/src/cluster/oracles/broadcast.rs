//! A view that is broadcast is the one that was decided, not one that was only proposed (TRAPS 1): when a process learns a view, the acceptors' memory must say
//! the same.
//!
//! Once a value is decided at a ballot, every value accepted at that ballot or a higher one is the same (Paxos). So if any value is decided, it is the one
//! accepted at the highest ballot of all. Acceptors that have switched to RPC keep their values elsewhere; those slots are not judged.

use martlet_protocol::basics::ballot::{FROZEN, SlotState};
use martlet_protocol::basics::{ProcessId, sealed};
use martlet_protocol::membership::View;

/// What an acceptor's memory says about one slot.
#[derive(Clone, Debug)]
pub struct Acceptor {
    /// The slot's word, in the view's generation.
    pub word: SlotState,
    /// The two records of the proposer that the word names, unless they are torn.
    pub records: Vec<sealed::Sealed>,
}

/// The oracle.
#[derive(Debug, Default)]
pub struct DecidedIsBroadcast {
    /// How many views it was able to compare.
    pub seen: u64,
}

impl DecidedIsBroadcast {
    /// Judges a view that a process has learned, against the memory of the previous view's coordinators.
    pub fn judge(&mut self, before: &View, view: &View, acceptors: impl Fn(ProcessId) -> Option<Acceptor>) -> Result<(), String> {
        let mut highest: Option<Acceptor> = None;
        for coordinator in before.coordinators() {
            let Some(acceptor) = acceptors(coordinator.id) else { return Ok(()) };
            if acceptor.word.min == FROZEN {
                return Ok(());
            }
            if acceptor.word.accepted > highest.as_ref().map_or(0, |h| h.word.accepted) {
                highest = Some(acceptor);
            }
        }
        let Some(Acceptor { word, records }) = highest else {
            return Err(format!("view {} is learned, and no coordinator of view {} has accepted it", view.number, before.number));
        };
        let fitting = records.iter().filter(|r| r.subject == view.number.0 && r.ballot >= u64::from(word.accepted));
        let Some(record) = fitting.min_by_key(|r| r.ballot) else {
            return Err(format!("view {} is learned, and the record that its acceptors name is not there", view.number));
        };
        self.seen += 1;
        match View::decode(&record.payload) {
            Ok(decided) if decided == *view => Ok(()),
            Ok(decided) => Err(format!("view {} was decided as {decided:?} and learned as {view:?}", view.number)),
            Err(why) => Err(format!("view {} was decided as no view: {why}", view.number)),
        }
    }
}
