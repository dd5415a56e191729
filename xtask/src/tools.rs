//! Other projects' programs that developers' commands need. Each is built once, into the target directory, if it is not installed.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::ci::{Outcome, cargo, finish, target_directory};

/// A command of cargo that is a package of its own.
pub struct Tool {
    /// The name of the package, and of the program in it.
    pub name: &'static str,
    /// The version that is built where none is installed.
    pub version: &'static str,
}

impl Tool {
    /// The program: installed on this machine, built by an earlier run, or built now.
    ///
    /// # Errors
    /// When it is not there and cannot be built: the reason.
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
        // It runs for a second or two. Building it optimised takes three times as long as building it without.
        let outcome = finish(command.env("CARGO_PROFILE_DEV_DEBUG", "0").env("CARGO_TARGET_DIR", &build));
        // Only the program is needed of what was built.
        let _ = std::fs::remove_dir_all(&build);
        match outcome {
            Outcome::Passed => Ok(own),
            Outcome::Failed(why) | Outcome::Skipped(why) | Outcome::Partly(why) => {
                Err(format!("{name} is not installed and could not be built (`cargo install {name} --locked`: {why})"))
            }
        }
    }
}
