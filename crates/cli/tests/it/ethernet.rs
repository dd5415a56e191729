//! A cluster whose nodes reach each other as ordinary hosts do: by sealed packets, here over the loopback device.

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use martlet_cluster::clients::redis::{Connection, Value as Reply};
use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::martlet::{command, run};

#[test]
fn a_cluster_over_udp_outlives_each_of_its_nodes() {
    for engine in ["mu", "primary-backup"] {
        let cluster = Cluster::with_room_for(3);
        let (redis, meeting) = (cluster.port.to_string(), (cluster.port + 3).to_string());
        let ports = ["--redis-port", &redis, "--fabric-port", &meeting];
        let up = ["cluster", "up", "--patience", "120", "--fabric", "ethernet", "--engine", engine];
        cluster.run(&[&up[..], &ports[..]].concat()).ok();
        if engine == "mu" {
            the_doctor_finds_all_but_the_dead(&cluster);
            clients_measure_their_puts(&cluster);
        }
        let value = |n: u16| format!("value {n} of {engine}");
        for victim in 0..3 {
            let key = format!("key{victim}");
            cluster.run(&["set", &key, &value(victim), "--timeout", "120000"]).ok();
            cluster.run(&["cluster", "kill", &victim.to_string()]).ok();
            for n in 0..=victim {
                let got = cluster.run(&["get", &format!("key{n}"), "--timeout", "120000"]).ok();
                assert_eq!(got.objects()[0]["value"], value(n), "{engine}: after the death of node {victim}");
            }
            cluster.up_again().ok();
        }
        if engine == "mu" {
            // A majority of the coordinators is dead. So the last one counts as needed until it ends, although no other node is left to need it.
            cluster.run(&["cluster", "kill", "1"]).ok();
            cluster.run(&["cluster", "kill", "2"]).ok();
        }
        for stopped in cluster.run(&["cluster", "down"]).ok().objects().iter().filter(|object| object["event"] == "stopped") {
            assert_eq!(stopped["how"], "ended", "{engine}: {stopped}");
        }
    }
}

/// Clients of a running cluster report how long they wait, and leave its keys as they were.
fn clients_measure_their_puts(cluster: &Cluster) {
    cluster.run(&["set", "00000007", "a user's", "--timeout", "120000"]).ok();
    let kept = keys(cluster);
    for (clients, crowd_of) in [("1", "one client"), ("3", "3 clients")] {
        let put = ["bench", "--no-reference", "put", "--seconds", "1", "--value-bytes", "77", "--clients", clients];
        let figures = cluster.run(&put).ok().objects();
        let of = |what: &str| figures.iter().find(|figure| figure["metric"] == what).unwrap_or_else(|| panic!("no {what}: {figures:?}"));
        let took = of(&format!("PUT on the fabric, {crowd_of}"));
        let rate = of(&format!("PUTs on the fabric, {crowd_of}"))["p50"].as_f64().expect("a rate");
        let n = took["n"].as_f64().expect("how many");
        assert!(n > 0.0 && rate <= n && took["p50"].as_f64() > Some(0.0), "more a second than there were: {figures:?}");
        assert_eq!(keys(cluster), kept);
        // And when it is interrupted in the middle.
        let lasting = ["bench", "--no-reference", "put", "--seconds", "86400", "--value-bytes", "77", "--clients", clients];
        let mut bench = command(&[&lasting[..], &["--dir", &cluster.dir]].concat())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        while !keys(cluster).iter().any(|(key, length)| key.starts_with("martlet:bench:") && *length == 77) {
            assert!(bench.try_wait().expect("ours").is_none(), "it has ended, and set no key that is its own");
        }
        let there = keys(cluster);
        assert!(kept.iter().all(|(key, length)| there.get(key) == Some(length)), "{there:?}");
        assert_eq!(there.len(), kept.len() + 64, "{there:?}");
        assert!(Command::new("kill").args(["-INT", &bench.id().to_string()]).status().expect("it is there").success());
        assert_eq!(bench.wait().expect("ours").code(), Some(130));
        assert_eq!(keys(cluster), kept);
    }
    assert_eq!(cluster.run(&["get", "00000007"]).ok().objects()[0]["value"], "a user's");
    cluster.run(&["del", "00000007"]).ok();
}

