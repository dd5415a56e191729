//! No acknowledged write is lost: when all is quiet, every replica remembers each client's newest acknowledged write, or a later write of that client.

use std::collections::BTreeMap;

use martlet_protocol::basics::ProcessId;

use crate::cluster::node::machine::Machine;

/// For each client, its newest write that it got a reply to.
#[derive(Debug, Default)]
pub struct Acknowledged {
    newest: BTreeMap<u64, u64>,
}

impl Acknowledged {
    /// A client got a reply to this write.
    pub fn note(&mut self, client: u64, number: u64) {
        let newest = self.newest.entry(client).or_default();
        *newest = number.max(*newest);
    }

    /// All is quiet, and this replica holds the whole state.
    pub fn judge(&self, replica: ProcessId, machine: &Machine) -> Result<(), String> {
        for (client, number) in &self.newest {
            let held = machine.session(*client).map_or(0, |(held, _)| held);
            if held < *number {
                return Err(format!("write {number} of client {client} was acknowledged, and {replica} knows only {held}"));
            }
        }
        Ok(())
    }
}
