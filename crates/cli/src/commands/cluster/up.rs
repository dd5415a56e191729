//! `martlet cluster up`

use std::time::Duration;

use clap::{Args, ValueEnum};
use martlet_cluster::directory::FabricFlags;
use martlet_cluster::directory::{Directory, Life, Plan};
use martlet_cluster::fail::{Context as _, Fail, Outcome};
use martlet_cluster::interrupt::Interrupt;
use martlet_cluster::named::{durability, engine};
use martlet_cluster::number::number;
use martlet_cluster::output::{self, Format, GOOD, styled};
use martlet_cluster::process::Activity;
use martlet_cluster::watch::observer::{self, Observer};
use martlet_node::config::{Cluster, DurabilityKind, EngineKind, FabricKind, NodeEntry, Role, Settings, ThreadsConfig};
use serde_json::json;

use crate::commands::Which;

/// Start a cluster in the background, or those of its nodes that are not running.
///
/// The first run creates the cluster in the directory. Later runs, also after a crash, start the nodes that are not running. The command returns when every
/// node is in the view and holds the data. If the first run fails, it stops the nodes that it started and leaves no cluster behind. If a later run fails, the
/// nodes that are running keep running.
///
/// Example: martlet cluster up --dir /tmp/c && redis-cli -c -p 7711 set greeting hello
#[derive(Debug, Args)]
pub struct Arguments {
    /// Number of replicas, the nodes that hold the data [default: 3].
    #[arg(long, value_name = "N", value_parser = number::<u16>(1..=16))]
    replicas: Option<u16>,
    /// Number of coordinators, the nodes that decide about membership [default: 3]. On a fabric that spans hosts, a majority of them has to survive.
    #[arg(long, value_name = "N", value_parser = number::<u16>(1..=16))]
    coordinators: Option<u16>,
    /// Port of the Redis protocol: node I serves it on this port plus I [default: 7711].
    #[arg(long, value_name = "PORT", value_parser = number::<u16>(1..))]
    redis_port: Option<u16>,
    /// Give the cluster one address: the node that leads also serves the Redis protocol on this port. Clients are never redirected there, and their
    /// connections outlive the death of any node. Only with --fabric shm.
    #[arg(long, value_name = "PORT", value_parser = number::<u16>(1..))]
    service_port: Option<u16>,
    /// What the nodes look like to Redis clients [default: cluster]. With cluster, for cluster clients, the nodes are a Redis Cluster of one shard, and
    /// redirect clients to the primary with -MOVED. With standalone, for all other clients, a node that is not the primary refuses them with -READONLY and says
    /// where the primary is.
    #[arg(long, value_name = "MODE")]
    redis_mode: Option<RedisMode>,
    #[command(flatten)]
    fabric: FabricFlags,
    /// On a fabric that spans hosts: node I meets the others on 127.0.0.1, at this port plus I [default: 7611].
    #[arg(long, value_name = "PORT", value_parser = number::<u16>(1..))]
    fabric_port: Option<u16>,
    /// Replication engine [default: primary-backup].
    #[arg(long, value_parser = engine())]
    engine: Option<EngineKind>,
    /// What an acknowledged request outlives [default: memory]. With memory: the failure of all nodes but one, one after the other, or with --engine mu of a
    /// minority. With async or sync, which need --engine mu or apus: also a loss of power of all nodes at once. async may then lose what was not on disk
    /// yet; sync loses nothing.
    #[arg(long, value_parser = durability())]
    durability: Option<DurabilityKind>,
    /// How long to wait for the cluster to be ready, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 20, value_parser = number::<u64>(..))]
    patience: u64,
    #[command(flatten)]
    which: Which,
}

/// What nodes look like to Redis clients, in the words of INFO.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "lower")]
enum RedisMode {
    Cluster,
    Standalone,
}

impl std::fmt::Display for RedisMode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if *self == RedisMode::Cluster { "cluster" } else { "standalone" })
    }
}

