//! What is known of a node before anybody has looked at its memory.

use martlet_cluster::directory::Directory;
use martlet_cluster::fail::{Context as _, Outcome};
use martlet_cluster::process::Activity;
use martlet_fabric::NodeId;
use martlet_node::config::Cluster;

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
            let runs = cluster.rendezvous().is_running(&cluster.fabric_name(), NodeId(node)).context("cannot see who runs")?;
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
