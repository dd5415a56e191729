//! A Martlet cluster whose nodes run on the first hosts of a rig.

use std::fs;
use std::net::SocketAddrV4;
use std::path::{Path, PathBuf};
use std::process::{Child, Output, Stdio};
use std::time::Duration;

use serde_json::Value;

use super::rig::Rig;
use crate::hosts;

/// How many nodes it has, on the first hosts of the rig.
pub const NODES: usize = 3;
/// The ports of the fabric, and of the Redis protocol.
const FABRIC: u16 = 7600;
const REDIS: u16 = 7711;

/// The nodes, which end when this value is dropped, and their files, which stay as long as the rig.
pub struct Cluster<'a> {
    rig: &'a Rig,
    martlet: PathBuf,
    directory: PathBuf,
    nodes: [Option<Child>; NODES],
    written: usize,
}

impl<'a> Cluster<'a> {
    /// Makes its files, in a directory of that name. No node runs yet.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn make(rig: &'a Rig, martlet: &Path, name: &str, engine: &str) -> Result<Cluster<'a>, String> {
        let directory = rig.directory.join(name);
        let hosts: Vec<_> = (0..NODES).map(|host| rig.namespaces.address(host, 0)).collect();
        write_files(&directory, &hosts, engine, "auto", 1)?;
        Ok(Cluster { rig, martlet: martlet.to_owned(), directory, nodes: Default::default(), written: 0 })
    }

    /// Starts all nodes, and waits until a write is acknowledged.
    ///
    /// # Errors
    /// When it is not acknowledged.
    pub fn start_all(&mut self) -> Result<(), String> {
        (0..NODES).try_for_each(|host| self.start(host))?;
        self.write(0).map(drop)
    }

    /// Where its files are.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The addresses at which its nodes reach each other.
    pub fn addresses(&self) -> Vec<SocketAddrV4> {
        let at = |host| SocketAddrV4::new(self.rig.namespaces.address(host, 0).parse().expect("an address of IPv4"), FABRIC);
        (0..NODES).map(at).collect()
    }

    /// The addresses at which clients of the Redis protocol reach its nodes.
    pub fn redis_addresses(&self) -> Vec<String> {
        (0..NODES).map(|host| format!("{}:{REDIS}", self.rig.namespaces.address(host, 0))).collect()
    }

    /// How many keys [`write`](Cluster::write) has written.
    pub fn written(&self) -> usize {
        self.written
    }

    /// Starts a node.
    ///
    /// # Errors
    /// When it does not run.
    pub fn start(&mut self, host: usize) -> Result<(), String> {
        let log = self.directory.join(format!("node-{host}.log"));
        let log = fs::OpenOptions::new().create(true).append(true).open(&log).map_err(|e| format!("{}: {e}", log.display()))?;
        let config = self.directory.join(format!("node-{host}.toml"));
        let mut command = self.rig.on(host, &self.martlet);
        command.args(["node", "--die-with-parent", "--config"]).arg(config).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.nodes[host] = Some(command.spawn().map_err(|e| format!("node {host} does not start: {e}"))?);
        Ok(())
    }

    /// Kills a node as SIGKILL does: the process that was `ip` has become the node.
    pub fn kill(&mut self, host: usize) {
        if let Some(mut node) = self.nodes[host].take() {
            let _ = node.kill();
            let _ = node.wait();
        }
    }

    /// Checks that all nodes run.
    ///
    /// # Errors
    /// Which one has ended, and its last output.
    pub fn check_nodes(&mut self) -> Result<(), String> {
        for (number, node) in self.nodes.iter_mut().enumerate() {
            if let Some(Ok(Some(status))) = node.as_mut().map(Child::try_wait) {
                let said = fs::read_to_string(self.directory.join(format!("node-{number}.log"))).unwrap_or_default();
                let last = said.lines().last().unwrap_or("it has said nothing");
                return Err(format!("node {number} has ended ({status}): {last}"));
            }
        }
        Ok(())
    }

    fn martlet(&self, host: usize, arguments: &[&str]) -> Result<Output, String> {
        let output = self.rig.on(host, &self.martlet).args(arguments).env("MARTLET_DIR", &self.directory).output();
        output.map_err(|e| format!("martlet {}: {e}", arguments.join(" ")))
    }

    /// Resets all TCP connections between that host's node and others, as if each end had sent a reset to the other.
    ///
    /// # Errors
    /// When there are none, or the kernel cannot.
    pub fn reset(&self, host: usize) -> Result<(), String> {
        let output = self.rig.on(host, "ss").args(["-HKt", "state", "established", "( sport = :7600 or dport = :7600 )"]).output();
        let output = output.map_err(|e| format!("ss: {e}"))?;
        if !output.status.success() || output.stdout.is_empty() {
            return Err(format!("`ss -K` has reset nothing on host {host}; the kernel needs CONFIG_INET_DIAG_DESTROY: {}", text(&output)));
        }
        Ok(())
    }

    /// The view's number, as that host sees it.
    ///
    /// # Errors
    /// When none is shown.
    pub fn view(&self, host: usize) -> Result<u64, String> {
        let output = self.martlet(host, &["status", "--json"])?;
        view_of(&String::from_utf8_lossy(&output.stdout)).ok_or_else(|| format!("no view is shown: {}", text(&output)))
    }

    /// The host whose node leads, as that host sees it.
    ///
    /// # Errors
    /// When none leads for too long.
    pub fn leader(&self, host: usize) -> Result<usize, String> {
        let mut leader = None;
        self.rig.until("a node leads", || {
            let output = self.martlet(host, &["status", "--json"])?;
            leader = leader_of(&String::from_utf8_lossy(&output.stdout));
            Ok(if leader.is_some() { Ok(()) } else { Err(text(&output)) })
        })?;
        Ok(leader.expect("one was found"))
    }

    /// Writes one more key from that host. Returns how long it took to be acknowledged.
    ///
    /// # Errors
    /// When it is not acknowledged.
    pub fn write(&mut self, host: usize) -> Result<Duration, String> {
        let (key, value) = (format!("key{}", self.written), format!("value{}", self.written));
        let waited = self.rig.until("a write", || {
            let output = self.martlet(host, &["set", &key, &value])?;
            Ok(if output.status.success() { Ok(()) } else { Err(text(&output)) })
        })?;
        self.written += 1;
        Ok(waited)
    }

    /// Checks that everything acknowledged is there, as that host sees it.
    ///
    /// # Errors
    /// When it is not.
    pub fn check(&self, host: usize) -> Result<(), String> {
        for n in 0..self.written {
            let wanted = format!("value{n}");
            self.rig.until("a read", || {
                let output = self.martlet(host, &["get", &format!("key{n}")])?;
                match output.status.code() {
                    Some(0) if String::from_utf8_lossy(&output.stdout).trim() == wanted => Ok(Ok(())),
                    Some(0 | 3) => Err(format!("key{n} was written, and is lost: {}", text(&output))),
                    _ => Ok(Err(text(&output))),
                }
            })?;
        }
        Ok(())
    }

    /// Waits until all three are members and none is still receiving the state. Returns how long that took.
    ///
    /// # Errors
    /// When it takes too long.
    pub fn wait_until_whole(&self, host: usize) -> Result<Duration, String> {
        let whole = || {
            let output = self.martlet(host, &["status", "--json"])?;
            let shown = String::from_utf8_lossy(&output.stdout).into_owned();
            Ok(if is_whole(&shown) { Ok(()) } else { Err(text(&output)) })
        };
        self.rig.until("the cluster is whole", whole)
    }
}

