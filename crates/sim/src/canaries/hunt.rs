//! Looks for a planted bug.

use martlet_fabric::probe;

use super::Bug;
use crate::cluster::{Kind, Plan, Violation};
use crate::hunt::attempt;

/// The result of a hunt.
#[derive(Clone, Debug)]
pub struct Found {
    /// The seed of the life in which the bug came to light.
    pub seed: u64,
    /// What was violated first.
    pub violation: Violation,
}

/// Runs the lives of the bug's kind with the bug planted, one for each seed, up to the first violation.
///
/// # Panics
/// When the life that brings the bug to light is not clean without the bug.
pub fn hunt(bug: Bug, mut seeds: impl Iterator<Item = u64>) -> Option<Found> {
    let kind = Kind::named(bug.kind).expect("a bug names a kind that there is");
    let found = seeds.find_map(|seed| Some(Found { seed, violation: violation(kind, seed, Some(bug.name))? }))?;
    if let Some(violation) = violation(kind, found.seed, None) {
        panic!("seed {} is not clean without {} either: {violation}", found.seed, bug.name);
    }
    Some(found)
}

/// What goes wrong in a life, with a bug in it or without.
fn violation(kind: &Kind, seed: u64, planted: Option<&'static str>) -> Option<Violation> {
    probe::plant(planted);
    let told = attempt(kind, &Plan::new(seed));
    probe::plant(None);
    told.report.violation
}
