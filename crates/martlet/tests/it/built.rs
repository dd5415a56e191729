//! What tests need besides themselves: examples and libraries, built with the same settings as the test.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Has cargo build parts of a package with the same settings as this test, and returns the directory that they are in: target/PROFILE. `cargo test` with names
/// of packages or tests builds neither examples nor libraries for other programs, so the test would run what an earlier build left there.
pub fn build(package: &str, what: &[&str]) -> PathBuf {
    let test = std::env::current_exe().expect("ourselves");
    let built = test.parent().and_then(Path::parent).expect("target/PROFILE/deps");
    let (target, profile) = (built.parent().expect("target/PROFILE"), built.file_name().expect("target/PROFILE"));
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(env!("CARGO_MANIFEST_DIR")).args(["build", "--quiet"]).arg("--target-dir").arg(target);
    // Cargo unifies features over everything that it builds at once. After a build of the whole workspace, building one part alone would rebuild it and all
    // below it.
    match std::env::var_os("MARTLET_BUILT_WORKSPACE") {
        Some(_) => cargo.args(["--workspace", "--all-targets"]),
        None => cargo.args(["--package", package]).args(what),
    };
    // The profile `dev` has a directory of another name: `debug`.
    cargo.arg("--profile").arg(if profile == "debug" { "dev".as_ref() } else { profile });
    let status = cargo.status().expect("cargo runs");
    assert!(status.success(), "cargo build --package {package} {} has failed: {status}", what.join(" "));
    built.to_owned()
}
