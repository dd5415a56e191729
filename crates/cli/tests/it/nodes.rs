//! The set of nodes changes while the cluster runs under load. Commands that change it are killed in the middle, and power is lost afterwards.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use martlet_bench::trial::caller::{Caller as _, Reply};
use martlet_bench::trial::redis::ClusterClient;
use martlet_sim::linearizability::kv::{Action, Bytes, Input, Output};
use serde_json::Value;

use crate::cluster::Cluster;
use crate::martlet::{Ran, command, fabric};

/// The most nodes that a cluster here grows to, plus one.
pub const ROOM: u16 = 6;
/// A patience longer than anything takes, for commands that do not wait without one.
const PATIENCE: Duration = Duration::from_secs(600);

fn address(cluster: &Cluster, node: u16) -> String {
    format!("127.0.0.1:{}", cluster.port + node)
}

/// Clients that write, each key once, until they are told to stop. They know what was acknowledged.
pub struct Load {
    stop: Arc<AtomicBool>,
    acknowledged: Arc<AtomicU64>,
    writers: Vec<JoinHandle<u64>>,
}

impl Load {
    pub fn start(cluster: &Cluster) -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        let acknowledged = Arc::new(AtomicU64::new(0));
        let writers = (0..2).map(|writer| {
            let mut client = client(cluster);
            let (stop, acknowledged) = (Arc::clone(&stop), Arc::clone(&acknowledged));
            thread::spawn(move || {
                let mut next = 0;
                while !stop.load(Ordering::Relaxed) {
                    let (key, value) = (format!("{writer}:{next}"), format!("value {next} of {writer}"));
                    client.acknowledged(&[b"SET", key.as_bytes(), value.as_bytes()]).expect("the cluster serves");
                    next += 1;
                    acknowledged.fetch_add(1, Ordering::Relaxed);
                    // Leaves time on the cores for the commands.
                    thread::sleep(Duration::from_millis(1));
                }
                next
            })
        });
        let writers = writers.collect();
        Load { stop, acknowledged, writers }
    }

    /// Waits until requests that came after this moment have been served.
    pub fn goes_on(&self) {
        let before = self.acknowledged.load(Ordering::Relaxed);
        while self.acknowledged.load(Ordering::Relaxed) < before + 10 {
            assert!(!self.writers.iter().any(JoinHandle::is_finished), "a writer has given up");
            thread::yield_now();
        }
    }

    /// Ends the load. Returns how many writes of each writer were acknowledged.
    pub fn end(self) -> Vec<u64> {
        self.stop.store(true, Ordering::Relaxed);
        self.writers.into_iter().map(|writer| writer.join().expect("it does not give up")).collect()
    }
}

/// A client that finds the leader by itself.
fn client(cluster: &Cluster) -> ClusterClient {
    let addresses: Vec<String> = (0..ROOM).map(|node| address(cluster, node)).collect();
    let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
    ClusterClient::new(&addresses, PATIENCE).expect("addresses")
}

/// Checks that everything acknowledged is there.
pub fn nothing_is_lost(cluster: &Cluster, written: &[u64]) {
    let mut client = client(cluster);
    for (writer, count) in written.iter().enumerate() {
        assert!(*count > 0);
        for number in 0..*count {
            let key = format!("{writer}:{number}");
            let get = Input { key: Bytes::from(key.as_bytes()), action: Action::Get };
            let held = loop {
                match client.call(&get) {
                    // The leader has gone.
                    Reply::Unknown => {}
                    reply => break reply,
                }
            };
            let value = Bytes::from(format!("value {number} of {writer}").as_bytes());
            assert_eq!(held, Reply::Output(Output::Value(Some(value))), "{key} of {count}");
        }
    }
}

fn change(cluster: &Cluster, arguments: &[&str]) -> Ran {
    cluster.run(&[&["cluster"], arguments, &["--patience", "600"]].concat())
}

/// The last object that a command printed: its outcome.
fn outcome(ran: Ran) -> Value {
    ran.ok().objects().pop().expect("it says what it has done")
}

fn add(cluster: &Cluster) -> u64 {
    let added = outcome(change(cluster, &["add"]));
    assert_eq!(added["event"], "added");
    added["node"].as_u64().expect("a number")
}

