//! Clusters in the background: started, broken, repaired and ended, with each step done twice.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::ffi::OsStrExt as _;
use std::process::Command;

use serde_json::Value;

use crate::martlet::{Ran, TempDir, await_mourners, command, fabric, free_ports, processes_about, run};

/// A cluster in a directory of its own. Its nodes end when the value is dropped.
pub struct Cluster {
    pub temp: TempDir,
    pub dir: String,
    pub port: u16,
    /// For how many nodes there are ports: for the Redis protocol, and after those for meeting over a network.
    nodes: u16,
}

impl Cluster {
    pub fn new() -> Cluster {
        Cluster::with_room_for(3)
    }

    pub fn with_room_for(nodes: u16) -> Cluster {
        let temp = TempDir::new();
        Cluster { dir: temp.join("c"), temp, port: free_ports(2 * nodes), nodes }
    }

    pub fn run(&self, arguments: &[&str]) -> Ran {
        run(&[arguments, &["--dir", &self.dir, "--json"]].concat())
    }

    fn up(&self) -> Ran {
        self.up_with(&[])
    }

    /// Starts it on the fabric that these tests run on.
    pub fn up_with(&self, more: &[&str]) -> Ran {
        let (port, meeting, fabric) = (self.port.to_string(), (self.port + self.nodes).to_string(), fabric());
        let mut arguments = vec!["cluster", "up", "--redis-port", &port, "--patience", "120"];
        if !fabric.is_empty() {
            arguments.extend(["--fabric-port", &meeting]);
        }
        arguments.extend(fabric.iter().map(String::as_str));
        self.run(&[&arguments, more].concat())
    }

    /// Starts those of its nodes that do not run, whatever the reason.
    pub fn up_again(&self) -> Ran {
        self.run(&["cluster", "up", "--patience", "600"])
    }

    /// Waits until it serves, as long as that takes: a virtual machine may be slow.
    fn greet(&self) {
        self.run(&["set", "greeting", "hello", "--timeout", "120000"]).ok();
    }

    #[track_caller]
    fn is_greeted(&self) {
        assert_eq!(self.run(&["get", "greeting", "--timeout", "120000"]).ok().objects()[0]["value"], "hello");
    }

    /// What each node is doing, and its process.
    pub fn nodes(&self) -> BTreeMap<u64, (String, Option<u64>)> {
        let ran = self.run(&["status"]);
        let nodes = ran.objects().into_iter().filter(|object| object["event"] == "node");
        nodes
            .map(|node| {
                let state = node["state"].as_str().expect("a state").to_owned();
                (node["node"].as_u64().expect("a number"), (state, node["pid"].as_u64()))
            })
            .collect()
    }

    fn pids(&self) -> Vec<Option<u64>> {
        self.nodes().into_values().map(|(_, pid)| pid).collect()
    }

    /// The sum of a counter over all nodes.
    fn sum_of(&self, counter: &str) -> u64 {
        let objects = self.run(&["status"]).ok().objects();
        objects.iter().filter_map(|object| object["counters"][counter].as_u64()).sum()
    }

    fn rehearsals(&self) -> u64 {
        self.sum_of("rehearsals")
    }

    /// How often nodes have become, or ceased to be, the primary. If two readings are equal, everything seen between them was seen under one leader.
    fn changes_of_leadership(&self) -> u64 {
        self.sum_of("reign")
    }

    /// What is seen while one node leads all the time. On a slow machine another one may begin to lead at any moment; then this looks again.
    fn under_one_leader<T>(&self, look: impl Fn() -> T) -> T {
        loop {
            let changes = self.changes_of_leadership();
            let seen = look();
            if self.changes_of_leadership() == changes {
                return seen;
            }
        }
    }

