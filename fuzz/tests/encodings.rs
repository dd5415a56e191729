//! The encodings of this build are those that are recorded for its versions.

use martlet_fuzz::encodings::{file, groups, problems};

#[test]
fn encodings_change_with_their_version_only() {
    let written = std::fs::read_to_string(file()).expect("what is recorded of the encodings");
    let problems = problems(&groups(), &written);
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}