fn remove(cluster: &Cluster, node: &str) -> Value {
    let removed = outcome(change(cluster, &["remove", node]));
    assert_eq!(removed["event"], "removed");
    removed
}

fn listed(cluster: &Cluster) -> Vec<u64> {
    cluster.nodes().into_keys().collect()
}

fn grows_and_shrinks_under_load(engine: &str) {
    let cluster = Cluster::with_room_for(ROOM);
    cluster.up_with(&["--engine", engine]).ok();
    let load = Load::start(&cluster);
    for node in [3, 4] {
        load.goes_on();
        assert_eq!(add(&cluster), node);
        load.goes_on();
    }
    assert_eq!((cluster.members(), listed(&cluster)), (vec![0, 1, 2, 3, 4], vec![0, 1, 2, 3, 4]));
    // When it is asked for again, the node is there already, and nothing is started.
    let again = change(&cluster, &["add", "--node", "4"]).ok().objects();
    assert_eq!((&again[0]["event"], &again[0]["started"]), (&Value::from("started"), &Value::from(false)));

    let leader = cluster.primary();
    assert_eq!(remove(&cluster, &leader)["was_listed"], true);
    load.goes_on();
    assert_eq!(remove(&cluster, &leader)["was_listed"], false, "it was removed already");
    let next = cluster.primary();
    assert_ne!(next, leader);
    let dead = listed(&cluster).into_iter().map(|node| node.to_string()).find(|node| *node != next).expect("four are left");
    cluster.run(&["cluster", "kill", &dead]).ok();
    assert_eq!(remove(&cluster, &dead)["was_listed"], true);
    load.goes_on();
    let mut left: Vec<u64> = (0..5).collect();
    left.retain(|node| ![&leader, &dead].contains(&&node.to_string()));
    assert_eq!((cluster.members(), listed(&cluster)), (left.clone(), left.clone()));

    // Replaces a node under its own number: all its data is discarded, and it starts over with the others' data.
    let replaced = left.iter().map(u64::to_string).find(|node| *node != next).expect("three are left");
    assert_eq!(outcome(change(&cluster, &["replace", &replaced]))["event"], "replaced");
    load.goes_on();
    assert_eq!(cluster.members(), left);
    nothing_is_lost(&cluster, &load.end());
    // A node that was removed does not come back with the others.
    assert!(cluster.up_again().ok().objects().iter().all(|node| node["started"] == Value::Bool(false)));
    assert_eq!(cluster.members(), left);
}

#[test]
fn a_cluster_with_a_primary_grows_and_shrinks_under_load() {
    grows_and_shrinks_under_load("primary-backup");
}

#[test]
fn a_cluster_of_mu_grows_and_shrinks_under_load() {
    grows_and_shrinks_under_load("mu");
}

fn kill_all(cluster: &Cluster) {
    for node in listed(cluster) {
        cluster.run(&["cluster", "kill", &node.to_string()]).ok();
    }
}

/// Power is lost after each change, and no node is left that has a view. The disks say which nodes belong, whatever the file said when they were written.
#[test]
fn what_was_acknowledged_before_and_after_a_change_outlives_the_power() {
    if !fabric().is_empty() {
        eprintln!("SKIPPED: what is on disks does not depend on the fabric");
        return;
    }
    let cluster = Cluster::with_room_for(ROOM);
    cluster.up_with(&["--engine", "mu", "--durability", "sync"]).ok();
    let data = |node: u64| PathBuf::from(&cluster.dir).join(format!("data/node-{node}"));
    let mut written = [0, 0];
    let mut under_load = |what: &mut dyn FnMut()| {
        let load = Load::start(&cluster);
        load.goes_on();
        what();
        load.goes_on();
        kill_all(&cluster);
        cluster.up_again().ok();
        let counts = load.end();
        nothing_is_lost(&cluster, &counts);
        written = [counts[0], counts[1]];
    };
    under_load(&mut || assert_eq!(add(&cluster), 3));
    assert_eq!(cluster.members(), [0, 1, 2, 3]);
    under_load(&mut || {
        remove(&cluster, "0");
        remove(&cluster, "1");
    });
    assert_eq!(cluster.members(), [2, 3], "their logs say that nobody else is needed");
    assert!(data(0).exists(), "its files are kept");
    under_load(&mut || assert_eq!(add(&cluster), 4));
    assert_eq!(cluster.members(), [2, 3, 4]);

    // A disk that is lost, and a disk that is to be replaced while its node runs.
    under_load(&mut || {
        cluster.run(&["cluster", "kill", "2"]).ok();
        fs::remove_dir_all(data(2)).expect("its disk is lost");
        assert_eq!(outcome(change(&cluster, &["replace", "2"]))["event"], "replaced");
        let own = PathBuf::from(&cluster.dir).join("node-3.toml");
        let text = fs::read_to_string(&own).expect("there");
        fs::write(&own, format!("directory = \"elsewhere\"\n{text}")).expect("written");
        assert_eq!(outcome(change(&cluster, &["replace", "3"]))["event"], "replaced");
    });
    assert_eq!(cluster.members(), [2, 3, 4]);
    assert!(PathBuf::from(&cluster.dir).join("elsewhere").exists());
    outcome(change(&cluster, &["remove", "0", "--purge"]));
    assert!(!data(0).exists());
    fs::remove_dir_all(PathBuf::from(&cluster.dir).join("elsewhere")).expect("ours");
}

