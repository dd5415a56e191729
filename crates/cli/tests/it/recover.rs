//! A majority is lost for good. The cluster goes on from one node that an operator chooses, and processes from before have no part in it.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::cluster::Cluster;
use crate::martlet::Ran;

const MU: [&str; 2] = ["--engine", "mu"];

/// What each node holds, as `recover` shows it.
fn holdings(ran: &Ran) -> Vec<Value> {
    ran.objects().into_iter().filter(|object| object["event"] == "holds").collect()
}

fn set(cluster: &Cluster, key: &str, value: &str) {
    cluster.run(&["set", key, value, "--timeout", "120000"]).ok();
}

#[track_caller]
fn holds(cluster: &Cluster, key: &str, value: &str) {
    assert_eq!(cluster.run(&["get", key, "--timeout", "120000"]).ok().objects()[0]["value"], value);
}

fn await_leaderless(cluster: &Cluster) {
    while cluster.run(&["status"]).objects().iter().any(|object| object["primary"].is_u64()) {}
}

/// Recovers from that node, and checks that this is one cluster of `count` nodes again, which serves.
fn recover_from(cluster: &Cluster, from: &str, count: usize, generation: u64) {
    let objects = cluster.run(&["cluster", "recover", "--from", from, "--yes", "--patience", "120"]).ok().objects();
    let done = objects.iter().find(|object| object["event"] == "recovered").expect("it says so");
    assert_eq!((done["from"].to_string(), done["generation"].as_u64()), (from.to_owned(), Some(generation)));
    assert_eq!(objects.last().expect("an end")["event"], "whole");
    cluster.await_members(count);
    let files = fs::read_to_string(Path::new(&cluster.dir).join("cluster.toml")).expect("the cluster's file");
    assert!(files.contains(&format!("[recovery]\ngeneration = {generation}\nfrom = {from}\n")), "{files}");
}

#[test]
fn mu_goes_on_from_the_memory_of_the_one_that_survives() {
    let cluster = Cluster::new();
    cluster.up_with(&MU).ok();
    set(&cluster, "greeting", "hello");
    let refused = cluster.run(&["cluster", "recover", "--from", "2", "--yes"]).code(1);
    assert!(refused.err.contains("nodes [0, 1, 2] go on by themselves"), "{}", refused.err);

    let log = |node: u16| fs::read_to_string(Path::new(&cluster.dir).join(format!("node-{node}.log"))).expect("a log");
    // One of them is only paused, and nothing in the directory says that it is there.
    cluster.run(&["cluster", "kill", "0", "--signal", "STOP"]).ok();
    cluster.run(&["cluster", "kill", "1"]).ok();
    await_leaderless(&cluster);
    let shown = cluster.run(&["cluster", "recover"]).code(2);
    let held = holdings(&shown);
    assert_eq!((held[0]["process"].as_str(), held[0]["in"].as_str()), (Some("stopped"), None), "{held:?}");
    assert_eq!((held[1]["process"].as_str(), held[1]["in"].as_str()), (Some("gone"), None), "{held:?}");
    assert_eq!(
        (held[2]["process"].as_str(), held[2]["in"].as_str(), held[2]["whole"].as_bool()),
        (Some("running"), Some("memory"), Some(true))
    );
    assert!(held[2]["last"].as_u64() >= Some(1) && held[2]["as_of_ms"].is_u64() && held[2]["loses"] == 0, "{held:?}");
    assert!(shown.err.contains("choose one of nodes [2] with --from"), "{}", shown.err);
    let asked = cluster.run(&["cluster", "recover", "--from", "2"]).code(1);
    assert!(asked.err.contains("Nothing has been changed; use --yes to do it"), "{}", asked.err);
    cluster.run(&["cluster", "recover", "--from", "1", "--yes"]).code(1);
    cluster.run(&["cluster", "recover", "--from", "7", "--yes"]).code(2);

    let (file, away) = (Path::new(&cluster.dir).join("node-0.pid"), Path::new(&cluster.dir).join("node-0.away"));
    let toml = Path::new(&cluster.dir).join("node-0.toml");
    fs::rename(&file, &away).and_then(|()| fs::rename(&toml, toml.with_extension("hidden"))).expect("there");
    let hidden = cluster.run(&["cluster", "recover", "--from", "2", "--yes"]).code(1);
    assert!(hidden.err.contains("node 0 is running, but was not started from here. End it first"), "{}", hidden.err);
    fs::rename(&away, &file).and_then(|()| fs::rename(toml.with_extension("hidden"), &toml)).expect("there");

    let survivor = cluster.nodes()[&2].1;
    recover_from(&cluster, "2", 3, 1);
    assert_eq!(cluster.nodes()[&2].1, survivor, "it has gone on, and not been started anew");
    assert!(log(2).contains("founds the cluster again, with all that it holds"), "{}", log(2));
    holds(&cluster, "greeting", "hello");
    set(&cluster, "greeting", "and so on");

    // Once more, after the cluster has come back like any other.
    cluster.run(&["cluster", "kill", "2"]).ok();
    holds(&cluster, "greeting", "and so on");
    cluster.up_again().ok();
    for node in ["2", "1"] {
        cluster.run(&["cluster", "kill", node]).ok();
    }
    if cluster.run(&["get", "greeting", "--timeout", "3000"]).code != Some(0) {
        recover_from(&cluster, "0", 3, 2);
        holds(&cluster, "greeting", "and so on");
    }
}