pub fn run(arguments: &Arguments, format: Format) -> Outcome {
    let interrupt = Interrupt::install().context("cannot watch for Ctrl-C")?;
    let directory = Directory::new(&arguments.which.dir);
    directory.refuse_a_service("`martlet run --dir` starts such a server; --dir names another directory for a cluster")?;
    // What is wrong with the flags is said before anything is made.
    let planned = if directory.cluster_file().exists() { None } else { Some(plan(arguments)?) };
    planned.as_ref().map_or(Ok(()), Plan::check)?;
    directory.cluster()?.map_or(Ok(()), |cluster| directory.refuse_as_root(&cluster, "start its nodes"))?;
    let lock = directory.make()?;
    let there = directory.cluster()?.map(|cluster| as_asked(arguments, cluster, &directory)).transpose()?;
    let is_new = there.is_none();
    let mut started = Vec::new();
    let up = || -> Outcome<Cluster> {
        let cluster = match there {
            Some(cluster) => cluster,
            None => {
                // Every process that a cluster before this one left here belongs to it no more.
                super::down::stop_all(&directory, GRACE)?;
                directory.create(&planned.map_or_else(|| plan(arguments), Ok)?)?
            }
        };
        start(&directory, &cluster, &mut started, format)?;
        await_whole(&directory, &cluster, Duration::from_secs(arguments.patience), &interrupt)?;
        // Whatever was under way with any of them has come to its end.
        cluster.config().nodes.iter().try_for_each(|node| directory.end_change(node.number))?;
        Ok(cluster)
    };
    match up() {
        Ok(cluster) => report(&directory, &cluster, &started, format),
        Err(fail) => {
            let left = if is_new { take_back(&directory, &started, lock.is_new()) } else { still_runs(&directory) };
            // Where it is interrupted nothing else is said.
            output::complain(format_args!("martlet: {left}"));
            Err(fail)
        }
    }
}

/// Starts the cluster's nodes of this host that do not run. Notes which.
fn start(directory: &Directory, cluster: &Cluster, started: &mut Vec<u16>, format: Format) -> Outcome {
    let here = directory.nodes_here(cluster);
    if here.is_empty() {
        return Err(Fail::failed(format_args!("the cluster in {} has no node on this host", directory.path().display())));
    }
    here.iter().try_for_each(|node| directory.adopt(*node))?;
    directory.refuse_a_copy(cluster)?;
    for number in here {
        match directory.activity(number)? {
            Activity::Running => {}
            Activity::Stopped => {
                format.say(format_args!("node {number} is stopped by a signal; `martlet cluster kill {number} --signal CONT` resumes it"));
            }
            Activity::Gone => {
                directory.start(number, Life::OfItsOwn)?;
                started.push(number);
            }
        }
    }
    Ok(())
}

/// How long nodes have to end that hold nothing.
const GRACE: Duration = Duration::from_secs(1);

/// A cluster that has come to nothing has nothing in it: its nodes are ended, and its ports stand in no file, where the next attempt would have to be the same. Returns what is to be
/// said of it.
pub fn take_back(directory: &Directory, started: &[u16], with_data: bool) -> String {
    let path = directory.path().display();
    let ended = super::down::stop_all(directory, GRACE).and_then(|_| directory.unmake(with_data));
    match ended {
        Err(why) => {
            format!("cannot stop the nodes that this command started: {why}; `martlet cluster down --purge --dir {path}` stops them")
        }
        Ok(()) if started.is_empty() => "no node was started, and no cluster is left behind".into(),
        Ok(()) => format!(
            "nodes {started:?}, which this command started, have been stopped, and no cluster is left behind; their logs are in {path}"
        ),
    }
}

/// Of a cluster that was there before nothing is taken back: nodes that run may serve, and those that were started may wait for others. Returns what is to be said of it.
fn still_runs(directory: &Directory) -> String {
    let path = directory.path().display();
    let here = directory.cluster().ok().flatten().map(|cluster| directory.nodes_here(&cluster)).unwrap_or_default();
    let running: Vec<u16> = here.into_iter().filter(|node| !matches!(directory.activity(*node), Ok(Activity::Gone))).collect();
    match running.is_empty() {
        true => "none of the cluster's nodes is running on this host".into(),
        false => format!(
            "nodes {running:?} keep running; the same command waits for them again, and `martlet cluster down --dir {path}` stops them"
        ),
    }
}

fn plan(arguments: &Arguments) -> Outcome<Plan> {
    martlet_cluster::directory::check_durability(arguments.durability.unwrap_or_default(), arguments.engine.unwrap_or_default())?;
    FabricFlags::check_port(arguments.fabric.kind(), arguments.fabric_port)?;
    let random: String = martlet_node::config::Key::generate().context("cannot draw a name")?.to_hex().chars().take(12).collect();
    Ok(Plan {
        // Clusters of one host need different names, wherever their directories are.
        name: format!("cluster-{random}"),
        replicas: arguments.replicas.unwrap_or(3),
        coordinators: arguments.coordinators.unwrap_or(3),
        redis_port: Some(arguments.redis_port.unwrap_or(7711)),
        service_port: service_port(arguments)?,
        redis_cluster: arguments.redis_mode != Some(RedisMode::Standalone),
        engine: arguments.engine.unwrap_or_default(),
        durability: arguments.durability.unwrap_or_default(),
        election: None,
        threads: ThreadsConfig::default(),
        fabric: arguments.fabric.plan(Some(arguments.fabric_port.unwrap_or(7611)))?,
        wardens: None,
    })
}

