//! Licences, duplicate versions, sources and advisories of all dependencies, by cargo-deny; which is built once, into the target directory, where it
//! is not installed.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::ci::{Outcome, cargo, finish, target_directory};

/// The version that is built where none is installed.
const VERSION: &str = "0.20.2";
/// What can be checked without a network.
const OFFLINE: [&str; 3] = ["bans", "licenses", "sources"];
/// What cargo-deny says when it cannot reach the database of advisories, which is a repository on GitHub.
const UNREACHABLE: &str = "failed to fetch advisory database";

/// A check of the advisories, under way: mostly it waits for the network.
pub struct Advisories(Child);

/// Checks what can be checked without a network, and begins to check the advisories.
pub fn check(root: &Path) -> (Outcome, Option<Advisories>) {
    let deny = match tool(root) {
        Ok(deny) => deny,
        Err(why) => return (Outcome::Skipped(format!("{why}; licences were checked by tidy")), None),
    };
    let mut command = Command::new(&deny);
    command.current_dir(root).args(["--log-level", "error", "check", "advisories"]).stdin(Stdio::null()).stdout(Stdio::null());
    let advisories = match command.stderr(Stdio::piped()).spawn() {
        Ok(child) => Advisories(child),
        Err(error) => return (Outcome::Failed(format!("cannot run {}: {error}", deny.display())), None),
    };
    (finish(Command::new(&deny).current_dir(root).args(["--log-level", "error", "check"]).args(OFFLINE)), Some(advisories))
}

impl Advisories {
    /// Waits for what comes of it.
    pub fn finish(self) -> Outcome {
        let output = match self.0.wait_with_output() {
            Ok(output) => output,
            Err(error) => return Outcome::Failed(format!("cannot wait for cargo-deny: {error}")),
        };
        let said = String::from_utf8_lossy(&output.stderr);
        if output.status.success() {
            return Outcome::Passed;
        }
        if said.contains(UNREACHABLE) {
            return Outcome::Skipped("NOT CHECKED: their database (github.com/RustSec/advisory-db) cannot be reached from here".into());
        }
        eprint!("{said}");
        Outcome::Failed("an advisory concerns a dependency; see above".into())
    }
}

/// The program, installed by whoever owns this machine or built by an earlier run, or built now.
fn tool(root: &Path) -> Result<PathBuf, String> {
    let works = |path: &Path| Command::new(path).arg("--version").output().is_ok_and(|output| output.status.success());
    let installed = PathBuf::from("cargo-deny");
    if works(&installed) {
        return Ok(installed);
    }
    let tools = target_directory(root).join("tools");
    let own = tools.join("bin/cargo-deny");
    if works(&own) {
        return Ok(own);
    }
    println!("   cargo-deny is not installed: building version {VERSION} into {}, once (some minutes)", tools.display());
    let build = tools.join("build");
    let mut command = cargo(root);
    command.args(["install", "cargo-deny", "--locked", "--quiet", "--version", VERSION, "--debug", "--root"]).arg(&tools);
    // It runs for a second or two: to optimise it takes three times as long as to build it without.
    let outcome = finish(command.env("CARGO_PROFILE_DEV_DEBUG", "0").env("CARGO_TARGET_DIR", &build));
    // Of what was built only the program is of use.
    let _ = std::fs::remove_dir_all(&build);
    match outcome {
        Outcome::Passed => Ok(own),
        Outcome::Failed(why) | Outcome::Skipped(why) | Outcome::Partly(why) => {
            Err(format!("cargo-deny is not installed and could not be built (`cargo install cargo-deny --locked`: {why})"))
        }
    }
}