/// The keys that a cluster holds, and the lengths of their values.
fn keys(cluster: &Cluster) -> BTreeMap<String, i64> {
    let primary: u16 = cluster.primary().parse().expect("a number");
    let address = (Ipv4Addr::LOCALHOST, cluster.port + primary).into();
    let mut connection = Connection::open(address, Duration::from_secs(600)).expect("it serves");
    let mut ask = |words: &[&[u8]]| connection.command(words).expect("an answer");
    let Reply::Array(Some(keys)) = ask(&[b"KEYS", b"*"]) else { panic!("no keys") };
    let lengths = keys.into_iter().map(|key| {
        let Reply::Bulk(Some(key)) = key else { panic!("{key:?}") };
        let Reply::Integer(length) = ask(&[b"STRLEN", &key]) else { panic!("no length") };
        (String::from_utf8(key).expect("UTF-8"), length)
    });
    lengths.collect()
}

/// What a running cluster shows to this host, and what is reported of a node that does not run.
fn the_doctor_finds_all_but_the_dead(cluster: &Cluster) {
    let doctor = ["doctor", "--peers", "--seconds", "1"];
    let objects = cluster.run(&doctor).ok().objects();
    let of = |objects: &[Value], event: &str| objects.iter().filter(|object| object["event"] == event).cloned().collect::<Vec<_>>();
    let peers = of(&objects, "peer");
    assert_eq!(peers.len(), 3, "{objects:?}");
    for peer in &peers {
        let least = |value: &Value, least: u64| assert!(value.as_u64() >= Some(least), "{value}: {peer}");
        least(&peer["looks"], 10);
        least(&peer["round_trip_us"]["p50"], 1);
        least(&peer["beat_us"]["max"], 500);
    }
    let settings = &of(&objects, "settings")[0];
    for setting in ["heartbeat_us", "missed", "lease_us", "broadcast_timeout_us"] {
        assert!(settings[setting].as_u64() > Some(0) && settings["now"][setting].as_u64() > Some(0), "{setting}: {settings}");
    }
    cluster.run(&["cluster", "kill", "1"]).ok();
    let ran = cluster.run(&doctor).code(1);
    assert!(ran.err.contains("not measured: nodes [1]"), "{}", ran.err);
    let peers = of(&ran.objects(), "peer");
    assert_eq!(peers.iter().map(|peer| peer["measured"] == true).collect::<Vec<_>>(), [true, false, true], "{peers:?}");
    assert!(peers[1]["detail"].as_str().is_some_and(|why| why.contains("is its node running?")), "{}", peers[1]);
    cluster.up_again().ok();
}

