//! The orderly end of a replica: what it does before it leaves, and what it waits for, so that no other process has to wait for it afterwards.

use martlet_fabric::Fabric;

use super::Engine;
use crate::basics::Time;
use crate::membership::{Core, Roles};
use crate::replica::Standing;

/// How long an ending replica waits for others, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeavingPatience {
    /// As the only replica that holds the state: for a learner to hold it too.
    pub last_copy_ns: u64,
    /// For the others to remove it from the view. If they do not, they notice its death.
    pub leave_ns: u64,
    /// Until the remaining processes no longer need its vote, among the coordinators and in the engine. If it leaves earlier, they may lack a majority until it
    /// is back.
    pub needed_ns: u64,
}

impl LeavingPatience {
    /// How long the end of a replica lasts at most.
    pub const fn in_all_ns(self) -> u64 {
        // Everything after the replies is one wait.
        let last = if self.leave_ns > self.needed_ns { self.leave_ns } else { self.needed_ns };
        self.last_copy_ns + self.leave_ns + last
    }
}

/// What a replica that ends is to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeavingStep {
    /// Have another turn.
    Turn,
    /// Take no further requests.
    StopServing,
    /// Ask to be removed ([`Core::leave`]).
    Leave,
    /// End.
    End,
}

/// A replica that ends. It passes through its stages one after the other. Each lasts as long as other processes need it and the patience allows.
#[derive(Debug)]
pub struct Leaving {
    stage: Stage,
    /// Since when the present wait lasts.
    since: Time,
    patience: LeavingPatience,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It serves as usual: the last whole copy is not given up while a learner is about to complete one.
    Serves,
    /// Replies for executed requests go out.
    Answers,
    /// The others remove it from the view.
    Asks,
    /// The engine learns to do without it.
    IsNeeded,
}

impl Leaving {
    /// Begins to end at `now`.
    pub fn new(now: Time, patience: LeavingPatience) -> Leaving {
        Leaving { stage: Stage::Serves, since: now, patience }
    }

    /// It has been asked to end a second time, and from now on waits for nothing.
    pub fn hurry(&mut self) {
        self.patience = LeavingPatience { last_copy_ns: 0, leave_ns: 0, needed_ns: 0 };
    }

    /// What the replica is to do now. `excluded`: a view without it has been decided; `unfit`: its engine cannot continue.
    ///
    /// On a fabric where the memory of dead processes stays reachable, the remaining processes do not need an ending coordinator to wait.
    pub fn step<F: Fabric, E: Engine>(&mut self, now: Time, core: &Core, engine: &E, excluded: bool, unfit: bool) -> LeavingStep {
        let is_over = excluded || unfit;
        let within = |patience_ns| now.since(self.since) < patience_ns;
        let leave_ns = self.patience.leave_ns;
        match self.stage {
            Stage::Serves if within(self.patience.last_copy_ns) && !is_over && is_last_copy(core, engine) => LeavingStep::Turn,
            Stage::Serves => {
                (self.stage, self.since) = (Stage::Answers, now);
                LeavingStep::StopServing
            }
            Stage::Answers if within(leave_ns) && !is_over && owes_answers(engine) => LeavingStep::Turn,
            Stage::Answers => {
                (self.stage, self.since) = (Stage::Asks, now);
                if excluded { LeavingStep::Turn } else { LeavingStep::Leave }
            }
            Stage::Asks if within(leave_ns) && !excluded => LeavingStep::Turn,
            Stage::Asks if within(self.patience.needed_ns) && !is_over && !F::ZOMBIES_REACHABLE && core.is_needed() => LeavingStep::Turn,
            // It waits only once for both majorities that may need it.
            Stage::Asks => {
                self.stage = Stage::IsNeeded;
                LeavingStep::Turn
            }
            // A process that knows no view is in no group that could need it.
            Stage::IsNeeded if within(self.patience.needed_ns) && core.view().is_some() && engine.is_needed() => LeavingStep::Turn,
            Stage::IsNeeded => LeavingStep::End,
        }
    }
}

/// Whether this is the only replica that holds the state, and a learner is joining.
fn is_last_copy(core: &Core, engine: &impl Engine) -> bool {
    engine.is_alone() && core.view().is_some_and(|view| view.with_roles(Roles::LEARNER).next().is_some())
}

/// Whether this replica leads and still owes replies for what it has executed: they wait for replication, for the next check of the lease, or for the
/// coordinators' answers. Once it leaves, the coordinators are no longer asked.
pub fn owes_answers(engine: &impl Engine) -> bool {
    let unreleased = || engine.released().0 + 1 < engine.ticket().0;
    engine.standing() == Standing::Primary && (engine.committed() != engine.last() || unreleased() || engine.wants_round())
}
