//! Nodes that a service manager or a container has started, each in namespaces of its own: what they do when they see none of the others, and how they meet.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::martlet::{Ran, TempDir, await_mourners, run};

const KEY: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

/// How this process can give its children namespaces of their own, if it is allowed to.
fn namespaces() -> Option<Vec<&'static str>> {
    const OWN: [&str; 5] = ["--net", "--mount", "--pid", "--fork", "--kill-child"];
    let ways = [OWN.to_vec(), [&["--user", "--map-root-user"], &OWN[..]].concat()];
    ways.into_iter().find(|way| Command::new("unshare").args(way).arg("true").output().is_ok_and(|ran| ran.status.success()))
}

/// Nodes of one cluster, each in a network, mount and PID namespace of its own.
struct Contained {
    temp: TempDir,
    way: Vec<&'static str>,
    nodes: Vec<Option<Child>>,
}

impl Contained {
    /// Writes the files of a cluster of three, and starts its nodes with these arguments. `None`, with a printed reason, where that is not allowed.
    fn start(engine: &str, rendezvous: Option<&str>, arguments: &[&str]) -> Option<Contained> {
        let Some(way) = namespaces() else {
            eprintln!("SKIPPED: nodes in namespaces of their own; this needs the right to make some (unshare --net --mount --pid)");
            return None;
        };
        let temp = TempDir::new();
        let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/containers");
        let read = |name: &str| fs::read_to_string(example.join(name)).expect("an example");
        let name = format!("contained-{}", temp.path().file_name().and_then(|name| name.to_str()).expect("ours"));
        let meets = rendezvous.map_or_else(String::new, |directory| format!("rendezvous = {directory:?}"));
        let mut text = read("cluster.toml");
        for (there, here) in [
            ("name = \"shop\"", format!("name = {name:?}")),
            ("engine = \"mu\"", format!("engine = {engine:?}")),
            ("rendezvous = \"/run/martlet\"", meets),
        ] {
            assert!(text.contains(there), "{there:?} is not in\n{text}");
            text = text.replace(there, &here);
        }
        // The processes that are killed here are known to be dead for certain, and a busy machine must not cause further failovers.
        text += "\n[detector]\nheartbeat_us = 1000000\nbroadcast_timeout_us = 60000000\n";
        fs::write(temp.join("cluster.toml"), text).expect("our directory");
        let mut key = fs::File::options().create(true).write(true).truncate(true).mode(0o600).open(temp.join("cluster.key")).expect("ours");
        key.write_all(KEY.as_bytes()).expect("our directory");
        for node in 0..3 {
            let file = format!("node-{node}.toml");
            let text = format!("{}unix_socket = \"{node}.sock\"\n[threads]\npin = \"none\"\n", read(&file));
            fs::write(temp.join(&file), text).expect("our directory");
        }
        let mut contained = Contained { temp, way, nodes: (0..3).map(|_| None).collect() };
        (0..3).for_each(|node| contained.start_node(node, arguments));
        Some(contained)
    }

    fn start_node(&mut self, node: usize, arguments: &[&str]) {
        let log = fs::File::options().create(true).append(true).open(self.temp.join(&format!("node-{node}.log"))).expect("our directory");
        let child = Command::new("unshare")
            .args(&self.way)
            .args([env!("CARGO_BIN_EXE_martlet"), "node", "--config", &self.temp.join(&format!("node-{node}.toml"))])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("it has just worked");
        self.nodes[node] = Some(child);
    }

    /// Kills everything that runs in a node's namespaces.
    fn kill(&mut self, node: usize) {
        let mut child = self.nodes[node].take().expect("it runs");
        child.kill().and_then(|()| child.wait().map(drop)).expect("our own child");
        // That killed `unshare`. The kernel kills the node in its namespaces a little later, and the node holds its socket until then.
        while UnixStream::connect(self.temp.join(&format!("{node}.sock"))).is_ok() {
            std::thread::yield_now();
        }
    }

    fn run(&self, arguments: &[&str]) -> Ran {
        run(&[arguments, &["--dir", self.temp.path().to_str().expect("UTF-8"), "--json"]].concat())
    }

    /// What `status` shows from within a node's network namespace.
    fn status_from(&self, node: usize) -> Vec<Value> {
        let shell = self.nodes[node].as_ref().expect("it runs").id();
        // The child of `unshare` is in all the namespaces, and `unshare` itself in all except the PID namespace.
        let user: &[&str] = if self.way.contains(&"--user") { &["--user", "--preserve-credentials"] } else { &[] };
        let ran = Command::new("nsenter")
            .args(["--target", &shell.to_string(), "--net"])
            .args(user)
            .args([env!("CARGO_BIN_EXE_martlet"), "status", "--json", "--dir", self.temp.path().to_str().expect("UTF-8")])
            .output();
        crate::martlet::ran(ran.expect("it comes with unshare")).ok().objects()
    }

    fn log(&self, node: usize) -> String {
        fs::read_to_string(self.temp.join(&format!("node-{node}.log"))).expect("a log")
    }

    fn await_log(&mut self, node: usize, words: &str) {
        while !self.log(node).contains(words) {
            let ended = self.nodes[node].as_mut().and_then(|child| child.try_wait().expect("our own child"));
            assert_eq!(ended, None, "node {node} ended:\n{}", self.log(node));
        }
    }

