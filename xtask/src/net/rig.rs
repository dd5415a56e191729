//! Network namespaces for a command, and everything that runs in them.

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

/// How long anything that is waited for may take. What takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// How often to check what is waited for.
pub const LOOK: Duration = Duration::from_millis(20);

/// Hosts, and a directory that all of them see. When this is dropped, they are removed, and all processes that the command has started are ended; also when the
/// command is interrupted.
pub struct Rig {
    /// The processes that were started.
    pub family: Family,
    /// The hosts.
    pub namespaces: Namespaces,
    /// The directory.
    pub directory: PathBuf,
    /// What carries their packets, if not a switch.
    relay: Option<Relay>,
}

impl Rig {
    /// Makes this many hosts on one network.
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

    /// From now on the wire between the hosts does this to what they send each other.
    ///
    /// # Errors
    /// When the wire cannot be made.
    pub fn mangle(&mut self, mangling: Mangling, seed: u64) -> Result<(), String> {
        self.relay = Some(Relay::between(&self.namespaces, mangling, seed)?);
        Ok(())
    }

    /// From now on a host's loopback device does this to what processes there send each other at 127.0.0.1.
    ///
    /// # Errors
    /// When the wire cannot be made.
    pub fn mangle_within(&mut self, host: usize, mangling: Mangling, seed: u64) -> Result<(), String> {
        self.relay = Some(Relay::within(&self.namespaces, host, mangling, seed)?);
        Ok(())
    }

    /// Disconnects a host from the network, or connects it again.
    ///
    /// # Errors
    /// What `ip` prints.
    pub fn cut(&self, host: usize, cut: bool) -> Result<(), String> {
        match &self.relay {
            Some(relay) => relay.cut(host, cut),
            None => self.namespaces.link(host, 0, if cut { "down" } else { "up" })?,
        }
        Ok(())
    }

    /// A command that runs on a host. The process of `ip` becomes the program.
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
        // Removes as much as was made.
        let _ = self.namespaces.remove();
        let _ = fs::remove_dir_all(&self.directory);
    }
}
