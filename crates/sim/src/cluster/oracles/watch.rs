//! What the oracles see: what has happened at a process, and what the acceptors' memory holds.

use martlet_fabric::primitive::Ordering;
use martlet_fabric::sim::World;
use martlet_protocol::basics::ballot::{self, SlotWord};
use martlet_protocol::basics::layout::{PROPOSALS, SLOT_WORDS, VIEW_RECORD_BYTES};
use martlet_protocol::basics::{ViewNumber, sealed};
use martlet_protocol::consensus::cas::proposal_offset;

use super::Acceptor;
use crate::cluster::engine::Engine;
use crate::cluster::life::Cluster;
use crate::cluster::node::Notable;

impl<E: Engine, const HOST: bool> Cluster<E, HOST> {
    /// Shows the oracles what has happened at a process.
    pub(in crate::cluster) fn look_at(&mut self, process: usize) {
        let now = self.world.now();
        let Some(node) = &mut self.nodes[process] else { return };
        if node.notable.is_empty() {
            return;
        }
        let (me, mut notable) = (node.me(), std::mem::take(&mut node.notable));
        for what in notable.drain(..) {
            match what {
                Notable::Learned(view) => {
                    let (world, processes) = (&self.world, &self.processes);
                    self.oracles.learned(now, me, &view, |id| acceptor(world, *processes.get(&id)?, view.number));
                }
                Notable::Step(milestone) => self.oracles.story.step(now, me, milestone),
                Notable::Asked => self.oracles.story.tell(now, || format!("{me} asks for permission to lead")),
                Notable::Permitted => self.oracles.story.tell(now, || format!("{me} has the permission of a majority")),
                Notable::TookOver { view, recovered } => {
                    self.oracles.takeovers += 1;
                    let found = if recovered == 0 { String::new() } else { format!(", with {recovered} entries recovered") };
                    self.oracles.story.tell(now, || format!("{me} has taken over as primary of view {view}{found}"));
                }
                Notable::SteppedDown => self.oracles.story.tell(now, || format!("{me} leads no longer")),
                Notable::Committed(taken) => self.oracles.committed(now, me, taken),
                Notable::Wrong(property, what) => self.oracles.violated(now, property, what),
            }
        }
        if let Some(node) = &mut self.nodes[process] {
            node.notable = notable;
        }
    }
}

/// What an acceptor's memory holds about the view with that number; `None` when its slot has been reused.
fn acceptor<const HOST: bool>(world: &World<HOST>, process: usize, view: ViewNumber) -> Option<Acceptor> {
    let word = world.look(process, SLOT_WORDS, |words| words[ballot::slot_of(view)].load(Ordering::Acquire));
    let word = SlotWord(word).state_in(ballot::generation_of(view))?;
    let Some(proposer) = usize::from(word.value).checked_sub(1) else { return Some(Acceptor { word, records: Vec::new() }) };
    let records = world.look(process, PROPOSALS, |words| {
        let record = |second| {
            let at = proposal_offset(proposer, view, second) / 8;
            sealed::read(&words[at..at + VIEW_RECORD_BYTES / 8])
        };
        [false, true].into_iter().filter_map(record).collect()
    });
    Some(Acceptor { word, records })
}
