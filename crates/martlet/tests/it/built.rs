//! What a test needs beside itself: examples and libraries, built as the test is.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Has cargo build something of a package as this test itself was built, and returns where it is then: target/PROFILE. `cargo test` with names of
/// packages or tests builds neither examples nor libraries for others, and would run what an earlier build has left there.
pub fn build(package: &str, what: &[&str]) -> PathBuf {
    let test = std::env::current_exe().expect("ourselves");
    let built = test.parent().and_then(Path::parent).expect("target/PROFILE/deps");
    let (target, profile) = (built.parent().expect("target/PROFILE"), built.file_name().expect("target/PROFILE"));
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(env!("CARGO_MANIFEST_DIR")).args(["build", "--quiet"]).arg("--target-dir").arg(target);
    // Features are those of all that is built at once: where the whole workspace has been, a part alone would be built anew, and all below it.
    match std::env::var_os("MARTLET_BUILT_WORKSPACE") {
        Some(_) => cargo.args(["--workspace", "--all-targets"]),
        None => cargo.args(["--package", package]).args(what),
    };
    // The directory of the profile `dev` is not called so.
    cargo.arg("--profile").arg(if profile == "debug" { "dev".as_ref() } else { profile });
    let status = cargo.status().expect("cargo runs");
    assert!(status.success(), "cargo build --package {package} {} has failed: {status}", what.join(" "));
    built.to_owned()
}
