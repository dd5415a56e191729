//! Programs of others that developers' commands need, each built once, into the target directory, where it is not installed.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::ci::{Outcome, cargo, finish, target_directory};

/// A command of cargo's that is a package of its own.
pub struct Tool {
    /// The package, and the program in it.
    pub name: &'static str,
    /// The version that is built where none is installed.
    pub version: &'static str,
}

impl Tool {
    /// The program, installed by the owner of this machine or built by an earlier run, or built now.
    ///
    /// # Errors
    /// When it is not there and cannot be built, and why.
    pub fn find(&self, root: &Path) -> Result<PathBuf, String> {
        let Tool { name, version } = self;
        let works = |path: &Path| Command::new(path).arg("--version").output().is_ok_and(|output| output.status.success());
        let installed = PathBuf::from(name);
        if works(&installed) {
            return Ok(installed);
        }
        let tools = target_directory(root).join("tools");
        let own = tools.join("bin").join(name);
        if works(&own) {
            return Ok(own);
        }
        println!("   {name} is not installed: building version {version} into {}, once (some minutes)", tools.display());
        let build = tools.join("build");
        let mut command = cargo(root);
        command.args(["install", name, "--locked", "--quiet", "--version", version, "--debug", "--root"]).arg(&tools);
        // It runs for a second or two: to optimise it takes three times as long as to build it without.
        let outcome = finish(command.env("CARGO_PROFILE_DEV_DEBUG", "0").env("CARGO_TARGET_DIR", &build));
        // Of what was built only the program is of use.
        let _ = std::fs::remove_dir_all(&build);
        match outcome {
            Outcome::Passed => Ok(own),
            Outcome::Failed(why) | Outcome::Skipped(why) | Outcome::Partly(why) => {
                Err(format!("{name} is not installed and could not be built (`cargo install {name} --locked`: {why})"))
            }
        }
    }
}