/// Runs a command until it has printed this event, and kills it.
fn killed_after(cluster: &Cluster, arguments: &[&str], event: &str) {
    let arguments = [&["cluster"], arguments, &["--dir", &cluster.dir, "--json", "--patience", "600"]].concat();
    let mut child = command(&arguments).stdout(Stdio::piped()).spawn().expect("the command is built");
    let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let said = lines.map(|line| line.expect("UTF-8")).any(|line| line.contains(&format!("\"event\":\"{event}\"")));
    assert!(said, "it never came to {event}");
    child.kill().expect("ours");
    child.wait().expect("ours");
}

/// Runs a command until the condition holds, and kills it.
fn killed_when(cluster: &Cluster, arguments: &[&str], so: impl Fn() -> bool) {
    let arguments = [&["cluster"], arguments, &["--dir", &cluster.dir, "--json", "--patience", "600"]].concat();
    let mut child = command(&arguments).stdout(Stdio::null()).spawn().expect("the command is built");
    while !so() && child.try_wait().expect("ours").is_none() {
        thread::yield_now();
    }
    child.kill().expect("ours");
    child.wait().expect("ours");
}

#[test]
fn a_command_that_was_killed_in_the_middle_goes_on_where_it_was() {
    let cluster = Cluster::with_room_for(ROOM);
    cluster.up_with(&["--engine", "mu"]).ok();
    cluster.run(&["set", "k", "v"]).ok();
    let file = |name: &str| PathBuf::from(&cluster.dir).join(name);
    let mentions = |number: u16| fs::read_to_string(file("cluster.toml")).is_ok_and(|text| text.contains(&format!("number = {number}\n")));

    // At whatever moment the first command is killed, a second one completes it. A node is taken in only when it has met all others, so none of these gets that
    // far.
    cluster.run(&["cluster", "kill", "2", "--signal", "STOP"]).ok();
    killed_when(&cluster, &["add"], || file("node-3.change").exists());
    killed_when(&cluster, &["add"], || file("node-3.toml").exists());
    killed_when(&cluster, &["add"], || mentions(3));
    // The process may be running, with its id noted nowhere.
    killed_when(&cluster, &["add"], || file("node-3.log").exists());
    killed_after(&cluster, &["add"], "started");
    cluster.run(&["cluster", "kill", "2", "--signal", "CONT"]).ok();
    assert_eq!(add(&cluster), 3);
    assert_eq!((cluster.members(), listed(&cluster)), (vec![0, 1, 2, 3], vec![0, 1, 2, 3]));

    fs::remove_file(file("node-3.pid")).expect("there");
    assert!(cluster.up_again().ok().objects().iter().all(|node| node["started"] == Value::Bool(false)), "it runs, and is found");
    killed_after(&cluster, &["add"], "started");
    assert_eq!(cluster.up_again().ok().objects().len(), 5, "it comes to the end of it too");
    assert_eq!(add(&cluster), 5, "nothing is half done");
    for belongs in [true, false] {
        let removed = outcome(change(&cluster, &["remove", "5", "--purge"]));
        assert_eq!((&removed["nodes"], &removed["was_listed"]), (&serde_json::json!([0, 1, 2, 3, 4]), &belongs.into()));
    }

    killed_after(&cluster, &["remove", "0"], "stopped");
    // The command may have got to the end.
    let belongs = mentions(0);
    assert_eq!(remove(&cluster, "0")["was_listed"], belongs);
    killed_when(&cluster, &["remove", "1"], || !mentions(1));
    assert_eq!(remove(&cluster, "1")["was_listed"], false);
    assert!(!file("node-1.pid").exists());
    killed_after(&cluster, &["replace", "2"], "stopped");
    killed_after(&cluster, &["replace", "2"], "started");
    assert_eq!(outcome(change(&cluster, &["replace", "2"]))["event"], "replaced");
    assert_eq!((cluster.members(), listed(&cluster)), (vec![2, 3, 4], vec![2, 3, 4]));
    assert_eq!(cluster.run(&["get", "k", "--timeout", "120000"]).ok().objects()[0]["value"], "v");
    let left = |name: &fs::DirEntry| name.file_name().to_string_lossy().ends_with(".change");
    assert!(!fs::read_dir(&cluster.dir).expect("there").any(|entry| left(&entry.expect("an entry"))), "nothing is under way");
}

