//! Checks that encodings change only with their version. Only the crates themselves can produce samples of them, so this builds a program that links them all
//! (`fuzz/src/encodings.rs`).

use std::path::Path;
use std::process::{Command, Output, Stdio};

use super::Problem;
use crate::ci::cargo;

/// The program, with these arguments.
pub fn command(root: &Path, arguments: &[&str]) -> Command {
    let mut command = cargo(root);
    command.args(["run", "--quiet", "--package", "martlet-fuzz", "--bin", "encodings", "--"]).args(arguments);
    command
}

/// The program's complaints.
///
/// # Errors
/// When it cannot be built or run.
pub fn check(root: &Path) -> Result<Vec<Problem>, String> {
    let output = command(root, &[]).stderr(Stdio::inherit()).output().map_err(|error| format!("cannot run cargo: {error}"))?;
    complaints(&output)
}

fn complaints(output: &Output) -> Result<Vec<Problem>, String> {
    let said = String::from_utf8_lossy(&output.stdout);
    let problems: Vec<Problem> = said.lines().map(|line| Problem::new("crates/protocol/encodings.txt", 0, line)).collect();
    if output.status.success() == problems.is_empty() {
        Ok(problems)
    } else {
        Err(format!("the encodings cannot be compared: {}", output.status))
    }
}
