//! `martlet host`

mod init;
mod invite;
mod join;
mod start;

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use clap::{ArgGroup, Args, Subcommand};
use martlet_cluster::directory::Directory;
use martlet_cluster::fail::{Fail, Outcome};
use martlet_cluster::hosts;
use martlet_cluster::output::Format;
use martlet_node::config::{Cluster, NodeEntry, Settings};
use serde_json::json;

use super::Which;
use super::cluster::Session;

/// Run a cluster on several hosts that have nothing in common but a network.
///
/// One host begins (`init`) and invites others (`invite`), which join (`join`). Each host has a directory of its own, with the files of its node. Other commands, such as
/// `martlet status`, take that directory as --dir on any of the hosts.
#[derive(Debug, Subcommand)]
pub enum Command {
    Init(init::Arguments),
    Invite(invite::Arguments),
    Join(join::Arguments),
    Start(start::Arguments),
}

pub fn run(command: &Command, format: Format) -> Outcome {
    match command {
        Command::Init(arguments) => init::run(arguments, format),
        Command::Invite(arguments) => invite::run(arguments, format),
        Command::Join(arguments) => join::run(arguments, format),
        Command::Start(arguments) => start::run(arguments, format),
    }
}

/// Where the directories of hosts are that are named by their cluster.
const STATE: &str = "/var/lib/martlet";
/// Where nodes meet, and where they serve the Redis protocol, unless somebody says so.
const MEETING_PORT: u16 = 7600;
const REDIS_PORT: u16 = 7711;

/// The host's directory.
#[derive(Clone, Debug, Args)]
struct Place {
    /// The host's directory [default: /var/lib/martlet/NAME].
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

impl Place {
    fn path(&self, name: &str) -> PathBuf {
        self.dir.clone().unwrap_or_else(|| Path::new(STATE).join(name))
    }
}

/// A host's directory that is there.
#[derive(Clone, Debug, Args)]
#[command(group = ArgGroup::new("which host").args(["name", "dir"]).required(true))]
struct Existing {
    /// The cluster's name, if the host's directory is /var/lib/martlet/NAME.
    name: Option<String>,
    /// The host's directory, if it is another one.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

impl Existing {
    fn path(&self) -> PathBuf {
        let named = self.name.as_ref().map(|name| Path::new(STATE).join(name));
        named.or_else(|| self.dir.clone()).expect("one of them is required")
    }

    /// The cluster, and which of its nodes is this host's.
    fn open(&self) -> Outcome<(Directory, Cluster, u16)> {
        let directory = Directory::new(&self.path());
        if !directory.cluster_file().exists() {
            return Err(Fail::absent(format_args!(
                "there is no cluster in {}; `martlet host init` creates one, and `martlet host join` joins one",
                directory.path().display()
            )));
        }
        let cluster = directory.existing_cluster()?;
        let here = directory.nodes_here(&cluster);
        let own = if cluster.config().fabric.traits().spans_hosts && here.len() == 1 { here.first().copied() } else { None };
        let settings = |node| Settings::load(&directory.node_file(node)).map_err(Fail::failed);
        match own {
            Some(node) if settings(node)?.node().answers_hosts => Ok((directory, cluster, node)),
            None if here.is_empty() => Err(hosts::without_a_node(&directory, &cluster)),
            _ => Err(Fail::usage(format_args!(
                "{} is not the directory of a host: allowed is one that `martlet host init` or `martlet host join` has made",
                directory.path().display()
            ))),
        }
    }
}

/// How the node of this host is started.
#[derive(Clone, Copy, Debug, Args)]
struct Starting {
    /// Do not start the node: the system's service manager starts it, with the unit martlet@NAME.
    #[arg(long)]
    no_start: bool,
    /// How long to wait until the node is a full member, in seconds. All data has to be sent to it first.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = martlet_cluster::number::number::<u64>(..))]
    patience: u64,
}

impl Starting {
    /// Starts this host's node, unless somebody else is to, and waits until it counts.
    fn start(self, directory: &Directory, node: u16, format: Format) -> Outcome {
        let session = Session::open(&Which { dir: directory.path().to_owned() }, self.patience, format)?;
        let cluster = session.cluster.clone();
        if self.no_start {
            let name = &cluster.config().name;
            format.say(format_args!("start it:  systemctl enable --now martlet@{name}"));
            return Ok(());
        }
        let cluster = hosts::before_start(directory, &cluster, node, session.lock())?;
        session.welcome(&cluster, node, &format!("`martlet host start --dir {}`", directory.path().display()))
    }
}

/// An address for nodes to meet at, in words or with the usual port.
fn meeting_point(text: &str) -> Result<SocketAddr, String> {
    address(text, MEETING_PORT).filter(|at| at.port() < u16::MAX).ok_or_else(|| {
        format!("allowed is an IP address of this host that the others can reach, with or without a port from 1 to 65534, such as 10.0.0.1 or 10.0.0.1:{MEETING_PORT}")
    })
}

fn redis_address(text: &str) -> Result<SocketAddr, String> {
    address(text, REDIS_PORT).ok_or_else(|| {
        format!("allowed is an IP address of this host that clients can reach, with or without a port from 1 to 65535, such as 10.0.0.1 or 10.0.0.1:{REDIS_PORT}")
    })
}

fn address(text: &str, usual_port: u16) -> Option<SocketAddr> {
    let at = text.parse().or_else(|_| text.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, usual_port))).ok()?;
    (at.port() != 0 && !at.ip().is_unspecified()).then_some(at)
}

