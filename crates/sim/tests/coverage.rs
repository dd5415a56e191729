//! Default lives come by every transition of the state machines: where they never are they prove nothing.

use std::sync::atomic::AtomicBool;

use martlet_protocol::basics::Mark;
use martlet_sim::cluster::Changes;
use martlet_sim::coverage::RARE;
use martlet_sim::hunt::{Cast, Hunt, hunt};

/// Seeds, dealt to the kinds of cluster.
const SEEDS: u64 = 4_000;

#[test]
fn default_lives_reach_every_mark() {
    let lives = Hunt { cast: Cast::Dealt, first: 0, seeds: SEEDS, most: None, jobs: 2, changes: Changes::default(), canary: None };
    let summary = hunt(&lives, &AtomicBool::new(false), |_, _| {}, |_| {});
    if let Some(failure) = &summary.failure {
        panic!("seed {} on {}: {}", failure.plan.seed, failure.kind, failure.violation);
    }
    for mark in Mark::ALL {
        println!("{:>12} {}", summary.coverage.of(*mark), mark.name());
    }
    let is_rare = |mark: &Mark| RARE.iter().any(|(rare, _)| rare == mark);
    let missed: Vec<&str> = summary.coverage.missed().into_iter().filter(|mark| !is_rare(mark)).map(Mark::name).collect();
    assert!(missed.is_empty(), "{} lives never come by {missed:?}", summary.lives);
}
