//! Lives by the hundred, and mistakes that the oracles must find.

use std::panic::catch_unwind;

use super::{Canary, Ground, Report, run, run_canary, run_on};

fn assert_clean(report: &Report) {
    if let Some(violation) = &report.violation {
        panic!("seed {}: {violation}", report.seed);
    }
}

#[test]
fn no_life_violates_anything() {
    let (mut kills, mut takeovers, mut replies, mut ended) = (0, 0, 0, 0);
    for seed in 0..600 {
        let report = catch_unwind(|| run(seed)).unwrap_or_else(|_| panic!("seed {seed} breaks an invariant, as said above"));
        assert_clean(&report);
        kills += report.kills;
        takeovers += report.takeovers;
        replies += report.replies;
        ended += u64::from(report.ended);
    }
    // Lives without failovers would prove little.
    assert!(kills > 300 && takeovers > 800 && replies > 50_000, "{kills} kills, {takeovers} takeovers, {replies} replies");
    assert!(ended <= 3, "{ended} services have ended");
}

#[test]
fn no_life_on_a_network_violates_anything() {
    let (mut replies, mut views) = (0, 0);
    for seed in 0..120 {
        let report =
            catch_unwind(|| run_on(Ground::Network, seed)).unwrap_or_else(|_| panic!("seed {seed} breaks an invariant, as said above"));
        assert_clean(&report);
        replies += report.replies;
        views += report.views;
    }
    assert!(replies > 20_000 && views > 600, "{replies} replies, {views} views");
}

#[test]
fn a_seed_repeats_its_life() {
    for seed in 0..6 {
        let ground = if seed < 4 { Ground::Host } else { Ground::Network };
        let (one, other) = (run_on(ground, seed), run_on(ground, seed));
        assert_eq!(
            (one.digest, one.operations, one.views, one.replies, one.unknown),
            (other.digest, other.operations, other.views, other.replies, other.unknown)
        );
    }
}

/// The first seed in whose life this mistake is found, as a violation or as a broken invariant, and what was found.
fn found(canary: Canary, expected: &str) -> u64 {
    for seed in 0..1000 {
        if let Ok(Report { violation: Some(violation), .. }) = catch_unwind(|| run_canary(seed, canary))
            && violation.what.contains(expected)
        {
            return seed;
        }
    }
    panic!("{canary:?} goes unnoticed: nothing says {expected:?}");
}

#[test]
fn canary_replies_without_a_look_at_the_lease_are_no_order() {
    found(Canary::NoActiveCheck, "what clients saw has no order");
}

#[test]
fn canary_a_false_certainty_makes_two_views_active() {
    found(Canary::FalseCertainty, " is active at ");
}

#[test]
fn canary_clocks_beyond_their_bounds_make_two_views_active() {
    found(Canary::WildClocks, " is active at ");
}
