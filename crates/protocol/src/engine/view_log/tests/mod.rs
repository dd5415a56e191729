//! The engine in a small world of its own, whose every step the test chooses.

mod commit;
mod failover;
mod hostile;
mod learning;
mod random;
mod recovery;
mod simulated;
pub(in crate::engine) mod world;

use super::*;
use crate::membership::Roles;

impl<R: Rule> ViewLog<R> {
    /// A replica of its view that holds the whole state and does not lead.
    fn follows_as_whole_replica(&self) -> bool {
        let replica = self.view.as_ref().and_then(|v| v.member(self.me)).is_some_and(|m| m.roles.has(Roles::REPLICA));
        replica && matches!(self.role, Role::Backup | Role::Candidate) && self.chain.origin() != Origin::Learning
    }
}
