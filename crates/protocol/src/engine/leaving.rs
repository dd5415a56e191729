//! The orderly end of a replica: what it does before it goes, and what it waits for, so that nobody has to wait for it afterwards.

use martlet_fabric::Fabric;

use super::Engine;
use crate::basics::Time;
use crate::membership::{Core, Roles};
use crate::replica::Standing;

/// For how long a replica that ends waits for others, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeavingPatience {
    /// As the only one that holds the state, for a learner to hold it too.
    pub last_copy_ns: u64,
    /// For the others to remove it from the view. If they don't, its death tells them.
    pub leave_ns: u64,
    /// For those who stay to need its vote no more, among the coordinators and in the engine. If it goes before, they may lack a majority until it is back.
    pub needed_ns: u64,
}

impl LeavingPatience {
    /// How long the end of a replica lasts at most.
    pub const fn in_all_ns(self) -> u64 {
        // What follows the answers is one wait.
        let last = if self.leave_ns > self.needed_ns { self.leave_ns } else { self.needed_ns };
        self.last_copy_ns + self.leave_ns + last
    }
}

/// What a replica that ends is to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeavingStep {
    /// Have another turn.
    Turn,
    /// Take no more requests.
    StopServing,
    /// Ask to be removed ([`Core::leave`]).
    Leave,
    /// End.
    End,
}

/// A replica that ends. It goes through its stages one after the other, and each lasts as long as somebody needs that and patience allows.
#[derive(Debug)]
pub struct Leaving {
    stage: Stage,
    /// Since when the present wait lasts.
    since: Time,
    patience: LeavingPatience,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It serves as ever: the last whole copy is not given up while somebody is about to have it.
    Serves,
    /// What was executed is answered.
    Answers,
    /// The others remove it from the view.
    Asks,
    /// The engine goes on without it.
    IsNeeded,
}

impl Leaving {
    /// Begins to end at `now`.
    pub fn new(now: Time, patience: LeavingPatience) -> Leaving {
        Leaving { stage: Stage::Serves, since: now, patience }
    }

    /// It has been asked to end once more: from now on it waits for nothing.
    pub fn hurry(&mut self) {
        self.patience = LeavingPatience { last_copy_ns: 0, leave_ns: 0, needed_ns: 0 };
    }

    /// What it is to do now, on this fabric. `excluded`: a view without it has been decided; `unfit`: its engine cannot go on.
    ///
    /// Where the memory of the dead can be reached, those who stay need no coordinator that has ended.
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
            // For both majorities that may need it, it waits once.
            Stage::Asks => {
                self.stage = Stage::IsNeeded;
                LeavingStep::Turn
            }
            // A process that knows no view is part of nothing that goes on.
            Stage::IsNeeded if within(self.patience.needed_ns) && core.view().is_some() && engine.is_needed() => LeavingStep::Turn,
            Stage::IsNeeded => LeavingStep::End,
        }
    }
}

/// Whether this is the only replica that holds the state, and there is a learner on its way.
fn is_last_copy(core: &Core, engine: &impl Engine) -> bool {
    engine.is_alone() && core.view().is_some_and(|view| view.with_roles(Roles::LEARNER).next().is_some())
}

/// Whether this replica leads, and replies to what it has executed wait for something: that it is replicated, for the next look at the lease, or for what the
/// coordinators say. Once it leaves, nobody is asked any more.
pub fn owes_answers(engine: &impl Engine) -> bool {
    let unreleased = || engine.released().0 + 1 < engine.ticket().0;
    engine.standing() == Standing::Primary && (engine.committed() != engine.last() || unreleased() || engine.wants_round())
}
