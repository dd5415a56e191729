//! Agreement on the log: all processes that know the entry of some index to be committed hold the same entry, and none skips one. (Some entries are the
//! engine's own and reach no machine, so an index that no machine took is no gap.)

use hashbrown::HashMap;
use martlet_protocol::basics::{LogIndex, ProcessId};

use crate::cluster::node::machine::Taken;

/// The committed log, as far as any process has shown it.
#[derive(Debug, Default)]
pub struct LogAgreement {
    digests: HashMap<u64, (u64, ProcessId)>,
    /// Processes that have skipped entries: those after the first index and before the second.
    gaps: Vec<(ProcessId, LogIndex, LogIndex)>,
}

impl LogAgreement {
    /// `by` holds this entry and knows it to be committed.
    pub fn judge(&mut self, by: ProcessId, entry: Taken) -> Result<(), String> {
        let (digest, first) = *self.digests.entry(entry.index.0).or_insert((entry.digest, by));
        if digest != entry.digest {
            return Err(format!("entry {} of the log is one thing at {by} and another at {first}", entry.index));
        }
        if entry.after > LogIndex(0) && entry.after.next() < entry.index {
            let mut between = entry.after.0 + 1..entry.index.0;
            if let Some(index) = between.find(|index| self.digests.contains_key(index)) {
                return Err(missed(by, entry.after, entry.index, LogIndex(index)));
            }
            self.gaps.push((by, entry.after, entry.index));
        }
        match self.gaps.iter().find(|(_, before, after)| *before < entry.index && entry.index < *after) {
            Some((who, before, after)) => Err(missed(*who, *before, *after, entry.index)),
            None => Ok(()),
        }
    }
}

fn missed(who: ProcessId, before: LogIndex, after: LogIndex, index: LogIndex) -> String {
    format!("{who} has taken entry {after} of the log after entry {before}, and entry {index} stands between them")
}
