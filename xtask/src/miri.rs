//! Miri on the parts that it can run: rings and records over plain memory, and the smaller state machines. It maps no memory and knows no futex.

use std::path::Path;
use std::process::Command;

use crate::ci::{Outcome, cargo, finish};

/// Packages, and the tests of theirs that need neither the kernel nor minutes.
const PARTS: [(&str, &[&str]); 2] = [
    ("martlet-fabric", &["ring::tests::sizes", "ring::tests::the_longest"]),
    ("martlet-protocol", &["basics::", "detector::", "membership::lease", "membership::plan"]),
];

/// Runs it, or says what is missing.
pub fn run(root: &Path) -> Outcome {
    let has = |mut command: Command| command.args(["miri", "--version"]).output().is_ok_and(|output| output.status.success());
    let mut nightly = Command::new("cargo");
    nightly.arg("+nightly");
    let toolchain = if has(cargo(root)) {
        None
    } else if has(nightly) {
        Some("+nightly")
    } else {
        return Outcome::Skipped(
            "the component `miri` is on no installed toolchain (`rustup component add miri --toolchain nightly`)".into(),
        );
    };
    for (package, tests) in PARTS {
        let mut command = if toolchain.is_some() { Command::new("cargo") } else { cargo(root) };
        command.current_dir(root).args(toolchain).args(["miri", "test", "--package", package, "--lib", "--"]).args(tests);
        match finish(&mut command) {
            Outcome::Passed => {}
            other => return other,
        }
    }
    Outcome::Passed
}
