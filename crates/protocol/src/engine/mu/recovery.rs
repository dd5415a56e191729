//! Continuing from one log alone, when a majority of its group is lost for good.

use martlet_fabric::{Fabric, PeerId};

use super::leading::ring_of;
use super::log::{Log, Mark};
use super::{Config, Durability, Group, Mu};
use crate::basics::{ProcessId, ViewNumber};
use crate::engine::Gathered;
use crate::engine::mu::journal::Journal;
use crate::replica::StateMachine;

impl Mu {
    /// Everything acknowledged that is here at all is in the log or in the lane of the permission's holder. All of that is taken as committed.
    pub(super) fn gather_all<F: Fabric, S: StateMachine>(&mut self, fabric: &mut F, machine: &mut S) -> Option<Gathered> {
        if let Some(holder) = self.permission.holder.filter(|holder| *holder != PeerId::SELF) {
            while self.drain(holder, usize::MAX, fabric, machine) {}
        }
        let Mark { index, position } = self.log.tail();
        self.log.advance(ring_of(fabric), machine, index);
        let number = self.ballot().max(self.log.highest_ballot());
        // A process that has recovered from its disk knows of no view except through its group.
        let view = self.view().max(self.group().map_or(ViewNumber(0), Group::view));
        self.log.is_complete().then_some(Gathered { last: index, position, number, view })
    }

    /// A log that begins after everything that was gathered, of a group that consists of this process.
    pub(super) fn begun_with(me: ProcessId, config: Config, gathered: &Gathered) -> Mu {
        let mut mu = Mu::new(me, config, Some(Group::new(vec![me]).as_of(gathered.first_view())));
        let group = mu.log.group().cloned().expect("just given");
        let mark = Mark { index: gathered.last, position: gathered.position };
        mu.log = Log::behind(config.log_ring_bytes, group, mark, gathered.later_number());
        if config.durability != Durability::Memory {
            mu.log.begin_journal(Box::new(Journal::new(0)));
        }
        mu
    }
}
