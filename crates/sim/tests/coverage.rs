//! Default lives and scenes together go through every transition of the state machines. They prove nothing about a transition that they never make.

use std::sync::atomic::AtomicBool;

use martlet_protocol::basics::Mark;
use martlet_sim::cluster::{Changes, SCENARIOS};
use martlet_sim::coverage::{Coverage, RARE};
use martlet_sim::hunt::{Cast, Hunt, hunt};

/// How many seeds there are; the kinds of cluster share them.
const SEEDS: u64 = 4_000;

#[test]
fn default_lives_and_scenes_reach_every_mark() {
    let lives = Hunt { cast: Cast::Dealt, first: 0, seeds: SEEDS, most: None, jobs: 2, changes: Changes::default(), canary: None };
    let summary = hunt(&lives, &AtomicBool::new(false), |_, _| {}, |_| {});
    if let Some(failure) = &summary.failure {
        panic!("seed {} on {}: {}", failure.plan.seed, failure.kind, failure.violation);
    }
    let mut coverage = summary.coverage;
    Coverage::take();
    for scene in SCENARIOS {
        let (report, told) = scene.told();
        assert_eq!(report.violation, None, "{}:\n{told}", scene.name);
        coverage += Coverage::take();
    }
    for mark in Mark::ALL {
        println!("{:>12} {}", coverage.of(*mark), mark.name());
    }
    let is_rare = |mark: &Mark| RARE.iter().any(|(rare, _)| rare == mark);
    let missed: Vec<&str> = coverage.missed().into_iter().filter(|mark| !is_rare(mark)).map(Mark::name).collect();
    assert!(missed.is_empty(), "{} lives and the scenes never come by {missed:?}", summary.lives);
}
