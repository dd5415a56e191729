//! Continuing from one replica alone, when the processes that decide on views are lost for good.

use martlet_fabric::Fabric;

use super::chain::{Chain, Origin};
use super::{Config, Role, Rule, ViewLog};
use crate::basics::ProcessId;
use crate::engine::Engine as _;
use crate::engine::Gathered;
use crate::replica::{Execution, StateMachine};

impl<R: Rule> ViewLog<R> {
    /// Everything acknowledged is in the memory of every replica of the view, so everything in ours is taken as committed.
    pub(super) fn gather_all<F: Fabric, S: StateMachine>(&mut self, fabric: &mut F, machine: &mut S) -> Option<Gathered> {
        let view = self.view();
        let gathered = |last| Gathered { last, view, ..Gathered::default() };
        match &mut self.role {
            Role::TakingOver(leading) | Role::Primary(leading) => {
                leading.execute_all(machine);
                return Some(gathered(leading.last()));
            }
            // What it executed may never have been committed, and others have continued without it.
            Role::Excluded => return None,
            Role::Backup | Role::Candidate => {}
        }
        self.drain(fabric, machine, usize::MAX);
        let whole = match self.chain.origin() {
            Origin::Whole => true,
            Origin::Genesis => self.listed && !self.learner,
            Origin::Learning => false,
        };
        if !whole {
            return None;
        }
        let (_, uncommitted) = self.chain.take_over(machine);
        if self.config.execution == Execution::Committed {
            uncommitted.iter().for_each(|(index, entry)| machine.apply(index, entry));
        }
        Some(gathered(uncommitted.last()))
    }

    /// A log that begins after everything that was gathered.
    pub(super) fn begun_with(me: ProcessId, config: Config, gathered: &Gathered) -> ViewLog<R> {
        ViewLog { chain: Chain::behind(gathered.last, config.execution), ..ViewLog::new(me, config) }
    }
}
