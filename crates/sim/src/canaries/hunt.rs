//! Looking for a bug that has been planted.

use martlet_fabric::probe;

use super::Bug;
use crate::cluster::{KINDS, Plan, Violation};
use crate::hunt::attempt;

/// What a hunt came to.
#[derive(Clone, Debug)]
pub struct Found {
    /// The seed of the life in which the bug came to light.
    pub seed: u64,
    /// What was violated first.
    pub violation: Violation,
}

/// Lives default lives with the bug in them, from seed 0 on, `lives` at most, up to the first violation.
///
/// # Panics
/// When the life in which it comes to light is not clean without it.
pub fn hunt(bug: Bug, lives: u64) -> Option<Found> {
    let found = (0..lives).find_map(|seed| Some(Found { seed, violation: violation(seed, Some(bug.name))? }))?;
    if let Some(violation) = violation(found.seed, None) {
        panic!("seed {} is not clean without {} either: {violation}", found.seed, bug.name);
    }
    Some(found)
}

/// What goes wrong in a life of the first kind, with a bug in it or without.
fn violation(seed: u64, planted: Option<&'static str>) -> Option<Violation> {
    probe::plant(planted);
    let told = attempt(&KINDS[0], &Plan::new(seed));
    probe::plant(None);
    told.report.violation
}
