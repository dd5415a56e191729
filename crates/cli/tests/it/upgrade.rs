//! Nodes of different builds in one cluster. A build that the others do not understand is refused; otherwise nodes are upgraded one by one.
//!
//! There is only one build of this source. It passes for another where `MARTLET_TEST_BUILD` says so (a feature of `node`, for tests alone). The last release is
//! another build, where `MARTLET_LAST_RELEASE` names its command, as `cargo xtask upgrade` sets it.

use std::path::{Path, PathBuf};
use std::process::Command;

use martlet_protocol::version::VERSION;

use crate::cluster::Cluster;
use crate::martlet::{Ran, command, fabric, ran};
use crate::nodes::{Load, nothing_is_lost};

/// A build, as a command that runs it.
enum Build {
    /// This build, or what it passes for: a version, its lowest level, and its highest.
    Ours(Option<String>),
    /// Another executable.
    At(PathBuf),
}

impl Build {
    fn run(&self, cluster: &Cluster, arguments: &[&str]) -> Ran {
        let arguments = [arguments, &["--dir", &cluster.dir, "--json"]].concat();
        let mut command = match self {
            Build::Ours(_) => command(&arguments),
            Build::At(exe) => {
                let mut command = Command::new(exe);
                command.args(&arguments);
                command
            }
        };
        if let Build::Ours(Some(passes_for)) = self {
            command.env("MARTLET_TEST_BUILD", passes_for);
        }
        ran(command.output().expect("it runs"))
    }

    /// Restarts a node as this build, and waits until the cluster is whole.
    fn restart(&self, cluster: &Cluster, node: &str) {
        self.run(cluster, &["cluster", "restart", node, "--patience", "600"]).ok();
    }

    /// The same, for a node that will not be taken in. Waits until it has ended, and returns what it has logged meanwhile.
    fn restart_in_vain(&self, cluster: &Cluster, node: &str) -> String {
        let before = log(cluster, node).len();
        // This build cannot see whether the others can do without the node.
        self.run(cluster, &["cluster", "restart", node, "--patience", "0", "--force"]).ok();
        while cluster.nodes()[&node.parse().expect("a number")].0 != "gone" {
            std::thread::yield_now();
        }
        log(cluster, node).split_off(before)
    }
}

fn log(cluster: &Cluster, node: &str) -> String {
    let file = Path::new(&cluster.dir).join(format!("node-{node}.log"));
    String::from_utf8_lossy(&std::fs::read(file).expect("a log for each")).into_owned()
}

/// The level that the cluster reports.
fn level(cluster: &Cluster) -> u64 {
    let objects = cluster.run(&["status"]).ok().objects();
    objects.iter().find_map(|object| object["level"].as_u64()).expect("a view")
}

/// Whether the log names both versions.
#[track_caller]
fn names_both(text: &str, versions: [u32; 2]) {
    for version in versions {
        assert!(text.contains(&format!("protocol version {version}, ")), "version {version} is not named:\n{text}");
    }
}

/// A node of a build with another version is refused and ends, and the others go on.
#[track_caller]
fn is_refused(cluster: &Cluster, other: &Build, node: &str, versions: [u32; 2]) {
    let said = other.restart_in_vain(cluster, node);
    assert!(said.contains("no node of its own build is there"), "{said}");
    names_both(&said, versions);
    let leader = cluster.primary();
    assert_ne!(leader, node);
    names_both(&log(cluster, &leader), versions);
    // Nor can the other build's command see anything; it says why.
    let status = other.run(cluster, &["status"]).code(1);
    names_both(&status.err, versions);
    let get = other.run(cluster, &["get", "key", "--timeout", "3000"]).code(1);
    names_both(&get.err, versions);
}

