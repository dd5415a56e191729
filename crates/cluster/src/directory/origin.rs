//! Whether what runs under a cluster's name belongs to this directory, or to the one that this directory is a copy of.
//!
//! A copy of a running cluster's directory has the cluster's name, its key, and the numbers of the processes of the original's nodes. A command that believed
//! those numbers would take the processes for its own: `up` would start a second node beside the others of the original, and `down` would end the original.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use martlet_fabric::NodeId;
use martlet_node::config::Cluster;

use super::Directory;
use crate::fail::{Context as _, Fail, Outcome};
use crate::process::{Activity, ProcessName};

/// How long the name of a killed process may outlast it, and how often to check meanwhile.
const RELEASE: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(10);

impl Directory {
    /// Whether a process that a file of this directory names was started from here: it was given this node's file or this directory, or it writes this node's
    /// log (the directory may have been moved since). If that cannot be checked, it is assumed.
    pub(super) fn is_of_here(&self, number: u16, process: &ProcessName) -> bool {
        let Some(files) = process.files_named() else { return true };
        let same = |one: &PathBuf, other: &PathBuf| match (fs::metadata(one), fs::metadata(other)) {
            (Ok(one), Ok(other)) => (one.dev(), one.ino()) == (other.dev(), other.ino()),
            _ => false,
        };
        let log = PathBuf::from(format!("/proc/{}/fd/2", process.pid));
        files.iter().any(|file| same(file, &self.node_file(number)) || same(file, &self.0)) || same(&log, &self.log_file(number))
    }

    /// The running process of a node that a file of this directory names, but that was not started from here.
    pub(super) fn elsewhere(&self, number: u16) -> Outcome<Option<ProcessName>> {
        let file = self.pid_file(number);
        let noted = ProcessName::read(&file).context(format_args!("cannot read {}", file.display()))?;
        Ok(noted.filter(|process| process.activity() != Activity::Gone && !self.is_of_here(number, process)))
    }

    /// Refuses to start a node if files of this directory name processes that belong to another one. Under the lock.
    pub(super) fn refuse_processes_of_elsewhere(&self) -> Outcome {
        for node in self.nodes_with_processes()? {
            if let Some(process) = self.elsewhere(node)? {
                let of = process.files_named().into_iter().flatten().next();
                let of = of.map_or_else(String::new, |file| format!(" of {}", file.display()));
                return Err(self.is_a_copy(node, &format!("as process {}{of}", process.pid)));
            }
        }
        Ok(())
    }

    /// Refuses to start a cluster whose nodes are running already, but not from here. Under the lock.
    pub fn refuse_a_copy(&self, cluster: &Cluster) -> Outcome {
        self.refuse_processes_of_elsewhere()?;
        for node in cluster.config().nodes.iter().map(|node| node.number) {
            if self.activity(node)? == Activity::Gone && self.has_its_name_taken(cluster, node)? {
                return Err(self.is_a_copy(node, "and no file here says as which process"));
            }
        }
        Ok(())
    }

    /// Refuses root to start nodes of another user's cluster: the nodes that run would refuse them, and that user could not read their files. `doing` names
    /// what is refused.
    ///
    /// # Errors
    /// When this process is root's, and the cluster is not; names both users.
    pub fn refuse_as_root(&self, cluster: &Cluster, doing: &str) -> Outcome {
        let owner = cluster.owner().filter(|owner| rustix::process::geteuid().is_root() && *owner != 0);
        owner.map_or(Ok(()), |owner| Err(self.belongs_to(owner, &user_name(owner), doing)))
    }

    fn belongs_to(&self, owner: u32, name: &str, doing: &str) -> Fail {
        let (who, user) =
            if name.is_empty() { (format!("{owner}"), format!("'#{owner}'")) } else { (format!("{owner} ({name})"), name.into()) };
        Fail::failed(format_args!(
            "the cluster in {} belongs to user {who}, and this command runs as user 0 (root), which does not {doing}: run it as that user, for example with `sudo -u {user} martlet \
             ...`. As root you can look at the cluster, read and write its data, and end its nodes",
            self.path().display()
        ))
    }

    fn is_a_copy(&self, node: u16, how: &str) -> Fail {
        let here = self.path().display();
        Fail::failed(format_args!(
            "node {node} of this cluster is already running, {how}, and was not started from {here}. If {here} is a copy of that cluster's directory, it is not a cluster of its \
             own: use the original, or remove the copy and let `martlet cluster up` create a new one. If you copied it to move the cluster, end the cluster with `martlet cluster \
             down` in the original first"
        ))
    }

    /// Whether a process that no file here names has the node's name on this host.
    fn has_its_name_taken(&self, cluster: &Cluster, node: u16) -> Outcome<bool> {
        if cluster.config().fabric.traits().spans_hosts {
            return Ok(false);
        }
        let until = Instant::now() + RELEASE;
        // A process that was killed a moment ago may still have it.
        while cluster.rendezvous().is_running(&cluster.config().name, NodeId(node)).context("cannot see which nodes are running")? {
            if Instant::now() >= until {
                return Ok(true);
            }
            std::thread::sleep(LOOK);
        }
        Ok(false)
    }
}

/// A user's name, if this host has one for it; else an empty text.
fn user_name(user: u32) -> String {
    name_in(&fs::read_to_string("/etc/passwd").unwrap_or_default(), user)
}

fn name_in(passwd: &str, user: u32) -> String {
    let fields = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>());
    fields
        .filter(|fields| fields.get(2).and_then(|id| id.parse().ok()) == Some(user))
        .map(|fields| fields[0].to_owned())
        .next()
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn root_is_told_whose_cluster_it_is_and_how_to_act_as_that_user() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n";
        assert_eq!((name_in(passwd, 65534).as_str(), name_in(passwd, 7).as_str()), ("nobody", ""));
        let directory = Directory::new(Path::new("nb/c"));
        let named = directory.belongs_to(65534, "nobody", "start its nodes").to_string();
        assert!(named.starts_with(
            "the cluster in nb/c belongs to user 65534 (nobody), and this command runs as user 0 (root), which does not start its nodes"
        ));
        assert!(named.contains("`sudo -u nobody martlet ...`"), "{named}");
        let unnamed = directory.belongs_to(7, "", "start its nodes").to_string();
        assert!(unnamed.contains("belongs to user 7,") && unnamed.contains("`sudo -u '#7' martlet ...`"), "{unnamed}");
    }
}
