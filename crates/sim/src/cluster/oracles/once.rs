//! Exactly once: a client's write is in the committed log at one index only, however often it was sent and whichever nodes led (TRAPS 19).

use hashbrown::HashMap;
use martlet_protocol::basics::ProcessId;

use crate::cluster::node::machine::{Request, Taken};

/// The index of each write.
#[derive(Debug, Default)]
pub struct ExactlyOnce {
    places: HashMap<Request, u64>,
}

impl ExactlyOnce {
    /// Whether the committed log, as far as any process has shown it, holds this write.
    pub fn holds(&self, client: u64, number: u64) -> bool {
        self.places.contains_key(&(client, number))
    }

    /// `by` knows this entry to be committed.
    pub fn judge(&mut self, by: ProcessId, entry: Taken) -> Result<(), String> {
        let place = *self.places.entry(entry.request).or_insert(entry.index.0);
        if place == entry.index.0 {
            return Ok(());
        }
        let (client, number) = entry.request;
        Err(format!("request {number} of client {client} took effect twice: entry {place} of the log, and entry {} at {by}", entry.index))
    }
}