#[test]
fn a_build_of_another_version_is_refused_and_both_say_so() {
    let cluster = Cluster::new();
    cluster.up_with(&[]).ok();
    let load = Load::start(&cluster);
    let node = (0..3).map(|node| node.to_string()).find(|node| *node != cluster.primary()).expect("two follow");
    is_refused(&cluster, &Build::Ours(Some("4000 1 1".to_owned())), &node, [VERSION, 4000]);
    load.goes_on();
    Build::Ours(None).restart(&cluster, &node);
    nothing_is_lost(&cluster, &load.end());
    // The refused node is counted, and so is the command.
    let objects = cluster.run(&["status"]).ok().objects();
    let refused = |object: &serde_json::Value| object["counters"]["refused_builds"].as_u64();
    assert!(objects.iter().filter_map(refused).sum::<u64>() > 0);
}

fn is_upgraded_under_load(engine: &str) {
    let cluster = Cluster::new();
    let [old, new] = [1, 2].map(|highest| Build::Ours(Some(format!("{VERSION} 1 {highest}"))));
    cluster.up_with(&["--engine", engine]).ok();
    let load = Load::start(&cluster);
    for node in ["0", "1", "2"] {
        // Too early: a node could not work at that level.
        new.run(&cluster, &["cluster", "level", "--raise"]).ok();
        assert_eq!(level(&cluster), 1);
        // And there is a way back.
        new.restart(&cluster, node);
        old.restart(&cluster, node);
        new.restart(&cluster, node);
        load.goes_on();
    }
    assert_eq!(level(&cluster), 1, "raised without being asked");
    let raised = new.run(&cluster, &["cluster", "level", "--raise", "--patience", "600"]).ok().objects();
    assert_eq!((raised[0]["level"].as_u64(), raised[0]["before"].as_u64()), (Some(2), Some(1)));
    assert_eq!(level(&cluster), 2);
    load.goes_on();
    let said = old.restart_in_vain(&cluster, "1");
    let wanted = format!("the cluster works at feature level 2, but this is martlet of test {VERSION} 1 1");
    assert!(said.contains(&wanted), "{said}");
    load.goes_on();
    new.restart(&cluster, "1");
    nothing_is_lost(&cluster, &load.end());
}

#[test]
fn a_cluster_with_a_primary_is_upgraded_under_load_and_then_raised() {
    is_upgraded_under_load("primary-backup");
}

#[test]
fn a_cluster_of_mu_is_upgraded_under_load_and_then_raised() {
    is_upgraded_under_load("mu");
}

/// The last release's command, if it is there.
fn last_release() -> Option<Build> {
    let exe = std::env::var_os("MARTLET_LAST_RELEASE");
    if exe.is_none() {
        eprintln!(
            "SKIPPED: no earlier build is named by MARTLET_LAST_RELEASE; `cargo xtask upgrade` builds the last release, or any revision"
        );
    }
    exe.map(|exe| Build::At(exe.into()))
}

fn follows_the_last_release(engine: &str) {
    let Some(old) = last_release() else { return };
    if !fabric().is_empty() {
        eprintln!("SKIPPED: only nodes over shared memory are upgraded from another executable");
        return;
    }
    let cluster = Cluster::new();
    let port = cluster.port.to_string();
    old.run(&cluster, &["cluster", "up", "--redis-port", &port, "--patience", "600", "--engine", engine]).ok();
    let load = Load::start(&cluster);
    let objects = old.run(&cluster, &["status"]).ok().objects();
    // Builds before the first release do not report it.
    let version = objects.iter().find_map(|object| object["counters"]["protocol"].as_u64()).unwrap_or(u64::from(VERSION));
    if version == u64::from(VERSION) {
        for node in ["0", "1", "2"] {
            Build::Ours(None).restart(&cluster, node);
            load.goes_on();
        }
        nothing_is_lost(&cluster, &load.end());
        return;
    }
    let said = Build::Ours(None).restart_in_vain(&cluster, "2");
    names_both(&said, [VERSION, version as u32]);
    load.goes_on();
    old.restart(&cluster, "2");
    nothing_is_lost(&cluster, &load.end());
}

#[test]
fn this_build_follows_the_last_release_with_a_primary() {
    follows_the_last_release("primary-backup");
}

#[test]
fn this_build_follows_the_last_release_with_mu() {
    follows_the_last_release("mu");
}
