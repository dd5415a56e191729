//! The scenes in `testdata` are told as they are told there. `MARTLET_BLESS=1 cargo test -p martlet-sim transcripts` writes them anew.

use std::fs;
use std::path::Path;

use martlet_sim::cluster::SCENARIOS;

#[test]
fn every_scene_is_told_as_it_stands_in_testdata() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata");
    let bless = std::env::var_os("MARTLET_BLESS").is_some();
    let mut others = Vec::new();
    for scenario in SCENARIOS {
        let (report, told) = scenario.told();
        assert_eq!(report.violation, None, "{}:\n{told}", scenario.name);
        // On a network what a cut has severed stays severed, so nobody asks for a full recovery there.
        let may_stall = scenario.name == "partition";
        assert!(!report.ended && (may_stall || !report.stalled) && report.replies > 20, "{}: {report:?}", scenario.name);
        assert_eq!(scenario.told().1, told, "{} is told in two ways", scenario.name);
        let file = dir.join(format!("{}.txt", scenario.name));
        if bless {
            fs::write(&file, &told).expect("testdata can be written");
        } else if fs::read_to_string(&file).unwrap_or_default() != told {
            others.push(scenario.name);
        }
    }
    assert!(
        others.is_empty(),
        "told in another way than in {}: {others:?}. If that is as it should be: MARTLET_BLESS=1 cargo test -p martlet-sim transcripts",
        dir.display()
    );
}
