//! Network namespaces for a command, and all that runs in them.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::mangling::Mangling;
use super::relay::Relay;
use crate::ci::target_directory;
use crate::family::Family;
use crate::namespaces::Namespaces;

/// How long anything may take that is waited for: what takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// How often to look at what is waited for.
pub const LOOK: Duration = Duration::from_millis(20);

/// Hosts, and a directory that all of them see. They go with this value, and so do all processes that the command has started; also when it is interrupted.
pub struct Rig {
    /// What is started.
    pub family: Family,
    /// The hosts.
    pub namespaces: Namespaces,
    /// The directory.
    pub directory: PathBuf,
    /// What carries their packets, where no switch does.
    relay: Option<Relay>,
}

impl Rig {
    /// So many hosts on one network.
    ///
    /// # Errors
    /// When namespaces cannot be made.
    pub fn make(root: &Path, hosts: usize) -> Result<Rig, String> {
        let family = Family::found()?;
        let prefix = format!("martlet-{}", std::process::id());
        let directory = target_directory(root).join(&prefix);
        let namespaces = Namespaces { prefix, hosts, networks: &["10.77.0"] };
        namespaces.make()?;
        let rig = Rig { family, namespaces, directory, relay: None };
        fs::create_dir_all(&rig.directory).map_err(|e| format!("{}: {e}", rig.directory.display()))?;
        Ok(rig)
    }

    /// From here on the wire between the hosts does that to what they send each other.
    ///
    /// # Errors
    /// When there can be none.
    pub fn mangle(&mut self, mangling: Mangling, seed: u64) -> Result<(), String> {
        self.relay = Some(Relay::between(&self.namespaces, mangling, seed)?);
        Ok(())
    }

    /// From here on a host's loopback device does that to what processes there send each other at 127.0.0.1.
    ///
    /// # Errors
    /// When it cannot.
    pub fn mangle_within(&mut self, host: usize, mangling: Mangling, seed: u64) -> Result<(), String> {
        self.relay = Some(Relay::within(&self.namespaces, host, mangling, seed)?);
        Ok(())
    }

    /// Takes a host off the network, or puts it back.
    ///
    /// # Errors
    /// What `ip` says.
    pub fn cut(&self, host: usize, cut: bool) -> Result<(), String> {
        match &self.relay {
            Some(relay) => relay.cut(host, cut),
            None => self.namespaces.link(host, 0, if cut { "down" } else { "up" })?,
        }
        Ok(())
    }

    /// A command that runs on a host. `ip` becomes the program.
    pub fn on(&self, host: usize, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespaces.host(host)]).arg(program);
        command
    }

    /// Tries until it succeeds. Returns how long that took.
    ///
    /// # Errors
    /// When it cannot be tried, when it takes too long, and when the command is interrupted.
    pub fn until(&self, what: &str, mut done: impl FnMut() -> Result<Result<(), String>, String>) -> Result<Duration, String> {
        let began = Instant::now();
        loop {
            self.family.check()?;
            match done()? {
                Ok(()) => return Ok(began.elapsed()),
                Err(why) if began.elapsed() > PATIENCE => return Err(format!("{what}: not in {PATIENCE:?}: {why}")),
                Err(_) => std::thread::sleep(LOOK),
            }
        }
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.family.end();
        self.relay = None;
        // As much as was made.
        let _ = self.namespaces.remove();
        let _ = fs::remove_dir_all(&self.directory);
    }
}
