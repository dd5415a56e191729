//! Strikes at every step of a phase, on several threads.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::attempt::catch;
use crate::cluster::{Blow, Harm, NODES, Phase, Plan, Property, Violation};

/// The combined results for all steps of a phase.
#[derive(Clone, Debug, Default)]
pub struct Walk {
    /// How many steps the phase has.
    pub steps: u64,
    /// How many lives were run.
    pub lives: u64,
    /// Lives in which the blow was dealt. In the others the node was needed, or was down already.
    pub dealt: u64,
    /// The first life that went wrong.
    pub failure: Option<(Blow, Violation)>,
}

/// Runs a life for every `stride`th step of a phase, for every node and every harm.
pub fn every_step(phase: &Phase, seed: u64, stride: u64, jobs: usize, stop: &AtomicBool) -> Walk {
    let blow = Blow { victim: 0, harm: Harm::Pause, step: u64::MAX };
    let steps = match catch(|| phase.steps(seed)) {
        Ok((steps, report)) => match report.violation {
            None => steps,
            Some(violation) => return Walk { steps, lives: 1, failure: Some((blow, violation)), ..Walk::default() },
        },
        Err((at_ns, what, _)) => {
            let violation = Violation { at_ns, property: Property::Invariant, what };
            return Walk { lives: 1, failure: Some((blow, violation)), ..Walk::default() };
        }
    };
    let blows: Vec<Blow> = (0..steps)
        .step_by(stride.max(1) as usize)
        .flat_map(|step| NODES.flat_map(move |victim| [Harm::Crash, Harm::Pause].map(|harm| Blow { victim, harm, step })))
        .collect();
    let (next, dealt) = (AtomicU64::new(0), AtomicU64::new(0));
    let failure = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) && failure.lock().unwrap_or_else(PoisonError::into_inner).is_none() {
                    let Some(blow) = blows.get(next.fetch_add(1, Ordering::Relaxed) as usize) else { return };
                    let violation = match catch(|| phase.struck(&Plan::new(seed), *blow)) {
                        Ok((was, report, _)) => {
                            dealt.fetch_add(u64::from(was), Ordering::Relaxed);
                            report.violation
                        }
                        Err((at_ns, what, _)) => Some(Violation { at_ns, property: Property::Invariant, what }),
                    };
                    if let Some(violation) = violation {
                        failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert((*blow, violation));
                    }
                }
            });
        }
    });
    Walk {
        steps,
        lives: next.into_inner().min(blows.len() as u64),
        dealt: dealt.into_inner(),
        failure: failure.into_inner().unwrap_or_else(PoisonError::into_inner),
    }
}

/// The story of one of those lives, and what went wrong in it.
pub fn tell_blow(phase: &Phase, seed: u64, blow: Blow) -> (Option<Violation>, String) {
    match catch(|| phase.struck(&Plan { narrate: true, ..Plan::new(seed) }, blow)) {
        Ok((_, report, story)) => (report.violation, story),
        Err((at_ns, what, story)) => (Some(Violation { at_ns, property: Property::Invariant, what }), story),
    }
}