#[test]
fn primary_backup_goes_on_from_a_replica_whose_coordinators_are_lost() {
    let cluster = Cluster::with_room_for(4);
    cluster.up_with(&["--replicas", "4", "--coordinators", "3"]).ok();
    set(&cluster, "greeting", "hello");
    for node in ["0", "1", "2"] {
        cluster.run(&["cluster", "kill", node]).ok();
    }
    // It may lead, with the memory of the dead, but it cannot take other nodes in.
    let held = holdings(&cluster.run(&["cluster", "recover"]).code(2));
    assert_eq!(held[3]["in"], "memory", "{held:?}");
    recover_from(&cluster, "3", 4, 1);
    holds(&cluster, "greeting", "hello");
    set(&cluster, "greeting", "and so on");
    // All nodes coordinate again: the cluster outlives the node from which it was recovered.
    cluster.run(&["cluster", "kill", "3"]).ok();
    holds(&cluster, "greeting", "and so on");
    set(&cluster, "another", "one");
}

fn data(cluster: &Cluster, node: u16) -> PathBuf {
    Path::new(&cluster.dir).join(format!("data/node-{node}"))
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("made");
    for entry in fs::read_dir(from).expect("there").map(|entry| entry.expect("an entry")) {
        let to = to.join(entry.file_name());
        match entry.file_type().expect("of an entry").is_dir() {
            true => copy(&entry.path(), &to),
            false => drop(fs::copy(entry.path(), to).expect("copied")),
        }
    }
}

/// Two of three disks are lost. `running`: whether the third node has been started, and waits.
fn mu_goes_on_from_a_disk(running: bool) {
    let cluster = Cluster::new();
    cluster.up_with(&[&MU[..], &["--durability", "sync"]].concat()).ok();
    set(&cluster, "greeting", "hello");
    cluster.await_members(3);
    // They are killed at once, so that the group still has three members. Everything acknowledged is on two disks.
    while cluster
        .run(&["status"])
        .ok()
        .objects()
        .iter()
        .any(|node| node["event"] == "node" && node["counters"]["stable_index"].as_u64() < node["counters"]["committed_index"].as_u64())
    {
    }
    for node in ["2", "1", "0"] {
        cluster.run(&["cluster", "kill", node, "--signal", "STOP"]).ok();
    }
    let unchanged = cluster.run(&["cluster", "recover", "--from", "2", "--yes"]).code(1);
    assert!(unchanged.err.contains("stopped by a signal"), "{}", unchanged.err);
    for node in ["0", "1", "2"] {
        cluster.run(&["cluster", "kill", node]).ok();
    }
    let back = cluster.run(&["cluster", "recover", "--from", "2", "--yes"]).code(1);
    assert!(back.err.contains("`martlet cluster up` brings back what is on them"), "{}", back.err);

    // Node 0's data is kept aside, like a disk that was thought to be lost.
    let kept = Path::new(&cluster.dir).join("kept");
    copy(&data(&cluster, 0), &kept);
    for node in [0, 1] {
        fs::remove_dir_all(data(&cluster, node)).expect("removed");
    }
    if running {
        let waiting = cluster.run(&["cluster", "up", "--patience", "2"]).code(1);
        assert!(waiting.err.contains("was not ready"), "{}", waiting.err);
    }
    let held = holdings(&cluster.run(&["cluster", "recover"]).code(2));
    let wanted = if running { "memory" } else { "disk" };
    assert_eq!((held[0]["in"].is_null() || running, held[2]["in"].as_str()), (true, Some(wanted)), "{held:?}");
    assert!(held[2]["last"].as_u64() >= Some(1) && held[2]["as_of_ms"].is_u64(), "{held:?}");
    recover_from(&cluster, "2", 3, 1);
    holds(&cluster, "greeting", "hello");
    set(&cluster, "greeting", "and so on");

    // All end, and come back by themselves: the group on the disks is one of this generation.
    cluster.run(&["cluster", "down"]).ok();
    cluster.up_again().ok();
    holds(&cluster, "greeting", "and so on");

    // The disk is found, and node 0 comes back with it. It starts over, and does not act on what it finds there.
    cluster.run(&["cluster", "kill", "0"]).ok();
    fs::remove_dir_all(data(&cluster, 0)).expect("removed");
    copy(&kept, &data(&cluster, 0));
    cluster.up_again().ok();
    cluster.await_members(3);
    holds(&cluster, "greeting", "and so on");
    cluster.run(&["cluster", "down"]).ok();
    // With old data at two nodes, and the third not there, nothing is served.
    for node in [0, 1] {
        fs::remove_dir_all(data(&cluster, node)).expect("removed");
        copy(&kept, &data(&cluster, node));
    }
    let third = data(&cluster, 2);
    fs::rename(&third, third.with_extension("away")).expect("there");
    cluster.run(&["cluster", "up", "--patience", "3"]).code(1);
    assert_ne!(cluster.run(&["get", "greeting", "--timeout", "500"]).code, Some(0));
}