/// Writes the files of a cluster and of its nodes, which have these addresses, into a new directory. All time-outs are `patience` times their default.
///
/// # Errors
/// When that fails.
pub fn write_files(directory: &Path, hosts: &[String], engine: &str, reads: &str, patience: u32) -> Result<(), String> {
    let write = || -> std::io::Result<()> {
        fs::create_dir_all(directory)?;
        hosts::write_key(&directory.join("cluster.key"))?;
        let us = |usual: u32| usual * patience;
        let lease_us = us(100_000);
        let mut cluster =
            format!("name = \"net\"\nkey_file = \"cluster.key\"\nfabric = \"ethernet\"\nengine = \"{engine}\"\nlease_us = {lease_us}\n");
        if patience > 1 {
            let (beat, broadcast, timeout, give_up) = (us(25_000), us(100_000), us(1_500_000), us(500_000));
            cluster += &format!("[detector]\nheartbeat_us = {beat}\nbroadcast_us = {broadcast}\nbroadcast_timeout_us = {timeout}\n");
            cluster += &format!("[ethernet]\ngive_up_us = {give_up}\n");
        }
        for (host, at) in hosts.iter().enumerate() {
            cluster += &format!(
                "[[node]]\nnumber = {host}\naddress = \"{at}:{FABRIC}\"\nredis = \"{at}:{REDIS}\"\nroles = [\"coordinator\", \"replica\"]\n"
            );
            let redis = format!("[redis]\nlisten = \"{at}\"\nprotected_mode = false\nreads = \"{reads}\"\n");
            fs::write(directory.join(format!("node-{host}.toml")), format!("number = {host}\ncluster = \"cluster.toml\"\n{redis}"))?;
        }
        fs::write(directory.join("cluster.toml"), cluster)
    };
    write().map_err(|e| format!("cannot write the cluster's files: {e}"))
}

