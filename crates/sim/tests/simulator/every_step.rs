//! A crash or a pause at some steps of each phase; `cargo xtask sim --every-step` tries all steps.

use std::sync::atomic::AtomicBool;

use martlet_sim::cluster::PHASES;
use martlet_sim::hunt::every_step;

#[test]
fn a_blow_at_any_step_of_a_phase_violates_nothing() {
    for phase in PHASES {
        // The short phase is tried at every step, with enough seeds to make it no shorter than the others: its length depends on what had not landed.
        let (stride, seeds) = match phase.name {
            "revocation" => (1, 0..5),
            "network-takeover" | "dare-election" => (101, 0..1),
            "dare-join" => (501, 0..1),
            _ => (31, 0..1),
        };
        let mut steps = 0;
        for seed in seeds {
            let walk = every_step(phase, seed, stride, 2, &AtomicBool::new(false));
            assert_eq!(walk.failure, None, "{} of seed {seed}", phase.name);
            assert!(walk.dealt * 3 > walk.lives, "{} of seed {seed}: {walk:?}", phase.name);
            steps += walk.steps;
        }
        assert!(steps > 20, "{}: {steps}", phase.name);
    }
}