#[test]
fn a_node_whose_port_is_taken_is_added_on_another_one() {
    let cluster = Cluster::with_room_for(ROOM);
    cluster.up_with(&[]).ok();
    let taken = TcpListener::bind(address(&cluster, 3)).expect("free a moment ago");
    let why = change(&cluster, &["add"]).code(1).err;
    assert!(why.contains("node 3 ended") && why.contains(&address(&cluster, 3)), "{why}");
    let port = (cluster.port + 4).to_string();
    let added = outcome(change(&cluster, &["add", "--redis-port", &port]));
    assert_eq!((&added["node"], &added["redis"]), (&Value::from(3), &Value::from(address(&cluster, 4))));
    drop(taken);
    let why = change(&cluster, &["add"]).code(2).err;
    assert!(why.contains(&address(&cluster, 4)) && why.contains("as node 3 does; choose another port with --redis-port"), "{why}");
    let why = change(&cluster, &["add", "--node", "3", "--redis-port", "1"]).code(2).err;
    assert!(why.contains("--redis-port is 1, but node 3 belongs to the cluster already and has"), "{why}");
    assert_eq!(cluster.members(), [0, 1, 2, 3]);
}

#[test]
fn a_node_that_is_needed_is_not_removed() {
    let cluster = Cluster::with_room_for(ROOM);
    cluster.up_with(&["--engine", "mu"]).ok();
    cluster.run(&["set", "k", "v"]).ok();
    for number in ["16", "-1", "x"] {
        change(&cluster, &["remove", number]).code(2);
    }
    for what in ["remove", "replace"] {
        let why = change(&cluster, &[what, "7"]).code(3).err;
        assert!(why.contains("there is no node 7; the cluster's nodes are 0, 1, 2"), "{why}");
    }
    let leader = cluster.primary();
    let follower = listed(&cluster).into_iter().map(|node| node.to_string()).find(|node| *node != leader).expect("three nodes");
    // A paused node cannot be part of a majority, and mu does not remove it for that.
    cluster.run(&["cluster", "kill", &follower, "--signal", "STOP"]).ok();
    for what in ["remove", "replace"] {
        let why = change(&cluster, &[what, &leader]).code(1).err;
        assert!(
            why.contains(&format!("node {leader} is needed"))
                && why.contains("it takes a majority of nodes")
                && why.contains("to acknowledge requests"),
            "{why}"
        );
    }
    assert_eq!(cluster.run(&["get", "k", "--timeout", "120000"]).ok().objects()[0]["value"], "v");
    // The paused node is not needed.
    remove(&cluster, &follower);
    remove(&cluster, &cluster.primary());
    let last = cluster.primary();
    let why = change(&cluster, &["remove", &last]).code(2).err;
    assert!(why.contains("is the cluster's only node; `martlet cluster down --purge`"), "{why}");
    let why = change(&cluster, &["replace", &last]).code(1).err;
    assert!(why.contains("no other node is running"), "{why}");
    assert_eq!(cluster.run(&["get", "k", "--timeout", "120000"]).ok().objects()[0]["value"], "v");

    cluster.run(&["cluster", "down"]).ok();
    let why = change(&cluster, &["add"]).code(3).err;
    assert!(why.contains("no node of the cluster") && why.contains("martlet cluster up"), "{why}");
}