    /// A node's answer to a request.
    fn ask(&self, node: usize, request: &str) -> String {
        let mut socket = UnixStream::connect(self.temp.join(&format!("{node}.sock"))).expect("it listens");
        let mut last = String::new();
        for request in ["AUTH change-me\r\n", request] {
            socket.write_all(request.as_bytes()).expect("sent");
            let mut reply = [0; 512];
            let length = socket.read(&mut reply).expect("a reply");
            last = String::from_utf8_lossy(&reply[..length]).into_owned();
        }
        last
    }

    /// The leader, once one of them leads.
    fn primary(&self) -> usize {
        loop {
            let objects = self.run(&["status"]).objects();
            if let Some(primary) = objects.iter().find_map(|object| object["primary"].as_u64()) {
                return primary as usize;
            }
        }
    }

    fn await_replicas(&self, count: u64) {
        while !self.run(&["status"]).objects().iter().any(|object| object["replicas"].as_u64() == Some(count) && object["learners"] == 0) {}
    }
}

impl Drop for Contained {
    fn drop(&mut self) {
        (0..3).filter(|node| self.nodes[*node].is_some()).collect::<Vec<_>>().into_iter().for_each(|node| self.kill(node));
        await_mourners(self.temp.path());
    }
}

fn nodes_that_see_none_of_the_others_found_nothing_and_serve_nothing(engine: &str) {
    let Some(mut nodes) = Contained::start(engine, None, &[]) else { return };
    for node in 0..3 {
        let others: Vec<usize> = (0..3).filter(|other| *other != node).collect();
        nodes.await_log(
            node,
            &format!("waiting: nodes {others:?} are not connected, but may be running where this process does not see them"),
        );
        assert!(nodes.log(node).contains("--all-here") && !nodes.log(node).contains("founds the cluster"), "{}", nodes.log(node));
        let reply = nodes.ask(node, "SET greeting hello\r\n");
        assert!(reply.starts_with('-'), "node {node} acknowledges alone: {reply}");
        let seen = nodes.status_from(node);
        assert!(seen.iter().any(|object| object["event"] == "cluster" && object["view"].is_null()), "{seen:?}");
        let own = seen.iter().find(|object| object["node"] == node && object["awaits"].is_array()).expect("it is seen");
        assert_eq!(own["awaits"], Value::from(others), "{own}");
    }
    // The claim that it is alone lets one of them go ahead.
    nodes.kill(1);
    nodes.start_node(1, &["--all-here"]);
    nodes.await_log(1, "founds the cluster");
}

#[test]
fn nodes_that_see_none_of_the_others_found_nothing_with_primary_backup() {
    nodes_that_see_none_of_the_others_found_nothing_and_serve_nothing("primary-backup");
}

#[test]
fn nodes_that_see_none_of_the_others_found_nothing_with_mu() {
    nodes_that_see_none_of_the_others_found_nothing_and_serve_nothing("mu");
}

fn nodes_with_a_directory_to_meet_in_are_one_cluster(engine: &str) {
    let Some(mut nodes) = Contained::start(engine, Some("meet"), &[]) else { return };
    // The nodes do not make the directory: if it is not mounted, that is an error and not an empty place.
    for node in 0..3 {
        let ended = nodes.nodes[node].take().expect("it ran").wait().expect("our own child");
        assert_eq!(ended.code(), Some(1), "{}", nodes.log(node));
        assert!(
            nodes.log(node).contains("meet/contained-") && nodes.log(node).contains("No such file or directory"),
            "{}",
            nodes.log(node)
        );
    }
    let meet = nodes.temp.join("meet");
    fs::create_dir(&meet).expect("our directory");
    fs::set_permissions(&meet, fs::Permissions::from_mode(0o700)).expect("our directory");
    (0..2).for_each(|node| nodes.start_node(node, &[]));
    (0..2).for_each(|node| nodes.await_log(node, "waiting: nodes [2] are not connected"));
    nodes.start_node(2, &[]);
    nodes.await_replicas(3);
    let views = |nodes: &Contained| nodes.run(&["members"]).ok().objects()[0]["members"].as_array().map(Vec::len);
    assert_eq!(views(&nodes), Some(3));
    nodes.run(&["set", "greeting", "hello"]).ok();

    // A death is seen across PID namespaces, and what the dead node has left in the directory is no obstacle.
    let primary = nodes.primary();
    nodes.kill(primary);
    assert!(fs::read_dir(Path::new(&meet)).expect("ours").count() >= 6, "three sockets and their locks");
    nodes.await_replicas(2);
    assert_eq!(nodes.run(&["get", "greeting", "--timeout", "120000"]).ok().objects()[0]["value"], "hello");
    nodes.start_node(primary, &[]);
    nodes.await_replicas(3);
    assert_eq!(nodes.run(&["get", "greeting"]).ok().objects()[0]["value"], "hello");
}

#[test]
fn nodes_with_a_directory_to_meet_in_are_one_cluster_with_primary_backup() {
    nodes_with_a_directory_to_meet_in_are_one_cluster("primary-backup");
}

#[test]
fn nodes_with_a_directory_to_meet_in_are_one_cluster_with_mu() {
    nodes_with_a_directory_to_meet_in_are_one_cluster("mu");
}
