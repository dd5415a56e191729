//! The orderly end of a life: nobody waits for who has said goodbye.

use martlet_protocol::duty::Host;
use martlet_protocol::engine::Engine;
use martlet_protocol::membership::{Roles, View};
use martlet_protocol::replica::{Application, Standing};

use super::life::Life;
use crate::backend::Backend;
use crate::clock;
use crate::counters::EventKind;
use crate::engine::NodeEngine;
use crate::stop::Stop;

/// How long a node that ends waits for the others to take note, in nanoseconds. If they don't, its death words tell them.
const LEAVE_PATIENCE_NS: u64 = 500_000_000;
/// How long a node that ends while nobody else holds the whole state waits for a learner to have it, in nanoseconds.
const HAND_OVER_PATIENCE_NS: u64 = 10_000_000_000;

impl<F: Backend, E: NodeEngine, A: Application> Life<F, E, A> {
    /// Leaves the cluster in order: what was executed is answered, a learner gets the state if nobody else has it, and the others
    /// remove this process. A second request cuts it short. Returns whether the others have removed it.
    pub(super) fn leave(&mut self, stop: &Stop) -> bool {
        let asked = stop.requests();
        let start = clock::now();
        let patient = |patience| stop.requests() <= asked.max(1) && clock::now() < start.after(patience);
        // The last whole copy is not given up while somebody is about to have it.
        while patient(HAND_OVER_PATIENCE_NS) && self.is_last_copy() && !self.is_over() {
            self.patient_turn();
        }
        self.agent.cycle.serving = false;
        self.agent.instruments.leaving = true;
        self.agent.record(EventKind::Leaving, Some(self.me), 0);
        let start = clock::now();
        let patient = |patience| stop.requests() <= asked.max(1) && clock::now() < start.after(patience);
        while patient(LEAVE_PATIENCE_NS) && !self.is_over() && self.is_answering() {
            self.patient_turn();
        }
        let member = &mut self.agent.host.member;
        if !member.excluded {
            member.now = clock::now();
            member.core.leave(member.now, &mut member.fabric);
            self.agent.take_membership_events();
        }
        while patient(LEAVE_PATIENCE_NS) && !self.agent.host.member.excluded {
            self.patient_turn();
        }
        // A leader that has a quorum of its own takes itself out of it, or the others might lack a majority.
        let hands_over = |host: &Host<F, E, A::Machine>| {
            E::TRAITS.commits_by_majority() && host.engine.standing() == Standing::Primary && !host.engine.is_alone()
        };
        while patient(LEAVE_PATIENCE_NS) && hands_over(&self.agent.host) {
            self.patient_turn();
        }
        self.agent.host.member.excluded
    }

    fn is_over(&self) -> bool {
        self.agent.host.member.excluded || self.agent.host.unfit
    }

    /// Whether this is the only replica, and there is a learner on its way.
    fn is_last_copy(&self) -> bool {
        let host = &self.agent.host;
        let learner = host.member.core.view().is_some_and(|v: &View| v.with_roles(Roles::LEARNER).next().is_some());
        learner && host.engine.is_alone()
    }

    /// Whether, as primary, replies to what has been executed are still to come.
    fn is_answering(&self) -> bool {
        owes_answers(&self.agent.host.engine)
    }
}

/// Whether this replica leads, and replies to what it has executed wait for something: that it is replicated, for the next look at the lease, or for what the
/// coordinators say. Once it leaves, nobody is asked any more.
fn owes_answers(engine: &impl Engine) -> bool {
    let unreleased = || engine.released().0 + 1 < engine.ticket().0;
    engine.standing() == Standing::Primary && (engine.committed() != engine.last() || unreleased() || engine.wants_round())
}

#[cfg(test)]
mod tests {
    use martlet_protocol::replica::{Application, NoState, Replica};

    use super::owes_answers;
    use crate::agent::tests::alone;

    /// Asks for nothing.
    struct Nothing;

    impl Application for Nothing {
        type Machine = NoState;

        fn poll<R: Replica<Machine = NoState>>(&mut self, _: &mut R) -> usize {
            0
        }

        fn release<R: Replica<Machine = NoState>>(&mut self, _: &mut R) -> usize {
            0
        }
    }

    #[test]
    fn a_leader_that_ends_answers_first_what_waits_for_the_coordinators() {
        let (mut agent, _other) = alone(Nothing, NoState);
        for _ in 0..8 {
            agent.turn();
        }
        assert!(!owes_answers(&agent.host.engine));
        // A turn in which somebody reads by quorum, up to where the coordinators would be asked.
        let host = &mut agent.host;
        host.engine.ticket_by_quorum();
        host.engine.post(host.member.now, &mut host.member.fabric, &mut host.machine);
        let view = host.engine.view();
        host.engine.advance(host.member.now, Some(view), &mut host.member.fabric, &mut host.machine);
        assert!(host.engine.released().0 + 1 >= host.engine.ticket().0, "the lease would have it answered");
        assert!(owes_answers(&host.engine));
        for _ in 0..8 {
            agent.turn();
        }
        assert!(!owes_answers(&agent.host.engine));
    }
}
