//! Licences, duplicate versions, sources and advisories of all dependencies, by cargo-deny.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::ci::{Outcome, finish};
use crate::tools::Tool;

const DENY: Tool = Tool { name: "cargo-deny", version: "0.20.2" };
/// What can be checked without a network.
const OFFLINE: [&str; 3] = ["bans", "licenses", "sources"];
/// What cargo-deny says when it cannot reach the database of advisories, which is a repository on GitHub.
const UNREACHABLE: &str = "failed to fetch advisory database";

/// A check of the advisories, under way: mostly it waits for the network.
pub struct Advisories(Child);

/// Checks what can be checked without a network, and begins to check the advisories.
pub fn check(root: &Path) -> (Outcome, Option<Advisories>) {
    let deny = match DENY.find(root) {
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
