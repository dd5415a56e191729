//! Agreement on the log: all who know an entry of one index to be committed hold the same one. (That nobody has a gap is seen by each replica's
//! machine.)

use std::collections::HashMap;

use martlet_protocol::basics::ProcessId;

use super::super::machine::Taken;

/// The committed log, as far as anybody has seen it.
#[derive(Debug, Default)]
pub struct LogAgreement {
    digests: HashMap<u64, (u64, ProcessId)>,
}

impl LogAgreement {
    /// `by` holds this entry and knows it to be committed.
    pub fn judge(&mut self, by: ProcessId, entry: Taken) -> Result<(), String> {
        let (digest, first) = *self.digests.entry(entry.index.0).or_insert((entry.digest, by));
        if digest == entry.digest {
            Ok(())
        } else {
            Err(format!("entry {} of the log is one thing at {by} and another at {first}", entry.index))
        }
    }
}
