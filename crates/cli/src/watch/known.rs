//! What is known of a node before anybody has looked at its memory.

use martlet_cluster::directory::{Directory, Runner};
use martlet_cluster::fail::{Context as _, Outcome};
use martlet_cluster::process::{Activity, ProcessName};
use martlet_fabric::NodeId;
use martlet_node::config::Cluster;
use serde_json::{Value, json};

/// What a node does, for all that is known here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// Its process runs.
    Running,
    /// A signal has stopped its process.
    Stopped,
    /// It has no process.
    Gone,
    /// It is another host's, or was not started from here, and shows nothing: it may have died, or be cut off from here, and serve others all the same.
    Unreached,
    /// The view has it, but this host's list of nodes does not: it has just joined, or been removed.
    Unlisted,
}

impl Doing {
    /// From what its process is known to do, and whether it shows anything.
    pub fn of(activity: Option<Activity>, is_seen: bool) -> Doing {
        match activity {
            Some(Activity::Running) => Doing::Running,
            Some(Activity::Stopped) => Doing::Stopped,
            Some(Activity::Gone) => Doing::Gone,
            None if is_seen => Doing::Running,
            None => Doing::Unreached,
        }
    }

    /// Of a node that the cluster's file does not list.
    pub fn of_unlisted(cluster: &Cluster) -> Doing {
        // Each host has its own list, which may be older than the view. On one host a node leaves the list when it is gone.
        if cluster.config().fabric.traits().spans_hosts { Doing::Unlisted } else { Doing::Gone }
    }

    /// Whether it runs; if not, the words for what it does instead.
    pub fn runs(self) -> Result<(), &'static str> {
        if self == Doing::Running { Ok(()) } else { Err(self.name()) }
    }

    /// The words for it.
    pub fn name(self) -> &'static str {
        match self {
            Doing::Running => "running",
            Doing::Stopped => "stopped",
            Doing::Gone => "gone",
            Doing::Unreached => "not reached",
            Doing::Unlisted => "not in this host's list of nodes",
        }
    }
}

/// For programs: what the `martlet run` of a service does, and what follows where it does not run.
pub fn runner_json(runner: &Runner) -> Value {
    json!({"pid": runner.pid, "state": Doing::of(Some(runner.activity), true).name(), "lacks": runner.lack()})
}

/// What is known of a node without a look at it.
pub struct Known {
    /// Its number.
    pub node: u16,
    /// Its process, if it was started here and runs.
    pub pid: Option<u32>,
    /// What it does; `None`: only a look at it can tell.
    pub activity: Option<Activity>,
}

impl Known {
    /// What the cluster's directory and, on one host, the fabric know of it.
    pub fn of(directory: &Directory, cluster: &Cluster, node: u16) -> Outcome<Known> {
        let process = directory.process(node)?;
        let started_here = process.as_ref().map(|process| process.activity());
        if started_here.is_some_and(|activity| activity != Activity::Gone) {
            return Ok(Known { node, pid: process.map(|process| process.pid), activity: started_here });
        }
        let activity = if cluster.config().fabric.traits().spans_hosts {
            // It may run elsewhere, unless it has been started here.
            started_here
        } else {
            let listener =
                cluster.rendezvous().listener(&cluster.fabric_name(), NodeId(node)).context("cannot see which nodes are running")?;
            // A keeper or a mourner may keep the descriptors of a process that has died.
            let runs = listener.is_some_and(|pid| u32::try_from(pid).ok().filter(|pid| *pid != 0).is_none_or(is_alive));
            match started_here {
                _ if !runs => Some(Activity::Gone),
                // It runs again, without us, or died this very moment.
                Some(_) => None,
                None => Some(Activity::Running),
            }
        };
        Ok(Known { node, pid: None, activity })
    }
}

/// Whether the process of this number is there, and does not only wait to be reaped.
fn is_alive(pid: u32) -> bool {
    ProcessName::of(pid).is_ok_and(|process| process.activity() != Activity::Gone)
}

#[cfg(test)]
mod tests {
    use martlet_node::config::{ClusterConfig, FabricKind, Key, NodeEntry};

    use super::*;

    #[test]
    fn only_a_process_of_this_host_is_said_to_be_gone() {
        assert_eq!(Doing::of(None, false).name(), "not reached");
        assert_eq!(Doing::of(None, true), Doing::Running);
        let of = |fabric| {
            let key = Key::new([7; 32]).to_hex();
            let mut config = ClusterConfig { key: Some(key.into()), fabric, ..ClusterConfig::new("shop", vec![NodeEntry::new(0)]) };
            config.nodes[0].address = if fabric.traits().needs_address { "10.0.0.1:7600".into() } else { String::new() };
            Doing::of_unlisted(&Cluster::new(config).expect("valid"))
        };
        assert_eq!(
            of(FabricKind::between_ordinary_hosts()).runs(),
            Err("not in this host's list of nodes"),
            "its host may have just joined"
        );
        assert_eq!(of(FabricKind::default()), Doing::Gone, "all nodes of one host are in its list until they are gone");
        for is_seen in [false, true] {
            assert_eq!(Doing::of(Some(Activity::Gone), is_seen), Doing::Gone, "what it showed is of before");
            assert_eq!(Doing::of(Some(Activity::Stopped), is_seen), Doing::Stopped);
        }
    }

    #[test]
    fn a_process_that_waits_only_to_be_reaped_does_not_run() {
        assert!(is_alive(std::process::id()));
        let mut child = std::process::Command::new("true").spawn().expect("it starts");
        while is_alive(child.id()) {
            std::thread::yield_now();
        }
        assert!(child.wait().expect("it was ours").success(), "it was there until now");
    }
}