#[test]
fn mu_goes_on_from_the_one_disk_that_is_left() {
    mu_goes_on_from_a_disk(false);
}

#[test]
fn mu_goes_on_from_a_node_that_waits_with_what_its_disk_has() {
    mu_goes_on_from_a_disk(true);
}

/// Here, a heart that stands still is not taken for a death: an operator decides.
fn a_node_that_hangs_is_evicted(engine: &str, node: &str) {
    let cluster = Cluster::new();
    cluster.up_with(&["--engine", engine]).ok();
    cluster.run(&["cluster", "down"]).ok();
    let file = Path::new(&cluster.dir).join("cluster.toml");
    let text = fs::read_to_string(&file).expect("there");
    let patient = text
        // A node of mu reports to a new leader some heartbeats late. So a heartbeat must leave enough time for the eviction.
        .replace("heartbeat_us = 25000", "heartbeat_us = 1000000")
        .replace("broadcast_timeout_us = 1500000", "broadcast_timeout_us = 600000000");
    assert_ne!(patient, text);
    fs::write(&file, patient).expect("ours");
    cluster.up_again().ok();
    set(&cluster, "greeting", "hello");
    cluster.await_members(3);

    cluster.run(&["cluster", "kill", node, "--signal", "STOP"]).ok();
    let objects = cluster.run(&["cluster", "evict", node, "--patience", "120"]).ok().objects();
    assert_eq!((objects[0]["event"].as_str(), objects[0]["node"].to_string()), (Some("evicted"), node.to_owned()));
    assert_eq!(cluster.members().len(), 2);
    set(&cluster, "greeting", "and so on");
    let again = cluster.run(&["cluster", "evict", node]).code(3);
    assert!(again.err.contains("no node relies on it"), "{}", again.err);

    cluster.run(&["cluster", "kill", node, "--signal", "CONT"]).ok();
    cluster.await_members(3);
    holds(&cluster, "greeting", "and so on");
    let log = fs::read_to_string(Path::new(&cluster.dir).join(format!("node-{node}.log"))).expect("a log");
    assert!(log.contains("starts over as a new incarnation"), "{log}");
}

#[test]
fn a_member_of_mu_s_group_that_hangs_is_evicted_and_starts_over_when_it_goes_on() {
    a_node_that_hangs_is_evicted("mu", "2");
}

#[test]
fn a_replica_of_primary_backup_that_hangs_is_evicted_and_starts_over_when_it_goes_on() {
    a_node_that_hangs_is_evicted("primary-backup", "2");
}

#[test]
fn a_primary_that_hangs_is_evicted_and_another_one_leads() {
    a_node_that_hangs_is_evicted("primary-backup", "0");
}

#[test]
fn one_that_is_needed_is_not_evicted() {
    let cluster = Cluster::new();
    cluster.up_with(&MU).ok();
    cluster.await_members(3);
    cluster.run(&["cluster", "kill", "1"]).ok();
    cluster.await_members(2);
    cluster.run(&["cluster", "kill", "2"]).ok();
    let refused = cluster.run(&["cluster", "evict", "0", "--patience", "3"]);
    assert_eq!(refused.code, Some(1), "{}", refused.err);
}
