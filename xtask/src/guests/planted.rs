//! Mistakes that are planted in the sources of a node. The rounds have to find each of them: rounds that do not find a mistake prove little about sources that
//! have none.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::wanted::Fault;
use crate::ci::{Outcome, cargo, finish, target_directory};
use crate::net::cluster::Waits;

/// A change of one place in the sources, and the rounds that find it.
#[derive(Debug, PartialEq, Eq)]
pub struct Mistake {
    /// Its name on the command line.
    pub name: &'static str,
    /// What a node does wrong.
    pub what: &'static str,
    file: &'static str,
    /// What stands in the file exactly once, and what replaces it.
    right: &'static str,
    wrong: &'static str,
    /// How reads are served, how long nodes wait, and which fault shows the mistake, if it lasts for so long.
    pub reads: &'static str,
    pub waits: Waits,
    pub lasting: Duration,
    pub faults: &'static [Fault],
}

/// All of them.
pub const MISTAKES: &[Mistake] = &[
    Mistake {
        name: "narrow-margin",
        what: "leases are used and waited for as if clocks differed by no more than 1 %",
        file: "crates/node/src/config/cluster.rs",
        right: "pub const HOSTS_DRIFT_PPM: u64 = 101_200;",
        wrong: "pub const HOSTS_DRIFT_PPM: u64 = 10_000;",
        reads: "lease",
        // The predecessor's lease has to last until the others have noticed that it is cut off: only then do they wait for the lease's end, and for nothing else.
        waits: Waits { lease: Some(Duration::from_secs(10)), heartbeat: None, give_up: None },
        lasting: Duration::from_secs(14),
        faults: &[Fault::Part],
    },
    Mistake {
        name: "lazy-revocation",
        what: "a new primary takes over while its predecessor may still write to the others",
        file: "crates/node/src/engine.rs",
        right: "let fences_departed = R::HOLDS == Holds::Written && config.fabric.traits().spans_hosts;",
        wrong: "let fences_departed = R::HOLDS != Holds::Written && config.fabric.traits().spans_hosts;",
        reads: "quorum",
        // A connection that is given up is one on which nothing more can be written. Clients that wait for a reply still do when the predecessor goes on.
        waits: Waits { lease: None, heartbeat: Some(Duration::from_millis(50)), give_up: Some(Duration::from_secs(60)) },
        lasting: Duration::from_secs(7),
        faults: &[Fault::Stop],
    },
];

impl Mistake {
    /// The mistake of this name.
    pub fn named(name: &str) -> Option<&'static Mistake> {
        MISTAKES.iter().find(|mistake| mistake.name == name)
    }

    /// The file's text with the mistake.
    fn planted(&self, text: &str) -> Result<String, String> {
        match text.matches(self.right).count() {
            1 => Ok(text.replace(self.right, self.wrong)),
            count => Err(format!("{} contains {:?} {count} times; a mistake is planted where it stands once", self.file, self.right)),
        }
    }

    /// Builds `martlet`, optimised, from a copy of the sources, below the build of those without the mistake.
    ///
    /// # Errors
    /// When it cannot be copied, planted or built.
    pub fn build(&self, root: &Path) -> Result<PathBuf, String> {
        let directory = target_directory(root).join("planted");
        let (sources, target) = (directory.join("sources"), directory.join("target"));
        for name in tracked(root)? {
            let from = root.join(&name);
            let text = fs::read(&from).map_err(|e| format!("{}: {e}", from.display()))?;
            let text = if name == Path::new(self.file) { self.planted(&String::from_utf8_lossy(&text))?.into_bytes() } else { text };
            write_if_new(&sources.join(&name), &text)?;
        }
        let mut command = cargo(&sources);
        command.args(["build", "--quiet", "--profile", "probed", "--package", "martlet-cli"]).env("CARGO_TARGET_DIR", &target);
        match finish(&mut command) {
            Outcome::Passed => Ok(target.join("probed/martlet")),
            _ => Err(format!("`martlet` does not build with {:?} planted", self.name)),
        }
    }
}

/// The files that are checked in and present.
fn tracked(root: &Path) -> Result<Vec<PathBuf>, String> {
    let output = Command::new("git").current_dir(root).args(["ls-files", "-z"]).output().map_err(|e| format!("git does not run: {e}"))?;
    if !output.status.success() {
        return Err(format!("git does not list the sources: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    let names = String::from_utf8_lossy(&output.stdout);
    Ok(names.split_terminator('\0').map(PathBuf::from).filter(|name| root.join(name).is_file()).collect())
}

/// Leaves a file that has these contents as it is, so that nothing is built again for it.
fn write_if_new(file: &Path, contents: &[u8]) -> Result<(), String> {
    if fs::read(file).is_ok_and(|present| present == contents) {
        return Ok(());
    }
    let directory = file.parent().expect("below the directory of sources");
    fs::create_dir_all(directory).and_then(|()| fs::write(file, contents)).map_err(|e| format!("{}: {e}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mistake_can_be_planted_in_the_sources() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
        for mistake in MISTAKES {
            let text = fs::read_to_string(root.join(mistake.file)).expect("a source");
            let planted = mistake.planted(&text).expect("it stands there once");
            assert!(planted.contains(mistake.wrong) && planted.len() + mistake.right.len() == text.len() + mistake.wrong.len());
            assert!(mistake.planted(&planted).is_err(), "{}", mistake.name);
        }
    }
}
