//! Three hosts that have only a network in common: `martlet host init`, `invite` and `join`. Each is a network namespace with a directory of its own, which
//! takes the right to make namespaces. Nodes are real processes, and clients are `redis-cli`.

use std::io::{BufRead as _, BufReader};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::martlet::{Ran, TempDir, command, free_ports, processes_about, ran, run};

const HOSTS: usize = 3;

#[derive(Debug, PartialEq, Eq)]
struct Life {
    node: usize,
    pid: u64,
    incarnation: u64,
}

struct Hosts {
    temp: TempDir,
    prefix: String,
}

fn address(host: usize) -> String {
    format!("10.78.0.{}", host + 1)
}

fn ip(arguments: &str) -> Output {
    Command::new("ip").args(arguments.split_whitespace()).output().expect("`ip` runs")
}

#[track_caller]
fn ip_ok(arguments: &str) {
    let output = ip(arguments);
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

/// The reason why this machine cannot play three hosts, if there is one.
fn unable() -> Option<String> {
    for (program, argument) in [("ip", "-V"), ("redis-cli", "--version")] {
        if !Command::new(program).arg(argument).output().is_ok_and(|output| output.status.success()) {
            return Some(format!("`{program}` is not installed"));
        }
    }
    let trial = format!("martlet-trial-{}", std::process::id());
    let made = ip(&format!("netns add {trial}"));
    if !made.status.success() {
        return Some(format!("network namespaces cannot be made here: {}", String::from_utf8_lossy(&made.stderr).trim()));
    }
    let wired = ip(&format!("-n {trial} link add trial type bridge"));
    ip_ok(&format!("netns del {trial}"));
    (!wired.status.success()).then(|| format!("no bridge can be made here: {}", String::from_utf8_lossy(&wired.stderr).trim()))
}

impl Hosts {
    fn new() -> Hosts {
        let hosts = Hosts { temp: TempDir::new(), prefix: format!("martlet-it-{}", std::process::id()) };
        let switch = hosts.namespace("switch");
        ip_ok(&format!("netns add {switch}"));
        ip_ok(&format!("-n {switch} link add bridge type bridge"));
        ip_ok(&format!("-n {switch} link set bridge up"));
        for host in 0..HOSTS {
            let name = hosts.namespace(host);
            ip_ok(&format!("netns add {name}"));
            ip_ok(&format!("-n {switch} link add port{host} type veth peer name eth0 netns {name}"));
            ip_ok(&format!("-n {switch} link set port{host} master bridge up"));
            ip_ok(&format!("-n {name} addr add {}/24 dev eth0", address(host)));
            ip_ok(&format!("-n {name} link set lo up"));
            ip_ok(&format!("-n {name} link set eth0 up"));
        }
        hosts
    }

    fn namespace(&self, of: impl std::fmt::Display) -> String {
        format!("{}-{of}", self.prefix)
    }

    fn dir(&self, host: usize) -> String {
        self.temp.join(&format!("host-{host}"))
    }

    /// Runs the command on that host, for its directory.
    fn martlet(&self, host: usize, arguments: &[&str]) -> Ran {
        self.martlet_of(host, arguments, None)
    }

    /// The same, with a build that passes for another.
    fn martlet_of(&self, host: usize, arguments: &[&str], build: Option<&str>) -> Ran {
        ran(self.on(host, arguments, build).output().expect("it runs"))
    }

    /// Runs that host's node as its service manager does, until it ends.
    fn node(&self, host: usize) -> Ran {
        ran(self.of(host, command(&["node", "--config", &self.dir(host), "--die-with-parent"])).output().expect("it runs"))
    }

    fn on(&self, host: usize, arguments: &[&str], build: Option<&str>) -> Command {
        let mut on_host = self.of(host, command(&[arguments, &["--dir", &self.dir(host), "--json"]].concat()));
        on_host.envs(build.map(|build| ("MARTLET_TEST_BUILD", build)));
        on_host
    }

    /// That command on that host.
    fn of(&self, host: usize, whole: Command) -> Command {
        let mut on_host = Command::new("ip");
        on_host.args(["netns", "exec", &self.namespace(host)]).arg(whole.get_program()).args(whole.get_args());
        for (name, value) in whole.get_envs() {
            match value {
                Some(value) => on_host.env(name, value),
                None => on_host.env_remove(name),
            };
        }
        on_host
    }

    /// Invites a host by the command on any of them; the host that keeps the list does it.
    fn invite(&self, host: usize) -> String {
        self.martlet(host, &["host", "invite"]).ok().objects()[0]["token"].as_str().expect("a token").to_owned()
    }

    fn redis(&self, from: usize, to: usize, words: &[&str]) -> String {
        // All have the founder's password.
        let file = std::fs::read_to_string(Path::new(&self.dir(1)).join("node-1.toml"));
        let file = file.or_else(|_| std::fs::read_to_string(Path::new(&self.dir(0)).join("node-0.toml"))).expect("a file");
        let password = file.lines().find_map(|line| line.strip_prefix("requirepass = \"")?.strip_suffix('"')).expect("a password");
        let mut client = Command::new("ip");
        client.args(["netns", "exec", &self.namespace(from), "redis-cli", "-c", "-h", &address(to), "-p", "7711"]).args(words);
        let output = client.env("REDISCLI_AUTH", password).output().expect("it runs");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// What that host's command shows of each node: its number and its role. A node that cannot be reached just now is left out.
    fn roles(&self, host: usize) -> Vec<(u64, String)> {
        let shown = self.martlet(host, &["status"]).objects();
        let nodes = shown.iter().filter(|object| object["event"] == "node");
        nodes.map(|node| (node["node"].as_u64().expect("a number"), node["role"].as_str().unwrap_or("none").to_owned())).collect()
    }

    /// The lives of the nodes that host sees.
    fn lives(&self, host: usize) -> Vec<Life> {
        let shown = self.martlet(host, &["status"]).objects();
        let counter = |node: &serde_json::Value, name: &str| node["counters"][name].as_u64();
        let life = |node: &serde_json::Value| {
            Some(Life { node: node["node"].as_u64()? as usize, pid: counter(node, "pid")?, incarnation: counter(node, "incarnation")? })
        };
        shown.iter().filter(|object| object["event"] == "node").filter_map(life).collect()
    }

    /// The leader's number, once one leads and two follow.
    fn leader_of_three(&self, host: usize) -> usize {
        loop {
            let roles = self.roles(host);
            let count = |role: &str| roles.iter().filter(|(_, has)| has == role).count();
            if (count("primary"), count("backup")) == (1, 2) {
                return roles.iter().find(|(_, role)| role == "primary").expect("counted").0 as usize;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for host in 0..HOSTS {
            if std::thread::panicking() {
                let log = std::fs::read_to_string(Path::new(&self.dir(host)).join(format!("node-{host}.log"))).unwrap_or_default();
                eprintln!("the log of host {host}:\n{log}");
            }
            self.martlet(host, &["cluster", "down", "--purge", "--grace", "0"]);
            ip(&format!("netns del {}", self.namespace(host)));
        }
        ip(&format!("netns del {}", self.namespace("switch")));
        assert!(std::thread::panicking() || processes_about(self.temp.path()).is_empty(), "processes were left");
    }
}

#[test]
fn three_hosts_become_a_cluster_that_outlives_its_leader() {
    if let Some(why) = unable() {
        eprintln!("skipped: {why}");
        return;
    }
    let hosts = Hosts::new();
    let founded = hosts.martlet(0, &["host", "init", "shop", "--listen", &address(0), "--patience", "600"]).ok().objects();
    let founded = founded.last().expect("a report");
    assert_eq!((&founded["event"], &founded["node"], &founded["nodes"]), (&"founded".into(), &0.into(), &1.into()), "{founded}");
    let again = hosts.martlet(0, &["host", "init", "shop", "--listen", &address(0)]).code(1).err;
    assert!(again.contains("there is already a cluster in") && again.contains("\"shop\""), "{again}");

    // What is not a token is refused on the spot. A token that is no longer valid is refused by the host that issued it.
    let token = hosts.invite(0);
    for (bad, why) in [
        (token[..token.len() - 3].to_owned(), "a part of it copied"),
        (token.replace("martlet1-", "martlet7-"), "layout 7"),
        (format!("{}{}", &token[..token.len() - 1], if token.ends_with('0') { '1' } else { '0' }), "damaged"),
    ] {
        let refused = hosts.martlet(1, &["host", "join", &bad]).code(2).err;
        assert!(refused.contains(why), "{refused}");
    }
    let other = hosts.martlet_of(1, &["host", "join", &token], Some("999999 1 1")).code(1).err;
    assert!(other.contains("run the same build on both"), "{other}");
    let taken = hosts.martlet(1, &["host", "join", &token, "--listen", &address(0)]).code(1).err;
    assert!(taken.contains("node 0 already has the address 10.78.0.1:7600"), "{taken}");
    assert!(!Path::new(&hosts.dir(1)).join("cluster.toml").exists(), "nothing is left of what was refused");

    let joined = hosts.martlet(1, &["host", "join", &token, "--patience", "600"]).ok().objects();
    let joined = joined.last().expect("a report");
    assert_eq!(
        (&joined["event"], &joined["node"], &joined["address"]),
        (&"joined".into(), &1.into(), &"10.78.0.2:7600".into()),
        "{joined}"
    );
    let used = hosts.martlet(2, &["host", "join", &token]).code(1).err;
    assert!(used.contains("has been used by 10.78.0.2:7600, which is node 1"), "{used}");
    let expired = hosts.invite(0);
    let invitations = std::fs::read_dir(Path::new(&hosts.dir(0)).join("invitations")).expect("there");
    for file in invitations.map(|entry| entry.expect("an entry").path()) {
        let text = std::fs::read_to_string(&file).expect("readable");
        let expires = text.lines().find(|line| line.starts_with("expires_s")).expect("a time");
        std::fs::write(&file, text.replace(expires, "expires_s = 1")).expect("written");
    }
    let refused = hosts.martlet(2, &["host", "join", &expired]).code(1).err;
    assert!(refused.contains("the invitation expired"), "{refused}");
    let list = Path::new(&hosts.dir(1)).join("cluster.toml");
    let before = std::fs::read_to_string(&list).expect("its list");
    hosts.martlet(2, &["host", "join", &hosts.invite(1), "--patience", "600"]).ok();
    the_second_knows_the_third_at_once(&hosts, &list, &before);

    // Each host learns of all the others, including the one that had joined before the last.
    (0..HOSTS).for_each(|host| _ = hosts.leader_of_three(host));
    assert_eq!(hosts.redis(1, 2, &["SET", "greeting", "hello"]), "OK");
    are_restarted_one_by_one(&hosts);
    the_doctor_sees_who_is_cut_off(&hosts);
    let leader = hosts.leader_of_three(0);
    hosts.martlet(leader, &["cluster", "kill", &leader.to_string()]).ok();
    let (witness, other) = ((leader + 1) % HOSTS, (leader + 2) % HOSTS);
    the_last_one_is_needed(&hosts, leader, witness, other);
    while hosts.redis(witness, other, &["GET", "greeting"]) != "hello" {
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    hosts.martlet(leader, &["host", "start", "--patience", "600"]).ok();
    hosts.leader_of_three(leader);
    assert_eq!(hosts.redis(leader, leader, &["GET", "greeting"]), "hello");
    no_log_tells_of_clients(&hosts);
    the_first_host_is_lost_and_another_invites(&hosts);
}

/// A host asks for the list every few seconds. A command on it asks as soon as the view has a node that the list of before does not have.
fn the_second_knows_the_third_at_once(hosts: &Hosts, list: &Path, before: &str) {
    let with_two = |arguments: &[&str]| {
        std::fs::write(list, before).expect("written");
        hosts.martlet(1, arguments).ok().objects()
    };
    let shown = with_two(&["status"]);
    assert!(shown.iter().any(|object| object["node"] == 2 && object["state"] == "running"), "{shown:?}");
    assert_eq!(shown[0]["replicas_missing"], serde_json::json!([]), "{shown:?}");
    let restarted = with_two(&["cluster", "restart", "2", "--patience", "600"]);
    assert_eq!(restarted[0]["event"], "restarted", "{restarted:?}");
}

/// Commands come and go as clients: no log tells of them as it tells of nodes.
fn no_log_tells_of_clients(hosts: &Hosts) {
    for host in 0..HOSTS {
        let log = std::fs::read_to_string(Path::new(&hosts.dir(host)).join(format!("node-{host}.log"))).expect("its log");
        assert!(log.contains("connected with member n"), "{log}");
        let of_clients: Vec<&str> = log.lines().filter(|line| line.contains("client")).collect();
        assert!(of_clients.is_empty(), "{of_clients:?}");
    }
}

/// The host that keeps the list is lost for good, and later comes back all the same.
fn the_first_host_is_lost_and_another_invites(hosts: &Hosts) {
    hosts.martlet(0, &["cluster", "kill", "0"]).ok();
    let unheard = hosts.martlet(2, &["host", "invite"]).code(1).err;
    assert!(unheard.contains("node 0 keeps the list of nodes, but cannot be reached (asked at 10.78.0.1:7601)"), "{unheard}");
    assert!(
        unheard.contains(
            "`martlet cluster remove 0` on this one: that takes node 0 off the list, and from then on the host of node 1 keeps the list"
        ),
        "{unheard}"
    );
    let removed = hosts.martlet(2, &["cluster", "remove", "0", "--patience", "600"]).ok().objects();
    assert_eq!(removed.last().expect("a report")["nodes"], serde_json::json!([1, 2]), "{removed:?}");

    // The host that comes back has the list on which it is first, and finds out that this list is old. Its node never joins, whether its service manager or
    // the command starts it.
    let log = Path::new(&hosts.dir(0)).join("node-0.log");
    let began = std::fs::read_to_string(&log).expect("its log").len();
    let list = Path::new(&hosts.dir(0)).join("cluster.toml");
    let old = std::fs::read_to_string(&list).expect("its list");
    let command = |hosts: &Hosts| hosts.martlet(0, &["host", "start"]);
    for (by, start) in [("service manager", &(|hosts: &Hosts| hosts.node(0)) as &dyn Fn(&Hosts) -> Ran), ("command", &command)] {
        let why = start(hosts).code(1).err;
        assert!(why.contains("node 0 has been removed from the cluster, whose nodes are now [1, 2], so it does not start"), "{by}: {why}");
        assert!(why.contains("martlet cluster down --purge --dir"), "{by}: {why}");
        assert_ne!(std::fs::read_to_string(&list).expect("its list"), old, "{by}: it has taken the new list");
        let again = start(hosts).code(1).err;
        assert!(again.contains("node 0 of this host has been removed from the cluster, whose nodes are now [1, 2]"), "{by}: {again}");
        std::fs::write(&list, &old).expect("written");
    }
    assert!(processes_about(Path::new(&hosts.dir(0))).is_empty());
    assert_eq!(std::fs::read_to_string(&log).expect("its log").len(), began, "the command started nothing");
    hosts.martlet(0, &["cluster", "down", "--purge"]).ok();
    let joined = hosts.martlet(0, &["host", "join", &hosts.invite(2), "--patience", "600"]).ok().objects();
    assert_eq!(joined.last().expect("a report")["node"], 3, "{joined:?}");
    hosts.leader_of_three(0);
    assert_eq!(hosts.redis(0, 0, &["GET", "greeting"]), "hello");
}

/// All nodes are restarted by the command on one host, and each is then a new process.
fn are_restarted_one_by_one(hosts: &Hosts) {
    let before = hosts.lives(1);
    let mut first =
        hosts.on(1, &["cluster", "restart", "--all", "--patience", "600"], None).stdout(Stdio::piped()).spawn().expect("it runs");
    let mut lines = BufReader::new(first.stdout.take().expect("a pipe")).lines();
    let line = lines.next().expect("it tells of the first node, or fails").expect("text");
    // By then it has its turn, and keeps it while it is paused.
    let pid = first.id().to_string();
    let signal = |name: &str| assert!(Command::new("kill").args([name, &pid]).status().expect("it runs").success());
    signal("-STOP");
    for what in ["--all", "2"] {
        let refused = hosts.martlet(2, &["cluster", "restart", what]).code(1).err;
        let by = format!("`martlet cluster restart --all` (process {pid}) on the host of nodes [1] has been restarting nodes for ");
        assert!(refused.contains(&by), "{refused}");
    }
    signal("-CONT");
    let shown: Vec<String> = [line].into_iter().chain(lines.map(|line| line.expect("text"))).collect();
    assert!(first.wait().expect("it was ours").success(), "{shown:?}");
    let shown: Vec<serde_json::Value> = shown.iter().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let order: Vec<u64> =
        shown.iter().filter(|object| object["event"] == "restarted").filter_map(|object| object["node"].as_u64()).collect();
    assert_eq!(order.len(), HOSTS, "{shown:?}");
    assert_eq!(shown.last().expect("a report")["event"], "restarted all");
    hosts.leader_of_three(1);
    for (before, after) in before.iter().zip(hosts.lives(1)) {
        assert!(before.node == after.node && before.pid == after.pid, "the same process: {before:?}, {after:?}");
        assert!(before.incarnation < after.incarnation, "another life: {before:?}, {after:?}");
    }
    assert_eq!(hosts.redis(0, 0, &["GET", "greeting"]), "hello");
}

/// What `martlet doctor --peers` on a host shows of each node, and its exit code.
fn doctor(hosts: &Hosts, host: usize) -> (Option<i32>, Vec<serde_json::Value>) {
    let ran = hosts.martlet(host, &["doctor", "--peers", "--seconds", "1"]);
    let peers: Vec<serde_json::Value> = ran.objects().into_iter().filter(|object| object["event"] == "peer").collect();
    assert_eq!(peers.len(), HOSTS, "{} {}", ran.out, ran.err);
    (ran.code, peers)
}

/// All nodes are seen, and then all except the one whose host is cut off.
fn the_doctor_sees_who_is_cut_off(hosts: &Hosts) {
    let (code, peers) = doctor(hosts, 1);
    assert_eq!(code, Some(0), "{peers:?}");
    for peer in peers {
        assert!(peer["measured"] == true && peer["round_trip_us"]["p50"].as_u64() > Some(0), "{peer}");
    }
    let port = format!("-n {} link set port2", hosts.namespace("switch"));
    ip_ok(&format!("{port} down"));
    let (code, peers) = doctor(hosts, 1);
    ip_ok(&format!("{port} up"));
    assert_eq!((code, &peers[0]["measured"], &peers[1]["measured"]), (Some(1), &true.into(), &true.into()), "{peers:?}");
    let why = peers[2]["detail"].as_str().expect("it is not measured");
    assert!(why.starts_with("TCP port 7600 cannot be reached (") && why.contains("is the host up"), "{why}");
    hosts.leader_of_three(1);
}

/// One of three is dead and another makes no progress. The last one is not restarted, neither by its own host nor by another.
fn the_last_one_is_needed(hosts: &Hosts, dead: usize, last: usize, stopped: usize) {
    let life = |of: usize| hosts.lives(last).into_iter().find(|life| life.node == of);
    let before = std::iter::repeat_with(|| life(last)).flatten().next().expect("it is seen some time");
    let pid = std::iter::repeat_with(|| life(stopped)).flatten().next().expect("it is seen some time").pid.to_string();
    let signal = |name: &str| assert!(Command::new("kill").args([name, &pid]).status().expect("it runs").success());
    signal("-STOP");
    for from in [last, dead] {
        let refused = hosts.martlet(from, &["cluster", "restart", &last.to_string(), "--patience", "5"]).code(1).err;
        assert!(
            refused
                .contains(&format!("node {last} is needed, so it has not been restarted: none of the other running nodes holds the data")),
            "{refused}"
        );
    }
    let refused = hosts.martlet(last, &["cluster", "restart", "--all", "--patience", "1"]).code(1).err;
    assert!(refused.contains("the cluster is not whole, so nodes [0, 1, 2] have not been restarted"), "{refused}");
    assert_eq!(life(last), Some(before), "nothing has been restarted");
    signal("-CONT");
}

#[test]
fn a_node_tells_its_service_manager_that_it_counts_and_begins_again_as_the_same_process() {
    let temp = TempDir::new();
    let (dir, notify) = (temp.join("shop"), temp.join("notify"));
    let port = free_ports(3);
    let [at, redis] = [port, port + 2].map(|port| format!("127.0.0.1:{port}"));
    run(&["host", "init", "shop", "--listen", &at, "--redis", &redis, "--no-password", "--no-start", "--dir", &dir]).ok();
    let manager = UnixDatagram::bind(&notify).expect("a socket");
    let heard = || {
        let mut heard = [0; 256];
        let len = manager.recv(&mut heard).expect("it is told");
        String::from_utf8(heard[..len].to_vec()).expect("text")
    };
    // As the unit starts it, except that it ends with this thread.
    let mut node = command(&["node", "--config", &dir, "--die-with-parent"]).env("NOTIFY_SOCKET", &notify).spawn().expect("it starts");
    assert!(heard().starts_with("READY=1\n"));

    let needed = run(&["cluster", "restart", "0", "--dir", &dir]).code(1).err;
    assert!(needed.contains("node 0 is needed, so it has not been restarted: no other node is running"), "{needed}");
    let again = run(&["cluster", "restart", "0", "--force", "--patience", "600", "--dir", &dir, "--json"]).ok().objects();
    assert_eq!((&again[0]["event"], &again[0]["pid"]), (&"restarted".into(), &node.id().into()), "{again:?}");
    assert_eq!(heard(), "STATUS=restarting", "a service manager that heard of a stop would not expect it back");
    assert!(heard().starts_with("READY=1\n"));

    assert!(Command::new("kill").arg(node.id().to_string()).status().expect("it runs").success());
    assert_eq!(heard(), "STOPPING=1");
    assert!(node.wait().expect("it was ours").success());
    run(&["cluster", "down", "--purge", "--dir", &dir]).ok();
}

/// The obstacle is the port for Redis clients.
#[test]
fn a_first_host_whose_node_ends_at_once_leaves_no_cluster_that_is_in_the_way() {
    let temp = TempDir::new();
    let dir = temp.join("shop");
    let port = free_ports(3);
    let [at, redis] = [port, port + 2].map(|port| format!("127.0.0.1:{port}"));
    let init = ["host", "init", "shop", "--listen", &at, "--redis", &redis, "--no-password", "--dir", &dir];
    let taken = std::net::TcpListener::bind(&redis).expect("a free port");
    let failed = run(&init).code(1).err;
    assert!(failed.contains("node 0 ended; the end of its log, "), "{failed}");
    assert!(failed.contains("have been stopped, and no cluster is left behind; their logs are in "), "{failed}");
    let left: Vec<_> = std::fs::read_dir(&dir).expect("it is there").map(|entry| entry.expect("it is read").file_name()).collect();
    assert_eq!(left, ["node-0.log"]);
    drop(taken);
    run(&init).ok();
    run(&["cluster", "down", "--purge", "--dir", &dir]).ok();
}

#[test]
fn a_directory_of_no_host_and_addresses_that_nobody_reaches_are_named() {
    let dir = TempDir::new();
    let nowhere = dir.join("none");
    let absent = run(&["host", "invite", "--dir", &nowhere]).code(3).err;
    assert!(absent.contains("`martlet host init` creates one"), "{absent}");
    let refused = run(&["host", "init", "shop", "--listen", "0.0.0.0", "--dir", &nowhere]).code(2).err;
    assert!(refused.contains("allowed is an IP address of this host"), "{refused}");
    let name = run(&["host", "init", "no name", "--listen", "127.0.0.1", "--dir", &nowhere]).code(2).err;
    assert!(name.contains("1 to 48 letters"), "{name}");
    assert!(!dir.path().join("none").exists(), "nothing is made of what is refused");
}
