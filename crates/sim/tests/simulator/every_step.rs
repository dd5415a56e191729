//! A crash or a pause at steps of each phase, some of them; `cargo xtask sim --every-step` takes all.

use std::sync::atomic::AtomicBool;

use martlet_sim::cluster::PHASES;
use martlet_sim::hunt::every_step;

#[test]
fn a_blow_at_any_step_of_a_phase_violates_nothing() {
    for phase in PHASES {
        // The short one whole.
        let stride = if phase.name == "revocation" { 1 } else { 31 };
        let walk = every_step(phase, 0, stride, 2, &AtomicBool::new(false));
        assert_eq!(walk.failure, None, "{}", phase.name);
        assert!(walk.steps > 20 && walk.dealt * 3 > walk.lives, "{}: {walk:?}", phase.name);
    }
}
