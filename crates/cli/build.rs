//! Builds the library that `martlet run` loads into servers, for the command to carry it: `cargo install` installs programs only. Not in debug builds, in which
//! `martlet run` takes the library that stands beside it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// What the library is made of, from the root of the workspace.
const SOURCES: [&str; 6] = ["Cargo.toml", "Cargo.lock", "crates/preload", "crates/node", "crates/protocol", "crates/fabric"];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let told = |name: &str| env::var(name).unwrap_or_else(|_| panic!("cargo tells {name}"));
    let carried = PathBuf::from(told("OUT_DIR")).join("carried.rs");
    let library = (told("PROFILE") == "release" && env::var_os("CARGO_FEATURE_CARRIED_PRELOAD").is_some()).then(|| build(&told));
    let value = library.map_or_else(|| "None".to_owned(), |path| format!("Some(include_bytes!({path:?}))"));
    fs::write(&carried, value).unwrap_or_else(|error| panic!("{}: {error}", carried.display()));
}

/// Builds it with cargo, in a directory of its own, since this build has the other one's lock.
fn build(told: &dyn Fn(&str) -> String) -> PathBuf {
    let root = Path::new(&told("CARGO_MANIFEST_DIR")).join("../..");
    for source in SOURCES {
        println!("cargo::rerun-if-changed={}", root.join(source).display());
    }
    let directory = PathBuf::from(told("OUT_DIR")).join("preload");
    let mut command = Command::new(told("CARGO"));
    command.current_dir(&root).args([
        "build",
        "--release",
        "--locked",
        "--package",
        "martlet-preload",
        "--target",
        &told("TARGET"),
        "--target-dir",
    ]);
    command.arg(&directory);
    // Half of the command would be what debuggers want of it. A library beside the command has that: `--preload`.
    command.args(["--config", "profile.release.debug=0", "--config", "profile.release.strip=true"]);
    // Under `cargo clippy` it would be looked through, and not built.
    command.env_remove("RUSTC_WORKSPACE_WRAPPER");
    let status = command.status().unwrap_or_else(|error| panic!("cannot run {command:?}: {error}"));
    assert!(status.success(), "{command:?}: {status}");
    directory.join(told("TARGET")).join("release/libmartlet_preload.so")
}