/// Tells what this host is now, and what can be done next.
fn report(directory: &Directory, cluster: &Cluster, own: u16, event: &str, format: Format) -> Outcome {
    let settings = Settings::load(&directory.node_file(own)).map_err(Fail::failed)?;
    let entry = settings.entry();
    let (name, path, count) = (&cluster.config().name, directory.path().display(), cluster.config().nodes.len());
    let nodes = if count == 1 { "one node".to_owned() } else { format!("{count} nodes") };
    format.print(
        format_args!("this host is node {own} of {name}, which has {nodes}; its files are in {path}"),
        || json!({"event": event, "cluster": name, "node": own, "address": entry.address, "redis": entry.redis, "nodes": count, "dir": path.to_string()}),
    );
    if let Some((host, port)) = entry.redis_host_port() {
        let password = settings.node().redis.requirepass.as_ref();
        let how = password
            .map_or_else(String::new, |_| format!("REDISCLI_AUTH=$(sed -n 's/^requirepass = \"\\(.*\\)\"/\\1/p' {path}/node-{own}.toml) "));
        format.say(format_args!("\ntry it:    {how}redis-cli -c -h {host} -p {port} set greeting hello"));
    }
    format.say(format_args!("see it:    martlet status --dir {path}"));
    let first = hosts::keeper(cluster);
    if first.number == own {
        format.say(format_args!("invite:    martlet host invite --dir {path}, once for each host that is to join"));
    }
    let ports = [entry.meeting_point(), hosts::answers_at(entry)].map(|at| at.map_or(0, |at| at.port()));
    let redis = entry.redis_host_port().map_or_else(String::new, |(_, port)| format!(", and TCP {port} for Redis clients"));
    format.say(format_args!("firewalls: TCP and UDP {} and TCP {} between the hosts{redis}", ports[0], ports[1]));
    Ok(())
}

/// The entry of a node in the list.
fn entry(number: u16, address: SocketAddr, redis: SocketAddr) -> NodeEntry {
    NodeEntry { address: address.to_string(), redis: redis.to_string(), ..NodeEntry::new(number) }
}

#[cfg(test)]
mod tests {
    use martlet_cluster::directory::{FabricPlan, Plan};
    use martlet_cluster::scratch::Scratch;
    use martlet_node::config::FabricKind;

    use super::*;

    #[test]
    fn a_host_whose_node_has_been_removed_is_told_so_and_what_to_do() {
        let scratch = Scratch::new("removed").expect("a directory");
        let directory = Directory::new(scratch.path());
        let fabric = FabricPlan { port: Some(7611), ..FabricPlan::new(FabricKind::between_ordinary_hosts()) };
        let cluster = directory.create(&Plan { redis_port: Some(7711), fabric, ..Plan::new("shop", 3) }).expect("made");
        let open = || Existing { name: None, dir: Some(scratch.path().to_owned()) }.open().expect_err("no host's").to_string();
        assert!(open().contains("is not the directory of a host: allowed is"), "all nodes are here: {}", open());
        for node in [0, 1] {
            std::fs::remove_file(directory.node_file(node)).expect("it was there");
        }
        directory.unlist_node(&cluster, 2).expect("removed");
        let why = open();
        assert!(why.starts_with("node 2 of this host has been removed from the cluster, whose nodes are now [0, 1]. "), "{why}");
        let purge = format!("`martlet cluster down --purge --dir {}`, and then `martlet host join`", scratch.path().display());
        assert!(why.contains(&purge), "{why}");
        std::fs::remove_file(directory.node_file(2)).expect("as --purge does");
        let why = open();
        assert!(why.contains("has the file of no node: the cluster's nodes are [0, 1], on other hosts") && why.contains(&purge), "{why}");
    }

    #[test]
    fn an_address_has_the_usual_port_unless_it_says_so() {
        assert_eq!(meeting_point("10.0.0.1").map(|at| at.to_string()).as_deref(), Ok("10.0.0.1:7600"));
        assert_eq!(meeting_point("[fd00::1]:9").map(|at| at.to_string()).as_deref(), Ok("[fd00::1]:9"));
        assert_eq!(redis_address("fd00::1").map(|at| at.to_string()).as_deref(), Ok("[fd00::1]:7711"));
        for bad in ["", "host", "10.0.0.1:0", "0.0.0.0", "[::]:7600", "10.0.0.1:65535", "10.0.0.1:65536"] {
            assert!(meeting_point(bad).is_err_and(|why| why.starts_with("allowed is an IP address")), "{bad:?}");
        }
    }
}