/// The others have written on without it, and die. What they acknowledged is gone, and an empty cluster in its place would hide that.
#[test]
fn a_node_that_was_excluded_founds_no_empty_cluster_when_the_others_have_died() {
    if !fabric().is_empty() {
        // Over a network the only remaining coordinator can decide nothing, and does not hear that it was excluded.
        return;
    }
    let cluster = Cluster::with_room_for(3);
    cluster.up_with(&[]).ok();
    cluster.run(&["set", "k", "before"]).ok();
    cluster.run(&["cluster", "kill", "2", "--signal", "STOP"]).ok();
    while cluster.members() != [0, 1] {}
    cluster.run(&["set", "k", "after"]).ok();
    for node in ["0", "1"] {
        cluster.run(&["cluster", "kill", node]).ok();
    }
    cluster.run(&["cluster", "kill", "2", "--signal", "CONT"]).ok();
    let file = |name: &str| PathBuf::from(&cluster.dir).join(name);
    let log = || fs::read_to_string(file("node-2.log")).expect("a log");
    // This node may have founded the first cluster.
    let founds = || log().split_once("starts over").is_some_and(|(_, since)| since.contains("founds the cluster"));
    while !log().contains("It puts no empty cluster in its place by itself. `martlet cluster down`, then `up`") {
        assert!(!crate::martlet::processes_about(&file("node-2.toml")).is_empty(), "{}", log());
        assert!(!founds(), "{}", log());
        thread::yield_now();
    }
    assert!(log().contains("starts over"), "it was excluded: {}", log());
    // An operator starts the others, which begin with nothing, and accepts the consequences.
    cluster.up_again().ok();
    assert_eq!(cluster.members(), [0, 1, 2]);
    assert!(!founds(), "{}", log());
    cluster.run(&["set", "k", "anew"]).ok();
}

/// A node that was away while all others changed still knows the old ones, of which none is there.
#[test]
fn a_node_that_missed_the_changes_joins_those_who_are_there_or_ends_if_it_was_removed() {
    let cluster = Cluster::with_room_for(ROOM);
    cluster.up_with(&[]).ok();
    assert_eq!((add(&cluster), add(&cluster)), (3, 4));
    cluster.run(&["set", "k", "v"]).ok();
    let file = |name: &str| PathBuf::from(&cluster.dir).join(name);
    let pause = |node: &str| cluster.run(&["cluster", "kill", node, "--signal", "STOP"]).ok();
    let go_on = |node: &str| cluster.run(&["cluster", "kill", node, "--signal", "CONT"]).ok();
    pause("0");
    remove(&cluster, "1");
    remove(&cluster, "2");
    assert_eq!(cluster.members(), [3, 4], "whoever is silent for so long is out");
    go_on("0");
    cluster.up_again().ok();
    assert_eq!(cluster.members(), [0, 3, 4]);
    assert_eq!(cluster.run(&["get", "k", "--timeout", "120000"]).ok().objects()[0]["value"], "v");
    let log = fs::read_to_string(file("node-0.log")).expect("a log");
    let (_, since) = log.split_once("starts over").expect("it was excluded");
    assert!(!since.contains("founds the cluster"), "{since}");

    // What an operator does who changes the file by hand, and forgets the process.
    pause("4");
    while cluster.members() != [0, 3] {}
    let text = fs::read_to_string(file("cluster.toml")).expect("there");
    let (before, after) = text.split_once("\n[[node]]\nnumber = 4\n").expect("the last one");
    assert!(!after.contains("[[node]]"), "{text}");
    let pid = fs::read_to_string(file("node-4.pid")).expect("there");
    fs::write(file("cluster.toml"), before).expect("written");
    let continued = std::process::Command::new("kill").args(["-CONT", pid.split_whitespace().next().expect("a number")]).status();
    assert!(continued.expect("kill is there").success());
    while !crate::martlet::processes_about(&file("node-4.toml")).is_empty() {
        thread::yield_now();
    }
    let log = fs::read_to_string(file("node-4.log")).expect("a log");
    assert!(log.contains("cluster.toml does not list it any more: its nodes are [0, 3]. It has been removed"), "{log}");
    assert_eq!(cluster.members(), [0, 3]);
}