/// The port of the service, where the fabric has one.
fn service_port(arguments: &Arguments) -> Outcome<Option<u16>> {
    let fabric = arguments.fabric.kind();
    match arguments.service_port {
        Some(port) if fabric.traits().spans_hosts => Err(Fail::usage(format_args!(
            "--service-port is {port}, but the fabric is {fabric}; only the processes of one host can share connections: allowed is --service-port with --fabric {}",
            FabricKind::names_with(|traits| !traits.spans_hosts)
        ))),
        port => Ok(port),
    }
}

/// The cluster that is there, if it is the one asked for.
fn as_asked(arguments: &Arguments, cluster: Cluster, directory: &Directory) -> Outcome<Cluster> {
    let nodes = &cluster.config().nodes;
    let other = |flag: &str, asked: &dyn std::fmt::Display, there: &dyn std::fmt::Display| {
        let path = directory.path().display();
        Fail::usage(format_args!(
            "{flag} is {asked}, but the cluster in {path} has {there}; leave the flag out to start that cluster, or remove it with `martlet \
             cluster down --purge --dir {path}`"
        ))
    };
    let fabric = cluster.config().fabric;
    if let Some(asked) = arguments.fabric.fabric.filter(|asked| *asked != fabric) {
        return Err(other("--fabric", &asked, &fabric));
    }
    FabricFlags::check_port(fabric, arguments.fabric_port)?;
    arguments.fabric.check_traits(fabric)?;
    let engine = cluster.config().engine;
    if let Some(asked) = arguments.engine.filter(|asked| *asked != engine) {
        return Err(other("--engine", &asked, &engine));
    }
    let durability = cluster.config().durability.mode;
    if let Some(asked) = arguments.durability.filter(|asked| *asked != durability) {
        return Err(other("--durability", &asked, &durability));
    }
    if let Some(asked) = arguments.redis_mode {
        let there = redis_mode(directory, &cluster)?;
        if asked != there {
            return Err(other("--redis-mode", &asked, &there));
        }
    }
    let count = |role| nodes.iter().filter(|node| node.roles.contains(&role)).count() as u64;
    if let Some(asked) = arguments.fabric.multicast {
        let there = cluster.config().multicast();
        if asked != there {
            return Err(other("--multicast", &asked, &there));
        }
    }
    let asked = &arguments.fabric.devices;
    if !asked.is_empty()
        && let Some((node, device)) = other_device(directory, &cluster, asked)?
    {
        let there = format!("node {node} on {}", device.as_deref().unwrap_or("the first device with an active port"));
        return Err(other("--devices", &asked.join(","), &there));
    }
    let port = nodes.first().and_then(|node| node.redis_host_port()).map_or(0, |(_, port)| u64::from(port));
    for (flag, asked, there) in [
        ("--replicas", arguments.replicas, count(Role::Replica)),
        ("--coordinators", arguments.coordinators, count(Role::Coordinator)),
        ("--redis-port", arguments.redis_port, port),
        ("--service-port", arguments.service_port, cluster.config().service.map_or(0, |service| u64::from(service.port()))),
        ("--fabric-port", arguments.fabric_port, nodes.first().and_then(NodeEntry::meeting_point).map_or(0, |at| u64::from(at.port()))),
    ] {
        if asked.is_some_and(|asked| u64::from(asked) != there) {
            return Err(other(flag, &asked.unwrap_or_default(), &there));
        }
    }
    Ok(cluster)
}

/// A node here whose device is none of these, if there is one. Nodes may have been added or removed since the cluster was made, so which of them a node uses is not
/// compared.
fn other_device(directory: &Directory, cluster: &Cluster, devices: &[String]) -> Outcome<Option<(u16, Option<String>)>> {
    for node in directory.nodes_here(cluster) {
        let device = Settings::load(&directory.node_file(node)).map_err(Fail::failed)?.device();
        if !device.as_ref().is_some_and(|device| devices.contains(device)) {
            return Ok(Some((node, device)));
        }
    }
    Ok(None)
}

