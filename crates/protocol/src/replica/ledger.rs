//! The engine's side of the journal: bytes that the node has not taken, what was taken but is not stable, and whether there is a snapshot that all of it
//! continues.

use std::collections::VecDeque;

use crate::basics::LogIndex;

/// What has been written down, in order. `R` is what an engine needs to know to be stable: how far its log reaches, and what it has promised.
#[derive(Debug, Default)]
pub struct Ledger<R> {
    /// Entries that the node has not taken.
    pending: Vec<u8>,
    /// What was taken but is not stable, with the node's tickets.
    taken: VecDeque<(u64, R)>,
    stable: R,
    /// Counts the times that the log stopped continuing what was written before.
    chain: u64,
    /// The chain at whose beginning there is a stable snapshot, if there is one.
    anchored: Option<u64>,
    /// Whether any snapshot of this life is stable, so that there is something to recover from, even if it is an earlier log that this one no longer continues.
    kept: bool,
    /// Up to where a snapshot shows entries that were not known to be committed.
    shown: LogIndex,
}

impl<R: Copy + Default> Ledger<R> {
    /// Continues after a recovery, with a log up to `reach`; `anchored`: what is written now continues the snapshot that was recovered from.
    pub fn after_recovery(reach: R, anchored: bool) -> Ledger<R> {
        Ledger { stable: reach, anchored: anchored.then_some(0), kept: true, ..Ledger::default() }
    }

    /// Writes an entry; `breaks_off`: with it the log stops continuing what was written before.
    pub fn write(&mut self, breaks_off: bool, encode: impl FnOnce(&mut Vec<u8>)) {
        if breaks_off {
            self.chain += 1;
            self.shown = LogIndex(0);
        }
        encode(&mut self.pending);
    }

    /// A snapshot shows entries up to this one that are not known to be committed. If any of them is cut off, the snapshot is worthless.
    pub fn note_shown(&mut self, index: LogIndex) {
        self.shown = index;
    }

    /// Up to where a snapshot shows entries that were not known to be committed; 0 for none.
    pub fn shown(&self) -> LogIndex {
        self.shown
    }

    /// What the node has not taken.
    pub fn pending(&self) -> &[u8] {
        &self.pending
    }

    /// The node has taken what was pending, under this ticket. The log now reaches up to `reach`.
    pub fn note_taken(&mut self, ticket: u64, reach: R) {
        self.pending.clear();
        self.taken.push_back((ticket, reach));
    }

    /// Everything with a ticket up to this one is stable.
    pub fn note_stable(&mut self, ticket: u64) {
        while let Some((_, reach)) = self.taken.front().filter(|(taken, _)| *taken <= ticket) {
            self.stable = *reach;
            self.taken.pop_front();
        }
    }

    /// How far the stable part reaches.
    pub fn stable(&self) -> R {
        self.stable
    }

    /// Counts the times that the log stopped continuing what was written before.
    pub fn chain(&self) -> u64 {
        self.chain
    }

    /// A snapshot of that chain's beginning is stable.
    pub fn note_snapshot(&mut self, chain: u64) {
        (self.anchored, self.kept) = (Some(chain), true);
    }

    /// Whether this life could be recovered.
    pub fn is_kept(&self) -> bool {
        self.kept
    }

    /// Whether what is written now continues a stable snapshot.
    pub fn is_anchored(&self) -> bool {
        self.anchored == Some(self.chain)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_taken_counts_when_its_ticket_is_stable_and_from_a_snapshot_on_only() {
        let mut ledger = Ledger::<u64>::default();
        ledger.write(true, |out| out.push(1));
        assert_eq!((ledger.pending(), ledger.is_anchored(), ledger.is_kept()), (&[1][..], false, false));
        ledger.note_taken(1, 10);
        ledger.write(false, |out| out.push(2));
        ledger.note_taken(2, 20);
        assert_eq!((ledger.pending(), ledger.stable()), (&[][..], 0));
        ledger.note_stable(1);
        assert_eq!(ledger.stable(), 10);
        ledger.note_snapshot(ledger.chain());
        assert!(ledger.is_anchored() && ledger.is_kept());
        ledger.note_shown(LogIndex(7));
        ledger.write(true, |out| out.push(3));
        assert!(!ledger.is_anchored() && ledger.is_kept(), "what it was before the break can be come back as");
        assert_eq!(ledger.shown(), LogIndex(0), "that was another log's");
    }
}
