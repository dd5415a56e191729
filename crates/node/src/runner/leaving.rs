//! The orderly end of a life: no process has to wait for one that has said goodbye.

use std::time::Duration;

use martlet_protocol::engine::{Leaving, LeavingPatience, LeavingStep};
use martlet_protocol::replica::Application;

use super::life::Life;
use crate::backend::Backend;
use crate::clock;
use crate::counters::EventKind;
use crate::engine::NodeEngine;
use crate::stop::Stop;

/// For how long a node that ends waits for others. With durability `sync`, the fact that its vote is no longer needed has to be on the disks of those that
/// stay, and those disks may be slow.
const PATIENCE: LeavingPatience = LeavingPatience { last_copy_ns: 10_000_000_000, leave_ns: 500_000_000, needed_ns: 10_000_000_000 };

/// How long a node that was asked to end may take. A node that takes longer hangs.
pub const LONGEST_END: Duration = Duration::from_nanos(PATIENCE.in_all_ns());

impl<F: Backend, E: NodeEngine, A: Application> Life<F, E, A> {
    /// Leaves the cluster in order: what was executed is answered; if no other replica has the state, a learner gets it; and the others remove this process
    /// ([`Leaving`]). A second request cuts this short. Returns whether the others have removed the process.
    pub(super) fn leave(&mut self, stop: &Stop) -> bool {
        let asked = stop.requests();
        let mut leaving = Leaving::new(clock::now(), PATIENCE);
        loop {
            if stop.requests() > asked.max(1) {
                leaving.hurry();
            }
            let host = &self.agent.host;
            match leaving.step::<F, _>(clock::now(), &host.member.core, &host.engine, host.member.excluded, host.unfit) {
                LeavingStep::Turn => self.patient_turn(),
                LeavingStep::StopServing => {
                    self.agent.cycle.serving = false;
                    self.agent.instruments.leaving = true;
                    self.agent.record(EventKind::Leaving, Some(self.me), 0);
                }
                LeavingStep::Leave => {
                    let member = &mut self.agent.host.member;
                    member.now = clock::now();
                    member.core.leave(member.now, &mut member.fabric);
                    self.agent.take_membership_events();
                }
                LeavingStep::End => {
                    if host.member.core.view().is_some() && host.engine.is_needed() {
                        tracing::warn!(
                            "this node ends while the others still need its vote: they may be unable to serve until it is started again"
                        );
                    }
                    return host.member.excluded;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use martlet_protocol::engine::{Engine as _, owes_answers};
    use martlet_protocol::replica::{Application, NoState, Replica};

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
        // A turn with a quorum read, up to where it would ask the coordinators.
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
