//! The scenes in `testdata` still have the transcripts that are there. `cargo xtask sim --bless` writes them anew.

use std::fs;

use martlet_sim::cluster::{SCENARIOS, testdata};

#[test]
fn every_scene_is_told_as_it_stands_in_testdata() {
    let dir = testdata();
    let mut others = Vec::new();
    for scenario in SCENARIOS {
        let (report, told) = scenario.told();
        assert_eq!(report.violation, None, "{}:\n{told}", scenario.name);
        assert!(!report.ended && report.replies > 20, "{}: {report:?}", scenario.name);
        assert_eq!(scenario.told().1, told, "{} is told in two ways", scenario.name);
        if fs::read_to_string(dir.join(scenario.file_name())).unwrap_or_default() != told {
            others.push(scenario.name);
        }
    }
    assert!(
        others.is_empty(),
        "told in another way than in {}: {others:?}. If that is as it should be: cargo xtask sim --bless",
        dir.display()
    );
}
