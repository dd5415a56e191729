//! Checks licences, duplicate versions, sources and advisories of all dependencies, with cargo-deny.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::ci::{Outcome, finish};
use crate::tools::Tool;

const DENY: Tool = Tool { name: "cargo-deny", version: "0.20.2" };
/// What can be checked without a network.
const OFFLINE: [&str; 3] = ["bans", "licenses", "sources"];
/// cargo-deny's message when it cannot reach the database of advisories, which is a repository on GitHub.
const UNREACHABLE: &str = "failed to fetch advisory database";

/// Checks what can be checked without a network.
pub fn check(root: &Path) -> Outcome {
    match DENY.find(root) {
        Ok(deny) => finish(Command::new(&deny).current_dir(root).args(["--log-level", "error", "check"]).args(OFFLINE)),
        Err(why) => Outcome::Skipped(format!("{why}; licences were checked by tidy")),
    }
}

/// Checks the advisories. It mostly waits for the network.
pub fn advisories(root: &Path) -> Outcome {
    let deny = match DENY.find(root) {
        Ok(deny) => deny,
        Err(why) => return Outcome::Skipped(format!("NOT CHECKED: {why}")),
    };
    let mut command = Command::new(&deny);
    command.current_dir(root).args(["--log-level", "error", "check", "advisories"]).stdin(Stdio::null()).stdout(Stdio::null());
    let output = match command.stderr(Stdio::piped()).output() {
        Ok(output) => output,
        Err(error) => return Outcome::Failed(format!("cannot run {}: {error}", deny.display())),
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