/// A directory as it is on the host of node 0: it has no file of the other nodes, and this host knows only what it can reach.
#[test]
fn of_nodes_of_other_hosts_it_is_said_whether_they_are_reached() {
    let cluster = Cluster::with_room_for(3);
    let (redis, meeting) = (cluster.port.to_string(), (cluster.port + 3).to_string());
    let up =
        ["cluster", "up", "--patience", "120", "--fabric", "ethernet", "--engine", "mu", "--redis-port", &redis, "--fabric-port", &meeting];
    cluster.run(&up).ok();
    cluster.run(&["set", "key", "value", "--timeout", "120000"]).ok();
    let pids: Vec<String> = cluster.nodes().values().map(|(_, pid)| pid.expect("it runs").to_string()).collect();
    for (node, kind) in [(1, "toml"), (1, "pid"), (2, "toml"), (2, "pid")] {
        fs::remove_file(Path::new(&cluster.dir).join(format!("node-{node}.{kind}"))).expect("there");
    }
    let signal = |name: &str, pids: &[String]| assert!(Command::new("kill").arg(name).args(pids).status().expect("it is there").success());
    let of = |objects: &[Value], event: &str, field: &str| -> Vec<Value> {
        objects.iter().filter(|object| object["event"] == event).map(|object| object[field].clone()).collect()
    };
    let whole = loop {
        let shown = cluster.run(&["status"]).ok().objects();
        if of(&shown, "node", "state") == ["running", "running", "running"] {
            break shown;
        }
    };
    assert_eq!((of(&whole, "cluster", "replicas"), of(&whole, "cluster", "replicas_missing")), (vec![json!(3)], vec![json!([])]));

    // Both at once: the node that is left has no majority with which to say so in another view.
    signal("-STOP", &pids[1..]);
    let shown = cluster.run(&["status"]).ok();
    assert_eq!(of(&shown.objects(), "node", "state"), ["running", "not reached", "not reached"], "{}", shown.out);
    assert_eq!(of(&shown.objects(), "cluster", "replicas"), [1], "{}", shown.out);
    let missing = json!([{"node": 1, "state": "not reached"}, {"node": 2, "state": "not reached"}]);
    assert_eq!(of(&shown.objects(), "cluster", "replicas_missing"), [missing], "{}", shown.out);
    let why = "it takes a majority of nodes [0, 1, 2] to acknowledge requests, but only [0] are running";
    assert_eq!((of(&whole, "cluster", "stuck"), of(&shown.objects(), "cluster", "stuck")), (vec![Value::Null], vec![json!(why)]));
    let text = run(&["status", "--dir", &cluster.dir]).ok().out;
    assert!(text.contains("data held by 1 node only of 3 in the view: node 1 not reached, node 2 not reached"), "{text}");
    assert!(text.contains(&format!("as seen from here, the cluster does not go on by itself: {why}")), "{text}");
    let top = &cluster.run(&["top", "--once"]).ok().objects()[0];
    let states: Vec<&Value> = top["nodes"].as_array().expect("nodes").iter().map(|node| &node["state"]).collect();
    assert_eq!((states, &top["replicas"]), (vec![&json!("running"), &json!("not reached"), &json!("not reached")], &json!(1)));

    let shown = cluster.run(&["cluster", "recover"]).code(2);
    assert_eq!(of(&shown.objects(), "holds", "process"), ["running", "not reached", "not reached"], "{}", shown.out);
    let why = of(&shown.objects(), "holds", "why");
    assert_eq!(why, [Value::Null, json!("it cannot be reached from here, but may be running"), why[1].clone()]);
    signal("-KILL", &pids[1..]);
    // The others' files are on their own hosts, and so is whatever starts them.
    let done = cluster.run(&["cluster", "recover", "--from", "0", "--yes", "--patience", "120"]).ok().objects();
    assert_eq!(of(&done, "elsewhere", "nodes"), [json!([1, 2])], "{done:?}");
    assert!(of(&done, "started", "node").is_empty(), "{done:?}");
    assert_eq!(cluster.run(&["get", "key", "--timeout", "120000"]).ok().objects()[0]["value"], "value");
    cluster.run(&["cluster", "kill", "0"]).ok();
    let nobody = cluster.run(&["status"]).code(3);
    assert!(nobody.err.contains("can be reached from here"), "{}", nobody.err);
}

#[test]
fn a_node_that_is_no_longer_listed_is_no_longer_dialled() {
    let cluster = Cluster::with_room_for(3);
    let (redis, meeting) = (cluster.port.to_string(), cluster.port + 3);
    let ports = ["--redis-port", &redis, "--fabric-port", &meeting.to_string()];
    cluster.run(&[&["cluster", "up", "--patience", "120", "--fabric", "ethernet", "--engine", "mu"][..], &ports[..]].concat()).ok();
    cluster.run(&["cluster", "kill", "1"]).ok();
    cluster.run(&["cluster", "kill", "2"]).ok();
    let [listed, left] = [1, 2].map(|node| {
        let at = ("127.0.0.1", meeting + node);
        std::iter::repeat_with(|| TcpListener::bind(at)).find_map(Result::ok).expect("until it is free")
    });
    left.set_nonblocking(true).expect("a socket");
    let is_dialled = || std::iter::from_fn(|| left.accept().ok()).count() > 0;
    // The node that lives dials both, over and over.
    while !is_dialled() {}
    let file = Path::new(&cluster.dir).join("cluster.toml");
    let text = fs::read_to_string(&file).expect("its file");
    let (others, _) = text.rsplit_once("[[node]]").expect("it lists three nodes");
    let fresh = file.with_extension("new");
    fs::write(&fresh, others).and_then(|()| fs::rename(&fresh, &file)).expect("our directory");
    // Both are dialled equally often, until the node has seen the file.
    let mut alone = 0;
    while alone < 10 {
        drop(listed.accept().expect("it is dialled"));
        alone = if is_dialled() { 0 } else { alone + 1 };
    }
    fs::write(&file, text).expect("our directory");
}