    /// The members of the newest view. On a slow machine no node may show a view within the command's patience: then this asks again.
    pub fn members(&self) -> Vec<u64> {
        let ran = loop {
            let ran = self.run(&["members"]);
            if ran.code != Some(3) || !ran.err.contains("shows a view") {
                break ran.ok();
            }
        };
        let objects = ran.objects();
        let mut members: Vec<u64> =
            objects[0]["members"].as_array().expect("a list").iter().filter_map(|member| member["node"].as_u64()).collect();
        members.sort_unstable();
        members
    }

    /// Waits until so many nodes are members.
    pub fn await_members(&self, count: usize) {
        while self.members().len() != count {}
    }

    /// The leader. On a slow machine there may be none for a moment, between two leaders: then this waits for the next.
    pub fn primary(&self) -> String {
        loop {
            let objects = self.run(&["status"]).ok().objects();
            if let Some(primary) = objects.iter().find_map(|object| object["primary"].as_u64()) {
                return primary.to_string();
            }
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.run(&["cluster", "down", "--purge", "--grace", "0"]);
        assert!(std::thread::panicking() || processes_about(self.temp.path()).is_empty(), "processes were left");
        await_mourners(self.temp.path());
    }
}

/// The command does not care what is done to the cluster meanwhile: it reports which node leads, and judges what clients see.
#[test]
fn what_clients_see_of_a_cluster_that_is_broken_is_judged() {
    let cluster = Cluster::new();
    cluster.up().ok();
    let first: u64 = cluster.primary().parse().expect("a number");
    std::thread::scope(|scope| {
        let judged =
            scope.spawn(|| cluster.run(&["judge", "--seconds", "6", "--round-seconds", "3", "--redis-clients", "1", "--seed", "7"]));
        // The command has begun its load once the leader has written some of its requests.
        let before = cluster.sum_of("requests");
        while cluster.sum_of("requests") < before + 20 {}
        cluster.run(&["cluster", "kill", &first.to_string()]).ok();
        let objects = judged.join().expect("it ran").ok().objects();
        let of = |event: &str| objects.iter().filter(|object| object["event"] == event).cloned().collect::<Vec<_>>();
        assert_eq!(of("round")[0]["leader"], first, "{objects:?}");
        assert_eq!(of("round").len(), of("judged").len());
        // Once the first leader has been seen not to lead, it is not seen to lead again.
        let leads: Vec<bool> = of("round").iter().map(|round| round["leader"] == first).collect();
        assert!(leads.is_sorted_by(|earlier, later| earlier >= later), "{objects:?}");
        assert_eq!(of("passed")[0]["seed"], 7);
    });
    let next = cluster.primary();
    let port = cluster.port + next.parse::<u16>().expect("a number");
    let mut socket = TcpStream::connect(("127.0.0.1", port)).expect("it serves");
    socket.write_all(b"DBSIZE\r\n").expect("written");
    let mut reply = [0; 16];
    let len = socket.read(&mut reply).expect("a reply");
    assert_eq!(&reply[..len], b":0\r\n", "its keys are gone");
    cluster.run(&["cluster", "down"]).ok();
    cluster.run(&["judge", "--seconds", "1"]).code(3);
    assert!(cluster.run(&["judge", "--clients", "0"]).code(2).err.contains("without clients that write, nothing is checked"));
}

#[test]
fn nodes_that_somebody_else_has_started_are_seen() {
    let cluster = Cluster::new();
    cluster.up().ok();
    let before = cluster.nodes();
    // As if a service manager had started them, or a program that embeds a replica: nothing in the directory says which processes they are.
    let directory = std::path::Path::new(&cluster.dir);
    let files = || (0..3).map(|node| (directory.join(format!("node-{node}.pid")), directory.join(format!("node-{node}.away"))));
    files().for_each(|(file, away)| std::fs::rename(file, away).expect("a file for each"));
    let unnamed = cluster.nodes();
    cluster.greet();
    files().for_each(|(file, away)| std::fs::rename(away, file).expect("there"));
    assert_eq!(unnamed, before);
    assert!(before.values().all(|(state, pid)| state == "running" && pid.is_some()), "{before:?}");
}

#[test]
fn a_cluster_outlives_its_primary_and_all_steps_may_be_repeated() {
    let cluster = Cluster::new();
    let started = |ran: Ran| ran.ok().objects().iter().filter(|node| node["started"] == Value::Bool(true)).count();
    assert_eq!(started(cluster.up()), 3);
    let before = cluster.pids();
    assert_eq!(started(cluster.up()), 0, "it runs already");
    assert_eq!(cluster.pids(), before);

    cluster.greet();
    // The node that would succeed the primary rehearses, up to the made-up client's reply, before there is a real takeover. Over RDMA there are no rehearsals.
    while fabric().is_empty() && cluster.rehearsals() == 0 {}
    let primary = cluster.primary();
    cluster.run(&["cluster", "kill", &primary]).ok();
    cluster.is_greeted();
    cluster.run(&["cluster", "kill", &primary]).code(3);
    assert_eq!(cluster.nodes()[&primary.parse().expect("a number")].0, "gone");
    assert_eq!(started(cluster.up()), 1);

    let next = cluster.primary();
    assert_ne!(next, primary);
    let before = cluster.pids();
    cluster.run(&["cluster", "restart", &next, "--patience", "120"]).ok();
    let changed = cluster.pids().iter().zip(&before).filter(|(now, before)| now != before).count();
    assert_eq!(changed, 1, "one node is another process now");
    cluster.is_greeted();

    let down = cluster.run(&["cluster", "down"]).ok().objects();
    let last = down.last().expect("a report");
    assert_eq!((&last["event"], &last["durability"]), (&"data gone".into(), &"memory".into()), "{down:?}");
    assert_eq!(processes_about(cluster.temp.path()), Vec::<u32>::new());
    let again = cluster.run(&["cluster", "down"]).ok().objects();
    assert!(again.len() == 1 && again[0]["event"] == "nothing to stop" && again[0]["cluster"] == true, "{again:?}");
    cluster.run(&["get", "greeting"]).code(3);
    cluster.run(&["status"]).code(3);
    cluster.run(&["cluster", "down", "--purge"]).ok();
    assert!(!std::path::Path::new(&cluster.dir).exists());
}

#[test]
fn a_value_is_printed_byte_for_byte_whatever_it_is() {
    let cluster = Cluster::new();
    cluster.up_with(&[]).ok();
    cluster.greet();
    let value = b"\x1b[31mred\x1b[0m \x07\x01\x7f\r\t\xff\xc3\x28 end";
    let of = |what: &[&str], more: &[&OsStr]| {
        let mut command = command(what);
        command.args(more).args(["--dir", &cluster.dir, "--timeout", "120000"]).output().expect("the command is built")
    };
    assert!(of(&["set", "odd"], &[OsStr::from_bytes(value)]).status.success());
    assert_eq!(of(&["get", "odd"], &[]).stdout.escape_ascii().to_string(), [&value[..], b"\n"].concat().escape_ascii().to_string());
    // What JSON does not escape by itself is data there too.
    cluster.run(&["set", "text", "a\u{7f}\u{9b}31mb"]).ok();
    assert_eq!(cluster.run(&["get", "text"]).ok().objects()[0]["value"], "a\u{7f}\u{9b}31mb");
}

/// The port of the node that has all slots, according to the node on this port.
fn master_by(port: u16) -> u16 {
    let mut connection = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    connection.write_all(b"*2\r\n$7\r\nCLUSTER\r\n$5\r\nSLOTS\r\n").expect("it is there");
    let mut reply = Vec::new();
    loop {
        let mut more = [0; 512];
        let read = connection.read(&mut more).expect("it answers");
        assert_ne!(read, 0, "no whole reply: {:?}", String::from_utf8_lossy(&reply));
        reply.extend_from_slice(&more[..read]);
        let text = String::from_utf8_lossy(&reply);
        // The first slot, the last slot, and the port of the node that has them.
        let numbers: Vec<&str> = text.split_inclusive("\r\n").filter_map(|line| line.strip_prefix(':')?.strip_suffix("\r\n")).collect();
        if let [first, last, port, ..] = numbers[..] {
            assert_eq!((first, last), ("0", "16383"));
            return port.parse().expect("a port");
        }
    }
}

#[test]
fn leadership_is_handed_to_the_node_that_is_named() {
    let cluster = Cluster::new();
    cluster.up_with(&["--engine", "mu"]).ok();
    cluster.greet();
    let said = |ran: Ran| ran.ok().objects()[0].clone();
    // A virtual machine may be too slow for a hand-over. Then the leader gives it up and goes on leading.
    let mut may_be_given_up = if fabric().is_empty() { 0 } else { 3 };
    for node in [2_u16, 1, 1] {
        // On a slow machine a leader may lose the lead at any moment because others suspect it. Then what was seen says nothing about the hand-over, which is
        // asked for again.
        loop {
            let (changes, primary) = (cluster.changes_of_leadership(), cluster.primary());
            let handed = cluster.run(&["cluster", "handover", &node.to_string(), "--patience", "120"]);
            let (leads, view, master) = (cluster.primary(), cluster.run(&["members"]), master_by(cluster.port + node));
            // One replica ceases to lead, and one begins.
            let expected = if primary == node.to_string() { 0 } else { 2 };
            // A node that has started over begins its count anew.
            if cluster.changes_of_leadership().checked_sub(changes).is_none_or(|changed| changed > expected) {
                continue;
            }
            if may_be_given_up > 0 && handed.code == Some(1) && handed.err.contains("still leads; its log says why") {
                may_be_given_up -= 1;
                continue;
            }
            let (handed, view) = (said(handed), said(view));
            assert_eq!((&handed["event"], &handed["node"]), (&Value::from("handed over"), &Value::from(node)));
            assert_eq!(leads, node.to_string());
            let leads = |member: &&Value| member["leads"] == Value::Bool(true);
            let leaders: Vec<&Value> =
                view["members"].as_array().expect("a list").iter().filter(leads).map(|member| &member["node"]).collect();
            assert_eq!(
                (leaders, &view["group"]),
                (vec![&Value::from(node)], &serde_json::json!([0, 1, 2])),
                "not the senior one, which is nothing to mu"
            );
            assert_eq!(master, cluster.port + node, "it says so itself to clients of Redis");
            break;
        }
        cluster.is_greeted();
    }
    cluster.run(&["cluster", "handover", "7"]).code(3);
}

#[test]
fn a_group_has_the_places_that_it_is_told_to_have() {
    let cluster = Cluster::new();
    cluster.up_with(&["--engine", "dare"]).ok();
    cluster.greet();
    let resize = |places: &[&str]| {
        let ran = cluster.run(&[&["cluster", "resize", "--patience", "300"], places].concat()).ok().objects()[0].clone();
        (ran["places"].as_u64(), ran["wanted"].as_u64())
    };
    assert_eq!(resize(&[]), (None, None), "as many as members");
    assert_eq!(resize(&["3"]), (Some(3), Some(3)));
    let backup = if cluster.primary() == "2" { "1" } else { "2" };
    cluster.run(&["cluster", "kill", backup]).ok();
    cluster.is_greeted();
    assert_eq!(resize(&["3"]), (Some(3), Some(3)), "the place of the dead stays");
    assert_eq!(resize(&["0"]), (None, None), "it goes with its process again");
    let why = cluster.run(&["cluster", "resize", "17"]).code(2).err;
    assert!(why.contains("17"), "{why}");
}

#[test]
fn leadership_that_follows_from_the_view_is_not_handed_over() {
    let cluster = Cluster::new();
    cluster.up().ok();
    let why = cluster.run(&["cluster", "handover", "2"]).code(2).err;
    assert!(why.contains("primary-backup") && why.contains("allowed is mu"), "{why}");
}

#[test]
fn a_cluster_that_died_in_whole_is_started_anew() {
    let cluster = Cluster::new();
    cluster.up().ok();
    cluster.run(&["set", "k", "v"]).ok();
    for node in ["0", "1", "2"] {
        cluster.run(&["cluster", "kill", node]).ok();
    }
    cluster.up().ok();
    cluster.run(&["get", "k"]).code(3);
    assert_eq!(cluster.members().len(), 3);
}

#[test]
fn a_paused_node_is_shown_as_such_and_goes_on() {
    let cluster = Cluster::new();
    cluster.up().ok();
    cluster.run(&["set", "k", "v"]).ok();
    let primary = cluster.primary();
    cluster.run(&["cluster", "kill", &primary, "--signal", "STOP"]).ok();
    assert_eq!(cluster.nodes()[&primary.parse().expect("a number")].0, "stopped");
    // The others wait out its lease, and go on.
    assert_eq!(cluster.run(&["get", "k", "--timeout", "120000"]).ok().objects()[0]["value"], "v");
    cluster.run(&["cluster", "kill", &primary, "--signal", "CONT"]).ok();
    cluster.up().ok();
    assert!(cluster.nodes().values().all(|(state, _)| state == "running"));
}

#[test]
fn keys_are_set_conditionally_and_removed() {
    let cluster = Cluster::new();
    cluster.up().ok();
    cluster.run(&["get", "k"]).code(3);
    cluster.run(&["set", "k", "1", "--if-absent"]).ok();
    cluster.run(&["set", "k", "2", "--if-absent"]).code(3);
    cluster.run(&["set", "k", "2", "--if-holds", "3"]).code(3);
    cluster.run(&["set", "k", "2", "--if-holds", "1"]).ok();
    assert_eq!(cluster.run(&["get", "k"]).ok().objects()[0]["value"], "2");
    assert_eq!(run(&["get", "k", "--dir", &cluster.dir]).ok().out, "2\n");
    cluster.run(&["del", "k", "other"]).ok();
    cluster.run(&["del", "k"]).code(3);
}

#[test]
fn flags_that_contradict_the_cluster_are_refused() {
    let cluster = Cluster::new();
    cluster.up().ok();
    let ran = cluster.run(&["cluster", "up", "--replicas", "5"]).code(2);
    assert!(ran.err.contains("--replicas is 5") && ran.err.contains("has 3"), "{}", ran.err);
    let ran = cluster.run(&["cluster", "up", "--redis-mode", "standalone"]).code(2);
    assert!(ran.err.contains("--redis-mode is standalone") && ran.err.contains("has cluster"), "{}", ran.err);
    cluster.run(&["cluster", "up", "--redis-mode", "cluster"]).ok();
    if fabric().is_empty() {
        for meaningless in [&["cluster", "up", "--fabric-port", "7611"][..], &["cluster", "add", "--fabric-port", "7611"]] {
            let ran = cluster.run(meaningless).code(2);
            assert!(ran.err.contains("--fabric-port is 7611, but the fabric is shm"), "{}", ran.err);
        }
        for (flag, value, why) in [("--devices", "mlx5_0", "which has none"), ("--multicast", "on", "which has no multicast")] {
            let ran = cluster.run(&["cluster", "up", flag, value]).code(2);
            assert!(ran.err.contains(&format!("the fabric is shm, {why}; allowed is {flag} with --fabric verbs")), "{}", ran.err);
        }
    }
}

/// The obstacle is a port that another process has taken.
#[test]
fn a_cluster_that_cannot_be_brought_up_leaves_nothing_that_it_does_not_name() {
    let cluster = Cluster::new();
    let taken = TcpListener::bind(("127.0.0.1", cluster.port + 1)).expect("a free port");
    let failed = cluster.up().code(1);
    assert!(
        failed.err.contains("nodes [0, 1, 2], which this command started, have been stopped, and no cluster is left behind"),
        "{}",
        failed.err
    );
    assert!(failed.err.contains("node 1 ended; the end of its log, "), "{}", failed.err);
    // Their second processes end after them.
    while !processes_about(cluster.temp.path()).is_empty() {}
    let file = std::path::Path::new(&cluster.dir).join("cluster.toml");
    assert!(!file.exists() && file.with_file_name("node-1.log").exists());
    drop(taken);
    cluster.up().ok();
    // If one process was there already, the command goes on with what runs.
    cluster.run(&["cluster", "kill", "1"]).ok();
    let taken = TcpListener::bind(("127.0.0.1", cluster.port + 1)).expect("it has just been given back");
    let failed = cluster.run(&["cluster", "up", "--patience", "120"]).code(1);
    let left = format!(
        "nodes [0, 2] keep running; the same command waits for them again, and `martlet cluster down --dir {}` stops them",
        cluster.dir
    );
    assert!(failed.err.contains(&left), "{}", failed.err);
    drop(taken);
    cluster.up_again().ok();
}

/// For clients that do not support Redis Cluster.
#[test]
fn a_cluster_can_look_like_a_server_with_replicas() {
    let cluster = Cluster::new();
    cluster.up_with(&["--redis-mode", "standalone"]).ok();
    cluster.greet();
    let ask = |node: u16, request: &str| {
        let mut stream = TcpStream::connect(("127.0.0.1", cluster.port + node)).expect("it listens");
        stream.write_all(format!("{request}\r\nQUIT\r\n").as_bytes()).expect("it reads");
        let mut reply = String::new();
        stream.read_to_string(&mut reply).expect("it answers, and closes");
        reply
    };
    assert!(ask(0, "INFO server").contains("redis_mode:standalone"));
    let replies = loop {
        let replies: Vec<String> = cluster.under_one_leader(|| (0..3).map(|node| ask(node, "GET greeting")).collect());
        // A node that has just joined again may not know yet which one leads.
        if !replies.iter().any(|reply| reply.starts_with("-MASTERDOWN")) {
            break replies;
        }
    };
    assert_eq!(replies.iter().filter(|reply| reply.starts_with("$5\r\nhello")).count(), 1, "{replies:?}");
    let named = "-READONLY You can't write against a read only replica. The primary is 127.0.0.1:";
    assert_eq!(replies.iter().filter(|reply| reply.starts_with(named)).count(), 2, "{replies:?}");
}

#[test]
fn a_port_in_use_is_named() {
    let cluster = Cluster::new();
    let _taken = TcpListener::bind(("127.0.0.1", cluster.port + 1)).expect("free a moment ago");
    let ran = cluster.up().code(1);
    assert!(ran.err.contains("node 1 ended"), "{}", ran.err);
    assert!(ran.err.contains(&format!("127.0.0.1:{}", cluster.port + 1)), "{}", ran.err);
}

#[test]
fn a_bad_configuration_is_refused_with_key_value_and_what_is_allowed() {
    let temp = TempDir::new();
    let file = temp.join("node.toml");
    let ran = run(&["node", "--config", &file]).code(2);
    assert!(ran.err.contains("node.toml"), "{}", ran.err);
    std::fs::write(&file, "number = 0\ncluster = \"cluster.toml\"\n[redis]\nmaxclients = 0\n").expect("written");
    let ran = run(&["node", "--config", &file]).code(2);
    assert!(ran.err.contains("redis.maxclients is 0; allowed: 1 to"), "{}", ran.err);
}

#[test]
fn redis_cli_follows_a_failover() {
    if Command::new("redis-cli").arg("--version").output().is_err() {
        eprintln!("skipped: redis-cli is not installed");
        return;
    }
    let cluster = Cluster::new();
    cluster.up().ok();
    let redis = |port: u16, words: &[&str]| {
        let output = Command::new("redis-cli").args(["-c", "-p", &port.to_string()]).args(words).output().expect("it runs");
        String::from_utf8(output.stdout).expect("UTF-8").trim().to_owned()
    };
    let port = |node: &str| cluster.port + node.parse::<u16>().expect("a number");
    let primary = cluster.primary();
    assert_eq!(redis(port(&primary), &["SET", "k", "v"]), "OK");
    cluster.run(&["cluster", "kill", &primary]).ok();
    // Through our own client first, which waits until a node leads.
    cluster.run(&["get", "k"]).ok();
    let next = cluster.primary();
    let backup = (0..3).map(|node| node.to_string()).find(|node| *node != primary && *node != next).expect("three nodes");
    assert_eq!(redis(port(&next), &["GET", "k"]), "v");
    assert_eq!(redis(port(&backup), &["GET", "k"]), "v", "redirected");
}

/// A client too many is told so. A client that was not accepted for lack of a descriptor would wait.
#[test]
fn a_node_takes_no_more_clients_than_it_has_descriptors_for() {
    let cluster = Cluster::new();
    let port = cluster.port.to_string();
    let up = [env!("CARGO_BIN_EXE_martlet"), "cluster", "up", "--redis-port", &port, "--patience", "120", "--dir", &cluster.dir];
    // Only the soft limit is raised, and no higher than the hard one.
    let limited =
        Command::new("sh").args(["-c", "ulimit -Sn 200 && ulimit -Hn 256 && exec \"$@\"", "sh"]).args(up).output().expect("a shell");
    assert!(limited.status.success(), "{}", String::from_utf8_lossy(&limited.stderr));
    let primary = cluster.port + cluster.primary().parse::<u16>().expect("a number");
    let asks = || {
        let mut stream = TcpStream::connect(("127.0.0.1", primary)).expect("it listens");
        stream.write_all(b"CONFIG GET maxclients\r\n").expect("a few bytes");
        stream
    };
    let mut reply = [0; 28];
    let mut first = asks();
    first.read_exact(&mut reply).expect("a reply");
    assert_eq!(String::from_utf8_lossy(&reply), "*2\r\n$10\r\nmaxclients\r\n$3\r\n128");
    let others: Vec<TcpStream> = (0..140).map(|_| asks()).collect();
    let answers = others.iter().map(|mut stream| {
        let mut byte = [0];
        stream.read_exact(&mut byte).map(|()| byte[0])
    });
    let (served, refused): (Vec<_>, Vec<_>) = answers.map(|answer| answer.expect("an answer")).partition(|answer| *answer == b'*');
    assert_eq!((served.len(), refused.len()), (127, 13));
    assert!(refused.iter().all(|answer| *answer == b'-'), "{refused:?}");
}

/// A Python program for the client library that everybody uses: values, counters, pipelines, transactions, expiry, and the cluster client, which follows
/// redirections.
const PYTHON: &str = r#"
import sys, redis
host, primary, backup = "127.0.0.1", int(sys.argv[1]), int(sys.argv[2])
r = redis.Redis(host=host, port=primary, decode_responses=True)
assert r.ping()
assert r.set("k", "v") and r.get("k") == "v"
assert r.set("k", "w", nx=True) is None and r.set("k", "w", xx=True, get=True) == "v"
assert r.incrby("n", 41) == 41 and r.incr("n") == 42
assert r.mset({"a": "1", "b": "2"}) and r.mget("a", "b", "c") == ["1", "2", None]
assert r.set("t", "x", px=60000) and 0 < r.pttl("t") <= 60000 and r.persist("t") == 1
with r.pipeline(transaction=True) as p:
    p.watch("k")
    p.multi()
    p.append("k", "!").strlen("k")
    assert p.execute() == [2, 2]
with r.pipeline(transaction=False) as p:
    for i in range(1000):
        p.set(f"key:{i}", i)
    assert p.execute() == [True] * 1000
assert len(list(r.scan_iter(match="key:*", count=50))) == 1000
try:
    redis.Redis(host=host, port=backup).get("k")
    sys.exit("a backup answered a read")
except redis.exceptions.ResponseError as e:
    assert str(primary) in str(e), e
three = redis.Redis(host=host, port=primary, protocol=3, decode_responses=True)
assert three.get("k") == "w!"
cluster = redis.RedisCluster(host=host, port=backup, decode_responses=True)
assert cluster.get("k") == "w!" and cluster.set("c", "d") and cluster.get("c") == "d"
reader = redis.RedisCluster(host=host, port=backup, decode_responses=True, read_from_replicas=True)
assert all(reader.get("c") == "d" for _ in range(6))
try:
    r.set("long", bytes(65 << 20))
    sys.exit("a value beyond the limit was taken")
except redis.exceptions.ResponseError as e:
    assert "invalid bulk length" in str(e), e
assert r.client_kill_filter(_id=three.client_id()) == 1 and r.role()[0] in ("master", b"master")
print("redis-py", redis.__version__)
"#;

/// A Python that has the client library: the system's, or else one of our own in `temp`.
fn python(temp: &TempDir) -> Option<String> {
    let has_redis = |python: &str| Command::new(python).args(["-c", "import redis"]).output().is_ok_and(|o| o.status.success());
    if has_redis("python3") {
        return Some("python3".to_owned());
    }
    let venv = temp.join("venv");
    let made = Command::new("python3").args(["-m", "venv", &venv]).output().is_ok_and(|o| o.status.success());
    let own = format!("{venv}/bin/python");
    let got = made && Command::new(&own).args(["-m", "pip", "install", "-q", "redis"]).output().is_ok_and(|o| o.status.success());
    (got && has_redis(&own)).then_some(own)
}

#[test]
fn the_python_client_works_unchanged() {
    let temp = TempDir::new();
    let Some(python) = python(&temp) else {
        eprintln!("skipped: there is no Python with the package redis, and none can be made (python3 -m venv, pip install redis)");
        return;
    };
    let cluster = Cluster::new();
    cluster.up().ok();
    let primary = cluster.primary().parse::<u16>().expect("a number");
    let ports = [primary, (primary + 1) % 3].map(|node| (cluster.port + node).to_string());
    let output = Command::new(python).args(["-c", PYTHON]).args(&ports).output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn copied(from: &str, to: &str) {
    let done = Command::new("cp").args(["-a", from, to]).status().expect("cp is there");
    assert!(done.success());
}

#[test]
fn a_copied_directory_is_refused_beside_the_original_and_a_moved_one_is_not() {
    let mut cluster = Cluster::new();
    cluster.up().ok();
    cluster.greet();
    let before = cluster.nodes();
    let at = |dir: &str, arguments: &[&str]| run(&[arguments, &["--dir", dir, "--json"]].concat());
    let refused = |dir: &str| {
        let why = at(dir, &["cluster", "up"]).code(1).err;
        assert!(why.contains("is already running, ") && why.contains("was not started from") && why.contains("is a copy"), "{why}");
    };
    let [copy, bare, moved] = ["copy", "bare", "moved"].map(|name| cluster.temp.join(name));
    copied(&cluster.dir, &copy);
    copied(&cluster.dir, &bare);
    refused(&copy);
    // A command to the copy does not reach the original.
    at(&copy, &["cluster", "kill", "0"]).code(3);
    assert_eq!(cluster.nodes(), before);
    // Nor does it if only some of the original's nodes run, or if nothing in the copy names them.
    cluster.run(&["cluster", "kill", "0"]).ok();
    refused(&copy);
    at(&copy, &["cluster", "down"]).ok();
    at(&copy, &["cluster", "add"]).code(3);
    if fabric().is_empty() {
        (0..3).for_each(|node| std::fs::remove_file(format!("{bare}/node-{node}.pid")).expect("there"));
        refused(&bare);
        refused(&copy);
    }
    cluster.is_greeted();

    // If the directory is moved while the cluster runs, its processes are still known, and so it can be ended and started in its new place.
    std::fs::rename(&cluster.dir, &moved).expect("ours");
    cluster.dir = moved;
    assert_eq!(cluster.nodes()[&1].0, "running");
    cluster.run(&["cluster", "down"]).ok();
    assert_eq!(processes_about(cluster.temp.path()), Vec::<u32>::new());
    cluster.up_again().ok();
    cluster.greet();
}
