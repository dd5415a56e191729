//! This build beside an earlier one, usually the last release: clusters of its nodes are upgraded to this build, node by node and under load.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::ci::{Outcome, cargo, finish, target_directory};

/// Runs the tests that need an earlier build. `from` says which one: the path of a `martlet` command, or a revision, which is then built. `None` means the last
/// release, if there is one.
pub fn run(root: &Path, from: Option<&str>) -> Outcome {
    let exe = match from.map(Path::new).filter(|path| path.is_file()) {
        Some(exe) => fs::canonicalize(exe).map_err(|error| format!("{}: {error}", exe.display())),
        None => match revision(root, from) {
            Ok(Some((name, commit))) => build(root, &commit).map_err(|why| format!("{name} cannot be built: {why}")),
            Ok(None) => {
                return Outcome::Skipped(
                    "no tag v* is an ancestor of what is checked out: there is no release to upgrade from. `cargo xtask upgrade REVISION` takes another build".into(),
                );
            }
            Err(why) => Err(why),
        },
    };
    let exe = match exe {
        Ok(exe) => exe,
        Err(why) => return Outcome::Failed(why),
    };
    println!("   the earlier build is {}", exe.display());
    finish(cargo(root).args(["test", "--package", "martlet-cli", "--test", "it", "upgrade::"]).env("MARTLET_LAST_RELEASE", exe))
}

/// A revision's name and commit: the given one, or the newest release that this source descends from. `None`: there is no release.
fn revision(root: &Path, from: Option<&str>) -> Result<Option<(String, String)>, String> {
    let name = match from {
        Some(name) => name.to_owned(),
        None => match told(root, &["describe", "--tags", "--abbrev=0", "--match", "v*"]) {
            Some(tag) => tag,
            None => return Ok(None),
        },
    };
    let commit = told(root, &["rev-parse", "--verify", "--quiet", &format!("{name}^{{commit}}")]);
    let commit = commit.ok_or_else(|| format!("{name:?} is neither the path of a `martlet` command nor a revision of this repository"))?;
    println!("   upgrading from {name}, {commit}");
    Ok(Some((name, commit)))
}

/// git's output, if there is any.
fn told(root: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").current_dir(root).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}

/// Builds a commit's command, in a separate directory that is kept for the next time.
fn build(root: &Path, commit: &str) -> Result<PathBuf, String> {
    let directory = target_directory(root).join("releases").join(commit);
    let source = directory.join("source");
    let exe = directory.join("target").join("debug").join("martlet");
    let failed = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
    if !source.exists() {
        // The source appears whole or not at all.
        let (fresh, archive) = (directory.join("fresh"), directory.join("source.tar"));
        fs::create_dir_all(&fresh).map_err(|error| failed(&fresh, error))?;
        done(Command::new("git").current_dir(root).args(["archive", "--output"]).arg(&archive).arg(commit))?;
        done(Command::new("tar").arg("--extract").arg("--file").arg(&archive).arg("--directory").arg(&fresh))?;
        fs::remove_file(&archive).map_err(|error| failed(&archive, error))?;
        fs::rename(&fresh, &source).map_err(|error| failed(&source, error))?;
    }
    let mut command = cargo(&source);
    command.args(["build", "--locked", "--package", "martlet-cli", "--bin", "martlet"]).env("CARGO_TARGET_DIR", directory.join("target"));
    done(&mut command)?;
    Ok(exe)
}

fn done(command: &mut Command) -> Result<(), String> {
    match finish(command) {
        Outcome::Failed(why) => Err(format!("{}: {why}", command.get_program().display())),
        _ => Ok(()),
    }
}