/// What the cluster that is there looks like to Redis clients: its nodes' files say so, all of them the same if they were made here.
fn redis_mode(directory: &Directory, cluster: &Cluster) -> Outcome<RedisMode> {
    let Some(first) = directory.nodes_here(cluster).first().copied() else { return Ok(RedisMode::Cluster) };
    let settings = Settings::load(&directory.node_file(first)).map_err(Fail::failed)?;
    Ok(if settings.node().redis.cluster { RedisMode::Cluster } else { RedisMode::Standalone })
}

/// Waits until the cluster is whole, and says what is in the way if it does not get there.
pub fn await_whole(directory: &Directory, cluster: &Cluster, patience: Duration, interrupt: &Interrupt) -> Outcome {
    let nodes: Vec<u16> = cluster.config().nodes.iter().map(|node| node.number).collect();
    let mut observer = Observer::open(cluster)?;
    let mut died = None;
    let found = observer.wait_for(patience, interrupt, |sights| {
        // One that was never started here is another host's.
        let gone = |node: &u16| matches!(directory.process(*node), Ok(Some(process)) if process.activity() == Activity::Gone);
        died = nodes.iter().copied().find(gone);
        died.is_some() || observer::is_whole(sights, &nodes)
    })?;
    match (died, found) {
        (Some(node), _) => {
            let log = directory.log_file(node);
            Err(Fail::failed(format_args!("node {node} ended; the end of its log, {}:\n{}", log.display(), directory.log_tail(node, 8))))
        }
        (None, Ok(_)) => Ok(()),
        (None, Err(sights)) => Err(observer::not_ready(&format!("the cluster was not ready within {} s", patience.as_secs()), &sights)),
    }
}

fn report(directory: &Directory, cluster: &Cluster, started: &[u16], format: Format) -> Outcome {
    let here = directory.nodes_here(cluster);
    for node in cluster.config().nodes.iter().filter(|node| here.contains(&node.number)) {
        let pid = directory.process(node.number)?.map(|process| process.pid);
        let fresh = started.contains(&node.number);
        let roles: Vec<String> = node.roles.iter().map(ToString::to_string).collect();
        let how = if fresh { styled(GOOD, "started") } else { "was running".into() };
        let pid_text = pid.map_or_else(String::new, |pid| format!("process {pid}, "));
        format.print(
            format_args!("node {}  {how}  {pid_text}{}, Redis protocol on {}", node.number, roles.join(" and "), node.redis),
            || json!({"event": "up", "node": node.number, "pid": pid, "started": fresh, "roles": roles, "redis": node.redis}),
        );
    }
    if let Some((host, port)) = cluster.config().nodes.first().and_then(|node| node.redis_host_port()) {
        let dir = directory.path().display();
        let how = if redis_mode(directory, cluster)? == RedisMode::Cluster { "-c " } else { "" };
        format.say(format_args!(
            "\ntry it:   redis-cli {how}-h {host} -p {port} set greeting hello\nbreak it: martlet cluster kill 0 --dir {dir}\nsee it:   martlet status \
             --dir {dir}\nend it:   martlet cluster down --dir {dir}"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use martlet_cluster::directory::FabricPlan;
    use martlet_cluster::scratch::Scratch;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    /// It needs no device: the cluster's files say which its nodes use.
    #[test]
    fn devices_and_multicast_are_those_of_the_cluster_that_is_there() {
        let scratch = Scratch::new("up").expect("a directory");
        let directory = Directory::new(scratch.path());
        let devices = vec!["a".to_owned(), "b".to_owned()];
        let fabric = FabricPlan { port: Some(7611), devices, ..FabricPlan::new(FabricKind::Verbs) };
        directory.create(&Plan { fabric, ..Plan::new("up", 3) }).expect("made");
        let refused = |flags: &[&str]| {
            let line = Line::try_parse_from([&["up"], flags].concat()).expect("flags");
            let cluster = directory.existing_cluster().expect("made");
            as_asked(&line.arguments, cluster, &directory).err().map(|fail| fail.to_string())
        };
        for the_same in [&[][..], &["--devices", "a,b"], &["--devices", "b,a,c"], &["--multicast", "off"]] {
            assert_eq!(refused(the_same), None, "{the_same:?}");
        }
        let why = refused(&["--devices", "a"]).expect("node 1 uses another one");
        assert!(why.contains("--devices is a, but the cluster in") && why.contains("has node 1 on b"), "{why}");
        let why = refused(&["--multicast", "on"]).expect("it is off");
        assert!(why.contains("--multicast is on, but the cluster in") && why.contains("has off"), "{why}");
    }
}
