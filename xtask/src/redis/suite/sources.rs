//! The sources of the installed redis-server, as Debian has them, because no package contains its test suite.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::super::trouble;
use crate::apt::{Apt, run};
use crate::ci::on_path;

/// Programs that this needs, and Debian's packages that contain them.
const NEEDED: [(&str, &str); 5] = [
    ("redis-server", "redis-server"),
    ("redis-cli", "redis-tools"),
    ("redis-benchmark", "redis-tools"),
    ("tclsh", "tcl"),
    ("dpkg-source", "dpkg-dev"),
];

/// The directory of the sources below `into`, which are fetched unless an earlier run has done so.
///
/// # Errors
/// What is not installed, or why they cannot be fetched.
pub fn fetch(into: &Path) -> Result<PathBuf, String> {
    let missing: Vec<_> = NEEDED.iter().filter(|(program, _)| !on_path(program)).collect();
    if !missing.is_empty() {
        let programs: Vec<_> = missing.iter().map(|(program, package)| format!("{program} (Debian's {package})")).collect();
        return Err(format!("not installed: {}", programs.join(", ")));
    }
    let said = run(Command::new("redis-server").arg("--version"))?;
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    let version = said.split(' ').find_map(|word| word.strip_prefix("v=")).ok_or(format!("redis-server --version says {said:?}"))?;
    let sources = into.join(format!("redis-{version}"));
    if !sources.exists() {
        println!("fetching Debian's sources of redis {version}");
        let fresh = into.join("fetched");
        if fresh.exists() {
            fs::remove_dir_all(&fresh).map_err(trouble(&fresh))?;
        }
        let apt = Apt::of_sources(&fresh.join("apt"))?;
        apt.run("apt-get", ["--quiet=2", "update"])?;
        run(apt.command("apt-get").args(["--quiet=2", "source", "redis"]).current_dir(&fresh))?;
        let unpacked = fresh.join(format!("redis-{version}"));
        if !unpacked.exists() {
            return Err(format!(
                "redis-server {version} is installed; the sources that Debian has are of another version: see {}",
                fresh.display()
            ));
        }
        // Some of the suite's tests start programs from there.
        for program in ["redis-server", "redis-cli", "redis-benchmark"] {
            let installed = find(program).ok_or(format!("{program} is not installed"))?;
            let link = unpacked.join("src").join(program);
            std::os::unix::fs::symlink(&installed, &link).map_err(trouble(&link))?;
        }
        fs::rename(&unpacked, &sources).map_err(trouble(&sources))?;
        fs::remove_dir_all(&fresh).map_err(trouble(&fresh))?;
    }
    Ok(sources)
}

/// A program on the path.
fn find(program: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?).map(|directory| directory.join(program)).find(|path| path.is_file())
}

/// All units of the suite, in its own order.
///
/// # Errors
/// When the suite does not list them.
pub fn units(sources: &Path) -> Result<Vec<String>, String> {
    let output = run(Command::new("tclsh").args(["tests/test_helper.tcl", "--list-tests"]).current_dir(sources))?;
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
}
