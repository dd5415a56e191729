//! The directory of a server that `martlet run` runs.

use std::fs::{self, File};
use std::path::PathBuf;

use martlet_fabric::NodeId;
use martlet_node::config::{Cluster, ClusterConfig};

use super::{Directory, write_private, write_whole};
use crate::fail::{Context as _, Fail, Outcome};
use crate::process::{Activity, ProcessName};

/// The process that runs a server in replicas, `martlet run`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Runner {
    /// Its number, if that is known here.
    pub pid: Option<u32>,
    /// What it is doing. If it is gone, the replicas continue without it, but one that dies is not replaced.
    pub activity: Activity,
}

impl Runner {
    /// The consequence if it does not run; `None` if it runs.
    pub fn lack(&self) -> Option<String> {
        let of = |pid: &Option<u32>| pid.map_or_else(String::new, |pid| format!(" (process {pid})"));
        match self.activity {
            Activity::Running => None,
            Activity::Stopped => Some(format!(
                "martlet run{} is stopped by a signal: until it is resumed (SIGCONT), no replica is started in the place of one that dies, and the server is not told to end",
                of(&self.pid)
            )),
            Activity::Gone => Some(format!(
                "martlet run{} has ended: no replica is started any more in the place of one that dies, and SIGTERM is not passed on. The server goes on for as long as enough \
                 replicas live. To have it supervised again, end it with its own command (redis-cli shutdown), or kill the replicas' processes, and start `martlet run` again",
                of(&self.pid)
            )),
        }
    }
}

/// The running replicas of a server, as `martlet run` has started them.
///
/// # Errors
/// When the system does not say which processes run.
pub fn running_replicas(cluster: &Cluster) -> Outcome<Vec<u16>> {
    let mut running = Vec::new();
    for node in &cluster.config().nodes {
        if cluster.rendezvous().is_running(&cluster.fabric_name(), NodeId(node.number)).context("cannot see which replicas are running")? {
            running.push(node.number);
        }
    }
    Ok(running)
}

impl Directory {
    /// Writes what describes a server that `martlet run` runs: a cluster's file, and which server it is. Under the lock. Replaces what an earlier `martlet run`
    /// has left.
    ///
    /// # Errors
    /// When there is a cluster of another kind, or one whose server is running.
    pub fn create_run(&self, config: &ClusterConfig, server: &str) -> Outcome {
        if let Some(cluster) = self.cluster()? {
            let path = self.0.display();
            let Some(before) = self.server() else {
                return Err(Fail::failed(format_args!("there is a cluster in {path}; choose a directory without one with --dir")));
            };
            if !running_replicas(&cluster)?.is_empty() {
                return Err(Fail::failed(format_args!(
                    "{before:?} is running in {path}, or keepers (martlet-keeper) of its replicas are, which end by themselves within half a minute of the last replica; choose another directory with --dir"
                )));
            }
        }
        write_whole(&self.server_file(), &format!("{server}\n"))?;
        let own = ProcessName::of(std::process::id()).and_then(|own| own.write(&self.runner_file()));
        own.context(format_args!("cannot write {}", self.runner_file().display()))?;
        // It contains the key.
        write_private(&self.cluster_file(), &config.to_toml())
    }

    fn server_file(&self) -> PathBuf {
        self.0.join("server")
    }

    /// The server that `martlet run` runs here, or has run, if this is such a directory.
    pub fn server(&self) -> Option<String> {
        fs::read_to_string(self.server_file()).ok().map(|server| server.trim_end().to_owned())
    }

    fn runner_file(&self) -> PathBuf {
        self.0.join("runner.pid")
    }

    /// What the `martlet run` of this directory is doing.
    pub fn runner(&self) -> Runner {
        let named = ProcessName::read(&self.runner_file()).ok().flatten();
        let pid = named.as_ref().map(|name| name.pid);
        match named.map_or(Activity::Gone, |name| name.activity()) {
            Activity::Running => Runner { pid, activity: Activity::Running },
            Activity::Stopped => Runner { pid, activity: Activity::Stopped },
            // It holds the lock as long as it is alive. That works even if its number means nothing here, because it is in another container.
            Activity::Gone => {
                let locked = File::open(self.lock_file())
                    .is_ok_and(|lock| rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockShared).is_err());
                Runner { pid: pid.filter(|_| !locked), activity: if locked { Activity::Running } else { Activity::Gone } }
            }
        }
    }

    /// For a command about a cluster's nodes: the replicas of a server that `martlet run` runs are no such nodes. `instead` names what to do instead.
    ///
    /// # Errors
    /// When this is the directory of such a server.
    pub fn refuse_a_service(&self, instead: &str) -> Outcome {
        let Some(server) = self.server() else { return Ok(()) };
        let runner = self.runner();
        let by = runner.pid.filter(|_| runner.activity != Activity::Gone).map_or_else(String::new, |pid| format!(", process {pid}"));
        Err(Fail::usage(format_args!(
            "{} is not a cluster's directory: it shows {server:?}, which martlet run runs in replicas{by}. {instead}",
            self.0.display()
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::plan;
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn who_runs_a_server_is_known_by_its_process_or_its_lock() {
        let scratch = Scratch::new("directory").expect("a directory");
        let directory = Directory::new(scratch.path());
        let lock = directory.lock().expect("nobody else has it");
        directory.create_run(&plan().config().expect("ports"), "redis-server").expect("made");
        let own = Runner { pid: Some(std::process::id()), activity: Activity::Running };
        assert_eq!((directory.runner(), own.lack()), (own, None));
        fs::write(directory.runner_file(), "1 1 of-another-boot\n").expect("written");
        assert_eq!(directory.runner(), Runner { pid: None, activity: Activity::Running }, "it has the lock, and another number elsewhere");
        drop(lock);
        assert!(Directory::new(&scratch.path().join("another")).refuse_a_service("").is_ok());
        let refused = directory.refuse_a_service("Do that.").expect_err("it is one").to_string();
        assert!(refused.contains("it shows \"redis-server\", which martlet run runs in replicas. Do that."), "{refused}");
        let gone = directory.runner();
        assert_eq!(gone, Runner { pid: Some(1), activity: Activity::Gone });
        assert!(gone.lack().is_some_and(|lack| lack.starts_with("martlet run (process 1) has ended: no replica is started any more")));
        directory.purge().expect("purged");
        assert!(!scratch.path().exists(), "nothing is left of it");
    }
}