fn text(output: &Output) -> String {
    let both = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&both).trim().to_owned()
}

impl Drop for Cluster<'_> {
    fn drop(&mut self) {
        (0..NODES).for_each(|host| self.kill(host));
    }
}

/// The first object with that key and value in the output of `martlet status --json`.
fn object(shown: &str, key: &str, value: &str) -> Option<Value> {
    shown.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()).find(|object| object[key] == value)
}

/// The view's number in the output of `martlet status --json`.
fn view_of(shown: &str) -> Option<u64> {
    object(shown, "event", "cluster")?["view"].as_u64()
}

/// The node that leads, in the output of `martlet status --json`.
fn leader_of(shown: &str) -> Option<usize> {
    usize::try_from(object(shown, "role", "primary")?["node"].as_u64()?).ok()
}

/// Whether the output of `martlet status --json` shows three nodes that lead or follow.
fn is_whole(shown: &str) -> bool {
    // A node that is still receiving the state calls itself a backup as well.
    let holds = shown.contains("\"learners\":0,") && shown.contains(&format!("\"replicas\":{NODES},"));
    holds && shown.matches("\"role\":\"primary\"").count() == 1 && shown.matches("\"role\":\"backup\"").count() == NODES - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_is_whole_when_one_leads_and_the_others_follow() {
        let node = |role: &str| format!("{{\"event\":\"node\",\"node\":{},\"role\":\"{role}\"}}\n", role.len());
        let cluster =
            |learners, replicas| format!("{{\"event\":\"cluster\",\"learners\":{learners},\"replicas\":{replicas},\"view\":3}}\n");
        assert_eq!(view_of(&[node("primary"), cluster(0, 3)].concat()), Some(3));
        assert_eq!(leader_of(&[node("backup"), node("primary"), cluster(0, 3)].concat()), Some(7));
        assert_eq!(leader_of(&node("backup")), None);
        assert!(is_whole(&[cluster(0, 3), node("backup"), node("primary"), node("backup")].concat()));
        assert!(!is_whole(&[cluster(2, 1), node("backup"), node("primary"), node("backup")].concat()), "two are being taught");
        assert!(!is_whole(&[cluster(0, 3), node("backup"), node("primary")].concat()));
        assert!(!is_whole(&[cluster(0, 3), node("primary"), node("primary"), node("backup")].concat()));
    }
}
